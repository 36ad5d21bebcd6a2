"""Tiny environments whose exact answers are known: if an agent does not find them, the agent is wrong.

A probe is a handful of nodes joined by deterministic moves; nothing but the start node is random. At some nodes the
action earns a *credit* in (-inf, 1], 1 for the right action, which is paid at once or at a later node:

    credit = 1[action = best]  (discrete)      or      1 - |action - target|^2  (continuous, native units)

The state value is therefore linear in the credit still owed, and the soft and the hard optimum have closed forms. The
values V in the docstrings below are the hard ones.

The time limit is no part of the task: it is not observed and `solution` does not depend on it. At a termination
`next_obs` repeats the last observation, so that whoever bootstraps there is off by a factor of 1 / (1 - gamma).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import spaces
from gymnax.environments.environment import Environment, EnvParams, EnvState
from scipy.special import erf

from rlx.errors import RlxError, unknown

END = -1


class Solution(NamedTuple):
    """What an agent should find. K rows: observations that can be met; the optimal value there; the optimal action.

    obs     [K, ...]      dtype of the observation space
    value   [K] or [K, m] float64
    action  [K] int32 or [K, d] float32, native; -1 or NaN in a row where all actions are equal, None if all rows are
    """

    obs: np.ndarray
    value: np.ndarray
    action: np.ndarray | None


class Node(NamedTuple):
    """One state of a probe: its reward, where it leads, which action earns the credit, whether the credit is paid."""

    reward: float | tuple[float, ...] = 0.0
    successor: int = END
    best: int | None = None
    target: tuple[float, ...] = ()
    pays: bool = False


@struct.dataclass
class State(EnvState):
    """`time`, `node` int32 and `credit` float32, all scalars."""

    node: jax.Array
    credit: jax.Array


class Probe(Environment[State, EnvParams]):
    """Base: everything follows from the class attributes, in the discrete and in the continuous form.

    Actions are `Discrete(actions)`, or `Box(low, high)` with d = len(low); an action outside the box is not clipped.
    The observation is the row of `observations` for the node (one-hot without any), followed by the credit if
    `credits` lists the values of it that `solution` shows.
    """

    nodes: tuple[Node, ...]
    starts: tuple[int, ...] = (0,)  # drawn uniformly
    limit: int = 10
    actions: int = 3
    low: tuple[float, ...] = (-1.5,)
    high: tuple[float, ...] = (1.5,)
    credits: tuple[float, ...] = ()
    observations: np.ndarray | None = None

    def __init__(self, continuous: bool = False):
        self.continuous = continuous
        self._low, self._high = np.array(self.low, np.float32), np.array(self.high, np.float32)
        self._obs = np.eye(len(self.nodes), dtype=np.float32) if self.observations is None else self.observations
        self._reward = np.array([n.reward for n in self.nodes], np.float32)
        self._successor = np.array([n.successor for n in self.nodes], np.int32)
        self._acts = np.array([n.best is not None for n in self.nodes])
        self._pays = np.array([n.pays for n in self.nodes], np.float32)
        self._best = np.array([END if n.best is None else n.best for n in self.nodes], np.int32)
        self._target = np.array([n.target or np.zeros(len(self.low)) for n in self.nodes], np.float32)

    @property
    def name(self) -> str:
        return type(self).__name__ + "-continuous" * self.continuous

    @property
    def default_params(self) -> EnvParams:
        return EnvParams(max_steps_in_episode=np.int32(self.limit))

    def action_space(self, params: EnvParams | None = None) -> spaces.Space:
        if self.continuous:
            return spaces.Box(self._low, self._high, self._low.shape, jnp.float32)
        return spaces.Discrete(self.actions)

    def observation_space(self, params: EnvParams | None = None) -> spaces.Space:
        if self._obs.dtype == np.int32:
            return spaces.Discrete(len(self.nodes))
        low, high = np.zeros_like(self._obs[0]), np.full_like(self._obs[0], self._obs.max())
        if self.credits:
            worst = np.maximum((self._low - self._target) ** 2, (self._high - self._target) ** 2).sum(-1).max()
            low = np.append(low, np.float32(1.0 - worst if self.continuous else 0.0))
            high = np.append(high, np.float32(1.0))
        return spaces.Box(low, high, low.shape, low.dtype)

    def reset_env(self, key: jax.Array, params: EnvParams) -> tuple[jax.Array, State]:
        node = jnp.asarray(self.starts, jnp.int32)[jax.random.randint(key, (), 0, len(self.starts), jnp.int32)]
        state = State(time=jnp.zeros((), jnp.int32), node=node, credit=jnp.zeros((), jnp.float32))
        return self.get_obs(state), state

    def step_env(
        self, key: jax.Array, state: State, action: Any, params: EnvParams
    ) -> tuple[jax.Array, State, jax.Array, jax.Array, dict[str, jax.Array]]:
        """One step. `reward` is float32, () or (m,); `terminated` bool; the time limit is left to `is_truncated`."""
        node = state.node
        if self.continuous:
            earned = 1.0 - jnp.sum((action - jnp.asarray(self._target)[node]) ** 2)
        else:
            earned = (action == jnp.asarray(self._best)[node]).astype(jnp.float32)
        credit = jnp.where(jnp.asarray(self._acts)[node], earned, state.credit)
        reward = jnp.asarray(self._reward)[node] + jnp.asarray(self._pays)[node] * credit
        successor = jnp.asarray(self._successor)[node]
        terminated = successor == END
        state = State(time=state.time + 1, node=jnp.where(terminated, node, successor), credit=credit)
        return self.get_obs(state), state, reward, terminated, {}

    def get_obs(self, state: State, params: EnvParams | None = None, key: jax.Array | None = None) -> jax.Array:
        obs = jnp.asarray(self._obs)[state.node]
        return jnp.append(obs, state.credit) if self.credits else obs

    def solution(self, gamma: float, temperature: float = 0.0) -> Solution:
        """The optimal policy's values and actions at each observation that can be met.

        With `temperature` T > 0 the optimum is the soft one: V(s) = T log int exp(Q(s, a) / T) da (Haarnoja et al.
        2017, Theorem 1; equal to E[Q - T log pi], SAC 2018, eq. 3, under the soft-optimal policy) and `action` its
        mode. Entropy is in nats, of the action mapped to [-1, 1]^d, so a uniform policy has d log 2; the integral is
        a sum, and the entropy log n, for n discrete actions. Terminal states are worth 0. A vector reward gets the
        entropy in each component: the preference-weighted sum (weights sum to 1) is then the scalar soft value. A
        squashed Gaussian falls short by T KL(policy || optimum) a step: T times 0.01 nats for a uniform optimum.

        Raises RlxError if gamma is outside [0, 1) or the temperature is negative.
        """
        if not 0.0 <= gamma < 1.0:
            raise RlxError(f"gamma={gamma!r} must be in [0, 1)")
        if not temperature >= 0.0:
            raise RlxError(f"temperature={temperature!r} must be >= 0")

        # V(node, credit) = value[node] + owed[node] * credit; where one acts, the old credit is replaced.
        n = len(self.nodes)
        onward = gamma * (self._successor[:, None] == np.arange(n))  # no successor: a row of zeros
        owed = np.linalg.solve(np.eye(n) - ~self._acts[:, None] * onward, ~self._acts * self._pays)
        stake = self._acts * (self._pays + onward @ owed)  # Q(node, action) = stake * credit(action) + constant
        gain = self._optimum(stake, temperature).reshape((n,) + (1,) * (self._reward.ndim - 1))
        value = np.linalg.solve(np.eye(n) - onward, self._reward + gain)

        rows = [(i, c) for i in range(n) for c in (self.credits if owed[i] > 0 else (0.0,))]
        node, credit = np.array([i for i, _ in rows]), np.array([c for _, c in rows])
        obs = self._obs[node]
        if self.credits:
            obs = np.append(obs, credit[:, None].astype(np.float32), axis=1)
            value = value[node] + owed[node] * credit
        best = np.where(self._acts[:, None], self._target, np.nan) if self.continuous else self._best
        return Solution(obs, value, best[node].astype(best.dtype) if self._acts.any() else None)

    def _optimum(self, stake: np.ndarray, temperature: float) -> np.ndarray:
        """max over actions of stake * credit(action), [K]; soft for a positive temperature. `stake` [K] is >= 0."""
        if temperature == 0.0:
            return stake
        if not self.continuous:  # n - 1 wrong actions earn 0
            return temperature * np.logaddexp(stake / temperature, np.log(self.actions - 1))
        half = (self._high - self._low) / 2.0
        target = (self._target - self._low) / half - 1.0
        # int_{-1}^{1} exp(-k (u - target)^2) du per dimension; the floor stands for the limit k -> 0, which is 2
        root = np.sqrt(np.maximum(stake[:, None] * half**2 / temperature, 1e-12))
        mass = np.sqrt(np.pi) / (2.0 * root) * (erf(root * (1.0 - target)) + erf(root * (1.0 + target)))
        return stake + temperature * np.log(mass).sum(-1)


# --- the probes ------------------------------------------------------------------------------------------------------


class ConstantReward(Probe):
    """One step, one observation, reward 1. V = 1. Finds faults in the critic's loss and its optimiser."""

    nodes = (Node(reward=1.0),)


