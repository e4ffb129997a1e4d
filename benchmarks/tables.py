"""Densities of real tables: ARCSMDensity against kernels, a Gaussian mixture and a spline flow.

    export ARCSM_DATA=...                      # the folder of data sets, see arcsm/data/sets.py
    python benchmarks/tables.py --jobs 2       # writes results/tables.json
    python benchmarks/tables.py --speed        # writes results/tables-speed.json

The rows, split and freed of discrete values for all methods alike, are those of benchmarks/rows.py.
The score is the mean log-density of the test rows in nats. A method that fails, or that gives any
test row a density that is zero or no number, ranks last. The spline flow may train as long as
ARCSMDensity did on the same set and seed, and 10 s at least. Every process computes on one thread.

The mixture chooses its components by BIC, which on small tables takes far too many of them and
costs it dearly; mixture-cv, to be named in --methods, chooses them by cross-validation.

Finished fits are kept in a file of JSON lines beside the output; --resume goes on from there.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rivals
import torch
from jobs import (
    add_options,
    append_entries,
    at_least_one,
    commit_name,
    partial_file,
    read_entries,
    reason_of,
    run_jobs,
)
from ranking import Entry, print_table, summarise
from rivals import Outcome
from rows import SETS, Split, read_set, speed_table, split_rows

from arcsm import ARCSMDensity
from arcsm.errors import InputError
from arcsm.results import Metric, current_commit, current_hardware, write_result

METHODS = ("arcsm", "kde", "mixture", "mixture-cv", "flow")
DEFAULT_METHODS = ("arcsm", "kde", "mixture", "flow")
LEAST_SECONDS = 10.0


# One fit


def arcsm_density(
    train: np.ndarray, test: np.ndarray, seed: int, max_steps: int | None = None
) -> Outcome:
    """ARCSMDensity with its defaults."""
    start = time.monotonic()
    density = ARCSMDensity(max_steps=max_steps, random_state=seed).fit(train)
    seconds = time.monotonic() - start
    kinds = Counter(column["kind"] for column in density.columns_)
    found = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    history = density.history_
    chosen = f"step {history.best_step} of {history.steps}; columns: {found}"
    return Outcome(density.score_samples(test), seconds, chosen)


def measure(
    name: str,
    seed: int,
    method: str,
    split: Split,
    max_steps: int | None,
    limit: float,
    commit: str,
) -> Entry:
    """Fit one method and judge it on the test rows; a failure is a result as well."""
    train, test = split.train, split.test
    start = time.monotonic()
    try:
        if method == "arcsm":
            outcome = arcsm_density(train, test, seed, max_steps)
        elif method == "kde":
            outcome = rivals.kernel_density(train, test, seed)
        elif method.startswith("mixture"):
            cross_validate = method == "mixture-cv"
            outcome = rivals.gaussian_mixture(train, test, seed, cross_validate=cross_validate)
        else:
            outcome = rivals.spline_flow(train, test, seed, limit)
    except Exception as error:
        outcome = Outcome(np.array([np.nan]), time.monotonic() - start, "nothing")
        reason: str | None = reason_of(error)
    else:
        bad = int((~np.isfinite(outcome.log_density)).sum())
        reason = f"no finite log-density for {bad} of {len(test)} test rows" if bad else None
    failed = reason is not None
    return Entry(
        set=name,
        seed=seed,
        method=method,
        max_steps=max_steps,
        commit=commit,
        rows=len(train),
        columns=train.shape[1],
        tested=len(test),
        mean=None if failed else float(outcome.log_density.mean()),
        spread=None if failed else float(outcome.log_density.std(ddof=1)),
        seconds=outcome.seconds,
        chosen=outcome.chosen,
        reason=reason,
    )


# All fits


def run_job(
    name: str,
    seed: int,
    methods: Sequence[str],
    max_steps: int | None,
    arcsm_seconds: float,
    commit: str,
    path: Path,
) -> list[Entry]:
    """Fit the methods to one set and seed, ARCSM first: its time is the limit of the flow."""
    split = split_rows(read_set(name), seed)
    entries = []
    for method in sorted(methods, key=METHODS.index):
        limit = max(arcsm_seconds, LEAST_SECONDS)
        entry = measure(name, seed, method, split, max_steps, limit, commit)
        if method == "arcsm":
            arcsm_seconds = entry.seconds
        entries.append(entry)
        append_entries(path, [entry])
    return entries


def told(entries: Sequence[Entry]) -> str:
    """Return a line on each fit of a job."""
    return "\n".join(
        f"{entry.set} seed {entry.seed} {entry.method}:"
        f" {f'{entry.mean:.3f}' if entry.reason is None else entry.reason}"
        f" ({entry.seconds:.1f} s; {entry.chosen})"
        for entry in entries
    )


def run(
    sets: Sequence[str],
    seeds: Sequence[int],
    methods: Sequence[str],
    *,
    max_steps: int | None,
    jobs: int,
    path: Path,
    done: Mapping[tuple[str, int, str], Entry],
    commit: str,
) -> list[Entry]:
    """Fit what is not yet done, in `jobs` processes; return the entries of all that was asked."""
    # The largest first, lest one of them is all that is left to do at the end.
    size = {name: read_set(name).size for name in sets}
    open_jobs = []
    for name in sorted(sets, key=lambda name: -size[name]):
        for seed in seeds:
            left = [method for method in methods if (name, seed, method) not in done]
            known = done.get((name, seed, "arcsm"))
            if "flow" in left and "arcsm" not in left and known is None:
                raise InputError(
                    f"expected the time of arcsm on {name!r} with seed {seed}, which limits the"
                    " flow, got none; add arcsm to --methods"
                )
            if left:
                open_jobs.append((name, seed, left, max_steps, known.seconds if known else 0.0))
    calls = [(*job, commit, path) for job in open_jobs]
    found = run_jobs(run_job, calls, told, processes=jobs)
    done = {**done, **{entry.key: entry for entry in found}}
    return [done[name, seed, method] for name in sets for seed in seeds for method in methods]


# Speed


def measure_speed(seed: int, max_steps: int | None, rows: int, scored: int) -> list[Metric]:
    """Return the seconds to fit, and the rows per second of densities and of samples."""
    train, unseen = speed_table(rows, seed), speed_table(scored, seed + 1000)
    start = time.monotonic()
    density = ARCSMDensity(max_steps=max_steps, random_state=seed).fit(train)
    fit_seconds = time.monotonic() - start
    # The first calls of a process are slower than all that follow.
    density.score_samples(unseen[:100])
    density.sample(100, random_state=seed)
    start = time.monotonic()
    density.score_samples(unseen)
    scoring = time.monotonic()
    density.sample(scored, random_state=seed)
    sampled = time.monotonic()
    labels = {"seed": seed, "columns": train.shape[1]}
    steps = {"train rows": rows, "steps": density.history_.steps}
    return [
        Metric("fit", fit_seconds, unit="s", n=1, labels=labels | steps),
        Metric("score_samples", scored / (scoring - start), unit="rows/s", n=1, labels=labels),
        Metric("sample", scored / (sampled - scoring), unit="rows/s", n=1, labels=labels),
    ]


def _names(known: Sequence[str]) -> Any:
    def read(text: str) -> list[str]:
        names = list(dict.fromkeys(name.strip() for name in text.split(",")))
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"expected names among {', '.join(known)}, got {', '.join(unknown)}"
            )
        return sorted(names, key=known.index)

    return read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", type=_names(SETS), default=list(SETS), help="NAME,NAME,…")
    parser.add_argument(
        "--methods",
        type=_names(METHODS),
        default=list(DEFAULT_METHODS),
        help=f"among {', '.join(METHODS)}; by default {', '.join(DEFAULT_METHODS)}",
    )
    parser.add_argument("--seeds", type=at_least_one, default=3, help="how many, from 0 on")
    add_options(parser, what="fit")
    parser.add_argument("--max-steps", type=at_least_one, help="of arcsm; by default left to it")
    parser.add_argument("--speed", action="store_true", help="measure speed on all threads instead")
    parser.add_argument("--speed-rows", type=at_least_one, default=10_000)
    parser.add_argument("--speed-scored", type=at_least_one, default=50_000)
    parser.add_argument("-o", "--output", help="results/tables.json, or results/tables-speed.json")
    arguments = parser.parse_args()
    started, commit = time.monotonic(), current_commit()
    seeds = list(range(arguments.seeds))
    settings: dict[str, Any] = {
        "estimator": ARCSMDensity(max_steps=arguments.max_steps).get_params()
    }
    if arguments.speed:
        output = Path(arguments.output or "results/tables-speed.json")
        threads = current_hardware()["cores"]
        torch.set_num_threads(threads)
        metrics = []
        for seed in seeds:
            measured = measure_speed(
                seed, arguments.max_steps, arguments.speed_rows, arguments.speed_scored
            )
            print("  ".join(f"{m.name} {m.value:.1f} {m.unit}" for m in measured), flush=True)
            metrics += measured
        settings |= {"threads": threads, "rows scored and drawn": arguments.speed_scored}
    else:
        output = Path(arguments.output or "results/tables.json")
        path = partial_file(output, resume=arguments.resume)
        same = [e for e in read_entries(path, Entry) if e.max_steps == arguments.max_steps]
        kept = {entry.key: entry for entry in same}
        entries = run(
            arguments.sets,
            seeds,
            arguments.methods,
            max_steps=arguments.max_steps,
            jobs=arguments.jobs,
            path=path,
            done=kept,
            commit=commit_name(commit),
        )
        metrics = summarise(entries, arguments.methods)
        print_table(entries, arguments.methods, metrics)
        settings |= {
            "sets": arguments.sets,
            "methods": arguments.methods,
            "jobs": arguments.jobs,
            "threads": 1,
            "resumed": sum(entry.key in kept for entry in entries),
            "commits": sorted({entry.commit for entry in entries}),
            **rivals.settings(),
        }
    write_result(
        output,
        experiment="tables-speed" if arguments.speed else "tables",
        metrics=metrics,
        seeds=seeds,
        settings=settings,
        seconds=time.monotonic() - started,
        commit=commit,
    )


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"error: {error}")
