"""Tables with holes, filled under a fitted model of tables."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch

from arcsm.agnostic import OrderAgnosticARCSM
from arcsm.columns.category import Category
from arcsm.columns.fixed import Duplicate
from arcsm.columns.incomplete import Incomplete, find_missing
from arcsm.data.table import Table
from arcsm.ensemble import Ensemble
from arcsm.errors import InputError
from arcsm.tabular import TabularModel
from arcsm.tabular.predict import interval_levels
from arcsm.tasks.impute.answers import STRATEGIES
from arcsm.tasks.impute.any_order import AnyOrder
from arcsm.tasks.impute.one_order import OneOrder

# Rows that are filled at one time.
_ROWS = 8192

# Standard deviations of a scalar within which values are, if it is not known how far it reaches:
# heavy tails have been bent to normal ones.
_REACH = 4.0


class Ways(Protocol):
    """What a kind of model says of the open holes of some rows, column by column."""

    def point(self, part: Incomplete, how: str, *, fractional: bool) -> dict[str, np.ndarray]:
        """Return the mean or median of each hole."""

    def quantiles(self, part: Incomplete, levels: Sequence[float]) -> dict[str, np.ndarray]:
        """Return quantiles of each hole (holes, levels)."""

    def draws(
        self, part: Incomplete, count: int, generator: torch.Generator | None
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield joint draws, so many times."""

    def effective(self, part: Incomplete) -> np.ndarray | None:
        """Return how many draws each row is worth (rows,), or None where all is exact."""


