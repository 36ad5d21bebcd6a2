"""The loop, seen by an agent that learns nothing and shows everything it is given."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
from rlx import loop
from rlx.types import Runs, Transition
from tests.loop_support import RECORDER, Clock, N, T, collector, with_population


def rollouts(iterations: int, seeds=(0, 1), objectives: int | None = None, **params) -> tuple[Runs, Transition]:
    """Consecutive rollouts as one, `[R, iterations * T, N, ...]`."""
    t, collect = collector(objectives)
    runs, out = t.init(seeds, env_params={k: [v] for k, v in params.items()}).runs, []
    for i in range(iterations):
        runs, rollout = collect(runs, jnp.uint32(i))
        out.append(rollout)
    return runs, jax.tree.map(lambda *x: np.concatenate(x, axis=1), *out)


# --- the rollout -------------------------------------------------------------------------------------------------------


def test_layout():
    _, r = rollouts(1)
    assert r.obs.shape == r.next_obs.shape == (2, T, N, 3) and r.action.shape == (2, T, N, 1)
    for name, dtype in {"reward": "f4", "weight": "f4", "terminated": "?", "truncated": "?", "first": "?"}.items():
        assert getattr(r, name).shape == (2, T, N) and getattr(r, name).dtype == dtype, name
    assert r.info["episode_return"].dtype == np.float32 and r.info["episode_length"].dtype == np.int32
    assert rollouts(1, objectives=2)[1].reward.shape == (2, T, N, 2)


def test_observations_chain_and_first_marks_episode_starts():
    _, r = rollouts(6)
    done = r.terminated | r.truncated
    assert r.terminated.any() and r.truncated.any() and not (r.terminated & r.truncated).any()
    np.testing.assert_array_equal(r.first[:, 0], True)
    np.testing.assert_array_equal(r.first[:, 1:], done[:, :-1])  # across iterations too
    np.testing.assert_array_equal(r.first, r.obs[..., 1] == 0)
    np.testing.assert_array_equal(r.obs[:, 1:][~done[:, :-1]], r.next_obs[:, :-1][~done[:, :-1]])
    np.testing.assert_array_equal(r.next_obs[..., 0], r.obs[..., 0])  # the true successor, of the same episode
    np.testing.assert_array_equal(r.next_obs[..., 1], r.obs[..., 1] + 1)
    np.testing.assert_array_equal(r.terminated, (r.obs[..., 0] < 0.5) & (r.obs[..., 1] == 1))
    np.testing.assert_array_equal(r.truncated, r.obs[..., 1] == 3)
    starts = r.obs[..., 0][r.first]
    assert len(np.unique(starts)) == len(starts)  # a fresh start state each episode, run and environment


def test_what_the_agent_sees_and_does_is_what_is_stored():
    _, r = rollouts(2)
    np.testing.assert_array_equal(r.extras["obs"], r.obs)
    np.testing.assert_array_equal(r.next_obs[..., 2], r.action[..., 0])
    np.testing.assert_array_equal(r.reward, r.obs[..., 1] + 1)
    np.testing.assert_array_equal(r.extras["i"][0, :, 0], [0] * T + [1] * T)


def test_memory_is_redrawn_exactly_where_an_episode_begins():
    _, r = rollouts(6)
    np.testing.assert_array_equal(r.extras["step"], r.obs[..., 1])  # the agent's own count of steps, reset with the episode
    draw, begins = r.extras["draw"], r.first[:, 1:]
    np.testing.assert_array_equal(draw[:, 1:] == draw[:, :-1], ~begins)
    assert len(np.unique(draw[r.first])) == r.first.sum()


def words(key_data: np.ndarray) -> set[bytes]:
    return {k.tobytes() for k in np.asarray(key_data).reshape(-1, 2)}


def test_no_key_is_used_twice():
    _, r = rollouts(3)
    acting, stepping = words(r.extras["key"]), words(r.info["key"])
    assert len(acting) == len(stepping) == 2 * 3 * T * N and not acting & stepping
    t, carry, learning = collector()[0], collector()[0].init(2), set()
    for _ in range(3):
        carry, _ = t.run(carry, T * N)
        learning |= words(carry.runs.agent["key"])
    assert len(learning) == 6 and not learning & (acting | stepping)
    initial = words(t.init(2).runs.agent["key"]) | words(jax.random.key_data(carry.runs.key))
    assert len(initial) == 4 and not initial & (learning | acting | stepping)


def test_keys_do_not_depend_on_the_population():
    _, alone = rollouts(2, seeds=(1,))
    _, among = rollouts(2, seeds=(0, 1))
    assert words(alone.extras["key"]) == words(among.extras["key"][1:])
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[0], b[1]), alone, among)


# --- reports -------------------------------------------------------------------------------------------------------------


def episodes(r: Transition, run: int) -> tuple[list, list]:
    """Returns and lengths of the finished episodes that no NaN step spoilt, by hand."""
    returns, lengths = [], []
    for n in range(N):
        ret, length = 0.0, 0
        for t in range(r.reward.shape[1]):
            ret, length = ret + r.reward[run, t, n], length + 1
            if r.terminated[run, t, n] or r.truncated[run, t, n]:
                if r.weight[run, t, n] > 0:
                    returns.append(ret)
                    lengths.append(length)
                ret, length = 0.0, 0
    return returns, lengths


@pytest.mark.parametrize("objectives", [None, 2])
@pytest.mark.parametrize("params", [{}, {"nan_at": 3}])
def test_reported_episodes(objectives, params):
    iterations = 7
    _, r = rollouts(iterations, objectives=objectives, **params)
    t = collector(objectives)[0]
    _, m = t.run(t.init((0, 1), env_params={k: [v] for k, v in params.items()}), iterations * T * N)
    for run in range(2):
        returns, lengths = episodes(r, run)
        assert len(returns) > 3
        np.testing.assert_allclose(m["episode_return"][run, 0], np.mean(returns, axis=0), rtol=1e-6)
        np.testing.assert_allclose(m["episode_length"][run, 0], np.mean(lengths), rtol=1e-6)
        assert m["episodes"][run, 0] == len(returns) and m["episodes"].dtype == np.int32
        assert m["nan_steps"][run, 0] == (r.weight[run] == 0).sum()
    assert (m["nan_steps"] > 0).all() == bool(params)


def test_quarantined_steps():
    _, r = rollouts(5, nan_at=3)
    bad = r.weight == 0
    np.testing.assert_array_equal(bad, r.obs[..., 1] == 2)
    assert bad.any() and np.isfinite(r.next_obs).all()
    assert r.truncated[bad].all() and not r.terminated[bad].any() and not r.reward[bad].any()
    np.testing.assert_array_equal(r.first[:, 1:][bad[:, :-1]], True)


def test_losses_are_means_over_updates_and_nan_only_without_any():
    t = collector()[0]
    carry = t.init(1, hp={"lr": [1.0, 10.0]})
    carry, m = t.run(carry, 6 * T * N, points=6)
    loss = [0.0, np.nan, np.nan, 3.0, np.nan, np.nan]
    np.testing.assert_allclose(m["loss"], np.outer([1.0, 10.0], loss))
    np.testing.assert_array_equal(m["updates"], [[2, 0, 0, 2, 0, 0]] * 2)
    carry, m = t.run(carry, 7 * T * N)  # iterations 6 to 12: losses 6, 9, 12
    np.testing.assert_allclose(m["loss"], [[9.0], [90.0]])
    np.testing.assert_array_equal(m["updates"], [[6], [6]])
    _, m = t.run(carry, 1 * T * N, points=1)
    assert np.isnan(m["loss"]).all() and np.isnan(m["loss"]).shape == (2, 1)


def test_nothing_ended_is_nan_and_zero():
    t = rlx.make(RECORDER, Clock(), rollout_length=1)
    _, m = t.run(t.init(2), N)
    assert np.isnan(m["episode_return"]).all() and np.isnan(m["episode_length"]).all() and not m["episodes"].any()


def test_report_by_hand():
    """Unequal updates are weighted by their number, and a report without a run axis is the same."""
    totals = loop.Totals(
        learn={"loss": jnp.array([6.0, 0.0])}, updates=jnp.array([4, 0]), episode_return=jnp.array([[2.0, 4.0], [0.0, 0.0]]),
        episode_length=jnp.array([10, 0]), episodes=jnp.array([2, 0]), nan_steps=jnp.array([0, 1]),
    )  # fmt: skip
    nan = np.nan
    expected = {"loss": [1.5, nan], "updates": [4, 0], "episode_return": [[1.0, 2.0], [nan, nan]],
                "episode_length": [5.0, nan], "episodes": [2, 0], "nan_steps": [0, 1]}  # fmt: skip
    for out in (loop.report(totals), jax.vmap(loop.report)(totals)):
        assert out.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_array_equal(out[name], value, err_msg=name)


# --- time, and the population ------------------------------------------------------------------------------------------


def test_i_is_absolute_and_unbatched():
    t = collector()[0]
    carry, _ = t.run(t.init(2), 2 * T * N)
    carry, _ = t.run(carry, 3 * T * N)
    assert carry.i.shape == () and carry.i.dtype == jnp.uint32 and int(carry.i) == 5
    np.testing.assert_array_equal(carry.runs.agent["i"], [4, 4])
    carry, _ = t.run(carry.replace(i=jnp.uint32(2**31)), T * N)
    np.testing.assert_array_equal(carry.runs.agent["i"], np.uint32([2**31] * 2))


def test_population_hook():
    t, seen = with_population()
    pop = {"calls": jnp.int32(0), "returns": jnp.zeros((8, 2)), "key": jnp.zeros((8, 2), jnp.uint32)}
    carry, _ = t.run(t.init(2, pop=pop), 5 * N)
    carry, m = t.run(carry, 2 * N, points=2)
    assert int(carry.pop["calls"]) == 7 == int(carry.i)
    assert all(shapes == ((2,), (), {"lr": (2,), "gain": (2,)}) for shapes in seen)  # outside the vmap over runs
    assert len(words(carry.pop["key"][:7])) == 7
    np.testing.assert_array_equal(carry.runs.hp["lr"], [8.0, 8.0])  # iterations 1, 3, 5
    np.testing.assert_array_equal(carry.pop["returns"][5:7].T, m["episode_return"])
    np.testing.assert_array_equal(np.isnan(carry.pop["returns"][0]), True)  # no episode ends in its first step
    assert np.isfinite(carry.pop["returns"][3]).any()
    _, m = t.run(carry.replace(i=jnp.uint32(6)), N)  # the rewritten rate is the one that learns
    np.testing.assert_array_equal(m["loss"], [[6 * 8.0], [6 * 8.0]])


def test_runs_exchange_hyperparameters():
    t, _ = with_population()
    pop = {"calls": jnp.int32(0), "returns": jnp.zeros((8, 2)), "key": jnp.zeros((8, 2), jnp.uint32)}
    carry, _ = t.run(t.init(1, hp={"lr": [1.0, 3.0]}, pop=pop), 2 * N)
    np.testing.assert_array_equal(carry.runs.hp["lr"], [6.0, 2.0])
