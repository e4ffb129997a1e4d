"""Tables: named columns of numbers, truth values or text, whatever they came in as.

A table holds each column as a one-dimensional array of float64, int64, bool or object (text).
A missing number is NaN and a missing text is None; a column of whole numbers or truth values with
a missing one among them is therefore float64.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from arcsm.data.columns import as_column, of_torch
from arcsm.errors import InputError

_KINDS = {"float64", "int64", "bool", "object"}


@dataclass(frozen=True, eq=False)
class Table:
    """Named columns of equal length.

    >>> table = as_table({"age": [41, 29], "city": ["Bern", None]})
    >>> table.names, table.rows, table["age"].dtype.name
    (('age', 'city'), 2, 'int64')
    """

    columns: dict[str, np.ndarray]

    def __post_init__(self) -> None:
        for name, column in self.columns.items():
            if not isinstance(name, str):
                raise InputError(
                    f"expected column names as text, got {name!r}; build the table with as_table"
                )
            if not isinstance(column, np.ndarray) or column.dtype.name not in _KINDS:
                got = getattr(column, "dtype", type(column).__name__)
                raise InputError(
                    f"expected column {name!r} as a float64, int64, bool or object array,"
                    f" got {got}; build the table with as_table"
                )
            if column.ndim != 1:
                raise InputError(
                    f"expected column {name!r} with one dimension, got shape {column.shape}"
                )
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise InputError(f"expected columns of equal length, got {lengths}")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, in their order."""
        return tuple(self.columns)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(next(iter(self.columns.values()), ()))

    def __getitem__(self, name: str) -> np.ndarray:
        return self.select([name]).columns[name]

    def __repr__(self) -> str:
        kinds = ", ".join(
            f"{name}: {'text' if column.dtype == object else column.dtype.name}"
            for name, column in self.columns.items()
        )
        return f"Table({self.rows} rows; {kinds})"

    def select(self, names: Sequence[str]) -> "Table":
        """Return the columns called `names`, in that order."""
        if isinstance(names, str):
            raise InputError(
                f"expected a list of column names, got the text {names!r}; write [{names!r}]"
            )
        unknown = [name for name in names if name not in self.columns]
        if unknown:
            raise InputError(
                f"expected columns among {list(self.columns)}, got {unknown}; correct the names"
            )
        check_unique(names)
        return Table({name: self.columns[name] for name in names})

    def take(self, indices: Any) -> "Table":
        """Return the rows at `indices`: whole numbers, a mask of truth values, or a slice."""
        if not isinstance(indices, slice):
            indices = np.asarray(indices)
            if indices.size == 0:
                indices = indices.astype(np.int64)  # an empty list is an array of floats
            if indices.ndim != 1 or indices.dtype.kind not in "iub":
                raise InputError(
                    "expected row indices as a slice or as one dimension of whole numbers or truth"
                    f" values, got {indices.dtype} of shape {indices.shape}"
                )
            masked = indices.dtype == bool
            if masked and len(indices) != self.rows:
                raise InputError(
                    f"expected a truth value for each of {self.rows} rows, got {len(indices)}"
                )
            if not masked and ((indices >= self.rows) | (indices < -self.rows)).any():
                raise InputError(
                    f"expected row indices below {self.rows}, got {indices.min()} to"
                    f" {indices.max()}"
                )
        return Table({name: column[indices] for name, column in self.columns.items()})

    def to_numpy(self) -> np.ndarray:
        """Return the columns side by side as a float64 matrix (rows, columns)."""
        for name, column in self.columns.items():
            if column.dtype == object:
                raise InputError(
                    f"expected columns of numbers, got text in column {name!r};"
                    " leave it out or encode it as numbers"
                )
        matrix = np.empty((self.rows, len(self.columns)))
        for position, column in enumerate(self.columns.values()):
            matrix[:, position] = column
        return matrix

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with the same columns."""
        try:
            import pandas
        except ImportError as error:
            raise missing_extra("pandas", "a DataFrame") from error
        return pandas.DataFrame(dict(self.columns))

    @staticmethod
    def concat(tables: Sequence["Table"]) -> "Table":
        """Return the rows of all `tables`, which have the same names, one table after another.

        Whole numbers and truth values become float64 where another table has float64.
        """
        if not tables:
            raise InputError("expected at least one table to concatenate, got none")
        names = tables[0].names
        for position, table in enumerate(tables):
            if table.names != names:
                raise InputError(
                    f"expected tables with the columns {list(names)}, got {list(table.names)} in"
                    f" table {position}; select the same columns of each"
                )
        columns = {}
        for name in names:
            parts = [table.columns[name] for table in tables]
            if len({part.dtype == object for part in parts}) > 1:
                raise InputError(
                    f"expected column {name!r} as text in every table or as numbers in every"
                    " table, got both; convert one of them"
                )
            columns[name] = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return Table(columns)


def as_table(x: Any, *, names: Sequence[str] | None = None) -> Table:
    """Return `x` as a table, without a copy where its memory can be used as it is.

    Accepted are a table, a pandas DataFrame, a mapping from names to columns, a two-dimensional
    array or tensor, and a list of rows. Columns without a name are called `names`, or else x0, x1
    and so on; of columns that have names, those in `names` are selected. Missing values (NaN,
    None, NA, masked entries) are kept: NaN among numbers, None among text.

    >>> as_table([[1, "a"], [2, "b"]])
    Table(2 rows; x0: int64, x1: text)
    """
    if isinstance(names, str):
        raise InputError(
            f"expected a list of column names, got the text {names!r}; write [{names!r}]"
        )
    named = _named_columns(x)
    if named is not None:
        return named if names is None else named.select(names)
    columns = _unnamed_columns(x)
    if not columns:
        raise InputError("expected at least one column, got none")
    if names is None:
        names = [f"x{position}" for position in range(len(columns))]
    if len(names) != len(columns):
        raise InputError(
            f"expected {len(names)} columns, one for each of the names, got {len(columns)}"
        )
    return _table(zip(names, columns, strict=True))


def missing_extra(package: str, purpose: str) -> InputError:
    """Return the error that says how to install an optional package."""
    return InputError(
        f"expected {package} to be installed for {purpose}, got none; pip install 'arcsm[tables]'"
    )


def check_unique(names: Iterable[str]) -> None:
    """Refuse names of columns of which one comes twice."""
    seen: dict[str, int] = {}
    for name in names:
        seen[name] = seen.get(name, 0) + 1
    twice = [name for name, count in seen.items() if count > 1]
    if twice:
        raise InputError(f"expected unique column names, got {twice} more than once; rename them")


def selected_names(names: Sequence[str], columns: Sequence[str] | None) -> tuple[str, ...]:
    """Return `columns`, which must be among `names`, or all names for None."""
    check_unique(names)
    if "" in names:  # what is written with it, no text file brings back
        raise InputError(
            f"expected a name for every column, got none for column {list(names).index('') + 1} of"
            f" {len(names)}; name it"
        )
    if columns is None:
        return tuple(names)
    return Table(dict.fromkeys(names, np.empty(0))).select(columns).names


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put the name of a file before the message of an InputError about its columns."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{path.name!r}: {error}") from error


def _named_columns(x: Any) -> Table | None:
    """Return the table of an `x` that brings its own names, else None."""
    if isinstance(x, Table):
        return x
    pandas = sys.modules.get("pandas")  # an x of pandas exists only where pandas is loaded
    if pandas is not None and isinstance(x, pandas.DataFrame):
        return _table((name, x.iloc[:, i]) for i, name in enumerate(x.columns))
    if pandas is not None and isinstance(x, pandas.Series):
        raise InputError("expected a table, got one pandas Series; pass series.to_frame()")
    if isinstance(x, np.ndarray) and x.dtype.names is not None:
        return _table((name, x[name]) for name in x.dtype.names)
    if isinstance(x, Mapping):
        return _table(x.items())
    return None


def _unnamed_columns(x: Any) -> list[Any]:
    """Return the columns of an array, a tensor or a list of rows."""
    if isinstance(x, Tensor):
        x = of_torch(x)
    elif not isinstance(x, np.ndarray) and hasattr(x, "__array__"):
        x = np.asarray(x)
    if isinstance(x, np.ndarray):
        if x.ndim == 1:
            raise InputError(
                f"expected two dimensions (rows, columns), got shape {x.shape};"
                " pass x.reshape(-1, 1) for one column or x.reshape(1, -1) for one row"
            )
        if x.ndim != 2:
            raise InputError(f"expected two dimensions (rows, columns), got shape {x.shape}")
        if not isinstance(x, np.ma.MaskedArray):
            x = np.asarray(x)  # a column of numpy.matrix would again have two dimensions
        return [x[:, position] for position in range(x.shape[1])]
    if not isinstance(x, Sequence) or isinstance(x, str | bytes):
        raise InputError(
            "expected a DataFrame, a mapping of columns, an array, a tensor or a list of rows,"
            f" got {type(x).__name__}; convert it with numpy.asarray"
        )
    if not x:
        raise InputError("expected at least one row, got an empty list")
    rows: list[Sequence[Any]] = []
    for position, row in enumerate(x):
        if isinstance(row, np.ndarray | Tensor):
            row = row.tolist()
        if not isinstance(row, Sequence) or isinstance(row, str | bytes):
            raise InputError(
                f"expected a list of rows, got {type(row).__name__} in place of row {position};"
                " for one column pass numpy.reshape(x, (-1, 1))"
            )
        if rows and len(row) != len(rows[0]):
            raise InputError(
                f"expected {len(rows[0])} values in every row, got {len(row)} in row {position}"
            )
        rows.append(row)
    return [list(column) for column in zip(*rows, strict=True)]


def _table(pairs: Iterable[tuple[Any, Any]]) -> Table:
    named = [(str(name), column) for name, column in pairs]
    if not named:
        raise InputError("expected at least one column, got none")
    check_unique(name for name, _ in named)
    return Table({name: as_column(column, name) for name, column in named})
