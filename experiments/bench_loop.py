"""How fast the loop is, what it costs to compile, and how near SAC's updates come to the matmuls they consist of.

    python experiments/bench_loop.py [--quick] [--out DIR]

One row per program and population, each measured in a process of its own without a persistent compilation cache:

| column | meaning |
|---|---|
| compile s | seconds of a first init and iteration, less those of a second |
| env steps/s, updates/s | summed over runs, while learning, the replay full |
| waiting us, learning us | one iteration of the population before and after learning starts, in the same program |
| waiting/learning | their ratio; above 0.2 for any population the script fails |
| peak MiB, carry MiB | most memory the process ever had (before the matmuls of the next columns), and what its carry takes |
| update GFLOP/s, best GFLOP/s | one iteration of `sac-256`, and the best float32 matmul at its shapes in the same process |
| % of matmul peak | their ratio; the time includes acting, stepping, sampling and Adam, the FLOPs are matmuls only |

The board's convolution is shifted slices and a matmul (`networks.PatchConv`); the rows of `nn.Conv` have XLA's instead.
Times are medians of three windows. `--quick` is a smoke test: one population, short windows.

Matmul FLOPs of one SAC update. A layer `[B, m] @ [m, n]` costs 2 B m n forward, as much for the gradient of its matrix and
as much for that of its input. Write P and Q for the sums of 2 m n over the layers of the actor and of one critic, p and q for
their first layers alone, and e for the part of q that multiplies observations. For each of B samples:

    next action, both targets        P + 2Q
    critic loss, forward                 2Q
    critic loss, backward                2 (Q + Q - q)       every matrix; every input but the batch itself
    actor loss, forward              P + 2Q
    actor loss, through the critics      2 (Q - e)           inputs only, as far as the action
    actor loss, the actor            P + (P - p)             every matrix; every input but the batch itself

    sum                              4P - p + 12Q - 2q - 2e
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import pandas as pd

import rlx
from rlx import footprint, networks
from rlx.report import tables

REPEATS = 3
MOST = 2**16  # iterations of one window; SAC waits longer than that, so that waiting can be timed
WAITING_SHARE = 0.2
CAPACITY = 1_000_000
MINATAR = {"num_envs": 50, "rollout_length": 40, "num_minibatches": 8, "activation": "relu", "hidden_sizes": (128,)}
SAC = {"learning_starts": MOST + 1, "replay_capacity": CAPACITY}

S = TypeVar("S")


@dataclass(frozen=True)
class Program:
    agent: str
    env: str
    fields: dict[str, Any]
    populations: tuple[int, ...]


PROGRAMS = {
    "ppo": Program("ppo", "gymnax/CartPole-v1", {}, (1, 16, 64)),
    "ppo-minatar": Program("ppo", "gymnax/Breakout-MinAtar", MINATAR, (1, 4, 16)),
    "ppo-minatar, nn.Conv": Program("ppo", "gymnax/Breakout-MinAtar", MINATAR, (1, 4)),
    "sac-64": Program("sac", "gymnax/Pendulum-v1", {**SAC, "hidden_sizes": (64, 64)}, (1, 16, 64)),
    "sac-256": Program("sac", "gymnax/Pendulum-v1", {**SAC, "hidden_sizes": (256, 256), "batch_size": 256}, (1, 16)),
}


# --- clocks ------------------------------------------------------------------------------------------------------------


def clock(f: Callable[..., S], *args: Any) -> tuple[float, S]:
    """Seconds until the result is there, and the result."""
    started = time.perf_counter()
    out = jax.block_until_ready(f(*args))
    return time.perf_counter() - started, out


def pace(repeat: Callable[[S, int], S], state: S, window: float) -> tuple[float, S]:
    """Median seconds of one of the n repetitions that `repeat(state, n)` makes, n such that they take `window` or more."""
    n = 1
    times: list[float] = []
    while len(times) < REPEATS:
        seconds, state = clock(repeat, state, n)
        if seconds < window and n < MOST:
            n *= 2
        else:
            times.append(seconds / n)
    return statistics.median(times), state


# --- one measurement, in a process of its own --------------------------------------------------------------------------


def measure(name: str, population: int, window: float) -> dict[str, Any]:
    """A row of the table."""
    program = PROGRAMS[name]
    if name.endswith("nn.Conv"):  # the same parameters and numbers, by XLA's convolution
        # replaced here, where it is compared, so that the library has one convolution and no option for it
        networks.PatchConv = lambda features, kernel, stride, init: nn.Conv(  # type: ignore[assignment, misc]
            features, (kernel, kernel), stride, padding="VALID", kernel_init=init
        )
    trainer = rlx.make(program.agent, program.env, **program.fields)
    per = trainer.steps_per_iteration
    start = lambda: trainer.run(trainer.init(population), per)
    first = clock(start)[0]
    second, (carry, _) = clock(start)

    def iterations_from(i: int) -> Callable[[Any, int], Any]:
        return lambda carry, n: trainer.run(carry.replace(i=jnp.uint32(i)), n * per)[0]

    row: dict[str, Any] = {"program": name, "population": population, "compile s": first - second}
    waits = "learning_starts" in program.fields
    if waits:
        waiting, carry = pace(iterations_from(0), carry, window)
    learning, carry = pace(iterations_from(CAPACITY), carry, window)
    carry, metrics = trainer.run(carry, per)
    row |= {
        "env steps/s": population * per / learning,
        "updates/s": float(metrics["updates"].sum()) / learning,
        "waiting us": 1e6 * waiting if waits else None,
        "learning us": 1e6 * learning,
        "waiting/learning": waiting / learning if waits else None,
        "peak MiB": peak_memory() / 2**20,
        "carry MiB": footprint.size(carry) / 2**20,
    }
    if name == "sac-256":
        rate = population * update_flops(trainer) / learning
        best = matmul_rate(population, trainer.config.hidden_sizes[0], trainer.config.batch_size, window / 4)
        row |= {"update GFLOP/s": rate / 1e9, "best GFLOP/s": best / 1e9, "% of matmul peak": 100 * rate / best}
    return row


def peak_memory() -> int:
    """Bytes; includes what the parent had when it started this process, no more than what this one has imported."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def update_flops(trainer: rlx.Trainer) -> int:
    """Matmul FLOPs of one SAC update of one run, as counted above. The actor's two heads are one layer here."""
    hidden, batch = trainer.config.hidden_sizes, trainer.config.batch_size
    d, a = trainer.spec.obs_shape[0], trainer.spec.action_dim

    def layers(*sizes: int) -> list[int]:
        return [2 * m * n for m, n in itertools.pairwise(sizes)]

    actor, critic = layers(d, *hidden, 2 * a), layers(d + a, *hidden, 1)
    p, q, e = actor[0], critic[0], 2 * d * hidden[0]
    return batch * (4 * sum(actor) - p + 12 * sum(critic) - 2 * q - 2 * e)


