"""Plots of a sweep: learning curves of the best, what each field does, the spread of scores."""

from __future__ import annotations

import os
import textwrap
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from rlx import stats
from rlx.report.plots import DASHES, GREY, PALETTE, caption, curve, save, step_axis, style
from rlx.report.tables import cell, values

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CURVES = 5  # configurations whose learning curves are drawn
CATEGORIES = 8  # a field with more values, all numbers, has an axis of numbers
BIN = 6  # configurations of a bin, at least
TAUS = 400  # points of a profile, at most
LONG = 18  # letters of a label that has no room for more beside its neighbours
RETURN = "evaluation return"


class Sweep(NamedTuple):
    """What is drawn.

    metrics: a long table with `run, config, seed, step, return` and more.
    table: a row for each configuration, best first, index `rank`: `config`, the fields, `runs, mean, iqm, low, high,
      failed`; of the return at the last step, over seeds.
    fields: what the sweep varied.
    seeds: how many runs a configuration has once the sweep is done.
    """

    metrics: pd.DataFrame
    table: pd.DataFrame
    fields: list[str]
    seeds: int

    @property
    def score_name(self) -> str:
        return RETURN if self.seeds == 1 else f"{RETURN}, IQM over {self.seeds} seeds"


class Axis(NamedTuple):
    """Where configurations lie in one field: at numbers, or at the places of categories."""

    places: np.ndarray  # [C] float64
    categories: list[str] | None
    log: bool


def axis(column: pd.Series) -> Axis:
    """Numbers, where there are many or none is there twice; else categories in order. Logarithmic where the values are evenly
    spread that way rather than linearly."""
    numeric = pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column) and column.notna().all()
    distinct = column.nunique(dropna=False)
    if not numeric or (distinct <= CATEGORIES and (distinct < len(column) or distinct < 3)):
        known = column.dropna().unique().tolist()
        order = sorted(known, key=lambda v: (isinstance(v, str), v))
        index = {v: float(j) for j, v in enumerate(order)}
        names = [cell(v) for v in order] + (["none"] if column.isna().any() else [])
        return Axis(np.array([float(len(order)) if pd.isna(v) else index[v] for v in column]), names, False)
    x = column.to_numpy(np.float64)
    low, high = x.min(), x.max()
    if low <= 0 or high < 10 * low:
        return Axis(x, None, False)
    off_centre = lambda y: abs((np.median(y) - y.min()) / (y.max() - y.min()) - 0.5)
    return Axis(x, None, bool(off_centre(np.log(x)) < off_centre(x)))


def count(n: int, what: str) -> str:
    """`1 seed`, `2 seeds`."""
    return f"{n} {what}{'' if n == 1 else 's'}"


def words(row: pd.Series, fields: list[str]) -> str:
    """`lr=0.001 gamma=0.99`."""
    return " ".join(f"{f}={'none' if pd.isna(row[f]) else cell(row[f])}" for f in fields)


# --- the plots ---------------------------------------------------------------------------------------------------------


def curves(sweep: Sweep, path: str | os.PathLike[str]) -> None:
    """Learning curves of the best configurations: IQM over seeds with its 95% interval."""
    best = sweep.table[np.isfinite(sweep.table["iqm"])].head(CURVES)
    labels = [
        textwrap.fill(f"{rank}: {words(row, sweep.fields)}", 80, subsequent_indent="    ") for rank, row in best.iterrows()
    ]
    figure, axes = new_figure(6.4, 4.2 + 0.17 * sum(label.count("\n") + 1 for label in labels))
    step_axis(axes)
    for j, (label, config) in enumerate(zip(labels, best["config"], strict=True)):
        table = values(sweep.metrics[sweep.metrics["config"] == config], "return")
        curve(axes, label, table, PALETTE[j], DASHES[j % len(DASHES)], crowded=True)
    axes.set_xlim(left=0)
    axes.set_ylabel(sweep.score_name)
    interval = "" if sweep.seeds == 1 else ", with 95% bootstrap intervals"
    caption(axes, f"the best {len(best)} of {count(len(sweep.table), 'configuration')}{interval}")
    if len(best):
        figure.legend(loc="outside lower left", frameon=False, fontsize=8)
    else:
        nothing(axes)
    save(figure, path)


