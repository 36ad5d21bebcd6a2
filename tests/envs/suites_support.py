"""Each suite's own library, by hand: what `test_conformance` holds rlx against.

Compiled ones are two functions, reset(key, params) -> state, obs and step(key, state, action, params) -> state, obs, reward,
ended, terminated; `params` are rlx's, of which a library gets the time limit if it can take it. `ended` is the library's own
and holds its time limit, `terminated` is the rule of the game. What steps on the host is a `Simulator`.
"""

import functools
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments.environment import Environment

from rlx import envs
from rlx.envs import modifiers, registry, vector
from rlx.envs.wrappers import Wrapper, episode_statistics

# Compiles in a third of the time.
FAST = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}
jit = functools.partial(jax.jit, compiler_options=FAST)

MAZE, OBSTACLES, XLAND = "jumanji/Maze-v0", "navix/Navix-Dynamic-Obstacles-6x6-Random-v0", "xminigrid/XLand-MiniGrid-R1-9x9"
BREAKOUT, CRAFTAX = "pgx/minatar-breakout", "craftax/Craftax-Classic-Symbolic-v1"


def marks(env_id, slow=False, needs=()):
    """Skipped where the suite is not installed, or a package that it `needs` besides."""
    suite = env_id.partition("/")[0]
    missing = (suite in registry.SUITES and not registry.installed(suite)) or not all(map(importlib.util.find_spec, needs))
    return [pytest.mark.skipif(missing, reason="the extra is not installed"), *([pytest.mark.slow] if slow else [])]


def cases(*env_ids, slow=()):
    return [pytest.param(i, marks=marks(i, i in slow)) for i in env_ids]


def is_key(x):
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


# --- compiled ----------------------------------------------------------------------------------------------------------


def gymnax(env: Environment, at=lambda params: params):
    """gymnax's own environments are the interface: unwrapped, without their time limit; `at` finds their parameters."""

    def reset(key, params):
        obs, state = env.reset_env(key, at(params))
        return state, obs

    def step(key, state, action, params):
        obs, state, reward, terminated, _ = env.step_env(key, state, action, at(params))
        return state, obs, reward, terminated, terminated

    return reset, step


def brax(task: str):
    from brax import envs as library

    from rlx.envs.adapters.brax import _quiet  # MuJoCo appends what it has to say to a file

    with _quiet():
        env = library.get_environment(task, backend="spring")

    def reset(key, params):
        state = env.reset(key)
        return state, state.obs

    def step(key, state, action, params):
        state = env.step(state, action)
        return state, state.obs, state.reward, state.done > 0.5, state.done > 0.5

    return reset, step


@functools.cache
def swingup():
    return envs.make("playground/CartpoleSwingup")


@functools.cache
def playground():
    """Its cart-pole, as Playground built it with what rlx mends for that."""
    env = swingup().env.playground

    def reset(key, params):
        state = env.reset(key)
        return state, state.obs

    def step(key, state, action, params):
        state = env.step(jax.tree.map(lambda x: x, state), action)  # it writes into the dictionaries of what it is given
        return state, state.obs, state.reward, state.done > 0.5, state.done > 0.5

    return reset, step


def maze(limit: int):
    import jumanji

    env = jumanji.make("Maze-v0", time_limit=limit)

    def reset(key, params):
        state, timestep = env.reset(key)
        return state, timestep.observation

    def step(key, state, action, params):
        state, timestep = env.step(state, action)
        here, there = timestep.observation.agent_position, timestep.observation.target_position
        found = (here.row == there.row) & (here.col == there.col)
        return state, timestep.observation, timestep.reward, timestep.last(), found | ~timestep.observation.action_mask.any()

    return reset, step


def obstacles(limit: int):
    import navix

    env = navix.make("Navix-Dynamic-Obstacles-6x6-Random-v0", max_steps=limit)
    board = lambda timestep: timestep.observation.astype(jnp.float32)

    def reset(key, params):
        timestep = env.reset(key)
        return timestep, board(timestep)

    def step(key, state, action, params):
        timestep = env.step(state, action)
        return timestep, board(timestep), timestep.reward, timestep.is_done(), timestep.is_termination()

    return reset, step


def xland():
    """Whose reward depends on the limit."""
    import xminigrid

    from rlx.envs.adapters.xminigrid import red_ball

    env, native = xminigrid.make("XLand-MiniGrid-R1-9x9", ruleset=red_ball())
    board = lambda timestep: timestep.observation.astype(jnp.float32)

    def reset(key, params):
        timestep = env.reset(native, key)
        return timestep, board(timestep)

    def step(key, state, action, params):
        timestep = env.step(native.replace(max_steps=params.max_steps_in_episode), state, action)
        tiles, (y, x) = timestep.state.grid[..., 0], timestep.state.agent.position
        ball = jnp.stack([tiles[y + 1, x], tiles[y - 1, x], tiles[y, x + 1], tiles[y, x - 1]]) == 3
        return timestep, board(timestep), timestep.reward, timestep.last(), ball.any() & (action == 0)

    return reset, step


