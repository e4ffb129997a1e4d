"""Columns without an order: text, truth values, and any numbers said to be names."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from arcsm.columns.encoded import Scalar
from arcsm.columns.kind import Kind
from arcsm.columns.lookup import Lookup

_SPREAD = 0.5


@dataclass(frozen=True)
class Category(Kind):
    """K values, most frequent first, as the binary digits of their positions, highest first.

    A digit 0 or 1 is the scalar −1 or 1 with the cell below or above 0. Where a digit 1 would lead
    beyond the K-th value, the digit is certainly 0; the probabilities of the K values therefore
    add up to exactly 1.
    """

    kind: ClassVar[str] = "category"
    values: tuple[Any, ...]

    @property
    def scalars(self) -> int:
        """The number of binary digits."""
        return max(1, (len(self.values) - 1).bit_length())

    @cached_property
    def _lookup(self) -> Lookup:
        return Lookup(self.values)

    def knows(self, values: np.ndarray) -> np.ndarray:
        """Return which values are among the K."""
        return self._lookup.knows(values)

    def encode(self, name: str, values: np.ndarray) -> tuple[Sequence[Scalar], np.ndarray | bool]:
        """Return one scalar for each digit; a value that is not known is refused."""
        position = self._lookup.positions(name, values, "values")
        scalars = []
        for digit in range(self.scalars):
            shift = self.scalars - 1 - digit
            one = (position >> shift) & 1 == 1
            scalars.append(
                Scalar(
                    np.where(one, 1.0, -1.0),
                    np.where(one, 0.0, -np.inf),
                    np.where(one, np.inf, 0.0),
                    _SPREAD,
                    0.0,
                    self._certain(position >> (shift + 1), shift),
                )
            )
        return scalars, False

    def snap(self, position: int, drawn: np.ndarray, earlier: np.ndarray) -> np.ndarray:
        """Return −1 or 1 by sign, −1 where the digit is certain."""
        prefix = _number(earlier)
        certain = self._certain(prefix, self.scalars - 1 - position)
        return np.where((drawn > 0) & ~certain, 1.0, -1.0)

    def decode(self, points: np.ndarray) -> np.ndarray:
        """Return the values whose digits these are."""
        # Points that were snapped never lead beyond the last value; others are led back to it.
        return self._lookup.values[np.minimum(_number(points), len(self.values) - 1)]

    def _certain(self, prefix: np.ndarray, shift: int) -> np.ndarray:
        """Return where the digit of weight 2^shift after `prefix` can only be 0."""
        return np.asarray(((2 * prefix + 1) << shift) >= len(self.values))

    def parameters(self) -> dict[str, Any]:
        """Return the values, most frequent first."""
        return {"values": list(self.values)}

    @classmethod
    def from_parameters(cls, reason: str, parameters: dict[str, Any]) -> "Category":
        """Restore the values."""
        return cls(reason, tuple(parameters["values"]))


def _number(points: np.ndarray) -> np.ndarray:
    """Return the number whose binary digits, highest first, are the signs of the points."""
    number = np.zeros(len(points), dtype=np.int64)
    for digit in range(points.shape[1]):
        number = 2 * number + (points[:, digit] > 0)
    return number
