"""Evaluation: exactly n episodes, each run in its own environment, whatever the company."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from gymnax.environments import environment, spaces

import rlx
from rlx import RlxError
from tests.loop_support import RECORDER, Clock


@struct.dataclass
class Params:
    max_steps_in_episode: Any = 6
    start: Any = 1.0
    spread: Any = 0.0  # of the start, drawn uniformly
    goal: Any = 100.0  # terminates at or above it
    nan_at: Any = -1


@struct.dataclass
class State:
    x: jax.Array
    time: jax.Array


class Drift(environment.Environment):
    """x <- x + a with a in [-2, 4]; obs = (0, x), reward = x^2 (of the successor); ends at the goal or the limit."""

    @property
    def default_params(self) -> Params:
        return Params()

    def reset_env(self, key, params):
        state = State(params.start + params.spread * jax.random.uniform(key), jnp.int32(0))
        return jnp.stack([0.0, state.x]), state

    def step_env(self, key, state, action, params):
        x = state.x + action[0]
        x = jnp.where(state.time == params.nan_at, jnp.nan, x)
        return jnp.stack([0.0, x]), State(x, state.time + 1), x**2, x >= params.goal, {}

    def is_truncated(self, state, params):
        return state.time >= params.max_steps_in_episode

    def action_space(self, params):
        return spaces.Box(-2.0, 4.0, (1,))

    def observation_space(self, params):
        return spaces.Box(-jnp.inf, jnp.inf, (2,))


@cache
def drift() -> rlx.Trainer:
    return rlx.make(RECORDER, Drift())


def population(seeds: int | Sequence[int] = 1, gain: Sequence[float] = (0.5,), **params: Sequence[float]):
    """Runs whose greedy agent acts with gain * x, in [-1, 1] units."""
    c = max(len(v) for v in (gain, *params.values()))
    return drift().init(seeds, hp={"gain": list(gain) * (c // len(gain))}, env_params=params)


def by_hand(gain: float, start: float = 1.0, goal: float = 100.0, limit: int = 6) -> float:
    x, total = start, 0.0
    for _ in range(limit):
        x += np.clip(1.0 + 3.0 * gain * x, -2.0, 4.0)
        total += x**2
        if x >= goal:
            break
    return total


@pytest.mark.parametrize("episodes", [1, 3])
def test_exactly_n_episodes(episodes):
    returns = drift().evaluate(population(2, spread=[1.0]), episodes)
    assert returns.shape == (2, episodes) and returns.dtype == jnp.float32
    assert len(np.unique(returns)) == 2 * episodes  # each its own start


def test_returns_by_hand():
    gains = [0.5, -0.3, -0.9, 0.0]
    returns = drift().evaluate(population(1, gains), 3)
    np.testing.assert_allclose(returns, np.outer([by_hand(g) for g in gains], np.ones(3)), rtol=1e-5)


def test_returns_equal_a_loop_over_the_native_environment():
    t, carry = drift(), population(1, [0.5, -0.3], goal=[9.0, 9.0])
    step = jax.jit(t.env.step_env)
    for run in range(2):
        params = jax.tree.map(lambda x, run=run: x[run], carry.runs.env_params)
        policy = t.policy(carry, run)
        obs, state = t.env.reset_env(jax.random.key(5), params)
        total, done = 0.0, False
        while not done:
            obs, state, reward, terminated, _ = step(jax.random.key(5), state, policy(obs), params)
            total, done = total + float(reward), bool(terminated | t.env.is_truncated(state, params))
        np.testing.assert_allclose(t.evaluate(carry, 1)[run], [total], rtol=1e-5)


def test_each_run_has_its_own_environment_parameters():
    starts, goals, limits = [1.0, 2.0, 1.0, 1.0], [100.0, 100.0, 8.0, 100.0], [6, 6, 6, 2]
    returns = drift().evaluate(population(1, start=starts, goal=goals, max_steps_in_episode=limits), 1)
    expected = [by_hand(0.5, *row) for row in zip(starts, goals, limits, strict=True)]
    assert len(set(expected)) == 4
    np.testing.assert_allclose(returns[:, 0], expected, rtol=1e-5)


def test_company_does_not_matter():
    """To float tolerance, as for any other layout; the episodes are the same ones."""
    carry = population([4, 7], [0.5, -0.3], spread=[1.0, 1.0], max_steps_in_episode=[6, 2])  # finished at other times
    together = drift().evaluate(carry, 3, key=3)
    for run, (gain, limit, seed) in enumerate([(0.5, 6, 4), (0.5, 6, 7), (-0.3, 2, 4), (-0.3, 2, 7)]):
        alone = drift().evaluate(population([seed], [gain], spread=[1.0], max_steps_in_episode=[limit]), 3, key=3)
        np.testing.assert_allclose(alone[0], together[run], rtol=1e-6)
    np.testing.assert_array_equal(together, drift().evaluate(carry, 3, key=jax.random.key(3)))  # the same program: bits
    assert (np.asarray(together) != np.asarray(drift().evaluate(carry, 3, key=4))).all()


def test_evaluation_does_not_touch_the_carry():
    carry = population(2, spread=[1.0])
    before = jax.tree.map(np.asarray, carry.runs.env)
    drift().evaluate(carry, 3)
    assert not any(x.is_deleted() for x in jax.tree.leaves(carry))
    jax.tree.map(np.testing.assert_array_equal, before, jax.tree.map(np.asarray, carry.runs.env))


def test_what_does_not_finish_is_nan():
    carry = population(1, goal=[8.0, 100.0])  # x = 3.5, then 7.5, then 11.5: the first ends with its third step
    np.testing.assert_allclose(drift().evaluate(carry, 1, max_episode_steps=3), [[by_hand(0.5, goal=8.0)], [np.nan]], rtol=1e-5)
    np.testing.assert_array_equal(drift().evaluate(carry, 1, max_episode_steps=2), [[np.nan]] * 2)
    longer = drift().evaluate(carry, 1, max_episode_steps=50)  # the environment's own limit ends it first
    np.testing.assert_allclose(longer, [[by_hand(0.5, goal=8.0)], [by_hand(0.5)]], rtol=1e-5)


def test_the_longest_limit_of_the_runs_holds():
    returns = drift().evaluate(population(1, max_steps_in_episode=[6, 7]), 1)  # 6 is the default
    assert np.isfinite(returns).all()


@pytest.mark.parametrize("key", [0, 1])
def test_evaluation_does_not_repeat_the_episodes_that_training_begins_with(key):
    """Runs are rooted in key 0 too: without a stream of its own, evaluation would start from the same states."""
    carry = population(3, spread=[1.0], max_steps_in_episode=[1])
    starts = np.asarray(carry.runs.obs)[..., 1]
    returns = np.asarray(drift().evaluate(carry, starts.shape[1], key))
    first_rewards = np.vectorize(lambda x: by_hand(0.5, x, limit=1))(starts)
    assert not np.isclose(returns[:, :, None], first_rewards[:, None, :], rtol=1e-4).any()


def test_a_simulator_nan_is_nan():
    returns = drift().evaluate(population(1, nan_at=[2, -1]), 1)
    np.testing.assert_array_equal(np.isnan(returns), [[True], [False]])


def test_vector_rewards():
    t = rlx.make(RECORDER, Clock(objectives=2))
    returns = np.asarray(t.evaluate(t.init(2), 8))
    assert returns.shape == (2, 8, 2) and returns.dtype == np.float32
    assert {tuple(r) for r in returns.reshape(-1, 2)} == {(3.0, 6.0), (10.0, 20.0)}  # 1 + 2, or 1 + 2 + 3 + 4
    short = np.asarray(t.evaluate(t.init(2), 8, max_episode_steps=3))
    np.testing.assert_array_equal(np.isnan(short), np.broadcast_to(returns[..., :1] == 10.0, short.shape))


@struct.dataclass
class Endless:
    start: Any = 1.0
    spread: Any = 0.0
    goal: Any = 8.0
    nan_at: Any = -1


class EndlessDrift(Drift):
    @property
    def default_params(self):
        return Endless()

    def is_truncated(self, state, params):
        return jnp.bool_(False)


def test_errors():
    def fails(call, *words):
        with pytest.raises(RlxError) as error:
            call()
        assert all(word in str(error.value) for word in words) and "\n" not in str(error.value)

    endless = rlx.make(RECORDER, EndlessDrift())
    carry = endless.init(1, hp={"gain": [0.5, -1.0]})
    fails(lambda: endless.evaluate(carry, 1), "no time limit", "EndlessDrift", "max_episode_steps")
    returns = endless.evaluate(carry, 1, max_episode_steps=20)
    np.testing.assert_allclose(returns, [[by_hand(0.5, goal=8.0)], [np.nan]], rtol=1e-5)
    fails(lambda: drift().evaluate(carry, 0), "episodes=0")
    fails(lambda: drift().evaluate(carry, 2.0), "episodes=2.0")
    fails(lambda: drift().evaluate(carry, 1, max_episode_steps=0), "max_episode_steps=0")
