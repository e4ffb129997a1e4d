"""Columns that are not known, given those that are: their quantiles, means and intervals.

The column that follows those known in the order of a model has a conditional of one dimension, of
which everything is computed; that of a mixture is the mean of those of its members. Columns that
come later have marginals that no formula gives: they are drawn, together, some times for each row.
Of constants, and of copies of other columns, all follows from what is known of these.
"""

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from arcsm.columns import Columns
from arcsm.columns.category import Category
from arcsm.columns.covariate import Covariate
from arcsm.columns.discrete import Grid, Ordinal
from arcsm.columns.fixed import Constant, Duplicate
from arcsm.columns.kind import Kind
from arcsm.conditional.roots import solve_increasing
from arcsm.data.table import Table
from arcsm.ensemble import Ensemble, log_shares
from arcsm.errors import InputError
from arcsm.scoring import ScaledDensity
from arcsm.tabular.chains import as_tensor, condition_of, members_of, terms_of
from arcsm.tabular.given import Given, chained_sources, check_covariates
from arcsm.tabular.model import TabularModel

# Quantiles that are computed at one time, and numbers that are drawn.
_QUANTILES, _DRAWN = 2**15, 2**21
# A mean is that of the quantiles at normal scores, evenly spaced up to ±_REACH.
_NODES, _REACH = 385, 6.0
# Of so few values the probability of each is found.
_FEW = 256
# Entries of a table from which the search for a quantile of a mixture starts, and where it ends.
_ENTRIES, _TOLERANCE = 513, 1e-7


class Mixture:
    """One-dimensional densities, one for each row: means of those of several members."""

    def __init__(self, members: Sequence[ScaledDensity], share: Float[Tensor, "members rows"]):
        self._members, self._share = members, share[..., None]

    def cdf(self, x: Float[Tensor, "rows points"]) -> Float[Tensor, "rows points"]:
        """Return the probability of values up to x."""
        return (self._share * torch.stack([member.cdf(x) for member in self._members])).sum(0)

    def member_quantiles(
        self, probability: Float[Tensor, "rows points"]
    ) -> Float[Tensor, "members rows points"]:
        """Return the quantiles of each member."""
        return torch.stack([member.quantile(probability) for member in self._members])

    def quantile(self, probability: Float[Tensor, "rows points"]) -> Float[Tensor, "rows points"]:
        """Return x with cdf(x) = probability."""
        each = self.member_quantiles(probability)
        if len(each) == 1:
            return each[0]
        guess, slope = self._nearly(probability)
        # The quantile of a mixture lies between those of its members. A slope that is nearly right
        # leads there too, and spares the densities.
        return solve_increasing(
            lambda x: (self.cdf(x), slope),
            probability,
            each.amin(0),
            each.amax(0),
            guess,
            tolerance=_TOLERANCE,
        )[0]

    def _nearly(
        self, probability: Float[Tensor, "rows points"]
    ) -> tuple[Float[Tensor, "rows points"], Float[Tensor, "rows points"]]:
        """Return about x with cdf(x) = probability, and the slope of the cdf there.

        From a table of the members' quantiles, which are cheap, as distribution functions are not:
        it is inverted by interpolation.
        """
        score = torch.linspace(-_REACH, _REACH, _ENTRIES).to(probability)
        level = torch.special.ndtr(score).expand(len(probability), -1)
        each = self.member_quantiles(level)
        x = each.transpose(0, 1).flatten(1).sort(-1).values
        cdf = sum(
            share * torch.special.ndtr(_interpolate(x, own.contiguous(), score.expand_as(own))[0])
            for share, own in zip(self._share, each, strict=True)
        )
        assert isinstance(cdf, Tensor)
        guess, width = _interpolate(probability.contiguous(), cdf.contiguous(), x)
        return guess, 1 / width.clamp(1e-300, 1e300)

    def average(
        self, values: Float[Tensor, "members rows points"], weight: Float[Tensor, "points"]
    ) -> Float[Tensor, "rows"]:
        """Return the weighted mean over points of values of each member, over all members."""
        return (self._share * values * weight).sum((0, 2))


