"""`arcsm train`: a model from a table or from images, in a run that can be interrupted."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arcsm.cli import image_options, options
from arcsm.cli.image_options import AnyData, ImageTraining, Preparation, refuse
from arcsm.cli.kinds import SYNTAX, parse_kinds
from arcsm.cli.options import Device, Json, Quiet, Seed, Voice, examples, prose
from arcsm.cli.pictures import find_pictures
from arcsm.cli.runs import check_places, told_how_to_resume, words_to_resume
from arcsm.cli.shell import writing
from arcsm.cli.sources import Source
from arcsm.cli.together import speaks
from arcsm.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from arcsm.columns import Columns
    from arcsm.data import Table
    from arcsm.estimators import ARCSMDensity
    from arcsm.progress import Reporter

# Fewer held-out rows say little in a picture; then it shows the rows of the training.
_ENOUGH_HELD_OUT = 50

_TABLE = "Tables"
_RUN = "How long, and where"

HELP = prose("""Learn the density of a table or of images; write a model directory with a card.

What each column is (real, bounded, integer, category, …) is chosen from its values, and shown.
Training stops by itself, when 15 % of the rows, held out for that, say that it gets no better.

DATA may be images as well: mnist, fashion-mnist, cifar10, svhn, celeba, a folder or a zip file of
pictures. (A folder that is called like a set is ./NAME.)

Ctrl-C keeps the state of the run in MODEL_DIR.partial, and --resume goes on from there.

