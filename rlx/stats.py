"""Statistics over runs: a table of a few seeds needs robust means and honest intervals.

Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (rliable). A failed run is a
score that is NaN or infinite: `summary` and `bootstrap_interval` count on the finite ones, and `summary` says how many
are not, so that a failure stays visible without erasing the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rlx.errors import RlxError


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
        raise RlxError(f"scores must have shape [S], not {list(x.shape)}")
    if not 0 < level < 1:
        raise RlxError(f"level={level!r} must be in (0, 1)")
    x = x[np.isfinite(x)]
    if x.size == 0:
        return float("nan"), float("nan")
    draws = np.random.default_rng(seed).integers(x.size, size=(resamples, x.size))
    low, high = np.quantile(statistic(x[draws]), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def summary(scores: ArrayLike) -> Summary:
    """Mean, IQM and its 95% bootstrap interval of the scores `[S]` of S runs."""
    x = np.asarray(scores, np.float64)
    low, high = bootstrap_interval(x)
    finite = x[np.isfinite(x)]
    mean, middle = (float(finite.mean()), float(iqm(finite))) if finite.size else (float("nan"), float("nan"))
    return Summary(mean, middle, low, high, finite.size, x.size - finite.size)
