"""The plan: which runs, in which groups and batches, of how many bytes. Nothing compiles."""

import json
import math
import time
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlx
from rlx import footprint
from rlx.sweeps import batch as batch_
from rlx.sweeps import plan as p
from rlx.sweeps.plan import Group, Plan
from tests.sweeps.sweeps_support import LR, PER, plan
from tests.train_support import CARTPOLE, TINY, fails
from tests.trainer_support import compilations

SAC = {"replay_capacity": 64, "batch_size": 8, "hidden_sizes": (8,), "learning_starts": 20}


@pytest.fixture(autouse=True, scope="module")
def warm():
    """The single operations that the first environments and trainers of a process compile."""
    plan(LR)
    plan({"gamma": [0.9]}, "sac", "gymnax/Pendulum-v1", **SAC)
    plan({"gamma": [0.9], "batch_size": [128]}, "sac", "gymnax/Pendulum-v1", steps=20_000, eval_every=None)


# --- runs, groups, batches ---------------------------------------------------------------------------------------------


def test_groups_by_static_fields():
    out = plan({"lr": [0.1, 0.2], "hidden_sizes": [(8,), (8, 8)], "gamma": [0.9, 0.99]}, seeds=[3, 5])
    assert [g.static for g in out.groups] == [{"hidden_sizes": (8,)}, {"hidden_sizes": (8, 8)}]
    assert [g.configs for g in out.groups] == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert out.runs == 16 and out.seeds == [3, 5]
    assert out.of(out.groups[1])[:4] == [(4, 2, 3), (5, 2, 5), (6, 3, 3), (7, 3, 5)]  # config-major, through the whole sweep


@pytest.mark.parametrize(
    "space, groups",
    [
        ({"lr": [0.1, 0.2, 0.3]}, [{}]),  # all traced
        ({"env.max_steps_in_episode": "int(5, 7)"}, [{}]),
        ({"activation": ["tanh", "relu"]}, [{"activation": "tanh"}, {"activation": "relu"}]),  # one static field only
        ({"normalize_obs": [True, False]}, [{"normalize_obs": True}, {"normalize_obs": False}]),
        ("activation=relu", [{"activation": "relu"}]),
    ],
)
def test_kinds_of_fields(space, groups):
    out = plan(space)
    assert [g.static for g in out.groups] == groups
    assert sorted(c for g in out.groups for c in g.configs) == list(range(len(out.configs)))


def test_none_is_a_value():
    out = plan({"target_entropy": [None, -1]}, "sac", "gymnax/Pendulum-v1", **SAC)
    assert [g.static for g in out.groups] == [{"target_entropy": None}, {"target_entropy": -1.0}]


def test_values_have_their_fields_types():
    """Whatever they were given as: the plan is stored, and compared, as JSON."""
    given = {"gamma": [0, np.float32(0.5)], "lr": jnp.array([1, 2]), "num_epochs": list(np.arange(1, 3))}
    given |= {"hidden_sizes": [[8], np.array([8, 8])], "env.max_steps_in_episode": np.array([5, 6])}
    out = plan(given)
    first, last = out.configs[0], out.configs[-1]
    assert first == {"gamma": 0.0, "lr": 1.0, "num_epochs": 1, "hidden_sizes": (8,), "env.max_steps_in_episode": 5}
    assert last == {"gamma": 0.5, "lr": 2.0, "num_epochs": 2, "hidden_sizes": (8, 8), "env.max_steps_in_episode": 6}
    assert list(map(type, first.values())) == [float, float, int, tuple, int]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 3), st.integers(1, 40), st.integers(1, 8))
