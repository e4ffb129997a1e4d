"""Tables in memory: what comes in, as what type, and what is refused."""

from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch

from arcsm.data import Table, as_table
from arcsm.errors import InputError

MATRIX = np.random.default_rng(0).normal(size=(5, 3))


def kinds(table: Table) -> list[str]:
    return [column.dtype.name for column in table.columns.values()]


def mixed() -> Table:
    return as_table({"a": [1, 2, 3], "b": [0.5, None, 2.5], "c": [True, False, True]})


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        ("float16", "float64"),
        ("float32", "float64"),
        ("float64", "float64"),
        (">f8", "float64"),
        ("longdouble", "float64"),
        ("int8", "int64"),
        ("uint8", "int64"),
        ("uint64", "int64"),
        (">i4", "int64"),
        ("bool", "bool"),
    ],
)
def test_arrays_of_numbers(dtype: str, kind: str) -> None:
    x = np.array([[0, 1], [1, 1], [1, 0]]).astype(dtype)
    table = as_table(x)
    assert table.names == ("x0", "x1") and table.rows == 3
    assert kinds(table) == [kind, kind]
    assert all(column.dtype.isnative for column in table.columns.values())
    np.testing.assert_array_equal(table.to_numpy(), x.astype(float))


@pytest.mark.parametrize("dtype", ["float64", "int64", "bool"])
def test_memory_is_shared_where_it_can_be(dtype: str) -> None:
    x = (MATRIX * 3).astype(dtype)
    assert all(np.shares_memory(column, x) for column in as_table(x).columns.values())
    column = np.arange(4.0)
    assert as_table({"a": column})["a"] is column
    tensor = torch.ones(3, 2, dtype=torch.float64)
    assert as_table(tensor)["x1"].ctypes.data == tensor.data_ptr() + 8
    table = mixed()
    assert as_table(table) is table


def test_tensors() -> None:
    x = torch.arange(6.0).reshape(3, 2)
    for given in (x, x.half(), x.bfloat16(), x.long(), x.clone().requires_grad_(), x.T.T):
        np.testing.assert_array_equal(as_table(given).to_numpy(), x.numpy())
    assert kinds(as_table(x > 2)) == ["bool", "bool"]
    assert kinds(as_table(x.to(torch.uint8))) == ["int64", "int64"]
    with pytest.raises(InputError, match="dense tensor"):
        as_table(x.to_sparse())


def test_masked_entries_are_missing() -> None:
    x = np.ma.array([[1, 2], [3, 4]], mask=[[False, True], [False, False]])
    table = as_table(x)
    assert kinds(table) == ["int64", "float64"]
    np.testing.assert_array_equal(table.to_numpy(), [[1, np.nan], [3, 4]])
    text = np.ma.array([["a"], ["b"]], mask=[[True], [False]])
    assert as_table(text)["x0"].tolist() == [None, "b"]


def test_object_arrays_are_split_by_column() -> None:
    x = np.array(
        [
            [1, 1.5, "a", True, None, np.int8(3), None],
            [2, None, None, False, None, 2.5, True],
            [2**62, Decimal("0.5"), float("nan"), np.True_, None, True, False],
        ],
        dtype=object,
    )
    table = as_table(x)
    assert kinds(table) == ["int64", "float64", "object", "bool", "float64", "float64", "float64"]
    assert table["x0"].tolist() == [1, 2, 2**62]
    np.testing.assert_array_equal(table["x1"], [1.5, np.nan, 0.5])
    assert table["x2"].tolist() == ["a", None, None]
    assert table["x3"].tolist() == [True, False, True]
    assert np.isnan(table["x4"]).all()
    assert table["x5"].tolist() == [3.0, 2.5, 1.0]
    np.testing.assert_array_equal(table["x6"], [np.nan, 1, 0])


def test_lists_of_rows_and_mappings() -> None:
    table = as_table([[1, "a"], (2, None)], names=["n", "t"])
    assert table.names == ("n", "t") and kinds(table) == ["int64", "object"]
    assert table["t"].tolist() == ["a", None]
    rows = [MATRIX[0], torch.from_numpy(MATRIX[1])]
    np.testing.assert_array_equal(as_table(rows).to_numpy(), MATRIX[:2])
    table = as_table({"n": np.arange(2), "t": np.array(["x", "y"]), 3: torch.ones(2)})
    assert table.names == ("n", "t", "3") and kinds(table) == ["int64", "object", "float64"]
    assert all(type(text) is str for text in table["t"])
    record = np.array([(1, 0.5), (2, 1.5)], dtype=[("a", "i4"), ("b", "f4")])
    assert kinds(as_table(record)) == ["int64", "float64"]
    np.testing.assert_array_equal(as_table(np.asmatrix(MATRIX)).to_numpy(), MATRIX)


