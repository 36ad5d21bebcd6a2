"""THE loop: collect -> learn, for a population, as one program.

    scan over iterations                                 (outside, so that the counter i is shared and unbatched)
      vmap over runs                                     (hyperparameters, environment parameters, seeds)
        scan over T steps of N environments   -> rollout [T, N]
        agent.learn(rollout)
      population hook                                    (the only place where runs meet)

Since `i` is unbatched, "learning has not started" or "every 250 updates" are conditionals that stay conditionals in a
population. Nothing is stacked over iterations: memory does not depend on how long a run is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rlx import types
from rlx.masks import where
from rlx.types import HP, Agent, Carry, PyTree, Runs, Transition, VecEnv, keys_for, stream

# population(pop, runs, returns, key, i) -> pop, runs. `returns` `[R(, m)]` are the mean returns of the training episodes that
# ended in this iteration, NaN where none did.
Population = Callable[[PyTree, Runs, jax.Array, jax.Array, jax.Array], tuple[PyTree, Runs]]
Iterate = Callable[[Runs, jax.Array], tuple[Runs, "Totals"]]  # `iterate` with agent and environment bound

MAX_REPORT = 2**31  # env steps of one run between two reports, whose counts are int32


class Totals(struct.PyTreeNode):
    """Sums since the last report; leaves `[R, ...]`. `learn` holds sums over updates of every metric of the learner.

    Sums and not means, so that adding up segments gives the same bits as one long segment.
    """

    learn: dict[str, jax.Array]
    updates: jax.Array
    episode_return: jax.Array
    episode_length: jax.Array
    episodes: jax.Array
    nan_steps: jax.Array


def init_run(agent: Agent, vec: VecEnv, hp: HP, env_params: PyTree, seed: jax.Array, root: jax.Array) -> Runs:
    """The state of one run before its first step (no run axis; vmapped by the trainer)."""
    key = jax.random.fold_in(root, seed)
    env, obs = vec.reset(stream(key, types.STREAM_RESET), env_params)
    state = agent.init(hp, stream(key, types.STREAM_INIT))
    memory = draw_memory(agent, hp, state, stream(key, types.STREAM_MEMORY), vec.num_envs)
    first = jnp.ones(vec.num_envs, bool)
    return Runs(hp, env_params, state, memory, env, obs, first, key, seed)


def draw_memory(agent: Agent, hp: HP, state: PyTree, key: jax.Array, n: int) -> PyTree:
    """Fresh memories of n environments, `[n, ...]`."""
    return jax.vmap(lambda k: agent.memory(hp, state, k))(keys_for(key, n))


def collect(agent: Agent, vec: VecEnv, run: Runs, i: jax.Array) -> tuple[Runs, Transition]:
    """T steps of N environments of one run -> (run, rollout `[T, N]`)."""
    n = vec.num_envs

    def one_step(scanned: tuple, t: jax.Array) -> tuple[tuple, Transition]:
        env, obs, first, memory = scanned
        fresh = draw_memory(agent, run.hp, run.agent, stream(run.key, types.STREAM_MEMORY, i, t), n)
        memory = where(first, fresh, memory)
        act_keys = keys_for(stream(run.key, types.STREAM_ACT, i, t), n)
        act = lambda memory, obs, key: agent.act(run.hp, run.agent, memory, obs, key, i)
        action, memory, extras = jax.vmap(act)(memory, obs, act_keys)
        env, step = vec.step(stream(run.key, types.STREAM_ENV, i, t), env, action, run.env_params)
        transition = Transition(
            obs,
            action,
            step.reward,
            step.next_obs,
            step.terminated,
            step.truncated,
            first,
            step.weight,
            step.info,
            extras,
        )
        return (env, step.obs, step.terminated | step.truncated, memory), transition

    scanned = (run.env, run.obs, run.first, run.memory)
    (env, obs, first, memory), rollout = jax.lax.scan(one_step, scanned, jnp.arange(agent.rollout_length, dtype=jnp.uint32))
    return run.replace(env=env, obs=obs, first=first, memory=memory), rollout


def iteration(agent: Agent, vec: VecEnv, run: Runs, i: jax.Array) -> tuple[Runs, Totals]:
    """Collect a rollout and learn from it: one run."""
    run, rollout = collect(agent, vec, run, i)
    state, metrics = agent.learn(run.hp, run.agent, rollout, stream(run.key, types.STREAM_LEARN, i), i)
    return run.replace(agent=state), totals(rollout, metrics)


def totals(rollout: Transition, metrics: dict[str, jax.Array]) -> Totals:
    """What one iteration adds to the report. An episode that ended in a quarantined step is counted only there."""
    updates = metrics["updates"].astype(jnp.int32)
    weight = updates.astype(jnp.float32)
    ended = (rollout.terminated | rollout.truncated) & (rollout.weight > 0)
    returns = rollout.info["episode_return"]
    ended_wide = ended.reshape(ended.shape + (1,) * (returns.ndim - ended.ndim))
    return Totals(
        learn={k: jnp.where(updates > 0, v * weight, 0.0) for k, v in metrics.items() if k != "updates"},
        updates=updates,
        episode_return=jnp.where(ended_wide, returns, 0.0).sum((0, 1)),
        episode_length=jnp.where(ended, rollout.info["episode_length"], 0).sum(),
        episodes=ended.sum(dtype=jnp.int32),
        nan_steps=(rollout.weight == 0).sum(dtype=jnp.int32),
    )


def report(t: Totals) -> dict[str, jax.Array]:
    """Totals -> metrics: counts as they are; means over episodes and over updates, NaN where there was none."""
    per = lambda x, n: jnp.where(n > 0, x / jnp.maximum(n, 1), jnp.nan)
    wide = t.episodes.reshape(t.episodes.shape + (1,) * (t.episode_return.ndim - t.episodes.ndim))
    return {
        "episode_return": per(t.episode_return, wide),
        "episode_length": per(t.episode_length, t.episodes),
        "episodes": t.episodes,
        "nan_steps": t.nan_steps,
        "updates": t.updates,
        **{name: per(x, t.updates) for name, x in t.learn.items()},
    }


def iterate(agent: Agent, vec: VecEnv, runs: Runs, i: jax.Array) -> tuple[Runs, Totals]:
    """One iteration of every run; `i` stays unbatched."""
    return jax.vmap(lambda run: iteration(agent, vec, run, i))(runs)


def segment(iterate: Iterate, population: Population | None, carry: Carry, so_far: Totals, n: Any) -> tuple[Carry, Totals]:
    """n iterations of the whole population, adding to the totals `so_far`. n may be traced: one program for every length."""

    def one(_: Any, state: tuple[Carry, Totals]) -> tuple[Carry, Totals]:
        carry, so_far = state
        runs, new = iterate(carry.runs, carry.i)
        pop = carry.pop
        if population is not None:
            key = jax.random.fold_in(jax.random.key(2), carry.i)  # another root than the runs': no seed shares its keys
            pop, runs = population(pop, runs, report(new)["episode_return"], key, carry.i)
        return Carry(carry.i + jnp.uint32(1), pop, runs), jax.tree.map(jnp.add, so_far, new)

    return jax.lax.fori_loop(jnp.uint32(0), jnp.uint32(n), one, (carry, so_far))


def zero_totals(iterate: Iterate, runs: Runs) -> Totals:
    """Totals of nothing, in the shapes of this population."""
    shapes = jax.eval_shape(iterate, runs, jax.ShapeDtypeStruct((), jnp.uint32))[1]
    return jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
