"""Reading .csv and .tsv files, fast with pyarrow and the same without.

pyarrow parses blocks of plain lines. Whatever it refuses, and whatever it would read differently,
is parsed by the csv module, which also knows the line of each error.
"""

import codecs
import csv
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from arcsm.data.fields import (
    FALSE,
    MISSING,
    TRUE,
    ColumnType,
    Family,
    is_number,
    parse,
    parse_commas,
)
from arcsm.data.table import Table, selected_names
from arcsm.errors import InputError

_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_QUOTED = re.compile(r'"(?:[^"]|"")*"')
_LONE_RETURN = re.compile(rb"\r(?!\n)")


class _Block(NamedTuple):
    """Consecutive whole lines of a file: their bytes, and where they begin."""

    data: bytes
    line: int
    offset: int


@dataclass(frozen=True)
class _Layout:
    """What the header says."""

    source: str
    delimiter: str
    names: tuple[str, ...]
    selected: tuple[str, ...]


def read_delimited(
    file: BinaryIO,
    source: str,
    delimiter: str,
    columns: Sequence[str] | None,
    text: Collection[str],
    rows: int | None,
) -> Iterator[Table]:
    """Yield the rows of an open file in tables of `rows` rows, or in one table for None.

    `source` names the file in messages. A comma gives way to a semicolon or a tab where the header
    has these and no commas. The columns named in `text` are text whatever they look like.
    """
    lines = _Lines(file, source)
    layout = _read_header(lines, source, delimiter, columns)
    unknown = [name for name in text if name not in layout.names]
    if unknown:
        raise InputError(
            f"{source}: expected text columns among {list(layout.names)}, got {unknown};"
            " correct the names"
        )
    known = {
        name: ColumnType("text" if name in text else None, commas=layout.delimiter == ";")
        for name in layout.selected
    }
    lines.blanks = b" \r\n" if layout.delimiter == "\t" else b" \t\r\n"
    empty = True
    while True:
        block = lines.rest() if rows is None else lines.take(rows)
        if not block.data.strip(b"\r\n"):
            break
        _check_text(block, source)
        if rows is not None and b'"' in block.data:
            # A record may go on in the next block, which only the csv module can tell.
            empty = False
            yield from _parse_all(lines.back(block), layout, known, rows)
            break
        table = _parse_fast(block, layout, known, whole=rows is None)
        empty = False
        if table is not None:
            yield table
        else:
            yield from _parse_all(_Lines.of(block, source), layout, known, None)
    if empty:
        raise InputError(
            f"expected rows below the header in {source}, got none; is the file complete?"
        )


class _Lines:
    """The lines of a binary file, with the number and the offset of the next one.

    A carriage return ends a line too, alone or before a newline. Lines of nothing but `blanks` at
    the end of the file are left out.
    """

    def __init__(self, file: BinaryIO | None, source: str) -> None:
        self.file = file
        self.source = source
        self.number = 1
        self.offset = 0
        self.blanks = b"\r\n"  # of part of a file, whose end is not that of the file, these alone
        self.pending: list[bytes] = []  # in reverse
        self.inner = 0  # how many of the next lines are blank, but not at the end

    @classmethod
    def of(cls, block: _Block, source: str) -> "_Lines":
        """Return the lines of one block."""
        return cls(None, source).back(block)

    def back(self, block: _Block) -> "_Lines":
        """Return these lines with the block that was taken last put back."""
        lines: list[bytes] = _LINE.findall(block.data)
        self.pending = self.pending + lines[::-1]
        self.inner = 0
        self.number, self.offset = block.line, block.offset
        return self

    def next(self) -> bytes:
        """Return the next line with its end, or nothing after the last."""
        line = self._read()
        if self.inner:
            self.inner -= 1
        elif line and not line.strip(self.blanks):
            following = [self._read()]
            while following[-1] and not following[-1].strip(self.blanks):
                following.append(self._read())
            if not following[-1]:
                return b""
            self.pending += following[::-1]
            self.inner = len(following) - 1
        self.number += bool(line)
        self.offset += len(line)
        return line

    def _read(self) -> bytes:
        if not self.pending and self.file is not None:
            line = self.file.readline()
            plain = _LONE_RETURN.search(line) is None
            self.pending = [line] if plain else _LINE.findall(line)[::-1]
        return self.pending.pop() if self.pending else b""

    def take(self, rows: int) -> _Block:
        """Return the lines up to the one that holds the last of `rows` rows, blank ones between."""
        number, offset = self.number, self.offset
        lines: list[bytes] = []
        while rows and (line := self.next()):
            lines.append(line)
            rows -= bool(line.strip(b"\r\n"))
        return _Block(b"".join(lines), number, offset)

    def rest(self) -> _Block:
        """Return all lines that are left."""
        number, offset = self.number, self.offset
        parts = self.pending[::-1]
        self.pending = []
        if self.file is not None:
            parts.append(self.file.read())
        data = b"".join(parts)
        # The last line with something in it keeps its blanks and its end.
        filled = len(data.rstrip(self.blanks))
        end = _LINE.match(data, filled)
        return _Block(data[: end.end()] if filled and end else data[:filled], number, offset)

    def text(self) -> Iterator[str]:
        """Yield the lines as text."""
        while True:
            number, offset = self.number, self.offset
            line = self.next()
            if not line:
                return
            if offset == 0 and line.startswith(codecs.BOM_UTF8):
                line, offset = line.removeprefix(codecs.BOM_UTF8), len(codecs.BOM_UTF8)
            _check_text(_Block(line, number, offset), self.source)
            yield line.decode()


