"""Checkpoints: a pytree of arrays and a JSON description, written by orbax, replaced atomically.

    <path>/rlx.json     {"format", "meta", "leaves": [[key path, dtype, shape], ...], "crc32": {file: checksum}}
    <path>/arrays/      the leaves in that order, as an orbax list

Orbax sees a flat list of plain arrays. The structure comes from the target of `restore`, so that NamedTuples, tuples
and static fields keep their types. Typed PRNG keys are stored as their uint32 data. Zero-size arrays, which orbax
refuses and MJX states are full of, are only described. The checksums are ours since orbax reads flipped bits as data.

A save writes `<path>.tmp`, renames `<path>` to `<path>.old`, `<path>.tmp` to `<path>`, and deletes `<path>.old`: both
neighbours belong to this module, and one process writes a path at a time. At each moment `<path>`, or `<path>.old`
while `<path>` is missing, is complete.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from rlx.errors import RlxError

PyTree = Any
FORMAT = 1
DESCRIPTION, ARRAYS = "rlx.json", "arrays"


class _Leaf(NamedTuple):
    path: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def stored(self) -> bool:
        return 0 not in self.shape

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


def save(path: str | os.PathLike[str], tree: PyTree, meta: dict[str, Any]) -> None:
    """Write `tree` (arrays of any dtype, typed keys included) and `meta` (JSON) to the directory `path`.

    Synchronous: on return everything is on disk and the arrays may be donated. Creates parents.

    Raises:
      RlxError: `path` cannot be written, or is something other than a checkpoint; what was there is unharmed.
    """
    path = Path(path).resolve()  # renaming must not replace a symbolic link
    tmp, old = _sibling(path, ".tmp"), _sibling(path, ".old")
    leaves = _describe(tree)
    try:
        if path.exists() and not (path / DESCRIPTION).is_file() and not (path.is_dir() and not any(path.iterdir())):
            raise RlxError("it exists and is not an rlx checkpoint; choose another path")
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove(tmp)  # left by a crash
        tmp.mkdir()
        stored = [_plain(x) for x, leaf in zip(jax.tree.leaves(tree), leaves, strict=True) if leaf.stored]
        if stored:
            with _orbax() as checkpointer:
                checkpointer.save(tmp / ARRAYS, args=ocp.args.PyTreeSave(stored))
        content = {"format": FORMAT, "meta": meta, "leaves": leaves, "crc32": _checksums(tmp)}
        (tmp / DESCRIPTION).write_text(json.dumps(content), encoding="utf-8")
        _sync(tmp)
        if path.exists():
            _remove(old)
            os.rename(path, old)
        os.rename(tmp, path)
        _fsync(path.parent)
    except (OSError, ValueError) as error:  # tensorstore reports a full disk as a ValueError
        shutil.rmtree(tmp, ignore_errors=True)
        raise RlxError(f"cannot save checkpoint {str(path)!r}: {_one_line(error)}") from error
    shutil.rmtree(old, ignore_errors=True)  # a remainder does no harm: the next save removes it


def exists(path: str | os.PathLike[str]) -> bool:
    """Whether something is at `path`, even damaged or foreign, or would be but for an interrupted `save`."""
    return _find(path) is not None


def read_meta(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The `meta` of the checkpoint at `path`. RlxError if there is none or it is not readable."""
    return _read(_locate(path)).meta


def restore(path: str | os.PathLike[str], target: PyTree) -> PyTree:
    """The tree saved at `path`, in the structure of `target`, bit for bit.

    `target`: a pytree of `jax.ShapeDtypeStruct` or arrays with the saved key paths, shapes and dtypes. The result is
    strongly typed and uncommitted on the default device, as fresh arrays are: it hits the same compiled program.

    Raises:
      RlxError: there is no checkpoint, it is damaged, or it does not match `target`.
    """
    path = _locate(path)
    leaves = _describe(target)
    content = _read(path)
    _check_match(path, content.leaves, leaves)
    _check_files(path, content.crc32)
    structs, treedef = jax.tree.flatten(target)
    plain = [
        jax.eval_shape(_plain, jax.ShapeDtypeStruct(x.shape, x.dtype))
        for x, leaf in zip(structs, leaves, strict=True)
        if leaf.stored
    ]
    arrays: list[np.ndarray] = []
    if plain:
        # NumPy arrays, since orbax commits the jax arrays that it makes to a device.
        args = ocp.args.PyTreeRestore(plain, restore_args=[ocp.RestoreArgs(restore_type=np.ndarray)] * len(plain))
        try:
            with _orbax() as checkpointer:
                arrays = checkpointer.restore(path / ARRAYS, args=args)
        except Exception as error:  # orbax documents no type
            raise RlxError(f"cannot read checkpoint {str(path)!r}: {_one_line(error)}") from error
    queue = iter(arrays)
    out = [
        _native(next(queue), x.dtype) if leaf.stored else jnp.zeros(x.shape, x.dtype)
        for x, leaf in zip(structs, leaves, strict=True)
    ]
    return jax.tree.unflatten(treedef, out)


