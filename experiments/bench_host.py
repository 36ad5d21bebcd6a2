"""What a callback costs: host environments in rlx's compiled loop against a plain Python loop over the same simulators.

    python experiments/bench_host.py [--quick] [--out DIR]

Both take random actions, one vector step after the other, and begin a new episode where one ended. rlx steps in a jitted scan,
N environments of each of `population` runs; the plain loop is handed its actions and keeps nothing. Steps are those of all
environments together. Medians of three windows, taken in turns. AIM is the ratio to reach.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from rlx import envs
from rlx.envs import wrappers
from rlx.envs.host import HostEnv
from rlx.report import tables

ENVS = ("gymnasium/HalfCheetah-v5", "gymnasium/Pendulum-v1", "dmc/cartpole-swingup")
LAYOUTS = ((1, 1), (1, 8), (4, 1), (4, 8))  # population, N
AIM = 0.8
REPEATS = 3


def compiled(env: HostEnv, population: int, n: int, steps: int) -> Callable[[], float]:
    """A function that steps `steps` times and returns the seconds that took."""
    vec = wrappers.vectorise(env, n)
    shape = env.action_space(env.default_params).shape

    def one(state: Any, t: jax.Array) -> tuple[Any, jax.Array]:
        action = jax.random.uniform(jax.random.fold_in(jax.random.key(1), t), (n, *shape), minval=-1.0)
        state, step = vec.step(jax.random.key(0), state, action, env.default_params)
        return state, step.reward.sum()

    run = jax.jit(lambda state: jax.lax.scan(jax.vmap(one, (0, None)), state, jnp.arange(steps)))
    keys = jax.vmap(jax.random.key)(jnp.arange(population))
    state = jax.jit(jax.vmap(lambda key: vec.reset(key, env.default_params)[0]))(keys)
    state, _ = jax.block_until_ready(run(state))

    def window() -> float:
        nonlocal state
        started = time.perf_counter()
        state, _ = jax.block_until_ready(run(state))
        return time.perf_counter() - started

    return window


def plain(env: HostEnv, count: int, steps: int) -> Callable[[], float]:
    space = env.action_space(env.default_params)
    low, high = (np.broadcast_to(bound, space.shape) for bound in (space.low, space.high))
    actions = np.random.default_rng(0).uniform(low, high, (steps, count, *space.shape)).astype(np.float32)
    simulators = [env.kind.build() for _ in range(count)]
    for seed, simulator in enumerate(simulators):
        simulator.reset(seed=seed)

    def window() -> float:
        started = time.perf_counter()
        for row in actions:
            for simulator, action in zip(simulators, row, strict=True):
                _, _, terminated, truncated, _ = simulator.step(action)
                if terminated or truncated:
                    simulator.reset()
        return time.perf_counter() - started

    return window


def measure(env_id: str, population: int, n: int, total: int) -> dict[str, Any]:
    """A row of the table."""
    env = envs.make(env_id)
    assert isinstance(env, HostEnv)
    count = population * n
    steps = max(1, total // count)
    ours, theirs = compiled(env, population, n, steps), plain(env, count, steps)
    theirs()
    a, b = zip(*[(ours(), theirs()) for _ in range(REPEATS)], strict=True)
    rlx, loop = (count * steps / statistics.median(seconds) for seconds in (a, b))
    env.close()
    return {
        "environment": env_id,
        "population": population,
        "N": n,
        "rlx steps/s": rlx,
        "plain steps/s": loop,
        "ratio": rlx / loop,
        "overhead of a vector step, us": 1e6 * count * (1 / rlx - 1 / loop),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="short windows")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="where the table goes")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    table = pd.DataFrame([measure(e, *layout, 1_000 if args.quick else 20_000) for e in ENVS for layout in LAYOUTS])
    met = (table["ratio"] >= AIM).sum()
    notes = (
        f"`{' '.join(['python', 'experiments/bench_host.py', *sys.argv[1:]])}` on {os.cpu_count()} cores "
        f"({platform.machine()}), jax {jax.__version__} on {jax.default_backend()}, load average {load:.2f} at start. "
        f"Ratio >= {AIM:g}: {met} of {len(table)}."
    )
    text = f"{notes}\n\n{tables.to_markdown(table)}\n"
    print(text)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "bench_host.md").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
