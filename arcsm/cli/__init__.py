"""The command line: `arcsm COMMAND`.

The conventions are those of :mod:`arcsm.cli.shell`, the same for every command. What a command
needs is imported inside it, so that `arcsm --help` answers at once.
"""

import os
from typing import Annotated

import typer

from arcsm import __version__
from arcsm.cli import (
    check,
    demo,
    denoise,
    detect,
    impute,
    predict,
    report,
    reproduce,
    sample,
    score,
    serve,
    train,
)
from arcsm.cli.shell import Commands

__all__ = ["app", "main"]

app = typer.Typer(
    cls=Commands,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (
    train,
    sample,
    score,
    predict,
    detect,
    impute,
    denoise,
    check,
    demo,
    serve,
    reproduce,
    report,
):
    module.add_to(app)


def main() -> None:
    """Run the command line; the entry point of `arcsm`."""
    # GNU OpenMP's threads wait for each other by spinning for milliseconds. On a machine with other
    # work that keeps busy the very cores they wait for: training was seen ten times as slow. A
    # short spin costs nothing on an idle one. The variable is read when torch is imported.
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    app(prog_name="arcsm")


@app.callback(
    invoke_without_command=True,
    epilog="The first three commands, from a table to new rows of its kind:\n\n"
    "arcsm train people.csv -o people\n\n"
    "arcsm check people\n\n"
    "arcsm sample people -n 1000 -o more-people.csv",
)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Density models trained through univariate conditional scores."""
    if version:
        print(f"arcsm {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())
