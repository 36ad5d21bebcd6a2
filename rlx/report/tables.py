"""The summary table of some results, and tables as Markdown, CSV and LaTeX.

A row is named by the index if the index has a name, as that of `summary_table` has; an unnamed index is not shown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rlx import stats
from rlx.errors import RlxError, unknown


def summary_table(frames: Mapping[str, pd.DataFrame], metric: str = "return") -> pd.DataFrame:
    """One row per label: the last evaluation of its runs.

    Columns: `runs`, `steps` (where they were last evaluated), `mean`, `iqm`, `low`, `high` (95% bootstrap interval of
    the IQM over runs) and `failed`, the runs of `runs` whose value there is missing or not finite; the statistics are
    over the others. A vector metric has one row per component, labelled `label, return_0` and so on.
    """
    rows = {label: _last(values(frame, name)) for label, frame, name in series(frames, metric)}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("label")


def _last(table: pd.DataFrame) -> dict[str, Any]:
    """`table [steps, runs]` -> a row of the summary."""
    scores = table.iloc[-1].to_numpy() if len(table) else np.full(table.shape[1], np.nan)
    s = stats.summary(scores)
    steps = int(table.index[-1]) if len(table) else 0
    return {"runs": s.n + s.failed, "steps": steps} | {k: getattr(s, k) for k in ("mean", "iqm", "low", "high", "failed")}


def series(frames: Mapping[str, pd.DataFrame], metric: str) -> list[tuple[str, pd.DataFrame, str]]:
    """`(label, frame, column)` for each curve: one per label, or one per component of a vector metric.

    RlxError if a frame has no such metric.
    """
    out = []
    for label, frame in frames.items():
        if metric in frame:
            out.append((label, frame, metric))
            continue
        parts = [c for c in frame.columns if re.fullmatch(re.escape(metric) + r"_\d+", c)]
        if not parts:
            raise unknown("metric", metric, (c for c in frame.columns if c not in ("run", "seed", "step")))
        out += [(f"{label}, {c}", frame, c) for c in sorted(parts, key=lambda c: int(c.rpartition("_")[2]))]
    return out


def values(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    """`column` as a table `[steps, runs]` float64 of the steps at which it was measured in some run.

    An evaluation that no run survived counts as measured where the frame has `unfinished`, which is NaN elsewhere.
    """
    measured = frame[column].notna()
    if column.startswith("return") and "unfinished" in frame:
        measured |= frame["unfinished"].notna()
    table = frame[measured].pivot(index="step", columns="run", values=column)
    return table.reindex(columns=sorted(frame["run"].unique())).astype(np.float64)


# --- writers --------------------------------------------------------------------------------------------------------


def cell(value: Any) -> str:
    """A value as it appears in a table: integers in full, four significant digits or more of a float, `-` for NaN."""
    if isinstance(value, (bool, np.bool_, Integral)) or not isinstance(value, Real):
        return str(value)
    x = float(value)
    if np.isnan(x):
        return "-"
    return f"{x:.0f}" if 1e3 <= abs(x) < 1e9 else f"{x:.4g}"


def shown(df: pd.DataFrame) -> tuple[list[str], list[bool], list[list[str]]]:
    """The header, which columns hold numbers, and the cells of each row."""
    df = df.reset_index() if df.index.name is not None else df
    numeric = [pd.api.types.is_numeric_dtype(t) for t in df.dtypes]
    columns = [[cell(v) for v in df.iloc[:, j]] for j in range(df.shape[1])]
    return [str(c) for c in df.columns], numeric, [list(row) for row in zip(*columns, strict=True)]


def to_markdown(df: pd.DataFrame) -> str:
    """A pipe table, numbers right-aligned."""
    header, numeric, rows = shown(df)
    rule = ["---:" if right else "---" for right in numeric]
    text = [[c.replace("|", r"\|") for c in row] for row in (header, *rows)]
    return "".join("| " + " | ".join(row) + " |\n" for row in (text[0], rule, *text[1:]))


def to_latex(df: pd.DataFrame) -> str:
    """A `tabular` with the rules of booktabs."""
    header, numeric, rows = shown(df)
    line: Callable[[list[str]], str] = lambda row: " & ".join(map(_escape, row)) + r" \\"
    columns = "".join("r" if right else "l" for right in numeric)
    body = [line(header), r"\midrule", *map(line, rows)]
    return "\n".join([rf"\begin{{tabular}}{{{columns}}}", r"\toprule", *body, r"\bottomrule", r"\end{tabular}", ""])


_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}


def _escape(text: str) -> str:
    return re.sub(r"[\\~^&%$#_{}]", lambda m: _LATEX.get(m[0], "\\" + m[0]), text)


def to_csv(df: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write `df` at full precision. RlxError if `path` cannot be written."""
    try:
        df.to_csv(Path(path), index=df.index.name is not None)
    except OSError as error:
        raise RlxError(f"cannot write table {str(path)!r}: {error.strerror or error}") from error
