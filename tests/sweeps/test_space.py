"""The language of sweep spaces: what it means, that nothing in it is run, and one line for what is wrong."""

import builtins
import math
import re

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlx.errors import RlxError
from rlx.sweeps import space as s
from rlx.sweeps.space import Choices, Range
from tests.train_support import fails

# --- the language ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, axis",
    [
        ("[0.97, 0.99]", Choices((0.97, 0.99))),
        ("[128]", Choices((128,))),
        ("128", Choices((128,))),
        ("[relu, tanh]", Choices(("relu", "tanh"))),
        ("relu", Choices(("relu",))),
        ("['relu', \"tanh\"]", Choices(("relu", "tanh"))),
        ("[true, False]", Choices((True, False))),
        ("[None, -1.5]", Choices((None, -1.5))),
        ("[(8,), (8, 8)]", Choices(((8,), (8, 8)))),
        ("[[8], [8, 8]]", Choices(((8,), (8, 8)))),
        ("(8, 8)", Choices(((8, 8),))),
        ("uniform(0, 2)", Range(0.0, 2.0)),
        ("uniform(-1, 1, 5)", Range(-1.0, 1.0, points=5)),
        ("log(1e-5, 1e-2)", Range(1e-5, 1e-2, log=True)),
        (" log( 1e-5 ,1e-2, 3 ) ", Range(1e-5, 1e-2, log=True, points=3)),
        ("int(2, 4)", Choices((2, 3, 4))),
        ("int(-1, 1.0)", Choices((-1, 0, 1))),
    ],
)
def test_an_expression(text, axis):
    out = s.axis("x", text)
    assert out == axis and type(out) is type(axis)
    if isinstance(out, Choices):
        assert list(map(type, out.values)) == list(map(type, axis.values))


@pytest.mark.parametrize(
    "value, values",
    [
        ([1, 2], (1, 2)),
        ((1, 2), (1, 2)),
        (range(3), (0, 1, 2)),
        (3, (3,)),
        (True, (True,)),
        (None, (None,)),
        ([(8,), [8, 8]], ((8,), (8, 8))),
        (np.array([1.5, 2.5]), (1.5, 2.5)),
        (jnp.array([1, 2]), (1, 2)),
        ([np.float32(0.5), np.int64(3)], (0.5, 3)),
        (np.float64(0.5), (0.5,)),
    ],
)
def test_a_value(value, values):
    out = s.axis("x", value)
    assert out == Choices(values) and list(map(type, out.values)) == list(map(type, values))


def test_words():
    space = s.space("actor_lr=log(1e-5, 1e-2) gamma=[0.97,\t0.99]\n env.g=uniform(5, 15)")
    assert space == {"actor_lr": Range(1e-5, 1e-2, True), "gamma": Choices((0.97, 0.99)), "env.g": Range(5.0, 15.0)}
    assert list(space) == ["actor_lr", "gamma", "env.g"]
    assert s.space(["actor_lr=log(1e-5,1e-2)", "gamma=[0.97, 0.99] env.g=uniform(5,15)"]) == space
    assert s.space({"actor_lr": "log(1e-5, 1e-2)", "gamma": [0.97, 0.99], "env.g": "uniform(5, 15)"}) == space


def test_a_file(tmp_path):
    path = tmp_path / "space.toml"
    path.write_text(
        'actor_lr = "log(1e-5, 1e-2)"\ngamma = [0.97, 0.99]\nactivation = "relu"\n[env]\ng = [9, 10]\nm = "int(1, 2)"\n'
    )
    assert s.space(s.read_space(str(path))) == {
        "actor_lr": Range(1e-5, 1e-2, True), "gamma": Choices((0.97, 0.99)), "activation": Choices(("relu",)),
        "env.g": Choices((9, 10)), "env.m": Choices((1, 2)),
    }  # fmt: skip


@pytest.mark.parametrize(
    "contents, words",
    [
        ("gamma = [0.9", ["space.toml is no TOML file"]),
        ("gamma = [0.9]\ngamma = [0.8]", ["space.toml is no TOML file"]),
        ("env = 3", ["space.toml has env=3", "[env]"]),
    ],
)
def test_a_bad_file(tmp_path, contents, words):
    (tmp_path / "space.toml").write_text(contents)
    fails(lambda: s.space(s.read_space(str(tmp_path / "space.toml"))), *words)
    fails(lambda: s.read_space(str(tmp_path / "none.toml")), "cannot read", "none.toml")


