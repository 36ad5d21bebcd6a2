"""SAC: its losses by hand, one whole update against float64 NumPy with numerical gradients, and when it acts and learns."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
from rlx import config, replay
from rlx.agents import sac
from rlx.distributions import TanhNormal
from rlx.types import EnvSpec, Transition
from tests.agents.numerical import flat, gradient

T, N, OBS, D = 3, 2, 3, 2
SPEC = EnvSpec("toy", (OBS,), jnp.dtype("float32"), None, D, (), 10)
HP = {"actor_lr": 0.01, "critic_lr": 0.02, "temperature_lr": 0.03, "temperature": 0.5, "gamma": 0.9, "tau": 0.25}
NOISE = np.array([0.7, -0.4])
FIELDS = {
    "num_envs": N, "rollout_length": T, "updates_per_step": 1 / 6, "learning_starts": 0, "batch_size": 4, "replay_capacity": 64,
    "n_step": 1, "target_period": 1, "hidden_sizes": (4,), "activation": "tanh", "target_entropy": -1.5,
}  # fmt: skip


def build(**fields):
    static, hp = config.partition(sac.Config(**FIELDS | HP | fields))
    agent = sac.make(static, SPEC)
    state = agent.init(hp, jax.random.key(0))
    learner = state.learner.replace(target=jax.tree.map(lambda x: 0.8 * x + 0.05, state.learner.target))
    return agent, hp, state.replace(learner=learner)


def rollout_of(seed=0, **changes):
    """[T, N]: environment 0 terminates at t=1, environment 1 is truncated at t=0 and quarantined at t=1."""
    rng = np.random.default_rng(seed)
    terminated, truncated, weight = np.zeros((T, N), bool), np.zeros((T, N), bool), np.ones((T, N), np.float32)
    terminated[1, 0] = truncated[0, 1] = truncated[1, 1] = True
    weight[1, 1] = 0.0
    fields = {
        "obs": rng.normal(size=(T, N, OBS)), "action": rng.uniform(-0.9, 0.9, (T, N, D)), "reward": rng.normal(size=(T, N)),
        "next_obs": rng.normal(size=(T, N, OBS)), "weight": weight,
    }  # fmt: skip
    fields = {k: jnp.asarray(v, jnp.float32) for k, v in fields.items()}
    masks = {"terminated": jnp.asarray(terminated), "truncated": jnp.asarray(truncated), "first": jnp.zeros((T, N), bool)}
    return Transition(**fields | masks | changes, info={}, extras=())


@pytest.fixture
def fixed(monkeypatch):
    """Known randomness: one noise vector for every action; the batch is all windows of the first rollout, in order."""

    def windows(data, key, n, position, size, num_envs, horizon=1):
        starts = np.arange((T - horizon + 1) * N)
        return jax.tree.map(lambda x: x[starts[:, None] + num_envs * np.arange(horizon)[None]], data)

    def raw(self, key, n):
        return jnp.broadcast_to(self.loc + self.scale * jnp.asarray(NOISE, jnp.float32), (n, *self.loc.shape))

    monkeypatch.setattr(replay, "sample_windows", windows)
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


@pytest.mark.parametrize(("period", "start"), [(2, 0), (5, 0), (5, 1)])
def test_targets_move_where_a_period_of_updates_ends(period, start):
    """Three updates an iteration, counted from the first one: update k moves them if k + 1 completes a period."""
    agent, hp, state = build(updates_per_step=0.5, target_period=period, learning_starts=(start + 1) * T * N)
    learn = jax.jit(agent.learn)
    moved = []
    for i in range(start, start + 5):
        before = state.learner.target
        state, _ = learn(hp, state, rollout_of(i), jax.random.key(i), jnp.uint32(i))
        moved.append(not same(before, state.learner.target))
    assert moved == [any((3 * j + u + 1) % period == 0 for u in range(3)) for j in range(5)]


def test_target_moves_once_per_crossing():
    """tau 1 copies: with period 3 of 3 updates the target is the final critic, with period 2 it is that of an earlier one."""
    for period, copied in ((3, True), (2, False)):
        agent, hp, state = build(updates_per_step=0.5, target_period=period, tau=1.0)
        new = jax.jit(agent.learn)(hp, state, rollout_of(), jax.random.key(0), jnp.uint32(0))[0].learner
        gap = max(np.abs(a - b).max() for a, b in zip(*map(jax.tree.leaves, (new.target, new.critic)), strict=True))
        assert (gap < 1e-6) == copied
        assert not same(new.target, state.learner.target)


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(*map(jax.tree.leaves, (a, b)), strict=True))


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


def test_updates_draw_different_noise():
    """Without learning (all rates 0) updates see the same networks: what differs is what they draw."""
    still = {"actor_lr": 0.0, "critic_lr": 0.0, "temperature_lr": 0.0, "tau": 0.0}
    agent, hp, state = build(**still, updates_per_step=0.5)
    single, _, _ = build(**still)
    many, one = jax.jit(agent.learn), jax.jit(single.learn)
    key = jax.random.key(0)
    entropy = lambda learn, key, i: float(learn(hp, state, rollout_of(), key, jnp.uint32(i))[1]["entropy"])
    first = entropy(one, key, 0)
    assert first == entropy(one, key, 0)
    assert first != entropy(one, jax.random.key(1), 0)
    assert abs(entropy(many, key, 0) - first) > 1e-3  # the mean of three equals the first only if all are equal


@pytest.mark.parametrize(("rate", "updates"), [(0.5, 3), (1.0, 6), (2.0, 12)])
def test_updates_per_step(rate, updates):
    agent, hp, state = build(updates_per_step=rate)
    new, metrics = jax.jit(agent.learn)(hp, state, rollout_of(), jax.random.key(0), jnp.uint32(0))
    assert metrics["updates"] == updates
    assert metrics["updates"].dtype == jnp.int32
    assert new.learner.critic_opt[0].count == updates  # Adam counts too


@pytest.mark.parametrize(("rate", "valid"), [(0.25, "0.333333"), (0.4, "0.333333"), (0.01, "0.166667")])
def test_updates_that_are_not_whole_are_an_error(rate, valid):
    with pytest.raises(rlx.RlxError, match=rf"^updates_per_step={rate} gives .* the nearest valid value is {valid}$"):
        build(updates_per_step=rate)


@pytest.mark.parametrize("learning_starts", [18, 16, 13])
def test_nothing_is_learnt_before_learning_starts(learning_starts):
    """Six steps an iteration: the first update ends iteration 2, the first one that reaches learning_starts."""
    agent, hp, state = build(learning_starts=learning_starts)
    learn = jax.jit(agent.learn)
    start = state.learner
    for i in range(3):
        state, metrics = learn(hp, state, rollout_of(i), jax.random.key(i), jnp.uint32(i))
        assert metrics["updates"] == (i == 2)
        assert same(state.learner, start) == (i < 2)
    filled = np.abs(np.asarray(state.replay["obs"])).sum(-1) > 0
    assert filled.tolist() == [True] * 18 + [False] * 46


@pytest.mark.parametrize("learning_starts", [18, 16])
def test_actions_are_uniform_until_learning_starts(learning_starts):
    """So are those of iteration 2, collected before the first update: `learning_starts` steps of uniform actions."""
    agent, hp, state = build(learning_starts=learning_starts)
    bias = jax.tree.map(lambda x: x, state.learner.actor)
    bias["params"]["loc"]["bias"] = jnp.full(D, 3.0)  # a policy that nobody takes for uniform
    state = state.replace(learner=state.learner.replace(actor=bias))
    keys = jax.random.split(jax.random.key(0), 512)
    act = jax.jit(jax.vmap(lambda k, i: agent.act(hp, state, (), jnp.zeros(OBS), k, i)[0], (0, None)))
    for i in range(5):
        action = np.asarray(act(keys, jnp.uint32(i)))
        assert action.shape == (512, D)
        uniform = bool((np.abs(action.mean(0)) < 0.15).all() and (np.abs(action.var(0) - 1 / 3) < 0.05).all())
        assert uniform == (i < 3), f"iteration {i}"
    np.testing.assert_allclose(agent.greedy(hp, state, (), jnp.zeros(OBS), keys[0])[0], np.tanh(3.0), rtol=1e-5)


def test_metrics_are_nan_only_before_the_first_update():
    trainer = rlx.make("sac", "probe/ActionReward-continuous", **FIELDS | {"learning_starts": 12, "num_envs": 2})
    carry = trainer.init(2)
    uniform = trainer.act(carry, jnp.zeros((2, 256, 1)), jax.random.key(0))
    assert np.abs(np.mean(uniform)) < 0.15
    assert np.ptp(uniform) > 2.8  # of the box [-1.5, 1.5]
    carry, metrics = trainer.run(carry, 24, points=4)
    for name in ("critic_loss", "actor_loss", "entropy", "temperature", "q"):
        assert np.isnan(metrics[name]).tolist() == [[True, False, False, False]] * 2, name
    np.testing.assert_array_equal(metrics["updates"], [[0, 1, 1, 1]] * 2)
    _, all_in_one = trainer.run(trainer.init(2), 24)
    np.testing.assert_allclose(all_in_one["critic_loss"][:, 0], np.nanmean(metrics["critic_loss"], axis=1), rtol=1e-5)


def test_the_replay_must_hold_a_window():
    with pytest.raises(rlx.RlxError, match=r"^replay_capacity=5 must hold n_step \* num_envs = 6"):
        build(replay_capacity=5, n_step=3)
