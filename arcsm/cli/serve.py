"""`arcsm app`: a page to play with, served on this machine."""

import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from arcsm.cli.options import Json, Quiet, Voice, examples, model_directory, prose

HELP = prose("""Serve a page to play with: draw a density, learn a table, clean noisy digits.

It runs until Ctrl-C, on this machine alone unless --host says otherwise, and fetches nothing from
elsewhere. Needs the extra app: pip install 'arcsm\\[app]'.""")
EXAMPLES = examples("arcsm app", "arcsm app --port 8080 --no-browser --model digits")


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("app", help=HELP, epilog=EXAMPLES)(serve)


def serve(
    host: Annotated[
        str,
        typer.Option(metavar="NAME", help="Where to listen; 0.0.0.0 lets other machines in."),
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=65535,
            help="The port.  \\[default: the first free one from 7860 on]",
            show_default=False,
        ),
    ] = None,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")
    ] = True,
    model: Annotated[
        Path,
        typer.Option(
            "--model",
            "-m",
            metavar="DIR",
            callback=model_directory,
            help="A model of digits: a directory that `arcsm train mnist` wrote, or hf://OWNER/NAME;"
            " by default the one that comes with arcsm.",
        ),
    ] = Path("arcsm:digits"),
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Serve the page until Ctrl-C."""
    from arcsm.app.server import need_gradio

    voice = Voice(quiet=quiet, as_json=as_json)
    need_gradio()
    from arcsm.app import load_digits, start_server
    from arcsm.cli.options import is_of_images
    from arcsm.errors import InputError

    if not is_of_images(model):
        raise InputError(
            f"expected a model of images in {str(model)!r}, got one of a table; pass another"
        )
    server = start_server(load_digits(model), host=host, port=port, browser=browser)
    voice.say(f"Serving {server.url} until Ctrl-C.")
    voice.result(command="app", url=server.url, model=str(model))
    sys.stdout.flush()
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        voice.say("Stopped.")
    finally:
        server.close()
