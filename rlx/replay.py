"""Replay: a ring buffer of items (pytrees), uniform samples and windows of consecutive steps.

A buffer is a pytree `data` with leaves `[capacity, ...]`. Items come as `[T, N, ...]`, T steps of N environments, and
are written time-major: item (t, n) is number `t * N + n`, so that the steps of one environment are N slots apart. Write
position and size follow from the shared iteration counter: they are unbatched under a vmap over runs, where writing
remains a scatter in place. Positions are slots, uint32 < capacity.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rlx import counters, priorities
from rlx.errors import RlxError
from rlx.priorities import Priorities

PyTree = Any


def init(example: PyTree, capacity: int) -> PyTree:
    """Empty data of `capacity` items like `example` (arrays or ShapeDtypeStructs of ONE item): zeros, dtypes kept.

    Raises RlxError unless 1 <= capacity <= 2^31.
    """
    if not 1 <= capacity <= 2**31:
        raise RlxError(f"replay_capacity={capacity} must be in [1, {2**31}]")
    return jax.tree.map(lambda x: jnp.zeros((capacity, *x.shape), x.dtype), example)


def insert(data: PyTree, items: PyTree, position: jax.Array) -> PyTree:
    """Write `items` `[T, N, ...]` at the slots `(position + k) % capacity`, k = t * N + n; `position` uint32 scalar.

    T * N need not divide the capacity and may exceed it: the last `capacity` items are then written, where they would
    have ended up.
    """
    capacity = jax.tree.leaves(data)[0].shape[0]
    steps, num_envs = jax.tree.leaves(items)[0].shape[:2]
    chex.assert_trees_all_equal_shapes_and_dtypes(
        jax.tree.map(lambda x: jax.ShapeDtypeStruct((steps, num_envs, *x.shape[1:]), x.dtype), data),
        jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), items),
    )
    written = np.arange(max(0, steps * num_envs - capacity), steps * num_envs)
    slots = wrap(jnp.asarray(position, jnp.uint32), (written % capacity).astype(np.uint32), capacity)

    def write(buffer: jax.Array, new: jax.Array) -> jax.Array:
        flat = new.reshape(steps * num_envs, *new.shape[2:])[written[0] :]
        return buffer.at[slots].set(flat, mode="promise_in_bounds", unique_indices=True)

    return jax.tree.map(write, data, items)


def position(i: jax.Array, per_iteration: int, capacity: int) -> jax.Array:
    """The slot at which iteration `i` starts to write, `(i * T * N) % capacity`: uint32, exact for every uint32 `i`."""
    return counters.mul_mod(i, per_iteration, capacity)


def size(i: jax.Array, per_iteration: int, capacity: int) -> jax.Array:
    """How many items are stored before iteration `i` writes, `min(i * T * N, capacity)`: uint32, exact."""
    return counters.min_product(i, per_iteration, capacity)


def sample_windows(
    data: PyTree, key: jax.Array, n: int, position: jax.Array, size: jax.Array, num_envs: int, horizon: int = 1
) -> PyTree:
    """n windows of `horizon` consecutive steps of one environment each, `[n, horizon, ...]`, oldest step first.

    Uniform, with replacement, over all windows among the `size` most recent items; `position` is the next slot to be
    written (uint32 scalars both). A window may span an episode's end: the caller cuts it (`returns.n_step`).

    At least one window exists if `size > (horizon - 1) * num_envs`, one of every environment if `size >= horizon *
    num_envs`; the caller waits for that (`learning_starts`). Sampled too early, steps beyond the newest item repeat it,
    so that what is returned has been written, but is no window; from an empty buffer come zeros.

    Raises RlxError if `horizon * num_envs` exceeds the capacity.
    """
    capacity = jax.tree.leaves(data)[0].shape[0]
    return take(data, window_slots(key, n, position, size, capacity, num_envs, horizon))


def window_slots(
    key: jax.Array, n: int, position: jax.Array, size: jax.Array, capacity: int, num_envs: int, horizon: int = 1,
    history: int = 0, future: int = 0,
) -> jax.Array:  # fmt: skip
    """The slots `[n, horizon]` of what `sample_windows` returns.

    `history` steps before a window are stored too, unless they were never made; so are `future` steps after it. Raises
    RlxError if the capacity does not hold all of these.
    """
    check_capacity(capacity, history + horizon + future, num_envs)
    stored = jnp.clip(jnp.asarray(size, jnp.uint32), np.uint32(1), np.uint32(capacity))
    lost = jnp.where(stored == np.uint32(capacity), np.uint32(history * num_envs), np.uint32(0))  # their history is gone
    span = lost + np.uint32((horizon - 1 + future) * num_envs)
    starts = jnp.where(stored > span, stored - span, np.uint32(1))
    first = lost + jax.random.randint(key, (n,), np.uint32(0), starts, jnp.uint32)
    age = first[:, None] + (np.arange(horizon, dtype=np.uint32) * np.uint32(num_envs))[None]  # 0 is the oldest item
    oldest = wrap(jnp.asarray(position, jnp.uint32), np.uint32(capacity) - stored, capacity)
    return wrap(oldest, jnp.minimum(age, stored - np.uint32(1)), capacity)


def check_capacity(capacity: int, steps: int, num_envs: int) -> None:
    """RlxError unless that many steps of every environment fit."""
    if steps * num_envs > capacity:
        raise RlxError(f"replay_capacity={capacity} must hold {steps} steps of {num_envs} environments: {steps * num_envs}")


def take(data: PyTree, slots: jax.Array) -> PyTree:
    """The items at `slots` (any shape), leaves `[*slots.shape, ...]`."""
    return jax.tree.map(lambda x: x.at[slots].get(mode="promise_in_bounds"), data)


def wrap(a: jax.Array, b: jax.typing.ArrayLike, capacity: int) -> jax.Array:
    """`(a + b) % capacity` for uint32 `a < capacity`, `b <= capacity`: no overflow, since capacity <= 2^31."""
    return (a + b) % np.uint32(capacity)


# --- a buffer that counts itself -------------------------------------------------------------------------------------


@struct.dataclass
class State:
    """`data` `[capacity, ...]`, the next slot to be written and the number of items stored (uint32 scalars)."""

    data: PyTree
    position: jax.Array
    size: jax.Array


class Uniform(NamedTuple):
    """A uniform replay buffer as pure functions.

    init  (example)       -> state      example: one item
    add   (state, items)  -> state      items [T, N, ...]
    sample(state, key, n) -> items      [n, ...], with replacement; the state must hold an item
    """

    init: Callable[[PyTree], State]
    add: Callable[[State, PyTree], State]
    sample: Callable[[State, jax.Array, int], PyTree]


def uniform(capacity: int) -> Uniform:
    """A stand-alone ring buffer. Its counters are exact forever: neither exceeds the capacity."""

    def init_state(example: PyTree) -> State:
        return State(init(example, capacity), jnp.uint32(0), jnp.uint32(0))

    def add(state: State, items: PyTree) -> State:
        steps, num_envs = jax.tree.leaves(items)[0].shape[:2]
        kept = min(steps * num_envs, capacity)
        return State(
            insert(state.data, items, state.position),
            wrap(state.position, np.uint32(steps * num_envs % capacity), capacity),
            jnp.minimum(state.size, np.uint32(capacity - kept)) + np.uint32(kept),
        )

    def sample(state: State, key: jax.Array, n: int) -> PyTree:
        windows = sample_windows(state.data, key, n, state.position, state.size, num_envs=1)
        return jax.tree.map(lambda x: x[:, 0], windows)

    return Uniform(init_state, add, sample)


# --- a buffer that counts itself, and draws in proportion to priorities ---------------------------------------------------


class PrioritisedState(struct.PyTreeNode):
    """As `State`, with priorities."""

    data: PyTree
    position: jax.Array
    size: jax.Array
    priorities: Priorities


class Prioritised(NamedTuple):
    """A prioritised replay buffer as pure functions.

    init  (example)                  -> state                          example: one item
    add   (state, items)             -> state                          items [T, N, ...]; they get the highest priority so far
    sample(state, key, n)            -> slots, items, probabilities    with replacement; the state must hold an item
    update(state, slots, priorities) -> state                          e.g. errors, > 0, before the exponent
    """

    init: Callable[[PyTree], PrioritisedState]
    add: Callable[[PrioritisedState, PyTree], PrioritisedState]
    sample: Callable[[PrioritisedState, jax.Array, int], tuple[jax.Array, PyTree, jax.Array]]
    update: Callable[[PrioritisedState, jax.Array, jax.Array], PrioritisedState]


def prioritised(capacity: int, exponent: float = 1.0) -> Prioritised:
    """A stand-alone ring buffer whose items are drawn in proportion to `priority^exponent` (Schaul et al. 2016, eq. 1).

    T * N may not exceed the capacity: RlxError.
    """
    base = uniform(capacity)

    def init_state(example: PyTree) -> PrioritisedState:
        state = base.init(example)
        return PrioritisedState(state.data, state.position, state.size, priorities.init(capacity))

    def add(state: PrioritisedState, items: PyTree) -> PrioritisedState:
        steps, num_envs = jax.tree.leaves(items)[0].shape[:2]
        admitted = priorities.admit(state.priorities, state.position, state.size, steps, num_envs, capacity, horizon=1)
        new = base.add(State(state.data, state.position, state.size), items)
        return PrioritisedState(new.data, new.position, new.size, admitted)

    def sample(state: PrioritisedState, key: jax.Array, n: int) -> tuple[jax.Array, PyTree, jax.Array]:
        table = priorities.table(state.priorities)
        slots = priorities.draw(state.priorities, table, key, n)
        return slots, take(state.data, slots), priorities.probability(state.priorities, table, slots)

    def update(state: PrioritisedState, slots: jax.Array, values: jax.Array) -> PrioritisedState:
        return state.replace(priorities=priorities.update(state.priorities, slots, values**exponent))

    return Prioritised(init_state, add, sample, update)
