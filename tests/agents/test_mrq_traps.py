"""The traps of MR.Q, on the agent in the real loop: what it stores, draws, synchronises and learns from, step by step.

What the updates are called with is compared with NumPy's account of the script. Trap numbers are those of the list of points
that re-implementations of MR.Q get wrong; (1) to (7) its acceptance tests.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from rlx.agents import mrq_losses as losses
from rlx.agents import mrq_updates as updates
from tests.agents.mrq_support import same
from tests.agents.mrq_traps_support import (
    CAPACITY,
    CASES,
    GAMMA,
    N_STEP,
    PERIOD,
    STARTS,
    Event,
    H,
    Record,
    Script,
    play,
    script_of,
    shape_of,
    steps_of,
)


@pytest.fixture(scope="module", params=CASES, ids=lambda name: name.replace(",", "").replace(" ", "-"))
def record(request):
    num_envs, rollout, rate, iterations = CASES[request.param]
    return play(script_of(num_envs), iterations, rollout_length=rollout, updates_per_step=rate)


# --- the schedule ---------------------------------------------------------------------------------------------------


def test_every_period_of_gradient_updates_begins_with_synchronisation_then_burst(record):
    """Trap 5, and what the period counts: updates, not env steps nor iterations; the first burst is at the first update."""
    names = [e.name for events in record.events for e in events]
    expected = []
    for k in range(names.count("rl")):
        expected += ["synchronise"] * (k % PERIOD == 0) + ["encode"] * PERIOD * (k % PERIOD == 0) + ["rl"]
    assert names == expected and names.count("synchronise") > 3


def test_learning_begins_after_exactly_learning_starts_steps(record):
    """Or once every environment has a window: then actions, random up to there, become the policy's and updates begin."""
    num_envs, per, made = shape_of(record)
    starts = max(STARTS, H * num_envs)
    stack = lambda *trees: jax.tree.map(lambda *x: np.stack(x), *trees)
    act = lambda nets, obs: jnp.tanh(record.net.preact(nets.policy, record.net.zs(nets.encoder, obs)))
    nets = stack(*(state.learner.nets for state in record.states[:-1]))
    policys = jax.jit(jax.vmap(act))(nets, np.stack([r.obs for r in record.rollouts]))
    for i, events in enumerate(record.events):
        assert len([e for e in events if e.name == "rl"]) == (made if (i + 1) * per >= starts else 0), i
        assert np.allclose(record.rollouts[i].action, policys[i], atol=1e-4) == (i * per >= starts), i


def test_all_targets_are_what_was_online_before_the_burst(record):
    """Trap 5: else the target encoder were the online one in all RL updates."""
    at_sync = None
    for events in record.events:
        for e in events:
            if e.name == "synchronise":
                at_sync = e.args["learner"]
                assert same(e.out.target, at_sync.nets) and same(e.out.nets, at_sync.nets)
            elif e.name == "encode":
                assert same(e.args["target"], at_sync.nets)
            else:
                assert same(e.args["learner"].target, at_sync.nets)
                assert not same(e.args["learner"].nets.encoder, at_sync.nets.encoder)


def test_the_encoder_stands_still_between_bursts(record):
    """Trap 8, (4): updates of values and policy move neither the encoder nor its optimiser; bursts go on where they ended."""
    encoder, bursts = None, 0
    for _, e in [(i, e) for i, events in enumerate(record.events) for e in events if e.name != "synchronise"]:
        if e.name == "encode":
            assert encoder is None or same(e.args["online"], encoder)
            encoder, bursts = e.out[0], bursts + 1
        else:
            assert same(e.args["learner"].nets.encoder, encoder) and same(e.out[0].nets.encoder, encoder)
            assert e.args["learner"].encoder_opt[0][0] == bursts and same(e.args["learner"].encoder_opt, e.out[0].encoder_opt)
            assert not same(e.args["learner"].nets.critic, e.out[0].nets.critic)


# --- windows --------------------------------------------------------------------------------------------------------


def goes_on(script: Script, t: int, n: int, horizon: int) -> list[int]:
    """The steps of the window from (t, n) that count, by hand: up to an episode's last step, or before a quarantined one."""
    out = []
    for k in range(t, t + horizon):
        if script.weight[k, n] == 0:
            break
        out.append(k)
        if script.terminated[k, n] or script.truncated[k, n]:
            break
    return out


