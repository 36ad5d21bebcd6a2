"""Twin delayed deep deterministic policy gradients, TD3 (Fujimoto et al. 2018, arXiv 1802.09477, algorithm 1).

    for each environment step: a = pi(s) + eps, eps ~ N(0, exploration_noise); store (s, a, r, s')
    for each gradient step:
        a' = pi'(s') + clip(N(0, target_noise), -target_noise_clip, target_noise_clip)      (section 5.3)
        y  = r + gamma min_i Q'_i(s', a')                                                   (eq. 10)
        theta_i <- theta_i - lr grad (Q_i(s, a) - y)^2           for the two critics
        every policy_delay-th:
            phi <- phi + lr grad Q_1(s, pi_phi(s))
            theta'_i, phi' <- tau (theta_i, phi) + (1 - tau) (theta'_i, phi')

With `prioritized` (s, a, r, s') is drawn in proportion to max(1, max_i |Q_i(s, a) - y|)^priority_exponent, as of its last
update, and critics have the Huber loss: LAP (Fujimoto et al. 2020, arXiv 2007.06049, section 4). New ones have the highest
priority so far.

Deviations from the paper, with reasons:
- both noisy actions are clipped to [-1, 1] (as the authors' own code does it): the critics know no others;
- the actor ends in a tanh, whose image is that box;
- `n_step` > 1 replaces r + gamma Q' by an n-step return cut at either ending, not corrected for being off-policy;
- time limits are no terminations: they bootstrap from the true next observation.

Noise is in units of the action in [-1, 1]^d. Defaults against their source, section 6.1 of the paper; the authors' code was
changed later to 256 x 256 units, step size 3e-4 and batches of 256, for comparisons with SAC:

| field | here | paper |
|---|---|---|
| actor_lr, critic_lr | 1e-3 | same, Adam |
| gamma, tau, policy_delay | 0.99, 0.005, 2 | same |
| replay_capacity, batch_size | 1e6, 100 | the whole history of 1e6 steps, 100 |
| hidden_sizes, activation | (400, 300), relu | same |
| exploration_noise, target_noise, target_noise_clip | 0.1, 0.2, 0.5 | same |
| updates_per_step | 1 | 1 |
| learning_starts | 1000 | same; 10,000 for HalfCheetah and Ant |
| num_envs x rollout_length | 1 x 1 | same |
| normalize_obs | False | not in the paper |
| prioritized, priority_exponent | False, 0.4 | not in the paper; Fujimoto et al. 2020: True, 0.4 |

Metric `actor_loss` is that of the latest policy update, 0 before the first one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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
from rlx.errors import RlxError
from rlx.networks import MLP, Critic, ensemble, features
from rlx.off_policy import Batch
from rlx.types import HP, Agent, EnvSpec, PyTree, Transition


@dataclass(frozen=True)
class Config(base.Config):
    num_envs: int = 1  # environments of one run
    rollout_length: int = 1  # steps of each environment per iteration
    updates_per_step: float = 1.0  # gradient updates of the critics per environment step
    learning_starts: int = 1_000  # env steps of uniformly random actions before the first update
    batch_size: int = 100  # transitions of one update
    replay_capacity: int = 1_000_000  # transitions kept, of all environments of one run
    n_step: int = 1  # steps of the return before bootstrapping
    policy_delay: int = 2  # updates of the critics between two of the actor and of all targets
    hidden_sizes: tuple[int, ...] = (400, 300)  # widths of actor and critics
    activation: Literal["relu", "tanh", "elu", "silu", "gelu"] = "relu"  # of every hidden layer
    normalize_obs: bool = False  # by running mean and variance (vectors only)
    prioritized: bool = False  # draw windows by their errors (LAP), with the Huber loss
    actor_lr: Traced[float] = 1e-3  # Adam's step size, actor
    critic_lr: Traced[float] = 1e-3  # Adam's step size, critics
    exploration_noise: Traced[float] = 0.1  # standard deviation of the noise added to actions in [-1, 1]
    target_noise: Traced[float] = 0.2  # standard deviation of the noise added to the target actor's actions
    target_noise_clip: Traced[float] = 0.5  # the most that this noise may be
    gamma: Traced[float] = 0.99  # discount
    tau: Traced[float] = 0.005  # step of the target networks
    priority_exponent: Traced[float] = 0.4  # of the errors that windows are drawn by, if prioritized; 0: uniformly

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "default": {},
        # for CPUs: widths 64, a small replay
        "small": {"hidden_sizes": (64, 64), "batch_size": 128, "replay_capacity": 100_000},
    }


class Policy(struct.PyTreeNode):
    """What moves every `policy_delay` updates: the actor, and every target."""

    actor: PyTree
    target_actor: PyTree
    target_critic: PyTree
    actor_opt: PyTree
    loss: jax.Array


class Learner(struct.PyTreeNode):
    """What gradient updates change: small next to the replay, so that a conditional may return it."""

    critic: PyTree
    critic_opt: PyTree
    policy: Policy


class State(struct.PyTreeNode):
    learner: Learner
    replay: PyTree
    obs_stats: normalize.Stats | None = None
    priorities: PyTree = ()  # of the replay's windows, if prioritized


class Actor(nn.Module):
    """obs `[..., *obs_shape]` -> action `[..., d]` in [-1, 1]."""

    config: Config
    spec: EnvSpec

    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        x = MLP(self.config.hidden_sizes, self.config.activation)(
            features(self.config.hidden_sizes, self.config.activation, self.spec.obs_shape)(obs)
        )
        return jnp.tanh(nn.Dense(self.spec.action_dim, name="action")(x))


# --- of one sample -----------------------------------------------------------------------------------------------------


def noisy(action: jax.Array, noise: jax.Array, clip: jax.Array | float = jnp.inf) -> jax.Array:
    """The action `[d]` plus the noise `[d]`, which is clipped to [-clip, clip], within [-1, 1]^d."""
    chex.assert_rank(action, 1)
    chex.assert_equal_shape([action, noise])
    return jnp.clip(action + jnp.clip(noise, -clip, clip), -1.0, 1.0)


def critic_loss(q: jax.Array, target: jax.Array, huber: bool = False) -> jax.Array:
    """`sum_i (Q_i - y)^2` over both critics, or of the Huber loss (delta 1), half of it at small errors: `q` `[2]`."""
    chex.assert_rank([q, target], [1, 0])
    error = q - target
    return (optax.huber_loss(error) if huber else error**2).sum()


# --- the agent ---------------------------------------------------------------------------------------------------------


def make(config: Config, spec: EnvSpec) -> Agent:
    """TD3 for an environment. Raises RlxError for discrete actions, vector rewards and update counts that are not whole."""
    c = config
    if spec.num_actions is not None:
        raise RlxError(f"td3 needs continuous actions; {spec.name} has {spec.num_actions} discrete ones: use sac_discrete")
    plan, buffer = off_policy.plan(c, spec, "td3")
    drawing = off_policy.drawing(c, buffer)
    loss_of = partial(critic_loss, huber=c.prioritized)
    actor, critics = Actor(c, spec), ensemble(Critic, 2)(c.hidden_sizes, c.activation, spec.obs_shape)
    policy: Callable[..., Any] = actor.apply
    q_values: Callable[..., Any] = critics.apply
    q_value: Callable[..., Any] = Critic(c.hidden_sizes, c.activation, spec.obs_shape).apply
    adam = optax.adam

    def init(hp: HP, key: jax.Array) -> State:
        obs, action = jnp.zeros(spec.obs_shape, spec.obs_dtype), jnp.zeros(spec.action_dim)
        actor_params = actor.init(jax.random.fold_in(key, 0), obs)
        critic_params = critics.init(jax.random.fold_in(key, 1), obs, action)
        target_actor, target_critic = jax.tree.map(jnp.copy, (actor_params, critic_params))
        actor_opt = adam(hp["actor_lr"]).init(actor_params)
        pi = Policy(actor_params, target_actor, target_critic, actor_opt, jnp.zeros((), jnp.float32))
        learner = Learner(critic_params, adam(hp["critic_lr"]).init(critic_params), pi)
        return State(learner, buffer.init(), normalize.init_obs(spec, c.normalize_obs), drawing.init())

    def action_of(state: State, obs: jax.Array) -> jax.Array:
        return policy(state.learner.policy.actor, normalize.observe(state.obs_stats, obs))

    def act(hp: HP, state: State, memory: tuple, obs: jax.Array, key: jax.Array, i: jax.Array) -> tuple:
        explore = lambda: jax.random.uniform(key, (spec.action_dim,), minval=-1.0, maxval=1.0)
        noise = lambda: hp["exploration_noise"] * jax.random.normal(key, (spec.action_dim,))
        return jax.lax.cond(i < plan.random, explore, lambda: noisy(action_of(state, obs), noise())), memory, ()

    def greedy(hp: HP, state: State, memory: tuple, obs: jax.Array, key: jax.Array) -> tuple:
        return action_of(state, obs), memory

    def value(hp: HP, state: State, obs: jax.Array) -> jax.Array:
        """Of the greedy action, by the critic that says less."""
        return q_values(state.learner.critic, normalize.observe(state.obs_stats, obs), action_of(state, obs)).min()

    def update(hp: HP, learner: Learner, batch: Batch, delayed: jax.Array, key: jax.Array) -> tuple[Learner, PyTree, dict]:
        """One update of the critics -> learner, priorities by those before, metrics; `delayed`: of actor and targets, too."""
        # targets: the (n-step) return, bootstrapped from the true successor with a smoothed action
        noise = hp["target_noise"] * jax.random.normal(key, batch.action.shape)
        next_action = policy(learner.policy.target_actor, batch.next_obs)
        next_action = jax.vmap(noisy, (0, 0, None))(next_action, noise, hp["target_noise_clip"])
        next_q = q_values(learner.policy.target_critic, batch.next_obs, next_action).min(0)
        target = batch.return_ + batch.discount * next_q

        # critics
        def j_q(params: PyTree) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            q = q_values(params, batch.obs, batch.action)
            return batch.mean(jax.vmap(loss_of, (1, 0))(q, target)), (batch.mean(q.mean(0)), q)

        (q_loss, (q_mean, q)), grads = jax.value_and_grad(j_q, has_aux=True)(learner.critic)
        updates, critic_opt = adam(hp["critic_lr"]).update(grads, learner.critic_opt)
        critic_params = optax.apply_updates(learner.critic, updates)
        priority = batch.priorities(q, target, hp["priority_exponent"]) if c.prioritized else ()

        # actor, by the first critic alone, and targets
        def improve(pi: Policy) -> Policy:
            first = jax.tree.map(lambda x: x[0], critic_params)
            j_pi = lambda params: -batch.mean(q_value(first, batch.obs, policy(params, batch.obs)))
            loss, grads = jax.value_and_grad(j_pi)(pi.actor)
            updates, actor_opt = adam(hp["actor_lr"]).update(grads, pi.actor_opt)
            actor_params = optax.apply_updates(pi.actor, updates)
            move = lambda target, online: off_policy.move(target, online, hp["tau"], jnp.bool_(True))
            target_actor, target_critic = move(pi.target_actor, actor_params), move(pi.target_critic, critic_params)
            return Policy(actor_params, target_actor, target_critic, actor_opt, loss)

        pi = jax.lax.cond(delayed, improve, lambda pi: pi, learner.policy)
        metrics = {"critic_loss": q_loss, "actor_loss": pi.loss, "q": q_mean}
        return Learner(critic_params, critic_opt, pi), priority, metrics

    def learn(hp: HP, state: State, rollout: Transition, key: jax.Array, i: jax.Array) -> tuple[State, dict]:
        data = buffer.insert(state.replay, rollout, i)
        stats = state.obs_stats
        if stats is not None:
            stats = normalize.update(stats, rollout.obs.reshape(-1, *spec.obs_shape), rollout.weight.ravel())

        def one(learner: Learner, priority: PyTree, key: jax.Array, u: jax.Array) -> tuple[Learner, PyTree, PyTree, dict]:
            slots, windows = drawing.draw(data, priority, jax.random.fold_in(key, 0), i)
            batch = off_policy.batch(windows, hp["gamma"], stats)
            delayed = off_policy.completes(plan, c.policy_delay, i, u)
            learner, priority, metrics = update(hp, learner, batch, delayed, jax.random.fold_in(key, 1))
            return learner, slots, priority, metrics

        priority = drawing.admit(state.priorities, i)
        learner, priority, metrics = off_policy.prioritised_updates(plan, one, state.learner, priority, key, i)
        return State(learner, data, stats, priority), metrics

    return Agent(init, lambda hp, state, key: (), act, greedy, learn, c.num_envs, c.rollout_length, value)
