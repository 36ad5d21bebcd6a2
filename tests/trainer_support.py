"""Tiny trainers of both agents with a population of six runs, the bits in which two trees differ, and what is compiled."""

from contextlib import contextmanager
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx

FIELDS: dict[str, dict[str, Any]] = {
    "ppo": {"num_envs": 2, "rollout_length": 4, "num_epochs": 1, "num_minibatches": 2, "hidden_sizes": (8,)},
    "sac": {"num_envs": 2, "batch_size": 8, "replay_capacity": 64, "learning_starts": 20, "hidden_sizes": (8,)},
}
ENV = {"ppo": "probe/Truncation", "sac": "probe/Truncation-continuous"}
LR = {"ppo": "lr", "sac": "critic_lr"}
LRS, SEEDS = [1e-3, 3e-3], [0, 5, 7]

both = pytest.mark.parametrize("agent", ["ppo", "sac"])


@cache
def trainer(agent: str) -> rlx.Trainer:
    return rlx.make(agent, ENV[agent], **FIELDS[agent])


def fresh(agent: str) -> rlx.types.Carry:
    """Six runs, 2 learning rates x 3 seeds."""
    return trainer(agent).init(SEEDS, hp={LR[agent]: LRS})


def leaves(tree) -> dict[str, np.ndarray]:
    plain = lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    return {jax.tree_util.keystr(path): np.asarray(plain(x)) for path, x in jax.tree.leaves_with_path(tree)}


def differing(a, b, runs: slice | list[int] = slice(None)) -> list[str]:
    """Paths of the leaves whose bits differ, in these runs (or in all, and then without a run axis too)."""
    a, b = leaves(a), leaves(b)
    assert a.keys() == b.keys()
    pick = (lambda x: x) if runs == slice(None) else (lambda x: x[runs])
    return [name for name in a if pick(a[name]).tobytes() != pick(b[name]).tobytes()]


@contextmanager
def compilations():
    """The list of programs compiled within the context, found in a persistent cache or not."""
    events: list[str] = []

    def listener(name: str, seconds: float, **_: object) -> None:
        if name == "/jax/core/compile/backend_compile_duration":
            events.append(name)

    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        yield events
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)
