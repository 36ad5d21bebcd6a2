"""Action repeat, action cost, observation noise: against plain loops over the environment that they wrap."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from gymnax.environments import spaces
from gymnax.environments.environment import Environment

from rlx import envs
from rlx.envs import modifiers, vector
from rlx.envs.modifiers import ActionCost, ActionRepeat, ObservationNoise
from rlx.envs.wrappers import AgentView, TimeLimit, spec
from rlx.errors import RlxError
from tests.envs.echo_support import Echo

KEY = jax.random.key(0)
N, T = 6, 40


@struct.dataclass
class Params:
    max_steps_in_episode: Any = 7
    end: Any = 3.5
    shock: Any = 0.0
    nan_at: Any = -1


@struct.dataclass
class State:
    x: jax.Array
    time: int
    total: float
    key: jax.Array


class Walk(Environment):
    """x <- 0.75 x + action + shock * N(0, 1), reward 1 + sum(x); ends where x[0] > end. At `nan_at`, one observation (or the
    reward) is NaN and the state is sound. `time` and `total` are Python numbers at the start, and `total` changes type."""

    def __init__(self, nan_in="obs", objectives=None):
        self.nan_in, self.objectives = nan_in, objectives

    default_params = property(lambda self: Params())

    def reset_env(self, key, params):
        x = jax.random.uniform(key, (2,))
        return x, State(x, 0, 0, key)

    def step_env(self, key, state, action, params):
        x = 0.75 * state.x + action + params.shock * jax.random.normal(key, (2,))
        time = state.time + 1
        bad = jnp.where(time == params.nan_at, jnp.nan, 0.0)
        reward = 1.0 + x.sum() + bad * (self.nan_in == "reward")
        if self.objectives:
            reward = reward * jnp.arange(1.0, 1.0 + self.objectives)
        obs = x + bad if self.nan_in == "obs" else x
        return obs, State(x, time, state.total + 0.5, state.key), reward, x[0] > params.end, {"time": time}

    def is_truncated(self, state, params):
        return state.time >= params.max_steps_in_episode

    def action_space(self, params):
        return spaces.Box(-1.0, 3.0, (2,))

    def observation_space(self, params):
        return spaces.Box(-20.0, 20.0, (2,))


@functools.cache
def program(env):
    """Jitted (key, native actions [T, N, 2], params) -> start obs, states and Steps [T, N, ...], with resets."""
    vec = vector.vectorise(env, N)

    @jax.jit
    def run(key, actions, params):
        state, obs = vec.reset(jax.random.fold_in(key, 0), params)

        def body(state, x):
            state, step = vec.step(jax.random.fold_in(key, x[0]), state, x[1], params)
            return state, (state, step)

        return obs, *jax.lax.scan(body, state, (jnp.arange(1, 1 + len(actions), dtype=jnp.uint32), actions))[1]

    return run


def actions(seed=0, steps=T):
    return np.random.default_rng(seed).uniform(-1, 2, (steps, N, 2)).astype(np.float32)


def run(env, params=None, key=KEY, given=None):
    params = env.default_params if params is None else params
    return jax.device_get(program(env)(key, actions() if given is None else given, vector.strong(params)))


def values(tree):
    """NumPy, typed keys included."""
    is_key = lambda x: isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return jax.tree.map(lambda x: np.asarray(jax.random.key_data(x) if is_key(x) else x), tree)


# --- action repeat -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("repeat", [1, 2, 3, 10])
def test_repeat_is_a_loop_that_stops_at_the_ending(repeat):
    """In NumPy. Limit 7, so that repeats of 2 and 3 end inside one; terminations come at any native step."""
    env = ActionRepeat(Walk(), repeat)
    start, _, step = run(env)
    x = start.copy()
    time, endings = np.zeros(N, int), set()
    for t, a in enumerate(actions()):
        for n in range(N):
            reward = 0.0
            for i in range(repeat):
                x[n], time[n] = 0.75 * x[n] + a[n], time[n] + 1
                reward += 1.0 + x[n].sum()
                terminated, truncated = x[n, 0] > 3.5, time[n] >= 7
                if terminated or truncated:
                    endings.add((bool(terminated), bool(truncated), i))
                    break
            np.testing.assert_allclose(step.next_obs[t, n], x[n], rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(step.reward[t, n], reward, rtol=1e-5, atol=1e-6)
            assert (step.terminated[t, n], step.truncated[t, n]) == (terminated, truncated)
            assert step.info["time"][t, n] == time[n] and step.weight[t, n] == 1
            if terminated or truncated:
                x[n], time[n] = step.obs[t, n], 0
    insides = {i for terminated, _, i in endings if terminated}
    assert insides == set(range(min(repeat, 7))) if repeat < 10 else len(insides) > 2
    assert any(truncated for _, truncated, _ in endings)


def test_repeat_takes_the_native_steps_and_keys():
    """State, reward and observation of a plain loop with keys `fold_in(key, i)`; past the ending nothing moves."""
    env, native = ActionRepeat(Walk(), 5), Walk()
    params = Params(max_steps_in_episode=100, end=1.6, shock=1.0)
    step = jax.jit(env.step_env)
    action, lengths = jnp.full(2, 0.4), []
    for seed in range(12):
        key = jax.random.key(seed)
        _, state = env.reset_env(key, params)
        got = step(key, state, action, params)
        total = 0.0
        for i in range(5):
            obs, state, reward, terminated, info = native.step_env(jax.random.fold_in(key, i), state, action, params)
            total += reward
            if terminated:
                break
        lengths.append(i)
        expected = (obs, state, total, terminated, info)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), values(got), values(expected))
        assert bool(env.is_truncated(got[1], params)) is False
    assert len(set(lengths)) > 2 and 4 in lengths and min(lengths) < 4


@pytest.mark.parametrize("nan_in", ["obs", "reward"])
@pytest.mark.parametrize("nan_at", [4, 5, 6])  # first, middle and last native step of the second agent step
def test_a_nan_inside_a_repeat_reaches_the_quarantine(nan_in, nan_at):
    """Though the state, and what is observed a native step later, are sound."""
    env = ActionRepeat(Walk(nan_in), 3)
    _, _, step = run(env, Params(max_steps_in_episode=100, end=100.0, nan_at=nan_at), given=actions(steps=4))
    np.testing.assert_array_equal(step.weight, np.tile([[1], [0], [1], [0]], N))
    np.testing.assert_array_equal(step.truncated, step.weight == 0)
    assert not step.terminated.any() and not step.reward[1].any() and not step.next_obs[1].any()
    assert np.isfinite(step.reward).all() and np.isfinite(step.obs).all()


def test_limits_of_a_repeated_environment():
    """The limit around the repeat counts agent steps, the native one native steps; the earlier holds. Both are traced."""
    env = modifiers.apply(TimeLimit(Walk(), 10), action_repeat=3)
    assert type(env) is TimeLimit and env.max_steps == 4  # ceil(10 / 3)
    assert spec(env, env.default_params).max_episode_steps == 4
    program.cache_clear()
    for outer, native, agent_steps, native_steps in ((4, 100, 4, 12), (4, 7, 3, 7), (2, 7, 2, 6), (5, 12, 4, 12), (1, 1, 1, 1)):
        params = env.default_params.replace(env=Params(native, 1e9), max_steps_in_episode=outer)
        _, _, step = run(env, params, given=actions(steps=10))
        first = np.argmax(step.truncated, axis=0)
        assert (first + 1 == agent_steps).all() and (step.info["time"][agent_steps - 1] == native_steps).all()
        assert not step.terminated.any()
    assert program(env)._cache_size() == 1


def test_dtypes_of_a_repeated_state_are_stable():
    env = ActionRepeat(Walk(), 2)
    vec, at = vector.vectorise(env, N), env.default_params
    state, obs = jax.eval_shape(vec.reset, KEY, at)
    after, step = jax.eval_shape(vec.step, KEY, state, jnp.zeros((N, 2)), at)
    avals = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), tree)
    assert avals(state) == avals(after) and state.total.dtype == jnp.float32
    assert avals(obs) == avals(step.obs) and step.reward.shape == (N,)


# --- action cost -------------------------------------------------------------------------------------------------------


def test_cost_is_charged_in_native_units_by_a_traced_weight():
    """Agents' -1, 0 and 1 are -1, 1 and 3 here: squares 1, 1 and 9. One program for three weights."""
    env = AgentView(ActionCost(Walk(), 0.5))
    params = env.default_params
    assert params.action_cost == 0.5 and params.env == Params()
    _, state = env.reset_env(KEY, params)
    costs = jnp.array([0.0, 0.5, 2.0])

    @jax.jit
    def rewards(action):
        step = lambda cost: env.step_env(KEY, state, action, params.replace(action_cost=cost))
        return jax.vmap(step)(costs)[2]

    for action, square in (([-1, 0], 2), ([1, 1], 18), ([0, 1], 10)):
        native = 2.0 * np.array(action) + 1.0
        free = 1.0 + 0.75 * state.x.sum() + native.sum()
        np.testing.assert_allclose(rewards(jnp.array(action, jnp.float32)), free - costs * square, rtol=1e-5)


