"""N environments: when resets are computed, what they change, which dtypes circulate, what happens to NaN."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from gymnax.environments import spaces
from gymnax.environments.environment import Environment

from rlx.envs import vector
from rlx.envs.vector import any_run, vectorise
from rlx.errors import RlxError

KEY = jax.random.key(0)
FINE, END, NAN_OBS, NAN_REWARD, INF_REWARD, NAN_END = range(6)
N, WIDTH = 4, 7  # WIDTH: a shape that only the environment's state has


@struct.dataclass
class Params:
    max_steps_in_episode: Any = 100


@struct.dataclass
class State:
    time: int
    start: jax.Array
    total: float
    key: jax.Array


class Scripted(Environment):
    """The action is a command. Observations show (start, time), the reward is 1 + time; `resets` counts drawn starts."""

    def __init__(self, observe=lambda start, time, poison: jnp.stack([start + poison, time]), reward=lambda r: r):
        self.observe, self.reward, self.resets = observe, reward, 0

    @property
    def default_params(self):
        return Params()

    def reset_env(self, key, params):
        jax.debug.callback(self._count)
        start = jax.random.uniform(key)
        # `time` and `total` are Python numbers, weakly typed, and `total` becomes a float with the first step
        return self.observe(start, jnp.float32(0), 0.0), State(0, jnp.full(WIDTH, start), 0, key)

    def _count(self):
        self.resets += 1

    def step_env(self, key, state, action, params):
        poison = lambda *commands: jnp.where(jnp.isin(action, jnp.array(commands)), jnp.nan, 0.0)
        reward = state.time + 1.0 + poison(NAN_REWARD) + jnp.where(action == INF_REWARD, jnp.inf, 0.0)
        time = state.time + 1
        state = State(time, state.start, state.total + 0.5, state.key)
        obs = self.observe(state.start[0], jnp.float32(time), poison(NAN_OBS, NAN_END))
        return obs, state, self.reward(reward), (action == END) | (action == NAN_END), {"time": time}

    def action_space(self, params):
        return spaces.Discrete(6)


def commands(*rows):
    return jnp.array(rows, jnp.int32)


@functools.cache
def program(env, num_envs=N, auto_reset=True):
    """Jitted (key, actions [T, N], params) -> start obs, states [T, ...], Steps [T, ...]."""
    vec = vectorise(env, num_envs, auto_reset)

    @jax.jit
    def run(key, actions, params):
        state, obs = vec.reset(jax.random.fold_in(key, 0), params)

        def body(state, x):
            t, action = x
            state, step = vec.step(jax.random.fold_in(key, t), state, action, params)
            return state, (state, step)

        times = jnp.arange(1, len(actions) + 1, dtype=jnp.uint32)
        return obs, *jax.lax.scan(body, state, (times, actions))[1]

    return run


PLAIN = Scripted()


def run(actions, env=PLAIN, limit=100, key=KEY, **kwargs):
    actions = jnp.asarray(actions, jnp.int32)
    return jax.device_get(program(env, actions.shape[1], **kwargs)(key, actions, vector.strong(Params(limit))))


def strip_keys(state):
    return state.replace(key=None)


# --- resets are a conditional, in a population too ---------------------------------------------------------------------


def test_any_run_is_unbatched():
    x = jnp.zeros((3, 4), bool).at[1, 2].set(True)
    one_axis = jax.vmap(any_run, out_axes=None)
    assert any_run(x[1, 2]) and not any_run(x[0, 0])
    assert one_axis(x[1]).shape == () and one_axis(x[1]) and not one_axis(x[0])
    two_axes = jax.jit(jax.vmap(one_axis, in_axes=1, out_axes=None))
    assert two_axes(x).shape == () and two_axes(x) and not two_axes(x & False)
    np.testing.assert_array_equal(jax.vmap(any_run)(x[1]), [True] * 4)  # everyone sees the same
    only_inner = jax.vmap(lambda a, b: any_run(a) & b, (None, 0))  # a predicate that this axis does not batch
    np.testing.assert_array_equal(only_inner(jnp.array(True), x[1]), x[1])


def equations(jaxpr, inside=False):
    """All (equation, whether it is inside a cond) of a jaxpr and what it calls."""
    for eqn in jaxpr.eqns:
        yield eqn, inside
        for param in jax.tree.leaves(eqn.params, is_leaf=lambda p: hasattr(p, "eqns") or hasattr(p, "jaxpr")):
            inner = getattr(param, "jaxpr", param)
            if hasattr(inner, "eqns"):
                yield from equations(inner, inside or eqn.primitive.name == "cond")


def conditionals(vec, axes, scanned=False):
    """(conditionals, selects of whole states inside them, and outside) under `axes` vmaps over runs."""
    state, _ = jax.eval_shape(vec.reset, KEY, Params())

    def step(state):
        advance = lambda s: vec.step(KEY, s, jnp.zeros(vec.num_envs, jnp.int32), Params())
        return jax.lax.scan(lambda s, _: advance(s), state, length=2) if scanned else advance(state)

    for _ in range(axes):
        state = jax.tree.map(lambda x: jax.ShapeDtypeStruct((3, *x.shape), x.dtype), state)
        step = jax.vmap(step)
    found = list(equations(jax.make_jaxpr(step)(state).jaxpr))
    selects = [inside for e, inside in found if e.primitive.name == "select_n" and e.outvars[0].aval.shape[-1:] == (WIDTH,)]
    return sum(e.primitive.name == "cond" for e, _ in found), sum(selects), len(selects) - sum(selects)


@pytest.mark.parametrize("scanned", [False, True])
@pytest.mark.parametrize("axes", [0, 1, 2])
def test_reset_stays_a_conditional(axes, scanned):
    assert conditionals(vectorise(PLAIN, N), axes, scanned) == (1, 1, 0)
    assert conditionals(vectorise(PLAIN, N, auto_reset=False), axes, scanned) == (0, 0, 0)


def test_the_conditional_test_can_fail(monkeypatch):
    monkeypatch.setattr(vector, "any_run", lambda x: x)
    cond, _, outside = conditionals(vectorise(PLAIN, N), 1)
    assert cond == 0 and outside > 0


def test_resets_are_computed_only_where_something_ended():
    """Counted by a callback in `reset_env`, which runs once for all the environments that are reset together."""
    env = Scripted()
    actions = jnp.zeros((6, N), jnp.int32).at[2, 1].set(END).at[4].set(END)
    run(actions, env)
    jax.effects_barrier()
    assert env.resets == 1 + 2

    other = jnp.zeros_like(actions).at[0, 0].set(NAN_OBS).at[2, 0].set(END)  # steps 0 and 2 in one run, 2 and 4 in the other
    args = jax.random.split(KEY, 2), jnp.stack([actions, other]), vector.strong(Params())
    jax.block_until_ready(jax.vmap(program(env), (0, 0, None))(*args))
    jax.effects_barrier()
    assert env.resets - 3 == 1 + 3


def test_population_equals_single_runs():
    actions = jax.random.randint(jax.random.key(1), (3, 30, N), 0, 6)
    keys, params = jax.random.split(KEY, 3), Params(jnp.array([2, 5, 9], jnp.int32))
    together = jax.device_get(jax.vmap(program(PLAIN))(keys, actions, params))
    for r in range(3):
        alone = run(actions[r], limit=int(params.max_steps_in_episode[r]), key=keys[r])
        pick = [jax.tree.map(lambda x, r=r: x[r], x) for x in (together[0], strip_keys(together[1]), together[2])]
        jax.tree.map(np.testing.assert_array_equal, pick, [alone[0], strip_keys(alone[1]), alone[2]])


# --- what a reset changes ----------------------------------------------------------------------------------------------


def test_endings_by_hand():
    """Environment 1 is ended in its second step, the others by the limit of 3."""
    obs, state, step = run(commands([FINE] * N, [FINE, END, FINE, FINE], *[[FINE] * N] * 2), limit=3)
    start = obs[:, 0]
    np.testing.assert_array_equal(obs[:, 1], np.zeros(N))
    np.testing.assert_array_equal(step.reward, [[1] * 4, [2] * 4, [3, 1, 3, 3], [1, 2, 1, 1]])
    np.testing.assert_array_equal(np.argwhere(step.terminated), [[1, 1]])
    np.testing.assert_array_equal(np.argwhere(step.truncated), [[2, 0], [2, 2], [2, 3]])
    assert step.weight.min() == 1

    # the true successor, in the first three steps all of the first episode but for environment 1
    time = np.array([[1] * 4, [2] * 4, [3, 1, 3, 3], [1, 2, 1, 1]])
    np.testing.assert_array_equal(step.next_obs[..., 1], time)
    np.testing.assert_array_equal(step.next_obs[:2, :, 0], [start, start])
    np.testing.assert_array_equal(step.next_obs[2, [0, 2, 3], 0], start[[0, 2, 3]])

    # what to act on next: time 0 of a start never seen, where an episode ended, else the successor; states agree
    done = step.terminated | step.truncated
    np.testing.assert_array_equal(step.obs[~done], step.next_obs[~done])
    np.testing.assert_array_equal(step.obs[done][:, 1], np.zeros(4))
    assert len(np.unique(np.append(step.obs[done][:, 0], start))) == 8
    np.testing.assert_array_equal(step.obs[..., 0], state.start[..., 0])
    np.testing.assert_array_equal(step.obs[..., 1], state.time)
    np.testing.assert_array_equal(state.total, state.time * 0.5)  # every leaf is reset
    np.testing.assert_array_equal(step.next_obs[3, :, 0], step.obs[2, :, 0])
    np.testing.assert_array_equal(step.info["time"], time)


def test_an_ending_on_the_limit_is_both():
    step = run(commands([FINE] * N, [END, FINE, FINE, FINE]), limit=2)[2]
    np.testing.assert_array_equal(step.terminated[1], [1, 0, 0, 0])
    np.testing.assert_array_equal(step.truncated[1], [1, 1, 1, 1])


def test_each_episode_starts_afresh():
    """1000 episodes in a row, 1004 distinct starts; other keys, other starts."""
    obs, state, _ = run(np.zeros((250, N)), limit=1)
    starts = np.concatenate([obs[None, :, 0], state.start[..., 0]])
    assert len(np.unique(starts)) == 1004
    other = run(np.zeros((250, N)), limit=1, key=jax.random.key(1))[1].start[..., 0]
    assert len(np.intersect1d(starts, other)) == 0


def test_an_environment_does_not_depend_on_how_many_there_are():
    actions = np.random.default_rng(0).integers(0, 3, (20, N))
    many, few = run(actions, limit=5), run(actions[:, :2], limit=5)
    np.testing.assert_array_equal(many[0][:2], few[0])
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[:, :2], y), many[2], few[2])


def test_without_auto_reset():
    """Finished environments step on, and nothing is drawn after the start."""
    env = Scripted()
    obs, state, step = run(commands([FINE] * N, [FINE, END, FINE, NAN_OBS], *[[FINE] * N] * 2), env, 3, auto_reset=False)
    jax.effects_barrier()
    assert env.resets == 1
    np.testing.assert_array_equal(step.obs, step.next_obs)
    np.testing.assert_array_equal(state.time, np.repeat([[1], [2], [3], [4]], N, 1))
    np.testing.assert_array_equal(state.start[..., 0], [obs[:, 0]] * 4)
    np.testing.assert_array_equal(np.argwhere(step.terminated), [[1, 1]])
    np.testing.assert_array_equal(step.truncated, [[0] * 4, [0, 0, 0, 1], [1] * 4, [1] * 4])
    np.testing.assert_array_equal(step.weight, [[1] * 4, [1, 1, 1, 0], [1] * 4, [1] * 4])


# --- NaN ---------------------------------------------------------------------------------------------------------------

Pair = lambda start, time, poison: {"a": jnp.stack([start, time + poison]), "b": time.astype(jnp.int32)}
Board = lambda start, time, poison: jnp.full((2, 3), time, jnp.uint8)
KINDS = {
    "float": Scripted(),
    "dict": Scripted(Pair),
    "integer": Scripted(lambda start, time, poison: time.astype(jnp.int32)),
    "board": Scripted(Board),
    "vector": Scripted(reward=lambda r: jnp.stack([r, 2.0 * jnp.where(jnp.isfinite(r), r, 1.0)])),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", [NAN_OBS, NAN_REWARD, INF_REWARD, NAN_END])
def test_nan_step(kind, fault):
    """Observation and reward 0, truncated and not terminated, weight 0, a fresh episode; the others notice nothing."""
    if fault in (NAN_OBS, NAN_END) and kind in ("integer", "board"):
        pytest.skip("an integer cannot be NaN")
    env, bad = KINDS[kind], (1, 2)
    script = np.zeros((3, N), np.int32)
    obs, state, step = run(script, env)
    script[bad] = fault
    nan_obs, nan_state, nan_step = run(script, env)
    leaves = jax.tree.leaves

    assert not np.any(nan_step.reward[bad])
    assert all(not np.any(x[bad]) for x in leaves(nan_step.next_obs))
    assert (nan_step.truncated[bad], nan_step.terminated[bad], nan_step.weight[bad]) == (True, False, 0)
    assert all(np.isfinite(x).all() for x in leaves((nan_step.obs, nan_step.next_obs, nan_step.reward, strip_keys(nan_state))))
    assert nan_state.time[bad] == 0 and nan_state.start[bad][0] != state.start[0, 2, 0]  # an episode begins ...
    assert nan_step.weight[2, 2] == 1 and nan_step.reward[2, 2].ravel()[0] == 1  # ... that is sound
    assert all(np.isfinite(x[bad]).all() for x in leaves(nan_step.obs))
    if kind in ("float", "vector"):
        np.testing.assert_array_equal(nan_step.obs[bad], [nan_state.start[bad][0], 0])

    spared = np.ones((3, N), bool)
    spared[1:, 2] = False
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[spared], y[spared]), (nan_step, strip_keys(nan_state)),
                 (step, strip_keys(state)))  # fmt: skip
    jax.tree.map(np.testing.assert_array_equal, nan_obs, obs)
    jax.tree.map(lambda x, y: np.testing.assert_equal(x.dtype, y.dtype), nan_step, step)


# --- shapes and dtypes -------------------------------------------------------------------------------------------------


def avals(tree):
    return jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), tree)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("auto_reset", [True, False])
def test_step_keeps_the_avals_of_reset(kind, auto_reset):
    """Reset's Python numbers, and its integer that becomes a float, would otherwise change between the two."""
    vec = vectorise(KINDS[kind], N, auto_reset)
    state, obs = jax.eval_shape(vec.reset, KEY, Params())
    after, step = jax.eval_shape(vec.step, KEY, state, jnp.zeros(N, jnp.int32), Params())
    assert avals(state) == avals(after)
    assert avals(obs) == avals(step.obs) == avals(step.next_obs)
    assert state.time.dtype == jnp.int32 and state.total.dtype == jnp.float32
    assert jnp.issubdtype(state.key.dtype, jax.dtypes.prng_key)
    shape = (N, 2) if kind == "vector" else (N,)
    assert avals(step.reward) == (shape, jnp.float32, False)
    assert avals(step.terminated) == avals(step.truncated) == ((N,), jnp.bool_, False)
    assert avals(step.weight) == ((N,), jnp.float32, False)


