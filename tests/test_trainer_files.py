"""The Trainer: files."""

import json
import shutil
from pathlib import Path

import jax.numpy as jnp
import pytest

import rlx
from tests.loop_support import N, with_population
from tests.train_support import fails
from tests.trainer_support import ENV, FIELDS, SEEDS, differing, fresh, trainer


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("trainer") / "new" / "parents" / "c"
    t = trainer("ppo")
    carry, _ = t.run(fresh("ppo"), 3 * t.steps_per_iteration)
    t.save(carry, path)
    return path


def test_restore_takes_the_number_of_runs_from_the_file(saved):
    carry = trainer("ppo").restore(saved)
    assert carry.runs.seed.tolist() == SEEDS * 2 and int(carry.i) == 3 and carry.runs.hp["lr"].shape == (6,)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_epochs": 3}, ["num_epochs=1 there, 3 here"]),
        ({"lr": 0.5}, ["lr=0.0003 there, 0.5 here"]),
        ({"env_params": {"max_steps_in_episode": 3}}, ["env_params"]),
        ({"env": "probe/TimeLimit"}, ["env='probe/Truncation' there, 'probe/TimeLimit' here"]),
    ],
)
def test_restoring_another_configuration(saved, options, words):
    options = {"env": ENV["ppo"], **FIELDS["ppo"], **options}
    fails(lambda: rlx.make("ppo", **options).restore(saved), str(saved), "another configuration", *words)


def test_restoring_another_agent(saved):
    fails(lambda: trainer("sac").restore(saved), "agent='ppo' there, 'sac' here")


def test_restoring_what_is_missing_or_damaged(saved, tmp_path):
    t = trainer("ppo")
    fails(lambda: t.restore(tmp_path / "none"), "no checkpoint", str(tmp_path / "none"))
    copy = Path(shutil.copytree(saved, tmp_path / "c"))
    largest = max((f for f in copy.rglob("*") if f.is_file() and f.name != "rlx.json"), key=lambda f: f.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    fails(lambda: t.restore(copy), str(copy), "damaged")
    (copy / "rlx.json").write_text("{")
    fails(lambda: t.restore(copy), "cannot read", "rlx.json")
    meta = json.loads((saved / "rlx.json").read_text())
    meta["meta"]["runs"] = 5
    wrong = Path(shutil.copytree(saved, tmp_path / "d"))
    (wrong / "rlx.json").write_text(json.dumps(meta))
    fails(lambda: t.restore(wrong), "does not match")


def test_what_the_population_shares_is_saved(tmp_path):
    t, _ = with_population()
    pop = {"calls": jnp.int32(0), "returns": jnp.zeros((8, 2)), "key": jnp.zeros((8, 2), jnp.uint32)}
    carry, _ = t.run(t.init(2, pop=pop), 3 * N)
    t.save(carry, tmp_path / "c")
    assert not differing(t.restore(tmp_path / "c", pop=pop), carry)
    fails(lambda: t.restore(tmp_path / "c"), "does not match", "pop")
