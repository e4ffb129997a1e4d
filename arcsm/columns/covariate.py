"""Columns that others are predicted from: what a network is told of them, and no density.

A number is told by its value, standardised and with its tails bent, along which linear relations
are straight, and where there are many rows for each covariate also by its rank as a normal score,
which spreads out values that lie close together; with fewer rows it is one more thing to be learned
by heart. A category is told by an indicator of each value, so that whatever it changes can be
learned for each value alone; a binary code would tie values together that have nothing in common.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any, ClassVar

import numpy as np

from arcsm.columns.category import Category
from arcsm.columns.continuous import Bounded, Real
from arcsm.columns.discrete import Grid, Ordinal
from arcsm.columns.encoded import Scalar
from arcsm.columns.fixed import Constant
from arcsm.columns.kind import Kind
from arcsm.columns.sample import Sample
from arcsm.errors import InputError

_KINDS: dict[str, type[Kind]] = {
    kind.kind: kind for kind in (Real, Bounded, Grid, Ordinal, Category, Constant)
}
# Values of a category that have an indicator each; the rarer ones are told by their binary code.
_INDICATORS = 32
_KNOTS = 64
_ROWS_FOR_RANKS = 25  # for each covariate, from which on ranks are told
# How far beyond the values seen a value still counts as it is, in units of their range.
_BEYOND = 0.5


@dataclass(frozen=True)
class Covariate(Kind):
    """A column of some kind `of` that is given: features for a network in the place of scalars.

    mean, deviation: of the scalar of a number. knots: its quantiles, as far as they are distinct.
    ranked: whether its rank is told.
    """

    kind: ClassVar[str] = "covariate"
    of: Kind
    mean: float = 0.0
    deviation: float = 1.0
    knots: tuple[float, ...] = ()
    ranked: bool = False

    @classmethod
    def learn(
        cls, name: str, kind: Kind, values: np.ndarray, weight: np.ndarray | None, covariates: int
    ) -> "Covariate":
        """Learn the features of one of so many `covariates`, whose kind is known."""
        reason = f"given; {kind.reason}"
        if isinstance(kind, Category | Constant):
            return cls(reason, kind)
        point = np.asarray(kind.encode(name, values)[0][0].point)
        sample = Sample.of(point, weight)
        mean, deviation = sample.mean_and_deviation()
        levels = np.linspace(0, 1, min(_KNOTS, sample.distinct) + 1)
        knots = np.unique(sample.quantile(levels))
        if not deviation > 0 or len(knots) < 2:
            knots = np.array([])
        ranked = len(knots) > 0 and len(values) >= _ROWS_FOR_RANKS * covariates
        return cls(reason, kind, mean, deviation or 1.0, tuple(knots.tolist()), ranked)

    @property
    def label(self) -> str:
        """The kind of the values, and that they are given."""
        return f"given {self.of.label}"

    @property
    def scalars(self) -> int:
        """None."""
        return 0

    @property
    def width(self) -> int:
        """The number of features."""
        if isinstance(self.of, Constant):
            return 0
        if not isinstance(self.of, Category):
            return 2 if self.ranked else 1
        values = len(self.of.values)
        if values <= 2:
            return 1
        return min(values, _INDICATORS) + (self.of.scalars if values > _INDICATORS else 0)

    @cached_property
    def _scores(self) -> np.ndarray:
        """The normal scores of the knots; the outermost ones stand for half a step."""
        normal, steps = NormalDist(), len(self.knots) - 1
        half = 0.5 / steps
        levels = np.linspace(half, 1 - half, steps + 1)
        return np.array([normal.inv_cdf(level) for level in levels])

    def features(self, name: str, values: np.ndarray) -> np.ndarray:
        """Return what a network is told of values (rows,): numbers (rows, width) of order 1."""
        if isinstance(self.of, Constant):
            return np.empty((len(values), 0))
        digits = np.column_stack([scalar.point for scalar in self.of.encode(name, values)[0]])
        if isinstance(self.of, Category):
            return self._indicators(digits)
        point = digits[:, 0]
        if not self.knots:
            return (point[:, None] - self.mean) / self.deviation
        low, high = self.knots[0], self.knots[-1]
        beyond = _BEYOND * (high - low)
        value = (np.clip(point, low - beyond, high + beyond) - self.mean) / self.deviation
        if not self.ranked:
            return value[:, None]
        return np.column_stack([value, np.interp(point, self.knots, self._scores)])

    def _indicators(self, digits: np.ndarray) -> np.ndarray:
        if self.width == 1:
            return digits
        position = np.zeros(len(digits), dtype=np.int64)
        for digit in range(digits.shape[1]):
            position = 2 * position + (digits[:, digit] > 0)
        assert isinstance(self.of, Category)
        count = min(len(self.of.values), _INDICATORS)
        told = (position[:, None] == np.arange(count)).astype(np.float64)
        return told if self.width == count else np.column_stack([told, digits])

    def draw(self, rows: int, random: np.random.Generator) -> np.ndarray:
        """Return values like those learned from: numbers by their quantiles, others evenly."""
        if isinstance(self.of, Constant):
            return self.of.decode(np.empty((rows, 0)))
        if isinstance(self.of, Category):
            values = self.of.values
            dtype = object if any(isinstance(value, str) for value in values) else None
            return np.array(values, dtype=dtype)[random.integers(0, len(values), rows)]
        if not self.knots:
            return self.of.decode(np.full((rows, 1), self.mean))
        levels = np.linspace(0, 1, len(self.knots))
        point = np.interp(random.random(rows), levels, self.knots)
        return self.of.decode(point[:, None])

    def encode(self, name: str, values: np.ndarray) -> tuple[Sequence[Scalar], np.ndarray | bool]:
        """Return no scalar; no row is impossible, but what was constant has to be so still."""
        if isinstance(self.of, Constant):
            other = np.flatnonzero(self.of.encode(name, values)[1])
            if len(other):
                got = values[other[0]]
                raise InputError(
                    f"expected {self.of.value!r} in column {name!r}, as in all rows learned from,"
                    f" got {got.item() if isinstance(got, np.generic) else got!r} in row"
                    f" {other[0]}; correct the value or learn from rows that have it"
                )
        return [], False

    def snap(self, position: int, drawn: np.ndarray, earlier: np.ndarray) -> np.ndarray:
        """Refuse: there is no scalar to draw."""
        raise ValueError("a covariate has no scalars")

    def decode(self, points: np.ndarray) -> np.ndarray:
        """Return a value that is possible, in the place of one that was not told."""
        return self.of.decode(np.zeros((len(points), self.of.scalars)))

    def parameters(self) -> dict[str, Any]:
        """Return those of the kind, and of the features."""
        of = {
            "kind": self.of.kind,
            "reason": self.of.reason,
            "parameters": self.of.parameters(),
        }
        return {
            "of": of,
            "mean": self.mean,
            "deviation": self.deviation,
            "knots": list(self.knots),
            "ranked": self.ranked,
        }

    @classmethod
    def from_parameters(cls, reason: str, parameters: dict[str, Any]) -> "Covariate":
        """Restore the kind and the features."""
        of: Mapping[str, Any] = parameters["of"]
        kind = _KINDS[of["kind"]].from_parameters(of["reason"], of["parameters"])
        rest = {name: float(parameters[name]) for name in ("mean", "deviation")}
        knots, ranked = tuple(parameters["knots"]), bool(parameters["ranked"])
        return cls(reason, kind, **rest, knots=knots, ranked=ranked)