def test_batches_cover_every_run_once(sizes, seeds, most, devices):
    numbers = iter(range(sum(sizes)))
    groups = [Group({}, [next(numbers) for _ in range(size)], 1) for size in sizes]
    out = Plan("ppo", CARTPOLE, {}, [], [{}] * sum(sizes), list(range(seeds)), groups)
    for group in groups:
        group.batch = p.evenly(len(group.configs) * seeds, most, devices)
    counts = Counter(run for _, batch in out.work().values() for run in batch)
    assert sorted(run for run, _, _ in counts) == list(range(out.runs))
    for name, (g, batch) in out.work().items():
        runs, group = len(groups[g].configs) * seeds, groups[g]
        assert len(batch) == group.batch <= max(devices, most) and group.batch % devices == 0
        real = list(dict.fromkeys(batch))
        assert batch == real + [real[-1]] * (len(batch) - len(real))  # what fills up is at the end
        assert name.startswith(f"{g:03d}-")
        best = math.ceil(runs / max(devices, most // devices * devices))
        assert len(out.batches(group)) <= best  # as few as possible
    assert all(c == s for (run, config, seed), _ in counts.items() for c, s in [(run, config * seeds + seed)])


@pytest.mark.parametrize(
    "runs, most, devices, size",
    [(10, 4, 1, 4), (9, 8, 1, 5), (6, 100, 1, 6), (7, 1, 1, 1), (6, 1, 4, 4), (6, 6, 4, 4), (10, 8, 4, 8), (3, 9, 2, 4)],
)  # fmt: skip
def test_even_batches(runs, most, devices, size):
    assert p.evenly(runs, most, devices) == size


@pytest.mark.parametrize("batch, size", [(None, 6), (4, 3), (5, 3), (100, 6), (1, 1)])
def test_batch_of_runs(batch, size):
    assert [g.batch for g in plan(LR, seeds=2, batch_of_runs=batch).groups] == [size]


def test_fewer_runs_than_devices():
    (group,) = plan({"lr": [0.1]}, devices=2, batch_of_runs=1).groups
    assert group.batch == 2


# --- bytes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [1, 2])
def test_bytes_per_run_are_those_of_the_carry(devices):
    (group,) = plan({"gamma": [0.9, 0.99]}, "sac", "gymnax/Pendulum-v1", devices=devices, **SAC).groups
    trainer = rlx.make("sac", "gymnax/Pendulum-v1", devices=devices, **SAC)
    size = lambda runs: footprint.size(jax.eval_shape(lambda: trainer.init(runs)))
    one = (size(8) - size(4)) // 4
    assert 64 * 4 * (3 + 1 + 1 + 3) < one <= group.bytes_per_run <= one + 4  # the replay and more; the shared counter


def test_memory_decides_the_batch(monkeypatch):
    fits = lambda free, **kwargs: [g.batch for g in plan(LR, seeds=4, **kwargs).groups] if _free(monkeypatch, free) else None
    size = plan(LR).groups[0].bytes_per_run
    assert fits(1000 * size) == [12]
    assert fits(12 * size) == [6]  # half of what is free: a checkpoint is a copy
    assert fits(10 * size) == [4]  # three batches of four, not 5 + 5 + 2
    assert fits(2 * size) == [1]
    assert fits(12 * size, batch_of_runs=9) == [6]  # evenly cut
    assert fits(20 * size, batch_of_runs=12) == [12]
    fails(lambda: fits(size), f"1 runs of ppo on {CARTPOLE} need", "over 80%")
    fails(lambda: fits(10 * size, batch_of_runs=12), f"12 runs of ppo on {CARTPOLE} need", "use at most 8 runs at once")


def _free(monkeypatch, free) -> bool:
    monkeypatch.setattr(footprint, "available", lambda: free)
    return True


def test_nobody_says_how_much_memory_there_is(monkeypatch):
    monkeypatch.setattr(footprint, "available", lambda: None)
    assert [g.batch for g in plan(LR, seeds=4).groups] == [12]


# --- without compiling -------------------------------------------------------------------------------------------------


def test_ten_thousand_runs_in_seconds(capsys):
    space = "actor_lr=log(1e-5,1e-2) gamma=[0.97,0.99] batch_size=[128,256] env.max_steps_in_episode=int(100,200)"
    started = time.perf_counter()
    with compilations() as events:
        out = plan(space, "sac", "gymnax/Pendulum-v1", configs=2000, seeds=5, steps=20_000, eval_every=None)
        work = out.work()
    assert not events
    assert time.perf_counter() - started < 10
    assert out.runs == 10_000 and len(out.groups) == 2
    assert len({run for _, batch in work.values() for run, _, _ in batch}) == 10_000
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == (
        "sac on gymnax/Pendulum-v1: 10000 runs = 2000 configurations x 5 seeds, 20000 steps each, in 2 groups "
        "(one compilation each)"
    )
    for line, group in zip(lines, out.groups, strict=True):
        size, count = footprint.human(group.bytes_per_run), math.ceil(len(group.configs) * 5 / group.batch)
        assert line.startswith(f"  batch_size={group.static['batch_size']}: {len(group.configs) * 5} runs of {size}, ")
        assert f"{count} batch{'es' * (count > 1)} of {group.batch} " in line


def test_ten_thousand_batches_are_listed_in_seconds():
    out = plan({"lr": "log(1e-5, 1e-2)"}, configs=10_000, batch_of_runs=1)
    started = time.perf_counter()
    assert len(out.work()) == 10_000
    assert time.perf_counter() - started < 2


def test_many_groups_are_not_all_listed(capsys):
    plan({"num_epochs": "int(1, 23)"}, steps=PER, eval_every=None)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 22 and lines[-1] == "  ... and 3 more groups"


# --- on disk -----------------------------------------------------------------------------------------------------------


def test_write_and_read(tmp_path):
    out = plan({"hidden_sizes": [(8,), (8, 8)], "lr": [0.1]}, env_params={"max_steps_in_episode": 9}, seeds=2)
    out.write(tmp_path / "plan.json")
    assert Plan.read(tmp_path / "plan.json") == out and [f.name for f in tmp_path.iterdir()] == ["plan.json"]
    assert out.fixed["env_changes"] == {"max_steps_in_episode": 9}


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "3", '{"configs": 3, "groups": []}', "\x00"])
def test_a_damaged_plan(tmp_path, text):
    (tmp_path / "plan.json").write_text(text)
    fails(lambda: Plan.read(tmp_path / "plan.json"), "plan.json cannot be read")


