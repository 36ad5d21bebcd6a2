"""Environments by id: `suite/task`. The table is explicit; nothing registers itself at import."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable
from typing import Any, NamedTuple

from gymnax.environments.environment import Environment

from rlx.envs import modifiers
from rlx.errors import RlxError, unknown


class Suite(NamedTuple):
    """`module` has `tasks()`, the names it knows, and `make(task, **options)`; `packages` are what it imports."""

    module: str
    packages: tuple[str, ...] = ()
    extra: str | None = None  # of rlx, that installs the packages; None: always installed


SUITES = {
    "gymnax": Suite("rlx.envs.adapters.gymnax"),
    "brax": Suite("rlx.envs.adapters.brax"),
    "probe": Suite("rlx.envs.probes"),
    "playground": Suite("rlx.envs.adapters.playground", ("mujoco_playground",), "playground"),
    "jumanji": Suite("rlx.envs.adapters.jumanji", ("jumanji",), "jumanji"),
    "navix": Suite("rlx.envs.adapters.navix", ("navix",), "navix"),
    "xminigrid": Suite("rlx.envs.adapters.xminigrid", ("xminigrid",), "xminigrid"),
    "pgx": Suite("rlx.envs.adapters.pgx", ("pgx",), "pgx"),
    "craftax": Suite("rlx.envs.adapters.craftax", ("craftax",), "craftax"),
    "gymnasium": Suite("rlx.envs.adapters.gymnasium", ("gymnasium",), "gymnasium"),  # here with gymnax, but for MuJoCo
    "dmc": Suite("rlx.envs.adapters.dmc", ("dm_control",), "dmc"),
}


def installed(suite: str) -> bool:
    return all(importlib.util.find_spec(package) for package in SUITES[suite].packages)


def ids(suites: Iterable[str] | None = None) -> list[str]:
    """Every environment that `make` knows here, of the given suites or of all that are installed."""
    suites = [s for s in SUITES if installed(s)] if suites is None else suites
    return [f"{suite}/{task}" for suite in suites for task in importlib.import_module(SUITES[suite].module).tasks()]


def make(env_id: str, /, **options: Any) -> Environment:
    """The environment of that id, in its native units, with constructor `options`; what
    `rlx.envs.modifiers` names are options of every suite.

    Raises RlxError for an unknown id or option, naming the nearest valid one, and for a suite that is not installed,
    naming what installs it.
    """
    suite, _, task = env_id.partition("/")
    if suite not in SUITES or not task:
        extras = [f"{s}/{task}" for s in SUITES if SUITES[s].extra and task]  # not imported just to be listed
        raise unknown("environment", env_id, ids(s for s in SUITES if not SUITES[s].extra) + extras)
    if not installed(suite):
        raise RlxError(f"{env_id} needs an extra: pip install 'rlx[{SUITES[suite].extra}]'")
    ours, own = modifiers.split(options)
    return modifiers.apply(importlib.import_module(SUITES[suite].module).make(task, **own), **ours)
