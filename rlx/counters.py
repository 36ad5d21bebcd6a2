"""Exact arithmetic on the shared iteration counter `i` (uint32) without 64-bit integers.

Env steps and gradient updates are products of `i` and a static factor: they pass 2^32 long before `i` does, so they are
never formed; only their remainders, saturated values and float approximations are. `i`: uint32 of any shape.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np

Count = jax.Array | int


def mul_mod(i: Count, factor: int, modulus: int) -> jax.Array:
    """`(i * factor) mod modulus`, uint32, exact for every `i`; static `factor` >= 0 and `modulus` in [1, 2^31].

    Double-and-add over the bits of `factor mod modulus`: no intermediate value reaches 2^32.
    """
    chex.assert_scalar_in(modulus, 1, 2**31)
    m = np.uint32(modulus)
    x = jnp.asarray(i, jnp.uint32) % m
    out = jnp.zeros_like(x)
    for bit in f"{factor % modulus:b}":
        out = (out + out) % m
        if bit == "1":
            out = (out + x) % m
    return out


def min_product(i: Count, factor: int, cap: int) -> jax.Array:
    """`min(i * factor, cap)`, uint32, exact for every `i`; static `factor` >= 1 and `cap` in [0, 2^31]."""
    chex.assert_scalar_in(cap, 0, 2**31)
    i = jnp.asarray(i, jnp.uint32)
    return jnp.where(i >= np.uint32(-(-cap // factor)), np.uint32(cap), i * np.uint32(min(factor, cap)))


def env_steps(i: Count, per_iteration: int) -> jax.Array:
    """`i * per_iteration` as float32 (relative error 2^-23), for schedules; `per_iteration` env steps an iteration."""
    return jnp.asarray(i, jnp.uint32).astype(jnp.float32) * np.float32(per_iteration)


def period_elapsed(i: Count, per_iteration: int, u: Count, period: int) -> jax.Array:
    """Whether update `k = i * per_iteration + u` (from 0) completes a period: `floor((k+1)/period) > floor(k/period)`.

    bool, exact for every uint32 `i`; `u` < 2^32, traced or static; `period` in [1, 2^31]. Where learning starts late,
    pass `i - first_iteration(...)` to count gradient updates instead of iterations.
    """
    k = mul_mod(i, per_iteration, period) + jnp.asarray(u, jnp.uint32) % np.uint32(period)
    return (k + np.uint32(1)) % np.uint32(period) == np.uint32(0)


def first_iteration(learning_starts: int, per_iteration: int) -> int:
    """The first iteration j >= 0 that ends, at `(j + 1) * per_iteration`, at or after `learning_starts` env steps."""
    return max(0, -(-learning_starts // per_iteration) - 1)
