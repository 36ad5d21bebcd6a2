"""Robustness to physics: an agent trained under each of some values of an environment parameter, evaluated under all of them.

    python experiments/robustness.py [STUDY ...] [--steps N] [--seeds N] [--out experiments/results/robustness]

Environment parameters are traced: each run trains under its own value, and evaluation under another one only replaces
`carry.runs.env_params`, so a whole table compiles one training and one evaluation program.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd

import rlx
from rlx import grid, report, stats

EPISODES = 32


@dataclasses.dataclass(frozen=True)
class Study:
    agent: str
    env: str
    parameter: str
    values: tuple[float, ...]
    unit: str
    steps: int  # of one run
    seeds: int
    fields: dict[str, Any]


STUDIES = {
    "pendulum-gravity": Study(
        "sac", "gymnax/Pendulum-v1", "g", (5.0, 10.0, 15.0), "in m/s^2, by default 10", 20_000, 3, {"preset": "small"}
    ),
    "hopper-mass": Study(
        "ppo", "brax/hopper", "mass", (0.5, 1.0, 2.0), "times the task's own masses", 800_000, 2, {"preset": "brax"}
    ),
}


def returns(study: Study, steps: int, seeds: int) -> np.ndarray:
    """Mean returns [trained at, seed, evaluated at]."""
    trainer = rlx.make(study.agent, study.env, **study.fields)
    carry = trainer.init(seeds, env_params={study.parameter: study.values})  # values x seeds runs
    carry, _ = trainer.run(carry, steps)
    params = carry.runs.env_params
    path = grid.param_paths(params)[study.parameter]

    def under(value: float) -> np.ndarray:
        runs = carry.runs.replace(env_params=grid.replace(params, path, jnp.full(len(carry.runs.seed), value, jnp.float32)))
        return np.asarray(trainer.evaluate(carry.replace(runs=runs), episodes=EPISODES)).mean(1)

    return np.stack([under(v) for v in study.values], axis=-1).reshape(len(study.values), seeds, -1)


def table(study: Study, means: np.ndarray) -> pd.DataFrame:
    """IQM over seeds, a row per value in training and a column per value in evaluation."""
    rows = [[stats.iqm(column) for column in by_seed.T] for by_seed in means]
    index = pd.Index([f"trained at {v:g}" for v in study.values], name=study.parameter)
    return pd.DataFrame(rows, index, [f"evaluated at {v:g}" for v in study.values]).astype(float).round(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", metavar="STUDY", help=", ".join(STUDIES))
    parser.add_argument("--steps", type=int, help="of one run")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "robustness")
    args = parser.parse_args()
    for name in args.studies or STUDIES:
        if name not in STUDIES:
            parser.error(f"unknown study {name!r}: choose from {', '.join(STUDIES)}")
        study = STUDIES[name]
        steps, seeds = args.steps or study.steps, args.seeds or study.seeds
        means = returns(study, steps, seeds)
        caption = (
            f"{study.agent} on {study.env}, {study.parameter} {study.unit}: IQM over {seeds} seeds (below four, the mean) "
            f"of the mean return of {EPISODES} episodes, after {steps} steps under the row's value.\n"
        )
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / f"{name}.md").write_text(f"{report.to_markdown(table(study, means)).strip()}\n\n{caption}")
        print((args.out / f"{name}.md").read_text())


if __name__ == "__main__":
    main()
