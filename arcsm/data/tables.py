"""Tables in files: .csv, .tsv (also .gz), .parquet, .npy and .npz, whole or in chunks.

What is read is a :class:`~arcsm.data.table.Table`; what is written appears whole or not at all.
"""

import csv
import gzip
import io
import os
import zipfile
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, cast

import numpy as np

from arcsm.data.columns import as_column
from arcsm.data.delimited import read_delimited
from arcsm.data.fields import is_number
from arcsm.data.parquet import ParquetWriter, read_parquet
from arcsm.data.table import Table, as_table, naming, selected_names
from arcsm.errors import InputError
from arcsm.files import atomic_path, write_atomic

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet", ".npy", ".npz")


def read_table(
    path: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    text: Collection[str] = (),
) -> Table:
    """Return the table in the file at `path`, or of it the `columns` that are named.

    .csv and .tsv (also compressed, .gz) are text in UTF-8 with a header line; a .csv may use
    semicolons, then also with decimal commas, or tabs. A column is int64 if all its fields are
    whole numbers, float64 if they are numbers or missing (an empty field, NA, NaN, null), bool if
    they are true or false, and else text; dates are text, and so are the columns named in `text`,
    whatever they look like: the other types of files know it themselves. .npy holds a
    two-dimensional array; .npz one called X, or a single one, or a one-dimensional array for each
    column. .parquet needs pyarrow.
    """
    (table,) = _read(path, columns, text, None)
    return table


def iterate_table(
    path: str | os.PathLike[str],
    *,
    chunk_rows: int = 65536,
    columns: Sequence[str] | None = None,
    text: Collection[str] = (),
) -> Iterator[Table]:
    """Yield the table in the file at `path` in tables of `chunk_rows` rows, the last may have less.

    Memory does not grow with the file, except for .npz, which is read as a whole. The first chunk
    decides what each column of a text file is, but for the columns named in `text`. Whole numbers
    and truth values become float64 from the first chunk on that needs it; text where numbers came
    before is refused.
    """
    if not isinstance(chunk_rows, int) or isinstance(chunk_rows, bool) or chunk_rows < 1:
        raise InputError(f"expected chunk_rows to be a positive int, got {chunk_rows!r}")
    return _read(path, columns, text, chunk_rows)


def write_table(path: str | os.PathLike[str], table: Any) -> None:
    """Write `table`, anything that `as_table` takes, to a file of the type that its suffix says.

    Numbers come back from every type of file exactly. .parquet keeps all of a table. In .csv and
    .tsv a missing value is an empty field, and text that reads as missing comes back as that, and
    text that reads as a number or a truth value too, unless `read_table` is told. .npy holds
    numbers alone, as float64 unless all columns are of one type, and no names; .npz an array for
    each column, where missing text is empty text.
    """
    table = as_table(table)
    suffix = _suffix(Path(path))
    if suffix == ".npy":
        kinds = {column.dtype for column in table.columns.values()}
        matrix = table.to_numpy()
        if len(kinds) == 1:  # float64 does not hold every int64
            matrix = np.stack(list(table.columns.values()), axis=1)
        write_atomic(path, lambda file: np.lib.format.write_array(file, matrix, allow_pickle=False))
    elif suffix == ".npz":
        write_atomic(path, lambda file: _write_npz(file, table))
    else:
        with TableWriter(path) as writer:
            writer.append(table)


