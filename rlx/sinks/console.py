"""Progress on stderr, tables on stdout."""

from __future__ import annotations

import math
import time
from collections import deque
from datetime import timedelta
from types import TracebackType

import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as RichProgress
from rich.table import Table
from rich.text import Text

from rlx.report.tables import cell, shown

WINDOW = 30.0  # seconds over which steps/s are averaged, at least
INTERVAL = 10.0  # seconds between lines where there is no bar


class Progress:
    """Steps done, steps/s, time left and the latest metrics, on stderr.

    A bar on a terminal. Elsewhere (log files, notebooks) plain lines, at each tenth of `total_steps` and otherwise at
    most every ten seconds. Steps/s are those of the latter half of the time since the last `announce`, or of the last half
    minute if that is more: neither compilation nor steps done before a resume count, and agents that learn in bursts, now
    fast, now standing still for minutes (MR.Q), have a steady rate. Not `enabled`: prints nothing.

        with Progress(1_000_000, "ppo on brax/hopper") as bar:
            bar.announce("compiling")
            bar.update(20_480, **{"return": 12.3})
    """

    def __init__(self, total_steps: int, description: str, enabled: bool = True) -> None:
        self._total, self._description, self._enabled = total_steps, description, enabled
        self._console = Console(stderr=True, quiet=not enabled, highlight=False, soft_wrap=True)
        self._bar: RichProgress | None = None
        if enabled and self._console.is_interactive:
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=12),
                TextColumn("{task.fields[status]}", markup=False),
            )
            self._bar = RichProgress(*columns, console=self._console)
            self._task = self._bar.add_task(description, total=total_steps, status="")
        self._points: deque[tuple[float, int]] = deque()  # (time, steps done) of the time averaged over
        self._since = math.inf  # time of the first of them that there was
        self._steps: int | None = None
        self._shown: dict[str, float] = {}
        self._line = (-math.inf, -1)  # time and tenth of the last line

    def __enter__(self) -> Progress:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar:
            self._bar.stop()

    def announce(self, text: str) -> None:
        """Print one line above the bar."""
        self._print(text)
        self._points.clear()
        self._since = time.monotonic()
        if self._steps is not None:
            self._points.append((self._since, self._steps))

    def update(self, steps_done: int, **metrics: float) -> None:
        """Show `steps_done` of `total_steps` and the latest value of each metric that is not NaN."""
        now, self._steps = time.monotonic(), steps_done
        self._since = min(self._since, now)
        self._points.append((now, steps_done))
        while len(self._points) > 2 and now - self._points[1][0] >= max(WINDOW, (now - self._since) / 2):
            self._points.popleft()
        self._shown |= {k: float(v) for k, v in metrics.items() if not math.isnan(v)}
        if self._bar:
            self._bar.update(self._task, completed=steps_done, status=self._status())
            return
        last, tenth = self._line[0], 10 * steps_done // max(self._total, 1)
        if steps_done and (tenth > self._line[1] or now - last >= INTERVAL):
            self._line = (now, tenth)
            self._print(f"{self._description}: {self._status()}")

    def _status(self) -> str:
        (t0, s0), (t1, s1) = self._points[0], self._points[-1]
        parts = [f"{_short(s1)}/{_short(self._total)} steps"]
        if s1 > s0 and t1 > t0:
            rate = (s1 - s0) / (t1 - t0)
            left = timedelta(seconds=math.ceil((self._total - s1) / rate))
            parts += [f"{_short(rate)} steps/s"] + ([f"{left} left"] if s1 < self._total else [])
        return ", ".join(parts + [f"{name} {cell(value)}" for name, value in self._shown.items()])

    def _print(self, text: str) -> None:
        self._console.print(Text(text))


def _short(x: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if x >= size:
            return f"{x / size:.4g}{unit}"
    return f"{x:.4g}"


def print_table(df: pd.DataFrame) -> None:
    """Print `df` to stdout, numbers right-aligned and rounded for reading; its index only if that has a name."""
    header, numeric, rows = shown(df)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name, right in zip(header, numeric, strict=True):
        table.add_column(Text(name), justify="right" if right else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console()
    if not console.is_terminal:  # a file has no width: neither wrap nor cut
        console = Console(width=Console(width=10_000).measure(table).maximum)
    console.print(table)
