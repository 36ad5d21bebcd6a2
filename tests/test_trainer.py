"""The Trainer: options and their errors, populations, exact step counts, acting in native units, files."""

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from gymnax.environments import environment, spaces

import rlx
from rlx import RlxError, footprint
from rlx.agents import sac
from tests.test_bits import ENV, FIELDS, LRS, SEEDS, both, differing, fresh, trainer
from tests.test_loop import RECORDER, Clock, N, T, collector, with_population
from tests.test_program import compilations


def fails(call, *words: str) -> None:
    with pytest.raises(RlxError) as error:
        call()
    text = str(error.value)
    assert "\n" not in text and all(word in text for word in words), text


# --- make ------------------------------------------------------------------------------------------------------------


def test_the_last_of_preset_config_and_fields_wins():
    make = lambda **options: rlx.make("sac", "probe/ActionReward-continuous", **options).config
    assert make() == sac.Config()
    small = make(preset="small")
    assert (small.hidden_sizes, small.batch_size, small.gamma) == ((64, 64), 128, 0.99)
    own = sac.Config(batch_size=7, gamma=0.5)
    assert make(preset="small", config=own) == own
    assert make(preset="small", config=own, gamma=0.7) == sac.Config(batch_size=7, gamma=0.7)
    assert make(preset="small", batch_size=9) == small.replace(batch_size=9)
    assert own == sac.Config(batch_size=7, gamma=0.5)


@pytest.mark.parametrize(
    ("agent", "env", "options", "words"),
    [
        ("pppo", "probe/Truncation", {}, ["unknown agent 'pppo'", "did you mean 'ppo'?"]),
        ("ppo", "gymnax/CartPol-v1", {}, ["unknown environment", "did you mean 'gymnax/CartPole-v1'?"]),
        ("ppo", "probe/Truncation", {"gama": 0.9}, ["unknown field 'gama'", "did you mean 'gamma'?"]),
        ("ppo", "probe/Truncation", {"gamma": 1.5}, ["gamma=1.5", "[0, 1]"]),
        ("ppo", "probe/Truncation", {"gamma": "high"}, ["gamma='high'", "float"]),
        ("ppo", "probe/Truncation", {"preset": "brx"}, ["unknown preset 'brx'", "did you mean 'brax'?"]),
        ("ppo", "probe/Truncation", {"config": sac.Config()}, ["sac.Config", "ppo.Config"]),
        ("ppo", "probe/Truncation", {"num_minibatches": 7}, ["num_minibatches=7", "1000", "nearest is 8"]),
        ("ppo", "probe/Truncation", {"env_params": {"max_steps": 3}}, ["max_steps", "'max_steps_in_episode'"]),
        ("ppo", "probe/Truncation", {"env_params": 3}, ["env_params", "int"]),
        ("ppo", "probe/Truncation", {"env_options": {"size": 3}}, ["probe/Truncation", "size"]),
        ("ppo", "probe/VectorReward", {}, ["scalar reward", "probe/VectorReward", "(2,)"]),
        ("sac", "probe/VectorReward-continuous", {}, ["scalar reward", "probe/VectorReward-continuous", "(2,)"]),
        ("sac", "probe/Truncation", {}, ["continuous", "probe/Truncation", "3 discrete"]),
        ("sac", "probe/Truncation-continuous", {"updates_per_step": 0.4}, ["updates_per_step=0.4", "nearest valid value is 1"]),
        ("sac", "probe/Truncation-continuous", {"replay_capacity": 1, "num_envs": 2}, ["replay_capacity=1"]),
        ("ppo", 3, {}, ["name or a gymnax Environment", "int"]),
        ("ppo", Clock, {}, ["name or a gymnax Environment"]),
        ("ppo", Clock(), {"env_options": {"objectives": 2}}, ["env_options", "objectives", "Clock", "object"]),
        ("ppo", Clock(2), {}, ["scalar reward", "Clock", "(2,)"]),
    ],
)
def test_make_errors(agent, env, options, words):
    fails(lambda: rlx.make(agent, env, **options), *words)


def test_environment_parameters_are_overridden_and_strongly_typed():
    t = rlx.make("sac", "gymnax/Pendulum-v1", env_params={"g": 3}, **FIELDS["sac"])
    assert float(t.env_params.g) == 3.0 and t.env_params.g.dtype == jnp.float32
    assert not any(jax.typeof(x).weak_type for x in jax.tree.leaves(t.env_params))
    assert float(rlx.make("sac", "gymnax/Pendulum-v1", env_params=t.env_params).env_params.g) == 3.0


