"""What a plan refuses, in one line, before anything compiles or is written; and what it starts from."""

import pytest

import rlx
from rlx.errors import RlxError
from rlx.sweeps import plan as p
from tests.sweeps.sweeps_support import LR, PER, plan, sweep
from tests.train_support import CARTPOLE, TINY, fails
from tests.trainer_support import compilations

LIMIT, ENVS = "env.max_steps_in_episode", {"num_envs": [2, 3]}
BAD = [
    ({"lrr": [0.1]}, {}, ["unknown field of the space 'lrr'", "did you mean 'lr'?"]),
    ({"env.gravty": [1.0]}, {}, ["unknown parameter of gymnax/CartPole-v1 'gravty'", "did you mean 'gravity'?"]),
    ({"hidden_sizes": "uniform(8, 16)"}, {}, ["hidden_sizes is static", "give a list"]),
    ({"num_epochs": "uniform(1, 4)"}, {}, ["num_epochs is static", "give a list, such as num_epochs=[1, 4]"]),
    ({"lr": []}, {}, ["lr=[] has no value"]),
    ({"lr": "log(0, 1)"}, {}, ["lr=log(0, 1) must have low > 0", "log(0.001, 1)"]),
    ({"lr": "uniform(-1, 1)"}, {"configs": 2}, ["lr=-1.0 must be >= 0"]),
    ({"gamma": [0.9, 1.5]}, {}, ["gamma=1.5 must be in [0, 1]"]),
    ({"gamma": "uniform(0.5, 2)"}, {"configs": 2}, ["gamma=2.0 must be in [0, 1]"]),
    ({"gamma": ["high"]}, {}, ["gamma='high' must be float, not str"]),
    ({"gamma": [None]}, {}, ["gamma=None must be float"]),
    ({"activation": ["rleu"]}, {}, ["unknown value of activation 'rleu'", "did you mean 'relu'?"]),
    ({"num_epochs": [1.5]}, {}, ["num_epochs=1.5 must be int, not float"]),
    ({"num_minibatches": [1, 3]}, {}, ["num_minibatches", "3"]),
    ({LIMIT: [1.5]}, {}, ["max_steps_in_episode", "must be int32"]),
    ({LIMIT: "uniform(10, 20)"}, {"configs": 2}, ["env.max_steps_in_episode is int32: give int(10, 20) or a list"]),
    ({LIMIT: ["x"]}, {}, ["max_steps_in_episode", "must be int32"]),
    ({LIMIT: [None]}, {}, ["max_steps_in_episode", "must be int32"]),
    ({LIMIT: [2**40]}, {}, ["max_steps_in_episode", "must be int32"]),
    ({LIMIT: [(1, 2)]}, {}, ["max_steps_in_episode", "shape ()"]),
    ({"lr": "log(1e-5, 1e-2)"}, {}, ["lr=log(1e-05, 0.01) has no end of values", "give configs"]),
    (LR, {"configs": 4}, ["configs=4 is more than the space has: 3"]),
    (LR, {"configs": 0}, ["configs=0 must be >= 1"]),
    (LR, {"method": "gird"}, ["unknown method 'gird'", "did you mean 'grid'?"]),
    (LR, {"steps": 0}, ["steps=0 must be a positive multiple of num_envs * rollout_length = 20: nearest is 20"]),
    (LR, {"steps": 50}, ["steps=50", "nearest is 40 or 60"]),
    (LR, {"eval_every": 30}, ["eval_every=30", "nearest is 20 or 40"]),
    (ENVS, {"steps": 100}, ["steps=100 must be a positive multiple of 60, to fit every group: nearest is 60 or 120"]),
    (ENVS, {"steps": 40}, ["steps=40 must be a positive multiple of 60, to fit every group: nearest is 60"]),
    (ENVS, {"steps": 0}, ["steps=0 must be a positive multiple of 60, to fit every group: nearest is 60"]),
    (ENVS, {"eval_every": 20}, ["eval_every=20 must be a positive multiple of 60"]),
    (ENVS, {"eval_every": 60, "save_every": 20}, ["save_every=20 must be a positive multiple of 60"]),
    (ENVS, {"eval_every": 60, "log_every": 20}, ["log_every=20 must be a positive multiple of 60"]),
    (LR, {"lr": 0.1}, ["lr is in the space and has a value of its own, lr=0.1"]),
    ({"env.gravity": [9.0]}, {"env_params": {"gravity": 8.0}}, ["env.gravity is in the space and has a value of its own"]),
    (LR, {"seeds": []}, ["seeds=() must be at least one seed"]),
    (LR, {"seeds": [-1]}, ["seeds=", "must lie in [0, 2^32)"]),
    (LR, {"batch_of_runs": 0}, ["batch_of_runs=0 must be >= 1"]),
    (LR, {"devices": 3}, ["devices=3 must be in [1, 2]"]),
    (LR, {"keep": 2}, ["keep=2 is for rlx.train"]),
    (LR, {"resume": True}, ["resume needs out"]),
    (LR, {"spaec_seed": 1}, ["unknown field 'spaec_seed'", "did you mean 'space_seed'?"]),
    (LR, {"preset": "none"}, ["unknown preset 'none'"]),
]


@pytest.mark.parametrize("space, kwargs, words", BAD, ids=[str((s, k))[:60] for s, k, _ in BAD])
def test_bad_plans(space, kwargs, words, tmp_path, monkeypatch):
    plan(LR), plan({LIMIT: [1, 2]})  # single operations that the first environment and the first trainer compile
    monkeypatch.chdir(tmp_path)
    out = {} if "resume" in kwargs else {"out": "s"}
    with compilations() as events:
        fails(lambda: sweep(space, **out, **kwargs), *words)
    assert not events and not list(tmp_path.iterdir())


def test_agents_and_environments_by_name():
    fails(lambda: rlx.sweep(rlx.agents.ppo, CARTPOLE, LR), "by name")
    fails(lambda: rlx.sweep("pppo", CARTPOLE, LR), "unknown agent 'pppo'")
    fails(lambda: rlx.sweep("ppo", "gymnax/CartPol-v1", LR), "gymnax/CartPole-v1")


def test_presets_and_a_config_are_what_the_space_starts_from():
    preset = plan({"gamma": [0.9]}, "sac", "gymnax/Pendulum-v1", preset="small")
    assert preset.fixed["config"]["hidden_sizes"] == list(rlx.agents.sac.Config.presets["small"]["hidden_sizes"])
    config = rlx.agents.ppo.Config(**TINY, lr=0.5, clip_eps=0.1)
    out = rlx.sweep("ppo", CARTPOLE, LR, config=config, steps=PER, dry_run=True).plan  # the space wins over a whole config
    assert out.fixed["config"]["clip_eps"] == 0.1 and [c["lr"] for c in out.configs] == LR["lr"]


def test_an_environment_without_a_time_limit(monkeypatch):
    spec = rlx.make("ppo", CARTPOLE, **TINY).spec
    monkeypatch.setattr("rlx.envs.wrappers.spec", lambda *a: spec._replace(max_episode_steps=None))
    monkeypatch.setattr(p, "_kept", p._kept.__wrapped__)
    with pytest.raises(RlxError, match="gymnax/CartPole-v1 has no time limit"):
        plan(LR)
