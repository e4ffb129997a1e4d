"""What estimators are given: columns by name or position, weights, and what JSON can hold of it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from arcsm.errors import InputError
from arcsm.train import Progress

# Of rows like those of `fit`, the share that counts as outliers with contamination="auto".
AUTO_SHARE = 0.01


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
    if not isinstance(values, Mapping):
        raise InputError(
            f"expected a mapping from columns, such as {{{known[0]!r}: …}}, got"
            f" {type(values).__name__}; pass a dictionary"
        )
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


def check_enough_weight(weight: np.ndarray) -> None:
    """Refuse weights of which one row has nearly all."""
    share = weight / weight.max() if weight.max() > 0 else weight
    effective = share.sum() ** 2 / max((share**2).sum(), 1e-300)
    if np.count_nonzero(weight) < 2 or effective < 1.01:
        raise InputError(
            "expected weights above 0 for two rows at least, got"
            f" {np.count_nonzero(weight)}, or one row that outweighs all others;"
            " a row alone has no spread"
        )


def is_frame(X: Any) -> bool:
    """Return whether X is a data frame, of pandas or alike."""
    return hasattr(X, "columns") and hasattr(X, "dtypes")


def print_progress(progress: Progress) -> None:
    """Print a report of the training."""
    validation = "" if progress.validation is None else f", held out {progress.validation:.4f}"
    print(
        f"step {progress.step} of at most {progress.steps}: loss {progress.loss:.4f}{validation}"
        f" ({progress.seconds:.1f} s)"
    )
