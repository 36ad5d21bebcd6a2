"""The report of a sweep: what its files and page say, of results that are written down."""

import base64
import os
import re
import tomllib
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from rlx import stats
from rlx.errors import RlxError
from rlx.report import html
from rlx.sinks import parquet
from rlx.sweeps import confirm
from rlx.sweeps.report import confirmed, plan_summary, write_report
from tests.cli_support import rlx_
from tests.sweep_report_support import CONFIGS, NAN, SCORES, few_pixels, result

FILES = ["best.toml", "curves.png", "parallel.png", "profile.png"]
FILES += ["report.csv", "report.html", "report.md", "report.tex", "sensitivity.png"]


@pytest.fixture(autouse=True)
def figures(monkeypatch):
    return few_pixels(monkeypatch)


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
