"""The one exception that users can cause, and how its messages are made."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RlxError(ValueError):
    """Bad input: a name, a value, a file. The message is one line and says what to do; the CLI prints it and exits 2."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """`did you mean 'x'?` for the valid name closest to `name`, else the list of valid names."""
    names = sorted(map(str, valid))
    folded = {n.lower(): n for n in names}
    match = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.5)
    if match:
        return f"did you mean {folded[match[0]]!r}?"
    return f"choose from {', '.join(names)}" if names else "there is none to choose from"


def unknown(kind: str, name: str, valid: Iterable[str]) -> RlxError:
    """The error for a name that is not among `valid`."""
    return RlxError(f"unknown {kind} {name!r}: {nearest(str(name), valid)}")
