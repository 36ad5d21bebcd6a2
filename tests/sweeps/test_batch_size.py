"""The size of a batch: as large as memory allows, unless smaller ones are faster."""

import os
import signal

import pytest

from rlx.interrupt import SigInt
from rlx.sweeps import run as run_
from tests.sweeps.sweeps_support import LR, assert_close, sweep, whole


def probing(monkeypatch, rates: dict[int, float], runs: int, devices: int = 1) -> list[int]:
    """The sizes that are decided on where batches have these throughputs."""
    result = sweep({"lr": "uniform(0.001, 0.01)"}, configs=runs, dry_run=True)
    s = run_.Sweep(result.plan, [None], run_.SweepConfig(devices=devices), None, False)
    monkeypatch.setattr(s, "_throughput", lambda trainer, group, n: rates[n])
    with run_.Progress(1, "", False) as bar:
        s._decide(bar, SigInt())
    return [group.batch for group in result.plan.groups]


@pytest.mark.parametrize(
    "rates, size",
    [
        ({1: 10, 64: 100, 16: 50}, 64),  # the larger the better
        ({1: 10, 64: 96, 16: 100}, 64),  # 4% slower than a quarter of it
        ({1: 10, 64: 90, 16: 100, 4: 50}, 16),
        ({1: 10, 64: 8, 16: 9, 4: 20}, 4),
        ({1: 10, 64: 5, 16: 6, 4: 7}, 1),  # all are slower than a single run
    ],
)
def test_the_largest_batch_that_is_fast(monkeypatch, rates, size):
    assert probing(monkeypatch, rates, 64) == [size]


def test_a_small_sweep_is_not_measured(monkeypatch):
    assert probing(monkeypatch, {}, 15) == [15]


def test_a_measured_sweep(monkeypatch):
    """A real measurement, cut short: whatever it decides, the table is that of one batch."""
    monkeypatch.setattr(run_, "PROBED", 4)
    monkeypatch.setattr(run_, "PROBE_SECONDS", 0.01)
    assert_close(sweep(LR, seeds=[3, 5]).metrics, whole().metrics)


def test_ctrl_c_while_measuring_decides_nothing(monkeypatch, tmp_path):
    out, sizes = tmp_path / "s", []

    def interrupted(self, trainer, group, runs):
        sizes.append(runs)
        if len(sizes) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return 1.0 / runs  # the smaller the better

    with monkeypatch.context() as m:
        m.setattr(run_, "PROBED", 4)
        m.setattr(run_.Sweep, "_throughput", interrupted)
        result = sweep(LR, seeds=12, out=str(out))
    assert result.interrupted and sizes == [1, 36] and not (out / "plan.json").exists()
    again = sweep(LR, seeds=12, out=str(out), resume=True, batch_of_runs=36)
    assert not again.interrupted and again.metrics["run"].nunique() == 36
