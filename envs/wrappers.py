"""What stands between a user's environment and an agent: time limit, observation encoding, action scaling, statistics.

An environment wrapper is itself a gymnax `Environment`; `episode_statistics` wraps a `VecEnv`, host or compiled.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment, spaces

from rlx.envs import vector
from rlx.envs.host import HostEnv
from rlx.errors import RlxError
from rlx.masks import where
from rlx.types import EnvSpec, PyTree, Step, VecEnv


class Wrapper(environment.Environment):
    """Forwards everything to `env`.

    An observation is `frames` frames on the last axis, of which the next one has all but the oldest.
    """

    frames: int = 1

    def __init__(self, env: environment.Environment):
        self.env = env

    @property
    def name(self) -> str:
        return self.env.name

    @property
    def default_params(self) -> Any:
        return self.env.default_params

    def reset_env(self, key: jax.Array, params: Any) -> tuple[PyTree, PyTree]:
        return self.env.reset_env(key, params)

    def step_env(self, key: jax.Array, state: PyTree, action: Any, params: Any) -> tuple:
        return self.env.step_env(key, state, action, params)

    def is_truncated(self, state: PyTree, params: Any) -> jax.Array:
        return self.env.is_truncated(state, params)

    def action_space(self, params: Any) -> spaces.Space:
        return self.env.action_space(params)

    def observation_space(self, params: Any) -> spaces.Space:
        return self.env.observation_space(params)


def frames(env: environment.Environment) -> int:
    """Of how many frames an observation of `env` is a stack."""
    return env.frames if isinstance(env, Wrapper) else 1


# --- time limit --------------------------------------------------------------------------------------------------------


@struct.dataclass
class TimedState:
    env: PyTree
    time: jax.Array


@struct.dataclass
class TimedParams:
    env: PyTree
    max_steps_in_episode: int | jax.Array


class TimeLimit(Wrapper):
    """Truncates after `max_steps_in_episode`, a (traced) parameter; the inner environment's own limit still holds."""

    def __init__(self, env: environment.Environment, max_steps: int):
        super().__init__(env)
        if max_steps < 1:
            raise RlxError(f"max_steps={max_steps} must be >= 1")
        self.max_steps = max_steps
        self.frames = frames(env)

    @property
    def default_params(self) -> TimedParams:
        return TimedParams(self.env.default_params, self.max_steps)

    def reset_env(self, key: jax.Array, params: TimedParams) -> tuple[PyTree, TimedState]:
        obs, state = self.env.reset_env(key, params.env)
        return obs, TimedState(state, jnp.zeros((), jnp.int32))

    def step_env(self, key: jax.Array, state: TimedState, action: Any, params: TimedParams) -> tuple:
        obs, inner, reward, terminated, info = self.env.step_env(key, state.env, action, params.env)
        return obs, TimedState(inner, state.time + 1), reward, terminated, info

    def is_truncated(self, state: TimedState, params: TimedParams) -> jax.Array:
        return (state.time >= params.max_steps_in_episode) | self.env.is_truncated(state.env, params.env)

    def action_space(self, params: TimedParams) -> spaces.Space:
        return self.env.action_space(params.env)

    def observation_space(self, params: TimedParams) -> spaces.Space:
        return self.env.observation_space(params.env)


# --- the border between native and agent units -------------------------------------------------------------------------


def encode(space: spaces.Space, obs: PyTree) -> jax.Array:
    """One native observation as the array that agents see.

    Rank 3 is an image or board and keeps its shape; any other array is flattened. uint8 and bool keep their dtype,
    everything else becomes float32. A `Discrete` value becomes one-hot; dicts and tuples are flattened leaf by leaf
    (dicts in sorted order) and concatenated as float32.
    """
    if isinstance(space, spaces.Discrete):
        return jax.nn.one_hot(obs - getattr(space, "start", 0), space.n, dtype=jnp.float32)
    if isinstance(space, spaces.Dict):
        get = obs.__getitem__ if isinstance(obs, dict) else lambda k: getattr(obs, k)
        parts = [encode(space.spaces[k], get(k)) for k in sorted(space.spaces)]
        return jnp.concatenate([p.ravel().astype(jnp.float32) for p in parts])
    if isinstance(space, spaces.Tuple):
        parts = [encode(s, o) for s, o in zip(space.spaces, obs, strict=True)]
        return jnp.concatenate([p.ravel().astype(jnp.float32) for p in parts])
    if not isinstance(space, spaces.Box):
        raise RlxError(f"observation space {type(space).__name__} is not supported: use Box, Discrete, Dict or Tuple")
    obs = jnp.asarray(obs)
    if obs.dtype not in (jnp.uint8, jnp.bool_):
        obs = obs.astype(jnp.float32)
    return obs if obs.ndim == 3 else obs.ravel()


def decode(space: spaces.Space, action: jax.Array) -> jax.Array:
    """An agent's action in native units: the only affine map, [-1, 1]^d onto the bounds of the box, clipped to them.

    Discrete actions pass, in the space's dtype. Bounds may depend on traced parameters.
    """
    if isinstance(space, spaces.Discrete):
        return action.astype(space.dtype) + getattr(space, "start", 0)
    low, high = (jnp.broadcast_to(jnp.asarray(b, jnp.float32), space.shape) for b in (space.low, space.high))
    unit = (action.reshape(space.shape) + 1.0) / 2.0
    native = jnp.clip(low + unit * (high - low), low, high)
    return jnp.where(unit >= 1.0, high, native).astype(space.dtype)  # +1 is the bound itself, whatever the rounding


