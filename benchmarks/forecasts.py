"""What benchmarks/conditional.py makes of predictions: figures, their means, and differences."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from regressors import Predicted, pinball
from scipy import stats

from arcsm.results import Metric

OWN = "arcsm"
FOLDS = 10
LEVELS = np.arange(1, 200) / 200
COVERAGE = (0.05, 0.95)
FIGURES = {
    "log-score": "nats",
    "CRPS": "units of the target",
    "coverage of 90 % intervals": "1",
    "width of 90 % intervals": "units of the target",
}


@dataclass(frozen=True)
class Entry:
    """What one method did on one part of a set."""

    set: str
    seed: int
    fold: int
    method: str
    figures: dict[str, float] | None
    rows: int
    tested: int
    seconds: float
    chosen: str
    commit: str
    reason: str | None = None


Key = tuple[str, int, int, str]


def judged(predicted: Predicted, y: np.ndarray) -> dict[str, float]:
    """Return the figures of predictions of y."""
    low, high = (
        predicted.quantiles[:, int(np.argmin(np.abs(LEVELS - level)))] for level in COVERAGE
    )
    values = (
        predicted.log_density.mean(),
        2 * pinball(predicted.quantiles, y, LEVELS).mean(),
        ((low <= y) & (y <= high)).mean(),
        (high - low).mean(),
    )
    return dict(zip(FIGURES, map(float, values), strict=True))


def summarise(done: dict[Key, Entry], sets: Sequence[str], methods: Sequence[str]) -> list[Metric]:
    """Return the mean of each figure, and by how much ARCSMDensity is better than each rival."""
    metrics = []
    for name in sets:
        by_method = {
            method: {key[1:3]: e for key, e in done.items() if key[0] == name and key[3] == method}
            for method in methods
        }
        for method, entries in by_method.items():
            labels = {"set": name, "method": method}
            bad = [entry.reason for entry in entries.values() if entry.figures is None]
            for figure, unit in FIGURES.items():
                if bad or not entries:
                    reason = bad[0] if bad else "not run"
                    about: dict[str, Any] = {"value": None, "n": 0, "reason": reason}
                else:
                    values = [e.figures[figure] for e in entries.values() if e.figures]
                    spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
                    about = {"value": float(np.mean(values)), "n": len(values), "spread": spread}
                metrics.append(Metric(figure, unit=unit, labels=labels, **about))
            seconds = [entry.seconds for entry in entries.values()]
            if seconds:
                metrics.append(
                    Metric("seconds", np.mean(seconds), unit="s", n=len(seconds), labels=labels)
                )
        for rival in methods:
            if rival != OWN and OWN in methods:
                metrics += _gains(name, by_method[OWN], rival, by_method[rival])
    return metrics


def _gains(
    name: str,
    own: dict[tuple[int, int], Entry],
    rival: str,
    other: dict[tuple[int, int], Entry],
) -> list[Metric]:
    """Return how much better ARCSMDensity is, in the same parts, by log-score and CRPS."""
    metrics = []
    for figure, sign in (("log-score", 1.0), ("CRPS", -1.0)):
        gains = [
            sign * (own[part].figures[figure] - other[part].figures[figure])  # type: ignore[index]
            for part in own
            if part in other and own[part].figures and other[part].figures
        ]
        if len(gains) < 2:
            continue
        mean, count = float(np.mean(gains)), len(gains)
        # Training sets overlap: the variance of the mean is larger by the share that is tested.
        error = float(np.std(gains, ddof=1)) * math.sqrt(1 / count + 1 / (FOLDS - 1))
        reach = float(stats.t.ppf(0.975, count - 1)) * error
        metrics.append(
            Metric(
                f"gain in {figure}",
                mean,
                unit=FIGURES[figure],
                n=count,
                interval=(mean - reach, mean + reach),
                labels={"set": name, "over": rival},
            )
        )
    return metrics


def print_table(metrics: Sequence[Metric], sets: Sequence[str], methods: Sequence[str]) -> None:
    """Print the means of each method."""
    for name in sets:
        print(f"\n{name:28s}" + "".join(f"{figure:>28s}" for figure in FIGURES))
        for method in methods:
            values = {
                m.name: m.value for m in metrics if m.labels == {"set": name, "method": method}
            }
            cells = [math.nan if values.get(f) is None else values[f] for f in FIGURES]
            print(f"{method:28s}" + "".join(f"{cell:28.3f}" for cell in cells))
