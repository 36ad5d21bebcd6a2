"""Probes: what comes out of the environments fits their spaces, and `solution` is what brute force finds."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments.environment import EnvParams

from rlx.envs import probes
from rlx.errors import RlxError

GAMMA = 0.9
KEY = jax.random.key(0)
NO_LIMIT = EnvParams(max_steps_in_episode=np.int32(10_000))
every = pytest.mark.parametrize("name", probes.NAMES)


@functools.cache
def build(name):
    """The probe, and its jitted step over all pairs of states [S] and actions [A]."""
    env = probes.make(name)
    return env, jax.jit(jax.vmap(jax.vmap(env.step_env, (None, None, 0, None)), (None, 0, None, None)))


def grid(env, points):
    """Actions [A, ...]: all discrete ones, or the midpoints of `points` cells per dimension."""
    if not env.continuous:
        return np.arange(env.actions, dtype=np.int32)
    space = env.action_space(env.default_params)
    unit = (np.arange(points) + 0.5) / points
    cells = np.stack(np.meshgrid(*[unit] * len(space.low), indexing="ij"), -1).reshape(-1, len(space.low))
    return (space.low + cells * (space.high - space.low)).astype(np.float32)


def row_of(solution, obs):
    """The row of the solution that shows `obs`, None where it has none."""
    (rows,) = np.nonzero(np.isclose(solution.obs, obs, atol=1e-6).all(tuple(range(1, solution.obs.ndim))))
    assert len(rows) <= 1, "two rows show the same observation"
    return rows[0] if len(rows) else None


@functools.cache
def starts(env):
    """The start states, each once: [(obs, state)]."""
    obs, state = jax.vmap(env.reset_env, (0, None))(jax.random.split(KEY, 64), NO_LIMIT)
    _, index = np.unique(np.asarray(state.node), return_index=True)
    return [jax.tree.map(lambda x, i=i: x[i], (obs, state)) for i in index]


# --- the interface ---------------------------------------------------------------------------------------------------


@every
def test_step_keeps_the_avals_of_reset(name, strict):
    env, params = build(name)[0], probes.make(name).default_params
    obs, state = jax.eval_shape(env.reset_env, KEY, params)
    action = env.action_space(params).sample(KEY)
    out = jax.eval_shape(env.step_env, KEY, state, action, params)
    avals = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), tree)
    assert avals(out[:2]) == avals((obs, state)) == avals(jax.eval_shape(env.step, KEY, state, action, params)[:2])
    space = env.observation_space(params)
    assert (obs.shape, obs.dtype) == (space.shape, space.dtype)
    shape = (2,) if name.startswith("VectorReward") else ()
    assert (out[2].shape, out[2].dtype) == (shape, jnp.float32)
    assert (out[3].shape, out[3].dtype) == ((), jnp.bool_)
    assert state.time.dtype == state.node.dtype == np.asarray(params.max_steps_in_episode).dtype == np.int32
    assert action.dtype == (jnp.float32 if env.continuous else jnp.int32)


@every
def test_spaces_contain_what_comes(name):
    """With actions from all over the space. A termination repeats the observation; which ends an episode can have."""
    env, _ = build(name)
    step, params, actions = jax.vmap(env.step_env, (None, 0, 0, None)), env.default_params, grid(env, 6)
    space = env.observation_space(params)
    obs, state = jax.vmap(env.reset_env, (0, None))(jax.random.split(KEY, 32), params)
    assert np.all(jax.vmap(space.contains)(obs))
    ends = []
    for t in range(6):
        action = actions[np.random.default_rng(t).integers(len(actions), size=32)]
        last, (obs, state, reward, terminated, _) = obs, step(KEY, state, action, params)
        assert np.all(jax.vmap(space.contains)(obs)) and np.isfinite(reward).all()
        np.testing.assert_array_equal(obs[terminated], last[terminated])
        ends.append((terminated, env.is_truncated(state, params)))
    terminated, truncated = np.any(ends, (0, 2))
    assert terminated == (not name.startswith("TimeLimit"))
    assert truncated == name.startswith(("TimeLimit", "Truncation"))


def test_parameters_are_traced():
    """The same program, other time limits; under gymnax's auto-resetting step."""
    env, _ = build("TimeLimit")
    step = jax.jit(jax.vmap(env.step, (None, 0, None, 0)))
    params = env.default_params.replace(max_steps_in_episode=jnp.array([2, 3, 1000], jnp.int32))
    _, state = jax.vmap(env.reset_env, (None, 0))(KEY, params)
    ends = []
    for _ in range(6):
        _, state, _, _, truncated, _ = step(KEY, state, jnp.int32(0), params)
        ends.append(truncated)
    np.testing.assert_array_equal(np.sum(ends, 0), [3, 2, 0])