class Discounting(Probe):
    """s0 -> s1 -> s2 -> end, reward 1 at the end. V = (gamma^2, gamma, 1). Finds wrong discounts."""

    nodes = (Node(successor=1), Node(successor=2), Node(reward=1.0))


class Truncation(Probe):
    """s0 -> s1 -> s2 -> end, reward 1 each step, time limit 2. V = (1 + gamma + gamma^2, 1 + gamma, 1).

    Episodes start at s0 and are truncated after s1, with next_obs = s2, or start at s2 and are terminated there, which
    is how V(s2) is known. With gamma = 0.9, V = (2.71, 1.9, 1), and each mistake settles elsewhere:

        both endings stop the bootstrap                 V(s1) = 1
        neither does                                    V(s2) = 1 / (1 - gamma) = 10
        truncation bootstraps from the next reset       V(s1) = 3.19 (10 with the same start again)
        truncation bootstraps from obs, not next_obs    V(s1) = 1 / (1 - gamma) = 10
    """

    nodes = (Node(reward=1.0, successor=1), Node(reward=1.0, successor=2), Node(reward=1.0))
    starts = (0, 2)
    limit = 2


class TimeLimit(Probe):
    """One observation, reward 1 forever, only ever ended by the time limit 5. V = 1 / (1 - gamma).

    Whoever takes the limit for a termination finds 1 / (1 - 0.8 gamma).
    """

    nodes = (Node(reward=1.0, successor=0),)
    limit = 5


