"""Seeds, hyperparameter values and environment parameters become arrays with a run axis, or an error."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from rlx import config, grid
from rlx.config import Traced
from rlx.envs.vector import strong
from rlx.envs.wrappers import TimedParams
from rlx.errors import RlxError


@dataclass(frozen=True)
class Config(config.Config):
    lr: Traced[float] = 0.5  # step size
    gamma: Traced[float] = 0.9  # discount
    preference: Traced[tuple[float, ...]] = (0.25, 0.75)  # weights
    held: Traced[int] = 3  # steps
    num_envs: int = 4  # static


@struct.dataclass
class Params:
    gravity: float = 9.5
    limit: int = 10
    wind: tuple[float, float] = (0.0, 1.0)


PARAMS = strong(Params(wind=jnp.array([0.0, 1.0])))


def fails(call, *words: str) -> None:
    with pytest.raises(RlxError) as error:
        call()
    text = str(error.value)
    assert "\n" not in text and all(word in text for word in words), text


# --- seeds -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (1, [0]),
        (3, [0, 1, 2]),
        (np.int64(2), [0, 1]),
        ([0, 5, 7], [0, 5, 7]),
        ((2**32 - 1,), [2**32 - 1]),
        (np.array([4, 2]), [4, 2]),
        (range(2, 4), [2, 3]),
        ([3, 3], [3, 3]),
    ],
)
def test_seeds(given, expected):
    out = grid.seeds(given)
    assert out == expected and all(type(s) is int for s in out)


@pytest.mark.parametrize("given", [0, -1, [], [-1], [2**32], "x", None, 1.5, [1.5], [None], [[1]]])
def test_bad_seeds(given):
    fails(lambda: grid.seeds(given), "seeds=")


# --- parameters of environments ------------------------------------------------------------------------------------------


def test_override():
    assert grid.override(PARAMS, None, "e") is PARAMS
    out = grid.override(PARAMS, {"gravity": 1.0}, "e")
    assert (out.gravity, int(out.limit)) == (1.0, 10) and PARAMS.gravity == 9.5
    whole = Params(gravity=3.0)
    assert grid.override(PARAMS, whole, "e") is whole
    fails(lambda: grid.override(PARAMS, {"gravty": 1.0}, "a/b"), "unknown parameter of a/b 'gravty'", "'gravity'?")
    fails(lambda: grid.override(PARAMS, Config(), "a/b"), "env_params of a/b must be a mapping or Params, not Config")


@pytest.mark.parametrize("value", ["abc", None, (1.0, 2.0), [[1.0]]])
def test_override_by_what_is_no_such_parameter(value):
    """Caught here and not by a trace of the environment: the type, or the shape, is another."""
    fails(lambda: strong(grid.override(PARAMS, {"gravity": value}, "a/b")), "gravity", "a/b")


def test_parameters_through_json_are_exact():
    params = strong(Params(gravity=0.1, limit=2**31 - 1, wind=jnp.array([1e-30, 3.4e38])))
    out = grid.params_from_json(PARAMS, grid.params_to_json(params))
    assert isinstance(out, Params)
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(out), strict=True):
        assert a.dtype == b.dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes() and not b.weak_type
    with pytest.raises(KeyError):
        grid.params_from_json(PARAMS, {".gravity": 1.0})


def test_names():
    assert list(grid.param_paths(PARAMS)) == ["gravity", "limit", "wind"] and grid.param_paths(()) == {}


def test_names_reach_through_wrappers():
    nested = TimedParams(TimedParams(PARAMS, 3), 7)
    assert grid.param_paths(nested) == {
        "gravity": ("env", "env", "gravity"), "limit": ("env", "env", "limit"), "wind": ("env", "env", "wind"),
        "max_steps_in_episode": ("max_steps_in_episode",),
    }  # fmt: skip
    out = grid.override(nested, {"gravity": 1.0, "max_steps_in_episode": 9}, "e")
    assert (out.env.env.gravity, out.env.max_steps_in_episode, out.max_steps_in_episode) == (1.0, 3, 9)
    _, params, seeds = grid.rows(Config(lr=0.125), nested, [4], {}, {"limit": [1, 2]}, "e")
    assert (
        seeds.tolist() == [4, 4] and params.env.env.limit.tolist() == [1, 2] and params.max_steps_in_episode.tolist() == [7, 7]
    )


# --- configurations --------------------------------------------------------------------------------------------------------


def make(hp=None, env_params=None, seeds=(0,)):
    return grid.rows(Config(lr=0.125), PARAMS, list(seeds), hp or {}, env_params or {}, "a/b")


def test_nothing_named_is_one_configuration():
    hp, params, seeds = make()
    assert len(seeds) == 1 and hp["lr"].tolist() == [0.125] and hp["preference"].tolist() == [[0.25, 0.75]]
    assert params.gravity.tolist() == [9.5] and params.wind.shape == (1, 2)


def test_named_values_vary_and_the_others_stay():
    hp, params, seeds = make(
        {"gamma": [0.0, 0.5, 1.0], "preference": [[1, 0], [0.5, 0.5], [0, 1]], "held": [1, 2, 3]}, {"limit": [1, 2, 3]}
    )
    assert len(seeds) == 3 and set(hp) == {"lr", "gamma", "preference", "held"}
    assert hp["lr"].tolist() == [0.125] * 3 and hp["gamma"].tolist() == [0.0, 0.5, 1.0]
    assert hp["preference"].tolist() == [[1, 0], [0.5, 0.5], [0, 1]] and hp["held"].tolist() == [1, 2, 3]
    assert params.gravity.tolist() == [9.5] * 3 and params.limit.tolist() == [1, 2, 3]
    dtypes = {n: x.dtype for n, x in hp.items()}
    assert dtypes == {"lr": jnp.float32, "gamma": jnp.float32, "preference": jnp.float32, "held": jnp.int32}
    assert params.limit.dtype == jnp.int32 and params.gravity.dtype == jnp.float32
    assert not any(x.weak_type for x in jax.tree.leaves((hp, params)))


def test_a_single_value_is_one_configuration():
    assert make({"lr": 0.25}).hp["lr"].tolist() == [0.25]


def test_runs_are_configurations_by_seeds_config_major():
    rows = make({"lr": [0.1, 0.2]}, {"limit": [3, 4]}, seeds=(7, 2**32 - 1, 5))
    assert len(rows.seeds) == 6
    np.testing.assert_array_equal(rows.hp["lr"], np.float32([0.1] * 3 + [0.2] * 3))
    assert rows.env_params.limit.tolist() == [3] * 3 + [4] * 3
    assert rows.seeds.tolist() == [7, 2**32 - 1, 5] * 2 and rows.seeds.dtype == jnp.uint32


def test_nothing_given_is_mutated():
    hp, env_params = {"lr": [0.1, 0.2]}, {"gravity": [1.0, 2.0]}
    make(hp, env_params)
    assert hp == {"lr": [0.1, 0.2]} and env_params == {"gravity": [1.0, 2.0]} and PARAMS.gravity == 9.5


@pytest.mark.parametrize(
    ("hp", "env_params", "words"),
    [
        ({"zzz": [1.0]}, {}, ("unknown field 'zzz'", "choose from gamma, held, lr, preference")),
        ({"gama": [1.0]}, {}, ("unknown field 'gama'", "'gamma'?")),
        ({"num_envs": [1, 2]}, {}, ("num_envs is static", "traced are lr, gamma")),
        ({"lr": [0.1, 0.2], "gamma": [0.5]}, {}, ("one length", "'lr': 2", "'gamma': 1")),
        ({"lr": [0.1, 0.2]}, {"gravity": [1.0]}, ("one length", "'gravity': 1")),
        ({"lr": []}, {}, ("lr",)),
        ({"gamma": [0.5, 1.5]}, {}, ("gamma=1.5 must be in [0, 1]",)),
        ({"lr": ["a"]}, {}, ("lr='a' must be float",)),
        ({"held": [1.5]}, {}, ("held=1.5 must be int",)),
        ({"preference": [0.5, 0.5]}, {}, ("preference=0.5 must be floats",)),
        ({"preference": [[1.0], [0.5, 0.5]]}, {}, ("preference",)),
        ({}, {"gravty": [1.0]}, ("unknown parameter of a/b 'gravty'", "'gravity'?")),
        ({}, {"gravity": ["a"]}, ("gravity",)),
        ({}, {"limit": [2.5]}, ("limit",)),
        ({}, {"gravity": [[1.0, 2.0]]}, ("gravity",)),
    ],
)
def test_bad_configurations(hp, env_params, words):
    fails(lambda: make(hp, env_params), *words)
