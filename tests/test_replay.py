from collections import deque
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from rlx import replay
from rlx.errors import RlxError

EXAMPLE = {"id": jax.ShapeDtypeStruct((), jnp.int32), "obs": jax.ShapeDtypeStruct((2,), jnp.uint8)}
KEY = jax.random.key(0)

insert = jax.jit(replay.insert)
sample_windows = jax.jit(replay.sample_windows, static_argnums=(2, 5, 6))


def items(i, steps, num_envs):
    """Iteration i's items; `id` numbers all items ever made in order, from 1 (0 marks an unwritten slot)."""
    ids = 1 + i * steps * num_envs + np.arange(steps * num_envs, dtype=np.int32).reshape(steps, num_envs)
    return {"id": ids, "obs": np.stack([ids % 251, ids % 7], -1).astype(np.uint8)}


def fill(iterations, steps, num_envs, capacity):
    """The buffer, its deque, write position and size, by the shared counter."""
    data, expected = replay.init(EXAMPLE, capacity), deque(maxlen=capacity)
    for i in range(iterations):
        new = items(i, steps, num_envs)
        data = insert(data, new, replay.position(jnp.uint32(i), steps * num_envs, capacity))
        expected.extend(new["id"].reshape(-1).tolist())
    after = (jnp.uint32(iterations), steps * num_envs, capacity)
    return data, expected, replay.position(*after), replay.size(*after)


def in_order(data, position, size):
    """Stored ids, oldest first, read with plain Python."""
    capacity = len(data["id"])
    return [int(data["id"][(int(position) - int(size) + j) % capacity]) for j in range(int(size))]


# --- writing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [1, 5, 6, 12, 13, 16])
@pytest.mark.parametrize(("steps", "num_envs"), [(1, 1), (2, 3), (1, 6), (7, 2)])
def test_the_ring_holds_what_a_deque_holds(strict, steps, num_envs, capacity):
    for iterations in range(6):  # empty, filling, exactly full, full + 1, wrapped; steps * num_envs above capacity
        data, expected, position, size = fill(iterations, steps, num_envs, capacity)
        assert int(size) == len(expected) == min(iterations * steps * num_envs, capacity)
        assert in_order(data, position, size) == list(expected)
        assert (np.asarray(data["id"]) == 0).sum() == capacity - len(expected)
        np.testing.assert_array_equal(data["obs"][:, 0], data["id"] % 251)
        np.testing.assert_array_equal(data["obs"][:, 1], data["id"] % 7)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 17), st.integers(0, 2**32 - 2))
@example(4, 4, 1, 2**32 - 2)
@settings(max_examples=20, deadline=None)
def test_position_after_is_where_the_next_iteration_writes_even_past_2_to_the_32(steps, num_envs, capacity, i):
    per = steps * num_envs
    before, after = (int(replay.position(jnp.uint32(j), per, capacity)) for j in (i, i + 1))
    assert (before, after) == (i * per % capacity, (before + per) % capacity)
    assert int(replay.size(jnp.uint32(i), per, capacity)) == min(i * per, capacity)


def test_dtypes_and_shapes_are_kept(strict):
    data = replay.init({"a": jnp.zeros((3, 2), jnp.uint8), "b": jnp.zeros((), jnp.bool_), "c": jnp.zeros(4)}, 7)
    new = jax.tree.map(lambda x: jnp.ones((2, 3, *x.shape[1:]), x.dtype), data)
    after = insert(data, new, jnp.uint32(0))
    expected = {"a": ((7, 3, 2), jnp.uint8), "b": ((7,), jnp.bool_), "c": ((7, 4), jnp.float32)}
    for tree in (data, after):
        assert {k: (v.shape, v.dtype) for k, v in tree.items()} == expected
    out = replay.sample_windows(after, KEY, 5, jnp.uint32(6), jnp.uint32(6), 3, 2)
    assert {k: (v.shape, v.dtype) for k, v in out.items()} == {
        k: ((5, 2, *shape[1:]), dtype) for k, (shape, dtype) in expected.items()
    }


