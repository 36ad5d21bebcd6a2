"""What adapters of optional packages share: a quiet import, and errors about options that name the environment."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rlx.errors import RlxError, nearest


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings and the prints of packages that are imported or build something."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def check(name: str, options: Mapping[str, Any], valid: Iterable[str]) -> None:
    """Raises RlxError for an option that is not valid, and unless `max_steps`, where given, is a whole number >= 1."""
    valid = list(valid)
    for option in options:
        if option not in valid:
            raise RlxError(f"unknown option {option!r} of {name}: {nearest(option, valid)}")
    steps = options.get("max_steps", 1)
    if not isinstance(steps, int) or isinstance(steps, bool) or not 1 <= steps < 2**31:
        raise RlxError(f"max_steps={steps!r} of {name} must be a whole number in [1, 2^31)")


def misfit(name: str, options: Mapping[str, Any], error: Exception) -> RlxError:
    """The error for options that the package itself, which checks none, stumbled over."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    given = ", ".join(f"{option}={value!r}" for option, value in options.items())
    return RlxError(f"{name} does not run with {given} ({reason})")
