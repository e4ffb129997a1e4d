"""Tables checked before they are learned from or encoded."""

from collections.abc import Mapping

import numpy as np

from arcsm.data.fields import FALSE, TRUE, is_number
from arcsm.data.table import Table
from arcsm.errors import InputError

_TYPES = {"float64": "numbers", "int64": "whole numbers", "bool": "truth values", "text": "text"}


def type_of(values: np.ndarray) -> str:
    """Return float64, int64, bool or text."""
    return "text" if values.dtype == object else values.dtype.name


def such_rows(which: np.ndarray) -> str:
    """Return how many rows of a mask there are, in words."""
    count = int(which.sum())
    return f"{count} such row{'' if count == 1 else 's'}"


def check_complete(name: str, values: np.ndarray) -> None:
    """Refuse missing and infinite values."""
    if values.dtype == object:
        bad = np.fromiter((not isinstance(v, str) for v in values.tolist()), bool, len(values))
    elif values.dtype == np.float64:
        bad = ~np.isfinite(values)
    else:
        return
    if not bad.any():
        return
    row = int(np.flatnonzero(bad)[0])
    value = values[row]
    if isinstance(value, float):
        got = "a missing value" if np.isnan(value) else str(value)
    else:
        got = "a missing value" if value is None else repr(value)
    what = "texts" if values.dtype == object else "finite numbers"
    advice = " or replace them"
    if got == "a missing value":
        advice = ", or fill them in with ARCSMImputer (arcsm impute)"
    raise InputError(
        f"expected {what} only in column {name!r}, got {got} in row {row}"
        f" ({such_rows(bad)}); leave these rows out{advice}"
    )


def check_weight(weight: np.ndarray | None, rows: int) -> np.ndarray | None:
    """Return the weights as float64, of which some must be positive and none negative."""
    if weight is None:
        return None
    try:
        weight = np.asarray(weight, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"expected weights as numbers, got {weight!r}") from error
    if weight.shape != (rows,):
        raise InputError(f"expected a weight for each of {rows} rows, got shape {weight.shape}")
    bad = np.flatnonzero(~(np.isfinite(weight) & (weight >= 0)))
    if len(bad):
        raise InputError(
            f"expected finite weights of at least 0, got {weight[bad[0]]} in row {bad[0]}"
        )
    if not weight.any():
        raise InputError("expected a positive weight among the rows, got 0 in all of them")
    return weight


def check_same_columns(table: Table, types: Mapping[str, str]) -> None:
    """Refuse a table whose names, order or types are not those learned."""
    if not isinstance(table, Table):
        raise InputError(
            f"expected a Table, got {type(table).__name__};"
            " build one with arcsm.data.table.as_table"
        )
    learned = list(types)
    names = list(table.names)
    if set(names) != set(learned):
        missing = [name for name in learned if name not in table.columns]
        unexpected = [name for name in names if name not in types]
        got = [
            f"{what} {columns}"
            for what, columns in (("missing:", missing), ("unexpected:", unexpected))
            if columns
        ]
        raise InputError(
            f"expected the columns {learned}, got others ({'; '.join(got)});"
            " select the same columns as in training"
        )
    if names != learned:
        raise InputError(
            f"expected the columns in the order {learned}, got {names};"
            " reorder with table.select([...])"
        )
    for name, kind in types.items():
        values = table.columns[name]
        if (kind == "text") != (values.dtype == object):
            row = _first_that_is_text(values, kind) if kind != "text" else 0
            value = values[row] if len(values) else None
            shown = value if isinstance(value, str) or value is None else value.item()
            raise InputError(
                f"expected {_TYPES[kind]} in column {name!r} as learned, got"
                f" {_TYPES[type_of(values)]} (row {row}: {shown!r}); convert the column"
            )
        check_complete(name, values)


def _first_that_is_text(texts: np.ndarray, kind: str) -> int:
    """Return the first row whose text is no truth value, or no number, else 0.

    A missing value has made no column one of text.
    """
    fits = {*TRUE, *FALSE}.__contains__ if kind == "bool" else is_number
    for row, text in enumerate(texts.tolist()):
        if isinstance(text, str) and not fits(text):
            return row
    return 0
