"""The best configuration on fresh seeds: the runs that a training of their own would give, in the sweep's program."""

import numpy as np
import pandas as pd
import pytest

from rlx.errors import RlxError
from rlx.interrupt import SigInt
from rlx.sinks.console import Progress
from rlx.sweeps import confirm
from rlx.sweeps import plan as plan_
from rlx.sweeps.plan import SweepConfig
from rlx.sweeps.results import SweepResult
from rlx.sweeps.space import space
from rlx.trainer import Trainer
from rlx.training import RunConfig, Session
from tests.cli_support import compiled
from tests.train_support import CARTPOLE, OWN, TINY

RUN = {"steps": 80, "eval_every": 40, "eval_episodes": 2, "batch_of_runs": 2}
SEEDS = (0, 2, 4)
FRESH = [1, 3, 5]


FIELDS = {name: value for name, value in TINY.items() if name != "num_epochs"}


@pytest.fixture(scope="module")
def sweep():
    """Plan and trainers of two groups with two configurations each; a batch has two runs."""
    words = space({"lr": [0.01, 0.05], "num_epochs": [1, 2]})
    return plan_.make("ppo", CARTPOLE, words, SweepConfig(**RUN, seeds=SEEDS), FIELDS)


def scored(plan, best: int) -> SweepResult:
    """As if the runs had ended with 10 for configuration `best`, and 0 for all others."""
    runs = [run for group in plan.groups for run in plan.of(group)]
    rows = [{"run": r, "config": c, "seed": s, **plan.configs[c], "step": 80, "return": 10.0 * (c == best)} for r, c, s in runs]
    return SweepResult(pd.DataFrame(rows), plan, None)


def run(sweep, best: int, out=None) -> pd.DataFrame | None:
    plan, trainers = sweep
    return confirm.confirm(plan, trainers, scored(plan, best), out, Progress(1, "test", enabled=False))


@pytest.fixture(scope="module")
def fresh(sweep) -> pd.DataFrame:
    table = run(sweep, 2)
    assert table is not None
    return table


def test_fresh_seeds():
    assert confirm.fresh_seeds([0, 1, 2]) == [3, 4, 5]
    assert confirm.fresh_seeds(SEEDS) == FRESH
    assert confirm.fresh_seeds([7]) == [0]
    assert confirm.fresh_seeds([2**32 - 1, 1]) == [0, 2]


def test_rows_are_the_runs_of_the_best_configuration(sweep, fresh):
    assert fresh["run"].tolist() == [12, 12, 13, 13, 14, 14]  # after those of the plan; nothing of what filled the batch up
    assert fresh["seed"].tolist() == [1, 1, 3, 3, 5, 5]
    assert fresh["step"].tolist() == [40, 80] * 3
    assert (fresh["config"] == 2).all() and (fresh["lr"] == 0.05).all() and (fresh["num_epochs"] == 1).all()
    assert not fresh["failed"].any() and fresh["return"].notna().all()


def test_they_are_what_a_training_of_their_own_gives(fresh):
    trainer = Trainer("ppo", CARTPOLE, **{**TINY, "num_epochs": 1, "lr": 0.05})
    own = {name: value for name, value in RUN.items() if name != "batch_of_runs"}
    config = RunConfig(**own, save_every=80, seeds=tuple(FRESH))
    alone = Session(trainer, config, None, progress=False, own=OWN).train().metrics
    assert alone["seed"].tolist() == fresh["seed"].tolist()
    for name in ("return", "episode_return", "value_loss", "entropy"):
        np.testing.assert_allclose(fresh[name], alone[name], rtol=1e-3, atol=1e-4, err_msg=name)


def test_another_configuration_of_the_group_compiles_nothing(sweep, fresh):
    before = len(compiled)
    other = run(sweep, 0)
    assert compiled and compiled[before:] == []
    assert (other["lr"] == 0.01).all() and (other["value_loss"] != fresh["value_loss"]).any()


def test_what_is_stored_is_not_trained_again(sweep, fresh, tmp_path, monkeypatch):
    stored = run(sweep, 2, tmp_path)
    pd.testing.assert_frame_equal(stored, fresh, check_exact=True)  # a repeat gives the same bits
    pd.testing.assert_frame_equal(confirm.load(tmp_path), stored)
    trained = []
    train = Session.train
    monkeypatch.setattr(Session, "train", lambda self: trained.append(self) or train(self))
    pd.testing.assert_frame_equal(run(sweep, 2, tmp_path), stored)
    assert trained == []
    assert (run(sweep, 0, tmp_path)["config"] == 0).all()  # another best one: the stored runs are of no use
    assert len(trained) == 2 and (confirm.load(tmp_path)["config"] == 0).all()


def test_interrupted(sweep, tmp_path, monkeypatch):
    """Nothing is stored, so that a repeat begins anew."""
    enter = SigInt.__enter__
    monkeypatch.setattr(SigInt, "__enter__", lambda self: setattr(self, "received", True) or enter(self))
    assert run(sweep, 2, tmp_path) is None
    assert confirm.load(tmp_path) is None


def test_nothing_to_confirm(sweep):
    plan, trainers = sweep
    result = scored(plan, 0)
    result.metrics["return"] = np.nan
    with pytest.raises(RlxError, match="no run has a finite score"):
        confirm.confirm(plan, trainers, result, None, Progress(1, "test", enabled=False))
    result.metrics = result.metrics.rename(columns={"return": "return_0"}).assign(return_1=0.0)
    with pytest.raises(RlxError, match="a vector reward has no single best"):
        confirm.confirm(plan, trainers, result, None, Progress(1, "test", enabled=False))
