"""MR.Q as an agent: when targets, encoder and priorities move, and how it acts."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
from rlx import off_policy, priorities
from rlx.agents import mrq
from rlx.agents import mrq_updates as updates
from tests.agents.mrq_support import FIELDS, SPEC, D, N, T, build, rollout_of, same

PER = T * N
KEY = jax.random.key(0)
DISCRETE = SPEC._replace(num_actions=4, action_dim=0)


def run(iterations, start=0, **fields):
    """The states before the first and after each of the iterations, and the metrics of each."""
    agent, hp, state = build(**fields)
    learn = jax.jit(agent.learn)
    states, metrics = [state], []
    for i in range(start, start + iterations):
        state, of = learn(hp, state, rollout_of(i), jax.random.fold_in(KEY, i), jnp.uint32(i))
        states.append(state)
        metrics.append(of)
    return hp, states, metrics


@pytest.fixture(scope="module")
def seven():
    return run(7)


# --- the period ----------------------------------------------------------------------------------------------------


def test_targets_are_what_was_before_the_burst_and_stay_for_a_period(seven):
    _, states, metrics = seven
    for i in range(7):
        before, after = states[i].learner, states[i + 1].learner
        assert metrics[i]["updates"] == 1
        assert same(after.target, before.nets if i % 3 == 0 else before.target), i
        assert same(after.nets.encoder, before.nets.encoder) == (i % 3 != 0), i
        assert after.encoder_opt[0].count == 3 * (i // 3 + 1)
        assert not same(after.nets.critic, before.nets.critic) and not same(after.nets.policy, before.nets.policy)
        assert (after.encoder_loss == before.encoder_loss) == (i % 3 != 0)


def test_reward_scales_over_two_synchronisations(seven):
    _, states, _ = seven
    absolute = [np.abs(r.reward[r.weight > 0]) for r in map(rollout_of, range(7))]
    mean = lambda n: np.concatenate(absolute[:n]).mean()
    for i in range(7):
        k = i // 3  # synchronisations before this one
        np.testing.assert_allclose(states[i + 1].learner.scale, mean(3 * k + 1), rtol=1e-5)
        np.testing.assert_allclose(states[i + 1].learner.target_scale, mean(3 * k - 2) if k else 1.0, rtol=1e-5)


def test_a_replay_without_rewards_has_scale_one():
    """1e-8, as published, would make the first targets 1e8 and priorities 1e3 for good."""
    stored = lambda reward: {"reward": jnp.asarray(reward), "weight": jnp.asarray([1.0, 1.0, 0.0])}
    assert mrq.mean_absolute_reward(stored([0.0, 0.0, 5.0])) == 1.0
    assert mrq.mean_absolute_reward(stored([-1.0, 3.0, 5.0])) == 2.0
    np.testing.assert_allclose(mrq.mean_absolute_reward(stored([0.0, 1e-12, jnp.nan])), 1e-8)
    _, states, _ = run(1, reward_scaling=False)
    assert states[-1].learner.scale == 1.0


def test_periods_count_gradient_updates():
    """Three updates an iteration of six env steps, a period of four: counted from the first update."""
    start = 2  # iterations before the first update
    _, states, metrics = run(5, updates_per_step=0.5, target_period=4, learning_starts=(start + 1) * PER)
    for i, state in enumerate(states[1:]):
        made = 3 * max(i + 1 - start, 0)
        assert metrics[i]["updates"] == 3 * (i >= start)
        count = lambda opt: int(opt[0].count)
        assert count(state.learner.policy_opt) == made
        assert count(state.learner.encoder_opt) == 4 * -(-made // 4)
    assert same(states[start].learner, states[0].learner)


def test_the_done_loss_switches_on_when_a_terminal_was_seen():
    agent, hp, state = build()
    none = rollout_of(terminated=jnp.zeros((T, N), bool))
    learn = jax.jit(agent.learn)
    at = lambda state, rollout, i: learn(hp, state, rollout, KEY, jnp.uint32(i))[0]
    first = at(state, none, 0)
    assert first.terminal_seen == 0.0
    assert at(first, rollout_of(1), 1).terminal_seen == 1.0
    assert at(at(first, rollout_of(1), 1), none, 2).terminal_seen == 1.0
    only_quarantined = rollout_of(terminated=jnp.zeros((T, N), bool).at[1, 1].set(True))
    assert at(state, only_quarantined, 0).terminal_seen == 0.0


# --- priorities ----------------------------------------------------------------------------------------------------


@pytest.fixture
def fixed(monkeypatch):
    """Every batch is the windows that start at slots 0 to 3, all there are after one rollout."""
    monkeypatch.setattr(priorities, "draw", lambda p, table, key, n: jnp.arange(4, dtype=jnp.uint32))


DESIGN_STUDY = [  # every switch once, several in each program where they do not meet
    {}, {"minimum": False, "linear_value": True, "reward_loss": "mse"}, {"target_encoder": False, "linear_model": False},
    {"model_based": False, "value_loss": "mse", "priority_exponent": 0.0}, {"reward_scaling": False, "n_step": 1},
    {"dynamics_target": "zsa", "zsa_size": 8},
]  # fmt: skip


@pytest.mark.parametrize("switch", DESIGN_STUDY, ids=lambda switch: "-".join(switch))
def test_critic_loss_and_priorities_after_an_update_are_numpys(fixed, switch):
    fields = {"target_noise": 0.0, "gamma": 0.9, "zs_size": 8} | switch
    agent, hp, state = build(**fields)
    r = rollout_of(reward=20.0 * rollout_of().reward)
    new, metrics = jax.jit(agent.learn)(hp, state, r, KEY, jnp.uint32(0))
    c = mrq.Config(**FIELDS | fields)
    net = updates.networks(c, SPEC)
    old, learner = state.learner.nets, new.learner
    encoder = learner.nets.encoder if c.model_based else old.encoder  # after the burst
    target = old.encoder if c.target_encoder else encoder  # the one before it
    flat = lambda x: np.asarray(x).reshape(PER, *x.shape[2:])
    reward, weight, terminated = flat(r.reward), flat(r.weight), flat(r.terminated)
    ended = terminated | flat(r.truncated)
    first = np.arange(4)
    last = first if c.n_step == 1 else np.where(ended[:4] | (weight[first + N] == 0), first, first + N)
    returns = reward[first] + np.where(last != first, 0.9 * reward[last], 0.0)
    discount = np.where(terminated[last], 0.0, np.where(last == first, 0.9, 0.9**2))
    zs = net.zs(target, flat(r.next_obs)[last])
    next_q = np.asarray(net.q(target, old.critic, zs, jnp.tanh(net.preact(old.policy, zs))))
    y = (returns + discount * (np.min if c.minimum else np.mean)(next_q, axis=0)) / learner.scale
    error = np.abs(net.q(encoder, old.critic, net.zs(encoder, flat(r.obs)[:4]), flat(r.action)[:4]) - y)  # [2, slots]
    loss = np.where(error < 1.0, error**2 / 2.0, error - 0.5) if c.value_loss == "huber" else error**2
    total = (weight[:4] * loss.mean(0)).sum()
    want = np.where(weight[:4] > 0, np.maximum(1.0, error.max(0)) ** c.priority_exponent, 1.0)
    np.testing.assert_allclose(new.priorities.values[:4], want, rtol=1e-4)
    np.testing.assert_allclose(metrics["critic_loss"], total / weight[:4].sum(), rtol=1e-4)
    got = np.asarray(new.priorities.values)
    assert (got[4:] == 0).all() and new.priorities.highest == got.max() > (1.0 if c.priority_exponent else 0.0)


def test_without_a_model_the_critics_train_the_encoder(fixed):
    _, states, _ = run(4, model_based=False)
    for before, after in itertools.pairwise(state.learner for state in states):
        assert after.encoder_opt[0].count == before.encoder_opt[0].count + 1 and after.encoder_loss == 0.0
        old, new = before.nets.encoder["params"], after.nets.encoder["params"]
        assert not same(old["zs_mlp"], new["zs_mlp"]) and not same(old["zsa_mlp"], new["zsa_mlp"])
    gradient_free = states[-1].learner.encoder_opt[0].mu["params"]["model"]
    assert not any(np.asarray(x).any() for x in jax.tree.leaves(gradient_free))


@pytest.mark.parametrize("junk", [np.nan, 1e30])
def test_what_weighs_nothing_changes_nothing(junk, fixed):
    agent, hp, state = build()
    learn = jax.jit(agent.learn)
    r = rollout_of()
    want, metrics = learn(hp, state, r, KEY, jnp.uint32(0))
    other = r.replace(**{name: getattr(r, name).at[1, 1].set(junk) for name in ("obs", "action", "reward", "next_obs")})
    got, others = learn(hp, state, other, KEY, jnp.uint32(0))
    jax.tree.map(np.testing.assert_array_equal, (got.learner, got.priorities, others), (want.learner, want.priorities, metrics))


def test_windows_start_only_where_the_longer_horizon_fits():
    """After one rollout of three steps, of n-step returns of one: three starts with an unroll of one, one with three."""
    for horizon, starts in ((1, 6), (3, 2)):
        _, states, _ = run(1, n_step=1, enc_horizon=horizon)
        assert np.count_nonzero(states[-1].priorities.values) == starts


# --- acting ----------------------------------------------------------------------------------------------------


def acts(i, n=512, **fields):
    agent, hp, state = build(learning_starts=16, **fields)
    keys = jax.random.split(KEY, n)
    obs = jnp.asarray([0.3, -1.2, 0.5])
    greedy = jax.vmap(lambda k: agent.greedy(hp, state, (), obs, k)[0])(keys)
    return np.asarray(jax.vmap(lambda k: agent.act(hp, state, (), obs, k, jnp.uint32(i))[0])(keys)), np.asarray(greedy)


def test_continuous_actions():
    """Uniform until learning starts (iterations 0 to 2), then the policy's with noise added after the tanh."""
    action, _ = acts(2)
    assert action.shape == (512, D) and np.abs(action.mean(0)).max() < 0.15 and np.abs(action.var(0) - 1 / 3).max() < 0.05
    action, greedy = acts(3, exploration_noise=0.01)
    assert (greedy == greedy[0]).all() and np.abs(action).max() <= 1.0
    np.testing.assert_allclose(action.mean(0), greedy[0], atol=0.002)
    np.testing.assert_allclose(action.std(0), 0.01, rtol=0.15)


