"""Arrays at the door: what has a density comes in, the rest is refused with a reason."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from arcsm.data import as_rows, as_training_rows
from arcsm.errors import ArcsmError, InputError

GOOD = np.random.default_rng(0).normal(size=(6, 3))


def with_value(value: float, dtype: str = "float64") -> np.ndarray:
    x = GOOD.astype(dtype)
    x[4, 1] = value
    return x


def constant(*columns: int) -> np.ndarray:
    x = GOOD.copy()
    x[:, columns] = 0.1
    return x


# What is wrong, and what the message must say was expected and came.
BAD_ROWS: dict[str, tuple[Any, str, str]] = {
    "NaN": (with_value(math.nan), "finite numbers in x", "got nan in row 4, column 1"),
    "infinity": (with_value(math.inf), "finite numbers in x", "got inf in row 4, column 1"),
    "minus infinity": (with_value(-math.inf, "float32"), "finite", "got -inf in row 4"),
    "NaN in a tensor": (torch.tensor(with_value(math.nan)), "finite", "got nan in row 4"),
    "no rows": (GOOD[:0], "rows and columns", r"got shape \(0, 3\)"),
    "no columns": (GOOD[:, :0], "rows and columns", r"got shape \(6, 0\)"),
    "one dimension": (GOOD[0], r"shape \(rows, columns\)", r"got shape \(3,\)"),
    "three dimensions": (GOOD[None], r"shape \(rows, columns\)", r"got shape \(1, 6, 3\)"),
    "a number": (np.array(1.0), r"\(rows, columns\)", r"got shape \(\)"),
    "whole numbers": (GOOD.astype("int64"), "dtype float32 or float64", "got int64"),
    "bytes": (GOOD.astype("uint8"), "dtype float32 or float64", "got uint8; .*uniform noise"),
    "truth values": (GOOD > 0, "dtype float32 or float64", "got bool"),
    "objects": (GOOD.astype(object), "dtype float32 or float64", "got object"),
    "strings": (GOOD.astype(str), "dtype float32 or float64", "got <U"),
    "complex numbers": (GOOD + 1j, "dtype float32 or float64", "got complex128"),
    "half precision": (GOOD.astype("float16"), "dtype float32 or float64", "got float16; cast"),
    "foreign bytes": (GOOD.astype(">f8"), "dtype float32 or float64", "got >f8"),
    "whole tensor": (torch.ones(4, 3, dtype=torch.long), "float32 or float64", "got int64"),
    "half tensor": (torch.ones(4, 3).half(), "float32 or float64", "got float16; cast"),
    "bfloat tensor": (torch.ones(4, 3).bfloat16(), "float32 or float64", "got bfloat16; cast"),
    "lists": (GOOD.tolist(), "a numpy array or a torch tensor", "got list"),
    "nothing": (None, "a numpy array or a torch tensor", "got NoneType"),
}
BAD_TRAINING_ROWS: dict[str, tuple[Any, str, str]] = {
    "one row": (GOOD[:1], "at least two rows in x", "got one"),
    "one constant column": (constant(1), "columns of x that vary", r"constant columns \[1\]"),
    "constant columns": (constant(0, 2), "columns of x that vary", r"constant columns \[0, 2\]"),
    "constant tensor": (torch.ones(5, 2), "columns of x that vary", r"constant columns \[0, 1\]"),
    "Fortran order": (np.asfortranarray(GOOD), "contiguous memory", r"got strides \(1, 6\)"),
    "every second column": (GOOD[:, ::2], "contiguous memory", r"got strides \(3, 2\)"),
    "every second row": (GOOD[::2], "contiguous memory", r"got strides \(6, 1\)"),
    "reversed rows": (GOOD[::-1], "contiguous memory", r"got strides \(-3, 1\)"),
    "transposed tensor": (torch.tensor(GOOD).T, "contiguous memory", r"got strides \(1, 3\)"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
@pytest.mark.parametrize("check", [as_rows, as_training_rows])
def test_what_has_no_density_is_refused(check: Any, name: str) -> None:
    x, expected, got = BAD_ROWS[name]
    with pytest.raises(InputError, match=f"expected .*{expected}.*, {got}"):
        check(x)


@pytest.mark.parametrize("name", BAD_TRAINING_ROWS)
def test_what_cannot_be_learned_from_is_refused(name: str) -> None:
    x, expected, got = BAD_TRAINING_ROWS[name]
    with pytest.raises(
        InputError, match=f"expected .*{expected}.*, got .*{got.removeprefix('got ')}"
    ):
        as_training_rows(x)
    assert as_rows(x).shape == tuple(x.shape)  # to be evaluated it is good enough


@pytest.mark.parametrize("check", [as_rows, as_training_rows])
def test_number_of_columns(check: Any) -> None:
    assert check(GOOD, dims=3).shape == (6, 3)
    with pytest.raises(InputError, match="expected x with 4 columns, got 3"):
        check(GOOD, dims=4)


def test_messages_name_the_argument_and_are_value_errors() -> None:
    with pytest.raises(ValueError, match="expected held-out of dtype") as caught:
        as_rows(GOOD.astype(int), name="held-out")
    assert isinstance(caught.value, ArcsmError)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_good_rows_come_in_unchanged(dtype: str) -> None:
    x = GOOD.astype(dtype)
    for given in (x, torch.from_numpy(x)):
        for check in (as_rows, as_training_rows):
            rows = check(given)
            assert rows.dtype == getattr(torch, dtype)
            np.testing.assert_array_equal(rows.numpy(), x)
            assert rows.data_ptr() == x.ctypes.data  # not copied


def test_dtype_casts() -> None:
    assert as_rows(GOOD, dtype=torch.float32).dtype == torch.float32
    assert as_rows(GOOD.astype("float32"), dtype=torch.float64).dtype == torch.float64


def test_awkward_memory_is_read_rightly() -> None:
    record = np.zeros(5, dtype=[("flag", "u1"), ("value", "f8")])
    record["value"] = np.arange(5.0)
    assert record["value"].strides == (9,)
    for x in (GOOD[::-1], GOOD[:, ::-1], GOOD[::2, 1:], GOOD.T, record["value"][:, None]):
        np.testing.assert_array_equal(as_rows(x).numpy(), x)


def test_read_only_arrays_pass_without_a_warning() -> None:
    x = GOOD.copy()
    x.flags.writeable = False
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # torch would else warn once in the life of a process
    try:
        rows = as_training_rows(x)
    finally:
        torch.set_warn_always(always)
    np.testing.assert_array_equal(rows.numpy(), x)


def test_gradients_pass_through() -> None:
    x = torch.randn(4, 2, requires_grad=True)
    as_rows(x, dtype=torch.float64).sum().backward()
    assert x.grad is not None and bool((x.grad == 1).all())


def test_almost_constant_columns_are_columns() -> None:
    x = constant(1)
    x[3, 1] = np.nextafter(0.1, 1)
    assert as_training_rows(x).shape == (6, 3)