# --- init ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"hp": {"lrr": [0.1]}}, ["unknown field 'lrr'", "did you mean 'lr'?"]),
        ({"hp": {"num_epochs": [1]}}, ["num_epochs is static", "gae_lambda"]),
        ({"hp": {"lr": [0.1], "gamma": [0.9, 0.8]}}, ["one length", "'lr': 1", "'gamma': 2"]),
        ({"hp": {"lr": [0.1]}, "env_params": {"max_steps_in_episode": [1, 2]}}, ["one length", "'max_steps_in_episode': 2"]),
        ({"hp": {"lr": []}}, ["no value", "lr"]),
        ({"hp": {"lr": [-0.1]}}, ["lr=-0.1", ">= 0"]),
        ({"hp": {"lr": ["fast"]}}, ["lr='fast'"]),
        ({"env_params": {"gravity": [1.0]}}, ["gravity", "probe/Truncation"]),
        ({"seeds": 0}, ["seeds=0", "at least one"]),
        ({"seeds": []}, ["seeds=[]", "at least one"]),
        ({"seeds": [1, -1]}, ["-1", "[0, 2^32)"]),
        ({"seeds": [2**32]}, ["4294967296", "[0, 2^32)"]),
        ({"seeds": "many"}, ["seeds='many'"]),
        ({"agent_state": {}}, ["agent_state", "carry.runs.agent"]),
    ],
)
def test_init_errors(arguments, words):
    fails(lambda: trainer("ppo").init(**arguments), *words)


def test_configurations_with_environment_parameters():
    runs = trainer("ppo").init([3, 9], hp={"lr": [0.1, 0.2, 0.3]}, env_params={"max_steps_in_episode": [1, 2, 5]}).runs
    np.testing.assert_array_equal(runs.seed, [3, 9] * 3)
    np.testing.assert_array_equal(runs.hp["lr"], np.repeat(np.float32([0.1, 0.2, 0.3]), 2))
    np.testing.assert_array_equal(runs.env_params.max_steps_in_episode, np.repeat([1, 2, 5], 2))
    np.testing.assert_array_equal(runs.hp["gamma"], np.float32([0.99] * 6))
    assert runs.first.shape == (6, 2) and runs.first.all()


def test_values_keep_the_type_of_the_parameter():
    t = rlx.make("sac", "gymnax/Pendulum-v1", env_params={"g": 3}, **FIELDS["sac"])
    g = jax.eval_shape(lambda: t.init(1, env_params={"g": [9.81]})).runs.env_params.g
    assert g.dtype == jnp.float32
    fails(lambda: trainer("ppo").init(env_params={"max_steps_in_episode": [2.7]}), "max_steps_in_episode", "2.7")
    fails(lambda: trainer("ppo").init(env_params={"max_steps_in_episode": ["long"]}), "max_steps_in_episode", "long")
    fails(lambda: trainer("ppo").init(seeds=[1.5]), "seeds", "1.5")


def test_agent_state_warm_starts():
    t = trainer("ppo")
    old, _ = t.run(fresh("ppo"), 3 * t.steps_per_iteration)
    state = old.runs.agent
    carry = t.init([1, 2, 3], hp={"lr": LRS}, agent_state=state)
    assert int(carry.i) == 0 and not differing(carry.runs.agent, state)
    t.run(carry, t.steps_per_iteration)
    assert not any(x.is_deleted() for x in jax.tree.leaves(state))  # the carry was donated, what was given is not
    fails(lambda: t.init(2, agent_state=state), "agent_state")  # six runs' for two


def test_too_large_a_population_is_refused_before_anything_compiles(monkeypatch):
    fresh("sac")  # the small operations of `init` itself
    t = rlx.make("sac", ENV["sac"], **FIELDS["sac"])
    monkeypatch.setattr(footprint, "available", lambda: 20_000)
    with compilations() as events:
        fails(
            lambda: t.init(SEEDS, hp={"critic_lr": LRS}),
            *("6 runs of sac on probe/Truncation-continuous need", "80% of the 19.5 KiB free"),
            *("lower replay_capacity", "at most 3 runs"),
        )
    assert not events
    monkeypatch.setattr(footprint, "available", lambda: None)  # unknown: nothing to compare with
    assert len(trainer("sac").init(SEEDS, hp={"critic_lr": LRS}).runs.seed) == 6


