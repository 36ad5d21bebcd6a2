"""The Trainer: acting in native units, and a user's own environment."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment, spaces

import rlx
from tests.loop_support import collector
from tests.train_support import fails
from tests.trainer_support import FIELDS, both, compilations, fresh, trainer

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
    np.testing.assert_array_equal(i(9), early)  # iteration 9 ends at 20 steps: it acts, then makes the first update
    assert (i(10) != early).any()


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


def test_a_policy_does_not_keep_the_replay():
    t = rlx.make("sac", "gymnax/Pendulum-v1", preset="small", replay_capacity=4096, hidden_sizes=(4,))
    carry = t.init(2)
    policy = t.policy(carry, 1)
    held = [cell.cell_contents for cell in policy.__wrapped__.__closure__]
    assert max(x.size for x in jax.tree.leaves(held) if isinstance(x, jax.Array)) < 100
    obs = np.array([0.3, -0.9, 2.0], np.float32)
    everyone = t.act(carry, np.broadcast_to(obs, (2, 1, 3)), jax.random.key(0), greedy=True)
    np.testing.assert_allclose(policy(obs), everyone[1, 0], rtol=1e-6)
