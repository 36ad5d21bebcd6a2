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

COUNTS = ("unfinished", "episodes", "episode_length", "nan_steps", "updates")


def merged(tables: Iterable[pd.DataFrame], plan: Plan) -> pd.DataFrame:
    """The tables of batches as one, by run and step, with the fields of the space, failed runs marked."""
    tables = list(map(failures, tables))  # one by one: groups may measure different things
    if not tables:
        return pd.DataFrame()
    table = pd.concat(tables, ignore_index=True).sort_values(["run", "step"], ignore_index=True)
    table = table.rename(columns={name: f"{name}_measured" for name in plan.space if name in table})
    for k, name in enumerate(plan.space):
        values = column([config[name] for config in plan.configs])
        table.insert(3 + k, name, pd.Series([values[c] for c in table["config"]]))
    return table


def column(values: list[Any]) -> list[Any]:
    """Values as a column holds them: numbers, truth values or words, and None; anything else as text."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} or kinds in ({bool}, {str}):
        return values
    return [None if value is None else str(value) for value in values]


def failures(table: pd.DataFrame) -> pd.DataFrame:
    """`table` with a column `failed`: from its first row with a loss that is not finite on, a run has failed, and nothing it
    measured counts."""
    scores = [*return_columns(table), *(c for c in table.columns if c.startswith("episode_return"))]
    after = list(table.columns)[list(table.columns).index("step") + 1 :]
    losses = [c for c in after if c not in (*scores, *COUNTS)]
    bad = ~np.isfinite(table[losses]).all(axis=1) & (table["updates"] > 0)
    failed = bad.groupby(table["run"]).cummax()
    return table.assign(**{c: table[c].where(~failed) for c in (*losses, *scores)}, failed=failed)


class SweepResult:
    """The outcome of `rlx.sweep`.

    metrics: a long table with one row per (run, step), as `Result.metrics`, with `config`, a column for each field of the
      space, and `failed`. A metric that is named as a field of the space is `NAME_measured`.
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
        if self.metrics.empty:
            raise RlxError("a ranking needs a batch that is finished, and there is none yet")
        if return_columns(self.metrics) != ["return"]:
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
        """The values of the best configuration, with its number and statistics; RlxError where no run has a score."""
        row = self.table().iloc[0].to_dict()
        if not np.isfinite(row["iqm"]):
            raise RlxError("no run has a finite score, so no configuration is best")
        return {**row, "config": int(row["config"]), **self.plan.configs[int(row["config"])]}

    def write(self, out: Path) -> None:
        """metrics.parquet; of a scalar reward table.csv, and best.toml where some run has a finite score."""
        parquet.write(out / "metrics.parquet", self.metrics)
        if return_columns(self.metrics) == ["return"]:
            table = self.table()
            report.to_csv(table, out / "table.csv")
            if np.isfinite(table["iqm"].iloc[0]):
                (out / "best.toml").write_text(best_toml(self))


def best_toml(result: SweepResult) -> str:
    """The best configuration in full, as `rlx train AGENT ENV --config FILE` reads it."""
    plan, row = result.plan, result.best()
    c = row["config"]
    document = tomlkit.document()
    document.add(tomlkit.comment(f"{plan.agent} on {plan.env}: configuration {c}, best of {len(plan.configs)}"))
    document.add(tomlkit.comment(f"IQM {row['iqm']:.6g} [{row['low']:.6g}, {row['high']:.6g}] over {int(row['runs'])} seeds"))
    document.add(tomlkit.comment("chosen by these very runs, so its score is flattered: run it on fresh seeds"))
    config = plan.fixed["config"] | {k: v for k, v in plan.configs[c].items() if not k.startswith(ENV)}
    types = config_.fields(agents.get(plan.agent).Config)
    for name, value in config.items():
        if value is not None:  # TOML has no None: left out, it keeps its default
            document.add(name, list(value) if "tuple" in str(types[name].type) else value)
    swept = {k.removeprefix(ENV): v for k, v in plan.configs[c].items() if k.startswith(ENV)}
    for name, values in (("env_options", plan.fixed["env_options"]), ("env_params", plan.fixed["env_changes"] | swept)):
        if values := {k: v for k, v in values.items() if v is not None}:
            document.add(name, values)
    return tomlkit.dumps(document)


def load(out: str | Path) -> SweepResult:
    """What a sweep stored under `out`, its batches that are done; RlxError where there is none."""
    out = Path(out)
    if not (out / "plan.json").exists():
        raise RlxError(f"{out} holds no sweep: it has no plan.json")
    plan = Plan.read(out / "plan.json")
    return SweepResult(merged(finished(out, plan).values(), plan), plan, out)


def finished(out: Path, plan: Plan) -> dict[str, pd.DataFrame]:
    """The tables of the batches that are done, in order: finished.csv has their line, whole, and their table is there."""
    log = out / "finished.csv"
    lines = log.read_bytes().split(b"\n")[:-1] if log.exists() else []  # behind the last one, a line may be half written
    named = {line.partition(b",")[0] for line in lines}
    paths = {name: out / "batches" / f"{name}.parquet" for name in plan.work() if name.encode() in named}
    return {name: parquet.read(path) for name, path in paths.items() if path.exists()}
