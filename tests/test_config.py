"""Configuration: what is traced, what is checked, and how a value is read from text."""

import dataclasses
import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlx import agents, config
from rlx.config import Traced
from rlx.errors import RlxError
from rlx.training import RunConfig


@dataclass(frozen=True)
class Mine(config.Config):
    lr: Traced[float] = 3e-4  # step size
    held: Traced[int] = 3  # how long, and a # inside
    flag: Traced[bool] = False  # on or off
    preference: Traced[tuple[float, ...]] = (0.5, 0.5)  # weights
    num_envs: int = 4  # environments
    hidden_sizes: tuple[int, ...] = (8, 8)  # widths
    activation: Literal["relu", "tanh"] = "tanh"  # of the torso
    target: float | None = None  # nats
    label: str = "x"  # text
    verbose: bool = False  # talk

    presets: ClassVar[dict[str, dict[str, Any]]] = {"default": {}, "wide": {"hidden_sizes": (64,), "lr": 0.1, "held": 5}}
    bounds: ClassVar[dict[str, tuple[float, float]]] = {"held": (1, 5)}


CONFIGS = [Mine, RunConfig, *(module.Config for module in agents.AGENTS.values())]


def fails(call, *words: str) -> None:
    with pytest.raises(RlxError) as error:
        call()
    text = str(error.value)
    assert "\n" not in text and all(word in text for word in words), text


# --- fields and partition --------------------------------------------------------------------------------------------


def test_fields():
    f = config.fields(Mine)
    assert list(f) == [x.name for x in dataclasses.fields(Mine)]
    assert [n for n, x in f.items() if x.traced] == ["lr", "held", "flag", "preference"]
    assert (f["lr"].type, f["held"].type, f["num_envs"].type) == (float, int, int)  # without the marker
    assert f["lr"].default == 3e-4 and f["hidden_sizes"].default == (8, 8)
    assert f["lr"].help == "step size" and f["held"].help == "how long, and a # inside"


@pytest.mark.parametrize("cls", CONFIGS)
def test_every_field_has_a_help_text(cls):
    assert {n: f.help for n, f in config.fields(cls).items() if len(f.help) < 4} == {}


def test_the_source_of_a_class_is_read_once(monkeypatch):
    """Reading it takes tens of milliseconds, and a sweep makes thousands of configs."""
    reads = []
    getsource = config.inspect.getsource
    monkeypatch.setattr(config.inspect, "getsource", lambda cls: reads.append(cls) or getsource(cls))
    for lr in (0.1, 0.2, 0.3):
        Mine().replace(lr=lr)
    assert len(reads) == len(set(reads))


def test_what_the_agents_trace():
    traced = {name: {n for n, f in config.fields(m.Config).items() if f.traced} for name, m in agents.AGENTS.items()}
    rates = {"lr", "actor_lr", "critic_lr", "temperature_lr", "gamma", "tau", "clip_eps", "entropy_coef", "gae_lambda"}
    rates |= {"td_lambda", "epsilon_start", "epsilon_end", "epsilon_steps"}
    noise = {"exploration_noise", "target_noise", "target_noise_clip"}
    mrq = {"encoder_lr", "weight_decay", "dynamics_coef", "reward_coef", "done_coef", "preact_coef", "gumbel_temperature"}
    others = mrq | {"value_coef", "max_grad_norm", "temperature", "priority_exponent"}
    for name, module in agents.AGENTS.items():
        assert traced[name] == (rates | noise | others) & set(config.fields(module.Config))


def test_partition():
    a, b = Mine(), Mine(lr=0.5, held=1, flag=True, preference=(1.0, 0.0))
    (static_a, hp_a), (static_b, hp_b) = config.partition(a), config.partition(b)
    assert static_a == static_b and hash(static_a) == hash(static_b)
    assert config.partition(Mine(hidden_sizes=(9,)))[0] != static_a
    assert {n: (x.dtype, x.shape) for n, x in hp_b.items()} == {
        "lr": (jnp.float32, ()), "held": (jnp.int32, ()), "flag": (jnp.bool_, ()), "preference": (jnp.float32, (2,)),
    }  # fmt: skip
    assert not any(x.weak_type for x in (*hp_a.values(), *hp_b.values()))
    assert (hp_a["lr"], hp_b["held"], hp_b["flag"]) == (np.float32(3e-4), 1, True)
    assert b == Mine(lr=0.5, held=1, flag=True, preference=(1.0, 0.0))  # not mutated


