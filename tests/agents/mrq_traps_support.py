"""MR.Q in the real loop on a script: an environment that numbers its steps and ends its episodes where it is told to.

Everything that the two updates and the synchronisation are called with is recorded.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from rlx import config, loop
from rlx.agents import mrq
from rlx.agents import mrq_updates as updates
from rlx.types import EnvSpec, Step, VecEnv
from tests.agents.mrq_support import WIDTHS

KEY = jax.random.key(0)
LENGTH, PERIOD, CAPACITY, STARTS, H, N_STEP, GAMMA = 160, 3, 41, 13, 5, 3, 0.5
# episodes, of every length below and above both horizons: the first terminations come after learning has begun
EPISODES = [
    (19, "truncated"), (4, "quarantined"), (5, "terminated"), (3, "terminated"), (5, "both"), (1, "terminated"),
    (2, "truncated"), (1, "truncated"), (4, "terminated"), (6, "truncated"), (7, "truncated"), (2, "terminated"),
]  # fmt: skip
FIELDS = {
    **WIDTHS, "batch_size": 24, "replay_capacity": CAPACITY, "learning_starts": STARTS, "target_period": PERIOD,
    "gamma": GAMMA, "exploration_noise": 0.0, "target_noise": 0.0, "num_bins": 9, "critic_lr": 3e-3,
}  # fmt: skip


class Script(NamedTuple):
    """What happens at step t of environment n, `[LENGTH, N]`."""

    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    weight: np.ndarray


def script_of(num_envs: int, seed: int = 0) -> Script:
    """The same episodes in every environment, n steps later in the n-th."""
    reward = np.random.default_rng(seed).normal(size=(LENGTH, num_envs)).astype(np.float32)
    reward[20:23] *= 400.0  # the highest priorities come early
    terminated, truncated = np.zeros((2, LENGTH, num_envs), bool)
    weight = np.ones((LENGTH, num_envs), np.float32)
    for n in range(num_envs):
        last = n - 1
        for k in range(LENGTH):
            length, how = EPISODES[k % len(EPISODES)]
            last += length
            if last >= LENGTH:
                break
            terminated[last, n] = how in ("terminated", "both")
            truncated[last, n] = how != "terminated"
            weight[last, n] = how != "quarantined"
    return Script(np.where(weight > 0, reward, 0.0).astype(np.float32), terminated, truncated, weight)


def environment(script: Script) -> VecEnv:
    """obs `(n, t, 1)`, scaled; the successor of a last step `(n, t, -1)`, which no episode begins with."""
    num_envs = script.reward.shape[1]
    row = lambda t, sign: jnp.stack([jnp.array([n / 8.0, t / 64.0, sign], jnp.float32) for n in range(num_envs)])
    at = jax.tree.map(jnp.asarray, script)

    def step(key: jax.Array, t: jax.Array, action: jax.Array, params: Any) -> tuple[jax.Array, Step]:
        reward, terminated, truncated, weight = (x[t] for x in at)
        nothing = {"episode_return": jnp.zeros(num_envs), "episode_length": jnp.zeros(num_envs, jnp.int32)}
        after = jnp.where((terminated | truncated)[:, None], row(t, -1.0), row(t + 1, 1.0))
        return t + 1, Step(row(t + 1, 1.0), after, reward, terminated, truncated, weight, nothing)

    return VecEnv(num_envs, lambda key, params: (jnp.int32(0), row(0, 1.0)), step)


def steps_of(obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(t, n) of scripted observations `[..., 3]`."""
    return np.rint(obs[..., 1] * 64).astype(int), np.rint(obs[..., 0] * 8).astype(int)


class Event(NamedTuple):
    """A call of "synchronise", "encode" or "rl": its arguments, and what it returned; parameters as vectors."""

    name: str
    args: dict[str, Any]
    out: Any


class Record(NamedTuple):
    """One run: by iteration, its events, rollouts, and the agent's states (one more: the first is that before everything)."""

    agent: Any
    net: Any
    hp: Any
    script: Script
    events: list[list[Event]]
    rollouts: list[Any]
    states: list[Any]

    def of(self, name: str) -> list[tuple[int, Event]]:
        return [(i, e) for i, events in enumerate(self.events) for e in events if e.name == name]


def flat(tree: Any) -> Any:
    """With each network's parameters, and each optimiser's state, as one vector: a callback pays for every array."""
    whole = lambda x: isinstance(x, (optax.ScaleByAdamState, dict)) and not (isinstance(x, dict) and "params" not in x)
    vector = lambda x: ravel_pytree(x)[0].astype(jnp.float32) if whole(x) else x
    return jax.tree.map(vector, tree, is_leaf=whole)


def spy(patch: pytest.MonkeyPatch, sink: list[Event]) -> None:
    """Record, in order, what the agent calls its parts with, and what they return."""

    def recorded(name: str, function: Any, names: dict[str, int]) -> Any:
        def wrapper(*args: Any) -> Any:
            out = function(*args)
            keep = lambda args, out: sink.append(Event(name, *jax.tree.map(np.asarray, (args, out))))
            jax.debug.callback(keep, *flat(({k: args[i] for k, i in names.items()}, out)), ordered=True)
            return out

        return wrapper

    patch.setattr(mrq, "synchronise", recorded("synchronise", mrq.synchronise, {"learner": 0, "scale": 1}))
    arguments = {"online": 2, "target": 3, "windows": 5, "seen": 6}
    patch.setattr(mrq, "encoder_step", recorded("encode", mrq.encoder_step, arguments))
    patch.setattr(mrq, "rl_step", recorded("rl", mrq.rl_step, {"learner": 2, "batch": 3}))


def play(script: Script, iterations: int, actions: int | None = None, **fields: Any) -> Record:
    num_envs = script.reward.shape[1]
    static, hp = config.partition(mrq.Config(**FIELDS | {"num_envs": num_envs} | fields))
    spec = EnvSpec("scripted", (3,), jnp.dtype("float32"), actions, 0 if actions else 2, (), None)
    sink: list[Event] = []
    with pytest.MonkeyPatch.context() as patch:
        spy(patch, sink)
        agent, vec = mrq.make(static, spec), environment(script)
        run = loop.init_run(agent, vec, hp, (), jnp.uint32(0), KEY)

        @partial(jax.jit, compiler_options=QUICK)
        def iterate(run: Any, i: jax.Array) -> tuple[Any, Any]:
            run, rollout = loop.collect(agent, vec, run, i)
            state, _ = agent.learn(hp, run.agent, rollout, jax.random.fold_in(KEY, i), i)
            return run.replace(agent=state), rollout

        events, rollouts, states = [], [], [jax.tree.map(np.asarray, run.agent)]
        for i in range(iterations):
            run, rollout = iterate(run, jnp.uint32(i))
            jax.effects_barrier()
            events.append(list(sink))
            sink.clear()
            rollouts.append(jax.tree.map(np.asarray, rollout))
            states.append(jax.tree.map(np.asarray, run.agent))
    return Record(agent, updates.networks(static, spec), hp, script, events, rollouts, states)


QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}  # to compile, not to run

# (environments, rollout length, updates per environment step, iterations)
CASES = {"one": (1, 1, 1.0, 100), "two, faster": (2, 1, 2.0, 50), "rollouts of four, slower": (4, 2, 0.5, 30)}


def shape_of(record: Record) -> tuple[int, int, int]:
    """(environments, steps of an iteration, updates of an iteration that learns)."""
    steps, num_envs = record.rollouts[0].reward.shape
    return num_envs, steps * num_envs, len([e for e in record.events[-1] if e.name == "rl"])
