"""The same program gives the same bits: repeats, any segmentation, a new process, whatever another member does."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.trainer_support import FIELDS, LR, LRS, SEEDS, both, differing, fresh, leaves, trainer

N = 40  # iterations: sac learns from its 10th on, and its replay of 64 is full after 32


def advance(agent: str, carry, *cuts: int):
    """The carry and the totals after segments of these lengths."""
    t = trainer(agent)
    totals = t.no_totals(carry)
    for n in cuts:
        carry, totals = t.advance(carry, totals, n)
    return carry, totals


@cache
def reference(agent: str):
    return advance(agent, fresh(agent), N)


@both
def test_repeating_gives_the_same_bits(agent):
    assert not differing(reference(agent), advance(agent, fresh(agent), N))
    carry, totals = reference(agent)
    assert totals.updates.min() > 0 and int(carry.i) == N
    moved = differing(fresh(agent).runs, carry.runs)
    assert any("kernel" in path for path in moved) and not any(".hp" in path or "seed" in path for path in moved)


@both
@pytest.mark.parametrize("cuts", [(1,) * N, (7, 33), (9, 1, 30), (N - 1, 1), (0, N, 0)])
def test_segments_give_the_same_bits(agent, cuts):
    assert not differing(reference(agent), advance(agent, fresh(agent), *cuts))


@both
def test_run_and_points_are_segments(agent):
    t = trainer(agent)
    steps = N * t.steps_per_iteration
    carry, whole = t.run(fresh(agent), steps)
    assert not differing(carry, reference(agent)[0])
    carry, parts = t.run(fresh(agent), steps, points=4)
    assert not differing(carry, reference(agent)[0])
    assert not differing({k: v[:, 0] for k, v in whole.items()}, t.report(reference(agent)[1]))
    for count in ("episodes", "updates", "nan_steps"):
        assert parts[count].shape == (6, 4)
        np.testing.assert_array_equal(parts[count].sum(1, keepdims=True), whole[count])


# --- a new process ---------------------------------------------------------------------------------------------------


def continue_elsewhere(directory: str) -> None:
    """What the other process does: restore, run to iteration N, save."""
    for agent in FIELDS:
        carry = trainer(agent).restore(Path(directory, agent))
        carry, _ = advance(agent, carry, N - int(carry.i))
        trainer(agent).save(carry, Path(directory, f"{agent}-continued"))


def test_a_new_process_continues_bit_for_bit(tmp_path):
    stop = {"ppo": 13, "sac": 21}
    for agent in FIELDS:
        carry, totals = advance(agent, fresh(agent), stop[agent])
        assert totals.updates.min() > 0  # past its learning start
        trainer(agent).save(carry, tmp_path / agent)
        assert not differing(trainer(agent).restore(tmp_path / agent), carry)
    code = f"from tests.test_bits import continue_elsewhere; continue_elsewhere({str(tmp_path)!r})"
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, env=os.environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for agent in FIELDS:
        assert not differing(trainer(agent).restore(tmp_path / f"{agent}-continued"), reference(agent)[0])


# --- one member does not touch the others ----------------------------------------------------------------------------


def alone(agent: str, run: int, change) -> list[str]:
    """Change one run of a fresh population, and assert that no bit of any other run differs after N iterations.

    Returns the paths in which the changed run itself differs.
    """
    carry = fresh(agent)
    carry = carry.replace(runs=change(carry.runs))
    end, totals = advance(agent, carry, N)
    others = [r for r in range(6) if r != run]
    (carry0, totals0) = reference(agent)
    assert not differing((end.runs, totals), (carry0.runs, totals0), others)
    assert int(end.i) == N
    return differing((end.runs, totals), (carry0.runs, totals0), [run])


@both
def test_another_hyperparameter_of_one_run(agent):
    name = LR[agent]
    changed = alone(agent, 2, lambda runs: runs.replace(hp={**runs.hp, name: runs.hp[name].at[2].set(0.1)}))
    assert any("agent" in path and "kernel" in path for path in changed)


@both
def test_other_environment_parameters_of_one_run(agent):
    def change(runs):
        params = runs.env_params
        return runs.replace(env_params=params.replace(max_steps_in_episode=params.max_steps_in_episode.at[4].set(1)))

    assert any("episode_length" in path for path in alone(agent, 4, change))


@both
def test_nan_parameters_of_one_run(agent):
    def change(runs):
        poison = lambda x: x.at[1].set(jnp.nan) if jnp.issubdtype(x.dtype, jnp.floating) else x
        return runs.replace(agent=jax.tree.map(poison, runs.agent))

    assert any("agent" in path for path in alone(agent, 1, change))


@both
def test_a_nan_in_one_environment_is_quarantined(agent):
    def change(runs):
        env = runs.env.env
        return runs.replace(env=runs.env.replace(env=env.replace(credit=env.credit.at[3, 0].set(jnp.nan))))

    assert any("nan_steps" in path for path in alone(agent, 3, change))
    carry = fresh(agent)
    end, totals = advance(agent, carry.replace(runs=change(carry.runs)), N)
    assert totals.nan_steps.tolist() == [0, 0, 0, 1, 0, 0]
    for path, leaf in leaves(end.runs).items():
        assert leaf.dtype.kind != "f" or np.isfinite(leaf).all(), path


# --- a population is its members -------------------------------------------------------------------------------------


@both
def test_population_is_its_members(agent):
    """Six runs in one program and each on its own agree to float tolerance after a few updates."""
    t, n = trainer(agent), {"ppo": 4, "sac": 14}[agent]
    population, totals = advance(agent, fresh(agent), n)
    assert totals.updates.min() >= 8
    for r in range(6):
        single, _ = advance(agent, t.init([SEEDS[r % 3]], hp={LR[agent]: [LRS[r // 3]]}), n)
        mine, other = leaves(population.runs), leaves(single.runs)
        for name in other:
            np.testing.assert_allclose(mine[name][r], other[name][0], rtol=1e-4, atol=1e-4, err_msg=name)


@both
def test_runs_are_config_major_and_equal_seeds_share_randomness(agent):
    runs = fresh(agent).runs
    np.testing.assert_array_equal(runs.seed, SEEDS * 2)
    np.testing.assert_array_equal(runs.hp[LR[agent]], np.repeat(np.float32(LRS), 3))
    for name, leaf in leaves(runs).items():
        if LR[agent] not in name:
            assert leaf[:3].tobytes() == leaf[3:].tobytes(), name
    kernels = [x for name, x in leaves(runs.agent).items() if "kernel" in name and "opt" not in name]
    assert kernels and all((x[0] != x[1]).any() and (x[1] != x[2]).any() for x in kernels)
    np.testing.assert_array_equal(
        jax.random.key_data(runs.key)[1], jax.random.key_data(jax.random.fold_in(jax.random.key(0), SEEDS[1]))
    )
