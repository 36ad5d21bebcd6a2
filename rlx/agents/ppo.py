"""Proximal policy optimisation (Schulman et al. 2017, arXiv 1707.06347), discrete and continuous.

    for iteration = 1, 2, ...
        run pi_old in N environments for T steps                                        (the loop)
        advantages A_1 .. A_T by GAE(lambda)                                            (Schulman et al. 2016)
        for K epochs, for M minibatches: ascend L = L_clip - c1 L_value + c2 S[pi]

Deviations from the paper, with reasons:
- one value target per step, `A + V_old`, no value clipping (Andrychowicz et al. 2021, arXiv 2006.05990, found it useless);
- time limits are no terminations: the last value of a truncated episode is V(next_obs), the true successor's;
- observations and rewards are normalised by running statistics that belong to the agent's state. Observations keep those
  in force while the rollout was collected throughout the update on it, so that the first ratio is exactly 1; rewards are
  scaled by statistics that include the rollout;
- rewards are normalised by default since actor and critic share `max_grad_norm`: the value gradient of returns in the hundreds
  would drown the policy's;
- continuous actions are clipped to [-1, 1] at the border; ratios use the unclipped `raw_action`.

Defaults against their source: paper table 3 (MuJoCo) unless noted.

| field | here | source |
|---|---|---|
| lr | 3e-4 | 3e-4; constant here (the paper: constant for MuJoCo, annealed for Atari) |
| gamma, gae_lambda, clip_eps | 0.99, 0.95, 0.2 | same |
| num_envs x rollout_length | 8 x 125 | 1 x 2048: many environments are cheap here; 1000 divides round budgets |
| num_epochs, num_minibatches | 4, 5 | 10 epochs, minibatches of 64: fewer and larger ones suit vectorised data |
| entropy_coef, value_coef | 0.0, 0.5 | 0 (MuJoCo), 0.5 (Atari: c1 = 1); 0.5 as in most implementations |
| max_grad_norm | 0.5 | not in the paper; Engstrom et al. 2020 (arXiv 2005.12729) |
| hidden_sizes, activation | (64, 64), tanh | same |
| orthogonal init sqrt 2 (hidden), 0.01 (policy), 1 (value) | | Engstrom et al. 2020 |
| Adam eps | 1e-5 | OpenAI Baselines (Huang et al. 2022, "The 37 implementation details of PPO") |
| initial deviation of actions | 1 | not in the paper; OpenAI Baselines |
| normalize_obs, normalize_reward | True | neither in the paper; Engstrom et al. 2020 |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import chex
import distrax
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import struct

from rlx import config as base
from rlx import minibatches, normalize, returns
from rlx.config import Traced
from rlx.networks import Torso, orthogonal
from rlx.normalize import weighted_mean
from rlx.types import HP, Agent, EnvSpec, PyTree, Transition


@dataclass(frozen=True)
class Config(base.Config):
    num_envs: int = 8  # environments of one run
    rollout_length: int = 125  # steps of each environment per iteration
    num_epochs: int = 4  # passes over a rollout
    num_minibatches: int = 5  # minibatches of one pass
    hidden_sizes: tuple[int, ...] = (64, 64)  # widths of both torsos
    activation: Literal["relu", "tanh", "elu", "silu", "gelu"] = "tanh"  # of every hidden layer
    normalize_obs: bool = True  # by running mean and variance (vectors only)
    normalize_reward: bool = True  # by the running deviation of the discounted return
    lr: Traced[float] = 3e-4  # Adam's step size, actor and critic
    gamma: Traced[float] = 0.99  # discount
    gae_lambda: Traced[float] = 0.95  # lambda of generalised advantage estimation
    clip_eps: Traced[float] = 0.2  # the ratio is clipped to 1 -+ this
    entropy_coef: Traced[float] = 0.0  # weight of the entropy bonus
    value_coef: Traced[float] = 0.5  # weight of the value loss
    max_grad_norm: Traced[float] = 0.5  # global norm of the gradient

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "default": {},
        # physics: many environments and a long horizon (with gamma = 0.99 hopper learns to lunge and fall); values found by
        # a small search on brax/hopper
        "brax": {
            "num_envs": 100,
            "rollout_length": 50,
            "num_minibatches": 8,
            "activation": "silu",
            "lr": 1.5e-3,
            "gamma": 0.997,
            "gae_lambda": 0.985,
        },
    }


class State(struct.PyTreeNode):
    params: PyTree
    opt_state: PyTree
    obs_stats: normalize.Stats | None
    return_stats: normalize.ReturnStats


class ActorCritic(nn.Module):
    """obs `[..., *obs_shape]` -> policy over actions, value `[...]`. Separate torsos; Gaussian of state-independent scale."""

    config: Config
    spec: EnvSpec

    @nn.compact
    def __call__(self, obs: jax.Array) -> tuple[distrax.Distribution, jax.Array]:
        c, s = self.config, self.spec
        torso = lambda name: Torso(c.hidden_sizes, c.activation, orthogonal(), obs_shape=s.obs_shape, name=name)
        return heads(self, s, torso("actor")(obs), torso("critic")(obs))


def heads(module: nn.Module, spec: EnvSpec, actor: jax.Array, critic: jax.Array) -> tuple[distrax.Distribution, jax.Array]:
    """Policy and value `[...]` from features `[..., d]`, for use in a module's compact method."""
    out = nn.Dense(spec.num_actions or spec.action_dim, kernel_init=orthogonal(0.01), name="policy")(actor)
    value = nn.Dense(1, kernel_init=orthogonal(1.0), name="value")(critic)[..., 0]
    if spec.num_actions is not None:
        return distrax.Categorical(out), value
    log_std = module.param("log_std", nn.initializers.zeros, (spec.action_dim,))
    return distrax.MultivariateNormalDiag(out, jnp.broadcast_to(jnp.exp(log_std), out.shape)), value


