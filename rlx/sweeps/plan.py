"""The plan of a sweep: which runs there are, which share a program, and what they take. Made from shapes; nothing compiles.

A run is one configuration with one seed; runs are numbered through the whole sweep, config-major. Runs with equal static
fields make a group, which is one compiled program; its runs are trained in batches of one size, the last one filled up.
"""

from __future__ import annotations

import dataclasses
import functools
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
from rlx.sweeps import space as space_
from rlx.sweeps.space import Choices, Range, Space
from rlx.trainer import Trainer
from rlx.training import RunConfig

ENV = "env."  # prefix of an environment's parameters in a space
ROOM = 0.5  # of the free memory that a batch may fill: a checkpoint holds it twice, and what is free varies

Batch = list[tuple[int, int, int]]  # (run, configuration, seed)


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
    """`configs[c]` are the values of the space's fields in configuration c; `fixed` is what all runs share, and of its
    `env_params` the `env_changes` are those that differ from the environment's own, by name."""

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

    def of(self, group: Group) -> Batch:
        """The runs of a group."""
        s = len(self.seeds)
        return [(c * s + j, c, seed) for c in group.configs for j, seed in enumerate(self.seeds)]

    def batches(self, group: Group) -> list[Batch]:
        """The runs of a group cut into batches, the last one filled up with its last run."""
        runs = self.of(group)
        cut = [runs[k : k + group.batch] for k in range(0, len(runs), group.batch)]
        cut[-1] += [cut[-1][-1]] * (group.batch - len(cut[-1]))
        return cut

    def work(self) -> dict[str, tuple[int, Batch]]:
        """Every batch by name, in order: the number of its group, and its runs."""
        each = ((g, b, batch) for g, group in enumerate(self.groups) for b, batch in enumerate(self.batches(group)))
        return {f"{g:03d}-{b:04d}": (g, batch) for g, b, batch in each}

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
            tuples = lambda values: {name: space_.plain(value) for name, value in values.items()}
            groups = [Group(**{**g, "static": tuples(g["static"])}) for g in stored["groups"]]
            return Plan(**{**stored, "configs": list(map(tuples, stored["configs"])), "groups": groups})
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise RlxError(f"{path} cannot be read: {' '.join(str(error).split())}") from None

    def same_runs(self, other: Plan) -> list[str]:
        """What differs between this plan and another, but for the layout: names, and both values where they are short."""

        def parts(plan: Plan) -> dict[str, Any]:
            whole = json.loads(json.dumps(dataclasses.asdict(plan)))
            fixed = {name: value for name, value in whole.pop("fixed").items() if name != "env_changes"}
            return {name: value for name, value in whole.items() if name != "groups"} | fixed.pop("config") | fixed

        mine, its = parts(self), parts(other)
        different = [name for name in mine | its if mine.get(name) != its.get(name)]
        text = {name: f"{name}={mine.get(name)!r} there, {its.get(name)!r} here" for name in different}
        return [text[name] if len(text[name]) <= 80 else name for name in different]


