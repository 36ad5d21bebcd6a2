"""Grid, random and Sobol: how many, in which order, and the same from the same seed."""

import numpy as np
import pytest

from rlx.sweeps import space as s
from rlx.sweeps.space import Choices
from tests.train_support import fails

MIXED = s.space("lr=log(1e-5,1e-2) gamma=[0.9,0.99] size=int(1,4)")
FINITE = s.space("a=[1,2,3] b=[x,y] c=int(0,3)")


def test_a_grid_in_order():
    out = s.configurations(s.space("lr=log(1e-4,1e-2,3) b=[x,y]"))
    assert [c["b"] for c in out] == ["x", "y"] * 3
    assert [c["lr"] for c in out] == pytest.approx([1e-4, 1e-4, 1e-3, 1e-3, 1e-2, 1e-2])
    assert out[0]["lr"] == 1e-4 and out[-1]["lr"] == 1e-2  # exactly
    assert s.configurations(FINITE, 24, "grid") == s.configurations(FINITE) and len(s.configurations(FINITE)) == 24


@pytest.mark.parametrize("method", ["random", "sobol"])
def test_the_same_seed_gives_the_same_configurations(method):
    one, again, other = (s.configurations(MIXED, 16, method, seed) for seed in (3, 3, 4))
    assert one == again and one != other and len(one) == 16
    for config in one:
        assert list(config) == ["lr", "gamma", "size"]
        assert 1e-5 <= config["lr"] <= 1e-2 and config["gamma"] in (0.9, 0.99) and config["size"] in (1, 2, 3, 4)
        assert [type(v) for v in config.values()] == [float, float, int]


def test_random_is_the_default_with_a_number():
    assert s.configurations(MIXED, 5, seed=7) == s.configurations(MIXED, 5, "random", 7)


def test_random_of_a_finite_space_is_without_repetition():
    every = s.configurations(FINITE)
    drawn = s.configurations(FINITE, 24, "random", 5)
    assert drawn != every and sorted(map(str, drawn)) == sorted(map(str, every))
    few = s.configurations(FINITE, 10, "random")
    assert len(set(map(str, few))) == 10 and all(c in every for c in few)


def test_random_is_uniform_in_the_logarithm():
    logs = np.log10([c["lr"] for c in s.configurations(MIXED, 4000, "random")])
    assert np.mean(logs < -3.5) == pytest.approx(0.5, abs=0.04)


def test_sobol_is_evenly_spread():
    out = s.configurations(s.space("lr=log(1e-4,1) gamma=[0.9,0.99] size=int(1,4)"), 16, "sobol")
    decades = np.floor(np.log10([c["lr"] for c in out]))
    assert [np.sum(decades == d) for d in (-4, -3, -2, -1)] == [4, 4, 4, 4]  # random draws would not
    assert [sum(c["size"] == n for c in out) for n in (1, 2, 3, 4)] == [4, 4, 4, 4]
    assert sum(c["gamma"] == 0.9 for c in out) == 8
    assert len(s.configurations(MIXED, 5, "sobol")) == 5  # no power of two, and no warning


def test_a_huge_finite_space():
    huge = {f"x{i}": Choices(tuple(range(100))) for i in range(12)}  # 10^24
    out = s.configurations(huge, 3, "random")
    assert len(out) == 3 and all(0 <= v < 100 for c in out for v in c.values())
    fails(lambda: s.configurations(huge), "the grid has 1000000000000000000000000 configurations", "give configs")


@pytest.mark.parametrize(
    "space, arguments, words",
    [
        (MIXED, (), ["lr=log(1e-05, 0.01) has no end of values", "give configs", "log(1e-05, 0.01, 5)"]),
        (MIXED, (4, "grid"), ["lr=log(1e-05, 0.01) has no end of values"]),
        (MIXED, (None, "random"), ["method=random needs configs"]),
        (MIXED, (None, "sobol"), ["method=sobol needs configs"]),
        (MIXED, (4, "sobel"), ["unknown method 'sobel'", "did you mean 'sobol'?"]),
        (MIXED, (0,), ["configs=0 must be in [1, 1000000]"]),
        (MIXED, (10**9,), ["configs=1000000000 must be in [1, 1000000]"]),
        (FINITE, (25,), ["configs=25 is more than the space has: 24"]),
        (FINITE, (25, "sobol"), ["configs=25 is more than the space has: 24"]),
        (FINITE, (3, "grid"), ["configs=3 does not fit method=grid, which has 24"]),
    ],
)
def test_what_cannot_be_drawn(space, arguments, words):
    fails(lambda: s.configurations(space, *arguments), *words)
