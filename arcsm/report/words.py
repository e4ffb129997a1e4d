"""Numbers, dates and verdicts for people, the same on the page and in the README."""

import math
from collections.abc import Mapping
from typing import Any

from arcsm.experiments.experiment import Claim, Verdict
from arcsm.pages import number
from arcsm.results import Metric

VERDICTS = {True: "holds", False: "does not hold", None: "not decided"}


def value(metric: Metric) -> str:
    """Return the value with its spread, or why there is none.

    >>> value(Metric("nll", -1.23456, unit="nats", n=3, spread=0.0123))
    '−1.235 ± 0.012'
    """
    if metric.value is None:
        return f"none: {metric.reason}"
    if not metric.spread:
        return plain(metric.value)
    digits = _decimals(metric.spread, significant=2)
    return f"{number(metric.value, digits)} ± {number(metric.spread, digits)}"


def plain(x: float, significant: int = 4) -> str:
    """Return a number in few digits.

    >>> [plain(x) for x in (95.0, 12345.678, -0.0123456, 2.5e-7)]
    ['95', '12,346', '−0.01235', '2.5e−07']
    """
    if x == 0 or (x == round(x) and abs(x) < 1e15):
        return number(x, 0)
    if abs(x) < 1e-4:
        return f"{x:.{significant - 1}g}".replace("-", "−")
    text = number(x, _decimals(x, significant))
    return text.rstrip("0").rstrip(".") if "." in text else text


def unit(name: str) -> str:
    """Return a unit as it follows a number: nothing where there is none."""
    return "" if name == "1" else f" {name}"


def labels(entries: Mapping[str, Any]) -> str:
    """Return labels in one line."""
    return ", ".join(
        f"{name} {plain(told) if _is_number(told) else told}" for name, told in entries.items()
    )


def claimed(claim: Claim) -> str:
    """Return the number of the paper."""
    return "–" if claim.value is None else plain(claim.value) + unit(claim.unit)


def verdict(one: Verdict) -> str:
    """Return the word for what came out."""
    return VERDICTS[one.holds]


def tally(holds: bool | None, count: int) -> str:
    """Return how many verdicts came out that way.

    >>> [tally(True, 1), tally(True, 2), tally(False, 2), tally(None, 3)]
    ['1 holds', '2 hold', '2 do not hold', '3 not decided']
    """
    several = {True: "hold", False: "do not hold", None: "not decided"}
    return f"{count} {VERDICTS[holds] if count == 1 else several[holds]}"


def duration(seconds: float) -> str:
    """Return a time in the unit that suits it.

    >>> [duration(x) for x in (4.2, 600, 9000)]
    ['4.2 s', '10 min', '2.5 h']
    """
    if seconds < 120:
        return f"{plain(seconds, 2)} s"
    return f"{plain(seconds / 60, 2)} min" if seconds < 7200 else f"{plain(seconds / 3600, 2)} h"


def _decimals(x: float, significant: int) -> int:
    """Return how many decimals show so many significant digits."""
    return max(0, significant - 1 - math.floor(math.log10(abs(x))))


def _is_number(told: object) -> bool:
    return isinstance(told, (int, float)) and not isinstance(told, bool)