def test_items_of_another_dtype_or_shape_are_refused():
    data = replay.init(EXAMPLE, 4)
    new = items(0, 1, 2)
    for wrong in (
        {**new, "obs": new["obs"].astype(np.float32)},
        {**new, "id": new["id"][..., None]},
        {"id": new["id"]},
    ):
        with pytest.raises((AssertionError, ValueError)):
            replay.insert(data, wrong, jnp.uint32(0))


@pytest.mark.parametrize("capacity", [0, -3, 2**31 + 1])
def test_capacity_out_of_range(capacity):
    with pytest.raises(RlxError, match=f"replay_capacity={capacity} must be in"):
        replay.init(EXAMPLE, capacity)


# --- sampling --------------------------------------------------------------------------------------------------------


# (T, N, capacity, horizon): dividing and not, T * N above the capacity, windows as long as the buffer
WINDOWS = [(1, 1, 3, 3), (2, 3, 12, 2), (2, 3, 13, 3), (3, 2, 20, 3), (7, 2, 9, 4), (1, 3, 4, 1)]


@given(st.sampled_from(WINDOWS), st.integers(1, 12), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_windows_are_stored_consecutive_steps_of_one_environment(case, iterations, seed):
    steps, num_envs, capacity, horizon = case
    data, expected, position, size = fill(iterations, steps, num_envs, capacity)
    assume(horizon * num_envs <= len(expected))
    out = sample_windows(data, jax.random.key(seed), 32, position, size, num_envs, horizon)
    ids = np.asarray(out["id"])
    assert ids.shape == (32, horizon)
    assert set(ids.reshape(-1).tolist()) <= set(expected)
    np.testing.assert_array_equal(np.diff(ids, axis=1), num_envs)
    np.testing.assert_array_equal(out["obs"][..., 0], ids % 251)


@pytest.mark.parametrize(
    "case", [(3, 2, 2, 10), (4, 2, 3, 10), (5, 1, 3, 15), (2, 7, 2, 9)]
)  # filling, wrapped, exact, T*N > C
@pytest.mark.parametrize("horizon", [1, 2])
def test_every_window_is_drawn_equally_often(case, horizon):
    iterations, steps, num_envs, capacity = case
    data, expected, position, size = fill(iterations, steps, num_envs, capacity)
    n = 20_000
    first = np.asarray(sample_windows(data, KEY, n, position, size, num_envs, horizon)["id"])[:, 0]
    starts = list(expected)[: len(expected) - (horizon - 1) * num_envs]
    ids, counts = np.unique(first, return_counts=True)
    assert ids.tolist() == starts  # all of them and nothing else: the oldest, the newest
    chi2 = ((counts - n / len(starts)) ** 2 / (n / len(starts))).sum()
    assert chi2 < len(starts) - 1 + 5 * np.sqrt(2 * len(starts))


def test_sampling_before_a_window_fits_gives_written_items_only():
    data, expected, position, size = fill(1, 1, 2, 12)
    ids = np.asarray(sample_windows(data, KEY, 50, position, size, 2, 3)["id"])
    assert set(ids.reshape(-1).tolist()) <= set(expected)


def test_a_window_larger_than_the_buffer_is_an_error():
    data = replay.init(EXAMPLE, 5)
    with pytest.raises(RlxError, match=r"replay_capacity=5 must hold 2 steps of 3 environments: 6"):
        replay.sample_windows(data, KEY, 1, jnp.uint32(0), jnp.uint32(5), 3, 2)


def test_equal_keys_give_equal_samples_and_others_do_not():
    data, _, position, size = fill(4, 2, 3, 20)
    draw = lambda seed: np.asarray(sample_windows(data, jax.random.key(seed), 32, position, size, 3, 1)["id"])
    np.testing.assert_array_equal(draw(0), draw(0))
    assert (draw(0) != draw(1)).any()


# --- in a population -------------------------------------------------------------------------------------------------


def test_in_a_population_nothing_is_copied():
    runs, capacity, steps, num_envs = 2, 50_000, 2, 4
    data = jax.vmap(lambda _: replay.init({"obs": jax.ShapeDtypeStruct((16,), jnp.float32)}, capacity))(jnp.arange(runs))
    keys = jax.vmap(jax.random.key)(jnp.arange(runs, dtype=jnp.uint32))

    def iteration(i, carry):
        data, total = carry
        at = (i + jnp.uint32(1), steps * num_envs, capacity)

        def one(data, key, total):
            new = {"obs": jnp.full((steps, num_envs, 16), total)}
            data = replay.insert(data, new, replay.position(i, steps * num_envs, capacity))
            key = jax.random.fold_in(key, i)
            batch = replay.sample_windows(data, key, 32, replay.position(*at), replay.size(*at), num_envs, 2)
            return data, batch["obs"].mean() + 1.0

        return jax.vmap(one)(data, keys, total)

    @partial(jax.jit, donate_argnums=0)
    def program(data, total):
        return jax.lax.fori_loop(jnp.uint32(0), jnp.uint32(100), iteration, (data, total))

    lowered = program.lower(data, jnp.zeros(runs))
    memory = lowered.compile().memory_analysis()
    assert memory.temp_size_in_bytes < 0.1 * data["obs"].nbytes
    assert memory.alias_size_in_bytes >= data["obs"].nbytes  # the donated buffer is the result


def test_in_a_population_writing_is_one_scatter_with_shared_slots():
    data = jax.vmap(lambda _: replay.init({"id": EXAMPLE["id"]}, 20))(jnp.arange(4))
    new = {"id": jnp.ones((4, 2, 3), jnp.int32)}
    eqns = jax.make_jaxpr(jax.vmap(replay.insert, (0, 0, None)))(data, new, jnp.uint32(5)).eqns
    assert [e.invars[1].aval.shape for e in eqns if e.primitive.name == "scatter"] == [(6, 1)]
    assert not [e.primitive.name for e in eqns if e.primitive.name in ("cond", "select_n", "dynamic_update_slice")]


def test_a_population_writes_what_single_runs_write(strict):
    one, _, position, _ = fill(3, 2, 3, 8)
    both = jax.tree.map(lambda x: jnp.stack([x, x + x.dtype.type(1)]), one)
    new = jax.tree.map(lambda x: jnp.stack([x, x + x.dtype.type(1)]), items(3, 2, 3))
    out = jax.vmap(replay.insert, (0, 0, None))(both, new, position)
    single = insert(one, items(3, 2, 3), position)
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, jnp.stack([y, y + y.dtype.type(1)])), out, single)


