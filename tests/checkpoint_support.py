"""Checkpoints of a small tree that holds its own number, and the bits of an array."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from rlx import checkpoint


def bits(x: jax.Array) -> tuple:
    plain = jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    return str(x.dtype), x.shape, np.asarray(plain).tobytes()


def version(n: int) -> dict:
    return {"n": jnp.int32(n), "x": jnp.full((100,), n, jnp.float32)}


def load(path: Path) -> int:
    """The version at `path`, checked to be one: meta and both arrays agree."""
    out = checkpoint.restore(path, jax.eval_shape(lambda: version(0)))
    assert np.all(out["x"] == out["n"]) and checkpoint.read_meta(path) == {"n": int(out["n"])}
    return int(out["n"])


def put(path: Path, n: int) -> None:
    checkpoint.save(path, version(n), {"n": n})
