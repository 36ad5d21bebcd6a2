"""DQN and TD3 with prioritised replay: losses and priorities against NumPy, what is drawn, probes, resume; and without it."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
from rlx import networks, priorities
from rlx.agents import dqn, td3
from tests.agents import dqn_support, td3_support, test_probes_dqn, test_probes_td3
from tests.agents.sac_support import OBS, N, T, same
from tests.trainer_support import differing

KEY = jax.random.key(0)
PER = T * N
GAMMA = 0.9
SCALE = np.float32([[10.0, 0.05], [10.0, 1.0], [0.05, 10.0]])  # of rewards: some errors are above 1, some below


def dqn_errors(state, obs, action, return_, discount, next_obs):
    """TD errors `[critics, B]`."""
    q = dqn.QNetwork(dqn.Config(**dqn_support.FIELDS), (OBS,), dqn_support.A).apply
    of = lambda params, obs: np.asarray(q(params, obs), np.float64)
    params, rows = state.learner.params, np.arange(len(obs))
    y = return_ + discount * of(state.learner.target, next_obs)[rows, of(params, next_obs).argmax(-1)]
    return of(params, obs)[rows, action][None] - y


def td3_errors(state, obs, action, return_, discount, next_obs):
    """TD errors `[critics, B]`, of targets without noise."""
    actor = td3.Actor(td3.Config(**td3_support.FIELDS), td3_support.SPEC).apply
    critics = networks.ensemble(networks.Critic, 2)((4,), "tanh", (OBS,)).apply
    pi = state.learner.policy
    y = return_ + discount * np.asarray(critics(pi.target_critic, next_obs, actor(pi.target_actor, next_obs))).min(0)
    return np.asarray(critics(state.learner.critic, obs, action), np.float64) - y


STILL = {"dqn": {"lr": 0.0, "tau": 0.0}, "td3": {"actor_lr": 0.0, "critic_lr": 0.0, "tau": 0.0}}
PROBE = {"dqn": "probe/Truncation", "td3": "probe/Truncation-continuous"}
METRIC = {"dqn": "loss", "td3": "critic_loss"}
SUPPORT = {
    "dqn": SimpleNamespace(build=dqn_support.build, rollout_of=dqn_support.rollout_of, errors=dqn_errors),
    "td3": SimpleNamespace(
        build=lambda **fields: td3_support.build(**{"target_noise": 0.0} | fields),
        rollout_of=td3_support.rollout_of, errors=td3_errors,
    ),
}  # fmt: skip
both = pytest.mark.parametrize("name", ["dqn", "td3"])


def build(name, **fields):
    return SUPPORT[name].build(**{"prioritized": True} | fields)


def rollout_of(name, seed=0):
    r = SUPPORT[name].rollout_of(seed)
    return r.replace(reward=SCALE * r.reward)


def windows_of(r, n_step):
    """What `errors` takes, of the windows that start at each slot: those of the last rows are cut short."""
    flat = lambda x: np.asarray(x).reshape(PER, *x.shape[2:])
    reward, weight, terminated = flat(r.reward), flat(r.weight), flat(r.terminated)
    ended = terminated | flat(r.truncated)
    returns, discounts, last = np.zeros(PER), np.zeros(PER), np.arange(PER)
    for slot in range(PER):
        k = 0
        while True:
            returns[slot] += GAMMA**k * reward[last[slot]]
            after = last[slot] + N
            if ended[last[slot]] or k + 1 == n_step or after >= PER or weight[after] == 0:
                break
            k, last[slot] = k + 1, after
        discounts[slot] = 0.0 if terminated[last[slot]] else GAMMA ** (k + 1)
    return flat(r.obs), flat(r.action), returns, discounts, flat(r.next_obs)[last]


def huber(error):
    return np.where(np.abs(error) < 1.0, 0.5 * error**2, np.abs(error) - 0.5)


def priority(error, exponent):
    """`[B]` of errors `[critics, B]`."""
    return np.maximum(1.0, np.abs(error).max(0)) ** exponent


@pytest.fixture
def fixed(monkeypatch):
    """Every batch is the windows that start at slots 0 to 3: slot 3 is quarantined."""
    monkeypatch.setattr(priorities, "draw", lambda p, table, key, n: jnp.arange(4, dtype=jnp.uint32))


# --- of one sample, by hand ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("target", "value", "slope"), [(1.5, 0.125, 0.5), (-3.0, 4.5, 1.0), (4.0, 1.5, -1.0)])
def test_huber_losses(target, value, slope, strict):
    """Of an error of 0.5, 5 and -2; with two critics, their sum."""
    y = jnp.float32(target)
    loss, grad = jax.value_and_grad(dqn.loss)(jnp.array([9.0, 2.0, -9.0]), jnp.int32(1), y, huber=True)
    np.testing.assert_allclose([loss, *grad], [value, 0.0, slope, 0.0], rtol=1e-6)
    loss, grad = jax.value_and_grad(td3.critic_loss)(jnp.array([2.0, target - 0.1]), y, huber=True)
    np.testing.assert_allclose([loss, *grad], [value + 0.005, slope, -0.1], rtol=1e-5)


# --- off ----------------------------------------------------------------------------------------------------------------


def reads_exponent(name, **fields):
    """Whether what learning computes takes `priority_exponent` at all."""
    agent, hp, state = build(name, **fields)
    args = hp, state, rollout_of(name), KEY, jnp.uint32(0)
    jaxpr = jax.make_jaxpr(agent.learn)(*args).jaxpr
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(args)]
    exponent = jaxpr.invars[paths.index("[0]['priority_exponent']")]
    return any(exponent is x for equation in jaxpr.eqns for x in equation.invars)


@both
def test_without_it_there_is_nothing_of_it(name):
    """No priorities in the state before or after, and an exponent that nothing reads: whatever it is, the bits are the same."""
    assert reads_exponent(name, prioritized=True) and not reads_exponent(name, prioritized=False)
    results = []
    for exponent in (0.0, 0.4):
        agent, hp, state = build(name, prioritized=False, priority_exponent=exponent)
        new, metrics = jax.jit(agent.learn)(hp, state, rollout_of(name), KEY, jnp.uint32(0))
        assert state.priorities == new.priorities == ()
        results.append((new, metrics))
    jax.tree.map(np.testing.assert_array_equal, *results)


# --- priorities and losses ---------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("n_step", [1, 2])
def test_priorities_and_loss_after_an_update_are_numpys(name, n_step, fixed):
    """By the networks before the update; what was not drawn keeps the priority of the new, where a window is complete."""
    agent, hp, state = build(name, n_step=n_step, gamma=GAMMA, priority_exponent=0.7)
    r = rollout_of(name)
    error = SUPPORT[name].errors(state, *windows_of(r, n_step))[:, :4]
    counts = np.asarray(r.weight).ravel()[:4] > 0
    want = np.where(counts, priority(error, 0.7), 1.0)
    assert (want[counts] == 1.0).any() and want.max() > 2.0, "the test is blind to the floor"
    new, metrics = jax.jit(agent.learn)(hp, state, r, KEY, jnp.uint32(0))
    got = np.asarray(new.priorities.values)
    np.testing.assert_allclose(got[:4], want, rtol=1e-4)
    complete = (T - n_step + 1) * N
    np.testing.assert_array_equal(got[4:PER], [1.0 if slot < complete else 0.0 for slot in range(4, PER)])
    assert not got[PER:].any() and new.priorities.highest == got.max()
    np.testing.assert_allclose(metrics[METRIC[name]], huber(error)[:, counts].sum(0).mean(), rtol=1e-4)
    assert metrics["updates"] == 1


@both
@pytest.mark.parametrize("exponent", [0.0, 1.0])
def test_large_errors_are_drawn_more_often(name, exponent):
    """Networks stand still, so the mean loss of a large batch tells what it was drawn by: at first all alike; then the first
    rollout by its errors, the second by the largest of those. With exponent 0 always all alike."""
    agent, hp, state = build(name, **STILL[name], gamma=GAMMA, priority_exponent=exponent, batch_size=20_000)
    learn = jax.jit(agent.learn)
    error, counts, metrics = [], [], []
    for i in range(2):
        r = rollout_of(name, seed=i)
        error.append(SUPPORT[name].errors(state, *windows_of(r, 1)))
        counts.append(np.asarray(r.weight).ravel() > 0)
        state, of = learn(hp, state, r, jax.random.fold_in(KEY, i), jnp.uint32(i))
        metrics.append(of[METRIC[name]])
        assert np.isfinite(state.priorities.values).all()
    first = np.where(counts[0], priority(error[0], exponent), 1.0)
    drawn_by = np.concatenate([first, np.full(PER, first.max())])
    counts, loss = np.concatenate(counts), huber(np.concatenate(error, axis=1)).sum(0)
    mean = lambda p, loss, counts: (p * loss)[counts].sum() / p[counts].sum()
    np.testing.assert_allclose(metrics[0], mean(np.ones(PER), loss[:PER], counts[:PER]), rtol=0.03)
    np.testing.assert_allclose(metrics[1], mean(drawn_by, loss, counts), rtol=0.03)
    alike = mean(np.ones(2 * PER), loss, counts)
    assert exponent == 0.0 or abs(metrics[1] / alike - 1) > 0.1, "the test is blind to it"
    want = priority(np.concatenate(error, axis=1), exponent)
    np.testing.assert_allclose(state.priorities.values[: 2 * PER], np.where(counts, want, 1.0), rtol=1e-3)


@both
@pytest.mark.parametrize("junk", [np.nan, 1e30])
def test_what_weighs_nothing_changes_nothing(name, junk, fixed):
    """Its own priority is 1, whatever it holds."""
    agent, hp, state = build(name, n_step=2)
    learn = jax.jit(agent.learn)
    r = rollout_of(name)
    want, metrics = learn(hp, state, r, KEY, jnp.uint32(0))
    other = r.replace(**{field: getattr(r, field).at[1, 1].set(junk) for field in ("obs", "reward", "next_obs")})
    got, others = learn(hp, state, other, KEY, jnp.uint32(0))
    jax.tree.map(np.testing.assert_array_equal, (got.learner, got.priorities, others), (want.learner, want.priorities, metrics))
    assert got.priorities.values[3] == 1.0 and np.isfinite(got.priorities.values).all()


@both
def test_nothing_is_drawn_before_learning_starts(name):
    """Windows are admitted all the same, and have what new ones have."""
    agent, hp, state = build(name, learning_starts=2 * PER, n_step=3)
    learn = jax.jit(agent.learn)
    first, metrics = learn(hp, state, rollout_of(name), KEY, jnp.uint32(0))
    assert metrics["updates"] == 0 and same(first.learner, state.learner)
    np.testing.assert_array_equal(np.flatnonzero(first.priorities.values), [0, 1])
    second, metrics = learn(hp, first, rollout_of(name, 1), KEY, jnp.uint32(1))
    assert metrics["updates"] == 1 and not same(second.learner, first.learner)
    np.testing.assert_array_equal(np.flatnonzero(second.priorities.values), np.arange(8))
    assert second.priorities.highest > 1.0


@both
def test_errors(name):
    with pytest.raises(rlx.RlxError, match=r"^replay_capacity=6 must hold 4 steps of 2 environments"):
        build(name, replay_capacity=6, n_step=2)
    build(name, replay_capacity=6, n_step=2, prioritized=False)
    with pytest.raises(rlx.RlxError, match=r"^priority_exponent=-0.1 must be >= 0$"):
        build(name, priority_exponent=-0.1)


# --- in the loop ---------------------------------------------------------------------------------------------------------


@both
def test_resume_is_bit_for_bit(name, tmp_path):
    """Saved after the ring has wrapped; priorities are part of what is saved."""
    fields = {
        "num_envs": 2, "rollout_length": 2, "updates_per_step": 0.5, "learning_starts": 20, "batch_size": 8,
        "replay_capacity": 64, "hidden_sizes": (8,), "n_step": 2, "prioritized": True,
    }  # fmt: skip
    make = lambda: rlx.make(name, PROBE[name], **fields)
    advance = lambda trainer, carry, n: trainer.advance(carry, trainer.no_totals(carry), n)[0]
    trainer = make()
    carry = advance(trainer, trainer.init(2), 23)
    trainer.save(carry, tmp_path / "a")
    values = np.asarray(carry.runs.agent.priorities.values)
    assert values.shape == (2, 128) and (values[:, 64:] == 0).all() and (np.count_nonzero(values, axis=1) == 62).all()
    restored = make().restore(tmp_path / "a")
    assert not differing(restored, carry)
    assert not differing(advance(trainer, restored, 20), advance(trainer, carry, 20))


def test_stacks_of_frames_are_learnt_from():
    """A window may start where its history is stored and a step follows it."""
    trainer = rlx.make(
        "dqn", "probe/BoardObservation", env_options={"frame_stack": 2}, num_envs=2, rollout_length=8, learning_starts=64,
        batch_size=4, replay_capacity=256, hidden_sizes=(4,), n_step=2, prioritized=True,
    )  # fmt: skip
    carry, metrics = trainer.run(trainer.init(1), 128)
    agent = carry.runs.agent
    assert metrics["updates"].tolist() == [[20]] and all(np.isfinite(x).all() for x in jax.tree.leaves(agent.learner))
    assert np.count_nonzero(agent.priorities.values) == 128 - 2 * 2


@test_probes_dqn.every
def test_dqn_values(name):
    solution, values, actions = test_probes_dqn.solve(name, prioritized=True)
    error = test_probes_dqn.errors(solution, values)
    assert error.max() <= test_probes_dqn.TOLERANCE, f"V = {values.mean(0)}, not {solution.value}: errors {error.max(0)}"
    if solution.action is not None:
        matters = solution.action >= 0
        np.testing.assert_array_equal(actions[:, matters], np.tile(solution.action[matters], (test_probes_dqn.SEEDS, 1)))


@test_probes_td3.every
def test_td3_values(name):
    solution, values, _ = test_probes_td3.solve(name, prioritized=True)
    error = test_probes_td3.errors(solution, values)
    assert error.max() <= 0.05, f"V = {values.mean(0)}, not {solution.value}: errors {error.max(0)}"
