"""The command line: `arcsm COMMAND`.

One convention for every command: what the user can put right is one line on stderr and exit code 2,
never a traceback; Ctrl-C is one line and exit code 130. Commands raise ArcsmError for the first and
let KeyboardInterrupt pass. What a command needs is imported inside it, so that `arcsm --help`
answers at once.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from arcsm import __version__
from arcsm.errors import ArcsmError, InputError


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turn an ArcsmError into exit code 2 and Ctrl-C into 130, each with one line on stderr."""
    try:
        yield
    except ArcsmError as error:
        print(f"arcsm: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("arcsm: interrupted", file=sys.stderr)
        sys.exit(130)


class _Commands(typer.core.TyperGroup):
    """The commands, each under `exit_codes`: typer itself would swallow Ctrl-C before `main`."""

    def invoke(self, ctx: Any) -> Any:
        with exit_codes():
            return super().invoke(ctx)


app = typer.Typer(
    cls=_Commands,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line; the entry point of `arcsm`."""
    # GNU OpenMP's threads wait for each other by spinning for milliseconds. On a machine with other
    # work that keeps busy the very cores they wait for: training was seen ten times as slow. A
    # short spin costs nothing on an idle one. The variable is read when torch is imported.
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    with exit_codes():
        app(prog_name="arcsm")


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Density models trained through univariate conditional scores."""
    if version:
        print(f"arcsm {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The page to write.", show_default=True)
    ] = Path("arcsm-demo.html"),
    seed: Annotated[int, typer.Option(help="Seed of data, weights and noise.", min=0)] = 0,
    toy: Annotated[str, typer.Option(help="The distribution in two dimensions.")] = "two-spirals",
    quick: Annotated[
        bool, typer.Option("--quick", help="A few seconds of training: the page, not the quality.")
    ] = False,
) -> None:
    """Train on a toy and on digits, and write one page that shows what came of it.

    About two minutes on two cores. The page is one HTML file that needs no network.
    """
    check_writable(output)
    from arcsm.demo import Settings, run_demo

    run_demo(output, Settings(toy=toy, seed=seed, quick=quick))


def check_writable(path: Path) -> None:
    """Refuse an output path that could not be written, before any work is done for it."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise InputError(
            f"expected the path of a file, got the directory {os.fspath(path)!r}; add a file name"
        )
    if target.exists() and not target.is_file():
        # It would not be written to but replaced by a file.
        raise InputError(
            f"expected the path of a file, got the device or pipe {os.fspath(path)!r};"
            " choose another one"
        )
    existing = next(parent for parent in target.parents if parent.exists())
    try:
        # Permission bits say little to root or on a read-only mount: a file is what tells.
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise InputError(
            f"expected a path that can be written, got {os.fspath(path)!r}"
            f" ({error.strerror or error}); choose another one"
        ) from error
