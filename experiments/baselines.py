"""Baselines of the frame: PPO and SAC on classic control and on Brax, beside a random policy and standing still.

    python experiments/baselines.py [--scale smoke|cpu|paper] [--out experiments/results/baselines] [NAME ...]

Each row is one population of seeds in one program. `cpu` is what the README's table shows. `smoke` is a twentieth of the
steps with two seeds: it shows that everything runs, not what it scores. `paper` has the steps and seeds that papers on
these tasks use. Per baseline it stores the table of all runs (parquet) and the learning curve (PNG); `table.md` and
`table.csv` hold what has been run so far. A row that was not run says "not run here". There are no published scores for
these simulators (gymnax, Brax's spring and generalized backends), so the references are measured: a policy of uniformly random
actions and, for continuous actions, one of zeros.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

import rlx
from rlx import evaluation, report
from rlx.envs import wrappers
from rlx.sinks import parquet


@dataclass(frozen=True)
class Baseline:
    """One row: what is trained, for how long per scale, and what it must reach at scale `cpu`."""

    agent: str
    env: str
    steps: dict[str, int]
    seeds: dict[str, int]
    fields: dict[str, Any] = field(default_factory=dict)
    aim: float | None = None  # IQM at the end; None: 10 x random and above standing still; NaN: none, it is a comparison


_MEMORY: dict[str, Any] = {
    "steps": {"smoke": 10_000, "cpu": 200_000, "paper": 1_000_000}, "seeds": {"smoke": 2, "cpu": 4, "paper": 10},
    "fields": {"env_params": {"memory_length": 20}}, "aim": 0.95,
}  # fmt: skip

BASELINES = {
    "ppo-cartpole": Baseline(
        "ppo", "gymnax/CartPole-v1", {"smoke": 15_000, "cpu": 300_000, "paper": 1_000_000}, {"smoke": 2, "cpu": 8, "paper": 10},
        aim=475,
    ),
    "sac-pendulum": Baseline(
        "sac", "gymnax/Pendulum-v1", {"smoke": 2_000, "cpu": 20_000, "paper": 100_000}, {"smoke": 2, "cpu": 6, "paper": 10},
        {"preset": "small"}, aim=-180,
    ),
    "td3-pendulum": Baseline(
        "td3", "gymnax/Pendulum-v1", {"smoke": 2_000, "cpu": 20_000, "paper": 100_000}, {"smoke": 2, "cpu": 6, "paper": 10},
        {"preset": "small"}, aim=-180,
    ),
    "sac-discrete-cartpole": Baseline(
        "sac_discrete", "gymnax/CartPole-v1", {"smoke": 4_000, "cpu": 60_000, "paper": 500_000},
        {"smoke": 2, "cpu": 8, "paper": 10}, {"preset": "small"}, aim=475,
    ),
    "ppo-hopper": Baseline(
        "ppo", "brax/hopper", {"smoke": 100_000, "cpu": 2_000_000, "paper": 10_000_000}, {"smoke": 2, "cpu": 4, "paper": 10},
        {"preset": "brax"},
    ),
    "sac-double-pendulum": Baseline(
        "sac", "brax/inverted_double_pendulum", {"smoke": 8_000, "cpu": 80_000, "paper": 1_000_000},
        {"smoke": 2, "cpu": 6, "paper": 10}, {"preset": "small", "env_options": {"backend": "generalized"}},
    ),
    "td3-double-pendulum": Baseline(
        "td3", "brax/inverted_double_pendulum", {"smoke": 8_000, "cpu": 80_000, "paper": 1_000_000},
        {"smoke": 2, "cpu": 6, "paper": 10}, {"preset": "small", "env_options": {"backend": "generalized"}},
    ),
    # the same task in the spring engine, which is much harder to balance: its joints are springs, not constraints
    "sac-double-pendulum-spring": Baseline(
        "sac", "brax/inverted_double_pendulum", {"smoke": 8_000, "cpu": 400_000, "paper": 1_000_000},
        {"smoke": 2, "cpu": 4, "paper": 10}, {"preset": "brax"},
    ),
    "ppo-breakout": Baseline(
        "ppo", "gymnax/Breakout-MinAtar", {"smoke": 30_000, "cpu": 600_000, "paper": 10_000_000},
        {"smoke": 2, "cpu": 4, "paper": 10},
        {"num_envs": 50, "rollout_length": 40, "num_minibatches": 8, "lr": 1e-3, "activation": "relu", "hidden_sizes": (128,),
         "entropy_coef": 0.01},
    ),
    "dqn-cartpole": Baseline(
        "dqn", "gymnax/CartPole-v1", {"smoke": 5_000, "cpu": 100_000, "paper": 500_000}, {"smoke": 2, "cpu": 8, "paper": 10},
        {"preset": "small"}, aim=475,
    ),
    "pqn-cartpole": Baseline(
        "pqn", "gymnax/CartPole-v1", {"smoke": 15_000, "cpu": 300_000, "paper": 500_000}, {"smoke": 2, "cpu": 8, "paper": 10},
        {"preset": "small"}, aim=475,
    ),
    "dqn-breakout": Baseline(
        "dqn", "gymnax/Breakout-MinAtar", {"smoke": 32_000, "cpu": 600_000, "paper": 10_000_000},
        {"smoke": 2, "cpu": 4, "paper": 10},
        {"preset": "small", "num_envs": 8, "rollout_length": 4, "updates_per_step": 1 / 16, "learning_starts": 3_200,
         "replay_capacity": 100_000, "target_period": 200, "hidden_sizes": (128,), "lr": 5e-4, "epsilon_steps": 100_000.0},
    ),
    "pqn-breakout": Baseline(
        "pqn", "gymnax/Breakout-MinAtar", {"smoke": 30_000, "cpu": 600_000, "paper": 10_000_000},
        {"smoke": 2, "cpu": 4, "paper": 10},
        {"preset": "small", "num_envs": 50, "num_epochs": 2, "num_minibatches": 16, "hidden_sizes": (128,),
         "epsilon_steps": 100_000.0},
    ),
    # env steps are agent steps: two native ones each
    "sac-swingup": Baseline(
        "sac", "playground/CartpoleSwingup", {"smoke": 2_500, "cpu": 50_000, "paper": 500_000},
        {"smoke": 2, "cpu": 4, "paper": 10}, {"preset": "small", "env_options": {"action_repeat": 2}}, aim=600,
    ),
    "sac-gymnasium-hopper": Baseline(
        "sac", "gymnasium/Hopper-v5", {"smoke": 5_000, "cpu": 100_000, "paper": 1_000_000},
        {"smoke": 2, "cpu": 4, "paper": 10}, {"preset": "small"},
    ),
    # MR.Q beside what is usual for the task, at equal steps and an update each
    "mrq-pendulum": Baseline(
        "mrq", "gymnax/Pendulum-v1", {"smoke": 2_000, "cpu": 20_000, "paper": 100_000}, {"smoke": 2, "cpu": 8, "paper": 10},
        {"preset": "small"}, aim=-180,
    ),
    **{
        f"{agent.replace('_', '-')}-{name}": Baseline(
            agent, env, {"smoke": 2_000, "cpu": steps, "paper": 1_000_000}, {"smoke": 2, "cpu": 4, "paper": 10},
            {"preset": "small"}, aim=np.nan,
        )
        for name, env, steps, agents in (
            ("hopper", "brax/hopper", 40_000, ("mrq", "sac")),
            ("breakout-short", "gymnax/Breakout-MinAtar", 40_000, ("mrq", "dqn")),
            ("cartpole-short", "gymnax/CartPole-v1", 30_000, ("mrq", "dqn")),
        )
        for agent in agents
    },
    # frames of 84 x 84 x 3 in stacks of 3, each action held for four steps; small batches, since each frame is 17 MFLOP
    **{
        f"{agent}-pendulum-pixels": Baseline(
            agent, "gymnax/Pendulum-v1", {"smoke": 500, "cpu": 4_000, "paper": 100_000}, {"smoke": 2, "cpu": 4, "paper": 10},
            {"preset": "small", "batch_size": 32, "learning_starts": 250, "replay_capacity": 5_000,
             "env_options": {"pixels": True, "frame_stack": 3, "action_repeat": 4}}, aim=np.nan,
        )
        for agent in ("mrq", "sac")
    },
    # the first observation is the only clue to what the last action must be, 20 steps later
    "ppo-rnn-memory": Baseline("ppo_rnn", "gymnax/MemoryChain-bsuite", **_MEMORY),
    "ppo-memory": Baseline("ppo", "gymnax/MemoryChain-bsuite", **_MEMORY),
}  # fmt: skip


def fields(name: str, scale: str = "cpu") -> dict[str, Any]:
    """The keywords of `rlx.train` for one baseline."""
    b = BASELINES[name]
    return {"agent": b.agent, "env": b.env, "steps": b.steps[scale], "seeds": b.seeds[scale], **b.fields}


def reference_return(trainer: rlx.Trainer, policy: str, episodes: int = 256) -> float:
    """Mean return of `random` (uniform) or `still` (zero) actions, over exactly that many episodes of the same environment."""
    spec = trainer.spec

    def act(hp: Any, state: Any, memory: Any, obs: Any, key: jax.Array) -> tuple:
        if spec.num_actions is not None:
            return jax.random.randint(key, (), 0, spec.num_actions), memory
        scale = 1.0 if policy == "random" else 0.0
        return scale * jax.random.uniform(key, (spec.action_dim,), minval=-1.0, maxval=1.0), memory

    agent = trainer.agent._replace(greedy=act)
    vec = wrappers.vectorise(trainer.env, episodes, auto_reset=False)
    evaluate = jax.jit(lambda runs, key: evaluation.evaluate(agent, vec, (), runs, key, jnp.int32(spec.max_episode_steps or 1)))
    return float(jnp.nanmean(evaluate(trainer.init(1).runs, jax.random.key(0))))


def run(name: str, scale: str, out: Path) -> dict[str, Any]:
    """Train one baseline -> its row of the table; curve and metrics are stored under `out`."""
    keywords = fields(name, scale)
    started = time.perf_counter()
    result = rlx.train(**keywords, eval_episodes=16)
    seconds = time.perf_counter() - started
    trainer = result.trainer
    references = {"random": reference_return(trainer, "random")}
    if trainer.spec.num_actions is None:
        references["standing still"] = reference_return(trainer, "still")
    parquet.write(out / f"{name}.parquet", result.metrics)
    report.learning_curve({trainer.name: result.metrics}, out / f"{name}.png", title=trainer.name, references=references)

    row = result.table().iloc[0]
    aim = BASELINES[name].aim
    aim = max(10 * references["random"], references.get("standing still", -np.inf)) if aim is None else aim
    return {
        "baseline": name, "agent": trainer.agent_name, "environment": trainer.env_name, "scale": scale,
        "seeds": int(row["runs"]), "steps": int(row["steps"]), "IQM": row["iqm"], "95% low": row["low"],
        "95% high": row["high"], "mean": row["mean"], "aim": aim, "random": references["random"],
        "still": references.get("standing still", np.nan), "seconds": seconds,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BASELINES))
    parser.add_argument("--scale", choices=("smoke", "cpu", "paper"), default="cpu")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "baselines")
    args = parser.parse_args()
    for name in args.names:
        if name not in BASELINES:
            parser.error(f"unknown baseline {name!r}: choose from {', '.join(BASELINES)}")
    out = args.out if args.scale == "cpu" else args.out / args.scale
    out.mkdir(parents=True, exist_ok=True)
    for name in args.names or BASELINES:
        row = run(name, args.scale, out)
        stored = out / "table.csv"
        rows = {r["baseline"]: r for r in pd.read_csv(stored).to_dict("records")} if stored.exists() else {}
        rows |= {name: row}
        table = pd.DataFrame([rows.get(n, {"baseline": n}) for n in BASELINES])
        table.to_csv(stored, index=False)  # after each baseline, so that an interruption loses at most one
        shown = table.set_index("baseline").round(1).astype(object)
        shown[table["seconds"].isna().to_numpy()] = "not run here"
        (out / "table.md").write_text(report.to_markdown(shown))
        print(report.to_markdown(shown))


if __name__ == "__main__":
    main()
