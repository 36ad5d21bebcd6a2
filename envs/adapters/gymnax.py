"""gymnax's own environments. They are what the interface asks for already; here they get names and checked options."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

from gymnax.environments import environment

from rlx.envs import wrappers
from rlx.errors import RlxError, nearest, unknown

NEEDS_DOWNLOAD = ("MNISTBandit-bsuite",)


def tasks() -> dict[str, type]:
    """gymnax's registry without what needs a download, imported on demand."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from gymnax import registration
    return {name: factory for name, factory in registration._registry.items() if name not in NEEDS_DOWNLOAD}


def make(task: str, /, **options: Any) -> environment.Environment:
    """`gymnax/TASK`; options are the constructor's arguments."""
    known = tasks()
    if task in NEEDS_DOWNLOAD:
        raise RlxError(f"gymnax/{task} downloads its data when built, which rlx does not do: build it and pass the object")
    if task not in known:
        raise unknown("environment", f"gymnax/{task}", [f"gymnax/{t}" for t in known])
    signature = inspect.signature(known[task]).parameters.values()
    valid = [p.name for p in signature if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    for option in options:
        if option not in valid:
            raise RlxError(f"unknown option {option!r} of gymnax/{task}: {nearest(option, valid)}")
    if not options:
        return known[task]()
    try:
        env = known[task](**options)
        wrappers.spec(env, env.default_params)  # the constructors check none: a wrong type may not show before a step
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        given = ", ".join(f"{name}={value!r}" for name, value in options.items())
        raise RlxError(f"gymnax/{task} does not run with {given} ({reason})") from error
    return env
