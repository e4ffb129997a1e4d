"""Columns whose values are fixed while the others are drawn: checked, and completed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from arcsm.columns import Columns
from arcsm.columns.fixed import Duplicate
from arcsm.data.table import Table, as_table
from arcsm.errors import InputError
from arcsm.tabular.pieces import ROWS


@dataclass(frozen=True)
class Given:
    """Values of some columns, for one row or for each of those to be drawn.

    table: all columns, of the types learned; where nothing is known, values that are possible.
    fixed: the columns that are known, those included that follow from others.
    """

    table: Table
    fixed: tuple[str, ...]

    @classmethod
    def of(cls, columns: Columns, given: Any, rows: int) -> "Given":
        """Check values as a score would, and that they can be: a mapping, a table, or a frame."""
        told = as_given(given)
        unknown = [name for name in told.names if name not in columns.names]
        if unknown:
            raise InputError(
                f"expected given values of columns among {list(columns.names)}, got {unknown};"
                " correct the names"
            )
        if told.rows not in (1, rows):
            raise InputError(
                f"expected given values for one row or for {rows}, got {told.rows} rows; pass one"
                " row for all, or one for each"
            )
        likely = columns.decode(np.zeros((1, columns.scalars)))
        whole = dict(likely.take(np.zeros(told.rows, dtype=np.int64)).columns)
        copies = duplicates(columns)
        sources = chained_sources(columns, told.names)
        # As they came, so that what a score would refuse is refused in the same words.
        table = _complete(whole, told, sources, copies)
        impossible = np.concatenate(
            [encoded.impossible for _, encoded in columns.encode_pieces(table, ROWS)]
        )
        if impossible.any():
            raise _reason(columns, whole, told, int(np.flatnonzero(impossible)[0]))
        typed = Table(
            {
                # Of a covariate other values than those of its type are as good: nothing is drawn.
                name: _in_type(
                    name, cells, whole[name].dtype, strict=name not in columns.covariates
                )
                for name, cells in told.columns.items()
            }
        )
        told_of = {*sources, *(name for name in told.names if name in columns.covariates)}
        follow = [name for name, copy in copies.items() if copy.of in told_of]
        known = {*told.names, *sources, *follow}
        fixed = tuple(name for name in columns.names if name in known)
        return cls(_complete(whole, typed, sources, copies), fixed)

    def rows(self, piece: slice) -> Table:
        """Return the values for some of the rows."""
        return self.table if self.table.rows == 1 else self.table.take(piece)

    def written_into(self, drawn: Table, piece: slice) -> Table:
        """Return drawn rows with the fixed cells as they were given, not as they were encoded."""
        known = self.rows(piece)
        columns = {
            name: np.repeat(known[name], drawn.rows) if known.rows == 1 else known[name]
            for name in self.fixed
        }
        return Table({**drawn.columns, **columns})


def duplicates(columns: Columns) -> dict[str, Duplicate]:
    """Return the columns that follow from another one."""
    return {
        column["name"]: Duplicate.from_parameters(column["reason"], column["parameters"])
        for column in columns.config["columns"]
        if column["kind"] == Duplicate.kind
    }


def chained_sources(columns: Columns, names: Sequence[str]) -> list[str]:
    """Return the columns of the chain that `names` tell of: themselves, or what they copy."""
    copies = duplicates(columns)
    told = dict.fromkeys(copies[name].of if name in copies else name for name in names)
    return [name for name in told if columns.scalars_of(name)]


def given_rows(given: Any) -> int:
    """Return for how many rows values are given."""
    return as_given(given).rows


def check_covariates(columns: Columns, told: Sequence[str]) -> None:
    """Refuse that a covariate is not given."""
    missing = [name for name in columns.covariates if name not in told]
    if missing:
        raise InputError(
            f"expected values of the covariates {list(columns.covariates)}, got none of {missing};"
            " pass them as given (--given NAME=VALUE)"
        )


def with_copies(columns: Columns, table: Table) -> Table:
    """Return a table whose constant columns and copies are as the others make them."""
    likely = columns.decode(np.zeros((1, columns.scalars)))
    free = [name for name in columns.names if columns.scalars_of(name)] + [*columns.covariates]
    whole = likely.take(np.zeros(table.rows, dtype=np.int64))
    return _complete(whole.columns, table.select(free), free, duplicates(columns))


def as_given(given: Any) -> Table:
    """Return values of some columns as a table; in a mapping one value may stand for a row."""
    if isinstance(given, Mapping):
        given = {
            name: [value] if isinstance(value, str) or np.ndim(value) == 0 else value
            for name, value in given.items()
        }
    elif not isinstance(given, Table) and not hasattr(given, "columns"):
        raise InputError(
            "expected given values as a mapping from names to values, a table or a data frame, got"
            f" {type(given).__name__}; for example {{'age': 40}}"
        )
    table = as_table(given)
    if table.rows == 0:
        raise InputError("expected given values, got a table without rows; leave it out")
    return table


def _complete(
    whole: Mapping[str, np.ndarray],
    told: Table,
    sources: Sequence[str],
    copies: Mapping[str, Duplicate],
) -> Table:
    """Return a whole table that holds what was told, and all that follows from it."""
    table = {**whole, **told.columns}
    for name, copy in copies.items():
        if name in told.columns and copy.of not in told.columns and copy.of in sources:
            table[copy.of] = _source(copy, told[name], whole[copy.of].dtype)
    for name, copy in copies.items():
        text = table[copy.of].dtype == object  # by mistake, if it should be on a line
        if name not in told.columns and (copy.slope is None or not text):
            table[name] = _cast(copy.of_other(table[copy.of]), whole[name].dtype)
    return Table(table)


def _source(copy: Duplicate, values: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Return the column that a copy was made from."""
    if copy.slope is None or values.dtype == object:
        return _cast(values, dtype)
    with np.errstate(over="ignore"):
        return _cast(copy.x0 + (values.astype(np.float64) - copy.y0) / copy.slope, dtype)


