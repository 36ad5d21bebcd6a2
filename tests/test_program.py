"""What is compiled: once, with its conditionals, without a copy of the replay, in memory that time does not change."""

import re
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rlx
from rlx import footprint
from tests.loop_support import RECORDER, Clock, N, T
from tests.trainer_support import ENV, FIELDS, LR, LRS, SEEDS, both, compilations, differing, fresh, trainer


def test_the_counter_counts():
    f, x, y = jax.jit(lambda x: x * 3 + 1), np.ones(7, np.float32), np.ones(8, np.float32)
    with compilations() as events:
        f(x)
        assert len(events) == 1
        f(x)
        assert len(events) == 1
        f(y)
    assert len(events) == 2
    jax.jit(lambda x: x * 5 + 1)(x)
    assert len(events) == 2


# --- one compilation -----------------------------------------------------------------------------------------------------


@both
def test_nothing_compiles_twice(agent, tmp_path):
    """Neither for another number of steps, nor for new hyperparameters, environment parameters and seeds."""
    t = trainer(agent)
    per = t.steps_per_iteration
    carry, _ = t.run(fresh(agent), per)
    obs = jnp.zeros((6, 2, *t.spec.obs_shape), t.spec.obs_dtype)
    t.act(carry, obs, jax.random.key(0), greedy=True), t.evaluate(carry, 2)
    limits = {"max_steps_in_episode": [1, 2]}
    t.init(SEEDS, hp={LR[agent]: LRS}, env_params=limits)  # its own small operations, on shapes that are new
    jax.random.key(1)
    with compilations() as events:
        carry, _ = t.run(carry, 17 * per)
        other = t.init([8, 2**32 - 1, 9], hp={"gamma": [0.5, 0.9]}, env_params={"max_steps_in_episode": [3, 2]})
        other, _ = t.run(other, 30 * per, points=3)
        t.act(other, obs, jax.random.key(1), greedy=True), t.evaluate(other, 2)
    assert not events
    t.save(carry, tmp_path / "c")
    carry = t.restore(tmp_path / "c")
    with compilations() as events:
        carry, _ = t.run(carry, 3 * per)
        t.act(carry, obs, jax.random.key(1), greedy=True), t.evaluate(carry, 2)
    assert not events


@both
def test_the_carry_has_the_same_types_before_and_after(agent):
    """Weak types would compile a second program."""
    carry = fresh(agent)
    before = jax.tree.map(jax.typeof, carry)
    assert not any(x.weak_type for x in jax.tree.leaves(before))
    after = jax.tree.map(jax.typeof, trainer(agent).run(carry, trainer(agent).steps_per_iteration)[0])
    assert before == after


# --- the compiled population -----------------------------------------------------------------------------------------


R, SLOTS = 4, 200_000


@cache
def compiled(agent: str):
    """The segment of a population of 4, and its carry's shapes; sac's with a replay of 30 MB."""
    large = {"replay_capacity": SLOTS} if agent == "sac" else {}
    t = rlx.make(agent, ENV[agent], **{**FIELDS[agent], **large})
    carry = jax.eval_shape(lambda: t.init(R))
    return t._segment.lower(carry, t.no_totals(carry), jnp.uint32(1)).compile(), carry


def conditionals(text: str) -> list[str]:
    """Where in the source program each conditional of the compiled text comes from."""
    return [re.search(r'op_name="([^"]*)"', line)[1] for line in text.splitlines() if " conditional(" in line]


def test_ppo_keeps_the_conditional_reset():
    (reset,) = conditionals(compiled("ppo")[0].as_text())
    assert not reset.endswith("vmap()/cond")  # its predicate is that of the population


def test_sac_keeps_its_conditionals():
    """Reset, uniform or policy actions, wait or learn: a select instead would learn from an empty replay and discard it."""
    names = conditionals(compiled("sac")[0].as_text())
    in_steps = [name for name in names if name.count("while/body") == 2]
    assert len(names) == 3 and len(in_steps) == 2, names  # the third is in the iteration: learning


def test_the_replay_is_not_copied():
    program, carry = compiled("sac")
    replay, memory = footprint.size(carry.runs.agent.replay), program.memory_analysis()
    assert replay >= R * SLOTS * 36
    assert memory.temp_size_in_bytes < replay / 100
    assert memory.alias_size_in_bytes >= footprint.size(carry)  # every buffer of the carry is reused for the next one


@both
def test_the_given_carry_is_donated(agent):
    carry = fresh(agent)
    trainer(agent).run(carry, trainer(agent).steps_per_iteration)
    big = [x for x in jax.tree.leaves((carry.runs.agent, carry.runs.env)) if x.size > 1]
    assert big and all(x.is_deleted() for x in big)


# --- `program`, for whoever composes ---------------------------------------------------------------------------------


@cache
def small() -> rlx.Trainer:
    return rlx.make(RECORDER, Clock())


def test_memory_does_not_depend_on_the_number_of_iterations():
    t = small()
    carry = jax.eval_shape(lambda: t.init(2))
    temp = lambda n: jax.jit(t.program, static_argnums=1).lower(carry, n).compile().memory_analysis().temp_size_in_bytes
    assert temp(10) == temp(1000) > 0


def test_program_composes():
    """Under jit with a traced n, inside a scan, and as `run` does it: the same bits; the given carry is not donated."""
    t, carry = small(), small().init(2)
    straight, metrics = jax.jit(t.program)(carry, 6)
    scanned, rows = jax.jit(lambda c: jax.lax.scan(lambda c, _: t.program(c, 2), c, length=3))(carry)
    assert rows["loss"].shape == (3, 2) and rows["episodes"].dtype == jnp.int32
    np.testing.assert_array_equal(rows["episodes"].sum(0), metrics["episodes"])
    ran, host = t.run(t.init(2), 6 * T * N)
    for other in (scanned, ran):
        assert not differing(straight, other)
    assert not differing({k: v[:, 0] for k, v in host.items()}, metrics)
    assert int(carry.i) == 0 and not any(x.is_deleted() for x in jax.tree.leaves(carry))


@pytest.mark.parametrize("agent", [*FIELDS, "recorder"])
def test_no_key_is_reused(agent):
    t = small() if agent == "recorder" else trainer(agent)
    carry = jax.eval_shape(lambda: t.init(2))
    with jax.debug_key_reuse(True):
        jax.make_jaxpr(jax.jit(lambda c: t.program(c, 2)))(carry)
        jax.make_jaxpr(jax.jit(lambda: t.init(2)))()


def test_the_key_checker_checks():
    twice = lambda key: jax.random.normal(key) + jax.random.uniform(key)
    with jax.debug_key_reuse(True), pytest.raises(jax.errors.KeyReuseError):
        jax.make_jaxpr(jax.jit(twice))(jax.random.key(0))
