"""IQM and bootstrap against cases made by hand, scipy and a plain loop."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from rlx import stats
from rlx.errors import RlxError

FLOATS = st.floats(-1e6, 1e6, allow_subnormal=False)


@pytest.mark.parametrize(
    "scores, expected",
    [
        ([7], 7),
        ([1, 3], 2),
        ([0, 0, 9], 3),  # below four scores nothing is cut
        ([100, 2, 4, -50], 3),
        ([100, 2, 4, 6, -50], 4),  # floor(5/4) = 1 from each side
        ([-100, -50, 1, 2, 3, 4, 50, 100], 2.5),
    ],
)
def test_iqm_by_hand(scores: list[float], expected: float):
    assert stats.iqm(np.array(scores)) == stats.iqm(np.array(scores[::-1])) == expected


@given(st.lists(FLOATS, min_size=1, max_size=40))
def test_iqm_is_scipys_trimmed_mean(scores):
    np.testing.assert_allclose(stats.iqm(scores), scipy.stats.trim_mean(scores, 0.25), rtol=1e-12, atol=1e-9)


def test_iqm_reduces_the_last_axis_and_keeps_nan():
    x = np.arange(24.0).reshape(2, 3, 4)
    np.testing.assert_array_equal(stats.iqm(x), x[..., 1:3].mean(-1))
    np.testing.assert_array_equal(stats.iqm([[1.0, 2.0, 3.0, np.nan], [1.0, 2.0, 3.0, 4.0]]), [np.nan, 2.5])


def test_bootstrap_is_the_percentile_bootstrap():
    scores, rng = np.array([1.0, 2.0, 5.0, 9.0, 30.0]), np.random.default_rng(3)
    means = []
    for row in rng.integers(5, size=(500, 5)):
        means.append(sum(scores[i] for i in row) / 5)
    expected = np.percentile(means, [5, 95])
    mean = lambda x: x.mean(-1)
    np.testing.assert_allclose(stats.bootstrap_interval(scores, mean, 0.9, 500, 3), expected)


def test_bootstrap_of_the_mean_of_many_is_the_normal_interval():
    scores = np.random.default_rng(0).normal(10, 2, 400)
    half = 1.96 * scores.std() / 20
    low, high = stats.bootstrap_interval(scores, lambda x: x.mean(-1))
    np.testing.assert_allclose([low, high], [scores.mean() - half, scores.mean() + half], atol=0.1 * half)


@given(FLOATS, st.integers(1, 9))
def test_bootstrap_of_one_score_and_of_constant_scores(value, n):
    np.testing.assert_allclose(stats.bootstrap_interval([value] * n, resamples=50), (value, value), rtol=1e-12)
    assert stats.bootstrap_interval([value], resamples=50) == (value, value)


@given(st.lists(FLOATS, min_size=1, max_size=12))
def test_bootstrap_is_ordered_repeatable_and_within_the_scores(scores):
    low, high = stats.bootstrap_interval(scores, resamples=100)
    slack = 1e-9 * (1 + np.abs(scores).max())
    assert min(scores) - slack <= low <= high <= max(scores) + slack
    assert (low, high) == stats.bootstrap_interval(scores, resamples=100)


def test_a_higher_level_is_wider():
    scores = [1.0, 4.0, 6.0, 9.0, 20.0]
    narrow, wide = stats.bootstrap_interval(scores, level=0.5), stats.bootstrap_interval(scores, level=0.99)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_summary():
    out = stats.summary([0, 2, 4, 100])
    assert (out.mean, out.iqm, out.n, out.failed) == (26.5, 3.0, 4, 0)
    assert out.low < 3 < out.high
    assert stats.summary([5.0]) == stats.Summary(5.0, 5.0, 5.0, 5.0, 1, 0)


@pytest.mark.filterwarnings("error")
def test_failed_runs_are_counted_and_left_out():
    good = stats.summary([1.0, 2.0, 3.0])
    assert stats.summary([1.0, np.nan, 2.0, np.inf, 3.0]) == good._replace(failed=2)
    for scores in ([np.nan, np.nan], []):
        out = stats.summary(scores)
        assert np.isnan(out[:4]).all() and out.n == 0 and out.failed == len(scores)


@pytest.mark.parametrize("bad", [{"level": 1.0}, {"level": 95}, {"scores": [[1.0]]}])
def test_errors(bad):
    with pytest.raises(RlxError, match=f"{next(iter(bad))}.* must"):
        stats.bootstrap_interval(**{"scores": [1.0, 2.0], **bad})
