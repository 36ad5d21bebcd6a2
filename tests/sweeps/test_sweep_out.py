"""What a sweep leaves on disk, what it refuses to touch, and Ctrl-C."""

import os
import signal
import tomllib

import pandas as pd
import pytest

import rlx
from rlx.sweeps import load
from rlx.sweeps import run as run_
from tests.sweeps.sweeps_support import LR, PER, cut, sweep
from tests.train_support import CARTPOLE, TINY, contents, fails

# --- on disk -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    out = tmp_path_factory.mktemp("sweep") / "new" / "s"
    return sweep(LR, seeds=[3, 5], batch_of_runs=4, out=str(out)), out


def test_what_is_stored(stored):
    result, out = stored
    assert sorted(contents(out)) == [
        *(".lock", "batches/000-0000.parquet", "batches/000-0001.parquet", "best.toml", "confirm.parquet", "finished.csv"),
        *("metrics.parquet", "plan.json", "table.csv"),
    ]
    pd.testing.assert_frame_equal(result.metrics, cut().metrics, check_exact=True)
    pd.testing.assert_frame_equal(pd.read_parquet(out / "metrics.parquet"), result.metrics, check_exact=True)
    assert (out / "finished.csv").read_text() == "000-0000,3\n000-0001,3\n"
    assert len(pd.read_csv(out / "table.csv")) == 3


def test_load(stored):
    result, out = stored
    again = load(str(out))
    pd.testing.assert_frame_equal(again.metrics, result.metrics, check_exact=True)
    assert again.plan == result.plan and again.best() == result.best() and again.out == out
    fails(lambda: load(out.parent), "holds no sweep")


def test_best_toml(stored):
    result, out = stored
    text = (out / "best.toml").read_text()
    config = rlx.agents.ppo.Config(**tomllib.loads(text))
    assert config == rlx.agents.ppo.Config(**TINY, lr=result.best()["lr"])
    assert (
        text.startswith(f"# ppo on {CARTPOLE}: configuration {result.best()['config']}, best of 3\n") and "fresh seeds" in text
    )


def test_best_toml_keeps_the_environment(tmp_path):
    """Swept, given and untouched parameters: a run from the file is in the sweep's environment."""
    space = {"env.gravity": [9.0], "activation": ["relu"]}
    params = {"force_mag": 12.5, "max_steps_in_episode": 9}
    result = sweep(space, env_params=params, steps=PER, eval_every=PER, out=str(tmp_path / "s"))
    document = tomllib.loads((tmp_path / "s" / "best.toml").read_text())
    assert document["env_params"] == {"force_mag": 12.5, "max_steps_in_episode": 9, "gravity": 9.0}
    assert document["activation"] == "relu" and "env_options" not in document
    single = rlx.train("ppo", CARTPOLE, progress=False, steps=PER, eval_every=PER, eval_episodes=2, **document)
    assert single.metrics["return"].iloc[-1] == result.metrics["return"].iloc[-1] == 9.0


def test_a_dry_run_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    result = sweep(LR, out=str(tmp_path / "s"), dry_run=True)
    assert (
        not list(tmp_path.iterdir())
        and result.metrics.empty
        and "3 runs = 3 configurations x 1 seeds" in capsys.readouterr().out
    )
    fails(result.table, "there is none yet")
    fails(result.best, "there is none yet")


def test_nothing_is_written_without_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sweep(LR, seeds=[3, 5], batch_of_runs=4, save_every=PER)
    assert not list(tmp_path.iterdir())


def test_what_out_must_not_be(stored, tmp_path):
    _, out = stored
    before = contents(out)
    again = lambda **kwargs: sweep(LR, **{"seeds": [3, 5], "batch_of_runs": 4, **kwargs})
    fails(lambda: again(out=str(out)), "holds a sweep already", "resume")
    fails(lambda: again(out=str(out), resume=True, seeds=2), "holds another sweep", "seeds=[3, 5] there, [0, 1] here")
    assert contents(out) == before
    (tmp_path / "file").write_text("")
    fails(lambda: again(out=str(tmp_path)), "is not empty and holds no sweep")
    fails(lambda: again(out=str(tmp_path / "file")), "cannot write to out=")
    assert list(contents(tmp_path)) == ["file"]


def test_one_process_at_a_time(stored):
    _, out = stored
    with run_.locked(out):
        fails(lambda: sweep(LR, seeds=[3, 5], batch_of_runs=4, out=str(out), resume=True), f"{out} is in use by another sweep")
    kept = run_.locked(out)  # ends with the context, though the object lives on
    with kept:
        pass
    with run_.locked(out):
        pass


# --- interrupted -------------------------------------------------------------------------------------------------------


def test_ctrl_c_ends_the_sweep_and_resume_finishes_it(tmp_path, monkeypatch):
    """In the second of two batches: the first is stored, the second begins anew, to the same bits."""
    out, train, calls = tmp_path / "s", rlx.Trainer.evaluate, iter(range(100))

    def evaluate(self, *args, **kwargs):
        if next(calls) == 5:  # compilation and three evaluations of the first batch, compilation and one of the second
            os.kill(os.getpid(), signal.SIGINT)
        return train(self, *args, **kwargs)

    with monkeypatch.context() as m:
        m.setattr(rlx.Trainer, "evaluate", evaluate)
        result = sweep(LR, seeds=[3, 5], batch_of_runs=4, out=str(out))
    assert result.interrupted and sorted(set(result.metrics["run"])) == [0, 1, 2]
    pd.testing.assert_frame_equal(load(out).metrics, result.metrics, check_exact=True)
    assert len(result.table()) == 2 and (out / "best.toml").exists()
    resumed = sweep(LR, seeds=[3, 5], batch_of_runs=4, out=str(out), resume=True)
    assert not resumed.interrupted
    pd.testing.assert_frame_equal(resumed.metrics, cut().metrics, check_exact=True)


def test_ctrl_c_before_anything_is_finished(tmp_path, monkeypatch):
    out, evaluate = tmp_path / "s", rlx.Trainer.evaluate
    with monkeypatch.context() as m:
        m.setattr(rlx.Trainer, "evaluate", lambda *a, **k: os.kill(os.getpid(), signal.SIGINT) or evaluate(*a, **k))
        result = sweep(LR, seeds=[3, 5], batch_of_runs=4, out=str(out))
    assert result.interrupted and result.metrics.empty and sorted(contents(out)) == [".lock", "finished.csv", "plan.json"]
    fails(result.table, "there is none yet")
    assert load(out).metrics.empty