def test_footprint_is_what_the_carry_holds():
    shapes = jax.eval_shape(lambda: trainer("sac").init(5))
    assert footprint.size(shapes.runs.agent.replay) == 5 * 64 * (2 * 3 * 4 + 3 * 4 + 2)
    assert footprint.size(jax.random.key(0)) == 8 and footprint.available() > 2**20


# --- steps -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        (0, ["steps=0", "multiple of num_envs * rollout_length = 8", "nearest is 8"]),
        (-8, ["steps=-8", "nearest is 8"]),
        (7, ["steps=7", "nearest is 8"]),
        (30, ["steps=30", "24 or 32"]),
        (8.0, ["steps=8.0", "whole number", "float"]),
        (True, ["steps=True"]),
        (8 * 2**32, ["2^32 iterations"]),
    ],
)
def test_budgets(steps, words):
    fails(lambda: trainer("ppo").run(fresh("ppo"), steps), *words)


def test_points_must_divide():
    t = trainer("ppo")
    fails(lambda: t.run(fresh("ppo"), 4 * t.steps_per_iteration, points=3), "points=3", "4 iterations")
    fails(lambda: t.run(fresh("ppo"), t.steps_per_iteration, points=0), "points=0")


@both
def test_beyond_32_bits_of_steps(agent):
    """The counter's last iterations: both agents learn there, steps are exact, and the end is an error."""
    t = trainer(agent)
    per = t.steps_per_iteration
    carry = fresh(agent).replace(i=jnp.uint32(2**32 - 100))
    assert t.steps(carry) == (2**32 - 100) * per > 2**32
    carry, m = t.run(carry, 50 * per)
    assert t.steps(carry) == (2**32 - 50) * per
    assert (m["updates"] > 0).all() and all(np.isfinite(x).all() for x in m.values())
    if agent == "sac":  # the writes wrapped around: 100 items into 64 slots
        assert (carry.runs.agent.replay["weight"] == 1).all()
    fails(lambda: t.run(carry, 50 * per), "2^32 iterations")
    carry, _ = t.run(carry, 49 * per)
    assert int(carry.i) == 2**32 - 1


def test_steps_are_python_integers():
    t = rlx.make(RECORDER, Clock(), num_envs=4096)
    carry = rlx.types.Carry(jnp.uint32(2**31), (), ())
    assert t.steps(carry) == 2**31 * 4096 * T and type(t.steps(carry)) is int


# --- acting, in native units -------------------------------------------------------------------------------------------


@cache
def asymmetric(agent: str) -> tuple[rlx.Trainer, Any]:
    t = rlx.make(agent, "probe/AsymmetricBounds-continuous", **FIELDS[agent])
    return t, t.init(2)


@both
def test_actions_and_values(agent):
    t, carry = asymmetric(agent)
    obs = jnp.ones((2, 5, *t.spec.obs_shape))
    low, high = np.float32([-1, -4]), np.float32([3, -2])
    drawn = t.act(carry, obs, jax.random.key(0))
    assert drawn.shape == (2, 5, 2) and drawn.dtype == jnp.float32
    assert ((low <= drawn) & (drawn <= high)).all()
    assert len(np.unique(drawn.reshape(10, 2), axis=0)) == 10  # one key per run and observation
    mode = np.asarray(t.act(carry, obs, jax.random.key(0), greedy=True))
    np.testing.assert_array_equal(mode, t.act(carry, obs, jax.random.key(1), greedy=True))
    assert (mode[0] != mode[1]).any() and (np.abs(mode - (low + high) / 2) < (high - low) / 2).all()
    value = t.value(carry, obs)
    assert value.shape == (2, 5) and value.dtype == jnp.float32
    assert (value[0] != value[1]).any()