def make(agent: str, env: str, space: Space, run: SweepConfig, fixed: Mapping[str, Any]) -> tuple[Plan, list[Trainer]]:
    """The plan and a trainer for each group. `fixed`: keywords of `rlx.make` that all runs share.

    Raises RlxError for an unknown field, a static one with a continuous range, values out of bounds or of the wrong type, a
    budget that does not fit every group, and more memory than one run has.
    """
    module = agents.get(agent)
    fixed = dict(fixed)
    keywords = {name: fixed.pop(name, None) for name in ("preset", "config", "env_options", "env_params")}
    base = config_.make(module.Config, keywords["preset"], keywords["config"], fixed)
    params = keywords["env_params"] if isinstance(keywords["env_params"], Mapping) else {}
    own = fixed | {f"{ENV}{name}": value for name, value in params.items()}
    for name in space:
        if name in own:
            raise RlxError(f"{name} is in the space and has a value of its own, {name}={own[name]!r}: give one of them")
    space, static = _check(base, space)
    configs = space_.configurations(space, run.configs, run.method, run.space_seed)

    members: dict[tuple, list[int]] = {}
    for c, config in enumerate(configs):
        members.setdefault(tuple(config[name] for name in static), []).append(c)
    options = keywords["env_options"], keywords["env_params"], run.devices
    trainers = [_trainer(agent, env, base.replace(**dict(zip(static, key, strict=True))), *options) for key in members]
    check_params(trainers[0], space)
    _check_budget(trainers, run)
    seeds = grid.seeds(run.seeds)
    groups = [
        Group(dict(zip(static, key, strict=True)), numbers, _bytes_per_run(trainer), 0)
        for (key, numbers), trainer in zip(members.items(), trainers, strict=True)
    ]
    for group, trainer in zip(groups, trainers, strict=True):
        group.batch = largest_batch(len(group.configs) * len(seeds), group.bytes_per_run, run, trainer.name)
    first = trainers[0]
    shared: dict[str, Any] = {"config": config_.to_dict(base), "env_options": first.env_options}
    shared |= {"env_params": grid.params_to_json(first.env_params), "env_changes": _changes(first)}
    run_fields = ("steps", "eval_every", "eval_episodes", "save_every", "log_every", "devices")
    shared |= {name: getattr(run, name) for name in run_fields}
    return Plan(agent, env, json.loads(json.dumps(shared, default=str)), list(space), configs, seeds, groups), trainers


def _trainer(agent: str, env: str, config: config_.Config, env_options: Any, env_params: Any, devices: int) -> Trainer:
    """The trainer of a group: that of an earlier sweep, with what it has compiled, where that was the same."""
    items = lambda given: None if given is None else tuple(given.items())
    try:
        options = items(env_options), items(env_params)
        return _kept(agent, env, config, *options, devices, repr(options))
    except (AttributeError, TypeError):  # a whole parameter object, or values that cannot be a key
        return Trainer(agent, env, config, env_options=env_options, env_params=env_params, devices=devices)


@functools.lru_cache(maxsize=32)
def _kept(agent: str, env: str, config: config_.Config, options: Any, params: Any, devices: int, exactly: str) -> Trainer:
    """`exactly`: the values' text, which tells 1 from True where a key does not."""
    changes = None if params is None else dict(params)
    return Trainer(agent, env, config, env_options=dict(options or ()), env_params=changes, devices=devices)


def _check(base: config_.Config, space: Space) -> tuple[Space, list[str]]:
    """The space with values in their fields' types, and its static fields; a look at every value of every agent's field."""
    fields = config_.fields(type(base))
    typed, static = dict(space), []
    for field, axis in space.items():
        if field.startswith(ENV):
            continue
        if field not in fields:
            raise unknown("field of the space", field, [*fields, f"{ENV}NAME"])
        if not fields[field].traced:
            if isinstance(axis, Range):
                ends = [round(x) if fields[field].type is int else x for x in (axis.low, axis.high)]
                raise RlxError(f"{field} is static, each value a program of its own: give a list, such as {field}={ends}")
            static.append(field)
        as_typed = lambda value, field=field: getattr(base.replace(**{field: value}), field)
        if isinstance(axis, Choices):
            typed[field] = Choices(tuple(map(as_typed, axis.values)))
        else:
            as_typed(axis.low), as_typed(axis.high)
    return typed, static