# --- leaves ---------------------------------------------------------------------------------------------------------


def _describe(tree: PyTree) -> list[_Leaf]:
    flat = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [_Leaf(jax.tree_util.keystr(path), str(x.dtype), tuple(x.shape)) for path, x in flat]


def _plain(x: jax.Array) -> jax.Array:
    return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x


def _native(x: np.ndarray, dtype: Any) -> jax.Array:
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jnp.array(x), impl=jax.random.key_impl(jnp.empty((), dtype)))
    return jnp.array(x)  # a copy: jax would not donate an array that aliases NumPy's memory


def _check_match(path: Path, saved: list[_Leaf], wanted: list[_Leaf]) -> None:
    left, right = ({leaf.path: leaf for leaf in leaves} for leaves in (saved, wanted))
    differ = [p for p in left | right if left.get(p) != right.get(p)]
    if differ:
        show = [f"{p} is {left.get(p, 'absent')}, expected {right.get(p, 'absent')}" for p in differ[:3]]
        more = f" and {len(differ) - 3} more" if len(differ) > 3 else ""
        raise RlxError(f"checkpoint {str(path)!r} does not match: {'; '.join(show)}{more}")


# --- files ----------------------------------------------------------------------------------------------------------


@contextmanager
def _orbax() -> Iterator[ocp.Checkpointer]:
    """A synchronous checkpointer that logs nothing: what fails is raised, and logged it would be several tracebacks."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            yield checkpointer
    finally:
        logger.setLevel(level)


def _sibling(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _find(path: str | os.PathLike[str]) -> Path | None:
    """`path`, or its sibling after a crash between the two renames of `save`; None where neither is."""
    path = Path(path).resolve()
    try:
        return next((p for p in (path, _sibling(path, ".old")) if p.exists()), None)
    except OSError as error:
        raise RlxError(f"cannot read checkpoint {str(path)!r}: {_one_line(error)}") from error


def _locate(path: str | os.PathLike[str]) -> Path:
    found = _find(path)
    if found is None:
        raise RlxError(f"no checkpoint at {str(Path(path).resolve())!r}")
    if not os.path.isfile(found / DESCRIPTION):
        raise RlxError(f"{str(found)!r} is not an rlx checkpoint: it has no {DESCRIPTION}")
    return found


class _Content(NamedTuple):
    meta: dict[str, Any]
    leaves: list[_Leaf]
    crc32: dict[str, int]


def _read(path: Path) -> _Content:
    try:
        content = json.loads((path / DESCRIPTION).read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r}, this version of rlx reads {FORMAT}")
        leaves = [_Leaf(p, dtype, tuple(shape)) for p, dtype, shape in content["leaves"]]
        return _Content(content["meta"], leaves, content["crc32"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RlxError(f"cannot read {str(path / DESCRIPTION)!r}: {_one_line(error)}") from error


def _checksums(directory: Path) -> dict[str, int]:
    return {str(file.relative_to(directory)): _crc32(file) for file in sorted(directory.rglob("*")) if file.is_file()}


def _crc32(file: Path) -> int:
    crc = 0
    with file.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            crc = zlib.crc32(chunk, crc)
    return crc


def _check_files(path: Path, crc32: dict[str, int]) -> None:
    """Before orbax sees them: its own failure is reported late, by many threads."""
    for name, crc in crc32.items():
        file = path / name
        try:
            found = _crc32(file)
        except OSError as error:
            raise RlxError(f"cannot read checkpoint {str(path)!r}: {_one_line(error)}") from error
        if found != crc:
            raise RlxError(f"checkpoint {str(path)!r} is damaged: the checksum of {name} differs")


def _remove(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)


def _sync(directory: Path) -> None:
    """Everything below `directory` on disk, before a rename makes it current."""
    for root, _, files in os.walk(directory):
        for file in files:
            _fsync(Path(root) / file)
        _fsync(Path(root))


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:100]} ... {text[-200:]}"  # tensorstore ends with the system's reason
