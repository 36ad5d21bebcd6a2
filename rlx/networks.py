"""flax.linen modules, nothing agent-specific. Heads are plain `nn.Dense` on top of a `Torso` or `MLP`.

Every module takes any number of leading batch axes, none included.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import field
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from rlx.errors import RlxError, unknown

Initializer = nn.initializers.Initializer

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": nn.relu,
    "tanh": nn.tanh,
    "elu": nn.elu,
    "silu": nn.silu,
    "gelu": nn.gelu,
}


def activation_fn(name: str) -> Callable[[jax.Array], jax.Array]:
    """The activation of that name; RlxError with the nearest one if there is none."""
    if name not in ACTIVATIONS:
        raise unknown("activation", name, ACTIVATIONS)
    return ACTIVATIONS[name]


def orthogonal(scale: float = math.sqrt(2.0)) -> Initializer:
    """Uniformly random orthogonal matrices times `scale` (Saxe et al. 2014); the default suits relu.

    Leading axes of a kernel are flattened. By Gram-Schmidt and not, as in flax, by a QR decomposition: batched LAPACK calls
    next to the while loops of a physics engine deadlock XLA's CPU runtime (jax 0.10.2), and a population is a batch.
    """

    def init(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        rows, columns = math.prod(shape[:-1]), shape[-1]
        tall = jax.random.normal(key, (max(rows, columns), min(rows, columns)), dtype)
        q = gram_schmidt(tall)
        return scale * (q if rows >= columns else q.T).reshape(shape)

    return init


def gram_schmidt(a: jax.Array) -> jax.Array:
    """The columns of `a` `[n, m]`, n >= m, orthonormalised in order. Each is projected twice ("twice is enough", Kahan)."""

    def column(j: jax.Array, q: jax.Array) -> jax.Array:
        v = q[:, j]
        done = jnp.where(jnp.arange(q.shape[1])[None, :] < j, q, 0.0)
        for _ in range(2):
            v = v - done @ (done.T @ v)
        return q.at[:, j].set(v / jnp.linalg.norm(v))

    return jax.lax.fori_loop(0, a.shape[1], column, a)


def preprocess(obs: jax.Array) -> jax.Array:
    """float32 of the same shape: uint8 divided by 255, bool and other integers cast, floats as they are."""
    scale = 255.0 if obs.dtype == jnp.uint8 else 1.0
    return obs if obs.dtype == jnp.float32 else obs.astype(jnp.float32) / scale


class MLP(nn.Module):
    """Dense layers, each activated, the last too: `[..., d]` -> `[..., hidden_sizes[-1]]`, float32.

    `layer_norm` puts a LayerNorm between each matrix and its activation. No layers is the identity.
    """

    hidden_sizes: tuple[int, ...]
    activation: str = "relu"
    kernel_init: Initializer = nn.initializers.lecun_normal()
    layer_norm: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for size in self.hidden_sizes:
            x = nn.Dense(size, kernel_init=self.kernel_init)(x)
            x = nn.LayerNorm()(x) if self.layer_norm else x
            x = activation_fn(self.activation)(x)
        return x


class PatchConv(nn.Module):
    """2-D convolution without padding, `[..., H, W, C]` -> `[..., (H-kernel)//stride + 1, ..., features]`.

    Same parameters and numbers as `nn.Conv(features, (kernel, kernel), stride, padding="VALID")`, computed as strided
    slices stacked on the channel axis and one matmul: XLA's CPU convolution is some 30 times slower inside a scan, and
    under a vmap over runs, where kernels differ, a convolution becomes a grouped one. Costs (kernel/stride)^2 times the
    input in memory.
    """

    features: int
    kernel: int
    stride: int = 1
    kernel_init: Initializer = nn.initializers.lecun_normal()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        k, s = self.kernel, self.stride
        height, width, channels = x.shape[-3:]
        if min(height, width) < k:
            raise RlxError(f"observation of {height} x {width} pixels is smaller than the convolution's {k} x {k} kernel")
        rows, cols = ((size - k) // s * s + 1 for size in (height, width))
        kernel = self.param("kernel", self.kernel_init, (k, k, channels, self.features), jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (self.features,), jnp.float32)
        patches = [x[..., i : i + rows : s, j : j + cols : s, :] for i in range(k) for j in range(k)]
        out = jnp.concatenate(patches, axis=-1) @ kernel.reshape(-1, self.features)
        return out + jnp.broadcast_to(bias, out.shape)


class CNN(nn.Module):
    """Activated `PatchConv` layers (features, kernel, stride), flattened: `[..., H, W, C]` -> `[..., d]`.

    `layer_norm` puts a LayerNorm over the channels between each convolution and its activation.
    """

    layers: tuple[tuple[int, int, int], ...]
    activation: str = "relu"
    kernel_init: Initializer = nn.initializers.lecun_normal()
    layer_norm: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for features, kernel, stride in self.layers:
            x = PatchConv(features, kernel, stride, self.kernel_init)(x)
            x = nn.LayerNorm()(x) if self.layer_norm else x
            x = activation_fn(self.activation)(x)
        return x.reshape(*x.shape[:-3], -1)


BOARD = ((16, 3, 1),)  # MinAtar: Young & Tian 2019, sec. 4
NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # Mnih et al. 2015, methods


class Torso(nn.Module):
    """Raw observations `[..., *obs_shape]` of any dtype (see `preprocess`) -> float32 `[..., hidden_sizes[-1]]`.

    `[H, W, C]` goes through a CNN, then an MLP: the Nature one where both sides are at least 36 (what its kernels
    need), else one 3x3 convolution. All other observations are flattened into the MLP. `layer_norm` as in `CNN` and `MLP`.
    """

    hidden_sizes: tuple[int, ...]
    activation: str = "relu"
    kernel_init: Initializer = nn.initializers.lecun_normal()
    layer_norm: bool = False
    obs_shape: tuple[int, ...] = field(kw_only=True)

    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        batch = obs.shape[: obs.ndim - len(self.obs_shape)]
        if obs.shape != batch + self.obs_shape:
            raise RlxError(f"observation of shape {obs.shape} does not end in the environment's {self.obs_shape}")
        x = preprocess(obs)
        side = min(self.obs_shape[:2]) if len(self.obs_shape) == 3 else 0
        options = self.activation, self.kernel_init, self.layer_norm
        x = CNN(NATURE if side >= 36 else BOARD, *options)(x) if side >= 3 else x.reshape(*batch, -1)
        return MLP(self.hidden_sizes, *options)(x)


def features(hidden_sizes: tuple[int, ...], activation: str, obs_shape: tuple[int, ...]) -> Torso:
    """What an actor or a `Critic` sees: vectors as they are; boards and images through convolutions and one dense layer."""
    return Torso(() if len(obs_shape) == 1 else hidden_sizes[:1], activation, obs_shape=obs_shape)


class Critic(nn.Module):
    """obs `[..., *obs_shape]`, continuous action `[..., d]` -> Q `[...]`: an MLP of both."""

    hidden_sizes: tuple[int, ...]
    activation: str
    obs_shape: tuple[int, ...]

    @nn.compact
    def __call__(self, obs: jax.Array, action: jax.Array) -> jax.Array:
        x = jnp.concatenate([features(self.hidden_sizes, self.activation, self.obs_shape)(obs), action], axis=-1)
        return nn.Dense(1, name="q")(MLP(self.hidden_sizes, self.activation)(x))[..., 0]


def ensemble(module_cls: type[nn.Module], k: int) -> type[nn.Module]:
    """`module_cls` as k copies with parameters of their own: the same inputs, parameters and outputs `[k, ...]`."""
    return nn.vmap(module_cls, variable_axes={"params": 0}, split_rngs={"params": True}, in_axes=None, out_axes=0, axis_size=k)
