"""What every kind of column offers."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from arcsm.columns.encoded import Scalar


@dataclass(frozen=True)
class Kind(ABC):
    """A column as scalars; `reason` says in words why it is of this kind.

    Values come as float64, int64 or bool arrays, or as object arrays of text, checked to be
    complete; those that decode returns are of the kind's choosing and may need a cast.
    """

    kind: ClassVar[str]
    reason: str

    @property
    def label(self) -> str:
        """The name of the kind for people."""
        return self.kind

    @property
    def scalars(self) -> int:
        """The number of scalars."""
        return 1

    @abstractmethod
    def encode(self, name: str, values: np.ndarray) -> tuple[Sequence[Scalar], np.ndarray | bool]:
        """Return the scalars of the column called `name`, and which rows are impossible."""

    @abstractmethod
    def snap(self, position: int, drawn: np.ndarray, earlier: np.ndarray) -> np.ndarray:
        """Return the points of the cells of drawn values of the scalar at `position`.

        `earlier` (rows, position) holds the points of the earlier scalars of the column.
        """

    @abstractmethod
    def decode(self, points: np.ndarray) -> np.ndarray:
        """Return the values that belong to points (rows, scalars)."""

    @abstractmethod
    def parameters(self) -> dict[str, Any]:
        """Return the parameters as JSON has them, exact."""

    @classmethod
    @abstractmethod
    def from_parameters(cls, reason: str, parameters: dict[str, Any]) -> "Kind":
        """Return the kind that has these parameters."""
