"""An environment and an agent that record: the agent learns nothing and shows everything it is given."""

from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces

import rlx
from rlx import config, loop
from rlx.config import Traced
from rlx.envs import wrappers
from rlx.types import Agent

T, N = 5, 3


@struct.dataclass
class Params:
    max_steps_in_episode: Any = 4
    nan_at: Any = -1  # the simulator emits NaN when it reaches this time


@struct.dataclass
class State:
    id: jax.Array  # random, one per episode
    time: jax.Array


class Clock(environment.Environment):
    """obs = (id, time, last action); terminates at time 2 if id < 0.5, else only the limit truncates. Reward: the new time."""

    def __init__(self, objectives: int | None = None):
        self.objectives = objectives

    @property
    def default_params(self) -> Params:
        return Params()

    def reset_env(self, key, params):
        state = State(jax.random.uniform(key), jnp.int32(0))
        return jnp.stack([state.id, 0.0, 0.0]), state

    def step_env(self, key, state, action, params):
        state = State(state.id, state.time + 1)
        time = jnp.where(state.time == params.nan_at, jnp.nan, state.time.astype(jnp.float32))
        reward = time if self.objectives is None else time * jnp.arange(1.0, self.objectives + 1.0)
        terminated = (state.id < 0.5) & (state.time == 2)
        obs = jnp.stack([state.id, time, action[0]])
        return obs, state, reward, terminated, {"key": jax.random.key_data(key)}

    def is_truncated(self, state, params):
        return state.time >= params.max_steps_in_episode

    def action_space(self, params):
        return spaces.Box(-1.0, 1.0, (1,))

    def observation_space(self, params):
        return spaces.Box(-jnp.inf, jnp.inf, (3,))


@dataclass(frozen=True)
class Config(config.Config):
    num_envs: int = N
    rollout_length: int = T
    lr: Traced[float] = 1.0
    gain: Traced[float] = 0.5


def make(c: Config, spec) -> Agent:
    """Acts with `uniform(key)`; updates twice in each third iteration, with loss `lr * i`; memory = (draw, step)."""

    def act(hp, state, memory, obs, key, i):
        draw, step = memory
        extras = {"key": jax.random.key_data(key), "i": i, "draw": draw, "step": step, "obs": obs}
        return jax.random.uniform(key, (1,), minval=-1.0), (draw, step + 1), extras

    def greedy(hp, state, memory, obs, key):
        draw, step = memory
        return hp["gain"] * obs[1:2], (draw, step + 1)

    def learn(hp, state, rollout, key, i):
        updates = jnp.where(i % 3 == 0, jnp.int32(2), jnp.int32(0))
        loss = jnp.where(updates > 0, hp["lr"] * i.astype(jnp.float32), jnp.nan)
        return {"i": i, "key": jax.random.key_data(key)}, {"updates": updates, "loss": loss}

    return Agent(
        init=lambda hp, key: {"i": jnp.uint32(0), "key": jax.random.key_data(key)},
        memory=lambda hp, state, key: (jax.random.uniform(key), jnp.int32(0)),
        act=act,
        greedy=greedy,
        learn=learn,
        num_envs=c.num_envs,
        rollout_length=c.rollout_length,
    )


RECORDER = SimpleNamespace(__name__="tests.recorder", Config=Config, make=make)


@cache
def collector(objectives: int | None = None):
    """`collect` for a population, compiled: (runs, i) -> runs, rollout [R, T, N, ...]; and its trainer."""
    t = rlx.make(RECORDER, Clock(objectives))
    vec = rlx.envs.vectorise(wrappers.AgentView(t.env), N)
    vec = wrappers.episode_statistics(vec, t.spec.reward_shape)
    return t, jax.jit(lambda runs, i: jax.vmap(lambda run: loop.collect(t.agent, vec, run, i))(runs))


@cache
def with_population():
    seen: list = []

    def population(pop, runs, returns, key, i):
        seen.append((jnp.shape(returns), jnp.shape(i), jax.tree.map(jnp.shape, runs.hp)))
        row = jax.lax.dynamic_update_slice(pop["returns"], returns[None], (i.astype(jnp.int32), jnp.int32(0)))
        pop = {"calls": pop["calls"] + 1, "returns": row, "key": pop["key"].at[i].set(jax.random.key_data(key))}
        lr = jax.lax.cond(i % 2 == 1, lambda lr: jnp.roll(lr, 1) * 2.0, lambda lr: lr, runs.hp["lr"])  # runs meet
        return pop, runs.replace(hp={**runs.hp, "lr": lr})

    return rlx.make(RECORDER, Clock(), population=population, rollout_length=1), seen
