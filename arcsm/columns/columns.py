"""All columns of a table as the scalars of one chain."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from arcsm.columns.category import Category
from arcsm.columns.checks import check_complete, check_same_columns, check_weight, type_of
from arcsm.columns.choose import choose_bool, choose_numbers, choose_text, wish
from arcsm.columns.continuous import Bounded, Real
from arcsm.columns.covariate import Covariate
from arcsm.columns.discrete import Grid, Ordinal
from arcsm.columns.encoded import Encoded
from arcsm.columns.fixed import Constant, Duplicate, find_duplicate, is_evident
from arcsm.columns.kind import Kind
from arcsm.columns.sample import Sample
from arcsm.data.table import Table
from arcsm.errors import InputError

_FORMAT = 1
_KINDS: dict[str, type[Kind]] = {
    kind.kind: kind
    for kind in (Real, Bounded, Grid, Ordinal, Category, Constant, Duplicate, Covariate)
}


class Columns:
    """How each column of a table becomes scalars, learned from one table and used on others.

    >>> from arcsm.data.table import as_table
    >>> table = as_table({"age": [41, 29, 35, 29], "city": ["Bern", "Basel", "Bern", "Bern"]})
    >>> columns = Columns.learn(table)
    >>> columns.scalars, [row["kind"] for row in columns.describe()]
    (2, ['integer', 'category'])
    >>> columns.decode(columns.encode(table).point)["age"]
    array([41, 29, 35, 29])
    """

    def __init__(self, kinds: Mapping[str, Kind], types: Mapping[str, str]) -> None:
        self._kinds = dict(kinds)
        self._types = dict(types)
        self._ranges: dict[str, range] = {}
        first = 0
        for name, kind in self._kinds.items():
            self._ranges[name] = range(first, first + kind.scalars)
            first += kind.scalars
        self.names = tuple(self._kinds)
        self.scalars = first
        given = {name: k for name, k in self._kinds.items() if isinstance(k, Covariate)}
        self.covariates = tuple(given)
        self.condition_dims = sum(kind.width for kind in given.values())

    @classmethod
    def learn(
        cls,
        table: Table,
        *,
        kinds: Mapping[str, str | Mapping[str, Any]] | None = None,
        weight: np.ndarray | None = None,
        covariates: Sequence[str] = (),
    ) -> "Columns":
        """Choose and fit the kind of every column of a table of at least two rows.

        `kinds` overrides the choice by column: a name ("real", "linear" for real numbers whose
        heavy tails stay as they are, "bounded", "integer", "quantised", "ordinal", "category") or
        a dictionary with the name as "kind" and options: "lower" and
        "upper" for bounded and integer columns, "quantum" for integer ones, "levels" in order
        for ordinal ones. A column with one value is constant whatever is said of it. `weight`
        (rows,) counts in locations, scales and frequencies; which values exist is taken from
        all rows. `covariates` are columns that will be given: they have no scalars.
        """
        if not isinstance(table, Table):
            raise InputError(
                f"expected a Table, got {type(table).__name__};"
                " build one with arcsm.data.table.as_table"
            )
        if table.rows < 2:
            raise InputError(f"expected a table of at least 2 rows, got {table.rows}; add some")
        unknown = [name for name in kinds or {} if name not in table.columns]
        if unknown:
            raise InputError(f"expected kinds for columns among {list(table.names)}, got {unknown}")
        wishes = {name: wish(name, given) for name, given in (kinds or {}).items()}
        weight = check_weight(weight, table.rows)
        learned: dict[str, Kind] = {}
        # What is given comes first: others may follow from it, but it follows from none.
        for name in covariates:
            values = table[name]
            check_complete(name, values)
            kind = _learn(name, values, weight, wishes.get(name), {}, table)
            learned[name] = Covariate.learn(name, kind, values, weight, len(covariates))
        for name, values in table.columns.items():
            if name not in learned:
                check_complete(name, values)
                learned[name] = _learn(name, values, weight, wishes.get(name), learned, table)
        return cls(
            {name: learned[name] for name in table.names},
            {name: type_of(values) for name, values in table.columns.items()},
        )

    def scalars_of(self, name: str) -> range:
        """Return the scalars of a column: none for a constant or a duplicate."""
        if name not in self._ranges:
            raise InputError(f"expected a column among {list(self.names)}, got {name!r}")
        return self._ranges[name]

    def kind(self, name: str) -> Kind:
        """Return how a column is mapped."""
        self.scalars_of(name)  # which refuses a name that is none
        return self._kinds[name]

    def draw_covariates(self, rows: int, random: np.random.Generator) -> Table:
        """Return values of the covariates, each like those learned from, without relations."""
        kinds = {name: k for name, k in self._kinds.items() if isinstance(k, Covariate)}
        return Table(
            {name: _cast(k.draw(rows, random), self._types[name]) for name, k in kinds.items()}
        )

    @property
    def has_cells(self) -> bool:
        """Whether some value of the chain stands for more than one point."""
        return any(
            kind.scalars > 0
            and not isinstance(kind, Real)
            and not (isinstance(kind, Bounded) and kind.low_edge is None and kind.high_edge is None)
            for kind in self._kinds.values()
        )

    def describe(self) -> list[dict[str, Any]]:
        """Return for each column its name, kind, the reason in words, scalars and parameters."""
        return [
            {
                "name": name,
                "kind": kind.label,
                "reason": kind.reason,
                "scalars": kind.scalars,
                "parameters": kind.parameters(),
            }
            for name, kind in self._kinds.items()
        ]

    def encode(self, table: Table) -> Encoded:
        """Return the scalars of a table with the names, order and types of the one learned."""
        check_same_columns(table, self._types)
        encoded = Encoded.empty(table.rows, self.scalars, self.condition_dims)
        told = 0
        for name, kind in self._kinds.items():
            values = table.columns[name]
            scalars, impossible = kind.encode(name, values)
            if isinstance(kind, Covariate) and encoded.condition is not None:
                encoded.condition[:, told : told + kind.width] = kind.features(name, values)
                told += kind.width
            if isinstance(kind, Duplicate):
                impossible = kind.differs(table.columns[kind.of], values)
            for scalar, content in zip(self._ranges[name], scalars, strict=True):
                encoded.put(scalar, content)
            np.logical_or(encoded.impossible, impossible, out=encoded.impossible)
        return encoded

    def encode_pieces(self, table: Table, rows: int) -> Iterator[tuple[slice, Encoded]]:
        """Encode so many rows at a time; yield where they stand, and their scalars."""
        for start in range(0, table.rows, rows):
            piece = slice(start, min(start + rows, table.rows))
            yield piece, self.encode(table.take(piece))

    def snap(self, scalar: int, drawn: np.ndarray, earlier: np.ndarray) -> np.ndarray:
        """Return the points that drawn values (rows,) of a scalar stand for.

        `earlier` (rows, scalar) holds the points of all scalars before it.
        """
        if not 0 <= scalar < self.scalars:
            raise InputError(f"expected a scalar below {self.scalars}, got {scalar}")
        drawn = np.asarray(drawn, dtype=np.float64)
        for name, own in self._ranges.items():
            if scalar in own:
                before = np.asarray(earlier)[:, own.start : scalar]
                return self._kinds[name].snap(scalar - own.start, drawn, before)
        raise ValueError(f"scalar {scalar} belongs to no column")

    def decode(self, points: np.ndarray) -> Table:
        """Return the table of points (rows, scalars), with the names and types learned."""
        points = np.asarray(points, dtype=np.float64)
        if points.ndim != 2 or points.shape[1] != self.scalars:
            raise InputError(f"expected points of shape (rows, {self.scalars}), got {points.shape}")
        if not np.isfinite(points).all():
            row, scalar = np.argwhere(~np.isfinite(points))[0]
            raise InputError(f"expected finite points, got {points[row, scalar]} in row {row}")
        columns: dict[str, np.ndarray] = {}
        # Copies last: what they are made from may stand after them.
        for name, kind in sorted(self._kinds.items(), key=lambda k: isinstance(k[1], Duplicate)):
            if isinstance(kind, Duplicate):
                columns[name] = self.copy_of(name, columns[kind.of])
            else:
                own = self._ranges[name]
                columns[name] = self.decode_column(name, points[:, own.start : own.stop])
        return Table({name: columns[name] for name in self.names})

    def decode_column(self, name: str, points: np.ndarray) -> np.ndarray:
        """Return the values of one column, which is no copy, of points (rows, its scalars)."""
        return _cast(self._kinds[name].decode(points), self._types[name])

    def copy_of(self, name: str, other: np.ndarray) -> np.ndarray:
        """Return the values of a column that is a copy, from those that it is made from."""
        kind = self._kinds[name]
        assert isinstance(kind, Duplicate)
        return _cast(kind.of_other(other), self._types[name])

    @property
    def config(self) -> dict[str, Any]:
        """All there is to know, as JSON has it; from_config restores it exactly."""
        columns = [
            {
                "name": name,
                "type": self._types[name],
                "kind": kind.kind,
                "reason": kind.reason,
                "parameters": kind.parameters(),
            }
            for name, kind in self._kinds.items()
        ]
        return {"format": _FORMAT, "columns": columns}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Columns":
        """Return the columns that have this configuration."""
        try:
            if config["format"] != _FORMAT:
                raise InputError(
                    f"expected columns in format {_FORMAT}, got {config['format']!r};"
                    " use the version of arcsm that wrote them"
                )
            kinds = {
                column["name"]: _KINDS[column["kind"]].from_parameters(
                    column["reason"], column["parameters"]
                )
                for column in config["columns"]
            }
            types = {column["name"]: column["type"] for column in config["columns"]}
        except (KeyError, TypeError) as error:
            raise InputError(
                f"expected a configuration made by Columns.config, got one without {error}"
            ) from error
        return cls(kinds, types)


def _learn(
    name: str,
    values: np.ndarray,
    weight: np.ndarray | None,
    wished: tuple[str, dict[str, Any]] | None,
    earlier: Mapping[str, Kind],
    table: Table,
) -> Kind:
    """Choose and fit the kind of one column; one that the user chose is no duplicate."""
    text = values.dtype == object
    sample = None if text else Sample.of(values, weight)
    if sample is None:
        kind = choose_text(name, values, weight, wished)
    elif values.dtype == bool:
        kind = choose_bool(name, sample, wished)
    else:
        kind = choose_numbers(name, values, sample, wished)
    if isinstance(kind, Constant) or wished is not None:
        return kind
    for of, other in earlier.items():
        others = table.columns[of]
        other = other.of if isinstance(other, Covariate) else other
        if isinstance(other, Constant | Duplicate) or (others.dtype == object) != text:
            continue
        if sample is None:
            if np.array_equal(others, values):
                counts = np.array(list(Counter(values.tolist()).values()))
                return Duplicate(f"equal to column {of!r}", of) if is_evident(counts) else kind
            continue
        found = find_duplicate(of, others, values, sample)
        # Continuous values agree by accident in no two rows; of discrete ones many must agree.
        continuous = isinstance(kind, Real | Bounded) and sample.distinct >= 3
        if found is not None and (continuous or is_evident(sample.counts)):
            return found
    return kind


def _cast(values: np.ndarray, kind: str) -> np.ndarray:
    if kind == "text":
        return values.astype(object)
    if kind == "int64" and values.dtype.kind == "f":
        # 2^63 itself is a float64 but not an int64.
        return np.clip(np.rint(values), -(2.0**63), 2.0**63 - 1024).astype(np.int64)
    if kind == "bool" and values.dtype.kind == "f":
        return np.asarray(values > 0.5)
    return values.astype(kind)
