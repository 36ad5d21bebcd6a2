"""Published scores against numbers worked out by hand; what the reproducing scripts make of runs that are written here."""

import numpy as np
import pandas as pd
import pytest

from experiments import mrq_dmc, mrq_gym, published, reproduce
from rlx import envs
from rlx.errors import RlxError
from rlx.sinks import parquet

SWINGUP = "Dmc-cartpole-swingup"


def evaluations(returns, steps, first=0) -> pd.DataFrame:
    """`returns [seeds, steps]` as rlx.train stores them, with a row between evaluations."""
    rows = [
        {"run": r, "seed": first + r, "step": s, "return": y, "unfinished": 0.0}
        for r, row in enumerate(returns)
        for s, y in zip(steps, row, strict=True)
    ]
    between = {"run": 0, "seed": first, "step": steps[-1] + 7, "return": np.nan, "unfinished": np.nan}
    return pd.DataFrame([*rows, between])


def store(runs, name, seeds, table) -> None:
    out = reproduce.directory(runs, name, seeds)
    out.mkdir(parents=True)
    (out / "run.json").write_text("{}")
    parquet.write(out / "metrics.parquet", table)


@pytest.fixture
def untrained(monkeypatch):
    """What rlx.train would have been asked for; the call leaves nothing."""
    calls = []

    class Stopped:
        interrupted = False

    monkeypatch.setattr(reproduce.rlx, "train", lambda *args, **kwargs: calls.append((args, kwargs)) or Stopped())
    return calls


# --- the files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "suite, tasks, steps", [("dmc", 28, 500_000), ("dmc_visual", 28, 500_000), ("gym", 5, 1_000_000), ("atari", 57, 2_500_000)]
)
def test_files_agree_with_one_another(suite, tasks, steps):
    """The statistics of a curve's last step are those of the single seeds."""
    assert len(published.tasks(suite)) == tasks
    for task in published.tasks(suite):
        final, last = published.final(suite, task), published.curve(suite, task).loc[steps]
        assert (final.step, final.seeds) == (steps, 10)
        np.testing.assert_allclose([final.mean, final.std], [last["mean"], last["std"]], rtol=1e-3, atol=0.01)
        # bootstraps of other resamples: where one seed is far off, an end of the interval moves by 0.1 of its width between
        # 2,000 and 200,000 of them (cartpole-balance: 998.52, 998.61; the file has 998.64)
        tolerance = 0.15 * (last["high"] - last["low"]) + 0.01
        np.testing.assert_allclose([final.low, final.high], [last["low"], last["high"]], rtol=0, atol=tolerance)


def test_final_by_hand():
    acrobot = [504.72169, 651.59669, 489.57155, 555.25712, 698.37727, 469.67849, 632.49047, 492.08771, 646.72423, 529.84782]
    score = published.final("dmc", "Dmc-acrobot-swingup")
    assert score.mean == pytest.approx(sum(acrobot) / 10)
    assert score.std == pytest.approx((sum((x - score.mean) ** 2 for x in acrobot) / 9) ** 0.5)
    half = 1.96 * np.std(acrobot) / 10**0.5  # the normal approximation of a bootstrap of the mean
    np.testing.assert_allclose([score.low, score.high], [score.mean - half, score.mean + half], atol=0.15 * half)


def test_score_is_of_the_step_where_there_is_one_else_the_last():
    assert published.score("dmc", SWINGUP, 20_000) == (20_000, 10, 638.34, 576.88, 700.71, 109.97)
    assert published.score("dmc", SWINGUP, 20_001) == published.score("dmc", SWINGUP) == published.final("dmc", SWINGUP)
    assert published.score("dmc", SWINGUP, 500_000) == published.final("dmc", SWINGUP)


def test_the_interval_of_two_scores():
    """Resampling {0, 1} gives the means 0, 1/2 and 1, a quarter of them at each end."""
    assert published.interval(np.array([0.0, 1.0])) == (0, 1)
    assert published.interval(np.array([3.0])) == (3, 3)


def test_unknown_names_are_errors():
    with pytest.raises(RlxError, match="unknown suite 'dm': did you mean 'dmc'"):
        published.tasks("dm")
    with pytest.raises(RlxError, match="unknown task 'Dmc-cartpole-swing': did you mean 'Dmc-cartpole-swingup'"):
        published.final("dmc", "Dmc-cartpole-swing")


# --- names of tasks ----------------------------------------------------------------------------------------------------


def test_playground_names_are_published_ones_and_one_to_one():
    names = [mrq_dmc.playground(task) for task in published.tasks("dmc")]
    present = [name for name in names if name]
    assert len(set(present)) == len(present) == 22 and names.count(None) == len(mrq_dmc.ABSENT) == 6
    assert set(mrq_dmc.ABSENT) | set(mrq_dmc.RENAMED) <= set(published.tasks("dmc"))
    assert mrq_dmc.playground("Dmc-ball_in_cup-catch") == "BallInCup"
    assert mrq_dmc.playground("Dmc-finger-turn_easy") == "FingerTurnEasy"


