"""`arcsm sample`: new rows, or new images, from a model."""

import math
from contextlib import closing
from typing import Annotated

import typer

from arcsm.cli import image_options, options
from arcsm.cli.image_options import refuse
from arcsm.cli.options import Device, Json, Model, Quiet, Rows, Seed, Voice, examples, prose
from arcsm.cli.values import parse_given
from arcsm.errors import InputError

_SEEDS = 2**31 - 1
_ROWS = 1000  # unless another number is asked for

HELP = prose("""Draw new rows, or new images, from a model.

Rows have the columns of the table that it was trained on, with their names, types and bounds. With
--given some columns have the values that you say, and the others are drawn given these. Such
columns must be the first in the order of the model, unless it was trained with --order any.

Of a model of images -o FILE.png is a grid of new ones, and --each FOLDER has a file for each.""")
EXAMPLES = examples(
    "arcsm sample people -n 1000 -o more-people.csv",
    "arcsm sample people -n 5 --seed 7",
    "arcsm sample people -n 100 --given age=40 --given city=Rome",
    "arcsm sample arcsm:digits -o digits.png",
    "arcsm sample digits -n 1000 --each new-digits",
)


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sample", help=HELP, epilog=EXAMPLES)(sample)


def sample(
    model: Model,
    rows: Annotated[
        int | None,
        typer.Option(
            "--rows",
            "-n",
            metavar="N",
            help="How many.  \\[default: 1000, of images 64]",
            min=1,
            max=10**15,
            show_default=False,
        ),
    ] = None,
    output: Rows = "-",
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--given",
            metavar="NAME=VALUE",
            help="The value of a column in all rows, given which the others are drawn. Once for"
            " each column.",
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            metavar="NAME",
            help="How to draw: auto (from the density that is scored), flow, quadrature, or"
            " langevin (annealed Langevin dynamics, which draws only nearly from it).",
        ),
    ] = "auto",
    each: image_options.Each = None,
    steps: image_options.LangevinSteps = None,
    step_size: image_options.StepSize = None,
    seed: Seed = 0,
    device: Device = "cpu",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Draw and write rows in chunks, or images."""
    voice = Voice(quiet=quiet, as_json=as_json)
    if options.is_of_images(model):
        refuse({"--given": given}, "a model of images", "one of a table", str(model))
        if step_size is not None and not 0 < step_size < math.inf:
            raise InputError(
                f"expected --step-size above 0, got {step_size:g}; leave it out for the default"
            )
        from arcsm.cli.images import sample_images

        sample_images(
            model,
            n=rows,
            output=output,
            each=each,
            method=method,
            steps=steps,
            step_size=step_size,
            seed=seed,
            device=device,
            voice=voice,
        )
        return
    of_images = {"--each": each, "--steps": steps, "--step-size": step_size}
    refuse(of_images, "a model of a table", "one of images", str(model))
    rows = _ROWS if rows is None else rows
    import torch
    from sklearn.utils import check_random_state

    from arcsm.cli.output import RowsOut
    from arcsm.cli.shell import writing
    from arcsm.cli.together import in_order

    density = options.load(model, device)  # what is amiss with the model comes before all else
    out = RowsOut(output, model=model, as_json=as_json)
    known = parse_given(given or [], density.model_.columns)
    reporter = voice.reporter()
    # The rows are those of ARCSMDensity.sample with the same seed.
    generator = torch.Generator(density.model_.model.device)
    generator.manual_seed(int(check_random_state(seed).randint(_SEEDS)))
    drawings = density.model_.drawings(rows, given=known, generator=generator, method=method)
    with (
        writing(out.place, "nothing was written"),
        out,
        reporter.rows("sampling", rows) as advance,
        closing(in_order(drawings, output)) as tables,
    ):
        for drawn in tables:
            out.append(drawn)
            advance(drawn.rows)
    voice.wrote(rows, "row", out.place, reporter.total)
    voice.result(
        command="sample",
        model=str(model),
        rows=rows,
        output=output,
        given=known,
        method=method,
        **options.chain(density.model_),
        seconds=reporter.total,
    )
