"""How much memory a population takes, and whether it is there: known from shapes, before anything is computed."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

import jax

from rlx.errors import RlxError
from rlx.types import PyTree

SHARE = 0.8  # of the memory that is free; above it a population is refused


def size(tree: PyTree) -> int:
    """Bytes of the arrays (or shapes) in a tree."""

    def leaf(x: jax.Array | jax.ShapeDtypeStruct) -> int:
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            x = jax.eval_shape(jax.random.key_data, x)
        return math.prod(x.shape) * x.dtype.itemsize

    return sum(leaf(x) for x in jax.tree.leaves(tree))


def human(n: float) -> str:
    """`12.3 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024 or unit == "GiB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    raise AssertionError


def available() -> int | None:
    """Free bytes of the default device; on a CPU of the machine or of its container. None where nobody says."""
    stats = jax.devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    free = []
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        lines = dict(line.split(":") for line in meminfo.read_text().splitlines())
        free.append(int(lines["MemAvailable"].split()[0]) * 1024)
    elif hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        free.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    limit, used, stat = (Path("/sys/fs/cgroup") / f"memory.{name}" for name in ("max", "current", "stat"))
    if limit.exists() and used.exists() and limit.read_text().strip().isdigit():
        cached = re.search(r"^inactive_file (\d+)$", stat.read_text() if stat.exists() else "", re.M)
        reclaimable = int(cached[1]) if cached else 0  # of the page cache: counted as used, given back on demand
        free.append(int(limit.read_text()) - int(used.read_text()) + reclaimable)
    return min(free, default=None)


def check(needed: int, name: str, runs: int) -> None:
    """RlxError where a population needs more than `SHARE` of the free memory: before it is allocated."""
    free = available()
    if free is not None and needed > SHARE * free:
        fit = int(SHARE * free / (needed / runs))
        fewer = f", or use at most {fit} runs at once" if fit else ""
        raise RlxError(
            f"{runs} runs of {name} need {human(needed)}, over {SHARE:.0%} of the {human(free)} free: "
            f"lower replay_capacity or num_envs{fewer}"
        )