def sensitivity(sweep: Sweep, path: str | os.PathLike[str]) -> None:
    """A panel for each field: the scores of all configurations against it, and the IQM over configurations.

    Of a category the IQM has its 95% interval. Along numbers it is that of bins of at least `BIN` neighbours, at their
    median, and is left out where there are not two bins. All other fields vary too: what is shown is the marginal.
    """
    from matplotlib.figure import Figure

    wide = min(3, len(sweep.fields))
    high = -(-len(sweep.fields) // wide)
    figure = Figure(figsize=(1.2 + 3.0 * wide, 0.8 + 3.0 * high), dpi=200, layout="constrained")
    panels = np.atleast_1d(figure.subplots(high, wide, sharey=True, squeeze=False)).ravel()
    score = sweep.table["iqm"].to_numpy()
    middles = False
    for panel, field in zip(panels, sweep.fields, strict=False):
        style(panel)
        middles |= _sensitivity(panel, axis(sweep.table[field]), score, sweep.table["failed"].to_numpy() > 0)
        panel.set_xlabel(field + (" (log scale)" if panel.get_xscale() == "log" else ""))
    for panel in panels[::wide]:
        panel.set_ylabel(sweep.score_name)
    for panel in panels[len(sweep.fields) :]:
        panel.set_visible(False)
    if not np.isfinite(score).any():
        nothing(panels[0])
    marks = ["point: a configuration"]
    marks += ["hollow: some runs failed"] if ((sweep.table["failed"] > 0) & np.isfinite(score)).any() else []
    marks += ["x: all failed"] if not np.isfinite(score).all() else []
    marks += ["orange: IQM over configurations, 95% interval"] if middles else []
    figure.suptitle("\n".join(textwrap.wrap(", ".join(marks), 18 + 46 * wide)), x=0.01, ha="left", fontsize=8, color=GREY)
    save(figure, path)


def _sensitivity(axes: Axes, at: Axis, score: np.ndarray, failed: np.ndarray) -> bool:
    """Whether there was enough for an IQM over configurations."""
    x, good = at.places, np.isfinite(score)
    spread: np.ndarray = np.zeros(len(x))
    if at.log:
        axes.set_xscale("log")
    if at.categories is not None:
        tilt: dict[str, Any] = {"rotation": 30, "ha": "right"} if sum(map(len, at.categories)) > 1.5 * LONG else {}
        axes.set_xticks(range(len(at.categories)), at.categories, **tilt)
        axes.set_xlim(-0.5, len(at.categories) - 0.5)
        axes.grid(visible=False, axis="x")
        spread = 0.3 * (((np.arange(len(x)) + 1) * 0.618034) % 1 - 0.5)  # evenly beside each other, the same each time
    look: dict[str, Any] = {"linestyle": "", "color": PALETTE[0], "alpha": 0.5 if len(x) > 30 else 0.8, "markersize": 4}
    axes.plot((x + spread)[good & ~failed], score[good & ~failed], "o", zorder=3, **look)
    axes.plot((x + spread)[good & failed], score[good & failed], "o", markerfacecolor="none", zorder=3, **look)
    bottom = np.full((~good).sum(), 0.02)  # as a fraction of the height
    axes.plot((x + spread)[~good], bottom, "x", transform=axes.get_xaxis_transform(), zorder=3, **{**look, "color": "black"})
    color = PALETTE[1]
    if at.categories is not None:
        groups = [(place, stats.summary(score[x == place])) for place in range(len(at.categories))]
        for place, s in groups:
            if s.n > 1:
                axes.plot([place + 0.25] * 2, [s.low, s.high], color=color, linewidth=2, zorder=4)
                axes.plot([place + 0.25], [s.iqm], "D", color=color, markersize=5, zorder=5)
        return any(s.n > 1 for _, s in groups)
    order = np.argsort(x[good], kind="stable")
    bins = min(8, good.sum() // BIN)
    if bins >= 2:
        cut = np.array_split(order, bins)
        middle = [np.median(x[good][b]) for b in cut]
        rows = [stats.summary(score[good][b]) for b in cut]
        axes.fill_between(middle, [s.low for s in rows], [s.high for s in rows], color=color, alpha=0.2, linewidth=0, zorder=2)
        axes.plot(middle, [s.iqm for s in rows], color=color, linewidth=1.8, zorder=4)
    return bool(bins >= 2)


def profile(sweep: Sweep, path: str | os.PathLike[str]) -> None:
    """The fraction of runs, and of configurations, with a return above tau; failed ones are above none.

    The interval of the runs is pointwise, with seeds resampled within each configuration. Configurations of which seeds are
    still to run are left out.
    """
    figure, axes = new_figure(6.4, 4.2)
    scores = complete(sweep)
    finite = scores[np.isfinite(scores)]
    if finite.size:
        margin = 0.02 * (np.ptp(finite) or 1.0)
        middle = np.array([stats.summary(column).iqm for column in scores.T])
        taus = np.unique([*finite, *middle[np.isfinite(middle)]])
        if len(taus) > TAUS:
            taus = np.quantile(taus, np.linspace(0, 1, TAUS))
        taus = np.concatenate([[taus[0] - margin], taus, [taus[-1] + margin]])
        if sweep.seeds > 1:
            runs = stats.performance_profile(scores, taus)
            axes.fill_between(taus, runs.low, runs.high, step="post", color=PALETTE[0], alpha=0.2, linewidth=0)
            axes.plot(taus, runs.fraction, color=PALETTE[0], drawstyle="steps-post", label="runs, 95% interval", linewidth=1.8)
        above = (middle[:, None] > taus).mean(0)
        name = "configurations" if sweep.seeds == 1 else f"configurations, IQM over {sweep.seeds} seeds"
        axes.plot(taus, above, "--", color=PALETTE[1], drawstyle="steps-post", label=name, linewidth=1.8)
        axes.legend(frameon=True, framealpha=0.85, edgecolor="none", fontsize=9)
    else:
        nothing(axes)
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel(f"{RETURN} τ")
    axes.set_ylabel("fraction above τ")
    lost = scores.size - finite.size
    caption(axes, f"{scores.size} runs of {scores.shape[1]} configurations" + (f", {lost} failed: above no τ" if lost else ""))
    save(figure, path)


def complete(sweep: Sweep) -> np.ndarray:
    """Last returns `[seeds, configurations]` of the configurations of which every run is there."""
    last = sweep.metrics[sweep.metrics["step"] == sweep.metrics["step"].max()]
    table = last.pivot(index="seed", columns="config", values="return").to_numpy(np.float64)
    there = last.groupby("config").size().to_numpy() == sweep.seeds
    return table[:, there]


# --- their parts -------------------------------------------------------------------------------------------------------


def new_figure(width: float, height: float) -> tuple[Any, Axes]:
    from matplotlib.figure import Figure  # see plots.py

    figure = Figure(figsize=(width, height), dpi=200, layout="constrained")
    axes = figure.add_subplot()
    style(axes)
    return figure, axes


def nothing(axes: Axes) -> None:
    axes.text(0.5, 0.5, "no finite return", transform=axes.transAxes, ha="center", color=GREY)
