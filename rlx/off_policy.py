"""What off-policy agents share: when they act at random, when and how often they update, and what a batch is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rlx import counters, normalize, priorities, returns
from rlx.errors import RlxError
from rlx.masks import mask
from rlx.priorities import Priorities
from rlx.ring import Ring, ring
from rlx.types import EnvSpec, PyTree

Metrics = dict[str, jax.Array]


class Plan(NamedTuple):
    """In iterations, all static: random actions in the first `random`, `updates` gradient updates in each from `start` on."""

    random: int
    start: int
    updates: int


def plan(config: Any, spec: EnvSpec, algorithm: str, horizon: int | None = None) -> tuple[Plan, Ring]:
    """From `num_envs, rollout_length, updates_per_step, learning_starts, replay_capacity, n_step` of an agent's config.

    The first update is in the first iteration that ends at or after `learning_starts` env steps, and not before the replay
    holds a window of every environment (of `horizon` steps, default `n_step`); until then, that iteration included, actions
    are random. Raises RlxError for a vector reward, for a number of updates per iteration that is not whole, and for a replay
    too small for a window.
    """
    c = config
    if spec.reward_shape:
        raise RlxError(f"{algorithm} learns from a scalar reward; {spec.name} has a reward vector of shape {spec.reward_shape}")
    per_iteration = c.num_envs * c.rollout_length
    exact = per_iteration * c.updates_per_step
    updates = round(exact)
    if updates < 1 or not math.isclose(updates, exact):
        raise RlxError(
            f"updates_per_step={c.updates_per_step} gives {exact:g} updates per iteration of {per_iteration} env steps; "
            f"the nearest valid value is {max(updates, 1) / per_iteration:g}"
        )
    buffer = ring(spec, c.replay_capacity, c.num_envs, c.rollout_length)
    start = counters.first_iteration(max(c.learning_starts, buffer.steps(horizon or c.n_step)), per_iteration)
    return Plan(start + 1 if c.learning_starts else 0, start, updates), buffer


class Batch(struct.PyTreeNode):
    """Leaves `[B, ...]`; the target of (obs, action) is `return_ + discount * V(next_obs)`. Weight 0 does not count."""

    obs: jax.Array
    action: jax.Array
    return_: jax.Array
    discount: jax.Array
    next_obs: jax.Array
    weight: jax.Array

    def mean(self, x: jax.Array) -> jax.Array:
        """Of `[B]` over the samples that count."""
        return normalize.weighted_mean(x, self.weight)

    def priorities(self, q: jax.Array, target: jax.Array, exponent: jax.Array) -> jax.Array:
        """Those of the windows `[B]` (`priorities.lap`) from `q` `[critics, B]`, `target` `[B]`; 1 of what does not count."""
        return jnp.where(self.weight > 0, jax.vmap(priorities.lap, (1, 0, None))(q, target, exponent), 1.0)


def batch(windows: dict[str, jax.Array], gamma: jax.Array, stats: normalize.Stats | None = None) -> Batch:
    """n-step targets from windows `[B, n, ...]` (`returns.n_step`); observations normalised by `stats`."""
    windows |= {name: normalize.observe(stats, windows[name]) for name in ("obs", "next_obs")}
    windows = mask(windows["weight"] > 0, windows)  # what weighs nothing may be anything, NaN included
    n_step = jax.vmap(returns.n_step, (0, 0, 0, None, 0))
    target = n_step(windows["reward"], windows["terminated"], windows["truncated"], gamma, windows["weight"])
    next_obs = jax.vmap(lambda x, last: x[last])(windows["next_obs"], target.last)
    first = lambda name: windows[name][:, 0]
    return Batch(first("obs"), first("action"), target.return_, target.discount, next_obs, first("weight"))


class Drawing(NamedTuple):
    """How the windows of an update are drawn: uniformly, where priorities are `()`, or in proportion to them.

    init ()                         -> priorities: nothing may be drawn
    admit(priorities, i)            -> priorities in which what iteration `i` inserted may be drawn (`Ring.admit`)
    draw (data, priorities, key, i) -> slots `[B]`, or `()`; their windows, leaves `[B, n_step, ...]`
    """

    init: Callable[[], PyTree]
    admit: Callable[[PyTree, jax.Array], PyTree]
    draw: Callable[[PyTree, PyTree, jax.Array, jax.Array], tuple[PyTree, dict[str, jax.Array]]]


def drawing(config: Any, buffer: Ring) -> Drawing:
    """From `prioritized, batch_size, replay_capacity, n_step` of an agent's config.

    Raises RlxError for a replay too small to hold the windows of a rollout, if they have priorities.
    """
    c = config
    if not c.prioritized:
        sample = lambda data, p, key, i: ((), buffer.sample(data, key, c.batch_size, i, c.n_step))
        return Drawing(lambda: (), lambda p, i: (), sample)

    def init() -> Priorities:
        return priorities.init(c.replay_capacity)

    def admit(p: Priorities, i: jax.Array) -> Priorities:
        return buffer.admit(p, i, c.n_step)

    def draw(data: PyTree, p: Priorities, key: jax.Array, i: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        slots = priorities.draw(p, priorities.table(p), key, c.batch_size)
        return slots, buffer.take(data, slots, c.n_step)

    jax.eval_shape(lambda: admit(init(), jnp.uint32(0)))  # too small: before anything compiles
    return Drawing(init, admit, draw)


def updates(
    plan: Plan,
    update: Callable[[PyTree, jax.Array, jax.Array], tuple[PyTree, Metrics]],
    learner: PyTree,
    key: jax.Array,
    i: jax.Array,
) -> tuple[PyTree, Metrics]:
    """The updates of iteration `i` -> learner, their mean metrics with `updates`; none before `plan.start`.

    update(learner, key, k) -> learner, metrics; `k` is what `completes` takes. The conditional returns the learner, which
    is small next to a replay.
    """

    def one(learner: PyTree, u: jax.Array) -> tuple[PyTree, Metrics]:
        return update(learner, jax.random.fold_in(key, u), u)

    def train(learner: PyTree) -> tuple[PyTree, Metrics]:
        learner, metrics = jax.lax.scan(one, learner, jnp.arange(plan.updates, dtype=jnp.uint32))
        return learner, {**jax.tree.map(jnp.mean, metrics), "updates": jnp.int32(plan.updates)}

    def wait(learner: PyTree) -> tuple[PyTree, Metrics]:
        return learner, jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(train, learner)[1])

    return jax.lax.cond(i >= plan.start, train, wait, learner)


def prioritised_updates(
    plan: Plan,
    update: Callable[[PyTree, Any, jax.Array, jax.Array], tuple[PyTree, PyTree, PyTree, Metrics]],
    learner: PyTree,
    priority: PyTree,
    key: jax.Array,
    i: jax.Array,
) -> tuple[PyTree, PyTree, Metrics]:
    """As `updates`, with priorities that each update changes for the next one; with those of `Drawing`, `()`, just `updates`.

    update(learner, priorities, key, k) -> learner, slots, their new priorities, metrics. The conditional returns only these;
    the scatter is outside of it, in place, and drops everything before `plan.start`.
    """
    if not isinstance(priority, Priorities):

        def uniform(learner: PyTree, key: jax.Array, u: jax.Array) -> tuple[PyTree, Metrics]:
            learner, _, _, metrics = update(learner, (), key, u)
            return learner, metrics

        learner, metrics = updates(plan, uniform, learner, key, i)
        return learner, (), metrics
    learns = i >= plan.start

    def one(carry: tuple[PyTree, Priorities], u: jax.Array) -> tuple[tuple[PyTree, Priorities], Metrics]:
        learner, priority = carry
        train = lambda learner: update(learner, priority, jax.random.fold_in(key, u), u)

        def wait(learner: PyTree) -> tuple[PyTree, jax.Array, jax.Array, Metrics]:
            _, slots, values, metrics = jax.eval_shape(train, learner)
            zeros = lambda tree: jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), tree)
            beyond = jnp.full(slots.shape, priority.values.shape[0], slots.dtype)
            return learner, beyond, zeros(values), zeros(metrics)

        learner, slots, values, metrics = jax.lax.cond(learns, train, wait, learner)
        return (learner, priorities.update(priority, slots, values)), metrics

    (learner, priority), metrics = jax.lax.scan(one, (learner, priority), jnp.arange(plan.updates, dtype=jnp.uint32))
    made = jnp.where(learns, plan.updates, 0).astype(jnp.int32)
    return learner, priority, {**jax.tree.map(jnp.mean, metrics), "updates": made}


def begins(plan: Plan, period: int, i: jax.Array, u: jax.Array) -> jax.Array:
    """Whether update `u` of iteration `i` is the first of a period of gradient updates, as the first of all is: bool scalar."""
    done = counters.mul_mod(i - jnp.uint32(plan.start), plan.updates, period) + u % np.uint32(period)
    return done % np.uint32(period) == np.uint32(0)


def completes(plan: Plan, period: int, i: jax.Array, u: jax.Array) -> jax.Array:
    """Whether update `u` of iteration `i` completes a period of gradient updates, counted from the first one: bool scalar."""
    return counters.period_elapsed(i - jnp.uint32(plan.start), plan.updates, u, period)


def move(target: PyTree, online: PyTree, tau: jax.Array, now: jax.Array) -> PyTree:
    """Target parameters: `target + tau (online - target)` where `now`, else as they are."""
    tau = jnp.where(now, tau, 0.0)
    return jax.tree.map(lambda t, o: t + tau * (o - t), target, online)
