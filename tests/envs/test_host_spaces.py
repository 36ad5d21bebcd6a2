"""What host environments observe and are told, in each kind of space, and the errors of whoever asks for more."""

import copy

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
from rlx import envs
from rlx.envs import wrappers
from tests.envs.host_support import keys

pytest.importorskip("dm_control.suite")
pytest.importorskip("imageio")  # of gymnasium[mujoco]

KEYS = keys(0, 1)


class Spaces(gym.Env):
    """Observes a fixed sample, in whatever spaces it is given."""

    def __init__(self, observation, action=None):
        self.observation_space = copy.deepcopy(observation)  # each samples from its own
        self.action_space = action or gym.spaces.Box(-1, 3, (2,), np.float64)
        self.told = []

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(0)
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.told.append(action)
        return self.observation_space.sample(), 0.0, False, False, {}


gym.register("rlx-test/Spaces-v0", entry_point=Spaces)
G = gym.spaces


@pytest.mark.parametrize(
    ("observation", "shape", "dtype"),
    [
        (G.Box(-np.inf, np.inf, (2, 3), np.float64), (6,), "float32"),
        (G.Box(0, 255, (4, 5, 3), np.uint8), (4, 5, 3), "uint8"),
        (G.Discrete(5, start=-2), (5,), "float32"),
        (G.Dict(b=G.Discrete(3, start=1), a=G.Box(-1, 1, (2,), np.float32)), (5,), "float32"),
        (G.Tuple([G.Box(-9, 9, (), np.int64), G.Dict(x=G.Box(0, 1, (2, 2), bool))]), (5,), "float32"),
    ],
)
def test_observation_spaces(observation, shape, dtype):
    env = envs.make("gymnasium/rlx-test/Spaces-v0", observation=observation)
    spec = wrappers.spec(env, env.default_params)
    assert (spec.obs_shape, spec.obs_dtype, spec.max_episode_steps) == (shape, dtype, None)
    vec = wrappers.vectorise(env, 2)
    state, obs = jax.vmap(lambda key: vec.reset(key, env.default_params))(KEYS)
    assert obs.shape == (2, 2, *shape) and obs.dtype == dtype
    observation.seed(0)
    first, second = observation.sample(), observation.sample()

    def flat(space, x):
        if isinstance(space, G.Discrete):
            return np.eye(space.n)[x - space.start]
        if isinstance(space, G.Dict):
            return np.concatenate([flat(space[k], x[k]).ravel() for k in sorted(space)])
        if isinstance(space, G.Tuple):
            return np.concatenate([flat(s, y).ravel() for s, y in zip(space, x, strict=True)])
        return x

    np.testing.assert_array_equal(obs[1, 1], np.reshape(flat(observation, first), shape).astype(dtype))
    action = jnp.stack([jnp.full((2, 2), 1.0), jnp.full((2, 2), -0.5)])
    _, step = jax.vmap(lambda s, a: vec.step(jax.random.key(0), s, a, env.default_params))(state, action)
    np.testing.assert_array_equal(step.next_obs[1, 1], np.reshape(flat(observation, second), shape).astype(dtype))
    told = [sim.unwrapped.told[0] for sim in env.pools[0].waiting[0][1].envs]
    np.testing.assert_array_equal(told, [[3, 3]] * 2 + [[0, 0]] * 2)
    assert told[0].dtype == np.float64
    env.close()


def test_float64_bounds_are_kept_and_nan_is_not_told():
    """float32 rounds 0.1 to beyond it, and environments assert that actions are in their space."""
    env = envs.make(
        "gymnasium/rlx-test/Spaces-v0", observation=G.Discrete(2), action=G.Box(-0.1, np.array([0.1, 0.1]), dtype=np.float64)
    )
    vec = wrappers.vectorise(env, 1)
    state, _ = vec.reset(KEYS[0], env.default_params)
    state, _ = vec.step(KEYS[0], state, jnp.ones((1, 2)), env.default_params)
    told = env.pools[0].waiting[0][1].envs[0].unwrapped.told
    assert told[0].tolist() == [0.1, 0.1]
    _, step = vec.step(KEYS[0], state, jnp.array([[0.0, jnp.nan]]), env.default_params)
    assert step.truncated.all() and not step.weight.any() and len(told) == 1


ONE = G.Box(0, 1, (1,), np.float32)


@pytest.mark.parametrize(
    ("env_id", "options", "message"),
    [
        (
            "gymnasium/HalfCheeta-v5",
            {},
            "unknown environment 'gymnasium/HalfCheeta-v5': did you mean 'gymnasium/HalfCheetah-v5'?",
        ),
        ("gymnasium/Pendulum-v9", {}, "unknown environment 'gymnasium/Pendulum-v9': did you mean 'gymnasium/Pendulum-v1'?"),
        (
            "gymnasium/NoAnt-v3",
            {},
            "unknown environment 'gymnasium/NoAnt-v3': did you mean 'gymnasium/Ant-v5'?",
        ),
        ("gymnasium/Pendulum-v1", {"gravity": 1}, "gymnasium/Pendulum-v1 cannot be built with gravity=1: "),
        ("gymnasium/no_such_module:Env-v0", {}, "gymnasium/no_such_module:Env-v0 needs a package ("),
        ("gymnasium/HalfCheetah-v3", {}, "gymnasium/HalfCheetah-v3 "),
        ("dmc/cartpole-swing", {}, "unknown environment 'dmc/cartpole-swing': did you mean 'dmc/cartpole-swingup'?"),
        ("dmc/cartpole-swingup", {"time": 1}, "unknown option 'time' of dmc/cartpole-swingup: did you mean 'time_limit'?"),
        ("dmc/cartpole-swingup", {"time_limit": "x"}, "dmc/cartpole-swingup cannot be built with time_limit='x': "),
        *(
            (
                "gymnasium/rlx-test/Spaces-v0",
                {"observation": space},
                f": the space {type(space).__name__} is not supported: use ",
            )
            for space in (G.Text(3), G.MultiDiscrete([2, 2]), G.MultiBinary(2), G.Graph(ONE, None), G.Sequence(ONE))
        ),
        ("gymnasium/rlx-test/Spaces-v0", {"observation": ONE, "action": G.MultiBinary(2)}, "the space MultiBinary is not"),
        ("gymnasium/rlx-test/Spaces-v0", {"observation": ONE, "action": G.Dict(a=ONE)}, "action space Dict is not supported"),
        ("gymnasium/rlx-test/Spaces-v0", {"observation": ONE, "action": G.Box(0, np.inf, (1,))}, "must be bounded"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*is out of date")
def test_errors_are_one_line(env_id, options, message):
    with pytest.raises(rlx.RlxError) as caught:
        rlx.make("ppo", env_id, env_options=options)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_extra(monkeypatch):
    monkeypatch.setattr("rlx.envs.registry.importlib.util.find_spec", lambda name: None)
    with pytest.raises(rlx.RlxError, match=r"^dmc/cartpole-swingup needs an extra: pip install 'rlx\[dmc\]'$"):
        envs.make("dmc/cartpole-swingup")
