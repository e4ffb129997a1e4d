"""Rows with holes as they come to an estimator, and as they go: of the type that they were."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data

from arcsm.columns.incomplete import as_whole_numbers, find_missing
from arcsm.data.table import Table, as_table
from arcsm.errors import InputError

# Values of a column of objects, from those of a table.
_OBJECTS: dict[str, Callable[[Any], Any]] = {"bool": bool, "int": round, "float": float}


@dataclass(frozen=True, eq=False)
class Rows:
    """X as a table, where its holes are, and X itself, if it is a data frame or an array."""

    table: Table
    missing: np.ndarray
    frame: Any
    array: np.ndarray | None

    @property
    def objects(self) -> dict[str, str]:
        """What the columns of objects of a data frame hold, bool, int or float, but for text."""
        if self.frame is None:
            return {}
        columns = (self.frame.iloc[:, place] for place in range(len(self.table.names)))
        named = zip(self.table.names, columns, strict=True)
        found = {name: _what_objects(series) for name, series in named}
        return {name: kind for name, kind in found.items() if kind is not None}

    def with_nothing(self, name: str) -> np.ndarray:
        """Return a column whose holes are filled though nothing is known of it."""
        values = self.table[name].copy()
        holes = self.missing[:, self.table.names.index(name)]
        nothing: Any = "" if values.dtype == object else 0
        if holes.any() and self.frame is not None:
            dtype = self.frame.dtypes.iloc[self.table.names.index(name)]
            if hasattr(dtype, "categories"):
                if not len(dtype.categories):
                    raise InputError(
                        f"expected a category to fill the empty column {name!r} with, got none;"
                        " leave the column out"
                    )
                nothing = str(dtype.categories[0])
        values[holes] = nothing
        return values

    def with_values(self, filled: Table, places: Sequence[int], objects: Mapping[str, str]) -> Any:
        """Return the columns of X at `places` with their holes as they are in `filled`.

        In columns of objects they are what `objects` says, by name.
        """
        missing = self.missing[:, list(places)]
        if self.frame is not None:
            return _fill_frame(self.frame.iloc[:, list(places)], filled, missing, objects)
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
        if array.dtype == object and all(v.dtype != object for v in table.columns.values()):
            array = array.astype(np.float64)  # a list of numbers and None
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
        raise InputError(
            f"expected at least {least} rows, got a table of {table.rows} sample(s); add some"
        )
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


def _fill_frame(frame: Any, filled: Table, missing: np.ndarray, objects: Mapping[str, str]) -> Any:
    """Return a data frame with the values of a table in its holes, column by column."""
    out = frame.copy()
    for place, (name, values) in enumerate(filled.columns.items()):
        holes = missing[:, place]
        if holes.any():
            column = _fill_column(frame.iloc[:, place], values, holes, objects.get(name))
            out.isetitem(place, column)
    return out


def _fill_column(series: Any, values: np.ndarray, holes: np.ndarray, objects: str | None) -> Any:
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
    elif dtype.kind == "O" and isinstance(dtype, np.dtype) and objects is not None:
        new = [_OBJECTS[objects](value) for value in found.tolist()]
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


def _what_objects(series: Any) -> str | None:
    """Return what the values of a column of objects are, None for text, or of another column."""
    if not isinstance(series.dtype, np.dtype) or series.dtype.kind != "O":
        return None
    kinds = {type(value) for value in series.dropna().tolist()}
    if not kinds:
        return None
    if kinds <= {bool, np.bool_}:
        return "bool"
    if all(issubclass(kind, Integral) for kind in kinds):
        return "int"
    return "float" if all(issubclass(kind, Real) for kind in kinds) else None


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
