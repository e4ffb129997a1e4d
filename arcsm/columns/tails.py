"""Maps between a column and a scalar with the tails of a normal, and how heavy a tail is.

With T(z) = z·exp(h z²/2) and z normal, the tail of T(z) is a power law of index 1/h. The inverse
therefore turns such tails into normal ones, whose score is square-integrable.
"""

import math
from dataclasses import dataclass

import numpy as np

from arcsm.columns.sample import Sample

# Tails heavier than this (a power law of index below 2/3, far beyond Cauchy's) are those of
# exponentials of something or of a few wild rows; a larger h would follow the outermost rows and
# press all others together.
HEAVIEST = 1.5
# Exponential tails are estimated up to 0.04 too heavy at any number of rows.
_LEAST = 0.05
# Robust standard deviations beyond which an exponential tail does not reach in a million rows, and
# where on the scalar the map then puts the outermost row.
_WILD, _WILD_AT = 30.0, 3.0
# As far out are the few rows that even a linear map cannot have: all others would be as one to it.
_WILD_ON_A_LINE = 1000.0
_LARGEST = 1e300
_NEWTON_STEPS = 8


@dataclass(frozen=True)
class TailMap:
    """x = location + scale · z·exp(h z²/2), with h = `left` for z < 0 and `right` for z > 0."""

    location: float
    scale: float
    left: float = 0.0
    right: float = 0.0

    def to_normal(self, x: np.ndarray) -> np.ndarray:
        """Return z for each x; finite for every finite x."""
        with np.errstate(over="ignore"):
            u = (x - self.location) / self.scale
        u = np.clip(u, -_LARGEST, _LARGEST)
        if self.left == self.right == 0:
            return np.asarray(u)
        z = np.array(u, dtype=np.float64)
        for side, h in ((u < 0, self.left), (u > 0, self.right)):
            if h > 0:
                z[side] = np.copysign(_inverse(np.abs(u[side]), h), u[side])
        return z

    def from_normal(self, z: np.ndarray) -> np.ndarray:
        """Return x for each z, at most the largest finite number."""
        z = np.asarray(z, dtype=np.float64)
        with np.errstate(over="ignore"):
            grown = z * np.exp(np.minimum(self._h(z) * z * z / 2, 709.0))
            x = self.location + self.scale * grown
        largest = np.finfo(np.float64).max
        return np.clip(x, -largest, largest)

    def log_derivative(self, z: np.ndarray) -> np.ndarray:
        """Return log(dz/dx) at the x that belongs to z."""
        if self.left == self.right == 0:
            return np.full(np.shape(z), -math.log(self.scale))
        w = self._h(z) * z * z
        return np.asarray(-math.log(self.scale) - w / 2 - np.log1p(w))

    def _h(self, z: np.ndarray) -> np.ndarray:
        return np.where(z < 0, self.left, self.right)


def _inverse(u: np.ndarray, h: float) -> np.ndarray:
    """Solve u = z·exp(h z²/2) for z > 0, given u > 0.

    With w = h z² and s = log w the equation is s + e^s = L with L = log h + 2 log u. Its left side
    is convex and both starting values below lie at or above the root, so Newton's steps descend
    to it without ever overshooting.
    """
    target = math.log(h) + 2 * np.log(u)
    s = np.where(target < 1, target, np.log(np.maximum(target, 1)))
    for _ in range(_NEWTON_STEPS):
        grown = np.exp(s)
        s = s - (s + grown - target) / (1 + grown)
    w = np.exp(s)
    # Either form alone loses digits: the first where w is large, the second where u is tiny.
    return np.where(w < 1, u * np.exp(-w / 2), np.sqrt(w / h))


@dataclass(frozen=True)
class TailIndex:
    """The estimated extreme-value index ξ of a tail with its standard error."""

    index: float
    error: float

    @property
    def h(self) -> float:
        """The h of the tail map: 0 unless ξ is clearly above that of an exponential tail."""
        heavy = self.index - 2 * self.error > _LEAST
        return min(self.index, HEAVIEST) if heavy else 0.0


def tail_index(away: np.ndarray) -> TailIndex | None:
    """Estimate ξ from positive distances in increasing order; None for fewer than 40 of them.

    The moment estimator of Dekkers, Einmahl and de Haan on the largest tenth, or on 20 rows or a
    quarter of them where a tenth is less. It is about 0 for exponential tails, negative for
    lighter ones, and 1/ν for Student's t with ν degrees of freedom.
    """
    rows = len(away)
    k = max(rows // 10, min(20, rows // 4))
    if k < 10:
        return None
    ratio = np.log(away[-k:]) - math.log(away[-k - 1])
    first = float(ratio.mean())
    second = float((ratio * ratio).mean())
    if second - first * first <= 1e-12 * second:  # ties: the largest values are all the same
        return None
    index = first + 1 - 0.5 / (1 - first * first / second)
    return TailIndex(index, math.sqrt((1 + index * index) / k))


def fit_tail_map(
    sample: Sample,
    *,
    left: bool = True,
    right: bool = True,
    spread_ties: float = 0.0,
    linear: bool = False,
) -> tuple[TailMap, list[str]]:
    """Fit location, scale and, on the sides named, tails; also say in words which are heavy.

    If it is to be `linear`, tails are left as heavy as they are, but for values that are wild.
    """
    centre = sample.median
    heavy = {"left": 0.0, "right": 0.0}
    said = []
    sides = _distances(sample, centre, spread_ties) if left or right else {}
    free = [side for side in sides if (left if side == "left" else right)]
    for side in free:
        estimate = None if linear else tail_index(sides[side])
        if estimate is not None and estimate.h > 0:
            heavy[side] = estimate.h
            at_most = f", taken as {HEAVIEST}" if estimate.index > HEAVIEST else ""
            said.append(
                f"{side} tail heavier than normal: ξ = {estimate.index:.2f} ±"
                f" {estimate.error:.2f}{at_most}"
            )
    mean, deviation = sample.mean_and_deviation()
    robust = _positive(sample.robust_scale() or deviation, sample)
    for side in free:
        # A few wild rows are no tail that could be estimated, but under a linear map they would
        # press all other rows together.
        farthest = float(sides[side][-1]) / robust if len(sides[side]) else 0.0
        if heavy[side] == 0 and farthest > (_WILD_ON_A_LINE if linear else _WILD):
            heavy[side] = min(HEAVIEST, 2 * math.log(farthest / _WILD_AT) / _WILD_AT**2)
            said.append(f"values on the {side} as far out as {farthest:.3g} standard deviations")
    if any(heavy.values()):
        return TailMap(centre, robust, **heavy), said
    return TailMap(mean, _positive(deviation, sample)), said


def _distances(sample: Sample, centre: float, spread_ties: float) -> dict[str, np.ndarray]:
    """Return the distances from the centre on each side, in increasing order."""
    largest = np.finfo(np.float64).max
    with np.errstate(over="ignore"):
        away = sample.in_order(spread_ties=spread_ties) - centre
    away = np.clip(away, -largest, largest)
    return {"left": -away[away < 0][::-1], "right": away[away > 0]}


def _positive(scale: float, sample: Sample) -> float:
    """Return `scale`, or one that ignores the weights where these leave a single value."""
    if 0 < scale < math.inf:
        return scale
    fallback = sample.unweighted().mean_and_deviation()[1]
    return fallback if 0 < fallback < math.inf else 1.0
