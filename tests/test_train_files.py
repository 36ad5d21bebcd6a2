"""`rlx.train`: what it stores, and the run that goes on from there as if it had never stopped or crashed."""

import json
import os
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest

import rlx
from rlx import checkpoint, footprint
from rlx.results import Result
from tests.train_support import (
    CARTPOLE,
    PER,
    RUN,
    TINY,
    Boom,
    assert_same,
    assert_same_result,
    at,
    contents,
    fails,
    no_fsync,  # noqa: F401
    ppo,
    raising,
    reference,
    sac,
    train,
)

# --- what is stored --------------------------------------------------------------------------------------------------------


def test_nothing_is_written_without_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = train()
    assert os.listdir(tmp_path) == []
    fails(lambda: result.carry("best"), "best carry was not stored", "out=")


def test_files(tmp_path):
    out = tmp_path / "new" / "parents"
    train(out=str(out))
    assert sorted(os.listdir(out)) == ["checkpoints", "metrics.parquet", "run.json"]
    assert sorted(os.listdir(out / "checkpoints")) == ["best", "last"]
    description = json.loads((out / "run.json").read_text())
    assert (description["agent"], description["env"]) == ("ppo", CARTPOLE)
    assert not description["own_env"] and not description["own_agent"]
    assert description["config"]["lr"] == 0.05 and description["run"]["seeds"] == [3, 5] and "jax" in description["versions"]


def test_checkpoints_are_readable_alone(tmp_path):
    train(out=str(tmp_path))
    meta = checkpoint.read_meta(tmp_path / "checkpoints" / "last")
    assert meta["runs"] == 2 and meta["steps"] == 12 * PER and meta["config"]["lr"] == 0.05


def test_numbered_checkpoints(tmp_path):
    train(out=str(tmp_path), keep=2, save_every=2 * PER)
    directory = tmp_path / "checkpoints"
    assert sorted(os.listdir(directory)) == ["best", "last", "step-200", "step-240"]
    for step in (200, 240):
        assert ppo().steps(ppo().restore(directory / f"step-{step}")) == step
    assert_same(ppo().restore(directory / "last"), ppo().restore(directory / "step-240"))


def test_best_is_the_carry_that_was_evaluated_best(tmp_path):
    """Best by the mean over the population; evaluated again with the same key it has the returns in the table."""
    result = train(out=str(tmp_path), steps=30 * PER, save_every=30 * PER)
    best, means = rlx.load(tmp_path).carry("best"), result.returns.mean(axis=0)
    step = ppo().steps(best)
    assert step == 3 * PER * (1 + means.argmax()) and step < 30 * PER  # else last would pass for best
    returns = ppo().evaluate(best, 2, jax.random.fold_in(jax.random.key(1), best.i))
    np.testing.assert_array_equal(returns.mean(axis=1), result.returns[:, means.argmax()])


def test_results_are_never_overwritten(tmp_path):
    train(out=str(tmp_path), steps=PER, eval_every=PER)
    before = contents(tmp_path)
    fails(lambda: train(out=str(tmp_path)), "holds results already", "resume", str(tmp_path))
    assert contents(tmp_path) == before


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("file", ["checkpoints/last/precious", "checkpoints/best/precious", "metrics.parquet"])
def test_foreign_files_are_neither_replaced_nor_found_after_hours_of_training(tmp_path, file, resume):
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("precious")
    calls = []
    fails(lambda: train(out=str(tmp_path), resume=resume, callback=lambda *_: calls.append(1)), str(tmp_path))
    assert not calls and contents(tmp_path) == {file: b"precious"}


@pytest.mark.parametrize("out", ["file", "file/below", "file/deeply/below"])
def test_unwritable(tmp_path, out):
    (tmp_path / "file").write_text("precious")
    fails(lambda: train(out=str(tmp_path / out)), "cannot write to out=", str(tmp_path / out))
    assert contents(tmp_path) == {"file": b"precious"}


@pytest.mark.parametrize("out", ["x" * 300, "x" * 300 + "/y"])
def test_not_even_readable(tmp_path, out):
    fails(lambda: train(out=str(tmp_path / out)), "cannot write to out=", "name too long")
    assert os.listdir(tmp_path) == []


def test_a_checkpoint_that_may_not_be_read_is_not_begun_anew(tmp_path, monkeypatch):
    train(out=str(tmp_path), steps=PER, eval_every=PER)
    before, exists = contents(tmp_path), Path.exists

    def denied(self):
        if self.parent.name == "checkpoints":
            raise PermissionError(13, "Permission denied")
        return exists(self)

    with monkeypatch.context() as m:
        m.setattr(Path, "exists", denied)
        fails(lambda: train(out=str(tmp_path), resume=True), "cannot read checkpoint", "Permission denied")
        fails(lambda: rlx.evaluate(tmp_path), "cannot read checkpoint", "Permission denied")
    assert contents(tmp_path) == before


def test_a_population_that_does_not_fit_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(footprint, "available", lambda: 1)
    fails(lambda: train(out=str(tmp_path / "new")), "2 runs of ppo on gymnax/CartPole-v1 need")
    assert os.listdir(tmp_path) == []


# --- resume --------------------------------------------------------------------------------------------------------------


