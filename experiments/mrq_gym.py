"""MR.Q on Gym's five locomotion tasks, beside the published scores: Gymnasium's v4 tasks, as published, stepped on the host.

    python experiments/mrq_gym.py [--scale smoke|cpu|paper] [--tasks NAME ...] [--seeds N] [--steps N]
                                  [--out experiments/results/mrq_gym] [--runs runs/mrq_gym]

Not v5, whose rewards and observations differ. The engine is MuJoCo in C, in whatever version is installed. `cpu` trains three
seeds of Hopper at the paper's sizes for 20,000 steps, `paper` ten of every task, `smoke` shows that everything runs; each seed
is a program of its own. Simulators on the host cannot be saved: a continued run begins its episodes anew
(`envs/host.py`). How directories are continued: `reproduce.py`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from experiments import published, reproduce
from experiments.reproduce import Scale, Suite

SUITE = Suite(
    name="gym",
    title="Gym locomotion",
    envs={task: f"gymnasium/{task.removeprefix('Gym-')}" for task in published.tasks("gym")},
    absent="not in Gymnasium",
    simulator="MuJoCo C (Gymnasium)",
    published_simulator="MuJoCo C (Gymnasium)",
    steps="the environment's",
)
SCALES = {
    "smoke": Scale(
        ("Hopper", "HalfCheetah"), seeds=2, per_program=1, steps=300, eval_every=150, save_every=150,
        eval_episodes=2, fields=reproduce.TINY, note=reproduce.TINY_NOTE,
    ),
    "cpu": Scale(
        ("Hopper",), seeds=3, per_program=1, steps=20_000, eval_every=2_500, save_every=1_250,
        note="One task, at the paper's sizes.",
    ),
    "paper": Scale(
        tuple(SUITE.tasks), seeds=10, per_program=1, steps=1_000_000, eval_every=5_000, save_every=50_000,
        note="Nothing is reduced.",
    ),
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    warnings.filterwarnings("ignore", ".*is out of date", DeprecationWarning)  # v4: that is what was published
    return reproduce.main(SUITE, SCALES, __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
