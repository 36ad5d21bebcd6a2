"""N environments as the loop sees them. Resets live here, and so does the quarantine of simulator NaNs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from gymnax.environments.environment import Environment

from rlx.envs.host import HostEnv
from rlx.errors import RlxError
from rlx.masks import finite, mask, where
from rlx.types import PyTree, Step, VecEnv, keys_for


@jax.custom_batching.custom_vmap
def any_run(x: jax.Array) -> jax.Array:
    """`x` (a bool scalar), or-ed over every vmapped axis, so that it stays unbatched under `vmap`.

    A `lax.cond` on it remains a conditional in a population; on a batched predicate both branches would run.
    """
    return x


@any_run.def_vmap
def _any_run_batched(axis_size: int, in_batched: list[bool], x: jax.Array) -> tuple[jax.Array, bool]:
    return any_run(jnp.any(x, axis=0)), False


def strong(tree: PyTree) -> PyTree:
    """Every leaf as an array of explicit dtype: Python numbers are weakly typed and would compile a second program."""

    def leaf(x: Any) -> jax.Array:
        x = jnp.asarray(x)
        return jax.lax.convert_element_type(x, x.dtype)

    return jax.tree.map(leaf, tree)


def state_dtypes(env: Environment, params: PyTree) -> PyTree:
    """Per leaf of the environment state, the dtype that both `reset_env` and `step_env` can be cast to.

    Raises RlxError where the two disagree in structure or shape, since no loop could carry such a state.
    """

    def both(key: jax.Array, params: PyTree) -> tuple[PyTree, PyTree]:
        _, state = env.reset_env(key, params)
        action = env.action_space(params).sample(key)
        return state, env.step_env(key, state, action, params)[1]

    reset, step = jax.eval_shape(both, jax.random.key(0), params)
    shapes = [(jax.tree.structure(s), [x.shape for x in jax.tree.leaves(s)]) for s in (reset, step)]
    if shapes[0] != shapes[1]:  # (not the trees themselves: a node's own == may return an array, as navix's does)
        raise RlxError(f"{env.name}: the state of step_env differs in structure or shape from that of reset_env")
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return jax.tree.map(lambda a, b: a.dtype if is_key(a) else jnp.promote_types(a.dtype, b.dtype), reset, step)


def vectorise(env: Environment, num_envs: int, auto_reset: bool = True) -> VecEnv:
    """N copies of `env` with its own parameters, stepped together.

    reset(key, params) -> state, obs [N, ...].
    step(key, state, action [N, ...], params) -> state, Step. Every episode starts from a fresh draw; resets are computed
    only in steps in which some episode ended, in any run of the population. With `auto_reset=False` finished
    environments step on and it is the caller who masks them.

    Reward is float32 `[N]` or `[N, m]`, masks are bool. A step whose observation or reward is not finite ends its episode
    as truncated with weight 0, reward 0 and `next_obs` 0, so that one bad simulation spoils no statistics.

    Host environments do it themselves: see `HostEnv.vectorise`.
    """
    if isinstance(env, HostEnv):
        return env.vectorise(num_envs, auto_reset)
    dtypes: list[PyTree] = []  # computed at the first trace, from the shapes of the parameters in use

    def cast(state: PyTree, params: PyTree) -> PyTree:
        if not dtypes:
            dtypes.append(state_dtypes(env, params))
        return jax.tree.map(
            lambda x, d: x if jnp.issubdtype(d, jax.dtypes.prng_key) else jax.lax.convert_element_type(x, d),
            state,
            dtypes[0],
        )

    def reset(key: jax.Array, params: PyTree) -> tuple[PyTree, PyTree]:
        obs, state = jax.vmap(env.reset_env, (0, None))(keys_for(key, num_envs), params)
        return cast(state, params), obs

    def step(key: jax.Array, state: PyTree, action: jax.Array, params: PyTree) -> tuple[PyTree, Step]:
        step_keys = keys_for(jax.random.fold_in(key, 0), num_envs)
        next_obs, state, reward, terminated, info = jax.vmap(env.step_env, (0, 0, 0, None))(step_keys, state, action, params)
        state = cast(state, params)
        reward = jnp.asarray(reward, jnp.float32)
        terminated = jnp.asarray(terminated, bool)
        truncated = jnp.asarray(jax.vmap(env.is_truncated, (0, None))(state, params), bool)

        sound = finite(next_obs) & finite(reward)
        next_obs = mask(sound, next_obs)
        reward = mask(sound, reward)
        terminated, truncated = terminated & sound, truncated | ~sound
        weight = sound.astype(jnp.float32)

        obs = next_obs
        if auto_reset:
            done = terminated | truncated

            def fresh(state: PyTree, obs: PyTree) -> tuple[PyTree, PyTree]:
                new_state, new_obs = reset(jax.random.fold_in(key, 1), params)
                return where(done, new_state, state), where(done, new_obs, obs)

            state, obs = jax.lax.cond(any_run(done.any()), fresh, lambda s, o: (s, o), state, next_obs)
        return state, Step(obs, next_obs, reward, terminated, truncated, weight, info)

    return VecEnv(num_envs, reset, step)
