"""DQN: its target and loss by hand, one whole update against float64 NumPy with numerical gradients, and what that promises."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
from rlx import replay
from rlx.agents import dqn
from tests.agents.dqn_support import HP, OBS, SPEC, A, N, T, build, rollout_of, same, with_q
from tests.agents.numerical import flat, gradient


@pytest.fixture
def fixed(monkeypatch):
    """The batch is all windows of the first rollout, in order."""

    def windows(key, n, position, size, capacity, num_envs, horizon=1, history=0, future=0):
        starts = np.arange((T - horizon + 1) * N)
        return jnp.asarray(starts[:, None] + num_envs * np.arange(horizon)[None])

    monkeypatch.setattr(replay, "window_slots", windows)


# --- of one sample, by hand ----------------------------------------------------------------------------------------------


def test_next_value(strict):
    chooser, q = jnp.array([1.0, 4.0, 4.0]), jnp.array([7.0, 2.0, 3.0])
    assert dqn.next_value(chooser, q) == 2.0  # the first of the best
    assert dqn.next_value(q, q) == 7.0


@pytest.mark.parametrize(("target", "value", "slope"), [(1.5, 0.125, 0.5), (-3.0, 12.5, 5.0), (4.0, 2.0, -2.0)])
def test_loss(target, value, slope, strict):
    args = jnp.array([9.0, 2.0, -9.0]), jnp.int32(1), jnp.float32(target)
    loss, grad = jax.value_and_grad(dqn.loss)(*args)
    np.testing.assert_allclose(loss, value, rtol=1e-6)
    np.testing.assert_allclose(grad, [0.0, slope, 0.0], rtol=1e-6)


# --- one whole update ------------------------------------------------------------------------------------------------------


def q_values(p, obs):
    """`[B, A]`; the dueling network by its parameters' names."""
    dense = lambda name, x: x @ p[f"{name}/kernel"] + p[f"{name}/bias"]
    if "q/kernel" in p:
        return dense("q", np.tanh(dense("torso/MLP_0/Dense_0", obs)))
    value, advantage = (dense(s, np.tanh(dense(f"{s}_hidden/Dense_0", obs))) for s in ("value", "advantage"))
    return value + advantage - advantage.mean(-1, keepdims=True)


def numpy_update(learner, r, n_step, double):
    """What one update on all windows of `r` makes of online and target parameters; its loss and gradient."""
    r = jax.tree.map(np.asarray, r)
    params, target = flat(learner.params), flat(learner.target)
    obs, action, y = [], [], []
    for t in range(T - n_step + 1):
        for n in range(N):
            if r.weight[t, n] == 0:
                continue
            ret, k = 0.0, 0
            while True:
                ret += HP["gamma"] ** k * r.reward[t + k, n]
                over = r.terminated[t + k, n] or r.truncated[t + k, n]
                if over or k + 1 == n_step or r.weight[t + k + 1, n] == 0:
                    break
                k += 1
            last = np.asarray(r.next_obs[t + k, n], np.float64)
            q = q_values(target, last)
            best = q[np.argmax(q_values(params, last))] if double else q.max()
            obs.append(r.obs[t, n])
            action.append(r.action[t, n])
            y.append(ret if r.terminated[t + k, n] else ret + HP["gamma"] ** (k + 1) * best)
    obs, y = np.asarray(obs, np.float64), np.array(y)

    def objective(p):
        return (0.5 * (q_values(p, obs)[np.arange(len(y)), action] - y) ** 2).mean()

    g = gradient(objective, params)
    norm = np.sqrt(sum((x**2).sum() for x in g.values()))
    clipped = {k: x * min(1.0, HP["max_grad_norm"] / norm) for k, x in g.items()}
    new = {k: params[k] - HP["lr"] * x / (np.abs(x) + 1.5e-4) for k, x in clipped.items()}  # Adam's first step
    new_target = {k: target[k] + HP["tau"] * (new[k] - target[k]) for k in target}
    return new, new_target, objective(params), q_values(params, obs).max(-1).mean()


@pytest.mark.parametrize(
    ("n_step", "double", "dueling"), [(1, True, False), (2, True, False), (3, False, False), (1, False, False), (2, True, True)]
)
def test_update_is_numpys(n_step, double, dueling, fixed):
    """Gradients of norm 1e-3 make Adam's eps of 1.5e-4, and the kind of clipping, visible."""
    agent, hp, state = build(n_step=n_step, double=double, dueling=dueling)
    r = rollout_of()
    params, target, loss, q = numpy_update(state.learner, r, n_step, double)
    new, metrics = jax.jit(agent.learn)(hp, state, r, jax.random.key(0), jnp.uint32(0))
    for name, want in (("params", params), ("target", target)):
        got, before = flat(getattr(new.learner, name)), flat(getattr(state.learner, name))
        assert got.keys() == want.keys()
        for k in want:
            assert np.abs(want[k] - before[k]).max() > 1e-3, f"{name} {k} does not move: the test is blind to it"
            np.testing.assert_allclose(got[k], want[k], rtol=0, atol=3e-5, err_msg=f"{name} {k}")
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-4)
    np.testing.assert_allclose(metrics["q"], q, rtol=1e-4)
    assert metrics["updates"] == 1 and metrics["updates"].dtype == jnp.int32
    # what acts and what is reported is the online network
    obs = np.asarray(r.obs)[0, 0]
    want = q_values(flat(new.learner.params), obs)
    np.testing.assert_allclose(agent.value(hp, new, obs), want.max(), rtol=1e-5)
    action, memory = agent.greedy(hp, new, (), obs, jax.random.key(0))
    assert (action, action.dtype, memory) == (want.argmax(), jnp.int32, ())


