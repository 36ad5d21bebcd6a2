"""MR.Q against tensors of its reference implementation: forward values, losses, and parameters after one update of each kind.

Relative to the largest entry of each array, 1e-5 (a sum of float32 products has no better relative error where it cancels).
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlx.agents import mrq_losses as losses
from rlx.agents import mrq_updates as updates
from rlx.off_policy import Batch
from tests.agents.mrq_support import critic_of, encoder_of, golden, learner_of, network, policy_of

KINDS = pytest.mark.parametrize("kind", ["continuous", "discrete"])


def close(got, want, name=""):
    want = np.asarray(want)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max() + 1e-9, err_msg=name)


def all_close(got, want):
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want), strict=True):
        close(x, y, jax.tree_util.keystr(path))


def windows_of(g):
    shape = g["batch/reward"].shape
    return {
        "obs": jnp.asarray(g["batch/obs"]), "next_obs": jnp.asarray(g["batch/next_obs"]),
        "action": jnp.asarray(g["batch/action"]), "reward": jnp.asarray(g["batch/reward"]),
        "terminated": jnp.asarray(g["batch/terminated"] > 0), "truncated": jnp.zeros(shape, bool), "weight": jnp.ones(shape),
    }  # fmt: skip


def build(kind):
    """The discrete golden actions are one-hot, or soft: vectors both, which the networks take as they are."""
    g = golden(kind)
    net, hp = network(kind == "discrete")
    return g, net._replace(vector=lambda action: action), hp, learner_of(kind, net, hp)


@KINDS
def test_forward(kind):
    g, net, _, learner = build(kind)
    nets, obs, action = learner.nets, jnp.asarray(g["batch/obs"][:, 0]), jnp.asarray(g["batch/action"][:, 0])
    zs = net.zs(nets.encoder, obs)
    prediction = net.predict(nets.encoder, zs, action)
    close(zs, g["out/zs"])
    close(prediction.done, g["out/pred_done"])
    close(prediction.zs, g["out/pred_zs"])
    close(prediction.reward, g["out/pred_reward_logits"])
    close(net.q(nets.encoder, nets.critic, zs, action).T, g["out/value"])
    close(net.preact(nets.policy, zs), g["out/policy_preact"])


@KINDS
def test_two_hot(kind, strict):
    g = golden(kind)
    bins = losses.bins(65)
    close(bins, g["out/bins"])
    got = jax.vmap(losses.two_hot, (0, None))(jnp.asarray(g["batch/reward"].ravel()), jnp.asarray(bins))
    close(got, g["out/two_hot"])


@KINDS
def test_encoder_update(kind):
    g, net, hp, learner = build(kind)
    step = jax.jit(updates.encoder_step, static_argnums=0)
    args = net, hp, learner.nets.encoder, learner.target, learner.encoder_opt, windows_of(g)
    params, _, loss = step(*args, jnp.float32(1.0))
    close(loss, g["out/encoder_loss"])
    all_close(params, encoder_of(g, "after_encoder/encoder"))
    assert float(step(*args, jnp.float32(0.0))[2]) < float(loss) - 1e-3  # without the done loss


def test_rl_update():
    g, net, hp, learner = build("continuous")
    hp["target_noise"] = jnp.float32(0.0)
    nets = learner.nets.replace(encoder=encoder_of(g, "after_encoder/encoder"))
    learner = learner.replace(
        nets=nets, scale=jnp.float32(g["rl/reward_scale"]), target_scale=jnp.float32(g["rl/target_reward_scale"])
    )
    discount = jnp.asarray(g["rl/not_terminated"]) * hp["gamma"] ** 3
    obs, action, next_obs, returns = (jnp.asarray(g[f"rl/{n}"]) for n in ("obs", "action", "next_obs", "n_step_return"))
    batch = Batch(obs, action, returns, discount, next_obs, jnp.ones(8))
    new, priorities, metrics = jax.jit(updates.rl_step, static_argnums=0)(net, hp, learner, batch, jax.random.key(0))
    close(net.q(nets.encoder, nets.critic, net.zs(nets.encoder, obs), action).T, g["out/q"])
    close(metrics["critic_loss"], g["out/value_loss"])
    close(metrics["actor_loss"], g["out/policy_loss"])
    close(priorities, g["out/priority"])
    all_close(new.nets.critic, critic_of(g, "after_rl/value"))
    all_close(new.nets.policy, policy_of(g, "after_rl/policy"))
    assert jax.tree.all(jax.tree.map(np.array_equal, new.nets.encoder, nets.encoder))  # no gradient of these losses reaches it
