"""The suites that extras install, by rlx and by their own libraries, in one compiled program an environment.

Two runs (vmap) of N environments for T steps (scan), by `vectorise` and by a loop over the library's own functions, with the
library's own time limit, that draws a fresh start where an episode ended.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlx import envs
from rlx.envs import registry, vector
from rlx.envs.wrappers import episode_statistics

N, T, LIMIT = 8, 125, 12
SURVIVAL = 100  # Craftax's limit here: it takes a while to die
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # compiles in half the time


def cases(*env_ids, slow=()):
    """Parameters, skipped where the suite is not installed."""
    missing = lambda i: pytest.mark.skipif(not registry.installed(i.partition("/")[0]), reason="the extra is not installed")
    mark = lambda i: [missing(i), *([pytest.mark.slow] if i in slow else [])]
    return [pytest.param(i, marks=mark(i)) for i in env_ids]


MAZE, OBSTACLES, XLAND = "jumanji/Maze-v0", "navix/Navix-Dynamic-Obstacles-6x6-Random-v0", "xminigrid/XLand-MiniGrid-R1-9x9"
BREAKOUT, CRAFTAX = "pgx/minatar-breakout", "craftax/Craftax-Classic-Symbolic-v1"


# --- each library, by hand ---------------------------------------------------------------------------------------------
# reset(key) -> state, obs; step(key, state, action) -> state, obs, reward, ended, terminated, all as the library has them


def maze():
    import jumanji

    env = jumanji.make("Maze-v0", time_limit=LIMIT)

    def reset(key):
        state, timestep = env.reset(key)
        return state, timestep.observation

    def step(key, state, action):
        state, timestep = env.step(state, action)
        here, there = timestep.observation.agent_position, timestep.observation.target_position
        found = (here.row == there.row) & (here.col == there.col)
        return state, timestep.observation, timestep.reward, timestep.last(), found | ~timestep.observation.action_mask.any()

    return reset, step


def obstacles():
    import navix

    env = navix.make("Navix-Dynamic-Obstacles-6x6-Random-v0", max_steps=LIMIT)
    board = lambda timestep: timestep.observation.astype(jnp.float32)

    def reset(key):
        timestep = env.reset(key)
        return timestep, board(timestep)

    def step(key, state, action):
        timestep = env.step(state, action)
        return timestep, board(timestep), timestep.reward, timestep.is_done(), timestep.is_termination()

    return reset, step


def xland():
    import xminigrid

    from rlx.envs.adapters.xminigrid import red_ball

    env, params = xminigrid.make("XLand-MiniGrid-R1-9x9", max_steps=LIMIT, ruleset=red_ball())
    board = lambda timestep: timestep.observation.astype(jnp.float32)

    def reset(key):
        timestep = env.reset(params, key)
        return timestep, board(timestep)

    def step(key, state, action):
        timestep = env.step(params, state, action)
        tiles, (y, x) = timestep.state.grid[..., 0], timestep.state.agent.position
        ball = jnp.stack([tiles[y + 1, x], tiles[y - 1, x], tiles[y, x + 1], tiles[y, x - 1]]) == 3
        return timestep, board(timestep), timestep.reward, timestep.last(), ball.any() & (action == 0)

    return reset, step


def breakout():
    import pgx

    game = pgx.make("minatar-breakout")

    def reset(key):
        state = game.init(jax.random.fold_in(jax.random.fold_in(key, 0), 0))
        return state, state.observation

    def step(key, state, action):
        state = game.step(state, action, jax.random.fold_in(key, 0))
        ended = state.terminated | (state._step_count >= LIMIT)
        return state, state.observation, state.rewards[0], ended, state.terminated

    return reset, step


def craftax():
    from craftax.craftax_env import make_craftax_env_from_name

    env = make_craftax_env_from_name("Craftax-Classic-Symbolic-v1", auto_reset=False)
    params = env.default_params.replace(max_timesteps=SURVIVAL)

    def reset(key):
        obs, state = env.reset_env(key, params)
        return state, obs

    def step(key, state, action):
        obs, state, reward, done, _ = env.step_env(key, state, action, params)
        lava = state.map[state.player_position[0], state.player_position[1]] == 14
        return state, obs, reward, done, lava | (state.player_health <= 0)

    return reset, step


LIBRARY = {MAZE: maze, OBSTACLES: obstacles, XLAND: xland, BREAKOUT: breakout, CRAFTAX: craftax}


def limit_of(env_id):
    return SURVIVAL if env_id == CRAFTAX else LIMIT


class Native(NamedTuple):
    start: vector.PyTree  # [R, N, ...]; the others [R, T, N, ...]
    obs: vector.PyTree
    next_obs: vector.PyTree
    reward: jax.Array
    ended: jax.Array
    terminated: jax.Array


def replay(reset, step, key, actions, j):
    """Environment j alone. Keys: of the start (0, j), of step t = 1, 2, ... (t, 0, j), of a reset in it (t, 1, j)."""
    fold = lambda *data: functools.reduce(jax.random.fold_in, data, key)

    def body(state, x):
        t, action = x
        state, next_obs, reward, ended, terminated = step(fold(t, 0, j), state, action)
        state, obs = jax.tree.map(lambda a, b: jnp.where(ended, a, b), reset(fold(t, 1, j)), (state, next_obs))
        return cast(state), (obs, next_obs, reward, ended, terminated)

    start, obs = reset(fold(0, j))
    first = jax.eval_shape(lambda s: step(key, s, actions[0])[0], start)
    cast = lambda state: jax.tree.map(lambda x, like: x if is_key(like) else jnp.asarray(x, like.dtype), state, first)
    times = jnp.arange(1, T + 1, dtype=jnp.uint32)
    return Native(obs, *jax.lax.scan(body, cast(start), (times, actions))[1])


def is_key(x):
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


@functools.cache
def build(env_id):
    env = envs.make(env_id, max_steps=limit_of(env_id))
    params = vector.strong(env.default_params)
    vec = episode_statistics(vector.vectorise(env, N))
    reset, step = LIBRARY[env_id]()

    def ours(key, actions, params):
        state, start = vec.reset(jax.random.fold_in(key, 0), params)

        def body(state, x):
            state, out = vec.step(jax.random.fold_in(key, x[0]), state, x[1], params)
            return state, (out, [leaf for leaf in jax.tree.leaves(state.env) if not is_key(leaf)])

        times = jnp.arange(1, T + 1, dtype=jnp.uint32)
        return start, *jax.lax.scan(body, state, (times, actions))[1]

    def by_hand(key, actions):
        alone = jax.vmap(functools.partial(replay, reset, step), (None, 1, 0), Native(*(0, 1, 1, 1, 1, 1)))
        return alone(key, actions, jnp.arange(N, dtype=jnp.uint32))

    both = lambda key, actions, params: (ours(key, actions, params), by_hand(key, actions))
    return env, params, jit(jax.vmap(both, (0, 0, None)))


@functools.cache
def played(env_id, limit=None):
    """By its own limit, or another, which only rlx's side knows."""
    env, params, program = build(env_id)
    if limit:
        params = params.replace(max_steps_in_episode=jnp.int32(limit))
    actions = np.random.default_rng(0).integers(env.action_space(params).n, size=(2, T, N)).astype(np.int32)
    return jax.device_get(program(jax.random.split(jax.random.key(0), 2), actions, params))
