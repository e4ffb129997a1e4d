"""The fields of a text file as columns: one set of rules, however the file was parsed.

A column is of whole numbers, of real numbers or of truth values if all its fields are; what is
none of these is text. Missing fields fit everywhere.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from arcsm.errors import InputError

MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null")
TRUE = ("true", "True", "TRUE")
FALSE = ("false", "False", "FALSE")

Family = Literal["number", "truth", "text"]

_INT64 = np.iinfo(np.int64)
# Narrower than int() and float(), which also take 1_000 and the digits of other scripts.
_WHOLE = re.compile(r"[ \t]*-?[0-9]+[ \t]*")
_REAL = re.compile(
    r"[ \t]*[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|inf|infinity|nan)[ \t]*",
    re.IGNORECASE,
)
_COMMA = re.compile(_REAL.pattern.replace(r"\.", ","), re.IGNORECASE)
_TRUTH = {**dict.fromkeys(TRUE, True), **dict.fromkeys(FALSE, False)}
_MISSING = frozenset(MISSING)


@dataclass
class ColumnType:
    """What is known of a column after the rows read so far."""

    family: Family | None = None  # None while every field was missing
    real: bool = False  # float64 from here on
    commas: bool = False  # whether a comma may be a decimal sign
    sign: Literal[".", ",", None] = None  # the decimal sign of all rows, where commas may be one

    def settle(self, column: np.ndarray, family: Family | None) -> np.ndarray | None:
        """Return further rows of the column in its type, or None where they do not fit it.

        Whole numbers and truth values turn into float64 at the first row that needs it, and stay.
        """
        if family is None and self.family == "text":
            return np.full(len(column), None, dtype=object)
        if family is not None and self.family is not None and family != self.family:
            return None
        if family == "text":
            if self.real:  # missing so far, and handed out as numbers
                return None
        elif column.dtype == np.float64:
            self.real = True
        self.family = self.family or family
        return column.astype(np.float64) if self.real else column


def is_number(field: str) -> bool:
    """Say whether `field` reads as a number."""
    return _REAL.fullmatch(field) is not None


def parse(
    fields: Sequence[str], known: ColumnType, name: str, line: Callable[[int], str]
) -> np.ndarray:
    """Return `fields`, further rows of the column called `name`, in the type `known` so far.

    `line` says for a row in which line of which file it is.
    """
    if known.family == "text":
        return _text(fields)
    column, family = infer(fields, commas=known.commas)
    if known.commas and family == "number":
        _check_sign(fields, known, name, line)
    settled = known.settle(column, family)
    if settled is not None:
        return settled
    expected = known.family or "number"
    fits = _TRUTH.__contains__ if expected == "truth" else is_number
    if known.sign == ",":
        fits = is_comma_number
    row, field = next(
        (row, field)
        for row, field in enumerate(fields)
        if field not in _MISSING and not fits(field)
    )
    raise InputError(
        f"expected a {'truth value' if expected == 'truth' else 'number'} in column {name!r}, as in"
        f" the rows before, got {field!r} in {line(row)}; correct it, or read the file as a whole"
    )


def _check_sign(
    fields: Sequence[str], known: ColumnType, name: str, line: Callable[[int], str]
) -> None:
    """Refuse another decimal sign than before: as a whole, the column would not be of numbers."""
    for row, field in enumerate(fields):
        sign: Literal[".", ",", None] = "," if "," in field else "." if "." in field else None
        if sign is not None:
            if known.sign not in (None, sign):
                raise InputError(
                    f"expected numbers with {known.sign!r} in column {name!r}, as in the rows"
                    f" before, got {field!r} in {line(row)}; correct it, or read the file as a"
                    " whole"
                )
            known.sign = sign
            return  # further ones are the same, else the fields were no numbers


def is_comma_number(field: str) -> bool:
    """Say whether `field` reads as a number, with a comma in the place of a point if any."""
    return _COMMA.fullmatch(field) is not None


def parse_commas(fields: Sequence[str | None]) -> np.ndarray | None:
    """Return `fields`, None where missing, as numbers with decimal commas if all of them are."""
    if not all(field is None or is_comma_number(field) for field in fields):
        return None
    return np.array(
        [math.nan if field is None else float(field.replace(",", ".")) for field in fields]
    )


def infer(fields: Sequence[str], *, commas: bool = False) -> tuple[np.ndarray, Family | None]:
    """Return `fields` as a column of the narrowest type, and its family.

    With `commas` a column of numbers may have commas as decimal signs, but not points as well.
    """
    present = [field for field in fields if field not in _MISSING]
    if not present:
        return np.full(len(fields), math.nan), None
    gaps = len(present) < len(fields)
    # Python does not read thousands of digits as a whole number, and no int64 has so many.
    if all(map(_WHOLE.fullmatch, present)) and max(map(len, present)) < 1000:
        whole = list(map(int, present))
        if not gaps and _INT64.min <= min(whole) and max(whole) <= _INT64.max:
            return np.array(whole, dtype=np.int64), "number"
    if all(field in _TRUTH for field in present):
        if not gaps:
            return np.array([_TRUTH[field] for field in fields], dtype=bool), "truth"
        return np.array([float(_TRUTH.get(field, math.nan)) for field in fields]), "truth"
    if all(map(_REAL.fullmatch, present)):
        numbers = [math.nan if field in _MISSING else float(field) for field in fields]
        return np.array(numbers, dtype=np.float64), "number"
    text = _text(fields)
    numbers_with_commas = parse_commas(text) if commas else None  # type: ignore[arg-type]
    return (text, "text") if numbers_with_commas is None else (numbers_with_commas, "number")


def _text(fields: Sequence[str]) -> np.ndarray:
    column = np.empty(len(fields), dtype=object)
    column[:] = [None if field in _MISSING else field for field in fields]
    return column
