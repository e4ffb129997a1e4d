"""Whether the values of a column lie on a grid offset + quantum·k, and on which."""

from dataclasses import dataclass

import numpy as np

TOLERANCE = 1e-3  # of the quantum
_DECIMALS = 7
_DIVISORS = 12
# A continuous value is within the tolerance of a grid point with probability 2·TOLERANCE. A grid of
# decimals has nothing to adjust; a free one adjusts two of the values and tries several quanta.
_LEAST_DISTINCT = 3
_LEAST_DISTINCT_FREE = 5
_SCREENED = 1000
_COUNTED_FROM_ZERO = 2**40


@dataclass(frozen=True)
class GridPoints:
    """The points offset + quantum·k; whole numbers are ints, decimals are rounded to `decimals`."""

    offset: float | int
    quantum: float | int
    decimals: int | None = None

    @property
    def whole(self) -> bool:
        """Whether all points are whole numbers."""
        return isinstance(self.offset, int) and isinstance(self.quantum, int)

    def index(self, values: np.ndarray) -> np.ndarray:
        """Return k as float64: whole for values on the grid, between for the others."""
        if values.dtype == np.int64 and self.whole and _no_overflow(values, int(self.offset)):
            k, rest = np.divmod(values - int(self.offset), int(self.quantum))
            return np.asarray(k + rest / self.quantum)
        values = values.astype(np.float64)
        with np.errstate(over="ignore"):
            index = (values - self.offset) / self.quantum
        index = np.clip(index, -1e300, 1e300)
        near = np.rint(index)
        return np.where(np.abs(index - near) <= TOLERANCE, near, index)

    def between(self, index: np.ndarray) -> np.ndarray:
        """Return the numbers at indices that need not be whole."""
        return np.asarray(self.offset + self.quantum * index, dtype=np.float64)

    def value(self, index: np.ndarray) -> np.ndarray:
        """Return the values of whole indices: int64 for a grid of whole numbers."""
        if self.whole:
            return np.asarray(int(self.offset) + int(self.quantum) * index.astype(np.int64))
        value = self.offset + self.quantum * index
        return value if self.decimals is None else np.round(value, self.decimals)


def whole_grid(values: np.ndarray) -> GridPoints:
    """Return the coarsest grid of whole numbers through distinct, sorted int64 values.

    It is counted from 0 where 0 is on it, else from a value amid the others: far from both, float64
    could no longer tell one index from the next.
    """
    # Differences of sorted int64 always fit uint64, whose subtraction wraps round to them.
    steps = np.diff(values.astype(np.uint64))
    quantum = int(np.gcd.reduce(steps))
    middle = int(values[len(values) // 2])
    from_zero = middle % quantum == 0 and abs(middle) // quantum < _COUNTED_FROM_ZERO
    return GridPoints(0 if from_zero else middle, quantum)


def find_grid(values: np.ndarray, *, least: float) -> GridPoints | None:
    """Return the coarsest grid through distinct, sorted float64 values, or None.

    None too where its quantum would be below `least`: such a column is as good as continuous.
    """
    if len(values) < _LEAST_DISTINCT or values[-1] / 2 - values[0] / 2 > 1e300:
        return None
    grid = _decimal_grid(values)
    if grid is None and len(values) >= _LEAST_DISTINCT_FREE:
        grid = _free_grid(values, least)
    return grid if grid is not None and grid.quantum >= least else None


def _decimal_grid(values: np.ndarray) -> GridPoints | None:
    largest = float(np.abs(values[[0, -1]]).max())
    for decimals in range(_DECIMALS):
        # Beyond 1e12 the rounding of float64 itself comes near the tolerance.
        if largest * 10.0**decimals > 1e12:
            return None
        if not _near_whole(values[:_SCREENED] * 10.0**decimals):
            continue
        scaled = values * 10.0**decimals
        if _near_whole(scaled):
            whole = np.unique(np.rint(scaled).astype(np.int64))
            if len(whole) < _LEAST_DISTINCT:
                continue
            grid = whole_grid(whole)
            if decimals == 0:
                return grid
            unit = 10**decimals
            return GridPoints(grid.offset / unit, grid.quantum / unit, decimals)
    return None


def _free_grid(values: np.ndarray, least: float) -> GridPoints | None:
    away = values - values[0]
    # Two results of the same computation may differ in their last digits.
    rounding = 1e-9 * away[-1] + 1e-15 * float(np.abs(values[[0, -1]]).max())
    gaps = np.diff(away)
    gaps = gaps[gaps > rounding]
    if len(gaps) + 1 < _LEAST_DISTINCT_FREE or gaps.min() < least:
        return None
    for divisor in range(1, _DIVISORS + 1):
        quantum = _refined(float(gaps.min()) / divisor, away)
        if _near_whole(away[:_SCREENED] / quantum) and _near_whole(away / quantum):
            return GridPoints(float(values[0]), quantum)
    return None


def _refined(quantum: float, away: np.ndarray) -> float:
    """Fit the quantum to ever more distant values, so that its error never reaches half a step."""
    reach = 8 * quantum
    while reach < 4 * away[-1]:
        inside = away[: np.searchsorted(away, reach, "right")]
        index = np.rint(inside / quantum)
        if index.any():
            quantum = float(index @ inside / (index @ index))
        reach *= 4
    return quantum


def _near_whole(values: np.ndarray) -> bool:
    return bool((np.abs(values - np.rint(values)) <= TOLERANCE).all())


def _no_overflow(values: np.ndarray, offset: int) -> bool:
    if len(values) == 0:
        return True
    return int(values.max()) - offset < 2**63 and offset - int(values.min()) < 2**63
