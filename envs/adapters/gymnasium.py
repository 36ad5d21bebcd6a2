"""gymnasium's environments, and whatever else `gym.make` knows, stepped on the host.

`gym.make` adds the time limit that the id is registered with, so truncation is real; `max_episode_steps` among the options
changes it. gymnasium's passive checker is off, since shapes are checked here and it would warn in every process.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnax.environments import spaces

from rlx.envs import host
from rlx.envs.pools import Kind
from rlx.errors import RlxError, unknown

FUNCTIONAL = ("phys2d", "tabular")  # gymnasium's JAX environments, which host environments cannot be made of by the dozen
COMPATIBILITY = ("GymV21Environment", "GymV26Environment")  # wrappers of other packages


def tasks() -> list[str]:
    """The newest version of each registered id."""
    newest = {}
    for spec in sorted(gym.registry.values(), key=lambda spec: spec.version or 0):
        if spec.namespace not in FUNCTIONAL and spec.name not in COMPATIBILITY:
            newest[spec.namespace, spec.name] = spec.id
    return sorted(newest.values())


def make(task: str, /, **options: Any) -> host.HostEnv:
    """`gymnasium/ID` for any id of `gym.make` (`module:ID` imports the module first); options are those of `gym.make`.

    Raises RlxError for an unknown id, a package that is missing, options that do not fit and spaces that no agent can handle.
    """
    name = f"gymnasium/{task}"
    build = functools.partial(_build, task, options)
    try:
        env = build()
    except gym.error.UnregisteredEnv:
        raise unknown("environment", name, [f"gymnasium/{known}" for known in tasks()]) from None
    except (gym.error.DependencyNotInstalled, ImportError) as error:
        raise RlxError(f"{name} needs a package ({_line(error)}); for MuJoCo: pip install 'rlx[gymnasium]'") from error
    except Exception as error:  # environments document no type
        given = ", ".join(f"{option}={value!r}" for option, value in options.items())
        raise RlxError(f"{name} cannot be built{' with ' + given if given else ''}: {_line(error)}") from error
    try:
        limit = env.spec.max_episode_steps if env.spec else None
        kind = Kind(name, build, space(env.observation_space, name), space(env.action_space, name))
    finally:
        env.close()
    return host.HostEnv(kind, limit if limit and limit > 0 else None)


def space(given: gym.Space, name: str) -> spaces.Space:
    """The gymnax space of a gymnasium one. Raises RlxError for what is not Box, Discrete or a Dict or Tuple of them."""
    if isinstance(given, gym.spaces.Box):
        return host.box(given.low, given.high, given.shape, given.dtype)
    if isinstance(given, gym.spaces.Discrete):
        return host.Discrete(int(given.n), int(given.start))
    if isinstance(given, gym.spaces.Dict):
        return spaces.Dict({k: space(s, name) for k, s in given.spaces.items()})
    if isinstance(given, gym.spaces.Tuple):
        return spaces.Tuple([space(s, name) for s in given.spaces])
    raise RlxError(f"{name}: the space {type(given).__name__} is not supported: use Box, Discrete, Dict or Tuple")


def _build(task: str, options: dict[str, Any]) -> gym.Env:
    with _quiet():
        env = gym.make(task, **{"disable_env_checker": True, **options})
    actions = env.action_space
    if isinstance(actions, gym.spaces.Box) and actions.dtype == np.float64:  # float32 rounds a bound to beyond itself
        env = gym.wrappers.TransformAction(env, lambda a: np.clip(a.astype(np.float64), actions.low, actions.high), actions)
    return env


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what MuJoCo says about gymnasium's models, which it prints and appends to MUJOCO_LOG.TXT."""
    try:
        import mujoco
    except ImportError:
        yield
        return
    previous = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(previous)


def _line(error: Exception) -> str:
    return re.sub(r"\s+", " ", str(error)).strip() or type(error).__name__
