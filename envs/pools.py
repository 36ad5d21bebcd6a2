"""The simulators behind host environments: who steps which, when they begin, and what a step writes. NumPy only.

Nothing here calls JAX: it runs inside callbacks, where that may deadlock.
"""

from __future__ import annotations

import contextlib
import math
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from gymnax.environments import spaces

from rlx.errors import RlxError

TICK, DIGEST, SEED = range(3)  # columns of a token
KEPT = 2  # carries of one VecEnv that can take turns; a third takes the simulators that were longest idle

Arrays = Sequence[np.ndarray]


class Simulator(Protocol):
    """What steps on the host; gymnasium's interface. `seed` makes everything that follows reproducible."""

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict]: ...
    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict]: ...
    def close(self) -> None: ...


class Kind(NamedTuple):
    """One environment: how its simulators are made, and what goes in and out of them, in native units."""

    name: str
    build: Callable[[], Simulator]
    observation_space: spaces.Space
    action_space: spaces.Space


class Pool:
    """B simulators stepped together; observations are lists of leaves `[B, ...]`, written in place."""

    def __init__(self, kind: Kind, size: int):
        self.name, self.leaves = kind.name, leaves(kind.observation_space)
        self.discrete = isinstance(kind.action_space, spaces.Discrete)
        self.envs: list[Simulator] = []
        self.finished: set[int] = set()  # those that wait for the caller to reset them
        self.at = 0  # the one that is running: it is named if it raises
        for self.at in range(size):
            self.envs.append(kind.build())

    def begin(self, seeds: Sequence[int] | np.ndarray, obs: Arrays) -> None:
        """Every environment from its seed."""
        self.finished.clear()
        for self.at, seed in enumerate(seeds):
            self._observe(obs, self.envs[self.at].reset(seed=int(seed))[0])

    def advance(self, action: np.ndarray, reward: np.ndarray, ends: np.ndarray, next_obs: Arrays) -> None:
        """A step of each; `ends` `[B, 3]` are terminated, truncated, sound.

        Those that have finished give zeros. No simulator is told NaN: its episode ends as one in which it emits NaN.
        """
        told_nan = [] if self.discrete else _spoiled([action])
        results: list[tuple[float, bool, bool, bool]] = []
        for j, (env, a) in enumerate(zip(self.envs, action.tolist() if self.discrete else action, strict=True)):
            self.at = j
            if j in self.finished or j in told_nan:
                results.append((0, False, j not in self.finished, False))
                for leaf in next_obs:
                    leaf[j] = 0
            else:
                obs, r, terminated, truncated, _ = env.step(a)
                results.append((float(r), terminated, truncated, True))
                self._observe(next_obs, obs)
        reward[:], ends[:, 0], ends[:, 1], ends[:, 2] = zip(*results, strict=True)
        if bad := _spoiled([x for x in (reward, *next_obs) if x.dtype.kind == "f"]):
            ends[bad] = False, True, False
            for x in (reward, *next_obs):
                x[bad] = 0

    def renew(self, ends: np.ndarray, obs: Arrays) -> None:
        """A new episode in each environment whose episode ended."""
        for self.at in _ended(ends):
            self._observe(obs, self.envs[self.at].reset()[0])

    def close(self) -> None:
        for env in self.envs:
            env.close()

    def _observe(self, out: Arrays, obs: Any) -> None:
        for leaf, x in zip(out, self.leaves(obs), strict=True):
            x = np.asarray(x)
            if x.shape != leaf.shape[1:]:
                raise RlxError(f"{self.name}: an observation has shape {x.shape}, its space says {leaf.shape[1:]}")
            leaf[self.at] = x


