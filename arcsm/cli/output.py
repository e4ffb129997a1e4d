"""Rows on their way out: to a file that appears whole or not at all, or as CSV to stdout."""

import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from arcsm.cli.shell import check_writable
from arcsm.cli.together import speaks
from arcsm.data import Table, TableWriter, write_table
from arcsm.errors import InputError

STDOUT = "-"


class RowsOut:
    """Takes tables of equal columns, one after the other.

    They may replace neither the `data` that they are made from nor a file of the `model`. Of
    several processes the first alone writes.
    """

    def __init__(
        self, told: str, *, model: Path | None, data: str | None = None, as_json: bool = False
    ) -> None:
        self.told = told
        if told == STDOUT and as_json:
            raise InputError(
                "expected --output with --json, got none: rows and the JSON object cannot both"
                " go to stdout; add -o FILE"
            )
        self._whole: list[Table] | None = None
        self._writer: TableWriter | None = None
        if told == STDOUT:
            self._writer = _StdoutWriter()
        elif os.path.splitext(told)[1].lower() in (".npy", ".npz"):
            self._whole = []  # these have their length at the beginning
            check_writable(Path(told))
        else:
            self._writer = TableWriter(told)
            check_writable(Path(told))
        if told != STDOUT:
            check_apart(Path(told), model, data)
        if not speaks():
            self._whole = self._writer = None

    def __enter__(self) -> "RowsOut":
        if self._writer is not None:
            self._writer.__enter__()
        return self

    def expect(self, table: Table) -> None:
        """Refuse rows like these where the file cannot hold them."""
        if self.told.lower().endswith(".npy"):
            table.to_numpy()

    def append(self, table: Table) -> None:
        """Add rows."""
        if self._whole is not None:
            self.expect(table)  # which says at the first rows, not after the last, what it is not
            self._whole.append(table)
        elif self._writer is not None:
            self._writer.append(table)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._writer is not None:
            self._writer.__exit__(kind, error, trace)
        elif self._whole is not None and error is None:
            write_table(self.told, Table.concat(self._whole))

    @property
    def place(self) -> str:
        """Where the rows went, in words."""
        return "stdout" if self.told == STDOUT else self.told


def check_apart(
    path: Path, model: Path | None, data: str | None, *, option: str = "--output"
) -> None:
    """Refuse an output that would replace DATA or lie in the directory of the model.

    That directory may be one that is still to be made. `option` is the one that named the output.
    """
    if data is not None and _same(path, Path(data)):
        raise InputError(
            f"expected an {option} other than DATA, got {str(path)!r} for both; choose another file"
        )
    if model is None:
        return
    target, directory = Path(os.path.realpath(path)), Path(os.path.realpath(model))
    if any(place == directory or _same(place, model) for place in (target, *target.parents)):
        raise InputError(
            f"expected an {option} outside of the model in {str(model)!r}, got {str(path)!r};"
            " choose another file"
        )


def _same(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.samefile(other)


class _StdoutWriter(TableWriter):
    """CSV as TableWriter writes it, into stdout, which is not ours to open or to close."""

    def __init__(self) -> None:
        super().__init__("stdout.csv")

    def __enter__(self) -> "_StdoutWriter":
        from contextlib import ExitStack

        self._file = sys.stdout.buffer
        self._stack = ExitStack()
        return self

    def append(self, table: Any) -> None:
        """Write the rows at once: a reader may have had enough of them."""
        super().append(table)
        self._file.flush()
