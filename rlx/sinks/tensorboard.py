"""TensorBoard's event files: `out/tensorboard/run-N`, one directory a run, its configuration in the HPARAMS tab."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter
from tensorboardX.summary import hparams

from rlx.sinks import Row


class TensorBoard:
    """Event files cannot be changed, so the first rows of a run, in a resumed one the whole table, replace its directory.

    Each call of `log` adds a file and closes it: a thousand runs have no thousand open files.
    """

    def __init__(self, out: Path):
        self.directory = out / "tensorboard"
        self.logged: dict[int, int] = {}  # run -> last step

    def log(self, run: int, config: Mapping[str, Any], rows: list[Row]) -> None:
        directory = self.directory / f"run-{run}"
        new = [row for row in rows if row[0] > self.logged.get(run, -1)]
        if not new:
            return
        if run not in self.logged:
            shutil.rmtree(directory, ignore_errors=True)
        suffix = f".{new[0][0]:020d}"  # names order files within a second
        with SummaryWriter(str(directory), filename_suffix=suffix) as writer:
            if run not in self.logged:
                plain = {name: x if isinstance(x, (bool, int, float, str)) else str(x) for name, x in config.items()}
                for summary in hparams(plain, dict.fromkeys(rows[-1][1], 0.0)):
                    writer.file_writer.add_summary(summary)
            for step, values in new:
                for name, value in values.items():
                    writer.add_scalar(name, value, step)
        self.logged[run] = new[-1][0]

    def finish(self, runs: Sequence[int]) -> None: ...

    def close(self) -> None: ...
