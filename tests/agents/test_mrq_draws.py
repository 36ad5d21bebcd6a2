"""MR.Q: discrete actions, noise, what is drawn and how images are shifted. Trap numbers as in `test_mrq_traps.py`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from rlx import config, loop, priorities
from rlx.agents import mrq
from rlx.agents import mrq_losses as losses
from rlx.agents import mrq_updates as updates
from rlx.types import EnvSpec
from tests.agents.mrq_support import network
from tests.agents.mrq_traps_support import FIELDS, GAMMA, KEY, QUICK, STARTS, play, script_of, steps_of

# --- discrete actions, and rewards that come late --------------------------------------------------------------------


@pytest.fixture(scope="module")
def late():
    """One environment with three actions. No reward up to step 13, the first update's; a large one within its period."""
    script = script_of(1)
    reward = np.array(script.reward)
    reward[:STARTS], reward[STARTS] = 0.0, 50.0
    return play(script._replace(reward=reward), 40, actions=3, gamma=0.0, target_period=8)


def test_a_first_reward_within_a_period_leaves_no_giant_priority(late):
    """Trap 7: the scale is 1 while all rewards are 0; 1e-8 would make this target 5e9, and priorities 7e3 for good."""
    learners = [e.args["learner"] for _, e in late.of("rl")]
    assert all(x.scale == 1.0 for x in learners[:8]) and learners[8].scale != 1.0
    highest = late.states[STARTS - 1 + 8].priorities.highest  # after the first period
    assert 45.0**0.4 < highest < 55.0**0.4


def test_discrete_actions_are_stored_as_taken_and_used_as_one_hot(late):
    """Trap 16: those of the warm-up, too."""
    net, nets = late.net, late.states[0].learner.nets
    encoder, critic = (ravel_pytree(x)[1] for x in (nets.encoder, nets.critic))
    taken = np.stack([r.action[0, 0] for r in late.rollouts])
    assert taken.dtype == np.int32 and set(taken[:STARTS]) == {0, 1, 2}
    loss = jax.jit(lambda e, c, obs, vectors, y: losses_of(net.q(encoder(e), critic(c), net.zs(encoder(e), obs), vectors), y))
    warm = 0
    for _, e in late.of("rl")[:12]:
        learner, b = e.args["learner"], e.args["batch"]
        t, _ = steps_of(b.obs)
        kept = b.weight > 0
        np.testing.assert_array_equal(b.action[kept], taken[t[kept]])
        each = loss(learner.nets.encoder, learner.nets.critic, b.obs, np.eye(3)[b.action], b.return_ / learner.scale)
        np.testing.assert_allclose(e.out[2]["critic_loss"], np.asarray(each)[kept].mean(), rtol=1e-3)
        warm += (t[kept] < STARTS).sum()
    assert warm > 100


def losses_of(q: jax.Array, y: jax.Array) -> jax.Array:
    """Huber, mean over both critics: `[2, B]`, `[B]` -> `[B]`."""
    error = jnp.abs(q - y)
    return jnp.where(error < 1.0, 0.5 * error**2, error - 0.5).mean(0)


@pytest.mark.parametrize(("discrete", "share"), [(False, 1.0), (True, 0.5)])
def test_the_noise_of_target_actions(discrete, share, monkeypatch):
    """Traps 11 and 12: normal, 0.2, clipped to 0.3; half of both for discrete actions, whose target is a one-hot sample."""
    net, hp = network(discrete)
    learner = jax.jit(updates.init_learner, static_argnums=0, compiler_options=QUICK)(net, hp, KEY)
    calls = []

    def noisy(action: jax.Array, noise: jax.Array, clip: jax.Array, as_one_hot: bool) -> jax.Array:
        jax.debug.callback(lambda *x: calls.append(x), action, noise, clip)
        assert as_one_hot == discrete
        return real(action, noise, clip, as_one_hot)

    real = losses.noisy
    monkeypatch.setattr(losses, "noisy", noisy)
    rows = 100
    action = jnp.zeros(rows, jnp.int32) if discrete else jnp.zeros((rows, 3))
    obs = jnp.ones((rows, 6))
    batch = updates.Batch(obs, action, jnp.zeros(rows), jnp.ones(rows), obs, jnp.ones(rows))
    jax.jit(updates.rl_step, static_argnums=0, compiler_options=QUICK)(net, hp, learner, batch, KEY)
    jax.effects_barrier()
    actions, noise, clip = (np.stack(x) for x in zip(*calls, strict=True))
    assert noise.shape == (rows, 3)
    np.testing.assert_allclose(clip, 0.3 * share, rtol=1e-6)
    np.testing.assert_allclose(noise.std(), 0.2 * share, rtol=0.15)
    assert (actions.std(0) > 0.01).all() == discrete  # Gumbel noise is drawn for target actions, of the same observation, too
    if discrete:
        np.testing.assert_allclose(actions.sum(1), 1.0, rtol=1e-5)