def check_starts(record: Record, i: int, t: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Windows lie among what is stored, with H steps: nothing overwritten, nothing of the future. -> the items, `[B]`."""
    num_envs, per, _ = shape_of(record)
    item, total = t * num_envs + n, (i + 1) * per
    assert (item >= total - CAPACITY).all() and (item + (H - 1) * num_envs < total).all()
    return item


def test_the_encoder_unrolls_within_one_episode(record):
    """(1), traps 2 to 4: windows of terminated, truncated and short episodes, around the ring, with true successors."""
    script, (num_envs, _, _) = record.script, shape_of(record)
    starts, wrapped, kinds = set(), 0, set()
    for i, e in record.of("encode"):
        w = e.args["windows"]
        kept = w["weight"][:, 0] > 0  # the others are zeros
        w = {name: x[kept] for name, x in w.items()}
        t, n = steps_of(w["obs"][:, 0])
        item = check_starts(record, i, t, n)
        wrapped += int((item // CAPACITY != (item + (H - 1) * num_envs) // CAPACITY).sum())
        starts |= set(item.tolist())
        mask = np.asarray(jax.vmap(losses.window_mask)(w["terminated"], w["truncated"], w["weight"]))
        for b in range(len(t)):
            steps = goes_on(script, t[b], n[b], H)
            size = len(steps)
            np.testing.assert_array_equal(mask[b], np.arange(H) < size)
            np.testing.assert_array_equal(w["reward"][b, :size], script.reward[steps, n[b]])
            np.testing.assert_array_equal(w["terminated"][b, :size], script.terminated[steps, n[b]])
            np.testing.assert_array_equal(steps_of(w["obs"][b, :size]), (steps, [n[b]] * size))
            ended = script.terminated[steps, n[b]] | script.truncated[steps, n[b]]
            np.testing.assert_array_equal(w["next_obs"][b, :size, 2] == -1.0, ended)  # the true successor
            np.testing.assert_array_equal(steps_of(w["next_obs"][b, :size])[0], np.asarray(steps) + ~ended)
            kinds.add((size, bool(script.terminated[steps[-1], n[b]]), bool(script.truncated[steps[-1], n[b]])))
    assert wrapped > 0
    for size in (1, 2, 3, 4, 5):  # a start at every distance from either ending was drawn: none is left out
        assert {(size, True, False), (size, False, True)} <= kinds
    assert any(terminated and truncated for _, terminated, truncated in kinds) and (5, False, False) in kinds


def test_returns_and_bootstraps_around_every_ending(record):
    """(2), traps 1 and 3: the last reward of an episode counts, the next one's do not; only terminations stop bootstrapping."""
    script, kinds = record.script, set()
    for i, e in record.of("rl"):
        b = e.args["batch"]
        kept = np.flatnonzero(b.weight > 0)
        t, n = steps_of(b.obs)
        check_starts(record, i, t[kept], n[kept])
        for j in kept:
            steps = goes_on(script, t[j], n[j], N_STEP)
            last = steps[-1]
            want = sum(GAMMA**k * script.reward[s, n[j]] for k, s in enumerate(steps))
            np.testing.assert_allclose(b.return_[j], want, rtol=1e-5, atol=1e-5)
            terminated, truncated = script.terminated[last, n[j]], script.truncated[last, n[j]]
            assert b.discount[j] == (0.0 if terminated else GAMMA ** len(steps))
            assert (b.next_obs[j, 2] == -1.0) == (terminated or truncated)
            assert steps_of(b.next_obs[j])[0] == last + (not (terminated or truncated))
            kinds.add((len(steps), bool(terminated), bool(truncated)))
    for size in (1, 2, 3):
        assert {(size, True, False), (size, False, True)} <= kinds
    assert any(terminated and truncated for _, terminated, truncated in kinds)


def test_the_done_loss_is_off_until_a_terminal_was_seen(record):
    """A coefficient of 0 up to the iteration that brings the first termination, 1 from there on; no time limit counts."""
    terminated = [r.terminated.any() for r in record.rollouts]
    seen = np.maximum.accumulate(terminated)
    flags = [(seen[i], e.args["seen"]) for i, e in record.of("encode")]
    assert all(want == got for want, got in flags) and {float(got) for _, got in flags} == {0.0, 1.0}
    assert any(r.truncated.any() for r in record.rollouts[: int(np.argmax(seen))])


# --- reward scales --------------------------------------------------------------------------------------------------


def test_scales_are_those_of_the_stored_steps_and_hand_over_at_synchronisation(record):
    """(5), traps 6 and 7: empty, overwritten and quarantined slots do not count; the first target scale is 1."""
    _, per, _ = shape_of(record)
    reward, weight = (x.ravel() for x in (record.script.reward, record.script.weight))
    scale, target_scale = 1.0, None
    for i, events in enumerate(record.events):
        stored = slice(max(0, (i + 1) * per - CAPACITY), (i + 1) * per)
        for e in events:
            if e.name == "synchronise":
                target_scale, scale = scale, np.abs(reward[stored][weight[stored] > 0]).mean()
            elif e.name == "rl":
                np.testing.assert_allclose(e.args["learner"].scale, scale, rtol=1e-5)
                np.testing.assert_allclose(e.args["learner"].target_scale, target_scale, rtol=1e-5)


# --- priorities -----------------------------------------------------------------------------------------------------


def by_critics(record: Record, events: list[Event]) -> tuple[np.ndarray, np.ndarray]:
    """max_j |Q_j - y| `[events, 2, B]`, and the policy's loss `[events, 2]`: by the critics before the update, and after it."""
    net, nets = record.net, record.states[0].learner.nets
    unravel = [ravel_pytree(x)[1] for x in (nets.encoder, nets.critic, nets.policy)]
    restore = lambda x: updates.Nets(*(f(v) for f, v in zip(unravel, (x.encoder, x.critic, x.policy), strict=True)))

    def of(learner: Any, after: Any, b: Any) -> tuple[jax.Array, jax.Array]:
        online, target = restore(learner.nets), restore(learner.target)
        zs = net.zs(target.encoder, b.next_obs)
        next_q = net.q(target.encoder, target.critic, zs, jnp.tanh(net.preact(target.policy, zs))).min(0)
        y = (b.return_ + b.discount * next_q * learner.target_scale) / learner.scale
        zs = net.zs(online.encoder, b.obs)
        u = net.preact(online.policy, zs)
        q = lambda critic, action: net.q(online.encoder, critic, zs, action)
        critics = (online.critic, restore(after.nets).critic)
        loss = lambda critic: b.mean(-q(critic, jnp.tanh(u)).mean(0) + 1e-5 * (u**2).mean(1))
        return jnp.stack([jnp.abs(q(c, b.action) - y).max(0) for c in critics]), jnp.stack([loss(c) for c in critics])

    args = [(e.args["learner"], e.out[0], e.args["batch"]) for e in events]
    errors, losses = jax.jit(jax.vmap(of))(*jax.tree.map(lambda *x: np.stack(x), *args))
    return np.asarray(errors), np.asarray(losses)


def test_priorities_are_by_the_critics_before_the_update_and_the_policy_by_those_after(record):
    """(7), trap 10: the larger scaled error of both, floored at 1, then to the power of 0.4; 1 for windows that weigh 0."""
    events = [e for _, e in record.of("rl")][::5]
    got, weight = (np.stack(x) for x in zip(*((e.out[1], e.args["batch"].weight) for e in events), strict=True))
    errors, losses = by_critics(record, events)
    before, after = np.moveaxis(np.maximum(errors, 1.0) ** 0.4, 1, 0)
    np.testing.assert_allclose(got, np.where(weight > 0, before, 1.0), rtol=1e-3)
    assert np.abs(after / before - 1.0)[weight > 0].max() > 5e-3  # such that they are told apart
    np.testing.assert_allclose([e.out[2]["actor_loss"] for e in events], losses[:, 1], rtol=1e-3, atol=1e-4)
    assert np.abs(losses[:, 0] - losses[:, 1]).max() > 5e-3


def test_the_highest_priority_is_never_reset(record):
    """Trap 10: synchronisation leaves it, and what is stored is what a slot was given when it was drawn or admitted."""
    num_envs, per, _ = shape_of(record)
    highest = 1.0
    for i, events in enumerate(record.events):
        before, after = record.states[i].priorities, record.states[i + 1].priorities
        want = np.array(before.values)
        new = np.arange(i * per, (i + 1) * per)
        want[new % CAPACITY] = 0.0
        legal = new - (H - 1) * num_envs
        want[legal[legal >= 0] % CAPACITY] = highest
        for e in [e for e in events if e.name == "rl"]:
            b, given = e.args["batch"], {}
            t, n = steps_of(b.obs)
            for j in range(len(t)):
                slot = (t[j] * num_envs + n[j]) % CAPACITY
                if b.weight[j] > 0:
                    given[slot] = max(given.get(slot, 0.0), e.out[1][j])
            want[list(given)] = list(given.values())
            highest = max(highest, float(e.out[1].max()))
        quarantined = [k % CAPACITY for k in range(max(0, (i + 1) * per - CAPACITY), (i + 1) * per)
                       if record.script.weight.ravel()[k] == 0]  # fmt: skip
        got = np.array(after.values)
        got[quarantined] = want[quarantined] = 0.0  # drawn or not: not told by zeros
        np.testing.assert_allclose(got, want, rtol=1e-6, err_msg=str(i))
        assert after.highest == np.float32(highest)
    last = max(e.out[1].max() for e in record.events[-1] if e.name == "rl")
    assert highest > 1.5 * last  # it has come down since, so that a reset would have shown
