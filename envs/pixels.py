"""Pixels as observations, `rlx.envs.make("gymnax/Pendulum-v1", pixels=True)`: what can be drawn, and the wrapper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments import environment, spaces

from rlx.envs.raster import GOAL, View, capsule, cartpole, disc, grid, mountain_car, pendulum, reacher
from rlx.envs.wrappers import Wrapper
from rlx.errors import RlxError
from rlx.masks import finite
from rlx.types import PyTree

Draw = Callable[[Any, Any], jax.Array]  # state, params -> frame, uint8 [H, W, C]

# --- scenes: from an environment's own state and parameters ------------------------------------------------------------
#
# In the geometry of each task, its lengths read off the parameters where they are parameters; decorations are thicker than the
# original, so that they show on 84 pixels. Playground and Brax from the joints' positions: Playground's kinematics lag.


def planar(angles: jax.Array) -> jax.Array:
    """Headings of links whose angles are counter-clockwise from the x axis, each relative to the link before."""
    return np.float32(np.pi / 2) - jnp.cumsum(angles)


def gymnax_cartpole(state: Any, params: Any) -> jax.Array:
    return cartpole(state.x, state.theta[None], 2.0 * params.length, View(2.7, y=1.0), track=2.4)  # `length` is half a pole


def gymnax_pendulum(state: Any, params: Any) -> jax.Array:
    return pendulum(-state.theta[None], params.l, View(1.3))


def gymnax_acrobot(state: Any, params: Any) -> jax.Array:
    """Angles from straight down, counter-clockwise, the second relative to the first. The line is the height of the goal."""
    view = View(2.3)
    headings = np.float32(np.pi) - jnp.cumsum(jnp.stack([state.joint_angle1, state.joint_angle2]))
    lengths = jnp.stack([jnp.asarray(x, jnp.float32) for x in (params.link_length_1, params.link_length_2)])
    return pendulum(headings, lengths, view, (capsule(grid(view), (-3.0, 1.0), (3.0, 1.0), 0.03), GOAL))


def gymnax_reacher(state: Any, params: Any) -> jax.Array:
    """Angles are absolute here."""
    view = View(state.angles.shape[0] + 0.2)
    return reacher(np.float32(np.pi / 2) - state.angles, 1.0, state.goal_xy, 0.07 * view.half, view)


def gymnax_mountain_car(state: Any, params: Any) -> jax.Array:
    return mountain_car(state.position, params.goal_position, View(1.0, x=-0.3, y=0.7))


def brax_cart(state: Any, params: Any) -> jax.Array:
    q = state.brax.pipeline_state.q
    return cartpole(q[0], jnp.cumsum(q[1:]), 0.6, View(1.75), track=1.0)


def brax_reacher(state: Any, params: Any) -> jax.Array:
    q = state.brax.pipeline_state.q
    return reacher(planar(q[:2]), np.array([0.1, 0.11], np.float32), q[2:], 0.02, View(0.3))


def playground_cartpole(state: Any, params: Any) -> jax.Array:
    return cartpole(state.data.qpos[0], state.data.qpos[1:], 1.0, View(2.1), track=2.0)


def playground_pendulum(state: Any, params: Any) -> jax.Array:
    return pendulum(state.data.qpos, 0.5, View(0.65))


def playground_acrobot(state: Any, params: Any) -> jax.Array:
    view = View(2.3)
    return pendulum(jnp.cumsum(state.data.qpos), 1.0, view, (disc(grid(view), (0.0, 2.0), 0.2), GOAL))


def playground_reacher(radius: float) -> Draw:
    return lambda state, params: reacher(planar(state.data.qpos), 0.12, state.data.mocap_pos[0, :2], radius, View(0.3))


SCENES: dict[str, Draw] = {
    "gymnax/CartPole-v1": gymnax_cartpole,
    "gymnax/Pendulum-v1": gymnax_pendulum,
    "gymnax/Acrobot-v1": gymnax_acrobot,
    "gymnax/MountainCar-v0": gymnax_mountain_car,
    "gymnax/MountainCarContinuous-v0": gymnax_mountain_car,
    "gymnax/Reacher-misc": gymnax_reacher,
    "brax/inverted_pendulum": brax_cart,
    "brax/inverted_double_pendulum": brax_cart,
    "brax/reacher": brax_reacher,
    "playground/CartpoleBalance": playground_cartpole,
    "playground/CartpoleBalanceSparse": playground_cartpole,
    "playground/CartpoleSwingup": playground_cartpole,
    "playground/CartpoleSwingupSparse": playground_cartpole,
    "playground/PendulumSwingup": playground_pendulum,
    "playground/AcrobotSwingup": playground_acrobot,
    "playground/AcrobotSwingupSparse": playground_acrobot,
    "playground/ReacherEasy": playground_reacher(0.05),
    "playground/ReacherHard": playground_reacher(0.015),
}


def scene(env: environment.Environment) -> Draw:
    """What draws `env`, by its name. Raises RlxError where there is no scene for it."""
    name = env.name if "/" in env.name else f"gymnax/{env.name}"
    if name not in SCENES:
        raise RlxError(f"pixels: {env.name} has no scene: use Pixels(env, draw) or one of {', '.join(SCENES)}")
    return lambda state, params: SCENES[name](innermost(state), innermost(params))


def innermost(x: Any) -> Any:
    """A state, or parameters, without what wrappers keep around it."""
    while hasattr(x, "env"):
        x = x.env
    return x


# --- the wrapper -------------------------------------------------------------------------------------------------------


class Pixels(Wrapper):
    """Observes frames of the state that a step leads to: uint8 `[84, 84, 3]` by the table above, or what `draw` returns, a
    uint8 `[H, W, C]`, from the state and parameters of `env` itself.

    No velocities are seen: stack frames. Where the observation of `env` is not finite, the reward is NaN, since no frame
    shows it and the quarantine in `vectorise` must.
    """

    def __init__(self, env: environment.Environment, draw: Draw | None = None):
        super().__init__(env)
        self.draw = scene(env) if draw is None else draw
        reset = lambda key, params: self.reset_env(key, params)[0]
        frame = jax.eval_shape(reset, jax.random.key(0), env.default_params)
        if len(frame.shape) != 3 or frame.dtype != jnp.uint8:
            raise RlxError(f"pixels: {env.name} is drawn as {frame.dtype}{list(frame.shape)}; it must be uint8[H, W, C]")
        self.shape: tuple[int, ...] = frame.shape

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, PyTree]:
        _, state = self.env.reset_env(key, params)
        return self.draw(state, params), state

    def step_env(self, key: jax.Array, state: PyTree, action: Any, params: Any) -> tuple:
        obs, state, reward, terminated, info = self.env.step_env(key, state, action, params)
        sound = finite(jax.tree.map(lambda x: jnp.asarray(x)[None], obs))[0]
        reward = jnp.where(sound, jnp.asarray(reward, jnp.float32), jnp.nan)
        return self.draw(state, params), state, reward, terminated, info

    def observation_space(self, params: Any) -> spaces.Box:
        return spaces.Box(0, 255, self.shape, jnp.uint8)
