"""PQN: targets and loss by hand, one whole `learn` against float64 NumPy with numerical gradients, and what that promises."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
from rlx import networks
from rlx.agents import pqn
from rlx.types import Transition
from tests.agents.numerical import flat, gradient
from tests.agents.pqn_support import HP, OBS, A, N, T, build, rollout_of

# --- targets and loss, by hand ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("target", "value", "slope"), [(1.5, 0.125, 0.5), (-3.0, 12.5, 5.0)])
def test_loss(target, value, slope, strict):
    loss, grad = jax.value_and_grad(pqn.loss)(jnp.array([9.0, 2.0, -9.0]), jnp.int32(1), jnp.float32(target))
    np.testing.assert_allclose(loss, value, rtol=1e-6)
    np.testing.assert_allclose(grad, [0.0, slope, 0.0], rtol=1e-6)


def test_targets(strict):
    """gamma = lambda = 1/2; one environment, rewards 1, V(obs) = 10, V(next_obs) = 8; ends and junk in turn."""
    hp = {"gamma": jnp.float32(0.5), "td_lambda": jnp.float32(0.5)}
    ones, none = jnp.ones((3, 1)), jnp.zeros((3, 1), bool)
    at = lambda t: none.at[t, 0].set(True)

    def of(terminated=none, truncated=none, weight=ones, reward=ones, next_value=8.0 * ones):
        r = Transition(None, None, reward, None, terminated, truncated, none, weight, {}, {})
        return np.asarray(pqn.targets(hp, r, reward, 10.0 * ones, next_value))[:, 0]

    # G_2 = 1 + 8/2 = 5; G_1 = 1 + (8/2 + 5/2)/2 = 4.25; G_0 = 1 + (8/2 + 4.25/2)/2 = 4.0625
    np.testing.assert_allclose(of(), [4.0625, 4.25, 5.0])
    np.testing.assert_allclose(of(terminated=at(1)), [3.25, 1.0, 5.0])
    np.testing.assert_allclose(of(truncated=at(1)), [4.25, 5.0, 5.0])
    # a step without weight: the one before it bootstraps from V(obs) = 10 instead of G_1
    junk = {"reward": ones.at[1, 0].set(jnp.nan), "next_value": 8.0 * ones.at[1, 0].set(jnp.nan)}
    np.testing.assert_allclose(of(truncated=at(1), weight=ones.at[1, 0].set(0.0), **junk), [5.5, 10.0, 5.0])
    junk = {"reward": ones.at[2, 0].set(jnp.nan), "next_value": 8.0 * ones.at[2, 0].set(jnp.nan)}
    np.testing.assert_allclose(of(truncated=at(2), weight=ones.at[2, 0].set(0.0), **junk)[1:], [5.5, 10.0])


# --- one whole learn() -----------------------------------------------------------------------------------------------------


def layer_norm(p, name, x):
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    return x * p[f"{name}/scale"] + p[f"{name}/bias"]


def q_values(p, obs):
    """`[B, A]`."""
    hidden = obs @ p["torso/MLP_0/Dense_0/kernel"] + p["torso/MLP_0/Dense_0/bias"]
    return np.tanh(layer_norm(p, "torso/MLP_0/LayerNorm_0", hidden)) @ p["q/kernel"] + p["q/bias"]


def numpy_learn(params, r, epochs, scale=1.0):
    """PQN in float64: `params` flat by path -> (new params, losses, values by epoch)."""
    r = jax.tree.map(lambda x: np.asarray(x), r)
    keep = r.weight > 0
    value, next_value = (q_values(params, x.astype(np.float64)).max(-1) for x in (r.obs, r.next_obs))
    target = np.zeros((T, N))
    for n in range(N):
        for t in reversed(range(T)):
            if not keep[t, n]:
                target[t, n] = value[t, n]
                continue
            cut = r.truncated[t, n] or t == T - 1
            after = next_value[t, n] if cut else (
                (1 - HP["td_lambda"]) * next_value[t, n] + HP["td_lambda"] * target[t + 1, n]
            )  # fmt: skip
            target[t, n] = scale * r.reward[t, n] + (0.0 if r.terminated[t, n] else HP["gamma"] * after)
    obs, action, target = r.obs[keep].astype(np.float64), r.action[keep], target[keep]
    objective = lambda p: (0.5 * (q_values(p, obs)[np.arange(len(obs)), action] - target) ** 2).mean()

    p, m, v, losses, values = params, dict.fromkeys(params, 0.0), dict.fromkeys(params, 0.0), [], []
    for e in range(1, epochs + 1):
        losses.append(objective(p))
        values.append(q_values(p, obs).max(-1).mean())
        g = gradient(objective, p)
        norm = np.sqrt(sum((x**2).sum() for x in g.values()))
        g = {k: x * min(1.0, HP["max_grad_norm"] / norm) for k, x in g.items()}
        # RAdam (Liu et al. 2020, algorithm 2): the second moment is used from its sixth step on
        m = {k: 0.9 * m[k] + 0.1 * g[k] for k in g}
        v = {k: 0.999 * v[k] + 0.001 * g[k] ** 2 for k in g}
        most = 2 / (1 - 0.999) - 1
        rho = most - 2 * e * 0.999**e / (1 - 0.999**e)
        rectified = 1.0
        if rho >= 5:
            rectified = np.sqrt((rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho))
        for k in p:
            step = m[k] / (1 - 0.9**e)
            step = rectified * step / (np.sqrt(v[k] / (1 - 0.999**e)) + 1e-8) if rho >= 5 else step
            p = {**p, k: p[k] - HP["lr"] * step}
    return p, losses, values


def test_learn_is_numpys():
    """Seven updates: RAdam's plain steps and its rectified ones, of gradients clipped by their global norm."""
    agent, hp, state = build()
    r = rollout_of(agent, hp, state)
    before = flat(state.params)
    np.testing.assert_allclose(r.extras["value"], q_values(before, np.asarray(r.obs)).max(-1), rtol=1e-4, atol=1e-6)
    want, losses, values = numpy_learn(before, r, epochs=7)
    plain, _, _ = numpy_learn(before, r, epochs=5)  # none of them rectified
    new, metrics = agent.learn(hp, state, r, jax.random.key(0), jnp.uint32(0))
    got = flat(new.params)
    assert got.keys() == want.keys()
    for name in want:
        for other in (before, plain):
            assert np.abs(want[name] - other[name]).max() > 4e-3, f"{name} does not move: the test is blind to it"
        # optax's rho is the small difference of two numbers near 2000 in float32
        np.testing.assert_allclose(got[name], want[name], rtol=0, atol=4e-4, err_msg=name)
    np.testing.assert_allclose(metrics["loss"], np.mean(losses), rtol=1e-4)
    np.testing.assert_allclose(metrics["q"], np.mean(values), rtol=1e-4)
    assert metrics["updates"] == 7 and metrics["updates"].dtype == jnp.int32
    obs = np.asarray(r.obs)[0, 0]
    q = q_values(want, obs)
    np.testing.assert_allclose(agent.value(hp, new, obs), q.max(), rtol=1e-3)
    action, memory = agent.greedy(hp, new, (), obs, jax.random.key(0))
    assert (action, action.dtype, memory) == (q.argmax(), jnp.int32, ())


