"""MR.Q's published tables again: what `mrq_dmc.py` and `mrq_gym.py` share.

A task's seeds are trained in programs of some seeds each, under `RUNS/TASK/seeds-FIRST[-LAST]`. A directory that holds an
evaluation at the last step or beyond is only read; one that was begun is continued, also to more steps than it was begun
with (`rlx.train` takes the total). Then the table and the task's curve are written, from what all directories hold, whatever
this call trained: an interruption loses the rest of one program, and what is stored there is in the next call's table.
Scales other than `cpu` have their own subdirectories of both --runs and --out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

import rlx
from experiments import published
from rlx import report, results, stats
from rlx.errors import RlxError, unknown
from rlx.report import plots, tables


@dataclass(frozen=True)
class Suite:
    """The tasks of one published table, and where they are here."""

    name: str  # of the published files
    title: str
    envs: Mapping[str, str | None]  # published task -> environment id, None where there is none
    absent: str  # what the table says of those
    simulator: str
    published_simulator: str
    steps: str  # whose they are
    env_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tasks(self) -> dict[str, str]:
        """As --tasks takes them, the id without its suite and version -> the published name."""
        return {label(env): task for task, env in self.envs.items() if env}


@dataclass(frozen=True)
class Scale:
    """How much is trained. What it reduces besides seeds, steps and tasks is said in `note`."""

    tasks: tuple[str, ...]  # by default
    seeds: int
    per_program: int  # seeds
    steps: int
    eval_every: int
    save_every: int
    eval_episodes: int = 10
    fields: Mapping[str, Any] = field(default_factory=dict)  # of MR.Q
    note: str = ""

    @property
    def programs(self) -> list[tuple[int, ...]]:
        """The seeds of each."""
        return [tuple(range(i, min(i + self.per_program, self.seeds))) for i in range(0, self.seeds, self.per_program)]


# Nets and batches of a size that compiles and trains in seconds; of the algorithm all parts run.
TINY: dict[str, Any] = {
    **dict.fromkeys(("zs_size", "zsa_size", "za_size", "encoder_size", "value_size", "policy_size", "batch_size"), 16),
    "learning_starts": 100, "target_period": 50, "replay_capacity": 1_000,
}  # fmt: skip
TINY_NOTE = "Networks of 16 units show that everything runs; these numbers say nothing about scores."


def label(env: str) -> str:
    """`playground/CheetahRun` -> CheetahRun; `gymnasium/Ant-v4` -> Ant."""
    return env.partition("/")[2].partition("-v")[0]


# --- running -----------------------------------------------------------------------------------------------------------


def directory(runs: Path, name: str, seeds: Sequence[int]) -> Path:
    ends = dict.fromkeys((seeds[0], seeds[-1]))
    return runs / name / "-".join(["seeds", *map(str, ends)])


def evaluations(out: Path) -> pd.DataFrame:
    """The rows of evaluations under `out`, numbered by seed; none where nothing is stored."""
    if not (out / "metrics.parquet").exists():
        return pd.DataFrame(columns=["run", "seed", "step", "return", "unfinished"])
    table = results.metrics(out)
    return table[table["unfinished"].notna()].assign(run=lambda t: t["seed"])


def stored(runs: Path, name: str, scale: Scale) -> pd.DataFrame:
    """All evaluations of a task up to the scale's steps."""
    found = [evaluations(directory(runs, name, seeds)) for seeds in scale.programs]
    table = pd.concat([t for t in found if len(t)] or found[:1], ignore_index=True)
    return table[table["step"] <= scale.steps]


def train(suite: Suite, name: str, scale: Scale, seeds: tuple[int, ...], out: Path) -> bool:
    """One program, as far as it is not stored -> whether it was interrupted."""
    done = evaluations(out)
    if len(done) and done["step"].max() >= scale.steps:
        return False
    with jax.default_matmul_precision("highest"):  # GPUs would take TF32; published scores are of float32
        result = rlx.train(
            "mrq", suite.envs[suite.tasks[name]], env_options=dict(suite.env_options), steps=scale.steps, seeds=seeds,
            eval_every=scale.eval_every, eval_episodes=scale.eval_episodes, save_every=scale.save_every, out=str(out),
            resume=True, **{"preset": "paper", **scale.fields},
        )  # fmt: skip
    return result.interrupted


# --- the table ---------------------------------------------------------------------------------------------------------


