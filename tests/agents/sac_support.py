"""A small SAC and a rollout for it."""

import jax
import jax.numpy as jnp
import numpy as np

from rlx import config
from rlx.agents import sac
from rlx.types import EnvSpec, Transition

T, N, OBS, D = 3, 2, 3, 2
SPEC = EnvSpec("toy", (OBS,), jnp.dtype("float32"), None, D, (), 10)
HP = {"actor_lr": 0.01, "critic_lr": 0.02, "temperature_lr": 0.03, "temperature": 0.5, "gamma": 0.9, "tau": 0.25}
FIELDS = {
    "num_envs": N, "rollout_length": T, "updates_per_step": 1 / 6, "learning_starts": 0, "batch_size": 4, "replay_capacity": 64,
    "n_step": 1, "target_period": 1, "hidden_sizes": (4,), "activation": "tanh", "target_entropy": -1.5,
}  # fmt: skip


def build(**fields):
    static, hp = config.partition(sac.Config(**FIELDS | HP | fields))
    agent = sac.make(static, SPEC)
    state = agent.init(hp, jax.random.key(0))
    learner = state.learner.replace(target=jax.tree.map(lambda x: 0.8 * x + 0.05, state.learner.target))
    return agent, hp, state.replace(learner=learner)


def rollout_of(seed=0, **changes):
    """[T, N]: environment 0 terminates at t=1, environment 1 is truncated at t=0 and quarantined at t=1."""
    rng = np.random.default_rng(seed)
    terminated, truncated, weight = np.zeros((T, N), bool), np.zeros((T, N), bool), np.ones((T, N), np.float32)
    terminated[1, 0] = truncated[0, 1] = truncated[1, 1] = True
    weight[1, 1] = 0.0
    fields = {
        "obs": rng.normal(size=(T, N, OBS)), "action": rng.uniform(-0.9, 0.9, (T, N, D)), "reward": rng.normal(size=(T, N)),
        "next_obs": rng.normal(size=(T, N, OBS)), "weight": weight,
    }  # fmt: skip
    fields = {k: jnp.asarray(v, jnp.float32) for k, v in fields.items()}
    masks = {"terminated": jnp.asarray(terminated), "truncated": jnp.asarray(truncated), "first": jnp.zeros((T, N), bool)}
    return Transition(**fields | masks | changes, info={}, extras=())


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True))
