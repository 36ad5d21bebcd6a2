"""Soft actor-critic with automatic temperature (Haarnoja et al. 2018, arXiv 1812.05905, algorithm 1).

    for each environment step: a ~ pi(.|s), store (s, a, r, s')                             (the loop, `replay.insert`)
    for each gradient step:
        theta_i <- theta_i - lr grad J_Q(theta_i)           for the two critics             (eq. 5, 6)
        phi     <- phi     - lr grad J_pi(phi)                                              (eq. 9)
        alpha   <- alpha   - lr grad J(alpha)                                               (eq. 18)
        theta'_i <- tau theta_i + (1 - tau) theta'_i

Deviations from the paper, with reasons:
- J(alpha) is taken with respect to log alpha, and its gradient is -(log pi + target entropy), without the factor alpha:
  alpha stays positive, and its speed does not depend on its size (as the authors' own code does it);
- `n_step` > 1 replaces r + gamma V(s') by an n-step return cut at either ending; only the last state's value has an
  entropy term, and the returns are not corrected for being off-policy;
- time limits are no terminations: they bootstrap from the true next observation.

Entropies are in nats over the action in [-1, 1]^d. Defaults against their source, the paper's table 1:

| field | here | paper |
|---|---|---|
| actor_lr, critic_lr, temperature_lr | 3e-4 | 3e-4 |
| gamma, tau, target_period | 0.99, 0.005, 1 | same |
| replay_capacity, batch_size | 1e6, 256 | same |
| hidden_sizes, activation | (256, 256), relu | same |
| updates_per_step | 1 | 1 |
| target_entropy | -dim(A) | same |
| normalize_obs | False | not in the paper; Brax's SAC does it |
| num_envs x rollout_length | 1 x 1 | same |
| learning_starts | 1000 | not in the table (authors' code: 1000 for most tasks) |
| temperature | 1.0 | initial value, not in the table (authors' code: 1.0) |
| log std clipped to [-20, 2]; Adam eps 1e-8 | | authors' code |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import struct

from rlx import config as base
from rlx import normalize, off_policy
from rlx.config import Traced
from rlx.distributions import TanhNormal
from rlx.errors import RlxError
from rlx.networks import MLP, Critic, ensemble, features
from rlx.off_policy import Batch
from rlx.types import HP, Agent, EnvSpec, PyTree, Transition

# for CPUs: widths 64, a small replay
_SMALL = {"hidden_sizes": (64, 64), "batch_size": 128, "replay_capacity": 100_000, "actor_lr": 1e-3, "critic_lr": 1e-3}


@dataclass(frozen=True)
class Config(base.Config):
    num_envs: int = 1  # environments of one run
    rollout_length: int = 1  # steps of each environment per iteration
    updates_per_step: float = 1.0  # gradient updates per environment step
    learning_starts: int = 1_000  # env steps of uniformly random actions before the first update
    batch_size: int = 256  # transitions of one update
    replay_capacity: int = 1_000_000  # transitions kept, of all environments of one run
    n_step: int = 1  # steps of the return before bootstrapping
    target_period: int = 1  # updates between two steps of the target critics
    hidden_sizes: tuple[int, ...] = (256, 256)  # widths of actor and critics
    activation: Literal["relu", "tanh", "elu", "silu", "gelu"] = "relu"  # of every hidden layer
    normalize_obs: bool = False  # by running mean and variance (vectors only)
    target_entropy: float | None = None  # nats over the action in [-1, 1]; None: -dim(A)
    actor_lr: Traced[float] = 3e-4  # Adam's step size, actor
    critic_lr: Traced[float] = 3e-4  # Adam's step size, critics
    temperature_lr: Traced[float] = 3e-4  # Adam's step size, log temperature; 0 holds it
    temperature: Traced[float] = 1.0  # initial temperature alpha
    gamma: Traced[float] = 0.99  # discount
    tau: Traced[float] = 0.005  # step of the target critics

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "default": {},
        "small": _SMALL,
        # physics on a CPU: 16 environments, half an update per step, normalised observations
        "brax": _SMALL | {"num_envs": 16, "updates_per_step": 0.5, "learning_starts": 4_000, "normalize_obs": True},
    }


class Learner(struct.PyTreeNode):
    """What gradient updates change: small next to the replay, so that a conditional may return it."""

    actor: PyTree
    critic: PyTree
    target: PyTree
    log_alpha: jax.Array
    actor_opt: PyTree
    critic_opt: PyTree
    alpha_opt: PyTree


class State(struct.PyTreeNode):
    learner: Learner
    replay: PyTree
    obs_stats: normalize.Stats | None = None


class Actor(nn.Module):
    """obs `[..., *obs_shape]` -> tanh-normal over actions `[..., d]`."""

    config: Config
    spec: EnvSpec

    @nn.compact
    def __call__(self, obs: jax.Array) -> TanhNormal:
        x = MLP(self.config.hidden_sizes, self.config.activation)(
            features(self.config.hidden_sizes, self.config.activation, self.spec.obs_shape)(obs)
        )
        loc = nn.Dense(self.spec.action_dim, name="loc")(x)
        log_std = jnp.clip(nn.Dense(self.spec.action_dim, name="log_std")(x), -20.0, 2.0)
        return TanhNormal(loc, jnp.exp(log_std))


# --- losses, of one sample; q and q_next are `[2]`, one per critic ------------------------------------------------------


def soft_value(q: jax.Array, log_prob: jax.Array, alpha: jax.Array) -> jax.Array:
    """V(s) = min_i Q_i(s, a) - alpha log pi(a|s) for a ~ pi (eq. 3, with the minimum of section 5)."""
    chex.assert_rank([q, log_prob], [1, 0])
    return q.min() - alpha * log_prob


def critic_loss(q: jax.Array, target: jax.Array) -> jax.Array:
    """J_Q of eq. 5, summed over both critics: `sum_i (Q_i - y)^2 / 2`."""
    chex.assert_rank([q, target], [1, 0])
    return 0.5 * ((q - target) ** 2).sum()


def actor_loss(q: jax.Array, log_prob: jax.Array, alpha: jax.Array) -> jax.Array:
    """J_pi of eq. 9: `alpha log pi(a|s) - min_i Q_i(s, a)` for a reparametrised a."""
    return -soft_value(q, log_prob, alpha)


# --- the agent ---------------------------------------------------------------------------------------------------------


def make(config: Config, spec: EnvSpec) -> Agent:
    """SAC for an environment. Raises RlxError for discrete actions, vector rewards and update counts that are not whole."""
    c = config
    if spec.num_actions is not None:
        raise RlxError(f"sac needs continuous actions; {spec.name} has {spec.num_actions} discrete ones: use sac_discrete")
    plan, buffer = off_policy.plan(c, spec, "sac")
    target_entropy = -float(spec.action_dim) if c.target_entropy is None else c.target_entropy
    actor, critic = Actor(c, spec), ensemble(Critic, 2)(c.hidden_sizes, c.activation, spec.obs_shape)
    policy: Callable[..., Any] = actor.apply
    q_values: Callable[..., Any] = critic.apply
    adam = optax.adam

    def init(hp: HP, key: jax.Array) -> State:
        obs, action = jnp.zeros(spec.obs_shape, spec.obs_dtype), jnp.zeros(spec.action_dim)
        actor_params = actor.init(jax.random.fold_in(key, 0), obs)
        critic_params = critic.init(jax.random.fold_in(key, 1), obs, action)
        log_alpha = jnp.log(hp["temperature"])
        learner = Learner(
            actor_params, critic_params, jax.tree.map(jnp.copy, critic_params), log_alpha,
            adam(hp["actor_lr"]).init(actor_params), adam(hp["critic_lr"]).init(critic_params),
            adam(hp["temperature_lr"]).init(log_alpha),
        )  # fmt: skip
        return State(learner, buffer.init(), normalize.init_obs(spec, c.normalize_obs))

    def act(hp: HP, state: State, memory: tuple, obs: jax.Array, key: jax.Array, i: jax.Array) -> tuple:
        explore = lambda: jax.random.uniform(key, (spec.action_dim,), minval=-1.0, maxval=1.0)
        sample = lambda: policy(state.learner.actor, normalize.observe(state.obs_stats, obs)).sample(seed=key)
        return jax.lax.cond(i < plan.random, explore, sample), memory, ()

    def greedy(hp: HP, state: State, memory: tuple, obs: jax.Array, key: jax.Array) -> tuple:
        return policy(state.learner.actor, normalize.observe(state.obs_stats, obs)).mode(), memory

    def value(hp: HP, state: State, obs: jax.Array) -> jax.Array:
        """The soft value, over 64 actions drawn with a fixed key."""
        obs = normalize.observe(state.obs_stats, obs)
        actions, log_prob = jax.vmap(lambda k: policy(state.learner.actor, obs).sample_and_log_prob(seed=k))(
            jax.random.split(jax.random.key(0), 64)
        )
        q = jax.vmap(lambda a: q_values(state.learner.critic, obs, a))(actions)
        return jax.vmap(soft_value, (0, 0, None))(q, log_prob, jnp.exp(state.learner.log_alpha)).mean()

    def update(hp: HP, learner: Learner, batch: Batch, sync: jax.Array, key: jax.Array) -> tuple[Learner, dict]:
        """One gradient update of everything; `sync`: move the target critics."""
        alpha = jnp.exp(learner.log_alpha)

        # targets: the (n-step) return, bootstrapped from the true successor
        next_action, next_log_prob = policy(learner.actor, batch.next_obs).sample_and_log_prob(seed=jax.random.fold_in(key, 0))
        next_q = q_values(learner.target, batch.next_obs, next_action)
        next_value = jax.vmap(soft_value, (1, 0, None))(next_q, next_log_prob, alpha)
        target = jax.lax.stop_gradient(batch.return_ + batch.discount * next_value)

        # critics
        def j_q(params: PyTree) -> tuple[jax.Array, jax.Array]:
            q = q_values(params, batch.obs, batch.action)
            return batch.mean(jax.vmap(critic_loss, (1, 0))(q, target)), q.mean()

        (q_loss, q_mean), grads = jax.value_and_grad(j_q, has_aux=True)(learner.critic)
        updates, critic_opt = adam(hp["critic_lr"]).update(grads, learner.critic_opt)
        critic_params = optax.apply_updates(learner.critic, updates)

        # actor
        def j_pi(params: PyTree) -> tuple[jax.Array, jax.Array]:
            new_action, log_prob = policy(params, batch.obs).sample_and_log_prob(seed=jax.random.fold_in(key, 1))
            q = q_values(critic_params, batch.obs, new_action)
            return batch.mean(jax.vmap(actor_loss, (1, 0, None))(q, log_prob, alpha)), log_prob

        (pi_loss, log_prob), grads = jax.value_and_grad(j_pi, has_aux=True)(learner.actor)
        updates, actor_opt = adam(hp["actor_lr"]).update(grads, learner.actor_opt)
        actor_params = optax.apply_updates(learner.actor, updates)

        # temperature: d J / d log alpha = -(log pi + target entropy)
        updates, alpha_opt = adam(hp["temperature_lr"]).update(-batch.mean(log_prob + target_entropy), learner.alpha_opt)
        log_alpha = learner.log_alpha + updates

        target_params = off_policy.move(learner.target, critic_params, hp["tau"], sync)
        learner = Learner(actor_params, critic_params, target_params, log_alpha, actor_opt, critic_opt, alpha_opt)
        metrics = {"critic_loss": q_loss, "actor_loss": pi_loss, "q": q_mean, "entropy": -log_prob.mean()}
        return learner, metrics | {"temperature": alpha}

    def learn(hp: HP, state: State, rollout: Transition, key: jax.Array, i: jax.Array) -> tuple[State, dict]:
        data = buffer.insert(state.replay, rollout, i)
        stats = state.obs_stats
        if stats is not None:
            stats = normalize.update(stats, rollout.obs.reshape(-1, *spec.obs_shape), rollout.weight.ravel())

        def one(learner: Learner, key: jax.Array, u: jax.Array) -> tuple[Learner, dict]:
            windows = buffer.sample(data, jax.random.fold_in(key, 0), c.batch_size, i, c.n_step)
            batch = off_policy.batch(windows, hp["gamma"], stats)
            sync = off_policy.completes(plan, c.target_period, i, u)
            return update(hp, learner, batch, sync, jax.random.fold_in(key, 1))

        learner, metrics = off_policy.updates(plan, one, state.learner, key, i)
        return State(learner, data, stats), metrics

    return Agent(init, lambda hp, state, key: (), act, greedy, learn, c.num_envs, c.rollout_length, value)
