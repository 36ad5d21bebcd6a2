"""What a sweep leaves: one table of all runs, a ranking of the configurations, and the best one as a file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tomlkit

from rlx import agents, report, stats
from rlx import config as config_
from rlx.errors import RlxError
from rlx.results import return_columns
from rlx.sinks import parquet
from rlx.sweeps.plan import ENV, Plan

COUNTS = ("run", "config", "seed", "step", "unfinished", "episodes", "episode_return", "episode_length", "nan_steps", "updates")


def merged(tables: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """The tables of batches as one, by run and step, failed runs marked."""
    tables = list(tables)
    if not tables:
        return pd.DataFrame()
    return failures(pd.concat(tables, ignore_index=True).sort_values(["run", "step"], ignore_index=True))


def failures(table: pd.DataFrame) -> pd.DataFrame:
    """`table` with a column `failed`: from its first row with a loss that is not finite on, a run has failed, and nothing it
    measured counts."""
    losses = [c for c in table.select_dtypes("number").columns if c not in COUNTS and not c.startswith("return")]
    own = [c for c in losses if c not in _labels(table)]
    bad = ~np.isfinite(table[own]).all(axis=1) & (table["updates"] > 0)
    failed = bad.groupby(table["run"]).cummax()
    measured = [*own, *return_columns(table), *(c for c in table.columns if c.startswith("episode_return"))]
    return table.assign(**{c: table[c].where(~failed) for c in measured}, failed=failed)


def _labels(table: pd.DataFrame) -> list[str]:
    """The columns before `step`: what identifies a run."""
    return list(table.columns[: list(table.columns).index("step")])


class SweepResult:
    """The outcome of `rlx.sweep`.

    metrics: a long table with one row per (run, step), as `Result.metrics`, with `config`, a column for each field of the
      space, and `failed`.
    plan: the plan, with its configurations, groups and batches.
    interrupted: whether this call stopped early; `metrics` then has the batches that are finished.
    """

    def __init__(self, metrics: pd.DataFrame, plan: Plan, out: Path | None, interrupted: bool = False):
        self.metrics, self.plan, self.out, self.interrupted = metrics, plan, out, interrupted

    def to_pandas(self) -> pd.DataFrame:
        """A copy of `metrics`."""
        return self.metrics.copy()

    def table(self) -> pd.DataFrame:
        """One row per configuration, best first: its values; mean, IQM and 95% interval over seeds of the last evaluation;
        `failed`, the runs that have no finite score, which a configuration with more of ranks behind."""
        names = return_columns(self.metrics)
        if names != ["return"]:
            raise RlxError("a ranking needs a scalar reward: a vector reward has no single best configuration")
        last = self.metrics[self.metrics["step"] == self.metrics["step"].max()]
        rows = []
        for c, group in last.groupby("config"):
            s = stats.summary(group["return"])
            values = {f: group[f].iloc[0] for f in self.plan.space}
            rows.append({"config": int(c), **values, "runs": s.n + s.failed, **s._asdict()})
        table = pd.DataFrame(rows).drop(columns="n").sort_values(["failed", "iqm"], ascending=[True, False], kind="stable")
        table.insert(0, "rank", range(1, len(table) + 1))
        return table.set_index("rank")

    def best(self) -> dict[str, Any]:
        """The values of the best configuration, with its number and statistics."""
        row = self.table().iloc[0].to_dict()
        return {**row, "config": int(row["config"]), **self.plan.configs[int(row["config"])]}

    def write(self, out: Path) -> None:
        """metrics.parquet, table.csv and best.toml."""
        parquet.write(out / "metrics.parquet", self.metrics)
        if return_columns(self.metrics) == ["return"]:
            report.to_csv(self.table(), out / "table.csv")
            (out / "best.toml").write_text(best_toml(self))


def best_toml(result: SweepResult) -> str:
    """The best configuration in full, as `rlx train AGENT ENV --config FILE` reads it."""
    plan, row = result.plan, result.table().iloc[0]
    c = int(row["config"])
    document = tomlkit.document()
    document.add(tomlkit.comment(f"{plan.agent} on {plan.env}: configuration {c}, best of {len(plan.configs)}"))
    document.add(tomlkit.comment(f"IQM {row['iqm']:.6g} [{row['low']:.6g}, {row['high']:.6g}] over {int(row['runs'])} seeds"))
    document.add(tomlkit.comment("chosen by these very runs, so its score is flattered: run it on fresh seeds"))
    config = plan.fixed["config"] | {k: v for k, v in plan.configs[c].items() if not k.startswith(ENV)}
    types = config_.fields(agents.get(plan.agent).Config)
    for name, value in config.items():
        if value is not None:  # TOML has no None: left out, it keeps its default
            document.add(name, list(value) if "tuple" in str(types[name].type) else value)
    for name, values in (
        ("env_options", plan.fixed["env_options"]),
        ("env_params", {k.removeprefix(ENV): v for k, v in plan.configs[c].items() if k.startswith(ENV)}),
    ):
        if values:
            document.add(name, values)
    return tomlkit.dumps(document)


def load(out: str | Path) -> SweepResult:
    """What a sweep stored under `out`; RlxError where there is none."""
    out = Path(out)
    if not (out / "plan.json").exists():
        raise RlxError(f"{out} holds no sweep: it has no plan.json")
    return SweepResult(parquet.read(out / "metrics.parquet"), Plan.read(out / "plan.json"), out)
