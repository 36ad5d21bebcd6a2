"""`rlx.train`: its arguments, its callbacks, and Ctrl-C."""

import json
import os
import signal
import threading
import time

import jax
import numpy as np
import pandas as pd
import pytest

import rlx
from rlx import training
from rlx.report.tables import cell
from rlx.sinks.console import Progress
from rlx.training import RunConfig, Session
from tests.cli_support import compiled
from tests.train_support import (
    CARTPOLE,
    MARKS,
    OWN,
    PER,
    RUN,
    TINY,
    Boom,
    Count,
    assert_same,
    assert_same_result,
    at,
    fails,
    no_fsync,  # noqa: F401
    ppo,
    raising,
    reference,
    train,
)

# --- arguments -----------------------------------------------------------------------------------------------------------


def test_a_users_own_environment_and_every_kind_of_keyword(tmp_path):
    from rlx.agents import ppo as module

    result = rlx.train(
        module, Count(), config=module.Config(**TINY, lr=0.1), env_params={"reward": 3.0}, lr=0.2,
        steps=2 * PER, seeds=2, eval_episodes=3, out=str(tmp_path / "run"), progress=False,
    )  # fmt: skip
    assert result.trainer.config == module.Config(**TINY, lr=0.2)
    assert (result.returns == 12.0).all() and result.returns.shape == (2, 2)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["own_env"] is True


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"step": 100}, ("unknown field 'step'", "'steps'?")),
        ({"hiden_sizes": (8,)}, ("unknown field 'hiden_sizes'", "'hidden_sizes'?")),
        ({"env_param": {}}, ("unknown field 'env_param'", "'env_params'?")),
        ({"seeds": 0}, ("seeds=0",)),
        ({"seeds": (-1,)}, ("seeds=(-1,) must lie in [0, 2^32)",)),
        ({"eval_episodes": 0}, ("eval_episodes=0 must be >= 1",)),
        ({"steps": PER * 2**30, "eval_every": PER * 2**28, "save_every": PER * 2**28}, ("log_every=5368709120", "below 2^31")),
        ({"keep": -1}, ("keep=-1 must be >= 0",)),
        ({"steps": 1e6}, ("steps=1000000.0 must be int, not float",)),
        ({"hidden_sizes": (-3,)}, ("hidden_sizes",)),
        ({"env_params": {"gravity": "abc"}}, ("gravity",)),
        ({"env_params": {"gravity": (1.0, 2.0)}}, ("gravity",)),
        ({"num_minibatches": 3}, ("num_minibatches=3 must divide", "nearest is 2")),
        ({"lr": float("inf")}, ("lr=inf must be finite",)),
        ({"callback": "print"}, ("callback must be a function of (step, metrics, carry), not str",)),
        ({"population": lambda *a: a}, ("unknown field 'population'",)),  # it starts with a `pop`: for `rlx.make`
    ],
)
def test_bad_arguments(tmp_path, kwargs, words):
    run = {**RUN, "out": str(tmp_path / "new"), "progress": False}
    fails(lambda: rlx.train("ppo", CARTPOLE, **{**TINY, **run, **kwargs}), *words)
    assert os.listdir(tmp_path) == []


def test_an_environment_without_a_time_limit_cannot_be_evaluated(tmp_path):
    run = {**RUN, "out": str(tmp_path / "new"), "progress": False}
    fails(lambda: rlx.train("ppo", Count(limited=False), **TINY, **run), "Count has no time limit", "TimeLimit")
    assert os.listdir(tmp_path) == []


def test_numpy_integers_are_integers():
    assert training.RunConfig(steps=np.int64(200), seeds=np.array([1, 2])) == RunConfig(steps=200, seeds=(1, 2))


