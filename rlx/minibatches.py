"""Several epochs of shuffled minibatches over one rollout: what on-policy agents share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from rlx.errors import RlxError
from rlx.types import EnvSpec, PyTree


def check(config: Any, spec: EnvSpec, algorithm: str, name: str, size: int) -> None:
    """RlxError for a vector reward, and unless the minibatches divide the `size` samples called `name`."""
    if spec.reward_shape:
        raise RlxError(f"{algorithm} learns from a scalar reward; {spec.name} has a reward vector of shape {spec.reward_shape}")
    given = config.num_minibatches
    if size % given:
        valid = min((m for m in range(1, size + 1) if size % m == 0), key=lambda m: abs(m - given))
        raise RlxError(f"num_minibatches={given} must divide {name} = {size}; the nearest is {valid}")


def optimise(
    config: Any,
    objective: Callable[..., Any],
    optimiser: optax.GradientTransformation,
    state: Any,
    data: PyTree,
    key: jax.Array,
) -> tuple[PyTree, PyTree, dict[str, jax.Array]]:
    """`num_epochs` passes of `num_minibatches` over the leading axis of `data` -> params, opt_state, mean metrics.

    From `state.params` and `state.opt_state`; `objective(params, batch) -> loss, metrics`.
    """
    size = len(jax.tree.leaves(data)[0])

    def minibatch(learner: tuple, indices: jax.Array) -> tuple[tuple, dict]:
        params, opt_state = learner
        batch = jax.tree.map(lambda x: x[indices], data)
        grads, metrics = jax.grad(objective, has_aux=True)(params, batch)
        updates, opt_state = optimiser.update(grads, opt_state)
        return (optax.apply_updates(params, updates), opt_state), metrics

    def epoch(learner: tuple, e: jax.Array) -> tuple[tuple, dict]:
        order = jax.random.permutation(jax.random.fold_in(key, e), size)
        return jax.lax.scan(minibatch, learner, order.reshape(config.num_minibatches, -1))

    learner = (state.params, state.opt_state)
    (params, opt_state), metrics = jax.lax.scan(epoch, learner, jnp.arange(config.num_epochs, dtype=jnp.uint32))
    updates = jnp.int32(config.num_epochs * config.num_minibatches)
    return params, opt_state, jax.tree.map(jnp.mean, metrics) | {"updates": updates}
