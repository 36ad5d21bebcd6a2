"""The plan of a sweep: which runs there are, which share a program, and what they take. Made from shapes; nothing compiles.

A run is one configuration with one seed; runs are numbered through the whole sweep, config-major. Runs with equal static
fields make a group, which is one compiled program; its runs are trained in batches of one size, the last one filled up.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from rlx import agents, footprint, grid
from rlx import config as config_
from rlx.errors import RlxError, unknown
from rlx.sweeps.space import Choices, Space, configurations
from rlx.trainer import Trainer
from rlx.training import RunConfig

ENV = "env."  # prefix of an environment's parameters in a space


@dataclasses.dataclass(frozen=True)
class SweepConfig(RunConfig):
    configs: int | None = None  # configurations drawn from the space; None: all of its grid
    method: str | None = None  # grid, random or sobol; None: grid without configs, else random
    space_seed: int = 0  # of the random choice of configurations
    batch_of_runs: int | None = None  # runs trained at once, seeds included; None: what memory and a measurement allow
    devices: int = 1  # local devices that the runs of a batch are split over

    bounds: ClassVar = RunConfig.bounds | {
        "configs": (1, math.inf), "batch_of_runs": (1, math.inf), "devices": (1, math.inf), "space_seed": (0, 2**63 - 1),
    }  # fmt: skip


@dataclasses.dataclass
class Group:
    """Runs that share a program: the static fields that make it one of its own, its configurations' numbers, the bytes of a
    run, and the size of a batch (0 until it is decided)."""

    static: dict[str, Any]
    configs: list[int]
    bytes_per_run: int
    batch: int = 0


@dataclasses.dataclass
class Plan:
    """`configs[c]` are the values of the space's fields in configuration c; `fixed` is what all runs share."""

    agent: str
    env: str
    fixed: dict[str, Any]
    space: list[str]
    configs: list[dict[str, Any]]
    seeds: list[int]
    groups: list[Group]

    @property
    def runs(self) -> int:
        return len(self.configs) * len(self.seeds)

    def of(self, group: Group) -> list[tuple[int, int, int]]:
        """The runs of a group: (run, config, seed)."""
        s = len(self.seeds)
        return [(c * s + j, c, seed) for c in group.configs for j, seed in enumerate(self.seeds)]

    def batches(self, group: Group) -> list[list[tuple[int, int, int]]]:
        """The runs of a group cut into batches, the last one filled up with its last run."""
        runs = self.of(group)
        cut = [runs[k : k + group.batch] for k in range(0, len(runs), group.batch)]
        cut[-1] += [cut[-1][-1]] * (group.batch - len(cut[-1]))
        return cut

    def write(self, path: Path) -> None:
        """plan.json, replaced atomically."""
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")
        temporary.replace(path)

    @staticmethod
    def read(path: Path) -> Plan:
        """The stored plan; RlxError where it cannot be read."""
        try:
            stored = json.loads(path.read_text())
            return Plan(**{**stored, "groups": [Group(**g) for g in stored["groups"]]})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise RlxError(f"{path} cannot be read: {error}") from None

    def same_runs(self, other: Plan) -> list[str]:
        """The names of what differs between two plans, but for the layout."""
        mine, its = (json.loads(json.dumps(dataclasses.asdict(p))) for p in (self, other))
        return [name for name in mine if name != "groups" and mine[name] != its[name]]


def make(agent: str, env: str, space: Space, run: SweepConfig, fixed: Mapping[str, Any]) -> tuple[Plan, list[Trainer]]:
    """The plan and a trainer for each group. `fixed`: keywords of `rlx.make` that all runs share.

    Raises RlxError for an unknown field, a static one with a continuous range, values out of bounds or of the wrong type, a
    budget that does not fit every group, and more memory than one run has.
    """
    module = agents.get(agent)
    fixed = dict(fixed)
    keywords = {name: fixed.pop(name, None) for name in ("preset", "config", "env_options", "env_params")}
    base = config_.make(module.Config, keywords["preset"], keywords["config"], fixed)
    for name in space:
        if name in fixed:
            raise RlxError(f"{name} is in the space and has a value of its own, {name}={fixed[name]!r}: give one of them")
    static = _check(base, space, f"{agent} on {env}")
    if run.method not in (None, "grid", "random", "sobol"):
        raise unknown("method", str(run.method), ("grid", "random", "sobol"))
    configs = configurations(space, run.configs, run.method, run.space_seed)

    members: dict[tuple, list[int]] = {}
    for c, config in enumerate(configs):
        members.setdefault(tuple(config[name] for name in static), []).append(c)
    options = {"env_options": keywords["env_options"], "env_params": keywords["env_params"], "devices": run.devices}
    trainers = [Trainer(agent, env, base.replace(**dict(zip(static, key, strict=True))), **options) for key in members]
    check_params(trainers[0], space)
    _check_budget(trainers, run)
    seeds = grid.seeds(run.seeds)
    groups = [
        Group(dict(zip(static, key, strict=True)), numbers, _bytes_per_run(trainer), 0)
        for (key, numbers), trainer in zip(members.items(), trainers, strict=True)
    ]
    for group, trainer in zip(groups, trainers, strict=True):
        group.batch = largest_batch(len(group.configs) * len(seeds), group.bytes_per_run, run, trainer.name)
    shared = {
        "config": config_.to_dict(base), "env_options": trainers[0].env_options,
        "env_params": grid.params_to_json(trainers[0].env_params),
    }  # fmt: skip
    run_fields = ("steps", "eval_every", "eval_episodes", "save_every", "log_every", "devices")
    shared |= {name: getattr(run, name) for name in run_fields}
    return Plan(agent, env, json.loads(json.dumps(shared)), list(space), configs, seeds, groups), trainers


