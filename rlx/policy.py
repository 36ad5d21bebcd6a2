"""The greedy policy of one run as a function of its own, and what of an agent's state it depends on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from gymnax.environments.environment import Environment

from rlx.envs import wrappers
from rlx.types import Agent, EnvSpec, PyTree, Runs


def policy(agent: Agent, env: Environment, spec: EnvSpec, runs: Runs, run: int) -> Callable[..., Any]:
    """Native observation -> native action: see `Trainer.policy`."""
    hp, params = jax.tree.map(lambda x: jnp.copy(x[run]), (runs.hp, runs.env_params))
    reads = greedy_reads(agent, spec, runs)
    state = jax.tree.map(lambda x, read: jnp.copy(x[run]) if read else jnp.zeros((), x.dtype), runs.agent, reads)

    key = jax.random.key(0)
    fresh = agent.memory(hp, state, key)

    @jax.jit
    def act(obs: PyTree, memory: PyTree = None) -> Any:
        obs = wrappers.encode(env.observation_space(params), obs)
        action, after = agent.greedy(hp, state, fresh if memory is None else memory, obs, key)
        action = wrappers.decode(env.action_space(params), action)
        return action if memory is None else (action, after)

    setattr(act, "memory", fresh)  # noqa: B010  (a jitted function declares no attributes)
    return act


def greedy_reads(agent: Agent, spec: EnvSpec, runs: Runs) -> PyTree:
    """Per leaf of the agent's state, whether greedy acting depends on it."""

    def act(state: PyTree, hp: PyTree, obs: jax.Array, key: jax.Array) -> jax.Array:
        return agent.greedy(hp, state, agent.memory(hp, state, key), obs, key)[0]

    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), (runs.agent, runs.hp))
    obs = jax.ShapeDtypeStruct(spec.obs_shape, spec.obs_dtype)
    jaxpr = jax.make_jaxpr(act)(*one, obs, jax.random.key(0)).jaxpr
    used = {id(v) for v in (*(v for eqn in jaxpr.eqns for v in eqn.invars), *jaxpr.outvars)}
    leaves, treedef = jax.tree.flatten(runs.agent)
    return jax.tree.unflatten(treedef, [id(v) in used for v in jaxpr.invars[: len(leaves)]])
