"""PPO on the probes: its critic finds their values and its policy their actions, or it is wrong.

PPO's V is that of its own stochastic policy. Without an entropy bonus the policy turns deterministic, so that V is the
optimal value, but only where that policy goes: states that only bad actions lead to are read from runs which explore on.
Tolerances: |V - V*| <= 2% of max(|V*|, 0.5) in each of 8 seeds; actions exact, or within 5% of the range.
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
    "num_envs": 16, "rollout_length": 8, "num_epochs": 4, "num_minibatches": 2, "hidden_sizes": (32,),
    "activation": "tanh", "gamma": GAMMA, "gae_lambda": 0.95, "clip_eps": 0.2, "entropy_coef": 0.0, "value_coef": 0.5,
    "max_grad_norm": 0.5, "normalize_obs": False, "normalize_reward": False,
}  # fmt: skip
ANNEALED = ((1e-2, 100), (1e-3, 300), (1e-4, 200), (2e-5, 200))  # learning rates, and for how many iterations
SHORT = ((1e-2, 60), (1e-3, 40))  # for the convolution, which is slow on a CPU
UNVISITED = {"DelayedCredit": (1, 3)}  # rows of the solution with credit 0, which the best action never leaves
SCALAR = tuple(name for name in probes.NAMES if not name.startswith("VectorReward"))
FAST = {"Truncation", "IntegerObservation", "DelayedCredit-continuous", "AsymmetricBounds-continuous"}  # a program each
HAS_BEST = [n for n in SCALAR if probes.make(n).solution(GAMMA).action is not None]  # elsewhere all actions are equal
fast = lambda names: [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in names]
every, choices = (pytest.mark.parametrize("name", fast(names)) for names in (SCALAR, HAS_BEST))


def anneal(trainer, carry, phases):
    """Train at one learning rate after the other: hyperparameters live in the carry, so nothing is compiled twice."""
    for lr, iterations in phases:
        hp = {**carry.runs.hp, "lr": jnp.full_like(carry.runs.hp["lr"], lr)}
        carry, _ = trainer.run(carry.replace(runs=carry.runs.replace(hp=hp)), iterations * trainer.steps_per_iteration)
    return carry


def solve(name):
    """The solution, values `[2, SEEDS, K]` with and without exploration at the end, greedy actions `[SEEDS, K, ...]`."""
    trainer = rlx.make("ppo", f"probe/{name}", **CONFIG)
    carry = trainer.init(SEEDS, hp={"entropy_coef": [0.0, 10.0]})
    carry = anneal(trainer, carry, SHORT if name.startswith("Board") else ANNEALED)
    solution = trainer.env.solution(GAMMA)
    obs = jnp.broadcast_to(solution.obs, (2 * SEEDS, *solution.obs.shape))
    values = np.asarray(trainer.value(carry, obs)).reshape(2, SEEDS, -1)
    return solution, values, np.asarray(trainer.act(carry, obs, jax.random.key(0), greedy=True))[:SEEDS]


solved = functools.cache(solve)


def errors(name, solution, values):
    """Relative errors `[SEEDS, K]`, each row of the solution taken from the runs that meet it."""
    rows = np.isin(np.arange(len(solution.value)), UNVISITED.get(name.partition("-")[0], ()))
    return np.abs(np.where(rows, values[1], values[0]) - solution.value) / np.maximum(np.abs(solution.value), 0.5)


@every
def test_values(name):
    solution, values, _ = solved(name)
    error = errors(name, solution, values)
    assert error.max() <= TOLERANCE, f"V = {values[0].mean(0)}, not {solution.value}: errors {error.max(0)}"


@choices
def test_actions(name):
    solution, _, actions = solved(name)
    env = probes.make(name)
    if env.continuous:
        matters = ~np.isnan(solution.action).any(-1)
        wrong = np.abs(actions - solution.action)[:, matters] / np.subtract(env.high, env.low)
        assert wrong.max() <= 0.05, f"{actions.mean(0)}, not {solution.action}"
    else:
        matters = solution.action >= 0
        np.testing.assert_array_equal(actions[:, matters], np.tile(solution.action[matters], (SEEDS, 1)))


@pytest.mark.parametrize("form", ["", "-continuous"])
def test_a_vector_reward_is_refused_by_name(form):
    with pytest.raises(rlx.RlxError, match=rf"^ppo learns from a scalar reward; probe/VectorReward{form} has .*\(2,\)$"):
        rlx.make("ppo", f"probe/VectorReward{form}", **CONFIG)


# --- the probes find faults: agents broken on purpose miss the value by far -----------------------------------------------

gae = returns.gae


def merged(reward, value, next_value, terminated, truncated, gamma, lam, weight):
    """One `done` for both endings."""
    return gae(reward, value, next_value, terminated | truncated, truncated, gamma, lam, weight)


def from_reset(reward, value, next_value, terminated, truncated, gamma, lam, weight):
    """V of the observation that is acted on next, which after a time limit begins another episode."""
    return gae(reward, value, jnp.append(value[1:], next_value[-1]), terminated, truncated, gamma, lam, weight)


def never_terminated(reward, value, next_value, terminated, truncated, gamma, lam, weight):
    """Every ending a time limit."""
    return gae(reward, value, next_value, jnp.zeros_like(terminated), terminated | truncated, gamma, lam, weight)


@pytest.mark.parametrize("broken", [merged, *(pytest.param(b, marks=pytest.mark.slow) for b in (from_reset, never_terminated))])
def test_truncation_probe_finds_a_broken_agent(broken, monkeypatch):
    monkeypatch.setattr(returns, "gae", broken)
    solution, values, _ = solve("Truncation")
    assert errors("Truncation", solution, values).max(1).min() > 10 * TOLERANCE, values[0].mean(0)
