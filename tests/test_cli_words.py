"""The command line: words to values, help and lists."""

import re

import pytest

import rlx
from rlx import agents, config, training
from rlx import words as arguments
from rlx.envs import registry
from tests.cli_support import bad, compiled, rlx_
from tests.train_support import CARTPOLE

# --- words to values -------------------------------------------------------------------------------------------------------

OPTIONS = {**config.fields(training.RunConfig), **config.fields(agents.get("ppo").Config)}


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("--lr 0.1", {"lr": 0.1}),
        ("--lr=0.1", {"lr": 0.1}),
        ("--num-envs 4 --num_epochs=2", {"num_envs": 4, "num_epochs": 2}),
        ("--seeds 0 5 7 --lr 1", {"seeds": (0, 5, 7), "lr": 1.0}),
        ("--seeds 0,5,7", {"seeds": (0, 5, 7)}),
        ("--seeds=0,5,7", {"seeds": (0, 5, 7)}),
        ("--seeds 8", {"seeds": 8}),
        ("--hidden_sizes 64 32", {"hidden_sizes": (64, 32)}),
        ("--hidden-sizes 64", {"hidden_sizes": (64,)}),
        ("--resume", {"resume": True}),
        ("--resume --lr 1", {"resume": True, "lr": 1.0}),
        ("--resume False", {"resume": False}),
        ("--resume true", {"resume": True}),
        ("--no_resume", {"resume": False}),
        ("--no-normalize-obs", {"normalize_obs": False}),
        ("--out a/b-c", {"out": "a/b-c"}),
        ("--out=a=b", {"out": "a=b"}),
        ("--eval_every None", {"eval_every": None}),
        ("--steps 1_000", {"steps": 1000}),
        ("--lr 1 --lr 2", {"lr": 2.0}),
    ],
)
def test_split(words, given):
    assert arguments.split(words.split(), OPTIONS) == ([], given)


def test_split_keeps_positional_words():
    assert arguments.split(["a", "--lr", "1", "b"], OPTIONS) == (["a", "b"], {"lr": 1.0})


def test_assignments():
    words = ("gravity=9.8", "backend=spring", "n=3", "flag=True", "s=a=b", "code=__import__('os')")
    expected = {"gravity": 9.8, "backend": "spring", "n": 3, "flag": True, "s": "a=b", "code": "__import__('os')"}
    assert arguments.assignments("env_options", words) == expected


# --- help ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("agent", agents.AGENTS)
def test_help_explains_every_field(capfd, agent):
    before = len(compiled)
    code, out, err = rlx_(capfd, "train", agent, CARTPOLE, "--help")
    assert (code, err) == (0, "") and len(compiled) == before
    text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", out).split())
    options = {**config.fields(training.RunConfig), **config.fields(agents.get(agent).Config)}
    for name, field in options.items():
        mark = " [traced]" if field.traced else " [static]" if name in config.fields(agents.get(agent).Config) else " ("
        words = " ".join(field.help.split()) + mark  # a run's fields are neither
        assert re.search(rf"--(\[?no[-_]?\]?)?{name}\b", text), name
        assert words in text, words
    for name in ("--preset", "--env_options", "--env_params", *agents.get(agent).Config.presets):
        assert name in text


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]])
def test_help_of_the_program(capfd, argv):
    code, out, err = rlx_(capfd, *argv)
    assert (code, err) == (0, "") and all(f"rlx {c}" in out for c in ("train", "evaluate", "report", "list"))


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["train", "--help"], ["ppo", "sac", "rlx list envs"]),
        (["train", "ppo", "--help"], ["--steps", "--clip_eps"]),
        (["evaluate", "--help"], ["--episodes", "--seed", "--which"]),
        (["report", "-h"], ["--out"]),
        (["list", "--help"], ["usage: rlx list agents | envs"]),
        (["list", "envs", "-h"], ["usage: rlx list agents | envs"]),
    ],
)
def test_help_of_commands(capfd, argv, words):
    code, out, err = rlx_(capfd, *argv)
    assert (code, err) == (0, "") and all(word in out for word in words)


def test_help_of_an_unknown_agent(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bad(capfd, ["train", "poo", "--help"], "unknown agent 'poo'")


# --- lists -----------------------------------------------------------------------------------------------------------------


def test_list(capfd):
    code, out, err = rlx_(capfd, "list", "agents")
    assert (code, err) == (0, "") and [line.split()[0] for line in out.splitlines()] == list(agents.AGENTS)
    assert "Proximal policy optimisation" in out
    code, out, err = rlx_(capfd, "list", "envs")
    assert code == 0 and out.split() == rlx.envs.ids()
    assert {CARTPOLE, "brax/hopper", "probe/Discounting-continuous"} < set(out.split())


def test_list_says_what_installs_the_other_suites(capfd, monkeypatch):
    there = registry.Suite("rlx.envs.adapters.gymnax", ("gymnax",), "other")
    missing = registry.Suite("rlx.none", ("jax", "no_such_package"), "games")
    monkeypatch.setattr(registry, "SUITES", {"gymnax": there, "chess": missing})
    code, out, err = rlx_(capfd, "list", "envs")
    assert code == 0 and out.split() == rlx.envs.ids(["gymnax"])
    assert err.split() == ["chess/...", "pip", "install", "'rlx[games]'"]