def test_all_of_playground_is_published_but_for_three():
    pytest.importorskip("mujoco_playground")
    there = set(envs.ids(["playground"]))
    assert {env for env in mrq_dmc.SUITE.envs.values() if env} <= there
    suite = {f"playground/{name}" for name in importable("dm_control_suite").ALL_ENVS}
    unpublished = suite - set(mrq_dmc.SUITE.envs.values())
    assert unpublished == {f"playground/{n}" for n in ("AcrobotSwingupSparse", "PointMass", "SwimmerSwimmer6")}


def importable(module):
    from rlx.envs.adapters import playground

    return playground.source(module)


def test_gym_tasks_are_those_that_gymnasium_registers():
    gym = pytest.importorskip("gymnasium")
    assert list(mrq_gym.SUITE.tasks) == ["Ant", "HalfCheetah", "Hopper", "Humanoid", "Walker2d"]
    assert all(env.removeprefix("gymnasium/") in gym.registry for env in mrq_gym.SUITE.envs.values())


@pytest.mark.parametrize("script", [mrq_dmc, mrq_gym])
def test_scales_train_tasks_that_there_are(script):
    for scale in script.SCALES.values():
        assert set(scale.tasks) <= set(script.SUITE.tasks)
        assert sum(scale.programs, ()) == tuple(range(scale.seeds))
        assert scale.steps % scale.eval_every == 0
    paper = script.SCALES["paper"]
    assert len(paper.tasks) == len(script.SUITE.tasks) and not paper.fields
    last = published.final(script.SUITE.name, published.tasks(script.SUITE.name)[0])
    assert (paper.steps, paper.seeds) == (last.step, last.seeds)


# --- the table ---------------------------------------------------------------------------------------------------------


def test_a_row_per_published_task():
    frames = {"CartpoleSwingup": evaluations([[1, 500], [1, 600], [1, 700]], [10_000, 20_000]).dropna()}
    rows = reproduce.table(mrq_dmc.SUITE, frames).set_index("task")
    assert len(rows) == 28
    ours = rows.loc["cartpole-swingup"]
    assert ours[["seeds", "failed", "steps", "mean", "low", "high", "iqm"]].tolist() == [3, 0, 20_000, 600, 500, 700, 600]
    assert ours[["published_steps", "published_mean", "published_low", "published_high"]].tolist() == [
        20_000, 638.34, 576.88, 700.71,
    ]  # fmt: skip
    assert ours["simulator"] != ours["published_simulator"]
    others = rows.drop("cartpole-swingup")
    assert others["mean"].isna().all() and (others["verdict"] == "").all() and (others["seeds"] == 0).all()
    assert set(others["published_steps"]) == {500_000}
    assert (rows.index[rows["status"] == "not in Playground"] == [t.removeprefix("Dmc-") for t in sorted(mrq_dmc.ABSENT)]).all()
    assert (others["status"] == "not run here").sum() == 21


@pytest.mark.parametrize(
    "mean, verdict", [(638.34, "within"), (494, "within"), (493, "below"), (783, "within"), (784, "above")]
)
def test_the_verdict_is_two_standard_errors(mean, verdict):
    """638 +- 145: 2 x 109.97 x sqrt(1/3 + 1/10) = 144.8."""
    frame = evaluations([[mean]] * 3, [20_000]).dropna()
    row = reproduce.row(mrq_dmc.SUITE, SWINGUP, frame)
    assert row["verdict"] == verdict
    assert row["difference"] == pytest.approx(mean - 638.34) and 2 * row["standard_error"] == pytest.approx(144.78, abs=0.01)


def test_no_verdict_on_other_steps():
    row = reproduce.row(mrq_dmc.SUITE, SWINGUP, evaluations([[638]], [19_999]).dropna())
    assert row["verdict"] == "" and row["published_steps"] == 500_000 and np.isnan(row["difference"])


def test_the_row_is_of_the_seeds_that_got_furthest():
    frame = pd.concat([evaluations([[1, 2]], [10_000, 20_000]), evaluations([[50]], [10_000], first=1)]).dropna()
    row = reproduce.row(mrq_dmc.SUITE, SWINGUP, frame)
    assert (row["seeds"], row["steps"], row["mean"]) == (1, 20_000, 2)


def test_a_failed_seed_is_counted():
    frame = evaluations([[5], [np.nan]], [20_000])
    row = reproduce.row(mrq_dmc.SUITE, SWINGUP, frame[frame["unfinished"].notna()])
    assert (row["seeds"], row["failed"], row["mean"]) == (1, 1, 5)
    rows = pd.DataFrame([row])
    assert "1 (1 more failed)" in reproduce.markdown(mrq_dmc.SUITE, "cpu", mrq_dmc.SCALES["cpu"], rows)


