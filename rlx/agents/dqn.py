"""Deep Q-learning (Mnih et al. 2015, Nature 518, algorithm 1), by default with double Q-learning, optionally dueling.

    for each environment step: with probability epsilon a random action, else argmax_a Q(s, a); store (s, a, r, s')
    for each gradient step:
        y = r                                             if s' is terminal
            r + gamma Q'(s', argmax_a Q(s', a))           else      (van Hasselt et al. 2016, arXiv 1509.06461, eq. 4)
        theta <- theta - lr grad (Q(s, a) - y)^2 / 2
        every target_period updates: theta' <- theta

Without `double` Q' chooses too. With `dueling` Q = V + A - mean_a A (Wang et al. 2016, arXiv 1511.06581, eq. 9): convolutions
and all dense layers but the last are shared, the last is one of each stream.

With `prioritized` (s, a, r, s') is drawn in proportion to max(1, |Q(s, a) - y|)^priority_exponent, as of its last update, and
the loss is the Huber loss: LAP (Fujimoto et al. 2020, arXiv 2007.06049, section 4). New ones have the highest priority so far.

Deviations, with reasons:
- the error is squared, not clipped to [-1, 1] (the Huber loss), unless `prioritized`, when large ones are drawn more often.
  Rewards are not clipped here either, and where errors are larger than 1 the clip fits a median: on CartPole, whose terminal
  steps are few, Q grew past 10,000 where 100 is the most there is. Obando-Ceron & Castro 2021 (arXiv 2011.14826) find Adam
  with the squared error better on Atari, too;
- Adam, with the step size and eps that Rainbow (Hessel et al. 2018, arXiv 1710.02298, table 1) found for it, for RMSProp;
- the gradient is clipped by its global norm, as Wang et al. do it; they also scale what enters the shared layers by 1/sqrt 2,
  which Adam all but undoes;
- epsilon is a function of absolute env steps; the authors' code starts to count where learning starts;
- `n_step` > 1 replaces r + gamma V(s') by an n-step return cut at either ending, not corrected for being off-policy;
- time limits are no terminations: they bootstrap from the true next observation.

Defaults against their source, the paper's extended data table 1:

| field | here | paper |
|---|---|---|
| batch_size, replay_capacity | 32, 1e6 | same |
| target_period, tau | 10,000 updates, 1 | same |
| gamma | 0.99 | same |
| num_envs x rollout_length, updates_per_step | 1 x 4, 0.25 | an update every 4 actions |
| epsilon_start, epsilon_end, epsilon_steps | 1, 0.1, 1e6 | 1, 0.1, 1e6 frames |
| learning_starts | 50,000 | 50,000 frames |
| lr, Adam eps | 6.25e-5, 1.5e-4 | RMSProp, 2.5e-4; Rainbow: as here |
| max_grad_norm | 10 | none; Wang et al.: 10 |
| hidden_sizes, activation | (512,), relu | same, after the convolutions of `networks.NATURE` |
| double | True | not in the paper |
| n_step, dueling | 1, False | same |
| prioritized, priority_exponent | False, 0.6 | not in the paper; Fujimoto et al. on Atari: True, 0.6 |
| normalize_obs | False | not in the paper |
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
from rlx import counters, exploration, normalize, off_policy
from rlx.config import Traced
from rlx.errors import RlxError
from rlx.networks import MLP, Torso
from rlx.off_policy import Batch
from rlx.types import HP, Agent, EnvSpec, PyTree, Transition


@dataclass(frozen=True)
class Config(base.Config):
    num_envs: int = 1  # environments of one run
    rollout_length: int = 4  # steps of each environment per iteration
    updates_per_step: float = 0.25  # gradient updates per environment step
    learning_starts: int = 50_000  # env steps of uniformly random actions before the first update
    batch_size: int = 32  # transitions of one update
    replay_capacity: int = 1_000_000  # transitions kept, of all environments of one run
    n_step: int = 1  # steps of the return before bootstrapping
    target_period: int = 10_000  # updates between two steps of the target network
    double: bool = True  # the online network chooses the action whose target value is bootstrapped from
    dueling: bool = False  # separate streams for the value and the actions' advantages
    prioritized: bool = False  # draw windows by their errors (LAP), with the Huber loss
    hidden_sizes: tuple[int, ...] = (512,)  # widths of the dense layers
    activation: Literal["relu", "tanh", "elu", "silu", "gelu"] = "relu"  # of every hidden layer
    normalize_obs: bool = False  # by running mean and variance (vectors only)
    lr: Traced[float] = 6.25e-5  # Adam's step size
    gamma: Traced[float] = 0.99  # discount
    tau: Traced[float] = 1.0  # step of the target network; 1 copies
    max_grad_norm: Traced[float] = 10.0  # global norm of the gradient
    epsilon_start: Traced[float] = 1.0  # share of random actions at the first env step
    epsilon_end: Traced[float] = 0.1  # share of random actions from epsilon_steps on
    epsilon_steps: Traced[float] = 1_000_000.0  # env steps from one to the other
    priority_exponent: Traced[float] = 0.6  # of the errors that windows are drawn by, if prioritized; 0: uniformly

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "default": {},
        # for CPUs
        "small": {
            "num_envs": 4,
            "rollout_length": 1,
            "learning_starts": 1_000,
            "batch_size": 64,
            "replay_capacity": 50_000,
            "n_step": 3,
            "target_period": 100,
            "hidden_sizes": (64, 64),
            "lr": 1e-3,
            "epsilon_end": 0.05,
            "epsilon_steps": 10_000.0,
        },
    }


class Learner(struct.PyTreeNode):
    """What gradient updates change: small next to the replay, so that a conditional may return it."""

    params: PyTree
    target: PyTree
    opt_state: PyTree


class State(struct.PyTreeNode):
    learner: Learner
    replay: PyTree
    obs_stats: normalize.Stats | None = None
    priorities: PyTree = ()  # of the replay's windows, if prioritized


class QNetwork(nn.Module):
    """obs `[..., *obs_shape]` -> Q `[..., A]`."""

    config: Config
    obs_shape: tuple[int, ...]
    num_actions: int

    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        c, actions = self.config, self.num_actions
        torso = lambda sizes: Torso(sizes, c.activation, obs_shape=self.obs_shape, name="torso")(obs)
        if not c.dueling:
            return nn.Dense(actions, name="q")(torso(c.hidden_sizes))
        shared = torso(c.hidden_sizes[:-1])
        stream = lambda name: MLP(c.hidden_sizes[-1:], c.activation, name=f"{name}_hidden")(shared)
        value, advantage = nn.Dense(1, name="value")(stream("value")), nn.Dense(actions, name="advantage")(stream("advantage"))
        return value + advantage - advantage.mean(-1, keepdims=True)


# --- of one sample -------------------------------------------------------------------------------------------------------


def next_value(chooser: jax.Array, q: jax.Array) -> jax.Array:
    """`q[argmax chooser]`, both `[A]` of the next observation: `max q` where they are the same."""
    chex.assert_rank(chooser, 1)
    chex.assert_equal_shape([chooser, q])
    return q[exploration.greedy(chooser)]


def loss(q: jax.Array, action: jax.Array, target: jax.Array, huber: bool = False) -> jax.Array:
    """`(Q(s, a) - y)^2 / 2` of one sample, or the Huber loss (delta 1): `q` `[A]`, the others scalars."""
    chex.assert_rank([q, action, target], [1, 0, 0])
    error = q[action] - target
    return optax.huber_loss(error) if huber else 0.5 * error**2


# --- the agent -----------------------------------------------------------------------------------------------------------


def make(config: Config, spec: EnvSpec) -> Agent:
    """DQN for an environment. Raises RlxError for continuous actions, vector rewards and update counts that are not whole."""
    c = config
    if spec.num_actions is None:
        raise RlxError(f"dqn needs discrete actions; {spec.name} has {spec.action_dim} continuous ones: use sac")
    plan, buffer = off_policy.plan(c, spec, "dqn")
    drawing = off_policy.drawing(c, buffer)
    loss_of = partial(loss, huber=c.prioritized)
    network = QNetwork(c, spec.obs_shape, spec.num_actions)
    q_values: Callable[..., Any] = network.apply

    def optimiser(hp: HP) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(hp["max_grad_norm"]), optax.adam(hp["lr"], eps=1.5e-4))

    def init(hp: HP, key: jax.Array) -> State:
        params = network.init(key, jnp.zeros(spec.obs_shape, spec.obs_dtype))
        learner = Learner(params, jax.tree.map(jnp.copy, params), optimiser(hp).init(params))
        return State(learner, buffer.init(), normalize.init_obs(spec, c.normalize_obs), drawing.init())

    def q_of(state: State, obs: jax.Array) -> jax.Array:
        return q_values(state.learner.params, normalize.observe(state.obs_stats, obs))

    def epsilon(hp: HP, i: jax.Array) -> jax.Array:
        """The schedule's; 1 until learning starts."""
        return jnp.where(i < plan.random, 1.0, exploration.epsilon(hp, counters.env_steps(i, c.num_envs * c.rollout_length)))

    def act(hp: HP, state: State, memory: tuple, obs: jax.Array, key: jax.Array, i: jax.Array) -> tuple:
        return exploration.epsilon_greedy(key, q_of(state, obs), epsilon(hp, i)), memory, ()

    def greedy(hp: HP, state: State, memory: tuple, obs: jax.Array, key: jax.Array) -> tuple:
        return exploration.greedy(q_of(state, obs)), memory

    def value(hp: HP, state: State, obs: jax.Array) -> jax.Array:
        return q_of(state, obs).max()

    def update(hp: HP, learner: Learner, batch: Batch, sync: jax.Array) -> tuple[Learner, PyTree, dict]:
        """One gradient update -> learner, priorities by the network before, metrics; `sync`: move the target network."""
        next_q = q_values(learner.target, batch.next_obs)
        chooser = q_values(learner.params, batch.next_obs) if c.double else next_q
        target = batch.return_ + batch.discount * jax.vmap(next_value)(chooser, next_q)

        def objective(params: PyTree) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            q = q_values(params, batch.obs)
            return batch.mean(jax.vmap(loss_of)(q, batch.action, target)), (batch.mean(q.max(-1)), q)

        (td_loss, (q_max, q)), grads = jax.value_and_grad(objective, has_aux=True)(learner.params)
        updates, opt_state = optimiser(hp).update(grads, learner.opt_state)
        params = optax.apply_updates(learner.params, updates)
        target_params = off_policy.move(learner.target, params, hp["tau"], sync)
        priority: PyTree = ()
        if c.prioritized:
            chosen = jax.vmap(lambda q, action: q[action])(q, batch.action)
            priority = batch.priorities(chosen[None], target, hp["priority_exponent"])
        return Learner(params, target_params, opt_state), priority, {"loss": td_loss, "q": q_max}

    def learn(hp: HP, state: State, rollout: Transition, key: jax.Array, i: jax.Array) -> tuple[State, dict]:
        data = buffer.insert(state.replay, rollout, i)
        stats = state.obs_stats
        if stats is not None:
            stats = normalize.update(stats, rollout.obs.reshape(-1, *spec.obs_shape), rollout.weight.ravel())

        def one(learner: Learner, priority: PyTree, key: jax.Array, u: jax.Array) -> tuple[Learner, PyTree, PyTree, dict]:
            slots, windows = drawing.draw(data, priority, key, i)
            sync = off_policy.completes(plan, c.target_period, i, u)
            learner, priority, metrics = update(hp, learner, off_policy.batch(windows, hp["gamma"], stats), sync)
            return learner, slots, priority, metrics

        priority = drawing.admit(state.priorities, i)
        learner, priority, metrics = off_policy.prioritised_updates(plan, one, state.learner, priority, key, i)
        return State(learner, data, stats, priority), metrics | {"epsilon": epsilon(hp, i)}

    return Agent(init, lambda hp, state, key: (), act, greedy, learn, c.num_envs, c.rollout_length, value)
