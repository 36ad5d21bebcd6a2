"""Small drawings of mechanisms in graph: signed distances of a few shapes, painted back to front with soft edges.

Pure functions of one state, for `vmap`; float32 inside, frames are uint8 RGB `[84, 84, 3]`, row 0 on top. Lengths and points
are in the scene's own units, x to the right and y up; a `View` is the square of them that a frame shows. A link's *heading* is
its angle from straight up, clockwise, in radians: one of length l points along l (sin heading, cos heading), whatever the link
before it does.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

SIZE = 84  # pixels of each side, as in Mnih et al. 2015 and DM-Control's pixel tasks

Point = Any  # two numbers: a tuple or an array [2]
Grid = tuple[np.ndarray, np.ndarray]  # x [1, 84] and y [84, 1] of the pixels' centres
Colour = tuple[int, int, int]
Layer = tuple[jax.typing.ArrayLike, Colour]  # signed distances [84, 84], negative inside

BACKGROUND, RAIL, CART, TIP, GOAL = (235, 235, 235), (150, 150, 150), (40, 60, 120), (200, 30, 40), (40, 160, 70)
LINKS = ((240, 150, 40), (130, 70, 170))  # in turn from the base


class View(NamedTuple):
    """The square of side `2 * half` around (`x`, `y`)."""

    half: float
    x: float = 0.0
    y: float = 0.0


def grid(view: View) -> Grid:
    offset = (((np.arange(SIZE) + 0.5) / SIZE * 2.0 - 1.0) * view.half).astype(np.float32)
    return np.float32(view.x) + offset[None, :], np.float32(view.y) - offset[:, None]


def paint(view: View, *layers: Layer) -> jax.Array:
    """The frame with `layers` over the background, the last one on top.

    A layer covers a pixel by clip(1/2 - d, 0, 1), d the distance of the pixel's centre in pixels: edges are one pixel wide.
    """
    scale = np.float32(SIZE / (2.0 * view.half))
    image = jnp.broadcast_to(np.array(BACKGROUND, np.float32), (SIZE, SIZE, 3))
    for distance, colour in layers:
        cover = jnp.clip(0.5 - jnp.asarray(distance, jnp.float32) * scale, 0.0, 1.0)[..., None]
        image = image + cover * (np.array(colour, np.float32)[None, None] - image)
    return jnp.round(image).astype(jnp.uint8)


# --- shapes: signed distances [84, 84] ---------------------------------------------------------------------------------


def disc(at: Grid, centre: Point, radius: float) -> jax.Array:
    return jnp.sqrt(jnp.square(at[0] - centre[0]) + jnp.square(at[1] - centre[1])) - radius


def capsule(at: Grid, start: Point, end: Point, radius: float) -> jax.Array:
    """All within `radius` of the segment from `start` to `end`."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    x, y = at[0] - start[0], at[1] - start[1]
    nearest = jnp.clip((x * dx + y * dy) / jnp.maximum(dx * dx + dy * dy, 1e-12), 0.0, 1.0)
    return jnp.sqrt(jnp.square(x - nearest * dx) + jnp.square(y - nearest * dy)) - radius


def box(at: Grid, centre: Point, half: tuple[float, float], heading: jax.typing.ArrayLike = 0.0) -> jax.Array:
    """Of half width `half[0]` and half height `half[1]` where its own up is `heading`."""
    sin, cos = jnp.sin(jnp.asarray(heading, jnp.float32)), jnp.cos(jnp.asarray(heading, jnp.float32))
    x, y = at[0] - centre[0], at[1] - centre[1]
    across, along = jnp.abs(x * cos - y * sin) - half[0], jnp.abs(x * sin + y * cos) - half[1]
    outside = jnp.sqrt(jnp.square(jnp.maximum(across, 0.0)) + jnp.square(jnp.maximum(along, 0.0)))
    return outside + jnp.minimum(jnp.maximum(across, along), 0.0)


