"""`arcsm predict`: quantiles, intervals, means and draws of columns given others."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from arcsm.cli import options
from arcsm.cli.options import Data, Device, Json, Model, Quiet, Rows, Seed, Voice, examples, prose
from arcsm.cli.sources import Source
from arcsm.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import torch

    from arcsm.columns import Columns
    from arcsm.data import Table
    from arcsm.tabular import TabularModel

_LEVELS = (0.05, 0.5, 0.95)  # unless something else is asked for
_SCORE = "log_density"
_SEEDS = 2**31 - 1
_NUMBERS = 1_000_000  # that are read and predicted from at one time

HELP = prose("""Predict columns of a table from others: quantiles, intervals, means, draws.

A model that was trained with --given COL predicts all other columns from these, the covariates:
DATA needs them, and of other columns it is told nothing. Any other model predicts the columns that
DATA has not; those that it has must come first in the order of the model (or --order any).

Without options the quantiles 0.05, 0.5 and 0.95 are written: q0.05\\[COL], q0.5\\[COL], … Those of
the first column to be predicted are exact; where there are several, those of the others are from
1000 draws for each row, the same ones for all that is asked for. Categories, text and truth values
have no order: unless named with --column, which is an error, they are left out of quantiles and
intervals, and all but truth values of means; --draws has them.

DATA is read in pieces: memory does not grow with the file.""")
EXAMPLES = examples(
    "arcsm train people.csv -o income --given age --given city",
    "arcsm predict income new.csv -o predicted.csv",
    "arcsm predict income new.csv --interval 0.9 --mean --keep name -o predicted.csv",
    "arcsm predict income new.csv --draws 10 -o draws.parquet",
    "arcsm predict income people.csv --quantile 0.5 --log-density -o scores.csv",
)


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("predict", help=HELP, epilog=EXAMPLES)(predict)


def predict(
    model: Model,
    data: Data,
    output: Rows = "-",
    quantile: Annotated[
        list[float] | None,
        typer.Option(
            "--quantile",
            metavar="P",
            help="Write the quantile of level P, as q0.5\\[COL]; repeat it for more.",
        ),
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option(
            "--interval",
            metavar="C",
            help="Write the ends of the central interval that holds the value with probability C,"
            " as low\\[COL] and high\\[COL].",
        ),
    ] = None,
    mean: Annotated[
        bool,
        typer.Option(
            "--mean", help="Write mean\\[COL]; of truth values it is the probability of true."
        ),
    ] = False,
    draws: Annotated[
        int,
        typer.Option(
            "--draws", metavar="N", min=0, help="Write N draws of each column, as draw1\\[COL], …"
        ),
    ] = 0,
    log_density: Annotated[
        bool,
        typer.Option(
            "--log-density",
            help="Write log_density of the columns, which DATA then needs, given the covariates.",
        ),
    ] = False,
    column: Annotated[
        list[str] | None,
        typer.Option(
            "--column",
            metavar="COL",
            help="Predict this column and no other; repeat it for more.",
        ),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep", metavar="COL", help="Copy a column of DATA to the output; can be repeated."
        ),
    ] = None,
    seed: Seed = 0,
    device: Device = "cpu",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Predict and write rows in chunks."""
    voice = Voice(quiet=quiet, as_json=as_json)
    from arcsm.cli.pictures import find_pictures
    from arcsm.tabular.predict import check_levels, has_mean, has_quantiles, interval_levels

    levels = list(quantile or ())
    if not (levels or interval is not None or mean or draws or log_density):
        levels = list(_LEVELS)
    wanted = check_levels(levels) if levels else None
    ends = None if interval is None else interval_levels(interval)
    options.require_kind(model, data, images=find_pictures(data) is not None)
    import torch
    from sklearn.utils import check_random_state

    from arcsm.cli.output import RowsOut
    from arcsm.cli.scoring import located
    from arcsm.cli.shell import writing
    from arcsm.data import Table

    out = RowsOut(output, model=model, data=data, as_json=as_json)
    tabular = options.load(model, device).model_
    source = Source(data)
    given, targets = _parts(tabular, source, column or [])
    named = bool(column)
    ordered = (
        [] if wanted is None and ends is None else _with(has_quantiles, tabular, targets, named)
    )
    numbers = _with(has_mean, tabular, targets, named) if mean else []
    if log_density and not tabular.columns.covariates:
        raise InputError(
            "expected a model with covariates for --log-density, got one of all columns; use"
            " arcsm score"
        )
    kept = list(dict.fromkeys(keep or []))
    source.require(kept, "of --keep")
    read = list(tabular.columns.names) if log_density else given
    source.require(read, "of the model")
    generator = torch.Generator(device)
    generator.manual_seed(int(check_random_state(seed).randint(_SEEDS)))
    rows, reporter = 0, voice.reporter()
    with (
        writing(out.place, "nothing was written"),
        out,
        reporter.rows("predicting") as advance,
    ):
        for start, chunk in _chunks(source, tabular, [*read, *kept]):
            columns = {name: chunk[name] for name in kept}
            with located(source, start):
                found = _predicted(
                    tabular, chunk.select(given), wanted, ends, ordered, numbers, generator
                ) | _drawn(tabular, chunk.select(given), targets, draws, generator)
                if log_density:
                    found[_SCORE] = tabular.log_prob(chunk.select(tabular.columns.names))
            clashes = sorted(set(columns).intersection(found))
            if clashes:
                raise InputError(
                    f"expected --keep of columns other than those predicted, got {clashes}; rename"
                    " the column in DATA"
                )
            out.append(Table(columns | found))
            rows += chunk.rows
            advance(chunk.rows)
    for what, having in (("quantiles", ordered), ("means", numbers)):
        left_out = [name for name in targets if name not in having]
        if having and left_out:
            voice.say(
                f"Left out, as they have no {what}: {', '.join(left_out)} (--draws has them)."
            )
    voice.wrote(rows, "row", out.place, reporter.total)
    voice.result(
        command="predict",
        model=str(model),
        data=data,
        output=output,
        rows=rows,
        given=given,
        columns=[
            name for name in targets if draws or log_density or name in ordered or name in numbers
        ],
        quantiles=[float(level) for level in levels],
        interval=interval,
        draws=draws,
        seconds=reporter.total,
    )


