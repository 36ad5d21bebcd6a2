"""TensorBoard and Weights & Biases: read back with their own formats, they hold the stored table, each row once."""

import importlib.util
import json

import numpy as np
import pandas as pd
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

import rlx
from rlx.results import metrics
from rlx.sinks import wandb as wandb_sink
from rlx.sweeps import load
from tests import wandb_support
from tests.sweeps.sweeps_support import sweep
from tests.train_support import CARTPOLE, MARKS, RUN, TINY, Boom, at, fails, no_fsync, raising, train  # noqa: F401

BOTH = ("tensorboard", "wandb")


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")


# --- what they hold --------------------------------------------------------------------------------------------------


def rows_of(table: pd.DataFrame) -> dict[int, list[tuple[int, dict[str, float]]]]:
    """The table as a sink should hold it."""
    labels = ["run", "config", "seed", "step"]
    return {
        run: [(r["step"], {k: x for k, x in r.items() if k not in labels and not np.isnan(x)}) for r in rows.to_dict("records")]
        for run, rows in table.groupby("run")
    }


def tensorboard(out) -> dict[int, list[tuple[int, dict[str, float]]]]:
    """What the event files hold; an event of a step that comes twice is found twice."""
    found = {}
    for directory in (out / "tensorboard").iterdir():
        steps: dict[int, dict[str, float]] = {}
        for path in sorted(directory.iterdir()):
            events = EventAccumulator(str(path), size_guidance={"scalars": 0}).Reload()
            for tag in events.Tags()["scalars"]:
                for event in events.Scalars(tag):
                    assert tag not in steps.setdefault(event.step, {}), f"{tag} at {event.step} twice"
                    steps[event.step][tag] = event.value
        found[int(directory.name.removeprefix("run-"))] = sorted(steps.items())
    return found


def swept(result) -> pd.DataFrame:
    """The table of a sweep without what is no measurement."""
    return result.metrics.drop(columns=[*result.plan.space, "failed"])


def assert_logged(out, table: pd.DataFrame) -> None:
    """Both sinks under `out` hold this table, in float32, and nothing else."""
    wandb = {int(name.split("-")[-1]): rows for name, rows in wandb_support.read(out).rows.items()}
    for found in (tensorboard(out), wandb):
        expected = rows_of(table)
        assert found.keys() == expected.keys()
        for run, rows in expected.items():
            assert [step for step, _ in found[run]] == [step for step, _ in rows]
            for (_, a), (_, b) in zip(found[run], rows, strict=True):
                assert a == pytest.approx(b, rel=1e-6)


def hparams(directory) -> dict[str, object]:
    """The configuration that TensorBoard's HPARAMS tab shows of a run."""
    first = min(directory.iterdir())
    content = EventAccumulator(str(first)).Reload().PluginTagToContent("hparams")["_hparams_/session_start_info"]
    values = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    return {name: getattr(x, x.WhichOneof("kind")) for name, x in values.items()}


def test_both_hold_the_table_and_each_run_its_configuration(tmp_path):
    out = tmp_path / "r"
    result = train(out=str(out), sinks=BOTH)
    assert sorted(result.metrics["step"].unique()) == MARKS
    assert_logged(out, result.metrics)
    logged = wandb_support.read(out)
    assert logged.groups == {"r"}
    for run, seed in enumerate(RUN["seeds"]):
        (config,) = (c for c in logged.configs.values() if c["run"] == run)
        shown = hparams(out / "tensorboard" / f"run-{run}")
        for found in (config, shown):
            assert (found["agent"], found["env"], found["seed"]) == ("ppo", CARTPOLE, seed)
            assert (found["lr"], found["gamma"], found["num_envs"], found["env.gravity"]) == (0.05, 0.99, 2, 9.8)
        assert config["hidden_sizes"] == [8] and shown["hidden_sizes"] == "(8,)"


def test_a_sweep_logs_each_run_with_its_own_values(tmp_path):
    out = tmp_path / "s"
    result = sweep({"lr": [1e-3, 3e-3], "env.gravity": [9.8, 5.0]}, seeds=2, batch_of_runs=3, out=str(out), sinks=BOTH)
    assert_logged(out, swept(result))
    configs = {c["run"]: c for c in wandb_support.read(out).configs.values()}
    for run, rows in result.metrics.groupby("run"):
        row = rows.iloc[0]
        own = result.plan.configs[int(row["config"])]
        found = configs[run], hparams(out / "tensorboard" / f"run-{run}")
        for config in found:
            assert (config["seed"], config["config"]) == (row["seed"], row["config"])
            assert (config["lr"], config["env.gravity"]) == (own["lr"], own["env.gravity"])


