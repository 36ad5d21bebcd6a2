"""All configurations of a sweep at a glance, in parallel coordinates."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.report.plots import GREY, caption, save
from rlx.report.sweep import LONG, Axis, Sweep, axis, count, new_figure, nothing
from rlx.report.tables import cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SPREAD = 0.6  # of the room of a category that its configurations take


def parallel(sweep: Sweep, path: str | os.PathLike[str]) -> None:
    """Parallel coordinates: each configuration is a line through its values and its score, which also gives its colour.

    Each axis has its own scale. In a category lines lie side by side, by score, the best on top. Configurations without a
    finite score are dotted grey and end before the score.
    """
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    fields, score = sweep.fields, sweep.table["iqm"].to_numpy()
    figure, axes = new_figure(max(6.4, 1.9 + 1.25 * len(fields)), 4.4)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    good = np.isfinite(score)
    low, high = (score[good].min(), score[good].max()) if good.any() else (0.0, 1.0)
    if low == high:
        low, high = low - 0.5, high + 0.5
    colors = ListedColormap(colormaps["viridis_r"](np.linspace(0.1, 1, 256)))  # without what is too light on white
    shade = ScalarMappable(Normalize(low, high), colors)
    ends = [_vertical(axes, j, axis(sweep.table[f]), np.where(good, score, -np.inf)) for j, f in enumerate(fields)]
    heights = np.stack([*ends, (score - low) / (high - low)], axis=1)
    _ruler(axes, len(fields), [(0.0, cell(low)), (0.5, cell((low + high) / 2)), (1.0, cell(high))])
    for c in [*np.flatnonzero(~good), *np.argsort(score)[: good.sum()]]:  # the best in front
        color, dash = (tuple(shade.to_rgba(score[c])), "-") if good[c] else (GREY, ":")
        alpha, width = (0.85, 1.4) if len(score) <= 100 else (0.5, 0.8)
        axes.plot(range(len(fields) + 1), heights[c], dash, color=color, alpha=alpha, linewidth=width, zorder=2)
    names = [*fields, "return"]
    tilt: dict[str, Any] = {"rotation": 20, "ha": "right"} if max(map(len, names)) > LONG else {}
    axes.set_xticks(range(len(names)), names, fontsize=9, **tilt)
    axes.tick_params(axis="x", length=0, pad=8)
    axes.set_yticks([])
    axes.set_ylim(-0.03, 1.03)
    axes.set_xlim(-0.15, len(fields) + 0.15)
    bar = figure.colorbar(shade, ax=axes, pad=0.08, aspect=30)
    bar.set_label(sweep.score_name)
    if not good.any():
        nothing(axes)
    bar.outline.set_visible(False)
    lost = f"; dotted: {(~good).sum()} without a finite score" if not good.all() else ""
    caption(axes, f"{count(len(score), 'configuration')}, each a line{lost}")
    save(figure, path)


def _vertical(axes: Axes, j: int, at: Axis, score: np.ndarray) -> np.ndarray:
    """Draw the axis of field j; heights `[C]` in [0, 1]."""
    if at.categories is not None:
        n = len(at.categories)
        heights = np.zeros(len(at.places))
        _ruler(axes, j, [((k + 0.5) / n, name) for k, name in enumerate(at.categories)])
        for k in range(n):
            members = np.flatnonzero(at.places == k)
            place = (np.argsort(np.argsort(score[members], kind="stable")) + 0.5) / max(len(members), 1)
            heights[members] = (k + 0.5 + SPREAD * (place - 0.5)) / n
        return heights
    x = np.log(at.places) if at.log else at.places
    low, high = x.min(), x.max()
    value = lambda u: (np.exp if at.log else float)(low + u * (high - low))
    _ruler(axes, j, [(u, f"{value(u):.3g}") for u in (0.0, 0.5, 1.0)])
    return (x - low) / (high - low)


def _ruler(axes: Axes, j: int, ticks: list[tuple[float, str]]) -> None:
    axes.plot([j, j], [0, 1], color="black", linewidth=0.8, zorder=3)
    box = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.8}
    for height, text in ticks:
        axes.annotate(text, (j, height), (4, 0), textcoords="offset points", va="center", fontsize=8, bbox=box, zorder=4)
