"""A small DQN and a rollout for it."""

import jax
import jax.numpy as jnp
import numpy as np

from rlx import config
from rlx.agents import dqn
from rlx.types import EnvSpec, Transition

T, N, OBS, A = 3, 2, 3, 3
SPEC = EnvSpec("toy", (OBS,), jnp.dtype("float32"), A, 1, (), 10)
HP = {
    "lr": 0.05, "gamma": 0.9, "tau": 0.25, "max_grad_norm": 1e-3, "epsilon_start": 0.9, "epsilon_end": 0.2,
    "epsilon_steps": 1000.0,
}  # fmt: skip
FIELDS = {
    "num_envs": N, "rollout_length": T, "updates_per_step": 1 / 6, "learning_starts": 0, "batch_size": 4, "replay_capacity": 64,
    "n_step": 1, "target_period": 1, "hidden_sizes": (4,), "activation": "tanh",
}  # fmt: skip


def build(**fields):
    """(agent, hp, state): online and target network have nothing in common, so that the actions they choose differ."""
    static, hp = config.partition(dqn.Config(**FIELDS | HP | fields))
    agent = dqn.make(static, SPEC)
    state, other = (agent.init(hp, jax.random.key(k)) for k in (0, 1))
    return agent, hp, state.replace(learner=state.learner.replace(target=other.learner.params))


def rollout_of(seed=0, **changes):
    """[T, N]: environment 0 terminates at t=1, environment 1 is truncated at t=0 and quarantined at t=1."""
    rng = np.random.default_rng(seed)
    terminated, truncated, weight = np.zeros((T, N), bool), np.zeros((T, N), bool), np.ones((T, N), np.float32)
    terminated[1, 0] = truncated[0, 1] = truncated[1, 1] = True
    weight[1, 1] = 0.0
    fields = {
        "obs": rng.normal(size=(T, N, OBS)), "reward": 3.0 * rng.normal(size=(T, N)), "next_obs": rng.normal(size=(T, N, OBS)),
        "weight": weight,
    }  # fmt: skip
    fields = {k: jnp.asarray(v, jnp.float32) for k, v in fields.items()}
    fields["action"] = jnp.asarray(rng.permutation(np.arange(T * N) % A).reshape(T, N), jnp.int32)
    masks = {"terminated": jnp.asarray(terminated), "truncated": jnp.asarray(truncated), "first": jnp.zeros((T, N), bool)}
    return Transition(**fields | masks | changes, info={}, extras=())


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True))


def with_q(params, q):
    """Parameters of a network without dueling whose values are `q` at every observation."""
    params = jax.tree.map(jnp.zeros_like, params)
    params["params"]["q"]["bias"] = jnp.asarray(q, jnp.float32)
    return params
