"""Tables in parquet files, by pyarrow."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from arcsm.data.columns import as_column
from arcsm.data.table import Table, missing_extra, naming, selected_names
from arcsm.errors import InputError

# Bytes of a column that are read at one time where a file is read in chunks.
_BUFFER = 2**20


class ParquetWriter:
    """Writes tables into an open file; the first one says what type each column has."""

    def __init__(self, file: BinaryIO, first: Table) -> None:
        arrow, parquet = _arrow()
        schema = arrow.schema([(name, _type_of(column)) for name, column in first.columns.items()])
        self._writer = parquet.ParquetWriter(file, schema)

    def __enter__(self) -> "ParquetWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._writer.close()

    def append(self, table: Table) -> None:
        """Write the rows of `table`; numbers of any type fit into a column of float64."""
        arrow, _ = _arrow()
        arrays = []
        for field in self._writer.schema:
            column = table[field.name]
            got = _type_of(column)
            if got != field.type:
                if field.type != arrow.float64() or column.dtype == object:
                    raise InputError(
                        f"expected column {field.name!r} as {field.type}, as in the first chunk,"
                        f" got {got}; convert it before"
                    )
                column = column.astype(np.float64)
            arrays.append(arrow.array(column, field.type))
        self._writer.write_table(arrow.Table.from_arrays(arrays, schema=self._writer.schema))


def _type_of(column: np.ndarray) -> Any:
    arrow, _ = _arrow()
    kinds = {"float64": arrow.float64(), "int64": arrow.int64(), "bool": arrow.bool_()}
    return kinds.get(column.dtype.name, arrow.string())


def read_parquet(path: Path, columns: Sequence[str] | None, rows: int | None) -> Iterator[Table]:
    """Yield the rows of a parquet file in tables of `rows` rows, or in one table for None.

    Whole numbers and truth values become float64 from the first table on that misses one.
    """
    arrow, parquet = _arrow()
    try:
        # Of a row group, which may be the whole file, only some of each column at one time.
        some = {} if rows is None else {"buffer_size": _BUFFER, "pre_buffer": False}
        file = parquet.ParquetFile(path, **some)
    except arrow.ArrowInvalid as error:
        raise InputError(
            f"expected a parquet file at {str(path)!r}, got: {error}; write it again"
        ) from error
    with file:
        names = file.schema_arrow.names
        with naming(path):
            selected = list(selected_names(names, columns))
        if file.metadata.num_rows == 0:
            raise InputError(f"expected rows in {path.name!r}, got none")
        # Without threads: those of pyarrow may abort a process that ends soon after.
        if rows is None:
            whole = file.read(columns=selected, use_threads=False)
            yield Table(_arrow_columns(whole, selected))
            return
        real: set[str] = set()  # columns that were float64 once
        for batch in file.iter_batches(batch_size=rows, columns=selected, use_threads=False):
            found = _arrow_columns(batch, selected)
            real |= {name for name, column in found.items() if column.dtype == np.float64}
            yield Table(
                {
                    name: column.astype(np.float64, copy=False) if name in real else column
                    for name, column in found.items()
                }
            )


def truth_columns(path: Path) -> set[str]:
    """Return the columns of truth values of a parquet file, also those that miss some."""
    arrow, parquet = _arrow()
    schema = parquet.read_schema(path)
    return {field.name for field in schema if arrow.types.is_boolean(field.type)}


def _arrow_columns(batch: Any, names: Sequence[str]) -> dict[str, np.ndarray]:
    return {name: _of_arrow(batch.column(name), name) for name in names}


def _of_arrow(column: Any, name: str) -> np.ndarray:
    """Return a column of a parquet file in one of the types that a table holds."""
    arrow, _ = _arrow()
    types = arrow.types
    kind = column.type
    if types.is_dictionary(kind):
        kind = kind.value_type
        column = column.cast(kind)
    if types.is_string(kind) or types.is_large_string(kind):
        return np.asarray(column.to_numpy(zero_copy_only=False), dtype=object)
    if types.is_null(kind) or types.is_decimal(kind):
        column = column.cast("float64")
    elif not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise InputError(
            f"expected column {name!r} of real numbers, truth values or text, got {kind};"
            " convert it to numbers first, or read the other columns alone"
        )
    return as_column(column.to_numpy(zero_copy_only=False), name)


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise missing_extra("pyarrow", "parquet files") from error
    return pyarrow, parquet
