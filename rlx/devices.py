"""The run axis over several devices: each has runs of its own, and nothing is exchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rlx.errors import RlxError
from rlx.types import PyTree

RUNS, ALL = PartitionSpec("runs"), PartitionSpec()  # split over the leading run axis; whole on every device

Shard = Callable[[Callable[..., Any], Any, Any], Callable[..., Any]]


def mesh(number: int) -> Mesh:
    """The first `number` local devices; RlxError where there are fewer."""
    local = jax.local_devices()
    if not 1 <= number <= len(local):
        raise RlxError(f"devices={number} must be in [1, {len(local)}]: this machine has {len(local)} {local[0].platform}")
    return Mesh(local[:number], ("runs",))


def shard(number: int) -> Shard:
    """`over(f, in_specs, out_specs)`: f on each of `number` devices, on its own share of what is split by `RUNS`.

    `shard_map`, not a partitioner's choice: there is nothing to communicate, and so nothing to wait for. On one device f.
    """
    if number == 1:
        return lambda f, in_specs, out_specs: f
    devices = mesh(number)
    return lambda f, ins, outs: jax.shard_map(f, mesh=devices, in_specs=ins, out_specs=outs, check_vma=False)


def place(tree: PyTree, number: int, spec: PartitionSpec = RUNS) -> PyTree:
    """Leaves `[R, ...]` split over the devices, or whole on each."""
    return tree if number == 1 else jax.device_put(tree, NamedSharding(mesh(number), spec))
