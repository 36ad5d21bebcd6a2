"""What a sweep varies: fields and their values, as lists or ranges, and how configurations are drawn from them.

    {"actor_lr": "log(1e-5, 1e-2)", "gamma": [0.97, 0.99], "batch_size": [128, 256], "env.g": "uniform(5, 15)"}

or the same in words, `actor_lr=log(1e-5,1e-2) gamma=[0.97,0.99]`. Expressions are parsed, never evaluated:

    [a, b, ...]         these values; names need no quotes
    uniform(low, high)  real numbers, uniform
    log(low, high)      real numbers, uniform in the logarithm
    int(low, high)      whole numbers, both ends included

A third argument of `uniform` and `log` is the number of values in a grid, ends included.
"""

from __future__ import annotations

import ast
import itertools
import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from rlx import toml
from rlx.errors import RlxError, unknown

METHODS = ("grid", "random", "sobol")
FORMS = "a list [a, b], uniform(low, high), log(low, high) or int(low, high)"
MOST_VALUES = 10_000  # of one field
MOST_CONFIGS = 1_000_000


class Choices(NamedTuple):
    """A finite axis."""

    values: tuple[Any, ...]

    def at(self, u: float) -> Any:
        """The value at `u` in [0, 1)."""
        return self.values[int(u * len(self.values))]


class Range(NamedTuple):
    """A continuous axis; `points` values of it make a grid."""

    low: float
    high: float
    log: bool = False
    points: int | None = None

    def at(self, u: float) -> float:
        """The value at `u` in [0, 1]: within the bounds, exactly an end at an end."""
        if u in (0.0, 1.0):
            return self.high if u else self.low
        between = lambda low, high: (1.0 - u) * low + u * high
        x = math.exp(between(math.log(self.low), math.log(self.high))) if self.log else between(self.low, self.high)
        return min(max(x, self.low), self.high)  # the last bit is rounded

    def values(self, points: int) -> tuple[float, ...]:
        """`points` >= 2 of them, evenly spread, both ends included."""
        return tuple(self.at(i / (points - 1)) for i in range(points))


Axis = Choices | Range
Space = dict[str, Axis]


# --- from words --------------------------------------------------------------------------------------------------------


def space(given: Mapping[str, Any] | str | Iterable[str]) -> Space:
    """A space from a mapping of expressions or values, or from words `NAME=EXPRESSION`. RlxError for what is neither."""
    if isinstance(given, Mapping):
        pairs = list(given.items())
    else:
        texts = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
        if not all(isinstance(text, str) for text in texts):
            raise RlxError(f"the space must be {{field: values}} or words FIELD=VALUES, not {given!r}")
        pairs = [assignment(word) for word in words(" ".join(texts))]
    if not pairs:
        raise RlxError(f"the space is empty: name a field and its values, as {FORMS}")
    for name, times in Counter(name for name, _ in pairs).items():
        if not isinstance(name, str) or times > 1:
            raise RlxError(f"the space has {name!r} {'twice' if times > 1 else 'where a name must be'}: give each field once")
    return {name: axis(name, value) for name, value in pairs}


def read_space(path: str) -> dict[str, Any]:
    """A space from a TOML file: `actor_lr = "log(1e-5, 1e-2)"`, `gamma = [0.97, 0.99]`, and `g = [9, 10]` under `[env]`."""
    contents = toml.read(path)
    params = contents.pop("env", {})
    if not isinstance(params, Mapping):
        raise RlxError(f"{path} has env={params!r}, which must be a table: [env] and under it NAME = VALUES")
    return contents | {f"env.{name}": values for name, values in params.items()}


def words(text: str) -> list[str]:
    """`text` cut at white space outside brackets."""
    out, depth = [""], 0
    for c in text:
        depth += (c in "([") - (c in ")]")
        if c.isspace() and depth == 0:
            out.append("")
        else:
            out[-1] += c
    return [word for word in out if word]


def assignment(word: str) -> tuple[str, str]:
    name, equals, expression = word.partition("=")
    if not name or not equals or not expression:
        raise RlxError(f"the space has {word!r} where NAME=EXPRESSION must be: {FORMS}")
    return name, expression


def axis(name: str, given: Any) -> Axis:
    """One axis from an expression, a list of values, an axis, or a single value."""
    if isinstance(given, (Choices, Range)):
        return given
    if hasattr(given, "tolist"):  # an array
        given = given.tolist()
    if isinstance(given, (list, tuple, range)):
        return choices(name, given)
    if not isinstance(given, str):
        return choices(name, [given])
    try:
        node = ast.parse(given.strip(), mode="eval").body
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            function, value = node.func.id, [literal(argument) for argument in node.args]
        else:
            function, value = None, literal(node)
    except (ValueError, SyntaxError, TypeError, OverflowError, MemoryError, RecursionError):
        raise RlxError(f"{name}={given} is no values of a sweep: use {FORMS}") from None
    if function is not None:
        return call(name, given, function, value)
    return choices(name, value if isinstance(value, list) else [value])


def literal(node: ast.expr) -> Any:
    """A literal, where a bare name is a string; ValueError for anything else."""
    if isinstance(node, ast.Name):
        return {"true": True, "false": False, "none": None}.get(node.id.lower(), node.id)
    if isinstance(node, (ast.List, ast.Tuple)):
        values = [literal(element) for element in node.elts]
        return values if isinstance(node, ast.List) else tuple(values)
    return ast.literal_eval(node)


