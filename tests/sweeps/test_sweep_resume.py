"""However often a sweep dies, and wherever: continued, it leaves what an uninterrupted one does, to the last bit."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import rlx
from rlx import checkpoint
from rlx.sinks import parquet
from rlx.sweeps import SweepResult, load
from rlx.sweeps import batch as batch_
from rlx.sweeps import run as run_
from tests.sweeps.sweeps_support import LR, PER, sweep
from tests.train_support import CARTPOLE, contents, fails
from tests.trainer_support import compilations

SAVING = {"seeds": [3, 5], "batch_of_runs": 4, "save_every": 3 * PER}  # two batches, each with two checkpoints


@cache
def whole() -> SweepResult:
    return sweep(LR, **SAVING)


def resume(out: Path, **kwargs) -> SweepResult:
    return sweep(LR, out=str(out), resume=True, **{**SAVING, **kwargs})


def assert_whole(out: Path, result: SweepResult) -> None:
    """The result, what is stored, and what is not: no state, no half-written file."""
    assert not result.interrupted
    pd.testing.assert_frame_equal(result.metrics, whole().metrics, check_exact=True)
    pd.testing.assert_frame_equal(pd.read_parquet(out / "metrics.parquet"), whole().metrics, check_exact=True)
    assert sorted((out / "finished.csv").read_text().splitlines()) == ["000-0000,3", "000-0001,3"]
    assert sorted(contents(out)) == [
        *(".lock", "batches/000-0000.parquet", "batches/000-0001.parquet", "best.toml", "confirm.parquet", "finished.csv"),
        *("metrics.parquet", "plan.json", "table.csv"),
    ]


# --- dying -------------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """No handler sees more of it than of a kill -9: from then on nothing is written."""


def die_at(monkeypatch, step: int) -> None:
    """Die at the `step`-th change of the file system."""
    count = 0

    def dying(function):
        def wrapped(*args, **kwargs):
            nonlocal count
            count += 1
            if count >= step:
                raise Killed
            return function(*args, **kwargs)

        return wrapped

    for holder, name in [(parquet.os, "replace"), (checkpoint.os, "rename"), (checkpoint, "_fsync"), (Path, "write_text"),
                         (Path, "replace"), (shutil, "rmtree"), (run_.Sweep, "_line"), (Path, "mkdir")]:  # fmt: skip
        monkeypatch.setattr(holder, name, dying(getattr(holder, name)))


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.mark.parametrize("seed", range(3))
def test_dying_again_and_again(tmp_path, seed):
    out, rng, deaths = tmp_path / "s", np.random.default_rng(seed), 0
    while True:
        with pytest.MonkeyPatch.context() as monkeypatch:
            die_at(monkeypatch, int(rng.integers(1, 60)))
            try:
                result = resume(out)
                break
            except Killed:
                deaths += 1
                assert deaths < 50
    assert deaths >= 2
    assert_whole(out, result)


KILLED = {"steps": 40 * PER, "eval_every": 10 * PER, "eval_episodes": 2, "save_every": 5 * PER, "batch_of_runs": 2, "seeds": 4}
SPACE = "lr=[0.0003,0.001,0.003] hidden_sizes=[(8,),(4,)]"
TINY_WORDS = ["--num_envs", "2", "--rollout_length", "10", "--num_minibatches", "1", "--num_epochs", "1"]


@pytest.mark.slow
def test_kill_9_at_three_random_moments(tmp_path):
    options = [word for name, value in KILLED.items() for word in (f"--{name}", str(value))]
    words = ["sweep", "ppo", CARTPOLE, "--space", SPACE, *options, *TINY_WORDS]
    command = [sys.executable, "-m", "rlx.cli", *words]
    out, stages = tmp_path / "killed", []

    def state() -> list[str]:
        found = [*out.glob("batches/*.parquet"), *out.glob("batches/*/checkpoints/last")]
        return sorted(str(path.relative_to(out)) for path in found)

    for _ in range(3):
        before = state()
        process = subprocess.Popen([*command, "--out", str(out), "--resume"], cwd=Path(__file__).parents[2])
        deadline = time.monotonic() + 120
        while state() == before:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.002)
        time.sleep(random.uniform(0.0, 1.0))
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL, "it must not be done yet"
        stages.append(state())
    assert len(load(out).metrics) < 24 * 8
    process = subprocess.run([*command, "--out", str(out), "--resume"], cwd=Path(__file__).parents[2], timeout=200)
    assert process.returncode == 0
    one = tmp_path / "one"
    subprocess.run([*command, "--out", str(one)], cwd=Path(__file__).parents[2], timeout=200, check=True)
    for name in ("metrics.parquet", "table.csv", "best.toml"):
        left, right = (out / name).read_bytes(), (one / name).read_bytes()
        assert left == right, f"{name} after {stages}"
    assert len(load(out).metrics) == 24 * 8


# --- Ctrl-C ------------------------------------------------------------------------------------------------------------


def test_ctrl_c_within_a_batch(tmp_path, monkeypatch):
    """The state that is stored is that of `save_every`, so that the table does not tell."""
    out, advance, calls = tmp_path / "s", rlx.Trainer.advance, iter(range(1000))

    def interrupted(self, carry, totals, n):
        if next(calls) == 1:  # the first iteration; 0 compiles
            os.kill(os.getpid(), signal.SIGINT)
        return advance(self, carry, totals, n)

    with monkeypatch.context() as m:
        m.setattr(rlx.Trainer, "advance", interrupted)
        assert resume(out).interrupted
    assert_whole(out, resume(out))


# --- damage ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "s"
    sweep(LR, out=str(out), **SAVING)
    return out


@pytest.fixture
def out(finished, tmp_path) -> Path:
    """A copy of a finished sweep, to damage."""
    return Path(shutil.copytree(finished, tmp_path / "s"))


def test_a_finished_sweep_trains_nothing(out, monkeypatch):
    monkeypatch.setattr(batch_, "Session", None)
    (out / "metrics.parquet").unlink(), (out / "table.csv").unlink()
    with compilations() as events:
        assert_whole(out, resume(out))
    assert not events


@pytest.mark.parametrize(
    "log",
    [
        b"",
        b"000-00",  # torn, and nothing before it
        b"000-0000,3\n000-0001",
        b"000-0000,3\n000-0001,3",
        b"000-0000,3\n\xff\x00\xfe\n000-0001,3\n",
        b"000-0000,3\n000-0000,3\n\n7-1,2\n../../x,1\n",
        None,
    ],
)
def test_a_damaged_log(out, log):
    """What has no line is repeated; a line that was half written does not spoil the next one."""
    (out / "finished.csv").unlink()
    if log is not None:
        (out / "finished.csv").write_bytes(log)
    assert_whole(out, resume(out))
    assert_whole(out, resume(out))


def test_a_missing_table_is_made_again(out):
    (out / "batches" / "000-0000.parquet").unlink()
    assert load(out).metrics["run"].min() == 3
    assert_whole(out, resume(out))


def test_a_damaged_table_is_an_error(out):
    path = out / "batches" / "000-0000.parquet"
    path.write_bytes(path.read_bytes()[:100])
    fails(lambda: resume(out), "cannot read", "000-0000.parquet")
    fails(lambda: load(out), "cannot read", "000-0000.parquet")
    path.unlink()
    assert_whole(out, resume(out))


def test_a_damaged_plan_is_an_error(out):
    text = (out / "plan.json").read_text()
    (out / "plan.json").write_text(text[: len(text) // 2])
    fails(lambda: resume(out), "plan.json cannot be read")
    fails(lambda: load(out), "plan.json cannot be read")


def test_what_a_dead_process_left_is_removed(out):
    left = out / "batches" / "000-0000" / "checkpoints"
    left.mkdir(parents=True), (left / "last.tmp").write_text("")
    (out / "plan.json.tmp").write_text("{")
    assert_whole(out, resume(out))


def test_a_batch_that_had_no_checkpoint_yet_begins_anew(out):
    (out / "finished.csv").write_text("000-0000,3\n")
    left = out / "batches" / "000-0001"
    left.mkdir(), (left / "run.json.tmp").write_text("{"), (left / ".write-test").write_text("")
    assert_whole(out, resume(out))


def test_a_damaged_checkpoint_is_an_error(out):
    (out / "finished.csv").write_text("000-0000,3\n")
    last = out / "batches" / "000-0001" / "checkpoints" / "last"
    last.mkdir(parents=True), (last / "rlx.json").write_text("{"), (last.parents[1] / "run.json").write_text("{}")
    fails(lambda: resume(out), "000-0001")
    shutil.rmtree(last)
    assert_whole(out, resume(out))


# --- the plan ----------------------------------------------------------------------------------------------------------


def test_a_plan_that_was_being_written(tmp_path):
    out = tmp_path / "s"
    out.mkdir(), (out / "plan.json.tmp").write_text("{"), (out / ".lock").write_text("")
    assert_whole(out, resume(out))


@pytest.mark.parametrize(
    "change, words",
    [
        ({"seeds": [3, 6]}, ["seeds=[3, 5] there, [3, 6] here"]),
        ({"steps": 4 * PER}, ["steps=120 there, 80 here"]),
        ({"eval_episodes": 3}, ["eval_episodes=2 there, 3 here"]),
        ({"gamma": 0.9}, ["gamma=0.99 there, 0.9 here"]),
        ({"devices": 2}, ["devices=1 there, 2 here"]),
        ({"env_params": {"gravity": 9.0}}, ["env_params"]),
        ({"gamma": 0.9, "steps": 4 * PER}, ["gamma=0.99 there, 0.9 here", "steps=120 there, 80 here"]),
    ],
)
def test_another_sweep_is_refused(finished, change, words):
    before = contents(finished)
    fails(lambda: resume(finished, **change), f"{finished} holds another sweep, which differs in", *words)
    assert contents(finished) == before


def test_another_space_is_refused(finished):
    other = {"lr": [*LR["lr"][:2], 0.5]}
    fails(lambda: sweep(other, out=str(finished), resume=True, **SAVING), "holds another sweep", "configs")
    other = {"clip_eps": [0.1, 0.2, 0.3]}
    fails(lambda: sweep(other, out=str(finished), resume=True, **SAVING), "space=['lr'] there, ['clip_eps'] here")


def test_the_layout_is_that_of_the_stored_plan(out):
    """For the same bits: whatever size of batches is asked for now."""
    (out / "finished.csv").write_text("000-0000,3\n")
    assert_whole(out, resume(out, batch_of_runs=1))
    assert [g.batch for g in load(out).plan.groups] == [3]


def test_static_fields_survive_the_plan(tmp_path):
    """Tuples are lists in JSON; the table has one kind of them, however often it was resumed."""
    out, space = tmp_path / "s", {"hidden_sizes": [(8,)], "lr": LR["lr"]}
    arguments = {"seeds": [3, 5], "batch_of_runs": 4, "out": str(out)}
    one = sweep(space, **arguments)
    (out / "finished.csv").write_text("000-0000,3\n")
    resumed = sweep(space, **arguments, resume=True)
    pd.testing.assert_frame_equal(resumed.metrics, one.metrics, check_exact=True)
    assert set(resumed.metrics["hidden_sizes"]) == {"(8,)"} and load(out).plan == one.plan
