"""The files of a folder of results: those of experiments, each with its verdicts, and all others.

Nothing is computed here that is not in the files, and a file that cannot be understood is not
passed over: what is missing must be missing because it was not run.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from arcsm.errors import InputError
from arcsm.experiments import NAMES, Experiment, Store, get_experiment
from arcsm.experiments.experiment import Claim, Verdict
from arcsm.results import Metric, read_result

# The best first. Smoke shows that the code runs, and is no result.
SHOWN_BUDGETS = ("paper", "gpu", "cpu")
# A run of some pieces may have few of the paper's numbers. With less than this share of those that
# another has it is not shown first: a smaller budget with more of them says more then.
_ENOUGH = 1 / 3


@dataclass(frozen=True)
class Entry:
    """A record and the file that it came from, relative to the folder of results."""

    file: str
    record: Mapping[str, Any]
    metrics: Sequence[Metric]

    @property
    def commit(self) -> str:
        """The commit in few characters, and whether the tree was changed."""
        commit = self.record["commit"]
        return commit["id"][:10] + (" with changes" if commit["dirty"] else "")

    @property
    def hardware(self) -> str:
        """The GPU, or the processor and its cores."""
        hardware = self.record["hardware"]
        return str(hardware["gpu"] or f"{hardware['cpu']}, {hardware['cores']} cores")


@dataclass(frozen=True)
class Run:
    """An experiment that was run: what is shown of it, and its runs under other budgets."""

    entry: Entry
    budget: str
    verdicts: Sequence[Verdict]
    figures: Mapping[str, bytes]
    as_today: bool  # whether its settings are still those of the experiment
    others: Sequence["Run"] = ()

    @property
    def left(self) -> Sequence[str]:
        """The pieces that the record is still without."""
        left = self.entry.record["settings"].get("left", ())
        assert isinstance(left, (list, tuple))
        return left

    @property
    def extent(self) -> str:
        """How much of the run is there, or nothing if that is all of it."""
        done = self.entry.record["settings"].get("pieces")
        return f"{done} of {done + len(self.left)} pieces" if self.left else ""

    def has(self, claim: Claim) -> bool:
        """Whether there is a metric that the claim is to be compared with."""
        return self.measured(claim) is not None

    def measured(self, claim: Claim) -> Metric | None:
        """Return the metric that a claim is to be compared with, if there is one."""
        wanted = dict(claim.labels or {}).items()
        return next(
            (
                metric
                for metric in self.entry.metrics
                if metric.name == claim.metric and wanted <= metric.labels.items()
            ),
            None,
        )


@dataclass(frozen=True)
class Results:
    """All experiments, in the order of the paper, with their run if there was one; other files."""

    experiments: Sequence[tuple[Experiment, Run | None]]
    others: Sequence[Entry]
    left_out: Sequence[str] = ()  # files of runs that are no results


def read_folder(folder: str | os.PathLike[str]) -> Results:
    """Read all records of a folder; refuse, naming the file, what is not one."""
    directory = Path(folder)
    if not directory.is_dir():
        got = "a file" if directory.exists() else "nothing there"
        raise InputError(
            f"expected a folder of results at {str(directory)!r}, got {got};"
            " `arcsm reproduce` makes one, --results names another"
        )
    entries = [_read(path) for path in sorted(directory.glob("*.json"))]
    experiments = [get_experiment(name) for name in NAMES]
    of_experiments = {
        f"{experiment.name}-{budget}.json"
        for experiment in experiments
        for budget in experiment.budgets
    }
    by_file = {entry.file: entry for entry in entries}
    return Results(
        [(experiment, _run(directory, experiment, by_file)) for experiment in experiments],
        [entry for entry in entries if entry.file not in of_experiments],
        [
            entry.file
            for entry in entries
            if entry.file in of_experiments and entry.file.endswith("-smoke.json")
        ],
    )


def _read(path: Path) -> Entry:
    try:
        record = read_result(path)
    except InputError as error:
        raise InputError(
            f"expected a whole record of this release in {str(path)!r}, but {error}; run again what"
            " wrote it, or move it out of the folder"
        ) from error
    return Entry(path.name, record, [Metric(**entry) for entry in record["metrics"]])


def _run(directory: Path, experiment: Experiment, entries: Mapping[str, Entry]) -> Run | None:
    runs = [
        _under(directory, experiment, budget, entries[f"{experiment.name}-{budget}.json"])
        for budget in SHOWN_BUDGETS
        if budget in experiment.budgets and f"{experiment.name}-{budget}.json" in entries
    ]
    if not runs:
        return None
    numbers = [sum(map(run.has, experiment.claims)) for run in runs]
    enough = _ENOUGH * max(numbers)
    shown = next(run for run, of in zip(runs, numbers, strict=True) if of >= enough)
    return replace(shown, others=[run for run in runs if run is not shown])


def _under(directory: Path, experiment: Experiment, budget: str, entry: Entry) -> Run:
    """Return what is shown of an experiment under one budget."""
    again = f"run it again with --fresh, or move {entry.file!r} out of the folder"
    settings = entry.record["settings"].get("experiment")
    if (
        entry.record["experiment"] != experiment.name
        or entry.record["settings"].get("budget") != budget
        or not isinstance(settings, Mapping)
    ):
        raise InputError(
            f"expected the record of {experiment.name} under the budget {budget} in"
            f" {entry.file!r}, got that of {entry.record['experiment']}; {again}"
        )
    try:
        verdicts = list(experiment.verdicts(settings, entry.metrics))
    except (LookupError, TypeError, ValueError, StopIteration) as error:
        raise InputError(
            f"expected the metrics of today's {experiment.name} in {entry.file!r}, got others"
            f" ({type(error).__name__}: {error}); {again}"
        ) from error
    store = Store(directory, experiment, budget)
    figures = {
        name: _read_figure(store.directory / f"{name}.png", again)
        for name in entry.record["settings"].get("figures", ())
    }
    return Run(entry, budget, verdicts, figures, settings == store.settings)


def _read_figure(path: Path, again: str) -> bytes:
    if not path.is_file():
        raise InputError(f"expected the figure {str(path)!r}, got nothing there; {again}")
    return path.read_bytes()
