"""A gymnasium environment that does as its actions say and whose returns are known, and N of them run as one program."""

import functools
from typing import ClassVar

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from rlx import envs
from rlx.envs.host import HostEnv

FINE, NAN_OBS, NAN_REWARD, RAISE = 2, 3, 4, 5  # native actions: they start at 2
ID = "gymnasium/rlx-test/Scripted-v0"
N, R, T = 2, 3, 12


class Scripted(gym.Env):
    """obs = (id, time), float64; id is drawn for each episode. Reward: half the new time. Terminates at time 3 if id < 0.5,
    else the limit of 5 truncates it. An action other than FINE is a command, unless it is `deaf`."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = gym.spaces.Discrete(4, start=2)
    alive: ClassVar[set] = set()  # instances that have not been closed
    steps = 0  # of all instances
    broken = 1.0  # it raises in every step with an id above that

    def __init__(self, deaf=False):
        self.deaf = deaf
        self.alive.add(id(self))

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.id, self.time = self.np_random.random(), 0
        return np.array([self.id, 0.0]), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        Scripted.steps += 1
        action = FINE if self.deaf else action
        self.time += 1
        if action == RAISE or self.id > self.broken:
            raise ZeroDivisionError(f"broken at time {self.time}")
        obs = np.array([np.nan if action == NAN_OBS else self.id, self.time])
        reward = np.nan if action == NAN_REWARD else self.time / 2
        return obs, reward, bool(self.id < 0.5 and self.time == 3), False, {"ignored": "a string"}

    def close(self):
        self.alive.discard(id(self))


gym.register("rlx-test/Scripted-v0", entry_point=Scripted, max_episode_steps=5)


def make(**options) -> HostEnv:
    env = envs.make(ID, **options)
    assert isinstance(env, HostEnv)
    return env


def keys(*seeds):
    return jnp.stack([jax.random.key(s) for s in seeds])


def seed_of(key, j):
    """The seed of environment j of the run with this (reset) key."""
    return int(jax.random.bits(jax.random.fold_in(key, j), dtype=jnp.uint32))


class Program:
    """`reset(keys [R])` -> tokens, obs; `run(tokens, actions [R, T, N, ...])` -> tokens, Steps `[R, T, N, ...]`."""

    def __init__(self, env, num_envs=N, auto_reset=True):
        self.env, vec = env, env.vectorise(num_envs, auto_reset)

        def run(tokens, actions):
            step = lambda state, action: vec.step(jax.random.key(0), state, action, env.default_params)
            tokens, steps = jax.lax.scan(jax.vmap(step), tokens, jnp.swapaxes(actions, 0, 1))
            return tokens, jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), steps)

        self._reset = jax.jit(jax.vmap(lambda key: vec.reset(key, env.default_params)))
        self._run = jax.jit(run)

    def reset(self, keys):
        return jax.device_get(self._reset(keys))

    def run(self, tokens, actions):
        return jax.device_get(self._run(tokens, jnp.asarray(actions)))

    def __call__(self, keys, actions):
        """Start observations, Steps."""
        tokens, start = self.reset(keys)
        return start, self.run(tokens, actions)[1]


@functools.cache
def program(num_envs=N, auto_reset=True):
    return Program(make(), num_envs, auto_reset)


def fine(t=T, r=R, n=N):
    return np.full((r, t, n), FINE, np.int32)


def pick(tree, r):
    return jax.tree.map(lambda x: x[r], tree)


def assert_equal(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)
