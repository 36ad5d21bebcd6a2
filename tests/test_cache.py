"""Compiled programs do not fill up a process."""

import sys

import jax
import numpy as np
import pytest

import rlx
from rlx import cache
from tests.train_support import CARTPOLE, TINY

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="where mappings are counted")


def test_programs_are_dropped_beyond_the_share():
    f = jax.jit(lambda x: x + 1)
    f(1)
    cache.make_room(1.0)
    assert f._cache_size() == 1
    cache.make_room(0.0)
    assert f._cache_size() == 0 and f(1) == 2


def test_training_makes_room(monkeypatch):
    """Without losing a bit of what was trained before."""
    train = lambda: rlx.train("ppo", CARTPOLE, steps=40, seeds=2, progress=False, **TINY)
    first = train()
    before = np.asarray(first.trainer.evaluate(first.carry(), 2))
    assert first.trainer._segment._cache_size() == 1
    train()
    assert first.trainer._segment._cache_size() == 1
    monkeypatch.setattr(cache.make_room, "__defaults__", (0.0,))
    train()
    assert first.trainer._segment._cache_size() == 0
    np.testing.assert_array_equal(first.trainer.evaluate(first.carry(), 2), before)
