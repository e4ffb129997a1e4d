"""How well a score tells unusual cases from usual ones: AUROC, with a bootstrap interval."""

from typing import NamedTuple

import numpy as np

from arcsm.errors import InputError


class Area(NamedTuple):
    """The area under the ROC curve, and the ends of an interval of 95 %."""

    value: float
    low: float
    high: float


def auroc(usual: np.ndarray, unusual: np.ndarray) -> float:
    """Return P(score of an unusual case > that of a usual one), ties counting one half.

    >>> auroc(np.array([0.0, 1.0, 2.0]), np.array([1.0, 3.0]))
    0.75
    """
    low, high = _checked(usual, unusual)
    return float(_places(low, high).mean())


def auroc_interval(
    usual: np.ndarray, unusual: np.ndarray, *, resamples: int = 1000, seed: int = 0
) -> Area:
    """Return the AUROC with the middle 95 % of those of resampled cases of both kinds."""
    low, high = _checked(usual, unusual)
    # How many usual cases lie below, and up to, each unusual one: what resampling changes are the
    # weights of these, not their order.
    order = np.argsort(low, kind="stable")
    below = np.searchsorted(low[order], high, side="left")
    upto = np.searchsorted(low[order], high, side="right")
    random = np.random.default_rng(seed)
    found = np.empty(resamples)
    for index in range(resamples):
        counts = np.bincount(random.integers(0, len(low), len(low)), minlength=len(low))
        total = np.concatenate([[0], counts.cumsum()])
        places = (total[below] + total[upto]) / (2 * len(low))
        found[index] = places[random.integers(0, len(high), len(high))].mean()
    ends = np.quantile(found, [0.025, 0.975])
    return Area(float(_places(low, high).mean()), float(ends[0]), float(ends[1]))


def _places(usual: np.ndarray, unusual: np.ndarray) -> np.ndarray:
    """Return the share of usual cases below each unusual one, ties counting one half."""
    order = np.sort(usual)
    below = np.searchsorted(order, unusual, side="left")
    upto = np.searchsorted(order, unusual, side="right")
    return (below + upto) / (2 * len(usual))


def _checked(usual: np.ndarray, unusual: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    found = []
    for name, told in (("usual", usual), ("unusual", unusual)):
        scores = np.asarray(told, dtype=np.float64)
        if scores.ndim != 1 or len(scores) == 0 or np.isnan(scores).any():
            raise InputError(
                f"expected the scores of {name} cases as a list of numbers without NaN, got shape"
                f" {scores.shape}; correct them"
            )
        found.append(scores)
    return found[0], found[1]
