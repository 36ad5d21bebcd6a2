"""The command line.

    rlx train AGENT ENV [--steps 300000 --seeds 8 --lr 1e-3 ...]     train a population of seeds
    rlx evaluate RUN [--episodes 100 --which best]                    greedy episodes of a stored run
    rlx report RUN [RUN ...] [--out DIR]                              one table and one plot of stored runs
    rlx list agents | envs                                            what there is

`rlx train AGENT ENV --help` explains each field of that agent. Bad input is one line and exit code 2.
"""

# Values are parsed by `config.parse` and not by tyro, which renders the help: an error must be one line that names the
# nearest valid choice.

from __future__ import annotations

import ast
import contextlib
import dataclasses
import os
import sys
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd

from rlx import agents, results, training
from rlx import config as config_
from rlx import report as report_
from rlx.config import Field
from rlx.envs import registry
from rlx.errors import RlxError, unknown
from rlx.sinks.console import print_table


def main(argv: list[str] | None = None) -> int:
    """Entry point. Bad input prints one line and returns 2; after Ctrl-C it returns 130."""
    argv = sys.argv[1:] if argv is None else argv
    commands = {"train": train, "evaluate": evaluate, "report": report, "list": list_names}
    try:
        if not argv or argv[0] in ("-h", "--help"):
            print((__doc__ or "").strip())
            return 0
        if argv[0] not in commands:
            raise unknown("command", argv[0], commands)
        return commands[argv[0]](argv[1:])
    except RlxError as error:
        print(f"rlx: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `rlx list envs | head`
        sys.stderr.close()
        return 0


# --- commands ----------------------------------------------------------------------------------------------------------


def train(argv: list[str]) -> int:
    """`rlx train AGENT ENV`: AGENT decides which fields there are, so it is read first."""
    names = [word for word in argv[:2] if not word.startswith("-")]
    wants_help = "-h" in argv or "--help" in argv
    if not names:
        if wants_help:
            print(
                f"usage: rlx train AGENT ENV [--FIELD VALUE ...]\n\nAGENT is one of {', '.join(agents.AGENTS)}; `rlx list envs`"
            )
            print("names environments, `rlx train AGENT ENV --help` explains the fields.")
            return 0
        raise RlxError(f"rlx train needs an agent ({', '.join(agents.AGENTS)}) and an environment: see `rlx list envs`")
    config = agents.get(names[0]).Config
    options = {**config_.fields(training.RunConfig), **_more(config), **config_.fields(config)}
    if wants_help:
        show_help(f"rlx train {' '.join(names)}", f"Train {names[0]}.", options, marked=config_.fields(config))
        return 0
    if len(names) == 1:
        raise RlxError(f"rlx train {names[0]} needs an environment, such as gymnax/CartPole-v1: see `rlx list envs`")
    extra, given = split(argv[2:], options)
    if extra:
        raise RlxError(f"unexpected argument {extra[0]!r}: fields are given as --NAME VALUE")
    given |= {name: assignments(name, given[name]) for name in ("env_options", "env_params") if name in given}
    if given.get("out") is None:
        if given.get("resume"):
            raise RlxError("--resume needs --out: the directory of the run to continue")
        given["out"] = free_directory(f"runs/{names[0]}-{names[1].replace('/', '-')}")

    result = training.train(names[0], names[1], **given)
    print_table(result.table())
    out = Path(given["out"])
    report_.to_csv(result.table(), out / "table.csv")
    print(f"results in {out}, learning curve in {result.plot(out / 'learning_curve.png')}")
    if result.interrupted:
        print(f"interrupted; to continue, repeat the command with --resume True --out {out}", file=sys.stderr)
        return 130
    return 0


def evaluate(argv: list[str]) -> int:
    """`rlx evaluate RUN`: exactly `--episodes` greedy episodes of every run stored there."""
    options = {
        "episodes": Field("episodes", int, 100, False, "episodes of each run"),
        "seed": Field("seed", int, 0, False, "seed of the start states"),
        "which": Field("which", str, "last", False, "checkpoint: last or best"),
    }
    runs, given = _stored("evaluate", argv, options)
    if len(runs) > 1:
        raise RlxError(f"rlx evaluate takes one RUN, not {len(runs)}")
    returns = results.evaluate(runs[0], **given)
    metrics = results.metrics(runs[0])
    table = pd.DataFrame({"run": range(len(returns)), "seed": metrics.groupby("run")["seed"].first().to_numpy()})
    for name, values in zip(results.return_columns(metrics), np.moveaxis(np.atleast_3d(returns), 2, 0), strict=True):
        finished = [row[~np.isnan(row)] for row in values]
        table[f"mean {name}"] = [row.mean() if row.size else np.nan for row in finished]
        table[f"std {name}"] = [row.std() if row.size else np.nan for row in finished]
        table["unfinished"] = [int(np.isnan(row).sum()) for row in values]
    print_table(table)
    return 0


def report(argv: list[str]) -> int:
    """`rlx report RUN ...`: one table of the runs, and one plot of their learning curves."""
    runs, given = _stored(
        "report", argv, {"out": Field("out", str, ".", False, "directory of report.csv, report.md, report.png")}
    )
    frames = {str(run): results.metrics(run) for run in runs}
    table = report_.summary_table(frames)
    out = Path(given.get("out", "."))
    try:
        out.mkdir(parents=True, exist_ok=True)
        report_.to_csv(table, out / "report.csv")
        (out / "report.md").write_text(report_.to_markdown(table))
        report_.learning_curve(frames, out / "report.png", title="")
    except OSError as error:
        raise RlxError(f"cannot write the report to {out}: {error.strerror}") from None
    print_table(table)
    print(f"report.csv, report.md and report.png in {out}")
    return 0


def list_names(argv: list[str]) -> int:
    """`rlx list agents|envs`: names on stdout; on stderr, what installs the suites that are not there."""
    if "-h" in argv or "--help" in argv:
        print("usage: rlx list agents | envs")
        return 0
    if len(argv) != 1 or argv[0] not in ("agents", "envs"):
        raise RlxError("rlx list takes one word: agents or envs")
    if argv[0] == "agents":
        for name, module in agents.AGENTS.items():
            print(f"{name:8} {(module.__doc__ or '').strip().splitlines()[0]}")
        return 0
    print("\n".join(registry.ids()), flush=True)
    for name, suite in registry.SUITES.items():
        if not registry.installed(name):
            print(f"{name + '/...':16} pip install 'rlx[{suite.extra}]'", file=sys.stderr)
    return 0


# --- words to values ---------------------------------------------------------------------------------------------------


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


def free_directory(base: str) -> str:
    """`base`, or `base-2`, `base-3` ...: the first that does not exist yet."""
    number = 1
    while os.path.lexists(base if number == 1 else f"{base}-{number}"):  # False too where it may not be read
        number += 1
    return base if number == 1 else f"{base}-{number}"


def _stored(command: str, argv: list[str], options: dict[str, Field]) -> tuple[list[str], dict[str, Any]]:
    if "-h" in argv or "--help" in argv:
        show_help(f"rlx {command} RUN", f"{command} stored runs", options)
        raise SystemExit(0)
    runs, given = split(argv, options)
    if not runs:
        raise RlxError(f"rlx {command} needs the directory of a stored run")
    return runs, given


def _more(config: type[config_.Config]) -> dict[str, Field]:
    """Options of `rlx train` that are not fields of a dataclass."""
    return {
        "preset": Field(
            "preset", str | None, None, False, f"defaults by name: {', '.join(config.presets)}; fields override it"
        ),
        "env_options": Field("env_options", tuple[str, ...], (), False, "constructor options of ENV, NAME=VALUE ..."),
        "env_params": Field("env_params", tuple[str, ...], (), True, "parameters of ENV, NAME=VALUE ..."),
    }


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


if __name__ == "__main__":
    sys.exit(main())
