"""`rlx.sweep`: the runs of a plan, batch by batch, and what they leave.

Under `out`:  plan.json  finished.csv (a line for each batch that is done)  batches/G-B.parquet  batches/G-B/ (the batch in
progress)  metrics.parquet, table.csv and best.toml (of all that is done)
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import filelock
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from rlx import agents
from rlx import config as config_
from rlx.errors import RlxError, unknown
from rlx.interrupt import SigInt
from rlx.sinks import parquet
from rlx.sinks.console import Progress
from rlx.sweeps import plan as plan_
from rlx.sweeps import space as space_
from rlx.sweeps.plan import Group, Plan, SweepConfig
from rlx.sweeps.results import SweepResult, merged
from rlx.trainer import Trainer
from rlx.training import TRAINER_KEYWORDS, RunConfig, Session
from rlx.types import Carry

PROBED = 16  # a batch of so many runs or more is measured before it is taken
PROBE_SECONDS = 0.5
LOSS = 0.95  # of the throughput of a single run that a batch may not fall below, in runs x steps per second

Batch = list[tuple[int, int, int]]  # (run, configuration, seed)


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
    plan, trainers = plan_.make(agent, env, space_.space(space), run, kwargs)
    if dry_run:
        print(plan_.describe(plan))
        return SweepResult(pd.DataFrame(), plan, None)
    if run.out is None:
        return Sweep(plan, trainers, run, None, progress).run_all()
    out = Path(run.out)
    with locked(out):
        stored = claim(out, plan, run.resume)
        return Sweep(stored or plan, trainers, run, out, progress, decided=stored is not None).run_all()


def locked(out: Path) -> filelock.BaseFileLock:
    """The lock of `out`, which ends with the process that holds it; RlxError where another one does."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        return filelock.FileLock(out / ".lock", timeout=0).acquire().lock
    except filelock.Timeout:
        raise RlxError(f"{out} is in use by another sweep: wait for it, or choose another out") from None
    except OSError as error:
        raise RlxError(f"cannot write to out={str(out)!r}: {error.strerror}") from None


