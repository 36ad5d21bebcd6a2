"""The networks of MR.Q (`mrq.py`). All take any number of leading batch axes.

Every matrix and convolution is Xavier-uniform with gain sqrt 2, output layers too (flax's default lacks the gain); biases
are 0. Layer norms have neither scale nor bias, eps 1e-5 and the variance in two passes (flax's defaults differ in all four).
Pixels are laid out channels-last, where the reference flattens channel-first: the same functions, weights permuted.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import struct

from rlx.networks import CNN, activation_fn, preprocess

XAVIER = nn.initializers.variance_scaling(2.0, "fan_avg", "uniform")
IMAGE = ((32, 3, 2), (32, 3, 2), (32, 3, 2), (32, 3, 1))  # features, kernel, stride: the paper's, 84 x 84 -> 7 x 7
IMAGE_SIDE = 31  # the smallest that these leave a pixel of
BOARD = ((32, 3, 1),)  # below that (MinAtar): not in the paper


def is_image(obs_shape: tuple[int, ...]) -> bool:
    """Whether observations go through the paper's convolutions, and are shifted for augmentation."""
    return len(obs_shape) == 3 and min(obs_shape[:2]) >= IMAGE_SIDE


@jax.custom_vjp
def product(x: jax.Array, w: jax.Array) -> jax.Array:
    """x `[..., d]` times w `[d, m]`, with the gradient of w as x'g.

    JAX's rule makes (g'x)' of it, and under a vmap over runs XLA keeps that transposition: the optimiser then reads gradients
    across their rows, a fifth of a step for one run on a CPU. The price: no forward-mode derivatives (jvp, jacfwd).
    """
    return x @ w


def _product_bwd(inputs: tuple[jax.Array, jax.Array], g: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, w = inputs
    flat = lambda a: a.reshape(-1, a.shape[-1])
    return g @ w.T, jax.lax.dot_general(flat(x), flat(g), (((0,), (0,)), ((), ())))


product.defvjp(lambda x, w: (x @ w, (x, w)), _product_bwd)


def dense(size: int, name: str | None = None) -> nn.Dense:
    return nn.Dense(size, kernel_init=XAVIER, name=name, dot_general=lambda x, w, *_, **__: product(x, w))


def layer_norm(x: jax.Array) -> jax.Array:
    """Over the last axis, without parameters."""
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)


class MLP3(nn.Module):
    """Two hidden layers of `hidden` units, each normed and activated, then a linear one: `[..., d]` -> `[..., out]`."""

    hidden: int
    out: int
    activation: str = "elu"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for name in ("l1", "l2"):
            x = activation_fn(self.activation)(layer_norm(dense(self.hidden, name)(x)))
        return dense(self.out, "l3")(x)


class Prediction(struct.PyTreeNode):
    """What the model says of a step: `done` `[...]`, the next `zs` `[..., d]`, `reward` `[..., bins]` logits, or `[..., 1]`."""

    done: jax.Array
    zs: jax.Array
    reward: jax.Array


class Encoder(nn.Module):
    """State encoder f, state-action encoder g and the MDP predictor m, trained as one."""

    config: Any  # mrq.Config
    obs_shape: tuple[int, ...]

    def setup(self) -> None:
        c = self.config
        if len(self.obs_shape) == 3 and min(self.obs_shape[:2]) >= 3:
            layers = IMAGE if is_image(self.obs_shape) else BOARD
            self.zs_cnn, self.zs_out = CNN(layers, "elu", XAVIER), dense(c.zs_size)
        else:
            self.zs_mlp = MLP3(c.encoder_size, c.zs_size)
        self.za, self.zsa_mlp = dense(c.za_size), MLP3(c.encoder_size, c.zsa_size)
        out = 1 + c.zs_size + (c.num_bins if c.reward_loss == "two_hot" else 1)
        self.model = dense(out) if c.linear_model else MLP3(c.encoder_size, out)

    def zs(self, obs: jax.Array) -> jax.Array:
        """obs `[..., *obs_shape]` -> `[..., zs_size]`, normed and through an ELU: >= -1. uint8 pixels become x/255 - 1/2."""
        batch = obs.shape[: obs.ndim - len(self.obs_shape)]
        x = preprocess(obs) - (0.5 if obs.dtype == jnp.uint8 else 0.0)
        if len(self.obs_shape) == 3 and min(self.obs_shape[:2]) >= 3:
            x = self.zs_out(self.zs_cnn(x))
        else:
            x = self.zs_mlp(x.reshape(*batch, -1))
        return nn.elu(layer_norm(x))

    def zsa(self, zs: jax.Array, action: jax.Array) -> jax.Array:
        """zs, action `[..., d]` (one-hot if discrete) -> `[..., zsa_size]`, neither normed nor activated."""
        return self.zsa_mlp(jnp.concatenate([zs, nn.elu(self.za(action))], axis=-1))

    def predict(self, zsa: jax.Array) -> Prediction:
        """The linear MDP predictor. The next zs is absolute and as it comes: no residual, no norm; done is no logit."""
        out, size = self.model(zsa), self.config.zs_size
        return Prediction(out[..., 0], out[..., 1 : 1 + size], out[..., 1 + size :])

    def __call__(self, obs: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array, Prediction]:
        zs = self.zs(obs)
        zsa = self.zsa(zs, action)
        return zs, zsa, self.predict(zsa)


class Value(nn.Module):
    """Of one critic: zsa `[..., d]` -> `[...]`; an MLP of three hidden layers, or linear."""

    hidden: int
    linear: bool = False

    @nn.compact
    def __call__(self, zsa: jax.Array) -> jax.Array:
        x = zsa if self.linear else nn.elu(layer_norm(MLP3(self.hidden, self.hidden, name="mlp")(zsa)))
        return dense(1, "out")(x)[..., 0]
