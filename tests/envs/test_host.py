"""Host environments as the loop steps them: against a plain loop over the same simulators, alone and in company."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlx.envs import host, pools
from tests.envs.host_support import (
    FINE,
    NAN_OBS,
    NAN_REWARD,
    RAISE,
    N,
    Program,
    R,
    Scripted,
    T,
    assert_equal,
    fine,
    keys,
    make,
    pick,
    program,
    seed_of,
)

KEYS = keys(0, 1, 2)
RANDOM = np.random.default_rng(0)


def plain(env, seed, actions):
    """The rows (obs, next_obs, reward, terminated, truncated) of one environment stepped by hand, and its start."""
    start, _ = env.reset(seed=seed)
    rows = []
    for action in actions:
        next_obs, reward, terminated, truncated, _ = env.step(action)
        obs = env.reset()[0] if terminated or truncated else next_obs
        rows.append((obs, next_obs, reward, terminated, truncated))
    return start, rows


def test_against_a_plain_loop():
    start, steps = program()(KEYS, fine())
    endings = set()
    for r in range(R):
        for j in range(N):
            by_hand, rows = plain(make().kind.build(), seed_of(KEYS[r], j), [FINE] * T)
            np.testing.assert_array_equal(start[r, j], np.float32(by_hand))
            for t, (obs, next_obs, reward, terminated, truncated) in enumerate(rows):
                np.testing.assert_array_equal(steps.obs[r, t, j], np.float32(obs))
                np.testing.assert_array_equal(steps.next_obs[r, t, j], np.float32(next_obs))
                assert steps.reward[r, t, j] == reward
                assert (steps.terminated[r, t, j], steps.truncated[r, t, j]) == (terminated, truncated)
                endings.add((int(next_obs[1]), terminated, truncated))
    assert {(3, True, False), (5, False, True)} <= endings  # both kinds were seen
    assert steps.weight.min() == 1 and steps.info == {}
    dtypes = {name: getattr(steps, name).dtype.name for name in ("obs", "next_obs", "reward", "terminated", "truncated")}
    assert list(dtypes.values()) == ["float32", "float32", "float32", "bool", "bool"]


def test_an_ending_by_hand():
    start, steps = program()(KEYS, fine())
    obs, first = steps.next_obs, np.argmax(steps.terminated | steps.truncated, axis=1)
    for r in range(R):
        for j in range(N):
            end = 2 if start[r, j, 0] < 0.5 else 4
            assert first[r, j] == end
            assert steps.terminated[r, end, j] == (end == 2) and steps.truncated[r, end, j] == (end == 4)
            np.testing.assert_array_equal(obs[r, : end + 1, j, 1], np.arange(1, end + 2))
            np.testing.assert_array_equal(obs[r, : end + 1, j, 0], start[r, j, 0])
            assert steps.obs[r, end, j, 1] == 0 and steps.obs[r, end, j, 0] != start[r, j, 0]  # a fresh start
            np.testing.assert_array_equal(steps.obs[r, end, j, 0], obs[r, end + 1, j, 0])


def test_a_run_does_not_depend_on_its_company():
    together = program()(KEYS, fine())
    for r in range(R):
        assert_equal(pick(together, r), pick(program()(KEYS[r : r + 1], fine(r=1)), 0))
    assert_equal(pick(together, 0), pick(program()(keys(0, 0), fine(r=2)), 1))  # equal seeds, equal environments
    assert len(np.unique(together[0][..., 0])) == R * N
    fewer = program(1)(KEYS, fine(n=1))
    assert_equal(jax.tree.map(lambda x: x[..., :1, :], together[0]), fewer[0])


def test_one_call_a_step_for_two_vmapped_axes(monkeypatch):
    calls = []

    def recorded(name, method):
        def record(self, out, *args):
            calls.append((name, args[0].shape))
            method(self, out, *args)

        return record

    for name in ("reset", "step"):
        monkeypatch.setattr(pools.Pools, name, recorded(name, getattr(pools.Pools, name)))
    vec = make().vectorise(N)

    @jax.jit
    def run(keys):
        def one(key, action):
            state, _ = vec.reset(key, None)
            return jax.lax.scan(lambda s, _: vec.step(key, s, action, None), state, length=4)[1].reward

        return jax.vmap(jax.vmap(one, (0, None)), (0, None))(keys, jnp.full(N, FINE, jnp.int32))  # actions unbatched

    reward = run(jax.random.split(jax.random.key(0), (2, 3)))
    assert reward.shape == (2, 3, 4, N)
    assert calls == [("reset", (2, 3, N))] + [("step", (2, 3, N, 3))] * 4


def test_io_callback_gives_the_same(monkeypatch):
    """What accelerators use, and jax before 0.6.1."""
    monkeypatch.setattr(host, "buffer_callback", None)
    jaxpr = str(jax.make_jaxpr(Program(make())._reset)(KEYS))
    assert "io_callback" in jaxpr and "ordered=False" in jaxpr and "buffer_callback" not in jaxpr
    assert_equal(Program(make())(KEYS, fine()), program()(KEYS, fine()))


def test_repeats_and_segments_give_the_same_bits():
    p = program()
    tokens, _ = p.reset(KEYS)
    whole = p.run(tokens, fine())
    assert_equal(p.run(p.reset(KEYS)[0], fine()), whole)
    half, first = p.run(p.reset(KEYS)[0], fine(T // 2))
    last, second = p.run(half, fine(T // 2))
    assert_equal((last, jax.tree.map(lambda a, b: np.concatenate([a, b], 1), first, second)), whole)
    assert tokens.dtype == np.uint32 and (tokens[..., 0] == 0).all() and (last[..., 0] == T).all()


# --- quarantine --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("poison", [NAN_OBS, NAN_REWARD])
def test_nan_ends_its_own_episode_only(poison):
    actions = fine()
    actions[1, 1, 0] = poison
    start, clean = program()(KEYS, fine())
    _, steps = program()(KEYS, actions)
    assert steps.truncated[1, 1, 0] and not steps.terminated[1, 1, 0]
    assert steps.weight[1, 1, 0] == 0 and steps.weight.sum() == steps.weight.size - 1
    assert steps.reward[1, 1, 0] == 0 and (steps.next_obs[1, 1, 0] == 0).all()
    assert steps.obs[1, 1, 0, 1] == 0 and steps.obs[1, 1, 0, 0] != start[1, 0, 0]
    assert np.isfinite(steps.obs).all()
    others = np.ones((R, T, N), bool)
    others[1, :, 0] = False
    assert_equal(jax.tree.map(lambda x: x[others], steps), jax.tree.map(lambda x: x[others], clean))


# --- without resets ----------------------------------------------------------------------------------------------------


def test_a_finished_environment_is_not_stepped():
    p = program(auto_reset=False)
    before = Scripted.steps
    start, steps = p(KEYS, fine())
    ended = steps.terminated | steps.truncated
    lengths = np.where(start[..., 0] < 0.5, 3, 5)
    np.testing.assert_array_equal(ended.sum(1), 1)
    np.testing.assert_array_equal(ended.argmax(1) + 1, lengths)
    assert Scripted.steps - before == lengths.sum()
    after = np.arange(T)[None, :, None] >= lengths[:, None]
    for x in (steps.obs, steps.next_obs, steps.reward, steps.weight, ended):
        assert not x[after].any()
    np.testing.assert_array_equal(steps.weight, ~after)
    np.testing.assert_array_equal(steps.obs, steps.next_obs)
    _, once_more = p(KEYS, fine())  # its simulators are used again
    assert_equal(once_more, steps)


# --- simulators that are not there -------------------------------------------------------------------------------------


def test_tokens_of_nobody_begin_afresh():
    p = Program(make())
    half, first = p.run(p.reset(KEYS)[0], fine(4))
    p.env.close()
    after, steps = p.run(half, fine())
    assert steps.truncated[:, 0].all() and not steps.terminated[:, 0].any()
    assert not steps.weight[:, 0].any() and steps.weight[:, 1:].all()
    assert not steps.next_obs[:, 0].any() and not steps.reward[:, 0].any()
    assert not steps.obs[:, 0, :, 1].any()
    assert not np.isin(steps.obs[:, 0, :, 0], first.obs[..., 0]).any()
    assert len(np.unique(steps.obs[:, 0, :, 0])) == R * N
    np.testing.assert_array_equal(steps.next_obs[:, 1], steps.obs[:, 0] + [0, 1])  # and go on
    p.env.close()
    assert_equal(p.run(half, fine()), (after, steps))  # the same each time


def test_at_tick_0_nothing_is_lost():
    p = Program(make())
    tokens, _ = p.reset(KEYS)
    whole = p.run(tokens, fine())
    assert_equal(p.run(tokens, fine()), whole)  # they have moved on
    p.env.close()
    assert_equal(p.run(tokens, fine()), whole)


def test_two_carries_take_turns_and_a_third_is_sound():
    """Equal seeds, equal ticks, other actions: nothing but the digest tells them apart."""
    p = Program(make())
    other = fine()
    other[:, :, 0] = FINE + 1  # NaN in every step of environment 0
    a, b = p.reset(KEYS)[0], p.reset(KEYS)[0]
    for x, y in ((fine(), other), (fine(), fine())):  # equal histories too
        alone = [p.run(p.reset(KEYS)[0], actions)[1] for actions in (x, y)]
        turns = [a, b]
        for half, order in ((slice(0, 5), (0, 1)), (slice(5, T), (1, 0))):
            for i in order:
                turns[i], steps = p.run(turns[i], (x, y)[i][:, half])
                assert_equal(steps, jax.tree.map(lambda s, half=half: s[:, half], alone[i]))
    third, steps = p.run(p.reset(keys(3, 4, 5))[0], fine())  # takes the simulators of the first
    assert steps.weight.all() and len(p.env.pools[0].waiting) == pools.KEPT == 2
    weights = [p.run(tokens, fine())[1].weight for tokens in (turns[1], third, turns[0])]
    assert weights[0].all() and weights[1].all() and not weights[2][:, 0].any() and weights[2][:, 1:].all()


def test_layouts_differ_without_leaking():
    p = Program(make())
    for r in (1, 2, 3, 1, 2):
        p.run(p.reset(keys(*range(r)))[0], fine(r=r))
    waiting = p.env.pools[0].waiting
    assert sorted(len(pool.envs) for _, pool in waiting) == [1 * N, 2 * N]


# --- what goes wrong ---------------------------------------------------------------------------------------------------


def test_an_exception_is_noted_and_its_simulators_are_closed():
    Scripted.alive.clear()
    p = Program(make())
    tokens, _ = p.reset(KEYS)
    assert len(Scripted.alive) == R * N
    actions = fine()
    actions[2, 1, 1] = RAISE
    driven = host.surfacing(p.env, p._run)
    with pytest.raises(ZeroDivisionError, match="broken at time 2") as caught:
        driven(tokens, jnp.asarray(actions))
    assert caught.value.__notes__ == ["in environment 1 of run 2 of gymnasium/rlx-test/Scripted-v0"]
    assert caught.traceback[-1].path.name == "host_support.py"  # the environment's own line
    assert not Scripted.alive and not p.env.failures

    def fail():
        raise jax.errors.JaxRuntimeError("of the program's own")

    with pytest.raises(jax.errors.JaxRuntimeError, match="own"):
        host.surfacing(p.env, fail)()
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"in step\n(.|\n)*ZeroDivisionError: broken at time 1"):
        jax.block_until_ready(p._run(p.reset(KEYS)[0], jnp.full((R, T, N), RAISE, jnp.int32)))
    assert p.run(p.reset(KEYS)[0], fine())[1].weight.all()  # it works again


def test_an_observation_outside_its_shape(monkeypatch):
    p = Program(make())
    monkeypatch.setattr(Scripted, "reset", lambda self, seed=None, options=None: (np.zeros(1), {}))
    with pytest.raises(Exception, match=r"an observation has shape \(1,\), its space says \(2,\)"):
        p.reset(KEYS)


def test_it_cannot_be_stepped_or_wrapped():
    env = make()
    for call in (
        lambda: env.reset_env(KEYS[0], env.default_params),
        lambda: env.step_env(KEYS[0], (), 0, env.default_params),
        lambda: env.is_truncated((), env.default_params),
    ):
        with pytest.raises(host.RlxError, match=r"^gymnasium/rlx-test/Scripted-v0 steps on the host"):
            call()


def test_close():
    Scripted.alive.clear()
    p = Program(make())
    p.reset(KEYS)
    assert len(Scripted.alive) == R * N
    p.env.close()
    assert not Scripted.alive
    p.env.close()
    p.reset(KEYS)
    del p
    gc.collect()
    assert not Scripted.alive  # its environment is gone
