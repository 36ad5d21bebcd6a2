"""The report of a sweep: what its plots say, of results that are written down."""

import numpy as np
import pandas as pd
import pytest

from rlx import stats
from rlx.report import parallel, sweep
from rlx.report.plots import PALETTE
from tests.sweep_report_support import CONFIGS, NAN, SCORES, data, few_pixels, labelled, result, texts


@pytest.fixture(autouse=True)
def figures(monkeypatch):
    return few_pixels(monkeypatch)


# --- learning curves ---------------------------------------------------------------------------------------------------


def test_curves_are_of_the_best_with_a_score(figures, tmp_path):
    sweep.curves(data(result(CONFIGS, SCORES)), tmp_path / "p.png")
    axes = figures[-1].axes[0]
    lines = labelled(axes)
    assert list(lines) == [
        "1: lr=0.001 num_epochs=2 hidden_sizes=(8, 8)",
        "2: lr=0.0001 num_epochs=1 hidden_sizes=(8, 8)",
        "3: lr=0.01 num_epochs=1 hidden_sizes=(16,)",
    ]
    np.testing.assert_array_equal([line.get_xdata() for line in lines.values()], [[1000, 2000]] * 3)
    np.testing.assert_allclose([line.get_ydata() for line in lines.values()], [[15, 30], [1, 2], [3, 6]])
    assert len(axes.lines) == 3 and len({line.get_color() for line in axes.lines}) == 3  # no single runs
    band = axes.collections[0].get_paths()[0].vertices
    heights = band[band[:, 0] == 2000, 1]
    np.testing.assert_allclose([heights.min(), heights.max()], stats.bootstrap_interval([10, 20, 60]))
    assert axes.get_xlabel() == "environment steps of one run"
    assert axes.get_ylabel() == "evaluation return, IQM over 3 seeds"
    assert "the best 3 of 4 configurations" in texts(figures[-1])


def test_at_most_five_curves(figures, tmp_path):
    sweep.curves(data(result([{"lr": 10.0**-k} for k in range(9)], np.arange(9.0)[:, None])), tmp_path / "p.png")
    assert [label[:8] for label in labelled(figures[-1].axes[0])] == [
        "1: lr=1e",
        "2: lr=1e",
        "3: lr=1e",
        "4: lr=1e",
        "5: lr=0.",
    ]


def test_long_labels_are_wrapped_and_the_figure_grows(figures, tmp_path):
    long = {f"a_long_name_of_a_field_{j}": 1.0 for j in range(6)}
    for configs in ([{"lr": 1.0}, {"lr": 2.0}], [{"lr": 1.0, **long}, {"lr": 2.0, **long}]):
        sweep.curves(data(result(configs, [[1, 2], [3, 4]])), tmp_path / "p.png")
    short, tall = figures[-2:]
    assert tall.get_size_inches()[1] > short.get_size_inches()[1]
    assert max(len(line) for label in labelled(tall.axes[0]) for line in label.split("\n")) <= 80


# --- axes --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values, categories, log",
    [
        (np.geomspace(1e-5, 1e-2, 9), None, True),
        (np.linspace(0.01, 1, 30), None, False),  # over two decades, but evenly spread
        (np.linspace(-1, 1, 9), None, False),
        (np.geomspace(1, 5, 9), None, False),  # less than a decade
        ([1e-4, 1e-3, 1e-2], None, True),  # each once
        ([1e-3, 1e-4, 1e-3, 1e-4], ["0.0001", "0.001"], False),
        ([128, 256], ["128", "256"], False),
        ([3e-4], ["0.0003"], False),
        (list(range(9)) * 2, None, False),
        ([True, False, True], ["False", "True"], False),
        (["relu", "tanh", "relu"], ["relu", "tanh"], False),
        ([None, -1.0, None, -2.0], ["-2", "-1", "none"], False),
        ([None, "b", "a"], ["a", "b", "none"], False),
        (["(64, 64)", "(8,)"], ["(64, 64)", "(8,)"], False),
    ],
)
def test_axis(values, categories, log):
    at = sweep.axis(pd.Series(values))
    assert (at.categories, at.log) == (categories, log)
    if categories is None:
        np.testing.assert_array_equal(at.places, values)
    else:
        shown = ["none" if pd.isna(v) else str(v) if isinstance(v, (str, bool)) else f"{v:.4g}" for v in values]
        assert [categories[int(p)] for p in at.places] == shown