def test_discrete_actions():
    """Evaluation samples softmax(u), as published scores did, or takes its argmax; little noise moves no sample."""
    action, _ = acts(2, spec=DISCRETE)
    assert action.shape == (512,) and action.dtype == np.int32
    assert np.abs(np.bincount(action, minlength=4) / 512 - 0.25).max() < 0.08
    _, sampled = acts(3, spec=DISCRETE)
    _, best = acts(3, spec=DISCRETE, sample_greedy=False)
    assert len(set(sampled)) > 1 and len(set(best)) == 1
    quiet, _ = acts(3, spec=DISCRETE, exploration_noise=1e-6, gumbel_temperature=1.0)
    share = lambda x: np.bincount(x, minlength=4) / 512
    assert np.abs(share(quiet) - share(sampled)).max() < 0.1
    loud, _ = acts(3, spec=DISCRETE, exploration_noise=50.0)
    assert np.abs(share(loud) - 0.25).max() < 0.08


def test_discrete_actions_are_one_hot_for_the_networks():
    """Those of the warm-up too: they are stored as numbers, and become vectors only in an update."""
    net = updates.networks(mrq.Config(**FIELDS), DISCRETE)
    np.testing.assert_array_equal(net.vector(jnp.asarray([2, 0])), np.eye(4)[[2, 0]])
    actions = jax.random.randint(KEY, (T, N), 0, 4, jnp.int32)
    agent, hp, state = build(spec=DISCRETE)
    new, metrics = jax.jit(agent.learn)(hp, state, rollout_of(action=actions), KEY, jnp.uint32(0))
    assert metrics["updates"] == 1 and all(np.isfinite(x).all() for x in jax.tree.leaves(new.learner))


