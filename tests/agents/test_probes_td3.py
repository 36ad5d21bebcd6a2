"""TD3 on the probes: its critics find the values of its policy and its policy the best actions, or it is wrong.

Tolerances: |V - V*| <= 5% of max(|V*|, 0.5) and actions within 5% of the range, in each of 8 seeds. The critics are fitted to
all of the replay, uniformly random actions included, so that every row of a solution is met. What a smoothed target loses is
nothing here: no action but the last that matters is bootstrapped from.
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
CONFIG = {
    "num_envs": 8, "rollout_length": 4, "updates_per_step": 0.25, "learning_starts": 2048, "batch_size": 128,
    "replay_capacity": 20_000, "n_step": 1, "policy_delay": 2, "hidden_sizes": (32,), "activation": "tanh", "gamma": GAMMA,
    "tau": 0.1, "exploration_noise": 0.3, "target_noise": 0.2, "target_noise_clip": 0.5,
}  # fmt: skip
# Learning rates of critics and actor, and for how many iterations (of 8 updates). The slopes of critics that know nothing yet
# send a fast actor into the tanh's corners.
ANNEALED = ((1e-2, 1e-3, 200), (1e-3, 1e-3, 200))
WIDE = {"AsymmetricBounds": (64, 64)}  # 32 units cannot follow a Q that ranges over 14 in two dimensions
SCALAR = tuple(name for name in probes.PROBES if name != "VectorReward")
FAST = {"Truncation", "DelayedCredit"}  # each is a program to compile
best = lambda name: probes.make(f"{name}-continuous").solution(GAMMA).action
HAS_BEST = [n for n in SCALAR if best(n) is not None]  # elsewhere all actions are equal
fast = lambda names: [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in names]
every, choices = (pytest.mark.parametrize("name", fast(names)) for names in (SCALAR, HAS_BEST))


def anneal(trainer, carry, phases):
    """Train at one learning rate after the other: hyperparameters live in the carry, so nothing is compiled twice."""
    for critic_lr, actor_lr, iterations in phases:
        rates = {"critic_lr": jnp.full(SEEDS, critic_lr, jnp.float32), "actor_lr": jnp.full(SEEDS, actor_lr, jnp.float32)}
        carry = carry.replace(runs=carry.runs.replace(hp={**carry.runs.hp, **rates}))
        carry, _ = trainer.run(carry, iterations * trainer.steps_per_iteration)
    return carry


def solve(name, **fields):
    """The solution, values `[SEEDS, K]`, greedy actions `[SEEDS, K, d]`."""
    config = CONFIG | {"hidden_sizes": WIDE.get(name, CONFIG["hidden_sizes"])} | fields
    trainer = rlx.make("td3", f"probe/{name}-continuous", **config)
    carry = anneal(trainer, trainer.init(SEEDS), ANNEALED)
    solution = trainer.env.solution(GAMMA)
    obs = jnp.broadcast_to(solution.obs, (SEEDS, *solution.obs.shape))
    action = trainer.act(carry, obs, jax.random.key(0), greedy=True)
    return solution, np.asarray(trainer.value(carry, obs)), np.asarray(action)


solved = functools.cache(solve)


def errors(solution, values):
    """Relative errors `[SEEDS, K]`."""
    return np.abs(values - solution.value) / np.maximum(np.abs(solution.value), 0.5)


@every
def test_values(name):
    solution, values, _ = solved(name)
    error = errors(solution, values)
    assert error.max() <= 0.05, f"V = {values.mean(0)}, not {solution.value}: errors {error.max(0)}"


@choices
def test_actions(name):
    solution, _, actions = solved(name)
    env = probes.make(f"{name}-continuous")
    matters = ~np.isnan(solution.action).any(-1)
    wrong = np.abs(actions - solution.action)[:, matters] / np.subtract(env.high, env.low)
    assert wrong.max() <= 0.05, f"{actions.mean(0)}, not {solution.action}"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Truncation", "DelayedCredit"])
def test_values_with_longer_returns(name):
    """n-step returns are not corrected for exploration; here later actions change nothing, and they are exact."""
    solution, values, _ = solve(name, n_step=3)
    assert errors(solution, values).max() <= 0.05, f"V = {values.mean(0)}, not {solution.value}"


def test_a_vector_reward_is_refused_by_name():
    with pytest.raises(rlx.RlxError, match=r"^td3 learns from a scalar reward; probe/VectorReward-continuous has .*\(2,\)$"):
        rlx.make("td3", "probe/VectorReward-continuous", **CONFIG)


def test_discrete_actions_are_refused_by_name():
    with pytest.raises(rlx.RlxError, match=r"^td3 needs continuous actions; .* has 3 discrete ones: use sac_discrete$"):
        rlx.make("td3", "probe/ActionReward", **CONFIG)
