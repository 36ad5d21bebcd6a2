"""Environments that step on the host: one callback for each vector step of the whole population.

A simulator in Python has gymnasium's interface: `reset(seed=None) -> obs, info`, `step(action) -> obs, reward, terminated,
truncated, info`, `close()`. The simulators live in this process; the loop carries a token of each, `(tick, digest, seed)`
uint32: its vector steps since the reset, a checksum of what it was told in them, and what its randomness started from. A step
is made by the simulators that returned the token, which moves them on to the next one. No two steps can therefore change
places, repeats and segments give the same bits, and the steps of two carries cannot be mixed up.

Simulators cannot be saved. A token that none of them waits for (restored in another process, an old copy of a carry, after
`close`) gets fresh ones. At tick 0 they start as they did and nothing is lost. Later every environment begins an episode and
that step says so as a quarantined one does: truncated, weight 0, reward and `next_obs` 0, counted in `nan_steps`. Thus nothing
wrong is learnt, but host environments do not continue bit for bit from disk.

A run's seeds derive from its key, so that equal seeds see equal environments in any company. Later episodes draw on the
simulator's own generator. Simulators step in a plain loop: a second thread made it slower, since they hold the GIL.

On CPU the callback is `buffer_callback`, which shares memory: 5 us a call (two arguments, five results) where `io_callback`,
used elsewhere, takes 66 us and may deadlock on large arguments (jax #24255). Both are unordered. Neither may sit in a `cond`.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import environment, spaces
from jax.experimental import io_callback

from rlx.envs.pools import Kind, Pools
from rlx.errors import RlxError
from rlx.types import PyTree, Step, VecEnv, keys_for

buffer_callback: Any
try:
    from jax.experimental.buffer_callback import buffer_callback
except ImportError:  # before jax 0.6.1
    buffer_callback = None

P = ParamSpec("P")
T = TypeVar("T")


@struct.dataclass
class Params:
    """Host environments have no traced parameters; their time limit is an option of their constructor."""


class HostEnv(environment.Environment):
    """Simulators made by `build`, for `rlx.make` and `wrappers.vectorise`; it cannot step by itself, nor be wrapped.

    Public attributes: `name`, `max_episode_steps` (None without a limit), `observation_struct`, the shapes and dtypes of one
    native observation. The simulators close when this object goes or the process ends, and by `close`.
    """

    def __init__(self, kind: Kind, max_episode_steps: int | None):
        self.kind, self.max_episode_steps = kind, max_episode_steps
        self.observation_struct = _struct(kind.observation_space)
        self.failures: list[Exception] = []  # what a callback raised, for `surfacing`
        self.pools: list[Pools] = []
        weakref.finalize(self, _close_all, self.pools)

    @property
    def name(self) -> str:
        return self.kind.name

    @property
    def default_params(self) -> Params:
        return Params()

    def observation_space(self, params: Params) -> spaces.Space:
        return self.kind.observation_space

    def action_space(self, params: Params) -> spaces.Space:
        return self.kind.action_space

    def reset_env(self, key: jax.Array, params: Params) -> tuple:
        raise RlxError(f"{self.name} steps on the host: it has no compiled reset_env or step_env, so it cannot be wrapped")

    def step_env(self, key: jax.Array, state: PyTree, action: Any, params: Params) -> tuple:
        return self.reset_env(key, params)

    def is_truncated(self, state: PyTree, params: Params) -> jax.Array:
        return self.reset_env(state, params)[0]

    def close(self) -> None:
        """Close every simulator; carries go on with fresh ones, as after `restore`."""
        _close_all(self.pools)

    def vectorise(self, num_envs: int, auto_reset: bool = True) -> VecEnv:
        """N simulators of each run; observations and actions in native units, `info` empty.

        As `vector.vectorise`, but with `auto_reset=False` a finished environment is not stepped: its steps are zeros, with
        weight 0 and no ending.
        """
        pools = Pools(self.kind, auto_reset, self.failures)
        self.pools.append(pools)
        token = jax.ShapeDtypeStruct((num_envs, 3), jnp.uint32)
        reward = jax.ShapeDtypeStruct((num_envs,), jnp.float32)
        ends = jax.ShapeDtypeStruct((num_envs, 3), jnp.bool_)
        leaves, treedef = jax.tree.flatten(self.observation_struct)
        obs = [jax.ShapeDtypeStruct((num_envs, *s.shape), s.dtype) for s in leaves]
        reset_all = population_call(pools.reset, [token, *obs])
        step_all = population_call(pools.step, [token, reward, ends, *obs, *obs])

        def reset(key: jax.Array, params: PyTree) -> tuple[jax.Array, PyTree]:
            seeds = jax.vmap(lambda k: jax.random.bits(k, dtype=jnp.uint32))(keys_for(key, num_envs))
            state, *first = reset_all(seeds)
            return state, jax.tree.unflatten(treedef, first)

        def step(key: jax.Array, state: jax.Array, action: jax.Array, params: PyTree) -> tuple[jax.Array, Step]:
            state, reward, ends, *obs = step_all(state, action)
            next_obs, obs = (jax.tree.unflatten(treedef, x) for x in (obs[: len(leaves)], obs[len(leaves) :]))
            return state, Step(obs, next_obs, reward, ends[:, 0], ends[:, 1], ends[:, 2].astype(jnp.float32), {})

        return VecEnv(num_envs, reset, step)


# --- from the compiled program to the host ------------------------------------------------------------------------------


def population_call(host: Callable[..., None], results: Sequence[jax.ShapeDtypeStruct], lead: tuple[int, ...] = ()) -> Any:
    """`host(out, *arrays)`, which fills the arrays `out`, as a traceable function: arrays -> list shaped as `results`.

    Every vmapped axis becomes a leading axis of all arrays, so that there is one call however many runs there are.
    """
    shapes = [jax.ShapeDtypeStruct((*lead, *r.shape), r.dtype) for r in results]

    def fill(context: Any, out: Sequence[Any], *args: Any) -> None:
        host([np.asarray(x) for x in out], *map(np.asarray, args))

    def make(*args: jax.Array) -> list[np.ndarray]:
        out = [np.empty(s.shape, s.dtype) for s in shapes]
        host(out, *map(np.asarray, args))
        return out

    @jax.custom_batching.custom_vmap
    def call(*args: jax.Array) -> list[jax.Array]:
        if buffer_callback is not None and jax.default_backend() == "cpu":
            return buffer_callback(fill, shapes, has_side_effect=True)(*args)
        return io_callback(make, shapes, *args, ordered=False)

    @call.def_vmap
    def _batched(size: int, batched: list[bool], *args: jax.Array) -> tuple[list[jax.Array], list[bool]]:
        wide = [x if b else jnp.broadcast_to(x, (size, *x.shape)) for x, b in zip(args, batched, strict=True)]
        return population_call(host, results, (size, *lead))(*wide), [True] * len(results)

    return call


def surfacing(env: environment.Environment, program: Callable[P, T]) -> Callable[P, T]:
    """`program` itself, or for a host environment one that waits, and raises what the environment raised as it was raised."""
    if not isinstance(env, HostEnv):
        return program

    @functools.wraps(program)
    def driven(*args: P.args, **kwargs: P.kwargs) -> T:
        env.failures.clear()
        try:
            return jax.block_until_ready(program(*args, **kwargs))
        except jax.errors.JaxRuntimeError:
            if env.failures:
                raise env.failures.pop() from None  # JAX's error only repeats its traceback as text
            raise

    return driven


def _close_all(pools: list[Pools]) -> None:
    for pool in pools:
        pool.close()


# --- spaces -------------------------------------------------------------------------------------------------------------


class Discrete(spaces.Discrete):
    """The integers `start .. start + n - 1`; agents see 0 .. n - 1."""

    def __init__(self, n: int, start: int = 0):
        super().__init__(n)
        self.start = start

    def __repr__(self) -> str:
        return f"Discrete({self.n}, start={self.start})"

    def sample(self, key: jax.Array) -> jax.Array:
        return super().sample(key) + self.start

    def contains(self, x: jax.Array) -> jax.Array:
        return super().contains(jnp.asarray(x, self.dtype) - self.start)


def box(low: Any, high: Any, shape: tuple[int, ...], dtype: Any) -> spaces.Box:
    """A Box in JAX's dtypes: floats become float32, 64-bit integers 32-bit ones."""
    dtype = np.dtype(np.float32) if np.issubdtype(dtype, np.floating) else jax.dtypes.canonicalize_dtype(dtype)
    with np.errstate(over="ignore"):  # a bound beyond float32 is none
        return spaces.Box(np.asarray(low).astype(dtype), np.asarray(high).astype(dtype), shape, dtype)


def _struct(space: spaces.Space) -> PyTree:
    """Shapes and dtypes of one element."""
    if isinstance(space, spaces.Dict):
        return {k: _struct(s) for k, s in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_struct(s) for s in space.spaces)
    return jax.ShapeDtypeStruct(space.shape, space.dtype)
