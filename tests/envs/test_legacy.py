"""`envs.legacy`: one `done` taken apart, on a cart that leaves its track or runs out of time."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from gymnax.environments import spaces
from gymnax.environments.environment import Environment

import rlx
from rlx import envs
from rlx.envs import vector
from rlx.envs.adapters.legacy import modern
from rlx.envs.wrappers import spec
from rlx.errors import RlxError

LIMIT, EDGE = 6, 4
LEFT, RIGHT = 0, 1


@struct.dataclass
class Params:
    max_steps_in_episode: int = LIMIT
    speed: int = 1


@struct.dataclass
class Unlimited:
    speed: int = 1


@struct.dataclass
class State:
    x: jax.Array
    time: int


class Discrete:
    """Spaces of another library."""

    def __init__(self, n):
        self.n = n


class Box:
    def __init__(self, low, high, shape, dtype=jnp.float32):
        self.low, self.high, self.shape, self.dtype = low, high, shape, dtype


class Group:
    def __init__(self, children):
        self.spaces = children


class Cart:
    """It starts at -1, 0 or 1, moves by `speed`, and is off the track where |x| >= EDGE. No gymnax class is involved."""

    def __init__(self, limited=True):
        self.limited = limited

    @property
    def default_params(self):
        return Params() if self.limited else Unlimited()

    def observe(self, state):
        return jnp.stack([state.x, state.time]).astype(jnp.float32)

    def reset_env(self, key, params):
        state = State(jax.random.randint(key, (), -1, 2), 0)
        return self.observe(state), state

    def step_env(self, key, state, action, params):
        state = State(state.x + params.speed * (2 * action - 1), state.time + 1)
        limit = params.max_steps_in_episode if self.limited else LIMIT
        done = (jnp.abs(state.x) >= EDGE) | (state.time >= limit)
        return self.observe(state), state, 1.0, done, {"x": state.x}

    def action_space(self, params=None):
        return Discrete(2)

    def observation_space(self, params):
        return Box(jnp.array([-9.0, 0.0]), jnp.array([9.0, 1e9]), (2,))


def drive(env, actions, x=0, params=None):
    """(terminated, truncated) of each step from `x`, without resets."""
    params = vector.strong(env.default_params) if params is None else params
    _, state = env.reset_env(jax.random.key(0), params)
    state = state.replace(env=State(jnp.int32(x), 0))
    ends = []
    for action in actions:
        _, state, _, terminated, _ = env.step_env(jax.random.key(0), state, jnp.int32(action), params)
        ends.append((bool(terminated), bool(env.is_truncated(state, params))))
    return ends


NONE, TERMINATED, TRUNCATED, BOTH = (False, False), (True, False), (False, True), (True, True)
TO_AND_FRO = [RIGHT, LEFT] * 8


def test_both_kinds_of_ending():
    env = envs.legacy(Cart())
    assert isinstance(env, Environment) and env.name == "Cart"
    assert drive(env, [RIGHT] * 4) == [NONE] * 3 + [TERMINATED]
    assert drive(env, TO_AND_FRO[:LIMIT]) == [NONE] * 5 + [TRUNCATED]


def test_off_the_track_on_the_last_step_is_both():
    assert drive(envs.legacy(Cart()), [LEFT] + [RIGHT] * 5) == [NONE] * 5 + [BOTH]


@pytest.mark.parametrize("limit", [1, 4, 9])
def test_any_limit_replaces_the_own_one(limit):
    """By argument, and as the traced parameter, which outranks the environment's own of the same name."""
    expected = [NONE] * (limit - 1) + [TRUNCATED] * 2  # and so does a step after it, which `vectorise` may take
    assert drive(envs.legacy(Cart(), limit), TO_AND_FRO[: limit + 1]) == expected
    env = envs.legacy(Cart())
    params = vector.strong(env.default_params).replace(max_steps_in_episode=jnp.int32(limit))
    assert drive(env, TO_AND_FRO[: limit + 1], params=params) == expected


def test_other_parameters_reach_the_environment():
    env = envs.legacy(Cart())
    params = env.default_params
    assert (params.max_steps_in_episode, params.env) == (LIMIT, Params())
    assert drive(env, [RIGHT] * 2, params=params.replace(env=Params(speed=2))) == [NONE, TERMINATED]


def test_a_limit_that_cannot_be_lifted():
    """`done` on that very step is truncation, whatever it meant; any earlier one is termination."""
    env = envs.legacy(Cart(limited=False), LIMIT)
    assert drive(env, [RIGHT] * 4) == [NONE] * 3 + [TERMINATED]
    assert drive(env, TO_AND_FRO[:LIMIT]) == [NONE] * 5 + [TRUNCATED]
    assert drive(env, [LEFT] + [RIGHT] * 5) == [NONE] * 5 + [TRUNCATED]


