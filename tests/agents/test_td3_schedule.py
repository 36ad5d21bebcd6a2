"""TD3: when it acts at random, how it explores, when it learns, and when its policy and its targets move."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
from rlx import replay
from tests.agents.td3_support import FIELDS, OBS, D, N, T, build, leaning, rollout_of, same


@pytest.mark.parametrize(("delay", "start"), [(1, 0), (2, 0), (5, 0), (5, 1)])
def test_policy_and_targets_move_where_a_delay_ends(delay, start):
    """Three updates an iteration, counted from the first one: update k moves them if k + 1 completes a delay."""
    agent, hp, state = build(updates_per_step=0.5, policy_delay=delay, learning_starts=(start + 1) * T * N)
    learn = jax.jit(agent.learn)
    for i in range(start, start + 5):
        before = state.learner
        state, metrics = learn(hp, state, rollout_of(i), jax.random.key(i), jnp.uint32(i))
        after = state.learner
        moves = sum((3 * (i - start) + u + 1) % delay == 0 for u in range(3))
        assert metrics["updates"] == 3
        assert after.critic_opt[0].count - before.critic_opt[0].count == 3
        assert after.policy.actor_opt[0].count - before.policy.actor_opt[0].count == moves
        for name in ("actor", "target_actor", "target_critic", "loss"):
            assert same(getattr(before.policy, name), getattr(after.policy, name)) == (moves == 0), name
        assert not same(before.critic, after.critic)


def test_targets_copy_with_tau_one():
    """With delay 3 of 3 updates the targets are the final networks; with delay 2 those of an earlier update."""
    for delay, copied in ((3, True), (2, False)):
        agent, hp, state = build(updates_per_step=0.5, policy_delay=delay, tau=1.0)
        new = jax.jit(agent.learn)(hp, state, rollout_of(), jax.random.key(0), jnp.uint32(0))[0].learner
        gap = lambda a, b: max(np.abs(x - y).max() for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True))
        assert (gap(new.policy.target_critic, new.critic) < 1e-6) == copied
        assert gap(new.policy.target_actor, new.policy.actor) < 1e-6  # nothing else moves the actor


def test_the_metric_is_the_latest_policy_loss():
    agent, hp, state = build(policy_delay=2)
    learn = jax.jit(agent.learn)
    losses = []
    for i in range(4):
        state, metrics = learn(hp, state, rollout_of(i), jax.random.key(i), jnp.uint32(i))
        losses.append(float(metrics["actor_loss"]))
    assert losses[0] == 0.0 and losses[1] == losses[2] != 0.0 and losses[3] not in losses[:3]


def test_a_population_skips_the_policy_update():
    """Reset, random or policy actions, wait or learn, and within learning a conditional of its own, not a select."""
    trainer = rlx.make("td3", "probe/Truncation-continuous", **FIELDS | {"learning_starts": 20, "policy_delay": 2})
    carry = jax.eval_shape(lambda: trainer.init(4))
    text = trainer._segment.lower(carry, trainer.no_totals(carry), jnp.uint32(1)).compile().as_text()
    names = [re.search(r'op_name="([^"]*)"', line)[1] for line in text.splitlines() if " conditional(" in line]
    assert sum(name.count("/cond") == 2 for name in names) == 1, names
    assert len(names) == 4, names


@pytest.mark.parametrize("drawn", ["noise", "batch"])
def test_updates_draw_different(drawn, monkeypatch):
    """Without learning (all rates 0) updates see the same networks: what differs is what they draw, one of the two here."""
    still = {"actor_lr": 0.0, "critic_lr": 0.0, "tau": 0.0}
    if drawn == "noise":
        monkeypatch.setattr(replay, "window_slots", lambda *_: jnp.arange(4)[:, None])
    else:
        still["target_noise"] = 0.0
    single, hp, state = build(**still)
    many, _, _ = build(**still, updates_per_step=0.5)
    loss = lambda learn, key: float(learn(hp, state, rollout_of(), jax.random.key(key), jnp.uint32(0))[1]["critic_loss"])
    one, several = jax.jit(single.learn), jax.jit(many.learn)
    assert loss(one, 0) == loss(one, 0) != loss(one, 1)
    assert abs(loss(several, 0) - loss(one, 0)) > 1e-4  # the mean of three equals the first only if all are equal


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


@pytest.fixture(scope="module")
def actions():
    """(bias before the tanh, exploration noise, iteration) -> 512 exploring actions; the first three iterations are random."""
    agent, hp, state = build(learning_starts=16)
    keys = jax.random.split(jax.random.key(0), 512)

    @jax.jit
    def act(bias, noise, i):
        of = leaning(state, bias)
        return jax.vmap(lambda k: agent.act({**hp, "exploration_noise": noise}, of, (), jnp.zeros(OBS), k, i)[0])(keys)

    return lambda bias, noise, i: np.asarray(act(jnp.asarray(bias, jnp.float32), jnp.float32(noise), jnp.uint32(i)))


def test_actions_are_uniform_until_learning_starts(actions):
    """So are those of iteration 2, collected before the first update."""
    for i in range(5):
        action = actions([3.0, 3.0], 0.1, i)
        assert action.shape == (512, D)
        uniform = bool((np.abs(action.mean(0)) < 0.15).all() and (np.abs(action.var(0) - 1 / 3) < 0.05).all())
        assert uniform == (i < 3), f"iteration {i}"


def test_exploration_noise(actions):
    """Of the given size around the policy's action, independent over coordinates, and never outside [-1, 1]."""
    action = actions([0.2, -0.1], 0.1, 3)
    np.testing.assert_allclose(action.mean(0), np.tanh([0.2, -0.1]), atol=0.02)
    np.testing.assert_allclose(action.std(0), 0.1, rtol=0.12)
    assert abs(np.corrcoef(action.T)[0, 1]) < 0.15
    np.testing.assert_allclose(actions([0.2, -0.1], 0.0, 3), np.tile(np.tanh([0.2, -0.1]), (512, 1)), rtol=1e-6)
    edge = actions([3.0, -3.0], 0.3, 3)
    assert np.abs(edge).max() == 1.0
    assert ((np.abs(edge) == 1.0).mean(0) > 0.4).all() and ((np.abs(edge) < 0.99).mean(0) > 0.3).all()


