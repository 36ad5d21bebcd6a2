"""An environment that observes its actions, in whatever spaces it is given."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import spaces
from gymnax.environments.environment import Environment

KEY = jax.random.key(0)
INF = (-np.inf, np.inf)


@struct.dataclass
class Params:
    max_steps_in_episode: Any = 5
    bound: Any = 2.0


@struct.dataclass
class NoLimit:
    """Parameters without a time limit."""


@struct.dataclass
class State:
    time: jax.Array
    action: jax.Array


class Echo(Environment):
    """Observes the action as it arrives, in whatever spaces it is given; terminates at `end`."""

    def __init__(self, action_space, observation_space=None, reward=0.0, end=10**6, params=None):
        self.action_space_of, self.observed, self.reward, self.end = action_space, observation_space, reward, end
        self.params = params or Params()

    @property
    def default_params(self):
        return self.params

    def action_space(self, params):
        return self.action_space_of(params) if callable(self.action_space_of) else self.action_space_of

    def observation_space(self, params):
        return self.observed or spaces.Box(-np.inf, np.inf, self.action_space(params).shape)

    def _obs(self, action):
        return action if self.observed is None else self.observed.sample(KEY)

    def reset_env(self, key, params):
        space = self.action_space(params)
        action = jnp.zeros(getattr(space, "shape", ()), getattr(space, "dtype", jnp.float32))
        return self._obs(action), State(jnp.zeros((), jnp.int32), action)

    def step_env(self, key, state, action, params):
        state = State(state.time + 1, action if isinstance(action, jax.Array) else state.action)
        return self._obs(action), state, jnp.asarray(self.reward), state.time >= self.end, {}
