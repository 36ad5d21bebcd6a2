"""What changes a task: action repeat, action cost, pixels, noisy observations, stacks of frames. All are gymnax environments.

`rlx.envs.make` accepts them as options of every suite, `action_repeat=2, action_cost=0.1, pixels=True, obs_noise=0.01,
frame_stack=3`, through `split` and `apply`; the classes wrap any environment object. From the inside out:

    ActionCost -> ActionRepeat -> Pixels -> ObservationNoise -> FrameStack -> TimeLimit

so a cost is charged in each native step, and a frame or noise is drawn once for each observation that an agent sees.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment, spaces

from rlx.envs.host import HostEnv
from rlx.envs.pixels import Pixels
from rlx.envs.vector import state_dtypes
from rlx.envs.wrappers import TimeLimit, Wrapper
from rlx.errors import RlxError
from rlx.masks import finite
from rlx.types import PyTree

OPTIONS = ("action_repeat", "action_cost", "pixels", "obs_noise", "frame_stack")
NOISE = 0x6E6F6973  # the noise's branch of a step's key, far from the small numbers that environments fold in


def split(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options for `apply`, and the rest, which are the environment's own. An option that is None counts as not given."""
    ours = {name: options[name] for name in OPTIONS if options.get(name) is not None}
    return ours, {name: value for name, value in options.items() if name not in OPTIONS}