def test_greedy_actions_have_no_noise():
    agent, hp, state = build()
    keys = jax.random.split(jax.random.key(0), 4)
    action = jax.vmap(lambda k: agent.greedy(hp, leaning(state, [3.0, -0.5]), (), jnp.zeros(OBS), k)[0])(keys)
    np.testing.assert_allclose(action, np.tile(np.tanh([3.0, -0.5]), (4, 1)), rtol=1e-5)


def test_metrics_are_nan_only_before_the_first_update():
    trainer = rlx.make("td3", "probe/ActionReward-continuous", **FIELDS | {"learning_starts": 12, "num_envs": 2})
    _, metrics = trainer.run(trainer.init(2), 24, points=4)
    for name in ("critic_loss", "actor_loss", "q"):
        assert np.isnan(metrics[name]).tolist() == [[True, False, False, False]] * 2, name
    np.testing.assert_array_equal(metrics["updates"], [[0, 1, 1, 1]] * 2)


@pytest.mark.parametrize("name", ["target_noise", "target_noise_clip", "exploration_noise"])
def test_noise_is_not_negative(name):
    with pytest.raises(rlx.RlxError, match=rf"^{name}=-0.1 must be >= 0$"):
        build(**{name: -0.1})


def test_images():
    """Stacked uint8 boards through convolutions, one learning step."""
    trainer = rlx.make(
        "td3", "probe/BoardObservation-continuous", **FIELDS | {"num_envs": 2, "rollout_length": 3, "activation": "relu"}
    )
    _, metrics = trainer.run(trainer.init(1), 12)
    assert trainer.spec.obs_dtype == jnp.uint8 and len(trainer.spec.obs_shape) == 3
    assert metrics["updates"].item() == 2 and np.isfinite(metrics["critic_loss"]).all()
