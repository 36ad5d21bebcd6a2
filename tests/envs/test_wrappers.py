"""The border between native and agent units, the time limit, the environment spec, and episode statistics."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from gymnax.environments import spaces
from gymnax.environments.environment import Environment
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rlx import envs
from rlx.envs import vector
from rlx.envs.wrappers import AgentView, TimeLimit, decode, encode, episode_statistics, spec
from rlx.errors import RlxError
from rlx.types import EnvSpec, Step, VecEnv

KEY = jax.random.key(0)


@struct.dataclass
class Params:
    max_steps_in_episode: Any = 5
    bound: Any = 2.0


@struct.dataclass
class NoLimit:
    """Parameters without a time limit."""


@struct.dataclass
class State:
    time: jax.Array
    action: jax.Array


class Echo(Environment):
    """Observes the action as it arrives, in whatever spaces it is given; terminates at `end`."""

    def __init__(self, action_space, observation_space=None, reward=0.0, end=10**6, params=None):
        self.action_space_of, self.observed, self.reward, self.end = action_space, observation_space, reward, end
        self.params = params or Params()

    @property
    def default_params(self):
        return self.params

    def action_space(self, params):
        return self.action_space_of(params) if callable(self.action_space_of) else self.action_space_of

    def observation_space(self, params):
        return self.observed or spaces.Box(-np.inf, np.inf, self.action_space(params).shape)

    def _obs(self, action):
        return action if self.observed is None else self.observed.sample(KEY)

    def reset_env(self, key, params):
        space = self.action_space(params)
        action = jnp.zeros(getattr(space, "shape", ()), getattr(space, "dtype", jnp.float32))
        return self._obs(action), State(jnp.zeros((), jnp.int32), action)

    def step_env(self, key, state, action, params):
        state = State(state.time + 1, action if isinstance(action, jax.Array) else state.action)
        return self._obs(action), state, jnp.asarray(self.reward), state.time >= self.end, {}


# --- observations ------------------------------------------------------------------------------------------------------

INF = (-np.inf, np.inf)


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


# --- the spec ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "expected"),
    [  # obs_shape, obs_dtype, num_actions, action_dim, reward_shape, max_episode_steps
        (envs.make("gymnax/CartPole-v1"), ((4,), "float32", 2, 1, (), 500)),
        (envs.make("probe/IntegerObservation"), ((3,), "float32", 3, 1, (), 10)),
        (envs.make("probe/BoardObservation"), ((10, 10, 2), "uint8", 3, 1, (), 10)),
        (envs.make("probe/VectorReward-continuous"), ((2,), "float32", None, 1, (2,), 10)),
        (Echo(spaces.Box(-1, 2, (2, 3))), ((6,), "float32", None, 6, (), 5)),
        (Echo(spaces.Box(-1, 2, ())), ((1,), "float32", None, 1, (), 5)),
        (Echo(spaces.Discrete(2), reward=[0]), ((1,), "float32", 2, 1, (1,), 5)),
        (Echo(spaces.Discrete(2), params=Params(np.inf)), ((1,), "float32", 2, 1, (), None)),
        (Echo(spaces.Discrete(2), params=NoLimit()), ((1,), "float32", 2, 1, (), None)),
        (TimeLimit(Echo(spaces.Discrete(2)), 3), ((1,), "float32", 2, 1, (), 3)),
    ],
)
def test_spec(env, expected):
    expected = EnvSpec(env.name, expected[0], np.dtype(expected[1]), *expected[2:])
    got = spec(env, vector.strong(env.default_params))
    assert got == expected and hash(got) == hash(expected)
    assert got.max_episode_steps is None or type(got.max_episode_steps) is int
    assert spec(env, env.default_params, "mine").name == "mine"


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (Echo(spaces.Box(*INF, (2,))), r"action box \[-inf, inf\] must be bounded"),
        (Echo(spaces.Box(np.array([-1.0, -np.inf]), 1.0, (2,))), "must be bounded"),
        (Echo(spaces.Box(-1.0, np.nan, (2,))), "must be bounded"),
        (Echo(spaces.Tuple([spaces.Discrete(2)])), "action space Tuple is not supported: use Box or Discrete"),
        (Echo(spaces.Discrete(2), spaces.Space()), "observation space Space is not supported"),
        (Echo(spaces.Discrete(2), reward=np.zeros((2, 3))), r"the reward has shape \(2, 3\); it must be a scalar or a vector"),
    ],
)
def test_spec_refuses(env, message):
    if type(env.observed) is spaces.Space:
        env._obs = lambda action: jnp.zeros(3)
    with pytest.raises(RlxError, match=message) as error:
        spec(env, env.default_params, "some/name")
    assert "\n" not in str(error.value) and str(error.value).startswith(("some/name: ", "observation space"))


# --- time limit --------------------------------------------------------------------------------------------------------


def flags(env, params, steps=8):
    """(terminated, truncated) of one environment, stepped `steps` times and never reset: bool [steps] each."""

    def body(state, _):
        _, state, _, terminated, _ = env.step_env(KEY, state, jnp.int32(0), params)
        return state, (terminated, env.is_truncated(state, params))

    return jax.lax.scan(body, env.reset_env(KEY, params)[1], length=steps)[1]


def test_time_limit_is_traced_and_the_inner_one_holds():
    """The inner limit is 5. Three outer limits in one program, then three inner ones."""
    env = TimeLimit(Echo(spaces.Discrete(2)), 3)
    assert env.default_params.max_steps_in_episode == 3
    first = jax.jit(jax.vmap(lambda params: jnp.argmax(flags(env, params)[1]) + 1))
    inner = lambda limits: Params(jnp.array(limits, jnp.int32), jnp.full(3, 2.0))
    params = env.default_params.replace(env=inner([5, 5, 5]), max_steps_in_episode=jnp.array([1, 3, 8], jnp.int32))
    np.testing.assert_array_equal(first(params), [1, 3, 5])
    np.testing.assert_array_equal(first(params.replace(env=inner([5, 2, 7]))), [1, 2, 7])
    assert first._cache_size() == 1


def test_time_limit_never_terminates():
    """A termination in step 2 under a limit of 3, without a reset; then both in the same step."""
    terminated, truncated = flags(
        TimeLimit(Echo(spaces.Discrete(2), end=2), 3), vector.strong(TimeLimit(Echo(None), 3).default_params)
    )
    np.testing.assert_array_equal(terminated, np.arange(1, 9) >= 2)
    np.testing.assert_array_equal(truncated, np.arange(1, 9) >= 3)

    env = TimeLimit(Echo(spaces.Discrete(2), end=2), 2)
    vec = vector.vectorise(env, 3)
    params = vector.strong(env.default_params)
    state, _ = vec.reset(KEY, params)
    for expected in ([False, False], [True, True], [False, False], [True, True]):  # time begins anew
        state, step = vec.step(KEY, state, jnp.zeros(3, jnp.int32), params)
        assert [step.terminated.all(), step.truncated.all()] == expected
    np.testing.assert_array_equal(state.time, np.zeros(3))


@pytest.mark.parametrize("limit", [0, -1])
def test_time_limit_refuses(limit):
    with pytest.raises(RlxError, match=f"max_steps={limit} must be >= 1"):
        TimeLimit(Echo(spaces.Discrete(2)), limit)


# --- episode statistics ------------------------------------------------------------------------------------------------


def tape(reward, terminated, truncated):
    """A VecEnv that plays the given arrays [T, N(, m)]; its state is the time."""
    n = reward.shape[1]

    def step(key, t, action, params):
        zeros = jnp.zeros((n, 1))
        return t + 1, Step(zeros, zeros, reward[t], terminated[t], truncated[t], jnp.ones(n), {"native": jnp.full(n, t)})

    return VecEnv(n, lambda key, params: (jnp.zeros((), jnp.int32), jnp.zeros((n, 1))), step)


@pytest.mark.parametrize("m", [(), (1,), (3,), (4,)])  # (4,): as many objectives as environments
def test_episode_statistics_by_numpy(m, strict):
    """Some 1000 episodes, of length 1 too: sums in the order of the steps, so equal and not only close."""
    T, N = 1000, 4
    rng = np.random.default_rng(0)
    reward = rng.normal(size=(T, N, *m)).astype(np.float32)
    terminated, truncated = rng.random((2, T, N)) < 0.15
    assert (terminated & truncated).any() and ((terminated | truncated)[1:] & (terminated | truncated)[:-1]).any()

    vec = episode_statistics(tape(*map(jnp.asarray, (reward, terminated, truncated))), m)
    state, _ = vec.reset(KEY, ())
    final, steps = jax.jit(lambda s: jax.lax.scan(lambda s, _: vec.step(KEY, s, jnp.zeros(N), ()), s, length=T))(state)

    lengths, returns = np.zeros((T, N), np.int32), np.zeros_like(reward)
    for n in range(N):
        start = 0
        for t in range(T):
            lengths[t, n] = t + 1 - start
            for s in range(start, t + 1):
                returns[t, n] += reward[s, n]
            if terminated[t, n] or truncated[t, n]:
                start = t + 1
    assert (steps.info["episode_return"].dtype, steps.info["episode_length"].dtype) == (jnp.float32, jnp.int32)
    np.testing.assert_array_equal(steps.info["episode_length"], lengths)
    np.testing.assert_array_equal(steps.info["episode_return"], returns)
    np.testing.assert_array_equal(steps.info["native"], np.repeat(np.arange(T)[:, None], N, 1))  # what was there stays
    assert final.env == T and vec.num_envs == N
    jax.tree.map(
        lambda x, y: np.testing.assert_equal((x.shape, x.dtype, x.weak_type), (y.shape, y.dtype, y.weak_type)), final, state
    )


def test_the_first_reward_counts():
    """Only the first step of each episode of two steps is paid."""
    reward = jnp.tile(jnp.array([[1.0], [0.0]]), (3, 1))
    ends = jnp.tile(jnp.array([[False], [True]]), (3, 1))
    vec = episode_statistics(tape(reward, ends, ends & False))
    _, steps = jax.lax.scan(lambda s, _: vec.step(KEY, s, None, ()), vec.reset(KEY, ())[0], length=6)
    np.testing.assert_array_equal(steps.info["episode_return"][:, 0], [1, 1, 1, 1, 1, 1])
    np.testing.assert_array_equal(steps.info["episode_length"][:, 0], [1, 2, 1, 2, 1, 2])
