"""The mathematics of MR.Q (`mrq.py`), of one sample: targets, losses, noise and augmentation."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from rlx.agents.mrq_networks import Prediction

PAD = 4  # pixels


def bins(n: int) -> np.ndarray:
    """Where the reward's two-hot encoding has its n bins: symexp of a grid over [-10, 10], float32 `[n]`. An odd n has 0."""
    x = np.linspace(-10.0, 10.0, n)
    return (np.sign(x) * np.expm1(np.abs(x))).astype(np.float32)


def two_hot(x: jax.Array, bins: jax.Array) -> jax.Array:
    """Weights `[n]` of the two bins around the scalar x, whose mean is x; one-hot where x is a bin.

    Beyond the outermost bins (+-22025) x is clipped: the reference code divides by zero there.
    """
    chex.assert_rank([x, bins], [0, 1])
    x = jnp.clip(x, bins[0], bins[-1])
    low = jnp.clip(jnp.searchsorted(bins, x, side="right") - 1, 0, bins.shape[0] - 2)
    share = (x - bins[low]) / (bins[low + 1] - bins[low])
    n = bins.shape[0]
    return jax.nn.one_hot(low, n, dtype=jnp.float32) * (1.0 - share) + jax.nn.one_hot(low + 1, n, dtype=jnp.float32) * share


def window_mask(terminated: jax.Array, truncated: jax.Array, weight: jax.Array) -> jax.Array:
    """1 for the steps of a window `[H]` that belong to the episode of its first, 0 after; float32 `[H]`.

    A terminal step itself counts, and so does a truncated one, whose true successor is stored: the mask is an exclusive
    product. Steps from a quarantined one (weight 0) on do not.
    """
    chex.assert_rank([terminated, truncated, weight], 1)
    goes_on = 1.0 - (terminated | truncated).astype(jnp.float32)
    counts = (weight > 0.0).astype(jnp.float32)
    return jnp.cumprod(jnp.concatenate([jnp.ones(1, jnp.float32), goes_on[:-1]]) * counts)


def encoder_loss(
    prediction: Prediction, zs: jax.Array, reward: jax.Array, terminated: jax.Array, mask: jax.Array, bins: jax.Array | None,
    dynamics_coef: jax.Array, reward_coef: jax.Array, done_coef: jax.Array,
) -> jax.Array:  # fmt: skip
    """Of one window: leaves `[H, ...]`; `zs` `[H, d]` the targets. Summed over steps, not averaged.

    Squared error of the next zs, mean over its units; cross-entropy of the two-hot reward (squared error without `bins`);
    squared error of `done`. Masked steps add nothing, and the batch's mean divides by all samples.
    """
    chex.assert_rank([reward, terminated, mask], 1)
    chex.assert_equal_shape([prediction.zs, zs])
    dynamics = ((prediction.zs - zs) ** 2).mean(-1)
    if bins is None:
        of_reward = (prediction.reward[:, 0] - reward) ** 2
    else:
        target = jax.vmap(two_hot, (0, None))(reward, bins)
        of_reward = -(target * jax.nn.log_softmax(prediction.reward)).sum(-1)
    done = (prediction.done - terminated.astype(jnp.float32)) ** 2
    return (mask * (dynamics_coef * dynamics + reward_coef * of_reward + done_coef * done)).sum()


def value_target(
    return_: jax.Array, discount: jax.Array, q: jax.Array, scale: jax.Array, target_scale: jax.Array, minimum: bool = True
) -> jax.Array:
    """`(R + D min_j Q'_j target_scale) / scale`; q `[2]`. `target_scale` is the scale that Q' was trained under."""
    chex.assert_rank([return_, discount, q], [0, 0, 1])
    return (return_ + discount * (q.min() if minimum else q.mean()) * target_scale) / scale


def value_loss(q: jax.Array, target: jax.Array, huber: bool = True) -> jax.Array:
    """Huber loss (delta 1), or squared error, averaged over both critics: q `[2]`."""
    chex.assert_rank([q, target], [1, 0])
    error = q - target
    return (optax.huber_loss(error) if huber else error**2).mean()


def policy_loss(q: jax.Array, preact: jax.Array, preact_coef: jax.Array) -> jax.Array:
    """`-mean_j Q_j + preact_coef mean u^2`: q `[2]`, the policy's output u `[d]` before tanh or softmax."""
    chex.assert_rank([q, preact], [1, 1])
    return -q.mean() + preact_coef * (preact**2).mean()


def gumbel_softmax(preact: jax.Array, key: jax.Array, temperature: jax.Array | float) -> jax.Array:
    """A relaxed one-hot sample of softmax(u), `[A]`; its argmax is a sample whatever the temperature."""
    return jax.nn.softmax((preact + jax.random.gumbel(key, preact.shape)) / temperature)


def noisy(action: jax.Array, noise: jax.Array, clip: jax.Array | float, discrete: bool) -> jax.Array:
    """The action `[d]` plus the noise clipped to [-clip, clip]: within [-1, 1]^d, or of discrete actions the one-hot argmax."""
    chex.assert_equal_shape([action, noise])
    moved = action + jnp.clip(noise, -clip, clip)
    return jax.nn.one_hot(jnp.argmax(moved), moved.shape[-1]) if discrete else jnp.clip(moved, -1.0, 1.0)


def shift(image: jax.Array, key: jax.Array) -> jax.Array:
    """The image `[H, W, C]`, its edges repeated `PAD` times, cut out at a random offset, the same for all channels."""
    padded = jnp.pad(image, ((PAD, PAD), (PAD, PAD), (0, 0)), mode="edge")
    row, column = jax.random.randint(key, (2,), 0, 2 * PAD + 1)
    return jax.lax.dynamic_slice(padded, (row, column, jnp.zeros_like(row)), image.shape)
