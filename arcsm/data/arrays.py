"""Arrays as they come in: checked once, at the door."""

import warnings
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from arcsm.errors import InputError

_ACCEPTED = "float32 or float64"


def as_rows(
    x: Any, *, dims: int | None = None, name: str = "x", dtype: torch.dtype | None = None
) -> Float[Tensor, "rows dims"]:
    """Return `x`, an array or a tensor of rows, as a tensor; refuse what has no density.

    Accepted are finite two-dimensional arrays of float32 or float64 with at least one row and, if
    `dims` is given, that many columns. A tensor keeps its device. `dtype` casts the result.
    """
    if isinstance(x, np.ndarray):
        if x.dtype not in (np.float32, np.float64):
            raise InputError(
                f"expected {name} of dtype {_ACCEPTED}, got {x.dtype};{_remedy(str(x.dtype), name)}"
            )
        # Strides that are negative or split a number have no tensor; a copy is the only way to one.
        if any(stride < 0 or stride % x.itemsize for stride in x.strides):
            x = x.copy()
        with warnings.catch_warnings():  # torch warns of arrays that must not be written to
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            x = torch.from_numpy(x)
    if not isinstance(x, Tensor):
        raise InputError(
            f"expected {name} as a numpy array or a torch tensor, got {type(x).__name__};"
            " convert it with numpy.asarray"
        )
    if x.dtype not in (torch.float32, torch.float64):
        got = str(x.dtype).removeprefix("torch.")
        raise InputError(f"expected {name} of dtype {_ACCEPTED}, got {got};{_remedy(got, name)}")
    if x.ndim != 2:
        raise InputError(
            f"expected {name} of shape (rows, columns), got shape {tuple(x.shape)}; reshape it"
        )
    if x.shape[0] == 0 or x.shape[1] == 0:
        raise InputError(f"expected {name} with rows and columns, got shape {tuple(x.shape)}")
    if dims is not None and x.shape[1] != dims:
        raise InputError(
            f"expected {name} with {dims} columns, got {x.shape[1]};"
            " pass the columns that the model was made for"
        )
    bad = ~x.isfinite()
    if bool(bad.any()):
        row, column = bad.nonzero()[0].tolist()
        raise InputError(
            f"expected finite numbers in {name}, got {x[row, column].item()} in row {row}, column"
            f" {column} ({int(bad.sum())} such values); remove or fill them in"
        )
    return x if dtype is None else x.to(dtype)


def as_training_rows(
    x: Any, *, dims: int | None = None, name: str = "x", may_be_constant: bool = False
) -> Tensor:
    """Return `x` as `as_rows` does, after what a density can be learned from was checked as well.

    Training reads single rows all the time: the array must be contiguous, so that a row is one
    piece of memory and a large table is not copied unasked. It must have two rows or more, and no
    column may be constant, unless `may_be_constant` says so: a constant has no density.
    """
    rows = as_rows(x, dims=dims, name=name)
    if isinstance(x, np.ndarray):  # of which `rows` may be a copy
        contiguous, strides = x.flags["C_CONTIGUOUS"], tuple(s // x.itemsize for s in x.strides)
    else:
        contiguous, strides = rows.is_contiguous(), rows.stride()
    if not contiguous:
        raise InputError(
            f"expected {name} in contiguous memory, row after row, got strides {strides} for"
            f" shape {tuple(rows.shape)}; pass numpy.ascontiguousarray(x) or x.contiguous()"
        )
    if len(rows) < 2:
        raise InputError(f"expected at least two rows in {name}, got one; a row has no spread")
    if may_be_constant:
        return rows
    constant = (rows == rows[0]).all(0).nonzero().flatten().tolist()
    if constant:
        raise InputError(
            f"expected columns of {name} that vary, got constant columns {constant};"
            " leave them out: a constant has no density"
        )
    return rows


def _remedy(dtype: str, name: str) -> str:
    if "int" in dtype or dtype == "bool":
        return (
            " a density is over real numbers: add uniform noise of one unit to whole numbers,"
            " then pass them as float32"
        )
    if dtype in ("float16", "bfloat16"):
        return f" cast it with {name}.astype('float32') or {name}.float()"
    return " convert it to numbers of type float32"
