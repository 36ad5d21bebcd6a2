"""N environments: what happens to NaN, and which shapes and dtypes circulate."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlx.envs import vector
from rlx.envs.vector import vectorise
from rlx.errors import RlxError
from tests.envs.scripted_support import INF_REWARD, KEY, NAN_END, NAN_OBS, NAN_REWARD, N, Params, Scripted, run, strip_keys

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


FAULTS = [NAN_OBS, NAN_REWARD, INF_REWARD, NAN_END]
OF_REWARD = [NAN_REWARD, INF_REWARD]  # an integer observation cannot be NaN


@pytest.mark.parametrize(
    ("kind", "fault"), [(k, f) for k in KINDS for f in (OF_REWARD if k in ("integer", "board") else FAULTS)]
)
def test_nan_step(kind, fault):
    """Observation and reward 0, truncated and not terminated, weight 0, a fresh episode; the others notice nothing."""
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