@pytest.mark.parametrize("name", ["Truncation", "ObservationAction"])
def test_starts_are_uniform(name):
    env, _ = build(name)
    _, state = jax.vmap(env.reset_env, (0, None))(jax.random.split(KEY, 3000), env.default_params)
    share = np.bincount(state.node)[list(env.starts)] / 3000
    np.testing.assert_allclose(share, 1 / len(env.starts), atol=0.04)


def test_bounds_and_counts():
    box = probes.AsymmetricBounds(continuous=True).action_space()
    np.testing.assert_array_equal([box.low, box.high], [[-1, -4], [3, -2]])
    assert probes.AsymmetricBounds().action_space().n == 5


def test_make():
    for name in probes.NAMES:
        env = probes.make(name)
        assert env.name == name and env.continuous == name.endswith("-continuous")
    for wrong in ("ConstantRewrd", "ConstantReward-discrete", "ConstantReward-", ""):
        with pytest.raises(RlxError, match="unknown environment"):
            probes.make(wrong)
    with pytest.raises(RlxError, match="did you mean 'probe/DelayedCredit-continuous'"):
        probes.make("DelayedCredit-continous")


# --- the solution ----------------------------------------------------------------------------------------------------

G = GAMMA  # short, for formulas
CLOSED = {  # worked out by hand, rows in the order of the nodes
    "ConstantReward": [1],
    "Discounting": [G**2, G, 1],
    "Truncation": [1 + G + G**2, 1 + G, 1],
    "TimeLimit": [1 / (1 - G)],
    "ActionReward": [1],
    "DelayedCredit": [G**2, 0, G, 0, 1],
    "ObservationAction": [1, 2, 3],
    "IntegerObservation": [1, 2, 3],
    "BoardObservation": [1, 2, 3],
    "AsymmetricBounds": [1],
    "VectorReward": [[1 + 0.5 * G, -1 + 2 * G], [0.5, 2]],
}


@every
def test_values_by_hand(name):
    env, _ = build(name)
    solution = env.solution(GAMMA)
    np.testing.assert_allclose(solution.value, CLOSED[name.partition("-")[0]], rtol=1e-12, atol=1e-12)
    space = env.observation_space()
    assert solution.obs.dtype == space.dtype and solution.obs.shape[1:] == space.shape
    assert len(solution.obs) == len(solution.value) == len(np.unique(solution.obs, axis=0))


def test_actions_by_hand():
    for name in ("ConstantReward", "Discounting", "Truncation-continuous", "TimeLimit", "VectorReward-continuous"):
        assert probes.make(name).solution(GAMMA).action is None
    for name, action in {
        "DelayedCredit": [1, -1, -1, -1, -1],
        "DelayedCredit-continuous": [[0.5], [np.nan], [np.nan], [np.nan], [np.nan]],
        "BoardObservation": [1, 2, 0],
        "IntegerObservation-continuous": [[-1.0], [0.5], [1.0]],
        "AsymmetricBounds": [4],
        "AsymmetricBounds-continuous": [[2.5, -2.5]],
    }.items():
        got = probes.make(name).solution(GAMMA).action
        np.testing.assert_array_equal(got, action)
        assert got.dtype == (np.float32 if "-" in name else np.int32)


