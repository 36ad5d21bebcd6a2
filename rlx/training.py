"""`rlx.train`: the host's side of a run. Segments, evaluations, checkpoints, progress; everything else is compiled."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import jax
import numpy as np
import pandas as pd

from rlx import agents, cache, checkpoint, footprint, grid, results
from rlx import config as config_
from rlx.errors import RlxError, unknown
from rlx.results import Result
from rlx.sinks import parquet
from rlx.sinks.console import Progress
from rlx.trainer import Trainer
from rlx.types import Carry
from rlx.versions import versions

EVALUATIONS = 20  # by default, in one run
SAVES = 4  # by default, before the last
CHUNK_SECONDS = 0.5  # between two looks at the clock: progress bar, Ctrl-C

TRAINER_KEYWORDS = ("config", "preset", "env_options", "env_params", "population")

Callback = Callable[[int, dict[str, np.ndarray], Carry], Any]


@dataclass(frozen=True)
class RunConfig(config_.Config):
    steps: int = 100_000  # env steps of one run, all its environments together; with resume, the total
    seeds: int | tuple[int, ...] = 1  # number of seeds, or the seeds themselves
    out: str | None = None  # directory of results; None: the CLI picks one, Python stores nothing
    eval_every: int | None = None  # env steps between evaluations; None: 20 in all
    eval_episodes: int = 10  # episodes of one evaluation of one run
    save_every: int | None = None  # env steps between checkpoints; None: 5 in all
    keep: int = 0  # numbered checkpoints kept beside last and best
    log_every: int | None = None  # env steps between table rows; None: as eval_every
    resume: bool = False  # continue what is stored in out

    bounds: ClassVar = {"eval_episodes": (1, float("inf")), "keep": (0, float("inf"))}


def train(agent: Any, env: Any, *, callback: Callback | None = None, progress: bool = True, **kwargs: Any) -> Result:
    """Train a population of seeds as one program -> Result.

    agent, env: names, or an agent module and a gymnax Environment.
    kwargs: the fields of RunConfig (`steps, seeds, out, eval_every, eval_episodes, save_every, keep, log_every, resume`), of
      `rlx.make` (`config, preset, env_options, env_params, population`) and of the agent's Config.
    callback: `callback(step, metrics, carry)` on the host after each segment, that is where a table row is written.
      metrics are `{name: [R, ...]}`; a truthy result stops the training; an exception passes, after saving. The carry is
      valid during the call: copy what is to be kept.

    With `out`, results and checkpoints are written as training goes on, each atomically. Ctrl-C ends the current chunk, stores
    and returns what there is (`result.interrupted`); a second Ctrl-C interrupts at once.

    Raises RlxError for any bad input before anything compiles.
    """
    module = agents.get(agent) if isinstance(agent, str) else agent
    run_fields, valid = config_.fields(RunConfig), [*config_.fields(module.Config), *TRAINER_KEYWORDS]
    for name in kwargs:
        if name not in run_fields and name not in valid:
            raise unknown("field", name, [*run_fields, *valid])
    run = RunConfig(**{name: kwargs.pop(name) for name in run_fields if name in kwargs})
    trainer = Trainer(agent, env, **kwargs)
    return Session(trainer, run, callback, progress, own_env=not isinstance(env, str)).train()


class Session:
    """One call of `train`: what is fixed before it starts is checked in `__init__`, what it produces is in `rows`."""

    def __init__(self, trainer: Trainer, run: RunConfig, callback: Callback | None, progress: bool, own_env: bool):
        self.trainer, self.callback, self.progress, self.own_env = trainer, callback, progress, own_env
        self.total = trainer.iterations(run.steps)
        self.eval_every = self._every("eval_every", run.eval_every, EVALUATIONS)
        self.log_every = self._every("log_every", run.log_every, 0) or self.eval_every
        self.save_every = self._every("save_every", run.save_every, SAVES)
        if trainer.spec.max_episode_steps is None:
            raise RlxError(f"{trainer.env_name} has no time limit, so it cannot be evaluated: wrap it in rlx.envs.TimeLimit")
        self.run, self.seeds = run, grid.seeds(run.seeds)
        jax.eval_shape(lambda: trainer.init(self.seeds))  # from shapes alone: is there memory for them?
        self.out = None if run.out is None else self._claim(Path(run.out))
        self.rows: list[pd.DataFrame] = []
        self.best = -np.inf
        self.interrupted = False

    def _every(self, name: str, steps: int | None, parts: int) -> int:
        """A period in iterations; where none is given, so that `parts` periods fit (0 for none)."""
        if steps is not None:
            return self.trainer.iterations(steps, name)
        return -(-self.total // parts) if parts else 0

    def _claim(self, out: Path) -> Path:
        """Create `out`; RlxError if it cannot be written or holds results that would be overwritten."""
        if (out / "run.json").exists():
            if not self.run.resume:
                raise RlxError(f"{out} holds results already: continue them with resume, or choose another out")
        elif out.is_dir() and any(out.iterdir()):
            raise RlxError(f"{out} is not empty and holds no rlx run: choose another out")
        try:
            out.mkdir(parents=True, exist_ok=True)
            (out / ".write-test").write_text("")
            (out / ".write-test").unlink()
        except OSError as error:
            raise RlxError(f"cannot write to out={str(out)!r}: {error.strerror}") from None
        return out

    # --- the run -----------------------------------------------------------------------------------------------------

    def train(self) -> Result:
        carry = self._begin()
        with Progress(self.run.steps, self.trainer.name, self.progress) as bar, SigInt() as sigint:
            bar.update(self.trainer.steps(carry))
            try:
                carry = self._loop(carry, bar, sigint)
            finally:
                if self.rows:
                    self._write_table()
        return Result(self.table(), self.trainer, self.out, last=carry, interrupted=self.interrupted)

    def _begin(self) -> Carry:
        """A fresh carry, or the stored one with its table."""
        trainer, run = self.trainer, self.run
        last = self.out / "checkpoints" / "last" if self.out else None
        if run.resume and last is None:
            raise RlxError("resume needs out: the directory of the run to continue")
        if run.resume and self.out and last and (last.exists() or checkpoint.exists(last)):
            carry = trainer.restore(last)
            if (seeds := carry.runs.seed.tolist()) != self.seeds:
                raise RlxError(f"seeds={self.seeds} differ from the stored run's {seeds}")
            done = trainer.steps(carry)
            if done > run.steps:
                raise RlxError(f"steps={run.steps} is the total with resume, and {self.out} has {done} already")
            stored = parquet.read(self.out / "metrics.parquet")
            self.rows = [stored[stored["step"] <= done]]
            self.best = self._score(self.rows[0])
            return carry
        carry = trainer.init(self.seeds)
        if self.out:
            extra = {"own_env": self.own_env, "run": config_.to_dict(run), "versions": versions()}
            results.write_description(self.out, trainer, extra)
        return carry

    def _loop(self, carry: Carry, bar: Progress, sigint: SigInt) -> Carry:
        trainer = self.trainer
        bar.announce(self._plan(carry))
        started = time.perf_counter()
        carry, totals = trainer.advance(carry, trainer.no_totals(carry), 0)
        jax.block_until_ready(carry)
        bar.announce(f"compiled in {time.perf_counter() - started:.1f} s")

        i, chunk = int(carry.i), 1
        while i < self.total and not self.interrupted:
            stop = min(_next(i, every) for every in (self.eval_every, self.log_every, self.save_every))
            stop = min(stop, self.total)
            while i < stop and not sigint.received:
                n = min(chunk, stop - i)
                started = time.perf_counter()
                carry, totals = trainer.advance(carry, totals, n)
                i = int(carry.i)  # waits for the device
                seconds = time.perf_counter() - started
                chunk = max(1, min(2 * chunk, int(n * CHUNK_SECONDS / max(seconds, 1e-9))))
                bar.update(trainer.steps(carry))
            self.interrupted = sigint.received
            metrics = trainer.report(totals)
            totals = trainer.no_totals(carry)
            if i == stop and (i % self.eval_every == 0 or i == self.total):
                metrics |= self._evaluate(carry)
            self._record(carry, metrics)
            bar.update(trainer.steps(carry), **_shown(metrics))
            self._store(carry, metrics, i)
            if self.callback is not None:
                self.interrupted |= self._call(carry, metrics)
            self.interrupted |= sigint.received
        if self.interrupted and self.out:
            self._save(carry, "last")
        return carry

    def _plan(self, carry: Carry) -> str:
        runs, size = len(carry.runs.seed), footprint.size(carry)
        where = f", cache in {cache.directory()}" if cache.directory() else ""
        each = f"{runs} x {footprint.human(size / runs)} = {footprint.human(size)}"
        return f"{self.trainer.name}: {runs} runs, {each}; compiling{where}"

    def _evaluate(self, carry: Carry) -> dict[str, np.ndarray]:
        """Mean returns `[R(, m)]` of finished episodes, and the number of unfinished ones."""
        key = jax.random.fold_in(jax.random.key(1), carry.i)  # fresh episodes each time, the same in a repeat
        returns = np.asarray(self.trainer.evaluate(carry, self.run.eval_episodes, key))
        unfinished = np.isnan(returns).reshape(*returns.shape[:2], -1).any(-1)
        with np.errstate(invalid="ignore"):
            mean = np.where(unfinished.reshape(unfinished.shape + (1,) * (returns.ndim - 2)), 0, returns).sum(1)
            finished = (~unfinished).sum(1).reshape(-1, *(1,) * (returns.ndim - 2))
            mean = np.where(finished > 0, mean / np.maximum(finished, 1), np.nan)
        return {"return": mean, "unfinished": unfinished.sum(1)}

    # --- what it leaves ----------------------------------------------------------------------------------------------

    def _record(self, carry: Carry, metrics: dict[str, np.ndarray]) -> None:
        columns: dict[str, Any] = {
            "run": range(len(carry.runs.seed)),
            "seed": carry.runs.seed,
            "step": self.trainer.steps(carry),
        }
        for name, value in metrics.items():
            if value.ndim == 1:
                columns[name] = value
            else:  # a vector reward: one column per objective
                columns |= {f"{name}_{j}": value[:, j] for j in range(value.shape[1])}
        self.rows.append(pd.DataFrame(columns))

    def table(self) -> pd.DataFrame:
        """All rows, sorted by run and step, the columns that users look for first in front."""
        table = pd.concat(self.rows, ignore_index=True)
        front = ["run", "seed", "step", *results.return_columns(table), "unfinished"]
        table = table.reindex(columns=[*front, *(c for c in table.columns if c not in front)])
        return table.sort_values(["run", "step"], ignore_index=True)

    def _write_table(self) -> None:
        if self.out:
            parquet.write(self.out / "metrics.parquet", self.table())

    def _save(self, carry: Carry, name: str) -> None:
        assert self.out is not None
        self._write_table()  # first, so that a checkpoint never has less of a table than its step
        self.trainer.save(carry, self.out / "checkpoints" / name)

    def _store(self, carry: Carry, metrics: dict[str, np.ndarray], i: int) -> None:
        """Checkpoints that are due at iteration i: last and numbered ones on schedule, best after an evaluation."""
        if not self.out:
            return
        self._write_table()
        if "return" in metrics and metrics["return"].ndim == 1 and (score := self._score(self.rows[-1])) > self.best:
            self.best = score
            self._save(carry, "best")
        if i % self.save_every == 0 or i == self.total:
            if self.run.keep:
                self._save(carry, f"step-{self.trainer.steps(carry)}")
                number = lambda path: path.name.removeprefix("step-")
                numbered = [p for p in (self.out / "checkpoints").glob("step-*") if number(p).isdigit()]
                for path in sorted(numbered, key=lambda p: int(number(p)))[: -self.run.keep]:
                    shutil.rmtree(path)
            self._save(carry, "last")  # last, so that everything up to its step is there

    def _score(self, rows: pd.DataFrame) -> float:
        """The population's best mean evaluation return in these rows: what `best` is best by."""
        if "return" not in rows or rows["return"].isna().all():
            return -np.inf
        return float(rows.groupby("step")["return"].mean().max())

    def _call(self, carry: Carry, metrics: dict[str, np.ndarray]) -> bool:
        assert self.callback is not None
        try:
            return bool(self.callback(self.trainer.steps(carry), metrics, carry))
        except BaseException:
            if self.out:
                self._save(carry, "last")
            raise


class SigInt:
    """Within the context a first Ctrl-C only sets `received`; a second one raises KeyboardInterrupt. Main thread only."""

    def __init__(self) -> None:
        self.received = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            raise KeyboardInterrupt
        self.received = True

    def __enter__(self) -> SigInt:
        self._main = threading.current_thread() is threading.main_thread()
        if self._main:
            self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self._main:
            signal.signal(signal.SIGINT, self._previous)


def _next(i: int, every: int) -> int:
    return (i // every + 1) * every


def _shown(metrics: dict[str, np.ndarray]) -> dict[str, float]:
    """What the progress bar shows: the mean evaluation return."""
    value = metrics.get("return")
    return {} if value is None or np.isnan(value).all() else {"return": float(np.nanmean(value))}
