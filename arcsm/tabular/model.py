"""A density over the columns of a table: their transforms, and a chain of conditional scores."""

import copy
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from arcsm.agnostic import OrderAgnosticARCSM
from arcsm.columns import Columns
from arcsm.columns.encoded import Encoded
from arcsm.data.table import Table, as_table
from arcsm.ensemble import Ensemble, log_shares, mix_cdf, mix_terms, needed_terms
from arcsm.errors import InputError
from arcsm.model import ARCSM
from arcsm.ordering import LearnedOrder
from arcsm.tabular.chains import (
    Chains,
    as_tensor,
    condition_of,
    members_of,
    one_order_of,
    order_of,
    terms_of,
)
from arcsm.tabular.given import Given, chained_sources, check_covariates, with_copies
from arcsm.tabular.pieces import ROWS, generators_of_pieces, rows_drawn_at_once

# Up to this many numbers are evaluated in double precision, in which it does not matter which
# other rows are in the batch; more of them in single precision, which is twice as fast and agrees
# to some 1e-5 nats for each column.
_PRECISE = 20_000


class TabularModel:
    """A density over tables with the columns that it was fitted on.

    Densities are in the units of the table, in nats: of a column of real numbers a density, of
    whole numbers and quantised columns the probability of the value divided by the quantum, of
    categories and ordinal levels the probability itself.

    `model` is a chain of one order (`ARCSM`), one for all orders (`OrderAgnosticARCSM`), or an
    `Ensemble`, whose density is the mean of those of its members. Where columns are covariates,
    all densities are those of the others given these.
    """

    def __init__(self, columns: Columns, model: Chains):
        if columns.scalars != model.dims:
            raise InputError(
                f"expected a model of {columns.scalars} scalars for these columns, got one of"
                f" {model.dims}; build it with dims={columns.scalars}"
            )
        if columns.condition_dims != model.condition_dims:
            raise InputError(
                f"expected a model with a condition of {columns.condition_dims} for these columns,"
                f" got one of {model.condition_dims}; build it with condition_dims"
            )
        self.columns, self.model = columns, model
        # How the order was learned, where it was; not kept on disk.
        self.race: LearnedOrder | None = None

    @property
    def members(self) -> list[ARCSM]:
        """The models whose densities are averaged, one if there is no ensemble."""
        return members_of(self.model)

    @property
    def order(self) -> tuple[str, ...]:
        """The columns in the order of the chain, without constant and duplicated ones.

        It is empty for an ensemble whose members have different orders.
        """
        first = {self.columns.scalars_of(name).start: name for name in self.chained}
        return tuple(first[scalar] for scalar in order_of(self.model) or () if scalar in first)

    @property
    def any_order(self) -> bool:
        """Whether the model serves all orders; `order` is then the one that scores follow."""
        return isinstance(self.model, OrderAgnosticARCSM)

    @property
    def chained(self) -> tuple[str, ...]:
        """The columns that the chain consists of, in the order of the table."""
        return tuple(name for name in self.columns.names if self.columns.scalars_of(name))

    def log_prob(self, table: Table) -> np.ndarray:
        """Return the log-density of each row (rows,)."""
        return self.log_prob_and_terms(table)[0]

    def log_prob_terms(self, table: Table, *, only: str | None = None) -> np.ndarray:
        """Return log q(column | columns before it in the order), of shape (rows, columns).

        A constant or duplicated column that differs from what it was has density 0: −inf. With
        `only` that column alone is evaluated, and the terms of the others are 0.
        Of an ensemble of several orders a term is the mean of those that the members give to the
        column, weighed by their shares in the density of the row; these add up to more than
        `log_prob`, by log K at most.
        """
        return self._evaluate(table, only)[1]

    def log_prob_and_terms(self, table: Table) -> tuple[np.ndarray, np.ndarray]:
        """Return what `log_prob` and `log_prob_terms` do, in the time of one of them."""
        return self._evaluate(table, None)

    def _evaluate(self, table: Table, only: str | None) -> tuple[np.ndarray, np.ndarray]:
        log_prob = np.empty(table.rows)
        terms = np.zeros((table.rows, len(self.columns.names)))
        chosen = self.columns.names if only is None else (only,)
        wanted: Sequence[int] | None = None if only is None else self.columns.scalars_of(only)
        if isinstance(self.model, Ensemble):
            wanted = needed_terms(self.model.order, wanted)
        model = self.in_precision(table.rows * self.columns.scalars)
        for piece, encoded in self.columns.encode_pieces(table, ROWS):
            each = terms_of(model, encoded, wanted)
            values = mix_terms(each, torch.zeros_like(each), order_of(model))[0].numpy()
            log_prob[piece] = (each.sum(-1).logsumexp(0) - math.log(len(each))).numpy()
            for name in chosen:
                own, place = self.columns.scalars_of(name), self.columns.names.index(name)
                terms[piece, place] = values[:, own.start : own.stop].sum(1)
            log_prob[piece][encoded.impossible] = -math.inf
            terms[piece][encoded.impossible] = -math.inf
        return log_prob, terms

    def sample(
        self,
        rows: int,
        *,
        given: Any = None,
        generator: torch.Generator | None = None,
        method: str = "auto",
    ) -> Table:
        """Draw rows; columns have the names, types and bounds of those learned.

        `given` fixes columns, and the others are drawn given these, exactly: a mapping from names
        to values, or a table or data frame of one row or of `rows`. These columns have to be the
        first of the order, unless the model serves any. `method` is that of `ARCSM.sample`.
        A given value far beyond those seen in training is taken as it is: nothing was learned of
        what follows from it, and the other columns are what the network makes of it.
        Covariates always have to be given.
        """
        drawings = self.drawings(rows, given=given, generator=generator, method=method)
        return Table.concat([draw() for draw in drawings])

    def drawings(
        self,
        rows: int,
        *,
        given: Any = None,
        generator: torch.Generator | None = None,
        method: str = "auto",
    ) -> Iterator[Callable[[], Table]]:
        """Yield what draws the rows of `sample`, some at a time, so that memory stays bounded.

        With a generator each call draws the same rows whether or not the others are made, before
        it or after: several processes can share them.
        """
        nothing = given is None or (isinstance(given, Mapping) and not given)
        known = None if nothing else Given.of(self.columns, given, rows)
        check_covariates(self.columns, () if known is None else known.fixed)
        first = [] if known is None else chained_sources(self.columns, known.fixed)
        model = self.starting_with(first)
        # Without it a GPU draws all scalars at one go.
        snap = self._snap if self.columns.has_cells else None

        def draw(piece: slice, own: torch.Generator | None) -> Table:
            fixed: dict[str, Any] = {}
            count = piece.stop - piece.start
            encoded = None if known is None else self.columns.encode(known.rows(piece))
            if encoded is not None and first:
                fixed = self._fixed(model, encoded, first, method)
            told = None if encoded is None else condition_of(encoded, model)
            if told is not None:
                fixed["condition"] = told.expand(count, -1)
            points = model.sample(count, generator=own, method=method, snap=snap, **fixed)
            drawn = self.columns.decode(points.double().cpu().numpy())
            return drawn if known is None else known.written_into(drawn, piece)

        at_once = rows_drawn_at_once(self.columns.scalars, self.model.device)
        starts = range(0, max(rows, 1), at_once)
        generators = generators_of_pieces(generator, len(starts))
        for start, own in zip(starts, generators, strict=True):
            yield functools.partial(draw, slice(start, min(start + at_once, rows)), own)

    def _snap(self, scalar: int, drawn: Tensor, x: Tensor) -> Tensor:
        """Return the points that drawn values stand for, given the rows so far."""
        values, earlier = (part.double().cpu().numpy() for part in (drawn, x[:, :scalar]))
        return torch.from_numpy(self.columns.snap(scalar, values, earlier)).to(drawn)

    def _fixed(
        self, model: Chains, encoded: Encoded, first: Sequence[str], method: str
    ) -> dict[str, Tensor]:
        """Return what `sample` of the model asks for, to fix the columns `first`."""
        scalars = members_of(model)[0].context.order[: len(self.scalars_of(first))]
        fixed = {"given": as_tensor(encoded.point[:, list(scalars)], model)}
        if isinstance(model, Ensemble):
            # By the probability of cells, where the columns have cells.
            density = "auto" if method == "langevin" else method
            each = terms_of(model, encoded, scalars, density)
            fixed["weight"] = log_shares(each[..., list(scalars)].sum(-1)).exp().T
        return fixed

    def pit(self, table: Table, *, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Return F(value | columns before it), uniform and independent if the model is right.

        Of a discrete column it is drawn between the values of F on both sides of the cell; those
        of a category stand in the order of their codes, most frequent first.
        """
        model = self.in_precision(table.rows * self.columns.scalars)
        order = one_order_of(model)
        values = {name: np.empty(table.rows) for name in self.chained}
        for piece, encoded in self.columns.encode_pieces(table, ROWS):
            if encoded.impossible.any():
                row = int(np.flatnonzero(encoded.impossible)[0]) + piece.start
                raise InputError(
                    f"expected rows of positive density, got row {row}, which has none:"
                    " a value outside its bounds, or a constant that differs; leave it out"
                )
            point, condition = as_tensor(encoded.point, model), condition_of(encoded, model)
            cdf = [
                torch.stack(
                    [
                        m.conditional_cdf(point, at=as_tensor(end, model), condition=condition)
                        for m in members_of(model)
                    ]
                )
                for end in (encoded.low, encoded.high)
            ]
            if isinstance(model, Ensemble):
                terms = terms_of(model, encoded)
                low, high = (mix_cdf(ends.double().cpu(), terms, order) for ends in cdf)
            else:
                low, high = (ends[0].double().cpu() for ends in cdf)
            below = np.where(encoded.certain, 0.0, low.numpy())
            within = np.where(encoded.certain, 1.0, (high - low).numpy())
            chance = random.random(low.shape)
            for name, found in values.items():
                # The digits of a category, highest first, halve the line again and again: the
                # place within a digit's part of it is that of the digits which follow.
                *digits, last = self.columns.scalars_of(name)
                place = below[:, last] + within[:, last] * chance[:, last]
                for digit in reversed(digits):
                    place = below[:, digit] + within[:, digit] * place
                found[piece] = place
        return values

    def pit_of_members(self, table: Table, *, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Return what `pit` does, each row by a member that is drawn by its share in the density.

        Rows of the mixture for which a member is drawn so are rows of that member: these values
        are uniform as well if the model is right, also where the members have different orders.
        """
        alone = [TabularModel(self.columns, member) for member in self.members]
        each = torch.from_numpy(np.stack([member.log_prob(table) for member in alone]))
        below = log_shares(each).exp().cumsum(0)[:-1].numpy()
        chosen = (random.random(table.rows) > below).sum(0)
        values: dict[str, np.ndarray] = {}
        for place, member in enumerate(alone):
            rows = np.flatnonzero(chosen == place)
            for name, own in member.pit(table.take(rows), random=random).items():
                values.setdefault(name, np.empty(table.rows))[rows] = own
        return values

    def conditional_log_prob(
        self, row: Table, column: str, values: np.ndarray, *, given: Sequence[str] | None = None
    ) -> np.ndarray:
        """Return log q(column = value | columns before it, as they are in `row`), for each value.

        `row` is a table of one row; of it only the columns before `column` in the order count. With
        a model that serves any order, `given` names other columns to condition on.
        """
        if row.rows != 1:
            raise InputError(f"expected a table of one row, got {row.rows}; pass row.take([0])")
        if column not in self.columns.names:
            raise InputError(f"expected a column among {list(self.columns.names)}, got {column!r}")
        if given is not None:
            first, own = (chained_sources(self.columns, names) for names in (given, [column]))
            if set(own) & set(first):
                raise InputError(
                    f"expected given columns that do not determine {column!r}, got {list(given)};"
                    " leave that one out"
                )
            self.starting_with(first)
            following = TabularModel(self.columns, self.starting_with([*first, *own]))
            return following.conditional_log_prob(row, column, values)
        one_order_of(self.model)
        repeated = {name: np.repeat(cells, len(values)) for name, cells in row.columns.items()}
        repeated[column] = as_table({column: values})[column]
        # A copy of the column goes with it.
        table = with_copies(self.columns, Table(repeated))
        return self.log_prob_terms(table, only=column)[:, self.columns.names.index(column)]

    def starting_with(self, first: Sequence[str]) -> Chains:
        """Return the model along an order that starts with these columns, whatever theirs is."""
        scalars = self.scalars_of(first)
        if isinstance(self.model, OrderAgnosticARCSM):
            return self.model.with_order(scalars)
        starts = {member.context.order[: len(scalars)] for member in self.members}
        if len(starts) == 1 and set(starts.pop()) == set(scalars):
            return self.model
        got = f"the order is {' → '.join(self.order)}" if self.order else "each has its own order"
        raise InputError(
            f"expected given columns with which the order of the model starts, got {list(first)}"
            f" ({got}); train with these columns first (order=[names], --order NAME), or for all"
            ' sets of columns with order="any" (--order any)'
        )

    def scalars_of(self, names: Sequence[str]) -> list[int]:
        """Return the scalars of columns, in their order."""
        return [scalar for name in names for scalar in self.columns.scalars_of(name)]

    def in_precision(self, numbers: int) -> Chains:
        """Return the model in the precision that suits so many numbers."""
        if numbers > _PRECISE:
            return self.model
        return copy.deepcopy(self.model).double()
