"""Runs that fail are marked and stay, others are untouched; what is measured unevenly becomes one table."""

from functools import cache

import numpy as np
import pandas as pd
import pytest

from rlx.sweeps import SweepResult
from rlx.sweeps import plan as p
from rlx.sweeps.results import column, failures, merged
from tests.sweeps.sweeps_support import LR, of, sweep, whole
from tests.train_support import CARTPOLE, fails


@cache
def failing() -> SweepResult:
    return sweep({"lr": [LR["lr"][0], 1e30, LR["lr"][2]]}, seeds=[3, 5], batch_of_runs=6)


def test_failed_runs_are_marked_and_stay():
    rows, table = of(failing(), 1), failing().table()
    assert rows["failed"].all() and len(rows) == 6
    assert rows[["return", "episode_return", "value_loss"]].isna().all(axis=None)
    assert rows[["episodes", "updates", "nan_steps"]].notna().all(axis=None)
    last = table.iloc[-1]
    assert (last["config"], last["runs"], last["failed"]) == (1, 2, 2) and np.isnan(last["iqm"])
    assert table["failed"].tolist() == [0, 0, 2]


def test_other_runs_are_untouched():
    for c in (0, 2):
        mine, its = of(failing(), c), of(whole(), c)
        pd.testing.assert_frame_equal(mine, its, check_exact=True)


def test_nothing_but_failures(tmp_path):
    result = sweep({"lr": [1e30, 2e30, 3e30]}, seeds=[3, 5], batch_of_runs=6, out=str(tmp_path / "s"))
    assert result.table()["failed"].tolist() == [2, 2, 2]
    fails(result.best, "no run has a finite score")
    assert (tmp_path / "s" / "table.csv").exists() and not (tmp_path / "s" / "best.toml").exists()


def frame(**columns) -> pd.DataFrame:
    n = len(columns["loss"])
    own = {"config": 0, "seed": 0, "updates": 1, "unfinished": 0.0, "episodes": 0, "episode_length": np.nan, "nan_steps": 0}
    own |= {} if "return_0" in columns else {"return": np.nan}
    return pd.DataFrame(
        {"run": [0] * n, "step": range(n), **columns} | {k: [v] * n for k, v in own.items() if k not in columns}
    )[["run", "config", "seed", "step", *(c for c in {**columns, **own} if c not in ("run", "config", "seed", "step"))]]


def test_failure_begins_at_the_first_bad_loss_and_lasts():
    table = failures(frame(loss=[1.0, np.inf, 2.0], **{"return": [1.0, 2.0, 3.0]}))
    assert table["failed"].tolist() == [False, True, True]
    np.testing.assert_array_equal(table["return"], [1.0, np.nan, np.nan])
    np.testing.assert_array_equal(table["loss"], [1.0, np.nan, np.nan])


def test_what_is_no_failure():
    """No update yet; no episode that ended; no evaluation in this row; a vector reward's columns."""
    assert not failures(frame(loss=[np.nan], updates=[0]))["failed"].any()
    assert not failures(frame(loss=[1.0], episode_return=[np.nan], **{"return": [np.nan]}))["failed"].any()
    vector = frame(loss=[1.0], **{f"{name}_{k}": [np.nan] for name in ("episode_return", "return") for k in (0, 1)})
    assert not failures(vector)["failed"].any()


def test_failures_of_one_run_are_not_the_next_ones():
    table = pd.concat([frame(loss=[1.0, np.nan]), frame(loss=[1.0, 1.0]).assign(run=1)], ignore_index=True)
    assert failures(table)["failed"].tolist() == [False, True, False, False]


def empty_plan(space: list[str], configs: list[dict]) -> p.Plan:
    return p.Plan("ppo", CARTPOLE, {}, space, configs, [0], [])


def test_groups_that_measure_different_things():
    tables = [
        frame(loss=[1.0], **{"return": [1.0]}),
        frame(loss=[1.0], extra=[2.0], **{"return": [2.0]}).assign(run=1, config=1),
    ]
    table = merged(tables, empty_plan(["n"], [{"n": 3}, {"n": None}]))
    assert not table["failed"].any() and np.isnan(table["extra"][0]) and table["n"][0] == 3 and np.isnan(table["n"][1])


def test_a_vector_reward_has_no_ranking_and_loses_nothing(tmp_path):
    table = frame(loss=[1.0, 1.0], return_0=[1.0, 2.0], return_1=[3.0, 4.0])
    result = SweepResult(merged([table], empty_plan(["lr"], [{"lr": 0.1}])), empty_plan(["lr"], [{"lr": 0.1}]), tmp_path)
    fails(result.table, "scalar reward")
    fails(result.best, "scalar reward")
    result.write(tmp_path)
    assert [f.name for f in tmp_path.iterdir()] == ["metrics.parquet"]
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "metrics.parquet"), result.metrics)


@pytest.mark.parametrize(
    "values, out",
    [
        ([1, 2.5], [1, 2.5]),
        ([True, None], [True, None]),
        (["a", "b"], ["a", "b"]),
        ([(8,), (8, 8)], ["(8,)", "(8, 8)"]),
        ([1, "a"], ["1", "a"]),
        ([True, 1], ["True", "1"]),
        ([None, (1,)], [None, "(1,)"]),
    ],
)
def test_values_of_a_column(values, out):
    assert column(values) == out


def test_unfinished_evaluations_are_failed_runs_of_the_ranking():
    table = frame(loss=[1.0], unfinished=[2.0], **{"return": [np.nan]})
    result = SweepResult(merged([table], empty_plan(["lr"], [{"lr": 0.1}])), empty_plan(["lr"], [{"lr": 0.1}]), None)
    assert result.table()["failed"].tolist() == [1] and not result.metrics["failed"].any()
