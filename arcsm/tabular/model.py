"""A density over the columns of a table: their transforms, and a chain of conditional scores."""

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from arcsm.agnostic import OrderAgnosticARCSM
from arcsm.columns import Columns
from arcsm.columns.continuous import Bounded, Real
from arcsm.columns.encoded import Encoded
from arcsm.data.table import Table, as_table
from arcsm.ensemble import Ensemble, log_shares, mix_cdf, mix_terms, needed_terms
from arcsm.errors import InputError
from arcsm.model import ARCSM
from arcsm.ordering import LearnedOrder
from arcsm.tabular.given import Given, chained_sources, with_copies
from arcsm.tabular.pieces import ROWS, rows_drawn_at_once

# Up to this many numbers are evaluated in double precision, in which it does not matter which
# other rows are in the batch; more of them in single precision, which is twice as fast and agrees
# to some 1e-5 nats for each column.
_PRECISE = 20_000

# A value this many deviations out has density 0 for all purposes; beyond, float32 would overflow.
_FARTHEST = 1e9

Chains = ARCSM | Ensemble


class TabularModel:
    """A density over tables with the columns that it was fitted on.

    Densities are in the units of the table, in nats: of a column of real numbers a density, of
    whole numbers and quantised columns the probability of the value divided by the quantum, of
    categories and ordinal levels the probability itself.

    `model` is a chain of one order (`ARCSM`), one for all orders (`OrderAgnosticARCSM`), or an
    `Ensemble`, whose density is the mean of those of its members.
    """

    def __init__(self, columns: Columns, model: Chains):
        if columns.scalars != model.dims:
            raise InputError(
                f"expected a model of {columns.scalars} scalars for these columns, got one of"
                f" {model.dims}; build it with dims={columns.scalars}"
            )
        self.columns, self.model = columns, model
        # How the order was learned, where it was; not kept on disk.
        self.race: LearnedOrder | None = None

    @property
    def members(self) -> list[ARCSM]:
        """The models whose densities are averaged, one if there is no ensemble."""
        return _members(self.model)

    @property
    def order(self) -> tuple[str, ...]:
        """The columns in the order of the chain, without constant and duplicated ones.

        It is empty for an ensemble whose members have different orders.
        """
        first = {self.columns.scalars_of(name).start: name for name in self.chained}
        return tuple(first[scalar] for scalar in _order(self.model) or () if scalar in first)

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
        model = self._in_precision(table.rows * self.columns.scalars)
        for piece, encoded in self.columns.encode_pieces(table, ROWS):
            each = _terms(model, encoded, wanted)
            values = mix_terms(each, torch.zeros_like(each), _order(model))[0].numpy()
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
        """
        nothing = given is None or (isinstance(given, Mapping) and not given)
        known = None if nothing else Given.of(self.columns, given, rows)
        first = [] if known is None else chained_sources(self.columns, known.fixed)
        model = self._starting_with(first)
        # Without it a GPU draws all scalars at one go.
        snap = self._snap if self._has_cells() else None
        parts = []
        at_once = rows_drawn_at_once(self.columns.scalars, self.model.device)
        for start in range(0, max(rows, 1), at_once):
            piece = slice(start, min(start + at_once, rows))
            fixed: dict[str, Any] = {}
            if known is not None and first:
                fixed = self._fixed(model, known.rows(piece), first, method)
            points = model.sample(
                piece.stop - piece.start,
                generator=generator,
                method=method,
                snap=snap,
                **fixed,
            )
            drawn = self.columns.decode(points.double().cpu().numpy())
            parts.append(drawn if known is None else known.written_into(drawn, piece))
        return Table.concat(parts)

    def _has_cells(self) -> bool:
        """Return whether some values of the chain stand for more than one point."""
        for column in self.columns.config["columns"]:
            edges = [column["parameters"].get(key) for key in ("low_edge", "high_edge")]
            points = column["kind"] in (Real.kind, Bounded.kind) and edges == [None, None]
            if self.columns.scalars_of(column["name"]) and not points:
                return True
        return False

    def _snap(self, scalar: int, drawn: Tensor, x: Tensor) -> Tensor:
        """Return the points that drawn values stand for, given the rows so far."""
        values, earlier = (part.double().cpu().numpy() for part in (drawn, x[:, :scalar]))
        return torch.from_numpy(self.columns.snap(scalar, values, earlier)).to(drawn)

    def _fixed(
        self, model: Chains, values: Table, first: Sequence[str], method: str
    ) -> dict[str, Tensor]:
        """Return what `sample` of the model asks for, to fix the columns `first`."""
        encoded = self.columns.encode(values)
        scalars = _members(model)[0].context.order[: len(self._scalars(first))]
        fixed = {"given": _tensor(encoded.point[:, list(scalars)], model)}
        if isinstance(model, Ensemble):
            # By the probability of cells, where the columns have cells.
            density = "auto" if method == "langevin" else method
            each = _terms(model, encoded, scalars, density)
            fixed["weight"] = log_shares(each[..., list(scalars)].sum(-1)).exp().T
        return fixed

    def pit(self, table: Table, *, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Return F(value | columns before it), uniform and independent if the model is right.

        Of a discrete column it is drawn between the values of F on both sides of the cell; those
        of a category stand in the order of their codes, most frequent first.
        """
        model = self._in_precision(table.rows * self.columns.scalars)
        order = _one_order(model)
        values = {name: np.empty(table.rows) for name in self.chained}
        for piece, encoded in self.columns.encode_pieces(table, ROWS):
            if encoded.impossible.any():
                row = int(np.flatnonzero(encoded.impossible)[0]) + piece.start
                raise InputError(
                    f"expected rows of positive density, got row {row}, which has none:"
                    " a value outside its bounds, or a constant that differs; leave it out"
                )
            point = _tensor(encoded.point, model)
            cdf = [
                torch.stack(
                    [m.conditional_cdf(point, at=_tensor(end, model)) for m in _members(model)]
                )
                for end in (encoded.low, encoded.high)
            ]
            if isinstance(model, Ensemble):
                terms = _terms(model, encoded)
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
            self._starting_with(first)
            following = TabularModel(self.columns, self._starting_with([*first, *own]))
            return following.conditional_log_prob(row, column, values)
        _one_order(self.model)
        repeated = {name: np.repeat(cells, len(values)) for name, cells in row.columns.items()}
        repeated[column] = as_table({column: values})[column]
        # A copy of the column goes with it.
        table = with_copies(self.columns, Table(repeated))
        return self.log_prob_terms(table, only=column)[:, self.columns.names.index(column)]

    def _starting_with(self, first: Sequence[str]) -> Chains:
        """Return the model along an order that starts with these columns, whatever theirs is."""
        scalars = self._scalars(first)
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

    def _scalars(self, names: Sequence[str]) -> list[int]:
        return [scalar for name in names for scalar in self.columns.scalars_of(name)]

    def _in_precision(self, numbers: int) -> Chains:
        """Return the model in the precision that suits so many numbers."""
        if numbers > _PRECISE:
            return self.model
        return copy.deepcopy(self.model).double()