Several processes train together: torchrun --nproc-per-node 2 -m arcsm train DATA -o MODEL_DIR.""")
EXAMPLES = examples(
    "arcsm train people.csv -o people",
    "arcsm train people.csv -o people --drop id --columns age=integer --columns share=bounded:0:1",
    "arcsm train sklearn:wine -o wine --max-seconds 60",
    "arcsm train people.csv -o people --ensemble 4 --order auto",
    "arcsm train people.csv -o income --given age --given city",
    "arcsm train mnist -o digits --download --max-seconds 900",
    "arcsm train photos.zip -o faces --size 32 --channels 3 --network small --device cuda",
)


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("train", help=HELP, epilog=EXAMPLES)(train)


def train(
    context: typer.Context,
    data: AnyData,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="MODEL_DIR", help="The directory to make.", show_default=False
        ),
    ],
    columns: Annotated[
        list[str] | None,
        typer.Option("--columns", metavar="NAME=KIND", help=SYNTAX, rich_help_panel=_TABLE),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="COL",
            help="Learn this column and no other; repeat it for more.",
            rich_help_panel=_TABLE,
        ),
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(
            "--drop",
            metavar="COL",
            help="Leave a column out; repeat it for more.",
            rich_help_panel=_TABLE,
        ),
    ] = None,
    weight: Annotated[
        str | None,
        typer.Option(
            "--weight",
            metavar="COL",
            help="The column that holds the weights of the rows; it is not learned.",
            rich_help_panel=_TABLE,
        ),
    ] = None,
    order: Annotated[
        list[str] | None,
        typer.Option(
            "--order",
            metavar="COL",
            help="The order of the columns in the chain: natural (as in the table), random, auto"
            " (the one that does best on the data), any (one model for all orders, to draw any"
            " columns given any others), or the option once for each column, the first one first."
            "  \\[default: natural]",
            show_default=False,
            rich_help_panel=_TABLE,
        ),
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--given",
            metavar="COL",
            help="Learn the other columns given this one, a covariate, which is not learned"
            " itself: for `arcsm predict`. Repeat it for more.",
            rich_help_panel=_TABLE,
        ),
    ] = None,
    ensemble: Annotated[
        int | None,
        typer.Option(
            "--ensemble",
            metavar="K",
            min=1,
            help="Average the densities of K models: better, and K times the work. The first has"
            " the order asked for, the others have random ones, unless --order lists the columns."
            "  \\[default: 1, with --given 4]",
            show_default=False,
            rich_help_panel=_TABLE,
        ),
    ] = None,
    network: image_options.Network = None,
    method: image_options.Method = None,
    noise: image_options.Noise = None,
    staged: image_options.Staged = False,
    size: image_options.Size = None,
    channels: image_options.Channels = None,
    flips: image_options.Mirrored = None,
    upside_down: image_options.UpsideDown = False,
    batch: image_options.Batch = None,
    most: image_options.Most = None,
    skip_unreadable: image_options.SkipUnreadable = False,
    download: image_options.Download = False,
    track: image_options.Track = None,
    half: image_options.Half = False,
    seed: Seed = 0,
    max_seconds: Annotated[
        float | None,
        typer.Option(
            "--max-seconds",
            metavar="S",
            help="Train no longer than that; --order auto learns the order in a third of it.",
            rich_help_panel=_RUN,
        ),
    ] = None,
    max_steps: Annotated[
        int | None,
        typer.Option(
            "--max-steps", metavar="N", min=1, help="Train no further.", rich_help_panel=_RUN
        ),
    ] = None,
    device: Device = "cpu",
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the run in MODEL_DIR.partial, with the same DATA and options.",
            rich_help_panel=_RUN,
        ),
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Replace the model in MODEL_DIR; a directory of anything else is never replaced.",
            rich_help_panel=_RUN,
        ),
    ] = False,
    card: Annotated[
        bool,
        typer.Option(
            "--card/--no-card",
            help="Write README.md with pictures into MODEL_DIR.",
            rich_help_panel=_RUN,
        ),
    ] = True,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train and save."""
    if max_seconds is not None and not 0 < max_seconds < float("inf"):
        raise InputError(f"expected --max-seconds above 0, got {max_seconds:g}; leave it out")
    voice, again = Voice(quiet=quiet, as_json=as_json), words_to_resume(context.obj)
    how = Preparation(size, channels, skip_unreadable, most, download)
    asked = ImageTraining(network, method, noise, staged, flips, upside_down, batch, track, half)
    pictures = find_pictures(data)
    if pictures is not None:
        of_tables: dict[str, object] = {
            "--columns": columns,
            "--only": only,
            "--drop": drop,
            "--weight": weight,
            "--order": order,
            "--given": given,
            "--ensemble": ensemble,
        }
        refuse(of_tables, "images", "tables", data)
        from arcsm.cli.images import train_images

        train_images(
            pictures,
            how,
            asked,
            output=output,
            seed=seed,
            max_seconds=max_seconds,
            max_steps=max_steps,
            device=device,
            resume=resume,
            force=force,
            card=card,
            again=again,
            voice=voice,
        )
        return
    refuse({**asked.told(), **how.told()}, "tables", "images", data)
    partial = check_places(output, resume=resume, force=force)
    from arcsm.columns import Columns
    from arcsm.devices import check_device
    from arcsm.estimators import ARCSMDensity
    from arcsm.files import discard_directory
    from arcsm.tabular import Settings
    from arcsm.tabular.fitting import check_conditional_on

    check_device(device)
    table, weights = _choose(Source(data).read(), only or [], drop or [], weight)
    kinds = parse_kinds(columns or [], table)
    reporter = voice.reporter()
    # Learned once more inside of `fit`; here to be checked and shown before the training begins.
    covariates = check_conditional_on(given or [], table)
    learned = Columns.learn(table, kinds=kinds, weight=weights, covariates=covariates)
    chain = _order(order, learned)
    # Refused before anything is shown.
    Settings(order=chain, ensemble=ensemble or 1, conditional_on=covariates)
    if learned.scalars and not resume:  # else `fit` says what is wrong; or it was shown before
        _show_columns(learned.describe(), table, reporter)
    density = ARCSMDensity(
        columns=kinds or None,
        order=chain,
        conditional_on=covariates or None,
        ensemble=ensemble,
        max_steps=max_steps,
        max_seconds=max_seconds,
        device=device,
        random_state=seed,
    )
    with told_how_to_resume(partial, again):
        with (
            writing(partial, f"make room, then go on with: {again}"),
            reporter.training("training", max_steps) as progress,
        ):
            if chain == "auto" and not resume:
                progress.racing()
            density.fit_resumable(
                table,
                weights,
                directory=partial,
                resume=resume,
                progress=progress,
                racing=progress.racing,
            )
        if not speaks():
            return  # the first process has the same model, and keeps it
        with writing(output, f"make room, then go on with: {again}"), reporter.stage("saving"):
            shown, about = _card_rows(density, table)
            density.save(output, data=shown if card else None, about_data=about, card=card)
    discard_directory(partial)
    _report(density, table, weights, output, voice, reporter)


