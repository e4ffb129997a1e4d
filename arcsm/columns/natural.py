"""Bounds that a column evidently has, among those that are natural: 0, 0 to 1, 0 to 100, −1 to 1.

Values that merely happen to be positive prove no bound, and one that is taken for granted makes
rows beyond it impossible. Two things together do: the smallest values are less than half as far
from the bound as those a few per cent up, so the column does approach it; and the lower half of
the column is closer to a normal after the map that sends the bound to infinity than before. A
normal that stays clear of 0 fails the second, a uniform away from 0 the first. Where the smallest
values are ten times nearer than those few per cent, which is rare without a bound, the second need
only not speak against it. The very smallest two may be strays, and the third is what counts. A
bound that the bulk of the values is far from is left alone: it would hardly change the density.
"""

from statistics import NormalDist

import numpy as np

from arcsm.columns.bounds import Bounds
from arcsm.columns.sample import Sample

_INTERVALS = ((0.0, 1.0), (-1.0, 1.0), (0.0, 100.0))
_LEAST_ROWS = 20
_LOW_SHARE = 0.05
_LOW_ROWS = 10
_STRAYS = 2
# How many interquartile ranges the median may lie above a bound: 0.6 for an exponential, 1.0 for a
# Gamma(2), 1.4 for a Beta(2, 2).
_REACH = 1.6
# How much nearer the smallest value is, and the bend that the map may then leave of what there was.
_NEAR, _STRAIGHTER = 0.5, 0.9
_VERY_NEAR, _NOT_WORSE = 0.1, 1.2
_LEVELS = 65
# A single row exactly at a bound may come from scaling the column to that range.
_LEAST_AT_BOUND = 2


def natural_bounds(sample: Sample) -> tuple[float | None, float | None, str] | None:
    """Return lower bound, upper bound and the reason, or None where there is no evidence."""
    sample = sample.unweighted()
    low, high = float(sample.values[0]), float(sample.values[-1])
    for lower, upper in _INTERVALS:
        if (
            lower <= low
            and high <= upper
            and _approaches(sample, lower)
            and _approaches(_mirrored(sample), -upper)
        ):
            return lower, upper, f"values reach from {lower:g} to {upper:g}"
    if low >= 0 and _approaches(sample, 0.0):
        return 0.0, None, "positive values that come close to 0"
    if high <= 0 and _approaches(_mirrored(sample), 0.0):
        return None, 0.0, "negative values that come close to 0"
    return None


def _mirrored(sample: Sample) -> Sample:
    return Sample(-sample.values[::-1], sample.counts[::-1], sample.mass[::-1])


def _approaches(sample: Sample, bound: float) -> bool:
    """Return whether the values, all at or above `bound`, evidently have it as lower bound."""
    reached = sample.values[0] == bound
    if reached and sample.counts[0] >= _LEAST_AT_BOUND:
        return True
    sample = sample.where(sample.values > bound)
    if len(sample.values) == 0 or sample.rows < _LEAST_ROWS:
        return False
    rows = sample.rows
    low_quarter, high_quarter = sample.quantile(np.array([0.25, 0.75]))
    if sample.median - bound > _REACH * (high_quarter - low_quarter):
        return False
    few = sample.quantile(max(_LOW_SHARE, min(_LOW_ROWS, rows / 4) / rows))
    least = sample.values[np.searchsorted(np.cumsum(sample.counts), _STRAYS, side="right")]
    nearness = (least - bound) / (few - bound)
    if nearness > (_VERY_NEAR if reached else _NEAR):
        return False
    normal = NormalDist()
    # The very smallest of many rows vary so much that they would hide the shape of the others.
    lowest = min(max(rows / 200, 0.5), 5) / rows
    z = np.linspace(normal.inv_cdf(lowest), 0, _LEVELS)
    x = sample.quantile(np.array([normal.cdf(level) for level in z]))
    y, _ = Bounds(bound, None, sample.median - bound).to_line(x)
    left = _NOT_WORSE if nearness < _VERY_NEAR and not reached else _STRAIGHTER
    return _bend(z, y) < left * _bend(z, x)


def _bend(z: np.ndarray, x: np.ndarray) -> float:
    """Return the part of the variance of x that a straight line in z leaves."""
    x = (x - x.mean()) / max(np.abs(x).max(), 1e-300)
    z = z - z.mean()
    variance = float(x @ x)
    return 1 - float(x @ z) ** 2 / (variance * float(z @ z)) if variance > 0 else 0.0
