"""`rlx.train`: what an exception leaves, wherever it comes from, and the run that goes on from there as if there was none."""

import os
import signal
import traceback
from functools import cache

import numpy as np
import pandas as pd
import pytest

import rlx
from rlx import training
from rlx.sinks import parquet
from rlx.sinks.console import Progress
from tests.train_support import (
    PER,
    Boom,
    assert_same,
    assert_same_result,
    at,
    no_fsync,  # noqa: F401
    ppo,
    raising,
    reference,
    train,
)


def once(monkeypatch, owner, name, when, do) -> None:
    """`owner.name` calls `do` instead, the first time that `when(*args, **kwargs)`."""
    original, left = getattr(owner, name), iter([1])

    def replacement(*args, **kwargs):
        if when(*args, **kwargs) and next(left, None):
            do()
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, replacement)


def stored(out) -> rlx.types.Carry:
    return ppo().restore(out / "checkpoints" / "last")


def iteration_of(carry) -> int:
    return int(carry.i)


@cache
def best_iteration() -> int:
    """Of 30 iterations, evaluated at every third: where the one `best` is, that nothing overwrites."""
    means = train(steps=30 * PER).returns.mean(axis=0)
    assert 0 < means.argmax() < len(means) - 1
    return 3 * (1 + int(means.argmax()))


SOURCES = {
    "evaluation": (rlx.Trainer, "evaluate", lambda t, c, *_, max_episode_steps=None: not max_episode_steps and c.i == 6),
    "last evaluation": (rlx.Trainer, "evaluate", lambda t, c, *_, max_episode_steps=None: not max_episode_steps and c.i == 12),
    "table": (parquet, "write", lambda path, df: df["step"].max() == 6 * PER),
    "report": (rlx.Trainer, "report", lambda t, totals: totals.updates[0] == 2),
    "progress": (Progress, "update", lambda bar, step, **metrics: step == 6 * PER),
    "checkpoint": (rlx.Trainer, "save", lambda t, c, path: c.i == 8),
    "best checkpoint": (rlx.Trainer, "save", lambda t, c, path: path.name == "best" and c.i == best_iteration()),
}


@pytest.mark.parametrize("kind", [Boom, KeyboardInterrupt])
@pytest.mark.parametrize("source", SOURCES)
def test_an_exception_from_anywhere_passes_after_storing(tmp_path, monkeypatch, source, kind):
    steps = 12 * PER if source != "best checkpoint" else 30 * PER
    whole = train(steps=steps)
    error = kind("x")
    once(monkeypatch, *SOURCES[source], raising(error))
    with pytest.raises(kind) as caught:
        train(out=str(tmp_path), steps=steps)
    assert caught.value is error and error.__cause__ is None and not getattr(error, "__notes__", None)
    step = ppo().steps(stored(tmp_path))
    assert step == 12 * PER if source == "last evaluation" else step > 4 * PER
    table = pd.read_parquet(tmp_path / "metrics.parquet")
    assert table["step"].max() == step and not table.duplicated(["run", "step"]).any()
    assert_same_result(train(out=str(tmp_path), steps=steps, resume=True), whole)
    best = train(out=str(tmp_path / "whole"), steps=steps).carry("best")
    assert_same(ppo().restore(tmp_path / "checkpoints" / "best"), best)


def test_the_state_is_stored_where_the_table_cannot_be(tmp_path, monkeypatch):
    write = parquet.write
    fail = lambda path, df: raising(rlx.RlxError("disk full"))() if df["step"].max() >= 6 * PER else write(path, df)
    monkeypatch.setattr(parquet, "write", fail)
    with pytest.raises(rlx.RlxError, match="disk full") as caught:
        train(out=str(tmp_path))
    assert "could not store" in caught.value.__notes__[0] and iteration_of(stored(tmp_path)) == 6


def test_an_exception_of_the_program_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    """It had been given the state, which is gone: the traceback says so."""
    advance = rlx.Trainer.advance

    def failing(self, carry, totals, n):
        carry, totals = advance(self, carry, totals, n)
        if int(carry.i) >= 6:
            raise Boom("inside")
        return carry, totals

    monkeypatch.setattr(rlx.Trainer, "advance", failing)
    with pytest.raises(Boom, match="inside") as caught:
        train(out=str(tmp_path))
    assert iteration_of(stored(tmp_path)) == 4
    text = "".join(traceback.format_exception(caught.value))
    assert "could not store the state" in text and str(tmp_path) in text and len(caught.value.__notes__) == 1
    assert not [p for p in (tmp_path / "checkpoints").iterdir() if p.suffix]
    monkeypatch.undo()
    assert_same_result(train(out=str(tmp_path), resume=True), reference())


def test_an_exception_without_out():
    with pytest.raises(Boom) as caught:
        train(callback=at(6 * PER, raising(Boom())))
    assert not getattr(caught.value, "__notes__", None)


def test_ctrl_c_while_a_resumed_run_compiles(tmp_path, monkeypatch):
    """It had stopped at 5 iterations, between the marks: still one row there, and nothing counted twice."""

    def interrupt():
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as m:
        m.setattr(training, "CHUNK_SECONDS", 0)  # one iteration each
        once(m, Progress, "update", lambda bar, step, **metrics: step == 5 * PER, interrupt)
        first = train(out=str(tmp_path))
    assert first.interrupted and first.metrics["step"].max() == 5 * PER
    for _ in range(2):
        with monkeypatch.context() as m:
            once(m, rlx.Trainer, "advance", lambda t, c, totals, n: n == 0, interrupt)
            again = train(out=str(tmp_path), resume=True)
        assert again.interrupted
        pd.testing.assert_frame_equal(again.metrics, first.metrics)
        pd.testing.assert_frame_equal(rlx.load(tmp_path).metrics, first.metrics)
        assert_same(again.carry(), first.carry())
    whole = train(out=str(tmp_path), resume=True)
    assert_same(whole.carry(), reference().carry())
    sums = [r.metrics.groupby("run")[["episodes", "updates"]].sum() for r in (whole, reference())]
    pd.testing.assert_frame_equal(*sums)


# --- best ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("evaluations", "best"),
    [
        ([[450, 480], [500, np.nan]], 0),  # a run without a return is worse than any that has one
        ([[np.nan, 1], [np.nan, 2], [3, np.nan]], 2),
        ([[np.nan, np.nan], [np.nan, -5]], 1),
        ([[-3, -5], [-3, -4], [-9, -9]], 1),
    ],
)
def test_what_best_is_best_by(evaluations, best):
    scores = [training._score(pd.DataFrame({"run": [0, 1], "step": 10, "return": e})) for e in evaluations]
    assert scores.index(max(scores)) == best and scores[best] > training.WORST
    table = pd.concat(pd.DataFrame({"run": [0, 1], "step": j, "return": e}) for j, e in enumerate(evaluations))
    assert training._score(table) == scores[best]


def test_nothing_is_best_without_a_return():
    assert training._score(pd.DataFrame({"run": [0], "step": [1], "return": [np.nan]})) == training.WORST
    assert training._score(pd.DataFrame({"run": [0], "step": [1], "return_0": [1.0]})) == training.WORST
