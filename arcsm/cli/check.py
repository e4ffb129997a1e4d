"""`arcsm check`: is a model sound?"""

from typing import Annotated

import typer

from arcsm.cli import options
from arcsm.cli.options import Device, Json, Model, Quiet, Seed, Voice, examples, prose
from arcsm.cli.sources import Source
from arcsm.errors import CheckpointError

HELP = prose("""Say in words whether a model is sound: exit code 0 if it is, 1 if it is not.

Without DATA: does it load, are its samples possible, do its densities integrate to 1, do they agree
with its samples? With DATA also: are the rows possible, how probable are they, and do their values
lie in the predicted distributions where they should (calibration, by the distance of Kolmogorov and
Smirnov, beyond which a right model gets by chance once in 100 checks)? Best are rows that the model
was not trained on. Where columns are real numbers: is arithmetic exact enough, and does the network
obey the heat equation? A line with ! is a warning: the density is sound all the same.""")
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
            help="A table as `arcsm train` takes it, with the columns of the model.",
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
    from arcsm.cli.scoring import chunks, located
    from arcsm.soundness import Finding, Report
    from arcsm.tabular.soundness import Beside, check_alone, check_weights

    try:
        density = options.load(model, device)
    except CheckpointError as error:
        findings = [Finding("loads", False, f"It does not load: {error}.")]
    else:
        tabular = density.model_
        if data is not None:
            source = Source(data)
            source.require(tabular.columns.names, "of the model")
        findings = [check_weights(tabular)]
        if findings[0].good:
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
