"""Compiled programs: a second process does not compile what a first one did, and one process does not keep too many."""

from __future__ import annotations

import os
from pathlib import Path

import jax


def directory() -> str:
    """`$RLX_CACHE_DIR`, else `$XDG_CACHE_HOME/rlx/xla`, else `~/.cache/rlx/xla`; empty where it is turned off."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return os.environ.get("RLX_CACHE_DIR", str(Path(base) / "rlx" / "xla"))


def enable() -> None:
    """Point JAX at `directory()`, unless the user has set a cache of their own."""
    chosen = jax.config.values.get("jax_compilation_cache_dir")
    if chosen is None and directory():
        jax.config.update("jax_compilation_cache_dir", directory())


def make_room(share: float = 0.5) -> None:
    """Drop the programs that this process has compiled if they leave less than `1 - share` of its memory mappings.

    Linux gives a process 65,530 and kills it at the next one. On a CPU a trainer of DQN takes 800, one of MR.Q 1,800, for as
    long as something refers to it: the groups of a sweep, results in a list. What is used again is read from the disk.
    """
    try:
        used = Path("/proc/self/maps").read_bytes().count(b"\n")
        limit = int(Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):  # not Linux, or a sandbox
        return
    if used > share * limit:
        jax.clear_caches()
