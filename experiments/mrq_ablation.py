"""The design study of MR.Q's paper (Fujimoto et al. 2025, arXiv 2501.16142, table 2) on one small task.

    python experiments/mrq_ablation.py [--scale smoke|cpu|paper] [--out experiments/results/mrq_ablation]
                                       [--runs runs/mrq_ablation] [NAME ...]

Each row changes some fields of `rlx.agents.mrq.Config` and trains a population of seeds in one program. The score is the mean
return of a run over all its evaluations (the area under its curve): on a task that all variants solve in the end they differ in
how soon. `cpu` is Pendulum with preset `small`, 8 seeds; `smoke` shows that everything runs; `paper` is the same task at the
paper's sizes. The published study is of other tasks and aggregates (Gym, DM-Control, Atari), so its column is a change of
normalised score, to be compared in sign only.

Resumable: each variant has a directory under --runs, and one that is finished there is only read.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))

import rlx
from experiments import reproduce
from rlx import report, stats
from rlx.errors import unknown
from rlx.report import plots

ENV = "gymnax/Pendulum-v1"
# fields, and the published change of the aggregate score on Gym and on DM-Control (vectors), over 5 seeds
VARIANTS: dict[str, tuple[dict[str, Any], float, float]] = {
    "as published": ({}, 0.0, 0.0),
    "linear value": ({"linear_value": True}, -1.17, -0.58),
    "state-action dynamics target": ({"dynamics_target": "zsa"}, -0.10, -0.15),
    "no target encoder": ({"target_encoder": False}, -0.53, -0.35),
    "all three": ({"linear_value": True, "dynamics_target": "zsa", "target_encoder": False}, -1.47, -0.72),
    "non-linear model": ({"linear_model": False}, -0.01, 0.00),
    "MSE reward loss": ({"reward_loss": "mse"}, 0.10, -0.06),
    "no reward scaling": ({"reward_scaling": False}, -0.04, -0.01),
    "mean of critics": ({"minimum": False}, -0.09, -0.01),
    "no LAP": ({"priority_exponent": 0.0, "value_loss": "mse"}, -0.10, 0.00),
    "no model-based representation": ({"model_based": False}, -0.56, -0.19),
    "1-step return": ({"n_step": 1}, -0.33, -0.04),
    "no unroll": ({"enc_horizon": 1}, 0.07, -0.01),
}
SCALES: dict[str, dict[str, Any]] = {
    "smoke": {"preset": "small", "steps": 300, "seeds": 2, "eval_every": 150, "learning_starts": 50, "batch_size": 16},
    "cpu": {"preset": "small", "steps": 5_000, "seeds": 8, "eval_every": 500},
    "paper": {"preset": "paper", "steps": 50_000, "seeds": 8, "eval_every": 1_000},
}


def train(name: str, scale: str, runs: Path) -> pd.DataFrame:
    """The evaluations of a variant: read where it is finished, continued where it was begun."""
    keywords, out = SCALES[scale], runs / scale / name.replace(" ", "-")
    done = reproduce.evaluations(out)
    if not len(done) or done["step"].max() < keywords["steps"]:
        result = rlx.train("mrq", ENV, out=out, resume=True, eval_episodes=10, **{**keywords, **VARIANTS[name][0]})
        if result.interrupted:
            raise KeyboardInterrupt
    return reproduce.evaluations(out)


def areas(table: pd.DataFrame) -> np.ndarray:
    """Mean return over a run's evaluations, `[runs]`; NaN for a run that failed."""
    return table.groupby("run")["return"].agg(lambda x: x.mean(skipna=False)).to_numpy(np.float64)


def row(name: str, table: pd.DataFrame, baseline: pd.DataFrame | None) -> dict[str, Any]:
    """Of one variant; `difference` of areas from the published version's, with the interval of that difference."""
    area, last = areas(table), table[table["step"] == table["step"].max()]["return"].to_numpy(np.float64)
    mine, final = stats.summary(area), stats.summary(last)
    out = {"variant": name, "seeds": mine.n, "failed": mine.failed, "steps": int(table["step"].max()), "area": mine.mean}
    out |= {"final IQM": final.iqm, "final low": final.low, "final high": final.high}
    if baseline is not None and name != "as published":
        out |= dict(zip(("difference", "low", "high"), difference(area, areas(baseline)), strict=True))
    return out | {"published Gym": VARIANTS[name][1], "published DMC": VARIANTS[name][2]}


def difference(a: np.ndarray, b: np.ndarray, resamples: int = 10_000) -> tuple[float, float, float]:
    """Of the means of finite scores, with its 95% percentile bootstrap interval; runs are independent."""
    rng = np.random.default_rng(0)
    a, b = (x[np.isfinite(x)] for x in (a, b))
    means = [rng.choice(x, (resamples, len(x))).mean(1) for x in (a, b)]
    low, high = np.percentile(means[0] - means[1], [2.5, 97.5])
    return float(a.mean() - b.mean()), float(low), float(high)


def forest(rows: pd.DataFrame, path: Path) -> None:
    """What each variant changes, with its interval."""
    from matplotlib.figure import Figure

    rows = rows.dropna(subset="difference").iloc[::-1]
    figure = Figure(figsize=(6.4, 0.8 + 0.32 * len(rows)), dpi=200, layout="constrained")
    axes = figure.add_subplot()
    plots.style(axes)
    errors = np.stack([rows["difference"] - rows["low"], rows["high"] - rows["difference"]])
    axes.errorbar(rows["difference"], np.arange(len(rows)), xerr=errors, fmt="o", color=plots.PALETTE[0], capsize=2)
    axes.axvline(0.0, color="0.4", linewidth=1)
    axes.set_yticks(np.arange(len(rows)), rows["variant"])
    axes.set_xlabel("change of the mean evaluation return [95%]")
    axes.set_title(f"MR.Q on {ENV}, {int(rows['seeds'].max())} seeds", loc="left", fontsize=11, fontweight="bold")
    plots.save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(map(repr, VARIANTS)))
    parser.add_argument("--scale", choices=tuple(SCALES), default="cpu")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "mrq_ablation")
    parser.add_argument("--runs", type=Path, default=Path("runs") / "mrq_ablation")
    args = parser.parse_args()
    for name in args.names:
        if name not in VARIANTS:
            parser.error(str(unknown("variant", name, VARIANTS)))
    out = args.out if args.scale == "cpu" else args.out / args.scale
    out.mkdir(parents=True, exist_ok=True)
    tables: dict[str, pd.DataFrame] = {}
    for name in args.names or VARIANTS:
        tables[name] = train(name, args.scale, args.runs)
        rows = [row(n, t, tables.get("as published")) for n, t in tables.items()]
        rows += [{"variant": n} for n in VARIANTS if n not in tables]
        table = pd.DataFrame(rows)
        table.to_csv(out / "table.csv", index=False)
        shown = table.set_index("variant").round(2).astype(object)
        shown[table["seeds"].isna().to_numpy()] = "not run here"
        (out / "table.md").write_text(report.to_markdown(shown))
        if "difference" in table:
            forest(table, out / "forest.png")
        print(report.to_markdown(shown))


if __name__ == "__main__":
    main()
