"""Rows of a source under a model, chunk by chunk."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from arcsm.cli.options import number
from arcsm.cli.sources import Source
from arcsm.columns import Columns
from arcsm.data import Table
from arcsm.errors import InputError

_NUMBERS = 1_000_000  # that are read and evaluated at one time
_MOST_ROWS = 16_384  # as many as TabularModel takes at one time, so that it counts rows as we do


class MeanLogDensity:
    """The mean log-density over the rows that are possible, and how many are not."""

    def __init__(self) -> None:
        self.rows = self.impossible = 0
        self._total = self._weight = 0.0

    def add(self, log_density: np.ndarray, weight: np.ndarray | None = None) -> None:
        """Count further rows."""
        possible = np.isfinite(log_density)
        weight = np.ones(len(log_density)) if weight is None else weight
        self.rows += len(log_density)
        self.impossible += int(np.count_nonzero(~possible))
        self._total += float((weight * np.where(possible, log_density, 0.0)).sum())
        self._weight += float(weight[possible].sum())

    @property
    def mean(self) -> float | None:
        """The mean, if a row is possible."""
        return self._total / self._weight if self._weight > 0 else None

    def __str__(self) -> str:
        if self.mean is None:
            return f"All {self.rows:,} rows are impossible under the model."
        text = (
            f"Mean log-density of {self.rows - self.impossible:,} rows: {number(self.mean)} nats."
        )
        if self.impossible:
            text += (
                f" {self.impossible:,} more {'is' if self.impossible == 1 else 'are'} impossible"
                " under the model: a value outside its bounds, or another one where training saw a"
                " constant."
            )
        return text


def chunks(
    source: Source, columns: Columns, also: Sequence[str] = ()
) -> Iterator[tuple[int, Table]]:
    """Yield the row that a chunk starts with, and the `columns` and those in `also` of its rows."""
    names = list(dict.fromkeys([*columns.names, *also]))
    # What was text in training is text, even where all the fields of a CSV look like numbers.
    text = [column["name"] for column in columns.config["columns"] if column["type"] == "text"]
    rows = min(_MOST_ROWS, max(1, _NUMBERS // len(names)))
    start = 0
    for table in source.chunks(names, rows, text):
        yield start, table
        start += table.rows


@contextmanager
def located(source: Source, start: int) -> Iterator[None]:
    """Say of an error in a chunk where in the source the chunk starts."""
    try:
        yield
    except InputError as error:
        after = f", counted from row {start}" if start else ""
        raise InputError(f"{source.told!r}{after}: {error}") from error
