"""How near MR.Q's updates come to the matrix products they consist of, how fast its loop is, and what memory it takes.

    python experiments/bench_mrq.py [--quick] [--profile] [--seeds 1 4 16] [--out experiments/results]

| table | what is measured, each row's process by itself |
|---|---|
| updates | `encoder_step`, `rl_step` and one of each in one program: full-size networks, batch of 256, HalfCheetah's sizes |
| loop | env steps/s while learning, summed over seeds, on Pendulum: acting, stepping, replay and both updates |
| profile | with `--profile`: the agent's own functions apart, by what they do, and every product |

`% of matmul peak` is the update's rate over that of the fastest product at its own shapes, as in `bench_loop.py`; in the loop,
that of one of each update for every env step. `% of its products` is milder: the seconds of all its products (`mrq_flops.py`),
each repeated by itself, over those of the update. Times are the best of several; those of products and updates are taken in
turn, so that both see the same machine.

A period of the loop is one burst of encoder updates and as many updates of values and policy: whole periods are timed, the
learner warm, the program compiled. Peak memory is the most the process ever had, `imports` of which one has that does nothing;
what remains beyond the replay (with its priorities), by seed, is compared with parameters, targets and moments, and with
the temporaries that XLA says its program needs.

`--quick` is a smoke test: short periods, two populations.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))

import rlx
from experiments import mrq_flops
from experiments import mrq_pieces as pieces
from rlx import config as base
from rlx import footprint
from rlx.agents import mrq
from rlx.loop import Carry
from rlx.report import tables

AIM = 80  # % of matmul peak
ENV = "gymnax/Pendulum-v1"
PERIODS = {1: 2}  # timed for so many seeds; one for others: a period takes some 25 seconds a seed


# --- clocks ------------------------------------------------------------------------------------------------------------


def interleaved(timed: dict[Any, pieces.Piece], rounds: int) -> dict[Any, float]:
    """The best seconds of each, called in turn; the first call, which compiles, does not count."""
    compiled = {name: jax.jit(f, donate_argnums=0) for name, (f, _) in timed.items()}
    copy = lambda tree: jax.tree.map(jnp.copy, tree)
    states = {name: compiled[name](copy(args[0]), *args[1:]) for name, (_, args) in timed.items()}
    best = dict.fromkeys(timed, float("inf"))
    for _ in range(rounds):
        for name, (_, args) in timed.items():
            jax.block_until_ready(states[name])
            started = time.perf_counter()
            states[name] = jax.block_until_ready(compiled[name](states[name], *args[1:]))
            best[name] = min(best[name], time.perf_counter() - started)
    return best


# --- measurements, each in a process of its own ------------------------------------------------------------------------


def measure_updates(rounds: int, profile: bool) -> dict[str, Any]:
    c = base.partition(mrq.Config())[0]
    counts = {"encoder": mrq_flops.encoder_step(c, pieces.SPEC), "values and policy": mrq_flops.rl_step(c, pieces.SPEC)}
    counts["both"] = counts["encoder"] + counts["values and policy"]
    times = {p: max(1, 2 * 10**9 // p.flops) for p in counts["both"]}  # some 10 ms
    timed = {p: pieces.repeated(pieces.product(p), n) for p, n in times.items()}
    of_norms = pieces.norms(c) if profile else {}
    other = pieces.parts() if profile else {}
    few = {shape: pieces.repeated(pieces.norm(*shape), 20) for counter in of_norms.values() for shape in counter}
    best = interleaved(timed | pieces.of_updates() | few | other, rounds)
    best |= {name: best[name] / pieces.STEPS for name in counts}
    each = {p: best[p] / n for p, n in times.items()}
    rate = max(p.flops / seconds for p, seconds in each.items())

    rows = []
    for name, count in counts.items():
        flops, arithmetic = mrq_flops.flops(count), sum(n * each[p] for p, n in count.items())
        rows.append({
            "update": name, "GFLOP": flops / 1e9, "products ms": 1e3 * arithmetic, "update ms": 1e3 * best[name],
            "GFLOP/s": flops / best[name] / 1e9, "peak GFLOP/s": rate / 1e9, "% of its products": 100 * arithmetic / best[name],
            "% of matmul peak": 100 * flops / best[name] / rate,
        })  # fmt: skip
    out: dict[str, Any] = {"updates": rows}
    if profile:
        spent = [{"update": r["update"], "part": "products", "ms": r["products ms"]} for r in rows[:2]]
        for name, counter in of_norms.items():
            ms = 1e3 * sum(n * best[shape] / 20 for shape, n in counter.items())
            spent.append({"update": name, "part": "layer norms and activations", "ms": ms})
        spent += [{"update": u, "part": part, "ms": 1e3 * best[u, part]} for u, part in other]
        for row in rows[:2]:
            rest = row["update ms"] - sum(s["ms"] for s in spent if s["update"] == row["update"])
            spent.append({"update": row["update"], "part": "what remains", "ms": rest})
        whole = rows[2]["update ms"]
        out["profile"] = [s | {"% of both": 100 * s["ms"] / whole} for s in sorted(spent, key=lambda s: s["update"])]
        out["products"] = [
            {**p._asdict(), "times": n, "us": 1e6 * each[p], "GFLOP/s": p.flops / each[p] / 1e9}
            for p, n in counts["both"].items()
        ]
    return out


def measure_loop(seeds: int, period: int, periods: int) -> dict[str, Any]:
    """A row of the table, without what other processes know."""
    trainer = rlx.make("mrq", ENV, learning_starts=period, target_period=period)
    carry, _ = trainer.run(trainer.init(seeds), period - 1)  # up to the first update: compiles all of it
    started = time.perf_counter()
    carry, metrics = trainer.run(carry, period * periods)
    seconds = time.perf_counter() - started
    assert metrics["updates"].sum() == seeds * period * periods
    state = carry.runs.agent
    return {
        "seeds": seeds, "env steps": seeds * period * periods, "env steps/s": seeds * period * periods / seconds,
        "peak MiB": peak(), "replay MiB": footprint.size((state.replay, state.priorities)) / 2**20,
        "learner MiB": footprint.size(state.learner) / 2**20, "temporaries MiB": temporaries(trainer, carry),
    }  # fmt: skip


def temporaries(trainer: rlx.Trainer, carry: Carry) -> float:
    """MiB that the compiled loop needs beside what it carries: activations and gradients of one update of every seed."""
    program = trainer._segment.lower(carry, trainer.no_totals(carry), jnp.uint32(1)).compile()
    return program.memory_analysis().temp_size_in_bytes / 2**20


def peak() -> float:
    """MiB, the most this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def imports() -> float:
    """Peak MiB of a process that computes next to nothing."""
    jax.block_until_ready(jnp.zeros(()))
    return peak()