def row(suite: Suite, task: str, ours: pd.DataFrame) -> dict[str, Any]:
    """One task: our evaluations `ours` at the last step that a seed reached, over the seeds that did, and the published score.

    `difference` is of the means where both are of one step, `standard_error` its own: s sqrt(1/n + 1/m) of the published
    standard deviation s, since that of a few seeds is a guess; `verdict` whether it is at most twice that.
    """
    env = suite.envs[task]
    at = ours[ours["step"] == ours["step"].max()]
    scores = at["return"].to_numpy(np.float64)
    mine, (low, high) = stats.summary(scores), published.interval(scores)
    theirs = published.score(suite.name, task, int(at["step"].iloc[0]) if len(at) else None)
    status = suite.absent if env is None else "run" if len(at) else "not run here"
    out = {
        "task": task.partition("-")[2], "environment": env or suite.absent, "status": status,
        "simulator": suite.simulator if env else "", "seeds": mine.n, "failed": mine.failed,
        "steps": at["step"].iloc[0] if len(at) else np.nan, "mean": mine.mean, "low": low, "high": high, "iqm": mine.iqm,
        "published_mean": theirs.mean, "published_low": theirs.low, "published_high": theirs.high,
        "published_std": theirs.std, "published_steps": theirs.step, "published_seeds": theirs.seeds,
        "published_simulator": suite.published_simulator, "source": published.SOURCE,
        "difference": np.nan, "standard_error": np.nan, "verdict": "",
    }  # fmt: skip
    if mine.n and out["steps"] == theirs.step:
        difference, error = mine.mean - theirs.mean, theirs.std * np.sqrt(1 / mine.n + 1 / theirs.seeds)
        verdict = "within" if abs(difference) <= 2 * error else "above" if difference > 0 else "below"
        out |= {"difference": difference, "standard_error": error, "verdict": verdict}
    return out


