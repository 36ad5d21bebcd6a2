"""`rlx.load` gives a stored result back; a result answers what one asks of it."""

import json
import shutil
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.image
import numpy as np
import pandas as pd
import pytest

import rlx
from rlx import results
from rlx.results import Result
from tests.train_support import CARTPOLE, PER, TINY, Count, assert_same, assert_same_result, fails, ppo, reference, train


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("results") / "run"
    train(out=str(out))
    return out


def test_load_gives_the_result_back(out):
    loaded = rlx.load(str(out))
    pd.testing.assert_frame_equal(loaded.metrics, reference().metrics, check_exact=True)
    np.testing.assert_array_equal(loaded.returns, reference().returns)
    assert_same(loaded.carry(), reference().carry())
    assert loaded.trainer.config == ppo().config and loaded.trainer.spec == ppo().spec
    assert loaded.trainer.identity() == ppo().identity() and loaded.out == out and not loaded.interrupted


def test_a_loaded_result_continues_bit_for_bit(out):
    loaded = rlx.load(out)
    carry, _ = loaded.trainer.run(loaded.carry(), 2 * PER)
    original = ppo().restore(out / "checkpoints" / "last")
    assert_same(carry, ppo().run(original, 2 * PER)[0])


def test_evaluate(out):
    returns = rlx.evaluate(out, episodes=3, seed=7)
    assert type(returns) is np.ndarray and returns.shape == (2, 3) and returns.dtype == np.float32
    np.testing.assert_array_equal(returns, ppo().evaluate(reference().carry(), 3, jax.random.key(7)))
    assert (rlx.evaluate(out, episodes=3, seed=8) != returns).any()
    best = ppo().evaluate(rlx.load(out).carry("best"), 3, jax.random.key(7))
    np.testing.assert_array_equal(rlx.evaluate(str(out), 3, seed=7, which="best"), best)
    fails(lambda: rlx.evaluate(out, which="frist"), "unknown carry 'frist'")


def test_parameters_of_the_environment_come_back_exactly(tmp_path):
    params = {"gravity": 0.1, "max_steps_in_episode": 7}
    run = {"steps": PER, "eval_episodes": 1, "out": str(tmp_path / "run"), "progress": False}
    trained = rlx.train("ppo", CARTPOLE, env_params=params, **TINY, **run)
    loaded = rlx.load(tmp_path / "run").trainer
    for a, b in zip(jax.tree.leaves(trained.trainer.env_params), jax.tree.leaves(loaded.env_params), strict=True):
        assert a.dtype == b.dtype and a == b
    assert loaded.env_params.gravity == jnp.float32(0.1) and loaded.spec.max_episode_steps == 7
    assert_same(loaded.restore(tmp_path / "run" / "checkpoints" / "last"), trained.carry())


def test_own_environment_is_passed_again(tmp_path):
    env = Count()
    trained = rlx.train("ppo", env, **TINY, steps=PER, eval_episodes=2, out=str(tmp_path), progress=False)
    fails(lambda: rlx.load(tmp_path), "was trained on Count", "env=", str(tmp_path))
    fails(lambda: rlx.evaluate(tmp_path), "env=")
    loaded = rlx.load(tmp_path, env=Count())
    assert_same(loaded.carry(), trained.carry())
    pd.testing.assert_frame_equal(loaded.metrics, trained.metrics)
    assert (rlx.evaluate(tmp_path, 3, env=env) == 8.0).all()
    fails(lambda: rlx.load(tmp_path, env=rlx.envs.make("probe/ActionReward")).carry(), "")


