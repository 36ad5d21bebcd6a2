"""What distrax lacks, as distrax distributions."""

from __future__ import annotations

import chex
import distrax
import jax
import jax.numpy as jnp
import numpy as np

_MAX_ACTION = np.float32(1.0 - 2.0**-24)  # the largest float32 below 1


class TanhNormal(distrax.Distribution):
    """`tanh(x)` of a diagonal Gaussian `x`: actions in [-1, 1]^D, one event dimension (Haarnoja et al. 2018, app. C).

    The density is that of the exact tanh; a float32 sample beyond |x| = 9 rounds to +-1. So whoever needs the
    log-probability of its own samples keeps the pre-tanh `raw` one: `log_prob_of_raw` never inverts the tanh and is
    finite, gradients included, at least up to |raw| = 1e3, where distrax's transformed Normal gives NaN. With

        log |d tanh(x) / dx| = 2 (log 2 - x - softplus(-2x))

    Args: `loc`, `scale` float32 `[..., D]`, `scale` > 0.
    """

    def __init__(self, loc: jax.Array, scale: jax.Array) -> None:
        super().__init__()
        chex.assert_equal_shape([loc, scale])
        self.loc = loc
        self.scale = scale

    @property
    def event_shape(self) -> tuple[int, ...]:
        return self.loc.shape[-1:]

    def raw_sample(self, seed: jax.Array) -> jax.Array:
        """A pre-tanh sample, `[..., D]`; `tanh` of it is `sample(seed=seed)`. Reparameterised."""
        return self._raw_n(seed, 1)[0]

    def log_prob_of_raw(self, raw: jax.Array) -> jax.Array:
        """The log-density of the action `tanh(raw)`, over actions: `[..., D]` -> `[...]`."""
        loc, scale = jnp.broadcast_to(self.loc, raw.shape), jnp.broadcast_to(self.scale, raw.shape)
        normal = -0.5 * jnp.square((raw - loc) / scale) - jnp.log(scale) - 0.5 * np.float32(np.log(2 * np.pi))
        log_det = 2.0 * (np.float32(np.log(2.0)) - raw - jax.nn.softplus(-2.0 * raw))
        return jnp.sum(normal - log_det, axis=-1)

    def log_prob(self, value: jax.Array) -> jax.Array:
        """The log-density of an action, `[..., D]` -> `[...]`: finite at +-1, where the action is moved to the nearest
        float32 inside, 1 - 2^-24 (raw 8.7). Near there prefer `log_prob_of_raw`: float32 actions are too coarse."""
        return self.log_prob_of_raw(jnp.arctanh(jnp.clip(value, -_MAX_ACTION, _MAX_ACTION)))

    def mode(self) -> jax.Array:
        """`tanh(loc)`, the deterministic action of SAC's evaluation: the image of the Gaussian's mode (and the median
        of each coordinate), which is not where the density over actions is largest."""
        return jnp.tanh(self.loc)

    def _raw_n(self, key: jax.Array, n: int) -> jax.Array:
        shape = (n, *self.loc.shape)
        noise = jax.random.normal(key, shape, self.loc.dtype)
        return jnp.broadcast_to(self.loc, shape) + jnp.broadcast_to(self.scale, shape) * noise

    def _sample_n(self, key: jax.Array, n: int) -> jax.Array:
        return jnp.tanh(self._raw_n(key, n))

    def _sample_n_and_log_prob(self, key: jax.Array, n: int) -> tuple[jax.Array, jax.Array]:
        raw = self._raw_n(key, n)
        return jnp.tanh(raw), self.log_prob_of_raw(raw)
