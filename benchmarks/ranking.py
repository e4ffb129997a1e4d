"""What benchmarks/tables.py makes of its fits: ranks, metrics and a printed table."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from arcsm.results import Metric


@dataclass(frozen=True)
class Entry:
    """What one method did on one set and seed; `mean` is None where it failed, for `reason`."""

    set: str
    seed: int
    method: str
    max_steps: int | None
    commit: str
    rows: int
    columns: int
    tested: int
    mean: float | None
    spread: float | None
    seconds: float
    chosen: str
    reason: str | None

    @property
    def key(self) -> tuple[str, int, str]:
        """What tells it apart from the others of a run."""
        return self.set, self.seed, self.method


def ranks(means: Sequence[float | None]) -> np.ndarray:
    """Return the rank of each mean, 1 for the highest; equals and failures share theirs."""
    failed = [mean is None or not np.isfinite(mean) for mean in means]
    values = [-np.inf if bad else mean for mean, bad in zip(means, failed, strict=True)]
    return rankdata(-np.array(values, dtype=np.float64))


def summarise(entries: Sequence[Entry], methods: Sequence[str]) -> list[Metric]:
    """Return the metrics of a run; `entries` hold the methods in turn for each set and seed."""
    table = np.array(entries, dtype=object).reshape(-1, len(methods))
    rank = np.array([ranks([entry.mean for entry in row]) for row in table])
    mean = np.array([[np.nan if e.mean is None else e.mean for e in row] for row in table])
    # Equals all win; where every method failed, none does.
    won = (rank == rank.min(1, keepdims=True)) & np.isfinite(mean)
    metrics = []
    for column, method in enumerate(methods):
        labels = {"method": method}
        own, count = rank[:, column], len(table)
        spread = own.std(ddof=1) if count > 1 else None
        metrics += [
            Metric("average rank", own.mean(), unit="1", n=count, spread=spread, labels=labels),
            Metric("wins", won[:, column].sum(), unit="1", n=count, labels=labels),
        ]
        if method != "arcsm" and "arcsm" in methods:
            difference = mean[:, column] - mean[:, methods.index("arcsm")]
            difference = difference[np.isfinite(difference)]
            reason = None if len(difference) else "no set on which neither failed"
            for name, statistic in (("mean", np.mean), ("median", np.median)):
                metrics.append(
                    Metric(
                        f"{name} difference to arcsm",
                        None if reason else statistic(difference),
                        unit="nats",
                        n=len(difference),
                        labels=labels,
                        reason=reason,
                    )
                )
    for row, places in zip(table, rank, strict=True):
        for entry, place in zip(row, places, strict=True):
            metrics += _single(entry, float(place))
    return metrics


def _single(entry: Entry, rank: float) -> list[Metric]:
    labels = {"set": entry.set, "seed": entry.seed, "method": entry.method}
    details = {"train rows": entry.rows, "columns": entry.columns, "chosen": entry.chosen}
    interval = None
    if entry.mean is not None and entry.spread is not None:
        error = 1.96 * entry.spread / entry.tested**0.5
        interval = (entry.mean - error, entry.mean + error)
    return [
        Metric(
            "test log-likelihood",
            entry.mean,
            unit="nats",
            n=entry.tested,
            spread=entry.spread,
            interval=interval,
            labels=labels | details,
            reason=entry.reason,
        ),
        Metric("rank", rank, unit="1", n=1, labels=labels),
        Metric("training time", entry.seconds, unit="s", n=1, labels=labels),
    ]


def print_table(entries: Sequence[Entry], methods: Sequence[str], metrics: list[Metric]) -> None:
    """Print the mean over the seeds for each set, and what sums up each method."""
    print("\n" + f"{'set':22s}{'rows':>7s}{'columns':>9s}" + "".join(f"{m:>12s}" for m in methods))
    for name in dict.fromkeys(entry.set for entry in entries):
        own = [entry for entry in entries if entry.set == name]
        cells = []
        for method in methods:
            means = [entry.mean for entry in own if entry.method == method]
            known = [mean for mean in means if mean is not None]
            cells.append(
                f"{np.mean(known):12.3f}" if len(known) == len(means) else f"{'failed':>12s}"
            )
        columns = max(entry.columns for entry in own)
        print(f"{name:22s}{own[0].rows:7d}{columns:9d}" + "".join(cells))
    for title in dict.fromkeys(
        metric.name for metric in metrics if set(metric.labels) == {"method"}
    ):
        values = {m.labels["method"]: m.value for m in metrics if m.name == title}
        numbers = [values.get(method) for method in methods]
        shown = "".join(f"{'–':>12s}" if value is None else f"{value:12.3f}" for value in numbers)
        print(f"{title:38s}{shown}")
