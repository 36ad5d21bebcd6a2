"""The border between native and agent units: observations as arrays of one shape, actions in [-1, 1]."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rlx import envs
from rlx.envs import vector
from rlx.envs.wrappers import AgentView, decode, encode
from rlx.errors import RlxError
from tests.envs.echo_support import INF, KEY, Echo, Params

# --- observations ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.uint8, np.bool_, np.float32, np.int32, np.int8, np.float16, np.float64, np.int64])
@pytest.mark.parametrize(
    ("shape", "expected"), [((), (1,)), ((3,), (3,)), ((2, 3), (6,)), ((2, 3, 4), (2, 3, 4)), ((2, 1, 2, 3), (12,))]
)
def test_encode_box(shape, expected, dtype, strict):
    obs = (np.arange(np.prod(shape, dtype=int)) % 2 + 0.5 * (np.dtype(dtype).kind == "f")).reshape(shape).astype(dtype)
    out = encode(spaces.Box(*INF, shape), obs)
    assert out.shape == expected and not out.weak_type
    assert out.dtype == (dtype if dtype in (np.uint8, np.bool_) else np.float32)
    np.testing.assert_array_equal(out, obs.reshape(expected))


def test_encode_python_and_weak_numbers(strict):
    for obs in (2.5, jnp.asarray(2.5)):
        out = encode(spaces.Box(*INF, ()), obs)
        assert (out.shape, out.dtype, out.weak_type) == ((1,), jnp.float32, False) and out[0] == 2.5


def test_encode_discrete(strict):
    for value in (3, jnp.int32(3), np.uint8(3)):
        out = encode(spaces.Discrete(5), value)
        assert out.dtype == jnp.float32 and not out.weak_type
        np.testing.assert_array_equal(out, [0, 0, 0, 1, 0])


class Parts(NamedTuple):
    b: int
    a: tuple


def test_encode_nested(strict):
    """Dicts in sorted order whatever order the space and the observation were written in; items or attributes."""
    board = np.array([[[0, 255]], [[7, 1]]], np.uint8)
    inner = spaces.Tuple([spaces.Box(*INF, (2, 1, 2)), spaces.Dict({"z": spaces.Discrete(2), "y": spaces.Box(*INF, ())})])
    space = spaces.Dict({"b": spaces.Discrete(3), "a": inner})
    tail = {"z": jnp.int32(1), "y": np.bool_(True)}
    expected = [0, 255, 7, 1, 1, 0, 1, 0, 0, 1]  # a: board, y, z; b
    for obs in ({"b": 2, "a": (board, tail)}, {"a": (board, tail), "b": 2}, Parts(b=2, a=(board, tail))):
        out = encode(space, obs)
        assert out.dtype == jnp.float32 and not out.weak_type
        np.testing.assert_array_equal(out, expected)


def test_encode_refuses_other_spaces():
    class Text(spaces.Space):
        pass

    for space in (Text(), spaces.Tuple([spaces.Discrete(2), Text()]), spaces.Dict({"x": Text()})):
        obs = {"x": 0} if isinstance(space, spaces.Dict) else (0, 0)
        with pytest.raises(RlxError, match="observation space Text is not supported: use Box, Discrete, Dict or Tuple"):
            encode(space, obs)


# --- actions -----------------------------------------------------------------------------------------------------------


def test_decode_by_hand(strict):
    box = spaces.Box(np.array([-1.0, -4.0]), np.array([3.0, -2.0]), (2,))  # float64 bounds
    for action, native in [([-1, -1], [-1, -4]), ([1, 1], [3, -2]), ([0, 0], [1, -3]), ([0.5, -0.5], [2, -3.5])]:
        out = decode(box, jnp.array(action, jnp.float32))
        assert (out.shape, out.dtype) == ((2,), jnp.float32)
        np.testing.assert_array_equal(out, native)
    np.testing.assert_array_equal(decode(box, jnp.array([-7.0, 1.5])), [-1, -2])  # clipped


@pytest.mark.parametrize(("shape", "bounds"), [((), (0, 4)), ((1,), (0.0, 4.0)), ((2, 3), (np.zeros((1, 3)), 4.0))])
def test_decode_takes_the_shape_of_the_space(shape, bounds, strict):
    n = int(np.prod(shape, dtype=int))
    action = jnp.linspace(-1, 1, n + 1, dtype=jnp.float32)[1:]
    out = decode(spaces.Box(*bounds, shape), action)
    np.testing.assert_allclose(out, (2 * action + 2).reshape(shape), rtol=1e-6)
    assert out.shape == shape


def test_decode_keeps_the_dtype_of_the_space(strict):
    assert decode(spaces.Box(-1, 1, (2,), jnp.float16), jnp.zeros(2)).dtype == jnp.float16
    out = decode(spaces.Discrete(5), jnp.uint8(4))
    assert (out.shape, out.dtype, int(out)) == ((), jnp.int32, 4)


numbers = st.floats(-(2.0**20), 2.0**20, width=32, allow_subnormal=False)
box_of = jax.jit(lambda low, high, action: decode(spaces.Box(low, high, low.shape), action))  # traced bounds


def test_a_nan_action_stays_nan(strict):
    """And reaches the quarantine: a diverged policy must not pass for one that acts at the bound."""
    out = decode(spaces.Box(-1.0, 3.0, (2,)), jnp.array([jnp.nan, 0.0], jnp.float32))
    np.testing.assert_array_equal(out, np.array([np.nan, 1.0], np.float32))


@settings(max_examples=200, deadline=None)
@given(arrays(np.float32, 4, elements=numbers), arrays(np.float32, 4, elements=numbers))
def test_decode_hits_the_bounds_exactly(a, b):
    low, high = np.minimum(a, b), np.maximum(a, b)
    np.testing.assert_array_equal(box_of(low, high, -np.ones(4, np.float32)), low)
    np.testing.assert_array_equal(box_of(low, high, np.ones(4, np.float32)), high)
    np.testing.assert_array_equal(box_of(low, high, np.full(4, 1.5, np.float32)), high)


@settings(max_examples=200, deadline=None)
@given(
    arrays(np.float32, 4, elements=numbers),
    arrays(np.float32, 4, elements=numbers),
    arrays(np.float32, (2, 4), elements=st.floats(-1.25, 1.25, width=32)),
)
def test_decode_is_affine_monotone_and_clipped(a, b, actions):
    low, high, actions = np.minimum(a, b), np.maximum(a, b), np.sort(actions, axis=0)
    first, second = (np.asarray(box_of(low, high, x)) for x in actions)
    assert np.all(low <= first) and np.all(first <= second) and np.all(second <= high)
    exact = np.clip(low + (actions[0].astype(np.float64) + 1) / 2 * (high.astype(np.float64) - low), low, high)
    np.testing.assert_allclose(first, exact, rtol=1e-5, atol=1e-6 * np.maximum(np.abs(low), np.abs(high)).max() + 1e-30)


def test_agent_view():
    """Native units inside, agent units outside; bounds that are parameters are read inside the trace."""
    env = AgentView(Echo(lambda params: spaces.Box(-params.bound, params.bound, (2, 1))))
    space = env.action_space(env.default_params)
    assert (space.low, space.high, space.shape) == (-1, 1, (2,))

    @jax.jit
    def first_obs(params, action):
        obs, state = env.reset_env(KEY, params)
        return obs, env.step_env(KEY, state, action, params)

    for bound in (2.0, 0.5):
        params = vector.strong(Params(bound=bound))
        start, (obs, state, *_) = first_obs(params, jnp.array([-1.0, 0.5]))
        assert start.shape == obs.shape == (2,)
        np.testing.assert_array_equal(obs, [-bound, bound / 2])
        np.testing.assert_array_equal(state.action, [[-bound], [bound / 2]])
    assert first_obs._cache_size() == 1

    discrete = AgentView(envs.make("probe/IntegerObservation"))
    assert discrete.action_space(discrete.default_params).n == 3
    assert discrete.name == "IntegerObservation"
    np.testing.assert_array_equal(discrete.reset_env(KEY, discrete.default_params)[0].sum(), 1.0)