def test_the_noise_of_discrete_exploration_is_half():
    """Trap 12: normal, 0.1, on a soft vector that differs by 0.05 between two actions."""
    static, hp = config.partition(
        mrq.Config(**FIELDS | {"learning_starts": 0, "gumbel_temperature": 1e5, "exploration_noise": 0.2})
    )
    agent = mrq.make(static, EnvSpec("two", (3,), jnp.dtype("float32"), 2, 0, (), None))
    state = agent.init(hp, KEY)
    policy = jax.tree.map(jnp.zeros_like, state.learner.nets.policy)
    policy["params"]["l3"]["bias"] = jnp.asarray([1e4, 0.0])
    state = state.replace(learner=state.learner.replace(nets=state.learner.nets.replace(policy=policy)))
    act = jax.jit(jax.vmap(lambda key: agent.act(hp, state, (), jnp.zeros(3), key, jnp.uint32(0))[0]))
    share = np.asarray(act(jax.random.split(KEY, 20_000))).mean()
    np.testing.assert_allclose(share, 0.362, atol=0.02)  # P(normal > 0.05 / (0.1 sqrt 2)); with noise of 0.2 it is 0.43


# --- optimisers, draws, images ---------------------------------------------------------------------------------------


def test_only_the_gradient_of_both_critics_together_is_clipped():
    """Trap 9: to a norm of 20 over both; those of encoder and policy are not. AdamW's first moment is 0.1 of what it got."""
    _, hp = network()
    moment = lambda optimiser, grads: optax.tree.get(optimiser.update(grads, optimiser.init(grads), grads)[1], "mu")
    critics = {"w": jnp.asarray([[30.0, 0.0], [0.0, 40.0]])}
    np.testing.assert_allclose(moment(updates.critic_optimiser(hp), critics)["w"], 0.1 * critics["w"] * 20.0 / 50.0, rtol=1e-5)
    small = {"w": jnp.asarray([[12.0, 0.0], [0.0, 15.0]])}
    np.testing.assert_allclose(moment(updates.critic_optimiser(hp), small)["w"], 0.1 * small["w"], rtol=1e-5)
    for lr in ("encoder_lr", "actor_lr"):
        np.testing.assert_allclose(moment(updates.adamw(hp, lr), critics)["w"], 0.1 * critics["w"], rtol=1e-5)
    decay, bias = updates.adamw(hp, "actor_lr"), {"bias": jnp.ones(2)}
    decayed = decay.update({"bias": jnp.zeros(2)}, decay.init(bias), bias)[0]
    np.testing.assert_allclose(decayed["bias"], -3e-4 * 1e-4, rtol=1e-4)  # biases decay


def stubbed(monkeypatch: pytest.MonkeyPatch, spec: EnvSpec, **fields: Any) -> tuple[Any, Any, list[tuple[str, Any]]]:
    """(agent, hp, the windows and batches that the updates are called with), where no update changes anything."""
    static, hp = config.partition(mrq.Config(**FIELDS | {"learning_starts": 0, "target_period": 2} | fields))
    seen: list[tuple[str, Any]] = []
    keep = lambda name, x: jax.debug.callback(lambda x: seen.append((name, jax.tree.map(np.asarray, x))), x, ordered=True)

    def encoder_step(net, hp, params, target, opt, windows, terminal_seen):
        keep("encode", windows)
        return params, opt, jnp.float32(0.0)

    def rl_step(net, hp, learner, batch, key):
        keep("rl", batch)
        return learner, jnp.ones(batch.weight.shape), {}

    monkeypatch.setattr(mrq, "encoder_step", encoder_step)
    monkeypatch.setattr(mrq, "rl_step", rl_step)
    none = updates.Nets((), (), ())
    number = jnp.ones((), jnp.float32)
    monkeypatch.setattr(
        mrq, "init_learner", lambda net, hp, key: updates.Learner(none, none, (), (), (), number, number, number)
    )
    return mrq.make(static, spec), hp, seen


