"""Selecting and silencing rows of pytrees: what environments, loop and learners share."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from rlx.types import PyTree


def where(condition: jax.Array, a: PyTree, b: PyTree) -> PyTree:
    """Leaf-wise select on a leading axis: `condition` is `[N]`, leaves are `[N, ...]`."""
    select = lambda x, y: jnp.where(condition.reshape(condition.shape + (1,) * (x.ndim - condition.ndim)), x, y)
    return jax.tree.map(select, a, b)


def mask(keep: jax.Array, x: PyTree) -> PyTree:
    """`x` with zeros where `keep` is False."""
    return where(keep, x, jax.tree.map(jnp.zeros_like, x))


def finite(x: PyTree) -> jax.Array:
    """Per environment, whether every inexact leaf is finite. Leaves `[N, ...]` -> bool `[N]`."""
    leaves = jax.tree.leaves(x)
    out = jnp.ones(leaves[0].shape[:1], bool)
    for leaf in leaves:
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            out &= jnp.isfinite(leaf).reshape(leaf.shape[0], -1).all(axis=1)
    return out