def call(name: str, text: str, function: str, arguments: list[Any]) -> Axis:
    if function not in ("uniform", "log", "int"):
        raise unknown(f"form of {name}", f"{function}(...)", ["uniform(low, high)", "log(low, high)", "int(low, high)"])
    number = lambda x: isinstance(x, (int, float)) and not isinstance(x, bool) and abs(x) <= sys.float_info.max
    if len(arguments) not in ((2,) if function == "int" else (2, 3)) or not all(map(number, arguments)):
        raise RlxError(
            f"{name}={text} must have two numbers, low and high{', and maybe how many' if function != 'int' else ''}"
        )
    low, high, *points = arguments
    if not low < high:
        valid = f"[{low}]" if low == high else f"{function}({high}, {low})"
        raise RlxError(f"{name}={text} must have low < high: {name}={valid}")
    if function == "int":
        if low != int(low) or high != int(high):
            raise RlxError(f"{name}={text} must have whole numbers: int({math.floor(low)}, {math.ceil(high)})")
        if high - low >= MOST_VALUES:
            raise RlxError(f"{name}={text} has more than {MOST_VALUES} values: give a list of some of them")
        return Choices(tuple(range(int(low), int(high) + 1)))
    if function == "log" and low <= 0:
        valid = f"log({high / 1000:g}, {high:g}) or " if high > 0 else ""
        raise RlxError(f"{name}={text} must have low > 0: use {valid}uniform({low}, {high})")
    if points and (points[0] != int(points[0]) or not 2 <= points[0] <= MOST_VALUES):
        raise RlxError(f"{name}={text} must have a whole number of grid values in [2, {MOST_VALUES}], not {points[0]}")
    return Range(float(low), float(high), function == "log", int(points[0]) if points else None)


def choices(name: str, values: Iterable[Any]) -> Choices:
    out = tuple(map(plain, values))
    if not out:
        raise RlxError(f"{name}=[] has no value: give at least one, or leave the field out")
    try:
        counts = Counter(out)
    except TypeError:
        raise RlxError(f"{name}={list(out)!r} must have numbers, words, True, False, None, or tuples of them") from None
    for value, times in counts.items():
        if times > 1:
            raise RlxError(f"{name} has the value {value!r} twice")
        if value != value:
            raise RlxError(f"{name} has the value nan, which is no number")
    return Choices(out)


def plain(value: Any) -> Any:
    """A value in Python's own types, lists as tuples."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return tuple(map(plain, value)) if isinstance(value, (list, tuple)) else value


# --- configurations ----------------------------------------------------------------------------------------------------


def configurations(space: Space, number: int | None = None, method: str | None = None, seed: int = 0) -> list[dict[str, Any]]:
    """The configurations of a sweep, `{name: value}` each, in the order of their numbers.

    grid: all combinations, the last field fastest. random: independent draws; of a finite space, distinct ones. sobol: a
    scrambled Sobol sequence, evenly spread over the space (best where `number` is a power of two). `number` is for the last
    two; the default method is grid without it, else random. The same seed gives the same configurations.

    Raises RlxError for an unknown method, and where `number` is missing, too large or of no use.
    """
    method = method or ("grid" if number is None else "random")
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    if number is not None and not 1 <= number <= MOST_CONFIGS:
        raise RlxError(f"configs={number} must be in [1, {MOST_CONFIGS}]")
    if method == "grid":
        return grid(space, number)
    size = math.prod(len(a.values) for a in space.values() if isinstance(a, Choices))
    continuous = any(isinstance(a, Range) for a in space.values()) or size >= 2**63  # beyond an index
    if number is None:
        raise RlxError(f"method={method} needs configs: how many are drawn")
    if not continuous and number > size:
        raise RlxError(f"configs={number} is more than the space has: {size}")
    rng = np.random.default_rng(seed)
    if method == "sobol":
        points = sobol(len(space), number, seed)
    elif continuous:
        points = rng.random((number, len(space)))
    else:
        chosen = rng.choice(size, number, replace=False)
        sides = [len(a.values) for a in space.values() if isinstance(a, Choices)]
        points = np.stack([(i + 0.5) / n for i, n in zip(np.unravel_index(chosen, sides), sides, strict=True)], axis=1)
    return [{name: a.at(float(u)) for (name, a), u in zip(space.items(), row, strict=True)} for row in points]


def grid(space: Space, number: int | None) -> list[dict[str, Any]]:
    for name, a in space.items():
        if isinstance(a, Range) and a.points is None:
            form = f"{'log' if a.log else 'uniform'}({a.low:g}, {a.high:g}"
            raise RlxError(f"{name}={form}) has no end of values: give configs, or a number of grid values: {form}, 5)")
    sides = [a.values if isinstance(a, Choices) else a.values(a.points or 0) for a in space.values()]
    size = math.prod(map(len, sides))
    if size > MOST_CONFIGS:
        raise RlxError(f"the grid has {size} configurations, over {MOST_CONFIGS}: give configs, which draws some of them")
    if number is not None and number != size:
        raise RlxError(f"configs={number} does not fit method=grid, which has {size}: leave it out")
    return [dict(zip(space, values, strict=True)) for values in itertools.product(*sides)]


def sobol(dimensions: int, number: int, seed: int) -> np.ndarray:
    """`number` points of a scrambled Sobol sequence, `[number, dimensions]` in [0, 1)."""
    import warnings

    from scipy.stats import qmc  # a slow import

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The balance properties of Sobol' points require n to be a power of 2")
        return qmc.Sobol(dimensions, scramble=True, rng=np.random.default_rng(seed)).random(number)
