"""Weights & Biases: one run of theirs for each run here, grouped by directory.

Their environment variables hold: `WANDB_MODE=offline` needs no network, and `wandb sync` sends it later; `WANDB_PROJECT` is rlx
by default.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import wandb

from rlx.errors import RlxError
from rlx.sinks import Row


def check() -> None:
    """Raises RlxError without an account, where one is needed."""
    settings = wandb.setup().settings
    if settings.mode in ("online", "run") and not wandb.login(prompt=False):
        raise RlxError("sinks: wandb is not logged in: run `wandb login`, or set WANDB_MODE=offline")


class Wandb:
    """Their server takes a step once and in order; offline there is nobody to ask. So `out/wandb.json` keeps the last step that
    each run has logged, and the name under which a resumed run goes on."""

    def __init__(self, out: Path):
        self.out, self.path = out, out / "wandb.json"
        stored: dict[str, Any] = {"id": secrets.token_hex(4), "steps": {}}
        if self.path.exists():
            stored = json.loads(self.path.read_text())
        self.id, self.logged = stored["id"], {int(run): step for run, step in stored["steps"].items()}
        self.open: dict[int, Any] = {}

    def log(self, run: int, config: Mapping[str, Any], rows: list[Row]) -> None:
        new = [row for row in rows if row[0] > self.logged.get(run, -1)]
        if not new:
            return
        if run not in self.open:
            self.open[run] = self._init(run, config)
        for step, values in new:
            self.open[run].log(values, step=step)
        self.logged[run] = new[-1][0]
        self._write()

    def _init(self, run: int, config: Mapping[str, Any]) -> Any:
        return wandb.init(
            project=os.environ.get("WANDB_PROJECT", "rlx"),
            group=self.out.resolve().name,
            name=f"{self.out.resolve().name}-{run}",
            id=f"{self.id}-{run}",
            resume="allow" if run in self.logged else None,
            config=dict(config),
            dir=self.out,
            reinit="create_new",  # the runs of a population are open beside one another
            settings=wandb.Settings(console="off", silent=True),
        )

    def _write(self) -> None:
        temporary = self.path.with_suffix(".json.tmp")
        temporary.write_text(json.dumps({"id": self.id, "steps": self.logged}))
        os.replace(temporary, self.path)

    def finish(self, runs: Sequence[int]) -> None:
        for run in runs:
            if run in self.open:
                self.open.pop(run).finish()

    def close(self) -> None:
        self.finish(list(self.open))
