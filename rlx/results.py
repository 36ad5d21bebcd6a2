"""What a training leaves behind: a table of metrics, a trainer, checkpoints; in memory and on disk.

Under `out`:  run.json  metrics.parquet  checkpoints/{last, best, step-N}; the command line adds table.csv and
learning_curve.png.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from gymnax.environments.environment import Environment

from rlx import agents, envs, grid, report
from rlx import config as config_
from rlx.errors import RlxError, unknown
from rlx.sinks import parquet
from rlx.trainer import Trainer
from rlx.types import Carry


class Result:
    """The outcome of `rlx.train`.

    metrics: a long table with one row per (run, step): `run, seed, step`, `return` (mean evaluation return; `return_0,
      return_1 ...` for a vector reward), `unfinished` (evaluation episodes that did not end), `episode_return,
      episode_length, episodes` (training episodes that ended since the last row), `nan_steps`, `updates` and the learner's
      losses. NaN where something was not measured.
    trainer: the Trainer, to continue or act with the carries of `carry("last")` and `carry("best")`.
    interrupted: whether this call of `train` stopped early, by Ctrl-C or a callback.
    """

    def __init__(
        self,
        metrics: pd.DataFrame,
        trainer: Trainer,
        out: Path | None,
        last: Carry | None = None,
        interrupted: bool = False,
    ):
        self.metrics, self.trainer, self.out, self.interrupted = metrics, trainer, out, interrupted
        self._last = last

    @property
    def returns(self) -> np.ndarray:
        """Mean evaluation returns, float64 `[runs, evaluations]` (or `[runs, evaluations, m]`), in order of steps."""
        names = return_columns(self.metrics)
        table = self.metrics[self.metrics["unfinished"].notna()]  # rows of evaluations
        runs = self.metrics["run"].nunique()
        stacked = np.stack([table.sort_values(["run", "step"])[n].to_numpy().reshape(runs, -1) for n in names], axis=-1)
        return stacked[..., 0] if names == ["return"] else stacked

    def carry(self, which: str = "last") -> Carry:
        """The state after the last step, or at the best evaluation; from memory or from `out`.

        A copy: `trainer.run` donates what it is given, and the next call gives the same again.
        """
        if which not in ("last", "best"):
            raise unknown("carry", which, ("last", "best"))
        if which == "last" and self._last is not None:
            return jax.tree.map(jnp.copy, self._last)
        if self.out is None:
            raise RlxError(f"the {which} carry was not stored: train with out=...")
        return self.trainer.restore(self.out / "checkpoints" / which)

    def to_pandas(self) -> pd.DataFrame:
        """A copy of `metrics`."""
        return self.metrics.copy()

    def table(self) -> pd.DataFrame:
        """One row: mean, IQM and 95% bootstrap interval over runs of the last evaluation."""
        return report.summary_table({self.trainer.name: self.metrics})

    def plot(self, path: str | Path = "learning_curve.png") -> Path:
        """The learning curve (IQM, 95% interval and single runs) as a PNG."""
        report.learning_curve({self.trainer.name: self.metrics}, Path(path), title=self.trainer.name)
        return Path(path)

    def best(self) -> dict[str, Any]:
        """The row of the run whose last evaluation is best: its number, seed, hyperparameters and return."""
        names = return_columns(self.metrics)
        if names != ["return"]:
            raise RlxError("best() needs a scalar reward: a vector reward has no single best run")
        rows = self.metrics.dropna(subset=["return"])
        if rows.empty:
            raise RlxError("best() needs an evaluation, and there was none")
        final = rows[rows["step"] == rows["step"].max()]
        row = final.loc[final["return"].idxmax()].to_dict()
        return {
            **config_.to_dict(self.trainer.config),
            **row,
            "run": int(row["run"]),
            "seed": int(row["seed"]),
            "step": int(row["step"]),
        }


def return_columns(metrics: pd.DataFrame) -> list[str]:
    """`["return"]`, or `["return_0", "return_1", ...]` for a vector reward."""
    vector = [c for c in metrics.columns if c.startswith("return_") and c.removeprefix("return_").isdigit()]
    return sorted(vector, key=lambda c: int(c.removeprefix("return_"))) or ["return"]


def merged(rows: Sequence[pd.DataFrame], labels: Iterable[str]) -> pd.DataFrame:
    """All rows, sorted by run and step, the columns that users look for first in front.

    What was recorded twice at a step, before and after an interruption, is one row: of each column the first value.
    """
    table = pd.concat(rows, ignore_index=True).groupby(["run", "step"], as_index=False).first()
    front = [*labels, "step", *return_columns(table), "unfinished"]
    table = table.reindex(columns=[*front, *(c for c in table.columns if c not in front)])
    return table.astype({"unfinished": np.float64})  # NaN without an evaluation, in some row or in none


def claim(out: Path, resume: bool) -> Path:
    """Create `out`; RlxError if it cannot be written, or holds what would be overwritten."""
    try:
        if (out / "run.json").exists():
            if not resume:
                raise RlxError(f"{out} holds results already: continue them with resume, or choose another out")
        elif out.is_dir() and any(out.iterdir()):
            raise RlxError(f"{out} is not empty and holds no rlx run: choose another out")
        out.mkdir(parents=True, exist_ok=True)
        (out / ".write-test").write_text("")
        (out / ".write-test").unlink()
    except OSError as error:
        raise RlxError(f"cannot write to out={str(out)!r}: {error.strerror}") from None
    return out


def write_description(out: Path, trainer: Trainer, extra: Mapping[str, Any]) -> None:
    """run.json: agent, environment, configuration, seeds, versions."""
    text = json.dumps({**trainer.identity(), **extra}, indent=2)
    (out / "run.json.tmp").write_text(text + "\n")
    (out / "run.json.tmp").replace(out / "run.json")


def read_description(out: Path) -> dict[str, Any]:
    """The contents of run.json; RlxError if `out` holds no run."""
    try:
        description = json.loads((out / "run.json").read_text())
        if not isinstance(description, dict):
            raise ValueError(f"it holds a {type(description).__name__}")
        return description
    except FileNotFoundError:
        sweep = " but a sweep, which rlx.sweeps.load reads" if (out / "plan.json").exists() else ": it has no run.json"
        raise RlxError(f"{out} holds no rlx run{sweep}") from None
    except (OSError, ValueError) as error:
        raise RlxError(f"{out}/run.json cannot be read: {error}") from None


def metrics(out: str | Path) -> pd.DataFrame:
    """The table stored under `out`; unlike `load` it needs neither the agent nor the environment."""
    read_description(Path(out))
    return parquet.read(Path(out) / "metrics.parquet")


def load(out: str | Path, env: Environment | None = None, agent: ModuleType | None = None) -> Result:
    """The result stored under `out`. A user's own environment and a user's own agent module are passed again."""
    out = Path(out)
    d = read_description(out)
    try:
        if d["own_agent"] and agent is None:
            raise RlxError(f"{out} was trained by {d['agent']}, an agent of the user's own: pass its module as agent=")
        module = agents.get(d["agent"]) if agent is None else agent
        config = config_.from_dict(module.Config, d["config"])
        if d["own_env"] and env is None:
            raise RlxError(f"{out} was trained on {d['env']}, an environment of the user's own: pass it as env=")
        native = envs.make(d["env"], **d["env_options"]) if env is None else env
        params = grid.params_from_json(native.default_params, d["env_params"])
        trainer = Trainer(module, env or d["env"], config, env_options=d["env_options"], env_params=params)
    except (TypeError, AttributeError) as error:
        raise RlxError(f"{out}/run.json is not the description of an rlx run: {error}") from None
    except KeyError as error:
        raise RlxError(f"{out}/run.json has no entry {error}: it is not an rlx run, or of another version") from None
    return Result(metrics(out), trainer, out)


def evaluate(
    out: str | Path,
    episodes: int = 100,
    seed: int = 0,
    which: str = "last",
    env: Environment | None = None,
    agent: ModuleType | None = None,
) -> np.ndarray:
    """Returns of exactly `episodes` greedy episodes of every run stored under `out` -> float32 `[runs, episodes(, m)]`."""
    if not 0 <= seed < 2**32:
        raise RlxError(f"seed={seed} must lie in [0, 2^32)")
    result = load(out, env, agent)
    return np.asarray(result.trainer.evaluate(result.carry(which), episodes, jax.random.key(seed)))
