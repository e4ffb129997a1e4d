"""Parameters of estimators: columns by name or position, and what JSON can hold of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from arcsm.errors import InputError


def column_names(columns: Sequence[str | int], known: Sequence[str]) -> list[str]:
    """Return the names of columns that are given by name or by position."""
    names = []
    # Where the names are numbers themselves, 0 is the column of that name.
    numbered = any(name.isdecimal() for name in known)
    for column in columns:
        whole = isinstance(column, int | np.integer) and not isinstance(column, bool)
        if whole and not numbered and 0 <= int(column) < len(known):
            names.append(known[int(column)])
        elif (isinstance(column, str) or whole) and str(column) in known:
            names.append(str(column))
        else:
            raise InputError(
                f"expected columns among {list(known)} or their positions, got"
                f" {column!r}; correct the name"
            )
    return names


def by_name(values: Mapping[Any, Any], known: Sequence[str]) -> dict[str, Any]:
    """Return a mapping from columns by the names of these."""
    names = column_names(list(values), known)
    if len(set(names)) < len(names):
        raise InputError(f"expected each column once, got {names}; leave one out")
    return dict(zip(names, values.values(), strict=True))


def plain(value: Any) -> Any:
    """Return parameters as JSON has them."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.item() if isinstance(value, np.generic) else value
