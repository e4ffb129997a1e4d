"""Rows of a source under a model, chunk by chunk."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from arcsm.cli.sources import Source
from arcsm.columns import Columns
from arcsm.data import Table
from arcsm.errors import InputError
from arcsm.tabular.pieces import ROWS

_NUMBERS = 1_000_000  # that are read and evaluated at one time


def chunks(
    source: Source, columns: Columns, also: Sequence[str] = ()
) -> Iterator[tuple[int, Table]]:
    """Yield the row that a chunk starts with, and the `columns` and those in `also` of its rows."""
    names = list(dict.fromkeys([*columns.names, *also]))
    # What was text in training is text, even where all the fields of a CSV look like numbers.
    text = [column["name"] for column in columns.config["columns"] if column["type"] == "text"]
    # As many as TabularModel takes at one time, so that it counts rows as we do.
    rows = min(ROWS, max(1, _NUMBERS // len(names)))
    start = 0
    for table in source.chunks(names, rows, text):
        yield start, table
        start += table.rows


@contextmanager
def located(source: Source, start: int = 0, *, option: str = "") -> Iterator[None]:
    """Say of an error in a chunk which source it is of, and where in it the chunk starts.

    `option` is the one that named the source, if it is not DATA.
    """
    try:
        yield
    except InputError as error:
        place = f"{option} {source.told!r}".lstrip()
        after = f", counted from row {start}" if start else ""
        raise InputError(f"{place}{after}: {error}") from error
