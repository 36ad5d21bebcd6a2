"""A small MR.Q, and the golden tensors as its parameters."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from rlx import config
from rlx.agents import mrq
from rlx.agents import mrq_updates as updates
from rlx.types import EnvSpec
from tests.agents.sac_support import SPEC, D, N, T, rollout_of, same

__all__ = ["FIELDS", "SPEC", "WIDTHS", "D", "N", "T", "build", "golden", "learner_of", "network", "rollout_of", "same"]

WIDTHS = {"zs_size": 16, "zsa_size": 12, "za_size": 8, "encoder_size": 16, "value_size": 14, "policy_size": 10}
FIELDS = {
    **WIDTHS, "num_envs": N, "rollout_length": T, "updates_per_step": 1 / 6, "learning_starts": 0, "batch_size": 4,
    "replay_capacity": 128, "n_step": 2, "enc_horizon": 2, "target_period": 3,
}  # fmt: skip


def network(discrete=False, **fields):
    """(networks, hp) with the golden widths."""
    static, hp = config.partition(mrq.Config(**WIDTHS | fields))
    spec = EnvSpec("golden", (6,), jnp.dtype("float32"), 3 if discrete else None, 0 if discrete else 3, (), None)
    return updates.networks(static, spec), hp


@functools.cache
def golden(kind):
    """name -> array."""
    with np.load(Path(__file__).parents[1] / "golden" / f"mrq_golden_{kind}.npz") as file:
        return {name: np.asarray(file[name]) for name in file.files}


def tree(arrays, prefix):
    """The arrays under a prefix, nested by the rest of their names."""
    out = {}
    for name, x in arrays.items():
        if name.startswith(prefix + "/"):
            *path, leaf = name[len(prefix) + 1 :].split("/")
            node = out
            for key in path:
                node = node.setdefault(key, {})
            node[leaf] = jnp.asarray(x)
    return out


def encoder_of(g, prefix):
    p = tree(g, prefix)
    return {"params": {"zs_mlp": p["zs_mlp"], "za": p["za"], "zsa_mlp": p["zsa"], "model": p["model"]}}


def critic_of(g, prefix):
    heads = [{"mlp": head["q1"], "out": head["q2"]} for head in map(tree(g, prefix).get, ("q1", "q2"))]
    return {"params": jax.tree.map(lambda *x: jnp.stack(x), *heads)}


def policy_of(g, prefix):
    return {"params": tree(g, prefix)["policy"]}


def learner_of(kind, net, hp):
    """The golden learner before any update; of the discrete kind, too."""
    g = golden(kind)
    nets = lambda suffix: updates.Nets(
        encoder_of(g, f"before/encoder{suffix}"), critic_of(g, f"before/value{suffix}"), policy_of(g, f"before/policy{suffix}")
    )
    learner = updates.init_learner(net, hp, jax.random.key(0))
    jax.tree.map(lambda a, b: np.testing.assert_equal(a.shape, b.shape), nets(""), learner.nets)
    return learner.replace(nets=nets(""), target=nets("_target"))


def build(**fields):
    """(agent, hp, state)."""
    spec = fields.pop("spec", SPEC)
    static, hp = config.partition(mrq.Config(**FIELDS | fields))
    agent = mrq.make(static, spec)
    return agent, hp, agent.init(hp, jax.random.key(0))
