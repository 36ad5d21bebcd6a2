import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlx import normalize as nz

update = jax.jit(nz.update)
update_returns = jax.jit(nz.update_returns)


def stats_of(batches, weights, shape):
    stats = nz.init(shape)
    for b, w in zip(batches, weights, strict=True):
        stats = update(stats, b, w)
    return stats


def test_before_any_data_it_is_the_identity(strict):
    stats = nz.init((3,))
    x = jnp.array([-9.0, 0.0, 2.5])
    np.testing.assert_array_equal(nz.normalize(stats, x), x)
    assert (float(stats.count), nz.std(stats).tolist()) == (0.0, [1.0, 1.0, 1.0])


def test_one_batch_by_hand(strict):
    batch = jnp.array([[1.0, 10.0], [3.0, 10.0], [100.0, -7.0]])
    stats = update(nz.init((2,)), batch, jnp.array([1.0, 1.0, 0.0]))
    assert float(stats.count) == 2.0
    np.testing.assert_allclose(stats.mean, [2.0, 10.0])
    np.testing.assert_allclose(stats.var, [1.0, 0.0])
    np.testing.assert_allclose(nz.normalize(stats, jnp.array([4.0, 10.0])), [2.0, 0.0], rtol=1e-6)


@pytest.mark.parametrize("shape", [(), (3,), (2, 2, 1)])
def test_split_batches_equal_one_batch_and_numpy(strict, shape):
    rng = np.random.default_rng(0)
    x = rng.normal(5.0, 3.0, size=(24, *shape)).astype(np.float32)
    w = rng.choice([0.0, 1.0, 2.5], size=24).astype(np.float32)
    split = stats_of(x.reshape(3, 8, *shape), w.reshape(3, 8), shape)
    mean = np.average(x.astype(np.float64), axis=0, weights=w)
    var = np.average((x - mean) ** 2, axis=0, weights=w)
    for stats in (split, update(nz.init(shape), x, w)):
        assert stats.mean.shape == stats.var.shape == shape
        assert {leaf.dtype for leaf in jax.tree.leaves(stats)} == {np.dtype(np.float32)}
        np.testing.assert_allclose(stats.count, w.sum(), rtol=1e-6)
        np.testing.assert_allclose(stats.mean, mean, rtol=1e-5)
        np.testing.assert_allclose(stats.var, var, rtol=1e-4)


