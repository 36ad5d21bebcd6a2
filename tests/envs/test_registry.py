"""Environments by id: what is there, what options reach, and the errors of whoever mistypes."""

import jax
import mujoco
import pytest
from gymnax.environments.environment import Environment

from rlx import envs
from rlx.envs.adapters import brax
from rlx.errors import RlxError


def test_ids():
    ids = envs.ids()
    assert len(ids) == len(set(ids))
    assert {"brax/hopper", "gymnax/CartPole-v1", "gymnax/Breakout-MinAtar", "probe/TimeLimit-continuous"} <= set(ids)
    assert "gymnax/MNISTBandit-bsuite" not in ids  # downloads when built
    assert "brax/fast" not in ids


@pytest.mark.parametrize("env_id", envs.ids(("brax", "gymnax", "probe")))
def test_every_id_builds(env_id):
    env = envs.make(env_id)
    assert isinstance(env, Environment)
    params = env.default_params
    obs, _ = jax.eval_shape(env.reset_env, jax.random.key(0), params)
    assert isinstance(env.name, str) and obs.shape == env.observation_space(params).shape


def test_a_backend_that_fails(monkeypatch):
    def pusher(backend):
        raise NotImplementedError("no tendons")

    monkeypatch.setattr(brax, "tasks", lambda: {"pusher": pusher})
    with pytest.raises(RlxError) as error:
        envs.make("brax/pusher", backend="mjx")
    text = "brax/pusher does not run with backend='mjx' (no tendons): try spring, generalized, positional"
    assert str(error.value) == text


@pytest.mark.parametrize("env_id", ["brax/halfcheetah", "brax/hopper"])
def test_mujoco_is_silent(env_id, tmp_path, monkeypatch, capfd):
    """It prints deprecations of the task's XML, and appends them to a file in the working directory."""
    monkeypatch.chdir(tmp_path)
    before = mujoco.get_mju_user_warning()
    envs.make(env_id)
    assert list(tmp_path.iterdir()) == [] and capfd.readouterr() == ("", "") and mujoco.get_mju_user_warning() is before


def test_options_reach_the_constructor():
    shape = lambda env: jax.eval_shape(env.reset_env, jax.random.key(0), env.default_params)[0].shape
    assert shape(envs.make("gymnax/DeepSea-bsuite", size=5)) == (5, 5)
    assert shape(envs.make("brax/hopper", exclude_current_positions_from_observation=False)) == (12,)
    assert shape(envs.make("brax/hopper")) == (11,)
    assert envs.make("brax/hopper").default_params.max_steps_in_episode == 1000
    assert envs.make("brax/hopper", max_steps=7).default_params.max_steps_in_episode == 7
    assert envs.make("brax/hopper", n_frames=2).env.brax.dt * 2 == envs.make("brax/hopper").env.brax.dt


@pytest.mark.parametrize(
    ("env_id", "options", "message"),
    [
        ("brax/hoper", {}, "unknown environment 'brax/hoper': did you mean 'brax/hopper'?"),
        ("brx/hopper", {}, "unknown environment 'brx/hopper': did you mean 'brax/hopper'?"),
        ("CartPole-v1", {}, "unknown environment 'CartPole-v1': did you mean 'gymnax/CartPole-v1'?"),
        ("gymnax/cartpole", {}, "unknown environment 'gymnax/cartpole': did you mean 'gymnax/CartPole-v1'?"),
        ("gymnax/", {}, "unknown environment 'gymnax/'"),
        ("brax", {}, "unknown environment 'brax'"),
        ("", {}, "unknown environment '': choose from brax/ant, "),
        ("probe/TimeLimt", {}, "unknown environment 'probe/TimeLimt': did you mean 'probe/TimeLimit'?"),
        ("probe/TimeLimit", {"limit": 3}, "probe/TimeLimit takes no options, but limit was given"),
        ("brax/hopper", {"backend": "sping"}, "unknown backend of brax/hopper 'sping': did you mean 'spring'?"),
        ("brax/hopper", {"max_step": 3}, "unknown option 'max_step' of brax/hopper: did you mean 'max_steps'?"),
        ("brax/hopper", {"helthy_reward": 0}, "unknown option 'helthy_reward' of brax/hopper: did you mean 'healthy_reward'?"),
        ("brax/hopper", {"max_steps": 0}, "max_steps=0 of brax/hopper must be a whole number in [1, 2^31)"),
        ("brax/hopper", {"max_steps": "abc"}, "max_steps='abc' of brax/hopper must be a whole number"),
        ("brax/hopper", {"max_steps": 1e3}, "max_steps=1000.0 of brax/hopper must be a whole number"),
        ("brax/hopper", {"max_steps": True}, "max_steps=True of brax/hopper must be a whole number"),
        ("brax/hopper", {"max_steps": 2**31}, "max_steps=2147483648 of brax/hopper must be a whole number"),
        (
            "brax/hopper",
            {"ctrl_cost_weight": "abc"},
            "brax/hopper does not run with ctrl_cost_weight='abc', backend='spring' (",
        ),
        ("brax/hopper", {"n_frames": "abc"}, "brax/hopper does not run with n_frames='abc', backend='spring' ("),
        ("brax/hopper", {"backend": ["spring"]}, "unknown backend of brax/hopper ['spring']"),
        ("brax/hopper", {"task": 3}, "unknown option 'task' of brax/hopper"),
        ("brax/hopper", {"self": 3}, "unknown option 'self' of brax/hopper"),
        ("gymnax/DeepSea-bsuite", {"size": "abc"}, "gymnax/DeepSea-bsuite does not run with size='abc' ("),
        ("gymnax/DeepSea-bsuite", {"size": 2.5}, "gymnax/DeepSea-bsuite does not run with size=2.5 ("),
        ("gymnax/CartPole-v1", {"task": 3}, "unknown option 'task' of gymnax/CartPole-v1"),
        ("brax/swimmer", {}, "brax/swimmer is left out: its only backend calls jnp.clip with arguments"),
        ("gymnax/DeepSea-bsuite", {"sze": 5}, "unknown option 'sze' of gymnax/DeepSea-bsuite: did you mean 'size'?"),
        ("gymnax/CartPole-v1", {"x": 5}, "unknown option 'x' of gymnax/CartPole-v1: there is none to choose from"),
        ("gymnax/MountainCar-v0", {"x": 5}, "unknown option 'x' of gymnax/MountainCar-v0: there is none to choose from"),
        ("gymnax/MountainCar-v0", {"args": 5}, "unknown option 'args' of gymnax/MountainCar-v0: there is none to choose from"),
        ("gymnax/MNISTBandit-bsuite", {}, "gymnax/MNISTBandit-bsuite downloads its data when built"),
    ],
)
def test_errors_name_the_nearest(env_id, options, message):
    with pytest.raises(RlxError) as error:
        envs.make(env_id, **options)
    assert str(error.value).startswith(message) and "\n" not in str(error.value)
