"""What every environment must satisfy, host or compiled: the checks of `test_conformance`, each stated once.

A case is played once by rlx, as a training loop plays it: agents' units, runs (vmap) of N environments for T steps (scan) in
one compiled program. And once by hand: single environments of the library itself, stepped by plain Python, each episode
from its own start to its end. Nothing resets in there behind an ending, so its observations are the true successors. The
checks compare the two records, or hold one against what is known of the case.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments import spaces
from gymnax.environments.environment import Environment

from rlx.envs import vector, wrappers
from rlx.types import EnvSpec, PyTree, Step
from tests.envs.suites_support import is_key, jit

N, T = 8, 125  # with a limit of one step, a thousand episodes
REPLAYED = (0, N - 1)


class Simulator(ABC):
    """One environment of a library, by hand. `step` -> obs, reward, ended, terminated, in native units.

    `ended` may hold the library's own time limit, if that is the limit of the run.
    """

    @abstractmethod
    def reset(self, key: np.ndarray) -> PyTree: ...

    @abstractmethod
    def step(self, key: np.ndarray, action: np.ndarray) -> tuple[PyTree, Any, Any, Any]: ...


@dataclass(frozen=True, eq=False)
class Case:
    """An environment, and what is known of it.

    `make(limit)` is the environment; a compiled one is made once, with the longest limit, since the limit is a parameter.
    `by_hand(limit)` is its library: for a host environment a `Simulator`, else the two functions of `Compiled`.
    """

    name: str
    make: Callable[[int], Environment]
    by_hand: Callable[[int], Any]
    limits: tuple[int, int, int] = (1, 7, 40)  # of three runs
    starts: int | None = None  # how many there are; None: so many that no two of a thousand should agree
    endings: Sequence[str] = ("terminated", "truncated")  # which of them random actions meet without the other
    host: bool = False
    scale: float = 1.0  # of float parameters, in all runs but the first
    outside: str = ""  # why observations leave their space
    dtype: Any = None  # of native observations, where it is not that of their space
    slow: bool = False
    needs: Sequence[str] = ()  # packages besides those of its suite


class Compiled(Simulator):
    """Of reset(key, params) -> state, obs and step(key, state, action, params) -> state, obs, reward, ended, terminated."""

    def __init__(self, reset: Callable, step: Callable, params: PyTree):
        (self._reset, self._step), self.params = compiled(reset, step), jax.device_put(params)

    def reset(self, key):
        self.state, obs = self._reset(key, self.params)
        return obs

    def step(self, key, action):
        self.state, *rest = self._step(key, self.state, action, self.params)
        return tuple(rest)


# --- by rlx ------------------------------------------------------------------------------------------------------------


class Played(NamedTuple):
    """One run: the observation at first [N, ...], the steps [T, N, ...], the states behind them [T, N, ...]."""

    env: Environment
    params: PyTree
    limit: int
    key: jax.Array
    actions: np.ndarray  # [T, N, ...]
    start: np.ndarray
    step: Step
    states: list[np.ndarray]


def environment(case: Case) -> tuple[Environment, PyTree, EnvSpec]:
    return limited(case, case.limits[-1])


@functools.cache
def limited(case: Case, limit: int) -> tuple[Environment, PyTree, EnvSpec]:
    env = case.make(limit)
    if not case.host:
        inner = env
        while hasattr(inner, "env"):
            inner = inner.env
        inner.reset_env, inner.step_env = jax.jit(inner.reset_env), jax.jit(inner.step_env)  # traced once for everything
    params = vector.strong(env.default_params)
    return env, params, wrappers.spec(env, params, case.name)


@functools.cache
def played(case: Case) -> list[Played]:
    """Three runs under its limits, together; of a host environment, those of one limit together."""
    runs = []
    for limit in dict.fromkeys(case.limits) if case.host else case.limits[-1:]:
        env, params, spec = limited(case, limit)
        members = [r for r in range(3) if not case.host or case.limits[r] == limit]
        each = [parameters(case, r, params) for r in members]
        inputs = keys()[np.array(members)], actions(spec)[members], jax.tree.map(lambda *x: np.stack(x), *each)
        record = jax.device_get(program(env, spec.reward_shape)(*inputs))
        for i, r in enumerate(members):
            start, step, states = jax.tree.map(lambda x, i=i: x[i], record)
            runs.append(Played(env, each[i], case.limits[r], keys()[r], actions(spec)[r], start, step, states))
    return runs


def program(env: Environment, reward_shape: tuple[int, ...]) -> Callable:
    vec = wrappers.episode_statistics(wrappers.vectorise(env, N), reward_shape)

    def run(key, actions, params):
        state, start = vec.reset(jax.random.fold_in(key, 0), params)

        def body(state, x):
            state, step = vec.step(jax.random.fold_in(key, x[0]), state, x[1], params)
            # (no keys, raw ones and the tokens of simulators neither: they always differ)
            return state, (step, [x for x in jax.tree.leaves(state.env) if not is_key(x) and x.dtype != jnp.uint32])

        times = jnp.arange(1, T + 1, dtype=jnp.uint32)
        return start, *jax.lax.scan(body, state, (times, actions))[1]

    return jit(jax.vmap(run))


@functools.cache
def keys() -> jax.Array:
    return jax.random.split(jax.random.key(0), 3)


def actions(spec: EnvSpec) -> np.ndarray:
    """`[3, T, N, ...]`. Continuous ones are multiples of 1/64, which the map to native units does not round."""
    draw = np.random.default_rng(0)
    if spec.num_actions is None:
        return (draw.integers(-64, 65, size=(3, T, N, spec.action_dim)) / 64).astype(np.float32)
    return draw.integers(spec.num_actions, size=(3, T, N)).astype(np.int32)


def parameters(case: Case, r: int, params: PyTree) -> PyTree:
    if case.host:
        return params
    scale = np.float32(case.scale if r else 1)
    params = jax.tree.map(lambda x: np.asarray(x) * scale if x.dtype == np.float32 else np.asarray(x), params)
    return params.replace(max_steps_in_episode=np.asarray(case.limits[r], params.max_steps_in_episode.dtype))


# --- by hand -----------------------------------------------------------------------------------------------------------


class Native(NamedTuple):
    """One environment of a run, leaves [T, ...], but for the observation at first; `actions` are native."""

    start: PyTree
    actions: np.ndarray
    obs: PyTree
    next_obs: PyTree
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


@functools.cache
def compiled(reset: Callable, step: Callable) -> tuple[Callable, Callable]:
    """Both by `jit`, given the data of keys. Dtypes in the state are explicit, or there would be two programs of a step."""

    def wrapped(function):
        def of_data(key, *args):
            state, *rest = function(jax.random.wrap_key_data(key), *args)
            return jax.tree.map(lambda x: x if is_key(x) else vector.strong(x), jax.tree.map(jnp.asarray, state)), *rest

        return jit(of_data)

    return wrapped(reset), wrapped(step)


@jax.jit
def key_data(run: jax.Array) -> jax.Array:
    """`[T + 1, 2, N, ...]`: of step t = 1, 2, ... (t, 0, j), of a reset in it (t, 1, j)."""
    fold = lambda key, n: jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(n, dtype=jnp.uint32))
    of = lambda key: fold(key, N)
    return jax.random.key_data(jax.vmap(jax.vmap(of))(jax.vmap(lambda key: fold(key, 2))(fold(run, T + 1))))


@jax.jit
def start_data(run: jax.Array) -> jax.Array:
    return jax.vmap(lambda j: jax.random.key_data(jax.random.fold_in(jax.random.fold_in(run, 0), j)))(jnp.arange(N))


def native(space: spaces.Space, actions: np.ndarray) -> np.ndarray:
    if isinstance(space, spaces.Discrete):
        return actions + getattr(space, "start", 0)
    low, high = np.broadcast_to(space.low, space.shape), np.broadcast_to(space.high, space.shape)
    return (low + (actions.reshape(-1, *space.shape) + 1) / 2 * (high - low)).astype(space.dtype)


@functools.cache
def replays(case: Case) -> list[list[Native]]:
    """Per run of `played`, the environments REPLAYED."""
    if case.host:
        simulator = lambda run: case.by_hand(run.limit)
    else:
        functions = case.by_hand(case.limits[-1])
        simulator = lambda run: Compiled(*functions, run.params)
    return [[replay(simulator(run), run, j) for j in REPLAYED] for run in played(case)]


def replay(simulator: Simulator, run: Played, j: int) -> Native:
    """Environment j of a run."""
    given, key = native(run.env.action_space(run.params), run.actions[:, j]), np.asarray(key_data(run.key))
    start = simulator.reset(np.asarray(start_data(run.key))[j])
    rows, time = [], 0
    for t in range(T):
        next_obs, reward, ended, terminated = simulator.step(key[t + 1, 0, j], given[t])
        time += 1
        terminated, truncated = bool(terminated), time == run.limit
        assert bool(ended) in (terminated, terminated | truncated)
        obs = next_obs
        if terminated or truncated:
            obs, time = simulator.reset(key[t + 1, 1, j]), 0
        rows.append((obs, next_obs, reward, terminated, truncated))
    return Native(jax.device_get(start), given, *jax.tree.map(lambda *x: np.stack(x), *jax.device_get(rows)))
