"""The matrix products of MR.Q's two updates, counted from the sizes of its layers (`rlx/agents/mrq_updates.py`).

For vector observations and the default form of the networks: linear model, two-hot rewards, critics with hidden layers.
Write a layer as `x [rows, m] @ w [m, n]`. Beside it, one gradient costs as much each: of w, `x' g`, and of x, `g w'`.

| | layers | rows | forward | of matrices | of inputs |
|---|---|---|---|---|---|
| encoder: targets | f | B H | 1 | - | - |
| encoder: first embedding | f | B | 1 | 1 | all but the observation |
| encoder: each of H steps | action embedding, g, m | B | 1 | 1 | all but the action |
| targets | f, policy, g, critics | B | 1 | - | - |
| critics | f, g | B | 1 | - | - |
| critics | critics | B | 1 | 1 | all but g's output, which gets no gradient |
| policy | policy | B | 1 | 1 | all but the embedding |
| policy | critics, g, action embedding | B | 1 | - | 1, down to the action |

In the last row the first layer of g makes the gradient of the embedding beside that of the action, since both are one matrix
(0.13 of 7.9 GFLOP that nobody needs). An estimate that counts every backward pass as twice its forward one, whether or not the
first input needs a gradient, gives 8.3 GFLOP for values and policy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from rlx.types import EnvSpec

Layers = list[tuple[int, int]]


class Product(NamedTuple):
    """`copies` products of `[m, k]` and `[k, n]`; `kind` says which operand is stored transposed: none, w or x."""

    kind: Literal["forward", "input", "matrix"]
    copies: int
    m: int
    k: int
    n: int

    @property
    def flops(self) -> int:
        return 2 * self.copies * self.m * self.k * self.n


Products = Counter[Product]  # product -> how often


def flops(products: Products) -> int:
    return sum(times * product.flops for product, times in products.items())


def forward(rows: int, layers: Layers, copies: int = 1) -> Iterable[Product]:
    return (Product("forward", copies, rows, m, n) for m, n in layers)


def inputs(rows: int, layers: Layers, copies: int = 1) -> Iterable[Product]:
    """Gradients of what the layers take."""
    return (Product("input", copies, rows, n, m) for m, n in layers)


def matrices(rows: int, layers: Layers, copies: int = 1) -> Iterable[Product]:
    """Gradients of what the layers multiply by."""
    return (Product("matrix", copies, m, rows, n) for m, n in layers)


class Sizes(NamedTuple):
    """The layers (in, out) of each network."""

    state: Layers
    embed: Layers
    joint: Layers
    model: Layers
    critic: Layers
    policy: Layers


def sizes(c: Any, spec: EnvSpec) -> Sizes:
    """Of a `mrq.Config`. A spec or config that the count is not of: ValueError."""
    if len(spec.obs_shape) != 1 or not c.linear_model or c.linear_value or c.reward_loss != "two_hot":
        raise ValueError("counted are vector observations and the default networks")
    action = spec.action_dim if spec.num_actions is None else spec.num_actions
    layers = lambda *widths: list(pairwise(widths))
    return Sizes(
        layers(spec.obs_shape[0], c.encoder_size, c.encoder_size, c.zs_size),
        layers(action, c.za_size),
        layers(c.zs_size + c.za_size, c.encoder_size, c.encoder_size, c.zsa_size),
        layers(c.zsa_size, 1 + c.zs_size + c.num_bins),
        layers(c.zsa_size, c.value_size, c.value_size, c.value_size, 1),
        layers(c.zs_size, c.policy_size, c.policy_size, action),
    )


def encoder_step(c: Any, spec: EnvSpec) -> Products:
    """Of one encoder update."""
    s, b, h = sizes(c, spec), c.batch_size, c.enc_horizon
    step = s.embed + s.joint + s.model
    once = [*forward(b * h, s.state), *forward(b, s.state), *matrices(b, s.state), *inputs(b, s.state[1:])]
    each = [*forward(b, step), *matrices(b, step), *inputs(b, step[1:])]
    return Counter(once + h * each)


def rl_step(c: Any, spec: EnvSpec) -> Products:
    """Of one update of values and policy."""
    s, b = sizes(c, spec), c.batch_size
    both = s.embed + s.joint
    target = [*forward(b, s.state + s.policy + both), *forward(b, s.critic, 2)]
    critic = [*forward(b, s.state + both), *forward(b, s.critic, 2), *matrices(b, s.critic, 2), *inputs(b, s.critic[1:], 2)]
    policy = [*forward(b, s.policy), *matrices(b, s.policy), *inputs(b, s.policy[1:])]
    through = [*forward(b, both), *forward(b, s.critic, 2), *inputs(b, s.critic, 2), *inputs(b, both)]
    return Counter(target + critic + policy + through)
