"""`arcsm detect`: which rows of a table are unusual, and why."""

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from arcsm.cli import image_options
from arcsm.cli.kinds import SYNTAX, parse_kinds
from arcsm.cli.options import (
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
from arcsm.cli.pictures import find_pictures
from arcsm.cli.shell import check_save, writing
from arcsm.cli.sources import Source
from arcsm.cli.together import in_order, speaks
from arcsm.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from arcsm.data import Table
    from arcsm.estimators import ARCSMDetector

SCORE, OUTLIER, BECAUSE = "outlier_score", "outlier", "because"

_LEARN = "What is normal"

_FIRST = 1000  # rows of DATA that are looked at before the training

HELP = prose("""Say of each row of DATA, or of each picture, how unusual it is beside --train.

A higher outlier_score is more unusual; outlier says whether the row is beyond the threshold. With
--explain each outlier gets the surprise of its columns given the others, in nats, and the name of
the most surprising one. DATA needs the columns of --train, in any order; other columns are left
alone. A category never seen before makes a row unusual; a missing value is an error.

Without --train, --model names a directory that --save wrote before.

Where DATA are images, --model names a model of images, and --train images that are normal: those it
was trained on, or others like them. --heat writes a picture of each outlier with the places to
blame: orange where a pixel is more surprising than was expected, blue where it is less, as in
images that are too smooth.""")
EXAMPLES = examples(
    "arcsm detect new.csv --train normal.csv -o scores.csv",
    "arcsm detect new.csv --train normal.csv --explain --keep id -o scores.csv",
    "arcsm detect new.csv --train normal.csv --save detector -o scores.csv",
    "arcsm detect newer.csv --model detector -o scores.csv",
    "arcsm detect photos --model faces --train normal.zip --heat blame -o scores.csv",
)


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("detect", help=HELP, epilog=EXAMPLES)(detect)


def detect(
    data: image_options.AnyData,
    train: Annotated[
        str | None,
        typer.Option(
            "--train",
            metavar="DATA",
            help="Rows or images that are normal, all or nearly all of them.",
            show_default=False,
            rich_help_panel=_LEARN,
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            "--model",
            metavar="DIR",
            help="A directory that --save wrote, in the place of --train; or, for images, one that"
            " `arcsm train` wrote. Also hf://OWNER/NAME and, of digits, arcsm:digits.",
            show_default=False,
            callback=model_directory,
            rich_help_panel=_LEARN,
        ),
    ] = None,
    output: Rows = "-",
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Say of each outlier which columns make it one."),
    ] = False,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep", metavar="COL", help="Copy a column of DATA to the output; can be repeated."
        ),
    ] = None,
    contamination: Annotated[
        float | None,
        typer.Option(
            "--contamination",
            metavar="SHARE",
            help="The share of outliers among the rows of --train, up to 0.5, which sets the"
            " threshold. By default they are normal, and one in a hundred rows like them is called"
            " an outlier.",
            show_default=False,
            rich_help_panel=_LEARN,
        ),
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option("--columns", metavar="NAME=KIND", help=SYNTAX, rich_help_panel=_LEARN),
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(
            "--drop",
            metavar="COL",
            help="Leave a column of --train out; repeat it for more.",
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
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            metavar="NAME",
            help="neighbours, gaussian, mixture, typicality, nll, h, csm or csm-typicality."
            "  \\[default: neighbours; of a model by likelihood, typicality]",
            show_default=False,
            rich_help_panel=image_options.IMAGES,
        ),
    ] = None,
    heat: Annotated[
        Path | None,
        typer.Option(
            "--heat",
            metavar="DIR",
            help="Write each outlier beside a map of what is surprising in it to a new folder.",
            show_default=False,
            rich_help_panel=image_options.IMAGES,
        ),
    ] = None,
    size: image_options.Size = None,
    channels: image_options.Channels = None,
    skip_unreadable: image_options.SkipUnreadable = False,
    device: Device = "cpu",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Learn what is normal or load it, then score and write rows in chunks."""
    learning: dict[str, object] = {
        "--contamination": contamination,
        "--columns": columns,
        "--drop": drop,
        "--save": save,
        "--max-seconds": max_seconds,
        "--max-steps": max_steps,
    }
    how = image_options.Preparation(size, channels, skip_unreadable)
    pictures = find_pictures(data)
    if pictures is not None:
        of_tables = {"--explain": explain or None, "--keep": keep, **learning}
        image_options.refuse(of_tables, "images", "tables", data)
        from arcsm.cli.detect_images import detect_images

        detect_images(
            pictures,
            how,
            model=model,
            train=train,
            output=output,
            method=method,
            heat=heat,
            seed=seed,
            device=device,
            voice=Voice(quiet=quiet, as_json=as_json),
            as_json=as_json,
        )
        return
    of_images = {"--method": method, "--heat": heat, **how.told()}
    image_options.refuse(of_images, "tables", "images", data)
    if (train is None) == (model is None):
        got = "neither" if train is None else "both"
        raise InputError(f"expected --train TABLE or --model DIR, got {got}; give one of them")
    idle = [name for name, value in learning.items() if value is not None]
    if model is not None and idle:
        raise InputError(
            f"expected {', '.join(idle)} with --train, got --model, which has learned already;"
            " leave them out"
        )
    if max_seconds is not None and not 0 < max_seconds < float("inf"):
        raise InputError(f"expected --max-seconds above 0, got {max_seconds:g}; leave it out")
    if contamination is not None and not 0 < contamination <= 0.5:
        raise InputError(
            "expected --contamination as a share above 0 and up to 0.5, got"
            f" {contamination:g}; leave it out if the rows of --train are normal"
        )
    voice = Voice(quiet=quiet, as_json=as_json)
    import numpy as np

    from arcsm.cli.output import RowsOut
    from arcsm.cli.scoring import chunks, located
    from arcsm.data import Table
    from arcsm.devices import check_device
    from arcsm.estimators import ARCSMDetector

    check_device(device)
    out = RowsOut(output, model=model or save, data=data, as_json=as_json)
    if explain:  # before the training, not after it
        out.expect(Table({BECAUSE: np.full(1, None, dtype=object)}))
    _check_places(output, train, save)
    reporter = voice.reporter()
    source, normal = Source(data), None if train is None else Source(train)
    if normal is None:
        assert model is not None
        detector = _load(model, device)
        names, of = detector.density_.model_.columns.names, "of the model"
    else:
        with located(normal, option="--train"):
            table = normal.read()
        table = _choose(table, drop or [])
        names, of = table.names, "of --train"
        detector = ARCSMDetector(
            contamination="auto" if contamination is None else contamination,
            columns=parse_kinds(columns or [], table) or None,
            max_steps=max_steps,
            max_seconds=max_seconds,
            device=device,
            random_state=seed,
        )
    kept = list(dict.fromkeys(keep or []))
    of_columns = [f"surprise[{name}]" for name in names]
    added = {SCORE, OUTLIER, *((BECAUSE, *of_columns) if explain else ())}
    if added.intersection(kept):
        raise InputError(
            "expected --keep of columns other than those that are added, got"
            f" {sorted(added.intersection(kept))}; rename the column in DATA"
        )
    source.require(names, of)
    source.require(kept, "of --keep")
    if kept:  # what is text in the first rows is text, and found before the training
        for first in source.chunks(kept, _FIRST):
            out.expect(first)
            break
    if normal is not None:
        with (
            located(normal, option="--train"),
            reporter.training("training", max_steps) as progress,
        ):
            detector.fit_with_progress(table, progress=progress)
        if save is not None and speaks():
            with writing(save, "choose another place for --save"):
                detector.save(save)
    rows = outliers = 0

    def judged(start: int, chunk: Table) -> Table:
        with located(source, start):
            chosen = chunk.select(names)
            score = -detector.score_samples(chosen)
        beyond = -score < detector.offset_
        found = {name: chunk[name] for name in kept} | {SCORE: score, OUTLIER: beyond}
        if explain:
            found |= _explanation(detector, chosen, beyond, of_columns)
        return Table(found)

    pieces = chunks(source, detector.density_.model_.columns, kept)
    with (
        writing(out.place, "nothing was written"),
        out,
        reporter.rows("scoring") as advance,
        closing(in_order((partial(judged, *piece) for piece in pieces), output)) as tables,
    ):
        for found in tables:
            out.append(found)
            rows, outliers = rows + found.rows, outliers + int(found[OUTLIER].sum())
            advance(found.rows)
    share = outliers / rows if rows else 0.0
    voice.say(
        f"{outliers:,} of {rows:,} rows are outliers ({share:.1%}): their outlier_score is above"
        f" {-detector.offset_:.4g}."
    )
    voice.wrote(rows, "row", out.place, reporter.total)
    voice.result(
        command="detect",
        data=data,
        train=train,
        model=None if model is None else str(model),
        saved=None if save is None else str(save),
        output=output,
        rows=rows,
        outliers=outliers,
        threshold=-detector.offset_,
        seconds=reporter.total,
    )


def _check_places(output: str, train: str | None, save: Path | None) -> None:
    """Refuse places that must not or could not be written, before the training."""
    there = train is not None and Path(output).exists() and Path(train).exists()
    if there and Path(output).samefile(str(train)):
        raise InputError(
            f"expected an --output other than --train, got {output!r} for both; choose another file"
        )
    if save is not None:
        check_save(save)


def _load(directory: Path, device: str) -> "ARCSMDetector":
    if not directory.is_dir():
        got = "a file" if directory.exists() else "nothing there"
        raise InputError(
            f"expected the directory of a detector at {str(directory)!r}, got {got};"
            " `arcsm detect --save` makes one"
        )
    from arcsm.estimators import ARCSMDetector
    from arcsm.tabular import load_tabular

    if load_tabular(directory)[1].get("estimator") != ARCSMDetector.__name__:
        raise InputError(
            f"expected the directory of a detector at {str(directory)!r}, got that of another"
            " model; `arcsm detect --save` makes one"
        )
    return ARCSMDetector.load(directory, device=device)


def _choose(table: "Table", drop: Sequence[str]) -> "Table":
    """Return the columns to learn."""
    unknown = [name for name in drop if name not in table.columns]
    if unknown:
        raise InputError(
            f"expected --drop of columns among {list(table.names)}, got {unknown}; correct the"
            " names"
        )
    chosen = [name for name in table.names if name not in drop]
    if not chosen:
        raise InputError("expected a column to learn, got none; drop fewer of them")
    return table.select(chosen)


def _explanation(
    detector: "ARCSMDetector", table: "Table", outlier: "np.ndarray", names: Sequence[str]
) -> "dict[str, np.ndarray]":
    """Return the columns that say why: empty for rows that are not outliers."""
    import numpy as np

    columns = table.names
    surprise = np.full((table.rows, len(columns)), np.nan)
    because = np.full(table.rows, None, dtype=object)
    rows = np.flatnonzero(outlier)
    if len(rows):
        surprise[rows] = detector.explain(table.take(rows))
        because[rows] = [columns[place] for place in surprise[rows].argmax(1)]
    return {BECAUSE: because, **dict(zip(names, surprise.T, strict=True))}
