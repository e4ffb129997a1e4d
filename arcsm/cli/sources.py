"""DATA on the command line: a file, or a data set by its name."""

import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from arcsm.errors import InputError

if TYPE_CHECKING:
    from arcsm.data import Table

_SET = re.compile(r"(?P<family>sklearn|adbench|power)(?::(?P<name>.+))?")
_POWER_PARTS = ("train", "validation", "test")


def is_named_as_table(told: str) -> bool:
    """Say whether DATA has the name of a data set, or one that a file of a table has."""
    from arcsm.data.tables import check_table_path

    try:
        check_table_path(told)
    except InputError:
        return _SET.fullmatch(told) is not None
    return True


class Source:
    """A table that is read as a whole, or in chunks with bounded memory if it is a file."""

    def __init__(self, told: str) -> None:
        self.told = told
        match = _SET.fullmatch(told)
        # A file that is there is meant, whatever it is called.
        self._set = None if match is None or Path(told).exists() else match

    def read(self) -> "Table":
        """Return the whole table."""
        from arcsm.data import read_table

        return read_table(self.told) if self._set is None else self._load()

    def names(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        from arcsm.data import iterate_table

        if self._set is not None:
            return self._load().names
        for first in iterate_table(self.told, chunk_rows=1):
            return first.names
        return ()

    def chunks(
        self, columns: Sequence[str], rows: int, text: Collection[str] = ()
    ) -> Iterator["Table"]:
        """Yield the `columns` in tables of so many rows; those in `text` are text in any case."""
        from arcsm.data import iterate_table

        if self._set is None:
            yield from iterate_table(self.told, chunk_rows=rows, columns=columns, text=text)
        else:
            table = self._load().select(columns)
            for start in range(0, table.rows, rows):
                yield table.take(slice(start, start + rows))

    def require(self, columns: Sequence[str], of: str) -> None:
        """Refuse data without all of the `columns`; other columns and another order are no harm."""
        names = self.names()
        missing = [column for column in columns if column not in names]
        if missing:
            raise InputError(
                f"expected the columns {missing} {of} in {self.told!r}, got {list(names)};"
                " add or rename them"
            )

    def _load(self) -> "Table":
        from arcsm.data import (
            POWER_COLUMNS,
            SKLEARN,
            as_table,
            load_adbench,
            load_power,
            load_sklearn,
        )

        assert self._set is not None
        family, name = self._set["family"], self._set["name"]
        if family == "power":
            if name not in (None, *_POWER_PARTS):
                raise InputError(
                    f"expected power or power: with one of {', '.join(_POWER_PARTS)},"
                    f" got {self.told!r}; power alone is power:train"
                )
            return as_table(getattr(load_power(), name or "train"), names=list(POWER_COLUMNS))
        if name is None:
            known = f", one of {', '.join(SKLEARN)}" if family == "sklearn" else ""
            raise InputError(
                f"expected {family}:NAME{known}, got {self.told!r}; add the name of the set"
            )
        return load_sklearn(name) if family == "sklearn" else load_adbench(name)[0]
