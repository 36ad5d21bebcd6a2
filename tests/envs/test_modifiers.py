"""Action repeat and action cost, against plain loops over the environment that they wrap."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlx.envs import modifiers, vector
from rlx.envs.modifiers import ActionCost, ActionRepeat
from rlx.envs.wrappers import AgentView, TimeLimit, spec
from tests.envs.walk_support import KEY, N, Params, T, Walk, actions, program, run, values

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
