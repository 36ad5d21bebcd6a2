"""DQN on the probes: its values are the optimal ones and its actions the best ones, or it is wrong.

Tolerances: |V - V*| <= 2% of max(|V*|, 0.5) in each of 8 seeds; actions exact. Half of the actions stay random, so that every
row of a solution is met.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
from rlx import returns
from rlx.envs import probes

SEEDS = 8
GAMMA = 0.9
TOLERANCE = 0.02
CONFIG = {
    "num_envs": 8, "rollout_length": 4, "updates_per_step": 0.25, "learning_starts": 512, "batch_size": 64,
    "replay_capacity": 5_000, "n_step": 1, "target_period": 20, "double": True, "hidden_sizes": (32,), "activation": "tanh",
    "gamma": GAMMA, "tau": 1.0, "max_grad_norm": 10.0, "epsilon_start": 1.0, "epsilon_end": 0.5, "epsilon_steps": 2000.0,
}  # fmt: skip
ANNEALED = ((1e-2, 100), (1e-3, 200), (1e-4, 100))  # learning rates, and for how many iterations (of 8 updates)
SHORT = ((1e-2, 60), (1e-3, 40))  # for the convolution, which is slow on a CPU
SCALAR = tuple(name for name in probes.PROBES if name != "VectorReward")
FAST = {"Truncation", "DelayedCredit"}  # a program each
HAS_BEST = [n for n in SCALAR if probes.make(n).solution(GAMMA).action is not None]  # elsewhere all actions are equal
fast = lambda names: [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in names]
every, choices = (pytest.mark.parametrize("name", fast(names)) for names in (SCALAR, HAS_BEST))


def anneal(trainer, carry, phases):
    """Train at one learning rate after the other: hyperparameters live in the carry, so nothing is compiled twice."""
    for lr, iterations in phases:
        hp = {**carry.runs.hp, "lr": jnp.full_like(carry.runs.hp["lr"], lr)}
        carry, _ = trainer.run(carry.replace(runs=carry.runs.replace(hp=hp)), iterations * trainer.steps_per_iteration)
    return carry


def solve(name, **fields):
    """The solution, values `[SEEDS, K]`, greedy actions `[SEEDS, K]`."""
    trainer = rlx.make("dqn", f"probe/{name}", **CONFIG | fields)
    carry = anneal(trainer, trainer.init(SEEDS), SHORT if name.startswith("Board") else ANNEALED)
    solution = trainer.env.solution(GAMMA)
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
@pytest.mark.parametrize("name", ["Truncation", "DelayedCredit"])
@pytest.mark.parametrize("fields", [{"n_step": 3}, {"double": False}, {"dueling": True}], ids=str)
def test_values_of_variants(name, fields):
    """n-step returns are not corrected for exploration; here later actions change nothing, and they are exact."""
    solution, values, _ = solve(name, **fields)
    assert errors(solution, values).max() <= TOLERANCE, f"V = {values.mean(0)}, not {solution.value}"


# --- the probes find faults: agents broken on purpose miss the value by far -----------------------------------------------

n_step = returns.n_step


def merged(reward, terminated, truncated, gamma, weight=None):
    """One `done` for both endings."""
    return n_step(reward, terminated | truncated, truncated, gamma, weight)


def never_terminated(reward, terminated, truncated, gamma, weight=None):
    """Every ending a time limit."""
    return n_step(reward, jnp.zeros_like(terminated), terminated | truncated, gamma, weight)


@pytest.mark.slow
@pytest.mark.parametrize("broken", [merged, never_terminated])
def test_truncation_probe_finds_a_broken_agent(broken, monkeypatch):
    monkeypatch.setattr(returns, "n_step", broken)
    solution, values, _ = solve("Truncation")
    assert errors(solution, values).max(1).min() > 10 * TOLERANCE, values.mean(0)
