import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlx.distributions import TanhNormal


def log_prob_float64(raw, loc, scale):
    """The same density from the textbook formula, in float64."""
    raw, loc, scale = (np.asarray(x, np.float64) for x in (raw, loc, scale))
    normal = -0.5 * ((raw - loc) / scale) ** 2 - np.log(scale) - 0.5 * np.log(2 * np.pi)
    return (normal - np.log(1 - np.tanh(raw) ** 2)).sum(-1)


@jax.jit
def log_prob_of_raw(loc, scale, raw):
    return TanhNormal(loc, scale).log_prob_of_raw(raw)


@pytest.mark.parametrize(("loc", "scale"), [(0.0, 0.3), (0.7, 1.0), (-1.5, 0.5)])
def test_the_density_integrates_to_one(strict, loc, scale):
    edges = np.linspace(-1, 1, 40_001)
    a = jnp.asarray((edges[:-1] + edges[1:])[:, None] / 2, jnp.float32)
    pi = TanhNormal(jnp.float32([loc]), jnp.float32([scale]))
    assert abs(float(jnp.exp(pi.log_prob(a)).mean() * 2) - 1) < 2e-3


@given(
    st.lists(st.floats(-3, 3, width=32), min_size=2, max_size=2),
    st.lists(st.floats(-2, 2, width=32), min_size=2, max_size=2),
    st.lists(st.floats(0.125, 2, width=32), min_size=2, max_size=2),
)
@settings(max_examples=50, deadline=None)
def test_log_prob_of_raw_against_float64(raw, loc, scale):
    raw, loc, scale = (np.array(x, np.float32) for x in (raw, loc, scale))
    np.testing.assert_allclose(log_prob_of_raw(loc, scale, raw), log_prob_float64(raw, loc, scale), rtol=1e-4, atol=1e-4)


def test_log_prob_of_the_action_is_that_of_the_raw_sample(strict):
    pi = TanhNormal(jnp.array([0.3, -0.8]), jnp.array([0.5, 1.5]))
    raw = jax.random.uniform(jax.random.key(0), (200, 2), minval=-3.0, maxval=3.0)
    np.testing.assert_allclose(pi.log_prob(jnp.tanh(raw)), pi.log_prob_of_raw(raw), rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("raw", [-1e3, -20.0, 0.0, 20.0, 1e3])
def test_values_and_gradients_are_finite_at_saturation(strict, raw):
    grads = jax.grad(log_prob_of_raw, argnums=(0, 1, 2))(jnp.zeros(2), jnp.ones(2), jnp.full(2, raw))
    value = log_prob_of_raw(jnp.zeros(2), jnp.ones(2), jnp.full(2, raw))
    # log(1 - tanh(x)^2) = 2 log 2 - 2 |x| in the tails
    tail = 0.0 if raw == 0.0 else 2 * np.log(2) - 2 * abs(raw)
    np.testing.assert_allclose(value, 2 * (-0.5 * raw**2 - 0.5 * np.log(2 * np.pi) - tail), rtol=1e-5)
    np.testing.assert_allclose(grads[0], [raw] * 2, rtol=1e-6)
    np.testing.assert_allclose(grads[1], [raw**2 - 1] * 2, rtol=1e-6)
    np.testing.assert_allclose(grads[2], [-raw + 2 * np.tanh(raw)] * 2, rtol=1e-5)


@pytest.mark.parametrize("action", [[1.0, -1.0], [1.5, 0.0]])
def test_log_prob_of_an_action_is_finite_at_and_past_the_border(strict, action):
    f = lambda loc, scale, a: TanhNormal(loc, scale).log_prob(a)
    value, grads = jax.value_and_grad(f, (0, 1, 2))(jnp.zeros(2), jnp.full(2, 0.1), jnp.array(action))
    assert all(np.isfinite(x).all() for x in (value, *grads))


def test_a_saturated_sample_has_a_finite_log_prob(strict):
    pi = TanhNormal(jnp.full(3, 50.0), jnp.ones(3))
    action, log_prob = pi.sample_and_log_prob(seed=jax.random.key(0))
    assert action.tolist() == [1.0] * 3
    assert np.isfinite(log_prob) and np.isfinite(pi.log_prob(action))


def test_samples_agree_with_each_other_and_with_the_density(strict):
    pi, key = TanhNormal(jnp.array([0.2, -0.4, 1.0]), jnp.array([0.1, 0.5, 0.9])), jax.random.key(7)
    raw = pi.raw_sample(key)
    action, log_prob = pi.sample_and_log_prob(seed=key)
    assert raw.shape == action.shape == (3,) and log_prob.shape == () and log_prob.dtype == jnp.float32
    np.testing.assert_array_equal(action, jnp.tanh(raw))
    np.testing.assert_array_equal(action, pi.sample(seed=key))
    np.testing.assert_array_equal(log_prob, pi.log_prob_of_raw(raw))


def test_moments_of_the_raw_samples(strict):
    pi = TanhNormal(jnp.array([0.2, -0.4]), jnp.array([0.1, 0.5]))
    raw = jnp.arctanh(pi.sample(seed=jax.random.key(0), sample_shape=(4000,)))
    np.testing.assert_allclose(raw.mean(0), pi.loc, atol=0.03)
    np.testing.assert_allclose(raw.std(0), pi.scale, rtol=0.05)


def test_samples_are_reparameterised(strict):
    key = jax.random.key(1)
    f = lambda loc: TanhNormal(loc, jnp.ones(1)).raw_sample(key)[0]
    np.testing.assert_allclose(jax.grad(f)(jnp.zeros(1)), [1.0])


def test_mode_shapes_and_batches(strict):
    loc = jnp.arange(6.0).reshape(2, 3) / 6
    pi = TanhNormal(loc, jnp.ones((2, 3)))
    assert (pi.event_shape, pi.batch_shape) == ((3,), (2,))
    np.testing.assert_array_equal(pi.mode(), jnp.tanh(loc))
    action, log_prob = jax.jit(lambda p, k: p.sample_and_log_prob(seed=k, sample_shape=5))(pi, jax.random.key(0))
    assert action.shape == (5, 2, 3) and log_prob.shape == (5, 2)
    single = jax.vmap(lambda m, s, a: TanhNormal(m, s).log_prob(a))(pi.loc, pi.scale, action[0])
    np.testing.assert_allclose(pi.log_prob(action[0]), single, rtol=1e-6)


def test_loc_and_scale_of_different_shapes_are_refused():
    with pytest.raises(AssertionError):
        TanhNormal(jnp.zeros((4, 2)), jnp.ones(2))