def test_everything_is_compiled_after_one_announcement_and_before_the_next(monkeypatch):
    reference()  # the single operations that the first run of a process compiles
    events = []
    trainer = rlx.Trainer("ppo", CARTPOLE, **{**TINY, "hidden_sizes": (9,)})
    monkeypatch.setattr(Progress, "announce", lambda self, text: events.append(text))
    for name in ("start", "advance", "evaluate"):
        original = getattr(rlx.Trainer, name)

        def recorded(*args, name=name, original=original, **kwargs):
            traced = isinstance(jax.numpy.zeros(()) + 0, jax.core.Tracer)  # the look at the memory
            before = len(compiled)
            out = original(*args, **kwargs)
            if not traced:
                events.append((name, len(compiled) > before))
            return out

        monkeypatch.setattr(rlx.Trainer, name, recorded)
    train(trainer, steps=3 * PER)
    assert "2 runs" in events[0] and "compiling" in events[0] and "compiled in" in events[4]
    assert events[1:4] == [("start", True), ("advance", True), ("evaluate", True)]
    assert {("advance", False), ("evaluate", False)} == set(events[5:])


@pytest.mark.parametrize("directory", ["here", None])
def test_the_cache_that_is_announced_is_that_of_jax(directory, monkeypatch):
    before = jax.config.jax_compilation_cache_dir

    def announce(self, text):
        jax.config.update("jax_compilation_cache_dir", before)
        assert text.endswith("; compiling, cache in here" if directory else "; compiling")
        raise Boom

    monkeypatch.setattr(Progress, "announce", announce)
    session = Session(ppo(), RunConfig(**RUN), None, True, OWN)
    jax.config.update("jax_compilation_cache_dir", directory)
    with pytest.raises(Boom):
        session.train()


@pytest.mark.parametrize("total", [1, 3, 4, 5, 19, 20, 21, 39, 41, 100])
def test_default_periods(total):
    """At most 20 evaluations and 4 checkpoints, the last included."""
    session = Session(ppo(), RunConfig(steps=total * PER), None, False, OWN)
    for every, most in ((session.eval_every, 20), (session.log_every, 20), (session.save_every, 4)):
        count = len({*range(every, total + 1, every), total})
        assert count <= most and (count == most or total % most)
        assert every == 1 or len({*range(every - 1, total + 1, every - 1), total}) > most  # as many as fit


def test_the_last_line_of_progress_has_the_last_evaluation(capfd):
    result = rlx.train("ppo", CARTPOLE, **{**RUN, "eval_every": 6 * PER}, **TINY)
    last = capfd.readouterr().err.strip().splitlines()[-1]
    first, final = result.returns.mean(axis=0)
    assert first != final and "240/240 steps" in last and last.endswith(f"return {cell(final)}")


def test_progress_names_the_task_the_runs_and_their_memory(capfd):
    rlx.train("ppo", Count(), steps=PER, seeds=2, eval_episodes=1, **TINY)
    out, err = capfd.readouterr()
    assert out == "" and "ppo on Count: 2 runs, 2 x " in err and "compiled in" in err and "20/20 steps" in err
    rlx.train("ppo", Count(), steps=PER, eval_episodes=1, progress=False, **TINY)
    assert capfd.readouterr() == ("", "")


# --- callbacks -----------------------------------------------------------------------------------------------------------


def test_callback():
    calls = []

    def callback(step, metrics, carry):
        assert type(step) is int and ppo().steps(carry) == step
        calls.append((step, jax.tree.map(np.copy, metrics), jax.tree.map(lambda x: x.copy(), carry.runs.agent)))
        return np.bool_(False)

    result = train(callback=callback)
    assert [step for step, *_ in calls] == MARKS
    for step, metrics, _ in calls:
        rows = result.metrics.query("step == @step")
        assert all(v.shape == (2,) for v in metrics.values())
        assert ("return" in metrics) == (step % (3 * PER) == 0)
        for name, value in metrics.items():
            np.testing.assert_array_equal(value, rows[name].to_numpy())
    assert_same(calls[-1][2], result.carry().runs.agent)
    assert_same(result.carry(), reference().carry())


