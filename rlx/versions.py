"""What produced a result: recorded beside every checkpoint and table."""

from __future__ import annotations

from importlib import metadata

__version__ = metadata.version("rlx")
PACKAGES = ("rlx", "jax", "jaxlib", "flax", "optax", "gymnax", "brax", "numpy")


def versions() -> dict[str, str]:
    """Versions of the packages that decide a run's numbers."""
    return {name: metadata.version(name) for name in PACKAGES}
