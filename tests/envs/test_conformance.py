"""What every adapter owes the loop, over one table of environments; how they are played is in `conformance_support`."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import spaces

from rlx import envs
from rlx.envs import modifiers, wrappers
from rlx.envs.registry import SUITES
from tests.envs import suites_support as library
from tests.envs.conformance_support import REPLAYED, Case, N, T, environment, played, replays
from tests.envs.suites_support import marks

# --- the table ---------------------------------------------------------------------------------------------------------

# How many start states there are, where they are few: fixed by the game, or one of a handful.
FEW_STARTS = {
    "gymnax/Asterix-MinAtar": 1,
    "gymnax/Breakout-MinAtar": 2,  # the ball comes from the left or the right
    "gymnax/Seaquest-MinAtar": 1,
    "gymnax/SpaceInvaders-MinAtar": 1,
    "gymnax/Catch-bsuite": 5,  # columns
    "gymnax/DeepSea-bsuite": 1,
    "gymnax/MemoryChain-bsuite": 2,  # the bit to remember
    "gymnax/UmbrellaChain-bsuite": 4,  # umbrella x rain
    "gymnax/DiscountingChain-bsuite": 1,
    "gymnax/FourRooms-misc": 1,  # (the default options fix start and goal)
    "gymnax/MetaMaze-misc": 65,
    "gymnax/BernoulliBandit-misc": 2,  # which arm is better
    "gymnax/Pong-misc": 1,
    "gymnax/FrozenLake-misc": 1,
    "probe/Truncation": 2,
    "probe/ObservationAction": 3,
    "probe/IntegerObservation": 3,
    "probe/BoardObservation": 3,
}

# Whose episodes can end in one way only, or do under random actions within 40 steps. The probes that terminate do at once.
ONLY_TRUNCATED = """Pendulum-v1 Acrobot-v1 MountainCar-v0 MountainCarContinuous-v0 Freeway-MinAtar DiscountingChain-bsuite
    FourRooms-misc MetaMaze-misc PointRobot-misc BernoulliBandit-misc GaussianBandit-misc Reacher-misc Swimmer-misc Pong-misc
    TimeLimit"""
ONLY_TERMINATED = """SimpleBandit-bsuite ConstantReward ActionReward ObservationAction IntegerObservation BoardObservation
    AsymmetricBounds"""

# gymnax's own slips, none of which reaches an agent: `encode` casts, and nobody clips observations to their space.
OTHER_DTYPE = {"gymnax/Catch-bsuite": np.float32, "gymnax/FourRooms-misc": np.int32}
OUTSIDE_SPACE = {
    "gymnax/MemoryChain-bsuite": "the context bit is -1 or 1, the bounds are 0 and 2",
    "gymnax/MetaMaze-misc": "the last reward, 10, is observed with a bound of 1",
    "gymnax/GaussianBandit-misc": "the last reward is normal, its bounds are 0 and 2; normalised time is negative",
}


def gymnax(env_id: str) -> Case:
    """The interface is gymnax's: all of its environments, and the probes."""
    task = env_id.partition("/")[2].removesuffix("-continuous")
    only = [end for end, tasks in (("terminated", ONLY_TERMINATED), ("truncated", ONLY_TRUNCATED)) if task in tasks.split()]
    return Case(
        env_id,
        lambda limit: envs.make(env_id),
        lambda limit: library.gymnax(envs.make(env_id)),
        starts=FEW_STARTS.get(env_id.removesuffix("-continuous"), 1 if env_id.startswith("probe/") else None),
        endings=only or ["terminated", "truncated"],
        scale=0.99,
        dtype=OTHER_DTYPE.get(env_id),
        outside=OUTSIDE_SPACE.get(env_id, ""),
    )


def with_max_steps(env_id: str, by_hand, **known) -> Case:
    return Case(env_id, lambda limit: envs.make(env_id, max_steps=limit), by_hand, **known)


def gymnasium(task: str, **known) -> Case:
    make = lambda limit: envs.make(f"gymnasium/{task}", max_episode_steps=limit)
    return Case(f"gymnasium/{task}", make, partial(library.Gymnasium, task), host=True, **known)


def dmc(domain: str, task: str, control_step: float, **known) -> Case:
    seconds = lambda limit: (limit - 0.5) * control_step  # rounded up to whole steps
    make = lambda limit: envs.make(f"dmc/{domain}-{task}", time_limit=seconds(limit))
    by_hand = lambda limit: library.Control(domain, task, seconds(limit))
    return Case(f"dmc/{domain}-{task}", make, by_hand, host=True, endings=["truncated"], **known)


