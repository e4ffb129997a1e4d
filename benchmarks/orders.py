"""Orders of the columns: natural, random and learned ones, and ensembles of several.

    export ARCSM_DATA=...                      # the folder of data sets, see arcsm/data/sets.py
    python benchmarks/orders.py --jobs 2       # writes results/orders.json

The normal rows of the ADBench sets, at most 5,000 of each and 2,500 of those with 60 columns or
more, split and freed of discrete values as benchmarks/rows.py has it. The rules and the length of
the race that learns an order were chosen on the split of seed 7 of these sets: other seeds split
the same tables otherwise, and are no new tables. The score is the mean log-density of the test
rows in nats, over the rows to which every fit of the set and seed gives one.

Of each set and seed one model is fitted in the natural order, some in random ones and one in the
order that is learned, alike but for the order. An ensemble is the mean of the densities of four of
them: the learned order, or the natural one, and three random ones. Its best member is the one that
does best on the test rows, in hindsight.

Every process computes on one thread, which has twice the time for a race that two would have.
Finished fits are kept in a file of JSON lines beside the output; --resume goes on from there.
"""

import argparse
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jobs import (
    add_options,
    append_entries,
    commit_name,
    jobs_left,
    partial_file,
    read_entries,
    run_jobs,
)
from rows import Split, read_set, split_rows

from arcsm.columns import Columns
from arcsm.data.sets import ADBENCH
from arcsm.data.table import Table, as_table
from arcsm.errors import InputError
from arcsm.results import Metric, current_commit, write_result
from arcsm.tabular import Settings, fit_table
from arcsm.tabular.ordering import names_of, race_columns

RANDOM = tuple(f"random {i}" for i in range(1, 4))
METHODS = ("natural", *RANDOM, "auto")
ENSEMBLES = {"ensemble of auto": ("auto", *RANDOM), "ensemble of natural": ("natural", *RANDOM)}
RACE_SECONDS = 100.0

# A set, a seed and a method.
Key = tuple[str, int, str]


