"""The persistent compilation cache: a second process does not compile what a first one did."""

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
