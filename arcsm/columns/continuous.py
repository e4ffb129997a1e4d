"""Columns with a density: on the whole line, or within bounds that may carry mass themselves."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from arcsm.columns.bounds import Bounds
from arcsm.columns.encoded import Scalar
from arcsm.columns.kind import Kind
from arcsm.columns.sample import Sample
from arcsm.columns.tails import TailMap, fit_tail_map

# The mass at a bound is drawn from a block of width 1 that ends half a unit before the cell does,
# in units of the standard deviation of the other rows, so that nothing leaks over the edge.
_ATOM_DISTANCE = 1.0
_ATOM_SPREAD = 0.5


@dataclass(frozen=True)
class Real(Kind):
    """Any real number, through a map that makes heavy tails normal."""

    kind: ClassVar[str] = "real"
    line: TailMap

    @classmethod
    def learn(cls, sample: Sample, *, linear: bool = False) -> "Real":
        """Fit location, scale and tails, or, if the map is to be `linear`, no tails."""
        line, heavy = fit_tail_map(sample, linear=linear)
        return cls("; ".join(["real numbers", *heavy]), line)

    def encode(self, name: str, values: np.ndarray) -> tuple[Sequence[Scalar], np.ndarray | bool]:
        """Map every value; none is impossible."""
        z = self.line.to_normal(values.astype(np.float64))
        return [Scalar.continuous(z, self.line.log_derivative(z))], False

    def snap(self, position: int, drawn: np.ndarray, earlier: np.ndarray) -> np.ndarray:
        """Return the drawn values: each is a point."""
        return drawn

    def decode(self, points: np.ndarray) -> np.ndarray:
        """Map the points back."""
        return self.line.from_normal(points[:, 0])

    def parameters(self) -> dict[str, Any]:
        """Return those of the map."""
        return asdict(self.line)

    @classmethod
    def from_parameters(cls, reason: str, parameters: dict[str, Any]) -> "Real":
        """Restore the map."""
        return cls(reason, TailMap(**parameters))


@dataclass(frozen=True)
class Bounded(Kind):
    """Numbers strictly within bounds, and a mass at a bound that has an edge.

    All values between the bound and its edge (`low_edge`, `high_edge`: half-way to the nearest
    value inside) belong to the cell of the bound: they are closer to it than any the column was
    learned from. Without an edge the bound itself has density 0.
    """

    kind: ClassVar[str] = "bounded"
    bounds: Bounds
    line: TailMap
    low_edge: float | None = None
    high_edge: float | None = None

    @classmethod
    def learn(
        cls, sample: Sample, lower: float | None, upper: float | None, reason: str
    ) -> "Bounded | None":
        """Fit the maps; None where no value lies strictly inside."""
        values = sample.values
        inside = np.ones(len(values), dtype=bool)
        reasons = [reason]
        edges: dict[str, float] = {}
        for bound in (lower, upper):
            at = values == bound
            inside &= ~at
            if bound is not None and at.any():
                share = int(sample.counts[at].sum()) / sample.rows
                reasons.append(f"a probability mass at {bound:g} ({share:.2%} of the rows)")
        if not inside.any():
            return None
        within = sample.where(inside)
        bend = 1.0
        if lower is None or upper is None:
            bend = abs(within.median - (lower if lower is not None else upper or 0.0))
        bounds = Bounds(lower, upper, bend)
        if lower is not None and values[0] == lower:
            edges["low_edge"] = max(lower + (within.values[0] - lower) / 2, bounds.smallest)
        if upper is not None and values[-1] == upper:
            edges["high_edge"] = min(upper - (upper - within.values[-1]) / 2, bounds.largest)
        line, heavy = fit_tail_map(
            within.at(bounds.to_line(within.values)[0]), left=lower is None, right=upper is None
        )
        return cls(
            "; ".join([*reasons, *heavy]),
            bounds,
            line,
            **{side: float(edge) for side, edge in edges.items()},
        )

    @cached_property
    def _cut(self) -> tuple[float, float]:
        """The ends of the cells of the two bounds, as scalars; infinite for one without mass."""
        low = -np.inf if self.low_edge is None else self._to_normal(self.low_edge)
        high = np.inf if self.high_edge is None else self._to_normal(self.high_edge)
        return low, high

    def _to_normal(self, x: float) -> float:
        return float(self.line.to_normal(self.bounds.to_line(np.array([x]))[0])[0])

    def encode(self, name: str, values: np.ndarray) -> tuple[Sequence[Scalar], np.ndarray | bool]:
        """Map values inside, give those at a bound its cell, and find those outside."""
        x = values.astype(np.float64)
        inside = np.clip(x, self.bounds.smallest, self.bounds.largest)
        impossible = np.zeros(len(x), dtype=bool)
        lower, upper = self.bounds.lower, self.bounds.upper
        if lower is not None:
            impossible |= x <= lower if self.low_edge is None else x < lower
        if upper is not None:
            impossible |= x >= upper if self.high_edge is None else x > upper
        y, log_det = self.bounds.to_line(inside)
        z = self.line.to_normal(y)
        log_det = log_det + self.line.log_derivative(z)
        low, high, spread = z, z, np.zeros(len(z))
        cut_low, cut_high = self._cut
        for cut, edge, sign in ((cut_low, self.low_edge, -1), (cut_high, self.high_edge, 1)):
            if edge is None:
                continue
            atom = inside < edge if sign < 0 else inside > edge
            z = np.where(atom, cut + sign * _ATOM_DISTANCE, z)
            low = np.where(atom, -np.inf if sign < 0 else cut, low)
            high = np.where(atom, cut if sign < 0 else np.inf, high)
            spread = np.where(atom, _ATOM_SPREAD, spread)
            log_det = np.where(atom, 0.0, log_det)
        return [Scalar(z, low, high, spread, log_det)], impossible

    def snap(self, position: int, drawn: np.ndarray, earlier: np.ndarray) -> np.ndarray:
        """Return the drawn values, those in the cell of a bound as its point."""
        low, high = self._cut
        points = np.where(drawn < low, low - _ATOM_DISTANCE, drawn)
        return np.where(points > high, high + _ATOM_DISTANCE, points)

    def decode(self, points: np.ndarray) -> np.ndarray:
        """Map the points back, none onto the wrong side of a bound."""
        z = points[:, 0]
        x = self.bounds.from_line(self.line.from_normal(z))
        low, high = self._cut
        if self.low_edge is not None and self.bounds.lower is not None:
            x = np.where(z < low, self.bounds.lower, np.maximum(x, self.low_edge))
        if self.high_edge is not None and self.bounds.upper is not None:
            x = np.where(z > high, self.bounds.upper, np.minimum(x, self.high_edge))
        return x

    def parameters(self) -> dict[str, Any]:
        """Return those of the two maps and the edges."""
        return {
            **asdict(self.bounds),
            **asdict(self.line),
            "low_edge": self.low_edge,
            "high_edge": self.high_edge,
        }

    @classmethod
    def from_parameters(cls, reason: str, parameters: dict[str, Any]) -> "Bounded":
        """Restore the maps and the edges."""
        rest = dict(parameters)
        bounds = Bounds(*(rest.pop(key) for key in ("lower", "upper", "bend")))
        edges = {key: rest.pop(key) for key in ("low_edge", "high_edge")}
        return cls(reason, bounds, TailMap(**rest), **edges)