class Outlook:
    """What is to be expected of the columns that are not given, for each row of those that are.

    `draws` rows are drawn for each, with the `generator`, to tell of columns that are not the next
    in the order.
    """

    def __init__(
        self,
        model: TabularModel,
        given: Table,
        *,
        draws: int = 1000,
        generator: torch.Generator | None = None,
    ) -> None:
        self._known = Given.of(model.columns, given, given.rows)
        check_covariates(model.columns, self._known.fixed)
        self._first = chained_sources(model.columns, self._known.fixed)
        self._model, self._rows, self._device = model, given.rows, model.model.device
        self._draws, self._generator = draws, generator
        model.starting_with(self._first)  # which refuses what it cannot condition on
        self._drawn: Table | None = None

    def quantiles(self, target: str, levels: np.ndarray) -> np.ndarray:
        """Return the quantiles of a column at levels between 0 and 1, (rows, levels)."""
        columns = self._model.columns
        kind = columns.kind(target)
        if not has_quantiles(columns, target):
            raise InputError(
                f"expected a column whose values have an order, got {target!r}, a category without"
                " quantiles; name other columns, or sample it"
            )
        if self._is_known(target):
            return np.repeat(self._known.table[target][:, None], len(levels), axis=1)
        if isinstance(kind, Duplicate):
            falls = kind.slope is not None and kind.slope < 0
            found = self.quantiles(kind.of, 1 - levels if falls else levels)
            return columns.copy_of(target, found)
        conditional = self._mixture(target)
        if conditional is None:
            return self._drawn_quantiles(target, levels)
        probability = torch.from_numpy(levels).expand(self._rows, -1).to(self._device)
        return self._decode(target, conditional.quantile(probability))

    def mean(self, target: str) -> np.ndarray:
        """Return the mean of a column of numbers; of truth values the probability of true."""
        columns = self._model.columns
        kind = columns.kind(target)
        if not has_mean(columns, target):
            raise InputError(
                f"expected a column of numbers or truth values, got {target!r}"
                f" ({kind.label}), which has no mean; name other columns"
            )
        if self._is_known(target):
            return self._known.table[target].astype(np.float64)
        if isinstance(kind, Duplicate):
            return kind.of_other(self.mean(kind.of))
        conditional = self._mixture(target)
        if conditional is None:
            return self._drawn_values(target).astype(np.float64).mean(1)
        if isinstance(kind, Category):
            # The cell of the more frequent value is what lies below 0.
            below = self._below(conditional, np.zeros(1))[:, 0]
            return below if bool(kind.values[0]) else 1 - below
        nodes = torch.linspace(-_REACH, _REACH, _NODES, dtype=torch.float64, device=self._device)
        levels = torch.special.ndtr(nodes).expand(self._rows, -1)
        each = conditional.member_quantiles(levels)
        if isinstance(kind, Grid):
            ends = self._decode(target, torch.stack([each.min(), each.max()]))
            low, high = (int(index) for index in kind.points.index(ends))
            if high - low < _FEW:
                cells = kind.points.value(np.arange(low, high + 1, dtype=np.float64))
                edges = np.asarray(kind.encode(target, cells)[0][0].high)[:-1]
                return _mean_of_cells(cells.astype(np.float64), self._below(conditional, edges))
        found = np.stack([self._decode(target, member) for member in each]).astype(np.float64)
        weight = torch.exp(-nodes.square() / 2)
        mean = conditional.average(torch.from_numpy(found).to(nodes), weight / weight.sum())
        return np.asarray(mean.cpu().numpy())

    def _is_known(self, target: str) -> bool:
        """Return whether a column is constant, or follows from those given."""
        return target in self._known.fixed or isinstance(self._model.columns.kind(target), Constant)

    def _below(self, conditional: Mixture, places: np.ndarray) -> np.ndarray:
        """Return the probabilities, (rows, places), of scalars below some places."""
        at = torch.from_numpy(places).to(self._device).expand(self._rows, -1)
        return np.asarray(conditional.cdf(at).cpu().numpy())

    def _mixture(self, target: str) -> Mixture | None:
        """Return the conditional of a column, None if it is not the next one in the order."""
        model, columns = self._model, self._model.columns
        own = columns.scalars_of(target)
        known = len(model.scalars_of(self._first))
        chain = model.starting_with(self._first)
        if model.any_order:
            chain = model.starting_with([*self._first, target])
        following = {member.context.order[known] for member in members_of(chain)}
        if following != {own.start} or len(own) > 1:
            return None
        # In double precision: levels may be close to 0 and to 1.
        chain = copy.deepcopy(chain).double()
        encoded = columns.encode(self._known.table)
        point, condition = as_tensor(encoded.point, chain), condition_of(encoded, chain)
        densities = [
            member.conditional(point, own.start, condition=condition)
            for member in members_of(chain)
        ]
        share = torch.full((len(densities), 1), 1 / len(densities)).to(point)
        if isinstance(chain, Ensemble) and known:
            scalars = list(members_of(chain)[0].context.order[:known])
            terms = terms_of(chain, encoded, scalars)[..., scalars].sum(-1)
            share = log_shares(terms).exp().to(point)
        return Mixture(densities, share)

    def _decode(self, target: str, points: Tensor) -> np.ndarray:
        """Return the values of points of any shape."""
        flat = points.double().cpu().numpy().reshape(-1, 1)
        return self._model.columns.decode_column(target, flat).reshape(points.shape)

    def _drawn_values(self, target: str) -> np.ndarray:
        """Return draws of a column, (rows, draws); those of all columns are drawn together."""
        if self._drawn is None:
            table = self._known.table.select(self._known.fixed)
            repeated = table.take(np.repeat(np.arange(self._rows), self._draws))
            self._drawn = self._model.sample(
                repeated.rows, given=repeated, generator=self._generator
            )
        return self._drawn[target].reshape(self._rows, self._draws)

    def _drawn_quantiles(self, target: str, levels: np.ndarray) -> np.ndarray:
        values, kind = self._drawn_values(target), self._model.columns.kind(target)
        if isinstance(kind, Ordinal):
            place = kind.positions(target, values.ravel()).reshape(values.shape)
            found = np.quantile(place, levels, axis=1, method="inverted_cdf").T
            return np.array(kind.levels, dtype=values.dtype)[found]
        exact = values.dtype == np.float64 and not isinstance(kind, Grid)
        method: Any = "linear" if exact else "inverted_cdf"
        return np.asarray(np.quantile(values, levels, axis=1, method=method).T)


