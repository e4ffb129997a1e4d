"""Rows with holes as they come to an estimator, and as they go: of the type that they were."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data

from arcsm.columns.incomplete import as_whole_numbers, find_missing
from arcsm.data.table import Table, as_table
from arcsm.errors import InputError


@dataclass(frozen=True, eq=False)
class Rows:
    """X as a table, where its holes are, and X itself, if it is a data frame or an array."""

    table: Table
    missing: np.ndarray
    frame: Any
    array: np.ndarray | None

    def with_values(self, filled: Table, places: Sequence[int]) -> Any:
        """Return the columns of X at `places` with their holes as they are in `filled`."""
        missing = self.missing[:, list(places)]
        if self.frame is not None:
            return _fill_frame(self.frame.iloc[:, list(places)], filled, missing)
        if self.array is None:
            return filled
        array = self.array[:, list(places)]
        return np.where(missing, filled.to_numpy(), array).astype(array.dtype, copy=False)


def read_rows(estimator: Any, X: Any, names: Sequence[str] | None) -> Rows:
    """Return X, checked by scikit-learn's rules and by ours.

    `names` are those of the columns in `fit`, or None while it is being fitted.
    """
    least = 2 if names is None else 1
    if not isinstance(X, Table) and not is_pandas(X):
        array = validate_data(
            estimator,
            X,
            reset=names is None,
            dtype="numeric",
            ensure_all_finite="allow-nan",
            ensure_min_samples=least,
        )
        table = as_table(array, names=None if names is None else list(names))
        return Rows(table, find_missing(table), None, array)
    table = as_table(X)
    if not isinstance(X, Table):
        validate_data(estimator, X, reset=names is None, skip_check_array=True)
        if names is not None and not hasattr(estimator, "feature_names_in_"):
            # Fitted without names: by position, of which scikit-learn has warned.
            table = Table(dict(zip(names, table.columns.values(), strict=True)))
    elif names is None:
        estimator.n_features_in_ = len(table.names)
        estimator.feature_names_in_ = np.array(table.names, dtype=object)
    else:
        table = table.select(list(names))
    if table.rows < least:
        raise InputError(f"expected at least {least} rows, got a table of {table.rows} sample(s)")
    frame = None if isinstance(X, Table) else X
    return Rows(as_whole_numbers(table), find_missing(table), frame, None)


def is_pandas(X: Any) -> bool:
    """Return whether X is a data frame of pandas."""
    pandas = sys.modules.get("pandas")  # an X of pandas exists only where pandas is loaded
    return pandas is not None and isinstance(X, pandas.DataFrame)


def frame_of(table: Table, like: Any) -> Any:
    """Return a table as a data frame with the index of another one."""
    frame = table.to_pandas()
    frame.index = like.index
    return frame


def _fill_frame(frame: Any, filled: Table, missing: np.ndarray) -> Any:
    """Return a data frame with the values of a table in its holes, column by column."""
    out = frame.copy()
    for place, values in enumerate(filled.columns.values()):
        if missing[:, place].any():
            column = _fill_column(frame.iloc[:, place], values, missing[:, place])
            out.isetitem(place, column)
    return out


def _fill_column(series: Any, values: np.ndarray, holes: np.ndarray) -> Any:
    import pandas

    dtype, found = series.dtype, values[holes]
    if isinstance(dtype, pandas.CategoricalDtype):
        # Labels went into the model as text.
        place = {str(label): position for position, label in enumerate(dtype.categories)}
        codes = series.cat.codes.to_numpy().astype(np.int64)
        codes[holes] = [place.get(str(value), -1) for value in found.tolist()]
        return pandas.Series(pandas.Categorical.from_codes(codes, dtype=dtype), index=series.index)
    if pandas.api.types.is_bool_dtype(dtype):
        new: list[Any] = [bool(value) for value in found.tolist()]
    elif pandas.api.types.is_integer_dtype(dtype):
        new = [round(value) for value in found.tolist()]
    elif dtype.kind == "O" and isinstance(dtype, np.dtype):
        new = _as_others(series[~holes], found)
    else:
        new = found.tolist()
    if isinstance(dtype, np.dtype) and dtype.kind == "O":
        column = np.array(series, dtype=object)
        for position, value in zip(np.flatnonzero(holes).tolist(), new, strict=True):
            column[position] = value
        return pandas.Series(column, index=series.index, dtype=object)
    column = series.copy()
    column.iloc[np.flatnonzero(holes)] = pandas.array(new, dtype=dtype)
    return column


def _as_others(known: Any, found: np.ndarray) -> list[Any]:
    """Return values as the others of a column of objects are: truth values, whole numbers, …"""
    kinds = {type(value) for value in known.tolist()}
    if kinds and kinds <= {bool, np.bool_}:
        return [bool(value) for value in found.tolist()]
    if kinds and all(issubclass(kind, int) for kind in kinds):
        return [round(value) for value in found.tolist()]
    return found.tolist()


def of_reach(reach: np.ndarray | None) -> Any:
    """Return the ends of scalars as JSON has them, None for those that are infinite."""
    if reach is None:
        return None
    return [[end if np.isfinite(end) else None for end in ends] for ends in reach.tolist()]


def as_reach(ends: Any) -> np.ndarray | None:
    """Return what `of_reach` was made from."""
    if ends is None:
        return None
    free = (-np.inf, np.inf)
    return np.array([[f if e is None else e for e, f in zip(p, free, strict=True)] for p in ends])
