"""`arcsm score`: the log-density of each row of a table, or of each image."""

from contextlib import closing
from functools import partial
from typing import Annotated

import typer

from arcsm.cli import image_options, options
from arcsm.cli.image_options import AnyData, Preparation, refuse
from arcsm.cli.options import Device, Json, Model, Quiet, Rows, Voice, examples, prose
from arcsm.cli.pictures import find_pictures
from arcsm.cli.sources import Source
from arcsm.errors import InputError

SCORE = "log_density"

HELP = prose("""Give the log-density of each row of a table, in nats and in the units of the table.

A row that cannot be has -inf. DATA needs the columns that the model was trained on, in any order;
other columns are left alone. Of a model that was trained with --given COL it is the log-density of
the other columns given these, log q(targets | covariates). DATA is read in pieces: memory does not
grow with the file, unless it is .npz.

Of a model of images DATA are images: each gets its log-probability, in nats, and bits_per_dim, and
pictures are brought to the size and the channels that they had in training.""")
EXAMPLES = examples(
    "arcsm score people people.csv -o scores.csv",
    "arcsm score people new.csv --terms --keep name -o scores.parquet",
    "arcsm score digits mnist:test --most 1000 -o bits.csv",
)


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("score", help=HELP, epilog=EXAMPLES)(score)


def score(
    model: Model,
    data: AnyData,
    output: Rows = "-",
    terms: Annotated[
        bool,
        typer.Option(
            "--terms",
            help="Add what each column contributes, given those before it in the chain:"
            " log_density\\[age], …",
        ),
    ] = False,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep", metavar="COL", help="Copy a column of DATA to the output; can be repeated."
        ),
    ] = None,
    size: image_options.Size = None,
    channels: image_options.Channels = None,
    most: image_options.Most = None,
    skip_unreadable: image_options.SkipUnreadable = False,
    download: image_options.Download = False,
    device: Device = "cpu",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Score and write rows in chunks, or images."""
    voice = Voice(quiet=quiet, as_json=as_json)
    how, pictures = (
        Preparation(size, channels, skip_unreadable, most, download),
        find_pictures(data),
    )
    options.require_kind(model, data, images=pictures is not None)
    if pictures is not None:
        of_tables = {"--terms": terms or None, "--keep": keep}
        refuse(of_tables, "images", "tables", data)
        from arcsm.cli.images import score_images

        score_images(
            model, pictures, how, output=output, device=device, voice=voice, as_json=as_json
        )
        return
    refuse(how.told(), "tables", "images", data)
    from arcsm.cli.output import RowsOut
    from arcsm.cli.scoring import chunks, located
    from arcsm.cli.shell import writing
    from arcsm.cli.together import in_order
    from arcsm.data import Table
    from arcsm.tabular.soundness import MeanLogDensity

    out = RowsOut(output, model=model, data=data, as_json=as_json)
    density = options.load(model, device)
    names = density.model_.columns.names
    kept = list(dict.fromkeys(keep or []))
    of_terms = [f"{SCORE}[{name}]" for name in names]
    clashes = {SCORE, *(of_terms if terms else ())}.intersection(kept)
    if clashes:
        raise InputError(
            f"expected --keep of columns other than those of the scores, got {sorted(clashes)};"
            " rename the column in DATA"
        )
    source = Source(data)
    source.require(names, "of the model")
    source.require(kept, "of --keep")
    reporter, mean = voice.reporter(), MeanLogDensity()

    def scored(start: int, chunk: Table) -> Table:
        with located(source, start):
            log_density, by_column = density.model_.log_prob_and_terms(chunk.select(names))
        columns = {name: chunk[name] for name in kept} | {SCORE: log_density}
        if terms:
            columns |= dict(zip(of_terms, by_column.T, strict=True))
        return Table(columns)

    pieces = chunks(source, density.model_.columns, kept)
    with (
        writing(out.place, "nothing was written"),
        out,
        reporter.rows("scoring") as advance,
        closing(in_order((partial(scored, *piece) for piece in pieces), output)) as tables,
    ):
        for table in tables:
            out.append(table)
            mean.add(table[SCORE])
            advance(table.rows)
    voice.say(str(mean))
    voice.wrote(mean.rows, "row", out.place, reporter.total)
    voice.result(
        command="score",
        model=str(model),
        data=data,
        output=output,
        rows=mean.rows,
        impossible_rows=mean.impossible,
        mean_log_density=mean.mean,
        seconds=reporter.total,
    )