def _check_text(block: _Block, source: str) -> None:
    """Refuse bytes that are no UTF-8 text."""
    data = block.data
    position = data.find(b"\0")
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError as error:
            position = error.start
    if position >= 0:
        line = block.line + len(re.findall(rb"\r\n|\r|\n", data[:position]))
        raise InputError(
            f"expected text in UTF-8 in {source}, got the byte 0x{data[position]:02x} at byte"
            f" {block.offset + position} (line {line}); save the file as UTF-8"
        )


def _read_header(
    lines: _Lines, source: str, delimiter: str, columns: Sequence[str] | None
) -> _Layout:
    text = lines.text()
    top = next((line for line in text if line.strip("\r\n")), None)
    if top is None:
        raise InputError(f"expected a header line and rows in {source}, got an empty file")
    start = lines.number - 1
    # What is quoted is a name, whatever it contains.
    unquoted = _QUOTED.sub("", top)
    if delimiter == "," and "," not in unquoted:
        delimiter = next((other for other in ";\t" if other in unquoted), delimiter)
    taken: list[str] = []
    record = next(_records(_noting(chain([top], text), taken), delimiter, source, start))[1]
    fields = _QUOTED.sub('"', "".join(taken)).split(delimiter)
    header = [
        name if field.startswith('"') else name.strip(" \t")
        for name, field in zip_longest(record, fields[: len(record)], fillvalue="")
    ]
    if '"' not in top and all(map(is_number, header)):
        raise InputError(
            f"expected column names in line {start} of {source}, got the numbers"
            f" {', '.join(header[:3])}; add a header line"
        )
    for position, name in enumerate(header):
        if not name:
            raise InputError(
                f"expected a name for every column in line {start} of {source}, got none for column"
                f" {position + 1} of {len(header)}; name it, or leave out an index column"
            )
    try:
        selected = selected_names(header, columns)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    return _Layout(source, delimiter, tuple(header), selected)


def _noting(lines: Iterator[str], taken: list[str]) -> Iterator[str]:
    """Yield the `lines`, and note those that were taken."""
    for line in lines:
        taken.append(line)
        yield line


def _records(
    lines: Iterator[str], delimiter: str, source: str, first: int
) -> Iterator[tuple[int, list[str]]]:
    """Yield the records that are not blank, each with the line it begins in.

    `first` is the number of the first of the `lines`.
    """
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        start = first + reader.line_num
        try:
            record = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if "unexpected end of data" in str(error):
                raise InputError(
                    f"expected a closing quote for the one opened in the record at line {start} of"
                    f" {source}, got the end of the file; close it, or double a quote that is meant"
                ) from None
            raise InputError(
                f"expected fields between {delimiter!r} in line {start} of {source}, got: {error};"
                " is a quote missing there?"
            ) from None
        if record:
            yield start, record


