"""One-dimensional conditionals of single cells, and what they say of a column: means, quantiles.

All of it is exact but for the integrals of means, which are taken to within a two-hundredth of the
spread of the conditional.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from arcsm.columns.discrete import Steps
from arcsm.conditional import Density
from arcsm.model import ARCSM
from arcsm.threads import even_sizes, map_pieces

# Means are integrals over normal quantiles u: the trapezium rule on −5.25, −5.04, … is exact to
# rounding where a value is a smooth function of u. Where it is not, steps are halved so many times
# at most, until a halving moves the mean by less than this share of the spread.
_REACH, _STEP, _HALVINGS, _TOLERANCE = 5.25, 0.21, 4, 0.005

# The mass outside of the cells that a mean over cells looks at.
_OUTSIDE = 1e-6


@dataclass(frozen=True, eq=False)
class Conditionals:
    """The conditionals of one scalar, one for each of some rows, in the scalar's own units.

    A value z of the standardised conditional stands for centre + scale · z. All values beyond the
    `ends` count as these: of what a heavy tail does where nobody has seen it nothing is known.
    """

    model: ARCSM
    contexts: Float[Tensor, "rows width"]
    centre: Float[Tensor, ""]
    scale: Float[Tensor, ""]
    ends: tuple[float, float]

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.contexts)

    def at(self, rows: np.ndarray) -> "Conditionals":
        """Return the conditionals of some of the rows."""
        some = torch.from_numpy(rows).to(self.contexts.device)
        return replace(self, contexts=self.contexts[some])

    def quantile(self, probability: np.ndarray) -> np.ndarray:
        """Return the values below which so much lies: of shape (points,), the same for all rows.

        The result has shape (rows, points).
        """
        level = torch.from_numpy(np.asarray(probability, dtype=np.float64)).to(self.contexts)
        z = self._map(lambda density, some: density.quantile(some), level.expand(self.rows, -1))
        return _numpy(self.centre + self.scale * z).clip(*self.ends)

    def draw(self, uniform: Float[Tensor, "rows"]) -> np.ndarray:
        """Return for each row the value below which so much lies."""
        z = self._map(lambda density, some: density.quantile(some), uniform[:, None])[:, 0]
        return _numpy(self.centre + self.scale * z).clip(*self.ends)

    def cdf(self, values: np.ndarray) -> np.ndarray:
        """Return the probability of values up to those given (points,), as (rows, points)."""
        level = torch.from_numpy(np.asarray(values, dtype=np.float64)).to(self.centre)
        z = ((level - self.centre) / self.scale).expand(self.rows, -1)
        return _numpy(self._map(lambda density, some: density.cdf(some), z))

    def mean(self, value: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Return the expectation of a function of the scalar, for each row.

        With u from a standard normal the scalar is quantile(Φ(u)).
        """
        u = np.arange(-_REACH, _REACH + _STEP / 2, _STEP)
        values = self._values(u, value)
        weight = _normal(u)
        total = values @ weight
        mean = total / weight.sum()
        coarse = values[:, ::2] @ weight[::2] / weight[::2].sum()
        spread = np.sqrt((values - mean[:, None]) ** 2 @ weight / weight.sum())
        rows, step, mass = np.arange(self.rows), _STEP, weight.sum()
        for _ in range(_HALVINGS):
            unsettled = np.abs(mean[rows] - coarse) > _TOLERANCE * spread[rows]
            rows, total = rows[unsettled], total[unsettled]
            if not len(rows):
                break
            middle = np.arange(-_REACH + step / 2, _REACH, step)
            weight = _normal(middle)
            coarse = mean[rows]
            total = total + self.at(rows)._values(middle, value) @ weight
            mass, step = mass + weight.sum(), step / 2
            mean[rows] = total / mass
        return mean

    def _values(self, u: np.ndarray, value: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        points = self.quantile(torch.special.ndtr(torch.from_numpy(u)).numpy())
        return value(points.ravel()).reshape(points.shape)

    def cells(self, steps: Steps) -> tuple[np.ndarray, np.ndarray]:
        """Return the indices of cells that hold all but a trifle, and their probabilities.

        The result has the shapes (cells,) and (rows, cells).
        """
        ends = steps.index(self.quantile(np.array([_OUTSIDE, 1 - _OUTSIDE])).ravel())
        index = np.arange(ends.min(), ends.max() + 1)
        edges = steps.encode(index[:-1], 0.0).high
        below = np.concatenate(
            [np.zeros((self.rows, 1)), self.cdf(edges), np.ones((self.rows, 1))], axis=1
        )
        return index, np.diff(below, axis=1).clip(min=0.0)

    def _map(self, function: Callable[[Density, Tensor], Tensor], points: Tensor) -> Tensor:
        """Return a function of the densities at points (rows, points), piece by piece."""
        model, contexts = self.model, self.contexts
        if not len(contexts):
            return points
        most = max(1, model.conditionals_at_once("auto") // max(1, points.shape[1]))
        sizes = even_sizes(len(contexts), most, contexts.device)
        pieces = list(zip(contexts.split(sizes), points.split(sizes), strict=True))
        return torch.cat(
            map_pieces(
                lambda piece: function(model.density_of(model.head.family(piece[0])), piece[1]),
                pieces,
                contexts.device,
            )
        )


def _normal(u: np.ndarray) -> np.ndarray:
    return np.exp(-u * u / 2) / math.sqrt(2 * math.pi)


def _numpy(values: Tensor) -> np.ndarray:
    return values.double().cpu().numpy()