# --- the buffer that counts itself -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "num_envs", "capacity"), [(1, 1, 3), (2, 2, 7), (2, 3, 12), (3, 3, 4)])
def test_uniform_counts_itself_like_the_shared_counter(strict, steps, num_envs, capacity):
    buffer = replay.uniform(capacity)
    state = buffer.init(EXAMPLE)
    add = jax.jit(buffer.add)
    for i in range(7):
        state = add(state, items(i, steps, num_envs))
        data, expected, position, size = fill(i + 1, steps, num_envs, capacity)
        jax.tree.map(np.testing.assert_array_equal, state, replay.State(data, position, size))
        assert (state.position.dtype, state.size.dtype) == (jnp.uint32, jnp.uint32)
        out = buffer.sample(state, jax.random.key(i), 64)
        assert out["id"].shape == (64,) and out["obs"].shape == (64, 2)
        assert set(out["id"].tolist()) <= set(expected)
    assert set(out["id"].tolist()) == set(expected)


def test_uniform_compiles_once():
    buffer = replay.uniform(5)
    add = jax.jit(buffer.add)
    state = buffer.init(EXAMPLE)
    for i in range(3):
        state = add(state, items(i, 1, 2))
    assert add._cache_size() == 1


def test_uniform_checks_its_capacity():
    with pytest.raises(RlxError, match="replay_capacity=0"):
        replay.uniform(0).init(EXAMPLE)