def test_both_updates_draw_in_proportion_to_priorities(monkeypatch):
    """(7): the encoder's batches come from the same distribution as those of values and policy, with replacement."""
    spec = EnvSpec("toy", (1,), jnp.dtype("float32"), None, 1, (), None)
    rows, capacity = 20_000, 300  # more than one block
    fields = {"batch_size": rows, "replay_capacity": capacity, "rollout_length": 100, "updates_per_step": 0.01}
    agent, hp, seen = stubbed(monkeypatch, spec, **fields)
    state = agent.init(hp, KEY)
    no, one = jnp.zeros((100, 1), bool), jnp.ones((100, 1))
    reward = lambda i: (100.0 * i + jnp.arange(100.0))[:, None]
    rollout = lambda i: loop.Transition(one[..., None], one[..., None], reward(i), one[..., None], no, no, no, one, {}, ())
    learn = jax.jit(agent.learn, compiler_options=QUICK)
    for i in range(2):
        state, _ = learn(hp, state, rollout(i), jax.random.fold_in(KEY, i), jnp.uint32(i))
    weights = np.random.default_rng(0).gamma(1.0, size=196)  # windows of 200 steps, 5 long
    values = state.priorities.values.at[:196].set(jnp.asarray(weights, jnp.float32))
    assert (np.asarray(state.priorities.values)[196:] == 0).all()
    jax.effects_barrier()
    seen.clear()
    learn(hp, state.replace(priorities=priorities.Priorities(values, jnp.float32(1.5))), rollout(2), KEY, jnp.uint32(2))
    jax.effects_barrier()
    want = np.concatenate([weights, np.full(100, 1.5)])  # those that the new steps complete get the highest so far
    want /= want.sum()
    assert [name for name, _ in seen] == ["encode", "encode", "rl"]
    shares = []
    for name, x in seen:
        start = x["reward"][:, 0] if name == "encode" else (x.return_ - GAMMA - 2 * GAMMA**2) / (1 + GAMMA + GAMMA**2)
        shares.append(np.bincount(np.rint(start).astype(int), minlength=296) / rows)
        assert np.abs(shares[-1] - want).max() < 5 * np.sqrt(want.max() / rows)
    assert not np.array_equal(shares[0], shares[1]) and not np.array_equal(shares[1], shares[2])  # each draws on its own


def test_images_are_shifted_in_both_updates_each_on_its_own(monkeypatch):
    """Trap 17: uint8 stays uint8; s and s' differ in their shifts, so do the images of a batch; channels do not."""
    side = 31
    spec = EnvSpec("image", (side, side, 2), jnp.dtype("uint8"), None, 1, (), None)
    agent, hp, seen = stubbed(monkeypatch, spec, batch_size=32, rollout_length=10, updates_per_step=0.1)
    image = np.stack(np.meshgrid(np.arange(side), np.arange(side), indexing="ij"), -1).astype(np.uint8)
    images = jnp.broadcast_to(jnp.asarray(image), (10, 1, *image.shape))
    no, one = jnp.zeros((10, 1), bool), jnp.ones((10, 1))
    rollout = loop.Transition(images, one[..., None], one, images, no, no, no, one, {}, ())
    state = agent.init(hp, KEY)
    jax.jit(agent.learn, compiler_options=QUICK)(hp, state, rollout, KEY, jnp.uint32(0))
    jax.effects_barrier()
    assert [name for name, _ in seen] == ["encode", "encode", "rl"]
    for name, x in seen:
        obs, after = (x["obs"][:, 0], x["next_obs"][:, 0]) if name == "encode" else (x.obs, x.next_obs)
        assert obs.dtype == after.dtype == np.uint8
        middle = lambda images: images[:, 15, 15].astype(int) - 15
        assert len({tuple(m) for m in middle(obs)}) > 15 and np.abs(middle(obs)).max() == 4
        assert (middle(obs) != middle(after)).any(1).mean() > 0.8
    assert (seen[0][1]["obs"][:, 0] != seen[1][1]["obs"][:, 0]).any()
