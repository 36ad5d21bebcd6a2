import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlx import returns

F, B = np.float32, np.bool_
GAMMA, LAM = jnp.float32(0.5), jnp.float32(0.5)

gae = jax.jit(returns.gae)
lambda_returns = jax.jit(returns.lambda_returns)
n_step = jax.jit(returns.n_step)


def rollout(**changes):
    """Three steps, all values distinct powers of ten, so that each wrong mask gives another number."""
    base = {
        "reward": np.array([1.0, 2.0, 4.0], F),
        "value": np.array([10.0, 20.0, 40.0], F),
        "next_value": np.array([20.0, 100.0, 1000.0], F),
        "terminated": np.zeros(3, B),
        "truncated": np.zeros(3, B),
        "gamma": GAMMA,
        "lam": LAM,
    }
    return base | changes


MIDDLE = np.array([False, True, False])

# deltas without masks: 1 + 10 - 10 = 1,  2 + 50 - 20 = 32,  4 + 500 - 40 = 464;  gamma * lam = 1/4
GAE_CASES = {
    "no end": ({}, [1 + (32 + 464 / 4) / 4, 32 + 464 / 4, 464]),
    "terminated": ({"terminated": MIDDLE}, [1 + (2 - 20) / 4, 2 - 20, 464]),
    "truncated": ({"truncated": MIDDLE}, [1 + 32 / 4, 32, 464]),
    "both": ({"terminated": MIDDLE, "truncated": MIDDLE}, [1 + (2 - 20) / 4, 2 - 20, 464]),
    "weight 0": ({"truncated": MIDDLE, "weight": np.array([1, 0, 1], F)}, [1, 0, 464]),
    "weight 1": ({"truncated": MIDDLE, "weight": np.ones(3, F)}, [1 + 32 / 4, 32, 464]),
}


@pytest.mark.parametrize("case", GAE_CASES)
def test_gae_by_hand(strict, case):
    changes, expected = GAE_CASES[case]
    out = gae(**rollout(**changes))
    assert out.shape == (3,) and out.dtype == jnp.float32
    np.testing.assert_allclose(out, expected, rtol=1e-6)


def test_gae_of_a_quarantined_step_ignores_a_nan_value():
    x = rollout(truncated=MIDDLE, weight=np.array([1, 0, 1], F), next_value=np.array([20, np.nan, 1000], F))
    np.testing.assert_allclose(gae(**x), [1, 0, 464])


# l = 1/2, gamma = 1/2; last step bootstraps fully: 4 + 500 = 504
LAMBDA_CASES = {
    "no end": ({}, [1 + (20 / 2 + (2 + (100 + 504) / 4) / 2) / 2, 2 + (100 + 504) / 4, 504]),
    "terminated": ({"terminated": MIDDLE}, [1 + (20 + 2) / 4, 2, 504]),
    "truncated": ({"truncated": MIDDLE}, [1 + (20 + 52) / 4, 52, 504]),
    "both": ({"terminated": MIDDLE, "truncated": MIDDLE}, [1 + (20 + 2) / 4, 2, 504]),
    "last terminated": ({"terminated": MIDDLE[[0, 0, 1]]}, [1 + (20 + 2 + (100 + 4) / 4) / 4, 2 + (100 + 4) / 4, 4]),
}


@pytest.mark.parametrize("case", LAMBDA_CASES)
def test_lambda_returns_by_hand(strict, case):
    changes, expected = LAMBDA_CASES[case]
    x = rollout(**changes)
    del x["value"]
    out = lambda_returns(**x)
    assert out.shape == (3,) and out.dtype == jnp.float32
    np.testing.assert_allclose(out, expected, rtol=1e-6)


# rewards 1, 2, 4, gamma 1/2: 1, 1 + 1, 1 + 1 + 1
N_STEP_CASES = {
    "no end": ({}, (3, 1 / 8, 2)),
    "terminated": ({"terminated": MIDDLE}, (2, 0, 1)),
    "truncated": ({"truncated": MIDDLE}, (2, 1 / 4, 1)),
    "both": ({"terminated": MIDDLE, "truncated": MIDDLE}, (2, 0, 1)),
    "terminated later": ({"truncated": MIDDLE, "terminated": np.array([False, False, True])}, (2, 1 / 4, 1)),
    "terminated last": ({"terminated": np.array([False, False, True])}, (3, 0, 2)),
    "ends at once": ({"terminated": np.array([True, False, False])}, (1, 0, 0)),
    "quarantined": ({"truncated": MIDDLE, "weight": np.array([1, 0, 1], F)}, (1, 1 / 2, 0)),
    "quarantined last": ({"weight": np.array([1, 1, 0], F)}, (2, 1 / 4, 1)),
    "quarantined first": ({"weight": np.array([0, 1, 1], F)}, (3, 1 / 8, 2)),
    "quarantined NaN": ({"weight": np.array([1, 0, 1], F), "reward": np.array([1, np.nan, 4], F)}, (1, 1 / 2, 0)),
}


