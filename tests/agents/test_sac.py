"""SAC: its losses by hand, one whole update against float64 NumPy with numerical gradients, and what that promises."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlx import replay
from rlx.agents import sac
from rlx.distributions import TanhNormal
from tests.agents.numerical import flat, gradient
from tests.agents.sac_support import HP, D, N, T, build, rollout_of, same

NOISE = np.array([0.7, -0.4])


@pytest.fixture
def fixed(monkeypatch):
    """Known randomness: one noise vector for every action; the batch is all windows of the first rollout, in order."""

    def windows(key, n, position, size, capacity, num_envs, horizon=1, history=0, future=0):
        starts = np.arange((T - horizon + 1) * N)
        return jnp.asarray(starts[:, None] + num_envs * np.arange(horizon)[None])

    def raw(self, key, n):
        return jnp.broadcast_to(self.loc + self.scale * jnp.asarray(NOISE, jnp.float32), (n, *self.loc.shape))

    monkeypatch.setattr(replay, "window_slots", windows)
    monkeypatch.setattr(TanhNormal, "_raw_n", raw)


# --- losses, by hand -----------------------------------------------------------------------------------------------------


def test_losses(strict):
    q, log_prob, alpha = jnp.array([2.0, 3.0]), jnp.float32(-1.5), jnp.float32(0.2)
    np.testing.assert_allclose(sac.soft_value(q, log_prob, alpha), 2.3, rtol=1e-6)
    np.testing.assert_allclose(sac.actor_loss(q, log_prob, alpha), -2.3, rtol=1e-6)
    loss, grad = jax.value_and_grad(sac.critic_loss)(q, jnp.float32(1.0))
    np.testing.assert_allclose(loss, 0.5 * (1 + 4), rtol=1e-6)
    np.testing.assert_allclose(grad, [1.0, 2.0], rtol=1e-6)


# --- one whole update ------------------------------------------------------------------------------------------------------


def policy(p, obs):
    """The action at the fixed noise and its log-density over [-1, 1]^D."""
    hidden = np.tanh(obs @ p["MLP_0/Dense_0/kernel"] + p["MLP_0/Dense_0/bias"])
    loc, log_std = (hidden @ p[f"{k}/kernel"] + p[f"{k}/bias"] for k in ("loc", "log_std"))
    raw = loc + np.exp(log_std) * NOISE
    normal = -0.5 * NOISE**2 - log_std - 0.5 * np.log(2 * np.pi)
    return np.tanh(raw), (normal - np.log(1 - np.tanh(raw) ** 2)).sum(-1)


def q_values(p, obs, action):
    """Both critics, `[2, B]`."""
    x = np.concatenate([obs, action], -1)
    hidden = np.tanh(x @ p["MLP_0/Dense_0/kernel"] + p["MLP_0/Dense_0/bias"][:, None])
    return (hidden @ p["q/kernel"] + p["q/bias"][:, None])[..., 0]


def numpy_update(learner, r, n_step):
    """What one update on all windows of `r` makes of actor, critic, target and log alpha; its losses and gradients."""
    r = jax.tree.map(np.asarray, r)
    actor, critic, target = (flat(getattr(learner, k)) for k in ("actor", "critic", "target"))
    alpha = HP["temperature"]
    obs, action, returns, discounts, last, weight = [], [], [], [], [], []
    for t in range(T - n_step + 1):
        for n in range(N):
            ret, k = 0.0, 0
            while True:
                ret += HP["gamma"] ** k * r.reward[t + k, n]
                over = r.terminated[t + k, n] or r.truncated[t + k, n]
                if over or k + 1 == n_step or r.weight[t + k + 1, n] == 0:
                    break
                k += 1
            obs.append(r.obs[t, n])
            action.append(r.action[t, n])
            returns.append(ret)
            discounts.append(0.0 if r.terminated[t + k, n] else HP["gamma"] ** (k + 1))
            last.append(r.next_obs[t + k, n])
            weight.append(r.weight[t, n])
    keep = np.array(weight) > 0
    obs, action, returns, discounts, last = (np.asarray(x, np.float64)[keep] for x in (obs, action, returns, discounts, last))

    next_action, next_log_prob = policy(actor, last)
    y = returns + discounts * (q_values(target, last, next_action).min(0) - alpha * next_log_prob)
    j_q = lambda p: (0.5 * (q_values(p, obs, action) - y) ** 2).sum(0).mean()
    adam = lambda g, lr: {k: -lr * x / (np.abs(x) + 1e-8) for k, x in g.items()}  # the first step
    gradients = {"critic": gradient(j_q, critic)}
    new_critic = {k: critic[k] + u for k, u in adam(gradients["critic"], HP["critic_lr"]).items()}

    def j_pi(p):
        a, log_prob = policy(p, obs)
        return (alpha * log_prob - q_values(new_critic, obs, a).min(0)).mean()

    gradients["actor"] = gradient(j_pi, actor)
    new_actor = {k: actor[k] + u for k, u in adam(gradients["actor"], HP["actor_lr"]).items()}
    gradients["log_alpha"] = -(policy(actor, obs)[1] - 1.5).mean()  # of -log alpha (log pi + target entropy)
    log_alpha = np.log(alpha) - HP["temperature_lr"] * np.sign(gradients["log_alpha"])
    new_target = {k: target[k] + HP["tau"] * (new_critic[k] - target[k]) for k in target}
    return new_actor, new_critic, new_target, log_alpha, j_q(critic), j_pi(actor), gradients


@pytest.mark.parametrize("n_step", [1, 2, 3])
def test_update_is_numpys(n_step, fixed):
    agent, hp, state = build(n_step=n_step)
    r = rollout_of()
    actor, critic, target, log_alpha, critic_loss, actor_loss, gradients = numpy_update(state.learner, r, n_step)
    new, metrics = jax.jit(agent.learn)(hp, state, r, jax.random.key(0), jnp.uint32(0))
    for name, want in (("critic", critic), ("actor", actor), ("target", target)):
        got = flat(getattr(new.learner, name))
        assert got.keys() == want.keys()
        for k in want:
            np.testing.assert_allclose(got[k], want[k], rtol=0, atol=2e-5, err_msg=f"{name} {k}")
    np.testing.assert_allclose(new.learner.log_alpha, log_alpha, rtol=1e-5)
    np.testing.assert_allclose(metrics["critic_loss"], critic_loss, rtol=1e-4)
    np.testing.assert_allclose(metrics["actor_loss"], actor_loss, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(metrics["temperature"], HP["temperature"], rtol=1e-6)
    assert metrics["updates"] == 1
    # Adam's first step is the sign of a gradient; the size is in its moments
    for name in ("critic", "actor"):
        second = flat(getattr(new.learner, f"{name}_opt")[0].nu)
        for k, g in gradients[name].items():
            np.testing.assert_allclose(np.sqrt(second[k] / 0.001), np.abs(g), rtol=1e-3, atol=1e-5, err_msg=f"{name} {k}")
    np.testing.assert_allclose(new.learner.alpha_opt[0].mu / 0.1, gradients["log_alpha"], rtol=1e-4)


# --- properties ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_step", [1, 2])
@pytest.mark.parametrize("junk", [np.nan, np.inf, 1e30])
def test_what_weighs_nothing_changes_nothing(junk, n_step, fixed):
    """Reward, action and successor of a quarantined step, where a window starts there and where one runs into it."""
    _, hp, state = build(n_step=n_step)
    learn = learner_of(n_step)
    r = rollout_of()
    want, _ = learn(hp, state, r, jax.random.key(0), jnp.uint32(0))
    other = r.replace(
        obs=r.obs.at[1, 1].set(3.0), action=r.action.at[1, 1].set(0.5),
        reward=r.reward.at[1, 1].set(junk), next_obs=r.next_obs.at[1, 1].set(junk),
    )  # fmt: skip
    got, _ = learn(hp, state, other, jax.random.key(0), jnp.uint32(0))
    jax.tree.map(np.testing.assert_array_equal, got.learner, want.learner)
    heavy, _ = learn(hp, state, r.replace(weight=jnp.ones((T, N))), jax.random.key(0), jnp.uint32(0))
    assert not same(heavy.learner, want.learner)


@functools.cache
def learner_of(n_step):
    return jax.jit(build(n_step=n_step)[0].learn)


def test_rate_zero_holds_the_temperature_bitwise():
    agent, hp, state = build(temperature_lr=0.0, updates_per_step=2.0, temperature=0.3)
    new, metrics = jax.jit(agent.learn)(hp, state, rollout_of(), jax.random.key(0), jnp.uint32(0))
    assert metrics["updates"] == 12
    assert new.learner.log_alpha == state.learner.log_alpha
    assert not same(new.learner.actor, state.learner.actor)


def test_default_target_entropy():
    (log_alpha, want) = (
        jax.jit(agent.learn)(hp, state, rollout_of(), jax.random.key(0), jnp.uint32(0))[0].learner.alpha_opt[0].mu
        for agent, hp, state in (build(target_entropy=None), build(target_entropy=-float(D)))
    )
    assert log_alpha == want