def test_own_agent_is_passed_again(tmp_path):
    mine = types.ModuleType("my.ppo")  # not that of rlx, though it has its name
    mine.Config, mine.make = rlx.agents.get("ppo").Config, rlx.agents.get("ppo").make
    run = {"steps": PER, "eval_episodes": 1, "out": str(tmp_path), "progress": False}
    trained = rlx.train(mine, CARTPOLE, **TINY, lr=0.5, **run)
    fails(lambda: rlx.load(tmp_path), "was trained by ppo, an agent of the user's own", "agent=", str(tmp_path))
    fails(lambda: rlx.evaluate(tmp_path), "agent=")
    loaded = rlx.load(tmp_path, agent=mine)
    assert_same(loaded.carry(), trained.carry())
    assert loaded.trainer.config == mine.Config(**TINY, lr=0.5)
    returns = trained.trainer.evaluate(trained.carry(), 3, jax.random.key(0))
    np.testing.assert_array_equal(rlx.evaluate(tmp_path, 3, agent=mine), returns)
    assert_same_result(train(loaded.trainer, steps=PER, seeds=1, out=str(tmp_path), resume=True), trained)


def test_the_table_alone(tmp_path):
    trained = rlx.train("ppo", Count(), **TINY, steps=PER, eval_episodes=2, out=str(tmp_path), progress=False)
    pd.testing.assert_frame_equal(results.metrics(str(tmp_path)), trained.metrics)
    fails(lambda: results.metrics(tmp_path / "none"), "holds no rlx run")


def test_what_carry_returns_may_be_donated(out):
    """As `trainer.run` does."""
    for result in (train(), rlx.load(out)):
        first, second = (result.trainer.run(result.carry(), PER)[0] for _ in range(2))
        assert_same(first, second)
        assert_same(result.carry(), reference().carry())


# --- what a result answers -------------------------------------------------------------------------------------------------


def frame(**columns) -> pd.DataFrame:
    """Two runs, evaluated at 10 and 30, and a row at 20 without evaluation."""
    base = {"run": [0] * 3 + [1] * 3, "seed": [4] * 3 + [9] * 3, "step": [10, 20, 30] * 2}
    return pd.DataFrame({**base, "unfinished": [0, np.nan, 0] * 2, **columns})


NAN = float("nan")
SCALAR = frame(**{"return": [9.0, NAN, 1.0, 0.0, NAN, 2.5]})
VECTOR = frame(return_0=[9.0, NAN, 1.0, 0.0, NAN, 2.5], return_1=[1.0, NAN, 2.0, 3.0, NAN, 4.0])


def test_best_is_by_the_last_evaluation():
    best = Result(SCALAR, ppo(), None).best()
    assert (best["run"], best["seed"], best["step"], best["return"]) == (1, 9, 30, 2.5)
    assert best["lr"] == 0.05 and best["num_envs"] == 2
    assert all(type(best[name]) is int for name in ("run", "seed", "step"))


def test_best_takes_a_swept_field_from_the_row_and_not_from_the_config():
    assert Result(SCALAR.assign(lr=[0.1] * 3 + [0.2] * 3), ppo(), None).best()["lr"] == 0.2


def test_best_leaves_out_runs_whose_return_is_missing():
    table = frame(**{"return": [9.0, NAN, 1.0, 50.0, NAN, NAN]})
    best = Result(table, ppo(), None).best()
    assert (best["run"], best["return"]) == (0, 1.0)


def test_best_needs_a_scalar_evaluation():
    fails(lambda: Result(VECTOR, ppo(), None).best(), "scalar reward")
    nothing = frame(**{"return": [NAN] * 6, "unfinished": [NAN] * 6})
    fails(lambda: Result(nothing, ppo(), None).best(), "needs an evaluation")


def test_table():
    table = Result(SCALAR, ppo(), None).table()
    assert table.index.tolist() == ["ppo on gymnax/CartPole-v1"]
    row = table.iloc[0]
    assert (row["runs"], row["steps"], row["mean"], row["failed"]) == (2, 30, 1.75, 0)
    table = Result(VECTOR, ppo(), None).table()
    assert table["mean"].tolist() == [1.75, 3.0]


def test_to_pandas_is_a_copy():
    result = Result(SCALAR, ppo(), None)
    copy = result.to_pandas()
    pd.testing.assert_frame_equal(copy, SCALAR)
    copy["step"] = 0
    assert result.metrics["step"].max() == 30


