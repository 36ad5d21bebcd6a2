"""MuJoCo Playground's tasks as gymnax environments: the DM-Control suite, and robots where their models are on disk.

Playground's *training* wrappers are not used: they reset to one cached start and hide the true next observation. Its config
entry `action_repeat` is read by them only, and they step on behind an ending; `modifiers.ActionRepeat` stops there, and is the
`action_repeat` of `rlx.envs.make`. An episode has `episode_length` steps (1000); its time limit truncates.

The models differ from dm_control's: semi-implicit Euler without implicit damping where dm_control has RK4, fewer solver
iterations, in some tasks another timestep (Playground's `dm_control_suite/xmls/README.md` lists it all). Kinematics are those
of the state before the last physics step, where dm_control brings them up to date: of cart-pole's observation and reward the
pole's angle is one step late, position and velocities are not.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment, spaces

from rlx.envs.wrappers import TimeLimit
from rlx.errors import RlxError, nearest, unknown

IMPLS = ("jax", "warp")


@struct.dataclass
class Params:
    """Playground's tasks have no traced parameters of their own; the time limit is added by `TimeLimit`."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No warnings about optional packages, nothing on stdout."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def mending(mujoco: Any) -> Iterator[None]:
    """What it takes to build a task. Playground 0.2.0 compares versions as strings, and asks MuJoCo 3.10 and later for a
    method that 3.3 renamed. MuJoCo prints its warnings and appends them to MUJOCO_LOG.TXT in the working directory."""
    previous = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        with quiet(), mock.patch.object(mujoco.MjSpec, "find_body", mujoco.MjSpec.body, create=True):
            yield
    finally:
        mujoco.set_mju_user_warning(previous)


def source(module: str) -> Any:
    """A module of Playground's, imported on demand: it takes seconds."""
    with quiet():
        return importlib.import_module(f"mujoco_playground._src.{module}")


def robots() -> tuple[str, ...]:
    """Locomotion and manipulation: every one of them needs meshes of mujoco_menagerie."""
    return (*source("locomotion").ALL_ENVS, *source("manipulation").ALL_ENVS)


def tasks() -> tuple[str, ...]:
    """Names of tasks that run without a download: Playground clones mujoco_menagerie on first use, rlx never does."""
    suite: tuple[str, ...] = source("dm_control_suite").ALL_ENVS
    return (*suite, *robots()) if source("mjx_env").MENAGERIE_PATH.exists() else suite


def entries(config: Any, prefix: str = "") -> dict[str, Any]:
    """What can be set in a config and its values, `group.entry` inside a group."""
    out: dict[str, Any] = {}
    for name, value in config.items():
        out |= entries(value, f"{prefix}{name}.") if hasattr(value, "items") else {prefix + name: value}
    return out


def configure(task: str, options: dict[str, Any]) -> Any:
    """The task's config with `options`. RlxError for an unknown name, a value of another type, or times that make no step."""
    config = source("registry").get_default_config(task)
    if "impl" in config and jax.default_backend() != "gpu":
        config.impl = "jax"  # Warp on a CPU is some 50 times slower
    defaults = {name: value for name, value in entries(config).items() if name != "action_repeat"}
    for name, value in options.items():
        if name not in defaults:
            raise RlxError(f"unknown option {name!r} of playground/{task}: {nearest(name, defaults)}")
        try:
            if value is None or isinstance(value, bool) != isinstance(defaults[name], bool):  # a config takes None, and bools
                raise TypeError
            config.update_from_flattened_dict({name: value})
        except (TypeError, ValueError):
            raise RlxError(f"{name}={value!r} of playground/{task} must be like {defaults[name]!r}") from None
    if "impl" in config and config.impl not in IMPLS:
        raise unknown(f"impl of playground/{task}", config.impl, IMPLS)
    if not 1 <= config.episode_length < 2**31:
        raise RlxError(f"episode_length={config.episode_length} of playground/{task} must be >= 1 and < 2^31")
    if not 0 < config.sim_dt <= config.ctrl_dt:
        raise RlxError(f"sim_dt={config.sim_dt} of playground/{task} must be > 0 and at most ctrl_dt={config.ctrl_dt}")
    return config


class Playground(environment.Environment):
    """One task. Actions in [-1, 1]; observations float32, of a dictionary the entry `state`: what the robot's policy gets,
    without the `privileged_state` that Playground shows its critics."""

    def __init__(self, task: str, /, **options: Any):
        if task not in tasks():
            if task in robots():
                where = source("mjx_env").MENAGERIE_PATH
                raise RlxError(f"playground/{task} needs mujoco_menagerie, which rlx does not download: put it at {where}")
            raise unknown("environment", f"playground/{task}", [f"playground/{t}" for t in tasks()])
        self.task, self.config = task, configure(task, options)
        try:
            with mending(importlib.import_module("mujoco")):
                self.playground = source("registry").load(task, config=self.config)
                obs = jax.eval_shape(lambda key: self._observe(self.playground.reset(key)), jax.random.key(0))
        except Exception as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            given = ", ".join(f"{name}={value!r}" for name, value in options.items())
            raise RlxError(f"playground/{task} does not run with {given or 'its own config'} ({reason})") from error
        self.obs_shape = obs.shape

    @staticmethod
    def _observe(state: Any) -> jax.Array:
        if isinstance(state.obs, dict) and "state" not in state.obs:
            raise RlxError(f"observations {sorted(state.obs)} are not supported: one of them must be 'state'")
        obs: jax.Array = state.obs["state"] if isinstance(state.obs, dict) else state.obs
        return obs

    @property
    def name(self) -> str:
        return f"playground/{self.task}"

    @property
    def default_params(self) -> Params:
        return Params()

    def reset_env(self, key: jax.Array, params: Params) -> tuple[jax.Array, Any]:
        state = self.playground.reset(key)
        return self._observe(state), state

    def step_env(self, key: jax.Array, state: Any, action: jax.Array, params: Params) -> tuple:
        copy = jax.tree.map(lambda x: x, state)  # tasks write into the dictionaries of the state they are given
        state = self.playground.step(copy, action)
        return self._observe(state), state, state.reward, state.done > 0.5, dict(state.metrics)

    def is_truncated(self, state: Any, params: Params) -> jax.Array:
        return jnp.zeros((), bool)

    def action_space(self, params: Params) -> spaces.Box:
        return spaces.Box(-1.0, 1.0, (self.playground.action_size,))

    def observation_space(self, params: Params) -> spaces.Box:
        return spaces.Box(-np.inf, np.inf, self.obs_shape)


def make(task: str, /, **options: Any) -> TimeLimit:
    """`playground/TASK`. Options are the entries of the task's config, `group.entry` inside a group: `episode_length`,
    `ctrl_dt`, `sim_dt`, ... `impl` is "jax" or "warp", by default "jax" without a GPU and Playground's choice with one; the
    state of one cannot be restored with the other.
    """
    env = Playground(task, **options)
    return TimeLimit(env, env.config.episode_length)
