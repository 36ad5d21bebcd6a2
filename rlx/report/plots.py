"""Learning curves as PNG files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from rlx import stats
from rlx.errors import RlxError
from rlx.report.tables import series, values

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe & Ito 2008, distinguishable by colour-blind readers; yellow is left out, being too light for lines on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":")  # once more through the palette
MAX_SINGLE_RUNS = 10
GREY = "#666666"

_NAMES = {"return": "evaluation return", "episode_return": "return of training episodes"}


def learning_curve(
    frames: Mapping[str, pd.DataFrame],
    path: str | os.PathLike[str],
    title: str,
    metric: str = "return",
    references: Mapping[str, float] | None = None,
) -> None:
    """Draw `metric` against environment steps: IQM over runs, its 95% bootstrap interval, and single runs if few.

    `frames` maps a label to a long table; a vector metric has one curve per component. `references` are horizontal
    lines by name. A run whose value is missing or not finite is left out where it is.

    Raises:
      RlxError: a frame lacks the metric, or `path` cannot be written.
    """
    from matplotlib.figure import Figure  # without pyplot no global state; here since it takes a quarter of a second

    curves = [(label, values(frame, column)) for label, frame, column in series(frames, metric)]
    figure = Figure(figsize=(6.4, 4.2), dpi=200, layout="constrained")
    axes = figure.add_subplot()
    style(axes)
    step_axis(axes)
    for j, (label, table) in enumerate(curves):
        curve(axes, label, table, PALETTE[j % len(PALETTE)], DASHES[j // len(PALETTE) % len(DASHES)])
    for j, (name, value) in enumerate(sorted((references or {}).items(), key=lambda item: item[1])):
        axes.axhline(value, color=GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
        frame = axes.get_yaxis_transform()  # x as a fraction of the axes, y in data
        x, offset, align = ((1, (-2, 3), "right"), (0, (2, 3), "left"))[j % 2]  # neighbours on opposite sides
        axes.annotate(name, (x, value), offset, frame, "offset points", ha=align, fontsize=8, color=GREY)
    axes.set_xlim(left=0)
    if not any(np.isfinite(table.to_numpy()).any() for _, table in curves):
        axes.text(0.5, 0.5, f"no finite {metric}", transform=axes.transAxes, ha="center", color=GREY)
    axes.set_ylabel(_NAMES.get(metric, metric))
    if title:
        axes.set_title(title, loc="left", fontsize=11, fontweight="bold", pad=20)
    caption(axes, _over(curves))
    if len(curves) > 1:
        legend = axes.legend(frameon=True, framealpha=0.85, edgecolor="none", fontsize=9)
        legend.set_zorder(5)
    save(figure, path)


def curve(axes: Axes, label: str, table: pd.DataFrame, color: str, dash: str, crowded: bool = False) -> None:
    """`table [steps, runs]`: single runs behind, the interval, the IQM in front; `crowded`: no runs, a lighter interval."""
    steps, scores = table.index.to_numpy(), table.to_numpy()
    scores = np.where(np.isfinite(scores), scores, np.nan)
    if 1 < scores.shape[1] <= MAX_SINGLE_RUNS and not crowded:
        axes.plot(steps, scores, color=color, linewidth=0.6, alpha=0.3, zorder=2)
    rows = [stats.summary(row) for row in scores]
    low, high, middle = ([getattr(r, k) for r in rows] for k in ("low", "high", "iqm"))
    axes.fill_between(steps, low, high, color=color, alpha=0.1 if crowded else 0.2, linewidth=0, zorder=3)
    marker = "o" if len(steps) == 1 else ""  # a line through one point is invisible
    axes.plot(steps, middle, dash, color=color, linewidth=1.8, marker=marker, label=label, zorder=4)


def style(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(colors=GREY, labelcolor="black", labelsize=9)
    axes.grid(axis="y", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)


def step_axis(axes: Axes) -> None:
    """x is environment steps."""
    from matplotlib.ticker import EngFormatter

    axes.margins(x=0.01)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel("environment steps of one run")


def caption(axes: Axes, text: str) -> None:
    """A line above the axes."""
    axes.text(0, 1.02, text, transform=axes.transAxes, fontsize=8, color=GREY, va="bottom")


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """A PNG; creates parents. RlxError if `path` cannot be written."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="png")
    except OSError as error:
        raise RlxError(f"cannot write plot {str(path)!r}: {error.strerror or error}") from error


def _over(curves: list[tuple[str, pd.DataFrame]]) -> str:
    runs = sorted({table.shape[1] for _, table in curves})
    if runs == [1]:
        return "one run"
    count = "-".join(str(n) for n in dict.fromkeys((runs[0], runs[-1]))) if runs else "0"
    return f"IQM and 95% bootstrap interval over {count} runs"
