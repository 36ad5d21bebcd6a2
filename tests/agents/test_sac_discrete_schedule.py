"""Discrete SAC: when it acts at random, what it explores with, when it learns, and when its targets move."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
from tests.agents.sac_discrete_support import FIELDS, OBS, A, N, T, build, rollout_of, same, with_logits


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


def test_updates_draw_different_batches():
    """Without learning (all rates 0) updates see the same networks: what differs is what they draw."""
    still = {"actor_lr": 0.0, "critic_lr": 0.0, "temperature_lr": 0.0, "tau": 0.0}
    single, hp, state = build(**still)
    many, _, _ = build(**still, updates_per_step=0.5)
    loss = lambda learn, key: float(learn(hp, state, rollout_of(), jax.random.key(key), jnp.uint32(0))[1]["critic_loss"])
    one, several = jax.jit(single.learn), jax.jit(many.learn)
    assert loss(one, 0) == loss(one, 0) != loss(one, 1)
    assert abs(loss(several, 0) - loss(one, 0)) > 1e-3  # the mean of three equals the first only if all are equal


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


def test_actions_are_uniform_until_learning_starts_and_the_policys_then():
    """Also those of iteration 2, which are collected before the first update."""
    agent, hp, state = build(learning_starts=16)
    policy = np.array([0.7, 0.1, 0.2])
    state = state.replace(learner=state.learner.replace(actor=with_logits(state.learner.actor, np.log(policy))))
    keys = jax.random.split(jax.random.key(0), 2048)
    act = jax.jit(jax.vmap(lambda k, i: agent.act(hp, state, (), jnp.zeros(OBS), k, i)[0], (0, None)))
    for i in range(5):
        action = act(keys, jnp.uint32(i))
        assert action.shape == (2048,) and action.dtype == jnp.int32
        share = np.bincount(np.asarray(action), minlength=A) / 2048
        np.testing.assert_allclose(share, np.full(A, 1 / A) if i < 3 else policy, atol=0.04, err_msg=f"iteration {i}")


def test_metrics_are_nan_only_before_the_first_update():
    trainer = rlx.make("sac_discrete", "probe/ActionReward", **FIELDS | {"learning_starts": 12})
    _, metrics = trainer.run(trainer.init(2), 24, points=4)
    for name in ("critic_loss", "actor_loss", "entropy", "temperature", "q"):
        assert np.isnan(metrics[name]).tolist() == [[True, False, False, False]] * 2, name
    np.testing.assert_array_equal(metrics["updates"], [[0, 1, 1, 1]] * 2)


def test_images():
    """uint8 boards through convolutions of actor and critics alike."""
    trainer = rlx.make("sac_discrete", "probe/BoardObservation", **FIELDS)
    _, metrics = trainer.run(trainer.init(1), 12)
    assert trainer.spec.obs_dtype == jnp.uint8 and len(trainer.spec.obs_shape) == 3
    assert metrics["updates"].item() == 2 and np.isfinite(metrics["critic_loss"]).all()
