"""The Trainer: what everything public is made of. It holds static things only; all state is in the carry."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnax.environments.environment import Environment

from rlx import agents, checkpoint, envs, evaluation, footprint, grid, loop, policy
from rlx import config as config_
from rlx.devices import ALL, RUNS, place, shard
from rlx.envs import host, vector, wrappers
from rlx.errors import RlxError
from rlx.types import STREAM_QUERY, Agent, Carry, PyTree, Runs, keys_for, stream
from rlx.versions import versions

MAX_ITERATIONS = 2**32  # the counter is a uint32


class Trainer:
    """An agent on an environment: static configuration, and pure functions of a carry.

    Public attributes: `agent` (its functions), `config`, `env` (in native units), `env_params`, `spec`, `name`.
    """

    def __init__(
        self,
        agent: str | Any,
        env: str | Environment,
        config: config_.Config | None = None,
        *,
        env_options: Mapping[str, Any] | None = None,
        env_params: Any = None,
        preset: str | None = None,
        population: loop.Population | None = None,
        devices: int = 1,
        **agent_fields: Any,
    ):
        module = agents.get(agent) if isinstance(agent, str) else agent
        self.agent_name = module.__name__.rpartition(".")[2]
        self.config = config_.make(module.Config, preset, config, agent_fields)
        self.env_options = dict(env_options or {})
        self.env, self.env_name = self._environment(env)
        self.name = f"{self.agent_name} on {self.env_name}"
        self.env_params = vector.strong(grid.override(self.env.default_params, env_params, self.env_name))
        self.spec = wrappers.spec(self.env, self.env_params, self.env_name)
        self.agent: Agent = module.make(config_.partition(self.config)[0], self.spec)

        vec = wrappers.episode_statistics(wrappers.vectorise(self.env, self.agent.num_envs), self.spec.reward_shape)
        iterate = jax.jit(lambda runs, i: loop.iterate(self.agent, vec, runs, i))  # jitted: its trace is shared below
        init_run = lambda hp, params, seed, root: loop.init_run(self.agent, vec, hp, params, seed, root)
        self.devices, over, carry = devices, shard(devices), Carry(ALL, ALL, RUNS)  # type: ignore[arg-type]  # specs in a carry's place
        if devices > 1 and (population is not None or isinstance(self.env, host.HostEnv)):
            reason = "a population hook" if population is not None else f"{self.env_name}, which runs on the host,"
            raise RlxError(f"devices={devices} is for runs that do not meet: {reason} needs devices=1")
        self._over = over
        init = over(jax.vmap(init_run, (0, 0, 0, None)), (RUNS, RUNS, RUNS, ALL), RUNS)
        self._init = host.surfacing(self.env, jax.jit(init))
        segment = lambda carry, totals, n: loop.segment(iterate, population, carry, totals, n)
        self._pure_segment = over(segment, (carry, RUNS, ALL), (carry, RUNS))
        self._segment = host.surfacing(self.env, jax.jit(self._pure_segment, donate_argnums=(0, 1)))
        self._zero_totals = lambda runs: loop.zero_totals(iterate, runs)
        self._report = jax.jit(loop.report)
        self._act = jax.jit(self._act_all, static_argnums=3)
        self._value = jax.jit(self._value_all)
        self._evaluator = cache(self._compile_evaluation)

    def _environment(self, env: str | Environment) -> tuple[Environment, str]:
        if isinstance(env, str):
            return envs.make(env, **self.env_options), env
        if not isinstance(env, Environment):
            raise RlxError(f"env must be a name or a gymnax Environment (gymnax >= 1.0), not {type(env).__name__}")
        if self.env_options:
            raise RlxError(f"env_options={sorted(self.env_options)} are for environments by name; {env.name} is an object")
        return env, env.name

    # --- a population ------------------------------------------------------------------------------------------------

    def init(
        self,
        seeds: int | Sequence[int] = 1,
        hp: Mapping[str, Any] | None = None,
        env_params: Mapping[str, Any] | None = None,
        agent_state: PyTree = None,
        pop: PyTree = (),
    ) -> Carry:
        """A carry before its first step.

        seeds: a number of seeds (0, 1, ...) or the seeds themselves, each in [0, 2^32).
        hp, env_params: values `[C]` (`[C, m]` for vector fields) by field name, for C configurations; what is not named
        keeps the trainer's value. Runs are configurations x seeds, config-major.
        agent_state: agent states `[R, ...]` to start from (a warm start), shaped as `carry.runs.agent`.
        pop: what the population hook starts with.

        Raises RlxError for an unknown or static field, unequal lengths, and more memory than is free.
        """
        return self.start(self.rows(seeds, hp or {}, env_params or {}), agent_state, pop)

    def rows(self, seeds: int | Sequence[int], hp: Mapping[str, Any], env_params: Mapping[str, Any]) -> grid.Rows:
        """What `init` starts, before it is started: one row a run, which may be chosen from."""
        return grid.rows(self.config, self.env_params, grid.seeds(seeds), hp, env_params, self.env_name)

    def start(self, rows: grid.Rows, agent_state: PyTree = None, pop: PyTree = ()) -> Carry:
        """A carry before its first step, of these runs."""
        if len(rows.seeds) % self.devices:
            raise RlxError(f"{len(rows.seeds)} runs do not split over devices={self.devices}")
        args = *rows, jax.random.key(0)
        shapes = jax.eval_shape(self._init, *args)
        footprint.check(footprint.size(shapes), self.name, len(rows.seeds))
        if agent_state is not None:
            avals = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype), tree)
            if avals(shapes.agent) != avals(agent_state):
                raise RlxError("agent_state differs in structure, shape or dtype from the carry.runs.agent of these runs")
        runs = self._init(*args)
        if agent_state is not None:
            runs = runs.replace(agent=jax.tree.map(jnp.copy, agent_state))  # the carry is donated, the given state is not
        return Carry(jnp.uint32(0), pop, runs)

    # --- time --------------------------------------------------------------------------------------------------------

    @property
    def steps_per_iteration(self) -> int:
        """Env steps of one run in one iteration: `num_envs * rollout_length`."""
        return self.agent.num_envs * self.agent.rollout_length

    def iterations(self, steps: int, name: str = "steps") -> int:
        """The iterations that make exactly `steps` env steps, or an RlxError that names the nearest valid budgets."""
        per = self.steps_per_iteration
        if not isinstance(steps, (int, np.integer)) or isinstance(steps, bool):
            raise RlxError(f"{name}={steps!r} must be a whole number of env steps, not {type(steps).__name__}")
        if steps <= 0 or steps % per:
            below = max(steps, 0) // per * per
            valid = f"{below} or {below + per}" if below else f"{per}"
            multiple = f"a positive multiple of num_envs * rollout_length = {per}"
            raise RlxError(f"{name}={steps} must be {multiple}: nearest is {valid}")
        if steps // per >= MAX_ITERATIONS:
            raise RlxError(f"{name}={steps} needs 2^32 iterations or more: raise num_envs or rollout_length")
        return int(steps) // per

    def steps(self, carry: Carry) -> int:
        """Env steps of one run so far, exact beyond 2^32."""
        return int(carry.i) * self.steps_per_iteration

    def program(self, carry: Carry, n: int) -> tuple[Carry, dict[str, jax.Array]]:
        """n iterations as a pure function, for whoever composes with jit, lower or scan -> carry, metrics {name: [R]}."""
        carry, totals = self._pure_segment(carry, self._zero_totals(carry.runs), n)
        return carry, loop.report(totals)

    def run(self, carry: Carry, steps: int, points: int = 1) -> tuple[Carry, dict[str, np.ndarray]]:
        """`steps` more env steps of every run -> carry, metrics {name: [R, points, ...]}.

        Compiled once for any number of steps. The given carry is donated: use the returned one. Each of the `points`
        covers an equal share of the steps; losses are means over its updates, NaN where there was none.
        """
        n = self.iterations(steps)
        if points < 1 or n % points:
            raise RlxError(f"points={points} must divide the {n} iterations of steps={steps}")
        if steps // points >= loop.MAX_REPORT:
            raise RlxError(f"points={points} must be more: each covers 2^31 env steps, beyond its int32 counts")
        if int(carry.i) + n >= MAX_ITERATIONS:
            raise RlxError(f"steps={steps} would pass 2^32 iterations: raise num_envs or rollout_length")
        rows = []
        for _ in range(points):
            carry, totals = self.advance(carry, self.no_totals(carry), n // points)
            rows.append(self.report(totals))
        return carry, {name: np.stack([row[name] for row in rows], axis=1) for name in rows[0]}

    def advance(self, carry: Carry, totals: loop.Totals, n: int) -> tuple[Carry, loop.Totals]:
        """n iterations, adding to `totals`; both are donated. The compiled program that `run` and `train` share."""
        if self.devices > 1:  # where a segment leaves them: another placement would compile it anew
            carry = carry.replace(i=place(carry.i, self.devices, ALL), runs=place(carry.runs, self.devices))
            totals = place(totals, self.devices)
        return self._segment(carry, totals, jnp.uint32(n))

    def no_totals(self, carry: Carry) -> loop.Totals:
        return self._zero_totals(carry.runs)

    def report(self, totals: loop.Totals) -> dict[str, np.ndarray]:
        """Totals on the host: metrics {name: [R, ...]}."""
        return jax.device_get(self._report(totals))

    # --- acting and evaluation ---------------------------------------------------------------------------------------

    def act(self, carry: Carry, obs: PyTree, key: jax.Array, greedy: bool = False) -> jax.Array:
        """Native observations `[R, B, ...]` -> native actions `[R, B, ...]`, each with fresh memory."""
        return self._act(carry, obs, key, bool(greedy))

    def _act_all(self, carry: Carry, obs: PyTree, key: jax.Array, greedy: bool) -> jax.Array:
        def one(run: Runs, obs: PyTree, key: jax.Array) -> jax.Array:
            obs = wrappers.encode(self.env.observation_space(run.env_params), obs)
            memory = self.agent.memory(run.hp, run.agent, jax.random.fold_in(key, 0))
            args = run.hp, run.agent, memory, obs, jax.random.fold_in(key, 1)
            action = self.agent.greedy(*args)[0] if greedy else self.agent.act(*args, carry.i)[0]
            return wrappers.decode(self.env.action_space(run.env_params), action)

        def batch(run: Runs, obs: PyTree) -> jax.Array:
            run_key = stream(jax.random.fold_in(key, run.seed), STREAM_QUERY)
            keys = keys_for(run_key, len(jax.tree.leaves(obs)[0]))
            return jax.vmap(lambda o, k: one(run, o, k))(obs, keys)

        return jax.vmap(batch)(carry.runs, obs)

    def value(self, carry: Carry, obs: PyTree) -> jax.Array:
        """The critic's values of native observations `[R, B, ...]` -> float32 `[R, B]`, in native reward units."""
        return self._value(carry, obs)

    def _value_all(self, carry: Carry, obs: PyTree) -> jax.Array:
        value = self.agent.value
        if value is None:
            raise RlxError(f"{self.agent_name} has no critic")

        def one(run: Runs, obs: PyTree) -> jax.Array:
            return value(run.hp, run.agent, wrappers.encode(self.env.observation_space(run.env_params), obs))

        return jax.vmap(lambda run, o: jax.vmap(lambda x: one(run, x))(o))(carry.runs, obs)

    def policy(self, carry: Carry, run: int = 0) -> Callable[..., Any]:
        """The greedy policy of one run: native observation -> native action.

        Encoding, normalisation, network and action scaling are all inside. It is jitted, and `jax.export` takes it. Of the
        agent's state it keeps what acting reads, not the replay.

        For an agent with memory, `policy(obs)` begins an episode; through one, `action, memory = policy(obs, memory)`, from
        `memory = policy.memory` on.
        """
        if not 0 <= run < len(carry.runs.seed):
            raise RlxError(f"run={run} must be in [0, {len(carry.runs.seed)})")
        return policy.policy(self.agent, self.env, self.spec, carry.runs, run)

    def evaluate(
        self, carry: Carry, episodes: int, key: jax.Array | int = 0, max_episode_steps: int | None = None
    ) -> jax.Array:
        """Returns of exactly `episodes` greedy episodes of each run -> float32 `[R, episodes(, m)]`.

        Undiscounted, in native reward units. An episode that does not end within `max_episode_steps` (default: the
        environment's own limit, the longest of these runs) is NaN.
        """
        limit = max_episode_steps
        if limit is None and self.spec.max_episode_steps is None:
            raise RlxError(f"{self.env_name} has no time limit of its own: give max_episode_steps")
        if limit is None:
            own: Any = getattr(carry.runs.env_params, "max_steps_in_episode", self.spec.max_episode_steps)
            limit = int(jnp.max(own))
        for name, value in (("episodes", episodes), ("max_episode_steps", limit)):
            if not isinstance(value, (int, np.integer)) or value < 1:
                raise RlxError(f"{name}={value!r} must be a whole number >= 1")
        key = jax.random.key(key) if isinstance(key, (int, np.integer)) else key
        runs = carry.runs.replace(obs=(), env=(), memory=(), key=())
        return self._evaluator(int(episodes))(runs, key, jnp.int32(limit))

    def _compile_evaluation(self, episodes: int) -> Callable[[Runs, jax.Array, jax.Array], jax.Array]:
        vec = wrappers.vectorise(self.env, episodes, auto_reset=False)
        agent, shape = self.agent, self.spec.reward_shape
        program = lambda runs, key, limit: evaluation.evaluate(agent, vec, shape, runs, key, limit)
        return host.surfacing(self.env, jax.jit(self._over(program, (RUNS, ALL, ALL), RUNS)))

    # --- disk --------------------------------------------------------------------------------------------------------

    def identity(self) -> dict[str, Any]:
        """What decides which carries this trainer can continue, in JSON's types."""
        config = config_.to_dict(self.config)
        own = {"agent": self.agent_name, "env": self.env_name, "env_options": self.env_options}
        own |= {"env_params": grid.params_to_json(self.env_params), "config": config}
        return json.loads(json.dumps(own, default=str))

    def save(self, carry: Carry, path: str | Path) -> None:
        """Write the carry to the directory `path`, atomically: a crash leaves what was there before."""
        meta = {**self.identity(), "runs": len(carry.runs.seed), "steps": self.steps(carry), "versions": versions()}
        checkpoint.save(path, carry, meta)

    def restore(self, path: str | Path, pop: PyTree = ()) -> Carry:
        """The carry saved under `path`, to continue bit for bit; `pop` is shaped as the saved one's.

        The number of runs is the file's. Raises RlxError if another configuration wrote it, or the file is damaged.
        """
        meta = checkpoint.read_meta(path)
        flat = lambda d: {**d, **d.get("config", {}), "config": None}
        here = self.identity()
        mine, saved = flat(here), flat({k: meta.get(k) for k in here})
        wrong = [f"{k}={saved.get(k)!r} there, {mine.get(k)!r} here" for k in mine | saved if mine.get(k) != saved.get(k)]
        if wrong:
            raise RlxError(f"{path} was saved by another configuration: {'; '.join(wrong)}")
        carry = checkpoint.restore(path, jax.eval_shape(lambda: self.init(seeds=int(meta["runs"]), pop=pop)))
        return carry.replace(runs=place(carry.runs, self.devices))
