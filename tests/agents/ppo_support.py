"""A small PPO and a rollout for it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlx import config, normalize
from rlx.agents import ppo
from rlx.types import EnvSpec, Transition

T, N, OBS, ACTIONS = 4, 2, 3, 2
HP = {
    "lr": 0.05,
    "gamma": 0.9,
    "gae_lambda": 0.8,
    "clip_eps": 0.1,
    "entropy_coef": 0.02,
    "value_coef": 0.2,
    "max_grad_norm": 1e-4,
}
forms = pytest.mark.parametrize("discrete", [False, True], ids=["continuous", "discrete"])


def spec(discrete, **changes):
    made = EnvSpec("toy", (OBS,), jnp.dtype("float32"), ACTIONS if discrete else None, 1 if discrete else ACTIONS, (), 10)
    return made._replace(**changes)


@functools.cache
def build(discrete, **fields):
    """(agent, hp, state): a policy that depends on its observation, statistics of a few made-up samples."""
    own = {
        "num_envs": N,
        "rollout_length": T,
        "num_epochs": 2,
        "num_minibatches": 1,
        "hidden_sizes": (4,),
        "activation": "tanh",
    }
    own |= {"normalize_obs": True, "normalize_reward": True}
    static, hp = config.partition(ppo.Config(**own | HP | fields))
    agent = ppo.make(static, spec(discrete))
    agent = agent._replace(learn=jax.jit(agent.learn))
    state = agent.init(hp, jax.random.key(3))
    policy = state.params["params"]["policy"]
    policy["kernel"] *= 100.0  # which starts near 0, and with it the gradient of what is below
    stats = normalize.Stats(jnp.float32(5.0), jnp.array([0.3, -0.2, 1.0]), jnp.array([4.0, 0.25, 1.5]))
    return agent, hp, state.replace(obs_stats=stats)


def rollout_of(agent, hp, state, scale=1.0):
    """[T, N]: environment 0 is quarantined at t=1 and terminates at t=2; environment 1 is truncated at t=0."""
    rng = np.random.default_rng(0)
    obs, after = (jnp.asarray(rng.normal(size=(T, N, OBS)) * 2.0, jnp.float32) for _ in range(2))
    keys = jax.random.split(jax.random.key(1), (T, N))
    act = jax.vmap(jax.vmap(lambda o, k: agent.act(hp, state, (), o, k, jnp.uint32(0))))
    action, _, extras = act(obs, keys)
    terminated, truncated = np.zeros((2, T, N), bool)
    terminated[2, 0] = truncated[1, 0] = truncated[0, 1] = True
    weight, reward = np.ones((T, N), np.float32), np.float32(rng.normal(size=(T, N)) * scale)
    weight[1, 0] = 0.0
    reward[1, 0] = np.nan
    after = after.at[1, 0].set(jnp.nan)
    masks = jnp.asarray(terminated), jnp.asarray(truncated), jnp.zeros((T, N), bool), jnp.asarray(weight)
    return Transition(obs, action, jnp.asarray(reward), after, *masks, {}, extras)
