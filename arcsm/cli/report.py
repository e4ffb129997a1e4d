"""`arcsm report`: one page of all results."""

from pathlib import Path
from typing import Annotated

import typer

from arcsm.cli.options import Json, Quiet, Voice, examples, prose
from arcsm.cli.shell import check_writable

HELP = prose("""Write one page with what the paper claims, what came out, and how it was measured.

It is made of the files in the folder of results and needs no network. Experiments that were not run
are shown as not run. With --readme the results are also written into a README, between the lines
<!-- results: begin --> and <!-- results: end -->.""")
EXAMPLES = examples(
    "arcsm report", "arcsm report --results results -o report.html --readme README.md"
)


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report", help=HELP, epilog=EXAMPLES)(report)


def report(
    results: Annotated[
        Path, typer.Option("--results", metavar="FOLDER", help="The folder of results.")
    ] = Path("results"),
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The page to write.")
    ] = Path("arcsm-report.html"),
    readme: Annotated[
        Path | None,
        typer.Option(
            "--readme",
            metavar="FILE",
            help="A README to write the results into.",
            show_default=False,
        ),
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Read the results, write the page."""
    voice = Voice(quiet=quiet, as_json=as_json)
    check_writable(output)
    if readme is not None:
        check_writable(readme)
    from arcsm.report import write_report

    found = write_report(output, results=results, readme=readme)
    run = [experiment.name for experiment, run in found.experiments if run is not None]
    missing = [experiment.name for experiment, run in found.experiments if run is None]
    voice.say(
        f"Wrote {output}: {len(run)} of {len(found.experiments)} experiments,"
        f" {len(found.others)} other records."
    )
    if found.left_out:
        voice.say(
            f"Left out: {', '.join(found.left_out)}; a run under the budget smoke is no result."
        )
    if missing:
        voice.say(f"Not run: {', '.join(missing)}.")
    voice.result(
        command="report",
        output=str(output),
        readme=None if readme is None else str(readme),
        run=run,
        missing=missing,
        others=[entry.file for entry in found.others],
        left_out=list(found.left_out),
    )
