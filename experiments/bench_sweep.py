"""What a sweep saves: 256 SAC runs of width 64 on Pendulum in one program, against one process a run and against a loop.

    python experiments/bench_sweep.py [--quick] [--out experiments/results]

The sweep is 8 actor step sizes x 4 discounts x 8 seeds. Compared, for several numbers of steps per run:

| way | what is measured |
|---|---|
| sweep | wall time of a new process: import, plan, compilation (no cache), probe, all runs, evaluations, confirmation |
| sweep, all devices | the same with the runs split over as many virtual devices as there are cores |
| one process a run | `rlx train` in a new process with a warm compilation cache: 3 of the runs, times 256 |
| loop | `rlx.train` in one process, its programs compiled: 5 of the runs, times 256, plus one import and compilation |

The sweep chooses its batch of runs itself. Peak memory is the most that a process ever had that trains all the runs in one
batch, for the fewest steps; `buffers` is what its carry takes, known before it starts; the rest is a constant: Python, JAX,
the compiler.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd

AGENT, ENV = "sac", "gymnax/Pendulum-v1"
FIELDS: dict[str, Any] = {"preset": "small", "replay_capacity": 20_000, "eval_episodes": 10}
SPACE = {"actor_lr": "log(1e-4, 1e-2, 8)", "gamma": [0.95, 0.97, 0.98, 0.99]}
SEEDS = 8
RUNS = 8 * 4 * SEEDS
CORES = os.cpu_count() or 1
SWEEPS: dict[str, dict[str, int]] = {
    "sweep": {},
    "sweep, all devices": {"devices": CORES},
    "one batch": {"batch_of_runs": RUNS},
}
SAMPLE = {"process": 3, "loop": 5}


def measure(way: str, steps: int) -> dict[str, float]:
    """Runs in a process of its own."""
    started = time.perf_counter()
    import rlx

    fields = FIELDS | {"steps": steps, "eval_every": steps, "progress": False}
    with tempfile.TemporaryDirectory() as directory:
        if way in SWEEPS:
            result = rlx.sweep(AGENT, ENV, SPACE, seeds=SEEDS, out=f"{directory}/s", **SWEEPS[way], **fields)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            group = result.plan.groups[0]
            assert result.plan.runs == RUNS and result.metrics["run"].nunique() == RUNS
            return {"batch": group.batch, "peak MiB": peak, "buffers MiB": group.bytes_per_run * RUNS / 2**20}
        if way == "process":
            rlx.train(AGENT, ENV, seeds=[0], out=f"{directory}/r", **fields)
            return {}
        trainer = rlx.make(AGENT, ENV, **{name: value for name, value in FIELDS.items() if name != "eval_episodes"})
        for seed in range(1 + SAMPLE["loop"]):
            if seed == 1:  # what the first one compiled is there
                once, started = time.perf_counter() - started, time.perf_counter()
            carry, _ = trainer.run(trainer.init([seed]), steps)
            trainer.evaluate(carry, FIELDS["eval_episodes"]).block_until_ready()
        return {"once": once, "each": (time.perf_counter() - started) / SAMPLE["loop"]}


def fresh(way: str, steps: int, cache: str) -> tuple[float, dict[str, float]]:
    """Wall seconds of `measure` in a new process, start included, and what it says."""
    started = time.perf_counter()
    command = [sys.executable, __file__, "--measure", json.dumps([way, steps])]
    env = {**os.environ, "RLX_CACHE_DIR": cache}
    if way == "sweep, all devices":
        env["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={CORES}"
    out = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True)
    return time.perf_counter() - started, json.loads(out.stdout.splitlines()[-1])


def row(steps: int, cache: str) -> dict[str, float]:
    sweep, chosen = fresh("sweep", steps, "")
    split, its = fresh("sweep, all devices", steps, "")
    fresh("process", steps, cache)  # fills the cache
    process = sum(fresh("process", steps, cache)[0] for _ in range(SAMPLE["process"])) / SAMPLE["process"]
    _, loop = fresh("loop", steps, cache)
    in_loop = loop["once"] + loop["each"] * RUNS
    return {
        "steps per run": steps,
        "batch": chosen["batch"],
        "sweep s": sweep,
        "batch, all devices": its["batch"],
        "sweep, all devices s": split,
        "one process a run s (extrapolated)": process * RUNS,
        "loop s (extrapolated)": in_loop,
        **{f"{name} / {way}": t / s for name, t in (("processes", process * RUNS), ("loop", in_loop)) for way, s in
           (("sweep", sweep), ("sweep, all devices", split))},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only 500 steps per run")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--measure", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(*args.measure)))
        return
    from rlx.report import tables

    load, rows = os.getloadavg()[0], []
    with tempfile.TemporaryDirectory() as cache:
        budgets = (500,) if args.quick else (1_000, 2_000, 4_000)
        for steps in budgets:
            rows.append(row(steps, cache))
            print(rows[-1], flush=True)
        _, memory = fresh("one batch", budgets[0], cache)
    table = pd.DataFrame(rows)
    args.out.mkdir(parents=True, exist_ok=True)
    note = (
        f"`python experiments/bench_sweep.py`: {RUNS} runs, {CORES} cores, load {load:.1f} at start. "
        f"Peak memory of all runs in one batch: {memory['peak MiB']:.0f} MiB, {memory['buffers MiB']:.0f} of them buffers."
    )
    (args.out / "bench_sweep.md").write_text(tables.to_markdown(table) + "\n" + note + "\n")
    print((args.out / "bench_sweep.md").read_text())

    figure, axes = plt.subplots(figsize=(5, 3.2), layout="constrained")
    for name, marker in zip([name for name in table.columns if " / " in name], "osv^", strict=True):
        axes.plot(table["steps per run"], table[name], marker=marker, label=name)
    axes.set(xscale="log", yscale="log", xlabel="environment steps per run", ylabel="wall time over the sweep's")
    axes.axhline(1, color="0.7", lw=1)
    axes.legend(frameon=False)
    figure.savefig(args.out / "bench_sweep.png", dpi=150)


if __name__ == "__main__":
    main()
