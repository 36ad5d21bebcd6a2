"""Discrete SAC on the probes: at a fixed temperature it finds soft values and policies, and a free one finds its entropy.

Tolerances: |V - V*| <= 2% of max(|V*|, 0.5) in each of 8 seeds, the best actions exactly. The critics are fitted to all of the
replay, uniformly random actions included, so that every row of a solution is met.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq

import rlx
from rlx.envs import probes

SEEDS = 8
GAMMA = 0.9
TEMPERATURE = 0.3  # high enough for the entropy to be a good part of the value
TOLERANCE = 0.02
CONFIG = {
    "num_envs": 8, "rollout_length": 4, "updates_per_step": 0.25, "learning_starts": 1024, "batch_size": 64,
    "replay_capacity": 10_000, "n_step": 1, "target_period": 1, "hidden_sizes": (32,), "activation": "tanh", "gamma": GAMMA,
    "tau": 0.1, "temperature": TEMPERATURE, "temperature_lr": 0.0, "target_entropy": None,
}  # fmt: skip
ANNEALED = ((1e-2, 150), (1e-3, 150))  # learning rates, and for how many iterations (of 8 updates)
SHORT = ((1e-2, 60), (1e-3, 60))  # for the convolution, which is slow on a CPU
SCALAR = tuple(name for name in probes.PROBES if name != "VectorReward")
FAST = {"Truncation", "DelayedCredit"}  # a program each
HAS_BEST = [n for n in SCALAR if probes.make(n).solution(GAMMA, TEMPERATURE).action is not None]  # elsewhere all are equal
fast = lambda names: [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in names]
every, choices = (pytest.mark.parametrize("name", fast(names)) for names in (SCALAR, HAS_BEST))


def anneal(trainer, carry, phases):
    """Train at one learning rate after the other: hyperparameters live in the carry, so nothing is compiled twice."""
    for lr, iterations in phases:
        rates = {name: jnp.full(SEEDS, lr, jnp.float32) for name in ("actor_lr", "critic_lr")}
        carry = carry.replace(runs=carry.runs.replace(hp={**carry.runs.hp, **rates}))
        carry, metrics = trainer.run(carry, iterations * trainer.steps_per_iteration)
    return carry, metrics


def solve(name, **fields):
    """The soft solution, values `[SEEDS, K]`, greedy actions `[SEEDS, K]`."""
    trainer = rlx.make("sac_discrete", f"probe/{name}", **CONFIG | fields)
    carry, _ = anneal(trainer, trainer.init(SEEDS), SHORT if name.startswith("Board") else ANNEALED)
    solution = trainer.env.solution(GAMMA, TEMPERATURE)
    obs = jnp.broadcast_to(solution.obs, (SEEDS, *solution.obs.shape))
    values = np.asarray(trainer.value(carry, obs))
    return solution, values, np.asarray(trainer.act(carry, obs, jax.random.key(0), greedy=True))


solved = functools.cache(solve)


def errors(solution, values):
    """Relative errors `[SEEDS, K]`."""
    return np.abs(values - solution.value) / np.maximum(np.abs(solution.value), 0.5)


@every
def test_values(name):
    solution, values, _ = solved(name)
    error = errors(solution, values)
    assert error.max() <= TOLERANCE, f"V = {values.mean(0)}, not {solution.value}: errors {error.max(0)}"


@choices
def test_actions(name):
    solution, _, actions = solved(name)
    matters = solution.action >= 0
    np.testing.assert_array_equal(actions[:, matters], np.tile(solution.action[matters], (SEEDS, 1)))


@pytest.mark.slow
@pytest.mark.parametrize("ratio", [0.2, 0.5, 0.98])
def test_a_free_temperature_finds_its_entropy(ratio):
    """One of three actions earns 1: with p = 1 / (1 + 2 exp(-1/T)) for it, the entropy is a function of T alone."""

    def entropy(temperature):
        p = np.array([np.exp(1 / temperature), 1, 1])
        p = p / p.sum()
        return -(p * np.log(p)).sum()

    target = ratio * np.log(3)
    temperature = brentq(lambda t: entropy(t) - target, 0.05, 50.0)
    fields = CONFIG | {"temperature_lr": 3e-3, "temperature": 1.0, "target_entropy": float(target)}
    trainer = rlx.make("sac_discrete", "probe/ActionReward", **fields)
    _, metrics = anneal(trainer, trainer.init(SEEDS), ((1e-2, 300), (1e-3, 50)))
    np.testing.assert_allclose(metrics["entropy"], np.full((SEEDS, 1), target), rtol=0.02)
    np.testing.assert_allclose(metrics["temperature"], np.full((SEEDS, 1), temperature), rtol=0.05)


def test_a_vector_reward_is_refused_by_name():
    with pytest.raises(rlx.RlxError, match=r"^sac_discrete learns from a scalar reward; probe/VectorReward has .*\(2,\)$"):
        rlx.make("sac_discrete", "probe/VectorReward", **CONFIG)


def test_continuous_actions_are_refused_by_name():
    with pytest.raises(rlx.RlxError, match=r"^sac_discrete needs discrete actions; .* has 1 continuous ones: use sac$"):
        rlx.make("sac_discrete", "probe/ActionReward-continuous", **CONFIG)
