"""Values that a model of a table has no place for: new categories, broken constants and copies.

A density gives rows with such values a probability of 0, or refuses them. A detector should say how
unusual a row is even so: what has no place is counted apart, and something known stands in for it,
so that the other columns can be judged.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from arcsm.columns import Columns
from arcsm.columns.category import Category
from arcsm.columns.checks import check_same_columns
from arcsm.columns.discrete import Ordinal
from arcsm.columns.encoded import Encoded
from arcsm.columns.fixed import Constant, Duplicate
from arcsm.data.table import Table
from arcsm.tabular.given import with_copies


@dataclass(frozen=True)
class Familiar:
    """A table without values that have no place, its scalars, and where there were such values.

    `novel` is bool of shape (rows, columns).
    """

    table: Table
    encoded: Encoded
    novel: np.ndarray


def make_familiar(columns: Columns, table: Table) -> Familiar:
    """Let values that have no place be stood in for by others, and say which ones these are.

    Of a category it is the most frequent value, of ordered levels the first one, of a constant and
    of a copy what they would have been, of numbers beyond given bounds the nearest ones inside.
    """
    config = columns.config["columns"]
    check_same_columns(table, {column["name"]: column["type"] for column in config})
    known, novel = dict(table.columns), np.zeros((table.rows, len(config)), dtype=bool)
    for place, column in enumerate(config):
        name, reason, parameters = column["name"], column["reason"], column["parameters"]
        if column["kind"] == Constant.kind:
            constant = Constant.from_parameters(reason, parameters)
            novel[:, place] = constant.encode(name, known[name])[1]
            known[name] = _put(known[name], novel[:, place], constant.value)
        elif column["kind"] == Duplicate.kind:
            copy = Duplicate.from_parameters(reason, parameters)
            novel[:, place] = copy.differs(known[copy.of], known[name])
            known[name] = _put(known[name], novel[:, place], copy.of_other(known[copy.of]))
        elif column["kind"] in (Category.kind, Ordinal.kind):
            options = _options(column)
            novel[:, place] = ~_is_among(known[name], options)
            known[name] = _put(known[name], novel[:, place], options[0])
    familiar = Table(known)
    encoded = columns.encode(familiar)
    beyond = np.flatnonzero(encoded.impossible)
    if len(beyond):
        novel[beyond] |= _beyond_bounds(columns, familiar.take(beyond))
        inside = columns.decode(encoded.point[beyond])
        for name in columns.names:
            values = familiar.columns[name].astype(inside.columns[name].dtype)
            values[beyond] = inside.columns[name]
            known[name] = values
        familiar = Table(known)
    return Familiar(familiar, encoded, novel)


def frequent_values(columns: Columns) -> dict[int, np.ndarray]:
    """Return the known values of categories and ordered levels, by the place of the column."""
    found = {}
    for place, column in enumerate(columns.config["columns"]):
        if column["kind"] in (Category.kind, Ordinal.kind):
            options = _options(column)
            text = isinstance(options[0], str)
            found[place] = np.array(options, dtype=object if text else np.float64)
    return found


def chance_of_new(columns: Columns, table: Table) -> np.ndarray:
    """Return for each column the chance that the next row has a value which no row has (columns,).

    It is the estimate of Good and Turing, the share of rows whose value no other row has; with one
    such row more, so that it is not 0. Numbers have a place, all but those beyond given bounds.
    """
    singles = []
    for column in columns.config["columns"]:
        of_few = column["kind"] in (Category.kind, Ordinal.kind)
        counts = Counter(table.columns[column["name"]].tolist()).values() if of_few else ()
        singles.append(sum(count == 1 for count in counts))
    return (np.array(singles) + 1) / (table.rows + 1)


def _options(column: Mapping[str, Any]) -> list[Any]:
    known: list[Any] = column["parameters"][
        "values" if column["kind"] == Category.kind else "levels"
    ]
    return known


def _put(values: np.ndarray, where: np.ndarray, instead: Any) -> np.ndarray:
    """Return the values, in some places others: one for all, or an array of as many."""
    if not where.any():
        return values
    if values.dtype == object:
        changed = values.copy()
        changed[where] = instead[where] if isinstance(instead, np.ndarray) else instead
        return changed
    return np.where(where, instead, values)


def _is_among(values: np.ndarray, options: list[Any]) -> np.ndarray:
    if isinstance(options[0], str):
        known = set(options)
        return np.fromiter((v in known for v in values.tolist()), dtype=bool, count=len(values))
    return np.isin(values.astype(np.float64), np.array(options, dtype=np.float64))


def _beyond_bounds(columns: Columns, table: Table) -> np.ndarray:
    """Return which numbers lie beyond the bounds of their columns (rows, columns)."""
    found = np.zeros((table.rows, len(columns.names)), dtype=bool)
    first = np.zeros(table.rows, dtype=np.int64)
    likely = columns.decode(np.zeros((1, columns.scalars))).take(first)
    for place, name in enumerate(columns.names):
        if columns.scalars_of(name):
            # All other columns as the middle of the data has them, so that this one decides.
            alone = Table({**likely.columns, name: table.columns[name]})
            found[:, place] = columns.encode(with_copies(columns, alone)).impossible
    return found