# --- checks ------------------------------------------------------------------------------------------------------------


def test_values_become_the_type_of_their_field():
    assert RunConfig(out=Path("runs") / "a").out == os.path.join("runs", "a")
    c = Mine(lr=1, hidden_sizes=[3, 4], target=2)
    assert (type(c.lr), c.hidden_sizes, type(c.target)) == (float, (3, 4), float)
    hash(c)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("num_envs", 4.0, "must be int, not float"),
        ("num_envs", True, "must be int, not bool"),
        ("num_envs", "4", "must be int, not str"),
        ("lr", "3e-4", "must be float, not str"),
        ("lr", False, "must be float, not bool"),
        ("lr", math.nan, "must be finite"),
        ("lr", math.inf, "must be finite"),
        ("target", -math.inf, "must be finite"),
        ("lr", 10**400, "must be float"),
        ("preference", (0.5, math.inf), "must be floats"),
        ("num_envs", math.inf, "must be int, not float"),
        ("lr", None, "must be float, not NoneType"),
        ("verbose", 1, "must be bool, not int"),
        ("hidden_sizes", 8, "must be ints, not int"),
        ("hidden_sizes", (8, 0.5), "must be ints"),
        ("label", 3, "must be str, not int"),
        ("target", "x", "must be float or None, not str"),
        ("num_envs", 0, "must be >= 1"),
        ("held", 6, "must be in [1, 5]"),
        ("held", 0, "must be in [1, 5]"),
        ("lr", -1e-9, "must be >= 0"),
    ],
)
def test_a_bad_value_is_named_with_what_it_must_be(name, value, words):
    fails(lambda: Mine(**{name: value}), f"{name}={value!r}", words)
    fails(lambda: Mine().replace(**{name: value}), f"{name}={value!r}", words)


def test_shared_bounds():
    ppo, sac = agents.AGENTS["ppo"].Config, agents.AGENTS["sac"].Config
    for cls, name, value in [(ppo, "gamma", 1.01), (ppo, "clip_eps", -0.1), (ppo, "num_epochs", 0), (ppo, "gae_lambda", -1.0),
                             (sac, "tau", 2.0), (sac, "batch_size", 0), (sac, "learning_starts", -1)]:  # fmt: skip
        fails(lambda cls=cls, name=name, value=value: cls(**{name: value}), f"{name}={value!r} must be")
    assert ppo(gamma=1.0, clip_eps=0.0, gae_lambda=0.0).gamma == 1.0  # inclusive


@pytest.mark.parametrize(("cls", "name"), [(m.Config, "hidden_sizes") for name, m in agents.AGENTS.items() if name != "mrq"])
@pytest.mark.parametrize("value", [(0,), (8, -3)])
def test_bounds_hold_for_the_items_of_a_tuple(cls, name, value):
    fails(lambda: cls(**{name: value}), f"{name}={value!r} must be")


def test_nearest_name():
    fails(lambda: Mine(activation="tahn"), "unknown value of activation 'tahn'", "did you mean 'tanh'?")
    fails(lambda: Mine(activation="zzz"), "choose from relu, tanh")
    fails(lambda: Mine().replace(hiden_sizes=(1,)), "unknown field 'hiden_sizes'", "did you mean 'hidden_sizes'?")
    fails(lambda: config.make(Mine, "wied"), "unknown preset 'wied'", "did you mean 'wide'?")


def test_frozen():
    c = Mine()
    with pytest.raises(dataclasses.FrozenInstanceError):
        c.lr = 1.0
    assert c.replace(lr=1.0).lr == 1.0 and c == Mine()


# --- make --------------------------------------------------------------------------------------------------------------


def test_preset_then_config_then_fields():
    assert config.make(Mine) == Mine()
    assert config.make(Mine, "wide") == Mine(hidden_sizes=(64,), lr=0.1, held=5)
    assert config.make(Mine, "wide", None, {"lr": 0.2}) == Mine(hidden_sizes=(64,), lr=0.2, held=5)
    given_config = Mine(label="given")
    assert config.make(Mine, "wide", given_config) == given_config
    changes = {"lr": 0.3}
    assert config.make(Mine, "wide", given_config, changes) == Mine(label="given", lr=0.3)
    assert given_config == Mine(label="given") and changes == {"lr": 0.3}
    assert Mine.presets["wide"] == {"hidden_sizes": (64,), "lr": 0.1, "held": 5}


