"""Results of sweeps that were never trained: their scores are written down."""

import itertools

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from rlx import config as config_
from rlx.agents import ppo
from rlx.report import sweep
from rlx.sweeps.plan import Group, Plan
from rlx.sweeps.results import SweepResult, column
from rlx.sweeps.space import plain

NAN = float("nan")
STEPS = (1000, 2000)


def result(configs: list[dict], scores, out=None, seeds=None, drop=(), env: str = "gymnax/CartPole-v1") -> SweepResult:
    """`scores [C, S]` at the last step, half of them at the first; a run with a score that is not finite has failed; the runs
    `drop` are not done."""
    configs = [{name: plain(value) for name, value in config.items()} for config in configs]
    scores = np.asarray(scores, float)
    seeds = list(range(scores.shape[1])) if seeds is None else seeds
    fields = list(configs[0])
    columns = {f: column([c[f] for c in configs]) for f in fields}
    rows = []
    for (c, _), (j, seed), step in itertools.product(enumerate(configs), enumerate(seeds), STEPS):
        run = c * len(seeds) + j
        if run in drop:
            continue
        y = scores[c, j] if step == STEPS[-1] else scores[c, j] / 2
        labels = {"run": run, "config": c, "seed": seed} | {f: columns[f][c] for f in fields}
        more = {"step": step, "return": y, "unfinished": 0.0, "updates": 5, "loss": 0.1, "failed": not np.isfinite(y)}
        rows.append(labels | more)
    shared = {"steps": STEPS[-1], "eval_every": 1000, "eval_episodes": 2, "save_every": None, "log_every": None, "devices": 1}
    shared |= {"config": config_.to_dict(ppo.Config()), "env_options": {}, "env_params": {}, "env_changes": {}}
    groups = [Group({}, list(range(len(configs))), 1000, len(configs) * len(seeds))]
    plan = Plan("ppo", env, shared, fields, configs, seeds, groups)
    return SweepResult(pd.DataFrame(rows), plan, out)


LRS = [1e-4, 1e-3, 1e-2, 1e-1]
CONFIGS = [{"lr": lr, "num_epochs": 1 + k % 2, "hidden_sizes": (8, 8) if k < 2 else (16,)} for k, lr in enumerate(LRS)]
SCORES = [[1, 2, 3], [10, 20, 60], [5, NAN, 7], [NAN, NAN, NAN]]  # ranks 2, 1, 3, 4


def few_pixels(monkeypatch) -> list[Figure]:
    """Every figure that is saved; to save time, with few pixels."""
    out: list[Figure] = []
    savefig = Figure.savefig

    def spy(self, path, **kwargs):
        out.append(self)
        self.set_dpi(30)
        savefig(self, path, **kwargs)

    monkeypatch.setattr(Figure, "savefig", spy)
    return out


def data(r) -> sweep.Sweep:
    return sweep.Sweep(r.metrics, r.table(), r.plan.space, len(r.plan.seeds))


def labelled(axes) -> dict:
    return {str(line.get_label()): line for line in axes.lines if not str(line.get_label()).startswith("_")}


def texts(figure) -> str:
    return " ".join(t.get_text() for t in [*figure.axes[0].texts, *([figure._suptitle] if figure._suptitle else [])])
