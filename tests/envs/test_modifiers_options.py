"""Observation noise, and all modifiers as options of environments by id."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import spaces

from rlx import envs
from rlx.envs import modifiers
from rlx.envs.modifiers import ActionCost, ActionRepeat, ObservationNoise
from rlx.envs.wrappers import TimeLimit
from rlx.errors import RlxError
from tests.envs.echo_support import Echo
from tests.envs.walk_support import KEY, Params, Walk, actions, run

# --- observation noise -------------------------------------------------------------------------------------------------


def test_noise_changes_what_is_observed_and_nothing_else():
    """States, rewards and endings bit for bit those without the wrapper, with random dynamics; the noise is of the stated
    scale, white and centred."""
    quiet, loud = (ObservationNoise(Walk(), std) for std in (0.0, 0.5))
    native = Params(max_steps_in_episode=20, end=5.0, shock=0.5)
    given = actions(steps=400)
    start, states, step = run(quiet, quiet.default_params.replace(env=native), given=given)
    bare = run(Walk(), native, given=given)
    jax.tree.map(np.testing.assert_array_equal, (bare[0], bare[1].x, bare[2]), (start, states.x, step))
    noisy_start, noisy_states, noisy = run(loud, loud.default_params.replace(env=native), given=given)
    for name in ("x", "time", "total"):
        np.testing.assert_array_equal(getattr(states, name), getattr(noisy_states, name))
    for name in ("reward", "terminated", "truncated", "weight"):
        np.testing.assert_array_equal(getattr(step, name), getattr(noisy, name))
    done = step.terminated | step.truncated
    assert step.terminated.any() and step.truncated.any()
    np.testing.assert_array_equal(step.obs, states.x)  # no noise at 0
    np.testing.assert_array_equal(noisy.obs[~done], noisy.next_obs[~done])  # one draw for one observation

    error = noisy.next_obs - step.next_obs
    lag = lambda a, b: np.corrcoef(a.ravel(), b.ravel())[0, 1]
    assert abs(error.mean()) < 0.03 and abs(error.std() - 0.5) < 0.03
    assert (
        max(abs(lag(error[1:], error[:-1])), abs(lag(error[:, 0], error[:, 1])), abs(lag(error[..., 0], error[..., 1]))) < 0.06
    )
    assert abs(lag(error, states.x)) < 0.06
    for first in (noisy_start - start, (noisy.obs - step.obs)[done]):
        assert 0.2 < first.std() < 0.8 and np.unique(first).size == first.size


def test_noise_scale_is_traced():
    env = ObservationNoise(Walk(), 0.5)
    at = lambda std: env.reset_env(KEY, env.default_params.replace(obs_noise=std))[0]
    got = jax.jit(jax.vmap(at))(jnp.array([0.0, 0.5, 2.0]))
    np.testing.assert_allclose(got[2] - got[0], 4.0 * (got[1] - got[0]), rtol=1e-4)
    assert np.abs(got[1] - got[0]).min() > 0


def test_noise_leaves_integers_alone(strict):
    obs = {
        "board": jnp.arange(4, dtype=jnp.uint8),
        "on": jnp.array([True]),
        "x": jnp.zeros(3),
        "z": jnp.zeros(3),
        "y": jnp.zeros((), jnp.bfloat16),
    }
    got = modifiers.noisy(KEY, obs, jnp.float32(1.0))
    for name in ("board", "on"):
        np.testing.assert_array_equal(got[name], obs[name])
    assert {n: x.dtype for n, x in got.items()} == {n: x.dtype for n, x in obs.items()}
    assert np.unique([*got["x"], *got["z"], got["y"].astype(jnp.float32)]).size == 7 and np.abs(got["x"]).min() > 0


def test_noisy_observations_have_no_bounds():
    small, board = spaces.Box(0.0, 1.0, (3,)), spaces.Box(0, 255, (2, 2), jnp.uint8)
    space = modifiers.unbounded(spaces.Dict({"a": small, "b": spaces.Tuple([board, small, spaces.Discrete(2)])}))
    assert (space.spaces["a"].low, space.spaces["a"].high, space.spaces["a"].shape) == (-np.inf, np.inf, (3,))
    inner = space.spaces["b"].spaces
    assert inner[0] is board and inner[1].high == np.inf and inner[2].n == 2
    env = ObservationNoise(Walk(), 1.0)
    assert env.observation_space(env.default_params).low == -np.inf


# --- as options --------------------------------------------------------------------------------------------------------


def test_options_of_every_suite():
    options = {"action_repeat": 2, "backend": "spring", "obs_noise": None, "action_cost": 0.0}
    assert modifiers.split(options) == ({"action_repeat": 2, "action_cost": 0.0}, {"backend": "spring"})
    env = Walk()
    assert modifiers.apply(env) is env
    env = modifiers.apply(TimeLimit(Walk(), 9), action_repeat=2, action_cost=0.25, obs_noise=0.5)
    kinds = []
    while env.__class__ is not Walk:
        kinds.append(type(env))
        env = env.env
    assert kinds == [TimeLimit, ObservationNoise, ActionRepeat, ActionCost]


def test_registry_takes_the_options():
    env = envs.make("brax/inverted_pendulum", backend="spring", action_repeat=4, action_cost=0.25, obs_noise=0.5)
    params = env.default_params
    assert params.max_steps_in_episode == 250 and params.env.obs_noise == 0.5 and params.env.env.action_cost == 0.25
    assert type(envs.make("gymnax/Pendulum-v1", action_repeat=4)) is ActionRepeat


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"action_repeat": 0}, "action_repeat=0 must be a whole number >= 1"),
        ({"action_repeat": 1.5}, "action_repeat=1.5 must be a whole number >= 1"),
        ({"action_repeat": True}, "action_repeat=True must be a whole number >= 1"),
        ({"action_cost": -0.1}, "action_cost=-0.1 must be a number >= 0"),
        ({"action_cost": "0.1"}, "action_cost='0.1' must be a number >= 0"),
        ({"obs_noise": float("nan")}, "obs_noise=nan must be a number >= 0"),
        ({"obs_noise": np.inf}, "obs_noise=inf must be a number >= 0"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(RlxError) as error:
        modifiers.apply(Walk(), **options)
    assert str(error.value) == message


def test_what_cannot_be_modified():
    discrete = Echo(spaces.Discrete(2))
    for option, message in (
        ("action_cost", f"{discrete.name} has no continuous actions"),
        ("obs_noise", f"{discrete.name} observes no floats"),
    ):
        with pytest.raises(RlxError, match=message):
            modifiers.apply(discrete, **{option: 0.1})
    with pytest.raises(RlxError, match="gymnasium/Pendulum-v1 runs on the host"):
        envs.make("gymnasium/Pendulum-v1", action_repeat=2)
