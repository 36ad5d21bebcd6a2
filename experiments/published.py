"""What MR.Q's authors measured: Fujimoto et al. 2025, arXiv 2501.16142, from the files in `reference/`.

Suites are `dmc`, `dmc_visual`, `gym` and `atari`; tasks have their published names, as `Dmc-cartpole-swingup`. Scores are mean
returns of ten evaluation episodes, statistics are over ten seeds, and steps are the agent's (`reference/README.md`).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from rlx import stats
from rlx.errors import unknown

SOURCE = "Fujimoto et al. 2025, arXiv 2501.16142, result files"
FILES = Path(__file__).parent / "reference"
SUITES = ("dmc", "dmc_visual", "gym", "atari")


class Score(NamedTuple):
    """Over `seeds` runs at `step`: mean, 95% bootstrap interval of the mean, sample standard deviation."""

    step: int
    seeds: int
    mean: float
    low: float
    high: float
    std: float


def tasks(suite: str) -> list[str]:
    """Names of the suite's tasks, sorted. RlxError for an unknown suite, as in all functions here."""
    return sorted(_read(suite, "final")["task"])


def final(suite: str, task: str) -> Score:
    """At the last step, from the scores of the single seeds."""
    row = _of(suite, "final", task).iloc[0]
    x = row.filter(like="seed").to_numpy(np.float64)
    return Score(int(row["step"]), len(x), float(x.mean()), *interval(x), float(x.std(ddof=1)))


def score(suite: str, task: str, step: int | None = None) -> Score:
    """At `step` where there was an evaluation, with the published interval; else, and by default, `final`."""
    last, table = final(suite, task), curve(suite, task)
    if step in (None, last.step) or step not in table.index:
        return last
    at = table.loc[step]
    return Score(int(step), int(at["n_seeds"]), *(float(at[k]) for k in ("mean", "low", "high", "std")))


def curve(suite: str, task: str) -> pd.DataFrame:
    """Columns `n_seeds, mean, std, low, high, min, max` by step; `low` and `high` are the 95% interval of the mean."""
    table = _of(suite, "curves", task).drop(columns="task").set_index("step").sort_index()
    return table.rename(columns={"ci95_low": "low", "ci95_high": "high"})


def interval(scores: np.ndarray) -> tuple[float, float]:
    """95% percentile bootstrap interval of the mean of `[S]`."""
    return stats.bootstrap_interval(scores, lambda x: x.mean(-1))


def _of(suite: str, kind: str, task: str) -> pd.DataFrame:
    table = _read(suite, kind)
    rows = table[table["task"] == task]
    if rows.empty:
        raise unknown("task", task, table["task"].unique())
    return rows


@cache
def _read(suite: str, kind: str) -> pd.DataFrame:
    if suite not in SUITES:
        raise unknown("suite", suite, SUITES)
    return pd.read_csv(FILES / f"mrq_{suite}_{kind}.csv")
