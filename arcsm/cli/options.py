"""Options that several commands have, and what they stand for."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arcsm.cli.together import own_device, speaks
from arcsm.errors import CheckpointError, InputError
from arcsm.shipped import directory_of

if TYPE_CHECKING:
    from arcsm.estimators import ARCSMDensity
    from arcsm.progress import Reporter
    from arcsm.tabular import TabularModel

SAYING = "What is said"


def model_directory(told: Path | None) -> Path | None:
    """Return the directory of a model that may be on the hub, or come with arcsm."""
    if told is None:
        return None
    # Of two slashes in hf://OWNER/NAME a path keeps one.
    if told.parts[:1] != ("hf:",) or told.exists():
        return directory_of(told)
    from arcsm.hub import PREFIX, fetch_address

    return fetch_address(PREFIX + "/".join(told.parts[1:]))


Data = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="A .csv, .tsv (also .gz), .parquet, .npy or .npz file; or a data set: sklearn:NAME,"
        " and from the folder in the variable ARCSM_DATA adbench:NAME, power, power:test.",
        show_default=False,
    ),
]
Model = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL_DIR",
        help="A directory that `arcsm train` wrote; hf://OWNER/NAME on the Hugging Face hub; or"
        " arcsm:digits, which comes with arcsm.",
        show_default=False,
        callback=model_directory,
    ),
]
Rows = Annotated[
    str,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Where the rows go: .csv, .tsv (also .gz), .parquet, .npy or .npz; - is CSV on"
        " stdout. A file that is there is replaced.",
    ),
]
Seed = Annotated[
    int, typer.Option("--seed", metavar="N", help="Seed of all randomness.", min=0, max=2**32 - 1)
]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="NAME",
        help="Where to compute: cpu, cuda, cuda:1, …",
        callback=own_device,
    ),
]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Say nothing but errors.", rich_help_panel=SAYING),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Give the result as one JSON object on stdout, and say nothing else but errors.",
        rich_help_panel=SAYING,
    ),
]


class Voice:
    """How a command speaks: prose to stderr, or one JSON object to stdout, or not at all."""

    def __init__(self, *, quiet: bool, as_json: bool) -> None:
        # Of several processes the first alone speaks.
        self._quiet, self._as_json = quiet or as_json or not speaks(), as_json and speaks()

    def reporter(self) -> "Reporter":
        """Return what shows the progress."""
        from arcsm.progress import Reporter

        return Reporter(quiet=self._quiet)

    def say(self, *lines: str) -> None:
        """Print lines of prose."""
        if not self._quiet:
            for line in lines:
                print(line, file=sys.stderr)

    def wrote(self, count: int, what: str, place: object, seconds: float) -> None:
        """Say that so many rows or images, as one of them is called, are written now."""
        self.say(f"Wrote {counted(count, what)} to {place} in {seconds:.1f} s.")

    def result(self, **content: Any) -> None:
        """Print the result, if it was asked for."""
        if self._as_json:
            text = json.dumps(content, ensure_ascii=False, allow_nan=False)
            try:
                text.encode(sys.stdout.encoding)
            except UnicodeEncodeError:  # a file name that is no text, or a terminal of old
                text = json.dumps(content, allow_nan=False)
            print(text)


def counted(count: int, what: str) -> str:
    """Return how many there are of what one of them is called.

    >>> counted(1, "row"), counted(1200, "image")
    ('1 row', '1,200 images')
    """
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def prose(text: str) -> str:
    """Return paragraphs as one line each: releases of typer differ in whether they join lines."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def examples(*lines: str) -> str:
    """Return examples as the end of a help text: in paragraphs, which typer does not join."""
    return "\n\n".join(["Examples:", *(line.replace("[", "\\[") for line in lines)])


def load(directory: Path, device: str) -> "ARCSMDensity":
    """Return the model of a table in a directory."""
    _require_directory(directory)
    from arcsm.devices import check_device
    from arcsm.estimators import ARCSMDensity

    check_device(device)
    return ARCSMDensity.load(directory, device=device)


def is_of_images(directory: Path) -> bool:
    """Say whether the model in a directory is one of images; if not, it is one of a table.

    What is neither is refused; what is damaged the loader tells.
    """
    _require_directory(directory)
    from arcsm.images import holds_images_model

    if holds_images_model(directory):
        return True
    _require_of_table(directory)
    return False


def require_kind(directory: Path, data: str, *, images: bool) -> None:
    """Refuse images for a model of a table, and a table for one of images."""
    if is_of_images(directory) != images:
        kinds = ("images", "a table") if images else ("a table", "images")
        raise InputError(
            f"expected {kinds[1]} for the model in {str(directory)!r}, which is of {kinds[1]}, got"
            f" {data!r}, which is {kinds[0]}; pass other DATA, or another model"
        )


def _require_directory(directory: Path) -> None:
    if not directory.is_dir():
        got = "a file" if directory.exists() else "nothing there"
        raise InputError(
            f"expected the directory of a model at {str(directory)!r}, got {got};"
            " `arcsm train` makes one"
        )


def _require_of_table(directory: Path) -> None:
    """Refuse a directory without a model, or with one of neither a table nor images."""
    from arcsm.files import parse_json
    from arcsm.images import holds_images_model
    from arcsm.train import holds_model

    try:
        description = parse_json((directory / "config.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(
            f"expected a model's config.json in {str(directory)!r}, got none; check the path of the"
            " model"
        ) from error
    except ValueError:
        return
    if not holds_model(directory):
        return
    details = description.get("details") or {}
    if not isinstance(details, dict) or "table" in details:
        return
    got = "one of neither; pass a directory that `arcsm train` wrote"
    if holds_images_model(directory.parent):
        got = f"a stage of the model in {str(directory.parent)!r}; pass that"
    raise CheckpointError(
        f"expected a model of a table or of images in {str(directory)!r}, got {got}"
    )


def chain(model: "TabularModel") -> dict[str, Any]:
    """Return what a result as JSON says of the order and of the models that are averaged."""
    return {
        "order": list(model.order),
        "any_order": model.any_order,
        "ensemble": len(model.members),
    }
