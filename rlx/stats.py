"""Statistics over runs: a table of a few seeds needs robust means and honest intervals.

Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (rliable). Scores are `[S]`, of
one task, or a table `[runs, tasks]`.

A failed run is a score that is NaN or infinite. What is measured in units of the score (`summary`, `bootstrap_interval`,
`interval`, `aggregate`) is of the finite scores, and says how many are not: no number could stand for them. What only orders
scores (`probability_of_improvement`, `performance_profile`) keeps failed runs, as worse than every other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rlx.errors import RlxError

CHUNK = 2**22  # scores of resampled tables that are held at once


class Summary(NamedTuple):
    """Of `n` finite scores; `failed` further ones are NaN or infinite. All statistics are NaN if `n` is 0."""

    mean: float
    iqm: float
    low: float
    high: float
    n: int
    failed: int


def iqm(x: ArrayLike) -> np.ndarray:
    """Interquartile mean along the last axis, `[..., S] -> [...]` float64; NaN where a score is NaN.

    The mean without the floor(S/4) lowest and the floor(S/4) highest: `scipy.stats.trim_mean(x, 0.25)`, as in rliable.
    Below four scores it is the mean. (Not scipy's function: importing scipy.stats takes longer than importing jax.)
    """
    y = np.sort(np.asarray(x, np.float64), axis=-1)
    cut = y.shape[-1] // 4
    return np.where(np.isnan(y[..., -1]), np.nan, y[..., cut : y.shape[-1] - cut].mean(axis=-1))  # NaNs sort last


def bootstrap_interval(
    scores: ArrayLike,
    statistic: Callable[[np.ndarray], np.ndarray] = iqm,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap interval of `statistic` over the finite scores of `[S]`.

    `statistic` reduces the last axis. Percentile, not bias-corrected: BCa is undefined for one score and for constant
    ones, where this is `(value, value)`. NaN if no score is finite.
    """
    x = np.asarray(scores, np.float64)
    if x.ndim != 1:
        raise RlxError(f"scores must have shape [S], not {list(x.shape)}; of several tasks use rlx.stats.interval")
    quantiles = _quantiles(level, resamples)
    x = x[np.isfinite(x)]
    if x.size == 0:
        return float("nan"), float("nan")
    draws = np.random.default_rng(seed).integers(x.size, size=(resamples, x.size))
    low, high = np.quantile(statistic(x[draws]), quantiles)
    return float(low), float(high)


def summary(scores: ArrayLike) -> Summary:
    """Mean, IQM and its 95% bootstrap interval of the scores `[S]` of S runs."""
    x = np.asarray(scores, np.float64)
    low, high = bootstrap_interval(x)
    finite = x[np.isfinite(x)]
    mean, middle = (float(finite.mean()), float(iqm(finite))) if finite.size else (float("nan"), float("nan"))
    return Summary(mean, middle, low, high, finite.size, x.size - finite.size)


def _quantiles(level: float, resamples: int) -> list[float]:
    if not 0 < level < 1:
        raise RlxError(f"level={level!r} must be in (0, 1)")
    if resamples < 1:
        raise RlxError(f"resamples={resamples!r} must be at least 1")
    return [(1 - level) / 2, (1 + level) / 2]


# --- over tasks --------------------------------------------------------------------------------------------------------


class Interval(NamedTuple):
    """The value of a statistic and its percentile bootstrap interval."""

    value: float
    low: float
    high: float


class Aggregate(NamedTuple):
    """Of a table `[runs, tasks]` with `failed` scores that are NaN or infinite. The statistics are NaN if a task has no
    finite score."""

    iqm: Interval
    mean: Interval
    median: Interval
    optimality_gap: Interval
    runs: int
    tasks: int
    failed: int


class Profile(NamedTuple):
    """Fraction of runs with a score above each tau, and its pointwise interval, `[K]` each."""

    taus: np.ndarray
    fraction: np.ndarray
    low: np.ndarray
    high: np.ndarray


Statistic = Callable[[np.ndarray], np.ndarray]  # tables [..., R, T], failed runs NaN -> [...]


def _table(scores: ArrayLike) -> np.ndarray:
    """float64 `[R, T]`, failed runs NaN; `[S]` is one task."""
    x = np.asarray(scores, np.float64)
    x = x[:, None] if x.ndim == 1 else x
    if x.ndim != 2 or x.size == 0:
        raise RlxError(f"scores must have shape [runs, tasks], at least one of each, not {list(x.shape)}")
    return np.where(np.isfinite(x), x, np.nan)


def task_means(x: np.ndarray) -> np.ndarray:
    """`[..., R, T] -> [..., T]`: the mean of the finite scores of each task, NaN where there is none."""
    finite = np.isfinite(x)
    n = finite.sum(-2)
    return np.where(n > 0, np.where(finite, x, 0).sum(-2) / np.maximum(n, 1), np.nan)


def mean(x: np.ndarray) -> np.ndarray:
    """Mean over tasks of the mean over runs, `[..., R, T] -> [...]`."""
    return task_means(x).mean(-1)


def median(x: np.ndarray) -> np.ndarray:
    """Median over tasks of the mean over runs, `[..., R, T] -> [...]`."""
    return np.median(task_means(x), axis=-1)


def pooled_iqm(x: np.ndarray) -> np.ndarray:
    """IQM of the n finite scores of all tasks together, `[..., R, T] -> [...]`: the mean without the floor(n/4) lowest and
    the floor(n/4) highest. A task with failed runs weighs less; one with failed runs only makes it NaN."""
    y = np.sort(np.where(np.isfinite(x), x, np.nan).reshape(*x.shape[:-2], -1), axis=-1)  # NaNs last
    n = np.isfinite(y).sum(-1, keepdims=True)
    rank = np.arange(y.shape[-1])
    kept = (rank >= n // 4) & (rank < n - n // 4)
    value = np.where(kept, y, 0).sum(-1) / np.maximum(kept.sum(-1), 1)
    return np.where(np.isfinite(x).any(-2).all(-1), value, np.nan)


def optimality_gap(threshold: float = 1.0) -> Statistic:
    """By how much runs fall short of `threshold`: mean over tasks of the mean over runs of max(threshold - score, 0).

    Meant for normalised scores, where 1 is the performance that is asked for; lower is better.
    """
    return lambda x: mean(np.maximum(threshold - x, 0))


def interval(
    scores: ArrayLike, statistic: Statistic = pooled_iqm, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """A statistic of a table `[runs, tasks]` with its stratified percentile bootstrap interval.

    Stratified: each task's finite scores are drawn anew, with replacement and independently of the other tasks, as many as
    there are. `statistic` maps tables `[..., R, T]` to `[...]` and has to skip NaN, which pads tasks with failed runs.
    """
    x, quantiles = _table(scores), _quantiles(level, resamples)
    draws = [statistic(tables) for tables in _resampled(x, resamples, np.random.default_rng(seed))]
    low, high = np.quantile(np.concatenate(draws), quantiles)
    return Interval(float(statistic(x)), float(low), float(high))


def _resampled(x: np.ndarray, resamples: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """`[b, R, T]` tables whose b sum to `resamples`."""
    tasks = [task[np.isfinite(task)] for task in x.T]
    most = max(1, CHUNK // x.size)
    for start in range(0, resamples, most):
        out = np.full((min(most, resamples - start), *x.shape), np.nan)
        for t, task in enumerate(tasks):
            if task.size:
                out[:, : task.size, t] = task[rng.integers(task.size, size=(len(out), task.size))]
        yield out


def aggregate(
    scores: ArrayLike, threshold: float = 1.0, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Aggregate:
    """IQM, mean, median and optimality gap (to `threshold`) of a table `[runs, tasks]`, each with its `interval`.

    Tasks need comparable scores: normalise them first.
    """
    x = _table(scores)
    of = lambda statistic: interval(x, statistic, level, resamples, seed)
    intervals = of(pooled_iqm), of(mean), of(median), of(optimality_gap(threshold))
    return Aggregate(*intervals, runs=x.shape[0], tasks=x.shape[1], failed=int(np.isnan(x).sum()))


def probability_of_improvement(
    x: ArrayLike, y: ArrayLike, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Interval:
    """P(X > Y) on a task drawn at random, of the runs `x [R, T]` and `y [Q, T]` of two algorithms; ties count half.

    Mean over tasks of the Mann-Whitney statistic U / (R Q). Runs of both are resampled within each task. A failed run loses
    to every other, and ties with another failed one.
    """
    a, b, quantiles = _table(x), _table(y), _quantiles(level, resamples)
    if a.shape[1] != b.shape[1]:
        raise RlxError(f"x has {a.shape[1]} tasks and y has {b.shape[1]}: they must be the same")
    a, b = (np.where(np.isnan(s), -np.inf, s) for s in (a, b))
    rng = np.random.default_rng(seed)
    values, draws = [], []
    for left, right in zip(a.T, b.T, strict=True):
        wins = (left[:, None] > right) + 0.5 * (left[:, None] == right)
        values.append(wins.mean())
        draws.append((_weights(len(left), resamples, rng) @ wins * _weights(len(right), resamples, rng)).sum(-1))
    low, high = np.quantile(np.mean(draws, axis=0), quantiles)
    return Interval(float(np.mean(values)), float(low), float(high))


def performance_profile(
    scores: ArrayLike, taus: ArrayLike, level: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Profile:
    """The fraction of all runs of a table `[runs, tasks]` with a score above each of `taus [K]`: one minus the ECDF.

    The interval is pointwise, from runs resampled within each task. A failed run is above no tau.
    """
    x, quantiles, rng = _table(scores), _quantiles(level, resamples), np.random.default_rng(seed)
    levels = np.asarray(taus, np.float64)
    if levels.ndim != 1:
        raise RlxError(f"taus must have shape [K], not {list(levels.shape)}")
    draws = np.zeros((resamples, len(levels)))
    for task in x.T:
        draws += _weights(len(task), resamples, rng) @ (task[:, None] > levels)
    low, high = np.quantile(draws / x.shape[1], quantiles, axis=0)
    return Profile(levels, (x[..., None] > levels).mean((0, 1)), low, high)


def _weights(n: int, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """`[resamples, n]`: how often each of n runs is in a resample, divided by n."""
    return rng.multinomial(n, np.full(n, 1 / n), size=resamples) / n
