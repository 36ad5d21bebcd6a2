"""The best configuration once more, on seeds that had no part in choosing it.

The best of many scores is in part the luckiest: its seeds' mean is biased upwards, the more so the more configurations and the
fewer seeds there were. Runs with fresh seeds have no such bias.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from rlx import stats
from rlx.errors import RlxError
from rlx.results import return_columns
from rlx.sinks import parquet
from rlx.sinks.console import Progress
from rlx.sweeps import batch as batch_
from rlx.sweeps.plan import Plan
from rlx.sweeps.results import SweepResult, merged
from rlx.trainer import Trainer
from rlx.training import RunConfig

FILE = "confirm.parquet"


class Confirmation(NamedTuple):
    """The best configuration on the sweep's seeds and on fresh ones, at the last step.

    change: IQM on fresh seeds minus IQM on the sweep's.
    rank: the place it would have had among all configurations with its score on fresh seeds.
    """

    config: int
    seeds: list[int]
    selected: stats.Summary
    fresh: stats.Summary
    change: float
    rank: int


def confirm(
    plan: Plan, trainers: Sequence[Trainer], result: SweepResult, out: Path | None, progress: Progress
) -> pd.DataFrame | None:
    """Train the best configuration with as many fresh seeds as the sweep has -> a table as `result.metrics`, or None where it
    was interrupted.

    The seeds are the smallest that the sweep has not used, the runs are numbered after those of the plan. They are trained by
    the program of their group, in batches of its size, so nothing compiles that the sweep has compiled. What `out` holds
    already is not trained again. `trainers` are those of the plan's groups.

    Raises RlxError where no configuration is the best: a vector reward, no finite score.
    """
    c = result.best()["config"]
    seeds = fresh_seeds(plan.seeds)
    stored = None if out is None else load(out)
    if stored is not None and set(stored["config"]) == {c} and sorted(stored["seed"].unique()) == seeds:
        return stored
    g = next(g for g, group in enumerate(plan.groups) if c in group.configs)
    runs = [(plan.runs + j, c, seed) for j, seed in enumerate(seeds)]
    progress.announce(f"configuration {c}, the best, with fresh seeds {', '.join(map(str, seeds[:10]))}")
    config = RunConfig(**{name: plan.fixed[name] for name in ("steps", "eval_every", "eval_episodes", "log_every")})
    size, tables = plan.groups[g].batch, []
    for k in range(0, len(runs), size):
        batch = runs[k : k + size]
        table = batch_.train(plan, trainers[g], batch + [batch[-1]] * (size - len(batch)), config)
        if table is None:
            return None
        tables.append(table)
    table = merged(tables, plan)
    if out is not None:
        parquet.write(out / FILE, table)
    return table


def fresh_seeds(used: Sequence[int]) -> list[int]:
    """As many as there are in `used`, the smallest that are not."""
    return list(itertools.islice((seed for seed in itertools.count() if seed not in set(used)), len(used)))


def load(out: str | Path) -> pd.DataFrame | None:
    """The table that `confirm` stored under `out`; None where it did not."""
    path = Path(out) / FILE
    return parquet.read(path) if path.exists() else None


def compare(result: SweepResult, fresh: pd.DataFrame) -> Confirmation:
    """What the fresh seeds of `confirm` changed."""
    if return_columns(fresh) != ["return"]:
        raise RlxError("fresh seeds confirm a best configuration, and a vector reward has none")
    last = lambda table: table[table["step"] == table["step"].max()]
    c = int(fresh["config"].iloc[0])
    table = result.table()
    others = table[table["config"] != c]
    selected = last(result.metrics).query("config == @c")["return"]
    before, after = stats.summary(selected), stats.summary(last(fresh)["return"])
    ahead = (others["failed"] < after.failed) | ((others["failed"] == after.failed) & ~(others["iqm"] <= after.iqm))
    rank = 1 + int((ahead & others["iqm"].notna()).sum())
    return Confirmation(c, sorted(fresh["seed"].unique().tolist()), before, after, after.iqm - before.iqm, rank)
