"""What is put in a hole: means, medians and quantiles of a column of any kind.

A column is asked through its scalar (`Conditionals`), or, if it is a category of several digits,
through the probabilities of its values.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from arcsm.columns.category import Category
from arcsm.columns.discrete import Grid, Ordinal
from arcsm.columns.kind import Kind
from arcsm.tasks.impute.conditionals import Conditionals

STRATEGIES = ("mean", "median", "draw")


def point_of_numbers(
    kind: Kind, conditionals: Conditionals, how: str, *, fractional: bool
) -> np.ndarray:
    """Return the mean or the median of a column that is no category.

    A mean is a real number if it may be `fractional`; else, of whole numbers and of numbers in
    steps, it is the nearest one that there is. Ordered levels that are text have no mean: then,
    and of levels without a fraction, it is the median.
    """
    if how == "median":
        return kind.decode(conditionals.quantile(np.array([0.5])))
    if isinstance(kind, Ordinal):
        if not fractional or isinstance(kind.levels[0], str):
            return kind.decode(conditionals.quantile(np.array([0.5])))
        index, probability = conditionals.cells(kind.steps)
        return probability @ np.asarray(kind.levels, dtype=np.float64)[index.astype(np.int64)]
    if isinstance(kind, Grid):
        if kind.steps.coarse:
            index, probability = conditionals.cells(kind.steps)
            mean = probability @ index
        else:
            # Within a narrow cell it is no matter where a value lies: the sum is an integral.
            mean = conditionals.mean(kind.steps.position)
        return kind.points.between(mean) if fractional else kind.points.value(np.rint(mean))
    return conditionals.mean(lambda z: kind.decode(z[:, None]))


def quantiles_of_numbers(
    kind: Kind, conditionals: Conditionals, levels: Sequence[float]
) -> np.ndarray:
    """Return the quantiles of a column that is no category, of shape (rows, levels)."""
    found = conditionals.quantile(np.array(levels))
    return kind.decode(found.reshape(-1, 1)).reshape(found.shape)


def point_of_category(kind: Category, probability: np.ndarray, *, fractional: bool) -> np.ndarray:
    """Return the most probable value, or the mean of numbers if it may be `fractional`."""
    values = _values(kind)
    if fractional and values.dtype != object:
        return probability @ values.astype(np.float64)
    return values[probability.argmax(1)]


def quantiles_of_category(
    kind: Category, probability: np.ndarray, levels: Sequence[float]
) -> np.ndarray:
    """Return the quantiles of numbers, of shape (rows, levels); text has none."""
    values = _values(kind)
    if values.dtype == object:
        return np.full((len(probability), len(levels)), None, dtype=object)
    order = np.argsort(values, kind="stable")
    below = probability[:, order].cumsum(1)
    places = [np.minimum((below < level - 1e-12).sum(1), len(values) - 1) for level in levels]
    return values[order][np.stack(places, axis=1)]


def weighted_point(
    kind: Kind, values: np.ndarray, weight: np.ndarray, how: str, *, fractional: bool
) -> np.ndarray:
    """Return the mean, median or most probable value of weighted draws (rows, draws)."""
    text = values.dtype == object
    if isinstance(kind, Category) and (how == "median" or text or not fractional):
        return np.array([_most_probable(*pair) for pair in zip(values, weight, strict=True)])
    if how == "median" or text:
        return weighted_quantiles(kind, values, weight, [0.5])[:, 0]
    mean = (values * weight).sum(1)
    if fractional or not isinstance(kind, Grid | Ordinal):
        return mean
    if isinstance(kind, Ordinal):
        return weighted_quantiles(kind, values, weight, [0.5])[:, 0]
    return kind.points.value(np.rint(kind.points.index(mean)))


def weighted_quantiles(
    kind: Kind, values: np.ndarray, weight: np.ndarray, levels: Sequence[float]
) -> np.ndarray:
    """Return the quantiles of weighted draws (rows, draws), of shape (rows, levels)."""
    ranks = values
    if values.dtype == object:
        if not isinstance(kind, Ordinal):
            return np.full((len(values), len(levels)), None, dtype=object)
        place = {level: position for position, level in enumerate(kind.levels)}
        ranks = np.array([[place[value] for value in row] for row in values.tolist()])
    order = np.argsort(ranks, axis=1, kind="stable")
    below = np.take_along_axis(weight, order, 1).cumsum(1)
    places = np.stack([(below < level - 1e-9).sum(1) for level in levels], axis=1)
    chosen = np.take_along_axis(order, np.minimum(places, values.shape[1] - 1), 1)
    return np.take_along_axis(values, chosen, 1)


def _most_probable(values: np.ndarray, weight: np.ndarray) -> Any:
    """Return the value of the greatest weight; of equal ones the first."""
    total: dict[Any, float] = {}
    for value, share in zip(values.tolist(), weight.tolist(), strict=True):
        total[value] = total.get(value, 0.0) + share
    return max(total, key=lambda value: total[value])


def _values(kind: Category) -> np.ndarray:
    text = isinstance(kind.values[0], str)
    return np.array(kind.values, dtype=object if text else None)
