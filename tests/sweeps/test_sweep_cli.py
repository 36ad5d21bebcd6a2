"""`rlx sweep`: its words, its files, and one line for what is wrong."""

import json
import tomllib

import pandas as pd
import pytest

from tests.cli_support import FLAGS, bad, rlx_
from tests.sweeps.sweeps_support import LR, PER, sweep
from tests.train_support import CARTPOLE, contents

SPACE = "lr=[0.0003,0.001,0.003]"
STEPS = ["--steps", str(6 * PER), "--eval_every", str(2 * PER), "--eval_episodes", "2"]
RUN = [*STEPS, "--batch_of_runs", "3", "--seeds", "3", "5"]
COMMAND = ["sweep", "ppo", CARTPOLE, *FLAGS, *RUN]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_from_space_to_best_and_back(capfd, here):
    code, out, err = rlx_(capfd, *COMMAND, "--space", SPACE, "--out", "s")
    assert code == 0 and "results in s: table.csv, metrics.parquet, best.toml" in out
    assert "6 runs = 3 configurations x 2 seeds, 120 steps each, in 1 group (" in err
    expected = sweep(LR, seeds=[3, 5], batch_of_runs=4)
    pd.testing.assert_frame_equal(pd.read_parquet("s/metrics.parquet"), expected.metrics, check_exact=True)
    shown = [line for line in out.splitlines() if "lr" in line]
    assert shown and "iqm" in shown[0]

    code, _, err = rlx_(capfd, *COMMAND, "--space", SPACE, "--out", "s")
    assert code == 2 and err == "rlx: s holds a sweep already: continue it with resume, or choose another out\n"
    assert rlx_(capfd, *COMMAND, "--space", SPACE, "--out", "s", "--resume")[0] == 0

    best = expected.best()["lr"]
    assert tomllib.loads((here / "s" / "best.toml").read_text())["lr"] == best
    code, _, err = rlx_(capfd, "train", "ppo", CARTPOLE, "--config", "s/best.toml", "--steps", "40", "--out", "t")
    assert code == 0, err
    stored = json.loads((here / "t" / "run.json").read_text())["config"]
    assert stored["lr"] == best and stored["num_envs"] == 2 and stored["hidden_sizes"] == [8]


def test_a_space_in_several_words_and_in_a_file(capfd, here):
    (here / "space.toml").write_text('lr = [0.0003, 0.001, 0.003]\n\n[env]\nmax_steps_in_episode = "int(19, 20)"\n')
    words = ["--space", "lr=[0.0003, 0.001, 0.003]", "env.max_steps_in_episode=[19,20]"]
    assert rlx_(capfd, *COMMAND, "--space", "space.toml", "--out", "a")[0] == 0
    assert rlx_(capfd, *COMMAND, *words, "--out", "b")[0] == 0
    a, b = (pd.read_parquet(f"{name}/metrics.parquet") for name in "ab")
    pd.testing.assert_frame_equal(a, b, check_exact=True)
    assert set(a["env.max_steps_in_episode"]) == {19, 20} and a["run"].nunique() == 12
    python = sweep({"lr": LR["lr"], "env.max_steps_in_episode": [19, 20]}, seeds=[3, 5], batch_of_runs=3)
    pd.testing.assert_frame_equal(a, python.metrics, check_exact=True)


def test_a_dry_run(capfd, here):
    words = ["--configs", "2000", "--method", "sobol", "--space", "lr=log(1e-5,1e-2) gamma=uniform(0.9,1)", "--dry_run"]
    code, out, err = rlx_(capfd, "sweep", "ppo", CARTPOLE, *words, "--seeds", "5")
    assert (code, err) == (0, "")
    assert out.startswith(f"ppo on {CARTPOLE}: 10000 runs = 2000 configurations x 5 seeds, 100000 steps each, in 1 group (")
    assert not contents(here)