def test_cost_is_charged_for_each_native_step_that_is_taken():
    """Four native steps of seven, then three: so often is the same action paid."""
    plain, dear = (modifiers.apply(Walk(), action_repeat=4, action_cost=cost) for cost in (0.0, 0.5))
    params = lambda env: env.default_params.replace(env=Params(end=1e9))
    free, paid = run(plain, params(plain))[2], run(dear, params(dear))[2]
    native_steps = np.tile([[4], [3]], (T // 2, N))
    np.testing.assert_allclose(free.reward - paid.reward, native_steps * 0.5 * (actions() ** 2).sum(-1), rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(free.next_obs, paid.next_obs)


def test_cost_of_a_vector_reward():
    env, free = ActionCost(Walk(objectives=3), 2.0), Walk(objectives=3)
    action, params = jnp.array([1.0, 2.0]), env.default_params
    _, state = env.reset_env(KEY, params)
    got = env.step_env(KEY, state, action, params)[2]
    np.testing.assert_allclose(got, free.step_env(KEY, state, action, params.env)[2] - 10.0, rtol=1e-5)


# --- observation noise -------------------------------------------------------------------------------------------------


def test_noise_changes_what_is_observed_and_nothing_else():
    """States, rewards and endings bit for bit, with random dynamics; the noise is of the stated scale, white and centred."""
    quiet, loud = (ObservationNoise(Walk(), std) for std in (0.0, 0.5))
    native = Params(max_steps_in_episode=20, end=5.0, shock=0.5)
    given = actions(steps=400)
    start, states, step = run(quiet, quiet.default_params.replace(env=native), given=given)
    noisy_start, noisy_states, noisy = run(loud, loud.default_params.replace(env=native), given=given)
    for name in ("x", "time", "total"):
        np.testing.assert_array_equal(getattr(states, name), getattr(noisy_states, name))
    for name in ("reward", "terminated", "truncated", "weight"):
        np.testing.assert_array_equal(getattr(step, name), getattr(noisy, name))
    done = step.terminated | step.truncated
    assert step.terminated.any() and step.truncated.any()
    np.testing.assert_array_equal(step.obs, states.x)  # no noise at 0
    np.testing.assert_array_equal(noisy.obs[~done], noisy.next_obs[~done])  # one draw for one observation

    error = noisy.next_obs - step.next_obs
    lag = lambda a, b: np.corrcoef(a.ravel(), b.ravel())[0, 1]
    assert abs(error.mean()) < 0.03 and abs(error.std() - 0.5) < 0.03
    assert (
        max(abs(lag(error[1:], error[:-1])), abs(lag(error[:, 0], error[:, 1])), abs(lag(error[..., 0], error[..., 1]))) < 0.06
    )
    assert abs(lag(error, states.x)) < 0.06
    for first in (noisy_start - start, (noisy.obs - step.obs)[done]):
        assert 0.2 < first.std() < 0.8 and np.unique(first).size == first.size


def test_noise_scale_is_traced():
    env = ObservationNoise(Walk(), 0.5)
    at = lambda std: env.reset_env(KEY, env.default_params.replace(obs_noise=std))[0]
    got = jax.jit(jax.vmap(at))(jnp.array([0.0, 0.5, 2.0]))
    np.testing.assert_allclose(got[2] - got[0], 4.0 * (got[1] - got[0]), rtol=1e-4)
    assert np.abs(got[1] - got[0]).min() > 0


def test_noise_leaves_integers_alone(strict):
    obs = {
        "board": jnp.arange(4, dtype=jnp.uint8),
        "on": jnp.array([True]),
        "x": jnp.zeros(3),
        "y": jnp.zeros((), jnp.bfloat16),
    }
    got = modifiers.noisy(KEY, obs, jnp.float32(1.0))
    for name in ("board", "on"):
        np.testing.assert_array_equal(got[name], obs[name])
    assert {n: x.dtype for n, x in got.items()} == {n: x.dtype for n, x in obs.items()}
    assert np.unique([*got["x"], got["y"].astype(jnp.float32)]).size == 4 and np.abs(got["x"]).min() > 0


def test_noisy_observations_have_no_bounds():
    small, board = spaces.Box(0.0, 1.0, (3,)), spaces.Box(0, 255, (2, 2), jnp.uint8)
    space = modifiers.unbounded(spaces.Dict({"a": small, "b": spaces.Tuple([board, small, spaces.Discrete(2)])}))
    assert (space.spaces["a"].low, space.spaces["a"].high, space.spaces["a"].shape) == (-np.inf, np.inf, (3,))
    inner = space.spaces["b"].spaces
    assert inner[0] is board and inner[1].high == np.inf and inner[2].n == 2
    env = ObservationNoise(Walk(), 1.0)
    assert env.observation_space(env.default_params).low == -np.inf


# --- as options --------------------------------------------------------------------------------------------------------


def test_options_of_every_suite():
    options = {"action_repeat": 2, "backend": "spring", "obs_noise": None, "action_cost": 0.0}
    assert modifiers.split(options) == ({"action_repeat": 2, "action_cost": 0.0}, {"backend": "spring"})
    env = Walk()
    assert modifiers.apply(env) is env
    env = modifiers.apply(TimeLimit(Walk(), 9), action_repeat=2, action_cost=0.25, obs_noise=0.5)
    kinds = []
    while env.__class__ is not Walk:
        kinds.append(type(env))
        env = env.env
    assert kinds == [TimeLimit, ObservationNoise, ActionRepeat, ActionCost]


def test_registry_takes_the_options():
    env = envs.make("brax/inverted_pendulum", backend="spring", action_repeat=4, action_cost=0.25, obs_noise=0.5)
    params = env.default_params
    assert params.max_steps_in_episode == 250 and params.env.obs_noise == 0.5 and params.env.env.action_cost == 0.25
    assert type(envs.make("gymnax/Pendulum-v1", action_repeat=4)) is ActionRepeat


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"action_repeat": 0}, "action_repeat=0 must be a whole number >= 1"),
        ({"action_repeat": 1.5}, "action_repeat=1.5 must be a whole number >= 1"),
        ({"action_repeat": True}, "action_repeat=True must be a whole number >= 1"),
        ({"action_cost": -0.1}, "action_cost=-0.1 must be a number >= 0"),
        ({"action_cost": "0.1"}, "action_cost='0.1' must be a number >= 0"),
        ({"obs_noise": float("nan")}, "obs_noise=nan must be a number >= 0"),
        ({"obs_noise": np.inf}, "obs_noise=inf must be a number >= 0"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(RlxError) as error:
        modifiers.apply(Walk(), **options)
    assert str(error.value) == message


def test_what_cannot_be_modified():
    discrete = Echo(spaces.Discrete(2))
    for option, message in (
        ("action_cost", f"{discrete.name} has no continuous actions"),
        ("obs_noise", f"{discrete.name} observes no floats"),
    ):
        with pytest.raises(RlxError, match=message):
            modifiers.apply(discrete, **{option: 0.1})
    with pytest.raises(RlxError, match="gymnasium/Pendulum-v1 runs on the host"):
        envs.make("gymnasium/Pendulum-v1", action_repeat=2)
