"""The report of a sweep: what `rlx report` writes of a directory with a plan.json.

report.html (all of it on one page)  report.md, report.csv, report.tex (the ranking)  best.toml  curves.png  sensitivity.png
parallel.png  profile.png
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from rlx import report
from rlx.errors import RlxError
from rlx.report import html, parallel, sweep
from rlx.sweeps import confirm
from rlx.sweeps.confirm import Confirmation
from rlx.sweeps.results import SweepResult, best_toml
from rlx.versions import __version__

NOTES = (
    "A score is the mean return of the evaluation episodes of one run at its last step. IQM is the interquartile mean over "
    "seeds: the mean without the lowest and the highest quarter; below four seeds, the mean. Intervals are 95% percentile "
    "bootstrap intervals over seeds (Agarwal et al. 2021); with one seed they are a point, and say nothing.",
    "A run fails when a loss is not finite, and has no score from then on. IQM and intervals are of the runs that have one; "
    "configurations with more failed runs rank behind. In the profile a failed run counts as below every return.",
    "The best of many scores is in part the luckiest, so its interval is flattered; on fresh seeds it is not.",
)

PLOTS: dict[str, tuple[Callable[[sweep.Sweep, Path], None], str]] = {
    "curves": (sweep.curves, "Learning curves of the best configurations."),
    "sensitivity": (sweep.sensitivity, "Score against each field, while all other fields vary."),
    "parallel": (parallel.parallel, "Every configuration with its values and its score; the best are dark and in front."),
    "profile": (sweep.profile, "Fraction of runs and of configurations with a return above τ."),
}


def write_report(result: SweepResult, out: Path) -> list[str]:
    """Write the report of `result` to `out` -> the names of its files.

    Raises RlxError for a vector reward, where no batch is finished, and where `out` cannot be written.
    """
    table = result.table()
    data = sweep.Sweep(result.metrics, table, result.plan.space, len(result.plan.seeds))
    scored = bool(np.isfinite(table["iqm"].iloc[0]))
    fresh = confirm.load(result.out) if result.out and scored else None
    confirmation = None if fresh is None else confirm.compare(result, fresh)
    summary, toml = plan_summary(result, table), best_toml(result) if scored else ""
    title = f"Sweep of {result.plan.agent} on {result.plan.env}"
    cut = "" if len(table) <= html.ROWS else f"The best {html.ROWS} of {len(table)} configurations; all are in report.csv."
    try:
        out.mkdir(parents=True, exist_ok=True)
        report.to_csv(table, out / "report.csv")
        (out / "report.md").write_text(_markdown(title, summary, confirmation, table, cut))
        (out / "report.tex").write_text((f"% {cut}\n" if cut else "") + report.to_latex(table.head(html.ROWS)))
        if scored:
            (out / "best.toml").write_text(toml)
        for name, (plot, _) in PLOTS.items():
            plot(data, out / f"{name}.png")
        (out / "report.html").write_text(_page(title, summary, confirmation, table, cut, toml, out), encoding="utf-8")
    except OSError as error:
        raise RlxError(f"cannot write the report to {out}: {error.strerror}") from None
    return ["report.html", "report.md", "report.csv", "report.tex", *["best.toml"] * scored, *(f"{p}.png" for p in PLOTS)]


def _markdown(title: str, summary: dict[str, str], confirmation: Confirmation | None, table: pd.DataFrame, cut: str) -> str:
    lines = [f"# {title}", "", *(f"- {name}: {text}" for name, text in summary.items()), ""]
    lines += [confirmed(confirmation, len(table)), ""] if confirmation else []
    lines += [cut, ""] if cut else []
    return "\n".join(lines) + "\n" + report.to_markdown(table.head(html.ROWS))


def _page(
    title: str, summary: dict[str, str], confirmation: Confirmation | None, table: pd.DataFrame, cut: str, toml: str, out: Path
) -> str:
    best = html.code(toml) if toml else html.paragraphs("No run has a finite score, so no configuration is best.")
    fresh = confirmed(confirmation, len(table)) if confirmation else "The best configuration has not been run on fresh seeds."
    sections = [
        ("Plan", html.terms(summary)),
        ("Best configuration", best + "\n" + html.paragraphs(fresh)),
        ("Ranking", (html.paragraphs(cut) if cut else "") + html.table(table)),
    ]
    images = [html.Image((out / f"{name}.png").read_bytes(), name, text) for name, (_, text) in PLOTS.items()]
    sections += [("Plots", "\n".join(map(html.image, images))), ("Statistics", html.paragraphs(*NOTES))]
    return html.page(title, sections)


def plan_summary(result: SweepResult, table: pd.DataFrame) -> dict[str, str]:
    """What was run, and how it went."""
    plan, metrics = result.plan, result.metrics
    done = metrics["run"].nunique()
    failed = int(table["failed"].sum())
    seeds = len(plan.seeds)
    out = {
        "agent": plan.agent,
        "environment": plan.env,
        "runs": f"{plan.runs} = {sweep.count(len(plan.configs), 'configuration')} x {sweep.count(seeds, 'seed')}",
        "environment steps": f"{plan.fixed['steps']} of each run",
        "compiled groups": str(len(plan.groups)),
    }
    if done < plan.runs:
        out["unfinished"] = f"{done} of {plan.runs} runs are done: this is a report of those"
    out["failed runs"] = (
        f"{failed} of {done}, in {sweep.count(int((table['failed'] > 0).sum()), 'configuration')}" if failed else "none"
    )
    for name in plan.space:
        out[name] = _values([config[name] for config in plan.configs])
    return out | {"rlx": __version__}


def _values(values: list[object]) -> str:
    """The values of a field: all, or how many and their ends."""
    distinct = list(dict.fromkeys(values))
    numbers = [v for v in distinct if isinstance(v, (int, float)) and not isinstance(v, bool)]
    if len(distinct) > sweep.CATEGORIES and len(numbers) == len(distinct):
        return f"{len(distinct)} values from {report.cell(min(numbers))} to {report.cell(max(numbers))}"
    ordered = sorted(numbers) if len(numbers) == len(distinct) else distinct
    return ", ".join("none" if v is None else report.cell(v) for v in ordered)


def confirmed(c: Confirmation, configurations: int) -> str:
    """What the fresh seeds changed, in words."""
    seeds = (
        f"{sweep.count(len(c.seeds), 'fresh seed')} ({', '.join(map(str, c.seeds[:10]))}{' ...' if len(c.seeds) > 10 else ''})"
    )
    each = [f"IQM {report.cell(s.iqm)} [{report.cell(s.low)}, {report.cell(s.high)}]" for s in (c.selected, c.fresh)]
    failed = f"; {c.fresh.failed} of its fresh runs failed" if c.fresh.failed else ""
    change = "no score on fresh seeds" if not c.fresh.n else f"change {'+' if c.change > 0 else ''}{report.cell(c.change)}"
    rank = f"with that score it would rank {c.rank} of {configurations}"
    return f"Configuration {c.config}, selected: {each[0]}; {seeds}: {each[1]}; {change}, {rank}{failed}."
