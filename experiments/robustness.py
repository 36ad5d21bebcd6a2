"""Robustness to gravity: SAC on Pendulum, trained at one gravity and evaluated at others, all in one program.

    python experiments/robustness.py [--steps 20000] [--seeds 3] [--out experiments/results/robustness.md]

Environment parameters are traced: each run trains under its own gravity, and evaluation under another one only replaces
`carry.runs.env_params`, so the whole table compiles one training and one evaluation program.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pandas as pd

import rlx
from rlx import report, stats

GRAVITIES = (5.0, 10.0, 15.0)  # m/s^2; gymnax's default is 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "robustness.md")
    args = parser.parse_args()

    trainer = rlx.make("sac", "gymnax/Pendulum-v1", preset="small")
    carry = trainer.init(args.seeds, env_params={"g": GRAVITIES})  # gravities x seeds runs
    carry, _ = trainer.run(carry, args.steps)

    rows = {}
    for g in GRAVITIES:
        params = dataclasses.replace(carry.runs.env_params, g=jnp.full(len(carry.runs.seed), g))
        returns = trainer.evaluate(carry.replace(runs=carry.runs.replace(env_params=params)), episodes=32)
        means = np.asarray(returns).mean(1).reshape(len(GRAVITIES), args.seeds)
        rows[f"evaluated at {g:g}"] = [stats.iqm(row) for row in means]
    table = pd.DataFrame(rows, index=pd.Index([f"trained at {g:g}" for g in GRAVITIES], name="gravity")).astype(float).round(0)
    caption = f"\nIQM over {args.seeds} seeds of the mean return of 32 episodes, after {args.steps} steps of SAC (width 64).\n"
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(report.to_markdown(table) + "\n" + caption)
    print(args.out.read_text())


if __name__ == "__main__":
    main()
