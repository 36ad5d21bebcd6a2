"""A small PQN and a rollout for it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from rlx import config
from rlx.agents import pqn
from rlx.types import EnvSpec, Transition

T, N, OBS, A = 4, 2, 3, 3
SPEC = EnvSpec("toy", (OBS,), jnp.dtype("float32"), A, 1, (), 10)
HP = {
    "lr": 0.5, "gamma": 0.9, "td_lambda": 0.6, "max_grad_norm": 0.05, "epsilon_start": 0.9, "epsilon_end": 0.2,
    "epsilon_steps": 1000.0,
}  # fmt: skip
FIELDS = {"num_envs": N, "rollout_length": T, "num_epochs": 7, "num_minibatches": 1, "hidden_sizes": (4,), "activation": "tanh"}


@functools.cache
def build(**fields):
    static, hp = config.partition(pqn.Config(**FIELDS | HP | fields))
    agent = pqn.make(static, SPEC)
    return agent._replace(learn=jax.jit(agent.learn)), hp, agent.init(hp, jax.random.key(0))


def rollout_of(agent, hp, state, junk=np.nan):
    """[T, N]: environment 0 is quarantined at t=1 and terminates at t=2; environment 1 is truncated at t=0."""
    rng = np.random.default_rng(0)
    obs, after = (jnp.asarray(rng.normal(size=(T, N, OBS)), jnp.float32) for _ in range(2))
    keys = jax.random.split(jax.random.key(1), (T, N))
    action, _, extras = jax.vmap(jax.vmap(lambda o, k: agent.act(hp, state, (), o, k, jnp.uint32(0))))(obs, keys)
    terminated, truncated = np.zeros((2, T, N), bool)
    terminated[2, 0] = truncated[1, 0] = truncated[0, 1] = True
    weight, reward = np.ones((T, N), np.float32), np.float32(rng.normal(size=(T, N)))
    weight[1, 0] = 0.0
    reward[1, 0] = junk
    after = after.at[1, 0].set(junk)
    masks = jnp.asarray(terminated), jnp.asarray(truncated), jnp.zeros((T, N), bool), jnp.asarray(weight)
    return Transition(obs, action, jnp.asarray(reward), after, *masks, {}, extras)
