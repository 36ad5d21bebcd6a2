"""Returns and advantages of one environment over time: leading axis `[T]`, oldest first; the caller vmaps.

`terminated` and `truncated` are never merged: only `terminated` stops bootstrapping, either cuts the trace. Next values
are values of the true successor `next_obs`, at a time limit too, and never of the first observation after a reset.
`gamma` and `lam` are float32 scalars and may be traced. Gradients flow: stop them on values that are targets.
"""

from __future__ import annotations

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax import lax

Scalar = jax.Array | float


def _backward(delta: jax.Array, decay: jax.Array, last: jax.Array) -> jax.Array:
    """`y_t = delta_t + decay_t * y_{t+1}` with `y_T = last`."""

    def step(y: jax.Array, x: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        y = x[0] + x[1] * y
        return y, y

    return lax.scan(step, last, (delta, decay), reverse=True)[1]


def gae(
    reward: jax.Array,
    value: jax.Array,
    next_value: jax.Array,
    terminated: jax.Array,
    truncated: jax.Array,
    gamma: Scalar,
    lam: Scalar,
    weight: jax.Array | None = None,
) -> jax.Array:
    """Generalised advantage estimates, float32[T] (Schulman et al. 2016, eq. 16, cut at episode ends).

        delta_t = r_t + gamma * (1 - terminated_t) * V(next_obs_t) - V(obs_t)
        A_t     = delta_t + gamma * lam * (1 - (terminated_t | truncated_t)) * A_{t+1},    A_T = 0

    Args: `reward, value, next_value` float32[T]; `terminated, truncated` bool[T]; `weight` float32[T], 0 for a
    quarantined step, whose `next_obs` is meaningless. `delta_t` is multiplied by it (0 even where `delta_t` is NaN), so
    that earlier steps bootstrap from V(obs_t). Such a step is `truncated` by contract: its advantage is then 0.
    """
    chex.assert_rank(reward, 1)
    chex.assert_equal_shape([reward, value, next_value, terminated, truncated])
    delta = reward + gamma * jnp.where(terminated, 0.0, next_value) - value
    if weight is not None:
        chex.assert_equal_shape([reward, weight])
        delta = jnp.where(weight > 0.0, weight * delta, 0.0)
    return _backward(delta, gamma * lam * jnp.where(terminated | truncated, 0.0, 1.0), jnp.zeros_like(delta[0]))


def lambda_returns(
    reward: jax.Array,
    next_value: jax.Array,
    terminated: jax.Array,
    truncated: jax.Array,
    gamma: Scalar,
    lam: Scalar,
) -> jax.Array:
    """Lambda-returns, float32[T] (Sutton & Barto 2018, eq. 12.18-12.20, cut at episode ends).

        G_t = r_t + gamma * (1 - terminated_t) * ((1 - l_t) * V(next_obs_t) + l_t * G_{t+1})

    with `l_t = lam`, but 0 where `truncated_t` and at the last step. With state values that agree (`next_value[t] =
    value[t+1]` inside an episode) it is `gae + value`. Args as in `gae`.
    """
    chex.assert_rank(reward, 1)
    chex.assert_equal_shape([reward, next_value, terminated, truncated])
    discount = gamma * jnp.where(terminated, 0.0, 1.0)
    trace = lam * jnp.where(truncated, 0.0, 1.0)
    return _backward(reward + discount * (1.0 - trace) * next_value, discount * trace, next_value[-1])


class NStep(NamedTuple):
    """`return_ + discount * V(next_obs[last])` is the target; scalars float32, float32, int32."""

    return_: jax.Array
    discount: jax.Array
    last: jax.Array


def n_step(
    reward: jax.Array,
    terminated: jax.Array,
    truncated: jax.Array,
    gamma: Scalar,
    weight: jax.Array | None = None,
) -> NStep:
    """The n-step return of a window of n consecutive steps of one environment (Sutton & Barto 2018, eq. 7.1).

    The window is cut after its first `terminated | truncated` step and before a step k >= 1 of `weight` 0; `last` is
    the index of the last step left. Step 0 always stays: where its own weight is 0 the loss has to ignore the item.

        return_  = sum_{k <= last} gamma^k r_k
        discount = gamma^(last+1) * (1 - terminated_last)

    Args: `reward` float32[n]; `terminated, truncated` bool[n]; `weight` float32[n].
    """
    chex.assert_rank(reward, 1)
    chex.assert_equal_shape([reward, terminated, truncated])
    follows = ~(terminated | truncated)[:-1]  # whether step k+1 belongs to the window if step k does
    if weight is not None:
        chex.assert_equal_shape([reward, weight])
        follows &= weight[1:] > 0.0
    included = jnp.concatenate([jnp.ones(1, jnp.int32), jnp.cumprod(follows.astype(jnp.int32))])
    last = jnp.sum(included, dtype=jnp.int32) - 1
    powers = jnp.concatenate([jnp.ones(1, jnp.float32), jnp.cumprod(jnp.full_like(reward, gamma))])
    return NStep(
        return_=jnp.sum(jnp.where(included == 1, powers[:-1] * reward, 0.0)),
        discount=jnp.where(terminated[last], 0.0, powers[last + 1]),
        last=last,
    )