@given(st.lists(st.booleans(), min_size=12, max_size=12), st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_rows_of_weight_zero_do_not_matter_even_as_nan(kept, seed):
    kept, rng = np.array(kept), np.random.default_rng(seed)
    x = rng.normal(2.0, 1.0, size=(12, 2)).astype(np.float32)
    stats = stats_of(np.where(kept[:, None], x, np.nan).reshape(3, 4, 2), kept.reshape(3, 4).astype(np.float32), (2,))
    rows = x[kept] if kept.any() else np.array([[-1.0, -1.0], [1.0, 1.0]])  # mean 0, variance 1
    assert float(stats.count) == kept.sum()
    np.testing.assert_allclose(stats.mean, rows.mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(stats.var, rows.var(0), rtol=1e-3, atol=1e-6)


def test_all_weights_zero_changes_nothing(strict):
    before = update(nz.init((2,)), jnp.array([[1.0, 2.0], [3.0, 5.0]]), jnp.ones(2))
    after = update(before, jnp.full((4, 2), jnp.nan), jnp.zeros(4))
    jax.tree.map(np.testing.assert_array_equal, before, after)


def test_a_large_mean_does_not_cancel():
    x = (1e4 + np.random.default_rng(0).normal(size=(64, 100))).astype(np.float32)
    stats = stats_of(x, np.ones((64, 100), np.float32), ())
    np.testing.assert_allclose(stats.var, x.astype(np.float64).var(), rtol=1e-2)


def test_after_the_cap_the_mean_still_moves():
    full = nz.Stats(jnp.float32(nz.MAX_COUNT), jnp.float32(1.0), jnp.float32(1.0))
    one = update(full, jnp.array([3.0]), jnp.ones(1))
    assert float(one.count) == nz.MAX_COUNT
    assert float(one.mean) > 1.0  # a single sample still registers
    many = jax.lax.fori_loop(0, 200, lambda _, s: nz.update(s, jnp.full(2**16, 3.0), jnp.ones(2**16)), full)
    np.testing.assert_allclose(many.mean, 3.0, atol=0.1)


def test_normalize_clips_broadcasts_and_accepts_integers(strict):
    stats = nz.Stats(jnp.float32(5.0), jnp.array([1.0, 2.0]), jnp.array([4.0, 1.0]))
    x = jnp.array([[[3, 100], [1, -100]]], jnp.int32)
    out = nz.normalize(stats, x, clip=5.0)
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, [[[1.0, 5.0], [0.0, -5.0]]], rtol=1e-6)


def test_a_weight_for_each_row_is_required():
    with pytest.raises(AssertionError):
        nz.update(nz.init((2,)), jnp.zeros((3, 2)), jnp.ones(2))
    with pytest.raises(AssertionError):
        nz.normalize(nz.init((2,)), jnp.zeros((2, 3)))


# --- reward scaling --------------------------------------------------------------------------------------------------


def returns_loop(reward, done, gamma):
    out = np.zeros(reward.shape)
    for n in range(reward.shape[1]):
        previous = 0.0
        for t in range(len(reward)):
            out[t, n] = reward[t, n] + gamma * previous
            previous = 0.0 if done[t, n] else out[t, n]
    return out, previous


def test_returns_are_reset_after_the_last_step_not_before(strict):
    # one environment: rewards 1, 2, 4 | 8; gamma 1/2: R = 1, 2.5, 5.25 | 8
    done = jnp.array([[False], [False], [True], [False]])
    state = update_returns(
        nz.init_returns(1), jnp.array([[1.0], [2.0], [4.0], [8.0]]), done, jnp.ones((4, 1)), jnp.float32(0.5)
    )
    expected = np.array([1, 2.5, 5.25, 8])
    np.testing.assert_allclose(state.ret, [8.0])
    np.testing.assert_allclose(state.stats.mean, expected.mean(), rtol=1e-6)
    np.testing.assert_allclose(state.stats.var, expected.var(), rtol=1e-6)
    np.testing.assert_allclose(nz.scale(state), 1 / expected.std(), rtol=1e-6)


def test_returns_against_a_loop_in_one_piece_and_in_three(strict):
    rng = np.random.default_rng(1)
    reward, done = rng.normal(size=(12, 3)).astype(np.float32), rng.random((12, 3)) < 0.3
    weight, gamma = np.ones((12, 3), np.float32), jnp.float32(0.9)
    split = nz.init_returns(3)
    for part in np.split(np.arange(12), 3):
        split = update_returns(split, reward[part], done[part], weight[part], gamma)
    expected, _ = returns_loop(reward, done, 0.9)
    for state in (split, update_returns(nz.init_returns(3), reward, done, weight, gamma)):
        assert float(state.stats.count) == 36.0
        np.testing.assert_allclose(state.ret, np.where(done[-1], 0.0, expected[-1]), rtol=1e-5)
        np.testing.assert_allclose(state.stats.mean, expected.mean(), rtol=1e-4)
        np.testing.assert_allclose(state.stats.var, expected.var(), rtol=1e-4)


def test_a_quarantined_step_is_left_out(strict):
    reward = jnp.array([[1.0], [jnp.nan], [2.0]])
    done, weight = jnp.array([[False], [True], [False]]), jnp.array([[1.0], [0.0], [1.0]])
    state = update_returns(nz.init_returns(1), reward, done, weight, jnp.float32(0.5))
    np.testing.assert_allclose((state.stats.count, state.stats.mean, state.ret[0]), (2.0, 1.5, 2.0))


def test_scale_is_one_before_data(strict):
    out = nz.scale(nz.init_returns(4))
    assert out.dtype == jnp.float32 and float(out) == 1.0
