"""Discrete SAC: its losses by hand, one whole update against float64 NumPy with numerical gradients, and what that promises."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
from rlx import replay
from rlx.agents import sac_discrete
from tests.agents.numerical import flat, gradient
from tests.agents.sac_discrete_support import FIELDS, HP, OBS, A, N, T, build, rollout_of, same, with_logits


@pytest.fixture
def fixed(monkeypatch):
    """The batch is all windows of the first rollout, in order: nothing else in an update is random."""

    def windows(key, n, position, size, capacity, num_envs, horizon=1, history=0, future=0):
        starts = np.arange((T - horizon + 1) * N)
        return jnp.asarray(starts[:, None] + num_envs * np.arange(horizon)[None])

    monkeypatch.setattr(replay, "window_slots", windows)


# --- losses, by hand -----------------------------------------------------------------------------------------------------


def test_losses(strict):
    """The minimum of the critics is taken action by action, before the expectation."""
    q, log_pi, alpha = jnp.array([[2.0, 5.0], [3.0, 4.0]]), jnp.log(jnp.array([0.25, 0.75])), jnp.float32(0.2)
    nats = 0.25 * np.log(4) + 0.75 * np.log(4 / 3)
    value = 0.25 * 2 + 0.75 * 4 + 0.2 * nats
    np.testing.assert_allclose(sac_discrete.soft_value(q, log_pi, alpha), value, rtol=1e-6)
    np.testing.assert_allclose(sac_discrete.actor_loss(q, log_pi, alpha), -value, rtol=1e-6)
    np.testing.assert_allclose(sac_discrete.entropy(log_pi), nats, rtol=1e-6)
    loss, grad = jax.value_and_grad(sac_discrete.critic_loss)(q, jnp.int32(1), jnp.float32(1.0))
    np.testing.assert_allclose(loss, 0.5 * (16 + 9), rtol=1e-6)
    np.testing.assert_allclose(grad, [[0.0, 4.0], [0.0, 3.0]], rtol=1e-6)


def test_an_action_that_is_never_taken_is_no_nan(strict):
    f = lambda logits: sac_discrete.actor_loss(jnp.ones((2, 3)), jax.nn.log_softmax(logits), jnp.float32(0.1))
    loss, grad = jax.value_and_grad(f)(jnp.array([0.0, 0.0, -1e4]))
    np.testing.assert_allclose(loss, -1 - 0.1 * np.log(2), rtol=1e-6)
    assert np.isfinite(grad).all()


# --- one whole update ------------------------------------------------------------------------------------------------------


def log_policy(p, obs):
    logits = (
        np.tanh(obs @ p["Torso_0/MLP_0/Dense_0/kernel"] + p["Torso_0/MLP_0/Dense_0/bias"]) @ p["out/kernel"] + p["out/bias"]
    )
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def q_values(p, obs):
    """Both critics, `[2, B, A]`."""
    hidden = np.tanh(obs @ p["Torso_0/MLP_0/Dense_0/kernel"] + p["Torso_0/MLP_0/Dense_0/bias"][:, None])
    return hidden @ p["out/kernel"] + p["out/bias"][:, None]


def value(q, log_pi, alpha):
    return (np.exp(log_pi) * (q.min(0) - alpha * log_pi)).sum(-1)


def numpy_update(learner, r, n_step):
    """What one update on all windows of `r` makes of actor, critic, target and log alpha; its metrics and gradients."""
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
    obs, returns, discounts, last = (np.asarray(x, np.float64)[keep] for x in (obs, returns, discounts, last))
    rows, action = np.arange(keep.sum()), np.array(action)[keep]

    y = returns + discounts * value(q_values(target, last), log_policy(actor, last), alpha)
    j_q = lambda p: (0.5 * (q_values(p, obs)[:, rows, action] - y) ** 2).sum(0).mean()
    adam = lambda g, lr: {k: -lr * x / (np.abs(x) + 1e-8) for k, x in g.items()}  # the first step
    gradients = {"critic": gradient(j_q, critic)}
    new_critic = {k: critic[k] + u for k, u in adam(gradients["critic"], HP["critic_lr"]).items()}

    j_pi = lambda p: -value(q_values(new_critic, obs), log_policy(p, obs), alpha).mean()
    gradients["actor"] = gradient(j_pi, actor)
    log_pi = log_policy(actor, obs)
    nats = -(np.exp(log_pi) * log_pi).sum(-1).mean()
    gradients["log_alpha"] = nats - FIELDS["target_entropy"]
    new = {
        "critic": new_critic,
        "actor": {k: actor[k] + u for k, u in adam(gradients["actor"], HP["actor_lr"]).items()},
        "target": {k: target[k] + HP["tau"] * (new_critic[k] - target[k]) for k in target},
    }
    log_alpha = np.log(alpha) - HP["temperature_lr"] * np.sign(gradients["log_alpha"])
    metrics = {
        "critic_loss": j_q(critic), "actor_loss": j_pi(actor), "q": q_values(critic, obs).mean(), "entropy": nats,
        "temperature": alpha,
    }  # fmt: skip
    return new, log_alpha, metrics, gradients


@pytest.mark.parametrize("n_step", [1, 2, 3])
def test_update_is_numpys(n_step, fixed):
    agent, hp, state = build(n_step=n_step)
    r = rollout_of()
    want, log_alpha, metrics, gradients = numpy_update(state.learner, r, n_step)
    new, got = jax.jit(agent.learn)(hp, state, r, jax.random.key(0), jnp.uint32(0))
    new = new.learner
    assert got.pop("updates") == 1
    assert got.keys() == metrics.keys()
    for name, x in metrics.items():
        np.testing.assert_allclose(got[name], x, rtol=1e-4, atol=1e-5, err_msg=name)
    for name, x in want.items():
        params = flat(getattr(new, name))
        assert params.keys() == x.keys()
        for k in x:
            np.testing.assert_allclose(params[k], x[k], rtol=0, atol=2e-5, err_msg=f"{name} {k}")
    np.testing.assert_allclose(new.log_alpha, log_alpha, rtol=1e-5)
    # Adam's first step is the sign of a gradient; the size is in its moments
    for name in ("critic", "actor"):
        second = flat(getattr(new, f"{name}_opt")[0].nu)
        for k, g in gradients[name].items():
            np.testing.assert_allclose(np.sqrt(second[k] / 0.001), np.abs(g), rtol=1e-3, atol=1e-5, err_msg=f"{name} {k}")
    np.testing.assert_allclose(new.alpha_opt[0].mu / 0.1, gradients["log_alpha"], rtol=1e-4)


# --- properties ------------------------------------------------------------------------------------------------------------


@functools.cache
def learner_of(n_step):
    return jax.jit(build(n_step=n_step)[0].learn)


@pytest.mark.parametrize("n_step", [1, 2])
@pytest.mark.parametrize("junk", [np.nan, np.inf, 1e30])
def test_what_weighs_nothing_changes_nothing(junk, n_step, fixed):
    """Reward, action and successor of a quarantined step, where a window starts there and where one runs into it."""
    _, hp, state = build(n_step=n_step)
    learn = learner_of(n_step)
    r = rollout_of()
    want, metrics = learn(hp, state, r, jax.random.key(0), jnp.uint32(0))
    other = r.replace(
        obs=r.obs.at[1, 1].set(3.0), action=r.action.at[1, 1].add(1),
        reward=r.reward.at[1, 1].set(junk), next_obs=r.next_obs.at[1, 1].set(junk),
    )  # fmt: skip
    got, others = learn(hp, state, other, jax.random.key(0), jnp.uint32(0))
    jax.tree.map(np.testing.assert_array_equal, (got.learner, others), (want.learner, metrics))
    heavy, _ = learn(hp, state, r.replace(weight=jnp.ones((T, N))), jax.random.key(0), jnp.uint32(0))
    assert not same(heavy.learner, want.learner)


def test_value_is_the_soft_value_and_the_greedy_action_the_likeliest():
    agent, hp, state = build()
    q, logits = np.array([[1.0, 2.0, 3.0], [3.0, 1.0, 5.0]]), np.log([0.2, 0.5, 0.3])
    learner = state.learner.replace(actor=with_logits(state.learner.actor, logits), critic=with_logits(state.learner.critic, q))
    state = state.replace(learner=learner)
    want = 0.2 * 1 + 0.5 * 1 + 0.3 * 3 - HP["temperature"] * (np.exp(logits) * logits).sum()
    np.testing.assert_allclose(agent.value(hp, state, jnp.ones(OBS)), want, rtol=1e-6)
    action, _ = agent.greedy(hp, state, (), jnp.ones(OBS), jax.random.key(0))
    assert action == 1 and action.dtype == jnp.int32


def test_normalised_observations_are_what_everything_sees():
    agent, hp, state = build(normalize_obs=True)
    plain, _, _ = build()
    assert state.obs_stats is not None
    moved = state.replace(obs_stats=state.obs_stats.replace(mean=jnp.full(OBS, 5.0), var=jnp.full(OBS, 4.0)))
    obs, keys = jnp.asarray([0.3, -1.2, 0.5]), jax.random.split(jax.random.key(0), 64)
    bare = state.replace(obs_stats=None)
    np.testing.assert_allclose(agent.value(hp, moved, 2.0 * obs + 5.0), plain.value(hp, bare, obs), rtol=1e-4)
    acts = lambda agent, state, obs: jax.vmap(lambda k: agent.act(hp, state, (), obs, k, jnp.uint32(0))[0])(keys)
    np.testing.assert_array_equal(acts(agent, moved, 2.0 * obs + 5.0), acts(plain, bare, obs))
    r = rollout_of()
    new = agent.learn(hp, state, r, keys[0], jnp.uint32(0))[0]
    kept = np.asarray(r.obs)[np.asarray(r.weight) > 0]
    np.testing.assert_allclose(new.obs_stats.mean, kept.mean(0), rtol=1e-5)


def test_rate_zero_holds_the_temperature_bitwise():
    agent, hp, state = build(temperature_lr=0.0, updates_per_step=2.0, temperature=0.3)
    new, metrics = jax.jit(agent.learn)(hp, state, rollout_of(), jax.random.key(0), jnp.uint32(0))
    assert metrics["updates"] == 12
    assert new.learner.log_alpha == state.learner.log_alpha
    assert not same(new.learner.actor, state.learner.actor)


def test_default_target_entropy():
    """0.3 of what a uniform policy over three actions has."""
    got, want, other = (
        jax.jit(agent.learn)(hp, state, rollout_of(), jax.random.key(0), jnp.uint32(0))[0].learner.alpha_opt[0].mu
        for agent, hp, state in (build(target_entropy=x) for x in (None, float(0.3 * np.log(A)), 0.9))
    )
    assert got == want != other


@pytest.mark.parametrize("nats", [-0.5, 1.1])
def test_a_target_entropy_that_no_policy_has_is_an_error(nats):
    with pytest.raises(rlx.RlxError, match=rf"^target_entropy={nats} must be in \[0, 1.09861\], log of the 3 actions of toy$"):
        build(target_entropy=nats)
