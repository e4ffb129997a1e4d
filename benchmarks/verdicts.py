"""What benchmarks/detect.py makes of its jobs: means, ranks, metrics and a printed table."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from ranking import ranks

from arcsm.errors import InputError
from arcsm.results import Metric

# A set, a seed, and a group of methods that share a fit.
Key = tuple[str, int, str]


@dataclass(frozen=True)
class Entry:
    """One number: the AUROC, or the share of columns found, of a method on a kind of anomaly."""

    set: str
    seed: int
    method: str
    kind: str
    value: float | None
    rows: int
    columns: int
    tested: int
    fit_seconds: float
    score_seconds: float
    commit: str
    reason: str | None = None


def told(entries: Sequence[Entry]) -> str:
    """Return a line on what a job found."""
    first = entries[0]
    values = [
        f"{entry.method}{'' if entry.kind in ('anomaly', 'corrupted') else f' {entry.kind}'}"
        f" {'failed' if entry.value is None else f'{entry.value:.3f}'}"
        for entry in entries
    ]
    reasons = sorted({entry.reason for entry in entries if entry.reason})
    return (
        f"{first.set} seed {first.seed}: {', '.join(values)}"
        f" (fit {first.fit_seconds:.1f} s, scores {first.score_seconds:.1f} s)"
        + "".join(f" {reason}" for reason in reasons)
    )


def by_set(done: Mapping[Key, Sequence[Entry]]) -> dict[tuple[str, str], dict[str, list[Entry]]]:
    """Return the entries of each set and kind of anomaly, by method."""
    table: dict[tuple[str, str], dict[str, list[Entry]]] = {}
    for entries in done.values():
        for entry in entries:
            own = table.setdefault((entry.set, entry.kind), {})
            own.setdefault(entry.method, []).append(entry)
    return table


def summarise(
    done: Mapping[Key, Sequence[Entry]],
    methods: Sequence[str],
    seeds: Sequence[int],
    what: str,
    ranked: Sequence[str],
    rivals: Sequence[str],
) -> list[Metric]:
    """Return means over sets, mean ranks and the single numbers, of all sets that are done.

    A set counts by its mean over seeds: seeds share its rows. Ranks are among the `ranked` methods.
    """
    table = {
        where: own
        for where, own in by_set(done).items()
        if all(len(own.get(method, ())) == len(seeds) for method in methods)
    }
    if not table:
        raise InputError("expected a set of which every job is done, got none; use --resume")
    means = {
        method: np.array([_mean([e.value for e in own[method]]) for own in table.values()])
        for method in methods
    }
    rank = np.array(
        [ranks([float(means[method][place]) for method in ranked]) for place in range(len(table))]
    )
    metrics = []
    for method in methods:
        values, labels = means[method], {"method": method}
        known = values[np.isfinite(values)]
        if len(known) < len(values):
            reason = f"failed on {len(values) - len(known)} of {len(values)} sets"
            metrics.append(
                Metric(f"mean {what}", None, unit="1", n=0, labels=labels, reason=reason)
            )
        else:
            spread = values.std(ddof=1) if len(values) > 1 else None
            metrics.append(
                Metric(
                    f"mean {what}",
                    values.mean(),
                    unit="1",
                    n=len(values),
                    spread=spread,
                    labels=labels,
                )
            )
        if method in ranked:
            own = rank[:, ranked.index(method)]
            metrics.append(Metric("mean rank", own.mean(), unit="1", n=len(own), labels=labels))
            won = int((own == rank.min(1)).sum())
            metrics.append(Metric("sets won", won, unit="1", n=len(own), labels=labels))
    if rivals:
        best = np.fmax.reduce([means[method] for method in rivals])  # of those that did not fail
        labels = {"method": "best rival of each set, in hindsight"}
        metrics.append(Metric(f"mean {what}", best.mean(), unit="1", n=len(best), labels=labels))
    return metrics + [
        _single(entry, what) for own in table.values() for found in own.values() for entry in found
    ]


def _mean(values: Sequence[float | None]) -> float:
    return math.nan if any(value is None for value in values) else float(np.mean(values))


def _single(entry: Entry, what: str) -> Metric:
    labels = {
        "set": entry.set,
        "seed": entry.seed,
        "method": entry.method,
        "kind": entry.kind,
        "train rows": entry.rows,
        "columns": entry.columns,
        "fit seconds": round(entry.fit_seconds, 2),
        "score seconds": round(entry.score_seconds, 2),
    }
    count = 0 if entry.value is None else entry.tested
    return Metric(what, entry.value, unit="1", n=count, labels=labels, reason=entry.reason)


def print_table(
    done: Mapping[Key, Sequence[Entry]], methods: Sequence[str], metrics: Sequence[Metric]
) -> None:
    """Print the mean over the seeds for each set, and what sums up each method."""
    width = max(10, *(len(method) + 2 for method in methods))
    print(f"\n{'':28s}" + "".join(f"{method:>{width}s}" for method in methods))
    for (name, kind), own in by_set(done).items():
        found = [[entry.value for entry in own.get(method, ())] for method in methods]
        cells = [_mean(values or [None]) for values in found]
        print(f"{f'{name}, {kind}':28s}" + "".join(f"{cell:{width}.3f}" for cell in cells))
    for title in dict.fromkeys(m.name for m in metrics if set(m.labels) == {"method"}):
        values = {m.labels["method"]: m.value for m in metrics if m.name == title}
        shown = [math.nan if values.get(m) is None else values[m] for m in methods]
        print(f"{title:28s}" + "".join(f"{value:{width}.3f}" for value in shown))
        for name in sorted(set(values) - set(methods)):
            print(f"{title}, {name}: {values[name]:.3f}")