# --- sensitivity -------------------------------------------------------------------------------------------------------


def points(axes, marker: str) -> list[tuple[float, float]]:
    return [tuple(xy) for line in axes.lines if line.get_marker() == marker for xy in zip(*line.get_data(), strict=True)]


def test_sensitivity_has_a_panel_per_field_with_every_configuration(figures, tmp_path):
    sweep.sensitivity(data(result(CONFIGS, SCORES)), tmp_path / "p.png")
    lr, epochs, hidden = figures[-1].axes
    assert [a.get_xlabel() for a in (lr, epochs, hidden)] == ["lr (log scale)", "num_epochs", "hidden_sizes"]
    assert lr.get_ylabel() == "evaluation return, IQM over 3 seeds"
    assert lr.get_xscale() == "log" and epochs.get_xscale() == "linear"
    np.testing.assert_allclose(sorted(points(lr, "o")), [(1e-4, 2), (1e-3, 30), (1e-2, 6)])
    hollow = [line for line in lr.lines if line.get_marker() == "o" and line.get_markerfacecolor() == "none"]
    np.testing.assert_allclose([line.get_xydata()[0] for line in hollow], [(1e-2, 6)])  # one of its runs failed
    np.testing.assert_allclose(points(lr, "x"), [(1e-1, 0.02)])  # all of its runs failed: at the bottom
    assert [t.get_text() for t in epochs.get_xticklabels()] == ["1", "2"]
    assert sorted((round(x), y) for x, y in points(epochs, "o")) == [(0, 2), (0, 6), (1, 30)]
    assert points(epochs, "D") == [(0.25, 4.0)]  # IQM over the two configurations; of one alone there is none
    assert points(hidden, "D") == [(1.25, 16.0)]  # (16,) is first in order
    legend = texts(figures[-1])
    assert all(words in legend for words in ("hollow: some runs failed", "x: all failed", "orange: IQM over configurations"))


def test_sensitivity_along_numbers_is_binned(figures, tmp_path):
    x = np.geomspace(1e-5, 1e-2, 24)
    score = np.arange(24.0) ** 2
    order = np.random.default_rng(0).permutation(24)
    sweep.sensitivity(data(result([{"lr": v} for v in x[order]], score[order][:, None])), tmp_path / "p.png")
    axes = figures[-1].axes[0]
    line = next(line for line in axes.lines if line.get_marker() == "None")
    bins = [slice(6 * k, 6 * k + 6) for k in range(4)]
    np.testing.assert_allclose(line.get_xdata(), [np.median(x[b]) for b in bins])
    np.testing.assert_allclose(line.get_ydata(), [stats.iqm(score[b]) for b in bins])
    assert axes.get_ylabel() == "evaluation return"
    assert line.get_color() == PALETTE[1]


def test_few_points_have_no_binned_line(figures, tmp_path):
    sweep.sensitivity(data(result([{"lr": 10.0**-k} for k in range(11)], np.arange(11.0)[:, None])), tmp_path / "p.png")
    assert all(line.get_linestyle() == "None" for line in figures[-1].axes[0].lines)
    assert "orange" not in texts(figures[-1])


def test_panels_are_three_in_a_row(figures, tmp_path):
    fields = {f"f{j}": 1.0 for j in range(7)}
    sweep.sensitivity(data(result([fields, {**fields, "f0": 2.0}], [[1], [2]])), tmp_path / "p.png")
    axes = figures[-1].axes
    assert [a.get_visible() for a in axes] == [True] * 7 + [False] * 2
    assert [bool(a.get_ylabel()) for a in axes] == [True, False, False] * 3


