"""`arcsm impute`: a table with its holes filled in."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from arcsm.cli.kinds import SYNTAX, parse_kinds
from arcsm.cli.options import (
    Data,
    Device,
    Json,
    Quiet,
    Rows,
    Seed,
    Voice,
    examples,
    model_directory,
    prose,
)
from arcsm.cli.shell import check_save, check_writable, writing
from arcsm.cli.sources import Source
from arcsm.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from arcsm.data import Table
    from arcsm.estimators import ARCSMImputer

IMPUTATION = "imputation"

_LEARN = "What is learned"

HELP = prose("""Fill in what is missing in DATA: empty fields, NA, NaN, null.

What to put in a hole is learned from the table itself, or from --train, which may have holes too.
What is there stays as it stands in the file. Columns that were not learned, and those without a
single value, are copied as they are.

Means and medians of a category are its most probable value, and whole numbers stay whole. A
--strategy draw keeps the spread of the columns and how they hang together; --multiple 5 writes five
such tables one below the other, told apart by a first column called imputation. With --model the
directory may also be of a density that `arcsm train` wrote, best with --order any: one of a single
order fills exactly where the holes are its last columns, and else by weighted draws.""")
EXAMPLES = examples(
    "arcsm impute survey.csv -o filled.csv",
    "arcsm impute survey.csv --strategy median --ignore name -o filled.csv",
    "arcsm impute survey.csv --multiple 5 --seed 1 -o five.csv",
    "arcsm impute survey.csv -o filled.csv --intervals bounds.csv --coverage 0.9",
    "arcsm impute new.csv --train survey.csv --save imputer -o filled.csv",
    "arcsm impute newer.csv --model imputer -o filled.csv",
)


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("impute", help=HELP, epilog=EXAMPLES)(impute)


def impute(
    data: Data,
    train: Annotated[
        str | None,
        typer.Option(
            "--train",
            metavar="TABLE",
            help="Rows to learn from, a file or a data set like DATA; by default DATA itself.",
            show_default=False,
            rich_help_panel=_LEARN,
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            "--model",
            metavar="DIR",
            help="A directory that --save or `arcsm train` wrote, in the place of learning; or"
            " hf://OWNER/NAME.",
            show_default=False,
            callback=model_directory,
            rich_help_panel=_LEARN,
        ),
    ] = None,
    output: Rows = "-",
    strategy: Annotated[
        str | None,
        typer.Option(
            "--strategy", metavar="HOW", help="mean, median or draw.", show_default="mean"
        ),
    ] = None,
    multiple: Annotated[
        int | None,
        typer.Option(
            "--multiple",
            metavar="M",
            min=1,
            help="Write so many tables, each with its holes drawn anew.",
            show_default=False,
        ),
    ] = None,
    intervals: Annotated[
        str | None,
        typer.Option(
            "--intervals",
            metavar="FILE",
            help="Write a table of all holes: row (from 0), column, and the lower and upper end"
            " between which the value lies with the probability of --coverage.",
            show_default=False,
        ),
    ] = None,
    coverage: Annotated[
        float, typer.Option("--coverage", metavar="P", help="That of --intervals.")
    ] = 0.9,
    columns: Annotated[
        list[str] | None,
        typer.Option("--columns", metavar="NAME=KIND", help=SYNTAX, rich_help_panel=_LEARN),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore",
            metavar="COL",
            help="Do not learn a column, such as a name; it is copied. Repeat it for more.",
            rich_help_panel=_LEARN,
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            "--save",
            metavar="DIR",
            help="Keep what was learned, for --model.",
            show_default=False,
            rich_help_panel=_LEARN,
        ),
    ] = None,
    seed: Seed = 0,
    max_seconds: Annotated[
        float | None,
        typer.Option("--max-seconds", metavar="S", help="Train no longer.", rich_help_panel=_LEARN),
    ] = None,
    max_steps: Annotated[
        int | None,
        typer.Option(
            "--max-steps", metavar="N", min=1, help="Train no further.", rich_help_panel=_LEARN
        ),
    ] = None,
    device: Device = "cpu",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Learn from a table or load what was learned, then fill and write."""
    learning = {
        "--train": train,
        "--columns": columns,
        "--ignore": ignore,
        "--save": save,
        "--max-seconds": max_seconds,
        "--max-steps": max_steps,
    }
    idle = [name for name, value in learning.items() if value is not None]
    if model is not None and idle:
        raise InputError(
            f"expected {', '.join(idle)} without --model, got both: the model has learned already;"
            " leave one out"
        )
    if max_seconds is not None and not 0 < max_seconds < float("inf"):
        raise InputError(f"expected --max-seconds above 0, got {max_seconds:g}; leave it out")
    if not 0 < coverage < 1:
        raise InputError(f"expected --coverage between 0 and 1, got {coverage:g}; give 0.9")
    if multiple is not None and strategy not in (None, "draw"):
        raise InputError(
            f"expected --multiple with --strategy draw, got {strategy!r}, which would fill all"
            " tables alike; leave one out"
        )
    strategy = strategy or ("mean" if multiple is None else "draw")
    voice = Voice(quiet=quiet, as_json=as_json)
    import numpy as np

    from arcsm.cli.fields import as_they_stood, table_of_ends
    from arcsm.cli.output import RowsOut, check_apart
    from arcsm.cli.scoring import located
    from arcsm.columns.incomplete import find_missing
    from arcsm.data import Table, write_table
    from arcsm.devices import check_device
    from arcsm.estimators import ARCSMImputer
    from arcsm.tasks.impute import Imputation, check_strategy

    check_strategy(strategy)
    check_device(device)
    out = RowsOut(output, model=model or save, data=data, as_json=as_json)
    if intervals is not None:
        check_apart(Path(intervals), model or save, data, option="--intervals")
    _check_places(output, train, intervals, save)
    reporter = voice.reporter()
    source = Source(data)
    table = source.read()
    out.expect(table)
    if multiple is not None and IMPUTATION in table.columns:
        raise InputError(
            f"expected no column called {IMPUTATION!r} in DATA with --multiple, which adds one;"
            " rename it"
        )
    if model is not None:
        imputer = _load(model, device)
    else:
        origin, option = (source, "") if train is None else (Source(train), "--train")
        with located(origin, option=option):
            learned_from = table if train is None else origin.read()
        learned_from = _choose(learned_from, ignore or [])
        _require(table, learned_from.names, data, "of --train")
        imputer = ARCSMImputer(
            columns=parse_kinds(columns or [], learned_from) or None,
            max_steps=max_steps,
            max_seconds=max_seconds,
            device=device,
            random_state=seed,
        )
        with (
            located(origin, option=option),
            reporter.training("training", max_steps) as progress,
        ):
            imputer.fit_with_progress(learned_from, progress=progress)
        if save is not None:
            with writing(save, "choose another place for --save"):
                imputer.save(save)
    imputer.set_params(strategy=strategy, random_state=seed)
    names = list(imputer.names_)
    _require(table, names, data, "of the model")
    chosen = table.select(names)
    missing = find_missing(chosen)
    with reporter.stage("filling"):
        filled = (
            [imputer.transform(chosen)] if multiple is None else imputer.multiple(chosen, multiple)
        )
        bounds = None if intervals is None else imputer.intervals(chosen, coverage)
        worth, enough = None, 0.0
        if not imputer.model_.any_order and missing.any():
            used = list(imputer.model_.columns.names)
            imputation = Imputation(imputer.model_)
            worth = imputation.effective(chosen.select(used))
            enough = imputation.particles * (1 - 1e-9)  # all of them, but for rounding
    with writing(out.place, "nothing was written"), out:
        for place, version in enumerate(filled):
            whole = as_they_stood(data, output, table, version)
            first = {} if multiple is None else {IMPUTATION: np.full(table.rows, place + 1)}
            out.append(Table(first | whole.columns))
    if intervals is not None and bounds is not None:
        with writing(intervals, f"the filled rows are in {out.place}"):
            write_table(intervals, table_of_ends(names, missing, *bounds))
    _tell(voice, table, names, missing, imputer, worth, enough)
    written = table.rows * len(filled)
    voice.wrote(written, "row", out.place, reporter.total)
    voice.result(
        command="impute",
        data=data,
        train=train,
        model=None if model is None else str(model),
        saved=None if save is None else str(save),
        output=output,
        intervals=intervals,
        strategy=strategy,
        tables=len(filled),
        rows=written,
        holes=int(missing.sum()),
        rows_with_holes=int(missing.any(1).sum()),
        copied=_copied(table, names, imputer),
        exact=worth is None or bool((worth >= enough).all()),
        least_effective_draws=None if worth is None else float(worth.min()),
        seconds=reporter.total,
    )


