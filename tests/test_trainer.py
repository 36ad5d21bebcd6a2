"""The Trainer: options and their errors, populations, exact step counts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
from rlx import footprint
from rlx.agents import sac
from tests.loop_support import RECORDER, Clock, T
from tests.train_support import fails
from tests.trainer_support import ENV, FIELDS, LRS, SEEDS, both, compilations, differing, fresh, trainer

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
    fails(lambda: t.run(fresh("ppo"), 2**32, points=2), "points=2", "2^31 env steps")  # more than an int32 counts


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
