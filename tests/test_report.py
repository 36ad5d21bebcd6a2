"""Tables against numbers worked out by hand; plots by what is drawn."""

import io
import sys

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rlx import report, stats
from rlx.errors import RlxError
from rlx.report import plots, tables


def frame(returns, steps=(100, 200, 300), **more) -> pd.DataFrame:
    """`returns [runs, steps]` as a long table."""
    rows = [
        {"run": r, "seed": r + 10, "step": s, "return": y} | {k: v[r][j] for k, v in more.items()}
        for r, row in enumerate(returns)
        for j, (s, y) in enumerate(zip(steps, row, strict=True))
    ]
    return pd.DataFrame(rows).sample(frac=1, random_state=0)  # the order of rows does not matter


NAN = float("nan")


# --- summary_table ---------------------------------------------------------------------------------------------------


def test_summary_is_of_the_last_evaluated_step():
    table = report.summary_table(
        {
            "one": frame([[1, 7, NAN]]),  # the last row holds no evaluation
            "four": frame([[9, 9, 0], [9, 9, 2], [9, 9, 4], [9, 9, 100]]),
        }
    )
    assert list(table.index) == ["one", "four"] and table.index.name == "label"
    assert list(table.columns) == ["runs", "steps", "mean", "iqm", "low", "high", "failed"]
    assert table.loc["one"].tolist() == [1, 200, 7, 7, 7, 7, 0]
    low, high = stats.bootstrap_interval([0, 2, 4, 100])
    assert table.loc["four"].tolist() == [4, 300, 26.5, 3, low, high, 0]


def test_failed_runs_stay_visible():
    table = report.summary_table({"x": frame([[1, 1, 2], [1, 1, NAN], [1, 1, 4]])})
    assert table.loc["x", ["runs", "steps", "mean", "failed"]].tolist() == [3, 300, 3, 1]
    gone = pd.concat([frame([[1, 1, 2]]), frame([[5]], steps=[100]).assign(run=1)])  # its table ends early
    assert report.summary_table({"x": gone}).loc["x", ["runs", "mean", "failed"]].tolist() == [2, 2, 1]


def test_an_evaluation_that_no_run_survived_is_the_last_one():
    """`unfinished` tells an evaluation without finished episodes from a row without evaluation."""
    data = frame([[1, NAN, NAN], [2, NAN, NAN]], unfinished=[[0, 5, NAN], [0, 5, NAN]])
    row = report.summary_table({"x": data}).loc["x"]
    assert (row["runs"], row["steps"], row["failed"]) == (2, 200, 2) and np.isnan(row["iqm"])


def test_no_evaluation_at_all():
    row = report.summary_table({"x": frame([[NAN, NAN, NAN]])}).loc["x"]
    assert (row["runs"], row["steps"], row["failed"]) == (1, 0, 1) and np.isnan(row["mean"])


def test_vector_returns_have_a_row_per_component():
    data = frame([[0, 0, 0]]).drop(columns="return").assign(**{f"return_{j}": float(j) for j in range(11)})
    table = report.summary_table({"x": data})
    assert list(table.index) == [f"x, return_{j}" for j in range(11)]
    assert table["mean"].tolist() == list(range(11))


def test_unknown_metric_names_the_nearest():
    with pytest.raises(RlxError, match="unknown metric 'retrun': did you mean 'return'"):
        report.summary_table({"x": frame([[1, 2, 3]])}, "retrun")


# --- writers ---------------------------------------------------------------------------------------------------------

TABLE = pd.DataFrame({"runs": [8, 8], "iqm": [1234.56, NAN], "lr": [3e-4, 0.5]}, index=pd.Index(["a_b|50%", "c"], name="label"))


@pytest.mark.parametrize(
    "value, text",
    [
        (1000000, "1000000"),
        (np.int64(3), "3"),
        (True, "True"),
        (1234.56, "1235"),
        (-98765.4, "-98765"),
        (0.123456, "0.1235"),
        (3e-4, "0.0003"),
        (1e-7, "1e-07"),
        (2e12, "2e+12"),
        (np.float32(0.1), "0.1"),
        (0.0, "0"),
        (NAN, "-"),
        (np.inf, "inf"),
        ("text", "text"),
        ((64, 64), "(64, 64)"),
    ],
)
def test_cell(value, text):
    assert tables.cell(value) == text


def test_markdown():
    assert report.to_markdown(TABLE) == (
        "| label | runs | iqm | lr |\n"
        "| --- | ---: | ---: | ---: |\n"
        "| a_b\\|50% | 8 | 1235 | 0.0003 |\n"
        "| c | 8 | - | 0.5 |\n"
    )  # fmt: skip
    assert report.to_markdown(TABLE.reset_index(drop=True)).startswith("| runs | iqm | lr |\n")


def test_latex():
    assert report.to_latex(TABLE) == (
        "\\begin{tabular}{lrrr}\n\\toprule\nlabel & runs & iqm & lr \\\\\n\\midrule\n"
        "a\\_b|50\\% & 8 & 1235 & 0.0003 \\\\\nc & 8 & - & 0.5 \\\\\n\\bottomrule\n\\end{tabular}\n"
    )
    assert tables._escape(r"&%$#_{}~^\ ") == r"\&\%\$\#\_\{\}\textasciitilde{}\textasciicircum{}\textbackslash{} "


