"""Anomalies in tables: ARCSMDetector beside eight detectors of PyOD.

    export ARCSM_DATA=...                          # the folder of data sets, see arcsm/data/sets.py
    python benchmarks/detect.py --jobs 16          # writes results/detect.json
    python benchmarks/detect.py --unsupervised     # writes results/detect-unsupervised.json
    python benchmarks/detect.py --choose           # writes results/detect-choose.json
    python benchmarks/detect.py --explain          # writes results/detect-explain.json
    python benchmarks/detect.py --speed            # writes results/detect-speed.json

The rows are those of benchmarks/anomalies.py. The detectors of PyOD have its defaults and get
columns standardised by the training rows; ARCSMDetector has its defaults and gets the rows as they
are. Where anomalies are left in the training rows it is told so by contamination=0.1, the default
of PyOD, to whose detectors it makes no difference. The score is the area under the ROC curve
(AUROC) of the test rows. One fit of ARCSMDetector serves all of its methods: "arcsm" is the
default, "arcsm nll" and so on are the others.

--choose judges the methods on the tasks that the default was chosen by, none of them an ADBench
set. --explain replaces one column of normal test rows by a draw from its marginal, and counts how
often that column is found: by `explain`, by the largest conditional z-score of a Gaussian fitted to
the training rows, and by the largest marginal z-score; on the ADBench sets, and on three tables of
normally distributed rows, where the Gaussian is the truth.

PyOD is needed: pip install 'arcsm[bench]'.

Every process computes on one thread, but for --speed. Finished jobs are kept in a file of JSON
lines beside the output; --resume goes on from there.
"""

