"""NAVIX, the MiniGrid tasks in JAX. Its step types keep termination and truncation apart; its own auto-reset is not used."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from gymnax.environments import environment, spaces

from rlx.envs.adapters.options import check, quiet
from rlx.errors import unknown

EPISODE_STEPS = 100  # navix.make's
OBSERVATIONS = ("symbolic", "symbolic_first_person", "categorical", "categorical_first_person", "rgb", "rgb_first_person")


def library() -> Any:
    """navix, imported on demand: it takes seconds, and what it imports warns."""
    with quiet():
        import navix
    return navix


def tasks() -> tuple[str, ...]:
    return tuple(library().registry())


class Navix(environment.Environment):
    """One NAVIX task, 7 actions.

    Observations are boards `[H, W, C]`: uint8 pixels for `rgb*`; float32 numbers for `symbolic*` (entity, colour, state)
    and `categorical*` (entity; one channel), since networks divide uint8 by 255, which leaves nothing of a number below 11.
    The state is navix's `Timestep`; where nothing is rendered it is carried without the cache of sprites (12 kB at 8x8).
    """

    def __init__(self, task: str, max_steps: int, observation: str):
        navix = library()
        self.task, self.observation, self.max_steps = task, observation, max_steps
        self.navix = navix.make(task, max_steps=max_steps, observation_fn=getattr(navix.observations, observation))
        self.obs = jax.eval_shape(self.reset_env, jax.random.key(0), self.default_params)[0]

    @property
    def name(self) -> str:
        return f"navix/{self.task}"

    @property
    def default_params(self) -> environment.EnvParams:
        return environment.EnvParams(max_steps_in_episode=self.max_steps)

    def split(self, timestep: Any) -> tuple[jax.Array, Any]:
        """Observation and state of a `Timestep`."""
        obs = timestep.observation
        if self.observation.startswith("rgb"):
            return obs, timestep
        obs = (obs if obs.ndim == 3 else obs[..., None]).astype(jnp.float32)
        return obs, timestep.replace(state=timestep.state.replace(cache=None))

    def reset_env(self, key: jax.Array, params: environment.EnvParams) -> tuple[jax.Array, Any]:
        return self.split(self.navix.reset(key))

    def step_env(self, key: jax.Array, state: Any, action: jax.Array, params: environment.EnvParams) -> tuple:
        # `_step` is `step` without the auto-reset. navix keeps its limit in the environment; the traced one replaces it.
        timestep = self.navix.replace(max_steps=params.max_steps_in_episode)._step(state, action)
        return *self.split(timestep), timestep.reward, timestep.is_termination(), {}

    def is_truncated(self, state: Any, params: environment.EnvParams) -> jax.Array:
        return state.t >= params.max_steps_in_episode

    def action_space(self, params: environment.EnvParams) -> spaces.Discrete:
        return spaces.Discrete(len(self.navix.action_set))

    def observation_space(self, params: environment.EnvParams) -> spaces.Box:
        low = -1 if self.observation.startswith("categorical") else 0  # walls
        return spaces.Box(low, 255, self.obs.shape, self.obs.dtype)


def make(task: str, /, max_steps: int = EPISODE_STEPS, observation: str = "symbolic", **options: Any) -> Navix:
    """`navix/TASK`. Options: `max_steps` and `observation`, one of navix's own (see `OBSERVATIONS`)."""
    known = tasks()
    if task not in known:
        raise unknown("environment", f"navix/{task}", [f"navix/{t}" for t in known])
    check(f"navix/{task}", {"max_steps": max_steps, **options}, ["max_steps", "observation"])
    if observation not in OBSERVATIONS:
        raise unknown(f"observation of navix/{task}", observation, OBSERVATIONS)
    return Navix(task, max_steps, observation)
