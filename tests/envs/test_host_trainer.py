"""Host environments under a Trainer: returns, bits, evaluation, files, exceptions, and both agents on a real one."""

import functools
import gc

import jax
import numpy as np
import pytest

import rlx
from rlx import envs
from rlx.types import STREAM_RESET, stream
from tests.envs.host_support import ID, N, Scripted, make, seed_of
from tests.trainer_support import differing

PPO = {"num_envs": N, "rollout_length": 10, "num_epochs": 1, "num_minibatches": 2, "hidden_sizes": (8,)}
STEPS = 2 * 10 * N  # two iterations


@functools.cache
def trainer():
    return rlx.make("ppo", ID, env_options={"deaf": True}, **PPO)


@pytest.fixture(autouse=True)
def no_simulators_left():
    trainer().env.close()


def run(steps=STEPS, seeds=3, **kwargs):
    return trainer().run(trainer().init(seeds), steps, **kwargs)


def returns_of(seed, key=None):
    """Episode returns of one environment of a run, as they come, by hand: nothing depends on the actions."""
    env = make().kind.build()
    env.reset(seed=seed)
    while True:
        total, over = 0.0, False
        while not over:
            _, reward, terminated, truncated, _ = env.step(2)
            total, over = total + reward, terminated or truncated
        yield total
        env.reset()


# --- training ----------------------------------------------------------------------------------------------------------


def test_spec():
    spec = trainer().spec
    assert spec == (ID, (2,), np.dtype("float32"), 4, 1, (), 5, 1)
    assert trainer().env.default_params == trainer().env_params


def test_episode_returns_by_hand():
    _, metrics = run()
    for r in range(3):
        key = stream(jax.random.fold_in(jax.random.key(0), r), STREAM_RESET)
        finished = []
        for j in range(N):
            t, episodes = 0, returns_of(seed_of(key, j))
            while True:
                total = next(episodes)
                t += {3.0: 3, 7.5: 5}[total]
                if t > STEPS // N:
                    break
                finished.append(total)
        assert metrics["episodes"][r, 0] == len(finished)
        np.testing.assert_allclose(metrics["episode_return"][r, 0], np.mean(finished), rtol=1e-6)
    assert not metrics["nan_steps"].any()


def test_bits_of_repeats_segments_and_turns():
    whole, _ = run()
    assert not differing(run()[0], whole)
    a, b = trainer().init(3), trainer().init(3)
    for _ in range(2):
        a, _ = trainer().run(a, STEPS // 2)
        trainer().evaluate(a, episodes=8)  # with simulators of its own
        b, _ = trainer().run(b, STEPS // 2)
    assert not differing(a, whole) and not differing(b, whole)


def test_evaluation_by_hand_and_in_any_company():
    t, carry = trainer(), run()[0]
    returns = np.asarray(t.evaluate(carry, episodes=8, key=1))
    assert returns.shape == (3, 8) and set(returns.ravel()) == {3.0, 7.5}  # terminated at 3, truncated at 5
    np.testing.assert_array_equal(t.evaluate(carry, episodes=8, key=1), returns)
    assert not np.array_equal(t.evaluate(carry, episodes=8, key=2), returns)
    np.testing.assert_array_equal(t.evaluate(t.init(1), episodes=8, key=1), returns[:1])
    short = np.asarray(t.evaluate(carry, episodes=8, key=1, max_episode_steps=3))
    np.testing.assert_array_equal(short, np.where(returns == 3.0, 3.0, np.nan))


def test_acting_in_native_units():
    carry = trainer().init(3)
    obs = np.zeros((3, 50, 2), np.float32)
    actions = trainer().act(carry, obs, jax.random.key(0))
    assert actions.dtype == np.int32 and set(np.unique(actions)) == {2, 3, 4, 5}
    assert trainer().value(carry, obs).shape == (3, 50)
    assert int(trainer().policy(carry, 1)(obs[0, 0])) in range(2, 6)


# --- files -------------------------------------------------------------------------------------------------------------


def test_a_restored_carry_begins_new_episodes(tmp_path):
    t = trainer()
    carry, _ = run()
    t.save(carry, tmp_path / "c")
    went_on, metrics = t.run(carry, STEPS)
    assert not metrics["nan_steps"].any()
    restored = []
    for close in (False, True):  # where the simulators have moved on, and where there are none, as in a new process
        if close:
            t.env.close()
        carry, metrics = t.run(t.restore(tmp_path / "c"), STEPS, points=2)
        np.testing.assert_array_equal(metrics["nan_steps"], [[N, 0]] * 3)
        assert np.isfinite(metrics["episode_return"]).all() and int(carry.i) == 4
        restored.append(carry)
    assert not differing(*restored)
    assert differing(restored[0], went_on)


# --- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["run", "evaluate"])
def test_an_exception_arrives_as_it_was_raised(where, monkeypatch):
    t, carry = trainer(), run()[0]
    monkeypatch.setattr(Scripted, "broken", 0.9)
    with pytest.raises(ZeroDivisionError, match=r"broken at time \d") as caught:
        t.run(carry, 20 * STEPS) if where == "run" else t.evaluate(carry, episodes=8)
    assert caught.traceback[-1].path.name == "host_support.py"
    assert "of gymnasium/rlx-test/Scripted-v0" in caught.value.__notes__[0]
    assert caught.value.__cause__ is None and caught.value.__suppress_context__
    monkeypatch.undo()
    assert not run()[1]["nan_steps"].any()  # the trainer works on


def test_there_are_no_parameters():
    with pytest.raises(rlx.RlxError, match=rf"unknown parameter of {ID} 'max_steps_in_episode': there is none"):
        rlx.make("ppo", ID, env_params={"max_steps_in_episode": 3}, **PPO)
    with pytest.raises(rlx.RlxError, match="there is none to choose from"):
        trainer().init(1, env_params={"gravity": [1.0]})


def test_simulators_close_with_their_trainer():
    Scripted.alive.clear()
    t = rlx.make("ppo", ID, **PPO)
    carry = t.init(2)
    assert len(Scripted.alive) == 2 * N
    t.env.close()
    assert not Scripted.alive
    carry = t.init(2)
    assert len(Scripted.alive) == 2 * N
    del t, carry
    gc.collect()
    assert not Scripted.alive


# --- a real one --------------------------------------------------------------------------------------------------------

SAC = {"num_envs": 2, "batch_size": 8, "replay_capacity": 64, "learning_starts": 20, "hidden_sizes": (8,)}


@pytest.mark.parametrize(("agent", "fields"), [("ppo", PPO), ("sac", SAC)])
def test_training(agent, fields):
    limit = {"max_episode_steps": 10}
    result = rlx.train(
        agent, "gymnasium/Pendulum-v1", steps=80, seeds=2, eval_episodes=2, progress=False, env_options=limit, **fields
    )
    assert result.trainer.spec.max_episode_steps == 10
    table = result.metrics
    assert table["episodes"].sum() == 2 * 8 and not table["nan_steps"].any()
    returns = table["return"].dropna()
    assert len(returns) and (returns < 0).all() and (returns > -10 * 16.3).all()  # at most pi^2 + 0.1 * 8^2 + 0.004 a step
    action = result.trainer.policy(result.carry(), 0)(np.zeros(3, np.float32))
    assert action.shape == (1,) and abs(float(action[0])) <= 2


def test_names():
    assert {"gymnasium/Pendulum-v1", "gymnasium/HalfCheetah-v5", ID} <= set(envs.ids(["gymnasium"]))
    assert "gymnasium/HalfCheetah-v4" not in envs.ids(["gymnasium"])  # the newest only, though `make` takes any
