"""PPO: its losses by hand, and one whole `learn` against float64 NumPy with numerical gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlx import normalize
from rlx.agents import ppo
from tests.agents.numerical import flat, gradient
from tests.agents.ppo_support import HP, OBS, N, T, build, forms, rollout_of

# --- losses, by hand -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),  # slope: d loss / d log_prob = -ratio * advantage unless clipped
    [(1.1, 2.0, -2.2, -2.2), (1.5, 1.0, -1.2, 0.0), (1.5, -1.0, 1.5, 1.5), (0.5, 1.0, -0.5, -0.5), (0.5, -1.0, 0.8, 0.0)],
)
def test_clipped_surrogate(ratio, advantage, loss, slope, strict):
    args = jnp.log(jnp.float32(ratio)), jnp.float32(0.0), jnp.float32(advantage), jnp.float32(0.2)
    np.testing.assert_allclose(jax.value_and_grad(ppo.clipped_surrogate)(*args), (loss, slope), rtol=1e-6, atol=1e-7)


def test_weighted_statistics(strict):
    x, weight = jnp.array([1.0, 3.0, jnp.nan]), jnp.array([1.0, 1.0, 0.0])
    assert normalize.weighted_mean(x, weight) == 2.0
    assert normalize.weighted_mean(x, jnp.zeros(3)) == 0.0
    np.testing.assert_allclose(ppo.standardised(x, weight)[:2], [-1.0, 1.0], rtol=1e-6)
    # target variance 4, residual variance 1
    got = ppo.explained_variance(jnp.array([0.0, 4.0, 9.0]), jnp.array([1.0, 3.0, jnp.nan]), weight)
    np.testing.assert_allclose(got, 0.75, rtol=1e-6)


# --- one whole learn() -----------------------------------------------------------------------------------------------------


def numpy_learn(params, stats, r, hp, discrete, epochs):
    """PPO in float64: `params` flat by path -> (new params, scale of rewards, per-epoch losses)."""
    to64 = lambda x: np.asarray(x, np.float64)
    keep = to64(r.weight) > 0
    normal = lambda x: np.clip((to64(x) - to64(stats.mean)) / np.sqrt(to64(stats.var) + 1e-8), -10, 10)
    done = np.asarray(r.terminated | r.truncated)

    def dense(p, name, x):
        return x @ p[f"{name}/kernel"] + p[f"{name}/bias"]

    def forward(p, x):
        out = dense(p, "policy", np.tanh(dense(p, "actor/MLP_0/Dense_0", x)))
        return out, dense(p, "value", np.tanh(dense(p, "critic/MLP_0/Dense_0", x)))[..., 0]

    def policy(p, out, action):
        if discrete:
            log_p = out - np.log(np.exp(out).sum(-1, keepdims=True))
            return np.take_along_axis(log_p, np.asarray(action)[..., None], -1)[..., 0], -(np.exp(log_p) * log_p).sum(-1)
        z = (to64(action) - out) / np.exp(p["log_std"])
        constant = 0.5 * np.log(2 * np.pi) + p["log_std"]
        return (-0.5 * z**2 - constant).sum(-1), np.full(z.shape[:-1], (0.5 + constant).sum())

    # rewards, by the deviation of the discounted returns so far
    running, seen = np.zeros(N), []
    for t in range(T):
        running = np.where(keep[t], to64(r.reward)[t], 0.0) + hp["gamma"] * running
        seen += list(running[keep[t]])
        running = np.where(done[t], 0.0, running)
    scale = 1.0 / np.sqrt(np.var(seen) + 1e-8)

    # advantages
    old_out, value = forward(params, normal(r.obs))
    old_log_prob = policy(params, old_out, r.extras["raw_action"])[0]
    next_value = forward(params, normal(r.next_obs))[1]
    advantage, trace = np.zeros((T, N)), np.zeros(N)
    for t in reversed(range(T)):
        for n in range(N):
            delta = 0.0
            if keep[t, n]:
                delta = r.reward[t, n] * scale + hp["gamma"] * (0 if r.terminated[t, n] else next_value[t, n]) - value[t, n]
            trace[n] = delta + hp["gamma"] * hp["gae_lambda"] * (0 if done[t, n] else trace[n])
        advantage[t] = trace
    target, a = (advantage + value)[keep], advantage[keep]
    a = (a - a.mean()) / (a.std() + 1e-8)
    obs, action = normal(r.obs)[keep], np.asarray(r.extras["raw_action"])[keep]

    def losses(p):
        out, v = forward(p, obs)
        log_prob, entropy = policy(p, out, action)
        ratio = np.exp(log_prob - old_log_prob[keep])
        clipped = np.clip(ratio, 1 - hp["clip_eps"], 1 + hp["clip_eps"])
        parts = -np.minimum(ratio * a, clipped * a).mean(), 0.5 * ((v - target) ** 2).mean(), entropy.mean()
        return parts, ratio

    def total(p):
        return np.dot(losses(p)[0], [1.0, hp["value_coef"], -hp["entropy_coef"]])

    p, m, v = params, {k: 0.0 for k in params}, {k: 0.0 for k in params}
    history = []
    for e in range(1, epochs + 1):
        history.append(losses(p))
        g = gradient(total, p)
        norm = np.sqrt(sum((x**2).sum() for x in g.values()))
        g = {k: x * min(1.0, hp["max_grad_norm"] / norm) for k, x in g.items()}
        m = {k: 0.9 * m[k] + 0.1 * g[k] for k in g}
        v = {k: 0.999 * v[k] + 0.001 * g[k] ** 2 for k in g}
        for k in p:
            p = {**p, k: p[k] - hp["lr"] * (m[k] / (1 - 0.9**e)) / (np.sqrt(v[k] / (1 - 0.999**e)) + 1e-5)}
    return p, scale, history, (old_log_prob, value)


@forms
def test_learn_is_numpys(discrete):
    """Clipping by the global norm to 1e-4 makes Adam's eps of 1e-5, and the kind of clipping, visible in every step."""
    agent, hp, state = build(discrete)
    r = rollout_of(agent, hp, state)
    before = flat(state.params)
    want, scale, history, (log_prob, value) = numpy_learn(before, state.obs_stats, r, HP, discrete, epochs=2)
    np.testing.assert_allclose(r.extras["log_prob"], log_prob, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(r.extras["value"], value, rtol=1e-5, atol=1e-6)

    new, metrics = agent.learn(hp, state, r, jax.random.key(0), jnp.uint32(0))
    got = flat(new.params)
    assert got.keys() == want.keys()
    for name in want:
        assert np.abs(want[name] - before[name]).max() > 1e-3, f"{name} does not move: the test is blind to it"
        np.testing.assert_allclose(got[name], want[name], rtol=0, atol=2e-5, err_msg=name)

    ratio = history[1][1]
    assert (np.abs(ratio - 1) > HP["clip_eps"]).any(), "nothing is clipped: the test is blind to it"
    parts = np.mean([parts for parts, _ in history], axis=0)
    np.testing.assert_allclose([metrics[k] for k in ("policy_loss", "value_loss", "entropy")], parts, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(metrics["approx_kl"], (ratio - 1 - np.log(ratio)).mean() / 2, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(metrics["clip_fraction"], (np.abs(ratio - 1) > HP["clip_eps"]).mean() / 2, rtol=1e-6)
    assert metrics["updates"] == 2
    assert metrics["updates"].dtype == jnp.int32

    # statistics move after the update, which used the old ones
    samples = np.asarray(r.obs, np.float64)[np.asarray(r.weight) > 0]
    total = 5.0 + len(samples)
    mean = (5.0 * np.array([0.3, -0.2, 1.0]) + samples.sum(0)) / total
    second = (5.0 * (np.array([4.0, 0.25, 1.5]) + np.array([0.3, -0.2, 1.0]) ** 2) + (samples**2).sum(0)) / total
    np.testing.assert_allclose(new.obs_stats.mean, mean, rtol=1e-5)
    np.testing.assert_allclose(new.obs_stats.var, second - mean**2, rtol=1e-4)
    # V is in native units
    obs = np.clip((np.float32([0.5, 0.5, 0.5]) - mean) / np.sqrt(second - mean**2), -10, 10)
    hidden = np.tanh(obs @ want["critic/MLP_0/Dense_0/kernel"] + want["critic/MLP_0/Dense_0/bias"])
    native = (hidden @ want["value/kernel"] + want["value/bias"])[0] / scale
    np.testing.assert_allclose(agent.value(hp, new, jnp.full(OBS, 0.5)), native, rtol=1e-3)
