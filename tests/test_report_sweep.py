"""The report of a sweep: what its tables, plots and page say, of results that are written down."""

import base64
import os
import re
import tomllib
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from rlx import stats
from rlx.errors import RlxError
from rlx.report import html, parallel, sweep
from rlx.report.plots import PALETTE
from rlx.sinks import parquet
from rlx.sweeps import confirm
from rlx.sweeps.report import confirmed, plan_summary, write_report
from tests.cli_support import rlx_
from tests.sweep_report_support import NAN, result

FILES = ["best.toml", "curves.png", "parallel.png", "profile.png"]
FILES += ["report.csv", "report.html", "report.md", "report.tex", "sensitivity.png"]

LRS = [1e-4, 1e-3, 1e-2, 1e-1]
CONFIGS = [{"lr": lr, "num_epochs": 1 + k % 2, "hidden_sizes": (8, 8) if k < 2 else (16,)} for k, lr in enumerate(LRS)]
SCORES = [[1, 2, 3], [10, 20, 60], [5, NAN, 7], [NAN, NAN, NAN]]  # ranks 2, 1, 3, 4


@pytest.fixture(autouse=True)
def figures(monkeypatch):
    """Every figure that is saved; to save time, with few pixels."""
    out: list[Figure] = []
    savefig = Figure.savefig

    def spy(self, path, **kwargs):
        out.append(self)
        self.set_dpi(30)
        savefig(self, path, **kwargs)

    monkeypatch.setattr(Figure, "savefig", spy)
    return out


def data(r) -> sweep.Sweep:
    return sweep.Sweep(r.metrics, r.table(), r.plan.space, len(r.plan.seeds))


def labelled(axes) -> dict:
    return {str(line.get_label()): line for line in axes.lines if not str(line.get_label()).startswith("_")}


def texts(figure) -> str:
    return " ".join(t.get_text() for t in [*figure.axes[0].texts, *([figure._suptitle] if figure._suptitle else [])])


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


# --- the files ---------------------------------------------------------------------------------------------------------


def test_files(tmp_path):
    r = result(CONFIGS, SCORES)
    out = tmp_path / "new" / "report"
    names = write_report(r, out)
    assert sorted(names) == sorted(os.listdir(out)) == FILES
    table = pd.read_csv(out / "report.csv")
    assert table["config"].tolist() == [1, 0, 2, 3] and table["failed"].tolist() == [0, 0, 1, 3]
    assert table["hidden_sizes"].tolist() == ["(8, 8)", "(8, 8)", "(16,)", "(16,)"]
    assert (
        (out / "report.tex").read_text().splitlines()[2].startswith(r"rank & config & lr & num\_epochs & hidden\_sizes & runs")
    )
    markdown = (out / "report.md").read_text()
    assert "| 1 | 1 | 0.001 | 2 | (8, 8) | 3 | 30 | 30 | 10 | 60 | 0 |" in markdown
    assert "- failed runs: 4 of 12, in 2 configurations" in markdown
    assert tomllib.loads((out / "best.toml").read_text())["lr"] == 1e-3


def test_summary():
    r = result([*CONFIGS, {"lr": 0.5, "num_epochs": 7, "hidden_sizes": None}], [*SCORES, [1, 1, 1]], drop=(13, 14))
    assert plan_summary(r, r.table()) == {
        "agent": "ppo",
        "environment": "gymnax/CartPole-v1",
        "runs": "15 = 5 configurations x 3 seeds",
        "environment steps": "2000 of each run",
        "compiled groups": "1",
        "unfinished": "13 of 15 runs are done: this is a report of those",
        "failed runs": "4 of 13, in 2 configurations",
        "lr": "0.0001, 0.001, 0.01, 0.1, 0.5",
        "num_epochs": "1, 2, 7",
        "hidden_sizes": "(8, 8), (16,), none",
        "rlx": "0.1.0",
    }
    many = result([{"lr": float(k)} for k in range(9)], np.zeros((9, 1)))
    out = plan_summary(many, many.table())
    assert out["lr"] == "9 values from 0 to 8" and out["failed runs"] == "none" and "unfinished" not in out
    assert out["runs"] == "9 = 9 configurations x 1 seed"