def check_params(trainer: Trainer, space: Space) -> None:
    """RlxError where the space names a parameter that the environment has not, or gives it a value that it cannot have."""

    def check(name: str, axis: Choices | Range) -> None:
        values = list(axis.values) if isinstance(axis, Choices) else [axis.low, axis.high]
        start = jax.eval_shape(lambda: trainer.rows(1, {}, {name: values}))
        own = functools.reduce(getattr, grid.param_paths(start.env_params)[name], start.env_params)
        if isinstance(axis, Range) and not jnp.issubdtype(own.dtype, jnp.floating):
            raise RlxError(f"{ENV}{name} is {own.dtype}: give int({axis.low:g}, {axis.high:g}) or a list, not a range of reals")

    for field, axis in space.items():
        if field.startswith(ENV):
            check(field.removeprefix(ENV), axis)


def _changes(trainer: Trainer) -> dict[str, Any]:
    """The environment's parameters that differ from its own, by name."""
    params, own, out = trainer.env_params, trainer.env.default_params, {}
    for name, path in grid.param_paths(params).items():
        mine, default = (functools.reduce(getattr, path, p) for p in (params, own))
        if not dataclasses.is_dataclass(mine) and not np.array_equal(mine, np.asarray(default, np.asarray(mine).dtype)):
            out[name] = np.asarray(mine).tolist()
    return out


def _check_budget(trainers: list[Trainer], run: SweepConfig) -> None:
    every = math.lcm(*(t.steps_per_iteration for t in trainers))
    for name in ("steps", "eval_every", "save_every", "log_every"):
        steps = getattr(run, name)
        if steps is None:
            continue
        if len(trainers) > 1 and (steps <= 0 or steps % every):
            below = steps // every * every
            valid = f"{below} or {below + every}" if below > 0 else f"{every}"
            raise RlxError(f"{name}={steps} must be a positive multiple of {every}, to fit every group: nearest is {valid}")
        for trainer in trainers:
            trainer.iterations(steps, name)
    if trainers[0].spec.max_episode_steps is None:
        raise RlxError(f"{trainers[0].env_name} has no time limit, so it cannot be evaluated: name one that has")


def _bytes_per_run(trainer: Trainer) -> int:
    """Of the carry; what a program takes besides is small next to a replay."""
    runs = trainer.devices
    return footprint.size(jax.eval_shape(lambda: trainer.start(trainer.rows(runs, {}, {})))) // runs


def largest_batch(runs: int, bytes_per_run: int, run: SweepConfig, name: str) -> int:
    """Runs of a batch: as many as are asked for, else all that memory has room for; a multiple of the devices, evenly cut.

    RlxError where what is asked for, or one run a device, does not fit.
    """
    free = footprint.available()
    room = runs if free is None else int(ROOM * free // bytes_per_run)
    size = evenly(runs, min(runs, run.batch_of_runs or max(room, 1)), run.devices)
    footprint.check(bytes_per_run * size, name, size)
    return size


def evenly(runs: int, most: int, devices: int = 1) -> int:
    """The size of equal batches that hold `runs`, at most `most` each (or one run a device), as few as possible."""
    most = max(devices, most // devices * devices)
    size = math.ceil(runs / math.ceil(runs / most))
    return math.ceil(size / devices) * devices


def describe(plan: Plan) -> str:
    """The plan in words, for a look before launch."""
    lines = [
        f"{plan.agent} on {plan.env}: {plan.runs} runs = {len(plan.configs)} configurations x {len(plan.seeds)} seeds, "
        f"{plan.fixed['steps']} steps each, in {len(plan.groups)} group{'s' * (len(plan.groups) > 1)} (one compilation each)"
    ]
    for group in plan.groups[:20]:
        runs = len(group.configs) * len(plan.seeds)
        which = ", ".join(f"{k}={v}" for k, v in group.static.items()) or "all"
        count = math.ceil(runs / group.batch)
        lines.append(
            f"  {which}: {runs} runs of {footprint.human(group.bytes_per_run)}, "
            f"{count} batch{'es' * (count > 1)} of {group.batch} "
            f"({footprint.human(group.bytes_per_run * group.batch)})"
        )
    if len(plan.groups) > 20:
        lines.append(f"  ... and {len(plan.groups) - 20} more groups")
    return "\n".join(lines)
