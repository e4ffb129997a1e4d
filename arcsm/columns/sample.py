"""The values of a column, sorted and counted once; every statistic is taken from them."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

# Ranges between quantiles in units of the standard deviation of a normal, from the usual one
# outwards; the wider ones serve columns of which one value fills the middle.
_RANGES = ((0.25, 1.349), (0.1, 2.563), (0.05, 3.29), (0.01, 4.653))


@dataclass(frozen=True)
class Sample:
    """Distinct values in increasing order, how many rows have each, and their weight."""

    values: np.ndarray
    counts: np.ndarray
    mass: np.ndarray

    @classmethod
    def of(cls, column: np.ndarray, weight: np.ndarray | None) -> "Sample":
        """Count the values of a column; its rows weigh the same where `weight` is None."""
        if weight is None:
            values, counts = np.unique(column, return_counts=True)
            return cls(values, counts, counts.astype(np.float64))
        values, rows, counts = np.unique(column, return_inverse=True, return_counts=True)
        return cls(values, counts, np.bincount(rows, weight, minlength=len(values)))

    @property
    def distinct(self) -> int:
        """The number of distinct values."""
        return len(self.values)

    @cached_property
    def rows(self) -> int:
        """The number of rows."""
        return int(self.counts.sum())

    def at(self, values: np.ndarray) -> "Sample":
        """Return the sample with its values replaced by those of an increasing function."""
        return Sample(values, self.counts, self.mass)

    def where(self, chosen: np.ndarray) -> "Sample":
        """Return the part of the sample with the chosen values."""
        return Sample(self.values[chosen], self.counts[chosen], self.mass[chosen])

    def unweighted(self) -> "Sample":
        """Return the sample with every row weighing the same."""
        return Sample(self.values, self.counts, self.counts.astype(np.float64))

    @cached_property
    def _cumulative(self) -> np.ndarray:
        return np.cumsum(self.mass)

    def quantile(self, p: float | np.ndarray) -> np.ndarray:
        """Return weighted quantiles; a jump of the distribution function onto p is halved."""
        cumulative = self._cumulative
        level = np.asarray(p) * cumulative[-1]
        last = len(self.values) - 1
        below = np.minimum(np.searchsorted(cumulative, level * (1 - 1e-12), "left"), last)
        above = np.minimum(np.searchsorted(cumulative, level * (1 + 1e-12), "right"), last)
        # Halved before they are added: the sum of two large values would overflow.
        return np.asarray(self.values[below] / 2 + self.values[above] / 2)

    @cached_property
    def median(self) -> float:
        """The weighted median."""
        return float(self.quantile(0.5))

    def mean_and_deviation(self) -> tuple[float, float]:
        """Return the weighted mean and standard deviation, safe from overflow."""
        centre = self.median
        with np.errstate(over="ignore"):
            away = self.values - centre
        unit = float(np.abs(away).max())
        if unit == 0:
            return centre, 0.0
        if not math.isfinite(unit):
            return centre, math.inf
        away = away / unit
        total = self._cumulative[-1]
        mean = float(self.mass @ away / total)
        variance = float(self.mass @ (away - mean) ** 2 / total)
        return centre + unit * mean, unit * math.sqrt(variance)

    def robust_scale(self) -> float:
        """Return a standard deviation from quantiles, or 0 where one value has nearly all rows."""
        for p, width in _RANGES:
            low, high = self.quantile(np.array([p, 1 - p]))
            if high > low:
                return float(high / width - low / width)
        return 0.0

    def in_order(self, *, spread_ties: float = 0.0) -> np.ndarray:
        """Return the values of all rows that weigh something, in increasing order.

        Rows with the same value are spread evenly over that value ± `spread_ties`.
        """
        counts = np.where(self.mass > 0, self.counts, 0)
        values = np.repeat(self.values, counts)
        if spread_ties:
            first = np.repeat(np.cumsum(counts) - counts, counts)
            rank = np.arange(len(values)) - first
            values = values + spread_ties * ((2 * rank + 1) / np.repeat(counts, counts) - 1)
        return values
