"""A batch of runs of a plan as one call of `Session`: with what each run begins, how it is named, and its table.

A batch that is short of runs is filled up with copies of its last one, so that its program is the one of a full batch.
"""

from __future__ import annotations

import jax
import numpy as np
import pandas as pd

from rlx import config as config_
from rlx import grid
from rlx.sweeps.plan import ENV, Batch, Plan
from rlx.trainer import Trainer
from rlx.training import Callback, RunConfig, Session


def real(batch: Batch) -> Batch:
    """The runs of a batch without what fills it up."""
    return list(dict.fromkeys(batch))


def labels(batch: Batch) -> dict[str, np.ndarray]:
    """Columns of the batch's table. What fills it up has negative run numbers of its own."""
    runs, configs, seeds = map(np.asarray, zip(*batch, strict=True))
    place = np.arange(len(batch))
    return {"run": np.where(place < len(real(batch)), runs, -1 - place), "config": configs, "seed": seeds}


def rows(plan: Plan, trainer: Trainer, batch: Batch) -> grid.Rows:
    """What the runs of a batch begin with."""
    names = [name for name in plan.space if name.startswith(ENV) or config_.fields(type(trainer.config))[name].traced]
    at = {c: k for k, c in enumerate(dict.fromkeys(c for _, c, _ in batch))}
    values = {name: [plan.configs[c][name] for c in at] for name in names}
    hp = {name: v for name, v in values.items() if not name.startswith(ENV)}
    params = {name.removeprefix(ENV): v for name, v in values.items() if name.startswith(ENV)}
    start = trainer.rows(1, hp, params)
    row = [at[c] if names else 0 for _, c, _ in batch]
    start = jax.tree.map(lambda x: np.asarray(x)[row], start)
    return start._replace(seeds=np.asarray([seed for _, _, seed in batch], np.uint32))


def train(
    plan: Plan, trainer: Trainer, batch: Batch, config: RunConfig, callback: Callback | None = None, name: str = ""
) -> pd.DataFrame | None:
    """The table of the batch's runs, or None where it was interrupted. `name` is for its run.json."""
    start = rows(plan, trainer, batch)
    result = Session(trainer, config, callback, False, {"batch": name}, start, labels(batch), lasting=False).train()
    return None if result.interrupted else result.metrics[result.metrics["run"] >= 0].reset_index(drop=True)