def test_a_limit_by_craftax_name():
    @struct.dataclass
    class Times:
        max_timesteps: int = 3

    class Clock(Cart):
        default_params = Times()

        def step_env(self, key, state, action, params):
            state = State(state.x, state.time + 1)
            return self.observe(state), state, 0.0, state.time >= params.max_timesteps, {}

    assert drive(envs.legacy(Clock()), [RIGHT] * 3) == [NONE, NONE, TRUNCATED]
    assert drive(envs.legacy(Clock(), 4), [RIGHT] * 4) == [NONE, NONE, NONE, TRUNCATED]


@functools.cache
def played():
    """[T, N] steps under random actions, and the actions."""
    env = envs.legacy(Cart())
    params = vector.strong(env.default_params)
    vec = vector.vectorise(env, 8)
    actions = np.random.default_rng(0).integers(2, size=(100, 8)).astype(np.int32)

    @jax.jit
    def run(key, actions):
        state, obs = vec.reset(key, params)
        body = lambda state, x: vec.step(jax.random.fold_in(key, x[0]), state, x[1], params)
        return obs, jax.lax.scan(body, state, (jnp.arange(1, 101), actions))[1]

    return *jax.device_get(run(jax.random.key(0), actions)), actions


def test_vectorised_against_the_rules():
    """A plain loop over positions: true successors at an end, fresh starts after it, both endings as the rules say."""
    obs, step, actions = played()
    starts = set()
    for n in range(8):
        x, time = obs[n]
        for t in range(100):
            starts |= {x} if time == 0 else set()
            x, time = x + 2 * actions[t, n] - 1, time + 1
            np.testing.assert_array_equal(step.next_obs[t, n], [x, time])
            assert (step.terminated[t, n], step.truncated[t, n]) == (abs(x) >= EDGE, time == LIMIT)
            if abs(x) >= EDGE or time == LIMIT:
                x, time = step.obs[t, n]
                assert time == 0
            np.testing.assert_array_equal(step.obs[t, n], [x, time])
    assert starts == {-1, 0, 1}
    assert {tuple(e) for e in np.stack([step.terminated, step.truncated], -1).reshape(-1, 2)} == {
        NONE,
        TERMINATED,
        TRUNCATED,
        BOTH,
    }


def test_spaces_of_other_libraries():
    env = envs.legacy(Cart())
    params = env.default_params
    assert env.action_space(params).n == 2 and isinstance(env.action_space(params), spaces.Discrete)
    box = env.observation_space(params)
    assert isinstance(box, spaces.Box) and box.shape == (2,) and box.low.tolist() == [-9, 0]
    nested = modern(Group({"a": Discrete(3), "b": Group([Box(0, 1, (4,), jnp.uint8)])}))
    assert isinstance(nested, spaces.Dict) and nested.spaces["a"].n == 3
    assert isinstance(nested.spaces["b"], spaces.Tuple) and nested.spaces["b"].spaces[0].dtype == jnp.uint8
    own = spaces.Discrete(5)
    assert modern(own) is own
    with pytest.raises(RlxError, match="space int is not supported: use Box, Discrete, Dict or Tuple"):
        modern(3)


class NoParams(NamedTuple):
    speed: Any = 1


def test_errors():
    class Half:
        reset_env = default_params = None

    with pytest.raises(RlxError, match="legacy needs a gymnax-style environment, but Half has no step_env"):
        envs.legacy(Half())
    with pytest.raises(RlxError, match="legacy needs max_steps, since the parameters of Cart have no max_steps_in_episode"):
        envs.legacy(Cart(limited=False))
    odd = Cart()
    odd.__class__ = type("Odd", (Cart,), {"default_params": NoParams()})
    with pytest.raises(RlxError, match="legacy needs max_steps, since the parameters of Odd have no"):
        envs.legacy(odd)
    for bad in (0, 2.5, "abc", True, 2**31):
        with pytest.raises(RlxError, match=f"max_steps={bad!r} of Cart must be a whole number in"):
            envs.legacy(Cart(), bad)


@pytest.mark.slow
def test_an_agent_trains_on_it():
    env = envs.legacy(Cart())
    assert spec(env, env.default_params).max_episode_steps == LIMIT
    trainer = rlx.make("ppo", env, num_envs=4, rollout_length=8, num_minibatches=4, hidden_sizes=(8,))
    carry, metrics = trainer.run(trainer.init(seeds=1), steps=64)
    assert np.isfinite(metrics["policy_loss"]).all() and np.nanmax(metrics["episode_length"]) <= LIMIT
    returns = np.asarray(trainer.evaluate(carry, 4, jax.random.key(0)))  # by default up to the limit
    assert np.all((returns >= 3) & (returns <= LIMIT))
