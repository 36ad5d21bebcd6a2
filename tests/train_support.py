"""`rlx.train` on tiny runs: trainers that are compiled already, an environment of a user's own, comparisons and callbacks."""

import os
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
from rlx.results import Result
from rlx.training import RunConfig, Session
from rlx.types import Carry
from tests.checkpoint_support import bits

CARTPOLE = "gymnax/CartPole-v1"
TINY = {"num_envs": 2, "rollout_length": 10, "num_minibatches": 1, "num_epochs": 1, "hidden_sizes": (8,)}
PER = 20  # env steps of an iteration of TINY
RUN = {"steps": 12 * PER, "seeds": (3, 5), "eval_every": 3 * PER, "save_every": 4 * PER, "eval_episodes": 2}
# Evaluations after 3, 6, 9, 12 iterations, checkpoints after 4, 8, 12: a row at each of them.
MARKS = [PER * i for i in (3, 4, 6, 8, 9, 12)]


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch):
    """Half of the time of a test otherwise. What a crash of the machine leaves is tested in test_checkpoint_crash."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@cache
def ppo() -> rlx.Trainer:
    return rlx.Trainer("ppo", CARTPOLE, lr=0.05, **TINY)


@cache
def sac() -> rlx.Trainer:
    fields = {"num_envs": 2, "rollout_length": 10, "hidden_sizes": (8,), "batch_size": 8, "replay_capacity": 64}
    return rlx.Trainer("sac", "probe/DelayedCredit-continuous", learning_starts=5 * PER, updates_per_step=0.1, **fields)


OWN = {"own_agent": False, "own_env": False}


def train(trainer=None, callback=None, **run) -> Result:
    """`rlx.train` with a trainer that is compiled already."""
    return Session(trainer or ppo(), RunConfig(**{**RUN, **run}), callback, progress=False, own=OWN).train()


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


class Boom(Exception):
    pass


def assert_same_result(a: Result, b: Result) -> None:
    pd.testing.assert_frame_equal(a.metrics, b.metrics, check_exact=True)
    assert_same(a.carry(), b.carry())
    np.testing.assert_array_equal(a.returns, b.returns)


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
