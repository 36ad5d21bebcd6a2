"""`rlx.train`: the rows of its table, and when it evaluates and logs, which changes nothing of what is learnt."""

import functools
import os

import numpy as np
import pandas as pd
import pytest

import rlx
from rlx.results import Result
from tests.train_support import (
    CARTPOLE,
    MARKS,
    PER,
    RUN,
    TINY,
    assert_same,
    fails,
    no_fsync,  # noqa: F401
    ppo,
    reference,
    train,
)

# --- the table -----------------------------------------------------------------------------------------------------------


def test_one_row_for_each_run_and_mark():
    table = reference().metrics
    assert list(table.columns[:5]) == ["run", "seed", "step", "return", "unfinished"]
    assert {"episode_return", "episode_length", "episodes", "nan_steps", "updates", "approx_kl", "explained_variance"} < set(
        table
    )
    assert [(r, s) for r in (0, 1) for s in MARKS] == list(zip(table["run"], table["step"], strict=True))
    assert (table["seed"] == table["run"].map({0: 3, 1: 5})).all()
    evaluated = table["step"] % (3 * PER) == 0
    assert (table["return"].notna() == evaluated).all() and (table["unfinished"].notna() == evaluated).all()
    assert not (reference().interrupted or table["policy_loss"].isna().any())
    assert all(isinstance(t, np.dtype) and t.kind in "iuf" for t in table.dtypes)


def test_rows_cover_the_steps_since_the_last_row():
    table = reference().metrics
    assert table.groupby("run")["updates"].apply(list).tolist() == [[3, 1, 2, 2, 1, 3]] * 2
    whole = train(eval_every=RUN["steps"], save_every=RUN["steps"]).metrics.set_index("run")
    sums = table.groupby("run")[["episodes", "nan_steps", "updates"]].sum()
    assert len(whole) == 2 and (sums == whole[["episodes", "nan_steps", "updates"]]).all(axis=None)
    total = lambda t, by: (t["episode_return"].fillna(0) * t["episodes"]).groupby(by).sum()
    np.testing.assert_allclose(total(table, table["run"]), total(whole, whole.index), rtol=1e-6)


def test_returns_are_the_evaluations():
    result = reference()
    assert result.returns.shape == (2, 4) and result.returns.dtype == np.float64
    assert len(np.unique(result.returns)) > 4  # the policy does change: what is tested below can fail
    for run in (0, 1):
        expected = result.metrics.query("run == @run")["return"].dropna()
        np.testing.assert_array_equal(result.returns[run], expected)
    assert (result.returns >= 1).all() and (result.returns <= 500).all()


def test_returns_of_a_vector_reward():
    """No scalar agent learns from one, hence a table made by hand: 2 runs, 2 evaluations, 11 objectives."""
    rows = [{"run": r, "seed": r, "step": s, "unfinished": 0 if s != 15 else np.nan}
            | {f"return_{j}": 100 * r + s + j / 16 if s != 15 else np.nan for j in range(11)}
            for s in (20, 15, 10) for r in (1, 0)]  # fmt: skip
    returns = Result(pd.DataFrame(rows), ppo(), None).returns
    expected = 100 * np.arange(2)[:, None, None] + np.array([10, 20])[:, None] + np.arange(11) / 16
    assert returns.shape == (2, 2, 11)
    np.testing.assert_array_equal(returns, expected)


def test_an_evaluation_that_no_episode_finishes_counts():
    trainer = rlx.Trainer("ppo", CARTPOLE, env_params={"max_steps_in_episode": 1000}, **TINY)
    trainer.evaluate = functools.partial(trainer.evaluate, max_episode_steps=3)  # shorter than the episodes
    result = train(trainer, steps=2 * PER, eval_every=PER)
    assert result.returns.shape == (2, 2) and np.isnan(result.returns).all()
    assert (result.metrics["unfinished"] == 2).all()


def test_stopped_before_the_first_evaluation():
    result = train(callback=lambda *_: True, save_every=PER)
    assert result.interrupted and result.metrics["step"].unique() == [PER]
    assert result.returns.shape == (2, 0)
    assert np.isnan(result.table()["mean"].item())


# --- periods -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("marks", "rows", "evaluations"),
    [
        ({"eval_every": 5, "log_every": 4, "save_every": 7}, [4, 5, 7, 8, 10, 12], [5, 10, 12]),
        ({"eval_every": 12, "log_every": 6, "save_every": 12}, [6, 12], [12]),
        ({"eval_every": 99, "log_every": 99, "save_every": 99}, [12], [12]),
        ({"eval_every": 4, "log_every": None, "save_every": None}, [3, 4, 6, 8, 9, 12], [4, 8, 12]),
        ({"eval_every": None, "log_every": None, "save_every": None}, [*range(1, 13)], [*range(1, 13)]),
    ],
)
def test_periods_are_independent_and_change_no_bit(marks, rows, evaluations):
    result = train(**{name: None if every is None else every * PER for name, every in marks.items()})
    run = result.metrics.query("run == 1")
    assert run["step"].tolist() == [PER * i for i in rows]
    assert run.dropna(subset="return")["step"].tolist() == [PER * i for i in evaluations]
    assert_same(result.carry(), reference().carry())
    both = run.merge(reference().metrics.query("run == 1").dropna(subset="return"), on="step")
    np.testing.assert_array_equal(both["return_x"].fillna(both["return_y"]), both["return_y"])


@pytest.mark.parametrize("name", ["steps", "eval_every", "save_every", "log_every"])
def test_a_period_that_does_not_divide(name, tmp_path):
    start = lambda value: train(out=str(tmp_path / "new"), **{name: value})
    fails(lambda: start(30), f"{name}=30 must be a positive multiple", "num_envs * rollout_length = 20", "nearest is 20 or 40")
    fails(lambda: start(19), f"{name}=19", "nearest is 20")
    fails(lambda: start(0), f"{name}=0")
    fails(lambda: start(-20), f"{name}=-20")
    fails(lambda: start(20.0), f"{name}=20.0 must be int")
    assert os.listdir(tmp_path) == []