def claim(out: Path, plan: Plan, resume: bool) -> Plan | None:
    """The stored plan to continue, None for a new sweep; RlxError where `out` holds something else."""
    if (out / "plan.json").exists():
        stored = Plan.read(out / "plan.json")
        if not resume:
            raise RlxError(f"{out} holds a sweep already: continue it with resume, or choose another out")
        if different := stored.same_runs(plan):
            raise RlxError(f"{out} holds another sweep: its {', '.join(different)} differ")
        return stored
    if any(path.name != ".lock" for path in out.iterdir()):
        raise RlxError(f"{out} is not empty and holds no sweep: choose another out")
    return None


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
        with Progress(plan.runs * plan.fixed["steps"], f"{plan.agent} on {plan.env}", self.progress) as bar, SigInt() as sigint:
            bar.announce(plan_.describe(plan))
            if not self.decided:
                self._decide(bar)
            if self.out:
                plan.write(self.out / "plan.json")
                self._read_finished()
            todo = [(g, b) for g, group in enumerate(plan.groups) for b in range(len(plan.batches(group)))]
            done = sum(len(self._real(*name)) for name in todo if _name(*name) in self.finished)
            bar.update(done * plan.fixed["steps"])
            started, first = time.perf_counter(), True
            for g, b in todo:
                if _name(g, b) in self.finished:
                    continue
                if self.interrupted or sigint.received:
                    self.interrupted = True
                    break
                self._train(g, b, bar, done)
                done += len(self._real(g, b))
                if first and not self.interrupted and done < plan.runs:
                    seconds = time.perf_counter() - started
                    left = seconds / len(self._real(g, b)) * (plan.runs - done)
                    bar.announce(f"first batch in {seconds:.0f} s, compilation included; at most {left / 60:.1f} min left")
                first = False
        result = SweepResult(merged(self.finished.values()), plan, self.out, interrupted=self.interrupted)
        if self.out and self.finished:
            result.write(self.out)
        return result

    # --- the size of a batch -----------------------------------------------------------------------------------------

    def _decide(self, bar: Progress) -> None:
        """The size of batches: as large as memory allows, unless smaller ones are faster; measured on the largest group."""
        plan = self.plan
        g = max(range(len(plan.groups)), key=lambda g: len(plan.groups[g].configs))
        largest = plan.groups[g].batch
        if largest < PROBED:
            return
        bar.announce(f"measuring batches of up to {largest} runs")
        best = self._fastest(g, largest)
        for group in plan.groups:
            group.batch = plan_.evenly(len(group.configs) * len(plan.seeds), min(best, group.batch), self.run.devices)
        bar.announce(f"batches of {', '.join(str(group.batch) for group in plan.groups[:20])} runs")

    def _fastest(self, g: int, largest: int) -> int:
        """The largest of `largest`, a quarter of it ... that is at most 5% slower than a single run, in run-steps per second,
        and than the next smaller one."""
        devices = self.run.devices
        throughput = lambda runs: self._throughput(self.trainers[g], self.plan.groups[g], runs)
        single, size = LOSS * throughput(devices), largest
        rate = throughput(size)
        while (smaller := size // 4 // devices * devices) > devices:
            other = throughput(smaller)
            if rate >= max(single, LOSS * other):
                return size
            size, rate = smaller, other
        return size if rate >= single else devices

    def _throughput(self, trainer: Trainer, group: Group, runs: int) -> float:
        """Env steps per second of so many runs together, while learning (the counter is set far ahead), not compiling."""
        batch = (self.plan.of(group) * runs)[:runs]
        carry: Carry = trainer.start(plan_.rows(self.plan, trainer, batch))
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

    def _real(self, g: int, b: int) -> Batch:
        """The runs of a batch without what fills it up."""
        return list(dict.fromkeys(self.plan.batches(self.plan.groups[g])[b]))

    def _train(self, g: int, b: int, bar: Progress, done: int) -> None:
        plan, trainer, name = self.plan, self.trainers[g], _name(g, b)
        batch, real = plan.batches(plan.groups[g])[b], self._real(g, b)
        runs, configs, seeds = map(np.asarray, zip(*batch, strict=True))
        runs = np.where(
            np.arange(len(batch)) < len(real), runs, -1 - np.arange(len(batch))
        )  # what fills up has numbers of its own
        labels: dict[str, Any] = {"run": runs, "config": configs, "seed": seeds}
        labels |= {field: [_plain(plan.configs[c][field]) for c in configs] for field in plan.space}
        directory = self.out / "batches" / name if self.out else None
        own = {f: getattr(self.run, f) for f in ("steps", "eval_every", "eval_episodes", "save_every", "log_every")}
        config = RunConfig(**own, out=None if directory is None else str(directory), resume=directory is not None)

        def shown(step: int, metrics: dict[str, np.ndarray], carry: Carry) -> None:
            bar.update(done * plan.fixed["steps"] + step * len(real))

        session = Session(
            trainer, config, shown, False, {"batch": name}, plan_.rows(plan, trainer, batch), labels, lasting=False
        )
        result = session.train()
        if result.interrupted:
            self.interrupted = True
            return
        table = result.metrics
        self.finished[name] = table[table["run"] >= 0].reset_index(drop=True)
        if directory is not None:
            self._store(name, directory)

    def _store(self, name: str, directory: Path) -> None:
        """The finished batch: first its table, then the line that says so, then nothing is left to resume."""
        assert self.out is not None
        parquet.write(self.out / "batches" / f"{name}.parquet", self.finished[name])
        with (self.out / "finished.csv").open("a") as file:
            file.write(f"{name},{self.finished[name]['run'].nunique()}\n")
        shutil.rmtree(directory)

    def _read_finished(self) -> None:
        assert self.out is not None
        log = self.out / "finished.csv"
        lines = log.read_text().splitlines(keepends=True) if log.exists() else []
        for line in lines:
            name = line.partition(",")[0]
            if line.endswith("\n"):  # else it was being written as the process died, and its batch is repeated
                self.finished[name] = parquet.read(self.out / "batches" / f"{name}.parquet")


def _name(g: int, b: int) -> str:
    return f"{g:03d}-{b:04d}"


def _plain(value: Any) -> Any:
    """A value as a table holds it."""
    return str(value) if isinstance(value, tuple) else value