def test_pandas_columns() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "int": [1, 2, 3],
            "nullable": pandas.array([1, None, 2**40], dtype="Int64"),
            "full": pandas.array([1, 2, 2**62 + 1], dtype="Int64"),
            "small": pandas.array([1, 2, 3], dtype="UInt8"),
            "real": pandas.array([0.5, None, 1.5], dtype="Float32"),
            "truth": pandas.array([True, None, False], dtype="boolean"),
            "truths": pandas.array([True, True, False], dtype="boolean"),
            "text": ["a", None, "c"],
            "string": pandas.array(["a", None, "c"], dtype="string"),
            "objects": pandas.Series(["a", float("nan"), "c"], dtype=object),
            "category": pandas.Categorical(["u", None, "v"]),
            "numbers": pandas.Categorical([7, 8, None]),
            "empty": pandas.array([None, None, None], dtype="string"),
            "unknown": pandas.Categorical([None, None, None], categories=["u"]),
            "sparse": pandas.arrays.SparseArray([0.0, 1.0, 0.0]),
            5: np.array([1, 2, 3], dtype="float32"),
        }
    )
    table = as_table(frame)
    expected: dict[str, tuple[str, list[Any]]] = {
        "int": ("int64", [1, 2, 3]),
        "nullable": ("float64", [1, np.nan, 2.0**40]),
        "full": ("int64", [1, 2, 2**62 + 1]),
        "small": ("int64", [1, 2, 3]),
        "real": ("float64", [0.5, np.nan, 1.5]),
        "truth": ("float64", [1, np.nan, 0]),
        "truths": ("bool", [True, True, False]),
        "text": ("object", ["a", None, "c"]),
        "string": ("object", ["a", None, "c"]),
        "objects": ("object", ["a", None, "c"]),
        "category": ("object", ["u", None, "v"]),
        "numbers": ("object", ["7", "8", None]),
        "empty": ("object", [None, None, None]),
        "unknown": ("object", [None, None, None]),
        "sparse": ("float64", [0, 1, 0]),
        "5": ("float64", [1, 2, 3]),
    }
    assert table.names == tuple(expected)
    for name, (kind, values) in expected.items():
        assert table[name].dtype.name == kind, name
        if kind == "object":
            assert table[name].tolist() == values, name
        else:
            np.testing.assert_array_equal(table[name], np.array(values, dtype=kind), err_msg=name)


def test_pandas_with_arrow_columns() -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame(
        {
            "n": pandas.array([1, 2], dtype="int32[pyarrow]"),
            "m": pandas.array([1, None], dtype="int32[pyarrow]"),
            "b": pandas.array([True, False], dtype="bool[pyarrow]"),
            "s": pandas.array(["a", None], dtype="string[pyarrow]"),
        }
    )
    table = as_table(frame)
    assert kinds(table) == ["int64", "float64", "bool", "object"]
    assert table["b"].tolist() == [True, False] and table["s"].tolist() == ["a", None]


def test_pandas_that_is_refused() -> None:
    pandas = pytest.importorskip("pandas")
    twice = pandas.DataFrame(np.ones((2, 2)), columns=["a", "a"])
    with pytest.raises(InputError, match=r"unique column names, got \['a'\]"):
        as_table(twice)
    with pytest.raises(InputError, match=r"unique column names, got \['1'\]"):
        as_table(pandas.DataFrame(np.ones((2, 2)), columns=[1, "1"]))
    days = pandas.to_datetime(["2020-01-01", "2020-01-02"])
    for column in (days, days.tz_localize("UTC"), days.to_period("D"), days - days[0]):
        with pytest.raises(InputError, match=r"column 'when'.*convert .*to numbers first"):
            as_table(pandas.DataFrame({"when": column}))
    with pytest.raises(InputError, match=r"series.to_frame\(\)"):
        as_table(pandas.Series([1.0]))


def test_to_pandas_and_back() -> None:
    pytest.importorskip("pandas")
    table = as_table({"a": [1, 2], "b": [0.5, None], "c": [True, False], "d": ["x", None]})
    frame = table.to_pandas()
    assert list(frame.columns) == ["a", "b", "c", "d"]
    back = as_table(frame)
    assert kinds(back) == kinds(table) == ["int64", "float64", "bool", "object"]
    assert back["d"].tolist() == ["x", None]


