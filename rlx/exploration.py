"""Epsilon-greedy exploration, on a schedule that counts env steps."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp

from rlx.types import HP


def greedy(q: jax.Array) -> jax.Array:
    """The first of the best actions, int32 scalar; `q` `[A]`."""
    chex.assert_rank(q, 1)
    return jnp.argmax(q).astype(jnp.int32)


def epsilon_greedy(key: jax.Array, q: jax.Array, epsilon: jax.Array) -> jax.Array:
    """With probability `epsilon` one of all A actions, uniformly (the best one too), else the greedy one: int32 scalar."""
    explore = jax.random.uniform(jax.random.fold_in(key, 0)) < epsilon
    drawn = jax.random.randint(jax.random.fold_in(key, 1), (), 0, q.shape[0], jnp.int32)
    return jnp.where(explore, drawn, greedy(q))


def epsilon(hp: HP, steps: jax.Array) -> jax.Array:
    """Linear from `epsilon_start` at env step 0 to `epsilon_end` at step `epsilon_steps` and later; float32 scalar.

    `epsilon_steps` = 0 is `epsilon_end` throughout. `steps` as from `counters.env_steps`: within an iteration it does not move.
    """
    passed = jnp.where(steps < hp["epsilon_steps"], steps / jnp.maximum(hp["epsilon_steps"], 1.0), 1.0)
    return (1.0 - passed) * hp["epsilon_start"] + passed * hp["epsilon_end"]
