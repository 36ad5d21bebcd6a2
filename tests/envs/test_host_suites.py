"""gymnasium and dm_control through rlx: against the same environments stepped by hand, and against gymnax's."""

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlx import envs
from rlx.envs import vector, wrappers
from tests.envs.host_support import Program, keys, pick, seed_of

suite = pytest.importorskip("dm_control.suite")
pytest.importorskip("imageio")  # of gymnasium[mujoco]

KEYS = keys(0, 1)
LENGTH = 12


def natives(env, r=2, n=2, t=LENGTH):
    """Random native actions `[R, T, N, ...]`."""
    space = env.action_space(env.default_params)
    return jax.vmap(jax.vmap(jax.vmap(space.sample)))(jax.random.split(jax.random.key(7), (r, t, n)))


# --- against the same, by hand -----------------------------------------------------------------------------------------


class ByHand:
    """dm_control as its own users step it: `reset` and `step` -> obs, reward, terminated, truncated."""

    def __init__(self, domain, task, seed, **kwargs):
        self.env = suite.load(domain, task, {"random": seed, **kwargs})

    def reset(self, seed=None):
        return self.flat(self.env.reset().observation), {}

    def flat(self, obs):
        return np.concatenate([np.ravel(obs[k]) for k in sorted(obs)])

    def step(self, action):
        step = self.env.step(action)
        ends = step.last() and step.discount == 0, step.last() and step.discount == 1
        return self.flat(step.observation), step.reward, *ends, {}


def gymnasium_by_hand(task, **options):
    return lambda seed: gym.make(task, **options)


@pytest.mark.parametrize(
    ("env_id", "options", "by_hand"),
    [
        ("gymnasium/HalfCheetah-v5", {"max_episode_steps": 5}, gymnasium_by_hand("HalfCheetah-v5", max_episode_steps=5)),
        ("gymnasium/Hopper-v5", {}, gymnasium_by_hand("Hopper-v5")),
        ("gymnasium/MountainCar-v0", {"max_episode_steps": 5}, gymnasium_by_hand("MountainCar-v0", max_episode_steps=5)),
        ("dmc/cartpole-swingup", {"time_limit": 0.05}, lambda seed: ByHand("cartpole", "swingup", seed, time_limit=0.05)),
        ("dmc/walker-walk", {"time_limit": 0.25}, lambda seed: ByHand("walker", "walk", seed, time_limit=0.25)),
    ],
)
def test_against_a_replay(env_id, options, by_hand):
    env = envs.make(env_id, **options)
    length = 60 if "Hopper" in env_id else LENGTH
    actions = natives(env, t=length)
    start, steps = Program(env)(KEYS, actions)
    encode = jax.vmap(jax.vmap(jax.vmap(lambda o: wrappers.encode(env.observation_space(None), o))))
    obs, next_obs = np.asarray(encode(steps.obs)), np.asarray(encode(steps.next_obs))
    starts = np.asarray(jax.vmap(jax.vmap(lambda o: wrappers.encode(env.observation_space(None), o)))(start))
    returns = []
    for r in range(2):
        for j in range(2):
            seed = seed_of(KEYS[r], j)
            plain = by_hand(seed)
            np.testing.assert_array_equal(starts[r, j], np.float32(plain.reset(seed=seed)[0]))
            total = length_so_far = 0
            for t, action in enumerate(np.asarray(actions)[r, :, j]):
                after, reward, terminated, truncated, _ = plain.step(action)
                np.testing.assert_array_equal(next_obs[r, t, j], np.float32(after))
                assert steps.reward[r, t, j] == np.float32(reward)
                assert (steps.terminated[r, t, j], steps.truncated[r, t, j]) == (terminated, truncated)
                total, length_so_far = total + reward, length_so_far + 1
                if terminated or truncated:
                    returns.append((total, steps.reward[r, t + 1 - length_so_far : t + 1, j].sum(dtype=np.float64)))
                    total = length_so_far = 0
                    after, _ = plain.reset()
                np.testing.assert_array_equal(obs[r, t, j], np.float32(after))
    assert len(returns) >= 4
    np.testing.assert_allclose(*zip(*returns, strict=True), rtol=1e-6)
    assert (steps.terminated.any(), steps.truncated.any()) == (("Hopper" in env_id), "Hopper" not in env_id)
    assert env.max_episode_steps == {"Hop": 1000}.get(env_id[10:13], 5 if env_id != "dmc/walker-walk" else 10)
    env.close()


def test_company_and_fresh_starts():
    env = envs.make("gymnasium/HalfCheetah-v5", max_episode_steps=2)
    p, actions = Program(env), natives(env)
    start, steps = p(KEYS, actions)
    for r in range(2):
        alone = pick(p(KEYS[r : r + 1], actions[r : r + 1]), 0)
        jax.tree.map(np.testing.assert_array_equal, alone, pick((start, steps), r))
    assert len(np.unique(np.concatenate([start[..., 0].ravel(), steps.obs[:, 1::2, :, 0].ravel()]))) == 4 + 4 * 6
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
