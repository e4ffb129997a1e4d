"""Maps between an open half-line or interval and the whole line."""

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Bounds:
    """An increasing map from lower < x < upper, of which one may be None, to the line.

    Within one bound, at distance u from it, y = ± bend·log(expm1(u/bend)): a logarithm near the
    bound and the identity far from it. Within two, y = log((x − lower)/(upper − x)).
    """

    lower: float | None
    upper: float | None
    bend: float = 1.0

    @property
    def smallest(self) -> float:
        """The first number above the lower bound."""
        if self.lower is None:
            return -float(np.finfo(np.float64).max)
        return math.nextafter(self.lower, math.inf)

    @property
    def largest(self) -> float:
        """The last number below the upper bound."""
        if self.upper is None:
            return float(np.finfo(np.float64).max)
        return math.nextafter(self.upper, -math.inf)

    def to_line(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return y and log(dy/dx) of values strictly inside the bounds."""
        if self.lower is not None and self.upper is not None:
            below, above = np.log(x - self.lower), np.log(self.upper - x)
            return below - above, math.log(self.upper - self.lower) - below - above
        if self.lower is not None:
            return self._from_bound(x - self.lower)
        y, log_derivative = self._from_bound(self._only_upper() - x)
        return -y, log_derivative

    def from_line(self, y: np.ndarray) -> np.ndarray:
        """Return the x of each y, strictly inside the bounds whatever the rounding."""
        y = np.asarray(y, dtype=np.float64)
        with np.errstate(over="ignore"):
            if self.lower is not None and self.upper is not None:
                half = np.exp(-np.abs(y))
                part = (self.upper - self.lower) * half / (1 + half)  # from the nearer bound
                x = np.where(y < 0, self.lower + part, self.upper - part)
            elif self.lower is not None:
                x = self.lower + self.bend * np.logaddexp(0, y / self.bend)
            else:
                x = self._only_upper() - self.bend * np.logaddexp(0, -y / self.bend)
        return np.clip(x, self.smallest, self.largest)

    def _from_bound(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return bend·log(expm1(u/bend)) and the log of its derivative 1/(1 − exp(−u/bend))."""
        with np.errstate(over="ignore"):
            r = u / self.bend
        # log(1 − exp(−r)); for small r its first terms, since r itself may have underflowed.
        log_part = np.where(
            r < 1e-8,
            np.log(u) - math.log(self.bend) - r / 2,
            np.log(-np.expm1(-np.maximum(r, 1e-8))),
        )
        return u + self.bend * log_part, -log_part

    def _only_upper(self) -> float:
        if self.upper is None:
            raise ValueError("bounds need a lower or an upper one")
        return self.upper