class ActionReward(Probe):
    """One step; the reward is 1 for action 1 of 3, else 0, or 1 - (a - 0.5)^2 for a in [-1.5, 1.5]. V = 1."""

    nodes = (Node(best=1, target=(0.5,), pays=True),)


class DelayedCredit(Probe):
    """s0 -> s1 -> s2 -> end; the credit of the first action (see ActionReward) is paid at s2, and seen until then.

    V(s0) = gamma^2, V(s1, credit) = gamma credit, V(s2, credit) = credit. Later actions change nothing.
    """

    nodes = (Node(successor=1, best=1, target=(0.5,)), Node(successor=2), Node(pays=True))
    credits = (0.0, 1.0)


class ObservationAction(Probe):
    """One step from one of three contexts i; reward i + credit. V = (1, 2, 3), actions (1, 2, 0) or (-1, 0.5, 1).

    Finds batches whose observations, actions and rewards got out of step.
    """

    nodes = tuple(Node(r, END, b, (t,), True) for r, b, t in ((0.0, 1, -1.0), (1.0, 2, 0.5), (2.0, 0, 1.0)))
    starts = (0, 1, 2)


class IntegerObservation(ObservationAction):
    """ObservationAction with an integer observation: the context, int32 of shape ()."""

    observations = np.arange(3, dtype=np.int32)


class BoardObservation(ObservationAction):
    """ObservationAction with a uint8 board [10, 10, 2]: context i lights column 3 i + 1 of channel i mod 2 with 255."""

    observations = np.zeros((3, 10, 10, 2), np.uint8)
    observations[range(3), :, (1, 4, 7), (0, 1, 0)] = 255


class AsymmetricBounds(Probe):
    """ActionReward for a in [-1, 3] x [-4, -2], target (2.5, -2.5), i.e. (0.75, 0.5) in [-1, 1]^2; or the last of 5.

    V = 1. Finds a map of [-1, 1] to the bounds that forgets the offset, and action counts off by one.
    """

    nodes = (Node(best=4, target=(2.5, -2.5), pays=True),)
    actions = 5
    low = (-1.0, -4.0)
    high = (3.0, -2.0)


class VectorReward(Probe):
    """s0 -> s1 -> end, rewards (1, -1) and (0.5, 2). V(s0) = (1 + 0.5 gamma, -1 + 2 gamma), V(s1) = (0.5, 2)."""

    nodes = (Node(reward=(1.0, -1.0), successor=1), Node(reward=(0.5, 2.0)))


PROBES: dict[str, type[Probe]] = {probe.__name__: probe for probe in (
    ConstantReward, Discounting, Truncation, TimeLimit, ActionReward, DelayedCredit, ObservationAction,
    IntegerObservation, BoardObservation, AsymmetricBounds, VectorReward,
)}  # fmt: skip
NAMES: tuple[str, ...] = tuple(name + form for name in PROBES for form in ("", "-continuous"))
tasks = lambda: NAMES


def make(name: str, /, **options: object) -> Probe:
    """The probe called `Name` (discrete actions) or `Name-continuous`. Raises RlxError for any other name, and for options."""
    if name not in NAMES:
        raise unknown("environment", f"probe/{name}", [f"probe/{n}" for n in NAMES])
    if options:
        raise RlxError(f"probe/{name} takes no options, but {', '.join(options)} was given")
    return PROBES[name.removesuffix("-continuous")](continuous=name.endswith("-continuous"))