def explore(env, pairs, actions):
    """The finite problem found by stepping: {(node, credit): state}, reward [S, A(, m)], ends and successor [S, A]."""
    identity = lambda node, credit: (int(node), round(float(credit), 6))
    seeds = [state for _, state in starts(env)]
    seeds += [probes.State(jnp.int32(0), jnp.int32(n), jnp.float32(c)) for n in range(len(env.nodes)) for c in (0, 1)]
    table, steps = {identity(s.node, s.credit): s for s in seeds}, []
    frontier = list(table.values())
    while frontier:
        batch = jax.tree.map(lambda *x: jnp.stack(x), *frontier)
        _, after, reward, ends, _ = jax.device_get(pairs(KEY, batch, actions, NO_LIMIT))
        ids = [[identity(*x) for x in zip(*row, strict=True)] for row in zip(after.node, after.credit, strict=True)]
        steps += zip(reward.astype(np.float64), ends, ids, strict=True)
        frontier = []
        for i, j in np.argwhere(~ends):
            if ids[i][j] not in table:
                table[ids[i][j]] = jax.tree.map(lambda x, at=(i, j): x[at], after)
                frontier.append(table[ids[i][j]])
    index = {key: i for i, key in enumerate(table)}
    reward, ends, ids = zip(*steps, strict=True)
    return table, np.stack(reward), np.stack(ends), np.array([[index.get(key, 0) for key in row] for row in ids])


@every
@pytest.mark.parametrize("temperature", [0.0, 0.05, 1.0])
def test_solution_by_value_iteration(name, temperature):
    """V <- max_a Q, or T log mean_a exp(Q / T) + T log volume, over a grid of actions and the states found."""
    env, pairs = build(name)
    solution, actions = env.solution(GAMMA, temperature), grid(env, 100)
    if temperature == 0.0 and solution.action is not None and env.continuous:  # the grid misses the optimum itself
        actions = np.concatenate([actions, solution.action[~np.isnan(solution.action[:, 0])]])
    table, reward, ends, successor = explore(env, pairs, actions)
    volume = 2.0 ** len(env.low) if env.continuous else len(actions)
    expand = lambda x: x.reshape(x.shape + (1,) * (reward.ndim - x.ndim))
    value = np.zeros(reward.shape[:1] + reward.shape[2:])
    for _ in range(200 if name.startswith("TimeLimit") else 4):
        q = reward + GAMMA * expand(~ends) * value[successor]
        value = q.max(1)
        if temperature > 0.0:
            soft = np.exp((q - value[:, None]) / temperature).mean(1)
            value = value + temperature * (np.log(soft) + np.log(volume))

    rows = [row_of(solution, env.get_obs(state)) for state in table.values()]
    assert set(rows) - {None} == set(range(len(solution.obs)))
    for i, row in [(i, row) for i, row in enumerate(rows) if row is not None]:
        tolerance = 2e-3 if temperature else 1e-6  # of the grid, of float32
        np.testing.assert_allclose(value[i], solution.value[row], rtol=tolerance, atol=tolerance)
        if temperature == 0.0 and solution.action is not None:
            indifferent = np.nan if env.continuous else -1
            best = actions[q[i].argmax()] if np.ptp(q[i]) > 1e-6 else indifferent
            np.testing.assert_array_equal(solution.action[row], best)


@every
def test_soft_value_tends_to_the_hard_one(name):
    env, _ = build(name)
    np.testing.assert_allclose(env.solution(GAMMA, 1e-6).value, env.solution(GAMMA).value, atol=5e-4)
    assert np.all(env.solution(0.0, 0.1).value > -2)  # no discounting, no stake: finite, and quadratures stay defined


