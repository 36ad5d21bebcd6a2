"""Parts of MR.Q's updates as functions to be timed (`bench_mrq.py`): products, the updates themselves, and what else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from experiments.mrq_flops import Product
from rlx import config as base
from rlx import off_policy, priorities
from rlx.agents import mrq
from rlx.agents import mrq_losses as losses
from rlx.agents import mrq_updates as updates
from rlx.agents.mrq_networks import Prediction, layer_norm
from rlx.ring import ring
from rlx.types import EnvSpec, PyTree

SPEC = EnvSpec("HalfCheetah", (17,), jnp.dtype("float32"), None, 6, (), 1000)
STEPS = 12  # updates in one program
Piece = tuple[Callable[..., Any], tuple]  # f(state, *args) -> state, and (state, *args); the state is donated


def repeated(piece: Piece, n: int) -> Piece:
    """A piece without further arguments, n times in one program."""
    f, args = piece
    return lambda state: jax.lax.fori_loop(0, n, lambda _, state: f(state), state), args


def product(p: Product) -> Piece:
    """One product; the next one's left operand holds a number of its result, so that none can be left out or moved."""
    axes = {"forward": "mk,kn->mn", "input": "mk,nk->mn", "matrix": "km,kn->mn"}[p.kind]
    if p.copies > 1:
        axes = "c" + axes.replace(",", ",c").replace("->", "->c")
    size = {"c": p.copies, "m": p.m, "k": p.k, "n": p.n}
    left, right, out = (tuple(size[a] for a in term) for term in axes.replace("->", ",").split(","))
    key = jax.random.key(0)
    state = jax.random.normal(key, left), 0.01 * jax.random.normal(key, right), jnp.zeros(out)

    def once(state: tuple) -> tuple:
        x, y, last = state
        x = x.at[(0,) * x.ndim].set(last[(0,) * last.ndim])
        return x, y, jnp.einsum(axes, x, y)

    return once, (state,)


def setting() -> tuple[Any, ...]:
    """(config, hp, networks, learner, windows for the encoder, for the values) of full size, of random numbers."""
    c, hp = base.partition(mrq.Config())
    net = updates.networks(c, SPEC)

    def windows(steps: int) -> dict[str, jax.Array]:
        draw = lambda k, *shape: jax.random.normal(jax.random.key(k), (c.batch_size, steps, *shape))
        flags = jnp.zeros((c.batch_size, steps), bool)
        return {
            "obs": draw(1, *SPEC.obs_shape), "next_obs": draw(2, *SPEC.obs_shape), "action": jnp.tanh(draw(3, SPEC.action_dim)),
            "reward": draw(4), "terminated": flags, "truncated": flags, "weight": jnp.ones(flags.shape),
        }  # fmt: skip

    return c, hp, net, updates.init_learner(net, hp, jax.random.key(0)), windows(c.enc_horizon), windows(c.n_step)


def of_updates() -> dict[str, Piece]:
    """The agent's own updates of a (learner, priorities), `STEPS` in one program, each of a batch of its own, which is at hand.

    So they run in the agent: one step to a program would first have to fetch the memory of its intermediate results from the
    system, and one batch for all would let the compiler compute its targets once.
    """
    c, hp, net, learner, windows, short = setting()
    seen = jnp.float32(1.0)
    stacked = lambda tree: jax.tree.map(lambda x: jnp.stack([jnp.roll(x, i, 0) for i in range(STEPS)]), tree)
    batches = stacked((windows, off_policy.batch(short, hp["gamma"]))), jax.random.split(jax.random.key(5), STEPS)

    def encoder(state: tuple, windows: dict, batch: Any, key: jax.Array) -> tuple:
        x, priority = state
        params, opt, loss = updates.encoder_step(net, hp, x.nets.encoder, x.target, x.encoder_opt, windows, seen)
        return x.replace(nets=x.nets.replace(encoder=params), encoder_opt=opt, encoder_loss=loss), priority

    def rl(state: tuple, windows: dict, batch: Any, key: jax.Array) -> tuple:
        return updates.rl_step(net, hp, state[0], batch, key)[:2]

    def steps(f: Callable[..., tuple]) -> Piece:
        scan = lambda state, batches: jax.lax.scan(lambda s, x: (f(s, *x[0], x[1]), None), state, batches)[0]
        return scan, ((learner, jnp.zeros(c.batch_size)), batches)

    both = lambda state, *batch: rl(encoder(state, *batch), *batch)
    return {"encoder": steps(encoder), "values and policy": steps(rl), "both": steps(both)}


