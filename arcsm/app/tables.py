"""A table that somebody brings: what its columns are, its density, its odd rows and its gaps."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from arcsm.columns import Columns
from arcsm.columns.incomplete import find_missing
from arcsm.data import Table, load_sklearn, read_table
from arcsm.errors import InputError
from arcsm.estimators import ARCSMDensity, ARCSMDetector
from arcsm.estimators.imputer import ARCSMImputer
from arcsm.train import Progress

MOST_BYTES = 10_000_000
MOST_ROWS = 5_000
MOST_COLUMNS = 30
LEAST_ROWS = 20
SUFFIXES = (".csv", ".tsv")

MADE_UP = "flats, made up, with empty cells"
EXAMPLES = (MADE_UP, "wine", "iris", "diabetes", "breast_cancer")


@dataclass(frozen=True)
class TableSizes:
    """How much of everything; `seconds` are the limit of each of the trainings."""

    seconds: float = 25.0
    max_steps: int | None = None
    ensemble: int = 4
    odd: int = 5  # rows that are explained
    samples: int = 1_000
    shown_gaps: int = 8


@dataclass(frozen=True)
class Source:
    """A table with its name; `places` says where its rows were among all `rows`, from 0."""

    name: str
    table: Table
    rows: int
    places: Int[ndarray, "drawn"]


@dataclass(frozen=True)
class ColumnNote:
    """What a column is taken for and why; one that cannot be learned has no kind."""

    name: str
    kind: str | None
    reason: str
    gaps: int


@dataclass(frozen=True)
class Stage:
    """What is being done, and the share of it that is done."""

    words: str
    done: float


@dataclass(frozen=True)
class Learned:
    """The density: log-densities of held-out rows, in nats, and rows drawn from it."""

    columns: list[ColumnNote]
    held_out: Float[ndarray, "held_out"]
    trained: int  # rows
    steps: int
    seconds: float
    data: Table
    samples: Any  # a data frame


@dataclass(frozen=True)
class OddRows:
    """The most unusual rows, the most unusual one first, and how surprising each column is."""

    rows: list[int]  # in the table as it came, from 0
    table: Table
    surprise: Float[ndarray, "odd columns"]
    outlier: Bool[ndarray, "odd"]
    beyond: int  # outliers among all rows
    of: int
    left_out: int = 0  # rows with gaps, which were not judged


@dataclass(frozen=True)
class Filled:
    """Rows with gaps, filled in; `was_empty` says which cells."""

    rows: list[int]
    table: Table
    was_empty: Bool[ndarray, "rows columns"]
    cells: int  # of the whole table


def read_source(path: str | os.PathLike[str]) -> Source:
    """Read a file that was dropped on the page."""
    file = Path(path)
    if file.suffix.lower() not in SUFFIXES:
        raise InputError(
            f"expected a file that ends in {' or '.join(SUFFIXES)}, got {file.name!r}; save the"
            " table as CSV"
        )
    size = file.stat().st_size
    if size > MOST_BYTES:
        raise InputError(
            f"expected a file of at most {MOST_BYTES // 10**6} MB, got"
            f" {size / 10**6:.1f} MB; use the command line for larger ones: arcsm train --help"
        )
    return _checked(file.name, read_table(file))


def example(name: str) -> Source:
    """Return one of the tables in `EXAMPLES`.

    >>> example("iris").table.names[0]
    'sepal length (cm)'
    """
    if name == MADE_UP:
        return _checked(name, _flats())
    return _checked(name, load_sklearn(name))


def _checked(name: str, table: Table, seed: int = 0) -> Source:
    """Refuse what is too small or too wide, and take some of too many rows."""
    if table.rows < LEAST_ROWS:
        raise InputError(
            f"expected a table of at least {LEAST_ROWS} rows, got {table.rows} in {name!r}; bring"
            " more of them"
        )
    if len(table.names) > MOST_COLUMNS:
        raise InputError(
            f"expected at most {MOST_COLUMNS} columns, got {len(table.names)} in {name!r}; leave"
            " some out, or use the command line: arcsm train --help"
        )
    places = np.arange(table.rows)
    if table.rows > MOST_ROWS:
        places = np.sort(np.random.default_rng(seed).choice(places, MOST_ROWS, replace=False))
    return Source(name, table.take(places), table.rows, places)


def look_at(table: Table) -> list[ColumnNote]:
    """Say what each column would be taken for, by the cells that are there."""
    notes = []
    gaps = find_missing(table)
    for place, (name, values) in enumerate(table.columns.items()):
        count = int(gaps[:, place].sum())
        try:
            (found,) = Columns.learn(Table({name: values[~gaps[:, place]]})).describe()
            notes.append(ColumnNote(name, found["kind"], found["reason"], count))
        except InputError as error:
            notes.append(ColumnNote(name, None, str(error), count))
    return notes


def analyse(
    source: Source,
    names: Sequence[str],
    sizes: TableSizes,
    report: Callable[[Stage | Learned | OddRows | Filled], None],
    *,
    seed: int = 0,
) -> None:
    """Learn the columns called `names` and report what was found, part by part.

    Empty cells are filled first. The density and the odd rows are those of the complete rows, or,
    if these are too few, of the filled table.
    """
    if not names:
        raise InputError("expected a column to learn, got none; choose some")
    table = source.table.select(names)
    gaps = find_missing(table)
    rows = np.flatnonzero(~gaps.any(1))
    stages = _Stages(3 if gaps.any() else 2, report)
    complete = table.take(rows)
    if gaps.any():
        filled = _fill(table, sizes, stages.next("filling the gaps"), seed)
        report(_shown_gaps(filled, gaps, source.places, sizes.shown_gaps))
        if len(rows) < LEAST_ROWS:
            rows, complete = np.arange(table.rows), filled
    notes = look_at(table)  # by all cells: rows that are left out may have values of their own
    report(_density(complete, notes, sizes, stages.next("learning the density"), seed))
    odd = _odd_rows(complete, source.places[rows], sizes, stages.next("looking for odd rows"), seed)
    report(replace(odd, left_out=table.rows - len(rows)))


class _Stages:
    """Counts the trainings, and makes of each its callback."""

    def __init__(self, count: int, report: Callable[[Stage], None]):
        self._count, self._report, self._number = count, report, 0

    def next(self, words: str) -> Callable[[Progress], None]:
        self._number += 1
        prefix = f"Step {self._number} of {self._count}: {words}"
        self._report(Stage(prefix, 0.0))

        def progress(told: Progress) -> None:
            self._report(Stage(prefix, told.done))

        return progress


def _fill(
    table: Table, sizes: TableSizes, progress: Callable[[Progress], None], seed: int
) -> Table:
    """Return the table with its empty cells filled by medians, which columns can have."""
    imputer = ARCSMImputer(
        strategy="median",
        max_seconds=sizes.seconds,
        max_steps=sizes.max_steps,
        keep_empty_features=True,
        random_state=seed,
    ).fit_with_progress(table, progress=progress)
    filled: Table = imputer.transform(table)
    return filled


def _shown_gaps(
    filled: Table, gaps: Bool[ndarray, "rows columns"], places: ndarray, most: int
) -> Filled:
    rows = np.flatnonzero(gaps.any(1))[:most]
    return Filled(places[rows].tolist(), filled.take(rows), gaps[rows], int(gaps.sum()))


def _density(
    table: Table,
    notes: Sequence[ColumnNote],
    sizes: TableSizes,
    progress: Callable[[Progress], None],
    seed: int,
) -> Learned:
    density = ARCSMDensity(
        max_seconds=sizes.seconds, max_steps=sizes.max_steps, random_state=seed
    ).fit_resumable(table, progress=progress)
    unseen = table.take(density.held_out_)
    constant = {told["name"] for told in density.columns_ if told["kind"] == "constant"}
    return Learned(
        [replace(note, kind="constant") if note.name in constant else note for note in notes],
        density.score_samples(unseen),
        table.rows - unseen.rows,
        density.history_.steps,
        density.history_.seconds,
        table,
        density.sample(sizes.samples),
    )


def _odd_rows(
    table: Table,
    places: ndarray,
    sizes: TableSizes,
    progress: Callable[[Progress], None],
    seed: int,
) -> OddRows:
    detector = ARCSMDetector(
        max_seconds=sizes.seconds,
        max_steps=sizes.max_steps,
        ensemble=sizes.ensemble,
        random_state=seed,
    ).fit_with_progress(table, progress=progress)
    scores = detector.training_scores_
    oddest = np.argsort(scores, kind="stable")[: sizes.odd]
    chosen = table.take(oddest)
    return OddRows(
        places[oddest].tolist(),
        chosen,
        detector.explain(chosen),
        scores[oddest] < detector.offset_,
        int((scores < detector.offset_).sum()),
        table.rows,
    )


def _flats(rows: int = 600, seed: int = 0) -> Table:
    """Return flats to let, made up: rents follow size and place, some cells are empty."""
    random = np.random.default_rng(seed)
    cities = np.array(["Bern", "Basel", "Chur", "Genf"], dtype=object)
    place = random.choice(4, rows, p=[0.35, 0.3, 0.15, 0.2])
    rooms = random.choice([1, 2, 3, 4, 5], rows, p=[0.15, 0.25, 0.3, 0.2, 0.1])
    area = 18 + 22 * rooms * np.exp(0.15 * random.standard_normal(rows))
    rate = np.array([21.0, 22.0, 16.0, 28.0])[place]
    rent = (150 + area * rate) * np.exp(0.12 * random.standard_normal(rows))
    year = 1900 + 122 * random.beta(2.2, 1.3, rows)
    balcony = random.random(rows) < np.where(year > 1960, 0.75, 0.3)
    # Three that do not fit: huge and cheap, tiny and dear, five rooms in a cupboard.
    area[7], rooms[7], rent[7] = 160.0, 5, 590.0
    area[99], rooms[99], rent[99] = 24.0, 1, 3950.0
    area[300], rooms[300] = 21.0, 5
    table = {
        "city": cities[place],
        "rooms": rooms.astype(np.float64),
        "area_m2": area.round(1),
        "rent": rent.round(-1),
        "built": year.round(),
        "balcony": np.where(balcony, "yes", "no").astype(object),
    }
    for name, share in (("rooms", 0.05), ("area_m2", 0.06), ("built", 0.08), ("balcony", 0.04)):
        empty = random.random(rows) < share
        empty[[7, 99, 300]] = False
        table[name][empty] = None if table[name].dtype == object else np.nan
    return Table(table)
