"""What a replay of stacked frames takes: whole stacks against single frames put together by indices.

    python experiments/bench_replay.py [--capacity 20000] [--out experiments/results/bench_replay.md]

Transitions of 84 x 84 RGB frames in stacks of 3. `MiB` is the data of a full replay of one run; `insert us` one step of one
environment and `sample us` a batch of 256 transitions with `obs` and `next_obs`, each inside a scan with a donated carry, as
the loop has it. Every 100th step ends an episode. Medians of five.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import pandas as pd

from rlx import footprint
from rlx.report import tables
from rlx.ring import ring
from rlx.types import EnvSpec, Transition

FRAMES, BATCH, REPEATS = 3, 256, 5


def seconds(buffer, capacity: int, sampled: bool, iterations: int) -> float:
    """Per iteration of one insertion, and one sample with `sampled`, after the ring has filled."""
    shape = (1, 1, 84, 84, 3 * FRAMES)
    ones, no = jnp.ones((1, 1)), jnp.zeros((1, 1), bool)

    def one(data, i):
        obs = jnp.full(shape, i % 256, jnp.uint8)
        end = no | (i % 100 == 99)
        rollout = Transition(obs, jnp.zeros((1, 1, 1)), ones, obs, no, end, no | (i % 100 == 0), ones, {}, ())
        data = buffer.insert(data, rollout, i)
        out = jnp.float32(0)
        if sampled:
            batch = buffer.sample(data, jax.random.fold_in(jax.random.key(0), i), BATCH, i, 1)
            out = sum(batch[k].astype(jnp.float32).mean() for k in ("obs", "next_obs"))
        return data, out

    run = jax.jit(
        lambda data, start: jax.lax.scan(one, data, start + jnp.arange(iterations, dtype=jnp.uint32)), donate_argnums=0
    )
    data, times = buffer.init(), []
    for repeat in range(1 + REPEATS):
        started = time.perf_counter()
        data, _ = jax.block_until_ready(run(data, jnp.uint32(capacity + repeat * iterations)))
        times.append((time.perf_counter() - started) / iterations)
    return statistics.median(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capacity", type=int, default=20_000)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "bench_replay.md")
    args = parser.parse_args()
    rows, load = [], os.getloadavg()[0]
    for name, frames in (("whole stacks", 1), ("single frames", FRAMES)):
        buffer = ring(EnvSpec(name, (84, 84, 3 * FRAMES), jnp.dtype("uint8"), None, 1, (), 100, frames), args.capacity, 1, 1)
        insert = seconds(buffer, args.capacity, False, 500)
        both = seconds(buffer, args.capacity, True, 20)
        mib = footprint.size(jax.eval_shape(buffer.init)) / 2**20
        rows.append({"stored": name, "MiB": mib, "insert us": 1e6 * insert, "sample us": 1e6 * (both - insert)})
        print(rows[-1], flush=True)
    machine = f"{os.cpu_count()} cores, load {load:.1f}, jax {jax.__version__} on {jax.default_backend()}"
    note = f"{args.capacity} transitions; {machine}"
    args.out.write_text(tables.to_markdown(pd.DataFrame(rows)) + "\n\n" + note + "\n")


if __name__ == "__main__":
    main()
