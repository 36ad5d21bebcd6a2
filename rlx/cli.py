"""The command line.

    rlx train AGENT ENV [--steps 300000 --seeds 8 --lr 1e-3 ...]     train a population of seeds
    rlx sweep AGENT ENV --space 'lr=log(1e-5,1e-2) gamma=[0.9,0.99]' --configs 64 --seeds 5
    rlx evaluate RUN [--episodes 100 --which best]                    greedy episodes of a stored run
    rlx report RUN [RUN ...] [--out DIR]                              one table and one plot of stored runs
    rlx report SWEEP [--out DIR]                                      a page with ranking and plots, in SWEEP itself
    rlx list agents | envs                                            what there is

`rlx train AGENT ENV --help` explains each field of that agent. Bad input is one line and exit code 2.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rlx import agents, results, sweeps, toml, training
from rlx import config as config_
from rlx import report as report_
from rlx.config import Field
from rlx.envs import registry
from rlx.errors import RlxError, unknown
from rlx.sinks.console import print_table
from rlx.sweeps.report import write_report
from rlx.words import assignments, show_help, split


def main(argv: list[str] | None = None) -> int:
    """Entry point. Bad input prints one line and returns 2; after Ctrl-C it returns 130."""
    argv = sys.argv[1:] if argv is None else argv
    commands = {"train": train, "sweep": sweep, "evaluate": evaluate, "report": report, "list": list_names}
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
    """`rlx train AGENT ENV`."""
    job = _job("train", argv, training.RunConfig)
    if job is None:
        return 0
    agent, env, given = job
    if given.get("out") is None:
        if given.get("resume"):
            raise RlxError("--resume needs --out: the directory of the run to continue")
        given["out"] = free_directory(f"runs/{agent}-{env.replace('/', '-')}")

    result = training.train(agent, env, **given)
    print_table(result.table())
    out = Path(given["out"])
    report_.to_csv(result.table(), out / "table.csv")
    print(f"results in {out}, learning curve in {result.plot(out / 'learning_curve.png')}")
    return _interrupted(result.interrupted, out)


def sweep(argv: list[str]) -> int:
    """`rlx sweep AGENT ENV --space ...`."""
    job = _job("sweep", argv, sweeps.SweepConfig)
    if job is None:
        return 0
    agent, env, given = job
    words = given.pop("space", ())
    if not words:
        raise RlxError("rlx sweep needs --space: 'lr=log(1e-5,1e-2) gamma=[0.97,0.99]', or a TOML file")
    space: Any = sweeps.read_space(words[0]) if len(words) == 1 and words[0].endswith(".toml") else " ".join(words)
    if given.get("dry_run"):
        sweeps.sweep(agent, env, space, **given)
        return 0
    if given.get("out") is None:
        if given.get("resume"):
            raise RlxError("--resume needs --out: the directory of the sweep to continue")
        given["out"] = free_directory(f"runs/sweep-{agent}-{env.replace('/', '-')}")

    result = sweeps.sweep(agent, env, space, **given)
    out = Path(given["out"])
    left = [name for name in ("table.csv", "metrics.parquet", "best.toml") if (out / name).exists()]
    if "table.csv" in left:
        print_table(result.table().head(20))
    if left:
        print(f"results in {out}: {', '.join(left)}; `rlx report {out}` makes tables and plots of them")
    else:
        print(f"no batch of runs was finished in {out}")
    return _interrupted(result.interrupted, given["out"])


def _interrupted(interrupted: bool, out: Path | str) -> int:
    if interrupted:
        print(f"interrupted; to continue, repeat the command with --resume True --out {out}", file=sys.stderr)
    return 130 if interrupted else 0


def _job(command: str, argv: list[str], run_config: type[config_.Config]) -> tuple[str, str, dict[str, Any]] | None:
    """Agent, environment and fields of `rlx train` and `rlx sweep`; None where only help was wanted.

    The agent decides which fields there are, so it is read first. `--config FILE` comes before single fields.
    """
    names = [word for word in argv[:2] if not word.startswith("-")]
    wants_help = "-h" in argv or "--help" in argv
    known = ", ".join(agents.AGENTS)
    if not names:
        if wants_help:
            print(f"usage: rlx {command} AGENT ENV [--FIELD VALUE ...]\n\nAGENT is one of {known}; `rlx list envs`")
            print(f"names environments, `rlx {command} AGENT ENV --help` explains the fields.")
            return None
        raise RlxError(f"rlx {command} needs an agent ({known}) and an environment: see `rlx list envs`")
    config = agents.get(names[0]).Config
    more = _more(config) | (_SWEEP if command == "sweep" else {})
    options = {**config_.fields(run_config), **more, **config_.fields(config)}
    if wants_help:
        show_help(f"rlx {command} {' '.join(names)}", f"{command} {names[0]}", options, marked=config_.fields(config))
        return None
    if len(names) == 1:
        raise RlxError(f"rlx {command} {names[0]} needs an environment, such as gymnax/CartPole-v1: see `rlx list envs`")
    extra, given = split(argv[2:], options)
    if extra:
        raise RlxError(f"unexpected argument {extra[0]!r}: fields are given as --NAME VALUE")
    given |= {name: assignments(name, given[name]) for name in ("env_options", "env_params") if name in given}
    stored = toml.read(given.pop("config")) if given.get("config") else {}
    for name in stored:
        if name not in options:
            raise unknown("field of the file", name, options)
    own = {name: stored.pop(name) for name in list(stored) if name in config_.fields(config)}
    if own:  # a config, which single fields override and a space may vary
        given["config"] = config_.make(config, given.pop("preset", None), None, own)
    return names[0], names[1], stored | given


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
    """`rlx report RUN ...`: one table of the runs, and one plot of their learning curves. `rlx report SWEEP`: one page."""
    about = "directory of what is written; by default here, of a sweep in the sweep's directory"
    runs, given = _stored("report", argv, {"out": Field("out", str | None, None, False, about)})
    if swept := [run for run in runs if os.path.exists(os.path.join(run, "plan.json"))]:
        if len(runs) > 1:
            raise RlxError(f"rlx report takes one sweep, or runs: {swept[0]} is a sweep, and there are {len(runs)} directories")
        return _report_sweep(swept[0], given.get("out") or swept[0])
    frames = {str(run): results.metrics(run) for run in runs}
    table = report_.summary_table(frames)
    out = Path(given.get("out") or ".")
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


def _report_sweep(directory: str, out: str) -> int:
    result = sweeps.load(directory)
    names = write_report(result, Path(out))
    print_table(result.table().head(20))
    print(f"{', '.join(names)} in {out}")
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


# --- their parts -------------------------------------------------------------------------------------------------------


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
        "config": Field("config", str | None, None, False, "TOML file of fields, such as a sweep's best.toml"),
        "preset": Field(
            "preset", str | None, None, False, f"defaults by name: {', '.join(config.presets)}; fields override it"
        ),
        "env_options": Field("env_options", tuple[str, ...], (), False, "constructor options of ENV, NAME=VALUE ..."),
        "env_params": Field("env_params", tuple[str, ...], (), True, "parameters of ENV, NAME=VALUE ..."),
    }


_SWEEP = {
    "space": Field(
        "space", tuple[str, ...], (), False, "FIELD=VALUES ...: [a,b], log(low,high), int(low,high); or a TOML file"
    ),
    "dry_run": Field("dry_run", bool, False, False, "print the plan and stop: nothing compiles"),
}


if __name__ == "__main__":
    sys.exit(main())
