"""A walk with every kind of ending, and programs that step it wrapped."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import spaces
from gymnax.environments.environment import Environment

from rlx.envs import vector

KEY = jax.random.key(0)
N, T = 6, 40


@struct.dataclass
class Params:
    max_steps_in_episode: Any = 7
    end: Any = 3.5
    shock: Any = 0.0
    nan_at: Any = -1


@struct.dataclass
class State:
    x: jax.Array
    time: int
    total: float
    key: jax.Array


class Walk(Environment):
    """x <- 0.75 x + action + shock * N(0, 1), reward 1 + sum(x); ends where x[0] > end. At `nan_at`, one observation (or the
    reward) is NaN and the state is sound. `time` and `total` are Python numbers at the start, and `total` changes type."""

    def __init__(self, nan_in="obs", objectives=None):
        self.nan_in, self.objectives = nan_in, objectives

    default_params = property(lambda self: Params())

    def reset_env(self, key, params):
        x = jax.random.uniform(key, (2,))
        return x, State(x, 0, 0, key)

    def step_env(self, key, state, action, params):
        x = 0.75 * state.x + action + params.shock * jax.random.normal(key, (2,))
        time = state.time + 1
        bad = jnp.where(time == params.nan_at, jnp.nan, 0.0)
        reward = 1.0 + x.sum() + (bad if self.nan_in == "reward" else 0.0)
        if self.objectives:
            reward = reward * jnp.arange(1.0, 1.0 + self.objectives)
        obs = x + bad if self.nan_in == "obs" else x
        return obs, State(x, time, state.total + 0.5, state.key), reward, x[0] > params.end, {"time": time}

    def is_truncated(self, state, params):
        return state.time >= params.max_steps_in_episode

    def action_space(self, params):
        return spaces.Box(-1.0, 3.0, (2,))

    def observation_space(self, params):
        return spaces.Box(-20.0, 20.0, (2,))


@functools.cache
def program(env):
    """Jitted (key, native actions [T, N, 2], params) -> start obs, states and Steps [T, N, ...], with resets."""
    vec = vector.vectorise(env, N)

    @jax.jit
    def run(key, actions, params):
        state, obs = vec.reset(jax.random.fold_in(key, 0), params)

        def body(state, x):
            state, step = vec.step(jax.random.fold_in(key, x[0]), state, x[1], params)
            return state, (state, step)

        return obs, *jax.lax.scan(body, state, (jnp.arange(1, 1 + len(actions), dtype=jnp.uint32), actions))[1]

    return run


def actions(seed=0, steps=T):
    return np.random.default_rng(seed).uniform(-1, 2, (steps, N, 2)).astype(np.float32)


def run(env, params=None, key=KEY, given=None):
    params = env.default_params if params is None else params
    return jax.device_get(program(env)(key, actions() if given is None else given, vector.strong(params)))


def values(tree):
    """NumPy, typed keys included."""
    is_key = lambda x: isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return jax.tree.map(lambda x: np.asarray(jax.random.key_data(x) if is_key(x) else x), tree)
