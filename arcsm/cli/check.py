"""`arcsm check`: is a model sound?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from arcsm.cli import options
from arcsm.cli.options import Device, Json, Model, Quiet, Seed, Voice, examples, prose
from arcsm.cli.pictures import find_pictures
from arcsm.cli.sources import Source
from arcsm.errors import CheckpointError

if TYPE_CHECKING:
    from arcsm.soundness import Finding

HELP = prose("""Say in words whether a model is sound: exit code 0 if it is, 1 if it is not.

Without DATA: does it load, are its samples possible, do its densities integrate to 1, do they agree
with its samples? With DATA also: are the rows possible, how probable are they, and do their values
lie in the predicted distributions where they should (calibration, by the distance of Kolmogorov and
Smirnov, beyond which a right model gets by chance once in 100 checks)? Best are rows that the model
was not trained on. Where columns are real numbers: is arithmetic exact enough, and does the network
obey the heat equation? A line with ! is a warning: the density is sound all the same.

Of a model of images: do the probabilities of levels add up to 1, and with DATA, images, how many
bits per dimension do these have?""")
EXAMPLES = examples("arcsm check people", "arcsm check people new.csv --json")


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("check", help=HELP, epilog=EXAMPLES)(check)


def check(
    model: Model,
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="[DATA]",
            help="A table as `arcsm train` takes it, with the columns of the model; or images.",
            show_default=False,
        ),
    ] = None,
    seed: Seed = 0,
    device: Device = "cpu",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Look at the model, then say what was found."""
    voice = Voice(quiet=quiet, as_json=as_json)
    from arcsm.soundness import Finding, Report

    try:
        if options.is_of_images(model):
            findings = _of_images(model, data, seed, device, voice)
        else:
            findings = _of_table(model, data, seed, device, voice)
    except CheckpointError as error:
        findings = [Finding("loads", False, f"It does not load: {error}.")]
    report = Report(tuple(findings))
    voice.say(*str(report).splitlines())
    voice.result(
        command="check",
        model=str(model),
        data=data,
        sound=report.good,
        findings=[
            {
                "name": f.name,
                "good": f.good,
                "matters": f.matters,
                "text": f.text,
                "advice": f.advice,
                **f.numbers,
            }
            for f in findings
        ],
    )
    if not report.good:
        raise typer.Exit(1)


def _of_images(
    model: Path, data: str | None, seed: int, device: str, voice: Voice
) -> list["Finding"]:
    from arcsm.cli.image_options import Preparation
    from arcsm.cli.images import load, read_for
    from arcsm.images.soundness import check_alone, check_beside

    images = None
    of_images = load(model, device)
    if data is not None:
        pictures = find_pictures(data)
        options.require_kind(model, data, images=pictures is not None)
        assert pictures is not None
        images = read_for(of_images, pictures, Preparation())
    reporter = voice.reporter()
    with reporter.console.status("checking the model by itself …"):
        findings = check_alone(of_images, seed=seed)
    if images is not None and findings[0].good:
        with reporter.console.status("checking the model beside the images …"):
            findings += check_beside(of_images, images.pixels, seed=seed)
    return findings


def _of_table(
    model: Path, data: str | None, seed: int, device: str, voice: Voice
) -> list["Finding"]:
    from arcsm.cli.scoring import chunks, located
    from arcsm.tabular.soundness import Beside, check_alone, check_weights

    tabular = options.load(model, device).model_
    if data is not None:
        options.require_kind(model, data, images=find_pictures(data) is not None)
        source = Source(data)
        source.require(tabular.columns.names, "of the model")
    findings = [check_weights(tabular)]
    if not findings[0].good:
        return findings
    reporter = voice.reporter()
    with reporter.console.status("checking the model by itself …"):
        findings += check_alone(tabular, seed, chain=data is None)
    if data is not None:
        beside = Beside(tabular, seed)
        with reporter.rows("scoring") as advance:
            for start, chunk in chunks(source, tabular.columns):
                with located(source, start):
                    beside.add(chunk.select(tabular.columns.names))
                advance(chunk.rows)
        with reporter.console.status("checking the model beside the data …"):
            findings += beside.findings()
    return findings