BAD: dict[str, tuple[Any, str]] = {
    "one dimension": (np.ones(3), r"got shape \(3,\); pass x.reshape\(-1, 1\)"),
    "one dimension of a tensor": (torch.ones(3), r"reshape\(-1, 1\)"),
    "three dimensions": (np.ones((2, 2, 2)), r"got shape \(2, 2, 2\)"),
    "no columns": (np.ones((2, 0)), "at least one column"),
    "nothing in a mapping": ({}, "at least one column"),
    "complex": (np.ones((2, 2)) * 1j, "'x0'.*complex128.*real and imaginary"),
    "complex tensor": (torch.ones(2, 2) * 1j, "'x0'.*complex"),
    "dates": (np.ones((2, 1), dtype="M8[D]"), "'x0'.*dates to numbers"),
    "bytes": (np.array([[b"a"]]), "'x0'.*decode"),
    "too large": (np.array([[1], [2**63]], dtype="u8"), "'x0', got 9223372036854775808 in row 1"),
    "too large objects": (np.array([[1], [-(2**63) - 1]], object), "within 64 bits.*in row 1"),
    "text after numbers": ([[1, 1], [2, 2], [3, "b"]], "'x1', got both: 'b' in row 2 after 1"),
    "numbers after text": ([["a"], [None], [2.5]], "'x0', got both: 2.5 in row 2 after 'a' in row"),
    "strange objects": ([[1], [object()]], "'x0', got object in row 1"),
    "ragged rows": ([[1, 2], [1]], "expected 2 values in every row, got 1 in row 1"),
    "ragged columns": ({"a": [1, 2], "b": [1]}, r"equal length, got \{'a': 2, 'b': 1\}"),
    "numbers in a list": ([1.0, 2.0], r"got float in place of row 0"),
    "words in a list": (["ab", "cd"], "got str in place of row 0"),
    "an empty list": ([], "at least one row"),
    "a word": ("abc", "got str"),
    "a number": (3, "got int"),
    "nothing": (None, "got NoneType"),
    "a column of two dimensions": ({"a": np.ones((2, 2))}, r"'a' with one dimension, got shape"),
    "a column that is a number": ({"a": 3}, "'a' as an array or a list, got int"),
    "the same name twice": ({1: [1], "1": [2]}, r"unique column names, got \['1'\]"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_table_is_refused(name: str) -> None:
    x, message = BAD[name]
    with pytest.raises(InputError, match=message):
        as_table(x)


def test_names() -> None:
    assert as_table(MATRIX, names=["a", "b", "c"]).names == ("a", "b", "c")
    with pytest.raises(InputError, match="expected 2 columns, one for each of the names, got 3"):
        as_table(MATRIX, names=["a", "b"])
    with pytest.raises(InputError, match=r"unique column names, got \['a'\]"):
        as_table(MATRIX, names=["a", "b", "a"])
    with pytest.raises(InputError, match=r"write \['abc'\]"):
        as_table(MATRIX, names="abc")
    assert as_table(mixed(), names=["c", "a"]).names == ("c", "a")


def test_select() -> None:
    table = mixed()
    assert table.select(["c", "a"]).names == ("c", "a")
    assert table.select(["b"])["b"] is table["b"]
    with pytest.raises(InputError, match=r"among \['a', 'b', 'c'\], got \['d', 'e'\]"):
        table.select(["d", "a", "e"])
    with pytest.raises(InputError, match=r"got \['z'\]"):
        table["z"]
    with pytest.raises(InputError, match=r"write \['a'\]"):
        table.select("a")
    with pytest.raises(InputError, match=r"got \['a'\] more than once"):
        table.select(["a", "a"])


def test_take() -> None:
    table = mixed()
    assert table.take(np.array([2, 0, 0]))["a"].tolist() == [3, 1, 1]
    assert table.take([-1])["a"].tolist() == [3]
    assert table.take(slice(1, None))["c"].tolist() == [False, True]
    assert table.take(np.array([True, False, True]))["a"].tolist() == [1, 3]
    assert table.take([]).rows == 0
    for bad, message in [
        ([3], "below 3, got 3 to 3"),
        ([0, -4], "below 3"),
        ([0.5], "whole numbers"),
        ([[0]], "one dimension"),
        ([True], "each of 3 rows, got 1"),
    ]:
        with pytest.raises(InputError, match=message):
            table.take(bad)


def test_to_numpy() -> None:
    x = mixed().to_numpy()
    assert x.dtype == np.float64 and x.flags["C_CONTIGUOUS"]
    np.testing.assert_array_equal(x, [[1, 0.5, 1], [2, np.nan, 0], [3, 2.5, 1]])
    with pytest.raises(InputError, match="text in column 'city'"):
        as_table({"n": [1], "city": ["Bern"]}).to_numpy()


def test_concat() -> None:
    table = mixed()
    whole = Table.concat([table.take([0]), table.take([1]), table.take([2])])
    assert kinds(whole) == kinds(table)
    np.testing.assert_array_equal(whole.to_numpy(), table.to_numpy())
    promoted = Table.concat([as_table({"a": [1]}), as_table({"a": [None, 0.5]})])
    np.testing.assert_array_equal(promoted["a"], [1, np.nan, 0.5])
    with pytest.raises(InputError, match=r"got \['b'\] in table 1"):
        Table.concat([as_table({"a": [1]}), as_table({"b": [1]})])
    with pytest.raises(InputError, match="column 'a' as text in every table"):
        Table.concat([as_table({"a": [1]}), as_table({"a": ["x"]})])
    with pytest.raises(InputError, match="at least one table"):
        Table.concat([])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": np.ones(2, dtype="float32")}, "'a' as a float64, .*got float32"),
        ({"a": [1, 2]}, "got list"),
        ({"a": np.ones((2, 1))}, "'a' with one dimension"),
        ({1: np.ones(2)}, "names as text, got 1"),
        ({"a": np.ones(2), "b": np.ones(3)}, "equal length"),
    ],
)
def test_tables_of_other_things_cannot_be_made(columns: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Table(columns)