def predict(
    model: TabularModel,
    given: Table,
    targets: Sequence[str],
    *,
    levels: np.ndarray | None = None,
    draws: int = 1000,
    generator: torch.Generator | None = None,
) -> dict[str, np.ndarray]:
    """Return the quantiles (rows, levels) of each target given a table, or else means (rows,)."""
    if levels is None:
        return predict_both(model, given, (), (), targets, draws=draws, generator=generator)[1]
    return predict_both(model, given, levels, targets, (), draws=draws, generator=generator)[0]


def predict_both(
    model: TabularModel,
    given: Table,
    levels: Sequence[float] | np.ndarray,
    with_quantiles: Sequence[str],
    with_means: Sequence[str],
    *,
    draws: int = 1000,
    generator: torch.Generator | None = None,
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return quantiles (rows, levels) of some targets and means (rows,) of some, by name.

    Both are told by the same draws, so that they do not contradict each other.
    """
    wanted = np.asarray(levels, dtype=np.float64)
    quantiles: dict[str, list[np.ndarray]] = {name: [] for name in with_quantiles}
    means: dict[str, list[np.ndarray]] = {name: [] for name in with_means}
    numbers = max(len(wanted), _NODES if means else 1)
    at_once = max(1, _QUANTILES // (numbers * len(model.members)))
    if len(model.chained) > 1:
        at_once = max(1, min(at_once, _DRAWN // (draws * len(model.chained))))
    for start in range(0, given.rows, at_once):
        some = given.take(slice(start, start + at_once))
        outlook = Outlook(model, some, draws=draws, generator=generator)
        for name, parts in quantiles.items():
            parts.append(outlook.quantiles(name, wanted))
        for name, parts in means.items():
            parts.append(outlook.mean(name))
    return (
        {name: np.concatenate(parts) for name, parts in quantiles.items()},
        {name: np.concatenate(parts) for name, parts in means.items()},
    )


def has_quantiles(columns: Columns, name: str) -> bool:
    """Return whether the values of a column have an order."""
    kind = _source_kind(columns, name)
    if isinstance(kind, Constant):
        return not isinstance(kind.value, str | bool)
    return not isinstance(kind, Category)


def has_mean(columns: Columns, name: str) -> bool:
    """Return whether a column is one of numbers or truth values."""
    kind = _source_kind(columns, name)
    if isinstance(kind, Constant):
        return not isinstance(kind.value, str)
    if isinstance(kind, Category):
        return all(isinstance(value, bool) for value in kind.values)
    return not isinstance(kind, Ordinal)


def _source_kind(columns: Columns, name: str) -> Kind:
    """Return the kind of a column; of a copy, that of the column it is made from."""
    kind = columns.kind(name)
    if isinstance(kind, Duplicate):
        kind = columns.kind(kind.of)
    return kind.of if isinstance(kind, Covariate) else kind


def _interpolate(
    x: Float[Tensor, "rows points"],
    places: Float[Tensor, "rows entries"],
    values: Float[Tensor, "rows entries"],
) -> tuple[Float[Tensor, "rows points"], Float[Tensor, "rows points"]]:
    """Return values and slopes at x of the lines between increasing places.

    Beyond these the values are the outermost ones.
    """
    above = torch.searchsorted(places, x).clamp(1, places.shape[1] - 1)
    low, high = places.gather(1, above - 1), places.gather(1, above)
    width = (high - low).clamp(min=1e-300)
    share = ((x - low) / width).clamp(0, 1)
    first, last = values.gather(1, above - 1), values.gather(1, above)
    return torch.lerp(first, last, share), (last - first) / width


def _mean_of_cells(values: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Return Σ value · P(value), from the probabilities (rows, values − 1) below their edges."""
    rows = len(below)
    return np.diff(np.column_stack([np.zeros(rows), below, np.ones(rows)]), axis=1) @ values


def check_levels(levels: Any) -> np.ndarray:
    """Return levels of quantiles as numbers strictly between 0 and 1."""
    try:
        found = np.atleast_1d(np.asarray(levels, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise InputError(f"expected levels of quantiles as numbers, got {levels!r}") from error
    if found.ndim != 1 or len(found) == 0 or not ((found > 0) & (found < 1)).all():
        raise InputError(
            f"expected levels of quantiles between 0 and 1, got {levels!r}; 0.5 is the median"
        )
    return found


def interval_levels(coverage: Any) -> np.ndarray:
    """Return the two levels between which a value lies with a probability of `coverage`."""
    number = isinstance(coverage, int | float | np.number) and not isinstance(coverage, bool)
    if not number or not 0 < float(coverage) < 1 or math.isnan(float(coverage)):
        raise InputError(
            f"expected a coverage between 0 and 1, got {coverage!r}; 0.9 leaves 5 % on each side"
        )
    tail = (1 - float(coverage)) / 2
    return np.array([tail, 1 - tail])
