"""gymnasium and dm_control through rlx: against gymnax's, and what is special to them. See test_conformance too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlx import envs
from rlx.envs import vector
from tests.envs.host_support import Program, keys, pick

suite = pytest.importorskip("dm_control.suite")
pytest.importorskip("imageio")  # of gymnasium[mujoco]

KEYS = keys(0, 1)
LENGTH = 12


def natives(env, r=2, n=2, t=LENGTH):
    """Random native actions `[R, T, N, ...]`."""
    space = env.action_space(env.default_params)
    return jax.vmap(jax.vmap(jax.vmap(space.sample)))(jax.random.split(jax.random.key(7), (r, t, n)))


def test_a_run_does_not_depend_on_its_company():
    env = envs.make("gymnasium/HalfCheetah-v5", max_episode_steps=2)
    p, actions = Program(env), natives(env)
    start, steps = p(KEYS, actions)
    for r in range(2):
        alone = pick(p(KEYS[r : r + 1], actions[r : r + 1]), 0)
        jax.tree.map(np.testing.assert_array_equal, alone, pick((start, steps), r))
    env.close()


# --- against gymnax ----------------------------------------------------------------------------------------------------


def side_by_side(task, native_state, actions):
    """Steps of both from one state, through rlx's callback and through gymnax: (next_obs, reward) twice."""
    ours, theirs = envs.make(f"gymnasium/{task}"), envs.make(f"gymnax/{task}")
    params = vector.strong(theirs.default_params)
    _, state = theirs.reset_env(jax.random.key(3), params)
    p = Program(ours, 1)
    tokens, _ = p.reset(KEYS[:1])
    p.env.pools[0].waiting[0][1].envs[0].unwrapped.state = np.array([float(x) for x in native_state(state)])

    def step(state, action):
        obs, state, reward, terminated, _ = theirs.step_env(jax.random.key(0), state, action, params)
        return state, (action, obs, reward, terminated)

    follow = lambda state, i: step(state, actions(state, i))
    like = jax.eval_shape(follow, state, jnp.int32(0))[0]
    state = jax.tree.map(lambda x, s: jnp.asarray(x, s.dtype), state, like)
    _, (taken, obs, reward, terminated) = jax.lax.scan(follow, state, jnp.arange(100))
    _, steps = p.run(tokens, taken[None, :, None])
    assert not terminated.any() and not steps.terminated.any() and not steps.truncated.any()
    ours.close()
    return (steps.next_obs[0, :, 0], steps.reward[0, :, 0]), (obs, reward)


def test_pendulum_is_gymnaxs():
    """100 steps; float64 against float32, which a pendulum magnifies."""
    torque = lambda state, i: jax.random.uniform(jax.random.fold_in(jax.random.key(1), i), (1,), minval=-2.0, maxval=2.0)
    ours, theirs = side_by_side("Pendulum-v1", lambda s: (s.theta, s.theta_dot), torque)
    np.testing.assert_allclose(ours[0], theirs[0], atol=1e-3)
    np.testing.assert_allclose(ours[1], theirs[1], atol=2e-3)


def test_cartpole_is_gymnaxs():
    """100 steps, balanced."""
    upright = lambda state, i: (state.theta + state.theta_dot > 0).astype(jnp.int32)
    ours, theirs = side_by_side("CartPole-v1", lambda s: (s.x, s.x_dot, s.theta, s.theta_dot), upright)
    np.testing.assert_allclose(ours[0], theirs[0], atol=1e-4)
    np.testing.assert_array_equal(ours[1], theirs[1])


# --- dm_control --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("discount", [0.0, 1.0])
def test_the_discount_says_how_an_episode_ended(discount):
    env = envs.make("dmc/cartpole-swingup")
    p = Program(env, 2)
    tokens, _ = p.reset(KEYS)
    pool = p.env.pools[0].waiting[0][1]
    pool.envs[1].env.task.get_termination = lambda physics: discount if physics.time() > 0.025 else None
    _, steps = p.run(tokens, natives(env))
    at = np.zeros((2, LENGTH, 2), bool)
    at[0, [2, 5, 8, 11], 1] = True  # each third step of 0.01 s
    none = np.zeros_like(at)
    np.testing.assert_array_equal(steps.terminated, at if discount == 0 else none)
    np.testing.assert_array_equal(steps.truncated, none if discount == 0 else at)
    env.close()


def test_without_a_time_limit():
    assert envs.make("dmc/lqr-lqr_2_1").max_episode_steps is None
    assert envs.make("gymnasium/Pendulum-v1", max_episode_steps=-1).max_episode_steps is None


def test_nan_actions_and_diverged_simulations_are_quarantined():
    env = envs.make("dmc/cartpole-swingup")
    p, actions = Program(env), np.array(natives(env))
    actions[0, 3, 1] = np.nan
    tokens, _ = p.reset(KEYS)
    env.pools[0].waiting[0][1].envs[2].env.physics.data.qvel[0] = np.nan  # dm_control raises
    _, steps = p.run(tokens, actions)
    bad = np.zeros((2, LENGTH, 2), bool)
    bad[0, 3, 1] = bad[1, 0, 0] = True
    np.testing.assert_array_equal(steps.weight == 0, bad)
    np.testing.assert_array_equal(steps.truncated, bad)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(steps.obs))
    assert not any(x[bad].any() for x in (steps.reward, *jax.tree.leaves(steps.next_obs)))
    env.close()