def test_normalised_rewards_are_of_one_scale():
    """By the deviation of the discounted returns so far, this rollout's included; values are in native units."""
    agent, hp, state = build(normalize_reward=True)
    r = rollout_of(agent, hp, state)
    reward, running, seen = np.asarray(r.reward, np.float64), np.zeros(N), []
    for t in range(T):
        live = np.asarray(r.weight)[t] > 0
        running = np.where(live, reward[t], 0.0) + HP["gamma"] * running
        seen += list(running[live])
        running = np.where(np.asarray(r.terminated | r.truncated)[t], 0.0, running)
    scale = 1.0 / np.sqrt(np.var(seen) + 1e-8)
    want, losses, _ = numpy_learn(flat(state.params), r, epochs=7, scale=scale)
    new, metrics = agent.learn(hp, state, r, jax.random.key(0), jnp.uint32(0))
    np.testing.assert_allclose(metrics["loss"], np.mean(losses), rtol=1e-3)
    obs = np.asarray(r.obs)[0, 0]
    np.testing.assert_allclose(agent.value(hp, new, obs), q_values(want, obs).max() / scale, rtol=1e-3)


def test_normalised_observations():
    """The update is on observations as they were acted on; what was seen counts from the next iteration on."""
    agent, hp, state = build(normalize_obs=True)
    r = rollout_of(agent, hp, state)
    plain, _, _ = build()
    new, _ = agent.learn(hp, state, r, jax.random.key(0), jnp.uint32(0))
    same, _ = plain.learn(hp, state.replace(obs_stats=None), r, jax.random.key(0), jnp.uint32(0))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), new.params, same.params)
    seen = np.asarray(r.obs)[np.asarray(r.weight) > 0]
    np.testing.assert_allclose(new.obs_stats.mean, seen.mean(0), rtol=1e-4, atol=1e-6)
    want = q_values(flat(new.params), (np.asarray(r.obs)[0, 0] - seen.mean(0)) / seen.std(0)).max()
    np.testing.assert_allclose(agent.value(hp, new, r.obs[0, 0]), want, rtol=1e-3, atol=1e-4)


# --- properties ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("junk", [np.inf, 1e30])
def test_what_weighs_nothing_changes_nothing(junk):
    agent, hp, state = build()
    learn = lambda r: agent.learn(hp, state, r, jax.random.key(0), jnp.uint32(0))[0].params
    r = rollout_of(agent, hp, state)
    want = learn(r)
    jax.tree.map(np.testing.assert_array_equal, learn(rollout_of(agent, hp, state, junk)), want)
    jax.tree.map(np.testing.assert_array_equal, learn(r.replace(action=r.action.at[1, 0].add(1) % A)), want)
    other = learn(r.replace(action=r.action.at[0, 0].add(1) % A))  # which does count
    assert not all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (other, want)), strict=True))