def _tell(
    voice: Voice,
    table: "Table",
    names: Sequence[str],
    missing: "np.ndarray",
    imputer: "ARCSMImputer",
    worth: "np.ndarray | None",
    enough: float,
) -> None:
    """Say what was done, and how far it can be relied on."""
    import numpy as np

    holes = int(missing.sum())
    voice.say(
        f"Filled {holes:,} holes of {missing.size:,} cells, in {int(missing.any(1).sum()):,} of"
        f" {table.rows:,} rows."
        if holes
        else "There is no hole in the columns that were learned."
    )
    copied = _copied(table, names, imputer)
    if copied:
        voice.say(f"Copied as they are: {', '.join(copied)}.")
    if worth is not None:
        rows = missing.any(1)
        poor = worth[rows] < enough
        voice.say(
            "The model has one order: exact, but for the noise of draws, in"
            f" {int((~poor).sum()):,} rows with holes."
        )
        if poor.any():
            low, middle = worth[rows][poor].min(), float(np.median(worth[rows][poor]))
            voice.say(
                f"In {int(poor.sum()):,} others by weighted draws, worth {middle:.0f} draws of"
                f" {enough:.0f} in the middle and {low:.0f} at the least; --order any needs"
                " none."
            )


def _copied(table: "Table", names: Sequence[str], imputer: "ARCSMImputer") -> list[str]:
    empty = imputer.empty_features_
    return [name for name in table.names if name not in names or name in empty]


