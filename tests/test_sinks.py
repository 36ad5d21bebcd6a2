"""Parquet files replaced atomically; progress and tables as a reader of a terminal or a log file sees them."""

import os

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from rlx.errors import RlxError
from rlx.sinks import console, parquet
from rlx.sinks.console import Progress, print_table

# --- parquet ---------------------------------------------------------------------------------------------------------

TABLE = pd.DataFrame(
    {
        "run": np.arange(3, dtype=np.int64),
        "seed": np.array([0, 1, 2**32 - 1], np.uint32),
        "return": [1.5, np.nan, -np.inf],
        "loss": np.array([1, 2, np.nan], np.float32),
        "activation": ["relu", "tanh", "é"],
        "normalize_obs": [True, False, True],
    }
)


def test_parquet_round_trip(tmp_path):
    path = tmp_path / "new" / "metrics.parquet"
    parquet.write(path, TABLE)
    pd.testing.assert_frame_equal(parquet.read(path), TABLE)
    parquet.write(path, TABLE.iloc[1:])  # an index is not a column
    pd.testing.assert_frame_equal(parquet.read(path), TABLE.iloc[1:].reset_index(drop=True))
    assert os.listdir(path.parent) == ["metrics.parquet"]


@pytest.mark.parametrize("step", ["to_parquet", "fsync", "replace"])
def test_a_crash_while_writing_leaves_the_previous_table(tmp_path, monkeypatch, step):
    class Killed(BaseException):
        pass

    def die(self_or_file, *args, **kwargs):
        if step == "to_parquet":
            args[0].write(b"PAR1 half a tab")
        raise Killed

    path = tmp_path / "t.parquet"
    parquet.write(path, TABLE)
    with monkeypatch.context() as m, pytest.raises(Killed):
        m.setattr(pd.DataFrame if step == "to_parquet" else parquet.os, step, die)
        parquet.write(path, TABLE.iloc[:1])
    pd.testing.assert_frame_equal(parquet.read(path), TABLE)
    parquet.write(path, TABLE.iloc[:1])
    assert len(parquet.read(path)) == 1 and os.listdir(tmp_path) == ["t.parquet"]