def _check(base: config_.Config, space: Space, name: str) -> list[str]:
    """The static fields of the space, after a look at every value of every field of the agent."""
    fields = config_.fields(type(base))
    static = []
    for field, axis in space.items():
        if field.startswith(ENV):
            continue
        if field not in fields:
            raise unknown("field of the space", field, [*fields, f"{ENV}NAME"])
        if not fields[field].traced:
            if not isinstance(axis, Choices):
                ends = [round(x) if fields[field].type is int else x for x in (axis.low, axis.high)]
                raise RlxError(f"{field} is static, each value a program of its own: give a list, such as {field}={ends}")
            static.append(field)
        for value in axis.values if isinstance(axis, Choices) else (axis.low, axis.high):
            base.replace(**{field: value})
    return static


def check_params(trainer: Trainer, space: Space) -> None:
    """RlxError where the space names a parameter that the environment has not, or gives it a value that it cannot have."""
    for field, axis in space.items():
        if field.startswith(ENV):
            ends = list(axis.values) if isinstance(axis, Choices) else [axis.low, axis.high]
            trainer.rows(1, {}, {field.removeprefix(ENV): ends})


def _check_budget(trainers: list[Trainer], run: SweepConfig) -> None:
    every = math.lcm(*(t.steps_per_iteration for t in trainers))
    for name in ("steps", "eval_every", "save_every", "log_every"):
        steps = getattr(run, name)
        if steps is not None and len(trainers) > 1 and (steps <= 0 or steps % every):
            below = steps // every * every
            valid = f"{below} or {below + every}" if below > 0 else f"{every}"
            raise RlxError(f"{name}={steps} must be a positive multiple of {every}, to fit every group: nearest is {valid}")
        if steps is not None:
            trainers[0].iterations(steps, name)


def _bytes_per_run(trainer: Trainer) -> int:
    """Of the carry; what a program takes besides is small next to a replay."""
    runs = trainer.devices
    return footprint.size(jax.eval_shape(lambda: trainer.start(trainer.rows(runs, {}, {})))) // runs


def largest_batch(runs: int, bytes_per_run: int, run: SweepConfig, name: str) -> int:
    """Runs of a batch: all, or as many as are asked for, or as memory has room for; a multiple of the devices, evenly cut."""
    free = footprint.available()
    room = runs if free is None else int(footprint.SHARE * free // bytes_per_run)
    if room < 1:
        footprint.check(bytes_per_run, name, 1)
    most = max(1, min(runs, room, run.batch_of_runs or runs))
    if run.batch_of_runs is not None and room < min(run.batch_of_runs, runs):
        footprint.check(bytes_per_run * min(run.batch_of_runs, runs), name, min(run.batch_of_runs, runs))
    return evenly(runs, most, run.devices)


def evenly(runs: int, most: int, devices: int = 1) -> int:
    """The size of equal batches that hold `runs`, at most `most` each (or one run a device), as few as possible."""
    most = max(devices, most // devices * devices)
    size = math.ceil(runs / math.ceil(runs / most))
    return math.ceil(size / devices) * devices


def describe(plan: Plan) -> str:
    """The plan in words, for a look before launch."""
    lines = [
        f"{plan.agent} on {plan.env}: {plan.runs} runs = {len(plan.configs)} configurations x {len(plan.seeds)} seeds, "
        f"{plan.fixed['steps']} steps each, in {len(plan.groups)} groups (one compilation each)"
    ]
    for group in plan.groups[:20]:
        runs = len(group.configs) * len(plan.seeds)
        which = ", ".join(f"{k}={v}" for k, v in group.static.items()) or "all"
        count = math.ceil(runs / group.batch)
        lines.append(
            f"  {which}: {runs} runs of {footprint.human(group.bytes_per_run)}, {count} batches of {group.batch} "
            f"({footprint.human(group.bytes_per_run * group.batch)})"
        )
    if len(plan.groups) > 20:
        lines.append(f"  ... and {len(plan.groups) - 20} more groups")
    return "\n".join(lines)


def rows(plan: Plan, trainer: Trainer, batch: list[tuple[int, int, int]]) -> grid.Rows:
    """What the runs of a batch begin with."""
    names = [name for name in plan.space if name.startswith(ENV) or config_.fields(type(trainer.config))[name].traced]
    values = {name: [plan.configs[c][name] for _, c, _ in batch] for name in names}
    hp = {name: v for name, v in values.items() if not name.startswith(ENV)}
    params = {name.removeprefix(ENV): v for name, v in values.items() if name.startswith(ENV)}
    start = trainer.rows(1, hp, params)
    if not names:
        start = jax.tree.map(lambda x: np.repeat(np.asarray(x), len(batch), axis=0), start)
    return start._replace(seeds=jnp.asarray([seed for _, _, seed in batch], jnp.uint32))
