"""`arcsm demo`: one page that shows what the method does."""

from pathlib import Path
from typing import Annotated

import typer

from arcsm.cli.options import examples, prose
from arcsm.cli.shell import check_writable

HELP = prose("""Train on a toy and on digits, and write one page that shows what came of it.

About two minutes on two cores. The page is one HTML file that needs no network.""")
EXAMPLES = examples("arcsm demo", "arcsm demo --toy rings --quick -o rings.html")


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo", help=HELP, epilog=EXAMPLES)(demo)


def demo(
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE", help="The page to write.", show_default=True
        ),
    ] = Path("arcsm-demo.html"),
    seed: Annotated[int, typer.Option(help="Seed of data, weights and noise.", min=0)] = 0,
    toy: Annotated[str, typer.Option(help="The distribution in two dimensions.")] = "two-spirals",
    quick: Annotated[
        bool, typer.Option("--quick", help="A few seconds of training: the page, not the quality.")
    ] = False,
) -> None:
    """Run the demonstration."""
    check_writable(output)
    from arcsm.demo import Settings, run_demo

    run_demo(output, Settings(toy=toy, seed=seed, quick=quick))
