"""The position of each value of a column in a list of known ones."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from arcsm.errors import InputError

_SHOWN = 12


class Lookup:
    """Known values, all text or all numbers (truth values count as 0 and 1)."""

    def __init__(self, known: Sequence[Any]) -> None:
        self.known = tuple(known)
        self.text = isinstance(self.known[0], str)
        if self.text:
            self.values = np.array(self.known, dtype=object)
            self._position = {value: position for position, value in enumerate(self.known)}
        else:
            self.values = np.array(self.known)
            self._order = np.argsort(self.values, kind="stable")

    def positions(self, name: str, values: np.ndarray, what: str) -> np.ndarray:
        """Return the position of each value as int64; refuse one that is not known."""
        found = self._found(values)
        unknown = np.flatnonzero(found < 0)
        if len(unknown):
            if not self.text and self.values.dtype == bool:
                values = values.astype(np.float64)  # which truth values count as
            row = int(unknown[0])
            shown = ", ".join(repr(value) for value in self.known[:_SHOWN])
            more = f" and {len(self.known) - _SHOWN} more" if len(self.known) > _SHOWN else ""
            value = values[row] if self.text else values[row].item()
            others = f" ({len(unknown)} such rows)" if len(unknown) > 1 else ""
            advice = "correct the value or learn from rows that have it"
            if not self.text:
                advice += ", or choose the kind 'integer' or 'real' for the column"
            raise InputError(
                f"expected one of the {what} {shown}{more} in column {name!r},"
                f" got {value!r} in row {row}{others}; {advice}"
            )
        return found

    def knows(self, values: np.ndarray) -> np.ndarray:
        """Return which values are known."""
        return self._found(values) >= 0

    def _found(self, values: np.ndarray) -> np.ndarray:
        """Return the position of each value as int64, −1 for one that is not known."""
        if self.text:
            found = np.fromiter(
                (self._position.get(value, -1) for value in values.tolist()),
                dtype=np.int64,
                count=len(values),
            )
        else:
            in_order = self.values[self._order]
            if in_order.dtype == bool or values.dtype == bool:
                in_order, values = in_order.astype(np.float64), values.astype(np.float64)
            place = np.minimum(np.searchsorted(in_order, values), len(in_order) - 1)
            found = np.where(in_order[place] == values, self._order[place], -1)
        return found
