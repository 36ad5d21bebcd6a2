"""PPO: its losses by hand, one whole `learn` against float64 NumPy with numerical gradients, and what it promises."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
from rlx import config, normalize
from rlx.agents import ppo
from rlx.types import EnvSpec, Transition
from tests.agents.numerical import flat, gradient

T, N, OBS, ACTIONS = 4, 2, 3, 2
HP = {
    "lr": 0.05,
    "gamma": 0.9,
    "gae_lambda": 0.8,
    "clip_eps": 0.1,
    "entropy_coef": 0.02,
    "value_coef": 0.2,
    "max_grad_norm": 1e-4,
}
forms = pytest.mark.parametrize("discrete", [False, True], ids=["continuous", "discrete"])


def spec(discrete, **changes):
    made = EnvSpec("toy", (OBS,), jnp.dtype("float32"), ACTIONS if discrete else None, 1 if discrete else ACTIONS, (), 10)
    return made._replace(**changes)


@functools.cache
def build(discrete, **fields):
    """(agent, hp, state): a policy that depends on its observation, statistics of a few made-up samples."""
    own = {
        "num_envs": N,
        "rollout_length": T,
        "num_epochs": 2,
        "num_minibatches": 1,
        "hidden_sizes": (4,),
        "activation": "tanh",
    }
    own |= {"normalize_obs": True, "normalize_reward": True}
    static, hp = config.partition(ppo.Config(**own | HP | fields))
    agent = ppo.make(static, spec(discrete))
    agent = agent._replace(learn=jax.jit(agent.learn))
    state = agent.init(hp, jax.random.key(3))
    policy = state.params["params"]["policy"]
    policy["kernel"] *= 100.0  # which starts near 0, and with it the gradient of what is below
    stats = normalize.Stats(jnp.float32(5.0), jnp.array([0.3, -0.2, 1.0]), jnp.array([4.0, 0.25, 1.5]))
    return agent, hp, state.replace(obs_stats=stats)


def rollout_of(agent, hp, state, scale=1.0):
    """[T, N]: environment 0 is quarantined at t=1 and terminates at t=2; environment 1 is truncated at t=0."""
    rng = np.random.default_rng(0)
    obs, after = (jnp.asarray(rng.normal(size=(T, N, OBS)) * 2.0, jnp.float32) for _ in range(2))
    keys = jax.random.split(jax.random.key(1), (T, N))
    act = jax.vmap(jax.vmap(lambda o, k: agent.act(hp, state, (), o, k, jnp.uint32(0))))
    action, _, extras = act(obs, keys)
    terminated, truncated = np.zeros((2, T, N), bool)
    terminated[2, 0] = truncated[1, 0] = truncated[0, 1] = True
    weight, reward = np.ones((T, N), np.float32), np.float32(rng.normal(size=(T, N)) * scale)
    weight[1, 0] = 0.0
    reward[1, 0] = np.nan
    after = after.at[1, 0].set(jnp.nan)
    masks = jnp.asarray(terminated), jnp.asarray(truncated), jnp.zeros((T, N), bool), jnp.asarray(weight)
    return Transition(obs, action, jnp.asarray(reward), after, *masks, {}, extras)


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
    assert ppo.weighted_mean(x, weight) == 2.0
    assert ppo.weighted_mean(x, jnp.zeros(3)) == 0.0
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


# --- properties ------------------------------------------------------------------------------------------------------------


@forms
@pytest.mark.parametrize("junk", [np.nan, np.inf, 1e30])
def test_what_weighs_nothing_changes_nothing(discrete, junk):
    """Reward, successor, action and observation of a quarantined step; the observation acted on is finite by contract."""
    agent, hp, state = build(discrete)
    r = rollout_of(agent, hp, state)
    want = agent.learn(hp, state, r, jax.random.key(0), jnp.uint32(0))
    raw = r.extras["raw_action"]
    extras = {**r.extras, "raw_action": raw.at[1, 0].set((1 - raw[1, 0]).astype(raw.dtype))}
    other = r.replace(
        obs=r.obs.at[1, 0].set(7.0), reward=r.reward.at[1, 0].set(junk), next_obs=r.next_obs.at[1, 0].set(junk), extras=extras
    )
    got = agent.learn(hp, state, other, jax.random.key(0), jnp.uint32(0))
    jax.tree.map(np.testing.assert_array_equal, got, want)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(want))
    heavy = other.replace(weight=jnp.ones((T, N)), reward=other.reward.at[1, 0].set(5.0), next_obs=r.obs)
    changed = agent.learn(hp, state, heavy, jax.random.key(0), jnp.uint32(0))[0].params
    assert not all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (changed, want[0].params)), strict=True))


@pytest.mark.parametrize("normalised", [True, False])
def test_reward_normalisation_removes_the_scale(normalised):
    agent, hp, state = build(False, normalize_reward=normalised)
    small, large = (
        agent.learn(hp, state, rollout_of(agent, hp, state, scale), jax.random.key(0), jnp.uint32(0))[0]
        for scale in (1.0, 1000.0)
    )
    gap = max(np.abs(a - b).max() for a, b in zip(*map(jax.tree.leaves, (small.params, large.params)), strict=True))
    assert gap < 1e-4 if normalised else gap > 1e-2
    if normalised:
        obs = jnp.full(OBS, 0.5)
        np.testing.assert_allclose(agent.value(hp, large, obs), 1000.0 * agent.value(hp, small, obs), rtol=1e-3)


def test_the_first_ratio_is_one_and_statistics_move():
    """With lr 0 the policy stays, so that every ratio is a first one; with another lr the same metrics are not 0."""
    trainer = rlx.make(
        "ppo", "gymnax/Pendulum-v1", num_envs=4, rollout_length=16, num_epochs=2, num_minibatches=2, hidden_sizes=(8,),
        normalize_obs=True, normalize_reward=True, clip_eps=1e-4,
    )  # fmt: skip
    carry = trainer.init(2, hp={"lr": [0.0, 1e-2]})
    carry, metrics = trainer.run(carry, 5 * trainer.steps_per_iteration, points=5)
    held, moved = metrics["approx_kl"][:2], metrics["approx_kl"][2:]
    assert np.abs(held).max() < 1e-8 < 1e-6 < moved.min()
    assert metrics["clip_fraction"][:2].max() == 0.0 < metrics["clip_fraction"][2:].min()
    np.testing.assert_array_equal(carry.runs.agent.obs_stats.count, np.full(4, 5.0 * 64))
    assert np.abs(carry.runs.agent.obs_stats.var - 1.0).min() > 0.1  # normalisation is not the identity


@forms
def test_actions_at_the_border_and_greedy(discrete):
    agent, hp, state = build(discrete)
    params = jax.tree.map(lambda x: x, state.params)
    params["params"]["policy"]["bias"] = jnp.array([0.9, -3.0])
    state = state.replace(params=params)
    obs = state.obs_stats.mean  # normalised it is 0: what is left are the biases
    out = jax.vmap(lambda k: agent.act(hp, state, (), obs, k, jnp.uint32(0)))(jax.random.split(jax.random.key(0), 256))
    action, raw = out[0], out[2]["raw_action"]
    best = agent.greedy(hp, state, (), obs, jax.random.key(0))[0]
    if discrete:
        assert best == 0
        np.testing.assert_allclose(np.mean(action == 0), 1.0, atol=0.06)  # P = 0.98
    else:
        np.testing.assert_array_equal(action, np.clip(raw, -1.0, 1.0))
        assert np.abs(raw).max() > 1.0
        np.testing.assert_allclose(best, [0.9, -1.0], rtol=1e-6)


def test_an_epoch_uses_every_sample_once():
    """While nothing moves (lr 0), the mean over minibatches is the mean over the rollout."""
    means = []
    for epochs, minibatches in ((1, 1), (3, 4)):
        agent, hp, state = build(False, num_minibatches=minibatches, num_epochs=epochs, lr=0.0)
        r = rollout_of(agent, hp, state)
        r = r.replace(weight=jnp.ones((T, N)), reward=jnp.nan_to_num(r.reward), next_obs=jnp.nan_to_num(r.next_obs))
        _, metrics = agent.learn(hp, state, r, jax.random.key(0), jnp.uint32(0))
        assert metrics["updates"] == epochs * minibatches
        means.append(metrics["value_loss"])
    np.testing.assert_allclose(*means, rtol=1e-5)


def test_images_are_not_normalised():
    static, hp = config.partition(ppo.Config(hidden_sizes=(4,), normalize_obs=True))
    image = spec(True, obs_shape=(4, 4, 1), obs_dtype=jnp.dtype("uint8"))
    assert jax.eval_shape(ppo.make(static, image).init, hp, jax.random.key(0)).obs_stats is None


def test_minibatches_must_divide():
    with pytest.raises(
        rlx.RlxError, match=r"^num_minibatches=3 must divide num_envs \* rollout_length = 8; the nearest is [24]$"
    ):
        build(False, num_minibatches=3)
