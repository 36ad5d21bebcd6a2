"""Statistics over several tasks against cases made by hand and plain loops: Agarwal et al. 2021."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rlx import stats
from rlx.errors import RlxError

FLOATS = st.floats(-1e6, 1e6, allow_subnormal=False)
TABLES = hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=2, max_side=6), elements=FLOATS)
GAPPY = hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=2, max_side=5), elements=FLOATS | st.just(float("nan")))
NAN, INF = float("nan"), float("inf")
pytestmark = pytest.mark.filterwarnings("error")


# --- the statistics ----------------------------------------------------------------------------------------------------

# tasks are columns: their means are 2, 20, 5
BY_HAND = np.array([[1.0, 10.0, 5.0], [3.0, 30.0, 5.0]])


def test_statistics_by_hand():
    out = stats.aggregate(BY_HAND, threshold=10)
    assert out.mean.value == 9
    assert out.median.value == 5
    assert out.iqm.value == (3 + 5 + 5 + 10) / 4  # of 1 3 5 5 10 30
    assert out.optimality_gap.value == (9 + 7 + 0 + 0 + 5 + 5) / 6
    assert (out.runs, out.tasks, out.failed) == (2, 3, 0)


def test_the_threshold_of_the_gap_is_one_unless_given():
    assert stats.aggregate([[0.25], [1.75]]).optimality_gap.value == 0.375  # more than enough makes up for nothing


@given(TABLES)
def test_statistics_are_those_of_plain_loops(x):
    out = stats.aggregate(x, threshold=3.0, resamples=2)
    close = lambda interval, value: np.testing.assert_allclose(interval.value, value, rtol=1e-9, atol=1e-6)
    means = [sum(column) / len(column) for column in x.T.tolist()]
    close(out.mean, sum(means) / len(means))
    close(out.median, np.median(means))
    close(out.iqm, scipy.stats.trim_mean(x, 0.25, axis=None))  # as rliable has it
    close(out.optimality_gap, 3.0 - np.mean([min(score, 3.0) for score in x.ravel().tolist()]))


@given(TABLES)
def test_of_one_task_the_iqm_is_that_of_its_runs(x):
    np.testing.assert_allclose(stats.pooled_iqm(x[:, :1]), stats.iqm(x[:, 0]), rtol=1e-12, atol=1e-9)
    assert stats.interval(x[:, 0], resamples=20) == stats.interval(x[:, :1], resamples=20)


def test_statistics_reduce_the_last_two_axes():
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 5))
    x[0, 0, 0, 0] = NAN
    for statistic in (stats.pooled_iqm, stats.mean, stats.median, stats.optimality_gap(1.0)):
        out = statistic(x)
        assert out.shape == (2, 3)
        assert out[1, 2] == statistic(x[1, 2]) and out[0, 0] == statistic(x[0, 0])


# --- failed runs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_failed_runs_are_left_out_and_counted(bad):
    out = stats.aggregate([[1.0, 10.0], [bad, 20.0], [3.0, bad], [8.0, 30.0]], threshold=10)
    assert (out.runs, out.tasks, out.failed) == (4, 2, 2)
    assert out.mean.value == out.median.value == (4 + 20) / 2
    assert out.iqm.value == (3 + 8 + 10 + 20) / 4
    assert out.optimality_gap.value == ((9 + 7 + 2) / 3 + 0) / 2
    for interval in out[:4]:
        assert np.isfinite(interval).all() and interval.low <= interval.high


def test_a_task_without_a_score_has_no_statistic():
    out = stats.aggregate([[1.0, NAN], [2.0, NAN]])
    assert np.isnan(out[:4]).all() and out.failed == 2
    assert np.isnan(stats.aggregate([[NAN]])[:4]).all()


@given(GAPPY)
def test_failed_runs_of_a_task_change_nothing_but_their_number(x):
    """A task with failures has the mean of its finite scores, wherever in the table they are."""
    moved = np.sort(x, axis=0)  # NaNs last
    for statistic in (stats.pooled_iqm, stats.mean, stats.median):
        np.testing.assert_allclose(statistic(x), statistic(moved), rtol=1e-9, atol=1e-6)
    padded = np.concatenate([x, np.full_like(x, NAN)])
    np.testing.assert_allclose(stats.pooled_iqm(padded), stats.pooled_iqm(x), rtol=1e-9, atol=1e-6)


# --- the stratified bootstrap ------------------------------------------------------------------------------------------


def test_the_bootstrap_draws_runs_within_each_task():
    x, rng = np.array([[1.0, 100.0], [2.0, 200.0], [4.0, NAN]]), np.random.default_rng(5)
    first, second = rng.integers(3, size=(300, 3)), rng.integers(2, size=(300, 2))  # the third run of the second task failed
    means = [(x[i, 0].mean() + x[j, 1].mean()) / 2 for i, j in zip(first, second, strict=True)]
    expected = np.percentile(means, [10, 90])
    np.testing.assert_allclose(stats.interval(x, stats.mean, 0.8, 300, 5)[1:], expected, rtol=1e-12)


def test_differences_between_tasks_do_not_widen_the_interval():
    """Scores differ by 1000 between tasks and not at all between runs: only an unstratified bootstrap would see spread."""
    assert stats.interval([[0.0, 1000.0]] * 5, stats.mean) == (500, 500, 500)


def test_chunks_hold_all_resamples(monkeypatch):
    x = np.random.default_rng(0).normal(size=(4, 3))
    sizes = lambda: [len(t) for t in stats._resampled(x, 100, np.random.default_rng(0))]
    assert sizes() == [100]
    monkeypatch.setattr(stats, "CHUNK", 12 * 30)
    assert sizes() == [30, 30, 30, 10]
    monkeypatch.setattr(stats, "CHUNK", 1)
    assert sizes() == [1] * 100
    wide = stats.interval(np.random.default_rng(0).normal(size=(400, 1)), stats.mean)
    np.testing.assert_allclose([wide.high - wide.value, wide.value - wide.low], 1.96 / 20, rtol=0.15)


@given(TABLES)
@settings(max_examples=50)
def test_intervals_are_ordered_repeatable_and_within_the_scores(x):
    slack = 1e-9 * (1 + np.abs(x).max())
    out = stats.aggregate(x, resamples=40)
    assert out == stats.aggregate(x, resamples=40)
    for value, low, high in out[:3]:
        assert x.min() - slack <= low <= high <= x.max() + slack
        assert x.min() - slack <= value <= x.max() + slack


@given(FLOATS, st.integers(1, 5), st.integers(1, 4))
def test_one_seed_and_constant_scores(value, runs, tasks):
    for interval in stats.aggregate(np.full((runs, tasks), value), resamples=20)[:3]:
        np.testing.assert_allclose(interval, (value, value, value), rtol=1e-12)
    one = np.arange(tasks, dtype=float)[None]
    for interval in stats.aggregate(one, resamples=20)[:3]:
        assert interval.low == interval.value == interval.high


def test_intervals_cover_the_true_mean_as_often_as_they_say():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(200):
        x = rng.normal([0.0, 5.0, -2.0], 1.0, size=(20, 3))
        _, low, high = stats.interval(x, stats.mean, resamples=200)
        hits += low <= 1.0 <= high
    assert 0.88 <= hits / 200 <= 0.99  # percentile intervals of 20 runs are a little narrow


# --- probability of improvement ----------------------------------------------------------------------------------------


def test_probability_of_improvement_by_hand():
    x, y = [[1.0, 0.0], [3.0, 0.0]], [[2.0, 0.0], [1.0, 1.0], [0.0, 5.0]]
    first = (0 + 0.5 + 1 + 1 + 1 + 1) / 6  # 1 and 3 against 2, 1, 0
    second = (0.5 + 0 + 0 + 0.5 + 0 + 0) / 6
    assert stats.probability_of_improvement(x, y).value == pytest.approx((first + second) / 2)


@given(TABLES, st.integers(0, 2**32 - 1))
@settings(max_examples=50)
def test_probability_of_improvement_is_the_mann_whitney_statistic(x, seed):
    y = np.random.default_rng(seed).choice(x.ravel(), size=(4, x.shape[1]))  # with ties
    out = stats.probability_of_improvement(x, y, resamples=50)
    u = [scipy.stats.mannwhitneyu(a, b).statistic / (len(a) * len(b)) for a, b in zip(x.T, y.T, strict=True)]
    np.testing.assert_allclose(out.value, np.mean(u), rtol=1e-9)
    assert 0 <= out.low <= out.high <= 1
    np.testing.assert_allclose(stats.probability_of_improvement(y, x, resamples=1).value, 1 - out.value, atol=1e-9)


def test_probability_of_improvement_resamples_both_within_tasks():
    rng = np.random.default_rng(0)
    x, y = rng.normal(0.5, 1, size=(6, 2)), rng.normal(0, 1, size=(5, 2))
    draws = []
    for _ in range(2000):
        p = []
        for t in range(2):
            a, b = rng.choice(x[:, t], 6), rng.choice(y[:, t], 5)
            p.append(np.mean([float(i > j) + 0.5 * float(i == j) for i in a for j in b]))
        draws.append(np.mean(p))
    out = stats.probability_of_improvement(x, y)
    np.testing.assert_allclose([out.low, out.high], np.percentile(draws, [2.5, 97.5]), atol=0.03)


def test_a_failed_run_loses_to_every_other():
    assert stats.probability_of_improvement([NAN, -5.0], [-1e9]).value == 0.5
    assert stats.probability_of_improvement([NAN, INF], [NAN, -INF]) == (0.5, 0.5, 0.5)
    assert stats.probability_of_improvement([1.0], [0.0, NAN]) == (1, 1, 1)


# --- performance profiles ----------------------------------------------------------------------------------------------


def test_profile_by_hand():
    out = stats.performance_profile([[1.0, 5.0], [3.0, NAN]], [-INF, 0.0, 1.0, 3.0, 5.0])
    np.testing.assert_array_equal(out.fraction, [0.75, 0.75, 0.5, 0.25, 0])  # strictly above; a failed run above nothing
    np.testing.assert_array_equal(out.taus, [-INF, 0, 1, 3, 5])
    assert (out.low[-1], out.high[-1]) == (0, 0)
    assert out.low[2] < 0.5 < out.high[2]


@given(GAPPY, st.lists(FLOATS, min_size=1, max_size=5))
def test_profile_is_a_plain_count_and_falls(x, taus):
    taus = sorted(taus)
    out = stats.performance_profile(x, taus, resamples=20)
    for k, tau in enumerate(taus):
        assert out.fraction[k] == pytest.approx(sum(score > tau for score in x.ravel().tolist()) / x.size)
    assert (np.diff(out.fraction) <= 0).all()
    assert (out.low <= out.high).all() and (out.low >= 0).all() and (out.high <= 1 + 1e-12).all()


def test_profile_interval_is_stratified():
    """Half of the tasks are solved by every run, half by none: nothing is uncertain."""
    x = np.tile([0.0, 0.0, 1.0, 1.0], (5, 1))
    out = stats.performance_profile(x, [0.5])
    assert (out.low, out.fraction, out.high) == (0.5, 0.5, 0.5)
    binomial = stats.performance_profile(np.arange(100.0)[:, None], [49.5])  # one task, half of the runs
    np.testing.assert_allclose([binomial.low[0], binomial.high[0]], [0.4, 0.6], atol=0.021)


# --- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: stats.aggregate([]), "scores must have shape [runs, tasks], at least one of each, not [0, 1]"),
        (lambda: stats.aggregate(np.zeros((2, 0))), "not [2, 0]"),
        (lambda: stats.interval(np.zeros((2, 2, 2))), "not [2, 2, 2]"),
        (lambda: stats.interval([1.0], level=95), "level=95 must be in (0, 1)"),
        (lambda: stats.aggregate([1.0], resamples=0), "resamples=0 must be at least 1"),
        (lambda: stats.performance_profile([1.0], 0.5), "taus must have shape [K], not []"),
        (lambda: stats.probability_of_improvement([[1.0, 2.0]], [[1.0]]), "x has 2 tasks and y has 1"),
        (lambda: stats.bootstrap_interval([[1.0]]), "of several tasks use rlx.stats.interval"),
    ],
)
def test_errors(call, words):
    with pytest.raises(RlxError) as error:
        call()
    assert words in str(error.value)
