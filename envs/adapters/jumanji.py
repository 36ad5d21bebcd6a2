"""Jumanji's tasks with one action at a time.

Observations keep their structure, as a gymnax `Dict` of `Box` and `Discrete`, and reach an agent flattened into one vector.
Agents here know no masks: `action_mask` is a part of the observation like any other, and an invalid action has the
consequence that the task gives it (it ends the episode, or nothing happens).

Jumanji ends its own time limits with discount 0, as if they were terminations. Here they are lifted and truncate instead.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment, spaces

from rlx.envs.adapters.options import check, misfit, quiet
from rlx.envs.wrappers import TimeLimit, spec
from rlx.errors import RlxError, unknown
from rlx.types import PyTree

EPISODE_STEPS = 4000  # of tasks without a limit of their own: all end by themselves, 2048 only by valid moves
NEVER = 10**9
_MANY = "its action is several numbers at once (MultiDiscrete), which no agent has"
LEFT_OUT = {
    "BinPack-v2": _MANY,
    "Cleaner-v0": _MANY,
    "Connector-v3": _MANY,
    "FlatPack-v0": _MANY,
    "JobShop-v0": _MANY,
    "LevelBasedForaging-v0": _MANY,
    "MMST-v0": _MANY,
    "Minesweeper-v0": _MANY,
    "MultiCVRP-v0": _MANY,
    "RobotWarehouse-v0": _MANY,
    "RubiksCube-partly-scrambled-v0": _MANY,
    "RubiksCube-v0": _MANY,
    "SearchAndRescue-v0": "it is played by a team, with one reward for each member",
    "Sokoban-v0": "it downloads its levels when built",
    "Sudoku-v0": _MANY,
    "Sudoku-very-easy-v0": _MANY,
    "Tetris-v0": _MANY,
}


@struct.dataclass
class Params:
    """Jumanji's tasks have no traced parameters; the time limit is added by `TimeLimit`."""


@struct.dataclass
class State:
    jumanji: Any
    truncated: jax.Array


def tasks() -> dict[str, Any]:
    """Jumanji's registry, name -> entry, without what is left out; imported on demand."""
    with quiet():
        from jumanji import registration
    return {name: entry for name, entry in sorted(registration._REGISTRY.items()) if name not in LEFT_OUT}


def space(given: Any, name: str = "") -> spaces.Space:
    """gymnax's space of a Jumanji spec. Step counts are numbers, although Snake's spec says that they are categories."""
    from jumanji import specs

    if isinstance(given, specs.DiscreteArray) and name != "step_count":
        return spaces.Discrete(given.num_values)
    if isinstance(given, specs.BoundedArray) and name != "step_count":
        return spaces.Box(np.asarray(given.minimum), np.asarray(given.maximum), given.shape, given.dtype)
    if isinstance(given, specs.Array):
        return spaces.Box(-np.inf, np.inf, given.shape, given.dtype)
    return spaces.Dict({child: space(s, child) for child, s in vars(given).items() if isinstance(s, specs.Spec)})


class Jumanji(environment.Environment):
    """One task. Discount 0 is termination; a last step with any other discount is truncation."""

    def __init__(self, task: str, **options: Any):
        self.task = task
        with quiet():
            self.jumanji = importlib.import_module("jumanji").make(task, **options)
        self.time_limit = getattr(self.jumanji, "time_limit", None)
        if self.time_limit is not None:
            self.jumanji.time_limit = NEVER  # read in every step; the bounds of observations have been taken from it already

    @property
    def name(self) -> str:
        return f"jumanji/{self.task}"

    @property
    def default_params(self) -> Params:
        return Params()

    def reset_env(self, key: jax.Array, params: Params) -> tuple[PyTree, State]:
        state, timestep = self.jumanji.reset(key)
        return timestep.observation, State(state, jnp.zeros((), bool))

    def step_env(self, key: jax.Array, state: State, action: jax.Array, params: Params) -> tuple:
        inner, timestep = self.jumanji.step(state.jumanji, action)
        terminated = timestep.last() & (timestep.discount == 0.0)
        state = State(inner, timestep.last() & ~terminated)
        return timestep.observation, state, timestep.reward, terminated, dict(timestep.extras)

    def is_truncated(self, state: State, params: Params) -> jax.Array:
        return state.truncated

    def action_space(self, params: Params) -> spaces.Space:
        return space(self.jumanji.action_spec)

    def observation_space(self, params: Params) -> spaces.Space:
        return space(self.jumanji.observation_spec)


def make(task: str, /, **options: Any) -> TimeLimit:
    """`jumanji/TASK`. Options: `max_steps` (default: the task's own `time_limit`) and the task's own arguments."""
    known, name = tasks(), f"jumanji/{task}"
    if task in LEFT_OUT:
        raise RlxError(f"{name} is left out: {LEFT_OUT[task]}")
    if task not in known:
        raise unknown("environment", name, [f"jumanji/{t}" for t in known])
    from jumanji import registration

    signature = inspect.signature(registration.load(known[task].entry_point)).parameters
    check(name, options, ["max_steps", *(p for p in signature if p not in ("time_limit", "viewer"))])
    max_steps = options.pop("max_steps", None)
    try:
        inner = Jumanji(task, **options)
        env = TimeLimit(inner, max_steps or inner.time_limit or EPISODE_STEPS)
        if options:
            spec(env, env.default_params)  # a wrong type may not show before a step
    except Exception as error:
        raise misfit(name, options, error) from error
    return env
