"""What a model needs to know of the scalars of a table, and of those of one column."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Encoded:
    """The scalars of a table, each array float64 of shape (rows, scalars) where not said otherwise.

    point: the value, which the context of later scalars sees.
    low, high: the cell the value stands for; both equal `point` where it is a continuous value.
        The probability of a cell is F(high) − F(low) for the distribution function F of the
        scalar; the ends may be infinite.
    spread: training draws its target uniformly from point ± spread; 0 for a continuous value.
    log_det: what is added to the log of the density, or of the probability of the cell, of the
        scalar to have that of the column in its own units.
    certain: bool; earlier scalars of the column leave one value, so the term of this one is 0.
    impossible: bool of shape (rows,); the density of the row is 0. Its scalars are finite.
    condition: (rows, features), what is told of the columns that are given; None if none is.
    """

    point: np.ndarray
    low: np.ndarray
    high: np.ndarray
    spread: np.ndarray
    log_det: np.ndarray
    certain: np.ndarray
    impossible: np.ndarray
    condition: np.ndarray | None = None

    @classmethod
    def empty(cls, rows: int, scalars: int, features: int = 0) -> "Encoded":
        """Return arrays to be filled column by column."""
        point, low, high, spread, log_det = (np.empty((rows, scalars)) for _ in range(5))
        certain = np.zeros((rows, scalars), dtype=bool)
        impossible = np.zeros(rows, dtype=bool)
        condition = np.empty((rows, features)) if features else None
        return cls(point, low, high, spread, log_det, certain, impossible, condition)

    def put(self, scalar: int, content: "Scalar") -> None:
        """Write one scalar of all rows."""
        self.point[:, scalar] = content.point
        self.low[:, scalar] = content.low
        self.high[:, scalar] = content.high
        self.spread[:, scalar] = content.spread
        self.log_det[:, scalar] = content.log_det
        self.certain[:, scalar] = content.certain


@dataclass(frozen=True)
class Scalar:
    """One scalar of all rows: the fields of :class:`Encoded`, of shape (rows,) or a number."""

    point: np.ndarray
    low: np.ndarray
    high: np.ndarray
    spread: np.ndarray | float
    log_det: np.ndarray | float
    certain: np.ndarray | bool = False

    @classmethod
    def continuous(cls, point: np.ndarray, log_det: np.ndarray) -> "Scalar":
        """Return a scalar whose cells are points."""
        return cls(point, point, point, 0.0, log_det)