def test_soft_values_of_indifferent_actions():
    """Uniform policies: the entropy is log n, or d log 2 whatever the native bounds."""
    for name, entropy in (("Discounting", np.log(3)), ("Discounting-continuous", np.log(2))):
        got = probes.make(name).solution(GAMMA, 0.2).value
        e = 0.2 * entropy
        np.testing.assert_allclose(got, [G**2 + e * (1 + G + G**2), G + e * (1 + G), 1 + e], rtol=1e-9)
    got = probes.make("TimeLimit-continuous").solution(GAMMA, 0.2).value
    np.testing.assert_allclose(got, [(1 + 0.2 * np.log(2)) / (1 - G)], rtol=1e-9)


@pytest.mark.parametrize(("gamma", "temperature"), [(1.0, 0.0), (-0.1, 0.0), (float("nan"), 0.0), (0.9, -0.1)])
def test_solution_refuses(gamma, temperature):
    with pytest.raises(RlxError, match="must be"):
        probes.TimeLimit().solution(gamma, temperature)


# --- truncation against termination ----------------------------------------------------------------------------------


def fixed_point(env, target):
    """Tabular TD: V(row) = mean of target(step, V) over the transitions from that row, as the time limit cuts them."""
    solution = env.solution(GAMMA)
    find = lambda obs: row_of(solution, obs)
    steps, resets = [], [find(obs) for obs, _ in starts(env)]
    for obs, state in starts(env):
        done = False
        while not done:
            row = find(obs)
            obs, state, reward, terminated, _ = env.step_env(KEY, state, jnp.int32(0), env.default_params)
            truncated = bool(env.is_truncated(state, env.default_params))
            done = bool(terminated) or truncated
            steps.append((row, float(reward), find(obs), bool(terminated), truncated))
    value = np.zeros(len(solution.obs))
    for _ in range(300):
        targets = [(s[0], target(*s, value, np.mean(value[resets]))) for s in steps]
        value = np.array([np.mean([t for r, t in targets if r == row]) for row in range(len(value))])
    return value


RIGHT = lambda row, r, nxt, te, tr, v, reset: r + GAMMA * (not te) * v[nxt]
WRONG = {  # and V as the docstring has it: the row, its value
    "merged done": (lambda row, r, nxt, te, tr, v, reset: r + GAMMA * (not (te or tr)) * v[nxt], 1, 1.0),
    "no termination": (lambda row, r, nxt, te, tr, v, reset: r + GAMMA * v[nxt], 2, 10.0),
    "reset obs": (lambda row, r, nxt, te, tr, v, reset: r + GAMMA * (not te) * (reset if tr else v[nxt]), 1, 3.193277),
    "same start": (lambda row, r, nxt, te, tr, v, reset: r + GAMMA * (not te) * (v[0] if tr else v[nxt]), 1, 10.0),
    "obs": (lambda row, r, nxt, te, tr, v, reset: r + GAMMA * (not te) * (v[row] if tr else v[nxt]), 1, 10.0),
}


@pytest.mark.parametrize("name", ["Truncation", "TimeLimit"])
def test_truncation_done_right(name):
    env, _ = build(name)
    np.testing.assert_allclose(fixed_point(env, RIGHT), env.solution(GAMMA).value, rtol=1e-6)


@pytest.mark.parametrize("mistake", WRONG)
def test_truncation_tells_each_mistake(mistake):
    env, _ = build("Truncation")
    target, row, value = WRONG[mistake]
    wrong = fixed_point(env, target)
    np.testing.assert_allclose(wrong[row], value, rtol=1e-6)
    assert abs(wrong[row] / env.solution(GAMMA).value[row] - 1) > 0.1


def test_time_limit_tells_merged_ends():
    wrong = fixed_point(build("TimeLimit")[0], WRONG["merged done"][0])
    np.testing.assert_allclose(wrong, 1 / (1 - 0.8 * GAMMA), rtol=1e-6)
