"""Columns of a table as plots need them: matched by name, told apart by kind, text as codes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy import ndarray

from arcsm.data import Table, as_table
from arcsm.errors import InputError

# Whole numbers with more values than this are drawn as a histogram, not as a bar for each.
FEW_VALUES = 20
MOST_CATEGORIES = 10
HISTOGRAM_BINS = 30
# The share of the data that may lie outside of the picture, on either side.
CUT = 0.005


@dataclass(frozen=True)
class Column:
    """One column of the data and of the samples, as float64; text as places in `categories`."""

    name: str
    data: ndarray
    samples: ndarray
    categories: tuple[str, ...] | None = None

    @cached_property
    def values(self) -> ndarray | None:
        """The few values that a discrete column takes, or None."""
        if self.categories is not None:
            return np.arange(float(len(self.categories)))
        if not self.whole:
            return None
        found = np.unique(np.concatenate([self.data, self.samples]))
        return found if len(found) <= FEW_VALUES else None

    @cached_property
    def whole(self) -> bool:
        """Whether data and samples are whole numbers throughout."""
        return all(bool((x == np.rint(x)).all()) for x in (self.data, self.samples))

    @cached_property
    def gap(self) -> float:
        """The smallest distance of two values of a discrete column."""
        if self.values is None or len(self.values) < 2:
            return 1.0
        return float(np.diff(self.values).min())

    @cached_property
    def limits(self) -> tuple[float, float]:
        """The range to show: that of all data but a few, and a margin."""
        if self.categories is not None:
            return -0.6, len(self.categories) - 0.4
        low, high = (float(x) for x in np.quantile(self.data, [CUT, 1 - CUT]))
        if low == high:
            low, high = float(self.data.min()), float(self.data.max())
        margin = 0.06 * (high - low) or max(0.5, 1e-3 * abs(low))
        if self.values is not None:
            margin = max(margin, 0.6 * self.gap)
        return low - margin, high + margin

    @cached_property
    def edges(self) -> ndarray:
        """The bins of a histogram of both; an outermost bin takes what is beyond the limits."""
        low, high = self.limits
        if self.whole:  # bins of equally many whole numbers, or else the bars go up and down
            width = max(1.0, np.ceil((high - low) / HISTOGRAM_BINS))
            inner = np.arange(np.floor(low) - 0.5, high + width, width)
        else:
            inner = np.linspace(low, high, HISTOGRAM_BINS + 1)
        both = np.concatenate([self.data, self.samples])
        before = [both.min()] if both.min() < inner[0] else []
        after = [both.max()] if both.max() > inner[-1] else []
        return np.concatenate([before, inner, after])

    @cached_property
    def outside(self) -> float:
        """The share of the samples that are out of the picture."""
        low, high = self.limits
        return float(((self.samples < low) | (self.samples > high)).mean())


def match_columns(
    data: Any, samples: Any, names: Sequence[str] | None, chosen: Sequence[str | int] | None
) -> tuple[Table, Table]:
    """Return all columns of the data, and the chosen ones of the samples in the order to show."""
    if names is None and _has_names(samples) and not _has_names(data):
        names = as_table(samples).names
    first = as_table(data, names=names)
    second = as_table(samples)
    if not _has_names(samples):
        if len(second.columns) != len(first.columns):
            raise InputError(
                f"expected samples with the {len(first.columns)} columns of the data, got"
                f" {len(second.columns)}; pass the same columns in both"
            )
        second = Table(dict(zip(first.names, second.columns.values(), strict=True)))
    for table, role in ((first, "data"), (second, "samples")):
        if not table.rows:
            raise InputError(f"expected {role} with rows, got none; pass at least one")
    return first, second.select(first.names if chosen is None else _pick(first.names, chosen))


def make_column(name: str, data: ndarray, samples: ndarray) -> Column:
    """Check a column of both and bring it to numbers."""
    ours, theirs = _values(data, f"{name!r} of the data"), _values(samples, f"{name!r} of samples")
    if ours.dtype != object and theirs.dtype != object:
        return Column(name, ours, theirs)
    ours, theirs = ours.astype(str), theirs.astype(str)
    counts = Counter(ours.tolist())
    order = sorted(counts, key=lambda text: (-counts[text], text))
    order += sorted(set(theirs.tolist()) - set(order))
    categories, last = order, len(order) - 1
    if len(order) > MOST_CATEGORIES:
        last = MOST_CATEGORIES - 1
        categories = [*order[:last], f"{len(order) - last} others"]
    codes = {text: float(min(place, last)) for place, text in enumerate(order)}
    first, second = (np.array([codes[text] for text in x.tolist()]) for x in (ours, theirs))
    return Column(name, first, second, tuple(categories))


def _has_names(x: Any) -> bool:
    return isinstance(x, Mapping) or hasattr(x, "columns")


def _pick(titles: tuple[str, ...], chosen: Sequence[str | int]) -> list[str]:
    if isinstance(chosen, str):
        chosen = [chosen]
    picked = []
    for choice in chosen:
        if isinstance(choice, str) and choice in titles:
            picked.append(choice)
        elif not isinstance(choice, str) and choice in range(-len(titles), len(titles)):
            picked.append(titles[choice])
        else:
            raise InputError(
                f"expected columns among {list(titles)}, by name or place, got {choice!r};"
                " choose others"
            )
    if not picked or len(set(picked)) != len(picked):
        raise InputError(f"expected one or more columns, each once, got {list(chosen)}")
    return picked


def _values(column: ndarray, where: str) -> ndarray:
    """Return numbers as float64 and text as it is; refuse missing and infinite values."""
    if column.dtype == object:
        known = np.array([text is not None for text in column])
    else:
        column = column.astype(np.float64)
        known = np.isfinite(column)
    if not known.all():
        raise InputError(
            f"expected finite numbers or text in {where}, got {int((~known).sum())} values that are"
            " missing or infinite; fill them in or drop the rows"
        )
    return column
