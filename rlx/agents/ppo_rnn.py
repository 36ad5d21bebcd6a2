"""PPO with a recurrent policy: a GRU (Cho et al. 2014, arXiv 1406.1078) between encoder and heads, for partial observability.

    at an episode's first step h = 0;  h <- GRU(encoder(obs), h);  pi(.|h), V(h)
    learn as PPO does (`rlx.agents.ppo`), with minibatches of whole sequences: h is recomputed from the rollout's first
    memory on, through the parameters being trained, and set to 0 again wherever an episode begins

What it takes to be right, and is easy to get wrong:
- memory is reset at the step that *begins* an episode (`first`), not at the one that ends it;
- at a time limit the bootstrap is V(next_obs) given the memory of the episode that was cut, one more GRU step on, not the
  value of the next episode's first observation;
- the memory at the start of a rollout is the one it was collected with (stale after the first minibatch, as in all truncated
  backpropagation: Kapturowski et al. 2019); gradients reach back to the start of the rollout.

Actor and critic share encoder and GRU. Defaults are PPO's, except where recurrence asks for others: minibatches divide
environments, not samples, hence more environments; one hidden layer before the GRU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import distrax
import flax.linen as nn
import jax
import jax.numpy as jnp

from rlx import minibatches, normalize
from rlx.agents import ppo
from rlx.agents.ppo import State
from rlx.networks import Torso, orthogonal
from rlx.types import HP, Agent, EnvSpec, PyTree, Transition


@dataclass(frozen=True)
class Config(ppo.Config):
    num_envs: int = 16  # environments of one run
    num_minibatches: int = 4  # minibatches of one pass, each of num_envs / num_minibatches whole sequences
    hidden_sizes: tuple[int, ...] = (64,)  # widths of the encoder
    memory_size: int = 64  # units of the GRU

    presets: ClassVar[dict[str, dict[str, Any]]] = {"default": {}}


class Core(nn.Module):
    """memory `[..., memory_size]`, obs `[..., *obs_shape]` -> the next memory, all that the heads see."""

    config: Config
    spec: EnvSpec

    @nn.compact
    def __call__(self, memory: jax.Array, obs: jax.Array) -> jax.Array:
        c = self.config
        x = Torso(c.hidden_sizes, c.activation, orthogonal(), obs_shape=self.spec.obs_shape, name="encoder")(obs)
        return nn.GRUCell(c.memory_size, recurrent_kernel_init=orthogonal(1.0), name="gru")(memory, x)[0]


class Heads(nn.Module):
    """memory `[..., memory_size]` -> policy over actions, value `[...]`."""

    spec: EnvSpec

    @nn.compact
    def __call__(self, memory: jax.Array) -> tuple[distrax.Distribution, jax.Array]:
        return ppo.heads(self, self.spec, memory, memory)


def unroll(step: Callable[..., jax.Array], memory: jax.Array, obs: jax.Array, first: jax.Array) -> jax.Array:
    """The memories after each of T steps `[T, memory_size]`, from the one before the first of them; 0 where `first`."""

    def one(memory: jax.Array, x: tuple) -> tuple[jax.Array, jax.Array]:
        obs, first = x
        memory = step(jnp.where(first, 0.0, memory), obs)
        return memory, memory

    return jax.lax.scan(one, memory, (obs, first))[1]


def make(config: Config, spec: EnvSpec) -> Agent:
    """Recurrent PPO. Raises RlxError for a vector reward and for minibatches that do not divide the environments."""
    c = config
    minibatches.check(c, spec, "ppo_rnn", "num_envs", c.num_envs)
    core, heads = Core(c, spec), Heads(spec)
    step: Callable[..., Any] = lambda params, memory, obs: core.apply(params["core"], memory, obs)
    read: Callable[..., Any] = lambda params, memory: heads.apply(params["heads"], memory)
    blank = jnp.zeros(c.memory_size)

    def init(hp: HP, key: jax.Array) -> State:
        core_params = core.init(jax.random.fold_in(key, 0), blank, jnp.zeros(spec.obs_shape, spec.obs_dtype))
        params = {"core": core_params, "heads": heads.init(jax.random.fold_in(key, 1), blank)}
        stats = normalize.init_obs(spec, c.normalize_obs)
        return State(params, ppo.optimiser(hp).init(params), stats, normalize.init_returns(c.num_envs))

    def advance(state: State, memory: jax.Array, obs: jax.Array) -> jax.Array:
        return step(state.params, memory, normalize.observe(state.obs_stats, obs))

    def act(hp: HP, state: State, memory: jax.Array, obs: jax.Array, key: jax.Array, i: jax.Array) -> tuple:
        after = advance(state, memory, obs)
        pi, value = read(state.params, after)
        raw, log_prob = pi.sample_and_log_prob(seed=key)
        extras = {"value": value, "log_prob": log_prob, "raw_action": raw, "memory": memory}
        return ppo.to_action(spec, raw), after, extras

    def greedy(hp: HP, state: State, memory: jax.Array, obs: jax.Array, key: jax.Array) -> tuple:
        after = advance(state, memory, obs)
        return ppo.to_action(spec, read(state.params, after)[0].mode()), after

    def value(hp: HP, state: State, obs: jax.Array) -> jax.Array:
        """Of an episode's first observation."""
        return read(state.params, advance(state, blank, obs))[1] / ppo.reward_scale(c, state)

    def learn(hp: HP, state: State, rollout: Transition, key: jax.Array, i: jax.Array) -> tuple[State, dict]:
        state = ppo.observe_rewards(hp, state, rollout)
        old = {"start": rollout.extras["memory"][0], "first": jnp.swapaxes(rollout.first, 0, 1)}
        after = lambda params, x: jax.vmap(lambda *one: unroll(lambda h, o: step(params, h, o), *one))(
            x["start"], x["obs"], x["first"]
        )

        # V(next_obs), one step on from the memory that acting left behind, [T, N]
        seen = {"obs": jnp.swapaxes(normalize.observe(state.obs_stats, rollout.obs), 0, 1)}
        memory = jnp.swapaxes(after(state.params, old | seen), 0, 1)
        next_value = read(state.params, advance(state, memory, rollout.next_obs))[1]
        data = ppo.samples(hp, state, rollout, rollout.reward * ppo.reward_scale(c, state), next_value)
        sequences = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), data)  # [N, T]

        def objective(params: PyTree, batch: dict[str, jax.Array]) -> tuple[jax.Array, dict]:
            memories = after(params, batch)
            flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), {k: batch[k] for k in data} | {"memory": memories})
            pi, value = read(params, flat["memory"])
            return ppo.loss(hp, pi, value, flat)

        optimiser = ppo.optimiser(hp)
        params, opt_state, metrics = minibatches.optimise(c, objective, optimiser, state, sequences | old, key)
        flat = [data[k].reshape(-1) for k in ("target", "value", "weight")]
        metrics["explained_variance"] = ppo.explained_variance(*flat)
        return State(params, opt_state, ppo.observe_obs(state, rollout), state.return_stats), metrics

    return Agent(init, lambda hp, state, key: blank, act, greedy, learn, c.num_envs, c.rollout_length, value)