def test_csv_keeps_full_precision(tmp_path):
    data = TABLE.assign(iqm=[1 / 3, NAN])
    report.to_csv(data, tmp_path / "t.csv")
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "t.csv", index_col="label"), data)
    report.to_csv(data.reset_index(drop=True), tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text().startswith("runs,iqm,lr\n8,0.333")
    with pytest.raises(RlxError, match=r"cannot write table .*none"):
        report.to_csv(data, tmp_path / "none" / "t.csv")


# --- learning_curve --------------------------------------------------------------------------------------------------


@pytest.fixture
def draw(tmp_path, monkeypatch):
    """learning_curve, returning the axes and the size of the PNG."""
    figures: list[Figure] = []
    savefig = Figure.savefig

    def spy(self, *args, **kwargs):
        figures.append(self)
        savefig(self, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", spy)

    def call(frames, title="title", **kwargs) -> Axes:
        path = tmp_path / "new" / "plot.png"
        report.learning_curve(frames, path, title, **kwargs)
        assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        return figures[-1].axes[0]

    return call


def thick(axes: Axes) -> dict[str, tuple]:
    """The labelled lines."""
    lines = [line for line in axes.lines if not str(line.get_label()).startswith("_")]
    return {str(line.get_label()): line.get_data() for line in lines}


def test_curve_is_the_iqm_with_its_interval_and_single_runs(draw):
    returns = np.array([[1, 2, 0], [1, 4, 2], [1, 6, 4], [1, 8, 100]], float)
    axes = draw({"ppo": frame(returns)})
    np.testing.assert_array_equal(thick(axes)["ppo"], [[100, 200, 300], [1, 5, 3]])
    singles = [line.get_ydata() for line in axes.lines if str(line.get_label()).startswith("_")]
    np.testing.assert_array_equal(sorted(map(list, singles)), returns.tolist())
    band = axes.collections[0].get_paths()[0].vertices
    for step, column in zip((100, 200, 300), returns.T, strict=True):
        heights = band[band[:, 0] == step, 1]
        np.testing.assert_allclose([heights.min(), heights.max()], stats.bootstrap_interval(column))
    assert axes.get_xlabel() == "environment steps of one run" and axes.get_ylabel() == "evaluation return"
    assert axes.get_legend() is None and axes.get_title(loc="left") == "title"
    assert [t.get_text() for t in axes.texts] == ["IQM and 95% bootstrap interval over 4 runs"]


def test_several_labels_have_a_legend_and_distinct_looks(draw):
    axes = draw({f"agent {j}": frame([[j, j, j]]) for j in range(9)}, references={"solved": 475.0})
    lines = [line for line in axes.lines if not str(line.get_label()).startswith("_")]
    assert [t.get_text() for t in axes.get_legend().get_texts()] == [f"agent {j}" for j in range(9)]
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 9
    assert [475.0, 475.0] in [list(line.get_ydata()) for line in axes.lines]
    assert "solved" in [t.get_text() for t in axes.texts]


def test_many_runs_are_not_drawn_one_by_one(draw):
    axes = draw({"x": frame(np.arange(11 * 3.0).reshape(11, 3))})
    assert len(axes.lines) == 1
    assert len(draw({"x": frame(np.arange(10 * 3.0).reshape(10, 3))}).lines) == 11


@pytest.mark.filterwarnings("error")
def test_missing_and_infinite_values(draw):
    axes = draw({"x": frame([[1, NAN, 3], [3, NAN, np.inf]])})
    np.testing.assert_array_equal(thick(axes)["x"], [[100, 300], [2, 3]])
    for returns in ([[NAN] * 3], [[np.inf] * 3]):
        axes = draw({"x": frame(returns)})
        assert "no finite return" in [t.get_text() for t in axes.texts]


def test_one_point_is_visible(draw):
    line = next(line for line in draw({"x": frame([[5.0]], steps=[100])}).lines if line.get_label() == "x")
    assert line.get_marker() == "o"


def test_other_metrics_and_vectors(draw):
    data = frame([[1, 2, 3]], loss=[[7, 8, 9]])
    axes = draw({"x": data}, title="", metric="loss")
    np.testing.assert_array_equal(thick(axes)["x"][1], [7, 8, 9])
    assert axes.get_ylabel() == "loss"
    vector = data.rename(columns={"return": "return_0", "loss": "return_1"})
    assert list(thick(draw({"x": vector}))) == ["x, return_0", "x, return_1"]


def test_plot_errors(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RlxError, match=r"cannot write plot .*file/p\.png"):
        report.learning_curve({"x": frame([[1, 2, 3]])}, tmp_path / "file" / "p.png", "")
    with pytest.raises(RlxError, match="unknown metric 'lss'"):
        report.learning_curve({"x": frame([[1, 2, 3]], loss=[[1, 2, 3]])}, tmp_path / "p.png", "", metric="lss")


def test_no_global_state_of_pyplot(draw):
    loaded = "matplotlib.pyplot" in sys.modules
    draw({"x": frame([[1, 2, 3]])})
    assert ("matplotlib.pyplot" in sys.modules) == loaded


def test_palette_is_legible_on_white():
    """Contrast with white of at least 2:1 (WCAG relative luminance), which yellow of Okabe-Ito would miss."""

    def luminance(color: str) -> float:
        c = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        linear = np.where(c <= 0.03928, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    contrast = [1.05 / (luminance(c) + 0.05) for c in (*plots.PALETTE, "#F0E442")]
    assert min(contrast[:-1]) >= 2 > contrast[-1]


def test_markdown_of_a_summary_can_be_read_back():
    table = report.summary_table({"x": frame([[1, 2, 3]])})
    text = report.to_markdown(table).replace("|\n", "\n").replace("| ", "|")
    back = pd.read_csv(io.StringIO(text), sep="|", skiprows=[1]).rename(columns=str.strip)
    assert back["mean"].tolist() == [3] and back["steps"].tolist() == [300]
