"""Tables with holes: columns learned from what is there, and rows encoded with a mask.

A missing number is NaN and a missing text None, as in every table. Nothing is learned from a hole
and nothing said of it: something possible stands in its place, and the mask says so. A column that
follows from another one fills it in where it is missing, and the other way round.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from arcsm.columns.category import Category
from arcsm.columns.checks import check_same_columns, type_of
from arcsm.columns.columns import Columns
from arcsm.columns.continuous import Bounded, Real
from arcsm.columns.discrete import Ordinal
from arcsm.columns.encoded import Encoded
from arcsm.columns.fixed import Constant, Duplicate, find_duplicate, is_evident
from arcsm.columns.kind import Kind
from arcsm.columns.sample import Sample
from arcsm.data.table import Table
from arcsm.errors import InputError

# In so many rows at least two columns must both be known to say that one follows from the other.
_LEAST_COMMON = 10


def find_missing(table: Table) -> np.ndarray:
    """Return where values are missing, bool of shape (rows, columns)."""
    missing = np.zeros((table.rows, len(table.names)), dtype=bool)
    for place, values in enumerate(table.columns.values()):
        if values.dtype == object:
            missing[:, place] = [value is None for value in values.tolist()]
        elif values.dtype == np.float64:
            missing[:, place] = np.isnan(values)
    return missing


def as_whole_numbers(table: Table) -> Table:
    """Return the table with whole numbers that NaN has made float64 as int64, 0 in the holes.

    Files and data frames have no other way to leave out a whole number; `find_missing` comes first.
    """
    columns = {}
    for name, values in table.columns.items():
        if values.dtype == np.float64:
            holes = np.isnan(values)
            known = values[~holes]
            whole = holes.any() and len(known) and bool((known == np.rint(known)).all())
            if whole and np.abs(known).max() < 2**53:
                values = np.where(holes, 0.0, values).astype(np.int64)
        columns[name] = values
    return Table(columns)


def learn_incomplete(
    table: Table,
    missing: np.ndarray | None = None,
    *,
    kinds: Mapping[str, str | Mapping[str, Any]] | None = None,
) -> Columns:
    """Choose and fit the kind of every column, as `Columns.learn` does, from what is there.

    `missing` is by default what `find_missing` finds. A column with one value is constant; one
    without any is refused.

    >>> from arcsm.data.table import as_table
    >>> table = as_table({"age": [41.5, None, 35.2, 29.1], "city": ["Bern", "Basel", None, "Bern"]})
    >>> [column["kind"] for column in learn_incomplete(table).describe()]
    ['quantised', 'category']
    """
    missing = find_missing(table) if missing is None else missing
    if not missing.any():
        return Columns.learn(table, kinds=kinds)
    if table.rows < 2:
        raise InputError(f"expected a table of at least 2 rows, got {table.rows}; add some")
    unknown = [name for name in kinds or {} if name not in table.columns]
    if unknown:
        raise InputError(f"expected kinds for columns among {list(table.names)}, got {unknown}")
    learned: dict[str, Kind] = {}
    for name, holes in zip(table.names, missing.T, strict=True):
        known = table[name][~holes]
        if not len(known):
            raise InputError(
                f"expected a value in column {name!r}, got none in {table.rows} rows; leave it out"
            )
        wished = {name: kinds[name]} if kinds and name in kinds else None
        if len(known) == 1:
            known = np.repeat(known, 2)  # a constant takes no more than one value
        learned[name] = Columns.learn(Table({name: known}), kinds=wished).kind(name)
    for place, name in enumerate(table.names):
        if not kinds or name not in kinds:
            copy = _find_copy(table, missing, learned, place)
            learned[name] = learned[name] if copy is None else copy
    return Columns(learned, {name: type_of(values) for name, values in table.columns.items()})


@dataclass(frozen=True, eq=False)
class Incomplete:
    """Rows with holes as a model sees them.

    table: the rows as they came, with what follows from other columns filled in.
    missing: (rows, columns), the holes of the rows as they came.
    open: (rows, columns), those holes of which nothing is known for certain.
    encoded: the scalars; where they are not observed, those of something possible.
    observed: (rows, scalars), which scalars are known.
    """

    table: Table
    missing: np.ndarray
    open: np.ndarray
    encoded: Encoded
    observed: np.ndarray

    @classmethod
    def of(cls, columns: Columns, table: Table, missing: np.ndarray | None = None) -> "Incomplete":
        """Encode rows with holes.

        A value that a category never had says nothing of the others, and numbers beyond the bounds
        of their column say as much as the nearest ones inside.
        """
        missing = find_missing(table) if missing is None else missing
        types = {column["name"]: column["type"] for column in columns.config["columns"]}
        likely = columns.decode(np.zeros((1, columns.scalars)))
        values = dict(table.columns)
        for name, holes in zip(table.names, missing.T, strict=True):
            if types.get(name) == "text" and holes.all():
                values[name] = np.full(table.rows, None, dtype=object)  # it came as numbers
        whole = {
            name: _put(cells, holes, likely[name][0]) if name in types else cells
            for (name, cells), holes in zip(values.items(), missing.T, strict=True)
        }
        check_same_columns(Table(whole), types)
        known, unsure = ~missing, missing.copy()
        for name, copy in _copies(columns):
            here, source = columns.names.index(name), columns.names.index(copy.of)
            follows = missing[:, source] & ~missing[:, here]
            if follows.any():
                back = _alike(copy.source(values[name][follows]), values[copy.of])
                for cells in (values, whole):
                    cells[copy.of] = _put(cells[copy.of], follows, back)
                known[:, source] |= follows
                unsure[:, source] &= ~follows
        observed = np.empty((table.rows, columns.scalars), dtype=bool)
        for place, name in enumerate(columns.names):
            kind, own = columns.kind(name), columns.scalars_of(name)
            if isinstance(kind, Category | Ordinal):
                known[:, place] &= kind.knows(whole[name])
                whole[name] = _put(whole[name], ~known[:, place], likely[name][0])
            observed[:, own.start : own.stop] = known[:, [place]]
        return cls(Table(values), missing, unsure, columns.encode(Table(whole)), observed)

    def filled(self, columns: Columns, found: Mapping[str, np.ndarray]) -> Table:
        """Return the rows with a value `found` for each of the open holes of a column.

        A constant is what it always was, and what follows from another column does so from what
        that one has now.
        """
        values = dict(self.table.columns)
        for name, holes in zip(columns.names, self.open.T, strict=True):
            kind = columns.kind(name)
            if isinstance(kind, Constant):
                values[name] = _put(values[name], holes, kind.value)
            elif name in found:
                values[name] = _put(values[name], holes, found[name])
        for name, copy in _copies(columns):
            holes = self.missing[:, columns.names.index(name)]
            follows = copy.of_other(values[copy.of][holes])
            values[name] = _put(values[name], holes, _alike(follows, self.table[name]))
        return Table(values)


def encode_incomplete_pieces(
    columns: Columns, table: Table, missing: np.ndarray, rows: int
) -> Iterator[tuple[slice, Incomplete]]:
    """Encode so many rows at a time; yield where they stand, and what they are."""
    for start in range(0, table.rows, rows):
        piece = slice(start, min(start + rows, table.rows))
        yield piece, Incomplete.of(columns, table.take(piece), missing[piece])


def _copies(columns: Columns) -> list[tuple[str, Duplicate]]:
    """Return the columns that follow from others."""
    kinds = ((name, columns.kind(name)) for name in columns.names)
    return [(name, kind) for name, kind in kinds if isinstance(kind, Duplicate)]


def _find_copy(
    table: Table, missing: np.ndarray, learned: Mapping[str, Kind], place: int
) -> Duplicate | None:
    """Return how a column follows from an earlier one, in all rows where both are known."""
    name = table.names[place]
    kind, values = learned[name], table[name]
    if isinstance(kind, Constant):
        return None
    for earlier, of in enumerate(table.names[:place]):
        other = table[of]
        if isinstance(learned[of], Constant | Duplicate):
            continue
        both = ~(missing[:, place] | missing[:, earlier])
        if both.sum() < _LEAST_COMMON or (other.dtype == object) != (values.dtype == object):
            continue
        own = values[both]
        if values.dtype == object:
            _, counts = np.unique(own.astype(str), return_counts=True)
            found = Duplicate(f"equal to column {of!r}", of)
            if is_evident(counts) and not found.differs(other[both], own).any():
                return found
            continue
        sample = Sample.of(own, None)
        copy = find_duplicate(of, other[both], own, sample)
        continuous = isinstance(kind, Real | Bounded) and sample.distinct >= 3
        if copy is not None and (continuous or is_evident(sample.counts)):
            return copy
    return None


def _alike(values: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Return values that follow from others, whole where those of their column are."""
    if like.dtype != np.int64 or values.dtype != np.float64:
        return values
    with np.errstate(invalid="ignore"):  # of numbers beyond 64 bits
        return np.rint(values).astype(np.int64)


def _put(values: np.ndarray, where: np.ndarray, instead: Any) -> np.ndarray:
    """Return the values, in some places others: one for all of these, or one for each."""
    if not where.any():
        return values
    changed = values.copy()
    if values.dtype.kind in "ib" and np.asarray(instead).dtype.kind == "f":
        changed = values.astype(np.float64)  # a mean of whole numbers need not be one
    changed[where] = instead
    return changed
