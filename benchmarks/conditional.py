"""Predicted distributions of one column given others: ARCSMDensity, quantile forests, NGBoost.

    python benchmarks/conditional.py --jobs 2      # writes results/conditional.json

Two sets that scikit-learn brings along. Of diabetes (442 rows) the target is the progression of the
disease, given the ten columns measured before. Of breast_cancer (569 rows) each of ten features has
three columns (mean, error and worst). The target is the first column of the table that is no
near-copy of a column of another feature, which means that its rank correlation with each of these
is below 0.9 in absolute value; it is predicted from the columns of the nine other features.

Each seed cuts the rows into ten parts; each part is predicted from the nine others. All methods see
the same rows, and predict the same 199 quantiles, at levels from 0.005 to 0.995. Figures are means
over test rows: the log-score (the log-density of the value, nats), the CRPS (twice the mean pinball
loss over the levels), and the share of values in, and the width of, the interval between the
quantiles 0.05 and 0.95. The progression of the disease is a whole number: ARCSMDensity gives the
probability of it, the others a density, which over a unit is the same.

ARCSMDensity has its defaults. The rivals (benchmarks/regressors.py) have theirs and, as "searched",
parameters found by cross-validation among the training rows; they need pip install 'arcsm[bench]'.
Differences have 95 % intervals by the t-test for overlapping training sets of Nadeau and Bengio
(2003).

Every process computes on one thread. Finished jobs are kept in a file of JSON lines beside the
output; --resume goes on from there.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
from forecasts import FOLDS, LEVELS, OWN, Entry, Key, judged, print_table, summarise
from jobs import (
    add_options,
    append_entries,
    commit_name,
    jobs_left,
    partial_file,
    read_entries,
    reason_of,
    run_jobs,
)
from regressors import Predicted, ngboost, quantile_forest
from scipy import stats
from sklearn.model_selection import KFold

from arcsm import ARCSMDensity
from arcsm.data import Table
from arcsm.errors import InputError
from arcsm.results import current_commit, write_result

SETS = ("diabetes", "breast_cancer")
NEAR_COPY = 0.9
TARGET = "target"


@dataclass(frozen=True)
class Task:
    """Covariates (rows, columns) with their names, and the target of each row."""

    x: np.ndarray
    y: np.ndarray
    names: tuple[str, ...]
    target: str


# Sets


def load(name: str) -> Task:
    """Return a set by its name."""
    from sklearn.datasets import load_breast_cancer, load_diabetes

    if name == "diabetes":
        bunch = load_diabetes(scaled=False)
        names = tuple(str(column) for column in bunch.feature_names)
        return Task(bunch.data, bunch.target, names, "disease progression")
    bunch = load_breast_cancer()
    names = tuple(str(column) for column in bunch.feature_names)
    target, others = choose_target(bunch.data, names)
    return Task(
        bunch.data[:, others],
        bunch.data[:, target],
        tuple(names[place] for place in others),
        names[target],
    )


def feature_of(name: str) -> str:
    """Return the feature of a column: "mean radius", "radius error", "worst radius" → radius."""
    return " ".join(word for word in name.split() if word not in ("mean", "error", "worst"))


def choose_target(x: np.ndarray, names: Sequence[str]) -> tuple[int, list[int]]:
    """Return the first column that is no near-copy of those of other features, and these."""
    ranks = stats.rankdata(x, axis=0)
    correlation = np.abs(np.corrcoef(ranks, rowvar=False))
    for place, name in enumerate(names):
        others = [i for i, other in enumerate(names) if feature_of(other) != feature_of(name)]
        if others and correlation[place, others].max() < NEAR_COPY:
            return place, others
    raise InputError("expected a column that is no near-copy of another, got none; use another set")


# Methods


def arcsm_density(
    task: Task, train: np.ndarray, test: np.ndarray, seed: int, max_steps: int | None
) -> Predicted:
    """ARCSMDensity with its defaults."""
    table = Table(
        {name: task.x[:, place].copy() for place, name in enumerate(task.names)} | {TARGET: task.y}
    )
    density = ARCSMDensity(
        conditional_on=list(task.names), max_steps=max_steps, random_state=seed
    ).fit(table.take(train))
    unseen = table.take(test)
    history = density.history_
    return Predicted(
        density.quantile(unseen, LEVELS).astype(np.float64),
        density.score_samples(unseen),
        f"step {history.best_step} of {history.steps}",
    )


def _rival(method: Callable[..., Predicted], search: bool) -> Callable[..., Predicted]:
    def predict(
        task: Task, train: np.ndarray, test: np.ndarray, seed: int, max_steps: int | None
    ) -> Predicted:
        return method(
            task.x[train], task.y[train], task.x[test], task.y[test], LEVELS, seed, search=search
        )

    return predict


METHODS: dict[str, Callable[..., Predicted]] = {
    OWN: arcsm_density,
    "quantile forest": _rival(quantile_forest, search=False),
    "quantile forest, searched": _rival(quantile_forest, search=True),
    "NGBoost": _rival(ngboost, search=False),
    "NGBoost, searched": _rival(ngboost, search=True),
}


# All jobs


def run_job(
    name: str, seed: int, fold: int, method: str, max_steps: int | None, commit: str, path: Path
) -> list[Entry]:
    """Fit and judge; a failure is a result as well."""
    task = load(name)
    parts = KFold(FOLDS, shuffle=True, random_state=seed).split(task.x)
    train, test = list(parts)[fold]
    start, figures, reason, chosen = time.monotonic(), None, None, ""
    try:
        predicted = METHODS[method](task, train, test, seed, max_steps)
        figures, chosen = judged(predicted, task.y[test]), predicted.chosen
        if not all(map(math.isfinite, figures.values())):
            figures, reason = None, "figures that are not finite"
    except Exception as error:
        reason = reason_of(error)
    seconds = time.monotonic() - start
    entry = Entry(
        name,
        seed,
        fold,
        method,
        figures,
        len(train),
        len(test),
        seconds,
        chosen,
        commit,
        reason,
    )
    append_entries(path, [entry])
    return [entry]


def job_of(entry: Entry) -> Key:
    """Return the job that found an entry."""
    return entry.set, entry.seed, entry.fold, entry.method


def told(entries: Sequence[Entry]) -> str:
    """Return a line on what a job found."""
    (entry,) = entries
    said = entry.reason or ", ".join(
        f"{name} {value:.3f}" for name, value in (entry.figures or {}).items()
    )
    return f"{entry.set} {entry.seed}.{entry.fold} {entry.method}: {said} ({entry.seconds:.1f} s)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS), metavar="NAME")
    parser.add_argument(
        "--methods", nargs="+", choices=list(METHODS), default=list(METHODS), metavar="NAME"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--folds", type=int, default=FOLDS, help="how many of the ten parts")
    parser.add_argument("--max-steps", type=int, help="of ARCSMDensity, for rehearsals")
    add_options(parser)
    parser.add_argument("-o", "--output", type=Path, default=Path("results/conditional.json"))
    arguments = parser.parse_args()
    started, commit = time.monotonic(), current_commit()
    sets, methods, output = arguments.sets, arguments.methods, arguments.output
    path = partial_file(output, resume=arguments.resume)
    jobs = [
        (name, seed, fold, method)
        for seed in arguments.seeds
        for fold in range(min(arguments.folds, FOLDS))
        for name in sets
        for method in methods
    ]
    wanted = set(jobs)
    kept = {job_of(e): e for e in read_entries(path, Entry) if job_of(e) in wanted}
    common = arguments.max_steps, commit_name(commit), path
    calls = [(*job, *common) for job in jobs_left(jobs, kept)]
    found = run_jobs(run_job, calls, told, processes=arguments.jobs)
    done = kept | {job_of(entry): entry for entry in found}
    metrics = summarise(done, sets, methods)
    print_table(metrics, sets, methods)
    write_result(
        output,
        experiment="conditional",
        metrics=metrics,
        seeds=arguments.seeds,
        settings={
            "estimator": ARCSMDensity().get_params(),
            "targets": {name: load(name).target for name in sets},
            "methods": methods,
            "folds": min(arguments.folds, FOLDS),
            "max steps": arguments.max_steps,
            "threads": 1,
            "commits": sorted({entry.commit for entry in done.values()}),
            "rivals": {name: _version(name) for name in ("quantile-forest", "ngboost")},
        },
        seconds=time.monotonic() - started,
        commit=commit,
    )


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
