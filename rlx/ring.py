"""The replay of an off-policy agent: transitions of its N environments, in a ring whose index is the loop's counter.

Where an observation is a stack of k frames (`EnvSpec.frames`), each frame is stored once, and stacks are put together by
indices when they are sampled: 1/(2k) of the memory of both stacks of a transition. The frame after a step is the next
slot's, except where an episode ended: there the next slot begins another one. The true successors of last steps are kept
in a ring of their own, with room for one in each `EPISODE` transitions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rlx import priorities, replay
from rlx.masks import where
from rlx.priorities import Priorities
from rlx.types import EnvSpec, PyTree, Transition

EPISODE = 16  # steps of the mean episode below which the successors of the oldest last steps are forgotten


class Ring(NamedTuple):
    """A replay as pure functions. `rollout` `[T, N]`; `i` is the iteration that inserts; `sample` may follow in it.

    init  ()                             -> data
    insert(data, rollout, i)             -> data
    sample(data, key, n, i, horizon)     -> windows of consecutive steps of one environment, leaves `[n, horizon, ...]`:
                                            the fields of `Transition` without `first`, `info` and `extras`, as a dict
    take  (data, starts, horizon)        -> the windows at the slots `starts` `[n]`, as `sample` returns them
    admit (priorities, i, horizon)       -> priorities in which what was inserted may be drawn, once a window follows it
    stored(data)                         -> what is stored of each slot beside observations, leaves `[capacity, ...]`
    steps (horizon)                      -> env steps from which on there is a window of every environment (Python int)

    Windows are uniform with replacement and may span an episode's end, as `replay.sample_windows` says. `steps` raises
    RlxError where the capacity is too small for that: an agent asks before anything compiles.
    """

    init: Callable[[], PyTree]
    insert: Callable[[PyTree, Transition, jax.Array], PyTree]
    sample: Callable[[PyTree, jax.Array, int, jax.Array, int], dict[str, jax.Array]]
    take: Callable[[PyTree, jax.Array, int], dict[str, jax.Array]]
    admit: Callable[[Priorities, jax.Array, int], Priorities]
    stored: Callable[[PyTree], dict[str, jax.Array]]
    steps: Callable[[int], int]


def ring(spec: EnvSpec, capacity: int, num_envs: int, rollout_length: int) -> Ring:
    """The replay for an environment, by whether its observations are stacks."""
    per_iteration = num_envs * rollout_length
    frames = spec.frames
    history, future = (frames - 1, 1) if frames > 1 else (0, 0)
    obs = jax.ShapeDtypeStruct(spec.obs_shape, spec.obs_dtype)
    flag, number = jax.ShapeDtypeStruct((), jnp.bool_), jax.ShapeDtypeStruct((), jnp.float32)
    action = jax.ShapeDtypeStruct((spec.action_dim,), jnp.float32)
    if spec.num_actions is not None:
        action = jax.ShapeDtypeStruct((), jnp.int32)
    item = {
        "action": action, "reward": jax.ShapeDtypeStruct(spec.reward_shape, jnp.float32), "terminated": flag,
        "truncated": flag, "weight": number,
    }  # fmt: skip

    def init() -> PyTree:
        if frames > 1:
            return init_stacked(item, obs, frames, capacity)
        return replay.init(item | {"obs": obs, "next_obs": obs}, capacity)

    def insert(data: PyTree, rollout: Transition, i: jax.Array) -> PyTree:
        position = replay.position(i, per_iteration, capacity)
        if frames > 1:
            return insert_stacked(data, rollout, position, frames)
        return replay.insert(data, {name: getattr(rollout, name) for name in data}, position)

    def sample(data: PyTree, key: jax.Array, n: int, i: jax.Array, horizon: int) -> dict[str, jax.Array]:
        head, size = (f(i + jnp.uint32(1), per_iteration, capacity) for f in (replay.position, replay.size))
        return windows(data, replay.window_slots(key, n, head, size, capacity, num_envs, horizon, history, future))

    def windows(data: PyTree, slots: jax.Array) -> dict[str, jax.Array]:
        return take_stacked(data, slots, num_envs, frames) if frames > 1 else replay.take(data, slots)

    def take(data: PyTree, starts: jax.Array, horizon: int) -> dict[str, jax.Array]:
        steps = (np.arange(horizon) * num_envs % capacity).astype(np.uint32)
        return windows(data, replay.wrap(starts[:, None], steps[None], capacity))

    def admit(p: Priorities, i: jax.Array, horizon: int) -> Priorities:
        head, size = (f(i, per_iteration, capacity) for f in (replay.position, replay.size))
        return priorities.admit(p, head, size, rollout_length, num_envs, capacity, horizon, history, future)

    def stored(data: PyTree) -> dict[str, jax.Array]:
        return {name: x for name, x in (data.items if frames > 1 else data).items() if name in item}

    def steps(horizon: int) -> int:
        replay.check_capacity(capacity, history + horizon + future, num_envs)
        return (horizon + future) * num_envs

    return Ring(init, insert, sample, take, admit, stored, steps)


# --- stacks of frames --------------------------------------------------------------------------------------------------


class Stacked(struct.PyTreeNode):
    """`items` `[capacity, ...]`: what is stored of a transition, its newest `frame`, whether it is an episode's `first` step,
    and, of a last step, as how manieth last step of all (`end`). `final` `[E, ...]`: the frames after last steps, the e-th at
    `e % E`; `ends`: how many there were. E is a power of two, so that counts may pass 2^32.
    """

    items: dict[str, jax.Array]
    final: jax.Array
    ends: jax.Array


def init_stacked(item: PyTree, obs: jax.ShapeDtypeStruct, frames: int, capacity: int) -> Stacked:
    """Room for `capacity` transitions whose observations `obs` are `frames` frames on the last axis."""
    frame = jax.ShapeDtypeStruct((*obs.shape[:-1], obs.shape[-1] // frames), obs.dtype)
    own = {"frame": frame, "first": jax.ShapeDtypeStruct((), jnp.bool_), "end": jax.ShapeDtypeStruct((), jnp.uint32)}
    ends = 1 << (max(1, capacity // EPISODE) - 1).bit_length()
    return Stacked(replay.init(item | own, capacity), jnp.zeros((ends, *frame.shape), frame.dtype), jnp.uint32(0))


def insert_stacked(data: Stacked, rollout: Transition, position: jax.Array, frames: int) -> Stacked:
    """Write a rollout `[T, N]` whose first slot is `position`."""
    channels = rollout.obs.shape[-1] // frames
    newest = lambda obs: obs[..., -channels:]
    ended = (rollout.terminated | rollout.truncated).ravel()
    before = jnp.cumsum(ended.astype(jnp.uint32), dtype=jnp.uint32)
    end, ends = data.ends + before - ended.astype(jnp.uint32), data.ends + before[-1]
    own = {"frame": newest(rollout.obs), "first": rollout.first, "end": end.reshape(rollout.first.shape)}
    items = {name: own.get(name, getattr(rollout, name, None)) for name in data.items}

    room = data.final.shape[0]
    slots = jnp.where(ended & (ends - end <= np.uint32(room)), end % np.uint32(room), np.uint32(room))
    successors = newest(rollout.next_obs).reshape(ended.shape[0], *data.final.shape[1:])
    final = data.final.at[slots].set(successors, mode="drop")
    return Stacked(replay.insert(data.items, items, position), final, ends)


def take_stacked(data: Stacked, slots: jax.Array, num_envs: int, frames: int) -> dict[str, jax.Array]:
    """The windows at `slots` `[n, horizon]`, with `obs` and `next_obs` stacked, oldest frame first.

    An episode's first frame stands for those before it. A last step whose successor is forgotten gets `weight` 0. The
    `frames - 1` steps before a window must be stored, or never have been made; the step after it must be.
    """
    capacity, horizon = data.items["first"].shape[0], slots.shape[1]
    frame, first = data.items["frame"], data.items["first"]

    # the slots of the window and of what may be its first observation's history, `[n, frames - 1 + horizon]`
    back = capacity - np.arange(frames - 1, 0, -1) * num_envs % capacity
    before = replay.wrap(slots[:, :1], back.astype(np.uint32)[None], capacity)
    around = jnp.concatenate([before, slots], axis=1)
    step = jnp.broadcast_to(np.arange(around.shape[1])[None], around.shape)
    begin = jax.lax.cummax(jnp.where(replay.take(first, around), step, 0), axis=1)  # of the episode each step belongs to
    steps = jnp.asarray(np.arange(horizon)[:, None] + np.arange(frames)[None])[None]
    steps = jnp.maximum(steps, begin[:, frames - 1 :, None])  # of each stack, [n, horizon, frames]
    of_stack = jax.vmap(lambda row, index: row[index])(around, steps)
    stack = [replay.take(frame, of_stack[..., j]) for j in range(frames)]

    out = replay.take({name: x for name, x in data.items.items() if name not in ("frame", "first", "end")}, slots)
    end, room = replay.take(data.items["end"], slots), np.uint32(data.final.shape[0])
    ended = out["terminated"] | out["truncated"]
    after = replay.take(frame, replay.wrap(slots, np.uint32(num_envs % capacity), capacity))
    flat = lambda x: x.reshape(slots.size, *x.shape[2:])
    successor = where(flat(ended), flat(replay.take(data.final, end % room)), flat(after)).reshape(after.shape)
    out["weight"] = jnp.where(ended & (data.ends - end > room), 0.0, out["weight"])
    return out | {"obs": jnp.concatenate(stack, axis=-1), "next_obs": jnp.concatenate([*stack[1:], successor], axis=-1)}
