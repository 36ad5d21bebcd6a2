"""Environments by id: `suite/task`. The table is explicit; nothing registers itself at import."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gymnax.environments.environment import Environment

from rlx.envs import probes
from rlx.envs.adapters import brax, gymnax
from rlx.errors import unknown


def ids() -> list[str]:
    """Every environment that `make` knows here."""
    tasks = {
        "brax": brax.brax_envs(),
        "gymnax": gymnax.gymnax_envs(),
        "probe": probes.NAMES,
    }
    return [f"{suite}/{task}" for suite, names in tasks.items() for task in names]


MAKERS: dict[str, Callable[..., Environment]] = {"brax": brax.make, "gymnax": gymnax.make, "probe": probes.make}


def make(env_id: str, **options: Any) -> Environment:
    """The environment of that id, in its native units, with constructor `options`.

    Raises RlxError for an unknown id or option, naming the nearest valid one.
    """
    suite, _, task = env_id.partition("/")
    if suite not in MAKERS or not task:
        raise unknown("environment", env_id, ids())
    return MAKERS[suite](task, **options)
