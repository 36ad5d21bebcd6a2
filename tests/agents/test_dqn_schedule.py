"""DQN: how often it acts at random, when it learns, and when its target network moves."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
from rlx import counters, exploration
from tests.agents.dqn_support import HP, OBS, A, N, T, build, rollout_of, same, with_q

SCHEDULE = {"epsilon_start": jnp.float32(0.9), "epsilon_end": jnp.float32(0.2), "epsilon_steps": jnp.float32(1000.0)}
SPLITS = ((1, 1), (1, 4), (4, 2), (10, 20))  # num_envs x rollout_length
DRAWS = 8192

# --- epsilon -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "want"), [(0, 0.9), (200, 0.76), (500, 0.55), (1000, 0.2), (1200, 0.2), (2**33, 0.2)])
def test_epsilon(steps, want, strict):
    np.testing.assert_allclose(exploration.epsilon(SCHEDULE, jnp.float32(steps)), want, rtol=1e-6)


def test_the_ends_of_the_schedule_are_exact(strict):
    for end in (0.1, 0.001, 0.0):
        hp = SCHEDULE | {"epsilon_end": jnp.float32(end)}
        assert exploration.epsilon(hp, jnp.float32(0.0)) == jnp.float32(0.9)
        assert exploration.epsilon(hp, jnp.float32(1000.0)) == jnp.float32(end)
        # none at all: the end, from the first step on
        at_once = exploration.epsilon(hp | {"epsilon_steps": jnp.float32(0.0)}, jnp.arange(3, dtype=jnp.float32))
        assert (at_once == jnp.float32(end)).all()


@functools.cache
def acting(num_envs, rollout_length, **fields):
    """act(keys, i) -> actions, of a network that prefers the last action by far."""
    agent, hp, state = build(num_envs=num_envs, rollout_length=rollout_length, updates_per_step=1.0, **fields)
    params = with_q(state.learner.params, [0.0, 0.0, 5.0])
    state = state.replace(learner=state.learner.replace(params=params))
    return jax.jit(jax.vmap(lambda k, i: agent.act(hp, state, (), jnp.zeros(OBS), k, i)[0], (0, None)))


@pytest.mark.parametrize(("steps", "epsilon"), [(0, 0.9), (200, 0.76), (600, 0.48), (1000, 0.2), (5000, 0.2)])
def test_random_actions_are_as_frequent_at_an_env_step_however_it_is_reached(steps, epsilon):
    """Exactly the same actions for every split of the steps, and the frequencies that epsilon stands for."""
    keys = jax.random.split(jax.random.key(steps), DRAWS)
    actions = [np.asarray(acting(n, t)(keys, jnp.uint32(steps // (n * t)))) for n, t in SPLITS]
    assert actions[0].shape == (DRAWS,) and actions[0].dtype == np.int32
    for other in actions[1:]:
        np.testing.assert_array_equal(other, actions[0])
    share = np.bincount(actions[0], minlength=A) / DRAWS
    want = np.array([epsilon / A, epsilon / A, 1 - epsilon + epsilon / A])
    assert (np.abs(share - want) <= 5 * np.sqrt(want * (1 - want) / DRAWS)).all(), (share, want)


def test_epsilon_is_what_is_reported():
    for num_envs, length in ((2, 3), (3, 2)):
        agent, hp, state = build(num_envs=num_envs, rollout_length=length)
        learn = jax.jit(agent.learn)
        r = jax.tree.map(lambda x, n=num_envs, t=length: x.reshape(t, n, *x.shape[2:]), rollout_of())
        for i in (0, 50, 500):
            got = learn(hp, state, r, jax.random.key(0), jnp.uint32(i))[1]["epsilon"]
            assert got == exploration.epsilon(hp, counters.env_steps(i, 6))


def test_actions_are_uniform_until_learning_starts():
    """18 env steps of 6 an iteration; the schedule, at 0 throughout, counts only after them."""
    act = acting(N, T, learning_starts=18, epsilon_start=0.0, epsilon_end=0.0)
    keys = jax.random.split(jax.random.key(0), DRAWS)
    for i in range(5):
        share = np.bincount(np.asarray(act(keys, jnp.uint32(i))), minlength=A) / DRAWS
        want = 1 / A if i < 3 else np.array([0.0, 0.0, 1.0])
        np.testing.assert_allclose(share, want, atol=0.03 if i < 3 else 0, err_msg=f"iteration {i}")


# --- updates and target network --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("period", "start"), [(2, 0), (5, 0), (5, 1)])
def test_the_target_is_copied_where_a_period_of_updates_ends(period, start):
    """Three updates an iteration, counted from the first one: update k copies if k + 1 completes a period."""
    agent, hp, state = build(updates_per_step=0.5, target_period=period, tau=1.0, learning_starts=(start + 1) * T * N)
    learn = jax.jit(agent.learn)
    moved, copied = [], []
    for i in range(start, start + 5):
        before = state.learner.target
        state, metrics = learn(hp, state, rollout_of(i), jax.random.key(i), jnp.uint32(i))
        assert metrics["updates"] == 3
        moved.append(not same(before, state.learner.target))
        gaps = jax.tree.map(lambda a, b: np.abs(a - b).max(), state.learner.params, state.learner.target)
        copied.append(max(jax.tree.leaves(gaps)) < 1e-6)
    ends = lambda j, u: (3 * j + u + 1) % period == 0
    assert moved == [any(ends(j, u) for u in range(3)) for j in range(5)]
    assert copied == [ends(j, 2) for j in range(5)]  # by an iteration's last update; earlier ones leave the target behind


@pytest.mark.parametrize("learning_starts", [18, 13])
def test_nothing_is_learnt_before_learning_starts(learning_starts):
    """Six steps an iteration: the first update ends iteration 2, the first one that reaches learning_starts."""
    agent, hp, state = build(learning_starts=learning_starts)
    learn = jax.jit(agent.learn)
    start = state.learner
    for i in range(3):
        state, metrics = learn(hp, state, rollout_of(i), jax.random.key(i), jnp.uint32(i))
        assert metrics["updates"] == (i == 2)
        assert same(state.learner, start) == (i < 2)


def test_batches_differ():
    """Without learning, losses differ by what is drawn: between the updates of an iteration, keys and iterations."""
    agent, hp, state = build(lr=0.0, tau=0.0, batch_size=2)
    many = jax.jit(build(lr=0.0, tau=0.0, batch_size=2, updates_per_step=0.5)[0].learn)
    one = jax.jit(agent.learn)
    loss = lambda learn, key: float(learn(hp, state, rollout_of(), jax.random.key(key), jnp.uint32(0))[1]["loss"])
    assert loss(one, 0) == loss(one, 0)
    assert len({loss(one, k) for k in range(4)}) > 1
    assert any(abs(loss(many, k) - loss(one, k)) > 1e-3 for k in range(2))


def test_metrics_are_nan_only_before_the_first_update():
    fields = {"learning_starts": 12, "num_envs": 2, "rollout_length": 3, "updates_per_step": 1 / 6, "replay_capacity": 64}
    trainer = rlx.make("dqn", "probe/ActionReward", **HP | fields, batch_size=4, hidden_sizes=(4,))
    _, metrics = trainer.run(trainer.init(2), 24, points=4)
    for name in ("loss", "q", "epsilon"):
        assert np.isnan(metrics[name]).tolist() == [[True, False, False, False]] * 2, name
    np.testing.assert_array_equal(metrics["updates"], [[0, 1, 1, 1]] * 2)
    np.testing.assert_allclose(metrics["epsilon"][0, 1:], [1.0, *(0.9 - 0.7 * s / 1000 for s in (12, 18))], rtol=1e-5)