def norms(c: Any) -> dict[str, Counter[tuple[int, int, bool]]]:
    """(rows, width, with its gradient) of a layer norm and its activation -> how often, in each update."""
    b, e, v, p = c.batch_size, c.encoder_size, c.value_size, c.policy_size
    f, g = 3, 2  # norms in the encoders of states and of state-actions; 3 in a critic, 2 in the policy
    encoder = {(b * c.enc_horizon, e, False): f, (b, e, True): f + c.enc_horizon * g}
    rl = [(b, e, False)] * (2 * f + 2 * g) + [(b, e, True)] * g + [(2 * b, v, False)] * 3 + [(2 * b, v, True)] * 6
    return {"encoder": Counter(encoder), "values and policy": Counter([*rl, *[(b, p, False)] * 2, *[(b, p, True)] * 2])}


def norm(rows: int, width: int, gradient: bool) -> Piece:
    f = lambda x: nn.elu(layer_norm(x))

    def both(state: tuple) -> tuple:
        y, pull = jax.vjp(f, state[0])
        return y, pull(y)[0]

    x = jax.random.normal(jax.random.key(0), (rows, width))
    return (both, ((x, x),)) if gradient else (f, (x,))


def parts() -> dict[tuple[str, str], Piece]:
    """(update, part) -> what an update does beside products, norms and activations, and what comes before and after it."""
    c, hp, _, learner, windows, short = setting()
    nets, key = learner.nets, jax.random.key(7)

    def descent(optimiser: optax.GradientTransformation, params: PyTree, opt: PyTree) -> Piece:
        def step(state: tuple, grads: PyTree) -> tuple:
            change, opt = optimiser.update(grads, state[1], state[0])
            return optax.apply_updates(state[0], change), opt

        return step, ((params, opt), jax.tree.map(lambda x: 1e-3 * jnp.ones_like(x), params))

    def model_loss(prediction: PyTree, zs: jax.Array, windows: dict) -> PyTree:
        of_one = jax.vmap(losses.encoder_loss, (0, 0, 0, 0, 0, None, None, None, None))
        bins, mask = jnp.asarray(losses.bins(c.num_bins)), jnp.ones(windows["reward"].shape)
        loss = lambda p: of_one(p, zs, windows["reward"], windows["terminated"], mask, bins, 1.0, 0.1, 0.1).mean()
        return jax.grad(loss)(prediction)

    shape = (c.batch_size, c.enc_horizon)
    prediction = Prediction(jnp.zeros(shape), jnp.zeros((*shape, c.zs_size)), jnp.zeros((*shape, c.num_bins)))

    replay = ring(SPEC, c.replay_capacity, 1, 1)
    data = replay.init()
    priority = priorities.init(c.replay_capacity)
    priority = priority.replace(values=jnp.ones_like(priority.values).at[c.replay_capacity :].set(0.0))
    table = priorities.table(priority)

    def batch(steps: int) -> Piece:
        def gather(_: PyTree, priority: PyTree, table: jax.Array, data: PyTree) -> PyTree:
            of_burst = steps == c.enc_horizon  # which has one table for all its batches
            slots = priorities.draw(priority, table if of_burst else priorities.table(priority), key, c.batch_size)
            return replay.take(data, slots, steps)

        return gather, (windows if steps == c.enc_horizon else short, priority, table, data)

    slots = jax.random.randint(key, (c.batch_size,), 0, c.replay_capacity).astype(jnp.uint32)
    return {
        ("encoder", "AdamW"): descent(updates.adamw(hp, "encoder_lr"), nets.encoder, learner.encoder_opt),
        ("encoder", "loss and its gradient"): (model_loss, (prediction, jnp.ones((*shape, c.zs_size)), windows)),
        ("values and policy", "AdamW, critics"): descent(updates.critic_optimiser(hp), nets.critic, learner.critic_opt),
        ("values and policy", "AdamW, policy"): descent(updates.adamw(hp, "actor_lr"), nets.policy, learner.policy_opt),
        ("beside the encoder's", "draw and gather"): batch(c.enc_horizon),
        ("beside the others'", "draw and gather"): batch(c.n_step),
        ("beside the others'", "priorities"): (priorities.update, (priority, slots, jnp.ones(c.batch_size))),
    }