def _choose(
    table: "Table", only: Sequence[str], drop: Sequence[str], weight: str | None
) -> tuple["Table", "np.ndarray | None"]:
    """Return the columns to learn, and the weights of the rows."""
    if only and drop:
        raise InputError("expected --only or --drop, got both; one of them says it all")
    for option, names in (
        ("--only", only),
        ("--drop", drop),
        ("--weight", [weight] if weight else []),
    ):
        unknown = [name for name in names if name not in table.columns]
        if unknown:
            raise InputError(
                f"expected {option} of columns among {list(table.names)}, got {unknown};"
                " correct the names"
            )
    chosen = [
        name
        for name in table.names
        if name not in drop and name != weight and (not only or name in only)
    ]
    if not chosen:
        raise InputError("expected a column to learn, got none; drop fewer of them")
    if weight is None:
        return table.select(chosen), None
    from arcsm.columns.checks import check_weight

    values = table.columns[weight]
    if values.dtype == object:
        raise InputError(f"expected numbers in the column {weight!r} of --weight, got text")
    return table.select(chosen), check_weight(values, table.rows)


def _order(words: list[str] | None, columns: "Columns") -> str | list[str]:
    if not words:
        return "natural"
    from arcsm.tabular.fitting import ORDERS

    if len(words) == 1 and words[0] in ORDERS:
        return words[0]
    needed = {name for name in columns.names if columns.scalars_of(name)}
    if len(set(words)) < len(words) or not needed <= set(words) <= set(columns.names):
        raise InputError(
            f"expected --order {', '.join(ORDERS)}, or once for each of the columns"
            f" {list(columns.names)}, got {words}; correct the names"
        )
    return words


def _show_columns(columns: list[dict[str, Any]], table: "Table", reporter: "Reporter") -> None:
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(title=f"{table.rows:,} rows, {len(columns)} columns", title_justify="left")
    for heading in ("column", "taken for", "because"):
        grid.add_column(heading, overflow="fold")
    for column in columns:
        grid.add_row(*(Text(str(column[key])) for key in ("name", "kind", "reason")))
    reporter.console.print(grid)


def _card_rows(density: "ARCSMDensity", table: "Table") -> tuple["Table", str]:
    """Return the rows that the card shows, and what to say of them."""
    held_out = density.held_out_
    if len(held_out) >= _ENOUGH_HELD_OUT:
        return table.take(held_out), (
            "The rows are those held out from the training: they told when to stop, but no weight"
            " was trained on them."
        )
    return table, (
        "The rows are those of the training: too few were held out to show them alone. On new"
        " rows the model does worse."
    )


def _report(
    density: "ARCSMDensity",
    table: "Table",
    weights: "np.ndarray | None",
    output: Path,
    voice: Voice,
    reporter: "Reporter",
) -> None:
    from arcsm.cli.orders import about_order
    from arcsm.tabular.soundness import MeanLogDensity

    held_out, history, mean = density.held_out_, density.history_, MeanLogDensity()
    if len(held_out):
        mean.add(
            density.score_samples(table.take(held_out)),
            None if weights is None else weights[held_out],
        )
        voice.say(f"Held out: {str(mean)[0].lower()}{str(mean)[1:]}")
    voice.say(*about_order(density))
    best = f", best at step {history.best_step}" if history.validation else ""
    voice.say(
        f"Wrote {output} after {history.steps:,} steps{best}, in {reporter.total:.0f} s.",
        f"Next: arcsm check {shlex.quote(str(output))}",
    )
    voice.result(
        command="train",
        model=str(output),
        rows=table.rows,
        columns=[
            {key: column[key] for key in ("name", "kind", "reason")} for column in density.columns_
        ],
        **options.chain(density.model_),
        steps=history.steps,
        best_step=history.best_step,
        held_out_rows=mean.rows,
        held_out_impossible_rows=mean.impossible,
        held_out_mean_log_density=mean.mean,
        seconds=reporter.total,
    )