def test_a_directory_is_chosen(capfd, here):
    for name in ("sweep-ppo-gymnax-CartPole-v1", "sweep-ppo-gymnax-CartPole-v1-2"):
        code, out, _ = rlx_(capfd, *COMMAND, "--space", SPACE)
        assert code == 0 and f"results in runs/{name}" in out and (here / "runs" / name / "plan.json").exists()


def test_help(capfd):
    code, out, _ = rlx_(capfd, "sweep", "ppo", CARTPOLE, "--help")
    assert code == 0 and "--space" in out and "--batch_of_runs" in out and "--lr" in out and "traced" in out
    assert rlx_(capfd, "sweep", "--help")[0] == 0


BAD = {
    "no space": ([], ["rlx sweep needs --space"]),
    "an unknown field": (["--space", "lrr=[1]"], ["unknown field of the space 'lrr'", "did you mean 'lr'?"]),
    "an unknown parameter": (["--space", "env.gravty=[1.0]"], ["'gravty'", "did you mean 'gravity'?"]),
    "a range of a static field": (["--space", "num_epochs=uniform(1,4)"], ["num_epochs is static", "num_epochs=[1, 4]"]),
    "an empty list": (["--space", "lr=[]"], ["lr=[] has no value"]),
    "log of zero": (["--space", "lr=log(0,1)"], ["lr=log(0,1) must have low > 0: use log(0.001, 1) or uniform(0, 1)"]),
    "no budget": (["--space", SPACE, "--steps", "0"], ["steps=0", "nearest is 20"]),
    "a budget for one group": (
        ["--space", "rollout_length=[10,15]", "--steps", "100", "--eval_every", "60"],
        ["steps=100 must be a positive multiple of 60, to fit every group: nearest is 60 or 120"],
    ),
    "no end of values": (["--space", "lr=log(1e-5,1e-2)"], ["lr=log(1e-05, 0.01) has no end of values: give configs"]),
    "too many": (["--space", SPACE, "--configs", "4"], ["configs=4 is more than the space has: 3"]),
    "a method": (["--space", SPACE, "--method", "sobel"], ["unknown method 'sobel'", "did you mean 'sobol'?"]),
    "no expression": (["--space", "lr"], ["'lr' where NAME=EXPRESSION must be"]),
    "code": (["--space", "lr=[__import__('os').getpid()]"], ["is no values of a sweep"]),
    "no file": (["--space", "none.toml"], ["cannot read 'none.toml'"]),
    "no out": (["--space", SPACE, "--resume"], ["--resume needs --out"]),
    "a value of its own": (["--space", SPACE, "--lr", "0.1"], ["lr is in the space and has a value of its own, lr=0.1"]),
    "an option": (["--space", SPACE, "--confgis", "4"], ["unknown field 'confgis'", "did you mean 'configs'?"]),
    "devices": (["--space", SPACE, "--devices", "9"], ["devices=9 must be in [1, "]),
    "batches": (["--space", SPACE, "--batch_of_runs", "0"], ["batch_of_runs=0 must be >= 1"]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(capfd, name):
    argv, words = BAD[name]
    flags = [w for pair in zip(FLAGS[::2], FLAGS[1::2], strict=True) if f"{pair[0][2:]}=" not in str(argv) for w in pair]
    bad(capfd, ["sweep", "ppo", CARTPOLE, *flags, *RUN, *argv], *words)


def test_interrupted_before_anything_is_finished(capfd, here, monkeypatch):
    nothing = sweep(LR, dry_run=True)
    nothing.interrupted = True
    capfd.readouterr()
    monkeypatch.setattr("rlx.sweeps.sweep", lambda *args, **kwargs: nothing)
    code, out, err = rlx_(capfd, "sweep", "ppo", CARTPOLE, "--space", "lr=[0.1]", "--out", "s", *FLAGS)
    assert (code, out) == (130, "no batch of runs was finished in s\n")
    assert err == "interrupted; to continue, repeat the command with --resume True --out s\n"