BAD = {
    "": ["the space is empty"],
    "gamma": ["'gamma'", "NAME=EXPRESSION", "log(low, high)"],
    "gamma=": ["'gamma='", "NAME=EXPRESSION"],
    "=[1]": ["'=[1]'"],
    "gamma = [0.9]": ["'gamma'", "NAME=EXPRESSION"],
    "gamma=[0.9] gamma=[0.8]": ["'gamma' twice"],
    "gamma=[]": ["gamma=[] has no value"],
    "gamma=[0.9,0.9]": ["gamma has the value 0.9 twice"],
    "gamma=[0.9": ["gamma=[0.9 is no values of a sweep", "int(low, high)"],
    "gamma=0.9]": ["gamma=0.9] is no values"],
    "gamma=0.9+0.1": ["gamma=0.9+0.1 is no values"],
    "gamma=uniform": [],  # a word, which the field's type will refuse
    "gamma=unifrom(0,1)": ["unknown form of gamma 'unifrom(...)'", "did you mean 'uniform(low, high)'"],
    "gamma=uniform(0)": ["gamma=uniform(0) must have two numbers, low and high, and maybe how many"],
    "gamma=int(1,2,3)": ["gamma=int(1,2,3) must have two numbers, low and high"],
    "gamma=uniform(a,1)": ["must have two numbers"],
    "gamma=uniform(True,1)": ["must have two numbers"],
    "gamma=uniform(0,1e999)": ["must have two numbers"],
    f"gamma=uniform(0,{'9' * 400})": ["must have two numbers"],
    "gamma=uniform(low=0,high=1)": ["is no values of a sweep"],
    "gamma=uniform(1,0)": ["gamma=uniform(1,0) must have low < high: gamma=uniform(0, 1)"],
    "gamma=uniform(1,1)": ["must have low < high: gamma=[1]"],
    "lr=log(0,1)": ["lr=log(0,1) must have low > 0: use log(0.001, 1) or uniform(0, 1)"],
    "lr=log(-2,-1)": ["lr=log(-2,-1) must have low > 0: use uniform(-2, -1)"],
    "n=int(0.5,2)": ["n=int(0.5,2) must have whole numbers: int(0, 2)"],
    "n=int(0,10000000000)": ["has more than 10000 values"],
    "n=int(0,1e300)": ["has more than 10000 values"],
    "lr=log(1,2,1)": ["grid values in [2, 10000], not 1"],
    "lr=log(1,2,2.5)": ["grid values in [2, 10000], not 2.5"],
    "lr=uniform(1,2,1000000000)": ["grid values in [2, 10000]"],
    "x={1:2}": ["numbers, words, True, False, None"],
    "x={[1]:2}": ["is no values"],
    "x=[{1},2]": ["numbers, words"],
}  # fmt: skip


@pytest.mark.parametrize("text", [text for text, words in BAD.items() if words], ids=lambda text: text[:30])
def test_a_bad_space(text):
    fails(lambda: s.space(text), *BAD[text])


@pytest.mark.parametrize("given", [{}, [], (), None, 3, [1], {1: [2]}, ["a=[1]", None]])
def test_no_space(given):
    fails(lambda: s.space(given), "the space")


def test_nan_is_no_value():
    fails(lambda: s.space({"env.g": [1.0, math.nan]}), "env.g", "nan")


# --- nothing is evaluated ----------------------------------------------------------------------------------------------


class Ran(Exception):
    pass


@pytest.mark.parametrize(
    "text",
    [
        *("open('x', 'w')", "__import__('os').mkdir('x')", "[print(1)]", "uniform(print(1), 2)", "(lambda: 1)()"),
        *("[x for x in (1,)]", "eval('1')", "2**100000000", "uniform(*[0, 1])", "f'{print(1)}'", "print.x(1)", "log(1, 2)(3)"),
    ],
)
def test_code_is_refused_and_not_run(text, monkeypatch, tmp_path):
    def ran(*args, **kwargs):
        raise Ran

    monkeypatch.chdir(tmp_path)
    for name in ("print", "eval", "exec"):
        monkeypatch.setattr(builtins, name, ran)
    fails(lambda: s.axis("x", text), "x")
    assert not list(tmp_path.iterdir())


WORDS = re.findall(r"\S+", "[ ] ( ) , 1 0.5 1e-5 1e999 - log uniform int a None ' { } : * = . j + \\ True ... b'x'")
pieces = st.sampled_from([*WORDS, " ", "\0", "\n", "9" * 400])


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.text(max_size=30), st.lists(pieces, max_size=12).map("".join), st.lists(pieces, max_size=8).map("f({})".format)
    )
)
def test_no_text_raises_anything_else(text):
    for parse in (lambda: s.axis("x", text), lambda: s.space(text), lambda: s.space(f"x={text}")):
        try:
            out = parse()
        except RlxError:
            continue
        assert isinstance(out, (Choices, Range, dict))


@pytest.mark.parametrize("text", ["(" * 500, "[" * 90 + "1" + "]" * 90, "-" * 100_000 + "1", "[" * 100_000])
def test_deep_nesting_raises_nothing_else(text):
    try:
        s.axis("x", text)
    except RlxError as error:
        assert "x" in str(error)


# --- values ------------------------------------------------------------------------------------------------------------

finite = st.floats(-1e308, 1e308)


@settings(max_examples=300, deadline=None)
@given(finite, finite, st.floats(0, 1))
def test_a_uniform_range_stays_within(a, b, u):
    low, high = min(a, b), max(a, b)
    assert low <= Range(low, high).at(u) <= high
    assert Range(low, high).at(0.0) == low and Range(low, high).at(1.0) == high


@settings(max_examples=300, deadline=None)
@given(st.floats(1e-300, 1e300), st.floats(1e-300, 1e300), st.floats(0, 1))
def test_a_log_range_stays_within(a, b, u):
    low, high = min(a, b), max(a, b)
    assert low <= Range(low, high, log=True).at(u) <= high
    assert Range(low, high, log=True).at(0.0) == low and Range(low, high, log=True).at(1.0) == high


def test_values_by_hand():
    assert Range(2.0, 6.0).at(0.25) == 3.0
    assert Range(1e-4, 1e-2, log=True).at(0.5) == pytest.approx(1e-3)
    assert [Choices("abc").at(u) for u in (0.0, 0.33, 0.34, 0.67, math.nextafter(1.0, 0.0))] == ["a", "a", "b", "c", "c"]
