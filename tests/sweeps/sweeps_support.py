"""Tiny sweeps that the tests share, and what compares them."""

from functools import cache
from typing import Any

import pandas as pd
import pytest

import rlx
from rlx.sweeps import SweepResult
from rlx.sweeps import plan as p
from tests.train_support import CARTPOLE, TINY

PER = 20  # env steps of an iteration of TINY
RUN: dict[str, Any] = {"steps": 6 * PER, "eval_every": 2 * PER, "eval_episodes": 2}
LR = {"lr": [0.0003, 0.001, 0.003]}  # three configurations of one program; small, so that rounding changes no episode
KEYS = ["run", "config", "seed", "step"]


def sweep(space: Any, env: str = CARTPOLE, agent: str = "ppo", **kwargs: Any) -> SweepResult:
    """`rlx.sweep` of tiny PPO runs, without progress."""
    named = lambda name: f"{name}=" in space if isinstance(space, str) else name in space
    fields = {name: value for name, value in TINY.items() if agent == "ppo" and not named(name)}
    return rlx.sweep(agent, env, space, progress=False, **{**RUN, **fields, **kwargs})


def plan(space: Any, agent: str = "ppo", env: str = CARTPOLE, **kwargs: Any) -> p.Plan:
    """The plan of such a sweep."""
    return sweep(space, env, agent, dry_run=True, **kwargs).plan


def assert_close(a: pd.DataFrame, b: pd.DataFrame, tolerance: float = 1e-4) -> None:
    """The same rows and columns, numbers to a tolerance."""
    pd.testing.assert_frame_equal(a[KEYS], b[KEYS], check_exact=True)
    pd.testing.assert_frame_equal(a, b, check_exact=False, rtol=tolerance, atol=tolerance)


def of(result: SweepResult, config: int) -> pd.DataFrame:
    """The rows of one configuration."""
    return result.metrics[result.metrics["config"] == config].reset_index(drop=True)


TWO = {"hidden_sizes": [(8,), (4,)], "lr": [0.001, 0.05]}  # two groups


@cache
def whole() -> SweepResult:
    """Three step sizes, two seeds, as one batch."""
    return sweep(LR, seeds=[3, 5], batch_of_runs=6)


@cache
def cut() -> SweepResult:
    """The same, at most four at once: two batches of three."""
    return sweep(LR, seeds=[3, 5], batch_of_runs=4)


@cache
def grouped_and_trainers() -> tuple[SweepResult, list[rlx.Trainer]]:
    """Two groups of eight runs, three batches each, environments of two lengths; and the trainers that were made."""
    made, make = [], p.Trainer
    with pytest.MonkeyPatch.context() as m:
        m.setattr(p, "_kept", p._kept.__wrapped__)
        m.setattr(p, "Trainer", lambda *a, **k: made.append(make(*a, **k)) or made[-1])
        return sweep(TWO | {"env.max_steps_in_episode": [20, 21]}, seeds=2, batch_of_runs=3), made


def grouped() -> SweepResult:
    return grouped_and_trainers()[0]
