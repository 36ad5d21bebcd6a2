"""Prioritised sampling: against NumPy, around the ring, after many updates, and where a plain cumulative sum breaks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlx import priorities, replay
from rlx.errors import RlxError

KEY = jax.random.key(0)


def with_values(values):
    p = priorities.init(len(values))
    return p.replace(values=p.values.at[: len(values)].set(jnp.asarray(values, jnp.float32)))


def draw(p, key, n):
    return np.asarray(jax.jit(priorities.draw, static_argnums=3)(p, priorities.table(p), key, n))


@pytest.mark.parametrize("capacity", [1, 127, 128, 129, 1000])
def test_frequencies_are_proportional(capacity, strict):
    values = np.random.default_rng(0).gamma(1.0, size=capacity) * (np.arange(capacity) % 3 == 0)
    slots = draw(with_values(values), KEY, 200_000)
    share = np.bincount(slots, minlength=capacity) / 200_000
    want = values / values.sum()
    assert share.shape == (capacity,) and (share[want == 0] == 0).all()
    assert np.abs(share - want).max() < 5 * np.sqrt(want.max() / 200_000) + 1e-12


def test_a_million_slots_most_of_them_masked():
    rng = np.random.default_rng(1)
    values = rng.uniform(0.5, 30.0, 1_000_000) * (rng.uniform(size=1_000_000) < 0.05)
    p = with_values(values)
    slots = np.concatenate([draw(p, jax.random.key(k), 256 * 200) for k in range(3)])
    assert (values[slots] > 0).all()
    np.testing.assert_allclose((values[slots] > 15.0).mean(), values[values > 15.0].sum() / values.sum(), atol=0.01)


def test_the_ends_of_the_unit_interval():
    """Uniform numbers of 0 and (rounded) 1 find a positive weight, with empty slots on both sides and between."""
    cumulative = priorities.cumulative(jnp.asarray([0.0, 1.0, 0.0, 1e-9, 3.0, 0.0]))
    found = [int(priorities.pick(cumulative, jnp.float32(u))) for u in (0.0, 0.24, 0.26, 1.0 - 2**-24, 1.0)]
    assert found == [1, 1, 4, 4, 4]


def test_cumulative_sums_rise_only_where_there_is_weight():
    values = np.random.default_rng(2).uniform(0.0, 1.0, 7813) * (np.arange(7813) % 5 == 0)
    rises = np.diff(np.asarray(priorities.cumulative(jnp.asarray(values, jnp.float32))))
    assert (rises[values[1:] == 0] == 0).all() and (rises >= 0).all()


def numpy_legal(written, num_envs, capacity, horizon, history, future):
    """Slot -> number of its item, of those where a window may start, among all items ever `written`."""
    out = {}
    oldest = max(0, written - capacity)
    for item in range(oldest, written):
        lost = item - history * num_envs < oldest and oldest > 0
        if item + (horizon - 1 + future) * num_envs < written and not lost:
            out[item % capacity] = item
    return out


@pytest.mark.parametrize(("steps", "num_envs"), [(1, 1), (2, 3), (1, 4)])
@pytest.mark.parametrize(("horizon", "history", "future"), [(1, 0, 0), (3, 0, 0), (2, 3, 1)])
def test_slots_are_drawn_exactly_while_their_window_is_stored(steps, num_envs, horizon, history, future):
    capacity = 41  # no multiple of anything
    p, per = priorities.init(capacity), steps * num_envs
    for i in range(40):
        at = jnp.uint32(i), per, capacity
        p = priorities.admit(p, replay.position(*at), replay.size(*at), steps, num_envs, capacity, horizon, history, future)
        legal = numpy_legal((i + 1) * per, num_envs, capacity, horizon, history, future)
        drawn = set(np.flatnonzero(np.asarray(p.values)))
        assert drawn <= set(legal), i
        early = [legal[slot] for slot in set(legal) - drawn]  # the very first steps never had a history: they go with the rest
        assert all(item < history * num_envs and (i + 1) * per + history * num_envs > capacity for item in early), i
    assert legal


def test_new_slots_get_the_highest_priority_there_ever_was():
    p = priorities.init(8)
    admit = lambda p, k: priorities.admit(p, jnp.uint32(k % 8), jnp.uint32(min(k, 8)), 1, 1, 8, 1)
    p = admit(admit(p, 0), 1)
    p = priorities.update(p, jnp.asarray([0, 1], jnp.uint32), jnp.asarray([7.0, 3.0]))
    p = priorities.update(p, jnp.asarray([0], jnp.uint32), jnp.asarray([2.0]))
    np.testing.assert_array_equal(admit(p, 2).values[:8], [2, 3, 7, 0, 0, 0, 0, 0])


def test_updates_beyond_the_capacity_are_dropped_and_the_larger_of_two_stays():
    p = with_values(np.ones(130))
    end = p.values.shape[0]
    dropped = priorities.update(p, jnp.full(2, end, jnp.uint32), jnp.asarray([9.0, 9.0]))
    jax.tree.map(np.testing.assert_array_equal, dropped, p)
    for order in ([5.0, 2.0], [2.0, 5.0]):
        assert priorities.update(p, jnp.asarray([3, 3], jnp.uint32), jnp.asarray(order)).values[3] == 5.0
    assert priorities.update(p, jnp.asarray([3], jnp.uint32), jnp.asarray([0.25])).values[3] == 0.25


def test_priorities_are_floored_then_exponentiated(strict):
    """As NumPy has them: the larger error of both critics, at least 1, to the power of 0.4."""
    rng = np.random.default_rng(0)
    q, y = rng.normal(0, 2, (64, 2)).astype(np.float32), rng.normal(0, 2, 64).astype(np.float32)
    got = jax.vmap(priorities.lap, (0, 0, None))(jnp.asarray(q), jnp.asarray(y), jnp.float32(0.4))
    want = np.maximum(np.abs(q - y[:, None]).max(1), 1.0) ** 0.4
    assert (want == 1.0).any() and (want > 1.7).any()
    np.testing.assert_allclose(got, want, rtol=1e-5)
    uniform = jax.vmap(priorities.lap, (0, 0, None))(jnp.asarray(q), jnp.asarray(y), jnp.float32(0.0))
    np.testing.assert_array_equal(uniform, 1.0)  # no LAP


def test_after_100_000_updates():
    """Nothing has drifted: the sums are those of the values, as NumPy has them."""
    n, batch = 5_000, 32

    def one(p, k):
        key = jax.random.fold_in(KEY, k)
        slots = priorities.draw(p, priorities.table(p), key, batch)
        return priorities.update(p, slots, jnp.exp(4.0 * jax.random.normal(key, (batch,)))), None

    p, _ = jax.jit(lambda p: jax.lax.scan(one, p, jnp.arange(100_000)))(with_values(np.ones(n)))
    values = np.asarray(p.values, np.float64)
    np.testing.assert_allclose(priorities.table(p)[-1], values.sum(), rtol=1e-5)
    slots = draw(p, KEY, 100_000)
    want = values[:n] / values.sum()
    np.testing.assert_allclose(np.bincount(slots, minlength=n) / 100_000, want, atol=5 * np.sqrt(want.max() / 100_000))


def test_too_small_a_capacity_is_an_error():
    with pytest.raises(RlxError, match=r"^replay_capacity=10 must hold 6 steps of 2 environments$"):
        priorities.admit(priorities.init(10), jnp.uint32(0), jnp.uint32(0), 1, 2, 10, 4, 1, 1)


def test_the_stand_alone_buffer():
    buffer = replay.prioritised(6, exponent=2.0)
    state = buffer.init(jax.ShapeDtypeStruct((), jnp.int32))
    for k in range(4):
        state = jax.jit(buffer.add)(state, 2 * k + jnp.arange(2, dtype=jnp.int32)[:, None])
    state = buffer.update(state, jnp.arange(6, dtype=jnp.uint32), jnp.asarray([3.0, 1.0, 1.0, 1.0, 1.0, 1.0]))
    slots, items, probabilities = buffer.sample(state, KEY, 10_000)
    np.testing.assert_array_equal(items, np.asarray([6, 7, 2, 3, 4, 5])[np.asarray(slots)])
    np.testing.assert_allclose(probabilities, np.where(np.asarray(slots) == 0, 9.0, 1.0) / 14.0, rtol=1e-6)
    assert abs((np.asarray(slots) == 0).mean() - 9 / 14) < 0.02
