"""The two updates of MR.Q (`mrq.py`): of the encoder, and of values and policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rlx.agents import mrq_losses as losses
from rlx.agents.mrq_networks import MLP3, Encoder, Prediction, Value
from rlx.networks import ensemble
from rlx.normalize import weighted_mean
from rlx.off_policy import Batch
from rlx.types import HP, EnvSpec, PyTree


class Nets(struct.PyTreeNode):
    """Parameters; those of both critics on a leading axis."""

    encoder: PyTree
    critic: PyTree
    policy: PyTree


class Learner(struct.PyTreeNode):
    """What gradient updates change: small next to the replay, so that a conditional may return it."""

    nets: Nets
    target: Nets
    encoder_opt: PyTree
    critic_opt: PyTree
    policy_opt: PyTree
    scale: jax.Array  # mean absolute reward that targets are divided by
    target_scale: jax.Array  # the one under which the target critics were trained
    encoder_loss: jax.Array  # of the latest burst


class Networks(NamedTuple):
    """The functions of one configuration; any leading batch axes, `q` `[2, ...]`.

    init   (key)                          -> Nets
    zs     (encoder, obs)                 -> zs
    predict(encoder, zs, action)          -> Prediction
    zsa    (encoder, zs, action)          -> zsa
    q      (encoder, critic, zs, action)  -> Q_j(g(zs, action))
    preact (policy, zs)                   -> u
    action (hp, u, key)                   -> tanh(u), or a Gumbel-softmax sample of softmax(u)
    best   (u)                            -> tanh(u), or the likeliest action, one-hot
    vector (action)                       -> as networks take it: one-hot if discrete
    """

    config: Any
    discrete: bool
    init: Callable[[jax.Array], Nets]
    zs: Callable[..., jax.Array]
    predict: Callable[..., Prediction]
    zsa: Callable[..., jax.Array]
    q: Callable[..., jax.Array]
    preact: Callable[..., jax.Array]
    action: Callable[[HP, jax.Array, jax.Array], jax.Array]
    best: Callable[[jax.Array], jax.Array]
    vector: Callable[[jax.Array], jax.Array]

    @property
    def noise_scale(self) -> float:
        """What discrete actions take of every noise."""
        return 0.5 if self.discrete else 1.0


def networks(config: Any, spec: EnvSpec) -> Networks:
    """Those of a `mrq.Config`."""
    c, discrete = config, spec.num_actions is not None
    size = spec.action_dim if spec.num_actions is None else spec.num_actions
    encoder, critic = Encoder(c, spec.obs_shape), ensemble(Value, 2)(c.value_size, c.linear_value)
    policy = MLP3(c.policy_size, size, "relu")
    apply: Callable[..., Any] = encoder.apply
    zsa: Callable[..., Any] = lambda params, zs, action: apply(params, zs, action, method="zsa")
    q_values: Callable[..., Any] = critic.apply
    preact: Callable[..., Any] = policy.apply

    def init(key: jax.Array) -> Nets:
        obs, zs, zsa = jnp.zeros(spec.obs_shape, spec.obs_dtype), jnp.zeros(c.zs_size), jnp.zeros(c.zsa_size)
        keys = [jax.random.fold_in(key, k) for k in range(3)]
        return Nets(encoder.init(keys[0], obs, jnp.zeros(size)), critic.init(keys[1], zsa), policy.init(keys[2], zs))

    def action(hp: HP, u: jax.Array, key: jax.Array) -> jax.Array:
        return losses.gumbel_softmax(u, key, hp["gumbel_temperature"]) if discrete else jnp.tanh(u)

    return Networks(
        c, discrete, init,
        lambda params, obs: apply(params, obs, method="zs"),
        lambda params, zs, action: apply(params, zsa(params, zs, action), method="predict"),
        zsa,
        lambda params, critics, zs, action: q_values(critics, zsa(params, zs, action)),
        preact, action,
        lambda u: jax.nn.one_hot(jnp.argmax(u, -1), size) if discrete else jnp.tanh(u),
        lambda action: jax.nn.one_hot(action, size) if discrete else action,
    )  # fmt: skip


# --- optimisers: AdamW for each, decaying biases too ----------------------------------------------------------------------


def adamw(hp: HP, lr: str) -> optax.GradientTransformation:
    return optax.adamw(hp[lr], weight_decay=hp["weight_decay"])


def critic_optimiser(hp: HP) -> optax.GradientTransformation:
    """The gradient is clipped by its norm over both critics."""
    return optax.chain(optax.clip_by_global_norm(hp["max_grad_norm"]), adamw(hp, "critic_lr"))


def init_learner(net: Networks, hp: HP, key: jax.Array) -> Learner:
    """Targets are copies; both scales 1."""
    nets = net.init(key)
    return Learner(
        nets, jax.tree.map(jnp.copy, nets), adamw(hp, "encoder_lr").init(nets.encoder), critic_optimiser(hp).init(nets.critic),
        adamw(hp, "actor_lr").init(nets.policy), jnp.ones((), jnp.float32), jnp.ones((), jnp.float32),
        jnp.zeros((), jnp.float32),
    )  # fmt: skip


def synchronise(learner: Learner, scale: jax.Array) -> Learner:
    """Copy everything to its target, the scale too, which then becomes the given one. Values are not rescaled."""
    return learner.replace(target=learner.nets, target_scale=learner.scale, scale=scale)


# --- the encoder --------------------------------------------------------------------------------------------------------


def encoder_step(
    net: Networks, hp: HP, params: PyTree, target: Nets, opt: PyTree, windows: dict[str, jax.Array], terminal_seen: jax.Array
) -> tuple[PyTree, PyTree, jax.Array]:
    """One step on windows `[B, H, ...]` -> parameters, optimiser state, loss. The gradient passes through the whole unroll.

    Targets are the embeddings of true successors, by the target encoder; with `dynamics_target="zsa"` those of successors and
    the target policy's actions there. `terminal_seen` is 1 once an episode has terminated, before which `done` is not learnt.
    """
    c = net.config
    target_encoder = target.encoder if c.target_encoder else params
    masks = jax.vmap(losses.window_mask)(windows["terminated"], windows["truncated"], windows["weight"])
    z_target = net.zs(target_encoder, windows["next_obs"])
    if c.dynamics_target == "zsa":
        z_target = net.zsa(target_encoder, z_target, net.best(net.preact(target.policy, z_target)))
    z_target = jax.lax.stop_gradient(z_target)
    action = jnp.swapaxes(net.vector(windows["action"]), 0, 1)
    bins = jnp.asarray(losses.bins(c.num_bins)) if c.reward_loss == "two_hot" else None
    coefs = (hp["dynamics_coef"], hp["reward_coef"], hp["done_coef"] * terminal_seen)
    of_one = jax.vmap(losses.encoder_loss, (0, 0, 0, 0, 0, None, None, None, None))

    def objective(params: PyTree) -> jax.Array:
        def step(zs: jax.Array, action: jax.Array) -> tuple[jax.Array, Prediction]:
            prediction = net.predict(params, zs, action)
            return prediction.zs, prediction

        # unrolled: a CPU runs the operations of a loop one after another (the whole step: 46 instead of 53 ms)
        _, predictions = jax.lax.scan(step, net.zs(params, windows["obs"][:, 0]), action, unroll=True)
        predictions = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), predictions)
        loss = of_one(
            predictions, jax.lax.stop_gradient(z_target), windows["reward"], windows["terminated"], masks, bins, *coefs
        )
        return weighted_mean(loss, windows["weight"][:, 0])

    loss, grads = jax.value_and_grad(objective)(params)
    updates, opt = adamw(hp, "encoder_lr").update(grads, opt, params)
    return optax.apply_updates(params, updates), opt, loss


# --- values and policy --------------------------------------------------------------------------------------------------


def rl_step(net: Networks, hp: HP, learner: Learner, batch: Batch, key: jax.Array) -> tuple[Learner, jax.Array, dict]:
    """One step of the critics, then one of the policy by them -> learner, priorities `[B]` by the critics before, metrics."""
    c, nets, target = net.config, learner.nets, learner.target
    gumbel_target, gumbel, gaussian = (jax.random.fold_in(key, k) for k in range(3))
    action_of = lambda policy, zs, key: net.action(hp, net.preact(policy, zs), key)

    # targets: the n-step return, bootstrapped from the true successor with a smoothed action
    target_encoder = target.encoder if c.target_encoder else nets.encoder
    next_zs = net.zs(target_encoder, batch.next_obs)
    next_action = action_of(target.policy, next_zs, gumbel_target)
    noise = net.noise_scale * hp["target_noise"] * jax.random.normal(gaussian, next_action.shape)
    noisy = lambda a, n: losses.noisy(a, n, net.noise_scale * hp["target_noise_clip"], net.discrete)
    next_q = net.q(target_encoder, target.critic, next_zs, jax.vmap(noisy)(next_action, noise))
    value_target = lambda r, d, q: losses.value_target(r, d, q, learner.scale, learner.target_scale, c.minimum)
    y = jax.vmap(value_target, (0, 0, 1))(batch.return_, batch.discount, next_q)

    # critics; the encoder stands still, unless it has no other loss
    def j_q(critic: PyTree, encoder: PyTree) -> tuple[jax.Array, jax.Array]:
        q = net.q(encoder, critic, net.zs(encoder, batch.obs), net.vector(batch.action))
        loss = jax.vmap(lambda q, y: losses.value_loss(q, y, c.value_loss == "huber"), (1, 0))(q, y)
        return batch.mean(loss), q

    of = (0,) if c.model_based else (0, 1)
    (q_loss, q), grads = jax.value_and_grad(j_q, of, has_aux=True)(nets.critic, nets.encoder)
    updates, critic_opt = critic_optimiser(hp).update(grads[0], learner.critic_opt, nets.critic)
    critic, encoder, encoder_opt = optax.apply_updates(nets.critic, updates), nets.encoder, learner.encoder_opt
    if not c.model_based:
        updates, encoder_opt = adamw(hp, "encoder_lr").update(grads[1], encoder_opt, encoder)
        encoder = optax.apply_updates(encoder, updates)

    # policy, by the mean of both critics
    zs = net.zs(encoder, batch.obs)

    def j_pi(policy: PyTree) -> jax.Array:
        u = net.preact(policy, zs)
        new_q = net.q(encoder, critic, zs, net.action(hp, u, gumbel))
        return batch.mean(jax.vmap(losses.policy_loss, (1, 0, None))(new_q, u, hp["preact_coef"]))

    pi_loss, grads = jax.value_and_grad(j_pi)(nets.policy)
    updates, policy_opt = adamw(hp, "actor_lr").update(grads, learner.policy_opt, nets.policy)
    policy = optax.apply_updates(nets.policy, updates)

    priorities = batch.priorities(q, y, hp["priority_exponent"])
    learner = learner.replace(
        nets=Nets(encoder, critic, policy), encoder_opt=encoder_opt, critic_opt=critic_opt, policy_opt=policy_opt
    )
    metrics = {"critic_loss": q_loss, "actor_loss": pi_loss, "q": batch.mean(q.mean(0)) * learner.scale}
    return learner, priorities, metrics
