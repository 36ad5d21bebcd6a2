"""`rlx.sweep`: the runs of a plan, batch by batch, and what they leave.

Under `out`:  plan.json  finished.csv (a line for each batch that is done)  batches/G-B.parquet  batches/G-B/ (with
`save_every`, the batch in progress)  metrics.parquet, table.csv and best.toml (of all that is done)  confirm.parquet (the best
configuration on fresh seeds)
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import filelock
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from rlx import agents, checkpoint, sinks
from rlx import config as config_
from rlx.errors import RlxError, unknown
from rlx.interrupt import SigInt
from rlx.results import return_columns
from rlx.sinks import parquet
from rlx.sinks.console import Progress
from rlx.sweeps import batch as batch_
from rlx.sweeps import plan as plan_
from rlx.sweeps import space as space_
from rlx.sweeps.confirm import confirm
from rlx.sweeps.plan import Batch, Group, Plan, SweepConfig
from rlx.sweeps.results import SweepResult, finished, merged
from rlx.trainer import Trainer
from rlx.training import TRAINER_KEYWORDS, RunConfig
from rlx.types import Carry

PROBED = 16  # a batch of so many runs or more is measured before it is taken
PROBE_SECONDS = 0.5
LOSS = 0.95  # of the throughput of a single run that a batch may not fall below, in runs x steps per second


def sweep(
    agent: str,
    env: str,
    space: Mapping[str, Any] | str | Iterable[str],
    *,
    progress: bool = True,
    dry_run: bool = False,
    **kwargs: Any,
) -> SweepResult:
    """Train every configuration of a space with every seed -> SweepResult.

    space: `{field: values}` or words `field=values`, see `rlx.sweeps.space`; an environment's parameter is `env.NAME`.
    kwargs: the fields of `SweepConfig` (those of `rlx.train` and `configs, method, space_seed, batch_of_runs, devices`), of
      `rlx.make` (`config, preset, env_options, env_params`) and of the agent's Config.
    dry_run: print the plan and return; nothing compiles, nothing is written.

    Runs that share their static fields are one program; it is compiled once and trains them in batches. With `out`, each
    finished batch is stored, `resume` runs only what is missing, and the result does not depend on how often it was
    interrupted. `save_every` also stores the batch in progress at these steps; without it an interrupted batch begins anew.
    Sinks get each finished batch; the confirmation on fresh seeds is in the report only.
    A run whose losses are not finite has failed: its record ends there, and it counts as failed.

    Raises RlxError for any bad input before anything compiles.
    """
    if not isinstance(agent, str) or not isinstance(env, str):
        raise RlxError("a sweep needs an agent and an environment by name")
    config = agents.get(agent).Config
    run_fields, valid = config_.fields(SweepConfig), [*config_.fields(config), *TRAINER_KEYWORDS]
    for name in kwargs:
        if name not in run_fields and name not in valid:
            raise unknown("field", name, [*run_fields, *valid])
    run = SweepConfig(**{name: kwargs.pop(name) for name in run_fields if name in kwargs})
    if run.resume and run.out is None:
        raise RlxError("resume needs out: the directory of the sweep to continue")
    sinks.check(run.sinks, run.out)
    if run.keep:
        raise RlxError(f"keep={run.keep} is for rlx.train: a sweep keeps tables, and no checkpoints")
    plan, trainers = plan_.make(agent, env, space_.space(space), run, kwargs)
    if dry_run:
        print(plan_.describe(plan))
        return SweepResult(pd.DataFrame(), plan, None)
    if run.out is None:
        return Sweep(plan, trainers, run, None, progress).run_all()
    out = Path(run.out)
    with locked(out):
        stored = claim(out, plan, run.resume)
        return Sweep(plan, trainers, run, out, progress, decided=stored).run_all()


def locked(out: Path) -> AbstractContextManager[Any]:
    """The lock of `out`, which ends with the context or the process; RlxError where another one has it, or `out` is foreign."""
    own = (".lock", "plan.json", "plan.json.tmp")  # all that a sweep leaves before its first batch
    try:
        out.mkdir(parents=True, exist_ok=True)
        if not (out / "plan.json").exists() and any(path.name not in own for path in out.iterdir()):
            raise RlxError(f"{out} is not empty and holds no sweep: choose another out")
        return filelock.FileLock(out / ".lock", timeout=0).acquire()
    except filelock.Timeout:
        raise RlxError(f"{out} is in use by another sweep: wait for it, or choose another out") from None
    except OSError as error:
        raise RlxError(f"cannot write to out={str(out)!r}: {error.strerror}") from None


def claim(out: Path, plan: Plan, resume: bool) -> bool:
    """Whether `out` holds this sweep, whose layout `plan` then takes, for the same bits; False for a new one. RlxError where
    it holds another one, or is not to be continued."""
    if not (out / "plan.json").exists():
        return False
    stored = Plan.read(out / "plan.json")
    if not resume:
        raise RlxError(f"{out} holds a sweep already: continue it with resume, or choose another out")
    if different := stored.same_runs(plan):
        raise RlxError(f"{out} holds another sweep, which differs in {'; '.join(different)}")
    for group, its in zip(plan.groups, stored.groups, strict=True):
        group.batch = its.batch
    return True


class Sweep:
    """One call of `sweep`: `plan` is done when every batch is in `finished`. `decided`: the sizes of batches are."""

    def __init__(
        self, plan: Plan, trainers: list[Trainer], run: SweepConfig, out: Path | None, progress: bool, decided: bool = False
    ):
        self.plan, self.trainers, self.run, self.out, self.progress = plan, trainers, run, out, progress
        self.decided = decided or run.batch_of_runs is not None
        self.finished: dict[str, pd.DataFrame] = {}
        self.interrupted = False

    def run_all(self) -> SweepResult:
        plan = self.plan
        named = f"{plan.agent} on {plan.env}"
        with (
            Progress(plan.runs * plan.fixed["steps"], named, self.progress) as bar,
            SigInt() as sigint,
            sinks.opened(self.run.sinks, self.out) as self.mirror,
        ):
            bar.announce(plan_.describe(plan))
            if not self.decided:
                self._decide(bar, sigint)
            if self.out and not sigint.received:  # while measuring: nothing is decided
                plan.write(self.out / "plan.json")
                self._read_finished(self.out)
            work = plan.work()
            for name in self.finished:  # a sink may have missed the last one
                self._mirror(name)
            done = sum(len(batch_.real(batch)) for name, (_, batch) in work.items() if name in self.finished)
            bar.update(done * plan.fixed["steps"])
            todo = {name: job for name, job in work.items() if name not in self.finished}
            started = time.perf_counter()
            for k, (name, (g, batch)) in enumerate(todo.items()):
                if self.interrupted or sigint.received:
                    self.interrupted = True
                    break
                self._train(name, g, batch, bar, done)
                done += len(batch_.real(batch))
                if k == 0 and len(todo) > 1 and not self.interrupted:
                    seconds = time.perf_counter() - started
                    left = seconds / len(batch_.real(batch)) * (plan.runs - done)
                    bar.announce(f"first batch in {seconds:.0f} s, compilation included; about {left / 60:.1f} min left")
            tables = [self.finished[name] for name in work if name in self.finished]
            result = SweepResult(merged(tables, plan), plan, self.out, interrupted=self.interrupted)
            if self.out and self.finished:
                result.write(self.out)
                if len(self.finished) == len(work) and not sigint.received and _has_best(result):
                    result.interrupted = confirm(plan, self.trainers, result, self.out, bar) is None
        return result

    # --- the size of a batch -----------------------------------------------------------------------------------------

    def _decide(self, bar: Progress, sigint: SigInt) -> None:
        """The size of batches: as large as memory allows, unless smaller ones are faster; measured on the largest group."""
        plan = self.plan
        g = max(range(len(plan.groups)), key=lambda g: len(plan.groups[g].configs))
        largest = plan.groups[g].batch
        if largest < PROBED:
            return
        bar.announce(f"measuring batches of up to {largest} runs")
        best = self._fastest(g, largest, sigint)
        for group in plan.groups:
            group.batch = plan_.evenly(len(group.configs) * len(plan.seeds), min(best, group.batch), self.run.devices)
        bar.announce(f"batches of {', '.join(str(group.batch) for group in plan.groups[:20])} runs")

    def _fastest(self, g: int, largest: int, sigint: SigInt) -> int:
        """The largest of `largest`, a quarter of it ... that is at most 5% slower than a single run, in run-steps per second,
        and than the next smaller one."""
        devices = self.run.devices
        throughput = lambda runs: self._throughput(self.trainers[g], self.plan.groups[g], runs)
        single, size = LOSS * throughput(devices), largest
        rate = throughput(size)
        while not sigint.received and (smaller := size // 4 // devices * devices) > devices:
            other = throughput(smaller)
            if rate >= max(single, LOSS * other):
                return size
            size, rate = smaller, other
        return size if rate >= single else devices

    def _throughput(self, trainer: Trainer, group: Group, runs: int) -> float:
        """Env steps per second of so many runs together, while learning (the counter is set far ahead), not compiling."""
        batch = (self.plan.of(group) * runs)[:runs]
        carry: Carry = trainer.start(batch_.rows(self.plan, trainer, batch))
        carry, n = carry.replace(i=jnp.uint32(2**30)), 1
        totals = trainer.no_totals(carry)
        carry, totals = jax.block_until_ready(trainer.advance(carry, totals, n))
        while True:
            started = time.perf_counter()
            carry, totals = jax.block_until_ready(trainer.advance(carry, totals, n))
            seconds = time.perf_counter() - started
            if seconds >= PROBE_SECONDS:
                return runs * n * trainer.steps_per_iteration / seconds
            n *= 2

    # --- a batch -----------------------------------------------------------------------------------------------------

    def _train(self, name: str, g: int, batch: Batch, bar: Progress, done: int) -> None:
        plan, trainer, runs = self.plan, self.trainers[g], len(batch_.real(batch))
        directory = self.out / "batches" / name if self.out and self.run.save_every else None
        if directory is not None and not checkpoint.exists(directory / "checkpoints" / "last"):
            shutil.rmtree(directory, ignore_errors=True)  # nothing to resume
        own = {f: getattr(self.run, f) for f in ("steps", "eval_every", "eval_episodes", "save_every", "log_every")}
        config = RunConfig(**own, out=None if directory is None else str(directory), resume=directory is not None)

        def shown(step: int, metrics: dict[str, np.ndarray], carry: Carry) -> None:
            bar.update(done * plan.fixed["steps"] + step * runs)

        table = batch_.train(plan, trainer, batch, config, shown, name)
        if table is None:
            self.interrupted = True
            return
        self.finished[name] = table
        if self.out is not None:
            self._store(name, self.out)
        self._mirror(name)

    def _mirror(self, name: str) -> None:
        """The finished batch to the sinks."""
        if self.run.sinks:
            g, batch = self.plan.work()[name]
            start, labels = batch_.rows(self.plan, self.trainers[g], batch), batch_.labels(batch)
            self.mirror.write(self.finished[name], sinks.configs(self.trainers[g], start, labels), final=True)

    def _store(self, name: str, out: Path) -> None:
        """The finished batch: first its table, then the line that says so, then nothing is left to resume."""
        parquet.write(out / "batches" / f"{name}.parquet", self.finished[name])
        with (out / "finished.csv").open("a") as file:
            file.write(self._line(name))
        shutil.rmtree(out / "batches" / name, ignore_errors=True)

    def _line(self, name: str) -> str:
        return f"{name},{self.finished[name]['run'].nunique()}\n"

    def _read_finished(self, out: Path) -> None:
        """What is done, and away with what a process that died has left: half a line, the state of a batch that is done."""
        self.finished = finished(out, self.plan)
        temporary = out / "finished.csv.tmp"
        temporary.write_text("".join(map(self._line, self.finished)))
        temporary.replace(out / "finished.csv")
        for name in self.finished:
            shutil.rmtree(out / "batches" / name, ignore_errors=True)


def _has_best(result: SweepResult) -> bool:
    return return_columns(result.metrics) == ["return"] and bool(np.isfinite(result.table()["iqm"].iloc[0]))
