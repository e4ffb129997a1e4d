"""Holes in tables: ARCSMImputer beside the imputers of scikit-learn.

    export ARCSM_DATA=...                    # the folder of data sets, see arcsm/data/sets.py
    python benchmarks/impute.py --jobs 2     # writes results/impute.json

Six sets, chosen before any result: three mechanisms take away a fifth of the cells, see
benchmarks/holes.py. Of an ADBench set the normal rows, of any set at most 5,000; columns that are
constant are left out. Every imputer learns from the rows with holes and fills these. ARCSMImputer
has its defaults and gets the rows as they are; the others have their defaults and get columns
standardised by what is observed. All numbers are of columns standardised by their true moments.

- RMSE of the missing cells, of the means: "arcsm", "iterative" (IterativeImputer), "knn"
  (KNNImputer) and "mean" (SimpleImputer).
- Of 19 draws, "arcsm draws" and "iterative draws" (IterativeImputer with sample_posterior=True):
  the energy distance between filled and other true rows, the mean of five draws; how often a
  missing cell lies between the least and the largest draw, 0.9 if the draws are right; and how far
  apart these are. The energy distance of the tables of means is there for comparison.

The defaults of ARCSMImputer were chosen on other sets. Every process computes on one thread.
Finished jobs are kept in a file of JSON lines beside the output; --resume goes on from there.
"""

import argparse
import math
import sys
import time
import warnings
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from fillings import (
    DIRECT,
    ENERGY,
    INSIDE,
    METHODS,
    RMSE,
    WIDTH,
    Entry,
    Key,
    print_table,
    summarise,
)
from holes import (
    COVERAGE,
    DRAWS,
    MECHANISMS,
    SHARE,
    coverage,
    energy_distance,
    make_holes,
    rmse,
)
from jobs import (
    add_options,
    append_entries,
    by_job,
    commit_name,
    jobs_left,
    partial_file,
    read_entries,
    reason_of,
    run_jobs,
)
from rows import read_set

from arcsm.errors import InputError
from arcsm.estimators import ARCSMImputer
from arcsm.results import current_commit, write_result

SETS = ("annthyroid", "cardio", "pendigits", "satellite", "sklearn/breast_cancer", "sklearn/wine")
MOST_ROWS = 5000
ENERGY_DRAWS = 5


# One job


def load(name: str, seed: int) -> np.ndarray:
    """Return the rows of a set, without columns that are constant."""
    rows = read_set(name)
    chosen = np.random.default_rng(seed).permutation(len(rows))[:MOST_ROWS]
    rows = rows[chosen]
    return rows[:, np.ptp(rows, axis=0) > 0]


def run_job(
    name: str, mechanism: str, seed: int, method: str, commit: str, path: Path
) -> list[Entry]:
    """Fill and judge; a failure is a result as well."""
    rows = load(name, seed)
    missing = make_holes(rows, mechanism, seed)
    start = time.monotonic()
    found: list[tuple[str, str, float | None, str | None]]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of rounds that did not converge
            numbers = judged(rows, missing, method, seed)
        found = [
            (way, what, value, None) if math.isfinite(value) else (way, what, None, "not finite")
            for (way, what), value in numbers.items()
        ]
    except Exception as error:
        reason = reason_of(error)
        found = [(method, RMSE, None, reason)]
    seconds = time.monotonic() - start
    entries = [
        Entry(
            set=name,
            mechanism=mechanism,
            seed=seed,
            method=method,
            way=way,
            what=what,
            value=value,
            rows=len(rows),
            columns=rows.shape[1],
            holes=int(missing.sum()),
            seconds=seconds,
            commit=commit,
            reason=reason,
        )
        for way, what, value, reason in found
    ]
    append_entries(path, entries)
    return entries


def judged(
    rows: np.ndarray, missing: np.ndarray, method: str, seed: int
) -> dict[tuple[str, str], float]:
    """Return the numbers of a method, by way ("arcsm", "arcsm draws") and by name."""
    centre, scale = rows.mean(0), rows.std(0)
    true = (rows - centre) / scale
    holed = np.where(missing, np.nan, rows)
    filled, draws, ends = arcsm(holed, seed) if method == "arcsm" else rival(holed, method, seed)
    filled = (filled - centre) / scale
    found = {
        (method, RMSE): rmse(filled, true, missing),
        (method, ENERGY): energy_distance(filled, true, missing, seed),
    }
    if draws is not None:
        draws = (draws - centre) / scale
        way = f"{method} draws"
        some = [energy_distance(d, true, missing, seed) for d in draws[:ENERGY_DRAWS]]
        found[way, ENERGY] = float(np.mean(some))
        found[way, INSIDE], found[way, WIDTH] = coverage(draws, true, missing)
    if ends is not None:
        low, high = ((end - centre) / scale for end in ends)
        inside = (true >= low - 1e-9) & (true <= high + 1e-9)
        found[method, DIRECT] = float(inside[missing].mean())
    return found


