"""The replay of off-policy agents: the same transitions come out whether stacks are stored whole or frame by frame."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlx
from rlx import envs, footprint
from rlx.envs.modifiers import ActionRepeat, FrameStack, ObservationNoise
from rlx.envs.wrappers import TimeLimit, spec
from rlx.errors import RlxError
from rlx.ring import EPISODE, ring
from rlx.types import EnvSpec, Transition

STEPS = 48  # of each environment


def spec_of(frames, shape=(1, 2, 1), dtype="int32"):
    return EnvSpec("frames", (*shape[:-1], shape[-1] * frames), jnp.dtype(dtype), 3, 1, (), 10, frames)


def history(num_envs, frames, ends, seed):
    """STEPS steps of `num_envs` environments, where episodes end with probability `ends`; each frame is a number of its own.

    `reward` numbers the steps, time-major. Stacks are made here, by hand: an episode's first frame stands for those before it.
    """
    rng = np.random.default_rng(seed)
    number = iter(range(1, 10**6))
    frame = lambda: np.full((1, 2, 1), next(number)) * [[[1], [-1]]]
    stack_up = lambda seen: np.concatenate(([seen[0]] * frames + seen)[-frames:], axis=-1)
    seen = [[frame()] for _ in range(num_envs)]
    steps = []
    for t in range(STEPS):
        for n in range(num_envs):
            obs, first = stack_up(seen[n]), len(seen[n]) == 1
            seen[n].append(frame())
            end = int(rng.choice(3, p=[1 - ends, ends / 2, ends / 2]))
            steps.append((obs, stack_up(seen[n]), t * num_envs + n, end == 1, end == 2, first))
            if end:
                seen[n] = [frame()]
    shape = lambda x, dtype: np.asarray(x, dtype).reshape(STEPS, num_envs, *np.asarray(x[0]).shape)
    obs, next_obs, reward, terminated, truncated, first = (
        shape(column, dtype)
        for column, dtype in zip(zip(*steps, strict=True), (int, int, np.float32, bool, bool, bool), strict=True)
    )
    ones = np.ones((STEPS, num_envs), np.float32)
    obs, next_obs = obs.astype(np.int32), next_obs.astype(np.int32)
    return Transition(obs, np.int32(3 * ones), reward, next_obs, terminated, truncated, first, ones, {}, ())


@functools.cache
def compiled(frames, num_envs, length, capacity, horizon):
    buffer = ring(spec_of(frames), capacity, num_envs, length)
    return buffer, jax.jit(buffer.insert), jax.jit(lambda data, key, i: buffer.sample(data, key, 512, i, horizon))


def filled(case, steps, iterations):
    """A ring after that many iterations, and its `sample`."""
    buffer, insert, sample = compiled(*case)
    data = buffer.init()
    for i in range(iterations):
        data = insert(data, rollout(steps, i, case), jnp.uint32(i))
    return data, sample


def rollout(steps, i, case):
    return jax.tree.map(lambda x: x[i * case[2] : (i + 1) * case[2]], steps)


# (frames, N, T, capacity, horizon): capacities that N divides and not, rollouts longer than the ring, no stack
CASES = [(3, 1, 1, 12, 1), (3, 2, 3, 24, 2), (2, 3, 4, 31, 3), (4, 2, 8, 17, 1), (3, 1, 12, 9, 2), (1, 2, 3, 24, 2)]


@given(st.sampled_from(CASES), st.integers(2, 4), st.sampled_from([0.0, 0.1, 0.4]), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_windows_are_what_was_seen(case, iterations, ends, seed):
    """Every field of every sampled window, at episodes' ends too, while the ring fills and after it has wrapped."""
    frames, num_envs, length, capacity, horizon = case
    future = int(frames > 1)
    stored = min(iterations * length * num_envs, capacity)
    if stored < (horizon + future) * num_envs:
        iterations = -(-(horizon + future) // length)
        stored = min(iterations * length * num_envs, capacity)
    steps = history(num_envs, frames, ends, seed)
    with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        data, sample = filled(case, steps, iterations)
        out = jax.tree.map(np.asarray, sample(data, jax.random.key(seed), jnp.uint32(iterations - 1)))

    # exactly the windows that can be known
    total = iterations * length * num_envs
    lost = (frames - 1) * num_envs if stored == capacity else 0
    starts = range(total - stored + lost, total - (horizon - 1 + future) * num_envs)
    assert set(out["reward"][:, 0].astype(int)) == set(starts)  # 512 draws of at most 40
    np.testing.assert_array_equal(np.diff(out["reward"], axis=1), num_envs)

    at = np.divmod(out["reward"].astype(int), num_envs)
    known = out["weight"] > 0
    np.testing.assert_array_equal(out["obs"], steps.obs[at])
    np.testing.assert_array_equal(out["next_obs"][known], steps.next_obs[at][known])
    for name in ("terminated", "truncated", "action"):
        np.testing.assert_array_equal(out[name], getattr(steps, name)[at])
    # what is forgotten are last steps, and only those before the newest E
    ended = steps.terminated | steps.truncated
    count = np.cumsum(ended.ravel()[:total])
    room = 1 << (max(1, capacity // EPISODE) - 1).bit_length()
    newer = count[-1] - count[out["reward"].astype(int)]
    np.testing.assert_array_equal(known, ~ended[at] | (newer < room) | (frames == 1))


def test_more_ends_in_one_rollout_than_there_is_room():
    """E = 1: of six episodes that end in one rollout the last one's successor is there, whatever the order of writes."""
    case = (2, 1, 12, 16, 1)
    steps = history(1, 2, 0.0, 0)
    steps.terminated[[1, 3, 4, 6, 7, 9], 0] = True  # the frames are those of one long episode: only successors are compared
    data, sample = filled(case, steps, 1)
    out = jax.tree.map(np.asarray, sample(data, jax.random.key(0), jnp.uint32(0)))
    step, last = out["reward"][:, 0].astype(int), out["terminated"][:, 0]
    assert set(step[last & (out["weight"][:, 0] > 0)]) == {9}
    np.testing.assert_array_equal(out["next_obs"][step == 9, 0], steps.next_obs[[9] * (step == 9).sum(), 0])


def test_a_counter_of_ends_may_wrap():
    case = (3, 2, 3, 24, 2)
    buffer, insert, sample = compiled(*case)
    steps = history(2, 3, 0.3, 1)
    outs = []
    for ends in (0, 2**32 - 3):
        data = buffer.init().replace(ends=jnp.uint32(ends))
        for i in range(4):
            data = insert(data, rollout(steps, i, case), jnp.uint32(i))
        outs.append(jax.tree.map(np.asarray, sample(data, jax.random.key(0), jnp.uint32(3))))
    known = outs[0]["weight"] > 0
    assert (steps.terminated | steps.truncated)[:12].sum() > 3
    np.testing.assert_array_equal(known, outs[1]["weight"] > 0)
    np.testing.assert_array_equal(outs[0]["next_obs"][known], outs[1]["next_obs"][known])


def test_memory_is_that_of_single_frames():
    """84 x 84 RGB in stacks of 3, 10,000 transitions: one frame each, and 1/16 (as a power of two) for last steps."""
    shape = (84, 84, 3)
    size = lambda frames: footprint.size(
        jax.eval_shape(ring(EnvSpec("x", (84, 84, 9), jnp.dtype("uint8"), None, 1, (), 10, frames), 10_000, 1, 1).init)
    )
    frame = np.prod(shape)
    assert size(1) == 10_000 * (6 * frame + 4 + 4 + 4 + 2)
    assert size(3) == (10_000 + 1024) * frame + 10_000 * (4 + 4 + 4 + 2 + 1 + 4) + 4


def test_a_ring_too_small_for_a_window():
    buffer = ring(spec_of(3), 8, 2, 1)
    assert buffer.steps(1) == 4
    with pytest.raises(RlxError, match="replay_capacity=8 must hold 5 steps of 2 environments: 10"):
        buffer.steps(2)


# --- stacks as environments make them ----------------------------------------------------------------------------------


def test_stacks_of_an_environment():
    """gymnax's Breakout, 3 frames of its 4 channels: newest last, the first one three times, a fresh stack each episode."""
    env = envs.make("gymnax/Breakout-MinAtar")
    stacked = envs.make("gymnax/Breakout-MinAtar", frame_stack=3)
    params = env.default_params
    plain_step, step = jax.jit(env.step_env), jax.jit(stacked.step_env)
    obs, state = env.reset_env(jax.random.key(0), params)
    stack, stack_state = stacked.reset_env(jax.random.key(0), params)
    seen = [obs] * 3
    for t in range(20):
        np.testing.assert_array_equal(stack, np.concatenate(seen[-3:], axis=-1))
        assert stacked.observation_space(params).contains(stack)
        obs, state, reward, terminated, _ = plain_step(jax.random.key(t), state, t % 3, params)
        stack, stack_state, same_reward, same_end, _ = step(jax.random.key(t), stack_state, t % 3, params)
        assert (reward, terminated) == (same_reward, same_end)
        seen.append(obs)
    assert stack.dtype == obs.dtype
    assert stacked.observation_space(params).shape == stack.shape == (10, 10, 12)


def test_who_has_how_many_frames():
    """A stack's frames are known through a time limit; whatever changes the sequence outside the stack makes them unknown."""
    env = envs.make("gymnax/Pendulum-v1")
    frames = lambda env: spec(env, env.default_params).frames
    assert frames(env) == 1
    assert frames(FrameStack(env, 4)) == frames(TimeLimit(FrameStack(env, 4), 9)) == 4
    assert frames(ObservationNoise(FrameStack(env, 4), 0.1)) == frames(ActionRepeat(FrameStack(env, 4), 2)) == 1
    made = envs.make("gymnax/Catch-bsuite", obs_noise=0.1, action_repeat=2, frame_stack=3)
    assert (frames(made), spec(made, made.default_params).obs_shape) == (3, (150,))


@pytest.mark.parametrize(
    ("env", "value", "says"),
    [
        ("gymnax/Pendulum-v1", 0, "frame_stack=0 must be a whole number >= 1"),
        ("gymnax/Pendulum-v1", 1.5, "frame_stack=1.5 must be a whole number >= 1"),
        ("probe/IntegerObservation", 2, "frame_stack: IntegerObservation observes no arrays but a Discrete space"),
    ],
)
def test_bad_stacks(env, value, says):
    with pytest.raises(RlxError, match=f"^{says}"):
        envs.make(env, frame_stack=value)


def test_sac_learns_the_same_from_frames(monkeypatch):
    """Bit for bit what it learns from whole stacks, where both sample the same slots: episodes of 20 steps; the ring wraps."""
    from rlx import replay

    sampled = replay.window_slots
    both = lambda *args, history=0, future=0: sampled(*args[:7], 2, 1)
    monkeypatch.setattr(replay, "window_slots", both)
    fields = {"num_envs": 2, "hidden_sizes": (8,), "batch_size": 16, "replay_capacity": 128, "n_step": 2, "learning_starts": 20}
    learners = []
    for frames in (3, 1):
        env = TimeLimit(FrameStack(envs.make("gymnax/Pendulum-v1"), 3), 20)
        env.frames = frames
        trainer = rlx.make("sac", env, **fields)
        assert trainer.spec.frames == frames
        carry, metrics = trainer.run(trainer.init(2), 160)
        learners.append(carry.runs.agent.learner)
        assert np.isfinite(metrics["critic_loss"]).all()
    jax.tree.map(np.testing.assert_array_equal, *learners)
