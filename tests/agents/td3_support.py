"""A small TD3 and a rollout for it."""

import jax
import jax.numpy as jnp

from rlx import config
from rlx.agents import td3
from tests.agents.sac_support import OBS, SPEC, D, N, T, rollout_of, same

__all__ = ["FIELDS", "HP", "OBS", "D", "N", "T", "build", "rollout_of", "same"]

HP = {
    "actor_lr": 0.01, "critic_lr": 0.02, "exploration_noise": 0.3, "target_noise": 0.4, "target_noise_clip": 0.25, "gamma": 0.9,
    "tau": 0.25,
}  # fmt: skip
FIELDS = {
    "num_envs": N, "rollout_length": T, "updates_per_step": 1 / 6, "learning_starts": 0, "batch_size": 4, "replay_capacity": 64,
    "n_step": 1, "policy_delay": 1, "hidden_sizes": (4,), "activation": "tanh",
}  # fmt: skip


def build(**fields):
    """(agent, hp, state): the targets have nothing in common with what they follow."""
    static, hp = config.partition(td3.Config(**FIELDS | HP | fields))
    agent = td3.make(static, SPEC)
    state, other = (agent.init(hp, jax.random.key(k)).learner for k in (0, 1))
    pi = state.policy.replace(target_actor=jax.tree.map(lambda x: 5.0 * x, other.policy.actor), target_critic=other.critic)
    return agent, hp, agent.init(hp, jax.random.key(0)).replace(learner=state.replace(policy=pi))


def leaning(state, bias):
    """With an actor whose action before the tanh is `bias` at every observation."""
    actor = jax.tree.map(jnp.zeros_like, state.learner.policy.actor)
    actor["params"]["action"]["bias"] = jnp.asarray(bias, jnp.float32)
    return state.replace(learner=state.learner.replace(policy=state.learner.policy.replace(actor=actor)))
