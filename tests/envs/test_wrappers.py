"""The environment spec, the time limit, and episode statistics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import spaces

from rlx import envs
from rlx.envs import vector
from rlx.envs.wrappers import TimeLimit, episode_statistics, spec
from rlx.errors import RlxError
from rlx.types import EnvSpec, Step, VecEnv
from tests.envs.echo_support import INF, KEY, Echo, NoLimit, Params

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