@both
def test_policy_is_exported_and_equals_act(agent):
    t, carry = asymmetric(agent)
    obs = jnp.linspace(0.0, 1.0, 5)[:, None]
    for run in range(2):
        policy = t.policy(carry, run)
        expected = np.asarray(t.act(carry, jnp.stack([obs] * 2), jax.random.key(0), greedy=True))[run]
        np.testing.assert_allclose([policy(o) for o in obs], expected, atol=1e-6)
    exported = jax.export.export(policy)(jax.ShapeDtypeStruct(obs[0].shape, jnp.float32))
    np.testing.assert_array_equal(exported.call(obs[0]), policy(obs[0]))
    fails(lambda: t.policy(carry, 2), "run=2", "[0, 2)")
    fails(lambda: t.policy(carry, -1), "run=-1")


def test_a_policy_outlives_the_donated_carry():
    t = trainer("ppo")
    carry = fresh("ppo")
    policy, obs = t.policy(carry, 1), jnp.eye(3)[1]
    before = policy(obs)
    t.run(carry, t.steps_per_iteration)
    assert before.shape == () and before.dtype == jnp.int32 and 0 <= int(before) < 3
    np.testing.assert_array_equal(policy(obs), before)


def test_sac_acts_uniformly_until_learning_starts():
    t, carry = asymmetric("sac")
    obs = jnp.ones((2, 2000, *t.spec.obs_shape))
    early = np.asarray(t.act(carry, obs, jax.random.key(0)))
    unit = (early - np.float32([-1, -4])) / np.float32([4, 2])
    np.testing.assert_allclose(np.quantile(unit, [0.1, 0.5, 0.9], axis=(0, 1)), np.outer([0.1, 0.5, 0.9], [1, 1]), atol=0.03)
    i = lambda n: np.asarray(t.act(carry.replace(i=jnp.uint32(n)), obs, jax.random.key(0)))
    np.testing.assert_array_equal(i(8), early)  # iteration 9 ends at 20 steps
    assert (i(9) != early).any()


def test_an_agent_without_a_critic_has_no_values():
    t = collector()[0]
    fails(lambda: t.value(t.init(1), jnp.zeros((1, 1, 3))), "no critic")


# --- a user's own environment ------------------------------------------------------------------------------------------


@struct.dataclass
class RoomParams:
    max_steps_in_episode: int = 3
    bonus: float = 1.0  # weakly typed, as users write it
    span: float = 2.0


@struct.dataclass
class RoomState:
    time: int
    x: float


class Room(environment.Environment):
    """Dictionary observations, integer rewards, Python numbers in the state, an action box that depends on a parameter."""

    @property
    def default_params(self):
        return RoomParams()

    def observe(self, state):
        return {"x": jnp.stack([state.x, -state.x]), "time": jnp.asarray(state.time, jnp.int32)}

    def reset_env(self, key, params):
        state = RoomState(0, 0.0)
        return self.observe(jax.tree.map(jnp.asarray, state)), state

    def step_env(self, key, state, action, params):
        state = RoomState(state.time + 1, state.x + action[0, 0] * params.bonus)
        return self.observe(state), state, jnp.where(state.x > 0, 1, 0), jnp.bool_(False), {}

    def is_truncated(self, state, params):
        return state.time >= params.max_steps_in_episode

    def action_space(self, params):
        return spaces.Box(0.0, params.span, (1, 1))

    def observation_space(self, params):
        return spaces.Dict({"x": spaces.Box(-10.0, 10.0, (2,)), "time": spaces.Discrete(4)})


def test_a_users_own_environment():
    t = rlx.make("ppo", Room(), **FIELDS["ppo"])
    assert t.env_name == "Room" and t.spec.obs_shape == (6,) and t.spec.action_dim == 1 and t.spec.max_episode_steps == 3
    carry = t.init(1, env_params={"span": [2.0, 6.0]})
    carry, m = t.run(carry, 3 * t.steps_per_iteration)
    np.testing.assert_array_equal(m["episodes"], [[8], [8]])
    np.testing.assert_array_equal(m["episode_length"], [[3.0], [3.0]])
    obs = {"x": jnp.zeros((2, 4, 2)), "time": jnp.zeros((2, 4), jnp.int32)}
    action = np.asarray(t.act(carry, obs, jax.random.key(0)))
    assert action.shape == (2, 4, 1, 1) and (action >= 0).all() and 2.0 < action[1].max() <= 6.0 and action[0].max() <= 2.0
    assert t.policy(carry)(jax.tree.map(lambda x: x[0, 0], obs)).shape == (1, 1)
    with compilations() as events:
        t.run(carry, t.steps_per_iteration)
    assert not events


# --- files -------------------------------------------------------------------------------------------------------------


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