def test_what_differs():
    mine = plan(LR, seeds=2)
    assert mine.same_runs(plan(LR, seeds=2, batch_of_runs=2)) == []
    assert mine.same_runs(plan(LR, seeds=3)) == ["seeds=[0, 1] there, [0, 1, 2] here"]
    assert mine.same_runs(plan(LR, seeds=2, steps=2 * PER)) == ["steps=120 there, 40 here"]
    assert mine.same_runs(plan(LR, seeds=2, gamma=0.9)) == ["gamma=0.99 there, 0.9 here"]
    assert mine.same_runs(plan({"lr": [0.0003, 0.001, 0.06]}, seeds=2))[0].startswith("configs")
    (params,) = mine.same_runs(plan(LR, seeds=2, env_params={"max_steps_in_episode": 9}))
    assert params.startswith("env_params")


# --- the rows of a batch -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", [{"lr": [0.1, 0.2, 0.3], "env.max_steps_in_episode": [5, 6, 7]}, {"activation": ["relu"]}])
def test_rows(space):
    result = plan(space, seeds=[7, 4], gamma=0.9)
    trainer = rlx.make("ppo", CARTPOLE, gamma=0.9, **TINY)
    batch = result.of(result.groups[0])[::-1]
    rows = batch_.rows(result, trainer, [*batch, batch[-1]])
    configs = [result.configs[c] for _, c, _ in [*batch, batch[-1]]]
    assert rows.seeds.tolist() == [seed for _, _, seed in batch] + [batch[-1][2]] and rows.seeds.dtype == np.uint32
    np.testing.assert_array_equal(rows.hp["lr"], np.float32([c.get("lr", 3e-4) for c in configs]))
    np.testing.assert_array_equal(rows.hp["gamma"], np.float32([0.9] * len(configs)))
    np.testing.assert_array_equal(
        rows.env_params.max_steps_in_episode, [c.get("env.max_steps_in_episode", 500) for c in configs]
    )
    types = lambda tree: jax.tree.map(lambda x: (x.shape[1:], x.dtype), tree)
    assert types(rows.hp) == types(trainer.rows(1, {}, {}).hp)


def test_equal_trainers_are_kept_apart_from_nearly_equal_ones():
    options = lambda x: p._trainer("ppo", CARTPOLE, rlx.agents.ppo.Config(**TINY), None, x, 1)
    assert options({"gravity": 9.0}) is options({"gravity": 9.0})
    assert options({"gravity": 9.0}) is not options({"gravity": 8.0})
    assert options({"gravity": 9}) is not options({"gravity": True}) and options({"gravity": 1}) is not options(
        {"gravity": True}
    )
    assert isinstance(options({"gravity": np.float32(9.0)}), rlx.Trainer)
    assert isinstance(options({"gravity": jnp.float32(9.0)}), rlx.Trainer)  # no key, and no error


def test_env_options_that_json_has_not():
    out = plan(LR, env_options=None)
    assert json.dumps(out.fixed)
