"""A small discrete SAC and a rollout for it."""

import jax

from rlx import config
from rlx.agents import sac_discrete
from tests.agents.dqn_support import OBS, SPEC, A, N, T, rollout_of, same

__all__ = ["FIELDS", "HP", "OBS", "A", "N", "T", "build", "rollout_of", "same"]

HP = {"actor_lr": 0.01, "critic_lr": 0.02, "temperature_lr": 0.03, "temperature": 0.5, "gamma": 0.9, "tau": 0.25}
FIELDS = {
    "num_envs": N, "rollout_length": T, "updates_per_step": 1 / 6, "learning_starts": 0, "batch_size": 4, "replay_capacity": 64,
    "n_step": 1, "target_period": 1, "hidden_sizes": (4,), "activation": "tanh", "target_entropy": 0.9,
}  # fmt: skip


def build(**fields):
    """(agent, hp, state): the targets have nothing in common with the critics, and the policy is far from uniform."""
    static, hp = config.partition(sac_discrete.Config(**FIELDS | HP | fields))
    agent = sac_discrete.make(static, SPEC)
    state, other = (agent.init(hp, jax.random.key(k)) for k in (0, 1))
    actor = jax.tree.map(lambda x: 2.0 * x, state.learner.actor)
    return agent, hp, state.replace(learner=state.learner.replace(actor=actor, target=other.learner.critic))


def with_logits(params, logits):
    """Parameters of an actor (or critics) whose output is `logits` `[A]` (or `[2, A]`) at every observation."""
    params = jax.tree.map(lambda x: 0.0 * x, params)
    params["params"]["out"]["bias"] = params["params"]["out"]["bias"] + logits
    return params