def test_the_value_is_in_units_of_the_reward():
    agent, hp, state = build()
    obs = jnp.asarray([0.3, -1.2, 0.5])
    scaled = state.replace(learner=state.learner.replace(scale=jnp.float32(7.0)))
    np.testing.assert_allclose(agent.value(hp, scaled, obs), 7.0 * agent.value(hp, state, obs), rtol=1e-6)


# --- config and schedule ---------------------------------------------------------------------------------------------------


def test_errors():
    with pytest.raises(rlx.RlxError, match=r"^mrq learns from a scalar reward; probe/VectorReward"):
        rlx.make("mrq", "probe/VectorReward")
    with pytest.raises(rlx.RlxError, match="replay_capacity=6 must hold"):
        build(replay_capacity=6)
    with pytest.raises(rlx.RlxError, match="enc_horizon=0 must be >= 1"):
        build(enc_horizon=0)


def test_periods_begin_where_the_previous_one_is_complete():
    plan = off_policy.Plan(random=4, start=3, updates=5)
    u = jnp.arange(5, dtype=jnp.uint32)
    flags = lambda f, i: np.asarray(jax.vmap(lambda u: f(plan, 7, jnp.uint32(i), u))(u))
    begins = np.concatenate([flags(off_policy.begins, i) for i in range(3, 20)])
    completes = np.concatenate([flags(off_policy.completes, i) for i in range(3, 20)])
    np.testing.assert_array_equal(np.flatnonzero(begins), np.arange(0, 85, 7))
    np.testing.assert_array_equal(begins[1:], completes[:-1])