def matmul_rate(population: int, width: int, batch: int, window: float) -> float:
    """The best FLOP/s over the update's large shapes: actors and twin critics, layer, input and weight gradient."""
    rates = []
    for copies in (population, 2 * population):
        x, identity = jnp.ones((copies, batch, width)), jnp.broadcast_to(jnp.eye(width), (copies, width, width))
        for axes in ("pbm,pmn->pbn", "pbn,pmn->pbm", "pbm,pbn->pmn"):
            product = jax.jit(lambda x, y, axes=axes: jnp.einsum(axes, x, y))

            def repeat(x: jax.Array, n: int, product: Any = product, identity: jax.Array = identity) -> jax.Array:
                for _ in range(n):
                    x = product(x, identity)
                return x

            rates.append(2 * copies * batch * width * width / pace(repeat, x, window)[0])
    return max(rates)


# --- all of them -------------------------------------------------------------------------------------------------------


def fresh(name: str, population: int, window: float) -> dict[str, Any]:
    """`measure` in a new process that compiles everything itself."""
    command = [sys.executable, __file__, "--measure", json.dumps([name, population, window])]
    environment = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    return json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout)


def machine(load: float) -> str:
    """What the numbers depend on."""
    return (
        f"{os.cpu_count()} cores ({platform.machine()}), jax {jax.__version__} on {jax.default_backend()}, "
        f"load average {load:.2f} at start"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one population, short windows")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="where the table goes")
    parser.add_argument("--measure", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(*args.measure)))
        return 0

    load, rows = os.getloadavg()[0], []
    for name, program in PROGRAMS.items():
        for population in (4,) if args.quick else program.populations:
            rows.append(fresh(name, population, 0.1 if args.quick else 1.0))
            print(", ".join(f"{key} {tables.cell(value)}" for key, value in rows[-1].items() if value is not None), flush=True)
    table = pd.DataFrame(rows)

    slow = table[table["waiting/learning"] > WAITING_SHARE]
    verdict = "slow: " + ", ".join(f"{r.program} x {r.population}" for r in slow.itertuples()) if len(slow) else "met"
    peak = [
        f"population {r['population']}: {r['% of matmul peak']:.0f}% of matmul peak" for r in rows if r["program"] == "sac-256"
    ]
    notes = [
        f"`{' '.join(['python', 'experiments/bench_loop.py', *sys.argv[1:]])}` on {machine(load)}.",
        f"Waiting costs at most {WAITING_SHARE:g} of learning: {verdict}. SAC-256, {'; '.join(peak)}.",
    ]
    print("\n".join(notes))
    args.out.mkdir(parents=True, exist_ok=True)
    tables.to_csv(table.assign(machine=machine(load)), args.out / "bench_loop.csv")
    (args.out / "bench_loop.md").write_text("\n\n".join([notes[0], tables.to_markdown(table), notes[1]]) + "\n")
    return len(slow) > 0


if __name__ == "__main__":
    sys.exit(main())
