"""SAC: when it acts at random, when it learns and how often, and when its targets move."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
from tests.agents.sac_support import FIELDS, OBS, D, N, T, build, rollout_of, same


@pytest.mark.parametrize(("period", "start"), [(2, 0), (5, 0), (5, 1)])
def test_targets_move_where_a_period_of_updates_ends(period, start):
    """Three updates an iteration, counted from the first one: update k moves them if k + 1 completes a period."""
    agent, hp, state = build(updates_per_step=0.5, target_period=period, learning_starts=(start + 1) * T * N)
    learn = jax.jit(agent.learn)
    moved = []
    for i in range(start, start + 5):
        before = state.learner.target
        state, _ = learn(hp, state, rollout_of(i), jax.random.key(i), jnp.uint32(i))
        moved.append(not same(before, state.learner.target))
    assert moved == [any((3 * j + u + 1) % period == 0 for u in range(3)) for j in range(5)]


def test_target_moves_once_per_crossing():
    """tau 1 copies: with period 3 of 3 updates the target is the final critic, with period 2 it is that of an earlier one."""
    for period, copied in ((3, True), (2, False)):
        agent, hp, state = build(updates_per_step=0.5, target_period=period, tau=1.0)
        new = jax.jit(agent.learn)(hp, state, rollout_of(), jax.random.key(0), jnp.uint32(0))[0].learner
        gap = max(np.abs(a - b).max() for a, b in zip(*map(jax.tree.leaves, (new.target, new.critic)), strict=True))
        assert (gap < 1e-6) == copied
        assert not same(new.target, state.learner.target)


def test_updates_draw_different_noise():
    """Without learning (all rates 0) updates see the same networks: what differs is what they draw."""
    still = {"actor_lr": 0.0, "critic_lr": 0.0, "temperature_lr": 0.0, "tau": 0.0}
    agent, hp, state = build(**still, updates_per_step=0.5)
    single, _, _ = build(**still)
    many, one = jax.jit(agent.learn), jax.jit(single.learn)
    key = jax.random.key(0)
    entropy = lambda learn, key, i: float(learn(hp, state, rollout_of(), key, jnp.uint32(i))[1]["entropy"])
    first = entropy(one, key, 0)
    assert first == entropy(one, key, 0)
    assert first != entropy(one, jax.random.key(1), 0)
    assert abs(entropy(many, key, 0) - first) > 1e-3  # the mean of three equals the first only if all are equal


@pytest.mark.parametrize(("rate", "updates"), [(0.5, 3), (1.0, 6), (2.0, 12)])
def test_updates_per_step(rate, updates):
    agent, hp, state = build(updates_per_step=rate)
    new, metrics = jax.jit(agent.learn)(hp, state, rollout_of(), jax.random.key(0), jnp.uint32(0))
    assert metrics["updates"] == updates
    assert metrics["updates"].dtype == jnp.int32
    assert new.learner.critic_opt[0].count == updates  # Adam counts too


@pytest.mark.parametrize(("rate", "valid"), [(0.25, "0.333333"), (0.4, "0.333333"), (0.01, "0.166667")])
def test_updates_that_are_not_whole_are_an_error(rate, valid):
    with pytest.raises(rlx.RlxError, match=rf"^updates_per_step={rate} gives .* the nearest valid value is {valid}$"):
        build(updates_per_step=rate)


@pytest.mark.parametrize("learning_starts", [18, 16, 13])
def test_nothing_is_learnt_before_learning_starts(learning_starts):
    """Six steps an iteration: the first update ends iteration 2, the first one that reaches learning_starts."""
    agent, hp, state = build(learning_starts=learning_starts)
    learn = jax.jit(agent.learn)
    start = state.learner
    for i in range(3):
        state, metrics = learn(hp, state, rollout_of(i), jax.random.key(i), jnp.uint32(i))
        assert metrics["updates"] == (i == 2)
        assert same(state.learner, start) == (i < 2)
    filled = np.abs(np.asarray(state.replay["obs"])).sum(-1) > 0
    assert filled.tolist() == [True] * 18 + [False] * 46


@pytest.mark.parametrize("learning_starts", [18, 16])
def test_actions_are_uniform_until_learning_starts(learning_starts):
    """So are those of iteration 2, collected before the first update: `learning_starts` steps of uniform actions."""
    agent, hp, state = build(learning_starts=learning_starts)
    bias = jax.tree.map(lambda x: x, state.learner.actor)
    bias["params"]["loc"]["bias"] = jnp.full(D, 3.0)  # a policy that nobody takes for uniform
    state = state.replace(learner=state.learner.replace(actor=bias))
    keys = jax.random.split(jax.random.key(0), 512)
    act = jax.jit(jax.vmap(lambda k, i: agent.act(hp, state, (), jnp.zeros(OBS), k, i)[0], (0, None)))
    for i in range(5):
        action = np.asarray(act(keys, jnp.uint32(i)))
        assert action.shape == (512, D)
        uniform = bool((np.abs(action.mean(0)) < 0.15).all() and (np.abs(action.var(0) - 1 / 3) < 0.05).all())
        assert uniform == (i < 3), f"iteration {i}"
    np.testing.assert_allclose(agent.greedy(hp, state, (), jnp.zeros(OBS), keys[0])[0], np.tanh(3.0), rtol=1e-5)


def test_metrics_are_nan_only_before_the_first_update():
    trainer = rlx.make("sac", "probe/ActionReward-continuous", **FIELDS | {"learning_starts": 12, "num_envs": 2})
    carry = trainer.init(2)
    uniform = trainer.act(carry, jnp.zeros((2, 256, 1)), jax.random.key(0))
    assert np.abs(np.mean(uniform)) < 0.15
    assert np.ptp(uniform) > 2.8  # of the box [-1.5, 1.5]
    carry, metrics = trainer.run(carry, 24, points=4)
    for name in ("critic_loss", "actor_loss", "entropy", "temperature", "q"):
        assert np.isnan(metrics[name]).tolist() == [[True, False, False, False]] * 2, name
    np.testing.assert_array_equal(metrics["updates"], [[0, 1, 1, 1]] * 2)
    _, all_in_one = trainer.run(trainer.init(2), 24)
    np.testing.assert_allclose(all_in_one["critic_loss"][:, 0], np.nanmean(metrics["critic_loss"], axis=1), rtol=1e-5)


def test_the_replay_must_hold_a_window():
    with pytest.raises(rlx.RlxError, match=r"^replay_capacity=5 must hold 3 steps of 2 environments: 6"):
        build(replay_capacity=5, n_step=3)