def test_parquet_errors_are_one_line(tmp_path):
    path = tmp_path / "t.parquet"
    parquet.write(path, TABLE)
    content = path.read_bytes()

    def message(call) -> str:
        with pytest.raises(RlxError) as error:
            call()
        assert "\n" not in str(error.value)
        return str(error.value)

    for damaged in (content[: len(content) // 2], b"", b"not parquet at all", b"\0" * len(content)):
        path.write_bytes(damaged)
        assert f"cannot read '{path}'" in message(lambda: parquet.read(path))
    assert "No such file" in message(lambda: parquet.read(tmp_path / "none"))
    assert f"cannot write '{path}/x'" in message(lambda: parquet.write(path / "x", TABLE))


# --- progress --------------------------------------------------------------------------------------------------------


class Clock:
    """Stands in for the module `time`."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(console, "time", clock)
    return clock


def test_lines_where_there_is_no_terminal(clock, capsys):
    with Progress(1_000_000, "ppo on [brax]/hopper") as bar:
        bar.update(0)
        bar.announce("compiling [rollout] ...")
        clock.now = 20.0
        bar.announce("compiled in 20.0 s")
        clock.now = 22.0
        bar.update(100_000, **{"return": 12.345, "nan": float("nan")})
        bar.update(150_000)
        clock.now = 24.0
        bar.update(200_000, **{"return": float("nan")})
        clock.now = 30.0
        bar.update(1_000_000, **{"return": 1234.5})
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "compiling [rollout] ...",
        "compiled in 20.0 s",
        "ppo on [brax]/hopper: 100k/1M steps, 50k steps/s, 0:00:18 left, return 12.35",
        "ppo on [brax]/hopper: 200k/1M steps, 50k steps/s, 0:00:16 left, return 12.35",
        "ppo on [brax]/hopper: 1M/1M steps, 100k steps/s, return 1234",
    ]


def test_a_slow_run_prints_every_ten_seconds(clock, capsys):
    with Progress(10**9, "x") as bar:
        for second in range(61):
            clock.now = float(second)
            bar.update(second * 1000 + 1)
    assert len(capsys.readouterr().err.splitlines()) == 7


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=300))
def test_a_fast_run_prints_at_tenths_only(increments):
    clock, total, done = Clock(), sum(increments), 0
    with pytest.MonkeyPatch.context() as m:
        m.setattr(console, "time", clock)
        lines: list[str] = []
        bar = Progress(total, "x")
        m.setattr(bar, "_print", lines.append)
        for steps in increments:
            done += steps
            clock.now += 1e-3
            bar.update(done)
    assert 1 <= len(lines) <= 11 and f"{console._short(total)}/{console._short(total)} steps" in lines[-1]


def test_rate_is_that_of_the_latter_half_and_of_this_process(clock, capsys):
    with Progress(10**6, "x") as bar:
        bar.update(500_000)  # resumed
        for second in range(1, 121):
            clock.now = float(second)
            bar.update(500_000 + (10 * second if second <= 60 else 600 + 1000 * (second - 60)))
    lines = capsys.readouterr().err.splitlines()
    assert "10 steps/s" in lines[3] and ", 1k steps/s" in lines[-1]


def test_rate_of_an_agent_that_learns_in_bursts_is_steady(clock, capsys):
    """Periods of 250 steps: 100 s for the first ten steps, 12 s for the others, so 2.2 steps/s."""
    with Progress(10_000, "x") as bar:
        bar.announce("compiled")
        for k in range(1, 1001):
            clock.now += 100.0 if k % 25 == 1 else 0.5
            bar.update(10 * k)
    lines = capsys.readouterr().err.splitlines()
    rates = [float(line.split(", ")[1].split()[0]) for line in lines if "steps/s" in line]
    late = np.array(rates[len(rates) // 4 :])
    assert len(late) > 20 and (abs(late - 2.2) < 0.5).all()


def test_disabled_prints_nothing(capsys):
    with Progress(10, "x", enabled=False) as bar:
        bar.announce("text")
        bar.update(10, loss=1.0)
    assert capsys.readouterr() == ("", "")


def test_exceptions_pass_through(capsys):
    with pytest.raises(KeyError), Progress(10, "x"):
        raise KeyError("mine")


def test_bar_on_a_terminal(monkeypatch, capsys):
    terminal = lambda **k: Console(force_terminal=True, width=80, **k)
    monkeypatch.setattr(console, "Console", terminal)
    with Progress(2_000_000, "ppo on [brax]/hopper") as bar:
        bar.announce("compiling [x]")
        bar.update(1_000_000, **{"return": 12.345})
    out, err = capsys.readouterr()
    assert out == "" and "\x1b[" in err and "compiling [x]" in err
    assert "ppo on [brax]/hopper" in err and "1M/2M steps, return 12.35" in err


@pytest.mark.parametrize(
    "x, text", [(0, "0"), (999, "999"), (1000, "1k"), (20480, "20.48k"), (1.5e6, "1.5M"), (2**40, "1100G")]
)
def test_short(x, text):
    assert console._short(x) == text


# --- print_table -----------------------------------------------------------------------------------------------------


def test_table_is_aligned_and_rounded(capsys):
    index = pd.Index(["ppo", "[sac]"], name="label")
    print_table(pd.DataFrame({"steps": [1_000_000, 20], "iqm": [1234.5678, np.nan]}, index=index))
    out, err = capsys.readouterr()
    assert err == "" and [line.rstrip() for line in out.splitlines()] == [
        "label    steps   iqm",
        "ppo    1000000  1235",
        "[sac]       20     -",
    ]


def test_a_wide_table_is_not_cut_in_a_file(capsys):
    print_table(pd.DataFrame({f"column number {j}": ["a rather long text"] for j in range(20)}))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and lines[1].count("a rather long text") == 20