CARTPOLE, MUJOCO = "gymnax/CartPole-v1", ["imageio"]  # (of gymnasium[mujoco])
CASES = [
    *map(gymnax, envs.ids(("gymnax", "probe"))),
    with_max_steps("brax/inverted_pendulum", lambda limit: library.brax("inverted_pendulum")),
    with_max_steps("brax/hopper", lambda limit: library.brax("hopper"), slow=True),
    Case(
        "playground/CartpoleSwingup",
        lambda limit: library.swingup(),
        lambda limit: library.playground(),
        endings=["truncated"],
    ),
    with_max_steps(library.MAZE, library.maze, limits=(1, 12, 120)),  # beyond its own 100
    with_max_steps(library.OBSTACLES, library.obstacles),
    with_max_steps(library.XLAND, lambda limit: library.xland()),
    with_max_steps(library.BREAKOUT, lambda limit: library.breakout(), starts=2),  # as gymnax's
    with_max_steps(library.CRAFTAX, lambda limit: library.craftax(), limits=(1, 7, 100), slow=True),
    gymnasium("HalfCheetah-v5", needs=MUJOCO, endings=["truncated"]),
    gymnasium("Hopper-v5", needs=MUJOCO),
    gymnasium("MountainCar-v0", endings=["truncated"]),
    dmc("cartpole", "swingup", 0.01, slow=True),
    dmc("walker", "walk", 0.025),
    Case(
        "legacy",
        lambda limit: envs.legacy(library.Merged(envs.make(CARTPOLE))),
        lambda limit: library.gymnax(envs.make(CARTPOLE), at=lambda params: params.env),
        scale=0.99,
    ),
    Case(
        "modifiers",
        lambda limit: modifiers.apply(wrappers.TimeLimit(envs.make(CARTPOLE), 3 * limit), action_repeat=3, obs_noise=0.01),
        lambda limit: library.modified(envs.make(CARTPOLE), 3, 0.01),
    ),
]


def over(cases):
    return pytest.mark.parametrize("case", [pytest.param(c, id=c.name, marks=marks(c.name, c.slow, c.needs)) for c in cases])


every = over(CASES)


def test_no_suite_is_forgotten():
    assert set(SUITES) <= {case.name.partition("/")[0] for case in CASES}


# --- the checks --------------------------------------------------------------------------------------------------------


def entry(obs, name):
    return obs[name] if isinstance(obs, dict) else getattr(obs, name)


def encoded(space, obs):
    """Native observations [..., *space.shape] as agents see them, by NumPy."""
    if isinstance(space, spaces.Discrete):
        return np.eye(space.n, dtype=np.float32)[obs]
    if isinstance(space, spaces.Dict):
        parts = [encoded(space.spaces[name], entry(obs, name)) for name in sorted(space.spaces)]
        return np.concatenate([part.astype(np.float32) for part in parts], axis=-1)
    if len(space.shape) != 3:
        obs = obs.reshape(*obs.shape[: obs.ndim - len(space.shape)], -1)
    return obs if obs.dtype in (np.uint8, np.bool_) else obs.astype(np.float32)


def compared(case):
    """Each environment that was replayed: its run, its index there, the observation space, the replay."""
    for run, by_hand in zip(played(case), replays(case), strict=True):
        for j, native in zip(REPLAYED, by_hand, strict=True):
            yield run, j, run.env.observation_space(run.params), native


def equal(case, got, expected):
    """Also in dtype and shape; a host's floats exactly, but XLA may contract arithmetic in one of two programs only."""
    assert got.dtype == expected.dtype and got.shape == expected.shape
    if got.dtype == np.float32 and not case.host:
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    else:
        np.testing.assert_array_equal(got, expected)


@every
def test_steps_equal_a_replay(case):
    """What to act on, behind an ending too, and rewards; nothing is quarantined. One side is scanned and vmapped over runs and
    environments under `jit`, the other is not."""
    for run, j, space, native in compared(case):
        equal(case, run.start[j], encoded(space, native.start))
        equal(case, run.step.obs[:, j], encoded(space, native.obs))
        equal(case, run.step.reward[:, j], native.reward.astype(np.float32))
        assert run.step.weight.all()


@every
def test_next_obs_is_the_true_successor(case):
    """As in a run without resets, which each episode is by hand."""
    for run, j, space, native in compared(case):
        equal(case, run.step.next_obs[:, j], encoded(space, native.next_obs))


@every
def test_endings(case):
    """Terminated and truncated are told apart: by the library's word, and by the limit, which alone truncates. A step can be
    both; both occur alone, where they can."""
    alone = set()
    for run in played(case):
        terminated, truncated = run.step.terminated, run.step.truncated
        np.testing.assert_array_equal(truncated, lengths(run) == run.limit)
        alone |= {"terminated"} if (terminated & ~truncated).any() else set()
        alone |= {"truncated"} if (truncated & ~terminated).any() else set()
    assert alone == set(case.endings)
    for run, j, _, native in compared(case):
        np.testing.assert_array_equal(run.step.terminated[:, j], native.terminated)
        np.testing.assert_array_equal(run.step.truncated[:, j], native.truncated)


def lengths(run):
    """[T, N], of the episodes up to and including each step."""
    done, length, seen = run.step.terminated | run.step.truncated, np.zeros(N, np.int32), []
    for t in range(T):
        seen.append(length + 1)
        length = np.where(done[t], 0, seen[-1])
    return np.stack(seen)