class Pools:
    """The simulators of one VecEnv, by the token that they wait for. Arrays have the axes `[*runs, N, ...]`.

    `out` is token, observations for `reset`; token, reward, ends, next observations, observations for `step`. What a
    simulator raises is appended to `failures` and raised.
    """

    def __init__(self, kind: Kind, auto_reset: bool, failures: list[Exception]):
        self.kind, self.auto_reset, self.failures = kind, auto_reset, failures
        self.waiting: list[tuple[bytes, Pool]] = []  # the longest idle ones first; equal tokens are interchangeable
        self.lock = threading.RLock()  # re-entered where the last reference to an environment goes in a callback

    def reset(self, out: Arrays, seeds: np.ndarray) -> None:
        token, *obs = _rows(out, seeds.ndim)
        token[:] = 0
        token[:, SEED] = seeds.ravel()
        with self._pool(None, seeds.shape) as (pool, _):
            pool.begin(token[:, SEED], obs)
            self.waiting.append((token.tobytes(), pool))

    def step(self, out: Arrays, token: np.ndarray, action: np.ndarray) -> None:
        shape = token.shape[:-1]
        after, reward, ends, *both = _rows(out, len(shape))
        next_obs, obs = both[: len(both) // 2], both[len(both) // 2 :]
        before, action = _rows((token, np.array(action)), len(shape))  # a copy: simulators may keep their action
        told = action.reshape(len(action), -1)
        with self._pool(token.tobytes(), shape) as (pool, known):
            if known or not before[:, TICK].any():
                if not known:
                    pool.begin(before[:, SEED], obs)
                pool.advance(action, reward, ends, next_obs)
                for x, y in zip(obs, next_obs, strict=True):
                    x[:] = y
                if self.auto_reset:
                    pool.renew(ends, obs)
            else:  # the episodes that these environments were in are lost
                pool.begin([np.random.SeedSequence(row.tolist()).generate_state(1)[0] for row in before], obs)
                told = np.full((len(before), 1), 255, np.uint8)  # unlike any action, so that digests tell
                ends[:] = False, True, False
                for x in (reward, *next_obs):
                    x[:] = 0
            if not self.auto_reset:
                pool.finished.update(_ended(ends))
            after[:] = before
            after[:, TICK] += 1
            after[:, DIGEST] = [
                zlib.crc32(row.data, digest) for row, digest in zip(told, before[:, DIGEST].tolist(), strict=True)
            ]
            self.waiting.append((after.tobytes(), pool))

    def close(self) -> None:
        with self.lock:
            while self.waiting:
                self.waiting.pop()[1].close()

    @contextlib.contextmanager
    def _pool(self, key: bytes | None, shape: tuple[int, ...]) -> Iterator[tuple[Pool, bool]]:
        """The simulators that wait for a token and True, else the longest idle ones or new ones, and False.

        They are the caller's to put back. If they raise they are closed.
        """
        with self.lock:
            found = [i for i, (waits_for, _) in enumerate(self.waiting) if waits_for == key]
            pool = self.waiting.pop(found[0])[1] if found else None
            kept = KEPT if self.auto_reset else 1
            try:
                while pool is None and len(self.waiting) >= kept:
                    idle = self.waiting.pop(0)[1]
                    if len(idle.envs) == math.prod(shape):
                        pool = idle
                    else:
                        idle.close()
                pool = pool or Pool(self.kind, math.prod(shape))
                yield pool, bool(found)
            except Exception as error:
                if pool is not None:
                    *run, index = (int(i) for i in np.unravel_index(pool.at, shape))
                    error.add_note(f"in environment {index} of run {', '.join(map(str, run)) or 0} of {self.kind.name}")
                    pool.close()
                self.failures.append(error)
                raise


def leaves(space: spaces.Space) -> Callable[[Any], list[Any]]:
    """The function from an element of a space to its arrays, in the order of `jax.tree.leaves`."""
    if isinstance(space, spaces.Dict):
        named = [(k, leaves(space.spaces[k])) for k in sorted(space.spaces)]
        return lambda value: [x for k, of in named for x in of(value[k])]
    if isinstance(space, spaces.Tuple):
        parts = [leaves(s) for s in space.spaces]
        return lambda value: [x for of, v in zip(parts, value, strict=True) for x in of(v)]
    return lambda value: [value]


def _ended(ends: np.ndarray) -> list[int]:
    return np.flatnonzero(ends[:, 0] | ends[:, 1]).tolist()


def _spoiled(arrays: Arrays) -> list[int]:
    """The rows in which some array is not finite."""
    finite = [np.isfinite(x) for x in arrays]
    if all(x.all() for x in finite):
        return []
    return np.flatnonzero(~np.all([x.reshape(len(x), -1).all(axis=1) for x in finite], axis=0)).tolist()


def _rows(arrays: Arrays, axes: int) -> list[np.ndarray]:
    """Views in which the leading axes are one."""
    size = math.prod(arrays[0].shape[:axes])
    return [x.reshape(size, *x.shape[axes:]) for x in arrays]
