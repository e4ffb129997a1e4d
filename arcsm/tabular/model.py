"""A density over the columns of a table: their transforms, and a chain of conditional scores."""

import copy
import math

import numpy as np
import torch

from arcsm.columns import Columns
from arcsm.data.table import Table, as_table
from arcsm.errors import InputError
from arcsm.model import ARCSM

# Up to this many numbers are evaluated in double precision, in which it does not matter which
# other rows are in the batch; more of them in single precision, which is twice as fast and agrees
# to some 1e-5 nats for each column.
_PRECISE = 20_000

# Rows encoded and evaluated, or drawn, at one time.
_ROWS = 16_384

# A value this many deviations out has density 0 for all purposes; beyond, float32 would overflow.
_FARTHEST = 1e9


class TabularModel:
    """A density over tables with the columns that it was fitted on.

    Densities are in the units of the table, in nats: of a column of real numbers a density, of
    whole numbers and quantised columns the probability of the value divided by the quantum, of
    categories and ordinal levels the probability itself.
    """

    def __init__(self, columns: Columns, model: ARCSM):
        if columns.scalars != model.dims:
            raise InputError(
                f"expected a model of {columns.scalars} scalars for these columns, got one of"
                f" {model.dims}; build it with dims={columns.scalars}"
            )
        self.columns, self.model = columns, model

    @property
    def order(self) -> tuple[str, ...]:
        """The columns in the order of the chain, without constant and duplicated ones."""
        first = {self.columns.scalars_of(name).start: name for name in self.chained}
        return tuple(first[scalar] for scalar in self.model.context.order if scalar in first)

    @property
    def chained(self) -> tuple[str, ...]:
        """The columns that the chain consists of, in the order of the table."""
        return tuple(name for name in self.columns.names if self.columns.scalars_of(name))

    def log_prob(self, table: Table) -> np.ndarray:
        """Return the log-density of each row (rows,)."""
        return self.log_prob_terms(table).sum(1)

    def log_prob_terms(self, table: Table, *, only: str | None = None) -> np.ndarray:
        """Return log q(column | columns before it in the order), of shape (rows, columns).

        A constant or duplicated column that differs from what it was has density 0: −inf. With
        `only` that column alone is evaluated, and the terms of the others are 0.
        """
        terms = np.zeros((table.rows, len(self.columns.names)))
        chosen = self.columns.names if only is None else (only,)
        scalars = [scalar for name in chosen for scalar in self.columns.scalars_of(name)]
        model = self._in_precision(table.rows * self.columns.scalars)
        for piece, encoded in self.columns.encode_pieces(table, _ROWS):
            point = _tensor(encoded.point, model)
            # In double precision: the ends of a cell may be close to each other.
            cells = (torch.from_numpy(encoded.low), torch.from_numpy(encoded.high))
            by_scalar, _ = model.log_prob_terms(point, cells=cells, only=scalars)
            values = by_scalar.double().cpu().numpy()
            # Cells are known by their probability alone; points by a density in the model's units.
            values = np.where(encoded.certain, 0.0, values + encoded.log_det)
            for name in chosen:
                own, place = self.columns.scalars_of(name), self.columns.names.index(name)
                terms[piece, place] = values[:, own.start : own.stop].sum(1)
            terms[piece][encoded.impossible] = -math.inf
        return terms

    def sample(self, rows: int, *, generator: torch.Generator | None = None) -> Table:
        """Draw rows; columns have the names, types and bounds of those learned."""
        parts = []
        for start in range(0, max(rows, 1), _ROWS):
            count = min(_ROWS, rows - start)
            points = np.empty((count, self.columns.scalars))

            def snap(
                scalar: int, drawn: torch.Tensor, _: torch.Tensor, points: np.ndarray = points
            ) -> torch.Tensor:
                values = drawn.double().cpu().numpy()
                points[:, scalar] = self.columns.snap(scalar, values, points[:, :scalar])
                return torch.from_numpy(points[:, scalar]).to(drawn)

            self.model.sample(count, generator=generator, snap=snap)
            parts.append(self.columns.decode(points))
        return Table.concat(parts)

    def pit(self, table: Table, *, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Return F(value | columns before it), uniform and independent if the model is right.

        Of a discrete column it is drawn between the values of F on both sides of the cell.
        Columns of several scalars, categories of more than two values, have no such value.
        """
        model = self._in_precision(table.rows * self.columns.scalars)
        names = [name for name in self.chained if len(self.columns.scalars_of(name)) == 1]
        values = np.empty((table.rows, self.columns.scalars))
        for piece, encoded in self.columns.encode_pieces(table, _ROWS):
            if encoded.impossible.any():
                row = int(np.flatnonzero(encoded.impossible)[0]) + piece.start
                raise InputError(
                    f"expected rows of positive density, got row {row}, which has none:"
                    " a value outside its bounds, or a constant that differs; leave it out"
                )
            point = _tensor(encoded.point, model)
            below, above = (
                model.conditional_cdf(point, at=_tensor(end, model)).double().cpu().numpy()
                for end in (encoded.low, encoded.high)
            )
            values[piece] = below + (above - below) * random.random(below.shape)
        return {name: values[:, self.columns.scalars_of(name).start] for name in names}

    def conditional_log_prob(self, row: Table, column: str, values: np.ndarray) -> np.ndarray:
        """Return log q(column = value | columns before it, as they are in `row`), for each value.

        `row` is a table of one row; of it only the columns before `column` in the order count.
        """
        if row.rows != 1:
            raise InputError(f"expected a table of one row, got {row.rows}; pass row.take([0])")
        place = self.columns.names.index(column) if column in self.columns.names else -1
        if place < 0:
            raise InputError(f"expected a column among {list(self.columns.names)}, got {column!r}")
        repeated = {name: np.repeat(cells, len(values)) for name, cells in row.columns.items()}
        repeated[column] = as_table({column: values})[column]
        # A copy of the column goes with it.
        decoded = self.columns.decode(self.columns.encode(Table(repeated)).point)
        for name in set(self.columns.names) - set(self.chained):
            repeated[name] = decoded[name]
        return self.log_prob_terms(Table(repeated), only=column)[:, place]

    def _in_precision(self, numbers: int) -> ARCSM:
        """Return the model in the precision that suits so many numbers."""
        if numbers > _PRECISE:
            return self.model
        return copy.deepcopy(self.model).double()


def _tensor(values: np.ndarray, model: ARCSM) -> torch.Tensor:
    clipped = np.where(np.isinf(values), values, np.clip(values, -_FARTHEST, _FARTHEST))
    return torch.from_numpy(clipped).to(model.shift)