# --- what was logged once --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [MARKS[1], MARKS[2]])  # a checkpoint; a row after it
def test_a_resumed_run_logs_nothing_twice(tmp_path, where):
    out = tmp_path / "r"
    with pytest.raises(Boom):
        train(out=str(out), sinks=BOTH, callback=at(where, raising(Boom())))
    assert max(step for step, _ in tensorboard(out)[0]) == where
    result = train(out=str(out), sinks=BOTH, resume=True)
    assert_logged(out, result.metrics)
    assert len({*wandb_support.read(out).configs}) == 2  # the same two runs of theirs


def test_a_run_that_died_after_its_last_checkpoint_logs_its_rows_once(tmp_path, monkeypatch):
    """Rows are logged again from the checkpoint on; W&B has them already."""
    out = tmp_path / "r"
    with monkeypatch.context() as m, pytest.raises(Boom):
        m.setattr("rlx.training.Session._rescue", lambda self, error: None)  # as kill -9 leaves it
        train(out=str(out), sinks=BOTH, callback=at(MARKS[2], raising(Boom())))
    assert json.loads((out / "wandb.json").read_text())["steps"] == {"0": MARKS[2], "1": MARKS[2]}
    assert rlx.load(out).trainer.steps(rlx.load(out).carry()) == MARKS[1]
    assert_logged(out, train(out=str(out), sinks=BOTH, resume=True).metrics)


def test_a_sweep_that_died_before_it_logged_a_batch_logs_it_when_resumed(tmp_path, monkeypatch):
    out = tmp_path / "s"
    space = {"lr": [1e-3, 3e-3]}
    with monkeypatch.context() as m, pytest.raises(Boom):
        m.setattr("rlx.sinks.Sinks.write", lambda *args, **kwargs: raising(Boom())())
        sweep(space, seeds=2, batch_of_runs=2, out=str(out), sinks=BOTH)
    assert len((out / "finished.csv").read_text().splitlines()) == 1 and not (out / "tensorboard").exists()
    sweep(space, seeds=2, batch_of_runs=2, out=str(out), sinks=BOTH, resume=True)
    assert_logged(out, swept(load(out)))
    sweep(space, seeds=2, batch_of_runs=2, out=str(out), sinks=BOTH, resume=True)  # nothing is left to do
    assert_logged(out, swept(load(out)))


# --- bad input -------------------------------------------------------------------------------------------------------


def test_bad_sinks_are_one_line_before_anything_compiles(tmp_path, monkeypatch):
    call = lambda **kwargs: lambda: rlx.train("ppo", CARTPOLE, progress=False, **{**RUN, **TINY, **kwargs})
    out = str(tmp_path / "r")
    monkeypatch.setattr("rlx.training.Session._compile", lambda *args: pytest.fail("compiled"))
    fails(call(out=out, sinks=("tensorbord",)), "unknown sink", "'tensorbord'", "did you mean 'tensorboard'?")
    fails(call(sinks=("tensorboard",)), "sinks=('tensorboard',)", "need out")
    fails(lambda: sweep({"lr": [0.1]}, out=out, sinks=("wanbd",)), "did you mean 'wandb'?")
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setattr(wandb_sink.wandb, "login", lambda **kwargs: False)
    wandb_sink.wandb.teardown()  # it has read its variables
    fails(call(out=out, sinks=("wandb",)), "not logged in", "WANDB_MODE=offline")
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "wandb" else found(name))
    fails(call(out=out, sinks=("wandb",)), "pip install 'rlx[wandb]'")
    assert not (tmp_path / "r").exists()


def test_without_sinks_nothing_is_imported_or_written(tmp_path):
    train(out=str(tmp_path / "r"))
    assert {path.name for path in (tmp_path / "r").iterdir()} == {"run.json", "metrics.parquet", "checkpoints"}
    assert metrics(tmp_path / "r")["run"].nunique() == 2
