"""gymnax-style environments older than gymnax 1.0, whose one `done` merges the time limit with true endings."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from gymnax.environments import environment, spaces

from rlx.envs.adapters.options import check
from rlx.envs.wrappers import TimedParams, TimedState
from rlx.errors import RlxError
from rlx.types import PyTree

LIMITS = ("max_steps_in_episode", "max_timesteps")  # what gymnax and Craftax call the parameter
NEVER = 10**9  # steps; twice that still fits an int32


class Legacy(environment.Environment):
    """See `legacy`. `default_params.env` are the environment's own parameters."""

    def __init__(self, env: Any, max_steps: int | None = None):
        for name in ("reset_env", "step_env", "default_params", "action_space", "observation_space"):
            if not hasattr(env, name):
                raise RlxError(f"legacy needs a gymnax-style environment, but {type(env).__name__} has no {name}")
        params = env.default_params
        names = {f.name for f in dataclasses.fields(params)} if dataclasses.is_dataclass(params) else set()
        self.env, self.limit = env, next((name for name in LIMITS if name in names), None)
        if max_steps is None and self.limit is None:
            raise RlxError(f"legacy needs max_steps, since the parameters of {self.name} have no {LIMITS[0]}")
        self.max_steps = int(getattr(params, str(self.limit))) if max_steps is None else max_steps
        check(self.name, {"max_steps": self.max_steps}, ["max_steps"])

    @property
    def name(self) -> str:
        return str(getattr(self.env, "name", type(self.env).__name__))

    @property
    def default_params(self) -> TimedParams:
        return TimedParams(self.env.default_params, self.max_steps)

    def unlimited(self, params: TimedParams) -> PyTree:
        """The environment's parameters with its own limit out of reach, where they have one."""
        return dataclasses.replace(params.env, **{self.limit: NEVER}) if self.limit else params.env

    def reset_env(self, key: jax.Array, params: TimedParams) -> tuple[PyTree, TimedState]:
        obs, state = self.env.reset_env(key, self.unlimited(params))
        return obs, TimedState(state, jnp.zeros((), jnp.int32))

    def step_env(self, key: jax.Array, state: TimedState, action: Any, params: TimedParams) -> tuple:
        time = state.time + 1
        obs, inner, reward, done, info = self.env.step_env(key, state.env, action, self.unlimited(params))
        done = jnp.asarray(done, bool)
        terminated = done if self.limit else done & (time < params.max_steps_in_episode)
        return obs, TimedState(inner, time), reward, terminated, info

    def is_truncated(self, state: TimedState, params: TimedParams) -> jax.Array:
        return state.time >= params.max_steps_in_episode

    def action_space(self, params: TimedParams) -> spaces.Space:
        return modern(self.env.action_space(params.env))

    def observation_space(self, params: TimedParams) -> spaces.Space:
        return modern(self.env.observation_space(params.env))


def legacy(env: Any, max_steps: int | None = None) -> environment.Environment:
    """A gymnax >= 1.0 environment of one with `step_env(key, state, action, params) -> obs, state, reward, done, info`.

    `max_steps` is its time limit, which becomes the (traced) parameter `max_steps_in_episode` and truncates; by default
    the value of the environment's own parameter of that name (or `max_timesteps`). That one is raised out of reach for
    every call, so that `done` is termination only, also when both fall on one step; set by hand it has no effect.
    Observations or rewards that are relative to the limit see the raised one.

    Where the parameters have no limit to raise, `done` on step `max_steps` is counted as truncation, even if the
    environment would have ended there anyway, and `max_steps` must be the limit it has.

    Spaces may be of any library that follows gymnax's names. Raises RlxError where a method or the limit is missing.
    """
    return Legacy(env, max_steps)


def modern(space: Any) -> spaces.Space:
    """gymnax's space for one that has its attributes, such as Craftax's copies."""
    if isinstance(space, spaces.Space):
        return space
    if hasattr(space, "n"):
        return spaces.Discrete(int(space.n))
    if hasattr(space, "low"):
        return spaces.Box(space.low, space.high, space.shape, space.dtype)
    if isinstance(children := getattr(space, "spaces", None), dict):
        return spaces.Dict({name: modern(child) for name, child in children.items()})
    if children is not None:
        return spaces.Tuple([modern(child) for child in children])
    raise RlxError(f"space {type(space).__name__} is not supported: use Box, Discrete, Dict or Tuple")
