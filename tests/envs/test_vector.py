"""N environments: when resets are computed, and what they change."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlx.envs import vector
from rlx.envs.vector import any_run, vectorise
from tests.envs.scripted_support import (
    END,
    FINE,
    KEY,
    NAN_OBS,
    PLAIN,
    WIDTH,
    N,
    Params,
    Scripted,
    commands,
    program,
    run,
    strip_keys,
)

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
