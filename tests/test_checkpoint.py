"""Checkpoints: what is read is what was written, bit for bit, or an error in one line."""

import json
import os
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import struct
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlx import checkpoint
from rlx.errors import RlxError
from tests.checkpoint_support import bits, load, put, version


class Memory(NamedTuple):
    hidden: jax.Array
    noise: tuple


@struct.dataclass
class State:
    params: dict
    opt: optax.OptState
    name: str = struct.field(pytree_node=False, default="static")


@jax.jit
def make(seed: int = 0) -> State:
    key = jax.random.key(seed)
    params = {"Dense_0": {"kernel": jax.random.normal(key, (3, 4)), "bias": jnp.zeros(4)}, "a/b.c": jnp.float32(seed)}
    return State(
        params={
            "net": params,
            "memory": Memory(jnp.full((2,), jnp.nan, jnp.float32), ((), jnp.array([True, False]))),
            "key": key,
            "keys": jax.random.split(key, (2, 3)),
            "rbg": jax.random.key(seed, impl="rbg"),
            "board": jnp.arange(256, dtype=jnp.uint8).reshape(16, 16),
            "i": jnp.uint32(2**32 - 1),
            "negative": jnp.int32(-5),
            "half": jnp.array([1.5, -0.0, jnp.inf], jnp.bfloat16),
            "no_contacts": jnp.zeros((0, 3), jnp.float32),
            "nothing": (),
            "none": None,
        },
        opt=optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3)).init(params),
    )


def assert_same(a, b):
    assert str(jax.tree.structure(a)) == str(jax.tree.structure(b))
    assert [bits(x) for x in jax.tree.leaves(a)] == [bits(x) for x in jax.tree.leaves(b)]


# --- round trip ------------------------------------------------------------------------------------------------------


def test_round_trip_of_every_kind_of_leaf_and_node(tmp_path):
    tree, path = make(3), tmp_path / "new" / "parents" / "last"
    checkpoint.save(path, tree, {"steps": 2**40, "lr": 3e-4, "names": ["é"], "none": None})
    for target in (jax.eval_shape(make), make(4)):
        out = checkpoint.restore(path, target)
        assert_same(out, tree)
        assert isinstance(out, State) and isinstance(out.params["memory"], Memory) and out.params["nothing"] == ()
        assert type(out.opt[1][0]) is optax.ScaleByAdamState
    assert checkpoint.read_meta(path) == {"steps": 2**40, "lr": 3e-4, "names": ["é"], "none": None}
    assert os.listdir(path.parent) == ["last"]


def test_restored_tree_hits_the_program_of_a_fresh_one(tmp_path):
    traces = 0

    def step(tree):
        nonlocal traces
        traces += 1
        return tree.replace(params={**tree.params, "i": tree.params["i"] + jnp.uint32(1)})

    program = jax.jit(step, donate_argnums=0)
    checkpoint.save(tmp_path / "c", make(), {})
    fresh = program(program(make()))
    restored = checkpoint.restore(tmp_path / "c", jax.eval_shape(make))
    assert not any(x.committed or jax.typeof(x).weak_type for x in jax.tree.leaves(restored))
    continued = program(program(restored))
    assert traces == 1
    assert_same(continued, fresh)


def test_arrays_may_be_donated_right_after_a_save(tmp_path):
    tree = version(7)
    checkpoint.save(tmp_path / "c", tree, {"n": 7})
    jax.block_until_ready(jax.jit(lambda t: jax.tree.map(jnp.zeros_like, t), donate_argnums=0)(tree))
    assert load(tmp_path / "c") == 7


def test_sharded_arrays(tmp_path):
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("runs",))
    x = jax.device_put(np.arange(8.0, dtype=np.float32), jax.sharding.NamedSharding(mesh, jax.P("runs")))
    checkpoint.save(tmp_path / "c", {"x": x}, {})
    np.testing.assert_array_equal(checkpoint.restore(tmp_path / "c", {"x": x})["x"], np.arange(8.0))


@pytest.mark.parametrize("tree", [(), {"a": jnp.zeros((0,))}, {"a": (None, ())}])
def test_nothing_to_store(tmp_path, tree):
    checkpoint.save(tmp_path / "c", tree, {})
    assert_same(checkpoint.restore(tmp_path / "c", tree), tree)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.text(min_size=1, max_size=5), st.lists(st.integers(0, 255), max_size=3), max_size=3))
def test_any_dictionary_key(tmp_path, content):
    tree = {name: jnp.array(values, jnp.uint8) for name, values in content.items()}
    checkpoint.save(tmp_path / "c", tree, {})
    assert_same(checkpoint.restore(tmp_path / "c", tree), tree)