def _parse_all(
    lines: _Lines, layout: _Layout, known: dict[str, ColumnType], rows: int | None
) -> Iterator[Table]:
    """Yield all `lines` in tables of `rows` rows, by the csv module."""
    starts: list[int] = []
    records: list[list[str]] = []
    for start, record in _checked_records(lines, layout):
        starts.append(start)
        records.append(record)
        if len(records) == rows:
            yield _columns(records, starts, layout, known)
            starts, records = [], []
    if records:
        yield _columns(records, starts, layout, known)


def _checked_records(lines: _Lines, layout: _Layout) -> Iterator[tuple[int, list[str]]]:
    expected = len(layout.names)
    for start, record in _records(lines.text(), layout.delimiter, layout.source, lines.number):
        if len(record) != expected:
            raise InputError(
                f"expected {expected} fields in line {start} of {layout.source}, got {len(record)};"
                f" correct the line, and quote fields that contain {layout.delimiter!r}"
            )
        yield start, record


def _columns(
    records: list[list[str]], starts: list[int], layout: _Layout, known: dict[str, ColumnType]
) -> Table:
    fields = dict(zip(layout.names, zip(*records, strict=True), strict=True))

    def line(row: int) -> str:
        return f"line {starts[row]} of {layout.source}"

    return Table({name: parse(fields[name], known[name], name, line) for name in layout.selected})


def _parse_fast(
    block: _Block, layout: _Layout, known: dict[str, ColumnType], *, whole: bool
) -> Table | None:
    """Return the block parsed by pyarrow, or None where the csv module has to see it."""
    try:
        import pyarrow
        from pyarrow import csv as arrow_csv
    except ImportError:
        return None
    # pyarrow would read hexadecimal numbers, and take the end of the file for a closing quote.
    if re.search(rb"0[xX]", block.data) or _LONE_RETURN.search(block.data):
        return None
    quotes = b'"' in block.data
    if quotes:
        for _ in _checked_records(_Lines.of(block, layout.source), layout):
            pass
    types = {name: pyarrow.string() for name in known if known[name].family == "text"}
    for _ in range(2):
        try:
            parsed = arrow_csv.read_csv(
                pyarrow.BufferReader(block.data),
                # Without threads: those of pyarrow may abort a process that ends soon after.
                read_options=arrow_csv.ReadOptions(
                    column_names=list(layout.names), use_threads=False
                ),
                parse_options=arrow_csv.ParseOptions(
                    delimiter=layout.delimiter, newlines_in_values=quotes
                ),
                convert_options=arrow_csv.ConvertOptions(
                    column_types=types,
                    include_columns=list(layout.selected),
                    null_values=list(MISSING),
                    true_values=list(TRUE),
                    false_values=list(FALSE),
                    strings_can_be_null=True,
                ),
            )
        except pyarrow.ArrowException:
            return None
        dates = {
            name: pyarrow.string()
            for name in layout.selected
            if pyarrow.types.is_temporal(parsed.schema.field(name).type)
        }
        if not dates:
            break
        types |= dates  # dates are text, as they stand in the file
    settled = {}
    for name in layout.selected:
        values, family = _of_arrow(parsed.column(name))
        if known[name].commas and known[name].family != "text":
            numbers = parse_commas(values) if family == "text" else None  # type: ignore[arg-type]
            if numbers is not None:
                values, family = numbers, "number"
            # Chunks must agree in the decimal sign, which the csv module looks at.
            sign = "," if numbers is not None else "." if b"." in block.data else None
            real = family == "number" and values.dtype == np.float64
            if real and not whole and sign not in (None, known[name].sign):
                return None
        column = known[name].settle(values, family)
        if column is None:
            return None
        settled[name] = column
    return Table(settled)


def _of_arrow(column: Any) -> tuple[np.ndarray, Family | None]:
    from pyarrow import types

    if types.is_null(column.type) or column.null_count == len(column):
        return np.full(len(column), np.nan), None
    if types.is_string(column.type):
        return column.to_numpy(), "text"
    if types.is_boolean(column.type):
        numbers = column.cast("float64") if column.null_count else column
        return numbers.to_numpy(), "truth"
    return column.to_numpy(), "number"