# --- losses ------------------------------------------------------------------------------------------------------------


def clipped_surrogate(log_prob: jax.Array, old_log_prob: jax.Array, advantage: jax.Array, clip_eps: jax.Array) -> jax.Array:
    """-L_clip of one sample (eq. 7 of the paper, sign turned): `-min(r A, clip(r, 1 - eps, 1 + eps) A)`; all scalars."""
    chex.assert_rank([log_prob, old_log_prob, advantage], 0)
    ratio = jnp.exp(log_prob - old_log_prob)
    return -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1.0 - clip_eps, 1.0 + clip_eps) * advantage)


def loss(hp: HP, pi: distrax.Distribution, value: jax.Array, batch: dict[str, jax.Array]) -> tuple[jax.Array, dict]:
    """The PPO objective of a minibatch, leaves `[B, ...]`, with the policy and values `[B]` of its observations."""
    log_prob = pi.log_prob(batch["action"])
    advantage = standardised(batch["advantage"], batch["weight"])
    chex.assert_equal_shape([log_prob, value, batch["log_prob"], batch["target"], advantage])
    surrogate = jax.vmap(clipped_surrogate, (0, 0, 0, None))
    mean = lambda x: weighted_mean(x, batch["weight"])
    policy_loss = mean(surrogate(log_prob, batch["log_prob"], advantage, hp["clip_eps"]))
    value_loss = 0.5 * mean((value - batch["target"]) ** 2)
    entropy = mean(pi.entropy())
    log_ratio = log_prob - batch["log_prob"]
    metrics = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "approx_kl": mean(jnp.exp(log_ratio) - 1.0 - log_ratio),  # k3 of Schulman 2020, "Approximating KL divergence"
        "clip_fraction": mean((jnp.abs(jnp.exp(log_ratio) - 1.0) > hp["clip_eps"]).astype(jnp.float32)),
    }
    return policy_loss + hp["value_coef"] * value_loss - hp["entropy_coef"] * entropy, metrics


# --- the agent ---------------------------------------------------------------------------------------------------------