def test_saving_and_restoring_print_nothing(tmp_path, capfd, caplog, recwarn):
    put(tmp_path / "c", 1)
    load(tmp_path / "c")
    assert capfd.readouterr() == ("", "") and not caplog.records and not recwarn.list


# --- errors ----------------------------------------------------------------------------------------------------------


def fails(call, *words: str) -> None:
    with pytest.raises(RlxError) as error:
        call()
    text = str(error.value)
    assert "\n" not in text and all(word in text for word in words), text


@pytest.mark.parametrize("call", [checkpoint.read_meta, load])
def test_missing(tmp_path, call):
    fails(lambda: call(tmp_path / "none"), "no checkpoint at", str(tmp_path / "none"))
    fails(lambda: call(tmp_path), "is not an rlx checkpoint", str(tmp_path))


def test_nothing_foreign_is_replaced(tmp_path):
    (tmp_path / "file").write_text("precious")
    fails(lambda: put(tmp_path, 1), "exists and is not an rlx checkpoint", str(tmp_path))
    fails(lambda: put(tmp_path / "file", 1), "exists and is not an rlx checkpoint")
    assert (tmp_path / "file").read_text() == "precious" and os.listdir(tmp_path) == ["file"]
    (tmp_path / "empty").mkdir()
    put(tmp_path / "empty", 1)
    assert load(tmp_path / "empty") == 1


def test_unwritable(tmp_path):
    (tmp_path / "file").write_text("")
    fails(lambda: put(tmp_path / "file" / "c", 1), "cannot save checkpoint", str(tmp_path / "file" / "c"), "File exists")


@pytest.mark.parametrize("reason", [OSError(28, "No space left on device"), ValueError("RESOURCE_EXHAUSTED:\nNo space left")])
def test_full_disk_leaves_the_previous_one(tmp_path, monkeypatch, reason):
    put(tmp_path / "c", 1)
    with monkeypatch.context() as m:
        m.setattr(checkpoint.ocp.Checkpointer, "save", lambda *a, **k: (_ for _ in ()).throw(reason))
        fails(lambda: put(tmp_path / "c", 2), "cannot save checkpoint", "No space left")
    assert load(tmp_path / "c") == 1 and os.listdir(tmp_path) == ["c"]


def test_mismatch_names_paths_and_both_shapes(tmp_path):
    f32 = lambda *shape: jnp.zeros(shape, jnp.float32)
    tree = {"a": f32(2), "b": f32(3), "k": jax.random.key(0)}
    checkpoint.save(tmp_path / "c", tree, {})
    wrong = lambda **changes: lambda: checkpoint.restore(tmp_path / "c", {**tree, **changes})
    fails(wrong(a=f32(5)), "['a'] is float32[2], expected float32[5]")
    fails(wrong(b=jnp.zeros(3, jnp.int32)), "['b'] is float32[3], expected int32[3]")
    fails(wrong(k=jax.random.key(0, impl="rbg")), "['k'] is key<fry>[], expected key<rbg>[]")
    fails(wrong(k=jnp.zeros(2, jnp.uint32)), "['k'] is key<fry>[], expected uint32[2]")
    fails(wrong(new=f32(1)), "['new'] is absent, expected float32[1]")
    fails(wrong(a=Memory(f32(2), ())), "['a'] is float32[2], expected absent", "['a'].hidden is absent")
    fails(lambda: checkpoint.restore(tmp_path / "c", {}), "and 1 more" if len(tree) > 3 else "['k'] is key<fry>[]")
    many = {str(j): f32(1) for j in range(9)}
    fails(lambda: checkpoint.restore(tmp_path / "c", many), "and 9 more")


def test_damage_in_any_file_is_found_before_orbax_reads_it(tmp_path, capfd):
    put(tmp_path / "c", 1)
    files = [f for f in (tmp_path / "c").rglob("*") if f.is_file()]
    assert len(files) > 3
    for file in files:
        content = file.read_bytes()
        flipped = bytes([content[0] ^ 1]) + content[1:]
        for damaged in (content[: len(content) // 2], flipped, None):
            if damaged is None:
                file.unlink()
            else:
                file.write_bytes(damaged)
            fails(lambda: load(tmp_path / "c"), str(tmp_path / "c"))
        file.write_bytes(content)
    assert load(tmp_path / "c") == 1 and capfd.readouterr() == ("", "")


@pytest.mark.parametrize("change", [{"format": 99}, {"leaves": 3}, {"meta": ...}])
def test_description_that_is_not_ours(tmp_path, change):
    put(tmp_path / "c", 1)
    file = tmp_path / "c" / "rlx.json"
    content = {**json.loads(file.read_text()), **change}
    file.write_text(json.dumps({k: v for k, v in content.items() if v is not ...}))
    fails(lambda: checkpoint.read_meta(tmp_path / "c"), "cannot read", "rlx.json")