def _require(table: "Table", names: Sequence[str], data: str, of: str) -> None:
    """Refuse DATA without all of the columns."""
    absent = [name for name in names if name not in table.columns]
    if absent:
        raise InputError(
            f"expected the columns {absent} {of} in {data!r}, got {list(table.names)}; add or"
            " rename them"
        )


def _choose(table: "Table", ignore: Sequence[str]) -> "Table":
    """Return the columns to learn."""
    unknown = [name for name in ignore if name not in table.columns]
    if unknown:
        raise InputError(
            f"expected --ignore of columns among {list(table.names)}, got {unknown}; correct the"
            " names"
        )
    chosen = [name for name in table.names if name not in ignore]
    if not chosen:
        raise InputError("expected a column to learn, got none; ignore fewer of them")
    return table.select(chosen)


def _check_places(output: str, train: str | None, intervals: str | None, save: Path | None) -> None:
    """Refuse places that must not or could not be written, before the training."""
    for option, told in {"--output": output, "--intervals": intervals}.items():
        if told is None or train is None or told == "-":
            continue
        there = Path(told).exists() and Path(train).exists()
        if there and Path(told).samefile(train):
            raise InputError(
                f"expected an {option} other than --train, got {told!r} for both; choose another"
                " file"
            )
    if intervals is not None:
        if Path(intervals) == Path(output):
            raise InputError(
                f"expected an --intervals other than --output, got {intervals!r} for both; choose"
                " another file"
            )
        from arcsm.data.tables import check_table_path

        check_table_path(intervals)
        check_writable(Path(intervals))
    if save is not None:
        check_save(save)


def _load(directory: Path, device: str) -> "ARCSMImputer":
    """Return an imputer that --save wrote, or one on a density of `arcsm train`."""
    if not directory.is_dir():
        got = "a file" if directory.exists() else "nothing there"
        raise InputError(
            f"expected the directory of a model at {str(directory)!r}, got {got};"
            " `arcsm impute --save` makes one"
        )
    from arcsm.estimators import ARCSMDensity, ARCSMImputer
    from arcsm.tabular import load_tabular

    if load_tabular(directory)[1].get("estimator") == ARCSMDensity.__name__:
        return ARCSMImputer.from_density(ARCSMDensity.load(directory, device=device))
    return ARCSMImputer.load(directory, device=device)
