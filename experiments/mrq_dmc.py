"""MR.Q on the DM-Control suite from vectors, beside the published scores: MuJoCo Playground's tasks, action repeat 2.

    python experiments/mrq_dmc.py [--scale smoke|cpu|paper] [--tasks NAME ...] [--seeds N] [--steps N]
                                  [--out experiments/results/mrq_dmc] [--runs runs/mrq_dmc]

Steps are the agent's, two control steps each, as the published ones are. Playground simulates in MJX, where the published runs
are of dm_control: models, integrator and, of some tasks, the time step differ (`envs/adapters/playground.py`). `cpu` trains
three seeds of CartpoleSwingup one after the other at the paper's sizes, for 20,000 steps: the published curve rises steeply
there. `paper` trains ten seeds of every task in one program each. `smoke` shows that everything runs.
How directories are continued: `reproduce.py`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import jax

sys.path.insert(0, str(Path(__file__).parents[1]))

from experiments import published, reproduce
from experiments.reproduce import Scale, Suite

ABSENT = tuple(f"Dmc-{task}" for task in ("dog-run", "dog-stand", "dog-trot", "dog-walk", "quadruped-run", "quadruped-walk"))
RENAMED = {"Dmc-ball_in_cup-catch": "BallInCup"}


def playground(task: str) -> str | None:
    """`Dmc-cartpole-balance_sparse` -> CartpoleBalanceSparse; None for what Playground lacks."""
    if task in ABSENT:
        return None
    return RENAMED.get(task) or "".join(word.capitalize() for word in re.split("[-_]", task.removeprefix("Dmc-")))


SUITE = Suite(
    name="dmc",
    title="DM-Control suite from vectors",
    envs={task: f"playground/{name}" if (name := playground(task)) else None for task in published.tasks("dmc")},
    absent="not in Playground",
    simulator="MJX (Playground)",
    published_simulator="MuJoCo C (dm_control)",
    steps="the agent's, two control steps each",
    env_options={"action_repeat": 2},
)
SCALES = {
    "smoke": Scale(
        ("CartpoleSwingup", "PendulumSwingup"), seeds=2, per_program=2, steps=300, eval_every=150, save_every=150,
        eval_episodes=2, fields=reproduce.TINY, note=reproduce.TINY_NOTE,
    ),
    "cpu": Scale(
        ("CartpoleSwingup",), seeds=3, per_program=1, steps=20_000, eval_every=2_500, save_every=1_250,
        note="One task, at the paper's sizes.",
    ),
    "paper": Scale(
        tuple(SUITE.tasks), seeds=10, per_program=10, steps=500_000, eval_every=5_000, save_every=50_000,
        note="Nothing is reduced.",
    ),
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    mjx = {} if jax.default_backend() == "cpu" else {"impl": "jax"}  # where there is a GPU Playground would take Warp
    return reproduce.main(replace(SUITE, env_options={**SUITE.env_options, **mjx}), SCALES, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
