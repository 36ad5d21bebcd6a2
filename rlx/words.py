"""The words of a command line: options to values, and their help.

Values are parsed by `config.parse` and not by tyro, which renders the help: an error must be one line that names the nearest
valid choice.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
from collections.abc import Container, Mapping
from typing import Annotated, Any

from rlx import config as config_
from rlx.config import Field
from rlx.errors import RlxError, unknown


def split(argv: list[str], options: Mapping[str, Field]) -> tuple[list[str], dict[str, Any]]:
    """Positional words, and the values of `--name value ...` (also `--name=value`, `--no-name` and a bare `--name` for bools).

    A field of several values takes several words, or one with commas. Raises RlxError for an unknown name and a value of the
    wrong type.
    """
    positional: list[str] = []
    given: dict[str, Any] = {}
    words = list(argv)
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            positional.append(word)
            continue
        name, equals, inline = word.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        if name.startswith("no_") and options.get(name[3:]) and options[name[3:]].type is bool:
            if equals:
                raise RlxError(f"--{name} takes no value: use --{name[3:]} {inline}")
            given[name[3:]] = False
            continue
        if name not in options:
            raise unknown("field", name, options)
        field, values = options[name], [inline] if equals else []
        several = "tuple" in str(field.type)
        while not equals and words and not words[0].startswith("--") and (several or not values):
            values.append(words.pop(0))
        if not values and field.type is bool:
            values = ["True"]
        if not values:
            raise RlxError(f"--{name} needs a value: {config_.describe(field.type)}")
        if field.type == tuple[str, ...]:
            given[name] = tuple(values)
        else:
            given[name] = config_.parse(field, ",".join(values))
    return positional, given


def assignments(name: str, words: tuple[str, ...]) -> dict[str, Any]:
    """`("gravity=9.8", "backend=spring")` -> a dict; a value that is no Python literal is a string."""
    out = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise RlxError(f"--{name} takes NAME=VALUE, not {word!r}")
        try:
            out[key] = ast.literal_eval(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            out[key] = text
    return out


def show_help(prog: str, description: str, options: Mapping[str, Field], marked: Container[str] = ()) -> None:
    """Each field with its type, default and help text; those `marked` as traced (a new value compiles nothing) or static."""
    import tyro

    def field(f: Field) -> tuple[str, Any, Any]:
        mark = f" [{'traced' if f.traced else 'static'}]" if f.name in marked else ""
        text = f.help.replace("%", "%%") + mark
        return f.name, Annotated[f.type, tyro.conf.arg(help=text)], dataclasses.field(default=f.default)

    cls = dataclasses.make_dataclass("options", [field(f) for f in options.values()])
    with contextlib.suppress(SystemExit):
        tyro.cli(cls, prog=prog, description=description, args=["--help"], use_underscores=True)
