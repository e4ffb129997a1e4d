"""What benchmarks/impute.py makes of its jobs: means, ranks, metrics and a printed table."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from ranking import ranks

from arcsm.results import Metric

METHODS = ("arcsm", "iterative", "knn", "mean")
OF_MEANS, OF_DRAWS = METHODS, ("arcsm draws", "iterative draws")
RMSE, ENERGY, INSIDE, WIDTH = "RMSE", "energy distance", "share inside", "width"
DIRECT = "share inside intervals()"

# A set, a mechanism, a seed and a method, which may give several numbers.
Key = tuple[str, str, int, str]


@dataclass(frozen=True)
class Entry:
    """One number of one method; `value` is None where it failed, for `reason`."""

    set: str
    mechanism: str
    seed: int
    method: str
    way: str
    what: str
    value: float | None
    rows: int
    columns: int
    holes: int
    seconds: float
    commit: str
    reason: str | None = None

    @property
    def key(self) -> Key:
        """The job that it belongs to."""
        return self.set, self.mechanism, self.seed, self.method


def summarise(done: Mapping[Key, Sequence[Entry]], seeds: Sequence[int]) -> list[Metric]:
    """Return means over sets and mechanisms, mean ranks, and the single numbers.

    A set and mechanism counts by its mean over seeds, and only if all methods are done there.
    """
    table: dict[tuple[str, str], dict[tuple[str, str], list[Entry]]] = {}
    for entries in done.values():
        for entry in entries:
            own = table.setdefault((entry.set, entry.mechanism), {})
            own.setdefault((entry.way, entry.what), []).append(entry)
    metrics = []
    ranked = {RMSE: OF_MEANS, ENERGY: (*OF_MEANS, *OF_DRAWS), INSIDE: OF_DRAWS, WIDTH: OF_DRAWS}
    for what, ways in ranked.items():
        means = []
        for own in table.values():
            found = [own.get((way, what), []) for way in ways]
            if all(len(some) == len(seeds) for some in found):
                means.append([_mean([entry.value for entry in some]) for some in found])
        if not means:
            continue
        values = np.array(means)
        rank = np.array([ranks([-value for value in row]) for row in means])
        for place, way in enumerate(ways):
            known, labels = values[:, place], {"method": way}
            good = bool(np.isfinite(known).all())
            reason = None if good else "failed on some sets"
            mean = float(known.mean()) if good else None
            metrics.append(
                Metric(f"mean {what}", mean, unit="1", n=len(known), labels=labels, reason=reason)
            )
            if what in (RMSE, ENERGY):
                own_rank, best = rank[:, place], rank.min(1)
                metrics.append(
                    Metric(
                        f"mean rank, {what}", own_rank.mean(), unit="1", n=len(rank), labels=labels
                    )
                )
                won = int((own_rank == best).sum())
                metrics.append(Metric(f"won, {what}", won, unit="1", n=len(rank), labels=labels))
    return metrics + [_single(entry) for entries in done.values() for entry in entries]


def _mean(values: Sequence[float | None]) -> float:
    return math.nan if any(value is None for value in values) else float(np.mean(values))


def _single(entry: Entry) -> Metric:
    labels = {
        "set": entry.set,
        "mechanism": entry.mechanism,
        "seed": entry.seed,
        "method": entry.way,
        "rows": entry.rows,
        "columns": entry.columns,
        "seconds": round(entry.seconds, 2),
    }
    count = 0 if entry.value is None else entry.holes
    return Metric(entry.what, entry.value, unit="1", n=count, labels=labels, reason=entry.reason)


def print_table(done: Mapping[Key, Sequence[Entry]], metrics: Sequence[Metric]) -> None:
    """Print the RMSE of each set and mechanism, and what sums up each method."""
    print(f"\n{'RMSE':34s}" + "".join(f"{method:>12s}" for method in OF_MEANS))
    for name, mechanism in dict.fromkeys((key[0], key[1]) for key in done):
        cells = []
        for method in OF_MEANS:
            found = [
                entry.value
                for key, entries in done.items()
                if key[:2] == (name, mechanism) and key[3] == method
                for entry in entries
                if entry.what == RMSE
            ]
            cells.append(_mean(found or [None]))
        print(f"{f'{name}, {mechanism}':34s}" + "".join(f"{cell:12.3f}" for cell in cells))
    for metric in metrics:
        if set(metric.labels) == {"method"}:
            shown = "failed" if metric.value is None else f"{metric.value:.3f}"
            print(f"{metric.name:34s}{metric.labels['method']:18s}{shown:>10s}")
