"""Where the rows of a table go besides the disk: TensorBoard and Weights & Biases, each an extra of its own.

A sink logs the columns of a run's rows under their names, at their env step; NaN is left out. With them go the run's number,
its seed, and every field of its configuration with the value that this run has. What a sink has once logged it does not log
again, in a resumed run neither. Only runs with `out` have sinks, since a resumed run needs to know what was logged before.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd

from rlx import config as config_
from rlx import grid
from rlx.errors import RlxError, unknown
from rlx.trainer import Trainer

Configs = Mapping[int, Mapping[str, Any]]  # what is told of a run, by its number
Row = tuple[int, dict[str, float]]  # env step, values

LABELS = ("run", "config", "seed", "step")  # columns of a table that are no measurements
PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb"}


class Sink(Protocol):
    def log(self, run: int, config: Mapping[str, Any], rows: list[Row]) -> None:
        """Rows of one run in the order of their steps, those after the steps that were logged before are new."""

    def finish(self, runs: Sequence[int]) -> None:
        """No more rows of these runs follow in this process."""

    def close(self) -> None: ...


def check(names: Sequence[str], out: str | Path | None) -> None:
    """Raises RlxError for a name that is no sink, a package that is missing, a sink without `out` or without an account."""
    for name in names:
        if name not in PACKAGES:
            raise unknown("sink", name, PACKAGES)
        if importlib.util.find_spec(PACKAGES[name]) is None:
            raise RlxError(f"sinks: {name} needs a package that is missing: pip install 'rlx[{name}]'")
    if names and out is None:
        raise RlxError(f"sinks={tuple(names)} need out: the directory of the run")
    if "wandb" in names:
        from rlx.sinks import wandb

        wandb.check()


class Sinks:
    """The sinks of one directory; without any, nothing is written."""

    def __init__(self, sinks: Sequence[Sink]):
        self.sinks = sinks

    def write(self, table: pd.DataFrame, configs: Configs, final: bool) -> None:
        """The rows of `table`, as far as they are new. `final`: its runs are complete."""
        if not self.sinks:
            return
        columns = [name for name in table.columns if name not in LABELS]
        for run, rows in table.sort_values("step").groupby("run"):
            values = rows[columns].to_numpy(np.float64)
            found = [dict(zip(columns, map(float, row), strict=True)) for row in values]
            records = [
                (int(step), {name: x for name, x in row.items() if not np.isnan(x)})
                for step, row in zip(rows["step"], found, strict=True)
            ]
            for sink in self.sinks:
                sink.log(int(run), configs[int(run)], records)
        if final:
            for sink in self.sinks:
                sink.finish([int(run) for run in table["run"].unique()])


@contextmanager
def opened(names: Sequence[str], out: Path | None) -> Iterator[Sinks]:
    """The sinks of these names, which `check` has found usable, until the block ends."""
    with ExitStack() as stack:
        sinks: list[Sink] = []
        for name in names:
            assert out is not None
            sinks.append(_open(name, out))
            stack.callback(sinks[-1].close)
        yield Sinks(sinks)


def _open(name: str, out: Path) -> Sink:
    if name == "tensorboard":
        from rlx.sinks.tensorboard import TensorBoard

        return TensorBoard(out)
    from rlx.sinks.wandb import Wandb

    return Wandb(out)


def configs(trainer: Trainer, start: grid.Rows, labels: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """What is told of each run that begins with a row of `start`: labels, agent, environment and its parameters as far as they
    are numbers (`env.NAME`), and the fields of the configuration."""
    shared = {"agent": trainer.agent_name, "env": trainer.env_name, **config_.to_dict(trainer.config)}
    own = {name: np.asarray(value) for name, value in {**labels, **start.hp}.items()}
    for name, path in grid.param_paths(start.env_params).items():
        value: Any = start.env_params
        for part in path:
            value = getattr(value, part)
        if np.ndim(value) == 1:
            own[f"env.{name}"] = np.asarray(value)
    return {int(run): shared | {name: _plain(value[k]) for name, value in own.items()} for k, run in enumerate(own["run"])}


def _plain(x: Any) -> Any:
    """A number as a user wrote it: 0.99, which a float32 only approaches."""
    return float(str(x)) if x.dtype == np.float32 else x.item()