def _members(model: Chains) -> list[ARCSM]:
    return model.models if isinstance(model, Ensemble) else [model]


def _order(model: Chains) -> tuple[int, ...] | None:
    """Return the order of the scalars, None if there are several."""
    return model.order if isinstance(model, Ensemble) else model.context.order


def _one_order(model: Chains) -> tuple[int, ...]:
    """Return the order of the scalars; refuse several."""
    order = _order(model)
    if order is None:
        raise InputError(
            "expected a model of one order for its conditionals, got an ensemble of several;"
            " train it with one order: order=[names] with ensemble=K"
        )
    return order


def _terms(
    model: Chains, encoded: Encoded, only: Sequence[int] | None = None, method: str = "auto"
) -> Float[Tensor, "members rows scalars"]:
    """Return what each scalar adds to the log-density of each member, in the units of the table."""
    point = _tensor(encoded.point, model)
    # In double precision: the ends of a cell may be close to each other.
    cells = (torch.from_numpy(encoded.low), torch.from_numpy(encoded.high))
    each = torch.stack(
        [
            member.log_prob_terms(point, cells=cells, only=only, method=method)[0].double().cpu()
            for member in _members(model)
        ]
    )
    # Cells are known by their probability alone; points by a density in the model's units.
    terms = each + torch.from_numpy(encoded.log_det)
    return terms.where(~torch.from_numpy(encoded.certain), 0.0)


def _tensor(values: np.ndarray, model: Chains) -> Tensor:
    clipped = np.where(np.isinf(values), values, np.clip(values, -_FARTHEST, _FARTHEST))
    return torch.from_numpy(clipped).to(model.device, model.dtype)