class Imputation:
    """Fills the holes of tables under a model of tables.

    Under a model of all orders (order="any") everything is exact: a mean, median or quantile is
    that of the one conditional of the hole given all that is known of its row, and draws are made
    hole after hole. Under a model of one order it is exact, but for the noise of `particles`
    draws, for rows whose holes are the last columns of the order. Where known columns come after
    holes, draws are weighed by how well these agree with them, and drawn anew where few of them
    carry the weight; `effective` says how many draws each row is then worth.

    What is filled in never lies beyond the `reach` (scalars, 2) of the scalars, by default four
    deviations either way, and for a model that `fit_incomplete` learned a little more than what
    it has seen. A mean is so not drawn away by a tail that nobody has seen.

    >>> import numpy as np
    >>> from arcsm.data.table import as_table
    >>> from arcsm.tabular.incomplete import Settings, fit_incomplete
    >>> x = np.random.default_rng(0).normal(size=(200, 2)).cumsum(1)
    >>> x[::3, 0], x[1::3, 1] = np.nan, np.nan
    >>> table = as_table(x)
    >>> model, reach, _ = fit_incomplete(table, Settings(max_steps=20, hidden=(16, 16)))
    >>> filled = Imputation(model, reach=reach).fill(table, "mean")
    >>> bool(np.isnan(filled.to_numpy()).any())
    False
    """

    def __init__(
        self, model: TabularModel, *, reach: np.ndarray | None = None, particles: int = 200
    ):
        if model.columns.covariates:
            raise InputError(
                "expected a model of all columns to fill holes with, got one that is conditional"
                f" on {list(model.columns.covariates)}; train it without"
            )
        if isinstance(model.model, Ensemble):
            raise InputError(
                "expected one model to fill holes with, got an ensemble; train it with ensemble=1,"
                ' best with order="any"'
            )
        if not isinstance(particles, int) or isinstance(particles, bool) or particles < 2:
            raise InputError(f"expected two particles or more, got {particles!r}; ask for 200")
        self.model, self.particles = model, particles
        self.reach = _usual_reach(model) if reach is None else reach

    @property
    def exact(self) -> bool:
        """Whether no draws are needed for means, medians and quantiles, whatever is missing."""
        return self.model.any_order

    def fill(
        self,
        table: Table,
        strategy: str = "mean",
        *,
        missing: np.ndarray | None = None,
        fractional: bool = False,
        generator: torch.Generator | None = None,
    ) -> Table:
        """Return the table with its holes filled: by "mean", "median", or one joint "draw".

        `missing` says where the holes are, by default where values are NaN or None. Of categories
        mean and median are the most probable value; of whole numbers, numbers in steps and levels
        the mean is one of them, unless it may be `fractional`.
        """
        check_strategy(strategy)
        if strategy == "draw":
            return self.draws(table, 1, missing=missing, generator=generator)[0]
        missing = find_missing(table) if missing is None else missing
        parts = [
            part.filled(self.model.columns, way.point(part, strategy, fractional=fractional))
            for way, part in self._parts(table, missing)
        ]
        return _put_back(table, missing, parts)

    def draws(
        self,
        table: Table,
        count: int,
        *,
        missing: np.ndarray | None = None,
        generator: torch.Generator | None = None,
    ) -> list[Table]:
        """Return so many filled tables, each with a joint draw of all holes of a row."""
        if not isinstance(count, int | np.integer) or isinstance(count, bool) or count < 1:
            raise InputError(f"expected a positive number of tables, got {count!r}; ask for 5")
        missing = find_missing(table) if missing is None else missing
        parts: list[list[Table]] = [[] for _ in range(count)]
        for way, part in self._parts(table, missing):
            for place, found in enumerate(way.draws(part, int(count), generator)):
                parts[place].append(part.filled(self.model.columns, found))
        return [_put_back(table, missing, some) for some in parts]

    def intervals(
        self, table: Table, coverage: float = 0.9, *, missing: np.ndarray | None = None
    ) -> tuple[Table, Table]:
        """Return lower and upper ends between which each hole lies with this probability.

        Elsewhere there is NaN, and None in columns of text; of categories that are text there are
        no ends.
        """
        levels = interval_levels(coverage).tolist()
        missing = find_missing(table) if missing is None else missing
        ends: tuple[list[Table], list[Table]] = ([], [])
        for way, part in self._parts(table, missing):
            found = way.quantiles(part, levels)
            for side, parts in enumerate(ends):
                of_side = {name: both[:, side] for name, both in found.items()}
                parts.append(part.filled(self.model.columns, of_side))
        low, high = (_put_back(table, missing, parts) for parts in ends)
        return self._ends(low, high, missing)

    def effective(self, table: Table, *, missing: np.ndarray | None = None) -> np.ndarray | None:
        """Return how many draws the answers for each row are worth, at most `particles`.

        It is None for a model of all orders, of which nothing is approximated. A row without holes
        has as many as there are particles.
        """
        missing = find_missing(table) if missing is None else missing
        if self.exact:
            return None
        found = np.full(table.rows, float(self.particles))
        holes = np.flatnonzero(missing.any(1))
        parts = [way.effective(part) for way, part in self._parts(table, missing)]
        worth = [some for some in parts if some is not None]
        found[holes] = np.concatenate(worth) if worth else found[holes]
        return found

    def _parts(self, table: Table, missing: np.ndarray) -> Iterator[tuple[Ways, Incomplete]]:
        """Yield the rows that have holes, some at a time."""
        holes = np.flatnonzero(missing.any(1))
        columns = self.model.columns
        chain = self.model.in_precision(len(holes) * columns.scalars)
        way: Ways
        if isinstance(chain, OrderAgnosticARCSM):
            way = AnyOrder(columns, chain, self.reach)
        else:
            assert not isinstance(chain, Ensemble)
            way = OneOrder(columns, chain, self.reach, self.particles)
        for start in range(0, len(holes), _ROWS):
            rows = holes[start : start + _ROWS]
            yield way, Incomplete.of(columns, table.take(rows), missing[rows])

    def _ends(self, low: Table, high: Table, missing: np.ndarray) -> tuple[Table, Table]:
        """Return the ends of intervals in order, and nothing where there is no hole."""
        ends: tuple[dict[str, np.ndarray], dict[str, np.ndarray]] = ({}, {})
        for place, name in enumerate(low.names):
            holes, both = missing[:, place], (low[name], high[name])
            kind = self.model.columns.kind(name)
            falls = isinstance(kind, Duplicate) and kind.slope is not None and kind.slope < 0
            for side, values in enumerate(reversed(both) if falls else both):
                if values.dtype == object:
                    shown = np.full(len(values), None, dtype=object)
                    if not isinstance(kind, Category | Duplicate):
                        shown[holes] = values[holes]
                else:
                    shown = np.where(holes, values.astype(np.float64), np.nan)
                ends[side][name] = shown
        return Table(ends[0]), Table(ends[1])


def _usual_reach(model: TabularModel) -> np.ndarray:
    """Return between which ends the scalars of nearly all rows lie (scalars, 2)."""
    chain = model.members[0]
    width = chain.deviation if chain.decorrelate else chain.scale
    ends = [chain.shift - _REACH * width, chain.shift + _REACH * width]
    return torch.stack(ends, 1).double().cpu().numpy()


def check_strategy(strategy: object) -> None:
    """Refuse a strategy that there is none of."""
    if strategy not in STRATEGIES:
        raise InputError(
            f"expected a strategy among {', '.join(STRATEGIES)}, got {strategy!r}; choose one"
        )


def _put_back(table: Table, missing: np.ndarray, parts: Sequence[Table]) -> Table:
    """Return a table whose rows with holes are those of `parts`, one after the other."""
    holes = np.flatnonzero(missing.any(1))
    if not len(holes):
        return table
    filled = Table.concat(parts)
    columns = {}
    for place, (name, values) in enumerate(table.columns.items()):
        own = missing[holes, place]
        found = filled[name]
        whole = values.copy()
        if own.any() and values.dtype != found.dtype:
            whole = values.astype(found.dtype)
        whole[holes[own]] = found[own]
        columns[name] = whole
    return Table(columns)
