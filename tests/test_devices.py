"""Runs over several devices: nothing is exchanged, and what comes out is what one device gives."""

import jax
import numpy as np
import pytest

import rlx
from rlx import envs, loop
from rlx.errors import RlxError
from tests.trainer_support import compilations

SAC = {"hidden_sizes": (8, 8), "batch_size": 16, "replay_capacity": 500, "learning_starts": 20}


def trained(devices):
    trainer = rlx.make("sac", "gymnax/Pendulum-v1", devices=devices, **SAC)
    carry = trainer.init(2, hp={"actor_lr": [1e-3, 3e-4]})
    carry, metrics = trainer.run(carry, 70)  # 51 updates
    return trainer, carry, metrics, np.asarray(trainer.evaluate(carry, 3))


@pytest.fixture(scope="module")
def one_and_two():
    return trained(1), trained(2)


def test_two_devices_agree_with_one(one_and_two):
    (_, one, metrics, returns), (_, two, metrics_2, returns_2) = one_and_two
    assert metrics["updates"].tolist() == [[51]] * 4
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), one.runs.agent.learner, two.runs.agent.learner)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), metrics, metrics_2)
    np.testing.assert_allclose(returns, returns_2, rtol=1e-4)
    leaf = jax.tree.leaves(two.runs.agent.learner)[0]
    assert len(leaf.addressable_shards) == 2 and {s.data.shape[0] for s in leaf.addressable_shards} == {2}


def test_a_segment_compiles_once():
    trainer = rlx.make(
        "ppo", "gymnax/CartPole-v1", devices=2, num_envs=2, rollout_length=8, num_minibatches=1, hidden_sizes=(8,)
    )
    carry = trainer.init(2)
    with compilations() as first:
        carry, _ = trainer.run(carry, 16)
    with compilations() as more:
        for _ in range(2):
            carry, _ = trainer.run(carry, 16)
    assert first and not more, more


def test_a_repeat_gives_the_same_bits(one_and_two):
    _, carry, _, returns = one_and_two[1]
    _, again, _, returns_again = trained(2)
    jax.tree.map(np.testing.assert_array_equal, carry.runs.agent, again.runs.agent)
    np.testing.assert_array_equal(returns, returns_again)


def test_a_restored_carry_is_split_and_continues_bit_for_bit(one_and_two, tmp_path):
    trainer, carry, _, _ = one_and_two[1]
    trainer.save(carry, tmp_path / "c")
    restored = trainer.restore(tmp_path / "c")
    assert len(jax.tree.leaves(restored.runs.agent)[0].addressable_shards) == 2
    copy = jax.tree.map(lambda x: x.copy(), carry)  # `run` donates
    (on, _), (resumed, _) = trainer.run(copy, 10), trainer.run(restored, 10)
    jax.tree.map(np.testing.assert_array_equal, on.runs.agent, resumed.runs.agent)


def test_nothing_is_communicated(one_and_two):
    trainer, carry, _, _ = one_and_two[1]
    lowered = jax.jit(trainer.program, static_argnums=1).lower(carry, 3)
    program = lowered.compile().as_text()
    assert "num_partitions=2" in program
    for word in ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter"):
        assert word not in program


@pytest.mark.parametrize("number", [0, 3])
def test_devices_that_are_not_there(number):
    with pytest.raises(RlxError, match=rf"^devices={number} must be in \[1, 2\]: this machine has 2 cpu$"):
        rlx.make("ppo", "gymnax/CartPole-v1", devices=number)


def test_runs_must_split():
    trainer = rlx.make("ppo", "gymnax/CartPole-v1", devices=2)
    with pytest.raises(RlxError, match=r"^3 runs do not split over devices=2$"):
        trainer.init(3)


def test_runs_that_meet_stay_on_one_device():
    hook: loop.Population = lambda pop, runs, returns, key, i: (pop, runs)
    with pytest.raises(RlxError, match="a population hook needs devices=1"):
        rlx.make("ppo", "gymnax/CartPole-v1", population=hook, devices=2)


def test_host_environments_stay_on_one_device():
    pytest.importorskip("gymnasium")
    with pytest.raises(RlxError, match="gymnasium/Pendulum-v1, which runs on the host, needs devices=1"):
        rlx.make("sac", envs.make("gymnasium/Pendulum-v1"), devices=2)
