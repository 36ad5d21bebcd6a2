"""Priorities of a ring's slots: proportional sampling in two levels, for windows of consecutive steps.

A slot's priority is that of the window which starts there; 0 for a slot where none may start. Slots form blocks of `BLOCK`:
a draw picks a block by the blocks' sums, then a slot by the priorities in it, each with a uniform number of its own, which
is exactly proportional. Sums are taken anew for each `table`, so that float32 does not drift, and no cumulative sum is
long enough to round to a slot of priority 0: a single one over a million slots does (it is not even monotone).

Everything is of one run; slots are uint32 < capacity. Updates are scatters, to stay outside of conditionals.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rlx.errors import RlxError

BLOCK = 128


class Priorities(struct.PyTreeNode):
    """`values` float32 `[capacity, rounded up to blocks]`; `highest` float32: the largest ever stored, what new slots get."""

    values: jax.Array
    highest: jax.Array


def init(capacity: int) -> Priorities:
    """Nothing may be drawn; the first slots will get priority 1."""
    return Priorities(jnp.zeros(-(-capacity // BLOCK) * BLOCK, jnp.float32), jnp.float32(1.0))


def admit(
    p: Priorities, position: jax.Array, size: jax.Array, steps: int, num_envs: int, capacity: int, horizon: int,
    history: int = 0, future: int = 0,
) -> Priorities:  # fmt: skip
    """After `steps` steps of `num_envs` environments were written at `position`; `size` items were stored before (uint32).

    A window of `horizon` steps may start `horizon - 1 + future` steps after its first one was written; from then on its
    slot has the highest priority so far. What was overwritten may no longer be drawn, nor what has lost one of the
    `history` steps before it. Raises RlxError if the capacity does not hold all of these.
    """
    reach = horizon - 1 + future
    if (steps + reach + history) * num_envs > capacity:
        raise RlxError(f"replay_capacity={capacity} must hold {steps + reach + history} steps of {num_envs} environments")
    slots = lambda offsets: (position + (offsets % capacity).astype(np.uint32)) % np.uint32(capacity)
    new = np.arange(steps * num_envs)
    lost, legal = slots(np.arange((steps + history) * num_envs)), slots(new - reach * num_envs)
    written = size + new.astype(np.uint32) >= np.uint32(reach * num_envs)
    values = p.values.at[lost].set(0.0, mode="promise_in_bounds", unique_indices=True)
    return p.replace(
        values=values.at[legal].set(jnp.where(written, p.highest, 0.0), mode="promise_in_bounds", unique_indices=True)
    )


def update(p: Priorities, slots: jax.Array, values: jax.Array) -> Priorities:
    """Set those of `slots` `[n]` to `values` `[n]` > 0; slots beyond the capacity are dropped.

    A slot drawn twice keeps the larger one, so that the result does not depend on the order of a scatter.
    """
    chex.assert_equal_shape([slots, values])
    kept = slots < p.values.shape[0]
    highest = jnp.maximum(p.highest, jnp.max(jnp.where(kept, values, 0.0)))
    return Priorities(p.values.at[slots].set(0.0, mode="drop").at[slots].max(values, mode="drop"), highest)


def lap(q: jax.Array, target: jax.Array, exponent: jax.Array) -> jax.Array:
    """`max(1, max_j |Q_j - y|)^exponent` of one sample, `q` `[critics]`: the floor first, then the power.

    LAP (Fujimoto et al. 2020, arXiv 2007.06049), which goes with a Huber loss (delta 1) and no importance weights.
    """
    chex.assert_rank([q, target], [1, 0])
    return jnp.maximum(jnp.abs(q - target).max(), 1.0) ** exponent


# --- drawing -----------------------------------------------------------------------------------------------------------


def table(p: Priorities) -> jax.Array:
    """Cumulative sums of the blocks `[capacity / BLOCK]`; any number of draws may share them."""
    return cumulative(p.values.reshape(-1, BLOCK).sum(1))


def draw(p: Priorities, table: jax.Array, key: jax.Array, n: int) -> jax.Array:
    """n slots, with replacement, in proportion to their priorities: uint32 `[n]`. Some priority must be positive."""
    u = jax.random.uniform(key, (2, n))
    block = jax.vmap(pick, (None, 0))(table, u[0])
    rows = p.values.reshape(-1, BLOCK)[block]
    inner = jax.vmap(lambda row, u: pick(cumulative(row), u))(rows, u[1])
    return (block * BLOCK + inner).astype(jnp.uint32)


def probability(p: Priorities, table: jax.Array, slots: jax.Array) -> jax.Array:
    """Of being drawn, `[n]`."""
    return p.values[slots] / table[-1]


def cumulative(weights: jax.Array) -> jax.Array:
    """Cumulative sums of `[n]` that never fall, and rise only where the weight is positive, rounding or not."""
    return jax.lax.cummax(jnp.where(weights > 0.0, jnp.cumsum(weights), 0.0))


def pick(cumulative: jax.Array, u: jax.Array) -> jax.Array:
    """The index of positive weight at the share `u` in [0, 1] of the total: int32 scalar."""
    total = cumulative[-1]
    x = jnp.minimum(u * total, jnp.nextafter(total, jnp.zeros_like(total)))
    return jnp.minimum(jnp.searchsorted(cumulative, x, side="right"), cumulative.shape[0] - 1).astype(jnp.int32)