def test_a_truthy_callback_stops(tmp_path):
    result = train(callback=at(6 * PER, lambda: "enough"), out=str(tmp_path))
    assert result.interrupted and result.metrics["step"].max() == 6 * PER == ppo().steps(result.carry())
    assert_same(ppo().restore(tmp_path / "checkpoints" / "last"), result.carry())
    pd.testing.assert_frame_equal(rlx.load(tmp_path).metrics, result.metrics)


@pytest.mark.parametrize("boom", [Boom("x"), KeyboardInterrupt(), SystemExit(3)])
def test_what_a_callback_raises_passes_after_saving(tmp_path, boom):
    with pytest.raises(type(boom)) as caught:
        train(callback=at(6 * PER, raising(boom)), out=str(tmp_path))
    assert caught.value is boom and boom.__cause__ is None and boom.__context__ is None
    last = ppo().restore(tmp_path / "checkpoints" / "last")
    assert ppo().steps(last) == 6 * PER
    stored = pd.read_parquet(tmp_path / "metrics.parquet")
    pd.testing.assert_frame_equal(
        stored, reference().metrics.query("step <= 6 * @PER").reset_index(drop=True), check_dtype=False
    )
    with pytest.raises(Boom):
        train(callback=raising_always)  # and without out


def raising_always(*_):
    raise Boom


# --- Ctrl-C --------------------------------------------------------------------------------------------------------------


def test_ctrl_c_at_any_iteration(tmp_path, monkeypatch):
    """Stops there, stores everything, and the evaluations of the resumed run are those of one that was not interrupted."""
    advance = rlx.Trainer.advance
    for n in (0, 1, 2, 3, 5, 6, 11):  # before the first, within a segment, at an evaluation
        out = tmp_path / str(n)

        def interrupted(self, carry, totals, k, n=n):
            carry, totals = advance(self, carry, totals, k)
            if int(carry.i) >= n:
                os.kill(os.getpid(), signal.SIGINT)
                monkeypatch.setattr(rlx.Trainer, "advance", advance)
            return carry, totals

        monkeypatch.setattr(rlx.Trainer, "advance", interrupted)
        first = train(out=str(out))
        assert n <= ppo().steps(first.carry()) // PER and (first.interrupted or n > 9)
        assert not first.metrics.duplicated(["run", "step"]).any()
        assert_same(ppo().restore(out / "checkpoints" / "last"), first.carry())
        second = train(out=str(out), resume=True)
        assert_same(second.carry(), reference().carry())
        assert not second.metrics.duplicated(["run", "step"]).any()
        columns = ["run", "step", "return", "unfinished"]
        left, right = (r.metrics.dropna(subset="return")[columns].reset_index(drop=True) for r in (second, reference()))
        pd.testing.assert_frame_equal(left, right)
        sums = [r.metrics.groupby("run")[["episodes", "updates"]].sum() for r in (second, reference())]
        pd.testing.assert_frame_equal(*sums)


def test_ctrl_c_between_segments_leaves_one_row_a_step(tmp_path):
    result = train(callback=at(3 * PER, lambda: os.kill(os.getpid(), signal.SIGINT)), out=str(tmp_path))
    assert result.interrupted and result.metrics["step"].max() == 3 * PER
    assert not result.metrics.duplicated(["run", "step"]).any()
    assert result.metrics["episodes"].notna().all() and result.returns.shape == (2, 1)


def test_the_second_ctrl_c_interrupts_at_once(tmp_path):
    def twice():
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(callback=at(6 * PER, twice), out=str(tmp_path))
    assert signal.getsignal(signal.SIGINT) is before
    assert pd.read_parquet(tmp_path / "metrics.parquet")["step"].max() == 6 * PER
    assert_same_result(train(out=str(tmp_path), resume=True), reference())


def test_outside_the_main_thread():
    results = []
    thread = threading.Thread(target=lambda: results.append(train()))
    thread.start()
    thread.join()
    assert_same_result(results[0], reference())