# --- mechanisms --------------------------------------------------------------------------------------------------------


def chain(base: Point, headings: jax.Array, lengths: jax.typing.ArrayLike) -> jax.Array:
    """The joints `[n + 1, 2]` of n links, base first; one length for all or one for each."""
    base, lengths = jnp.asarray(base, jnp.float32), jnp.asarray(lengths, jnp.float32)
    links = jnp.stack([jnp.sin(headings), jnp.cos(headings)]) * jnp.broadcast_to(lengths, (1, *headings.shape))
    return jnp.concatenate([base[None], base[None] + jnp.cumsum(links, axis=1).T])


def links(at: Grid, joints: jax.Array, radius: float, tip: float) -> list[Layer]:
    """Capsules of `radius` between `joints`, and a disc of radius `tip` at the last."""
    ends = enumerate(itertools.pairwise(joints))
    layers = [(capsule(at, a, b, radius), LINKS[i % len(LINKS)]) for i, (a, b) in ends]
    return [*layers, (disc(at, joints[-1], tip), TIP)]


def cartpole(x: jax.Array, headings: jax.Array, lengths: jax.typing.ArrayLike, view: View, track: float) -> jax.Array:
    """A cart at `x` on a rail from -`track` to `track`, with poles of `headings` `[n]`, the first hinged to the cart."""
    at = grid(view)
    cart = jnp.stack([x, jnp.zeros_like(x)])
    rail = capsule(at, (-track, 0.0), (track, 0.0), 0.02), RAIL
    return paint(
        view,
        rail,
        (box(at, cart, (0.2, 0.1)), CART),
        *links(at, chain(cart, headings, lengths), 0.028 * view.half, 0.036 * view.half),
    )


def pendulum(headings: jax.Array, lengths: jax.typing.ArrayLike, view: View, goal: Layer | None = None) -> jax.Array:
    """Links of `headings` `[n]` on a pivot at the origin, the last with a bob; `goal` lies behind them."""
    at = grid(view)
    arm = links(at, chain((0.0, 0.0), headings, lengths), 0.04 * view.half, 0.07 * view.half)
    return paint(view, *([goal] if goal else []), *arm, (disc(at, (0.0, 0.0), 0.06 * view.half), CART))


def reacher(
    headings: jax.Array, lengths: jax.typing.ArrayLike, target: jax.Array, target_radius: float, view: View
) -> jax.Array:
    """A planar arm with links of `headings` `[n]` on a base at the origin, over a `target` `[2]`."""
    at = grid(view)
    arm = links(at, chain((0.0, 0.0), headings, lengths), 0.035 * view.half, 0.045 * view.half)
    return paint(view, (disc(at, target, target_radius), GOAL), *arm, (disc(at, (0.0, 0.0), 0.045 * view.half), CART))


def mountain_car(x: jax.Array, goal: jax.typing.ArrayLike, view: View) -> jax.Array:
    """A car at `x` on the hills y = 0.45 sin(3 x) + 0.55, and a flag at `goal`; the ground's edge is right to first order."""
    height, slope = lambda x: 0.45 * jnp.sin(3.0 * x) + 0.55, lambda x: 1.35 * jnp.cos(3.0 * x)
    at, goal = grid(view), jnp.asarray(goal, jnp.float32)
    ground = (at[1] - height(at[0])) / jnp.sqrt(1.0 + jnp.square(slope(at[0])))
    heading = -jnp.arctan(slope(x))
    car = jnp.stack([x, height(x)]) + 0.06 * jnp.stack([jnp.sin(heading), jnp.cos(heading)])
    foot, top = jnp.stack([goal, height(goal)]), jnp.stack([goal, height(goal) + 0.3])
    flag = (capsule(at, foot, top, 0.015), TIP), (box(at, (top[0] + 0.06, top[1] - 0.05), (0.06, 0.05)), GOAL)
    return paint(view, (ground, RAIL), *flag, (box(at, car, (0.11, 0.06), heading), CART))
