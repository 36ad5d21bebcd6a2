"""Env steps per second of one task of each engine, with resets and without.

    python experiments/bench_envs.py [--out experiments/results/bench_envs.md] [ID ...]

One compiled scan of uniformly random actions over N environments, best of three. "Without resets" never starts an episode
anew (what is stepped on behind an ending is still simulated), so the ratio is what resets cost: they are computed only in
steps in which some episode ended. Host environments stop at an ending, and have no column without resets.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import pandas as pd

from rlx import envs, report
from rlx.envs import vector, wrappers
from rlx.envs.host import HostEnv

TASKS = {  # id -> environments, steps
    "gymnax/CartPole-v1": (64, 2000),
    "gymnax/Breakout-MinAtar": (64, 500),
    "gymnax/Pendulum-v1": (64, 200),
    "brax/hopper": (64, 200),
    "playground/CartpoleSwingup": (64, 200),
    "navix/Navix-Empty-5x5-v0": (64, 200),
    "xminigrid/MiniGrid-EmptyRandom-5x5": (64, 200),
    "jumanji/Snake-v1": (64, 200),
    "pgx/tic_tac_toe": (64, 200),
    "gymnasium/HalfCheetah-v5": (8, 500),
    "dmc/cartpole-swingup": (8, 500),
    "craftax/Craftax-Classic-Symbolic-v1": (64, 100),
}
OPTIONS = {"gymnax/Pendulum-v1": {"pixels": True, "frame_stack": 3}}


def rate(env_id: str, num_envs: int, steps: int, auto_reset: bool) -> tuple[float, float]:
    """(env steps per second, share of steps that ended an episode)."""
    env = envs.make(env_id, **OPTIONS.get(env_id, {}))
    params = vector.strong(env.default_params)
    spec = wrappers.spec(env, params, env_id)
    vec = wrappers.vectorise(env, num_envs, auto_reset=auto_reset)

    def act(key: jax.Array) -> jax.Array:
        if spec.num_actions is not None:
            return jax.random.randint(key, (num_envs,), 0, spec.num_actions)
        return jax.random.uniform(key, (num_envs, spec.action_dim), minval=-1.0, maxval=1.0)

    @jax.jit
    def program(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        def one(state: tuple, t: jax.Array) -> tuple[tuple, tuple]:
            k = jax.random.fold_in(key, t)
            state, step = vec.step(k, state, act(jax.random.fold_in(k, 1)), params)
            seen = step.reward.mean() + step.obs.astype(jnp.float32).mean()  # used, so that XLA does not remove it
            return state, ((step.terminated | step.truncated).mean(), seen)

        ended, seen = jax.lax.scan(one, vec.reset(key, params)[0], jnp.arange(steps, dtype=jnp.uint32))[1]
        return ended.mean(), seen.mean()

    seconds, ended = [], 0.0
    for i in range(4):  # the first one compiles
        started = time.perf_counter()
        ended = float(jax.block_until_ready(program(jax.random.key(i)))[0])
        seconds.append(time.perf_counter() - started)
    if isinstance(env, HostEnv):
        env.close()
    return num_envs * steps / min(seconds[1:]), ended


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ids", nargs="*", metavar="ID", help=", ".join(TASKS))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "bench_envs.md")
    args = parser.parse_args()
    rows = []
    for env_id in args.ids or TASKS:
        if env_id not in TASKS:
            parser.error(f"unknown id {env_id!r}: choose from {', '.join(TASKS)}")
        if not envs.registry.installed(env_id.partition("/")[0]):
            print(f"{env_id}: not run here (its extra is not installed)")
            continue
        num_envs, steps = TASKS[env_id]
        with_resets, ended = rate(env_id, num_envs, steps, auto_reset=True)
        host = env_id.partition("/")[0] in ("gymnasium", "dmc")
        without = float("nan") if host else rate(env_id, num_envs, steps, auto_reset=False)[0]
        options = ", ".join(f"{name}={value}" for name, value in OPTIONS.get(env_id, {}).items())
        row = {
            "environment": f"{env_id}, {options}" if options else env_id,
            "environments": num_envs,
            "steps/s": with_resets,
            "without resets": without,
        }
        rows.append(row | {"ratio": with_resets / without, "episode ends per step": ended})
        print(rows[-1], flush=True)
    table = pd.DataFrame(rows).set_index("environment")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    load = f"\n\n{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, jax {jax.__version__}\n"
    args.out.write_text(report.to_markdown(table) + load)
    print(args.out.read_text())


if __name__ == "__main__":
    main()
