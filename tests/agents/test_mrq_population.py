"""A population of MR.Q: one program for seeds x learning rates, real conditionals, no copy of the replay; resume."""

import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import rlx
from rlx import footprint
from tests.agents.mrq_support import FIELDS
from tests.trainer_support import differing

ENV = "probe/Truncation-continuous"
TINY = FIELDS | {"learning_starts": 20, "zs_size": 8, "encoder_size": 8}


def trainer_of(**fields):
    return rlx.make("mrq", ENV, **TINY | fields)


@pytest.fixture(scope="module")
def program():
    trainer = trainer_of(replay_capacity=40_000)
    carry = jax.eval_shape(lambda: trainer.init(4))
    return carry, trainer._segment.lower(carry, trainer.no_totals(carry), jnp.uint32(1)).compile()


def test_a_population_skips_the_burst(program):
    """Of the conditionals one is inside another: the burst in learning. Neither became a select."""
    names = [re.search(r'op_name="([^"]*)"', x)[1] for x in program[1].as_text().splitlines() if " conditional(" in x]
    assert sum(name.count("/cond") == 2 for name in names) == 1, names
    assert len(names) == 4, names


def test_no_conditional_copies_the_replay(program):
    carry, compiled = program
    assert compiled.memory_analysis().temp_size_in_bytes < footprint.size(carry.runs.agent.replay) / 2
    shape = re.escape("f32[4,40000")  # rows of the replay in every run
    copies = [x for x in compiled.as_text().splitlines() if re.search(rf"= {shape}[^=]* copy\(", x)]
    assert not copies, copies


@pytest.fixture(scope="module")
def trainer():
    return trainer_of(replay_capacity=60)


def test_resume_is_bit_for_bit(trainer, tmp_path):
    """Saved within a period, after learning has started and the ring has wrapped."""
    advance = lambda carry, n: trainer.advance(carry, trainer.no_totals(carry), n)[0]
    carry = advance(trainer.init(12), 23)
    trainer.save(carry, tmp_path / "a")
    assert carry.runs.agent.learner.encoder_opt[0].count[0] > 0
    restored = trainer_of(replay_capacity=60).restore(tmp_path / "a")
    assert not differing(restored, carry)
    assert not differing(advance(restored, 20), advance(carry, 20))


def test_four_seeds_by_three_learning_rates_are_one_program(trainer):
    """Of 12 runs, those with a rate of 0 keep the critics they began with; other rates compile nothing."""
    critics = lambda carry: jax.tree.leaves(carry.runs.agent.learner.nets.critic)
    grid = [[0.0, 1e-3, 3e-3], [1e-4, 0.0, 1e-2]]
    for rates in grid:
        carry = trainer.init(4, hp={"critic_lr": rates})
        before = [np.array(x) for x in critics(carry)]
        carry, metrics = trainer.run(carry, 30 * trainer.steps_per_iteration)
        assert metrics["critic_loss"].shape[:2] == (12, 1) and np.isfinite(metrics["critic_loss"]).all()
        change = np.max([np.abs(x - y).reshape(3, 4, -1).max(-1) for x, y in zip(before, critics(carry), strict=True)], axis=0)
        for lr, of_seeds in zip(rates, change, strict=True):
            assert (of_seeds == 0.0).all() if lr == 0.0 else (of_seeds > lr / 2).all(), (lr, of_seeds)
    assert trainer._segment._cache_size() == 1


@pytest.mark.slow
def test_another_process_resumes_bit_for_bit(tmp_path):
    """`rlx train --resume`, stopped within a period of updates, against a run that was never stopped."""
    words = [f"--{name}={value}" for name, value in (TINY | {"replay_capacity": 60}).items()]
    steps = trainer_of(replay_capacity=60).steps_per_iteration

    def train(out, iterations, *more):
        command = [sys.executable, "-m", "rlx.cli", "train", "mrq", ENV, *words, "--seeds=2", f"--steps={iterations * steps}"]
        run = f"--out={tmp_path / out}", f"--eval_every={steps}", "--eval_episodes=2", f"--save_every={steps}"
        subprocess.run([*command, *run, *more], check=True, capture_output=True)

    train("whole", 43)
    train("stopped", 23)
    train("stopped", 43, "--resume=True")
    whole, stopped = rlx.load(tmp_path / "whole"), rlx.load(tmp_path / "stopped")
    assert not differing(stopped.carry(), whole.carry())
    pd.testing.assert_frame_equal(stopped.metrics, whole.metrics, check_exact=True)
