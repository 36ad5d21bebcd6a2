"""Drawings, against points in shapes counted in NumPy, and what can be read off them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlx.envs import raster
from rlx.envs.raster import BACKGROUND, CART, SIZE, TIP, View

VIEW = View(1.5, 0.25, -0.5)


def points(view, fine=8):
    """World x and y of `fine` x `fine` points in each pixel, `[SIZE * fine]` each, rows from the top."""
    at = (np.arange(SIZE * fine) + 0.5) / (SIZE * fine) * 2 * view.half - view.half
    return view.x + at, view.y - at


def covered(view, inside, fine=8):
    """The fraction of each pixel that is inside, by counting; and what is inside or outside with all neighbours."""
    x, y = np.meshgrid(*points(view, fine))
    share = inside(x, y).reshape(SIZE, fine, SIZE, fine).mean((1, 3))
    near = np.stack([np.roll(share, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1)])[:, 1:-1, 1:-1]
    return share, near.min(0) == 1, near.max(0) == 0


def red(frame):
    """How much of a frame's pixels has `TIP`'s colour exactly, as a bool image."""
    return (np.asarray(frame) == TIP).all(-1)


def centroid(weights, view):
    """World x, y of the centre of `weights` `[..., SIZE, SIZE]`."""
    x, y = points(view, fine=1)
    total = weights.sum((-2, -1))
    return (weights.sum(-2) * x).sum(-1) / total, (weights.sum(-1) * y).sum(-1) / total


def warm(frames):
    """How orange or red, blue and greys at 0: linear in what poles and tips cover, where they are alone."""
    frames = np.asarray(frames, np.float64)
    return np.maximum(frames[..., 0] - frames[..., 2], 0)


# --- shapes ------------------------------------------------------------------------------------------------------------


def in_disc(x, y, c, r):
    return (x - c[0]) ** 2 + (y - c[1]) ** 2 <= r**2


def in_box(x, y, c, half, heading):
    """Between both pairs of sides, by rotating complex numbers: the heading is clockwise."""
    z = ((x - c[0]) + 1j * (y - c[1])) * np.exp(1j * heading)
    return (abs(z.real) <= half[0]) & (abs(z.imag) <= half[1])


def in_capsule(x, y, a, b, r):
    """A box and two discs."""
    z = complex(b[0] - a[0], b[1] - a[1])
    middle = (a[0] + b[0]) / 2, (a[1] + b[1]) / 2
    return in_box(x, y, middle, (abs(z) / 2, r), -np.angle(z)) | in_disc(x, y, a, r) | in_disc(x, y, b, r)


SHAPES = {
    "disc": (raster.disc, in_disc, ((0.3, -0.9), 0.5)),
    "level capsule": (raster.capsule, in_capsule, ((-0.6, -0.2), (0.9, -0.2), 0.15)),
    "steep capsule": (raster.capsule, in_capsule, ((0.9, -1.4), (-0.3, 0.4), 0.2)),
    "level box": (raster.box, in_box, ((0.4, -0.3), (0.7, 0.25), 0.0)),
    "turned box": (raster.box, in_box, ((0.2, -0.6), (0.3, 0.8), 0.7)),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_cover_the_pixels_that_they_contain(shape, strict):
    distance, inside, args = SHAPES[shape]
    colour = 13, 200, 77
    layer = distance(raster.grid(VIEW), *args), colour
    frame = np.asarray(raster.paint(VIEW, layer))
    share, full, empty = covered(VIEW, lambda x, y: inside(x, y, *args))
    inner = frame[1:-1, 1:-1]
    assert full.sum() > 100 and empty.sum() > 1000
    assert (inner[full] == colour).all() and (inner[empty] == BACKGROUND).all()
    cover = (frame.astype(float) - BACKGROUND) / (np.array(colour) - BACKGROUND)
    assert np.abs(cover - share[..., None]).max() < 0.26  # worst at a corner in a pixel's centre: 1/2 for 1/4
    assert abs(cover.mean() - share.mean()) < 2e-3 and ((cover > 0.1) & (cover < 0.9)).any()
    assert frame.dtype == np.uint8 and frame.shape == (SIZE, SIZE, 3)


def test_a_capsule_without_length_is_a_disc(strict):
    at = raster.grid(VIEW)
    np.testing.assert_allclose(raster.capsule(at, (0.2, 0.1), (0.2, 0.1), 0.3), raster.disc(at, (0.2, 0.1), 0.3), atol=1e-6)


def test_the_last_layer_is_on_top(strict):
    at = raster.grid(VIEW)
    below, above = (raster.disc(at, (0.0, -0.5), 0.9), (1, 2, 3)), (raster.disc(at, (0.0, -0.5), 0.3), (250, 240, 0))
    frame = np.asarray(raster.paint(VIEW, below, above))
    row, column = SIZE // 2, round(SIZE * (-0.25 + 1.5) / 3.0)
    assert (frame[row, column] == (250, 240, 0)).all() and (frame[row, column + 18] == (1, 2, 3)).all()
    assert (np.asarray(raster.paint(VIEW, above, below))[row, column] == (1, 2, 3)).all()
    assert (np.asarray(raster.paint(VIEW)) == BACKGROUND).all()


# --- mechanisms --------------------------------------------------------------------------------------------------------


def test_chain_by_hand(strict):
    joints = raster.chain((1.0, 2.0), jnp.array([0.0, np.pi / 2, np.pi], jnp.float32), np.array([1.0, 2.0, 4.0], np.float32))
    np.testing.assert_allclose(joints, [[1, 2], [1, 3], [3, 3], [3, -1]], atol=1e-6)
    np.testing.assert_allclose(raster.chain((0.0, 0.0), jnp.array([np.pi / 6], jnp.float32), 2.0)[1], [1, 3**0.5], atol=1e-6)


@functools.cache
def drawn(name):
    """Mechanisms of batches of numbers, jitted."""
    draw = {
        "cartpole": lambda x, a: raster.cartpole(x, a, 1.0, View(2.1), 2.0),
        "one pole": lambda x, a: raster.cartpole(x, a[:1], 1.0, View(2.1), 2.0),
        "pendulum": lambda x, a: raster.pendulum(a[:1], 1.0, View(1.3)),
        "acrobot": lambda x, a: raster.pendulum(a, 0.5, View(1.3)),
        "reacher": lambda x, a: raster.reacher(a, 0.12, jnp.stack([0.1 * x, jnp.full_like(x, 0.1)]), 0.03, View(0.3)),
    }[name]
    return jax.jit(jax.vmap(draw))


def numbers(n, seed=0):
    rng = np.random.default_rng(seed)
    return rng.uniform(-1, 1, n).astype(np.float32), rng.uniform(-np.pi, np.pi, (n, 2)).astype(np.float32)


@pytest.mark.parametrize("name", ["cartpole", "pendulum", "acrobot", "reacher"])
def test_a_mirrored_state_has_a_mirrored_frame(name, strict):
    x, headings = numbers(16)
    here, there = (np.asarray(drawn(name)(s * x, s * headings), int) for s in (np.float32(1), np.float32(-1)))
    np.testing.assert_allclose(here, there[:, :, ::-1], atol=1)
    assert (np.abs(here - there).max((1, 2, 3)) > 50).all()


@pytest.mark.parametrize("name", ["pendulum", "acrobot"])
def test_a_state_upside_down_has_the_frame_upside_down(name):
    x, headings = numbers(8)
    here, there = (np.asarray(drawn(name)(x, h), int) for h in (headings, np.float32(np.pi) - headings))
    np.testing.assert_allclose(here, there[:, ::-1], atol=1)


def test_a_moved_cart_moves_its_pixels():
    """By whole pixels: the same pixels, but for the rail's ends. By parts of one: the centroid by that."""
    pixel = 4.2 / SIZE
    x, headings = (np.repeat(v[:1], 5, axis=0) for v in numbers(1))
    x = 0.1 + np.array([0, 3, 11, 0.4, 2.7], np.float32) * np.float32(pixel)
    frames = np.asarray(drawn("cartpole")(x, headings), int)
    for shift, moved in ((3, frames[1]), (11, frames[2])):
        np.testing.assert_allclose(frames[0][:, 8 : -8 - shift], moved[:, 8 + shift : -8], atol=1)
    at = centroid(warm(frames), View(2.1))[0]
    np.testing.assert_allclose((at - at[0]) / pixel, [0, 3, 11, 0.4, 2.7], atol=0.1)


