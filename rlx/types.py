"""The vocabulary: what flows through the loop. No logic, except how keys are derived.

Shapes: `R` runs, `N` environments of one run, `T` steps of one rollout, `m` objectives of a vector reward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

PyTree = Any
HP = dict[str, jax.Array]  # traced hyperparameters of one run, by field name


class Step(struct.PyTreeNode):
    """What one step of N environments yields; leading axis `[N]`.

    `obs` is what to act on next (the first observation of a new episode where one ended); `next_obs` is the true
    successor of the state acted in, at a termination and at a time limit too. `terminated` and `truncated` are never
    merged: only the first stops bootstrapping, either cuts traces. `weight` is 0 for a step whose simulator emitted NaN.
    """

    obs: PyTree
    next_obs: PyTree
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    weight: jax.Array
    info: dict[str, jax.Array]


class Transition(struct.PyTreeNode):
    """One step as the learner sees it; leading axes `[T, N]` in a rollout. `first` marks an episode's first step."""

    obs: PyTree
    action: jax.Array
    reward: jax.Array
    next_obs: PyTree
    terminated: jax.Array
    truncated: jax.Array
    first: jax.Array
    weight: jax.Array
    info: dict[str, jax.Array]
    extras: PyTree


class EnvSpec(NamedTuple):
    """What an agent may know of its environment, all static and hashable.

    `num_actions` is None for continuous actions; continuous actions are float32 vectors `(action_dim,)` in [-1, 1].
    `reward_shape` is `()` or `(m,)`. `max_episode_steps` is None where the environment has no time limit. The last axis of an
    observation is `frames` frames, newest last.
    """

    name: str
    obs_shape: tuple[int, ...]
    obs_dtype: jnp.dtype
    num_actions: int | None
    action_dim: int
    reward_shape: tuple[int, ...]
    max_episode_steps: int | None
    frames: int = 1


class VecEnv(NamedTuple):
    """N environments as the loop sees them, resets included.

    reset(key, params)                -> state, obs [N, ...]
    step(key, state, action, params)  -> state, Step
    """

    num_envs: int
    reset: Callable[[jax.Array, PyTree], tuple[PyTree, PyTree]]
    step: Callable[[jax.Array, PyTree, jax.Array, PyTree], tuple[PyTree, Step]]


class Agent(NamedTuple):
    """A bundle of pure functions, closed over static configuration and environment spec only.

    `memory`, `act`, `greedy` and `value` are written for ONE environment (`obs` without a batch axis); the loop vmaps.

    init  (hp, key)                             -> state
    memory(hp, state, key)                      -> memory     redrawn where an episode begins; `()` for most
    act   (hp, state, memory, obs, key, i)      -> action, memory, extras      exploring
    greedy(hp, state, memory, obs, key)         -> action, memory              evaluation
    learn (hp, state, rollout, key, i)          -> state, metrics
    value (hp, state, obs)                      -> V(obs), in native reward units; None without a critic

    `i` is the shared iteration counter (uint32). `metrics` holds scalars and one int32 entry `updates`, the gradient
    updates made in this call: the other entries are means over them, and are ignored where it is 0.
    """

    init: Callable[..., PyTree]
    memory: Callable[..., PyTree]
    act: Callable[..., tuple[jax.Array, PyTree, PyTree]]
    greedy: Callable[..., tuple[jax.Array, PyTree]]
    learn: Callable[..., tuple[PyTree, dict[str, jax.Array]]]
    num_envs: int
    rollout_length: int
    value: Callable[..., jax.Array] | None = None


class Runs(struct.PyTreeNode):
    """The state of every run; each leaf has a leading run axis `[R]`.

    `key` is `fold_in(root, seed)` and constant; `seed` is kept because evaluation keys are `fold_in(key, seed)`.
    `obs` is what each of the N environments is acted on next, `first` whether it begins an episode.
    """

    hp: HP
    env_params: PyTree
    agent: PyTree
    memory: PyTree
    env: PyTree
    obs: PyTree
    first: jax.Array
    key: jax.Array
    seed: jax.Array


class Carry(struct.PyTreeNode):
    """The whole program state: `i` counts iterations (uint32, shared by all runs), `pop` is what runs share."""

    i: jax.Array
    pop: PyTree
    runs: Runs


# --- keys: one named stream per consumer, so that a new consumer never shifts the others -------------------------------

STREAM_RESET, STREAM_ENV, STREAM_ACT, STREAM_LEARN, STREAM_INIT, STREAM_MEMORY, STREAM_EVALUATE, STREAM_QUERY = range(8)


def stream(key: jax.Array, name: int, *counters: jax.Array | int) -> jax.Array:
    """The key of stream `name` at the given counters: `fold_in(... fold_in(key, name) ..., counter)`."""
    key = jax.random.fold_in(key, name)
    for counter in counters:
        key = jax.random.fold_in(key, counter)
    return key


def keys_for(key: jax.Array, n: int) -> jax.Array:
    """n keys by `fold_in`, not `split`: key i does not depend on n, and the key-reuse checker accepts it in a scan."""
    return jax.vmap(lambda j: jax.random.fold_in(key, j))(jnp.arange(n, dtype=jnp.uint32))
