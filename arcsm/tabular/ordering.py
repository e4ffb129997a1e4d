"""The order of a table's columns that does best on its rows."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from arcsm.columns import Columns
from arcsm.ordering import LearnedOrder, race_rows
from arcsm.ordering import learn_order as learn_order_of_scalars

if TYPE_CHECKING:
    from arcsm.tabular.fitting import Settings

# How long it may take, and how long its trainings are, unless the training itself is shorter.
_SECONDS, _STEPS = 50.0, 300
# The share of the whole time that it may take; and what is left to the training in any case.
_SHARE, _LEAST_LEFT = 1 / 3, 0.1


def race_seconds(max_seconds: float | None, seconds: float = _SECONDS) -> float:
    """Return how long a race may take where race and training have `max_seconds` together."""
    return seconds if max_seconds is None else min(seconds, _SHARE * max_seconds)


def seconds_left(max_seconds: float, raced: float = 0.0) -> float:
    """Return how long the training may take after a race that took so many seconds.

    As a rule what the race could have taken is gone, so that a resumed run has the same limit; a
    race that took longer, as its first two orders run in any case, leaves less.
    """
    left = max_seconds - max(race_seconds(max_seconds), raced)
    return max(left, _LEAST_LEFT * max_seconds)


def race_columns(
    settings: "Settings",
    columns: Columns,
    points: np.ndarray,
    spread: np.ndarray,
    weight: np.ndarray | None,
    seed: int,
    *,
    seconds: float = _SECONDS,
    progress: Callable[[int, int], None] | None = None,
) -> LearnedOrder:
    """Return how orders of the columns did in short trainings (see `arcsm.ordering`).

    `points` and `spread` are the scalars of the rows, none of weight 0. It takes a third of the
    time that there is (`max_seconds`) at most, and no trainings of more steps (`max_steps`).
    `progress` is told how many orders are done, and out of how many.
    """
    rows = race_rows(len(points), seed)
    some = points[rows]
    groups = [tuple(columns.scalars_of(name)) for name in columns.names]
    options: dict[str, Any] = {}
    if settings.learning_rate is not None:
        options["learning_rate"] = settings.learning_rate
    return learn_order_of_scalars(
        some,
        groups=[group for group in groups if group],
        spread=spread[rows] if spread.any() else None,
        cells=_cells(columns, some),
        weight=None if weight is None else weight[rows],
        seconds=race_seconds(settings.max_seconds, seconds),
        steps=_STEPS if settings.max_steps is None else min(_STEPS, settings.max_steps),
        seed=seed,
        progress=progress,
        **options,
    )


def names_of(columns: Columns, order: Sequence[int]) -> list[str]:
    """Return the columns in the order of their scalars."""
    first = {own.start: name for name in columns.names if (own := columns.scalars_of(name))}
    return [first[scalar] for scalar in order if scalar in first]


def _cells(columns: Columns, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of what each scalar stands for."""
    exact = points.astype(np.float64)
    encoded = columns.encode(columns.decode(exact))
    low, high = encoded.low, encoded.high
    # Points were rounded on the way, which moves those that are exact but not the cells.
    apart = low < high
    low, high = np.where(apart, low, exact), np.where(apart, high, exact)
    # A digit that is certain adds nothing: the probability of the whole line is 1.
    return np.where(encoded.certain, -np.inf, low), np.where(encoded.certain, np.inf, high)