def _cast(values: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    if values.dtype == object or dtype.kind == "O":
        return values
    with np.errstate(invalid="ignore"):  # of numbers beyond 64 bits, which are compared later
        return (np.rint(values) if dtype.kind == "i" else values).astype(dtype)


def _in_type(name: str, values: np.ndarray, dtype: np.dtype[Any], *, strict: bool) -> np.ndarray:
    """Return values in the type of their column, which must not change them, or else as they are.

    With `strict` values that it would change are refused.
    """
    cast = _cast(values, dtype)
    changed = np.flatnonzero(cast != values)
    if len(changed) and not strict:
        return values
    if len(changed):
        what = "truth values" if dtype.kind == "b" else "whole numbers"
        raise InputError(
            f"expected {what} for the column {name!r}, as it was learned, got"
            f" {values[changed[0]].item()!r}; correct the value"
        )
    return cast


def _reason(columns: Columns, whole: Mapping[str, np.ndarray], told: Table, row: int) -> InputError:
    """Return an error that names a column whose value in this row cannot be."""
    copies, values = duplicates(columns), told.take([row])
    likely = {name: cells[:1] for name, cells in whole.items()}
    reasons = {column["name"]: column["reason"] for column in columns.describe()}
    where = f" in row {row}" if told.rows > 1 else ""
    for name in told.names:
        alone = values.select([name])
        table = _complete(likely, alone, chained_sources(columns, [name]), copies)
        if columns.encode(table).impossible.any():
            return InputError(
                f"expected a value of {name!r} that can be ({reasons[name]}), got"
                f" {_shown(values[name][0])}{where}; correct it"
            )
    return InputError(
        f"expected values that can be together, got"
        f" {', '.join(f'{name}={_shown(values[name][0])}' for name in told.names)}{where}:"
        " some columns follow from others; give those alone"
    )


def _shown(value: Any) -> str:
    return repr(value.item() if isinstance(value, np.generic) else value)
