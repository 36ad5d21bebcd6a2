"""One page that holds everything: text, tables and images; it opens from disk and asks no network for anything."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

import pandas as pd

from rlx.report.tables import shown

ROWS = 50  # of a table

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff }
body { max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem; margin-bottom: .3rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem } dt { color: #555 } dd { margin: 0 }
.wide { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .7rem; text-align: left; white-space: nowrap } .number { text-align: right }
thead th { border-bottom: 1px solid #333 } tbody tr:nth-child(even) { background: #f5f5f5 }
tr.failed td { color: #a03000 } tr.failed td:last-child { font-weight: bold }
figure { margin: 1.5rem 0 } img { max-width: 100%; height: auto } figcaption { color: #555; font-size: .9rem }
pre { background: #f5f5f5; padding: .8rem 1rem; overflow-x: auto; font-size: .85rem }
"""


class Image(NamedTuple):
    """A PNG, what it shows for those who do not see it, and the text beneath it."""

    png: bytes
    alt: str
    caption: str


def page(title: str, sections: Sequence[tuple[str, str]]) -> str:
    """An HTML document of sections `(heading, content)`; the content is HTML, as the functions below make it."""
    parts = [f"<section>\n<h2>{escape(heading)}</h2>\n{content}\n</section>" for heading, content in sections]
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>",
            f"<h1>{escape(title)}</h1>",
            *parts,
            "</body>\n</html>\n",
        ]
    )


def terms(pairs: Mapping[str, str]) -> str:
    """A list of terms and what they are."""
    return "<dl>\n" + "\n".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in pairs.items()) + "\n</dl>"


def paragraphs(*texts: str) -> str:
    return "\n".join(f"<p>{escape(text)}</p>" for text in texts)


def code(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"


def image(given: Image) -> str:
    data = base64.b64encode(given.png).decode("ascii")
    source = f'<img src="data:image/png;base64,{data}" alt="{escape(given.alt)}">'
    return f"<figure>\n{source}\n<figcaption>{escape(given.caption)}</figcaption>\n</figure>"


def table(df: pd.DataFrame) -> str:
    """The first `ROWS` rows; those with runs in the column `failed`, if there is one, are marked."""
    header, numeric, rows = shown(df.head(ROWS))
    lost = [bool(n) for n in df["failed"].head(ROWS)] if "failed" in df else [False] * len(rows)
    kinds = [' class="number"' if right else "" for right in numeric]
    line = lambda tag, cells: "".join(f"<{tag}{k}>{escape(c)}</{tag}>" for k, c in zip(kinds, cells, strict=True))
    marks = [' class="failed"' if bad else "" for bad in lost]
    body = [f"<tr{mark}>{line('td', row)}</tr>" for mark, row in zip(marks, rows, strict=True)]
    head = f"<thead>\n<tr>{line('th', header)}</tr>\n</thead>"
    return "\n".join(['<div class="wide">\n<table>', head, "<tbody>", *body, "</tbody>\n</table>\n</div>"])
