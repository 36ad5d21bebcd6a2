"""How much memory a population takes, and the refusal of one that does not fit."""

import types

import jax
import jax.numpy as jnp
import pytest

from rlx import footprint
from rlx.errors import RlxError


def test_size():
    tree = {"f": jnp.zeros((3, 4)), "b": jnp.zeros(5, bool), "u": (jnp.uint8(1), ()), "none": None, "empty": jnp.zeros((0, 9))}
    assert footprint.size(tree) == 3 * 4 * 4 + 5 + 1
    assert footprint.size(jax.eval_shape(lambda: tree)) == footprint.size(tree)
    assert footprint.size(jax.random.split(jax.random.key(0), 3)) == 3 * 8
    assert footprint.size(jax.random.key(0, impl="rbg")) == 16
    assert footprint.size(jax.ShapeDtypeStruct((10**6, 10**6), jnp.float32)) == 4 * 10**12
    assert footprint.size(()) == 0


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (2**20, "1.0 MiB"),
        (2**30, "1.0 GiB"),
        (2**42, "4096.0 GiB"),
    ],
)
def test_human(n, text):
    assert footprint.human(n) == text


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A CPU whose kernel says what the test wrote: files by path."""
    monkeypatch.setattr(footprint, "Path", lambda path: tmp_path / path.lstrip("/"))
    monkeypatch.setattr(footprint.jax, "devices", lambda: [types.SimpleNamespace(memory_stats=lambda: None)])

    def write(path: str, text: str) -> None:
        file = tmp_path / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    return write


def test_available_is_the_smaller_of_machine_and_container(machine):
    machine("/proc/meminfo", "MemTotal:  9000 kB\nMemAvailable:  100 kB\n")
    assert footprint.available() == 100 * 1024
    machine("/sys/fs/cgroup/memory.current", "30000\n")
    machine("/sys/fs/cgroup/memory.max", "max\n")
    assert footprint.available() == 100 * 1024
    machine("/sys/fs/cgroup/memory.max", "50000\n")
    assert footprint.available() == 20_000


def test_page_cache_that_can_be_reclaimed_is_free(machine):
    machine("/proc/meminfo", "MemTotal:  9000 kB\nMemAvailable:  100 kB\n")
    machine("/sys/fs/cgroup/memory.current", "30000\n")
    machine("/sys/fs/cgroup/memory.max", "50000\n")
    machine(
        "/sys/fs/cgroup/memory.stat", "anon 10000\nfile 20000\ntotal_inactive_file 9\ninactive_file 15000\nactive_file 5000\n"
    )
    assert footprint.available() == 35_000
    machine("/sys/fs/cgroup/memory.stat", "anon 10000\n")
    assert footprint.available() == 20_000


def test_available_on_an_accelerator(monkeypatch):
    stats = {"bytes_limit": 100, "bytes_in_use": 30}
    monkeypatch.setattr(footprint.jax, "devices", lambda: [types.SimpleNamespace(memory_stats=lambda: stats)])
    assert footprint.available() == 70


def test_available_here():
    free = footprint.available()
    assert free is not None and 2**20 < free < 2**50


def test_check(monkeypatch):
    monkeypatch.setattr(footprint, "available", lambda: 1000)
    footprint.check(800, "sac on a/b", 8)
    with pytest.raises(RlxError) as error:
        footprint.check(1600, "sac on a/b", 8)
    text = str(error.value)
    assert "8 runs of sac on a/b need 1.6 KiB" in text and "80% of the 1000 B free" in text
    assert "replay_capacity" in text and "at most 4 runs" in text and "\n" not in text
    monkeypatch.setattr(footprint, "available", lambda: None)
    footprint.check(2**60, "sac on a/b", 1)  # nobody knows: not refused


def test_check_when_not_even_one_run_fits(monkeypatch):
    monkeypatch.setattr(footprint, "available", lambda: 1000)
    with pytest.raises(RlxError, match="lower replay_capacity or num_envs") as error:
        footprint.check(10_000, "sac on a/b", 1)
    assert "0 runs" not in str(error.value)