@dataclass(frozen=True)
class Entry:
    """One fit; `log_density` holds None where a test row has none that is finite."""

    set: str
    seed: int
    method: str
    commit: str
    rows: int
    columns: int
    order: list[str]
    log_density: list[float | None]
    seconds: float
    race_seconds: float = 0.0
    # Name, held-out log-likelihood and its error, and seconds of each order in the race.
    candidates: list[list[Any]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def key(self) -> Key:
        """What tells it apart from the others of a run."""
        return self.set, self.seed, self.method


# One fit


def load(name: str, seed: int) -> Split:
    """Return the rows of a set, not too many of them."""
    rows = read_set(name)
    most = 2500 if rows.shape[1] >= 60 else 5000
    return split_rows(rows[np.random.default_rng(seed).permutation(len(rows))[:most]], seed)


def steps_of(columns: int, rows: int) -> int:
    """Return the steps of a fit: some 50 epochs, and small sets stop early anyhow."""
    if columns >= 60:
        return 800
    if columns >= 30:
        return 1000 if rows >= 2000 else 800
    return 1500 if rows >= 2000 else 1000


def run_job(
    name: str, seed: int, method: str, race_seconds: float, commit: str, path: Path
) -> list[Entry]:
    """Fit one order and judge it."""
    split = load(name, seed)
    train = as_table(split.train)
    columns = Columns.learn(train)
    chained = [column for column in columns.names if columns.scalars_of(column)]
    order, race = chained, {}
    began = time.monotonic()
    if method in RANDOM:
        number = METHODS.index(method)
        order = np.random.default_rng((seed, number)).permutation(chained).tolist()
    elif method == "auto":
        order, race = _race(columns, train, seed, race_seconds)
    took = time.monotonic() - began if method == "auto" else 0.0
    began = time.monotonic()
    settings = Settings(order=order, max_steps=steps_of(*split.train.shape[::-1]))
    model, _ = fit_table(train, settings, seed=seed)
    seconds = time.monotonic() - began
    log_density = model.log_prob(as_table(split.test))
    entry = Entry(
        set=name,
        seed=seed,
        method=method,
        commit=commit,
        rows=train.rows,
        columns=split.train.shape[1],
        order=order,
        log_density=[round(float(v), 4) if np.isfinite(v) else None for v in log_density],
        seconds=seconds,
        race_seconds=took,
        **race,
    )
    append_entries(path, [entry])
    return [entry]


def _race(
    columns: Columns, train: Table, seed: int, seconds: float
) -> tuple[list[str], dict[str, Any]]:
    """Return the order that is learned, and how the race went."""
    encoded = columns.encode(train)
    points, spread = (part.astype(np.float32) for part in (encoded.point, encoded.spread))
    settings = Settings(order="auto")
    found = race_columns(settings, columns, points, spread, None, seed, seconds=seconds)
    candidates = [[c.name, c.log_prob, c.error, c.seconds] for c in found.candidates]
    race = {"candidates": candidates, "left_out": list(found.left_out)}
    return names_of(columns, found.order), race


# All fits


def _cost(name: str, method: str, race_seconds: float) -> float:
    """Return about how many seconds a fit takes, to begin with those that take longest."""
    rows, columns = read_set(name).shape
    rows = min(rows, 2500 if columns >= 60 else 5000)
    fit = steps_of(columns, rows) * (0.006 + 0.0005 * columns)
    race = min(race_seconds, 20 * (1 + 300 * (0.005 + 0.0004 * columns)))
    return fit + (race if method == "auto" else 0.0)


def told(entries: Sequence[Entry]) -> str:
    """Return a line on a fit."""
    (entry,) = entries
    finite = [value for value in entry.log_density if value is not None]
    return (
        f"{entry.set} seed {entry.seed} {entry.method}: {np.mean(finite):.3f}"
        f" ({entry.seconds:.1f} s, race {entry.race_seconds:.1f} s of"
        f" {len(entry.candidates)} orders)"
    )


def run(
    jobs: Sequence[Key],
    *,
    processes: int,
    race_seconds: float,
    path: Path,
    end: float,
    commit: str,
) -> dict[Key, Entry]:
    """Fit, and return what is found."""
    cost = {job: _cost(job[0], job[2], race_seconds) for job in jobs}
    print(f"{len(cost)} fits, about {sum(cost.values()):.0f} core seconds", flush=True)
    ordered = sorted(cost, key=lambda job: -cost[job])
    calls = [(*job, race_seconds, commit, path) for job in ordered]
    found = run_jobs(run_job, calls, told, processes=processes, end=end)
    return {entry.key: entry for entry in found}


# What comes out


def judge(entries: Mapping[str, Entry]) -> tuple[dict[str, np.ndarray], int]:
    """Return the log-densities of the same rows for each method and ensemble of a set and seed.

    Beside them the number of rows left out, which some fit gives no finite one.
    """
    table = {
        method: np.array([np.nan if v is None else v for v in entry.log_density])
        for method, entry in entries.items()
    }
    good = np.isfinite(list(table.values())).all(0)
    table = {method: values[good] for method, values in table.items()}
    for name, members in ENSEMBLES.items():
        each = np.stack([table[member] for member in members])
        table[name] = np.logaddexp.reduce(each, axis=0) - math.log(len(members))
    return table, int((~good).sum())


def mean_scores(table: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return what is compared: means over rows, over random orders, and of the best members."""
    means = {method: float(values.mean()) for method, values in table.items()}
    means["random"] = float(np.mean([means[method] for method in RANDOM]))
    for name, members in ENSEMBLES.items():
        means[f"best of {name}"] = max(means[member] for member in members)
    return means


COMPARISONS = (
    ("auto", ("natural",)),
    ("auto", ("random",)),
    ("auto", ("natural", "random")),
    *((name, (f"best of {name}",)) for name in ENSEMBLES),
    ("ensemble of auto", ("ensemble of natural",)),
)


def summarise(done: Mapping[Key, Entry], sets: Sequence[str], seeds: Sequence[int]) -> list[Metric]:
    """Return the metrics of all sets of which every fit is done."""
    by_set: dict[str, list[dict[str, float]]] = {}
    single: list[Metric] = []
    for name in sets:
        keys = [[(name, seed, method) for method in METHODS] for seed in seeds]
        if not all(key in done for row in keys for key in row):
            continue
        for row in keys:
            entries = {method: done[key] for method, key in zip(METHODS, row, strict=True)}
            table, left_out = judge(entries)
            by_set.setdefault(name, []).append(mean_scores(table))
            single += _single(entries, table, left_out)
    if not by_set:
        raise InputError("expected a set of which every fit is done, got none; use --resume")
    # One number for each set: seeds share its rows and are no sets of their own.
    scores = {
        name: {method: float(np.mean([each[method] for each in found])) for method in found[0]}
        for name, found in by_set.items()
    }
    metrics = []
    for better, others in COMPARISONS:
        gains = np.array(
            [min(own[better] - own[other] for other in others) for own in scores.values()]
        )
        labels = {"method": better, "beats": " and ".join(others)}
        spread = gains.std(ddof=1) if len(gains) > 1 else None
        count = len(gains)
        metrics += [
            Metric("sets won", int((gains > 0).sum()), unit="1", n=count, labels=labels),
            Metric("mean gain", gains.mean(), unit="nats", n=count, spread=spread, labels=labels),
            Metric("median gain", np.median(gains), unit="nats", n=count, labels=labels),
        ]
    for method, what in (("auto", "race seconds"), ("auto", "seconds"), ("natural", "seconds")):
        values = [m.labels[what] for m in single if m.labels["method"] == method]
        mean, about = np.mean(values), {"method": method}
        metrics.append(Metric(f"mean {what}", mean, unit="s", n=len(values), labels=about))
    return metrics + single


def _single(
    entries: Mapping[str, Entry], table: Mapping[str, np.ndarray], left_out: int
) -> list[Metric]:
    metrics = []
    for method, values in table.items():
        first = entries["auto"]
        labels: dict[str, Any] = {"set": first.set, "seed": first.seed, "method": method}
        labels |= {"train rows": first.rows, "columns": first.columns, "rows left out": left_out}
        if method in entries:
            labels |= {"seconds": round(entries[method].seconds, 2)}
        if method == "auto":
            tried = [name for name, *_ in first.candidates]
            best = max(first.candidates, key=lambda entry: entry[1])[0] if tried else "natural"
            labels |= {"winner": best, "orders tried": len(tried)}
            labels |= {"race seconds": round(first.race_seconds, 2)}
        metrics.append(
            Metric(
                "test log-likelihood",
                values.mean(),
                unit="nats",
                n=len(values),
                spread=values.std(ddof=1),
                labels=labels,
            )
        )
    return metrics


def print_table(metrics: Sequence[Metric]) -> None:
    """Print the differences to the natural order for each set and seed, and what sums them up."""
    shown = ("random 1", "random 2", "random 3", "auto", *ENSEMBLES)
    rows: dict[tuple[str, int], dict[str, Metric]] = {}
    for metric in (m for m in metrics if m.name == "test log-likelihood"):
        key = metric.labels["set"], metric.labels["seed"]
        rows.setdefault(key, {})[metric.labels["method"]] = metric
    print(f"\n{'set, seed':16s}{'natural':>10s}" + "".join(f"{m[:18]:>20s}" for m in shown))
    for (name, seed), own in rows.items():
        base = own["natural"].value
        gains = "".join(f"{own[method].value - base:+20.3f}" for method in shown)
        winner = own["auto"].labels["winner"]
        print(f"{name:13s}{seed:3d}{base:10.3f}{gains}  {winner}")
    for metric in (m for m in metrics if m.name != "test log-likelihood"):
        about = " against ".join(metric.labels.values())
        print(f"{metric.name} {about}: {metric.value:.3f} (n = {metric.n})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", choices=ADBENCH, default=list(ADBENCH))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1], help="not 7, see above")
    parser.add_argument("--race-seconds", type=float, default=RACE_SECONDS)
    add_options(parser, limit=True, what="fit")
    parser.add_argument("-o", "--output", default="results/orders.json")
    arguments = parser.parse_args()
    started, commit = time.monotonic(), current_commit()
    output = Path(arguments.output)
    path = partial_file(output, resume=arguments.resume)
    kept = {entry.key: entry for entry in read_entries(path, Entry)}
    sets, seeds = arguments.sets, arguments.seeds
    jobs = [(name, seed, method) for name in sets for seed in seeds for method in METHODS]
    done = kept | run(
        jobs_left(jobs, kept),
        processes=arguments.jobs,
        race_seconds=arguments.race_seconds,
        path=path,
        end=time.time() + arguments.limit,
        commit=commit_name(commit),
    )
    metrics = summarise(done, sets, seeds)
    print_table(metrics)
    finished = [name for name in sets if all(job in done for job in jobs if job[0] == name)]
    write_result(
        output,
        experiment="orders",
        metrics=metrics,
        seeds=seeds,
        settings={
            "sets": finished,
            "sets not finished": [name for name in sets if name not in finished],
            "jobs": arguments.jobs,
            "threads": 1,
            "race seconds": arguments.race_seconds,
            "resumed": sum(job in kept for job in jobs),
            "commits": sorted({entry.commit for key, entry in done.items() if key in set(jobs)}),
        },
        seconds=time.monotonic() - started,
        commit=commit,
    )


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"error: {error}")