def breakout():
    import pgx

    game = pgx.make("minatar-breakout")

    def reset(key, params):
        state = game.init(jax.random.fold_in(jax.random.fold_in(key, 0), 0))
        return state, state.observation

    def step(key, state, action, params):
        state = game.step(state, action, jax.random.fold_in(key, 0))
        return state, state.observation, state.rewards[0], state.terminated, state.terminated

    return reset, step


def craftax():
    from craftax.craftax_env import make_craftax_env_from_name

    env = make_craftax_env_from_name("Craftax-Classic-Symbolic-v1", auto_reset=False)
    at = lambda params: env.default_params.replace(max_timesteps=params.max_steps_in_episode)

    def reset(key, params):
        obs, state = env.reset_env(key, at(params))
        return state, obs

    def step(key, state, action, params):
        obs, state, reward, done, _ = env.step_env(key, state, action, at(params))
        lava = state.map[state.player_position[0], state.player_position[1]] == 14
        return state, obs, reward, done, lava | (state.player_health <= 0)

    return reset, step


@functools.cache
def played(env_id, limit):
    """rlx alone, in native units: two runs of 8 environments for 125 steps, ((start, steps, states), None)."""
    env = envs.make(env_id, max_steps=limit)
    params, vec = vector.strong(env.default_params), episode_statistics(vector.vectorise(env, 8))
    actions = np.random.default_rng(0).integers(env.action_space(params).n, size=(2, 125, 8)).astype(np.int32)

    def run(key, actions):
        state, start = vec.reset(jax.random.fold_in(key, 0), params)
        body = lambda state, x: vec.step(jax.random.fold_in(key, x[0]), state, x[1], params)
        return start, jax.lax.scan(body, state, (jnp.arange(1, 126, dtype=jnp.uint32), actions))[1], ()

    return jax.device_get(jit(jax.vmap(run))(jax.random.split(jax.random.key(0), 2), actions)), None


# --- rlx's own wrappers -------------------------------------------------------------------------------------------------


class Merged(Wrapper):
    """An environment as it was before gymnax 1.0: one `done`, here after ten steps at the latest."""

    @property
    def default_params(self):
        return self.env.default_params.replace(max_steps_in_episode=10)

    def step_env(self, key, state, action, params):
        obs, state, reward, terminated, info = self.env.step_env(key, state, action, params)
        return obs, state, reward, terminated | self.env.is_truncated(state, params), info


def modified(env: Environment, repeat: int, noise: float):
    """`action_repeat` and `obs_noise` over one of gymnax's, one native step after the other."""
    native = env.default_params

    def noisy(key, obs):
        return obs + noise * jax.random.normal(jax.random.fold_in(jax.random.fold_in(key, modifiers.NOISE), 0), obs.shape)

    def reset(key, params):
        obs, state = env.reset_env(key, native)
        return state, noisy(key, obs)

    def step(key, state, action, params):
        obs, state, total, over, _ = env.step_env(jax.random.fold_in(key, 0), state, action, native)
        for i in range(1, repeat):
            new_obs, new_state, reward, terminated, _ = env.step_env(jax.random.fold_in(key, i), state, action, native)
            obs, state = jax.tree.map(lambda a, b, over=over: jnp.where(over, a, b), (obs, state), (new_obs, new_state))
            total, over = jnp.where(over, total, total + reward), over | terminated
        return state, noisy(key, obs), total, over, over

    return reset, step


# --- on the host -------------------------------------------------------------------------------------------------------


def seed_of(key: np.ndarray) -> int:
    return int(jax.random.bits(jax.random.wrap_key_data(key), dtype=jnp.uint32))


class Gymnasium:
    """As its users step it: seeded once, then reset without a seed."""

    def __init__(self, task: str, limit: int):
        import gymnasium

        from rlx.envs.adapters.gymnasium import _quiet

        with _quiet():
            self.env, self.seeded = gymnasium.make(task, max_episode_steps=limit), False

    def reset(self, key):
        seed, self.seeded = None if self.seeded else seed_of(key), True
        return self.env.reset(seed=seed)[0]

    def step(self, key, action):
        obs, reward, terminated, truncated, _ = self.env.step(action)
        return obs, reward, terminated or truncated, terminated


class Control:
    """dm_control, built when its seed is known."""

    def __init__(self, domain: str, task: str, time_limit: float):
        self.args, self.time_limit, self.env = (domain, task), time_limit, None

    def reset(self, key):
        from dm_control import suite

        if self.env is None:
            self.env = suite.load(*self.args, {"random": seed_of(key), "time_limit": self.time_limit})
        return self.env.reset().observation

    def step(self, key, action):
        step = self.env.step(action)
        return step.observation, step.reward, step.last(), step.last() and step.discount == 0
