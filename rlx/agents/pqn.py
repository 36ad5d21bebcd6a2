"""PQN: deep Q-learning without replay and target network (Gallici et al. 2025, arXiv 2407.04811, algorithm 1).

    for iteration = 1, 2, ...
        act epsilon-greedily in N environments for T steps                              (the loop)
        lambda-returns, backwards from max_a Q of the last next observation:
            G_t = r_t + gamma (lambda G_{t+1} + (1 - lambda) max_a Q(s_{t+1}, a)),      r_t where s_{t+1} is terminal
        for K epochs, for M minibatches: theta <- theta - lr grad (Q(s, a) - G)^2 / 2

What stands in for the target network is LayerNorm after each layer (their theorem 2), over channels after convolutions.

Deviations from the authors' code (purejaxql), with reasons:
- time limits are no terminations: they bootstrap from the true next observation, and cut the return there;
- lr does not decay (theirs does except on Atari): an agent does not know how long it is trained;
- epsilon is a function of absolute env steps, not of a share of the run;
- observations and rewards may be normalised by running statistics as in PPO: off by default. Theirs may be by BatchNorm, and
  rewards by a constant.

Defaults against their source, purejaxql's `pqn_atari.yaml` (values for MinAtar, CartPole in brackets):

| field | here | source |
|---|---|---|
| num_envs x rollout_length | 125 x 32 | 128 x 32 (same, 32 x 64): 4000 divides round budgets |
| num_epochs, num_minibatches | 2, 32 | same (same; 4, 16) |
| lr | 2.5e-4 | same (5e-4, 1e-4) |
| gamma, td_lambda | 0.99, 0.65 | same (same; 0.99, 0.95) |
| epsilon_start, epsilon_end | 1, 0.001 | same (0.05, 0.2 at the end) |
| epsilon_steps | 1e6 | a tenth of 1e7 steps (same; a fifth of 5e5) |
| max_grad_norm | 10 | same |
| hidden_sizes, activation | (512,), relu | same, after the same convolutions (128; 256, 256) |
| RAdam, he_normal kernels | | same |
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
from rlx import counters, exploration, minibatches, normalize, returns
from rlx.config import Traced
from rlx.errors import RlxError
from rlx.networks import Torso
from rlx.types import HP, Agent, EnvSpec, PyTree, Transition


@dataclass(frozen=True)
class Config(base.Config):
    num_envs: int = 125  # environments of one run
    rollout_length: int = 32  # steps of each environment per iteration
    num_epochs: int = 2  # passes over a rollout
    num_minibatches: int = 32  # minibatches of one pass
    hidden_sizes: tuple[int, ...] = (512,)  # widths of the dense layers
    activation: Literal["relu", "tanh", "elu", "silu", "gelu"] = "relu"  # of every hidden layer
    normalize_obs: bool = False  # by running mean and variance (vectors only)
    normalize_reward: bool = False  # by the running deviation of the discounted return
    lr: Traced[float] = 2.5e-4  # RAdam's step size
    gamma: Traced[float] = 0.99  # discount
    td_lambda: Traced[float] = 0.65  # lambda of the returns
    max_grad_norm: Traced[float] = 10.0  # global norm of the gradient
    epsilon_start: Traced[float] = 1.0  # share of random actions at the first env step
    epsilon_end: Traced[float] = 0.001  # share of random actions from epsilon_steps on
    epsilon_steps: Traced[float] = 1_000_000.0  # env steps from one to the other

    bounds: ClassVar[dict[str, tuple[float, float]]] = {"td_lambda": (0, 1)}
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "default": {},
        # for CPUs
        "small": {
            "num_envs": 25,
            "rollout_length": 40,
            "num_epochs": 4,
            "num_minibatches": 10,
            "hidden_sizes": (64, 64),
            "lr": 1e-3,
            "epsilon_end": 0.05,
            "epsilon_steps": 50_000.0,
        },
    }


class State(struct.PyTreeNode):
    params: PyTree
    opt_state: PyTree
    obs_stats: normalize.Stats | None = None
    return_stats: normalize.ReturnStats | None = None


class QNetwork(nn.Module):
    """obs `[..., *obs_shape]` -> Q `[..., A]`, normalised after each layer but the last."""

    config: Config
    obs_shape: tuple[int, ...]
    num_actions: int

    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        c, kernels = self.config, nn.initializers.he_normal()
        torso = Torso(c.hidden_sizes, c.activation, kernels, layer_norm=True, obs_shape=self.obs_shape, name="torso")
        return nn.Dense(self.num_actions, name="q")(torso(obs))


# --- targets and loss ----------------------------------------------------------------------------------------------------


def targets(hp: HP, rollout: Transition, reward: jax.Array, value: jax.Array, next_value: jax.Array) -> jax.Array:
    """Lambda-returns float32`[T, N]`, from `max_a Q` of observations and true successors `[T, N]`.

    A step of weight 0, truncated by contract, stands for what its observation is worth: earlier steps bootstrap from there.
    """
    chex.assert_equal_shape([reward, value, next_value, rollout.weight])
    counts = rollout.weight > 0
    reward, next_value = jnp.where(counts, reward, value), jnp.where(counts, next_value, 0.0)
    over_time = jax.vmap(returns.lambda_returns, in_axes=(1, 1, 1, 1, None, None), out_axes=1)
    return over_time(reward, next_value, rollout.terminated, rollout.truncated, hp["gamma"], hp["td_lambda"])


def loss(q: jax.Array, action: jax.Array, target: jax.Array) -> jax.Array:
    """`(Q(s, a) - G)^2 / 2` of one sample: `q` `[A]`, the others scalars."""
    chex.assert_rank([q, action, target], [1, 0, 0])
    return 0.5 * (q[action] - target) ** 2


# --- the agent -----------------------------------------------------------------------------------------------------------


def make(config: Config, spec: EnvSpec) -> Agent:
    """PQN for an environment. Raises RlxError for continuous actions, vector rewards and minibatches that do not divide."""
    c = config
    if spec.num_actions is None:
        raise RlxError(f"pqn needs discrete actions; {spec.name} has {spec.action_dim} continuous ones: use ppo or sac")
    size = c.num_envs * c.rollout_length
    minibatches.check(c, spec, "pqn", "num_envs * rollout_length", size)
    network = QNetwork(c, spec.obs_shape, spec.num_actions)
    q_values: Callable[..., Any] = network.apply

    def optimiser(hp: HP) -> optax.GradientTransformation:
        return optax.chain(optax.clip_by_global_norm(hp["max_grad_norm"]), optax.radam(hp["lr"]))

    def init(hp: HP, key: jax.Array) -> State:
        params = network.init(key, jnp.zeros(spec.obs_shape, spec.obs_dtype))
        return_stats = normalize.init_returns(c.num_envs) if c.normalize_reward else None
        return State(params, optimiser(hp).init(params), normalize.init_obs(spec, c.normalize_obs), return_stats)

    def q_of(state: State, obs: jax.Array) -> jax.Array:
        return q_values(state.params, normalize.observe(state.obs_stats, obs))

    def reward_scale(state: State) -> jax.Array:
        return jnp.float32(1.0) if state.return_stats is None else normalize.scale(state.return_stats)

    def epsilon(hp: HP, i: jax.Array) -> jax.Array:
        return exploration.epsilon(hp, counters.env_steps(i, size))

    def act(hp: HP, state: State, memory: tuple, obs: jax.Array, key: jax.Array, i: jax.Array) -> tuple:
        q = q_of(state, obs)
        return exploration.epsilon_greedy(key, q, epsilon(hp, i)), memory, {"value": q.max()}

    def greedy(hp: HP, state: State, memory: tuple, obs: jax.Array, key: jax.Array) -> tuple:
        return exploration.greedy(q_of(state, obs)), memory

    def value(hp: HP, state: State, obs: jax.Array) -> jax.Array:
        return q_of(state, obs).max() / reward_scale(state)

    def learn(hp: HP, state: State, rollout: Transition, key: jax.Array, i: jax.Array) -> tuple[State, dict]:
        obs_stats, return_stats = state.obs_stats, state.return_stats
        if return_stats is not None:
            done = rollout.terminated | rollout.truncated
            return_stats = normalize.update_returns(return_stats, rollout.reward, done, rollout.weight, hp["gamma"])
            state = state.replace(return_stats=return_stats)
        next_value = q_of(state, rollout.next_obs).max(-1)
        data = {
            "obs": normalize.observe(obs_stats, rollout.obs), "action": rollout.action, "weight": rollout.weight,
            "target": targets(hp, rollout, rollout.reward * reward_scale(state), rollout.extras["value"], next_value),
        }  # fmt: skip
        data = jax.tree.map(lambda x: x.reshape(size, *x.shape[2:]), data)  # [T, N] -> [T * N]

        def objective(params: PyTree, batch: dict[str, jax.Array]) -> tuple[jax.Array, dict]:
            q = q_values(params, batch["obs"])
            mean = lambda x: normalize.weighted_mean(x, batch["weight"])
            td_loss = mean(jax.vmap(loss)(q, batch["action"], batch["target"]))
            return td_loss, {"loss": td_loss, "q": mean(q.max(-1))}

        params, opt_state, metrics = minibatches.optimise(c, objective, optimiser(hp), state, data, key)
        if obs_stats is not None:
            obs_stats = normalize.update(obs_stats, rollout.obs.reshape(size, -1), rollout.weight.reshape(size))
        return State(params, opt_state, obs_stats, return_stats), metrics | {"epsilon": epsilon(hp, i)}

    return Agent(init, lambda hp, state, key: (), act, greedy, learn, c.num_envs, c.rollout_length, value)
