"""The design study's arithmetic, and that each of its rows is another agent."""

import numpy as np
import pandas as pd
import pytest

from experiments import mrq_ablation as study
from rlx import config
from rlx.agents import mrq


def table_of(returns):
    """Evaluations every 10 steps of runs `[R, T]`."""
    rows = [{"run": r, "step": 10 * (t + 1), "return": x} for r, run in enumerate(returns) for t, x in enumerate(run)]
    return pd.DataFrame(rows)


@pytest.mark.parametrize("name", study.VARIANTS)
def test_each_variant_is_an_agent_of_its_own(name):
    changes = study.VARIANTS[name][0]
    made = config.make(mrq.Config, changes=changes)  # an unknown name or a bad value is an error
    assert (made == mrq.Config()) == (name == "as published")
    assert all(getattr(made, field) != getattr(mrq.Config(), field) for field in changes)


def test_an_area_is_the_mean_of_a_runs_evaluations():
    """And that of a run that failed once is not a number."""
    np.testing.assert_array_equal(study.areas(table_of([[1.0, 3.0], [0.0, np.nan], [-2.0, 6.0]])), [2.0, np.nan, 2.0])


def test_differences_are_of_means():
    mean, low, high = study.difference(np.array([3.0, 5.0, np.nan]), np.array([1.0, 1.0, 1.0]))
    assert mean == 3.0 and (low, high) == (2.0, 4.0)  # a quarter of all pairs is (3, 3), a quarter (5, 5)


def test_a_row():
    published = table_of([[0.0, 10.0], [2.0, 10.0], [1.0, 10.0], [1.0, 10.0]])
    other = table_of([[0.0, 2.0], [0.0, 2.0], [0.0, 2.0], [np.nan, np.nan]])
    row = study.row("no LAP", other, published)
    assert (row["seeds"], row["failed"], row["steps"], row["area"], row["final IQM"]) == (3, 1, 20, 1.0, 2.0)
    assert row["difference"] == 1.0 - 5.5 and row["low"] <= row["difference"] <= row["high"]
    assert "difference" not in study.row("as published", published, published)