def table(suite: Suite, frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """A row for each published task; `frames` are evaluations by the name of --tasks."""
    nothing = evaluations(Path())
    return pd.DataFrame([row(suite, t, frames.get(label(env), nothing) if env else nothing) for t, env in suite.envs.items()])


def markdown(suite: Suite, scale_name: str, scale: Scale, rows: pd.DataFrame) -> str:
    """The table for readers, under a caption that says what it compares."""
    cell = tables.cell
    spread = lambda mean, low, high: f"{cell(mean)} [{cell(low)}, {cell(high)}]"

    def shown(r: Any) -> dict[str, Any]:
        ran = r.status == "run"
        seeds = f"{r.seeds} ({r.failed} more failed)" if r.failed else str(r.seeds)
        error = f"{r.verdict} {r.published_mean:.0f} ± {2 * r.standard_error:.0f} ({r.difference:+.0f})"
        units = f"{r.difference / r.standard_error:+.2f}" if r.standard_error > 0 else "-"
        return {
            "task": r.task, "environment": r.environment, "simulator": r.simulator or "-",
            "mean [95%]": spread(r.mean, r.low, r.high) if ran else r.status, "IQM": cell(r.iqm) if ran else "-",
            "seeds": seeds if ran else "-", "steps": f"{int(r.steps):,}" if ran else "-",
            "published mean [95%]": spread(r.published_mean, r.published_low, r.published_high),
            "at step": f"{r.published_steps:,}", "its seeds": r.published_seeds, "its simulator": r.published_simulator,
            "difference / s.e.": units, "verdict": error if r.verdict else "-",
        }  # fmt: skip

    last = published.final(suite.name, next(iter(suite.envs)))
    caption = (
        f"{suite.title}, MR.Q, scale `{scale_name}`: up to {scale.seeds} seeds and {scale.steps:,} steps, where the published "
        f"runs have {last.seeds} and {last.step:,}. {scale.note} Steps are {suite.steps}. "
        f"A score is the mean return of {scale.eval_episodes} episodes at the last evaluation; means, 95% bootstrap intervals "
        "of the mean and IQM (below four seeds the mean) are over the seeds that got there, and an interval over few seeds is "
        "too short. "
        f"Published: {published.SOURCE}; its score at the same step where it has one, else its last. "
        "Scores of different simulators stand beside one another, they are never mixed. "
        "The verdict compares means at the same step: their difference may be two standard errors of it, s sqrt(1/n + 1/m) "
        "with the published standard deviation s at that step for both, n and m the numbers of seeds."
    )
    body = report.to_markdown(pd.DataFrame([shown(r) for r in rows.itertuples()]))
    return f"{' '.join(caption.split())}\n\n{body}"


# --- the curve -----------------------------------------------------------------------------------------------------------


def curve(suite: Suite, scale_name: str, task: str, ours: pd.DataFrame, path: Path) -> None:
    """Our seeds, a line each, over the published mean, its 95% interval and the range of its seeds, up to our last step."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), dpi=200, layout="constrained")
    axes = figure.add_subplot()
    plots.style(axes)
    plots.step_axis(axes)
    theirs, end = published.curve(suite.name, task), ours["step"].max()
    theirs = theirs.iloc[: np.searchsorted(theirs.index, end) + 1]  # one more, to reach the edge
    blue, orange, seeds = plots.PALETTE[0], plots.PALETTE[1], ours["seed"].nunique()
    axes.fill_between(theirs.index, theirs["min"], theirs["max"], color=orange, alpha=0.12, linewidth=0, zorder=2)
    axes.fill_between(theirs.index, theirs["low"], theirs["high"], color=orange, alpha=0.3, linewidth=0, zorder=3)
    name = f"published mean, {suite.published_simulator}"
    axes.plot(theirs.index, theirs["mean"], "--", color=orange, linewidth=1.8, label=name, zorder=4)
    for j, (_, run) in enumerate(ours.groupby("seed")):
        name = f"rlx, {suite.simulator}: {seeds} seed{'s' * (seeds > 1)}" if j == 0 else None
        run = run.sort_values("step")
        marker = "o" if len(run) == 1 else ""  # a line through one point is invisible
        axes.plot(run["step"], run["return"], color=blue, linewidth=1.2, marker=marker, markersize=3, label=name, zorder=5)
    axes.set_xlim(0, 1.02 * end)
    axes.set_xlabel(f"steps of one run ({suite.steps})")
    axes.set_ylabel("evaluation return (sum of an episode's rewards)")
    axes.set_title(f"MR.Q on {task.partition('-')[2]}, scale {scale_name}", loc="left", fontsize=11, fontweight="bold", pad=20)
    plots.caption(axes, f"bands: 95% bootstrap interval and range of the {theirs['n_seeds'].iloc[0]} published seeds")
    axes.legend(frameon=True, framealpha=0.85, edgecolor="none", fontsize=8).set_zorder(6)
    plots.save(figure, path)


# --- the command -------------------------------------------------------------------------------------------------------


def write(suite: Suite, scale_name: str, scale: Scale, runs: Path, out: Path) -> str:
    """`table.csv`, `table.md` and `curves_TASK.png`, of what is stored -> the table."""
    frames = {name: stored(runs, name, scale) for name in suite.tasks}
    rows = table(suite, frames)
    out.mkdir(parents=True, exist_ok=True)
    report.to_csv(rows, out / "table.csv")
    text = markdown(suite, scale_name, scale, rows)
    (out / "table.md").write_text(text)
    for name, ours in frames.items():
        if len(ours):
            curve(suite, scale_name, suite.tasks[name], ours, out / f"curves_{name}.png")
    return text


def main(suite: Suite, scales: Mapping[str, Scale], about: str | None, argv: Sequence[str] | None = None) -> int:
    """Train what is missing and write the table -> 0, 2 after bad input, 130 after Ctrl-C."""
    here, name = Path(__file__).parent, f"mrq_{suite.name}"
    parser = argparse.ArgumentParser(f"{name}.py", description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=tuple(scales), default="cpu")
    parser.add_argument("--tasks", nargs="+", metavar="NAME", help=", ".join(suite.tasks))
    parser.add_argument("--seeds", type=int, metavar="N", help="number of seeds, from 0")
    parser.add_argument("--steps", type=int, metavar="N", help="of one run, in all")
    parser.add_argument("--out", type=Path, default=here / "results" / name)
    parser.add_argument("--runs", type=Path, default=Path("runs") / name)
    args = parser.parse_args(argv)
    try:
        for task in args.tasks or ():
            if task not in suite.tasks:
                raise unknown("task", task, suite.tasks)
        given = {k: getattr(args, k) for k in ("seeds", "steps") if getattr(args, k) is not None}
        for k, value in given.items():
            if value < 1:
                raise RlxError(f"{k}={value} must be at least 1")
        scale = replace(scales[args.scale], **given, **({"tasks": tuple(args.tasks)} if args.tasks else {}))
        runs, out = (path if args.scale == "cpu" else path / args.scale for path in (args.runs, args.out))
        text = write(suite, args.scale, scale, runs, out)
        for task in scale.tasks:
            for seeds in scale.programs:
                stop = train(suite, task, scale, seeds, directory(runs, task, seeds))
                text = write(suite, args.scale, scale, runs, out)
                if stop:
                    raise KeyboardInterrupt
        print(text)
    except RlxError as error:
        print(f"{parser.prog}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"interrupted; the same command continues. So far: {out / 'table.md'}", file=sys.stderr)
        return 130
    return 0