@pytest.mark.parametrize("case", N_STEP_CASES)
def test_n_step_by_hand(strict, case):
    changes, expected = N_STEP_CASES[case]
    x = {k: v for k, v in rollout(**changes).items() if k not in ("value", "next_value", "lam")}
    out = n_step(**x)
    assert [(o.shape, o.dtype) for o in out] == [((), jnp.float32), ((), jnp.float32), ((), jnp.int32)]
    np.testing.assert_allclose(out, expected, rtol=1e-6)


def test_n_step_of_one_step_is_the_one_step_target(strict):
    out = returns.n_step(np.array([3.0], F), np.zeros(1, B), np.ones(1, B), GAMMA)
    np.testing.assert_allclose(out, (3, 0.5, 0))


# --- plain loops -----------------------------------------------------------------------------------------------------


def gae_loop(reward, value, next_value, terminated, truncated, gamma, lam, weight):
    out, following = np.zeros(len(reward)), 0.0
    for t in reversed(range(len(reward))):
        bootstrap = 0.0 if terminated[t] else next_value[t]
        delta = (reward[t] + gamma * bootstrap - value[t]) * weight[t]
        following = delta if terminated[t] or truncated[t] else delta + gamma * lam * following
        out[t] = following
    return out


def lambda_loop(reward, next_value, terminated, truncated, gamma, lam):
    out = np.zeros(len(reward))
    for t in reversed(range(len(reward))):
        if terminated[t]:
            out[t] = reward[t]
        elif truncated[t] or t == len(reward) - 1:
            out[t] = reward[t] + gamma * next_value[t]
        else:
            out[t] = reward[t] + gamma * ((1 - lam) * next_value[t] + lam * out[t + 1])
    return out


def n_step_loop(reward, terminated, truncated, gamma, weight):
    total, last = 0.0, 0
    for k in range(len(reward)):
        if k > 0 and weight[k] == 0:
            break
        total, last = total + gamma**k * reward[k], k
        if terminated[k] or truncated[k]:
            break
    return total, 0.0 if terminated[last] else gamma ** (last + 1), last


masks = st.lists(st.booleans(), min_size=8, max_size=8)
unit = st.floats(0, 1, width=32)


@given(masks, masks, masks, unit, unit, st.integers(0, 2**32 - 1))
@settings(max_examples=50, deadline=None)
def test_against_plain_loops(terminated, truncated, kept, gamma, lam, seed):
    rng = np.random.default_rng(seed)
    reward, value, next_value = rng.normal(size=(3, 8)).astype(F)
    terminated, truncated, weight = np.array(terminated), np.array(truncated), np.array(kept, F)
    g, l = F(gamma), F(lam)  # noqa: E741
    x = {"terminated": terminated, "truncated": truncated, "gamma": g}
    tol = {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(
        gae(reward, value, next_value, lam=l, weight=weight, **x),
        gae_loop(reward, value, next_value, terminated, truncated, gamma, lam, weight),
        **tol,
    )
    np.testing.assert_allclose(
        lambda_returns(reward, next_value, lam=l, **x),
        lambda_loop(reward, next_value, terminated, truncated, gamma, lam),
        **tol,
    )
    out, expected = n_step(reward, weight=weight, **x), n_step_loop(reward, terminated, truncated, gamma, weight)
    np.testing.assert_allclose(out, expected, **tol)
    assert int(out.last) == expected[2]


@given(masks, masks, unit, unit, st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_lambda_return_is_gae_plus_value(terminated, truncated, gamma, lam, seed):
    rng = np.random.default_rng(seed)
    reward, value, successor = rng.normal(size=(3, 8)).astype(F)
    done = np.array(terminated) | np.array(truncated)
    next_value = np.where(done, successor, np.append(value[1:], F(0.7))).astype(F)  # agree inside an episode
    x = (np.array(terminated), np.array(truncated), F(gamma), F(lam))
    expected = gae(reward, value, next_value, *x) + value
    np.testing.assert_allclose(lambda_returns(reward, next_value, *x), expected, rtol=1e-4, atol=1e-5)


def test_shapes_are_checked_and_a_second_axis_is_refused():
    x = rollout(value=np.zeros((3, 1), F))
    with pytest.raises(AssertionError):
        returns.gae(**x)
    with pytest.raises(AssertionError):
        returns.n_step(np.zeros((3, 2), F), np.zeros((3, 2), B), np.zeros((3, 2), B), GAMMA)


def test_vmap_over_environments_and_hyperparameters(strict):
    x = rollout(truncated=MIDDLE)
    both = [x["reward"], x["value"], x["next_value"], x["terminated"], x["truncated"]]
    lams = jnp.array([0.5, 0.0], jnp.float32)
    out = jax.vmap(lambda lam: jax.vmap(lambda *a: returns.gae(*a, GAMMA, lam))(*[np.stack([b, b]) for b in both]))(lams)
    np.testing.assert_allclose(out, np.stack([[[9, 32, 464]] * 2, [[1, 32, 464]] * 2]))
