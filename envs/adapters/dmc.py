"""Tasks of the DeepMind Control Suite, stepped on the host: `dmc/cartpole-swingup`.

An episode ends by the suite's time limit (`last()` with discount 1), which truncates, or by a task's own ending (discount 0),
which terminates. A simulation that diverges is quarantined as one that emits NaN.
"""

from __future__ import annotations

import functools
import inspect
import math
import warnings
from typing import Any

import dm_env
import numpy as np
from gymnax.environments import spaces

from rlx.envs import host
from rlx.envs.pools import Kind
from rlx.errors import RlxError, nearest, unknown

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its renderer warns where there is no display
    from dm_control import suite
    from dm_control.rl.control import PhysicsError


def tasks() -> dict[str, tuple[str, str]]:
    """`domain-task` -> (domain, task)."""
    return {f"{domain}-{task}": (domain, task) for domain, task in suite.ALL_TASKS}


class Task:
    """One dm_control environment with gymnasium's interface."""

    def __init__(self, domain: str, task: str, options: dict[str, Any]):
        rest = {k: v for k, v in options.items() if k != "environment_kwargs"}
        self.env = suite.load(domain, task, {"random": 0, **rest}, options.get("environment_kwargs"))

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict]:
        if seed is not None:
            self.env.task.random.seed(seed)  # as if it had been built with random=seed
        self.last: dm_env.TimeStep = self.env.reset()
        return self.last.observation, {}

    def step(self, action: np.ndarray) -> tuple[Any, Any, bool, bool, dict]:
        try:
            self.last = self.env.step(action)
        except PhysicsError:
            return self.last.observation, np.nan, False, False, {}
        terminated = self.last.last() and self.last.discount == 0
        return self.last.observation, self.last.reward, terminated, self.last.last() and not terminated, {}

    def close(self) -> None:
        self.env.close()


def make(task: str, /, **options: Any) -> host.HostEnv:
    """`dmc/DOMAIN-TASK`; options: `time_limit` in seconds, `environment_kwargs`, and the task's own.

    Observations are a dict, which agents see flattened in the order of its sorted names. Where the model itself is drawn
    (lqr), it is the same one for all.
    """
    name, known = f"dmc/{task}", tasks()
    if task not in known:
        raise unknown("environment", name, [f"dmc/{t}" for t in known])
    domain, _, short = task.partition("-")
    valid = [p for p in inspect.signature(suite._DOMAINS[domain].SUITE[short]).parameters if p != "random"]
    for option in options:
        if option not in valid:
            raise RlxError(f"unknown option {option!r} of {name}: {nearest(option, valid)}")
    build = functools.partial(Task, *known[task], options)
    try:
        sample = build()
    except Exception as error:  # the suite documents no type
        given = ", ".join(f"{option}={value!r}" for option, value in options.items())
        raise RlxError(f"{name} cannot be built{' with ' + given if given else ''}: {' '.join(str(error).split())}") from error
    env = sample.env
    observed = spaces.Dict({k: _box(s) for k, s in env.observation_spec().items()})
    limit = env._step_limit  # time limit / control step, the number it compares its steps with; not public
    sample.close()
    return host.HostEnv(Kind(name, build, observed, _box(env.action_spec())), math.ceil(limit) if limit < np.inf else None)


def _box(spec: dm_env.specs.Array) -> spaces.Box:
    low, high = getattr(spec, "minimum", -np.inf), getattr(spec, "maximum", np.inf)
    return host.box(np.broadcast_to(low, spec.shape), np.broadcast_to(high, spec.shape), spec.shape, spec.dtype)
