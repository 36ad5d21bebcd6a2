"""Tables on disk, replaced atomically: a reader, or a crash, finds the old or the new one."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd

from rlx.errors import RlxError


def write(path: str | os.PathLike[str], df: pd.DataFrame) -> None:
    """Write the columns of `df` (not its index); creates parents. RlxError if `path` cannot be written."""
    path = Path(path)
    tmp = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tmp.open("wb") as file:
            df.to_parquet(file, index=False)
            file.flush()
            os.fsync(file.fileno())
        os.replace(tmp, path)
    except OSError as error:
        raise RlxError(f"cannot write {str(path)!r}: {error.strerror or error}") from error


def read(path: str | os.PathLike[str]) -> pd.DataFrame:
    """The table at `path`. RlxError if it is missing or damaged."""
    try:
        with Path(path).open("rb") as file:
            return pd.read_parquet(file)
    except (OSError, ValueError) as error:  # pyarrow reports damage as either
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise RlxError(f"cannot read {str(path)!r}: {reason}") from error