@pytest.mark.parametrize("configs, scores", [([{"lr": 1e-3}], [[3.0]]), ([{"lr": 1e-3}, {"lr": 1e-2}], [[NAN, NAN]] * 2)])
def test_one_run_and_nothing_but_failures(configs, scores, tmp_path):
    scored = np.isfinite(scores).any()
    assert sorted(write_report(result(configs, scores), tmp_path)) == [f for f in FILES if scored or f != "best.toml"]
    page = (tmp_path / "report.html").read_text()
    assert ("no configuration is best" in page) == (not scored)


def test_many_configurations_are_cut_but_for_the_csv(tmp_path):
    write_report(result([{"lr": float(k)} for k in range(60)], np.arange(60.0)[:, None]), tmp_path)
    words = "The best 50 of 60 configurations; all are in report.csv."
    assert len(pd.read_csv(tmp_path / "report.csv")) == 60
    markdown, tex, page = ((tmp_path / f"report.{kind}").read_text() for kind in ("md", "tex", "html"))
    assert words in markdown and markdown.count("\n| ") == 52 - 1 + 1
    assert tex.startswith(f"% {words}\n") and tex.count(r"\\") == 51
    assert words in page and page.count("<tr>") == 51


def test_errors(tmp_path, monkeypatch):
    r = result(CONFIGS, SCORES)
    vector = result(CONFIGS, SCORES)
    vector.metrics = vector.metrics.rename(columns={"return": "return_0"}).assign(return_1=1.0)
    with pytest.raises(RlxError, match="a ranking needs a scalar reward: a vector reward has no single best"):
        write_report(vector, tmp_path / "new")
    r.metrics = pd.DataFrame()
    with pytest.raises(RlxError, match="there is none yet"):
        write_report(r, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(RlxError, match=r"cannot write the report to .*file"):
        write_report(result(CONFIGS, SCORES), tmp_path / "file")


# --- the page ----------------------------------------------------------------------------------------------------------

VOID = {"meta", "img", "br", "hr", "link", "input"}


class Checker(HTMLParser):
    """Tags that do not balance, attributes that load something, and the text of cells."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.loaded: list[str] = []
        self.rows: list[list[str]] = []
        self.alts: list[str] = []
        self.feed(text)
        self.close()
        self.wrong += self.open

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.loaded += [v for k, v in attrs if k in ("src", "href", "srcset", "data", "action", "background")]
        self.alts += [given["alt"]] if "alt" in given else []
        if tag in ("script", "link", "iframe", "object", "embed", "base"):
            self.wrong.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([given.get("class") or ""])

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"/{tag}")

    def handle_data(self, text):
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1].append(text)


def test_page_is_whole_and_asks_nothing_of_a_network(tmp_path):
    write_report(result(CONFIGS, SCORES), tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    checker = Checker(page)
    assert checker.wrong == []
    assert page.startswith("<!DOCTYPE html>") and '<meta charset="utf-8">' in page and '<html lang="en">' in page
    images = [base64.b64decode(src.removeprefix("data:image/png;base64,"), validate=True) for src in checker.loaded]
    assert images == [(tmp_path / f"{n}.png").read_bytes() for n in ("curves", "sensitivity", "parallel", "profile")]
    assert not re.search(r"https?:|//[a-z]|@import|url\(", re.sub(r"base64,[A-Za-z0-9+/=]*", "", page))
    assert len(checker.alts) == 4 and all(checker.alts)
    assert [row[0] for row in checker.rows] == ["", "", "", "failed", "failed"]
    assert checker.rows[1][1:] == ["1", "1", "0.001", "2", "(8, 8)", "3", "30", "30", "10", "60", "0"]
    assert "lr = 0.001" in page and "4 of 12, in 2 configurations" in page
    assert "has not been run on fresh seeds" in page


def test_page_escapes_what_it_is_given(tmp_path):
    nasty = 'env.<b>&"x'
    write_report(result([{nasty: "<i>"}, {nasty: "b&c"}], [[1], [2]], env="<script>"), tmp_path)
    checker = Checker((tmp_path / "report.html").read_text())
    assert checker.wrong == []
    assert checker.rows[0][3] == nasty and checker.rows[2][3] == "<i>"


def test_pieces_of_a_page():
    text = html.page("a<b", [("x&y", html.paragraphs("<p>") + html.code("a<b") + html.terms({"k<": "v>"}))])
    assert Checker(text).wrong == []
    for part in (
        "<title>a&lt;b</title>",
        "<h2>x&amp;y</h2>",
        "<p>&lt;p&gt;</p>",
        "<pre>a&lt;b</pre>",
        "<dt>k&lt;</dt><dd>v&gt;</dd>",
    ):
        assert part in text
    image = html.image(html.Image(b"png", 'a "b"', "<c>"))
    assert "data:image/png;base64,cG5n" in image and 'alt="a &quot;b&quot;"' in image and "&lt;c&gt;" in image
    assert 'class="failed"' not in html.table(pd.DataFrame({"a": [1]}))


# --- fresh seeds -------------------------------------------------------------------------------------------------------


def fresh_runs(r, config: int, scores) -> pd.DataFrame:
    other = result([r.plan.configs[config]], [scores], seeds=list(range(3, 3 + len(scores)))).metrics
    return other.assign(config=config)


@pytest.mark.parametrize(
    "fresh, change, rank",
    [
        ([10, 20, 60], 0, 1),
        ([4, 4, 4], -26, 1),
        ([2, 2, 2], -28, 1),  # a tie
        ([0, 1, 2], -29, 2),
        ([0, NAN, 2], -29, 3),
        ([100, NAN, 100], 70, 2),
    ],
)
def test_comparison(fresh, change, rank):
    r = result(CONFIGS, SCORES)
    c = confirm.compare(r, fresh_runs(r, 1, fresh))
    assert (c.config, c.seeds, c.change, c.rank) == (1, [3, 4, 5], change, rank)
    assert c.selected == stats.summary(SCORES[1]) and c.fresh == stats.summary(fresh)


def test_comparison_with_fresh_runs_that_all_failed():
    r = result(CONFIGS, SCORES)
    c = confirm.compare(r, fresh_runs(r, 1, [NAN, NAN, NAN]))
    assert c.rank == 3 and np.isnan(c.change)
    assert "no score on fresh seeds" in confirmed(c, 4) and "3 of its fresh runs failed" in confirmed(c, 4)


def test_report_says_what_fresh_seeds_changed(tmp_path):
    r = result(CONFIGS, SCORES, out=tmp_path)
    parquet.write(tmp_path / confirm.FILE, fresh_runs(r, 1, [1, 1, 1]))
    write_report(r, tmp_path / "report")
    words = (
        "Configuration 1, selected: IQM 30 [10, 60]; 3 fresh seeds (3, 4, 5): IQM 1 [1, 1]; change -29, "
        "with that score it would rank 2 of 4."
    )
    for kind in ("md", "html"):
        assert words in (tmp_path / "report" / f"report.{kind}").read_text()


# --- the command -------------------------------------------------------------------------------------------------------


def store(r, out) -> None:
    """As a sweep stores it, one batch."""
    r.plan.write(out / "plan.json")
    (out / "batches").mkdir()
    table = r.metrics.drop(columns=[*r.plan.space, "failed"])
    parquet.write(out / "batches" / "000-0000.parquet", table.assign(loss=np.where(table["return"].isna(), NAN, 0.1)))
    (out / "finished.csv").write_text(f"000-0000,{r.plan.runs}\n")


def test_command(capfd, tmp_path):
    directory = tmp_path / "sweep"
    directory.mkdir()
    store(result(CONFIGS, SCORES), directory)
    code, text, err = rlx_(capfd, "report", str(directory))
    assert (code, err) == (0, "") and "report.html" in text and "1e-3" not in text and "0.001" in text
    assert set(FILES) <= set(os.listdir(directory))
    pd.testing.assert_frame_equal(
        pd.read_csv(directory / "report.csv", index_col="rank"), result(CONFIGS, SCORES).table(), check_dtype=False
    )
    other = tmp_path / "elsewhere"
    assert rlx_(capfd, "report", str(directory), "--out", str(other))[0] == 0
    assert sorted(os.listdir(other)) == FILES
    for more in ([str(directory)], [str(tmp_path / "a run")]):
        code, text, err = rlx_(capfd, "report", str(directory), *more)
        assert (code, text) == (2, "") and "takes one sweep, or runs" in err and err.count("\n") == 1


def test_command_before_the_first_batch(capfd, tmp_path):
    result(CONFIGS, SCORES).plan.write(tmp_path / "plan.json")
    code, text, err = rlx_(capfd, "report", str(tmp_path))
    assert (code, text) == (2, "") and "a batch that is finished" in err
    assert os.listdir(tmp_path) == ["plan.json"]
