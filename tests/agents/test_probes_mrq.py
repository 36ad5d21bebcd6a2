"""MR.Q on the probes: its critics find the values of its policy and its policy the best actions, or it is wrong.

Tolerances: |V - V*| <= 5% of max(|V*|, 0.5) in each of 4 seeds, and continuous actions within 5% of the range. The critics are
fitted to all of the replay, uniformly random actions included, so that every row of a solution is met. What a smoothed target
loses is nothing here: no action but the last that matters is bootstrapped from.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
from rlx.envs import probes

SEEDS = 4
GAMMA = 0.9
CONFIG = {
    "num_envs": 8, "rollout_length": 4, "updates_per_step": 0.25, "learning_starts": 1024, "batch_size": 64,
    "replay_capacity": 10_000, "n_step": 1, "enc_horizon": 3, "target_period": 20, "gamma": GAMMA, "sample_greedy": False,
    "gumbel_temperature": 1.0, **dict.fromkeys(("zs_size", "zsa_size", "za_size", "encoder_size"), 32),
    **dict.fromkeys(("value_size", "policy_size"), 32),
}  # fmt: skip
# Learning rates of encoder, critics and policy, and for how many iterations (of 8 updates).
ANNEALED = ((1e-3, 3e-3, 1e-3, 200), (1e-4, 3e-4, 3e-4, 200))
SCALAR = tuple(name for name in probes.PROBES if name != "VectorReward")
FAST = {"Truncation-continuous", "DelayedCredit"}  # a program each
NAMES = [n for name in SCALAR for n in (name, f"{name}-continuous")]
# The critics see a state only through the encoder's normed vector, in which one of width 32 blurs a real-valued credit: values
# are wrong by 0.02 to 0.06 (tolerance 0.025), and stay so when critics alone are trained on. Width 128 is enough. From images,
# whose shifts blur more, continuous actions need it, too: at width 32 values are wrong by up to 0.16 (0.05), at 128 by 0.03.
WIDTH = {"zs_size": 128, "zsa_size": 128, "encoder_size": 128}
WIDE = {"DelayedCredit-continuous": WIDTH}
build = lambda name: probes.make(name)
HAS_BEST = [n for n in NAMES if build(n).solution(GAMMA).action is not None]  # elsewhere all are equal
fast = lambda names: [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in names]


class ImageObservation(probes.ObservationAction):
    """ObservationAction from frames [40, 40, 3], large enough for convolutions and shifts: a bar at three angles."""

    observations = np.full((3, 40, 40, 3), 235, np.uint8)
    observations[0, 18:22, 8:32] = observations[1, 8:32, 18:22] = (130, 70, 170)
    for row in range(8, 32):
        observations[2, row, row - 2 : row + 3] = (130, 70, 170)


def anneal(trainer, carry):
    """Train at one learning rate after the other: hyperparameters live in the carry, so nothing is compiled twice."""
    runs = len(carry.runs.seed)
    for *rates, iterations in ANNEALED:
        names = ("encoder_lr", "critic_lr", "actor_lr")
        hp = {name: jnp.full(runs, rate, jnp.float32) for name, rate in zip(names, rates, strict=True)}
        carry = carry.replace(runs=carry.runs.replace(hp={**carry.runs.hp, **hp}))
        carry, _ = trainer.run(carry, iterations * trainer.steps_per_iteration)
    return carry


def solve(env, seeds=SEEDS, **fields):
    """The solution, values `[seeds, K]`, greedy actions `[seeds, K, ...]` on a probe, given by name or as such."""
    trainer = rlx.make("mrq", f"probe/{env}" if isinstance(env, str) else env, **CONFIG | fields)
    carry = anneal(trainer, trainer.init(seeds))
    solution = trainer.env.solution(GAMMA)
    obs = jnp.broadcast_to(solution.obs, (seeds, *solution.obs.shape))
    values = np.asarray(trainer.value(carry, obs))
    return solution, values, np.asarray(trainer.act(carry, obs, jax.random.key(0), greedy=True))


solved = functools.cache(lambda name: solve(name, **WIDE.get(name, {})))


def check_values(solution, values):
    error = np.abs(values - solution.value) / np.maximum(np.abs(solution.value), 0.5)
    assert error.max() <= 0.05, f"V = {values.mean(0)}, not {solution.value}: errors {error.max(0)}"


@pytest.mark.parametrize("name", fast(NAMES))
def test_values(name):
    check_values(*solved(name)[:2])


def check_actions(env, solution, actions):
    if env.continuous:
        matters = ~np.isnan(solution.action).any(-1)
        wrong = np.abs(actions - solution.action)[:, matters] / np.subtract(env.high, env.low)
        assert wrong.max() <= 0.05, f"{actions.mean(0)}, not {solution.action}"
    else:
        matters = solution.action >= 0
        np.testing.assert_array_equal(actions[:, matters], np.tile(solution.action[matters], (len(actions), 1)))


@pytest.mark.parametrize("name", fast(HAS_BEST))
def test_actions(name):
    solution, _, actions = solved(name)
    check_actions(build(name), solution, actions)


@pytest.mark.slow
@pytest.mark.parametrize("continuous", [False, True])
def test_images(continuous):
    """Through frames, shifts and convolutions."""
    env = ImageObservation(continuous)
    solution, values, actions = solve(env, seeds=2, batch_size=32, **(WIDTH if continuous else {}))
    check_values(solution, values)
    check_actions(env, solution, actions)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Truncation", "DelayedCredit-continuous"])
def test_values_with_longer_returns(name):
    """n-step returns are not corrected for exploration; here later actions change nothing, and they are exact."""
    check_values(*solve(name, n_step=3, **WIDE.get(name, {}))[:2])
