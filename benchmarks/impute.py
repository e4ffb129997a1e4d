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
import json
import math
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
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
from rows import read_set
from threadpoolctl import threadpool_limits

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
    name: str, mechanism: str, seed: int, method: str, commit: str, path: Path, end: float
) -> list[Entry] | None:
    """Fill and judge; a failure is a result as well. None if it is too late to begin."""
    if time.time() > end:
        return None
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
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
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
    # All lines in one write, so that processes do not write into each other's.
    lines = "".join(json.dumps(asdict(entry)) + "\n" for entry in entries)
    with path.open("ab", buffering=0) as file:
        file.write(lines.encode())
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


def read_entries(path: Path) -> dict[Key, list[Entry]]:
    """Return what an interrupted run has finished."""
    done: dict[Key, list[Entry]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            entry = Entry(**json.loads(line))
        except (ValueError, TypeError):  # the line during which the run was interrupted
            continue
        done.setdefault(entry.key, []).append(entry)
    return done


def _one_thread() -> None:
    torch.set_num_threads(1)
    threadpool_limits(1)


def run(
    jobs: Sequence[Key],
    done: dict[Key, list[Entry]],
    *,
    processes: int,
    path: Path,
    end: float,
    commit: str,
) -> None:
    """Work off the jobs that are not yet done, and enter what they find in `done`."""
    left = [job for job in jobs if job not in done]
    size = {job[0]: load(job[0], 0).size for job in left}
    # The longest first: fits of networks, of many numbers.
    left.sort(key=lambda job: (METHODS.index(job[3]), -size[job[0]]))
    # Fresh processes: threads of a copied one would hang.
    context = multiprocessing.get_context("spawn")
    os.environ["OMP_NUM_THREADS"] = "1"
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_one_thread)
    try:
        futures = [pool.submit(run_job, *job, commit, path, end) for job in left]
        for count, future in enumerate(as_completed(futures), 1):
            entries = future.result()
            if entries is None:
                continue
            done[entries[0].key] = entries
            name, mechanism, seed, _ = entries[0].key
            values = ", ".join(
                f"{entry.way} {entry.what} "
                + ("failed: " + str(entry.reason) if entry.value is None else f"{entry.value:.3f}")
                for entry in entries
            )
            print(
                f"[{count}/{len(futures)}] {name}, {mechanism}, seed {seed}: {values}"
                f" ({entries[0].seconds:.1f} s)",
                flush=True,
            )
    finally:
        # After an interruption: what has not begun shall not begin.
        pool.shutdown(cancel_futures=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--mechanisms", nargs="+", choices=MECHANISMS, default=list(MECHANISMS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1, help="processes, of one thread each")
    parser.add_argument("--limit", type=float, default=math.inf, help="begin no job after seconds")
    parser.add_argument("--resume", action="store_true", help="keep the jobs of a run cut short")
    parser.add_argument("-o", "--output", default="results/impute.json")
    arguments = parser.parse_args()
    started, commit, output = time.monotonic(), current_commit(), Path(arguments.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    path = output.with_name(f".{output.name}l.partial")
    if not arguments.resume:
        path.unlink(missing_ok=True)
    jobs = [
        (name, mechanism, seed, method)
        for name in arguments.sets
        for mechanism in arguments.mechanisms
        for seed in arguments.seeds
        for method in arguments.methods
    ]
    done = {key: found for key, found in read_entries(path).items() if key in set(jobs)}
    kept = len(done)
    run(
        jobs,
        done,
        processes=arguments.jobs,
        path=path,
        end=time.time() + arguments.limit,
        commit=commit["id"] + ("-dirty" if commit["dirty"] else ""),
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
        "resumed": kept,
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