# --- parallel coordinates ----------------------------------------------------------------------------------------------


def test_parallel_lines_go_through_values_and_score(figures, tmp_path):
    parallel.parallel(data(result(CONFIGS, SCORES)), tmp_path / "p.png")
    axes, bar = figures[-1].axes
    assert [t.get_text() for t in axes.get_xticklabels()] == ["lr", "num_epochs", "hidden_sizes", "return"]
    assert bar.get_ylabel() == "evaluation return, IQM over 3 seeds"
    lines = [line for line in axes.lines if len(line.get_xdata()) == 4]  # in front: the best
    heights = np.array([line.get_ydata() for line in lines])
    np.testing.assert_allclose(heights[:, 0], [1, 0, 2 / 3, 1 / 3])  # lr 0.1, 1e-4, 0.01, 0.001, logarithmic
    np.testing.assert_allclose(heights[:, 3], [NAN, 0, (6 - 2) / 28, 1])
    assert [line.get_linestyle() for line in lines] == [":", "-", "-", "-"]
    low, high = heights[:, 1] < 0.5, heights[:, 1] > 0.5
    assert low.tolist() == [False, True, True, False] and (low | high).all()  # num_epochs 1 and 2
    assert heights[1, 1] < heights[2, 1] and heights[0, 1] < heights[3, 1]  # within a category by score
    colors = [line.get_color() for line in lines[1:]]
    brightness = [np.dot(c[:3], [0.3, 0.6, 0.1]) for c in colors]
    assert brightness == sorted(brightness, reverse=True)  # the best is dark
    assert "4 configurations, each a line; dotted: 1 without a finite score" in texts(figures[-1])


def test_parallel_of_equal_scores(figures, tmp_path):
    parallel.parallel(data(result([{"lr": 1.0}, {"lr": 2.0}], [[5.0], [5.0]])), tmp_path / "p.png")
    lines = [line for line in figures[-1].axes[0].lines if line.get_xdata()[0] != line.get_xdata()[1]]
    assert [line.get_ydata()[-1] for line in lines] == [0.5, 0.5]


# --- profile -----------------------------------------------------------------------------------------------------------


def test_profile_counts_runs_and_configurations(figures, tmp_path):
    sweep.profile(data(result(CONFIGS, SCORES)), tmp_path / "p.png")
    axes = figures[-1].axes[0]
    lines = labelled(axes)
    assert list(lines) == ["runs, 95% interval", "configurations, IQM over 3 seeds"]
    runs, configs = (dict(zip(*line.get_data(), strict=True)) for line in lines.values())
    scores = np.array([1, 2, 3, 10, 20, 60, 5, 7])
    for tau in scores:
        assert runs[tau] == pytest.approx((scores > tau).sum() / 12)
    assert [configs[tau] for tau in (1, 2, 6, 20, 30)] == [0.75, 0.5, 0.25, 0.25, 0]
    assert max(runs.values()) == pytest.approx(8 / 12) and min(runs) < 1
    assert all(line.get_drawstyle() == "steps-post" for line in lines.values())
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("evaluation return τ", "fraction above τ")
    assert "12 runs of 4 configurations, 4 failed" in texts(figures[-1])


def test_profile_leaves_out_what_is_not_done(figures, tmp_path):
    d = data(result(CONFIGS, SCORES, drop=(1,)))
    np.testing.assert_array_equal(sweep.complete(d), np.array(SCORES[1:]).T)
    sweep.profile(d, tmp_path / "p.png")
    assert "9 runs of 3 configurations" in texts(figures[-1])


def test_profile_of_one_seed_and_of_many_runs(figures, tmp_path):
    sweep.profile(data(result([{"lr": float(k)} for k in range(500)], np.arange(500.0)[:, None])), tmp_path / "p.png")
    lines = labelled(figures[-1].axes[0])
    assert list(lines) == ["configurations"]
    x, y = lines["configurations"].get_data()
    assert len(x) == sweep.TAUS + 2 and (y[0], y[-1]) == (1, 0)
