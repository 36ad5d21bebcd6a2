"""PPO: what it promises, whatever the numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
from rlx import config
from rlx.agents import ppo
from tests.agents.ppo_support import OBS, N, T, build, forms, rollout_of, spec


@forms
@pytest.mark.parametrize("junk", [np.nan, np.inf, 1e30])
def test_what_weighs_nothing_changes_nothing(discrete, junk):
    """Reward, successor, action and observation of a quarantined step; the observation acted on is finite by contract."""
    agent, hp, state = build(discrete)
    r = rollout_of(agent, hp, state)
    want = agent.learn(hp, state, r, jax.random.key(0), jnp.uint32(0))
    raw = r.extras["raw_action"]
    extras = {**r.extras, "raw_action": raw.at[1, 0].set((1 - raw[1, 0]).astype(raw.dtype))}
    other = r.replace(
        obs=r.obs.at[1, 0].set(7.0), reward=r.reward.at[1, 0].set(junk), next_obs=r.next_obs.at[1, 0].set(junk), extras=extras
    )
    got = agent.learn(hp, state, other, jax.random.key(0), jnp.uint32(0))
    jax.tree.map(np.testing.assert_array_equal, got, want)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(want))
    heavy = other.replace(weight=jnp.ones((T, N)), reward=other.reward.at[1, 0].set(5.0), next_obs=r.obs)
    changed = agent.learn(hp, state, heavy, jax.random.key(0), jnp.uint32(0))[0].params
    assert not all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (changed, want[0].params)), strict=True))


@pytest.mark.parametrize("normalised", [True, False])
def test_reward_normalisation_removes_the_scale(normalised):
    agent, hp, state = build(False, normalize_reward=normalised)
    small, large = (
        agent.learn(hp, state, rollout_of(agent, hp, state, scale), jax.random.key(0), jnp.uint32(0))[0]
        for scale in (1.0, 1000.0)
    )
    gap = max(np.abs(a - b).max() for a, b in zip(*map(jax.tree.leaves, (small.params, large.params)), strict=True))
    assert gap < 1e-4 if normalised else gap > 1e-2
    if normalised:
        obs = jnp.full(OBS, 0.5)
        np.testing.assert_allclose(agent.value(hp, large, obs), 1000.0 * agent.value(hp, small, obs), rtol=1e-3)


def test_the_first_ratio_is_one_and_statistics_move():
    """With lr 0 the policy stays, so that every ratio is a first one; with another lr the same metrics are not 0."""
    trainer = rlx.make(
        "ppo", "gymnax/Pendulum-v1", num_envs=4, rollout_length=16, num_epochs=2, num_minibatches=2, hidden_sizes=(8,),
        normalize_obs=True, normalize_reward=True, clip_eps=1e-4,
    )  # fmt: skip
    carry = trainer.init(2, hp={"lr": [0.0, 1e-2]})
    carry, metrics = trainer.run(carry, 5 * trainer.steps_per_iteration, points=5)
    held, moved = metrics["approx_kl"][:2], metrics["approx_kl"][2:]
    assert np.abs(held).max() < 1e-8 < 1e-6 < moved.min()
    assert metrics["clip_fraction"][:2].max() == 0.0 < metrics["clip_fraction"][2:].min()
    np.testing.assert_array_equal(carry.runs.agent.obs_stats.count, np.full(4, 5.0 * 64))
    assert np.abs(carry.runs.agent.obs_stats.var - 1.0).min() > 0.1  # normalisation is not the identity


@forms
def test_actions_at_the_border_and_greedy(discrete):
    agent, hp, state = build(discrete)
    params = jax.tree.map(lambda x: x, state.params)
    params["params"]["policy"]["bias"] = jnp.array([0.9, -3.0])
    state = state.replace(params=params)
    obs = state.obs_stats.mean  # normalised it is 0: what is left are the biases
    out = jax.vmap(lambda k: agent.act(hp, state, (), obs, k, jnp.uint32(0)))(jax.random.split(jax.random.key(0), 256))
    action, raw = out[0], out[2]["raw_action"]
    best = agent.greedy(hp, state, (), obs, jax.random.key(0))[0]
    if discrete:
        assert best == 0
        np.testing.assert_allclose(np.mean(action == 0), 1.0, atol=0.06)  # P = 0.98
    else:
        np.testing.assert_array_equal(action, np.clip(raw, -1.0, 1.0))
        assert np.abs(raw).max() > 1.0
        np.testing.assert_allclose(best, [0.9, -1.0], rtol=1e-6)


def test_an_epoch_uses_every_sample_once():
    """While nothing moves (lr 0), the mean over minibatches is the mean over the rollout."""
    means = []
    for epochs, minibatches in ((1, 1), (3, 4)):
        agent, hp, state = build(False, num_minibatches=minibatches, num_epochs=epochs, lr=0.0)
        r = rollout_of(agent, hp, state)
        r = r.replace(weight=jnp.ones((T, N)), reward=jnp.nan_to_num(r.reward), next_obs=jnp.nan_to_num(r.next_obs))
        _, metrics = agent.learn(hp, state, r, jax.random.key(0), jnp.uint32(0))
        assert metrics["updates"] == epochs * minibatches
        means.append(metrics["value_loss"])
    np.testing.assert_allclose(*means, rtol=1e-5)


def test_images_are_not_normalised():
    static, hp = config.partition(ppo.Config(hidden_sizes=(4,), normalize_obs=True))
    image = spec(True, obs_shape=(4, 4, 1), obs_dtype=jnp.dtype("uint8"))
    assert jax.eval_shape(ppo.make(static, image).init, hp, jax.random.key(0)).obs_stats is None


def test_minibatches_must_divide():
    with pytest.raises(
        rlx.RlxError, match=r"^num_minibatches=3 must divide num_envs \* rollout_length = 8; the nearest is [24]$"
    ):
        build(False, num_minibatches=3)
