"""Every environment through the vectorised, encoded, counted view that the loop has, against a replay by hand.

One compiled program an environment: two runs (vmap) of N environments for T steps (scan), by rlx and by a plain loop
over `reset_env` and `step_env` that draws a fresh start after every step and keeps it where an episode ended.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import spaces

from rlx import envs
from rlx.envs import vector
from rlx.envs.wrappers import AgentView, episode_statistics, spec

N, T = 8, 125
BRAX = ("brax/hopper", "brax/inverted_pendulum")  # spring; hopper ends by itself, and its metrics are many
IDS = [*envs.ids(("gymnax", "probe")), *BRAX]
every = pytest.mark.parametrize("env_id", IDS)

# How many start states there are, where they are few: fixed by the game, or one of a handful. Everywhere else starts
# come from a continuum and no two of a thousand should agree.
FEW_STARTS = {
    "gymnax/Asterix-MinAtar": 1,
    "gymnax/Breakout-MinAtar": 2,  # the ball comes from the left or the right
    "gymnax/Seaquest-MinAtar": 1,
    "gymnax/SpaceInvaders-MinAtar": 1,
    "gymnax/Catch-bsuite": 5,  # columns
    "gymnax/DeepSea-bsuite": 1,
    "gymnax/MemoryChain-bsuite": 2,  # the bit to remember
    "gymnax/UmbrellaChain-bsuite": 4,  # umbrella x rain
    "gymnax/DiscountingChain-bsuite": 1,
    "gymnax/FourRooms-misc": 1,  # (the default options fix start and goal)
    "gymnax/MetaMaze-misc": 65,
    "gymnax/BernoulliBandit-misc": 2,  # which arm is better
    "gymnax/Pong-misc": 1,
    "gymnax/FrozenLake-misc": 1,
} | {
    env_id: {"Truncation": 2, "ObservationAction": 3, "IntegerObservation": 3, "BoardObservation": 3}.get(name, 1)
    for env_id in IDS
    if env_id.startswith("probe/")
    for name in [env_id.removeprefix("probe/").removesuffix("-continuous")]
}

# gymnax's own slips, none of which reaches an agent: `encode` casts, and nobody clips observations to their space.
OTHER_DTYPE = {"gymnax/Catch-bsuite": np.float32, "gymnax/FourRooms-misc": np.int32}
OUTSIDE_SPACE = {
    "gymnax/MemoryChain-bsuite": "the context bit is -1 or 1, the bounds are 0 and 2",
    "gymnax/MetaMaze-misc": "the last reward, 10, is observed with a bound of 1",
    "gymnax/GaussianBandit-misc": "the last reward is normal, its bounds are 0 and 2; normalised time is negative",
}


class Ours(NamedTuple):
    """What rlx yields, leaves [R, T, N, ...], and the states after each step."""

    start: jax.Array  # [R, N, ...]
    step: vector.Step
    state: vector.PyTree


class Native(NamedTuple):
    """What the environment yields, in its own units, by hand; [R, T, N, ...]."""

    start: vector.PyTree  # [R, N, ...]
    obs: vector.PyTree
    next_obs: vector.PyTree
    reward: vector.PyTree
    terminated: vector.PyTree
    truncated: vector.PyTree


def replay(env, key, actions, params, j):
    """Environment j alone. Keys: of the start (0, j), of step t = 1, 2, ... (t, 0, j), of a reset in it (t, 1, j)."""
    space = env.action_space(params)
    fold = lambda *data: functools.reduce(jax.random.fold_in, data, key)

    def step(state, t, action):
        if isinstance(space, spaces.Box):
            action = space.low + (action + 1.0) / 2.0 * (space.high - space.low)
        next_obs, state, reward, terminated, _ = env.step_env(fold(t, 0, j), state, action, params)
        truncated = env.is_truncated(state, params)
        obs, fresh = env.reset_env(fold(t, 1, j), params)
        pick = lambda a, b: jnp.where(terminated | truncated, a, b)
        state, obs = jax.tree.map(pick, (fresh, obs), (state, next_obs))
        return state, (obs, next_obs, reward, terminated, truncated)

    obs, state = env.reset_env(fold(0, j), params)
    like = jax.eval_shape(step, state, jnp.uint32(0), actions[0])
    cast = lambda tree, like: jax.tree.map(lambda x, s: jnp.asarray(x, s.dtype), tree, like)  # Python numbers change type
    body = lambda state, x: cast(step(state, *x), like)
    times = jnp.arange(1, T + 1, dtype=jnp.uint32)
    return Native(obs, *jax.lax.scan(body, cast(state, like[0]), (times, actions))[1])


@functools.cache
def build(env_id):
    env = envs.make(env_id)
    env.reset_env, env.step_env = jax.jit(env.reset_env), jax.jit(env.step_env)  # traced once, here and by hand
    params = vector.strong(env.default_params)
    facts = spec(env, params, env_id)
    vec = episode_statistics(vector.vectorise(AgentView(env), N), facts.reward_shape)

    def ours(key, actions, params):
        state, start = vec.reset(jax.random.fold_in(key, 0), params)

        def body(state, x):
            state, step = vec.step(jax.random.fold_in(key, x[0]), state, x[1], params)
            return state, (step, state.env)

        times = jnp.arange(1, T + 1, dtype=jnp.uint32)
        return Ours(start, *jax.lax.scan(body, state, (times, actions))[1])

    def by_hand(key, actions, params):
        alone = jax.vmap(functools.partial(replay, env), (None, 1, None, 0), Native(*(0, 1, 1, 1, 1, 1)))
        return alone(key, actions, params, jnp.arange(N, dtype=jnp.uint32))

    both = lambda *args: (ours(*args), by_hand(*args))
    return env, params, facts, vec, jax.jit(jax.vmap(both))


@functools.cache
def played(env_id, first, second, scale):
    """Two runs under these time limits, every other float parameter scaled."""
    _, params, facts, _, program = build(env_id)
    draw = np.random.default_rng(0)
    if facts.num_actions is None:
        actions = draw.uniform(-1, 1, (2, T, N, facts.action_dim)).astype(np.float32)
    else:
        actions = draw.integers(facts.num_actions, size=(2, T, N)).astype(np.int32)
    limits = np.array([first, second])
    params = jax.tree.map(lambda x: np.stack([x, x]) * np.array(scale if x.dtype == np.float32 else 1, x.dtype), params)
    params = params.replace(max_steps_in_episode=limits.astype(np.asarray(params.max_steps_in_episode).dtype))
    return jax.device_get(program(jax.random.split(jax.random.key(0), 2), actions, params))


SHORT, LONG = (7, 1, 1.0), (11, 40, 0.99)  # as many resets as steps in the second run; steps without any


def encoded(space, obs):
    """The encoding of observations [..., *space.shape], by NumPy."""
    if isinstance(space, spaces.Discrete):
        return np.eye(space.n, dtype=np.float32)[obs]
    if len(space.shape) != 3:
        obs = obs.reshape(*obs.shape[: obs.ndim - len(space.shape)], -1)
    return obs if obs.dtype in (np.uint8, np.bool_) else obs.astype(np.float32)


def close(got, expected):
    """Equal, but for continuous dynamics: XLA may contract a multiplication and an addition in one of two programs."""
    assert got.dtype == expected.dtype and got.shape == expected.shape
    if got.dtype == np.float32:
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    else:
        np.testing.assert_array_equal(got, expected)


@every
@pytest.mark.parametrize("limits", [SHORT, LONG], ids=["short", "long"])
def test_steps_equal_a_replay_by_hand(env_id, limits):
    """Observations before and after a reset, rewards and both endings; nothing is quarantined."""
    env, params, facts, *_ = build(env_id)
    ours, native = played(env_id, *limits)
    space = env.observation_space(params)
    np.testing.assert_array_equal(ours.step.terminated, native.terminated)
    np.testing.assert_array_equal(ours.step.truncated, native.truncated)
    close(ours.start, encoded(space, native.start))
    close(ours.step.next_obs, encoded(space, native.next_obs))
    close(ours.step.obs, encoded(space, native.obs))
    close(ours.step.reward, native.reward.astype(np.float32))
    assert ours.step.reward.shape == (2, T, N, *facts.reward_shape) and ours.step.weight.min() == 1
    assert ours.step.obs.shape == (2, T, N, *facts.obs_shape) and ours.step.obs.dtype == facts.obs_dtype


@every
def test_episode_returns_and_lengths(env_id):
    """Of the rewards that were seen, exactly; no episode is longer than its limit, which is a traced parameter."""
    for first, second, scale in (SHORT, LONG):
        step = played(env_id, first, second, scale)[0].step
        done = step.terminated | step.truncated
        total, length, seen = np.zeros_like(step.reward[:, 0]), np.zeros((2, N), int), []
        for t in range(T):
            total, length = total + step.reward[:, t], length + 1
            np.testing.assert_array_equal(step.info["episode_return"][:, t], total)
            np.testing.assert_array_equal(step.info["episode_length"][:, t], length)
            seen.append(length)
            total, length = (
                np.where(done[:, t].reshape(2, N, *[1] * (total.ndim - 2)), 0, total),
                np.where(done[:, t], 0, length),
            )
        lengths = np.stack(seen, 1)
        limits = np.array([first, second])[:, None, None]
        np.testing.assert_array_equal(lengths == limits, step.truncated)
        assert np.all(lengths <= limits) and done.any()


@every
def test_starts_are_fresh(env_id):
    """A thousand episodes of one step."""
    state = jax.tree.map(lambda x: x[1].reshape(T * N, -1).astype(np.float64), played(env_id, *SHORT)[0].state)
    starts = np.unique(np.concatenate(jax.tree.leaves(state), axis=1), axis=0)
    if env_id in FEW_STARTS:
        assert len(starts) == FEW_STARTS[env_id]
    else:
        assert len(starts) > 0.9 * T * N


@every
def test_parameters_compile_nothing(env_id):
    played(env_id, *SHORT), played(env_id, *LONG)
    assert build(env_id)[-1]._cache_size() == 1


@every
def test_avals_of_step_and_reset_agree(env_id):
    """Also of the environment in its own units, and for its own, weakly typed, default parameters."""
    env, params, _, vec, _ = build(env_id)
    avals = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), tree)
    key = jax.random.key(0)
    for view, at in ((vec, params), (vector.vectorise(env, N), env.default_params)):
        space = (AgentView(env) if view is vec else env).action_space(params)
        state, obs = jax.eval_shape(view.reset, key, at)
        actions = jax.eval_shape(jax.vmap(space.sample), jax.random.split(key, N))
        after, step = jax.eval_shape(view.step, key, state, actions, at)
        assert avals(state) == avals(after)
        assert avals(obs) == avals(step.obs) == avals(step.next_obs)
        assert avals((step.terminated, step.truncated, step.weight)) == tuple(
            ((N,), d, False) for d in (bool, bool, np.float32)
        )
        assert not any(x.weak_type for x in jax.tree.leaves((state, obs, step.reward)))


@every
def test_observations_lie_in_the_space(env_id):
    env, params, *_ = build(env_id)
    _, native = played(env_id, *SHORT)
    space = env.observation_space(params)
    contains = lambda obs: np.asarray(jax.vmap(space.contains)(obs.reshape(-1, *space.shape)))
    for obs in (native.start, native.obs, native.next_obs):
        assert obs.dtype == OTHER_DTYPE.get(env_id, space.dtype) and np.all(np.isfinite(obs))
        assert contains(obs).all() or env_id in OUTSIDE_SPACE


@pytest.mark.parametrize("env_id", BRAX)
def test_brax_terminates_by_its_own_rule(env_id):
    """The rules of both tasks as their documentation states them, read off the true successor."""
    step = played(env_id, *LONG)[0].step
    obs = step.next_obs
    if env_id == "brax/hopper":
        upright = (obs[..., 0] > 0.7) & (np.abs(obs[..., 1]) < 0.2) & np.all(np.abs(obs[..., 1:]) < 100, -1)
    else:
        upright = np.abs(obs[..., 1]) <= 0.2
    np.testing.assert_array_equal(step.terminated, ~upright)
    assert step.terminated.any() and not step.terminated.all()
