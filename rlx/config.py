"""Configuration: one frozen dataclass per agent, some fields of which enter the compiled program as arrays.

    @dataclass(frozen=True)
    class Config(rlx.config.Config):
        lr: Traced[float] = 3e-4        # a new value compiles nothing
        num_epochs: int = 4             # static: a new value is a new program

A field's one-line comment in the source is its help text.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import math
import os
import re
import sys
import types
import typing
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import jax.numpy as jnp
import numpy as np

from rlx.errors import RlxError, nearest, unknown
from rlx.types import HP

T = TypeVar("T")


class _TracedMarker:
    def __repr__(self) -> str:
        return "traced"


TRACED = _TracedMarker()
Traced = Annotated[T, TRACED]

# Bounds of the names that agents share, (low, high), inclusive; an agent adds its own in `Config.bounds`.
_BOUNDS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("num_envs", "rollout_length", "batch_size", "replay_capacity",
                     "num_epochs", "num_minibatches", "n_step", "hidden_sizes"), (1, math.inf)),
    **dict.fromkeys(("target_period", "policy_delay"), (1, 2**31)),  # counted in uint32
    **dict.fromkeys(("lr", "actor_lr", "critic_lr", "temperature_lr", "learning_starts", "max_grad_norm", "clip_eps",
                     "value_coef", "epsilon_steps", "exploration_noise", "temperature", "target_noise", "target_noise_clip",
                     "priority_exponent"), (0, math.inf)),
    **dict.fromkeys(("gamma", "tau", "gae_lambda", "epsilon_start", "epsilon_end"), (0, 1)),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Config:
    """Base of every agent's configuration. Fields are checked when it is made; it is hashable and never mutated."""

    presets: ClassVar[dict[str, dict[str, Any]]] = {"default": {}}
    bounds: ClassVar[dict[str, tuple[float, float]]] = {}

    def __post_init__(self) -> None:
        for name, field in fields(type(self)).items():
            value = check(field, getattr(self, name))
            object.__setattr__(self, name, value)
            low, high = (_BOUNDS | self.bounds).get(name, (-math.inf, math.inf))
            numbers = value if isinstance(value, tuple) else (value,)
            if any(isinstance(x, (int, float)) and not isinstance(x, bool) and not low <= x <= high for x in numbers):
                limits = f">= {low:g}" if math.isinf(high) else f"in [{low:g}, {high:g}]"
                raise RlxError(f"{name}={value!r} must be {limits}")

    def replace(self: C, **changes: Any) -> C:
        """A copy with some fields changed; an unknown name is an RlxError that names the nearest field."""
        for name in changes:
            if name not in fields(type(self)):
                raise unknown("field", name, fields(type(self)))
        return dataclasses.replace(self, **changes)


C = TypeVar("C", bound=Config)


class Field(typing.NamedTuple):
    """One configuration field: its type without the marker, default, kind and help text."""

    name: str
    type: Any
    default: Any
    traced: bool
    help: str


def fields(cls: Any) -> dict[str, Field]:
    """The fields of a configuration dataclass by name, in order."""
    return dict(_fields(cls))


@functools.cache  # resolving the hints takes a fraction of a millisecond, and a sweep replaces fields 10,000 times
def _fields(cls: Any) -> dict[str, Field]:
    hints = typing.get_type_hints(cls, include_extras=True)
    helps = _comments(cls)
    out = {}
    for f in dataclasses.fields(cls):
        hint = hints[f.name]
        traced = typing.get_origin(hint) is Annotated and TRACED in hint.__metadata__
        kind = hint.__origin__ if typing.get_origin(hint) is Annotated else hint
        default = f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
        out[f.name] = Field(f.name, kind, default, traced, helps.get(f.name, ""))
    return out


@functools.cache  # reading the source takes milliseconds
def _comments(cls: Any) -> dict[str, str]:
    """Help texts: the comment behind each field in the source of the class and its bases."""
    out: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            try:
                source = inspect.getsource(typing.cast(type, base))
            except (OSError, TypeError):  # a class made in an interactive session has no source: no help texts
                continue
            out.update(re.findall(r"^    (\w+): [^#\n]*# *(.*)$", source, flags=re.M))
    return out