def test_integer_rewards_are_cast():
    _, _, step = run(np.zeros((2, N)), Scripted(reward=lambda r: r.astype(jnp.int32)))
    assert step.reward.dtype == np.float32
    np.testing.assert_array_equal(step.reward, [[1] * N, [2] * N])


def test_strong():
    tree = {"a": 1, "b": 2.0, "c": True, "d": np.int32(3), "e": jnp.asarray(1.5), "f": None}
    out = vector.strong(tree)
    assert not any(x.weak_type for x in jax.tree.leaves(out))
    kinds = {"a": jnp.int32, "b": jnp.float32, "c": jnp.bool_, "d": jnp.int32, "e": jnp.float32, "f": None}
    assert jax.tree.map(lambda x: x.dtype, out) == kinds
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, y), out, tree)


class Shifty(Scripted):
    """Its state is `before` after a reset and `after` after a step."""

    def __init__(self, before, after):
        super().__init__()
        self.before, self.after = before, after

    def reset_env(self, key, params):
        return jnp.zeros(2), self.before

    def step_env(self, key, state, action, params):
        return jnp.zeros(2), self.after, 0.0, False, {}

    def is_truncated(self, state, params):
        return False


@pytest.mark.parametrize(
    "after", [{"x": jnp.zeros(2)}, {"x": jnp.zeros((3, 1))}, {"x": jnp.zeros(3), "y": 0}, [jnp.zeros(3)], {"x": None}]
)
def test_a_state_that_changes_shape_is_refused(after):
    with pytest.raises(RlxError, match="Shifty: the state of step_env differs in structure or shape"):
        vectorise(Shifty({"x": jnp.zeros(3)}, after), N).reset(KEY, Params())


def test_python_values_are_welcome():
    """A state without arrays, a reward and flags that are Python constants."""
    vec = vectorise(Shifty((1, 2.0), (1.5, 3)), N)
    state, _ = vec.reset(KEY, Params())
    state, step = vec.step(KEY, state, jnp.zeros(N, jnp.int32), Params())
    assert [x.dtype for x in state] == [jnp.float32, jnp.float32] and state[0].shape == (N,)
    assert (step.reward.shape, step.terminated.dtype, step.truncated.dtype) == ((N,), jnp.bool_, jnp.bool_)
    assert not step.terminated.any() and not step.truncated.any()