import argparse
import math
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from anomalies import (
    CHOICE,
    NORMAL,
    Task,
    adbench_task,
    auroc,
    choice_task,
    corrupted_columns,
    normal_task,
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
from outlier_rivals import RIVALS, Scores, conditional_z, rival_scores, scale_of
from rows import speed_table
from verdicts import Entry, Key, print_table, summarise, told

from arcsm import ARCSMDetector
from arcsm.data.sets import ADBENCH
from arcsm.errors import InputError
from arcsm.results import Metric, current_commit, current_hardware, write_result
from arcsm.tasks.detect import METHODS

DEFAULT = "arcsm"
OWN = {DEFAULT: "auto", **{f"arcsm {m}": m for m in METHODS if m not in ("auto", "multiscale")}}
FINDERS = ("arcsm", "Gaussian", "marginal")
EXPLAINED = 200  # corrupted rows of each set
UNKNOWN = 0.1  # the contamination of rows of which it is not known, which is the default of PyOD


# One job: a set, a seed, and a group of methods that share a fit


def run_job(mode: str, name: str, seed: int, group: str, commit: str, path: Path) -> list[Entry]:
    """Fit and judge; a failure is a result as well."""
    task = load(mode, name, seed)
    start = time.monotonic()
    try:
        mixed = mode == "unsupervised"
        found = (
            explained(task, seed) if mode == "explain" else judged(task, group, seed, mixed=mixed)
        )
    except Exception as error:
        reason = reason_of(error)
        took = time.monotonic() - start
        methods = FINDERS if mode == "explain" else methods_of(group)
        kinds = ["corrupted"] if mode == "explain" else task.kinds
        found = [(method, kind, None, took, 0.0, reason) for method in methods for kind in kinds]
    entries = [
        Entry(
            set=name,
            seed=seed,
            method=method,
            kind=kind,
            value=value,
            rows=len(task.train),
            columns=task.train.shape[1],
            tested=len(task.test),
            fit_seconds=fit_seconds,
            score_seconds=score_seconds,
            commit=commit,
            reason=reason,
        )
        for method, kind, value, fit_seconds, score_seconds, reason in found
    ]
    append_entries(path, entries)
    return entries


def load(mode: str, name: str, seed: int) -> Task:
    """Return the rows of a job."""
    if mode == "choose":
        return choice_task(name, seed)
    if name in NORMAL:
        return normal_task(name, seed)
    return adbench_task(name, seed, unsupervised=mode == "unsupervised")


def methods_of(group: str) -> list[str]:
    """Return the methods that one job of a group judges."""
    return list(OWN) if group == DEFAULT else [group]


Found = tuple[str, str, float | None, float, float, str | None]


def judged(task: Task, group: str, seed: int, *, mixed: bool = False) -> list[Found]:
    """Return the AUROC of each method of a group on each kind of anomaly.

    If the training rows are `mixed`, with anomalies among them, ARCSMDetector is told so.
    """
    if group == DEFAULT:
        scores, took = arcsm_scores(task, seed, UNKNOWN if mixed else "auto")
    else:
        scores, took = rival_scores(task, group)
    found: list[Found] = []
    for method, (outlier_score, seconds) in scores.items():
        for kind in task.kinds:
            some = (task.kind == kind) | (task.kind == "normal")
            area = auroc(outlier_score[some], task.kind[some] == kind)
            bad = "scores that are not finite" if math.isnan(area) else None
            found.append((method, kind, None if bad else area, took, seconds, bad))
    return found


def arcsm_scores(task: Task, seed: int, contamination: float | str) -> tuple[Scores, float]:
    """Return the outlier scores of each method from one fit, with seconds, and those of the fit."""
    start = time.monotonic()
    fitted = ARCSMDetector(contamination=contamination, random_state=seed).fit(task.train)
    fit_seconds = time.monotonic() - start
    scores: Scores = {}
    for name, method in OWN.items():
        detector = fitted if method == "auto" else fitted.with_method(method, task.train)
        start = time.monotonic()
        scores[name] = (-detector.score_samples(task.test), time.monotonic() - start)
    return scores, fit_seconds


def explained(task: Task, seed: int) -> list[Found]:
    """Return how often the corrupted column is the first that each way names."""
    rows, column = corrupted_columns(task, EXPLAINED, seed)
    start = time.monotonic()
    detector = ARCSMDetector(random_state=seed).fit(task.train)
    fit_seconds = time.monotonic() - start
    named = {"arcsm": detector.explain(rows).argmax(1)}
    seconds = time.monotonic() - start - fit_seconds
    named["Gaussian"] = conditional_z(task.train, rows).argmax(1)
    named["marginal"] = np.abs((rows - task.train.mean(0)) / scale_of(task.train)).argmax(1)
    return [
        (
            method,
            "corrupted",
            float((named[method] == column).mean()),
            fit_seconds if method == "arcsm" else 0.0,
            seconds if method == "arcsm" else 0.0,
            None,
        )
        for method in FINDERS
    ]


# All jobs


def job_of(entry: Entry) -> Key:
    """Return the set, seed and group of an entry."""
    own = entry.method in OWN or entry.kind == "corrupted"
    return entry.set, entry.seed, DEFAULT if own else entry.method


def run(
    mode: str, jobs: Sequence[Key], *, processes: int, path: Path, end: float, commit: str
) -> dict[Key, list[Entry]]:
    """Work off jobs, and return what they find."""
    size = {(name, seed): load(mode, name, seed).train.size for name, seed, _ in jobs}
    # The longest first: fits of networks, of many numbers.
    ordered = sorted(jobs, key=lambda job: (job[2] != DEFAULT, -size[job[:2]]))
    calls = [(mode, *job, commit, path) for job in ordered]
    return by_job(run_jobs(run_job, calls, told, processes=processes, end=end), job_of)


# Speed


def measure_speed(seed: int, rows: int, scored: int) -> list[Metric]:
    """Return the seconds to fit and score so many rows, and rows a second of each method."""
    train, unseen = speed_table(rows, seed), speed_table(scored, seed + 1000)
    labels: dict[str, Any] = {"seed": seed, "columns": train.shape[1], "rows": rows}
    start = time.monotonic()
    detector = ARCSMDetector(random_state=seed).fit(train)
    fitted = time.monotonic()
    detector.score_samples(train)
    both = time.monotonic()
    metrics = [
        Metric("fit", fitted - start, unit="s", n=1, labels=labels),
        Metric("fit and score", both - start, unit="s", n=1, labels=labels),
    ]
    for name, method in OWN.items():
        way = detector if method == "auto" else detector.with_method(method, train)
        way.score_samples(unseen[:100])  # the first calls of a process are slower
        start = time.monotonic()
        way.score_samples(unseen)
        speed = scored / (time.monotonic() - start)
        about = {**labels, "method": name, "rows": scored}
        metrics.append(Metric("score_samples", speed, unit="rows/s", n=1, labels=about))
    some = unseen[:50]
    start = time.monotonic()
    detector.explain(some)
    speed = len(some) / (time.monotonic() - start)
    metrics.append(Metric("explain", speed, unit="rows/s", n=1, labels=labels))
    return metrics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    modes = parser.add_mutually_exclusive_group()
    for mode in ("unsupervised", "choose", "explain", "speed"):
        modes.add_argument(f"--{mode}", dest="mode", action="store_const", const=mode)
    parser.set_defaults(mode="detect")
    parser.add_argument("--sets", nargs="+", help="ADBench sets, or tasks of --choose; all of them")
    parser.add_argument("--methods", nargs="+", choices=[DEFAULT, *RIVALS], metavar="NAME")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    add_options(parser, limit=True)
    parser.add_argument("--speed-rows", type=int, default=10_000)
    parser.add_argument("--speed-scored", type=int, default=40_000)
    parser.add_argument("-o", "--output", help="by default as said above")
    arguments = parser.parse_args()
    mode, seeds = arguments.mode, arguments.seeds
    started, commit = time.monotonic(), current_commit()
    title = "detect" if mode == "detect" else f"detect-{mode}"
    output = Path(arguments.output or f"results/{title}.json")
    settings: dict[str, Any] = {"estimator": ARCSMDetector().get_params()}
    if mode == "speed":
        threads = current_hardware()["cores"]
        torch.set_num_threads(threads)
        metrics = []
        for seed in seeds:
            measured = measure_speed(seed, arguments.speed_rows, arguments.speed_scored)
            print("  ".join(f"{m.name} {m.value:.1f} {m.unit}" for m in measured), flush=True)
            metrics += measured
        settings |= {"threads": threads}
    else:
        metrics = _judge(arguments, output, settings, commit)
    write_result(
        output,
        experiment=title,
        metrics=metrics,
        seeds=seeds,
        settings=settings,
        seconds=time.monotonic() - started,
        commit=commit,
    )


def _judge(
    arguments: argparse.Namespace,
    output: Path,
    settings: dict[str, Any],
    commit: Mapping[str, Any],
) -> list[Metric]:
    """Run all jobs of a mode; return their metrics and complete the settings."""
    mode, seeds = arguments.mode, arguments.seeds
    known = {"choose": tuple(CHOICE), "explain": (*ADBENCH, *NORMAL)}.get(mode, ADBENCH)
    sets = arguments.sets or list(known)
    unknown = [name for name in sets if name not in known]
    if unknown:
        raise InputError(f"expected --sets among {', '.join(known)}, got {', '.join(unknown)}")
    groups = [DEFAULT] if mode == "explain" else arguments.methods or [DEFAULT, *RIVALS]
    path = partial_file(output, resume=arguments.resume)
    jobs = [(name, seed, group) for name in sets for seed in seeds for group in groups]
    wanted = set(jobs)
    kept = by_job((e for e in read_entries(path, Entry) if job_of(e) in wanted), job_of)
    done = kept | run(
        mode,
        jobs_left(jobs, kept),
        processes=arguments.jobs,
        path=path,
        end=time.time() + arguments.limit,
        commit=commit_name(commit),
    )
    methods = [method for group in groups for method in methods_of(group)]
    methods = list(FINDERS) if mode == "explain" else methods
    ranked = [method for method in methods if method == DEFAULT or method not in OWN]
    what = "top-1" if mode == "explain" else "AUROC"
    rivals = [method for method in methods if method in RIVALS]
    metrics = summarise(done, methods, seeds, what, ranked, rivals)
    print_table(done, methods, metrics)
    settings |= {
        "sets": sets,
        "jobs not finished": [list(job) for job in jobs if job not in done],
        "methods": methods,
        "threads": 1,
        "resumed": len(kept),
        "commits": sorted({entry.commit for found in done.values() for entry in found}),
        "pyod": _version("pyod"),
    }
    return metrics


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"error: {error}")