class AgentView(Wrapper):
    """The environment in the agents' units: observations through `encode`, actions through `decode`."""

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, PyTree]:
        obs, state = self.env.reset_env(key, params)
        return encode(self.env.observation_space(params), obs), state

    def step_env(self, key: jax.Array, state: PyTree, action: jax.Array, params: Any) -> tuple:
        native = decode(self.env.action_space(params), action)
        obs, state, reward, terminated, info = self.env.step_env(key, state, native, params)
        return encode(self.env.observation_space(params), obs), state, reward, terminated, info

    def action_space(self, params: Any) -> spaces.Space:
        space = self.env.action_space(params)
        return space if isinstance(space, spaces.Discrete) else spaces.Box(-1.0, 1.0, (int(np.prod(space.shape)),))


def vectorise(env: environment.Environment, num_envs: int, auto_reset: bool = True) -> VecEnv:
    """`vector.vectorise` in the agents' units: what loop and evaluation step."""
    if not isinstance(env, HostEnv):
        return vector.vectorise(AgentView(env), num_envs, auto_reset)
    native = env.vectorise(num_envs, auto_reset)

    def encoded(obs: PyTree, params: PyTree) -> jax.Array:
        return jax.vmap(lambda o: encode(env.observation_space(params), o))(obs)

    def reset(key: jax.Array, params: PyTree) -> tuple[PyTree, jax.Array]:
        state, obs = native.reset(key, params)
        return state, encoded(obs, params)

    def step(key: jax.Array, state: PyTree, action: jax.Array, params: PyTree) -> tuple[PyTree, Step]:
        action = jax.vmap(lambda a: decode(env.action_space(params), a))(action)
        state, out = native.step(key, state, action, params)
        return state, out.replace(obs=encoded(out.obs, params), next_obs=encoded(out.next_obs, params))

    return VecEnv(num_envs, reset, step)


def spec(env: environment.Environment, params: PyTree, name: str | None = None) -> EnvSpec:
    """What agents may know of `env`, from shapes alone. Raises RlxError for spaces that no agent can handle."""
    label = name or env.name
    space = env.action_space(params)
    if isinstance(space, spaces.Box):
        bounds = np.asarray(space.low, np.float64), np.asarray(space.high, np.float64)
        if not all(np.isfinite(b).all() for b in bounds):
            raise RlxError(f"{label}: the action box [{space.low}, {space.high}] must be bounded, since agents act in [-1, 1]")
        num_actions, action_dim = None, int(np.prod(space.shape))
    elif isinstance(space, spaces.Discrete):
        num_actions, action_dim = int(space.n), 1
    else:
        raise RlxError(f"{label}: action space {type(space).__name__} is not supported: use Box or Discrete")

    if isinstance(env, HostEnv):
        obs = jax.eval_shape(lambda o: encode(env.observation_space(params), o), env.observation_struct)
        return EnvSpec(label, obs.shape, obs.dtype, num_actions, action_dim, (), env.max_episode_steps)
    view = AgentView(env)

    def one_step(key: jax.Array, params: PyTree) -> tuple:
        obs, state = view.reset_env(key, params)
        return obs, view.step_env(key, state, view.action_space(params).sample(key), params)[2]

    obs, reward = jax.eval_shape(one_step, jax.random.key(0), params)
    if reward.ndim > 1:
        raise RlxError(f"{label}: the reward has shape {reward.shape}; it must be a scalar or a vector (m,)")
    limit = getattr(params, "max_steps_in_episode", None)
    limit = None if limit is None or not np.isfinite(limit) else int(limit)
    return EnvSpec(label, obs.shape, obs.dtype, num_actions, action_dim, reward.shape, limit, frames(env))


# --- episode statistics ------------------------------------------------------------------------------------------------


@struct.dataclass
class EpisodeState:
    env: PyTree
    ret: jax.Array
    length: jax.Array


def episode_statistics(vec: VecEnv, reward_shape: tuple[int, ...] = ()) -> VecEnv:
    """Adds `info["episode_return"]` (float32 `[N(, m)]`) and `info["episode_length"]` (int32 `[N]`).

    Both count the episode up to and including this step, so that where an episode ends they are its exact return and
    length; elsewhere they are partial, and whoever averages them masks by `terminated | truncated`.
    """

    def zeros() -> tuple[jax.Array, jax.Array]:
        return jnp.zeros((vec.num_envs, *reward_shape), jnp.float32), jnp.zeros(vec.num_envs, jnp.int32)

    def reset(key: jax.Array, params: PyTree) -> tuple[EpisodeState, PyTree]:
        state, obs = vec.reset(key, params)
        return EpisodeState(state, *zeros()), obs

    def step(key: jax.Array, state: EpisodeState, action: jax.Array, params: PyTree) -> tuple[EpisodeState, Step]:
        env, out = vec.step(key, state.env, action, params)
        ret, length = state.ret + out.reward, state.length + 1
        out = out.replace(info={**out.info, "episode_return": ret, "episode_length": length})
        return EpisodeState(env, *where(out.terminated | out.truncated, zeros(), (ret, length))), out

    return VecEnv(vec.num_envs, reset, step)