def make(config: Config, spec: EnvSpec) -> Agent:
    """PPO for an environment. Raises RlxError for a vector reward and for minibatches that do not divide a rollout."""
    c = config
    size = c.num_envs * c.rollout_length
    minibatches.check(c, spec, "ppo", "num_envs * rollout_length", size)
    network = ActorCritic(c, spec)
    forward: Callable[..., Any] = network.apply

    def init(hp: HP, key: jax.Array) -> State:
        params = network.init(key, jnp.zeros(spec.obs_shape, spec.obs_dtype))
        stats = normalize.init_obs(spec, c.normalize_obs)
        return State(params, optimiser(hp).init(params), stats, normalize.init_returns(c.num_envs))

    def apply(state: State, obs: jax.Array) -> tuple[distrax.Distribution, jax.Array]:
        return forward(state.params, normalize.observe(state.obs_stats, obs))

    def act(hp: HP, state: State, memory: tuple, obs: jax.Array, key: jax.Array, i: jax.Array) -> tuple:
        pi, value = apply(state, obs)
        raw, log_prob = pi.sample_and_log_prob(seed=key)
        return to_action(spec, raw), memory, {"value": value, "log_prob": log_prob, "raw_action": raw}

    def greedy(hp: HP, state: State, memory: tuple, obs: jax.Array, key: jax.Array) -> tuple:
        return to_action(spec, apply(state, obs)[0].mode()), memory

    def value(hp: HP, state: State, obs: jax.Array) -> jax.Array:
        return apply(state, obs)[1] / reward_scale(c, state)

    def learn(hp: HP, state: State, rollout: Transition, key: jax.Array, i: jax.Array) -> tuple[State, dict]:
        state = observe_rewards(hp, state, rollout)
        next_value = apply(state, rollout.next_obs)[1]
        data = samples(hp, state, rollout, rollout.reward * reward_scale(c, state), next_value)
        data = jax.tree.map(lambda x: x.reshape(size, *x.shape[2:]), data)  # [T, N] -> [T * N]

        def objective(params: PyTree, batch: dict[str, jax.Array]) -> tuple[jax.Array, dict]:
            pi, value = forward(params, batch["obs"])
            return loss(hp, pi, value, batch)

        params, opt_state, metrics = minibatches.optimise(c, objective, optimiser(hp), state, data, key)
        metrics["explained_variance"] = explained_variance(data["target"], data["value"], data["weight"])
        stats = observe_obs(state, rollout)
        return State(params, opt_state, stats, state.return_stats), metrics

    return Agent(init, lambda hp, state, key: (), act, greedy, learn, c.num_envs, c.rollout_length, value)


# --- its parts, which recurrent PPO shares --------------------------------------------------------------------------------


def optimiser(hp: HP) -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(hp["max_grad_norm"]), optax.adam(hp["lr"], eps=1e-5))


def to_action(spec: EnvSpec, raw: jax.Array) -> jax.Array:
    """What the environment sees of a sample."""
    return raw if spec.num_actions is not None else jnp.clip(raw, -1.0, 1.0)


def reward_scale(config: Config, state: State) -> jax.Array:
    return normalize.scale(state.return_stats) if config.normalize_reward else jnp.float32(1.0)


def observe_rewards(hp: HP, state: State, rollout: Transition) -> State:
    """The state with this rollout's rewards in its statistics."""
    done = rollout.terminated | rollout.truncated
    stats = normalize.update_returns(state.return_stats, rollout.reward, done, rollout.weight, hp["gamma"])
    return state.replace(return_stats=stats)


def observe_obs(state: State, rollout: Transition) -> normalize.Stats | None:
    """The statistics of observations with this rollout's."""
    if state.obs_stats is None:
        return None
    size = rollout.weight.size
    return normalize.update(state.obs_stats, rollout.obs.reshape(size, -1), rollout.weight.reshape(size))


def samples(hp: HP, state: State, rollout: Transition, reward: jax.Array, next_value: jax.Array) -> dict[str, jax.Array]:
    """What the loss is computed from, `[T, N, ...]`: GAE and value targets, from scaled rewards and V(next_obs)."""
    gae = jax.vmap(returns.gae, in_axes=(1, 1, 1, 1, 1, None, None, 1), out_axes=1)
    old, ends = rollout.extras, (rollout.terminated, rollout.truncated)
    advantage = gae(reward, old["value"], next_value, *ends, hp["gamma"], hp["gae_lambda"], rollout.weight)
    return {
        "obs": normalize.observe(state.obs_stats, rollout.obs), "action": old["raw_action"], "log_prob": old["log_prob"],
        "value": old["value"], "advantage": advantage, "target": advantage + old["value"], "weight": rollout.weight,
    }  # fmt: skip


def standardised(x: jax.Array, weight: jax.Array) -> jax.Array:
    """x `[B]` with mean 0 and deviation 1 over the samples that count."""
    mean = weighted_mean(x, weight)
    return (x - mean) / (jnp.sqrt(weighted_mean((x - mean) ** 2, weight)) + 1e-8)


def explained_variance(target: jax.Array, value: jax.Array, weight: jax.Array) -> jax.Array:
    """1 - Var[target - value] / Var[target], all `[B]`: 1 is a perfect critic, 0 no better than a constant."""
    variance = lambda x: weighted_mean((x - weighted_mean(x, weight)) ** 2, weight)
    return 1.0 - variance(target - value) / jnp.maximum(variance(target), 1e-8)
