"""What experiments share in telling of runs: steps to look at, numbers for JSON, seeds."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from arcsm.results import Metric


def spaced_steps(last: int, points: int) -> list[int]:
    """Return 0, 1 and further steps up to the last, in about equal ratios.

    >>> spaced_steps(1000, 5)
    [0, 1, 10, 100, 1000]
    """
    ratios = (math.log(last) * i / max(1, points - 2) for i in range(points - 1))
    return sorted({0, last, *(round(math.exp(ratio)) for ratio in ratios)})


def finite(values: Sequence[float]) -> list[float | None]:
    """Return values that JSON can hold: None where a run has left the numbers."""
    return [value if math.isfinite(value) else None for value in values]


def over_seeds(name: str, values: Sequence[float], unit: str, labels: Mapping[str, Any]) -> Metric:
    """Return the mean of one value for each seed, and their standard deviation."""
    spread = statistics.stdev(values) if len(values) > 1 else None
    return Metric(name, statistics.mean(values), unit, len(values), spread=spread, labels=labels)
