"""Evaluation in graph: exactly n episodes of the greedy policy for every run of a population."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from rlx.loop import draw_memory
from rlx.types import STREAM_EVALUATE, Agent, PyTree, Runs, VecEnv, keys_for, stream

_RESET, _MEMORY, _ACT, _STEP = range(4)


def evaluate(
    agent: Agent, vec: VecEnv, reward_shape: tuple[int, ...], runs: Runs, key: jax.Array, max_episode_steps: jax.Array
) -> jax.Array:
    """Undiscounted returns of one episode in each of vec's E environments -> float32 `[R, E]` or `[R, E, m]`.

    Every run is evaluated with its own environment parameters and with the evaluation stream of `fold_in(key, seed)`: its
    returns do not depend on its company, and its episodes are not those of its training, whatever `key` is. An episode
    that has not ended after `max_episode_steps`, or whose simulator emitted NaN, is NaN: a partial return would pass for a
    bad one. `vec` must not reset by itself.
    """

    def key_of(run: Runs) -> jax.Array:
        return stream(jax.random.fold_in(key, run.seed), STREAM_EVALUATE)

    def begin(run: Runs) -> tuple[PyTree, jax.Array, PyTree, jax.Array, jax.Array]:
        run_key = key_of(run)
        env, obs = vec.reset(stream(run_key, _RESET), run.env_params)
        memory = draw_memory(agent, run.hp, run.agent, stream(run_key, _MEMORY), vec.num_envs)
        alive = jnp.ones(vec.num_envs, bool)
        return env, obs, memory, alive, jnp.zeros((vec.num_envs, *reward_shape), jnp.float32)

    def step(run: Runs, episode: tuple, t: jax.Array) -> tuple:
        env, obs, memory, alive, returns = episode
        run_key = key_of(run)
        act_keys = keys_for(stream(run_key, _ACT, t), vec.num_envs)
        act = lambda memory, obs, k: agent.greedy(run.hp, run.agent, memory, obs, k)
        action, memory = jax.vmap(act)(memory, obs, act_keys)
        env, out = vec.step(stream(run_key, _STEP, t), env, action, run.env_params)
        wide = lambda x: x.reshape(x.shape + (1,) * (returns.ndim - x.ndim))
        reward = jnp.where(wide(out.weight > 0), out.reward, jnp.nan)
        returns = returns + jnp.where(wide(alive), reward, 0.0)
        return env, out.next_obs, memory, alive & ~(out.terminated | out.truncated), returns

    def unfinished(state: tuple[jax.Array, tuple]) -> jax.Array:
        t, (*_, alive, _) = state
        return alive.any() & (t < max_episode_steps)

    def advance(state: tuple[jax.Array, tuple]) -> tuple[jax.Array, tuple]:
        t, episodes = state
        return t + 1, jax.vmap(step, (0, 0, None))(runs, episodes, t)

    _, (*_, alive, returns) = jax.lax.while_loop(unfinished, advance, (jnp.int32(0), jax.vmap(begin)(runs)))
    return jnp.where(alive.reshape(alive.shape + (1,) * (returns.ndim - alive.ndim)), jnp.nan, returns)
