"""From a user's words to arrays with a run axis: seeds, hyperparameter values, environment parameters."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlx import config as config_
from rlx.errors import RlxError, unknown
from rlx.types import HP, PyTree


class Rows(NamedTuple):
    """What runs begin with, one row each: hyperparameters, environment parameters, and the seed (uint32); leaves `[R, ...]`."""

    hp: HP
    env_params: PyTree
    seeds: jax.Array


def seeds(given: int | Sequence[int]) -> list[int]:
    """`3` -> [0, 1, 2]; a sequence as it is. RlxError for none at all and outside [0, 2^32)."""
    try:
        out = list(range(given)) if isinstance(given, (int, np.integer)) else [operator.index(s) for s in given]
    except TypeError:
        raise RlxError(f"seeds={given!r} must be a number of seeds or a list of them") from None
    if not out:
        raise RlxError(f"seeds={given!r} must be at least one seed")
    if any(not 0 <= s < 2**32 for s in out):
        raise RlxError(f"seeds={given!r} must lie in [0, 2^32)")
    return out


def param_paths(params: PyTree) -> dict[str, tuple[str, ...]]:
    """An environment's parameters by name -> where they are. What a wrapper holds under `env` is found by its own name;
    of two equal names the outer one counts."""
    if not dataclasses.is_dataclass(params):
        return {}
    own: dict[str, tuple[str, ...]] = {f.name: (f.name,) for f in dataclasses.fields(params)}
    inner: Any = getattr(params, "env", None)
    if not dataclasses.is_dataclass(inner):
        return own
    del own["env"]
    return {name: ("env", *path) for name, path in param_paths(inner).items()} | own


def replace(params: PyTree, path: tuple[str, ...], value: Any) -> PyTree:
    """`params` with the field at `path` changed."""
    name, *rest = path
    return dataclasses.replace(params, **{name: replace(getattr(params, name), tuple(rest), value) if rest else value})


def override(params: PyTree, changes: Any, env_name: str) -> PyTree:
    """An environment's parameters with some fields changed: `changes` is None, a mapping, or a whole parameter object."""
    if changes is None:
        return params
    if not isinstance(changes, Mapping):
        if type(changes) is not type(params):
            raise RlxError(
                f"env_params of {env_name} must be a mapping or {type(params).__name__}, not {type(changes).__name__}"
            )
        return changes
    paths = param_paths(params)
    for name, value in changes.items():
        if name not in paths:
            raise unknown(f"parameter of {env_name}", name, paths)
        params = replace(params, paths[name], param(params, name, array(name, value), env_name))
    return params


def array(name: str, value: Any) -> np.ndarray:
    """`value` as an array; RlxError where it is ragged."""
    try:
        return np.asarray(value)
    except ValueError:
        raise RlxError(f"{name}={value!r} has rows of different lengths") from None


def param(params: PyTree, name: str, given: np.ndarray, env_name: str, rows: bool = False) -> jax.Array:
    """The value (or `rows` of values) of one parameter in the dtype of its default, or RlxError if its shape differs from
    the default's, or its numbers would not survive the dtype."""
    default = functools.reduce(getattr, param_paths(params)[name], params)
    if dataclasses.is_dataclass(default):
        raise RlxError(f"{name} of {env_name} is a group of parameters: give a whole {type(params).__name__}")
    dtype, shape = jnp.asarray(default).dtype, jnp.shape(default)
    if given.shape[rows:] != shape:
        raise RlxError(f"{name} of {env_name} must have shape {shape}{' each' if rows else ''}, not {given.shape[rows:]}")
    if given.dtype.kind not in "biuf" or (dtype.kind != "f" and (given.astype(dtype) != given).any()):
        raise RlxError(f"{name}={given.tolist()!r} of {env_name} must be {dtype}")
    return jnp.asarray(given, dtype)


def params_to_json(params: PyTree) -> dict[str, Any]:
    """Parameters as plain numbers by path, exact for float32 and int32."""
    return {jax.tree_util.keystr(path): np.asarray(x).tolist() for path, x in jax.tree.leaves_with_path(params)}


def params_from_json(params: PyTree, values: Mapping[str, Any]) -> PyTree:
    """`params` with the values that `params_to_json` wrote; KeyError for a path that it did not."""
    leaf = lambda path, x: jnp.asarray(values[jax.tree_util.keystr(path)], jnp.asarray(x).dtype)
    return jax.tree.map_with_path(leaf, params)


def rows(
    config: config_.Config,
    params: PyTree,
    every: Sequence[int],
    hp: Mapping[str, Any],
    env_params: Mapping[str, Any],
    env_name: str,
) -> Rows:
    """C configurations x the seeds `every`, config-major: `hp` and `env_params` hold C values of each field that they name;
    what they do not name has its own value.

    Raises RlxError for an unknown or static field, a value of a wrong type or out of bounds, and unequal lengths.
    """
    fields = config_.fields(type(config))
    traced = [name for name, f in fields.items() if f.traced]
    for name in hp:
        if name not in fields:
            raise unknown("field", name, traced)
        if name not in traced:
            raise RlxError(f"{name} is static, so one program has one value of it; traced are {', '.join(traced)}")
    paths = param_paths(params)
    for name in env_params:
        if name not in paths:
            raise unknown(f"parameter of {env_name}", name, paths)
    given = {name: np.atleast_1d(array(name, values)) for name, values in {**hp, **env_params}.items()}
    lengths = {name: len(values) for name, values in given.items()}
    if len(set(lengths.values())) > 1:
        raise RlxError(f"hp and env_params need one length, the number of configurations; they have {lengths}")
    c = next(iter(lengths.values()), 1)
    if c == 0:
        raise RlxError(f"hp and env_params name no value: {lengths}")
    for name in hp:
        for value in given[name].tolist():
            config.replace(**{name: value})  # checks type and bounds

    wide = lambda x: jnp.broadcast_to(x, (c, *jnp.shape(x)))
    hps = {name: wide(value) for name, value in config_.partition(config)[1].items()}
    hps |= {name: config_.as_array(fields[name], given[name]) for name in hp}
    new = {name: param(params, name, given[name], env_name, rows=True) for name in env_params}
    params = jax.tree.map(wide, params)
    for name, value in new.items():
        params = replace(params, paths[name], value)
    hps, params = jax.tree.map(lambda x: jnp.repeat(x, len(every), axis=0), (hps, params))
    return Rows(hps, params, jnp.tile(jnp.asarray(every, jnp.uint32), c))