def _parts(
    model: "TabularModel", source: Source, chosen: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return the columns that are predicted from, and those that are predicted."""
    columns = model.columns
    given = list(columns.covariates)
    if given:
        source.require(given, "that the model predicts from")
    else:
        there = source.names()
        given = [name for name in columns.names if name in there and name not in chosen]
    targets = [name for name in columns.names if name not in given]
    if not given or not targets:
        raise InputError(
            f"expected some of the columns {list(columns.names)} in {source.told!r}, got"
            f" {'all' if given else 'none'} of them; name those to be predicted with --column, or"
            " train with --given COL"
        )
    unknown = [name for name in chosen if name not in targets]
    if unknown:
        raise InputError(
            f"expected --column among {targets}, which the model predicts, got {unknown}; correct"
            " the names"
        )
    return given, list(dict.fromkeys(chosen)) or targets


def _chunks(
    source: Source, model: "TabularModel", names: Sequence[str]
) -> Iterator[tuple[int, "Table"]]:
    """Yield the row that a chunk starts with, and these columns of its rows."""
    types = {column["name"]: column["type"] for column in model.columns.config["columns"]}
    read = list(dict.fromkeys(names))
    start = 0
    text = [name for name in read if types.get(name) == "text"]
    for table in source.chunks(read, max(1, _NUMBERS // (64 * len(read))), text):
        yield start, table
        start += table.rows


def _with(
    has: "Callable[[Columns, str], bool]",
    model: "TabularModel",
    targets: Sequence[str],
    named: bool,
) -> list[str]:
    """Return the targets that have quantiles, or means; all of those that were named."""
    chosen = [name for name in targets if named or has(model.columns, name)]
    # Where nothing is left, what is wrong is said of the first.
    return chosen or list(targets)


def _predicted(
    model: "TabularModel",
    given: "Table",
    levels: "np.ndarray | None",
    ends: "np.ndarray | None",
    ordered: Sequence[str],
    numbers: Sequence[str],
    generator: "torch.Generator",
) -> "dict[str, np.ndarray]":
    """Return quantiles and intervals of columns with an order, and means of numbers, by name."""
    from arcsm.tabular.predict import predict_both

    points, sides = [] if levels is None else [*levels], [] if ends is None else [*ends]
    if not ordered and not numbers:
        return {}
    quantiles, means = predict_both(
        model, given, [*points, *sides], ordered, numbers, generator=generator
    )
    found: dict[str, np.ndarray] = {}
    for name, values in quantiles.items():
        for place, level in enumerate(points):
            found[f"q{level:g}[{name}]"] = values[:, place]
    if sides:
        for name, values in quantiles.items():
            found[f"low[{name}]"], found[f"high[{name}]"] = values[:, len(points) :].T
    return found | {f"mean[{name}]": values for name, values in means.items()}


def _drawn(
    model: "TabularModel",
    given: "Table",
    targets: Sequence[str],
    draws: int,
    generator: "torch.Generator",
) -> "dict[str, np.ndarray]":
    """Return draws of the columns, by name."""
    found: dict[str, np.ndarray] = {}
    for number in range(1, draws + 1):
        drawn = model.sample(given.rows, given=given, generator=generator)
        for name in targets:
            found[f"draw{number}[{name}]"] = drawn[name]
    return found
