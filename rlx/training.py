"""`rlx.train`: the host's side of a run. Segments, evaluations, checkpoints, progress; everything else is compiled."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
import pandas as pd

from rlx import agents, cache, checkpoint, footprint, grid, loop, results, sinks
from rlx import config as config_
from rlx.errors import RlxError, unknown
from rlx.interrupt import SigInt
from rlx.loop import Totals
from rlx.results import Result
from rlx.sinks import parquet
from rlx.sinks.console import Progress
from rlx.trainer import Trainer
from rlx.types import Carry
from rlx.versions import versions

EVALUATIONS = 20  # at most, in one run, by default
SAVES = 4  # at most, the last included, by default
CHUNK_SECONDS = 0.5  # between two looks at the clock: progress bar, Ctrl-C

TRAINER_KEYWORDS = ("config", "preset", "env_options", "env_params")

Score = tuple[int, float]
WORST = (-(2**32), 0.0)  # than any evaluation

Callback = Callable[[int, dict[str, np.ndarray], Carry], Any]


@dataclass(frozen=True)
class RunConfig(config_.Config):
    steps: int = 100_000  # env steps of one run, all its environments together; with resume, the total
    seeds: int | tuple[int, ...] = 1  # number of seeds, or the seeds themselves
    out: str | None = None  # directory of results; None: the CLI picks one, Python stores nothing
    eval_every: int | None = None  # env steps between evaluations; None: at most 20 in all
    eval_episodes: int = 10  # episodes of one evaluation of one run
    save_every: int | None = None  # env steps between checkpoints; None: at most 4, the last included
    keep: int = 0  # numbered checkpoints kept beside last and best
    log_every: int | None = None  # env steps between table rows; None: as eval_every
    resume: bool = False  # continue what is stored in out
    sinks: tuple[str, ...] = ()  # tensorboard, wandb: where the rows of the table go besides out

    bounds: ClassVar = {"eval_episodes": (1, float("inf")), "keep": (0, float("inf"))}


def train(agent: Any, env: Any, *, callback: Callback | None = None, progress: bool = True, **kwargs: Any) -> Result:
    """Train a population of seeds as one program -> Result.

    agent, env: names, or an agent module and a gymnax Environment.
    kwargs: the fields of RunConfig (`steps, seeds, out, eval_every, eval_episodes, save_every, keep, log_every, resume,
      sinks`), of `rlx.make` (`config, preset, env_options, env_params`) and of the agent's Config. A population hook is for
      `rlx.make`.
    callback: `callback(step, metrics, carry)` on the host after each segment, that is where a table row is written.
      metrics are `{name: [R, ...]}`; a truthy result stops the training. The carry is valid during the call: copy what is
      to be kept.

    With `out`, results and checkpoints are written as training goes on, each atomically. Ctrl-C ends the current chunk, stores
    and returns what there is (`result.interrupted`). A second Ctrl-C interrupts at once: like every exception, the callback's
    too, it passes after storing. One that the compiled program itself raises takes the state with it: what remains is stored
    already.

    Raises RlxError for any bad input before anything compiles.
    """
    module = agents.get(agent) if isinstance(agent, str) else agent
    run_fields, valid = config_.fields(RunConfig), [*config_.fields(module.Config), *TRAINER_KEYWORDS]
    for name in kwargs:
        if name not in run_fields and name not in valid:
            raise unknown("field", name, [*run_fields, *valid])
    if callback is not None and not callable(callback):
        raise RlxError(f"callback must be a function of (step, metrics, carry), not {type(callback).__name__}")
    run = RunConfig(**{name: kwargs.pop(name) for name in run_fields if name in kwargs})
    trainer = Trainer(agent, env, **kwargs)
    own = {"own_agent": agents.AGENTS.get(trainer.agent_name) is not module, "own_env": not isinstance(env, str)}
    return Session(trainer, run, callback, progress, own).train()


class Session:
    """The training of one population: what is fixed before it begins is checked in `__init__`.

    `start`, `labels`: the runs, and the first columns `[R]` of their table; by default `run.seeds` of the trainer's
    configuration. `own` is what run.json says besides. Not `lasting`: checkpoints are for resuming only, where `save_every`
    says, none of the best and none at the end. Then `carry` is the newest state, `rows` the table so far, `totals`
    what was measured since its last row, `best` the best score so far.
    """

    carry: Carry
    totals: Totals
    mirror: sinks.Sinks

    def __init__(
        self,
        trainer: Trainer,
        run: RunConfig,
        callback: Callback | None,
        progress: bool,
        own: Mapping[str, Any],
        start: grid.Rows | None = None,
        labels: Mapping[str, Any] | None = None,
        lasting: bool = True,
    ):
        self.trainer, self.run, self.callback, self.progress, self.own = trainer, run, callback, progress, own
        self.lasting = lasting
        self.start = start = trainer.rows(run.seeds, {}, {}) if start is None else start
        self.labels = labels or {"run": np.arange(len(start.seeds)), "seed": np.asarray(start.seeds)}
        self.total = trainer.iterations(run.steps)
        self.eval_every = self._every("eval_every", run.eval_every, EVALUATIONS)
        self.log_every = self._every("log_every", run.log_every, 0) or self.eval_every
        saves = SAVES if lasting or run.save_every else 0
        self.save_every = self._every("save_every", run.save_every, saves) or self.total + 1
        span = min(self.total, self.eval_every, self.log_every, self.save_every) * trainer.steps_per_iteration
        if span >= loop.MAX_REPORT:
            raise RlxError(f"log_every={span} must be below 2^31 env steps, which a report's int32 counts can hold")
        if trainer.spec.max_episode_steps is None:
            raise RlxError(f"{trainer.env_name} has no time limit, so it cannot be evaluated: wrap it in rlx.envs.TimeLimit")
        sinks.check(run.sinks, run.out)
        if run.resume and run.out is None:
            raise RlxError("resume needs out: the directory of the run to continue")
        self.size = footprint.size(jax.eval_shape(lambda: trainer.start(start)))  # raises where there is no memory
        self.out = None if run.out is None else results.claim(Path(run.out), run.resume)
        self.rows: list[pd.DataFrame] = []
        self.best: Score = WORST
        self.interrupted = False

    def _every(self, name: str, steps: int | None, parts: int) -> int:
        """A period in iterations; where none is given, so that at most `parts` periods fit (0 for none)."""
        if steps is not None:
            return self.trainer.iterations(steps, name)
        return -(-self.total // parts) if parts else 0

    # --- the run -----------------------------------------------------------------------------------------------------

    def train(self) -> Result:
        stored = self._stored()
        with Progress(self.run.steps, self.trainer.name, self.progress) as bar, SigInt() as sigint:
            self._compile(stored, bar)
            bar.update(self.trainer.steps(self.carry))
            try:
                with sinks.opened(self.run.sinks, self.out) as self.mirror:
                    self._loop(bar, sigint)
            except BaseException as error:
                self._rescue(error)
                raise
        table = results.merged(self.rows, self.labels)
        return Result(table, self.trainer, self.out, last=self.carry, interrupted=self.interrupted)

    def _stored(self) -> Carry | None:
        """The carry to continue, its table in `rows`; None to begin."""
        if not (self.out and self.run.resume and checkpoint.exists(self.out / "checkpoints" / "last")):
            return None
        carry = self.trainer.restore(self.out / "checkpoints" / "last")
        if (stored_seeds := carry.runs.seed.tolist()) != (seeds := self.start.seeds.tolist()):
            raise RlxError(f"seeds={seeds} differ from the stored run's {stored_seeds}")
        done = self.trainer.steps(carry)
        if done > self.run.steps:
            raise RlxError(f"steps={self.run.steps} is the total with resume, and {self.out} has {done} already")
        stored = parquet.read(self.out / "metrics.parquet")
        self.rows = [stored[stored["step"] <= done]]
        self.best = _score(self.rows[0])
        return carry

    def _compile(self, carry: Carry | None, bar: Progress) -> None:
        """All programs, with a fresh carry where none is given."""
        cache.make_room()
        trainer, runs = self.trainer, len(self.start.seeds)
        cached = jax.config.values["jax_compilation_cache_dir"]
        each = f"{runs} x {footprint.human(self.size / runs)} = {footprint.human(self.size)}"
        bar.announce(f"{trainer.name}: {runs} runs, {each}; compiling{f', cache in {cached}' if cached else ''}")
        started = time.perf_counter()
        if carry is None:
            carry = trainer.start(self.start)
            if self.out:
                extra = {**self.own, "run": config_.to_dict(self.run), "versions": versions()}
                results.write_description(self.out, trainer, extra)
        self.carry, self.totals = trainer.advance(carry, trainer.no_totals(carry), 0)
        trainer.evaluate(self.carry, self.run.eval_episodes, max_episode_steps=1)  # the program is that of any number of steps
        jax.block_until_ready(self.carry)
        bar.announce(f"compiled in {time.perf_counter() - started:.1f} s")

    def _loop(self, bar: Progress, sigint: SigInt) -> None:
        trainer = self.trainer
        i, chunk = int(self.carry.i), 1
        owed = self._due(i) and self._unevaluated(trainer.steps(self.carry))
        while (i < self.total or owed) and not self.interrupted:
            periods = self.eval_every, self.log_every, self.save_every
            stop = min(self.total, *((i // every + 1) * every for every in periods))
            stop, owed = i if owed else stop, False
            while i < stop and not sigint.received:
                n = min(chunk, stop - i)
                started = time.perf_counter()
                self.carry, self.totals = trainer.advance(self.carry, self.totals, n)
                i = int(self.carry.i)  # waits for the device
                seconds = time.perf_counter() - started
                chunk = max(1, min(2 * chunk, int(n * CHUNK_SECONDS / max(seconds, 1e-9))))
                if i < stop:  # else with what is measured there
                    bar.update(trainer.steps(self.carry))
            self.interrupted = sigint.received
            metrics = trainer.report(self.totals)
            if i == stop and self._due(i):
                metrics |= self._evaluate()
            self._record(metrics)
            shown = float(np.nanmean(metrics["return"])) if np.isfinite(metrics.get("return", np.nan)).any() else np.nan
            bar.update(trainer.steps(self.carry), **{"return": shown})
            self._store(i)
            if self.callback is not None:
                self.interrupted |= bool(self.callback(trainer.steps(self.carry), metrics, self.carry))
            self.interrupted |= sigint.received
        if self.interrupted and self.out and self.lasting:
            self._save("last")

    def _due(self, i: int) -> bool:
        """Whether there is an evaluation after iteration i."""
        return i > 0 and (i % self.eval_every == 0 or i == self.total)

    def _unevaluated(self, step: int) -> bool:
        """Whether the stored table has a row there without an evaluation: it was interrupted, or not due in that run."""
        return any(rows.loc[rows["step"] == step, "unfinished"].isna().any() for rows in self.rows)

    def _evaluate(self) -> dict[str, np.ndarray]:
        """Mean returns `[R(, m)]` of finished episodes, and the number of unfinished ones."""
        key = jax.random.fold_in(jax.random.key(1), self.carry.i)  # fresh episodes each time, the same in a repeat
        returns = np.asarray(self.trainer.evaluate(self.carry, self.run.eval_episodes, key))
        mean = np.ma.masked_array(returns, np.isnan(returns)).mean(1).filled(np.nan)
        return {"return": mean, "unfinished": np.isnan(returns).reshape(*returns.shape[:2], -1).any(-1).sum(1)}

    # --- what it leaves ----------------------------------------------------------------------------------------------

    def _record(self, metrics: dict[str, np.ndarray]) -> None:
        columns: dict[str, Any] = {**self.labels, "step": self.trainer.steps(self.carry)}
        for name, value in metrics.items():
            if value.ndim == 1:
                columns[name] = value
            else:  # a vector reward: one column per objective
                columns |= {f"{name}_{j}": value[:, j] for j in range(value.shape[1])}
        self.rows.append(pd.DataFrame(columns))
        self.totals = self.trainer.no_totals(self.carry)

    def _write_table(self) -> None:
        if self.out:
            parquet.write(self.out / "metrics.parquet", results.merged(self.rows, self.labels))

    def _save(self, name: str) -> None:
        assert self.out is not None
        self._write_table()  # first, so that a checkpoint never has less of a table than its step
        self.trainer.save(self.carry, self.out / "checkpoints" / name)

    def _save_best(self, rows: pd.DataFrame) -> None:
        if self.lasting and (score := _score(rows)) > self.best:
            self._save("best")
            self.best = score

    def _store(self, i: int) -> None:
        """Checkpoints that are due at iteration i: last and numbered ones on schedule, best after an evaluation."""
        if not self.out:
            return
        self._write_table()
        if self.run.sinks:
            configs = sinks.configs(self.trainer, self.start, self.labels)
            self.mirror.write(results.merged(self.rows, self.labels), configs, final=i == self.total)
        self._save_best(self.rows[-1])
        if i % self.save_every == 0 or (i == self.total and self.lasting):
            if self.run.keep:
                self._save(f"step-{self.trainer.steps(self.carry)}")
                number = lambda path: path.name.removeprefix("step-")
                numbered = [p for p in (self.out / "checkpoints").glob("step-*") if number(p).isdigit()]
                for path in sorted(numbered, key=lambda p: int(number(p)))[: -self.run.keep]:
                    shutil.rmtree(path)
            self._save("last")  # last, so that everything up to its step is there

    def _rescue(self, error: BaseException) -> None:
        """Store what there is, where the state outlived the error; its traceback says so where it did not."""
        if not (self.out and self.lasting):
            return
        try:
            jax.block_until_ready((self.carry, self.totals))  # raises where a program was given them and failed
            self._record(self.trainer.report(self.totals))
            try:
                self._write_table()
            finally:  # the state is worth more than the table
                self.trainer.save(self.carry, self.out / "checkpoints" / "last")
            self._save_best(results.merged(self.rows, self.labels))
        except Exception as failure:
            error.add_note(f"rlx could not store the state in {self.out}: {str(failure).partition(chr(10))[0]}")


def _score(rows: pd.DataFrame) -> Score:
    """The best evaluation in these rows, for `best`: as few runs without a return as possible, then the mean of the others."""
    if "return" not in rows:  # none, or a vector reward
        return WORST
    steps = (returns for _, returns in rows.groupby("step")["return"] if returns.notna().any())
    return max(((-int(returns.isna().sum()), float(returns.mean())) for returns in steps), default=WORST)
