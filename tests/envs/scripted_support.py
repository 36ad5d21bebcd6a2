"""An environment that does as its actions say, and N of them run as one compiled program."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import spaces
from gymnax.environments.environment import Environment

from rlx.envs import vector
from rlx.envs.vector import vectorise

KEY = jax.random.key(0)
FINE, END, NAN_OBS, NAN_REWARD, INF_REWARD, NAN_END = range(6)
N, WIDTH = 4, 7  # WIDTH: a shape that only the environment's state has


@struct.dataclass
class Params:
    max_steps_in_episode: Any = 100


@struct.dataclass
class State:
    time: int
    start: jax.Array
    total: float
    key: jax.Array


class Scripted(Environment):
    """The action is a command. Observations show (start, time), the reward is 1 + time; `resets` counts drawn starts."""

    def __init__(self, observe=lambda start, time, poison: jnp.stack([start + poison, time]), reward=lambda r: r):
        self.observe, self.reward, self.resets = observe, reward, 0

    @property
    def default_params(self):
        return Params()

    def reset_env(self, key, params):
        jax.debug.callback(self._count)
        start = jax.random.uniform(key)
        # `time` and `total` are Python numbers, weakly typed, and `total` becomes a float with the first step
        return self.observe(start, jnp.float32(0), 0.0), State(0, jnp.full(WIDTH, start), 0, key)

    def _count(self):
        self.resets += 1

    def step_env(self, key, state, action, params):
        poison = lambda *commands: jnp.where(jnp.isin(action, jnp.array(commands)), jnp.nan, 0.0)
        reward = state.time + 1.0 + poison(NAN_REWARD) + jnp.where(action == INF_REWARD, jnp.inf, 0.0)
        time = state.time + 1
        state = State(time, state.start, state.total + 0.5, state.key)
        obs = self.observe(state.start[0], jnp.float32(time), poison(NAN_OBS, NAN_END))
        return obs, state, self.reward(reward), (action == END) | (action == NAN_END), {"time": time}

    def action_space(self, params):
        return spaces.Discrete(6)


def commands(*rows):
    return jnp.array(rows, jnp.int32)


@functools.cache
def program(env, num_envs=N, auto_reset=True):
    """Jitted (key, actions [T, N], params) -> start obs, states [T, ...], Steps [T, ...]."""
    vec = vectorise(env, num_envs, auto_reset)

    @jax.jit
    def run(key, actions, params):
        state, obs = vec.reset(jax.random.fold_in(key, 0), params)

        def body(state, x):
            t, action = x
            state, step = vec.step(jax.random.fold_in(key, t), state, action, params)
            return state, (state, step)

        times = jnp.arange(1, len(actions) + 1, dtype=jnp.uint32)
        return obs, *jax.lax.scan(body, state, (times, actions))[1]

    return run


PLAIN = Scripted()


def run(actions, env=PLAIN, limit=100, key=KEY, **kwargs):
    actions = jnp.asarray(actions, jnp.int32)
    return jax.device_get(program(env, actions.shape[1], **kwargs)(key, actions, vector.strong(Params(limit))))


def strip_keys(state):
    return state.replace(key=None)
