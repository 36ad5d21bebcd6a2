"""Soft actor-critic for discrete actions (Christodoulou 2019, arXiv 1910.07207, algorithm 1).

    for each environment step: a ~ pi(.|s), store (s, a, r, s')
    for each gradient step:
        theta_i <- theta_i - lr grad J_Q(theta_i)           for the two critics             (eq. 4, with V of eq. 10)
        phi     <- phi     - lr grad J_pi(phi)                                              (eq. 12)
        alpha   <- alpha   - lr grad J(alpha)                                               (eq. 11)
        every target_period updates: theta'_i <- tau theta_i + (1 - tau) theta'_i

Policy and critics answer for all actions at once, so that every expectation over actions is a sum; the critics' minimum is
taken action by action. Deviations from the paper, with reasons:
- the target entropy is 0.3 log |A|, not 0.98 log |A|. Where an episode may end early, staying alive earns entropy: what a
  wrong action costs grows with alpha, and if even the policy that maximises entropy alone has less of it than the target, no
  alpha is high enough. CartPole, preset small, 60,000 steps: with 0.98 alpha passes 10^6 and the return falls from 465 to
  130, with 0.89 10^5, and from 500 to 230; with 0.5 that happens to one run of 16 (alpha 2.8, return 137), with 0.3 to none
  of 16, which all end at 500;
- J(alpha) is taken with respect to log alpha, and its gradient is the policy's entropy - target entropy, without the factor
  alpha: alpha stays positive, and its speed does not depend on its size;
- `n_step` > 1 replaces r + gamma V(s') by an n-step return cut at either ending; only the last state's value has an
  entropy term, and the returns are not corrected for being off-policy;
- time limits are no terminations: they bootstrap from the true next observation.

Defaults against their source, the table of the paper's appendix:

| field | here | paper |
|---|---|---|
| actor_lr, critic_lr, temperature_lr | 3e-4 | same |
| gamma | 0.99 | same |
| target_period, tau | 8000 updates, 1 | target fixed for 8000; the box moves it by tau |
| replay_capacity, batch_size | 1e6, 64 | same |
| hidden_sizes, activation | (512,), relu | same, after the convolutions of `networks.NATURE` |
| num_envs x rollout_length, updates_per_step | 1 x 4, 0.25 | an update every 4 steps |
| learning_starts | 20,000 | same |
| target_entropy | 0.3 log(A) | 0.98 log(A) |
| temperature | 1.0 | initial value, not in the table |
| normalize_obs | False | not in the paper |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from rlx import config as base
from rlx import exploration, normalize, off_policy
from rlx.config import Traced
from rlx.errors import RlxError
from rlx.networks import Torso, ensemble
from rlx.off_policy import Batch
from rlx.types import HP, Agent, EnvSpec, PyTree, Transition

RATIO = 0.3  # of the default target entropy to that of a uniform policy


@dataclass(frozen=True)
class Config(base.Config):
    num_envs: int = 1  # environments of one run
    rollout_length: int = 4  # steps of each environment per iteration
    updates_per_step: float = 0.25  # gradient updates per environment step
    learning_starts: int = 20_000  # env steps of uniformly random actions before the first update
    batch_size: int = 64  # transitions of one update
    replay_capacity: int = 1_000_000  # transitions kept, of all environments of one run
    n_step: int = 1  # steps of the return before bootstrapping
    target_period: int = 8_000  # updates between two steps of the target critics
    hidden_sizes: tuple[int, ...] = (512,)  # widths of the dense layers of actor and critics
    activation: Literal["relu", "tanh", "elu", "silu", "gelu"] = "relu"  # of every hidden layer
    normalize_obs: bool = False  # by running mean and variance (vectors only)
    target_entropy: float | None = None  # nats, in [0, log A]; None: 0.3 log A
    actor_lr: Traced[float] = 3e-4  # Adam's step size, actor
    critic_lr: Traced[float] = 3e-4  # Adam's step size, critics
    temperature_lr: Traced[float] = 3e-4  # Adam's step size, log temperature; 0 holds it
    temperature: Traced[float] = 1.0  # initial temperature alpha
    gamma: Traced[float] = 0.99  # discount
    tau: Traced[float] = 1.0  # step of the target critics; 1 copies

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "default": {},
        # for CPUs
        "small": {
            "num_envs": 4,
            "rollout_length": 1,
            "updates_per_step": 1.0,
            "learning_starts": 1_000,
            "replay_capacity": 50_000,
            "target_period": 1,
            "hidden_sizes": (64, 64),
            "actor_lr": 1e-3,
            "critic_lr": 1e-3,
            "temperature_lr": 1e-3,
            "tau": 0.01,
        },
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


class Head(nn.Module):
    """obs `[..., *obs_shape]` -> one number per action `[..., A]`: the actor's logits, a critic's Q."""

    config: Config
    obs_shape: tuple[int, ...]
    num_actions: int

    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        x = Torso(self.config.hidden_sizes, self.config.activation, obs_shape=self.obs_shape)(obs)
        return nn.Dense(self.num_actions, name="out")(x)


# --- losses, of one sample; q is `[2, A]`, one row per critic, log_pi `[A]` the policy's log-probabilities ---------------


def soft_value(q: jax.Array, log_pi: jax.Array, alpha: jax.Array) -> jax.Array:
    """V(s) = sum_a pi(a|s) (min_i Q_i(s, a) - alpha log pi(a|s)) (eq. 10, with the minimum of the box)."""
    chex.assert_rank([q, log_pi, alpha], [2, 1, 0])
    chex.assert_equal_shape_suffix([q, log_pi], 1)
    return (jnp.exp(log_pi) * (q.min(0) - alpha * log_pi)).sum()


def critic_loss(q: jax.Array, action: jax.Array, target: jax.Array) -> jax.Array:
    """J_Q of eq. 4, summed over both critics: `sum_i (Q_i(s, a) - y)^2 / 2`."""
    chex.assert_rank([q, action, target], [2, 0, 0])
    return 0.5 * ((q[:, action] - target) ** 2).sum()


def actor_loss(q: jax.Array, log_pi: jax.Array, alpha: jax.Array) -> jax.Array:
    """J_pi of eq. 12: `sum_a pi(a|s) (alpha log pi(a|s) - min_i Q_i(s, a))`."""
    return -soft_value(q, log_pi, alpha)


def entropy(log_pi: jax.Array) -> jax.Array:
    """`-sum_a pi(a|s) log pi(a|s)`, in nats."""
    chex.assert_rank(log_pi, 1)
    return -(jnp.exp(log_pi) * log_pi).sum()


# --- the agent ---------------------------------------------------------------------------------------------------------


def make(config: Config, spec: EnvSpec) -> Agent:
    """Discrete SAC for an environment. Raises RlxError for continuous actions, vector rewards, update counts that are not
    whole and a target entropy that no policy has."""
    c = config
    if spec.num_actions is None:
        raise RlxError(f"sac_discrete needs discrete actions; {spec.name} has {spec.action_dim} continuous ones: use sac")
    plan, buffer = off_policy.plan(c, spec, "sac_discrete")
    actions, most = spec.num_actions, float(np.log(spec.num_actions))
    target_entropy = RATIO * most if c.target_entropy is None else c.target_entropy
    if not 0.0 <= target_entropy <= most:
        raise RlxError(
            f"target_entropy={target_entropy:g} must be in [0, {most:g}], log of the {actions} actions of {spec.name}"
        )
    actor, critic = Head(c, spec.obs_shape, actions), ensemble(Head, 2)(c, spec.obs_shape, actions)
    logits: Callable[..., Any] = actor.apply
    q_values: Callable[..., Any] = critic.apply
    adam = optax.adam

    def log_policy(params: PyTree, obs: jax.Array) -> jax.Array:
        return jax.nn.log_softmax(logits(params, obs))

    def init(hp: HP, key: jax.Array) -> State:
        obs = jnp.zeros(spec.obs_shape, spec.obs_dtype)
        actor_params = actor.init(jax.random.fold_in(key, 0), obs)
        critic_params = critic.init(jax.random.fold_in(key, 1), obs)
        log_alpha = jnp.log(hp["temperature"])
        learner = Learner(
            actor_params, critic_params, jax.tree.map(jnp.copy, critic_params), log_alpha,
            adam(hp["actor_lr"]).init(actor_params), adam(hp["critic_lr"]).init(critic_params),
            adam(hp["temperature_lr"]).init(log_alpha),
        )  # fmt: skip
        return State(learner, buffer.init(), normalize.init_obs(spec, c.normalize_obs))

    def act(hp: HP, state: State, memory: tuple, obs: jax.Array, key: jax.Array, i: jax.Array) -> tuple:
        explore = lambda: jax.random.randint(key, (), 0, actions, jnp.int32)
        sample = lambda: jax.random.categorical(key, log_policy(state.learner.actor, normalize.observe(state.obs_stats, obs)))
        return jax.lax.cond(i < plan.random, explore, lambda: sample().astype(jnp.int32)), memory, ()

    def greedy(hp: HP, state: State, memory: tuple, obs: jax.Array, key: jax.Array) -> tuple:
        return exploration.greedy(logits(state.learner.actor, normalize.observe(state.obs_stats, obs))), memory

    def value(hp: HP, state: State, obs: jax.Array) -> jax.Array:
        """The soft value."""
        obs, learner = normalize.observe(state.obs_stats, obs), state.learner
        return soft_value(q_values(learner.critic, obs), log_policy(learner.actor, obs), jnp.exp(learner.log_alpha))

    def update(hp: HP, learner: Learner, batch: Batch, sync: jax.Array) -> tuple[Learner, dict]:
        """One gradient update of everything; `sync`: move the target critics."""
        alpha = jnp.exp(learner.log_alpha)
        soft = lambda f, q, log_pi: jax.vmap(f, (1, 0, None))(q, log_pi, alpha)

        # targets: the (n-step) return, bootstrapped from the true successor
        next_log_pi = log_policy(learner.actor, batch.next_obs)
        target = batch.return_ + batch.discount * soft(soft_value, q_values(learner.target, batch.next_obs), next_log_pi)

        # critics
        def j_q(params: PyTree) -> tuple[jax.Array, jax.Array]:
            q = q_values(params, batch.obs)
            return batch.mean(jax.vmap(critic_loss, (1, 0, 0))(q, batch.action, target)), batch.mean(q.mean((0, 2)))

        (q_loss, q_mean), grads = jax.value_and_grad(j_q, has_aux=True)(learner.critic)
        updates, critic_opt = adam(hp["critic_lr"]).update(grads, learner.critic_opt)
        critic_params = optax.apply_updates(learner.critic, updates)

        # actor
        q = q_values(critic_params, batch.obs)

        def j_pi(params: PyTree) -> tuple[jax.Array, jax.Array]:
            log_pi = log_policy(params, batch.obs)
            return batch.mean(soft(actor_loss, q, log_pi)), batch.mean(jax.vmap(entropy)(log_pi))

        (pi_loss, nats), grads = jax.value_and_grad(j_pi, has_aux=True)(learner.actor)
        updates, actor_opt = adam(hp["actor_lr"]).update(grads, learner.actor_opt)
        actor_params = optax.apply_updates(learner.actor, updates)

        # temperature: d J / d log alpha = entropy - target entropy
        updates, alpha_opt = adam(hp["temperature_lr"]).update(nats - target_entropy, learner.alpha_opt)
        log_alpha = learner.log_alpha + updates

        target_params = off_policy.move(learner.target, critic_params, hp["tau"], sync)
        learner = Learner(actor_params, critic_params, target_params, log_alpha, actor_opt, critic_opt, alpha_opt)
        metrics = {"critic_loss": q_loss, "actor_loss": pi_loss, "q": q_mean, "entropy": nats, "temperature": alpha}
        return learner, metrics

    def learn(hp: HP, state: State, rollout: Transition, key: jax.Array, i: jax.Array) -> tuple[State, dict]:
        data = buffer.insert(state.replay, rollout, i)
        stats = state.obs_stats
        if stats is not None:
            stats = normalize.update(stats, rollout.obs.reshape(-1, *spec.obs_shape), rollout.weight.ravel())

        def one(learner: Learner, key: jax.Array, u: jax.Array) -> tuple[Learner, dict]:
            windows = buffer.sample(data, key, c.batch_size, i, c.n_step)
            sync = off_policy.completes(plan, c.target_period, i, u)
            return update(hp, learner, off_policy.batch(windows, hp["gamma"], stats), sync)

        learner, metrics = off_policy.updates(plan, one, state.learner, key, i)
        return State(learner, data, stats), metrics

    return Agent(init, lambda hp, state, key: (), act, greedy, learn, c.num_envs, c.rollout_length, value)