def in_two_stages(out: Path, first: dict, trainer=None, error: type | None = None, **run) -> Result:
    if error is None:
        train(trainer, out=str(out), **run, **first)
    else:
        with pytest.raises(error):
            train(trainer, out=str(out), **run, **first)
    return train(trainer, out=str(out), resume=True, **run)


@pytest.mark.parametrize(
    ("first", "error"),
    [
        ({"steps": 6 * PER}, None),
        ({"steps": 12 * PER}, None),  # nothing left to do
        ({"callback": at(4 * PER, lambda: True)}, None),  # at a checkpoint, not an evaluation
        ({"callback": at(9 * PER, lambda: True)}, None),
        ({"callback": at(9 * PER, raising(Boom()))}, Boom),
    ],
)
def test_two_stages_are_one(tmp_path, first, error):
    one = train(out=str(tmp_path / "one"))
    two = in_two_stages(tmp_path / "two", first, error=error)
    assert_same_result(two, one)
    assert not two.interrupted
    assert_same(two.carry("best"), one.carry("best"))
    assert_same(ppo().restore(tmp_path / "two" / "checkpoints" / "last"), one.carry())
    pd.testing.assert_frame_equal(rlx.load(tmp_path / "two").metrics, one.metrics, check_exact=True)


def test_two_stages_with_replay(tmp_path):
    """Stopped while the losses are still NaN, since learning has not started, and with a replay that wraps around."""
    one = train(sac())
    assert one.metrics.query("step == 4 * @PER")["critic_loss"].isna().all()
    assert one.metrics.query("step == 6 * @PER")["critic_loss"].notna().all()
    two = in_two_stages(tmp_path, {"callback": at(4 * PER, lambda: True)}, sac())
    assert_same_result(two, one)


def test_resume_where_nothing_is_stored_begins(tmp_path):
    assert_same_result(train(out=str(tmp_path / "new"), resume=True), reference())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"steps": 2 * PER}, ("steps=40 is the total with resume", "240 already")),
        ({"seeds": (3,)}, ("seeds=[3]", "[3, 5]")),
        ({"seeds": (5, 3)}, ("seeds=[5, 3]", "[3, 5]")),
        ({"seeds": 3}, ("seeds=[0, 1, 2]", "[3, 5]")),
        ({"out": None}, ("resume needs out",)),
    ],
)
def test_resume_of_another_run(stored, change, words):
    before = contents(stored)
    fails(lambda: train(**{"out": str(stored), "resume": True, "steps": 24 * PER, **change}), *words)
    assert contents(stored) == before


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("stored")
    train(out=str(out))
    return out


@pytest.mark.parametrize(
    ("agent", "env", "change", "words"),
    [
        ("ppo", CARTPOLE, {"lr": 0.1}, ("another configuration", "lr=0.05 there, 0.1 here")),
        ("ppo", CARTPOLE, {"lr": 0.05, "hidden_sizes": (9,)}, ("hidden_sizes=[8] there, [9] here",)),
        ("ppo", CARTPOLE, {"lr": 0.05, "env_params": {"gravity": 1.0}}, ("gravity",)),
        ("ppo", "probe/ActionReward", {"lr": 0.05}, ("env='gymnax/CartPole-v1' there, 'probe/ActionReward' here",)),
    ],
)
def test_resume_by_another_trainer(stored, agent, env, change, words):
    before = contents(stored)
    run = {**RUN, "out": str(stored), "resume": True, "progress": False}
    fails(lambda: rlx.train(agent, env, **run, **{**TINY, **change}), *words)
    assert contents(stored) == before


# --- crashes -------------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    pass


@pytest.mark.parametrize("dead", [True, False])
def test_a_crash_at_any_save_loses_nothing(tmp_path, monkeypatch, dead):
    """Raises right before the n-th checkpoint is written, for every n; the resumed run ends as if nothing had happened.

    Either the process is dead, and writes no further checkpoint, or it was an exception, and the last state is stored.
    """
    run = {"steps": 6 * PER, "eval_every": 2 * PER, "save_every": 2 * PER, "keep": 1}
    one = train(out=str(tmp_path / "one"), **run)
    save, count = rlx.Trainer.save, 0

    def dying(self, carry, path):
        nonlocal count
        count -= 1
        if count == 0 or (dead and count < 0):
            raise Killed
        save(self, carry, path)

    monkeypatch.setattr(rlx.Trainer, "save", dying)
    for n in range(1, 99):
        count, out = n, tmp_path / str(n)
        try:
            train(out=str(out), **run)
        except Killed:
            count = 99
            two = train(out=str(out), **run, resume=True)
            assert_same_result(two, one)
            assert_same(two.carry("best"), one.carry("best"))
        else:
            break
    assert n > 5


def test_what_a_crash_left_beside_the_checkpoints(tmp_path):
    """A kill while a numbered checkpoint is written leaves `step-80.tmp`, and `last` beyond it: it is never written again."""
    train(out=str(tmp_path), keep=1, callback=at(4 * PER, lambda: True))
    (tmp_path / "checkpoints" / "step-80").rename(tmp_path / "checkpoints" / "step-80.tmp")
    assert_same_result(train(out=str(tmp_path), keep=1, resume=True), reference())