Filled = tuple[np.ndarray, np.ndarray | None, tuple[np.ndarray, np.ndarray] | None]


def arcsm(holed: np.ndarray, seed: int) -> Filled:
    """Return means, draws and the ends of intervals, from one fit."""
    imputer = ARCSMImputer(random_state=seed)
    filled = imputer.fit_transform(holed)
    draws = np.stack(imputer.multiple(holed, DRAWS, random_state=seed))
    return filled, draws, imputer.intervals(holed, COVERAGE)


def rival(holed: np.ndarray, method: str, seed: int) -> Filled:
    """Return what an imputer of scikit-learn fills in, and its draws if it can draw."""
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer, KNNImputer, SimpleImputer

    centre, scale = np.nanmean(holed, axis=0), np.nanstd(holed, axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    standard = (holed - centre) / scale
    imputers = {
        "iterative": lambda: IterativeImputer(random_state=seed),
        "knn": KNNImputer,
        "mean": SimpleImputer,
    }
    filled = imputers[method]().fit_transform(standard)
    draws = None
    if method == "iterative":
        parts = [
            IterativeImputer(sample_posterior=True, random_state=DRAWS * seed + place)
            for place in range(DRAWS)
        ]
        draws = np.stack([part.fit_transform(standard) for part in parts]) * scale + centre
    return filled * scale + centre, draws, None


# All jobs

job_of = attrgetter("key")


def told(entries: Sequence[Entry]) -> str:
    """Return a line on what a job found."""
    name, mechanism, seed, _ = entries[0].key
    values = ", ".join(
        f"{entry.way} {entry.what} "
        + ("failed: " + str(entry.reason) if entry.value is None else f"{entry.value:.3f}")
        for entry in entries
    )
    return f"{name}, {mechanism}, seed {seed}: {values} ({entries[0].seconds:.1f} s)"


def run(
    jobs: Sequence[Key], *, processes: int, path: Path, end: float, commit: str
) -> dict[Key, list[Entry]]:
    """Work off jobs, and return what they find."""
    size = {job[0]: load(job[0], 0).size for job in jobs}
    # The longest first: fits of networks, of many numbers.
    ordered = sorted(jobs, key=lambda job: (METHODS.index(job[3]), -size[job[0]]))
    calls = [(*job, commit, path) for job in ordered]
    return by_job(run_jobs(run_job, calls, told, processes=processes, end=end), job_of)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--mechanisms", nargs="+", choices=MECHANISMS, default=list(MECHANISMS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    add_options(parser, limit=True)
    parser.add_argument("-o", "--output", default="results/impute.json")
    arguments = parser.parse_args()
    started, commit, output = time.monotonic(), current_commit(), Path(arguments.output)
    path = partial_file(output, resume=arguments.resume)
    jobs = [
        (name, mechanism, seed, method)
        for name in arguments.sets
        for mechanism in arguments.mechanisms
        for seed in arguments.seeds
        for method in arguments.methods
    ]
    wanted = set(jobs)
    kept = by_job((e for e in read_entries(path, Entry) if job_of(e) in wanted), job_of)
    done = kept | run(
        jobs_left(jobs, kept),
        processes=arguments.jobs,
        path=path,
        end=time.time() + arguments.limit,
        commit=commit_name(commit),
    )
    metrics = summarise(done, arguments.seeds)
    print_table(done, metrics)
    settings: dict[str, Any] = {
        "estimator": ARCSMImputer().get_params(),
        "sets": arguments.sets,
        "mechanisms": arguments.mechanisms,
        "methods": arguments.methods,
        "share missing": SHARE,
        "draws": DRAWS,
        "jobs not finished": [list(job) for job in jobs if job not in done],
        "threads": 1,
        "resumed": len(kept),
        "commits": sorted({entry.commit for found in done.values() for entry in found}),
    }
    write_result(
        output,
        experiment="impute",
        metrics=metrics,
        seeds=arguments.seeds,
        settings=settings,
        seconds=time.monotonic() - started,
        commit=commit,
    )


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"error: {error}")