@every
def test_returns_and_lengths(case):
    """Of the rewards that were seen, exactly; and of each episode that was played by hand."""
    for run in played(case):
        done, total = run.step.terminated | run.step.truncated, np.zeros_like(run.step.reward[0])
        np.testing.assert_array_equal(run.step.info["episode_length"], lengths(run))
        for t in range(T):
            total = total + run.step.reward[t]
            np.testing.assert_array_equal(run.step.info["episode_return"][t], total)
            total = np.where(done[t].reshape(N, *[1] * (total.ndim - 1)), 0, total)
    for run, j, _, native in compared(case):
        finished, total, length = [], np.float32(0), 0
        for reward, ended in zip(native.reward.astype(np.float32), native.terminated | native.truncated, strict=True):
            total, length = total + reward, length + 1
            if ended:
                finished.append((total, length))
                total, length = np.float32(0), 0
        done = run.step.terminated[:, j] | run.step.truncated[:, j]
        returns, times = (np.stack(x) for x in zip(*finished, strict=True))
        equal(case, run.step.info["episode_return"][done, j], returns)
        np.testing.assert_array_equal(run.step.info["episode_length"][done, j], times)


@every
def test_starts_are_fresh(case):
    """A thousand episodes of one step: what is seen at first, and what is in the state but its keys."""
    run = played(case)[0]
    assert run.limit == 1 and (run.step.terminated | run.step.truncated).all()
    rows = np.concatenate([x.reshape(T * N, -1).view(np.uint8) for x in (run.step.obs, *run.states)], axis=1)
    distinct = len({row.tobytes() for row in rows})
    assert distinct > 0.9 * T * N if case.starts is None else distinct == case.starts


@every
def test_spaces_contain_what_comes(case):
    """Observations and actions in native units, in shape and dtype too."""

    def inside(space, x):
        if isinstance(space, spaces.Dict):
            return jnp.stack([inside(child, entry(x, name)) for name, child in space.spaces.items()]).all()
        x = jnp.asarray(x, space.dtype) if case.host else x  # simulators compute in float64
        assert x.shape == space.shape and x.dtype == (case.dtype or space.dtype)
        return space.contains(x)

    env, params, _ = environment(case)
    action_space = env.action_space(params)
    seen, taken = (library.jit(jax.vmap(f)) for f in (partial(inside, env.observation_space(params)), action_space.contains))
    for _, _, _, native in compared(case):
        all_seen = lambda first, *rest: np.concatenate([first[None], *rest])
        assert seen(jax.tree.map(all_seen, native.start, native.obs, native.next_obs)).all() or case.outside
        assert taken(native.actions).all() and native.actions.dtype == action_space.dtype


@every
def test_types_are_stable(case):
    """Structure, shapes and dtypes of states and steps, for the environment's own, weakly typed, parameters; and as `spec` has
    promised them."""
    env, _, spec = environment(case)
    params, vec = env.default_params, wrappers.vectorise(env, N)
    action = jax.ShapeDtypeStruct(*((N,), np.int32) if spec.num_actions else ((N, spec.action_dim), np.float32))
    state, obs = jax.eval_shape(vec.reset, jax.random.key(0), params)
    after, step = jax.eval_shape(vec.step, jax.random.key(0), state, action, params)
    avals = lambda tree: [(x.shape, x.dtype, x.weak_type) for x in jax.tree.leaves(tree)]
    assert jax.tree.structure(state) == jax.tree.structure(after) and avals(state) == avals(after)
    assert not any(x.weak_type for x in jax.tree.leaves(state))
    assert not case.host or spec.max_episode_steps == case.limits[-1]
    observed, rewarded = (spec.obs_shape, spec.obs_dtype), (spec.reward_shape, np.float32)
    kinds = [*[observed] * 3, rewarded, *[((), dtype) for dtype in (bool, bool, np.float32)]]
    expected = [((N, *shape), np.dtype(dtype), False) for shape, dtype in kinds]
    assert avals([obs, step.obs, step.next_obs, step.reward, step.terminated, step.truncated, step.weight]) == expected
    for run in played(case):
        came = [run.start, *(x[0] for x in jax.tree.leaves(run.step.replace(info=())))]
        assert [(x.shape, x.dtype, False) for x in came] == expected


@over(c for c in CASES if c.name.startswith("brax/"))
def test_brax_terminates_by_its_own_rule(case):
    """The rules of both tasks as their documentation states them, read off the true successor."""
    for run in played(case):
        obs = run.step.next_obs
        if case.name == "brax/hopper":
            upright = (obs[..., 0] > 0.7) & (np.abs(obs[..., 1]) < 0.2) & np.all(np.abs(obs[..., 1:]) < 100, -1)
        else:
            upright = np.abs(obs[..., 1]) <= 0.2
        np.testing.assert_array_equal(run.step.terminated, ~upright)