MEASURES: dict[str, Callable[..., Any]] = {"updates": measure_updates, "loop": measure_loop, "imports": imports}


# --- all of them -------------------------------------------------------------------------------------------------------


def fresh(name: str, *args: Any) -> Any:
    """A measurement in a new process, which compiles everything itself."""
    command = [sys.executable, __file__, "--measure", json.dumps([name, *args])]
    environment = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    return json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout)


def loops(seeds: list[int], quick: bool, both: dict[str, float]) -> tuple[pd.DataFrame, str]:
    """The loop's table, and what it says of memory."""
    period = 10 if quick else 250
    periods = {n: PERIODS.get(n, 1) for n in seeds}
    total = sum(n * k * period for n, k in periods.items()) * both["update ms"] / 1e3
    print(
        f"loop: about {total:.0f} s beside compilation, if an env step takes both updates {both['update ms']:.0f} ms",
        flush=True,
    )
    rows, idle = [], fresh("imports")
    for n, k in periods.items():
        row = fresh("loop", n, period, k)
        rest = (row["peak MiB"] - idle - row["replay MiB"]) / n
        share = 100 * both["GFLOP"] * row["env steps/s"] / both["peak GFLOP/s"]
        rows.append(row | {"% of matmul peak": share, "imports MiB": idle, "rest MiB a seed": rest})
        print(", ".join(f"{key} {tables.cell(value)}" for key, value in rows[-1].items()), flush=True)
    least, most = (f(rows, key=lambda row: row["seeds"]) for f in (min, max))
    each = [least[f"{part} MiB"] / least["seeds"] for part in ("replay", "learner", "temporaries")]
    note = f"A seed has a replay of {each[0]:.0f} MiB and a learner of {each[1]:.0f} MiB; the program's activations and "
    note += f"gradients add {each[2]:.0f} MiB."
    if most["seeds"] > least["seeds"]:
        slope = (most["peak MiB"] - least["peak MiB"]) / (most["seeds"] - least["seeds"])
        note += f" From {least['seeds']} to {most['seeds']} seeds the peak grows by {slope:.0f} MiB a seed, "
        note += f"{slope - each[0]:.0f} beyond the replay."
    return pd.DataFrame(rows), note


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repeats, short periods, 1 and 4 seeds")
    parser.add_argument("--profile", action="store_true", help="where the updates' time goes")
    parser.add_argument("--seeds", type=int, nargs="+", help="populations of the loop (default 1 4 16)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="where the tables go")
    parser.add_argument("--measure", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        name, *rest = args.measure
        print(json.dumps(MEASURES[name](*rest)))
        return

    machine = (
        f"{os.cpu_count()} cores ({platform.machine()}), jax {jax.__version__} on {jax.default_backend()}, "
        f"load average {os.getloadavg()[0]:.2f} at start"
    )
    measured = fresh("updates", 2 if args.quick else 8, args.profile)
    rows = {row["update"]: row for row in measured["updates"]}
    shares = ", ".join(f"{name} {row['% of matmul peak']:.0f}% of matmul peak" for name, row in rows.items())
    verdict = f"{shares} (aim {AIM}%: {'met' if rows['both']['% of matmul peak'] >= AIM else 'missed'})."
    print(verdict, flush=True)
    loop, memory = loops(args.seeds or ([1, 4] if args.quick else [1, 4, 16]), args.quick, rows["both"])
    print(memory)

    command = " ".join(["python experiments/bench_mrq.py", *sys.argv[1:]])
    blocks = [f"`{command}` on {machine}.", tables.to_markdown(pd.DataFrame(measured["updates"])), verdict]
    blocks += [tables.to_markdown(loop), memory]
    for name in ("profile", "products") if args.profile else ():
        blocks.append(tables.to_markdown(pd.DataFrame(measured[name])))
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "bench_mrq.md").write_text("\n\n".join(block.strip() for block in blocks) + "\n")


if __name__ == "__main__":
    main()
