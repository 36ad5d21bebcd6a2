"""Sweeps from space to table: what single runs give, whatever the batches and devices; one compilation a group."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest

import rlx
from tests.sweeps.sweeps_support import LR, RUN, assert_close, cut, grouped, grouped_and_trainers, of, sweep, whole
from tests.train_support import CARTPOLE, TINY
from tests.trainer_support import compilations

# --- the table ---------------------------------------------------------------------------------------------------------


def test_the_table():
    metrics = whole().metrics
    assert list(metrics.columns[:6]) == ["run", "config", "seed", "lr", "step", "return"] and metrics.columns[-1] == "failed"
    assert metrics["run"].tolist() == list(np.repeat(range(6), 3)) and metrics["step"].tolist() == [40, 80, 120] * 6
    assert metrics["config"].tolist() == list(np.repeat(range(3), 6))
    assert metrics["seed"].tolist() == list(np.repeat([3, 5] * 3, 3))
    assert metrics["lr"].tolist() == list(np.repeat(LR["lr"], 6))
    assert metrics["return"].notna().all() and not metrics["failed"].any() and not whole().interrupted and whole().out is None


def test_fields_of_every_kind():
    metrics, configs = grouped().metrics, grouped().plan.configs
    assert len(grouped().plan.groups) == 2 and metrics["run"].tolist() == list(np.repeat(range(16), 3))
    for c, config in enumerate(configs):
        rows = of(grouped(), c)
        assert set(rows["hidden_sizes"]) == {str(config["hidden_sizes"])} and set(rows["lr"]) == {config["lr"]}
        assert set(rows["env.max_steps_in_episode"]) == {config["env.max_steps_in_episode"]}
        assert rows["return"].max() <= config["env.max_steps_in_episode"]
    longest = metrics.groupby("env.max_steps_in_episode")["return"].max()
    assert longest.loc[20] == 20 and longest.loc[21] == 21


def test_runs_are_those_of_train():
    """Seed by seed and value by value, `rlx.train` gives the rows of the sweep."""
    for c in (1, 6):
        config = grouped().plan.configs[c]
        limit = {"max_steps_in_episode": config["env.max_steps_in_episode"]}
        fields = TINY | {"hidden_sizes": config["hidden_sizes"], "lr": config["lr"]}
        single = rlx.train("ppo", CARTPOLE, seeds=2, env_params=limit, progress=False, **RUN, **fields).metrics
        rows = of(grouped(), c)
        np.testing.assert_array_equal(rows["step"], single["step"])
        for name in single.columns.difference(["run", "seed", "step"]):
            np.testing.assert_allclose(rows[name], single[name], rtol=1e-4, atol=1e-4, err_msg=name)


def test_batches_do_not_change_the_table():
    assert [g.batch for g in cut().plan.groups] == [3]
    assert_close(whole().metrics, cut().metrics)
    assert_close(whole().metrics, sweep(LR, seeds=[3, 5], batch_of_runs=100).metrics)


def test_what_fills_up_never_appears():
    result = sweep({"lr": [0.001, 0.01, 0.02, 0.03, 0.05]}, batch_of_runs=3)
    (group,) = result.plan.groups
    assert [len(batch) for batch in result.plan.batches(group)] == [3, 3] and group.batch * 2 == 6
    assert sorted(set(result.metrics["run"])) == [0, 1, 2, 3, 4] and len(result.metrics) == 15
    assert not result.metrics.duplicated(["run", "step"]).any()


def test_repeats_are_bit_for_bit():
    again = sweep(LR, seeds=[3, 5], batch_of_runs=4)
    pd.testing.assert_frame_equal(again.metrics, cut().metrics, check_exact=True)


def test_ranking():
    table = whole().table()
    assert list(table.columns) == ["config", "lr", "runs", "mean", "iqm", "low", "high", "failed"]
    assert table.index.tolist() == [1, 2, 3] and sorted(table["config"]) == [0, 1, 2] and set(table["runs"]) == {2}
    last = whole().metrics[whole().metrics["step"] == 120].groupby("config")["return"].mean()
    assert table["mean"].tolist() == sorted(last, reverse=True)
    best = whole().best()
    assert best["config"] == table["config"].iloc[0] and best["lr"] == LR["lr"][best["config"]] and best["iqm"] == last.max()


def test_a_field_that_is_a_metric_too():
    """SAC reports the temperature that it has learnt; the field is where it began."""
    fields = {"replay_capacity": 64, "batch_size": 8, "hidden_sizes": (8,), "learning_starts": 20, "num_envs": 2}
    space = {"temperature": [0.5, 2.0], "target_entropy": [None]}
    options = {"steps": 60, "eval_every": 30, "batch_of_runs": 2}
    result = sweep(space, "probe/DelayedCredit-continuous", "sac", **options, **fields)
    for c, config in enumerate(result.plan.configs):
        rows = of(result, c)
        assert set(rows["temperature"]) == {config["temperature"]}
        np.testing.assert_allclose(rows["temperature_measured"], config["temperature"], rtol=0.05)
        assert rows["target_entropy"].isna().all()
    assert not result.metrics["failed"].any()
    assert result.table()["temperature"].tolist() == [result.plan.configs[c]["temperature"] for c in result.table()["config"]]


# --- compilation -------------------------------------------------------------------------------------------------------


def programs(trainer: rlx.Trainer) -> list[int]:
    """How often the three programs of a trainer were compiled: begin, train, evaluate."""
    functions = [trainer._init, trainer._segment, trainer._evaluator(RUN["eval_episodes"])]
    return [f._cache_size() for f in functions]


def test_groups_compile_exactly_once_each():
    result, made = grouped_and_trainers()
    assert len(made) == len(result.plan.groups) == 2 and [len(result.plan.batches(g)) for g in result.plan.groups] == [3, 3]
    assert [programs(trainer) for trainer in made] == [[1, 1, 1]] * 2


def test_a_second_sweep_compiles_nothing():
    cut()
    with compilations() as events:
        other = sweep({"lr": [0.002, 0.02, 0.03]}, seeds=[8, 9], batch_of_runs=4)
    assert not events
    assert not np.isin(other.metrics["lr"], LR["lr"]).any()
    with compilations() as events:
        sweep({"gamma": [0.9], "clip_eps": [0.1, 0.2, 0.3]}, seeds=[8, 9], batch_of_runs=3, steps=40)
    assert not events


# --- devices, hosts ----------------------------------------------------------------------------------------------------


def test_two_devices_agree_with_one():
    two = sweep(LR, seeds=[3, 5], batch_of_runs=4, devices=2)
    assert [g.batch for g in two.plan.groups] == [4]  # 4 + 2, filled up
    assert_close(two.metrics, whole().metrics)


def test_host_environments():
    """Several batches, one after the other, in environments outside the program."""
    pytest.importorskip("gymnasium")
    result = sweep(LR, "gymnasium/CartPole-v1", seeds=[3, 5], batch_of_runs=4)
    assert [g.batch for g in result.plan.groups] == [3] and result.metrics["run"].tolist() == list(np.repeat(range(6), 3))
    again = sweep({"lr": LR["lr"][1:2]}, "gymnasium/CartPole-v1", seeds=[5, 9, 11], batch_of_runs=3)
    mine = of(result, 1)[lambda t: t["seed"] == 5].reset_index(drop=True)  # in other company, in the second batch
    its = of(again, 0)[lambda t: t["seed"] == 5].reset_index(drop=True)
    pd.testing.assert_frame_equal(mine.drop(columns=["run", "config"]), its.drop(columns=["run", "config"]), rtol=1e-4)


def test_seeds_are_uint32():
    result = sweep({"lr": [0.001, 0.01]}, seeds=[2**32 - 1, 0, 7], batch_of_runs=6)
    assert result.metrics["seed"].tolist() == list(np.repeat([2**32 - 1, 0, 7] * 2, 3))
    assert jax.numpy.isfinite(result.metrics["return"].to_numpy()).all()


EIGHT = """
import jax, sys
from tests.sweeps.sweeps_support import LR, sweep
assert len(jax.devices()) == 8
for name, devices, batch in [("one", 1, 9), ("eight", 8, 8), ("again", 8, 8)]:
    space = {"lr": LR["lr"], "gamma": [0.9, 0.99]}
    result = sweep(space, seeds=3, devices=devices, steps=1000, eval_every=500, batch_of_runs=10)  # 50 updates
    assert [g.batch for g in result.plan.groups] == [batch]
    result.metrics.to_parquet(f"{sys.argv[1]}/{name}.parquet")
"""


@pytest.mark.slow
def test_eight_devices_agree_with_one(tmp_path):
    """18 runs in batches of eight, the last filled up with six; twice, to the same bits."""
    flags = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    command = [sys.executable, "-c", EIGHT, str(tmp_path)]
    subprocess.run(command, cwd=Path(__file__).parents[2], env=flags, check=True, timeout=300)
    one, eight, again = (pd.read_parquet(tmp_path / f"{name}.parquet") for name in ("one", "eight", "again"))
    assert one["run"].nunique() == 18
    assert_close(one, eight)
    pd.testing.assert_frame_equal(eight, again, check_exact=True)
