"""Configurations in TOML files: read with the standard library, nothing in them is run."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from rlx.errors import RlxError


def read(path: str | Path) -> dict[str, Any]:
    """The contents of a TOML file; RlxError, with the line, where it cannot be read or is none."""
    try:
        return tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise RlxError(f"cannot read {str(path)!r}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RlxError(f"{path} is no TOML file: {error}") from None
