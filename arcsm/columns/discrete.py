"""Columns of steps: whole numbers, values rounded to a quantum, and ordered levels."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from arcsm.columns.encoded import Scalar
from arcsm.columns.grids import GridPoints
from arcsm.columns.kind import Kind
from arcsm.columns.lookup import Lookup
from arcsm.columns.sample import Sample
from arcsm.columns.tails import TailMap, fit_tail_map

_FARTHEST = 2**63 - 1024  # the largest float64 that int64 can hold
_COARSE_DISTINCT = 6
_COARSE_DEVIATION = 2.0  # a step of more than half a standard deviation


@dataclass(frozen=True)
class Steps:
    """Cells k ± ½ of an index, seen through a map to the line.

    The cell of `lowest` reaches down to −∞ and that of `highest` up to ∞. With `coarse`, targets
    are drawn from the middle half of a cell, which leaves gaps: a density smooth enough to be
    learned then has next to no mass on the wrong side of an edge.
    """

    line: TailMap
    lowest: int | None
    highest: int | None
    coarse: bool

    @classmethod
    def learn(
        cls, sample: Sample, lowest: int | None, highest: int | None
    ) -> tuple["Steps", list[str]]:
        """Fit the map to a sample of indices; tails only on the sides without an end."""
        line, heavy = fit_tail_map(
            sample, left=lowest is None, right=highest is None, spread_ties=0.5
        )
        few = sample.distinct < _COARSE_DISTINCT
        coarse = few or sample.mean_and_deviation()[1] < _COARSE_DEVIATION
        return cls(line, lowest, highest, coarse), heavy

    def encode(self, index: np.ndarray, log_det: float) -> Scalar:
        """Return the cells of indices, whole or not."""
        low = self.line.to_normal(index - 0.5)
        high = self.line.to_normal(index + 0.5)
        # Far enough out both ends round to the same number; a cell must not be empty.
        high = np.where(high > low, high, low + np.maximum(1e-15 * np.abs(low), 1e-300))
        point = low + (high - low) / 2
        spread = (high - low) / (4 if self.coarse else 2)
        if self.lowest is not None:
            low = np.where(index <= self.lowest, -np.inf, low)
        if self.highest is not None:
            high = np.where(index >= self.highest, np.inf, high)
        return Scalar(point, low, high, spread, log_det)

    def index(self, z: np.ndarray, least: int = -_FARTHEST, most: int = _FARTHEST) -> np.ndarray:
        """Return the index of the cell that each z lies in, none below `least` or above `most`."""
        least = max(least, -_FARTHEST) if self.lowest is None else max(least, self.lowest)
        most = min(most, _FARTHEST) if self.highest is None else min(most, self.highest)
        return np.clip(np.rint(self.line.from_normal(z)), _towards_zero(least), _towards_zero(most))

    def position(self, z: np.ndarray) -> np.ndarray:
        """Return where each z lies among the indices, whole or not, none beyond the ends."""
        lowest = -_FARTHEST if self.lowest is None else self.lowest
        highest = _FARTHEST if self.highest is None else self.highest
        return np.clip(self.line.from_normal(z), float(lowest), float(highest))

    def outside(self, index: np.ndarray) -> np.ndarray:
        """Return which indices lie beyond the ends."""
        beyond = np.zeros(len(index), dtype=bool)
        if self.lowest is not None:
            beyond |= index < self.lowest
        if self.highest is not None:
            beyond |= index > self.highest
        return beyond

    def parameters(self) -> dict[str, Any]:
        """Return the parameters as JSON has them."""
        ends = {"lowest": self.lowest, "highest": self.highest, "coarse": self.coarse}
        return {**asdict(self.line), **ends}

    @classmethod
    def from_parameters(cls, parameters: dict[str, Any]) -> "Steps":
        """Return the steps that have these parameters."""
        rest = dict(parameters)
        ends = [rest.pop(key) for key in ("lowest", "highest", "coarse")]
        return cls(TailMap(**rest), *ends)


@dataclass(frozen=True)
class Grid(Kind):
    """Values on a grid, each standing for the cell of one quantum around it.

    A value off the grid stands for the cell of one quantum around itself.
    """

    kind: ClassVar[str] = "integer"
    points: GridPoints
    steps: Steps

    @property
    def label(self) -> str:
        """Integer for whole numbers, quantised for others."""
        return "integer" if self.points.whole else "quantised"

    @classmethod
    def learn(
        cls, sample: Sample, points: GridPoints, lower: float | None, upper: float | None
    ) -> "Grid":
        """Fit the map; a bound between two points counts for the one inside."""
        lowest = None if lower is None else _index_of(points, lower, math.ceil)
        highest = None if upper is None else _index_of(points, upper, math.floor)
        index = sample.at(points.index(sample.values))
        steps, heavy = Steps.learn(index, lowest, highest)
        if not points.whole:
            what = f"numbers in steps of {points.quantum:g}"
        elif points.quantum == 1:
            what = "whole numbers"
        else:
            what = f"whole numbers in steps of {points.quantum}"
        if lower is not None:
            what += f" from {lower:g}" + (" up" if upper is None else "")
        if upper is not None:
            what += f" up to {upper:g}"
        return cls("; ".join([what, *heavy]), points, steps)

    def encode(self, name: str, values: np.ndarray) -> tuple[Sequence[Scalar], np.ndarray | bool]:
        """Return the cells of one quantum; values beyond the ends are impossible."""
        index = self.points.index(values)
        scalar = self.steps.encode(index, -math.log(self.points.quantum))
        return [scalar], self.steps.outside(index)

    def snap(self, position: int, drawn: np.ndarray, earlier: np.ndarray) -> np.ndarray:
        """Return the points of the cells that the drawn values lie in."""
        return self.steps.encode(self._index(drawn), 0.0).point

    def decode(self, points: np.ndarray) -> np.ndarray:
        """Return the grid values of the cells."""
        return self.points.value(self._index(points[:, 0]))

    def _index(self, z: np.ndarray) -> np.ndarray:
        if not self.points.whole:
            return self.steps.index(z)
        offset, quantum = int(self.points.offset), int(self.points.quantum)
        return self.steps.index(z, -((2**63 + offset) // quantum), (2**63 - 1 - offset) // quantum)

    def parameters(self) -> dict[str, Any]:
        """Return those of the grid and of its cells."""
        return {**asdict(self.points), **self.steps.parameters()}

    @classmethod
    def from_parameters(cls, reason: str, parameters: dict[str, Any]) -> "Grid":
        """Restore the grid and its cells."""
        rest = dict(parameters)
        points = GridPoints(*(rest.pop(key) for key in ("offset", "quantum", "decimals")))
        return cls(reason, points, Steps.from_parameters(rest))


def _towards_zero(index: int) -> float:
    """Return the nearest float64 that is not farther from 0."""
    near = float(index)
    return near if abs(int(near)) <= abs(index) else math.nextafter(near, 0.0)


def _index_of(points: GridPoints, bound: float, rounding: Any) -> int:
    exact = (bound - points.offset) / points.quantum
    near = round(exact)
    return near if abs(exact - near) <= 1e-3 else int(rounding(exact))


@dataclass(frozen=True)
class Ordinal(Kind):
    """Levels in a fixed order, without distances between them."""

    kind: ClassVar[str] = "ordinal"
    levels: tuple[Any, ...]
    steps: Steps

    @classmethod
    def learn(cls, levels: Sequence[Any], counts: np.ndarray, mass: np.ndarray) -> "Ordinal":
        """Fit the map to the levels' positions."""
        sample = Sample(np.arange(len(levels), dtype=np.float64), counts, mass)
        steps, _ = Steps.learn(sample, 0, len(levels) - 1)
        return cls(f"{len(levels)} ordered levels", tuple(levels), steps)

    @cached_property
    def _lookup(self) -> Lookup:
        return Lookup(self.levels)

    def knows(self, values: np.ndarray) -> np.ndarray:
        """Return which values are among the levels."""
        return self._lookup.knows(values)

    def positions(self, name: str, values: np.ndarray) -> np.ndarray:
        """Return the position of the level of each row."""
        return self._lookup.positions(name, values, "levels")

    def encode(self, name: str, values: np.ndarray) -> tuple[Sequence[Scalar], np.ndarray | bool]:
        """Return the cells of the levels; a value that is none is refused."""
        index = self.positions(name, values).astype(np.float64)
        return [self.steps.encode(index, 0.0)], False

    def snap(self, position: int, drawn: np.ndarray, earlier: np.ndarray) -> np.ndarray:
        """Return the points of the cells that the drawn values lie in."""
        return self.steps.encode(self.steps.index(drawn), 0.0).point

    def decode(self, points: np.ndarray) -> np.ndarray:
        """Return the levels of the cells."""
        return self._lookup.values[self.steps.index(points[:, 0]).astype(np.int64)]

    def parameters(self) -> dict[str, Any]:
        """Return the levels and those of their cells."""
        return {"levels": list(self.levels), **self.steps.parameters()}

    @classmethod
    def from_parameters(cls, reason: str, parameters: dict[str, Any]) -> "Ordinal":
        """Restore the levels and their cells."""
        rest = dict(parameters)
        levels = tuple(rest.pop("levels"))
        return cls(reason, levels, Steps.from_parameters(rest))