def test_double_matters_to_the_rollout():
    """Elsewhere in the test above both kinds of target would be the same."""
    _, _, state = build()
    obs = np.asarray(rollout_of().next_obs, np.float64).reshape(-1, OBS)
    online, target = (q_values(flat(p), obs).argmax(-1) for p in (state.learner.params, state.learner.target))
    assert (online != target).sum() >= 2


def test_dueling_shares_all_dense_layers_but_the_last():
    _, _, state = build(dueling=True, hidden_sizes=(5, 4))
    shapes = {k.removesuffix("/kernel"): x.shape for k, x in flat(state.learner.params).items() if k.endswith("kernel")}
    streams = {f"{name}_hidden/Dense_0": (5, 4) for name in ("value", "advantage")}
    assert shapes == {"torso/MLP_0/Dense_0": (OBS, 5), **streams, "value": (4, 1), "advantage": (4, A)}


def test_the_target_starts_as_a_copy():
    agent, hp, _ = build()
    learner = agent.init(hp, jax.random.key(3)).learner
    assert same(learner.params, learner.target)
    pointers = [{x.unsafe_buffer_pointer() for x in jax.tree.leaves(p)} for p in (learner.params, learner.target)]
    assert not pointers[0] & pointers[1]  # or a donated carry would donate them twice


# --- properties ------------------------------------------------------------------------------------------------------------


@functools.cache
def learner_of(n_step):
    return jax.jit(build(n_step=n_step)[0].learn)


@pytest.mark.parametrize("n_step", [1, 2])
@pytest.mark.parametrize("junk", [np.nan, 1e30])
def test_what_weighs_nothing_changes_nothing(junk, n_step, fixed):
    """Reward, action and successor of a quarantined step, where a window starts there and where one runs into it."""
    _, hp, state = build(n_step=n_step)
    learn = learner_of(n_step)
    r = rollout_of()
    want, _ = learn(hp, state, r, jax.random.key(0), jnp.uint32(0))
    other = r.replace(
        obs=r.obs.at[1, 1].set(junk), action=r.action.at[1, 1].set(2),
        reward=r.reward.at[1, 1].set(junk), next_obs=r.next_obs.at[1, 1].set(junk),
    )  # fmt: skip
    got, _ = learn(hp, state, other, jax.random.key(0), jnp.uint32(0))
    jax.tree.map(np.testing.assert_array_equal, got.learner, want.learner)
    heavy, _ = learn(hp, state, r.replace(weight=jnp.ones((T, N))), jax.random.key(0), jnp.uint32(0))
    assert not same(heavy.learner, want.learner)


def test_greedy_takes_the_first_of_the_best():
    agent, hp, state = build()
    for q, best in (([1.0, 1.0, 1.0], 0), ([0.0, 2.0, 2.0], 1), ([-1.0, -2.0, 0.0], 2)):
        tied = state.replace(learner=state.learner.replace(params=with_q(state.learner.params, q)))
        for k in range(4):
            assert agent.greedy(hp, tied, (), jnp.ones(OBS), jax.random.key(k))[0] == best
        assert agent.value(hp, tied, jnp.ones(OBS)) == max(q)


def test_observations_are_normalised_by_what_was_seen(fixed):
    """This rollout included, in the update on it too."""
    agent, hp, state = build(normalize_obs=True)
    r = rollout_of()
    new, metrics = jax.jit(agent.learn)(hp, state, r, jax.random.key(0), jnp.uint32(0))
    seen = np.asarray(r.obs)[np.asarray(r.weight) > 0]
    np.testing.assert_allclose(new.obs_stats.mean, seen.mean(0), rtol=1e-4, atol=1e-6)
    normal = lambda x: (np.asarray(x) - seen.mean(0)) / seen.std(0)
    _, _, loss, _ = numpy_update(state.learner, r.replace(obs=normal(r.obs), next_obs=normal(r.next_obs)), 1, True)
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-4)
    want = q_values(flat(new.learner.params), normal(r.obs[0, 0]))
    np.testing.assert_allclose(agent.value(hp, new, r.obs[0, 0]), want.max(), rtol=1e-4)


def test_what_it_refuses():
    with pytest.raises(rlx.RlxError, match=r"^dqn needs discrete actions; probe/ActionReward-continuous has 1 continuous"):
        rlx.make("dqn", "probe/ActionReward-continuous")
    with pytest.raises(rlx.RlxError, match=r"^dqn learns from a scalar reward; probe/VectorReward has .*\(2,\)$"):
        rlx.make("dqn", "probe/VectorReward")
    with pytest.raises(rlx.RlxError, match=r"^updates_per_step=0.4 .* nearest valid value is 0.333333$"):
        build(updates_per_step=0.4)


def test_stacks_of_frames_are_learnt_from():
    """Boards, two frames deep, kept frame by frame: values follow, and all is finite."""
    trainer = rlx.make(
        "dqn", "probe/BoardObservation", env_options={"frame_stack": 2}, num_envs=2, rollout_length=8, learning_starts=64,
        batch_size=4, replay_capacity=256, target_period=2, hidden_sizes=(4,), n_step=2,
    )  # fmt: skip
    assert trainer.spec.frames == 2 and trainer.spec.obs_shape == (10, 10, 4) and SPEC.frames == 1
    start = trainer.init(1)
    before = jax.tree.map(np.asarray, start.runs.agent.learner.params)
    carry, metrics = trainer.run(start, 128)
    assert metrics["updates"].tolist() == [[20]]  # 4 an iteration of 16 steps, from the fourth of eight on
    after = carry.runs.agent.learner.params
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(after)) and not same(before, after)
    assert carry.runs.agent.replay.items["frame"].shape == (1, 256, 10, 10, 2)