def test_the_state_can_be_read_off_the_frame():
    """Angles within a degree, positions within a quarter of a pixel, from colours' centroids."""
    x, headings = numbers(64)
    error = lambda a, b: np.degrees(np.abs(np.angle(np.exp(1j * (a - b)))))
    tips = np.stack([red(f) for f in drawn("pendulum")(x, headings)])
    tip = centroid(tips, View(1.3))
    assert error(np.arctan2(*tip), headings[:, 0]).max() < 1

    steep = np.abs(np.cos(headings[:, 0])) > 0.35  # else the pole lies on the cart's upper edge or below
    x, headings = x[steep], headings[steep]
    frames = np.asarray(drawn("one pole")(x, headings), float)
    rows = points(View(2.1), fine=1)[1][:, None]
    upper = np.abs(headings[:, 0]) < 1.2  # the lower half of the cart shows
    cart = centroid((frames[..., 2] - frames[..., 0] > 60) * (rows < -0.05), View(2.1))[0]
    assert upper.sum() > 15 and np.abs(cart - x)[upper].max() < 0.3 * 4.2 / SIZE
    pole = centroid(warm(frames) * (np.abs(rows) > 0.16), View(2.1))
    assert len(x) > 40 and error(np.arctan2(pole[0] - x, pole[1]), headings[:, 0]).max() < 1.5


def test_the_car_stands_on_the_hill():
    """The hill is gym's; the car's centre is above it by half its height along the normal, and turned with it."""
    view = View(1.0, -0.3, 0.7)
    _, full, empty = covered(view, lambda x, y: y <= 0.45 * np.sin(3 * x) + 0.55)
    draw = jax.jit(lambda x: raster.mountain_car(x, 0.5, view))
    for x in (-1.1, -np.pi / 6, 0.1):
        frame = np.asarray(draw(jnp.float32(x)))
        car = (frame == CART).all(-1)
        slope = 1.35 * np.cos(3 * x)
        normal = np.array([-slope, 1]) / np.hypot(slope, 1)
        expected = np.array([x, 0.45 * np.sin(3 * x) + 0.55]) + 0.06 * normal
        np.testing.assert_allclose(centroid(car, view), expected, atol=0.015)
        xs, ys = points(view, fine=1)
        dx, dy = np.meshgrid(xs - expected[0], ys - expected[1])
        away = (np.hypot(dx, dy) > 0.2)[1:-1, 1:-1] & (np.arange(1, SIZE - 1) < 60)  # of the car, and left of the flag
        ground = (frame == raster.RAIL).all(-1)[1:-1, 1:-1]
        assert ground[full & away].all() and not ground[empty].any() and (full & away).sum() > 500
        main = np.linalg.eigh(np.cov(np.stack([dx[car], dy[car]])))[1][:, 1]
        assert abs(main @ normal) < 0.1
