"""TD3: its pieces by hand, one whole update against float64 NumPy with numerical gradients, and what that promises."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlx import replay
from rlx.agents import td3
from tests.agents.numerical import flat, gradient
from tests.agents.td3_support import HP, D, N, T, build, rollout_of, same


def standard(shape):
    """What stands for standard normal noise: known, of both signs, some of it beyond the clip and some not."""
    return 2.0 * np.sin(4.0 + 2.0 * np.arange(np.prod(shape, dtype=int))).reshape(shape)


@pytest.fixture
def fixed(monkeypatch):
    """Known randomness; the batch is all windows of the first rollout, in order."""

    def windows(key, n, position, size, capacity, num_envs, horizon=1, history=0, future=0):
        starts = np.arange((T - horizon + 1) * N)
        return jnp.asarray(starts[:, None] + num_envs * np.arange(horizon)[None])

    monkeypatch.setattr(replay, "window_slots", windows)
    monkeypatch.setattr(jax.random, "normal", lambda key, shape=(), *_: jnp.asarray(standard(shape), jnp.float32))


# --- pieces, by hand -----------------------------------------------------------------------------------------------------


def test_pieces(strict):
    action, noise = jnp.array([0.5, -0.9, 0.0, 0.0]), jnp.array([0.1, -0.2, 0.7, -0.7])
    np.testing.assert_allclose(td3.noisy(action, noise), [0.6, -1.0, 0.7, -0.7], rtol=1e-6)
    np.testing.assert_allclose(td3.noisy(action, noise, jnp.float32(0.3)), [0.6, -1.0, 0.3, -0.3], rtol=1e-6)
    np.testing.assert_array_equal(td3.noisy(action, noise, jnp.float32(0.0)), action)
    loss, grad = jax.value_and_grad(td3.critic_loss)(jnp.array([2.0, 3.0]), jnp.float32(1.0))
    np.testing.assert_allclose(loss, 1 + 4, rtol=1e-6)
    np.testing.assert_allclose(grad, [2.0, 4.0], rtol=1e-6)


# --- one whole update ------------------------------------------------------------------------------------------------------


def policy(p, obs):
    hidden = np.tanh(obs @ p["MLP_0/Dense_0/kernel"] + p["MLP_0/Dense_0/bias"])
    return np.tanh(hidden @ p["action/kernel"] + p["action/bias"])


def q_values(p, obs, action):
    """Both critics, `[2, B]`."""
    x = np.concatenate([obs, action], -1)
    hidden = np.tanh(x @ p["MLP_0/Dense_0/kernel"] + p["MLP_0/Dense_0/bias"][:, None])
    return (hidden @ p["q/kernel"] + p["q/bias"][:, None])[..., 0]


def numpy_update(learner, r, n_step):
    """What one update on all windows of `r` makes of the critics; of the actor and the targets, if it moves them; its losses
    and gradients."""
    r = jax.tree.map(np.asarray, r)
    pi = learner.policy
    actor, critic, target_actor, target_critic = map(flat, (pi.actor, learner.critic, pi.target_actor, pi.target_critic))
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
    noise = (HP["target_noise"] * standard((len(obs), D)))[keep]
    obs, action, returns, discounts, last = (np.asarray(x, np.float64)[keep] for x in (obs, action, returns, discounts, last))

    clipped = np.clip(noise, -HP["target_noise_clip"], HP["target_noise_clip"])
    assert 0 < (clipped == noise).sum() < noise.size
    unbounded = policy(target_actor, last) + clipped
    assert (np.abs(unbounded) > 1).any()
    y = returns + discounts * q_values(target_critic, last, np.clip(unbounded, -1, 1)).min(0)
    j_q = lambda p: ((q_values(p, obs, action) - y) ** 2).sum(0).mean()
    adam = lambda g, lr: {k: -lr * x / (np.abs(x) + 1e-8) for k, x in g.items()}  # the first step
    gradients = {"critic": gradient(j_q, critic)}
    new_critic = {k: critic[k] + u for k, u in adam(gradients["critic"], HP["critic_lr"]).items()}

    j_pi = lambda p: -q_values(new_critic, obs, policy(p, obs))[0].mean()
    gradients["actor"] = gradient(j_pi, actor)
    new_actor = {k: actor[k] + u for k, u in adam(gradients["actor"], HP["actor_lr"]).items()}
    toward = lambda target, online: {k: target[k] + HP["tau"] * (online[k] - target[k]) for k in target}
    new = {
        "critic": new_critic, "actor": new_actor, "target_actor": toward(target_actor, new_actor),
        "target_critic": toward(target_critic, new_critic),
    }  # fmt: skip
    return new, {"critic_loss": j_q(critic), "actor_loss": j_pi(actor), "q": q_values(critic, obs, action).mean()}, gradients


@pytest.mark.parametrize("n_step", [1, 2, 3])
def test_update_is_numpys(n_step, fixed):
    agent, hp, state = build(n_step=n_step)
    r = rollout_of()
    want, metrics, gradients = numpy_update(state.learner, r, n_step)
    new, got = jax.jit(agent.learn)(hp, state, r, jax.random.key(0), jnp.uint32(0))
    new = new.learner
    assert got.pop("updates") == 1
    assert got.keys() == metrics.keys()
    for name, x in metrics.items():
        np.testing.assert_allclose(got[name], x, rtol=1e-4, atol=1e-5, err_msg=name)
    for name, x in want.items():
        params = flat(getattr(new if name == "critic" else new.policy, name))
        assert params.keys() == x.keys()
        for k in x:
            np.testing.assert_allclose(params[k], x[k], rtol=0, atol=2e-5, err_msg=f"{name} {k}")
    # Adam's first step is the sign of a gradient; the size is in its moments
    for name, opt in (("critic", new.critic_opt), ("actor", new.policy.actor_opt)):
        second = flat(opt[0].nu)
        for k, g in gradients[name].items():
            np.testing.assert_allclose(np.sqrt(second[k] / 0.001), np.abs(g), rtol=1e-3, atol=1e-5, err_msg=f"{name} {k}")


def test_an_update_without_the_policy_is_that_of_the_critics_alone(fixed):
    agent, hp, state = build(policy_delay=2)
    want, metrics, _ = numpy_update(state.learner, rollout_of(), 1)
    new, got = jax.jit(agent.learn)(hp, state, rollout_of(), jax.random.key(0), jnp.uint32(0))
    for k, x in flat(new.learner.critic).items():
        np.testing.assert_allclose(x, want["critic"][k], rtol=0, atol=2e-5, err_msg=k)
    assert same(new.learner.policy, state.learner.policy)
    np.testing.assert_allclose(got["critic_loss"], metrics["critic_loss"], rtol=1e-4)
    assert got["actor_loss"] == 0.0


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
        obs=r.obs.at[1, 1].set(3.0), action=r.action.at[1, 1].set(0.5),
        reward=r.reward.at[1, 1].set(junk), next_obs=r.next_obs.at[1, 1].set(junk),
    )  # fmt: skip
    got, others = learn(hp, state, other, jax.random.key(0), jnp.uint32(0))
    jax.tree.map(np.testing.assert_array_equal, (got.learner, others), (want.learner, metrics))
    heavy, _ = learn(hp, state, r.replace(weight=jnp.ones((T, N))), jax.random.key(0), jnp.uint32(0))
    assert not same(heavy.learner, want.learner)


def test_value_is_that_of_the_greedy_action():
    agent, hp, state = build()
    obs = jnp.asarray([0.3, -1.2, 0.5])
    action, _ = agent.greedy(hp, state, (), obs, jax.random.key(0))
    mine = policy(flat(state.learner.policy.actor), np.asarray(obs, np.float64))
    np.testing.assert_allclose(action, mine, rtol=1e-5)
    want = q_values(flat(state.learner.critic), np.asarray(obs, np.float64)[None], mine[None])
    assert abs(want[0, 0] - want[1, 0]) > 1e-2
    np.testing.assert_allclose(agent.value(hp, state, obs), want.min(), rtol=1e-5)


def test_normalised_observations_are_what_everything_sees():
    """Statistics of shift and scale undo both: the same update, action and value as of the plain observation."""
    agent, hp, state = build(normalize_obs=True)
    plain, _, _ = build()
    assert state.obs_stats is not None
    moved = state.replace(obs_stats=state.obs_stats.replace(mean=jnp.full(3, 5.0), var=jnp.full(3, 4.0)))
    obs, key = jnp.asarray([0.3, -1.2, 0.5]), jax.random.key(0)
    for f in ("greedy", "value"):
        args = ((), obs, key) if f == "greedy" else (obs,)
        shifted = ((), 2.0 * obs + 5.0, key) if f == "greedy" else (2.0 * obs + 5.0,)
        want = getattr(plain, f)(hp, state.replace(obs_stats=None), *args)
        got = getattr(agent, f)(hp, moved, *shifted)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), got, want)
    r = rollout_of()
    new = agent.learn(hp, state, r, key, jnp.uint32(0))[0]
    kept = np.asarray(r.obs)[np.asarray(r.weight) > 0]
    np.testing.assert_allclose(new.obs_stats.mean, kept.mean(0), rtol=1e-5)
    assert not same(new.learner, plain.learn(hp, state.replace(obs_stats=None), r, key, jnp.uint32(0))[0].learner)
