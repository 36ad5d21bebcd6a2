"""Shared fixtures. Two virtual CPU devices and a persistent compilation cache, set before jax is imported."""

import os
from pathlib import Path

os.environ["XLA_FLAGS"] = (os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2").strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")  # half of a test's time is compiling small programs

import jax
import pytest

# The asserts of what tests share show their values too; before any test imports it.
for path in Path(__file__).parent.rglob("*_support.py"):
    pytest.register_assert_rewrite(".".join(path.relative_to(Path(__file__).parents[1]).with_suffix("").parts))


def pytest_configure(config):
    """Lighter compilation where little runs: XLA takes most of a fast test's time. Slow tests have JAX's defaults."""
    if "not slow" in config.getoption("markexpr"):
        os.environ["XLA_FLAGS"] += " --xla_backend_optimization_level=1 --xla_cpu_use_fusion_emitters=false"


@pytest.fixture
def strict():
    """Our own maths never relies on implicit rank or dtype promotion."""
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        yield


@pytest.fixture(scope="module", autouse=True)
def room():
    """All tests in one process compile more programs than Linux lets it hold; below the share that `rlx.train` tolerates."""
    yield
    from rlx import cache

    cache.make_room(0.3)
