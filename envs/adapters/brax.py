"""Brax tasks as gymnax environments.

Brax's own *training* wrappers are not used: they cache one start state, hide the true next observation and break with
typed keys. An episode is 1000 steps, as in Brax; its time limit truncates and never terminates.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment, spaces

from rlx.envs.wrappers import TimeLimit
from rlx.errors import RlxError, nearest, unknown

BACKENDS = ("spring", "generalized", "positional", "mjx")
EPISODE_STEPS = 1000
LEFT_OUT = {
    "fast": "it is a stub of Brax's own tests",
    "swimmer": "its only backend calls jnp.clip with arguments that jax no longer has (brax 0.14.2)",
}


@struct.dataclass
class Params:
    """Brax tasks have no traced parameters of their own; the time limit is added by `TimeLimit`."""


@struct.dataclass
class State:
    brax: Any


def tasks() -> dict[str, type]:
    """Brax's registry, imported on demand: importing brax takes seconds and prints about optional packages."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):  # mujoco prints what it lacks
        warnings.simplefilter("ignore")
        from brax import envs
    return {name: cls for name, cls in envs._envs.items() if name not in LEFT_OUT}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No warnings: Python's, and MuJoCo's, which it prints and appends to MUJOCO_LOG.TXT in the working directory."""
    import mujoco

    previous = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        mujoco.set_mju_user_warning(previous)


class Brax(environment.Environment):
    """One Brax task. Actions in [-1, 1]; observations float32; reward and termination as the task defines them."""

    def __init__(self, task: str, /, backend: str = "spring", **options: Any):
        known = tasks()
        if task in LEFT_OUT:
            raise RlxError(f"brax/{task} is left out: {LEFT_OUT[task]}")
        if task not in known:
            raise unknown("environment", f"brax/{task}", [f"brax/{t}" for t in known])
        if backend not in BACKENDS:
            raise unknown(f"backend of brax/{task}", backend, BACKENDS)
        valid = [p for p in inspect.signature(known[task]).parameters if p not in ("kwargs", "backend")]
        for option in options:
            if option not in (*valid, "n_frames"):
                raise RlxError(f"unknown option {option!r} of brax/{task}: {nearest(option, [*valid, 'max_steps'])}")
        self.task, self.options = task, dict(options, backend=backend)
        try:
            with _quiet():
                self.brax = known[task](**self.options)
                state = jax.eval_shape(self.brax.reset, jax.random.key(0))
                if options:  # the constructors check none: a wrong type may not show before a step
                    jax.eval_shape(self.brax.step, state, jax.ShapeDtypeStruct((self.brax.action_size,), jnp.float32))
        except Exception as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            given = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
            hint = "" if options else f": try {', '.join(b for b in BACKENDS if b != backend)}"
            raise RlxError(f"brax/{task} does not run with {given} ({reason}){hint}") from error
        obs = state.obs
        if not hasattr(obs, "shape"):
            raise RlxError(f"brax/{task}: dictionary observations are not supported")
        self.obs_shape = obs.shape

    @property
    def name(self) -> str:
        return f"brax/{self.task}"

    @property
    def default_params(self) -> Params:
        return Params()

    def reset_env(self, key: jax.Array, params: Params) -> tuple[jax.Array, State]:
        state = self.brax.reset(key)
        return state.obs, State(state)

    def step_env(self, key: jax.Array, state: State, action: jax.Array, params: Params) -> tuple:
        inner = self.brax.step(state.brax, action)
        return inner.obs, State(inner), inner.reward, inner.done > 0.5, dict(inner.metrics)

    def is_truncated(self, state: State, params: Params) -> jax.Array:
        return jnp.zeros((), bool)

    def action_space(self, params: Params) -> spaces.Box:
        return spaces.Box(-1.0, 1.0, (self.brax.action_size,))

    def observation_space(self, params: Params) -> spaces.Box:
        return spaces.Box(-np.inf, np.inf, self.obs_shape)


def make(task: str, /, max_steps: int = EPISODE_STEPS, **options: Any) -> TimeLimit:
    """`brax/TASK`. Options: `backend` (spring, generalized, positional, mjx), `max_steps`, and the task's own arguments."""
    if not isinstance(max_steps, int) or isinstance(max_steps, bool) or not 1 <= max_steps < 2**31:
        raise RlxError(f"max_steps={max_steps!r} of brax/{task} must be a whole number in [1, 2^31)")
    return TimeLimit(Brax(task, **options), max_steps)
