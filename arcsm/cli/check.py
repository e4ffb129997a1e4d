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
was not trained on.""")
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
    from arcsm.cli.soundness import check_alone, check_with
    from arcsm.soundness import Finding

    try:
        density = options.load(model, device)
    except CheckpointError as error:
        findings = [Finding("loads", False, f"It does not load: {error}.")]
    else:
        tabular = density.model_
        if data is not None:
            source = Source(data)
            source.require(tabular.columns.names, "of the model")
        bad = [
            name for name, value in tabular.model.state_dict().items() if not value.isfinite().all()
        ]
        count = sum(parameter.numel() for parameter in tabular.model.parameters())
        findings = [
            Finding(
                "loads",
                not bad,
                f"It loads: {len(tabular.columns.names)} columns, {count:,} parameters.",
            )
            if not bad
            else Finding("loads", False, f"It has weights that are not finite numbers: {bad[0]}.")
        ]
        if not bad:
            reporter = voice.reporter()
            with reporter.console.status("checking the model by itself …"):
                findings += check_alone(tabular, seed)
            if data is not None:
                findings += check_with(tabular, source, seed, reporter)
    sound = all(finding.good for finding in findings)
    for finding in findings:
        voice.say(str(finding))
    voice.say("Sound." if sound else "Not sound.")
    voice.result(
        command="check",
        model=str(model),
        data=data,
        sound=sound,
        findings=[{"name": f.name, "good": f.good, "text": f.text, **f.numbers} for f in findings],
    )
    if not sound:
        raise typer.Exit(1)
