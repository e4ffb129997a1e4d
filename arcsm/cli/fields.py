"""Fields of a text file that stay as they stood, beside others that are filled in; their ends."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from arcsm.data import Table, read_table
from arcsm.data.fields import FALSE, TRUE
from arcsm.data.parquet import truth_columns

_TEXT = (".csv", ".tsv", ".csv.gz", ".tsv.gz")


def as_they_stood(data: str, output: str, table: Table, filled: Table) -> Table:
    """Return `table`, the content of DATA, with its holes as they are in `filled`.

    From one text file to another, what was not missing stays letter by letter: 1e3 is not written
    as 1000.0, nor true as 1. `filled` may have some of the columns, and none of them missing.
    Truth values are those of any file.
    """
    both = Path(data).exists() and data.lower().endswith(_TEXT)
    both = both and (output == "-" or output.lower().endswith(_TEXT))
    stood = read_table(data, text=list(table.names)) if both else None
    truths = _find_truths(data, table)
    columns = {}
    for name, values in table.columns.items():
        new = filled.columns.get(name, values)
        if name in truths and not np.isnan(new).any():
            new = new.astype(bool)
        fields = None if stood is None else _in_words(stood[name], values, new)
        columns[name] = new if fields is None else fields
    return Table(columns)


def _find_truths(data: str, table: Table) -> set[str]:
    """Return the columns of a file that a hole among truth values has made numbers."""
    holed = [n for n, v in table.columns.items() if v.dtype == np.float64 and np.isnan(v).any()]
    if not holed or not Path(data).exists():
        return set()
    if data.lower().endswith(".parquet"):
        return truth_columns(Path(data)) & set(holed)
    if not data.lower().endswith(_TEXT):
        return set()
    fields = read_table(data, columns=holed, text=holed).columns
    return {name for name, own in fields.items() if set(own.tolist()) <= {*TRUE, *FALSE, None}}


def _in_words(fields: np.ndarray, values: np.ndarray, new: np.ndarray) -> np.ndarray | None:
    """Return the fields of a column with words in the place of those that are missing.

    None where words would not do: numbers with decimal commas would have points beside them.
    """
    holes = np.array([field is None for field in fields.tolist()])
    words: list[str | None]
    known = fields[~holes].tolist()
    if values.dtype != object and new.dtype != object:
        truths = {field for field in known if field in TRUE or field in FALSE}
        if truths and len(truths | set(known)) == len(truths):
            words = [_truth(bool(value), truths) for value in new[holes].tolist()]
        elif any("," in field for field in known):
            return None
        else:
            words = [_number(value) for value in new[holes].tolist()]
    else:
        words = new[holes].tolist()
    whole = fields.copy()
    for row, word in zip(np.flatnonzero(holes).tolist(), words, strict=True):
        whole[row] = word
    return whole


def _truth(value: bool, spelled: set[str]) -> str:
    """Return a truth value in the spelling of the others."""
    first = sorted(spelled)[0]
    pairs = dict(zip(TRUE, FALSE, strict=True))
    style = next((t for t, f in pairs.items() if first in (t, f)), "true")
    return style if value else pairs[style]


def _number(value: float | int) -> str | None:
    return None if value != value else repr(value)


def table_of_ends(names: Sequence[str], missing: np.ndarray, lower: Table, upper: Table) -> Table:
    """Return the ends of all holes, one below the other."""
    rows, places = (part.tolist() for part in np.nonzero(missing))
    sides: list[list[Any]] = [
        [
            side[names[place]][row] if names[place] in side.columns else np.nan
            for row, place in zip(rows, places, strict=True)
        ]
        for side in (lower, upper)
    ]
    # Of ordered levels the ends are text; numbers beside them are then text too.
    text = any(isinstance(value, str) for side in sides for value in side)
    ends = [
        np.array([_field(value) for value in side], dtype=object)
        if text
        else np.array([_float(value) for value in side], dtype=np.float64)
        for side in sides
    ]
    column = np.array([names[place] for place in places], dtype=object)
    return Table(
        {
            "row": np.array(rows, dtype=np.int64),
            "column": column,
            "lower": ends[0],
            "upper": ends[1],
        }
    )


def _field(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else repr(float(value))


def _float(value: Any) -> float:
    return float("nan") if value is None else float(value)
