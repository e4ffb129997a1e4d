"""One column of a table: values of any origin as float64, int64, bool or text."""

import math
import numbers
import sys
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import torch
from torch import Tensor

from arcsm.errors import InputError

_INT64 = np.iinfo(np.int64)


def as_column(values: Any, name: str) -> np.ndarray:
    """Return `values`, the column called `name`, in one of the types that a table holds."""
    if isinstance(values, Tensor):
        values = of_torch(values)
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(values, pandas.Series):
        return _of_pandas(values, name)
    if isinstance(values, np.ma.MaskedArray):
        mask, values = np.ma.getmaskarray(values), values.data
        if mask.any():
            values = values.astype(object)
            values[mask] = None
    elif hasattr(values, "__array__"):
        values = np.asarray(values)
    elif isinstance(values, Sequence) and not isinstance(values, str | bytes):
        # Not numpy.asarray, which would turn numbers beside text into text.
        items, values = values, np.empty(len(values), dtype=object)
        for position, item in enumerate(items):
            values[position] = item
    else:
        raise InputError(
            f"expected column {name!r} as an array or a list, got {type(values).__name__}"
        )
    if values.ndim != 1:
        raise InputError(
            f"expected column {name!r} with one dimension, got shape {values.shape}; flatten it"
        )
    kind = values.dtype.kind
    if kind == "O":
        return _of_objects(values, name)
    if kind == "b":
        return values
    if kind == "f":
        return values.astype(np.float64, copy=False)
    if kind in "iu":
        if kind == "u" and len(values) and int(values.max()) > _INT64.max:
            raise _too_large(name, int(np.argmax(values)), int(values.max()))
        return values.astype(np.int64, copy=False)
    if kind in "UT":
        text = values.astype(object)
        return text if kind == "U" else _of_objects(text, name)  # T has missing values
    remedy = {
        "M": "convert dates to numbers first, such as days since a start",
        "m": "convert durations to numbers first, such as seconds",
        "c": "pass the real and imaginary parts as two columns",
        "S": "decode the bytes to text first",
    }.get(kind, "convert it first")
    raise InputError(
        f"expected column {name!r} of real numbers, truth values or text, got {values.dtype};"
        f" {remedy}"
    )


def _of_objects(values: np.ndarray, name: str) -> np.ndarray:
    """Return a column of Python objects as numbers, truth values or text."""
    kinds = {kind: _kind_of(kind) for kind in set(map(type, values))}
    strange = [kind for kind, word in kinds.items() if word is None]
    if strange:
        row = next(row for row, value in enumerate(values) if type(value) in strange)
        raise InputError(
            f"expected numbers, truth values or text in column {name!r}, got"
            f" {type(values[row]).__name__} in row {row}; convert it first"
        )
    found = set(kinds.values())
    if "text" in found:
        return _of_text(values, kinds, name)
    missing = "missing" in found
    if "real" in found or missing or not found:
        floats = [math.nan if kinds[type(value)] == "missing" else float(value) for value in values]
        return np.array(floats, dtype=np.float64)
    if found == {"truth"}:
        return values.astype(bool)
    for row, value in enumerate(values):
        if not _INT64.min <= int(value) <= _INT64.max:
            raise _too_large(name, row, int(value))
    return values.astype(np.int64)


def _of_text(values: np.ndarray, kinds: dict[type, str | None], name: str) -> np.ndarray:
    text = np.empty(len(values), dtype=object)
    number: tuple[int, Any] | None = None
    first: tuple[int, Any] | None = None
    for row, value in enumerate(values):
        kind = kinds[type(value)]
        if kind == "text":
            text[row] = str(value)
            first = first or (row, value)
        elif kind != "missing" and value == value:  # NaN among text is a missing text
            number = number or (row, value)
        if first and number:
            offending, other = max(first, number, key=lambda pair: pair[0]), min(first, number)
            raise InputError(
                f"expected numbers or text in column {name!r}, got both: {offending[1]!r} in row"
                f" {offending[0]} after {other[1]!r} in row {other[0]}; convert one to the other"
            )
    return text


def _kind_of(kind: type) -> str | None:
    """Return what values of the type `kind` are in a table, or None where they have no place."""
    if kind is type(None) or (kind.__name__ == "NAType" and kind.__module__.startswith("pandas")):
        return "missing"
    if issubclass(kind, bool | np.bool_):
        return "truth"
    if issubclass(kind, numbers.Integral):
        return "whole"
    if issubclass(kind, numbers.Real | Decimal):
        return "real"
    return "text" if issubclass(kind, str) else None


def _of_pandas(series: Any, name: str) -> np.ndarray:
    """Return a pandas Series in one of the types that a table holds."""
    import pandas

    dtype, types = series.dtype, pandas.api.types
    if isinstance(dtype, pandas.CategoricalDtype):
        codes = series.cat.codes.to_numpy()
        labels = np.array([str(label) for label in dtype.categories] + [None], dtype=object)
        return labels[codes]  # the code of a missing value is -1, the last label
    if isinstance(dtype, np.dtype):
        return as_column(series.to_numpy(), name)
    if types.is_bool_dtype(dtype) or types.is_numeric_dtype(dtype):
        if series.isna().any():
            return series.to_numpy(dtype=np.float64, na_value=math.nan)
        if types.is_bool_dtype(dtype):
            return series.to_numpy(dtype=bool)
        exact = {"i": "int64", "u": "uint64"}.get(dtype.kind, "float64")
        return as_column(series.to_numpy(dtype=exact), name)
    if types.is_string_dtype(dtype):
        text = series.astype(object).to_numpy(copy=True)
        text[series.isna().to_numpy()] = None
        return text
    raise InputError(
        f"expected column {name!r} of real numbers, truth values or text, got {dtype};"
        " convert it to numbers first"
    )


def of_torch(x: Tensor) -> np.ndarray:
    """Return a dense tensor of any device as an array; floating-point numbers as float64."""
    if x.layout != torch.strided:
        raise InputError(f"expected a dense tensor, got layout {x.layout}; pass x.to_dense()")
    x = x.detach().cpu()
    if x.is_floating_point():
        x = x.double()  # numpy has no bfloat16
    return x.resolve_conj().resolve_neg().numpy()


def _too_large(name: str, row: int, value: int) -> InputError:
    return InputError(
        f"expected whole numbers within 64 bits in column {name!r}, got {value} in row {row};"
        " pass them as float64"
    )
