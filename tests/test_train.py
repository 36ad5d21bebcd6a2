"""`rlx.train`: when it evaluates, logs, stores and stops, and that none of it changes what is learnt."""

import json
import os
import signal
import threading
import time
from functools import cache
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest
from flax import struct
from gymnax.environments import spaces
from gymnax.environments.environment import Environment

import rlx
from rlx import checkpoint, footprint, training
from rlx.results import Result
from rlx.training import RunConfig, Session
from rlx.types import Carry
from tests.test_checkpoint import bits

CARTPOLE = "gymnax/CartPole-v1"
TINY = {"num_envs": 2, "rollout_length": 10, "num_minibatches": 1, "num_epochs": 1, "hidden_sizes": (8,)}
PER = 20  # env steps of an iteration of TINY
RUN = {"steps": 12 * PER, "seeds": (3, 5), "eval_every": 3 * PER, "save_every": 4 * PER, "eval_episodes": 2}
# Evaluations after 3, 6, 9, 12 iterations, checkpoints after 4, 8, 12: a row at each of them.
MARKS = [PER * i for i in (3, 4, 6, 8, 9, 12)]


@pytest.fixture(autouse=True)
def _no_fsync(monkeypatch):
    """Half of the time of a test otherwise. What a crash of the machine leaves is tested in test_checkpoint_crash."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@cache
def ppo() -> rlx.Trainer:
    return rlx.Trainer("ppo", CARTPOLE, lr=0.05, **TINY)


@cache
def sac() -> rlx.Trainer:
    fields = {"num_envs": 2, "rollout_length": 10, "hidden_sizes": (8,), "batch_size": 8, "replay_capacity": 64}
    return rlx.Trainer("sac", "probe/DelayedCredit-continuous", learning_starts=5 * PER, updates_per_step=0.1, **fields)


def train(trainer=None, callback=None, **run) -> Result:
    """`rlx.train` with a trainer that is compiled already."""
    return Session(trainer or ppo(), RunConfig(**{**RUN, **run}), callback, progress=False, own_env=False).train()


@cache
def reference() -> Result:
    return train()


def assert_same(a: Carry, b: Carry) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    assert [bits(x) for x in jax.tree.leaves(a)] == [bits(x) for x in jax.tree.leaves(b)]


def contents(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


def fails(call, *words: str) -> None:
    with pytest.raises(rlx.RlxError) as error:
        call()
    text = str(error.value)
    assert "\n" not in text and all(word in text for word in words), text


def at(step: int, do) -> object:
    """A callback that acts once, at one step."""
    once = iter([step])
    return lambda s, metrics, carry: do() if s == step and next(once, None) else None


def raising(error: BaseException):
    def do():
        raise error

    return do


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
    trainer.spec = trainer.spec._replace(max_episode_steps=3)  # as if the limit were shorter than the episodes
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


class Boom(Exception):
    pass


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
    assert (description["agent"], description["env"], description["own_env"]) == ("ppo", CARTPOLE, False)
    assert description["config"]["lr"] == 0.05 and description["run"]["seeds"] == [3, 5] and "jax" in description["versions"]


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


def assert_same_result(a: Result, b: Result) -> None:
    pd.testing.assert_frame_equal(a.metrics, b.metrics, check_exact=True)
    assert_same(a.carry(), b.carry())
    np.testing.assert_array_equal(a.returns, b.returns)


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


def test_a_crash_at_any_save_loses_nothing(tmp_path, monkeypatch):
    """Dies right before the n-th checkpoint is written, for every n; the resumed run ends as if nothing had happened."""
    run = {"steps": 6 * PER, "eval_every": 2 * PER, "save_every": 2 * PER, "keep": 1}
    one = train(out=str(tmp_path / "one"), **run)
    save, count = rlx.Trainer.save, 0

    def dying(self, carry, path):
        nonlocal count
        count -= 1
        if count == 0:
            raise Killed
        save(self, carry, path)

    monkeypatch.setattr(rlx.Trainer, "save", dying)
    for n in range(1, 99):
        count, out = n, tmp_path / str(n)
        try:
            train(out=str(out), **run)
        except Killed:
            count = 0
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


# --- arguments -----------------------------------------------------------------------------------------------------------


@struct.dataclass
class CountState:
    time: jax.Array


@struct.dataclass
class CountParams:
    reward: float = 2.0
    max_steps_in_episode: int = 4


class Count(Environment):
    """A user's own: reward 2 a step, four steps."""

    def __init__(self, limited: bool = True):
        self.limited = limited

    @property
    def default_params(self):
        return CountParams() if self.limited else struct.dataclass(type("P", (), {"__annotations__": {"reward": float}}))(1.0)

    def reset_env(self, key, params):
        return jax.numpy.zeros(1), CountState(jax.numpy.int32(0))

    def step_env(self, key, state, action, params):
        state = CountState(state.time + 1)
        return jax.numpy.zeros(1), state, params.reward, state.time < 0, {}

    def is_truncated(self, state, params):
        return state.time >= params.max_steps_in_episode if self.limited else state.time < 0

    def action_space(self, params):
        return spaces.Discrete(2)

    def observation_space(self, params):
        return spaces.Box(-1.0, 1.0, (1,))


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
        ({"keep": -1}, ("keep=-1 must be >= 0",)),
        ({"steps": 1e6}, ("steps=1000000.0 must be int, not float",)),
        ({"hidden_sizes": (-3,)}, ("hidden_sizes",)),
        ({"env_params": {"gravity": "abc"}}, ("gravity",)),
        ({"env_params": {"gravity": (1.0, 2.0)}}, ("gravity",)),
        ({"num_minibatches": 3}, ("num_minibatches=3 must divide", "nearest is 2")),
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


def test_progress_names_the_task_the_runs_and_their_memory(capfd):
    rlx.train("ppo", Count(), steps=PER, seeds=2, eval_episodes=1, **TINY)
    out, err = capfd.readouterr()
    assert out == "" and "ppo on Count: 2 runs, 2 x " in err and "compiled in" in err and "20/20 steps" in err
    rlx.train("ppo", Count(), steps=PER, eval_episodes=1, progress=False, **TINY)
    assert capfd.readouterr() == ("", "")


def test_checkpoints_are_readable_alone(tmp_path):
    train(out=str(tmp_path))
    meta = checkpoint.read_meta(tmp_path / "checkpoints" / "last")
    assert meta["runs"] == 2 and meta["steps"] == 12 * PER and meta["config"]["lr"] == 0.05