def apply(
    env: environment.Environment,
    action_repeat: int | None = None,
    action_cost: float | None = None,
    pixels: bool | None = None,
    obs_noise: float | None = None,
    frame_stack: int | None = None,
) -> environment.Environment:
    """`env` with what is given. A cost or a noise of 0 is there, as a parameter to be varied.

    A `TimeLimit` around `env` stays outermost and counts agent steps: ceil(its limit / action_repeat).
    """
    if pixels not in (None, False, True):
        raise RlxError(f"pixels={pixels!r} must be True or False")
    if not pixels and action_repeat is None and action_cost is None and obs_noise is None and frame_stack is None:
        return env
    if isinstance(env, HostEnv):
        raise RlxError(f"{', '.join(OPTIONS)} are for environments in JAX; {env.name} runs on the host")
    inner, limit = (env.env, env.max_steps) if type(env) is TimeLimit else (env, None)
    if action_cost is not None:
        inner = ActionCost(inner, action_cost)
    if action_repeat is not None:
        inner = ActionRepeat(inner, action_repeat)
    if pixels:
        inner = Pixels(inner)
    if obs_noise is not None:
        inner = ObservationNoise(inner, obs_noise)
    if frame_stack is not None:
        inner = FrameStack(inner, frame_stack)
    return inner if limit is None else TimeLimit(inner, -(-limit // (action_repeat or 1)))


# --- action repeat -----------------------------------------------------------------------------------------------------


class ActionRepeat(Wrapper):
    """Each action is taken for `repeat` native steps, fewer where the episode ends before: then the rest changes nothing.

    The reward is the sum; observation, `terminated` and `info` are those of the last native step taken. A native time limit
    counts native steps, and an episode of L of them has ceil(L / repeat) agent steps; `max_steps_in_episode` of a
    `TimeLimit` around this counts agent steps. Parameters are those of `env`. An observation or a reward that is not
    finite ends the repeat too and comes out as it is, so that the quarantine in `vectorise` sees it.

    The i-th native step has the key `fold_in(key, i)`. A scan with selects: a `while_loop` under vmap runs until the last
    environment is done, with the same selects.
    """

    def __init__(self, env: environment.Environment, repeat: int):
        super().__init__(env)
        if not isinstance(repeat, (int, np.integer)) or isinstance(repeat, bool) or repeat < 1:
            raise RlxError(f"action_repeat={repeat!r} must be a whole number >= 1")
        self.repeat = int(repeat)
        self._dtypes: list[PyTree] = []  # computed at the first trace, from the shapes of the parameters in use

    def _cast(self, state: PyTree, params: Any) -> PyTree:
        """A scan carries one dtype a leaf, where reset and step may have two (Python numbers, mostly)."""
        if not self._dtypes:
            self._dtypes.append(state_dtypes(self.env, params))
        is_key = lambda d: jnp.issubdtype(d, jax.dtypes.prng_key)
        return jax.tree.map(lambda x, d: x if is_key(d) else jax.lax.convert_element_type(x, d), state, self._dtypes[0])

    def reset_env(self, key: jax.Array, params: Any) -> tuple[PyTree, PyTree]:
        obs, state = self.env.reset_env(key, params)
        return obs, self._cast(state, params)

    def step_env(self, key: jax.Array, state: PyTree, action: Any, params: Any) -> tuple:
        def native(carry: tuple[PyTree, jax.Array], i: jax.Array) -> tuple:
            state, ended = carry
            obs, after, reward, terminated, info = self.env.step_env(jax.random.fold_in(key, i), state, action, params)
            after = jax.tree.map(lambda old, new: jnp.where(ended, old, new), state, self._cast(after, params))
            over = jnp.asarray(terminated, bool) | self.env.is_truncated(after, params)
            sound = finite(jax.tree.map(lambda x: jnp.asarray(x)[None], (obs, reward)))[0]
            reward = jnp.where(ended, 0.0, jnp.asarray(reward, jnp.float32))
            return (after, ended | over | ~sound), (obs, reward, terminated, info, ~ended)

        start = self._cast(state, params), jnp.zeros((), bool)
        steps: tuple
        (state, _), steps = jax.lax.scan(native, start, jnp.arange(self.repeat, dtype=jnp.uint32))
        obs, reward, terminated, info, taken = steps
        last = taken.sum() - 1
        obs, terminated, info = jax.tree.map(lambda x: x[last], (obs, terminated, info))
        return obs, state, reward.sum(0), terminated, info


# --- frame stacking ----------------------------------------------------------------------------------------------------


@struct.dataclass
class StackState:
    env: PyTree
    stack: jax.Array


class FrameStack(Wrapper):
    """Observes the last `frames` observations, concatenated on their last axis, newest last; the first of an episode stands
    for those before it. Images keep their shape, other arrays are flattened.

    `EnvSpec.frames` tells agents, whose replay keeps each frame once. Outermost but for `TimeLimit`: what changes
    observations or skips steps outside a stack breaks that, and has `frames` 1.
    """

    def __init__(self, env: environment.Environment, frames: int):
        super().__init__(env)
        if not isinstance(frames, (int, np.integer)) or isinstance(frames, bool) or frames < 1:
            raise RlxError(f"frame_stack={frames!r} must be a whole number >= 1")
        space = env.observation_space(env.default_params)
        if not isinstance(space, spaces.Box):
            raise RlxError(f"frame_stack: {env.name} observes no arrays but a {type(space).__name__} space")
        self.frames = int(frames)

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, StackState]:
        obs, state = self.env.reset_env(key, params)
        stack = jnp.concatenate([image_or_vector(obs)] * self.frames, axis=-1)
        return stack, StackState(state, stack)

    def step_env(self, key: jax.Array, state: StackState, action: Any, params: Any) -> tuple:
        obs, inner, reward, terminated, info = self.env.step_env(key, state.env, action, params)
        obs = image_or_vector(obs).astype(state.stack.dtype)
        stack = jnp.concatenate([state.stack[..., obs.shape[-1] :], obs], axis=-1)
        return stack, StackState(inner, stack), reward, terminated, info

    def is_truncated(self, state: StackState, params: Any) -> jax.Array:
        return self.env.is_truncated(state.env, params)

    def observation_space(self, params: Any) -> spaces.Box:
        space = self.env.observation_space(params)
        repeat = lambda bound: jnp.concatenate([image_or_vector(jnp.broadcast_to(bound, space.shape))] * self.frames, axis=-1)
        low, high = repeat(space.low), repeat(space.high)
        return spaces.Box(low, high, low.shape, space.dtype)


def image_or_vector(obs: jax.Array) -> jax.Array:
    obs = jnp.asarray(obs)
    return obs if obs.ndim == 3 else obs.ravel()


# --- a cost of actions -------------------------------------------------------------------------------------------------


@struct.dataclass
class CostParams:
    env: PyTree
    action_cost: float | jax.Array


class ActionCost(Wrapper):
    """Subtracts `action_cost * |action|^2`, native units, from the reward; from each objective of a vector reward, so that
    a preference of sum 1 pays it once. The weight is a (traced) parameter."""

    def __init__(self, env: environment.Environment, action_cost: float):
        super().__init__(env)
        self.action_cost = nonnegative("action_cost", action_cost)
        if not isinstance(env.action_space(env.default_params), spaces.Box):
            raise RlxError(f"action_cost: {env.name} has no continuous actions")

    @property
    def default_params(self) -> CostParams:
        return CostParams(self.env.default_params, self.action_cost)

    def reset_env(self, key: jax.Array, params: CostParams) -> tuple[PyTree, PyTree]:
        return self.env.reset_env(key, params.env)

    def step_env(self, key: jax.Array, state: PyTree, action: Any, params: CostParams) -> tuple:
        obs, state, reward, terminated, info = self.env.step_env(key, state, action, params.env)
        cost = params.action_cost * jnp.sum(jnp.square(jnp.asarray(action, jnp.float32)))
        return obs, state, jnp.asarray(reward, jnp.float32) - cost, terminated, info

    def is_truncated(self, state: PyTree, params: CostParams) -> jax.Array:
        return self.env.is_truncated(state, params.env)

    def action_space(self, params: CostParams) -> spaces.Space:
        return self.env.action_space(params.env)

    def observation_space(self, params: CostParams) -> spaces.Space:
        return self.env.observation_space(params.env)


# --- noise -------------------------------------------------------------------------------------------------------------


@struct.dataclass
class NoiseParams:
    env: PyTree
    obs_noise: float | jax.Array


class ObservationNoise(Wrapper):
    """Adds `obs_noise * N(0, 1)` to every float of an observation; integers and bools pass. The scale is a (traced) parameter.

    The environment gets the key that it would get without the noise, so equal keys give equal states and rewards.
    """

    def __init__(self, env: environment.Environment, obs_noise: float):
        super().__init__(env)
        self.obs_noise = nonnegative("obs_noise", obs_noise)
        obs = jax.eval_shape(env.reset_env, jax.random.key(0), env.default_params)[0]
        if not any(jnp.issubdtype(x.dtype, jnp.floating) for x in jax.tree.leaves(obs)):
            raise RlxError(f"obs_noise: {env.name} observes no floats")

    @property
    def default_params(self) -> NoiseParams:
        return NoiseParams(self.env.default_params, self.obs_noise)

    def reset_env(self, key: jax.Array, params: NoiseParams) -> tuple[PyTree, PyTree]:
        obs, state = self.env.reset_env(key, params.env)
        return noisy(key, obs, params.obs_noise), state

    def step_env(self, key: jax.Array, state: PyTree, action: Any, params: NoiseParams) -> tuple:
        obs, state, reward, terminated, info = self.env.step_env(key, state, action, params.env)
        return noisy(key, obs, params.obs_noise), state, reward, terminated, info

    def is_truncated(self, state: PyTree, params: NoiseParams) -> jax.Array:
        return self.env.is_truncated(state, params.env)

    def action_space(self, params: NoiseParams) -> spaces.Space:
        return self.env.action_space(params.env)

    def observation_space(self, params: NoiseParams) -> spaces.Space:
        return unbounded(self.env.observation_space(params.env))


def noisy(key: jax.Array, obs: PyTree, std: float | jax.Array) -> PyTree:
    """`obs` with `std * N(0, 1)` added to its float leaves, each in its own dtype."""
    leaves, structure = jax.tree.flatten(jax.tree.map(jnp.asarray, obs))
    key = jax.random.fold_in(key, NOISE)
    for i, x in enumerate(leaves):
        if jnp.issubdtype(x.dtype, jnp.floating):
            noise = jax.random.normal(jax.random.fold_in(key, i), x.shape, x.dtype)
            leaves[i] = x + jnp.asarray(std, x.dtype) * noise
    return jax.tree.unflatten(structure, leaves)


def unbounded(space: spaces.Space) -> spaces.Space:
    """`space` with every box of floats without bounds."""
    if isinstance(space, spaces.Box) and jnp.issubdtype(space.dtype, jnp.floating):
        return spaces.Box(-np.inf, np.inf, space.shape, space.dtype)
    if isinstance(space, spaces.Dict):
        return spaces.Dict({name: unbounded(s) for name, s in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([unbounded(s) for s in space.spaces])
    return space


def nonnegative(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not 0.0 <= value < math.inf:
        raise RlxError(f"{name}={value!r} must be a number >= 0")
    return float(value)
