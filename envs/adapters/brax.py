"""Brax tasks as gymnax environments, whose friction, masses and gravity are traced parameters.

Brax's own *training* wrappers are not used: they cache one start state, hide the true next observation and break with
typed keys. An episode is 1000 steps, as in Brax; its time limit truncates and never terminates.
"""

from __future__ import annotations

import contextlib
import copy
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
MIN_FRICTION = 1e-3  # below it MJX's pyramidal cones throw bodies into the air, in float32
LEFT_OUT = {
    "fast": "it is a stub of Brax's own tests",
    "swimmer": "its only backend calls jnp.clip with arguments that jax no longer has (brax 0.14.2)",
}


@struct.dataclass
class Params:
    """Float32 scales of the task's own physics, all 1 by default; see `scaled`. The time limit is added by `TimeLimit`."""

    friction: float | jax.Array = 1.0
    mass: float | jax.Array = 1.0
    gravity: float | jax.Array = 1.0


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


def effective(sys: Any, backend: str) -> Any:
    """`sys` with the masses and inertias that the backend simulates.

    `spring` and `positional` raise the model's to powers, down to 0 (every link of ant and hopper weighs 1), which would
    swallow a scale; here that is done already.
    """
    if backend not in ("spring", "positional"):
        return sys
    inertia = sys.link.inertia
    new = {
        "link.inertia.mass": inertia.mass ** (1 - sys.spring_mass_scale),
        "link.inertia.i": inertia.i ** (1 - sys.spring_inertia_scale),
    }
    return sys.tree_replace(new | {"spring_mass_scale": 0.0, "spring_inertia_scale": 0.0})


def scaled(sys: Any, params: Params) -> Any:
    """An `effective` system under `params`, for every backend; each reads its own of these fields.

    friction: the sliding coefficient of every geometry, the ground included, at least `MIN_FRICTION`. Torsional and rolling
      friction stay, since no task has contacts that use them. Of no effect in reacher and the pendulums: no contacts.
    mass: masses and inertia tensors of all links. Rotor inertia (armature), springs, dampers and motors stay. Inverse
      weights, which set how soft contacts and joint limits are, go as 1 / mass: exact without armature. In `positional`,
      Brax's friction decelerates in proportion to mass.
    gravity: of no effect in pusher, which has none.

    At 1 every field keeps its bits.
    """
    friction, mass, gravity = (jnp.asarray(x, jnp.float32) for x in (params.friction, params.mass, params.gravity))
    inertia = sys.link.inertia
    inertia = inertia.replace(mass=inertia.mass * mass, i=inertia.i * mass)
    return sys.replace(
        geom_friction=sys.geom_friction.at[:, 0].set(jnp.maximum(sys.geom_friction[:, 0] * friction, MIN_FRICTION)),
        gravity=sys.gravity * gravity,
        link=sys.link.replace(inertia=inertia, invweight=sys.link.invweight / mass),
        dof=sys.dof.replace(invweight=sys.dof.invweight / mass),
        opt=sys.opt.replace(gravity=sys.opt.gravity * gravity),
        body_mass=sys.body_mass * mass,
        body_inertia=sys.body_inertia * mass,
        body_subtreemass=sys.body_subtreemass * mass,
        body_invweight0=sys.body_invweight0 / mass,
        dof_invweight0=sys.dof_invweight0 / mass,
    )


class Brax(environment.Environment):
    """One Brax task. Actions in [-1, 1]; observations float32; reward and termination as the task defines them.

    With default parameters steps equal Brax's own to the bit, but where XLA rounds otherwise what Brax computes from
    constants: in the last bit, a moment of inertia of halfcheetah (`spring`, `positional`) and those of the humanoids.
    """

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
        self.brax.sys = effective(self.brax.sys, backend)

    @property
    def name(self) -> str:
        return f"brax/{self.task}"

    @property
    def default_params(self) -> Params:
        return Params()

    def under(self, params: Params) -> Any:
        """Brax's environment under `params`: a copy, since it holds its system, which is traced here."""
        env = copy.copy(self.brax)
        env.sys = scaled(env.sys, params)
        return env

    def reset_env(self, key: jax.Array, params: Params) -> tuple[jax.Array, State]:
        state = self.under(params).reset(key)
        return state.obs, State(state)

    def step_env(self, key: jax.Array, state: State, action: jax.Array, params: Params) -> tuple:
        env, inner = self.under(params), state.brax
        if hasattr(inner.pipeline_state, "mass"):  # held since the reset, maybe under other parameters
            inner = inner.replace(pipeline_state=inner.pipeline_state.replace(mass=env.sys.link.inertia.mass))
        inner = env.step(inner, action)
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
