"""SAC on the probes: at a fixed temperature its critics find their soft values and its policy their actions, or it is wrong.

Tolerances: |V - V*| <= 5% of max(|V*|, 0.5) and actions within 5% of the range, in each of 8 seeds. The critics are fitted to
all of the replay, uniformly random actions included, so that every row of a solution is met.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
from rlx.envs import probes

SEEDS = 8
GAMMA = 0.9
TEMPERATURE = 0.05  # low enough for the optimum to be close to a squashed Gaussian, high enough to matter
CONFIG = {
    "num_envs": 8, "rollout_length": 4, "updates_per_step": 0.25, "learning_starts": 2048, "batch_size": 128,
    "replay_capacity": 20_000, "n_step": 1, "target_period": 1, "hidden_sizes": (32,), "activation": "relu", "gamma": GAMMA,
    "tau": 0.05, "temperature": TEMPERATURE, "temperature_lr": 0.0, "target_entropy": None,
}  # fmt: skip
ANNEALED = ((1e-2, 260), (1e-3, 260))  # learning rates, and for how many iterations (of 8 updates)
SHORT = ((1e-2, 100), (1e-3, 30))  # for the convolution, which is slow on a CPU
WIDE = {"AsymmetricBounds": (64, 64)}  # 32 units cannot follow a Q that ranges over 14 in two dimensions
SCALAR = tuple(name for name in probes.PROBES if name != "VectorReward")
FAST = {"Truncation", "DelayedCredit", "AsymmetricBounds"}  # each is a program to compile
best = lambda name: probes.make(f"{name}-continuous").solution(GAMMA, TEMPERATURE).action
HAS_BEST = [n for n in SCALAR if best(n) is not None]  # elsewhere all actions are equal
fast = lambda names: [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in names]
every, choices = (pytest.mark.parametrize("name", fast(names)) for names in (SCALAR, HAS_BEST))


def anneal(trainer, carry, phases):
    """Train at one learning rate after the other: hyperparameters live in the carry, so nothing is compiled twice."""
    for lr, iterations in phases:
        rates = {name: jnp.full(SEEDS, lr, jnp.float32) for name in ("actor_lr", "critic_lr")}
        carry = carry.replace(runs=carry.runs.replace(hp={**carry.runs.hp, **rates}))
        carry, _ = trainer.run(carry, iterations * trainer.steps_per_iteration)
    return carry


@functools.cache
def solved(name):
    """The soft solution, values `[SEEDS, K]`, greedy actions `[SEEDS, K, d]`."""
    trainer = rlx.make("sac", f"probe/{name}-continuous", **CONFIG | {"hidden_sizes": WIDE.get(name, CONFIG["hidden_sizes"])})
    carry = anneal(trainer, trainer.init(SEEDS), SHORT if name.startswith("Board") else ANNEALED)
    solution = trainer.env.solution(GAMMA, TEMPERATURE)
    obs = jnp.broadcast_to(solution.obs, (SEEDS, *solution.obs.shape))
    action = trainer.act(carry, obs, jax.random.key(0), greedy=True)
    return solution, np.asarray(trainer.value(carry, obs)), np.asarray(action)


@every
def test_values(name):
    solution, values, _ = solved(name)
    error = np.abs(values - solution.value) / np.maximum(np.abs(solution.value), 0.5)
    assert error.max() <= 0.05, f"V = {values.mean(0)}, not {solution.value}: errors {error.max(0)}"


@choices
def test_actions(name):
    solution, _, actions = solved(name)
    env = probes.make(f"{name}-continuous")
    matters = ~np.isnan(solution.action).any(-1)
    wrong = np.abs(actions - solution.action)[:, matters] / np.subtract(env.high, env.low)
    assert wrong.max() <= 0.05, f"{actions.mean(0)}, not {solution.action}"


def test_a_vector_reward_is_refused_by_name():
    with pytest.raises(rlx.RlxError, match=r"^sac learns from a scalar reward; probe/VectorReward-continuous has .*\(2,\)$"):
        rlx.make("sac", "probe/VectorReward-continuous", **CONFIG)


def test_discrete_actions_are_refused_by_name():
    with pytest.raises(
        rlx.RlxError, match=r"^sac needs continuous actions; probe/ActionReward has 3 discrete ones: use sac_discrete$"
    ):
        rlx.make("sac", "probe/ActionReward", **CONFIG)