def partition(config: C) -> tuple[C, HP]:
    """Split into `(static, hp)`.

    `static` is the same config with every traced field at its class default: hashable, equal for two configs exactly
    when they share a program. `hp` maps each traced field to a strongly typed scalar (float32, int32 or bool).
    """
    traced = {n: f for n, f in fields(type(config)).items() if f.traced}
    static = dataclasses.replace(config, **{n: f.default for n, f in traced.items()})
    return static, {n: as_array(f, getattr(config, n)) for n, f in traced.items()}


def as_array(field: Field, value: Any) -> jnp.ndarray:
    """`value` (or a sequence of values) of a traced field as an array of the field's dtype."""
    dtype = {int: jnp.int32, bool: jnp.bool_}.get(field.type, jnp.float32)
    return jnp.asarray(value, dtype)


def check(field: Field, value: Any) -> Any:
    """`value` as the field's type (an int for a float field, a list for a tuple field), or an RlxError."""
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    ok, value = _coerce(field.type, value)
    if not ok:
        if typing.get_origin(field.type) is Literal and isinstance(value, str):
            raise unknown(f"value of {field.name}", value, typing.get_args(field.type))
        accepted = (field.type, *typing.get_args(field.type))
        if isinstance(value, float) and not math.isfinite(value) and float in accepted:
            raise RlxError(f"{field.name}={value!r} must be finite")
        raise RlxError(f"{field.name}={value!r} must be {describe(field.type)}, not {type(value).__name__}")
    return value


def _coerce(kind: Any, value: Any) -> tuple[bool, Any]:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return True, value
    if origin in (typing.Union, types.UnionType):
        for arg in args:
            ok, out = _coerce(arg, value)
            if ok:
                return True, out
        return False, value
    if origin is Literal:
        return value in args, value
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return (True, float(value)) if abs(value) <= sys.float_info.max else (False, value)
    if kind is int and isinstance(value, int) and not isinstance(value, bool):
        return True, int(value)
    if kind in (bool, str):
        return isinstance(value, kind), value
    if kind is type(None):
        return value is None, value
    if origin is tuple and isinstance(value, (tuple, list)):
        items = [_coerce(args[0], v) for v in value]
        return all(ok for ok, _ in items), tuple(v for _, v in items)
    return False, value


def describe(kind: Any) -> str:
    """A type in words, for messages and help: `int`, `float or None`, `one of relu, tanh`, `ints`."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(describe(a) for a in args)
    if origin is Literal:
        return "one of " + ", ".join(map(str, args))
    if origin is tuple:
        return f"{describe(args[0])}s"
    return "None" if kind is type(None) else getattr(kind, "__name__", str(kind))


def parse(field: Field, text: str) -> Any:
    """The value that `text` spells for this field: `3e-4`, `True`, `None`, `64,64`. Parsed as a literal, never run."""
    if _coerce(field.type, text)[0]:  # a string field, or a Literal of strings
        return text
    try:
        value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        value = {"true": True, "false": False, "none": None}.get(text.strip().lower(), text)
    if typing.get_origin(field.type) is tuple and not isinstance(value, (tuple, list)):
        value = (value,)
    return check(field, value)


def make(cls: type[C], preset: str | None = None, config: Config | None = None, changes: dict[str, Any] | None = None) -> C:
    """The config of class `cls` from a preset, then a whole config, then single fields: the last wins."""
    name = "default" if preset is None else preset
    if name not in cls.presets:
        raise RlxError(f"unknown preset {name!r}: {nearest(name, cls.presets)}")
    out = cls(**cls.presets[name])
    if config is not None:
        if not isinstance(config, cls):
            raise RlxError(f"config is a {type(config).__module__}.{type(config).__qualname__}, not a {cls.__module__}.Config")
        out = config
    return out.replace(**(changes or {}))


def to_dict(config: Config) -> dict[str, Any]:
    """Plain values by field name, ready for JSON."""
    return {name: getattr(config, name) for name in fields(type(config))}


def from_dict(cls: type[C], values: dict[str, Any]) -> C:
    """The inverse of `to_dict`; lists become tuples."""
    return cls().replace(**values)