@pytest.mark.parametrize("metrics", [SCALAR, VECTOR])
def test_plot(tmp_path, metrics):
    result = Result(metrics, ppo(), None)
    path = result.plot(tmp_path / "new" / "curve.png")
    assert path == tmp_path / "new" / "curve.png" and matplotlib.image.imread(path).std() > 0
    (tmp_path / "file").write_text("")
    fails(lambda: result.plot(tmp_path / "file" / "curve.png"), "cannot write plot")


def test_return_columns_are_in_numerical_order():
    columns = [f"return_{j}" for j in range(11)]
    assert results.return_columns(pd.DataFrame(columns=[*sorted(columns), "return_std", "episode_return_0"])) == columns
    assert results.return_columns(SCALAR) == ["return"]


def test_carries_that_are_not_there():
    fails(lambda: Result(SCALAR, ppo(), None).carry(), "last carry was not stored")
    fails(lambda: reference().carry("bset"), "unknown carry 'bset'", "'best'?")


# --- damage ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def copy(out, tmp_path) -> Path:
    return Path(shutil.copytree(out, tmp_path / "copy"))


def edit(out: Path, **changes) -> None:
    file = out / "run.json"
    content = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({k: v for k, v in content.items() if v is not ...}))


def test_nothing_there(tmp_path):
    for path in (tmp_path, tmp_path / "none"):
        fails(lambda path=path: rlx.load(path), f"{path} holds no rlx run: it has no run.json")
    (tmp_path / "plan.json").write_text("{}")
    fails(lambda: rlx.load(tmp_path), "holds no rlx run but a sweep, which rlx.sweeps.load reads")
    (tmp_path / "file").write_text("")
    fails(lambda: rlx.load(tmp_path / "file"), str(tmp_path / "file"))


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", "{}", '"x"'])
def test_description_that_is_not_ours(copy, text):
    (copy / "run.json").write_text(text)
    fails(lambda: rlx.load(copy), str(copy), "run.json")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"agent": ...}, ("no entry 'agent'",)),
        ({"config": ...}, ("no entry 'config'",)),
        ({"own_env": ...}, ("no entry 'own_env'",)),
        ({"own_agent": ...}, ("no entry 'own_agent'",)),
        ({"env_params": {}}, ("no entry",)),
        ({"agent": "poo"}, ("unknown agent 'poo'",)),
        ({"env": "gymnax/CartPole"}, ("unknown environment 'gymnax/CartPole'",)),
        ({"config": {"lr": "x"}}, ("lr='x' must be float",)),
        ({"config": {"later": 1}}, ("unknown field 'later'",)),
        ({"config": []}, ("run.json",)),
        ({"config": None}, ("run.json",)),
        ({"env_options": 3}, ("run.json",)),
        ({"env_params": 3}, ("run.json",)),
    ],
)
def test_description_with_other_entries(copy, changes, words):
    edit(copy, **changes)
    fails(lambda: rlx.load(copy), *words)


def test_damaged_table(copy):
    file = copy / "metrics.parquet"
    file.write_bytes(file.read_bytes()[:-100])
    fails(lambda: rlx.load(copy), "cannot read", "metrics.parquet")
    file.unlink()
    fails(lambda: rlx.load(copy), "cannot read", "metrics.parquet", "No such file")


def test_damaged_checkpoint(copy):
    (copy / "checkpoints" / "last" / "rlx.json").unlink()
    loaded = rlx.load(copy)  # the table is all right
    fails(loaded.carry, "is not an rlx checkpoint")
    assert ppo().steps(loaded.carry("best")) > 0
    fails(lambda: rlx.evaluate(copy), "is not an rlx checkpoint")


def test_another_configuration_than_that_of_the_checkpoint(copy):
    edit(copy, config={**json.loads((copy / "run.json").read_text())["config"], "lr": 0.5})
    fails(rlx.load(copy).carry, "another configuration", "lr=0.05 there, 0.5 here")
