"""Recurrent PPO: memory is aligned with episodes, also at time limits and across rollouts, and it is of use."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
from rlx import RlxError
from rlx.agents import ppo
from tests.loop_support import Clock

TINY = {"hidden_sizes": (8,), "memory_size": 5, "num_envs": 4, "num_minibatches": 2}
CHAIN = "gymnax/MemoryChain-bsuite"


@functools.cache
def clock():
    """Episodes of 2 (terminated) or 4 steps (truncated) in rollouts of 7: they begin and end anywhere."""
    trainer = rlx.make("ppo_rnn", Clock(), rollout_length=7, num_epochs=1, lr=0.0, **TINY)
    carry, _ = trainer.run(trainer.init(2), 3 * trainer.steps_per_iteration)
    return trainer, carry


def collected(trainer, carry):
    """One more rollout of run 0, as `learn` would see it."""
    run = jax.tree.map(lambda x: x[0], carry.runs)
    from rlx import loop
    from rlx.envs import vector, wrappers

    vec = wrappers.episode_statistics(vector.vectorise(wrappers.AgentView(trainer.env), trainer.agent.num_envs))
    return run, jax.jit(lambda run: loop.collect(trainer.agent, vec, run, carry.i))(run)[1]


def by_loop(trainer, run, rollout):
    """Per step and environment: V(obs), V(next_obs) by stepping the network with memory reset where an episode begins."""
    agent = trainer.agent
    memory = np.asarray(rollout.extras["memory"][0])
    step = jax.jit(lambda memory, obs: agent.act(run.hp, run.agent, memory, obs, jax.random.key(0), jnp.uint32(0)))
    values, successors = np.zeros(rollout.reward.shape), np.zeros(rollout.reward.shape)
    for n in range(values.shape[1]):
        h = jnp.asarray(memory[n])
        for t in range(values.shape[0]):
            h = jnp.zeros_like(h) if rollout.first[t, n] else h
            np.testing.assert_allclose(h, rollout.extras["memory"][t, n], rtol=1e-5, atol=1e-6)
            _, h, extras = step(h, rollout.obs[t, n])
            values[t, n] = extras["value"]
            successors[t, n] = step(h, rollout.next_obs[t, n])[2]["value"]
    return values, successors


def test_memory_is_reset_where_an_episode_begins_and_bootstraps_from_the_one_that_was_cut(monkeypatch):
    trainer, carry = clock()
    run, rollout = collected(trainer, carry)
    assert rollout.truncated.any() and rollout.terminated.any() and not rollout.first[0].all()
    values, successors = by_loop(trainer, run, rollout)
    np.testing.assert_allclose(rollout.extras["value"], values, rtol=1e-4, atol=1e-5)

    seen = {}
    original = ppo.samples
    monkeypatch.setattr(ppo, "samples", lambda *args: seen.update(next_value=args[-1]) or original(*args))
    trainer.agent.learn(run.hp, run.agent, rollout, jax.random.key(0), carry.i)
    np.testing.assert_allclose(seen["next_value"], successors, rtol=1e-4, atol=1e-5)
    ongoing = ~np.asarray(rollout.terminated | rollout.truncated)[:-1]
    np.testing.assert_allclose(successors[:-1][ongoing], values[1:][ongoing], rtol=1e-4, atol=1e-5)
    assert not np.isclose(successors[:-1][~ongoing], values[1:][~ongoing], rtol=1e-3).any()  # the next episode's is another


def test_the_first_ratio_is_one():
    """What `learn` recomputes over sequences is what acting computed step by step."""
    trainer, carry = clock()
    run, rollout = collected(trainer, carry)
    _, metrics = trainer.agent.learn(run.hp, run.agent, rollout, jax.random.key(0), carry.i)
    assert abs(metrics["approx_kl"]) < 1e-8 and metrics["clip_fraction"] == 0 and metrics["updates"] == 2
    shifted = rollout.replace(first=jnp.roll(rollout.first, 1, axis=0))  # reset one step late
    _, metrics = trainer.agent.learn(run.hp, run.agent, shifted, jax.random.key(0), carry.i)
    assert metrics["approx_kl"] > 1e-7


def test_gradients_reach_back_through_time():
    """The clue is the first observation, the reward comes 3 steps later: the clue's weights must feel it."""
    trainer = rlx.make("ppo_rnn", CHAIN, env_params={"memory_length": 3}, rollout_length=8, normalize_obs=False, **TINY)
    carry = trainer.init(1)
    kernel = lambda c: np.asarray(c.runs.agent.params["core"]["params"]["encoder"]["MLP_0"]["Dense_0"]["kernel"])[0]
    before = kernel(carry)
    carry, _ = trainer.run(carry, 4 * trainer.steps_per_iteration)
    assert (kernel(carry)[2] != before[2]).all()  # row 2 is non-zero in an episode's first step only


def test_a_policy_remembers_through_an_episode():
    trainer, carry = clock()
    policy = trainer.policy(carry, 1)
    memory, obs = policy.memory, np.array([0.7, 1.0, 0.2], np.float32)
    np.testing.assert_array_equal(memory, np.zeros(5))
    first, memory = policy(obs, memory)
    second, _ = policy(obs, memory)
    np.testing.assert_array_equal(first, policy(obs))
    assert first != second


def test_minibatches_divide_environments():
    with pytest.raises(RlxError, match="num_minibatches=3 must divide num_envs = 4; the nearest is 2"):
        rlx.make("ppo_rnn", Clock(), **TINY | {"num_minibatches": 3})


def test_segments_give_the_same_bits_and_a_checkpoint_holds_the_memory(tmp_path):
    trainer = rlx.make("ppo_rnn", Clock(), rollout_length=3, **TINY)
    per = trainer.steps_per_iteration
    whole, _ = trainer.run(trainer.init(2), 4 * per)
    half, _ = trainer.run(trainer.init(2), 2 * per)
    trainer.save(half, tmp_path / "c")
    rest, _ = trainer.run(trainer.restore(tmp_path / "c"), 2 * per)
    data = lambda tree: [np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)
                         for x in jax.tree.leaves(tree)]  # fmt: skip
    assert all((a == b).all() for a, b in zip(data(whole), data(rest), strict=True))
    assert np.abs(np.asarray(whole.runs.memory)).max() > 0


@pytest.mark.slow
@pytest.mark.parametrize(("agent", "learns"), [("ppo_rnn", True), ("ppo", False)])
def test_memory_chain(agent, learns):
    """The first observation is the only clue to the last step's reward of 1 or -1: without memory the mean return is 0."""
    result = rlx.train(agent, CHAIN, steps=200_000, seeds=4, env_params={"memory_length": 20}, eval_episodes=64, progress=False)
    final = np.asarray(result.returns)[:, -1]
    assert (final > 0.95).all() if learns else abs(final.mean()) < 0.3, final
