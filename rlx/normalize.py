"""Running mean and variance as pure state, and the reward scale made of them. Everything is float32."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from rlx.types import EnvSpec

EPS = 1e-8
MAX_COUNT = float(2**22)


@struct.dataclass
class Stats:
    """Weighted count (scalar), mean and population variance `[*shape]`.

    `count` stops at MAX_COUNT = 2^22 (4.2 million samples). Up to there float32 counts single samples exactly; a count
    that grew on would make each sample's share fall below float32's resolution of the mean, and freeze it silently.
    From there on old data are forgotten exponentially, with a horizon of MAX_COUNT samples: a deviation from
    Chan et al. that matters only to statistics that no longer move.
    """

    count: jax.Array
    mean: jax.Array
    var: jax.Array


def init(shape: tuple[int, ...]) -> Stats:
    """No data yet: count 0, mean 0, variance 1, with which `normalize` is the identity (up to its clip)."""
    return Stats(jnp.zeros((), jnp.float32), jnp.zeros(shape, jnp.float32), jnp.ones(shape, jnp.float32))


def init_obs(spec: EnvSpec, wanted: bool) -> Stats | None:
    """Statistics of observations that are float vectors, else None, with which `observe` is the identity."""
    vector = jnp.issubdtype(spec.obs_dtype, jnp.floating) and len(spec.obs_shape) == 1
    return init(spec.obs_shape) if wanted and vector else None


def observe(stats: Stats | None, obs: jax.Array) -> jax.Array:
    """`normalize` where there are statistics, `obs` as it is where there are none."""
    return obs if stats is None else normalize(stats, obs)


def update(stats: Stats, batch: jax.Array, weight: jax.Array) -> Stats:
    """Merge a weighted batch (Chan, Golub & LeVeque 1983, parallel variance).

    Args: `batch` `[B, *shape]`, any real dtype; `weight` float32[B], >= 0. Rows of weight 0 are ignored, NaN or not;
    a batch of nothing else changes nothing.
    """
    chex.assert_shape(batch, (weight.shape[0], *stats.mean.shape))
    chex.assert_rank(weight, 1)
    w = weight.reshape((-1,) + (1,) * stats.mean.ndim)
    x = jnp.where(w > 0.0, batch.astype(jnp.float32), 0.0)
    added = jnp.sum(weight)
    share = w / jnp.where(added > 0.0, added, 1.0)
    mean = jnp.sum(share * x, axis=0)
    var = jnp.sum(share * jnp.square(x - mean[None]), axis=0)

    total = stats.count + added
    new = added / jnp.where(total > 0.0, total, 1.0)  # the batch's part in the merged statistics
    delta = mean - stats.mean
    merged = Stats(
        count=jnp.minimum(total, MAX_COUNT),
        mean=stats.mean + new * delta,
        var=(1.0 - new) * stats.var + new * var + new * (1.0 - new) * jnp.square(delta),
    )
    return jax.tree.map(lambda a, b: jnp.where(added > 0.0, a, b), merged, stats)


def weighted_mean(x: jax.Array, weight: jax.Array) -> jax.Array:
    """Mean of x over the samples that count; both `[B]`. What weighs nothing may be NaN; 0 if nothing counts."""
    chex.assert_equal_shape([x, weight])
    return (jnp.where(weight > 0, x, 0.0) * weight).sum() / jnp.maximum(weight.sum(), 1.0)


def std(stats: Stats) -> jax.Array:
    """`sqrt(var + 1e-8)`, float32`[*shape]`: never 0."""
    return jnp.sqrt(stats.var + EPS)


def normalize(stats: Stats, x: jax.Array, clip: float = 10.0) -> jax.Array:
    """`(x - mean) / std`, clipped to [-clip, clip], float32; `x` is `[..., *shape]`."""
    chex.assert_equal_shape_suffix([x, stats.mean], stats.mean.ndim)
    mean, scale = (jnp.broadcast_to(s, x.shape) for s in (stats.mean, std(stats)))
    return jnp.clip((x.astype(jnp.float32) - mean) / scale, -clip, clip)


# --- reward scaling --------------------------------------------------------------------------------------------------


@struct.dataclass
class ReturnStats:
    """`ret` float32[N]: gamma-discounted sum of each running episode's rewards so far (0 after an end); its `stats`."""

    ret: jax.Array
    stats: Stats


def init_returns(num_envs: int) -> ReturnStats:
    """No data yet; `scale` is 1."""
    return ReturnStats(jnp.zeros(num_envs, jnp.float32), init(()))


def update_returns(
    state: ReturnStats, reward: jax.Array, done: jax.Array, weight: jax.Array, gamma: jax.Array | float
) -> ReturnStats:
    """Add the discounted returns of a rollout to the statistics (reward scaling of Engstrom et al. 2020, sec. 2).

        R_t = r_t + gamma * R_{t-1} * (1 - done_{t-1})

    The reset comes after the step that ended the episode. purejaxrl and rejax multiply by `1 - done_t` instead, which
    forgets the episode one step early. A rollout split into several calls gives the same statistics.

    Args: `reward` float32[T, N]; `done` bool[T, N], `terminated | truncated`; `weight` float32[T, N], 0 for a
    quarantined step, whose reward is taken as 0 and whose return is left out; `gamma` the agent's.
    """
    chex.assert_shape([reward, done, weight], (None, *state.ret.shape))

    def step(ret: jax.Array, x: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        r, d, w = x
        ret = jnp.where(w > 0.0, r, 0.0) + gamma * ret
        return jnp.where(d, 0.0, ret), ret

    ret, all_returns = lax.scan(step, state.ret, (reward, done, weight))
    return ReturnStats(ret, update(state.stats, all_returns.reshape(-1), weight.reshape(-1)))


def scale(state: ReturnStats) -> jax.Array:
    """`1 / std(R)`, float32 scalar: what rewards are multiplied by (never shifted). 1 before any data."""
    return 1.0 / std(state.stats)