def test_config_of_another_agent():
    ppo, sac = agents.AGENTS["ppo"].Config, agents.AGENTS["sac"].Config
    fails(lambda: config.make(ppo, None, sac()), "rlx.agents.sac.Config, not a rlx.agents.ppo.Config")


@pytest.mark.parametrize("cls", CONFIGS)
def test_every_preset_is_valid(cls):
    for name in cls.presets:
        hash(config.make(cls, name))


def test_a_class_without_source():
    """As in an interactive session: no help texts, everything else works."""
    members = {"__annotations__": {"lr": Traced[float], "n": int}, "lr": 0.5, "n": 1, "__module__": "rlx"}
    C = dataclass(frozen=True)(type("C", (config.Config,), members))
    assert {n: (f.traced, f.help) for n, f in config.fields(C).items()} == {"lr": (True, ""), "n": (False, "")}
    static, hp = config.partition(C(lr=2.0, n=7))
    assert static == C(n=7) and hp["lr"] == 2.0
    fails(lambda: C(n="x"), "n='x' must be int")


def test_help_is_inherited():
    @dataclass(frozen=True)
    class Child(Mine):
        extra: Traced[float] = 1.0  # one more
        lr: Traced[float] = 1e-3  # another step size

    # a local class is indented further than one at module level: only the base's comments are at field indentation
    assert config.fields(Child)["hidden_sizes"].help == "widths"
    assert config.fields(Child)["extra"].traced and Child().lr == 1e-3


# --- text --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("lr", "3e-4", 3e-4),
        ("lr", "1", 1.0),
        ("lr", " 0.5 ", 0.5),
        ("held", "2", 2),
        ("num_envs", "1_000", 1000),
        ("flag", "True", True),
        ("flag", "false", False),
        ("target", "None", None),
        ("target", "none", None),
        ("target", "-2.5", -2.5),
        ("hidden_sizes", "64,32", (64, 32)),
        ("hidden_sizes", "(64, 32)", (64, 32)),
        ("hidden_sizes", "[64]", (64,)),
        ("hidden_sizes", "64", (64,)),
        ("hidden_sizes", "()", ()),
        ("preference", "0.2,0.8", (0.2, 0.8)),
        ("activation", "relu", "relu"),
        ("label", "3", "3"),
        ("label", "__import__('os')", "__import__('os')"),
    ],
)
def test_parse(name, text, value):
    out = config.parse(config.fields(Mine)[name], text)
    assert out == value and type(out) is type(value)


@pytest.mark.parametrize("text", ["8", "0,5,7", "(0, 5, 7)"])
def test_parse_seeds(text):
    assert config.parse(config.fields(RunConfig)["seeds"], text) == (8 if text == "8" else (0, 5, 7))


@pytest.mark.parametrize("name", ["lr", "held", "flag", "target", "hidden_sizes", "preference", "activation"])
@pytest.mark.parametrize(
    "text", ["", "abc", "__import__('os').mkdir('ran')", "1+", "{[]: 1}", "\0", "(" * 300, "-" * 9000 + "1", "9" * 5000 + "x"]
)
def test_text_that_is_no_value_is_an_error_and_never_run(name, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fails(lambda: config.parse(config.fields(Mine)[name], text), name)
    assert os.listdir(tmp_path) == []


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(list(config.fields(Mine))), st.text(max_size=12))
def test_any_text_is_a_value_of_the_field_or_an_rlx_error(name, text):
    field = config.fields(Mine)[name]
    try:
        value = config.parse(field, text)
    except RlxError:
        return
    assert config.check(field, value) == value


# --- dictionaries --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", CONFIGS)
def test_round_trip_through_json(cls):
    for preset in cls.presets:
        c = config.make(cls, preset)
        assert config.from_dict(cls, json.loads(json.dumps(config.to_dict(c)))) == c
    assert list(config.to_dict(cls())) == list(config.fields(cls))


@settings(max_examples=20, deadline=None)
@given(
    lr=st.floats(0, 1e6), held=st.integers(1, 5), target=st.none() | st.floats(-1e9, 1e9), sizes=st.lists(st.integers(1, 99))
)
def test_round_trip_of_any_value(lr, held, target, sizes):
    c = Mine(lr=lr, held=held, target=target, hidden_sizes=sizes)
    assert config.from_dict(Mine, json.loads(json.dumps(config.to_dict(c)))) == c


def test_from_dict_of_a_later_version():
    fails(lambda: config.from_dict(Mine, {"lr": 1.0, "new_field": 3}), "unknown field 'new_field'")
