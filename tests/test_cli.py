"""The command line: what works leaves files, what does not is one line and exit code 2."""

import json
import os
import types
from pathlib import Path

import jax
import matplotlib.image
import pandas as pd
import pytest

import rlx
from rlx import cli, config, training
from tests.cli_support import FLAGS, SHORT, TRAIN, bad, compiled, rlx_
from tests.train_support import CARTPOLE, TINY, Count, contents


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A stored run of two seeds."""
    out = tmp_path_factory.mktemp("cli") / "run"
    assert cli.main(["train", "ppo", CARTPOLE, *SHORT, "--seeds", "3", "5", "--out", str(out)]) == 0
    return out


def is_png(path: Path) -> bool:
    pixels = matplotlib.image.imread(path)  # decodes all of it
    return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and pixels.shape[0] > 300 and pixels.std() > 0


def test_the_listener_hears_a_compilation():
    before = len(compiled)
    jax.jit(lambda x: x * 3 - 1)(2.0)
    assert len(compiled) > before


# --- what works ----------------------------------------------------------------------------------------------------------


def test_train(run):
    names = ["checkpoints", "learning_curve.png", "metrics.parquet", "run.json", "table.csv"]
    assert sorted(os.listdir(run)) == names and is_png(run / "learning_curve.png")
    table = pd.read_csv(run / "table.csv")
    assert {"runs", "steps", "mean", "iqm", "low", "high"} < set(table) and len(table) == 1
    assert (table["runs"].item(), table["steps"].item()) == (2, 240)
    result = rlx.load(run)
    assert result.trainer.config == rlx.agents.get("ppo").Config(**TINY, lr=0.05)
    assert result.metrics["seed"].unique().tolist() == [3, 5]
    assert table["mean"].item() == pytest.approx(result.returns[:, -1].mean())


def test_the_output_of_train(capfd, tmp_path, run):
    code, out, err = rlx_(capfd, "train", "ppo", CARTPOLE, *SHORT, "--seeds", "3,5", "--out", str(tmp_path / "again"))
    assert code == 0 and "mean" in out and "iqm" in out and str(tmp_path / "again" / "learning_curve.png") in out
    assert "ppo on gymnax/CartPole-v1: 2 runs" in err and "Traceback" not in err
    pd.testing.assert_frame_equal(rlx.load(tmp_path / "again").metrics, rlx.load(run).metrics)  # the same command
    before = contents(tmp_path)
    code, out, err = rlx_(capfd, "train", "ppo", CARTPOLE, *SHORT, "--seeds", "3,5", "--out", str(tmp_path / "again"))
    assert code == 2 and "holds results already" in err and err.count("\n") == 1 and contents(tmp_path) == before


def test_evaluate(capfd, run):
    for which in ("last", "best"):
        code, out, err = rlx_(capfd, "evaluate", str(run), "--episodes", "5", "--which", which, "--seed", "4")
        assert (code, err) == (0, "")
        header, *rows = [line.split() for line in out.splitlines()]
        assert header == ["run", "seed", "mean", "return", "std", "return", "unfinished"]
        returns = rlx.evaluate(run, episodes=5, seed=4, which=which)
        assert [row[:2] for row in rows] == [["0", "3"], ["1", "5"]] and [row[-1] for row in rows] == ["0", "0"]
        assert [float(row[2]) for row in rows] == pytest.approx(returns.mean(1).tolist(), rel=1e-3)
        assert [float(row[3]) for row in rows] == pytest.approx(returns.std(1).tolist(), rel=1e-3)


def test_report(capfd, run, tmp_path):
    out = tmp_path / "new" / "report"
    code, text, err = rlx_(capfd, "report", str(run), str(run), "--out", str(out))
    assert (code, err) == (0, "") and str(run) in text
    assert sorted(os.listdir(out)) == ["report.csv", "report.md", "report.png"] and is_png(out / "report.png")
    assert (out / "report.md").read_text().startswith("| label | runs | steps | mean | iqm |")
    assert pd.read_csv(out / "report.csv")["runs"].tolist() == [2]


def test_report_needs_neither_the_agent_nor_the_environment(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mine = types.ModuleType("mine")
    mine.Config, mine.make = rlx.agents.get("ppo").Config, rlx.agents.get("ppo").make
    rlx.train(mine, Count(), **TINY, steps=20, eval_episodes=1, out=str(tmp_path / "run"), progress=False)
    code, text, err = rlx_(capfd, "report", str(tmp_path / "run"), "--out", str(tmp_path))
    assert (code, err) == (0, "") and str(tmp_path / "run") in text
    assert pd.read_csv(tmp_path / "report.csv")["mean"].tolist() == [8.0]
    bad(capfd, ["evaluate", str(tmp_path / "run")], "an agent of the user's own", "agent=")


def test_resume(capfd, run, tmp_path):
    """Longer than the stored run, by the command line alone."""
    flags = ["train", "ppo", CARTPOLE, *SHORT, "--seeds", "3", "5", "--out", str(tmp_path / "run")]
    assert rlx_(capfd, *flags, "--steps", "120")[0] == 0
    code, _, err = rlx_(capfd, *flags, "--steps", "240", "--resume")
    assert code == 0 and "240/240 steps" in err
    pd.testing.assert_frame_equal(rlx.load(tmp_path / "run").metrics, rlx.load(run).metrics)


def test_default_directories(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = ["train", "ppo", "probe/ActionReward", *FLAGS, "--steps", "20", "--eval_episodes", "1"]
    base = "runs/ppo-probe-ActionReward"
    for directory in (base, f"{base}-2", f"{base}-3"):
        code, out, _ = rlx_(capfd, *flags)
        assert code == 0 and f"results in {directory}," in out and (tmp_path / directory / "run.json").exists()
    assert rlx_(capfd, *flags, "--resume")[0] == 2
    assert len(os.listdir("runs")) == 3


def test_environment_options_and_parameters(capfd, tmp_path):
    out = tmp_path / "run"
    params = ["--env_params", "max_steps_in_episode=7", "gravity=1.5"]
    flags = [*FLAGS, *params, "--steps", "20", "--eval_episodes", "3", "--preset", "brax", "--out", str(out)]
    code, _, err = rlx_(capfd, "train", "ppo", CARTPOLE, *flags)
    assert code == 0, err
    trainer = rlx.load(out).trainer
    assert trainer.env_params.max_steps_in_episode == 7 and trainer.env_params.gravity == 1.5
    assert trainer.config == config.make(rlx.agents.get("ppo").Config, "brax", None, TINY)
    assert (rlx.evaluate(out, episodes=4) == 7).all()


# --- what does not ---------------------------------------------------------------------------------------------------------


BAD_TRAINING = {
    "command": (["trian", "ppo"], "unknown command 'trian'", "'train'?"),
    "no agent": (["train"], "needs an agent", ", ".join(rlx.agents.AGENTS)),
    "agent": (["train", "poo", CARTPOLE], "unknown agent 'poo'", "'ppo'?"),
    "no environment": (["train", "ppo"], "needs an environment", "rlx list envs"),
    "options instead of an environment": (["train", "ppo", "--steps", "100"], "needs an environment"),
    "environment": (["train", "ppo", "gymnax/CartPole"], "unknown environment 'gymnax/CartPole'", "'gymnax/CartPole-v1'?"),
    "suite": (["train", "ppo", "gym/CartPole-v1"], "unknown environment 'gym/CartPole-v1'", "'gymnax/CartPole-v1'?"),
    "no suite": (["train", "ppo", "CartPole-v1"], "unknown environment", "'gymnax/CartPole-v1'?"),
    "download": (["train", "ppo", "gymnax/MNISTBandit-bsuite"], "downloads"),
    "field": ([*TRAIN, "--learning_rate", "1"], "unknown field 'learning_rate'"),
    "misspelt field": ([*TRAIN, "--hiden-sizes", "1"], "unknown field 'hiden_sizes'", "'hidden_sizes'?"),
    "field of another agent": ([*TRAIN, "--replay_capacity", "1"], "unknown field 'replay_capacity'"),
    "float for an int": ([*TRAIN, "--num_envs", "2.5"], "num_envs=2.5 must be int, not float"),
    "scientific steps": ([*TRAIN, "--steps", "1e6"], "steps=1000000.0 must be int"),
    "word for a float": ([*TRAIN, "--lr", "fast"], "lr='fast' must be float"),
    "code for a float": ([*TRAIN, "--lr", "__import__('os').mkdir('x')"], "lr=", "must be float"),
    "dictionary for a float": ([*TRAIN, "--lr", "{[]: 1}"], "lr", "must be float"),
    "word for a bool": ([*TRAIN, "--resume", "maybe"], "resume='maybe' must be bool"),
    "choice": ([*TRAIN, "--activation", "relo"], "unknown value of activation 'relo'", "'relu'?"),
    "no value": ([*TRAIN, "--lr"], "--lr needs a value: float"),
    "no value before the next": ([*TRAIN, "--lr", "--gamma", "1"], "--lr needs a value: float"),
    "empty value": ([*TRAIN, "--lr="], "lr='' must be float"),
    "no_ of a number": ([*TRAIN, "--no_lr"], "unknown field 'no_lr'"),
    "no_ with a value": ([*TRAIN, "--no_normalize_obs=True"], "normalize_obs"),
    "infinite": (["train", "sac", "probe/ActionReward-continuous", "--updates_per_step", "1e999"],
                 "updates_per_step=inf must be finite"),
    "bound": ([*TRAIN, "--gamma", "1.5"], "gamma=1.5 must be in [0, 1]"),
    "negative": ([*TRAIN, "--lr", "-1"], "lr=-1.0 must be >= 0"),
    "negative width": ([*TRAIN, "--hidden_sizes", "-8"], "hidden_sizes"),
    "seeds": ([*TRAIN, "--seeds", "0", "x"], "seeds="),
    "negative seed": ([*TRAIN, "--seeds", "0", "-5"], "seeds=(0, -5) must lie in"),
    "no seed": ([*TRAIN, "--seeds", "0"], "seeds=0 must be at least one"),
    "steps": ([*TRAIN, "--steps", "250"], "steps=250", "num_envs * rollout_length = 20", "nearest is 240 or 260"),
    "eval_every": ([*TRAIN, "--eval_every", "30"], "eval_every=30", "nearest is 20 or 40"),
    "save_every": ([*TRAIN, "--save_every", "30"], "save_every=30", "nearest is 20 or 40"),
    "log_every": ([*TRAIN, "--log_every", "30"], "log_every=30", "nearest is 20 or 40"),
    "zero steps": ([*TRAIN, "--steps", "0"], "steps=0 must be a positive multiple"),
    "steps past the counter": ([*TRAIN, "--steps", str(20 * 2**32)], "2^32 iterations"),
    "minibatches": ([*TRAIN, "--num_minibatches", "3"], "num_minibatches=3 must divide", "nearest is 2"),
    "discrete agent": (["train", "sac", CARTPOLE], "sac needs continuous actions", "gymnax/CartPole-v1 has 2 discrete"),
    "vector reward": (["train", "ppo", "probe/VectorReward"], "scalar reward", "probe/VectorReward"),
    "updates": (["train", "sac", "probe/ActionReward-continuous", "--updates_per_step", "0.3"], "updates_per_step=0.3"),
    "preset": ([*TRAIN, "--preset", "brx"], "unknown preset 'brx'", "'brax'?"),
    "positional": ([*TRAIN[:3], "extra", *TRAIN[3:]], "unexpected argument 'extra'", "--NAME VALUE"),
    "short flag": ([*TRAIN[:3], "-lr", "1", *TRAIN[3:]], "unexpected argument '-lr'"),
    "environment option": ([*TRAIN, "--env_options", "backend=mjx"], "unknown option 'backend' of gymnax/CartPole-v1"),
    "word for a time limit": (["train", "ppo", "brax/hopper", "--env_options", "max_steps=abc"], "max_steps='abc'"),
    "word for a weight": (["train", "ppo", "brax/hopper", "--env_options", "ctrl_cost_weight=abc"], "ctrl_cost_weight='abc'"),
    "word for a number": (["train", "ppo", "brax/hopper", "--env_options", "n_frames=abc"], "n_frames='abc'"),
    "word for a size": (["train", "ppo", "gymnax/DeepSea-bsuite", "--env_options", "size=abc"], "size='abc'"),
    "option named task": ([*TRAIN, "--env_options", "task=3"], "unknown option 'task' of gymnax/CartPole-v1"),
    "no assignment": ([*TRAIN, "--env_options", "backend"], "--env_options takes NAME=VALUE, not 'backend'"),
    "parameter": ([*TRAIN, "--env_params", "gravty=1"], "unknown parameter of gymnax/CartPole-v1 'gravty'", "'gravity'?"),
    "word for a parameter": ([*TRAIN, "--env_params", "gravity=low"], "gravity"),
    "vector for a parameter": ([*TRAIN, "--env_params", "gravity=1,2"], "gravity"),
    "dictionary for a parameter": ([*TRAIN, "--env_params", "gravity={[]:1}"], "gravity"),
    "too large": (["train", "sac", "probe/ActionReward-continuous", "--replay_capacity", "2_000_000_000", "--out", "new"],
                  "need", "lower replay_capacity"),
    "resume without out": (["train", "ppo", CARTPOLE, *SHORT, "--resume"], "--resume needs --out"),
    "list": (["list", "agent"], "agents or envs"),
    "list of nothing": (["list"], "agents or envs"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_TRAINING)
def test_bad_input(capfd, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    argv, *words = BAD_TRAINING[name]
    bad(capfd, argv, *words)


@pytest.mark.parametrize("out", ["file", "file/below", "file/deeply/below"])
def test_unwritable_output(capfd, tmp_path, monkeypatch, run, out):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("precious")
    bad(capfd, [*TRAIN, "--out", out], "cannot write to out=", out)
    bad(capfd, ["report", str(run), "--out", out], "cannot write the report to", out)


@pytest.mark.parametrize("command", [["evaluate"], ["report"], ["evaluate", "--which", "best"]])
def test_directories_that_hold_no_run(capfd, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("precious")
    Path("foreign").mkdir()
    Path("foreign/run.txt").write_text("precious")
    out = ["--out", "new"] if command[0] == "report" else []
    for name in ("missing", "foreign", "file", "file/below"):
        bad(capfd, [command[0], name, *command[1:], *out], name)
    bad(capfd, command, "needs the directory of a stored run")
    bad(capfd, [command[0], "foreign", "--episods", "1"], "unknown field 'episods'")


DAMAGE = {
    "truncated description": ("run.json", lambda b: b[: len(b) // 2]),
    "binary description": ("run.json", lambda b: b"\xff\x00"),
    "list as description": ("run.json", lambda b: b"[]"),
    "empty description": ("run.json", lambda b: b"{}"),
    "another agent": ("run.json", lambda b: b.replace(b'"ppo"', b'"dqn"')),
    "another environment": ("run.json", lambda b: b.replace(b"CartPole-v1", b"CartPole-v9")),
    "value of a wrong type": ("run.json", lambda b: b.replace(b'"lr": 0.05', b'"lr": "x"')),
    "config that is a list": ("run.json", lambda b: json.dumps({**json.loads(b), "config": []}).encode()),
    "field of a later version": ("run.json", lambda b: b.replace(b'"lr"', b'"new_field"')),
    "truncated table": ("metrics.parquet", lambda b: b[: len(b) // 2]),
    "table of something else": ("metrics.parquet", lambda b: b"PAR1" * 10),
    "no table": ("metrics.parquet", None),
    "truncated checkpoint": ("checkpoints/last/rlx.json", lambda b: b[: len(b) // 2]),
    "foreign checkpoint": ("checkpoints/last/rlx.json", None),
    "flipped bit": ("checkpoints/last/arrays/manifest.ocdbt", lambda b: bytes([b[0] ^ 1]) + b[1:]),
    "lost arrays": ("checkpoints/last/arrays/manifest.ocdbt", None),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_runs(capfd, tmp_path, monkeypatch, run, name):
    monkeypatch.chdir(tmp_path)
    for file, content in contents(run).items():
        Path("run", file).parent.mkdir(parents=True, exist_ok=True)
        Path("run", file).write_bytes(content)
    file, change = DAMAGE[name]
    path = Path("run", file)
    if change is None:
        path.unlink()
    else:
        changed = change(path.read_bytes())
        assert changed != path.read_bytes()
        path.write_bytes(changed)
    bad(capfd, ["evaluate", "run", "--episodes", "3"])
    if file.startswith("checkpoints"):
        argv = ["train", "ppo", CARTPOLE, *SHORT, "--seeds", "3", "5", "--steps", "480", "--out", "run"]
        bad(capfd, [*argv, "--resume"])
        bad(capfd, argv, "holds results already")
    elif file == "metrics.parquet" or ("description" in name and name != "empty description"):
        bad(capfd, ["report", "run", "--out", "new"])
    else:  # a report needs the table and nothing of what is described
        assert rlx_(capfd, "report", "run", "--out", "new")[0] == 0


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--episodes", "0"], ("episodes=0 must be",)),
        (["--episodes", "x"], ("episodes='x' must be int",)),
        (["--which", "frist"], ("frist", "last")),
        (["--seed", str(10**30)], ("seed=",)),
        (["another"], ("takes one RUN, not 2",)),
    ],
)
def test_bad_evaluation(capfd, tmp_path, monkeypatch, run, argv, words):
    monkeypatch.chdir(tmp_path)
    rlx.load(run).carry("last")  # the copies to the device that the first restoring of a process compiles
    bad(capfd, ["evaluate", str(run), *argv], *words)


def test_no_best_checkpoint(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    argv = ["train", "ppo", "probe/ActionReward", *FLAGS, "--steps", "20", "--eval_episodes", "1", "--out", "run"]
    assert rlx_(capfd, *argv)[0] == 0
    os.rename("run/checkpoints/best", "moved")
    bad(capfd, ["evaluate", "run", "--which", "best"], "no checkpoint at", "best")


def test_errors_of_the_program_are_not_hidden(monkeypatch):
    """Exit code 2 is for bad input: a bug keeps its traceback."""
    monkeypatch.setattr(training, "train", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli.main(TRAIN)