def test_minibatches_partition_the_rollout_by_the_key():
    """At rate 0 the mean loss of a partition into equal parts, all of weight 1, is that of the whole."""
    agent, hp, state = build(num_minibatches=4, num_epochs=2, lr=0.0)
    r = rollout_of(agent, hp, state, junk=0.5)
    r = r.replace(weight=jnp.ones((T, N)))
    losses = [float(agent.learn(hp, state, r, jax.random.key(k), jnp.uint32(0))[1]["loss"]) for k in range(3)]
    np.testing.assert_allclose(losses, losses[0], rtol=1e-5)
    agent, hp, state = build(num_minibatches=4, num_epochs=2)
    new = [agent.learn(hp, state, r, jax.random.key(k), jnp.uint32(0)) for k in (0, 0, 1)]
    assert new[0][1]["updates"] == 8
    q = [float(agent.value(hp, s, r.obs[0, 0])) for s, _ in new]
    assert q[0] == q[1] != q[2]


@functools.cache
def acting(num_envs, rollout_length):
    agent, hp, state = build(num_envs=num_envs, rollout_length=rollout_length)
    params = jax.tree.map(jnp.zeros_like, state.params)
    params["params"]["q"]["bias"] = jnp.array([0.0, 0.0, 5.0])
    state = state.replace(params=params)
    return jax.jit(jax.vmap(lambda k, i: agent.act(hp, state, (), jnp.zeros(OBS), k, i)[0], (0, None)))


@pytest.mark.parametrize(("steps", "epsilon"), [(0, 0.9), (400, 0.62), (1200, 0.2)])
def test_random_actions_are_as_frequent_at_an_env_step_however_it_is_reached(steps, epsilon):
    keys = jax.random.split(jax.random.key(steps), 8192)
    actions = [np.asarray(acting(n, t)(keys, jnp.uint32(steps // (n * t)))) for n, t in ((1, 1), (4, 2), (10, 20))]
    for other in actions[1:]:
        np.testing.assert_array_equal(other, actions[0])
    want = 1 - epsilon + epsilon / A
    assert abs((actions[0] == 2).mean() - want) <= 5 * np.sqrt(want * (1 - want) / 8192)


def test_greedy_takes_the_first_of_the_best():
    agent, hp, state = build()
    for q, best in (([1.0, 1.0, 1.0], 0), ([0.0, 2.0, 2.0], 1)):
        params = jax.tree.map(jnp.zeros_like, state.params)
        params["params"]["q"]["bias"] = jnp.array(q)
        for k in range(4):
            assert agent.greedy(hp, state.replace(params=params), (), jnp.ones(OBS), jax.random.key(k))[0] == best


def test_layer_norm_follows_each_matrix_of_a_board_too(strict):
    """Over channels after a convolution; without it, names and numbers are those of before."""
    obs = jax.random.normal(jax.random.key(0), (4, 4, 2))
    torso = lambda norm: networks.Torso((5,), "relu", layer_norm=norm, obs_shape=obs.shape)
    params = torso(True).init(jax.random.key(1), obs)
    p = flat(params)
    assert {k for k in p if "LayerNorm" in k} == {f"{m}/LayerNorm_0/{x}" for m in ("CNN_0", "MLP_0") for x in ("scale", "bias")}
    kernel, x = p["CNN_0/PatchConv_0/kernel"], np.asarray(obs, np.float64)
    conv = np.array([[np.tensordot(x[i : i + 3, j : j + 3], kernel, 3) for j in range(2)] for i in range(2)])
    hidden = np.maximum(layer_norm(p, "CNN_0/LayerNorm_0", conv), 0).ravel()
    dense = hidden @ p["MLP_0/Dense_0/kernel"] + p["MLP_0/Dense_0/bias"]
    want = np.maximum(layer_norm(p, "MLP_0/LayerNorm_0", dense), 0)
    np.testing.assert_allclose(torso(True).apply(params, obs), want, rtol=1e-4, atol=1e-5)
    plain = flat(torso(False).init(jax.random.key(1), obs))
    assert plain.keys() == {k for k in p if "LayerNorm" not in k}


def test_what_it_refuses():
    with pytest.raises(rlx.RlxError, match=r"^pqn needs discrete actions; probe/ActionReward-continuous has 1 continuous"):
        rlx.make("pqn", "probe/ActionReward-continuous")
    with pytest.raises(rlx.RlxError, match=r"^pqn learns from a scalar reward; probe/VectorReward has .*\(2,\)$"):
        rlx.make("pqn", "probe/VectorReward")
    with pytest.raises(rlx.RlxError, match=r"^num_minibatches=3 must divide num_envs \* rollout_length = 8; the nearest is 2$"):
        build(num_minibatches=3)
    with pytest.raises(rlx.RlxError, match=r"^td_lambda=1.5 must be in \[0, 1\]$"):
        build(td_lambda=1.5)
