"""Columns without a scalar of their own: constants, and functions of an earlier column."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from arcsm.columns.encoded import Scalar
from arcsm.columns.kind import Kind
from arcsm.columns.sample import Sample

_RELATIVE = 1e-9
# Once learned, a value may differ by what single precision or six decimals do to it.
_REWRITTEN = 5e-6
_ROUNDING = 8 * float(np.finfo(np.float64).eps)
_SCREENED = 64
_LEAST_ROWS_OF_A_LINE = 10  # two are always on one, and a few may be within its tolerance
# Two columns with few distinct values may agree by accident; the chance that rows in random order
# do so must be below exp(−this).
_EVIDENCE = 20.0


@dataclass(frozen=True)
class Constant(Kind):
    """One value; every other is impossible."""

    kind: ClassVar[str] = "constant"
    value: Any

    @property
    def scalars(self) -> int:
        """None."""
        return 0

    def encode(self, name: str, values: np.ndarray) -> tuple[Sequence[Scalar], np.ndarray | bool]:
        """Return no scalar, and the rows with another value as impossible."""
        if values.dtype != np.float64 or not isinstance(self.value, float):
            return [], np.asarray(values != self.value)
        return [], np.abs(values - self.value) > _REWRITTEN * abs(self.value)

    def snap(self, position: int, drawn: np.ndarray, earlier: np.ndarray) -> np.ndarray:
        """Refuse: there is no scalar to draw."""
        raise ValueError("a constant has no scalars")

    def decode(self, points: np.ndarray) -> np.ndarray:
        """Repeat the value."""
        dtype = object if isinstance(self.value, str) else None
        return np.full(len(points), self.value, dtype=dtype)

    def parameters(self) -> dict[str, Any]:
        """Return the value."""
        return {"value": self.value}

    @classmethod
    def from_parameters(cls, reason: str, parameters: dict[str, Any]) -> "Constant":
        """Restore the value."""
        return cls(reason, parameters["value"])


@dataclass(frozen=True)
class Duplicate(Kind):
    """y = y0 + slope·(x − x0) of the column `of`, or a plain copy where slope is None."""

    kind: ClassVar[str] = "duplicate"
    of: str
    x0: float = 0.0
    y0: float = 0.0
    slope: float | None = None
    centre: float = 0.0  # of y, as is its width: what a difference is compared with
    width: float = 0.0

    @property
    def scalars(self) -> int:
        """None."""
        return 0

    def differs(
        self, other: np.ndarray, values: np.ndarray, relative: float = _REWRITTEN
    ) -> np.ndarray:
        """Return the rows in which the column is not the function of the other that it was."""
        if self.slope is None:
            return np.asarray(other != values)
        y = values.astype(np.float64)
        # Relative to how far a value lies out, since a few wild rows must not hide differences
        # among all the others.
        allowed = relative * (self.width + np.abs(y - self.centre)) + _ROUNDING * np.abs(y)
        return ~(np.abs(y - self.of_other(other)) <= allowed)

    def of_other(self, other: np.ndarray) -> np.ndarray:
        """Return the column from the values of the other."""
        if self.slope is None:
            return other
        largest = np.finfo(np.float64).max
        with np.errstate(over="ignore"):
            line = self.y0 + self.slope * (other.astype(np.float64) - self.x0)
        return np.clip(line, -largest, largest)

    def source(self, values: np.ndarray) -> np.ndarray:
        """Return the values of the other column from those of this one."""
        if self.slope is None:
            return values
        with np.errstate(over="ignore"):
            return self.x0 + (values.astype(np.float64) - self.y0) / self.slope

    def encode(self, name: str, values: np.ndarray) -> tuple[Sequence[Scalar], np.ndarray | bool]:
        """Return no scalar; `differs` tells which rows are impossible."""
        return [], False

    def snap(self, position: int, drawn: np.ndarray, earlier: np.ndarray) -> np.ndarray:
        """Refuse: there is no scalar to draw."""
        raise ValueError("a duplicate has no scalars")

    def decode(self, points: np.ndarray) -> np.ndarray:
        """Refuse: `of_other` returns the column."""
        raise ValueError("a duplicate is decoded from the other column")

    def parameters(self) -> dict[str, Any]:
        """Return the other column and the line."""
        numbers = ("x0", "y0", "slope", "centre", "width")
        return {"of": self.of, **{name: getattr(self, name) for name in numbers}}

    @classmethod
    def from_parameters(cls, reason: str, parameters: dict[str, Any]) -> "Duplicate":
        """Restore the line."""
        return cls(reason, **parameters)


def is_constant(sample: Sample) -> bool:
    """Return whether the values are the same up to the rounding of float64."""
    low, high = sample.values[0], sample.values[-1]
    if low == high:
        return True
    # Whole numbers are never rounded, however large.
    if sample.values.dtype != np.float64:
        return False
    return float(high / 2 - low / 2) <= _ROUNDING / 2 * float(max(abs(low), abs(high)))


def find_duplicate(
    of: str, other: np.ndarray, values: np.ndarray, sample: Sample
) -> Duplicate | None:
    """Return how numbers follow from those of the earlier column `of`, or None if they do not."""
    copy = Duplicate(f"equal to column {of!r}", of)
    rows = np.linspace(0, len(values) - 1, min(_SCREENED, len(values))).astype(np.int64)
    if not copy.differs(other[rows], values[rows]).any() and not copy.differs(other, values).any():
        return copy
    if len(values) < _LEAST_ROWS_OF_A_LINE:
        return None
    low, high = int(np.argmin(other)), int(np.argmax(other))
    x0, y0 = float(other[low]), float(values[low])
    run = float(other[high]) - x0
    if run == 0:  # whole numbers so large that they are one float64
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        slope = (float(values[high]) - y0) / run
    if not math.isfinite(slope) or slope == 0:
        return None
    plain = sample.unweighted()
    line = Duplicate(
        f"y = {y0 - slope * x0:.6g} {'+' if slope > 0 else '−'} {abs(slope):.6g}·x for x in {of!r}",
        of,
        x0,
        y0,
        slope,
        plain.median,
        plain.robust_scale(),
    )
    with np.errstate(over="ignore", invalid="ignore"):
        for some in (rows, slice(None)):
            if line.differs(other[some], values[some], _RELATIVE).any():
                return None
    return line


def is_evident(counts: np.ndarray) -> bool:
    """Return whether a column with these counts of values cannot agree with another by accident.

    The number of distinct orders of its rows is n!/∏ counts!.
    """
    sizes, how_many = np.unique(counts, return_counts=True)
    orders = math.lgamma(int(counts.sum()) + 1) - sum(
        int(times) * math.lgamma(int(size) + 1) for size, times in zip(sizes, how_many, strict=True)
    )
    return orders > _EVIDENCE