class TableWriter:
    """Writes a .csv, .tsv or .parquet file in chunks; it appears whole at the end or not at all.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     with TableWriter(Path(directory) / "squares.csv") as writer:
    ...         for start in (0, 2):
    ...             n = np.arange(start, start + 2)
    ...             writer.append({"n": n, "square": n * n})
    ...     read_table(Path(directory) / "squares.csv")["square"].tolist()
    [0, 1, 4, 9]
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._suffix = _suffix(self._path)
        if self._suffix in (".npy", ".npz"):
            raise InputError(
                "expected a .csv, .tsv or .parquet file to write in chunks, got"
                f" {self._path.name!r}"
            )
        self._names: tuple[str, ...] | None = None
        self._stack: ExitStack | None = None

    def __enter__(self) -> "TableWriter":
        with ExitStack() as stack:
            temporary = stack.enter_context(atomic_path(self._path))
            self._file: BinaryIO = stack.enter_context(temporary.open("xb"))
            if self._suffix.endswith(".gz"):
                # Without the time of writing, equal tables make equal files.
                packed = gzip.GzipFile("", "wb", fileobj=self._file, mtime=0)
                self._file = cast(BinaryIO, stack.enter_context(packed))
            self._parquet: ParquetWriter | None = None
            self._names = None
            self._stack = stack.pop_all()
        return self

    def append(self, table: Any) -> None:
        """Write the rows of `table`, which has the columns of the tables before."""
        if self._stack is None:
            raise InputError("expected an open TableWriter; append inside of its `with` block")
        table = as_table(table)
        first = self._names is None
        if first:
            self._names = table.names
        elif table.names != self._names:
            raise InputError(
                f"expected the columns {list(self._names or ())} in every chunk of"
                f" {self._path.name!r}, got {list(table.names)}"
            )
        if self._suffix == ".parquet":
            if self._parquet is None:
                self._parquet = self._stack.enter_context(ParquetWriter(self._file, table))
            self._parquet.append(table)
        else:
            self._append_text(table, header=first)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        stack, self._stack = self._stack, None
        if stack is None:
            return
        if error is None and self._names is None:
            with stack:  # which removes the temporary
                raise InputError(
                    f"expected at least one table for {self._path.name!r}, got none; append one"
                )
        stack.__exit__(kind, error, trace)

    def _append_text(self, table: Table, *, header: bool) -> None:
        delimiter = _DELIMITERS[self._suffix.removesuffix(".gz")]
        columns = [_fields(column) for column in table.columns.values()]
        # The csv module leaves unquoted what a reader takes for a line end, or for no row.
        alone = len(columns) == 1
        quote_text = any(
            field is not None and ("\r" in field or (alone and not field.strip(" \t")))
            for column in table.columns.values()
            if column.dtype == object
            for field in column
        )
        text = io.StringIO(newline="")
        if header:
            # Of a name only quotes show that it is neither a number nor several names, and that
            # blanks around it are meant.
            quote = all(map(is_number, table.names)) or any(
                name != name.strip(" ") or not {";", "\t", "\r"}.isdisjoint(name)
                for name in table.names
            )
            _writer(text, delimiter, quote=quote).writerow(table.names)
        _writer(text, delimiter, quote=quote_text).writerows(zip(*columns, strict=True))
        self._file.write(text.getvalue().encode())


def _writer(text: io.StringIO, delimiter: str, *, quote: bool) -> Any:
    return csv.writer(
        text,
        delimiter=delimiter,
        lineterminator="\n",
        quoting=csv.QUOTE_NONNUMERIC if quote else csv.QUOTE_MINIMAL,
    )


def _fields(column: np.ndarray) -> list[Any]:
    """Return a column as the csv module writes it rightly: repr of numbers, empty for missing."""
    if column.dtype == bool:
        return ["true" if value else "false" for value in column.tolist()]
    if column.dtype == np.float64 and np.isnan(column).any():
        return ["" if value != value else value for value in column.tolist()]
    return column.tolist()


def check_table_path(path: str | os.PathLike[str]) -> None:
    """Refuse a path whose name does not say what type of table it is."""
    _suffix(Path(path))


def _suffix(path: Path) -> str:
    name = path.name.lower()
    for suffix in _SUFFIXES:
        if name.endswith(suffix):
            return suffix
    raise InputError(
        f"expected a file name that ends in one of {', '.join(_SUFFIXES)}, got {path.name!r};"
        " convert or rename it"
    )


def _read(
    path: str | os.PathLike[str],
    columns: Sequence[str] | None,
    text: Collection[str],
    rows: int | None,
) -> Iterator[Table]:
    path = Path(path)
    if not path.exists():  # whatever its name ends in
        raise InputError(f"expected a file at {str(path)!r}, got nothing there; check the path")
    suffix = _suffix(path)
    if path.is_dir():
        raise InputError(f"expected the path of a file, got the directory {str(path)!r}")
    for names in (columns, text):
        if isinstance(names, str):
            raise InputError(
                f"expected a list of column names, got the text {names!r}; write [{names!r}]"
            )
    if suffix == ".parquet":
        return read_parquet(path, columns, rows)
    if suffix in (".npy", ".npz"):
        return _read_numpy(path, suffix, columns, rows)
    return _read_text(path, suffix, columns, text, rows)


def _read_text(
    path: Path,
    suffix: str,
    columns: Sequence[str] | None,
    text: Collection[str],
    rows: int | None,
) -> Iterator[Table]:
    packed = suffix.endswith(".gz")
    delimiter = _DELIMITERS[suffix.removesuffix(".gz")]
    with gzip.open(path, "rb") if packed else path.open("rb") as file:
        try:
            yield from read_delimited(
                cast(BinaryIO, file), repr(path.name), delimiter, columns, text, rows
            )
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise InputError(
                f"expected a whole gzip file at {str(path)!r}, got: {error}; fetch it again"
            ) from error


def _read_numpy(
    path: Path, suffix: str, columns: Sequence[str] | None, rows: int | None
) -> Iterator[Table]:
    try:
        with naming(path):
            # An array is a memory map if it is to be read in chunks, which then are converted.
            whole = _load_npy(path, rows) if suffix == ".npy" else _load_npz(path)
            length = whole.rows if isinstance(whole, Table) else len(whole)
            step = rows or length
            for start in range(0, length, step or 1):
                part = slice(start, start + step)
                table = whole.take(part) if isinstance(whole, Table) else as_table(whole[part])
                yield table.select(selected_names(table.names, columns))
    except (MemoryError, OverflowError) as error:
        raise InputError(
            f"expected an array that fits into memory in {path.name!r}, got: {error}; split it, or"
            " correct the file if it is smaller than that"
        ) from error
    # Archives of other versions, other compressions or with a password are errors at run time.
    except (ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, InputError):
            raise
        told = "an array of Python objects (a pickle)" if "pickle" in str(error) else str(error)
        raise InputError(
            f"expected an array of numbers in {path.name!r}, got {told}; save it again from an"
            " array of numbers or text"
        ) from error
    if length == 0:
        raise InputError(f"expected rows in {path.name!r}, got none")


def _load_npy(path: Path, rows: int | None) -> np.ndarray:
    with path.open("rb") as file:  # numpy.load would take other files for pickles
        np.lib.format.read_magic(file)
    array: np.ndarray = np.load(path, mmap_mode=None if rows is None else "r", allow_pickle=False)
    if array.ndim != 2 and array.dtype.names is None:
        raise InputError(
            f"expected an array (rows, columns), got shape {array.shape}; reshape it before saving"
        )
    return array


def _load_npz(path: Path) -> Table:
    with zipfile.ZipFile(path):  # numpy.load would take other files for pickles
        pass
    with np.load(path, allow_pickle=False) as file:
        names = list(file.files)
        chosen = "X" if "X" in names else names[0] if len(names) == 1 else None
        arrays = {name: file[name] for name in ([chosen] if chosen else names)}
        foreign = [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]
        if foreign:  # numpy hands out the bytes of what is no array
            raise InputError(f"expected arrays alone, got other files: {foreign}; leave them out")
        if chosen is not None and arrays[chosen].ndim != 1:
            return as_table(arrays[chosen])
        arrays = {name: file[name] for name in names}
    shapes = {name: array.shape for name, array in arrays.items()}
    if (
        not arrays
        or {len(shape) for shape in shapes.values()} != {1}
        or len(set(shapes.values())) > 1
    ):
        raise InputError(
            "expected an array X, or a single array, or a one-dimensional array of equal length for"
            f" each column, got the shapes {shapes}; save the rows as X"
        )
    columns = {name: as_column(array, name) for name, array in arrays.items()}
    for column in columns.values():
        if column.dtype == object:
            column[column == ""] = None
    return Table(columns)


def _write_npz(file: BinaryIO, table: Table) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        for name, column in table.columns.items():
            if column.dtype == object:
                column = np.array(["" if field is None else field for field in column], dtype=str)
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, column, allow_pickle=False)