# --- the command -------------------------------------------------------------------------------------------------------


def test_the_command_trains_what_is_missing(untrained, tmp_path, capsys):
    """Seed 0 is there, seed 1 was begun, seed 2 not: and the table has what there is."""
    runs, out = tmp_path / "runs", tmp_path / "out"
    store(runs, "CartpoleSwingup", (0,), evaluations([[70, 500]], [10_000, 20_000]))
    store(runs, "CartpoleSwingup", (1,), evaluations([[80]], [10_000], first=1))
    assert mrq_dmc.main(["--runs", str(runs), "--out", str(out)]) == 0
    assert [call[1]["seeds"] for call in untrained] == [(1,), (2,)]
    (agent, env), fields = untrained[0]
    assert (agent, env) == ("mrq", "playground/CartpoleSwingup")
    assert fields["env_options"] == {"action_repeat": 2} and fields["preset"] == "paper" and fields["resume"]
    assert fields["steps"] == 20_000 and fields["out"] == str(runs / "CartpoleSwingup" / "seeds-1")
    assert sorted(path.name for path in out.iterdir()) == ["curves_CartpoleSwingup.png", "table.csv", "table.md"]
    text = (out / "table.md").read_text()
    assert text.strip() == capsys.readouterr().out.strip()
    line = next(line for line in text.splitlines() if line.startswith("| cartpole-swingup |"))
    assert "| 500 [500, 500] |" in line and "| 638.3 [576.9, 700.7] | 20,000 |" in line and "| MJX (Playground) |" in line
    # one seed: 2 x 109.97 x sqrt(1 + 1/10) = 230.7; 500 - 638.34 = -138.3
    assert "| -1.20 | within 638 ± 231 (-138) |" in line
    assert text.count("not run here") == 21 and text.count("not in Playground") == 12  # in two columns
    assert published.SOURCE in text and "3 seeds and 20,000 steps" in text


def test_more_steps_continue_a_finished_run(untrained, tmp_path):
    store(tmp_path, "CartpoleSwingup", (0,), evaluations([[70, 500]], [10_000, 20_000]))
    ask = ["--seeds", "1", "--runs", str(tmp_path), "--out", str(tmp_path / "out"), "--steps"]
    assert mrq_dmc.main([*ask, "30000"]) == 0 and untrained[0][1]["steps"] == 30_000
    untrained.clear()
    assert mrq_dmc.main([*ask, "10000"]) == 0 and not untrained
    rows = pd.read_csv(tmp_path / "out" / "table.csv").set_index("task")
    assert rows.loc["cartpole-swingup", ["steps", "mean"]].tolist() == [10_000, 70]  # not what came after


def test_only_evaluations_are_read(tmp_path):
    """A checkpoint between two of them leaves a row without a return."""
    store(tmp_path, "CartpoleSwingup", (0,), evaluations([[60, 70]], [5_000, 10_000]))
    table = reproduce.stored(tmp_path, "CartpoleSwingup", mrq_dmc.SCALES["cpu"])
    assert table["step"].tolist() == [5_000, 10_000] and table["return"].tolist() == [60, 70]


def test_the_curve_is_drawn_beyond_the_published_steps(tmp_path):
    frame = evaluations([[1, 2]], [500_000, 600_000]).dropna()
    reproduce.curve(mrq_dmc.SUITE, "paper", SWINGUP, frame, tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 10_000


def test_an_interruption_stops_and_leaves_the_table(monkeypatch, tmp_path, capsys):
    class Interrupted:
        interrupted = True

    calls = []
    monkeypatch.setattr(reproduce.rlx, "train", lambda *args, **kwargs: calls.append(args) or Interrupted())
    assert mrq_gym.main(["--runs", str(tmp_path), "--out", str(tmp_path / "out")]) == 130
    assert len(calls) == 1 and (tmp_path / "out" / "table.md").exists()
    assert "continues" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--tasks", "CartpoleSwing"], "unknown task 'CartpoleSwing': did you mean 'CartpoleSwingup'?"),
        (["--steps", "0"], "steps=0 must be at least 1"),
        (["--seeds", "0"], "seeds=0 must be at least 1"),
    ],
)
def test_bad_input_is_one_line(untrained, tmp_path, capsys, argv, message):
    assert mrq_dmc.main([*argv, "--runs", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == f"mrq_dmc.py: {message}\n"
    assert not untrained and not list(tmp_path.iterdir())


def test_directories_name_their_seeds(tmp_path):
    assert reproduce.directory(tmp_path, "Ant", (3,)) == tmp_path / "Ant" / "seeds-3"
    assert reproduce.directory(tmp_path, "Ant", tuple(range(10))) == tmp_path / "Ant" / "seeds-0-9"
