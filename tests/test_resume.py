"""A process that is killed while it trains, and the command line that continues it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pytest

import rlx
from rlx import cli
from tests.train_support import CARTPOLE, assert_same

# 16 checkpoints of 50 iterations: the process is killed at the second one, long before its end and often within a save.
EVERY = 1000
COMMAND = [
    *("train", "ppo", CARTPOLE, "--num_envs", "2", "--rollout_length", "10", "--num_minibatches", "1", "--num_epochs", "1"),
    *("--hidden_sizes", "8", "--lr", "0.05", "--seeds", "3", "5", "--eval_episodes", "2"),
    *("--steps", str(16 * EVERY), "--eval_every", str(2 * EVERY), "--save_every", str(EVERY), "--keep", "2"),
]  # fmt: skip


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("resume")


SIGNALS = {"killed": signal.SIGKILL, "interrupted": signal.SIGINT}


@pytest.fixture(scope="module")
def stopped(directory) -> Iterator[dict[str, tuple[int, str, str]]]:
    """Exit code, stdout and stderr of both processes. They run at once: most of their time is the import of jax."""
    start = lambda name: subprocess.Popen(
        [sys.executable, "-m", "rlx.cli", *COMMAND, "--out", str(directory / name)],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    processes = {name: start(name) for name in SIGNALS}
    try:
        with ThreadPoolExecutor() as pool:  # side by side: neither may get to its end while the other is waited for
            stops = {name: pool.submit(stop, p, directory / name, SIGNALS[name]) for name, p in processes.items()}
            yield {name: future.result() for name, future in stops.items()}
    finally:
        for process in processes.values():
            process.kill()


def stop(process: subprocess.Popen, out: Path, number: int) -> tuple[int, str, str]:
    """Send a signal once two checkpoints were written."""
    deadline = time.monotonic() + 60
    while not (out / "checkpoints" / f"step-{2 * EVERY}").exists():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate(timeout=10)
        time.sleep(0.005)
    os.kill(process.pid, number)
    output = process.communicate(timeout=60)
    return process.returncode, *output


@pytest.fixture(scope="module")
def one(directory, stopped) -> Path:
    """The run that nothing happens to."""
    assert cli.main([*COMMAND, "--out", str(directory / "one")]) == 0
    return directory / "one"


def steps(out: Path) -> int:
    last = rlx.load(out)
    return last.trainer.steps(last.carry())


def test_kill_9(directory, stopped, one):
    out, (code, _, _) = directory / "killed", stopped["killed"]
    assert code == -signal.SIGKILL and EVERY <= steps(out) < 16 * EVERY
    assert cli.main([*COMMAND, "--out", str(out), "--resume"]) == 0
    resumed, whole = rlx.load(out), rlx.load(one)
    pd.testing.assert_frame_equal(resumed.metrics, whole.metrics, check_exact=True)
    for which in ("last", "best"):
        assert_same(resumed.carry(which), whole.carry(which))
    kept = sorted(p.name for p in (out / "checkpoints").iterdir() if p.name[-4:] not in (".tmp", ".old"))
    assert kept == ["best", "last", "step-15000", "step-16000"]


def test_ctrl_c(directory, stopped, one):
    out, (code, stdout, stderr) = directory / "interrupted", stopped["interrupted"]
    assert code == 130 and "Traceback" not in stderr
    assert f"to continue, repeat the command with --resume True --out {out}" in stderr.splitlines()[-1]
    assert str(out / "learning_curve.png") in stdout and (out / "learning_curve.png").exists() and (out / "table.csv").exists()
    partial = rlx.load(out)
    assert partial.metrics["step"].max() == steps(out) < 16 * EVERY

    assert cli.main([*COMMAND, "--out", str(out), "--resume", "True"]) == 0
    resumed, whole = rlx.load(out), rlx.load(one)
    assert_same(resumed.carry(), whole.carry())
    assert_same(resumed.carry("best"), whole.carry("best"))
    columns = ["run", "seed", "step", "return", "unfinished"]
    left, right = (r.metrics.dropna(subset="return")[columns].reset_index(drop=True) for r in (resumed, whole))
    pd.testing.assert_frame_equal(left, right, check_exact=True)
    assert not resumed.metrics.duplicated(["run", "step"]).any()
