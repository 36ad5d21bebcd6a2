import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlx import counters

U32 = st.integers(0, 2**32 - 1)
EDGES = np.array([0, 1, 2, 3, 7, 2**16, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1], np.uint32)


@given(U32, st.integers(0, 2**31), st.integers(1, 2**31))
@example(2**32 - 1, 2**31 - 2, 2**31 - 1)
@example(2**32 - 1, 2**31 - 1, 2**31)
@settings(max_examples=40, deadline=None)
def test_mul_mod_is_exact(i, factor, modulus):
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        out = counters.mul_mod(jnp.uint32(i), factor, modulus)
    assert out.dtype == jnp.uint32
    assert int(out) == (i * factor) % modulus


@given(U32, st.integers(1, 2**33), st.integers(0, 2**31))
@example(2**32 - 1, 2**32, 0)
@settings(max_examples=60, deadline=None)
def test_min_product_saturates_exactly(i, factor, cap):
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        out = counters.min_product(jnp.uint32(i), factor, cap)
    assert out.dtype == jnp.uint32
    assert int(out) == min(i * factor, cap)


@pytest.mark.parametrize(("factor", "cap"), [(3, 10), (5, 10), (1, 10), (11, 10), (10, 10), (7, 2**31)])
def test_min_product_around_the_cap(factor, cap):
    around = np.arange(-2, 3) + -(-cap // factor)
    i = around[around >= 0].astype(np.uint32)
    assert counters.min_product(i, factor, cap).tolist() == [min(int(j) * factor, cap) for j in i]


@pytest.mark.parametrize(("per_iteration", "period"), [(1, 1), (3, 7), (7, 3), (4, 4), (256, 1000), (999, 2**31), (6, 2)])
def test_period_elapsed_is_the_floor_crossing(strict, per_iteration, period):
    us = np.unique(np.array([0, per_iteration // 2, per_iteration - 1], np.uint32))
    f = jax.jit(lambda i, u: counters.period_elapsed(i, per_iteration, u, period))
    for i in [*EDGES, np.uint32(999 * 12345)]:
        for u in us:
            k = int(i) * per_iteration + int(u)
            assert bool(f(jnp.uint32(i), jnp.uint32(u))) == ((k + 1) // period > k // period)


def test_period_elapsed_counts_every_period_once():
    ks = [(i, u) for i in range(50) for u in range(6)]
    i, u = map(np.array, zip(*ks, strict=True))
    fired = counters.period_elapsed(i.astype(np.uint32), 6, u.astype(np.uint32), 7)
    assert fired.dtype == jnp.bool_
    assert np.flatnonzero(fired).tolist() == list(range(6, 300, 7))  # after updates number 7, 14, ... (k from 0)


def test_period_elapsed_past_the_uint32_product():
    i = 2**31 + 1  # 2 * i overflows to 2
    assert [bool(counters.period_elapsed(jnp.uint32(i), 2, u, 2**32 // 2**2 + 1)) for u in (0, 1)] == [
        (2 * i + 1 + u) % (2**30 + 1) == 0 for u in (0, 1)
    ]


def test_period_elapsed_takes_static_and_traced_updates_and_vmaps():
    assert bool(counters.period_elapsed(0, 4, 3, 4)) and not bool(counters.period_elapsed(0, 4, 2, 4))
    out = jax.vmap(lambda u: counters.period_elapsed(jnp.uint32(1), 4, u, 3))(jnp.arange(4, dtype=jnp.int32))
    assert out.tolist() == [False, True, False, False]  # k = 4..7, complete at k = 5


def test_env_steps_is_float32_and_keeps_the_magnitude():
    out = counters.env_steps(jnp.uint32(2**32 - 1), 4096)
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(float(out), (2**32 - 1) * 4096, rtol=2**-23)
    assert float(counters.env_steps(jnp.uint32(3), 7)) == 21.0


@pytest.mark.parametrize("per_iteration", [1, 4, 7])
def test_first_iteration_against_the_definition(per_iteration):
    for starts in range(40):
        expected = next(j for j in range(100) if (j + 1) * per_iteration >= starts)
        assert counters.first_iteration(starts, per_iteration) == expected


@pytest.mark.parametrize("modulus", [0, 2**31 + 1])
def test_a_modulus_out_of_range_is_refused(modulus):
    with pytest.raises(AssertionError):
        counters.mul_mod(jnp.uint32(1), 1, modulus)
