"""The options that commands have for images alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from arcsm.errors import InputError

IMAGES = "Images"

AnyData = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        help="A table: a .csv, .tsv (also .gz), .parquet, .npy or .npz file, sklearn:NAME, and from"
        " the folder in the variable ARCSM_DATA adbench:NAME, power, power:test. Or images: a"
        " folder or a .zip of pictures, mnist, fashion-mnist, cifar10, svhn, celeba, and the other"
        " part of these, mnist:test, …",
        show_default=False,
    ),
]
Network = Annotated[
    str | None,
    typer.Option(
        "--network",
        metavar="NAME",
        help="made, or a PixelCNN++: tiny (for a CPU), small, base, paper."
        "  \\[default: tiny, on a GPU small]",
        show_default=False,
        rich_help_panel=IMAGES,
    ),
]
Method = Annotated[
    str | None,
    typer.Option(
        "--method",
        metavar="NAME",
        help="csm (composite score matching) or likelihood.  \\[default: csm]",
        show_default=False,
        rich_help_panel=IMAGES,
    ),
]
Noise = Annotated[
    str | None,
    typer.Option(
        "--noise",
        metavar="NAME",
        help="fine (exact probabilities of levels) or paper (a ladder of 10 noise levels)."
        "  \\[default: fine]",
        show_default=False,
        rich_help_panel=IMAGES,
    ),
]
Staged = Annotated[
    bool,
    typer.Option(
        "--staged",
        help="With --noise paper: one network for each noise level.",
        rich_help_panel=IMAGES,
    ),
]
Size = Annotated[
    int | None,
    typer.Option(
        "--size",
        metavar="N",
        min=1,
        help="Bring images to N x N: of a set by averages, others are cut and scaled.",
        rich_help_panel=IMAGES,
    ),
]
Channels = Annotated[
    int | None,
    typer.Option(
        "--channels",
        metavar="N",
        help="Turn pictures into grey (1) or colour (3); what is transparent becomes white.",
        rich_help_panel=IMAGES,
    ),
]
Mirrored = Annotated[
    bool | None,
    typer.Option(
        "--flips/--no-flips",
        help="Mirror images at random.  \\[default: all but mnist and fashion-mnist]",
        show_default=False,
        rich_help_panel=IMAGES,
    ),
]
UpsideDown = Annotated[
    bool,
    typer.Option(
        "--upside-down",
        help="Turn images top to bottom at random, too: with --flips `arcsm denoise` then sees all"
        " sides of a pixel.",
        rich_help_panel=IMAGES,
    ),
]
Batch = Annotated[
    int | None,
    typer.Option("--batch", metavar="N", min=1, help="Images in a step.", rich_help_panel=IMAGES),
]
SkipUnreadable = Annotated[
    bool,
    typer.Option(
        "--skip-unreadable",
        help="Pass over files that are no whole pictures.",
        rich_help_panel=IMAGES,
    ),
]
Most = Annotated[
    int | None,
    typer.Option(
        "--most", metavar="N", min=1, help="Read the first N images.", rich_help_panel=IMAGES
    ),
]
Track = Annotated[
    Path | None,
    typer.Option(
        "--track",
        metavar="DIR",
        help="Write loss curves and, unless trained in stages, sample grids for TensorBoard there.",
        rich_help_panel=IMAGES,
    ),
]
Download = Annotated[
    bool,
    typer.Option(
        "--download",
        help="Fetch a set that is not on the disk.",
        rich_help_panel=IMAGES,
    ),
]
Half = Annotated[
    bool,
    typer.Option(
        "--half", help="Keep the weights in 16 bits: half the file.", rich_help_panel=IMAGES
    ),
]
Each = Annotated[
    Path | None,
    typer.Option(
        "--each",
        metavar="FOLDER",
        help="Write every image to a file of its own, in a new folder.",
        rich_help_panel=IMAGES,
    ),
]
LangevinSteps = Annotated[
    int | None,
    typer.Option(
        "--steps",
        metavar="T",
        min=1,
        help="With --method langevin: steps at each noise level.",
        rich_help_panel=IMAGES,
    ),
]
StepSize = Annotated[
    float | None,
    typer.Option(
        "--step-size",
        metavar="E",
        help="With --method langevin: its ε₀, for pixels from -1 to 1.  \\[default: σ²/2]",
        show_default=False,
        rich_help_panel=IMAGES,
    ),
]


class _Told:
    """Options, each under the name that it has on the command line."""

    def told(self) -> dict[str, object]:
        """Return those that were given."""
        return {
            f"--{'no-' if value is False else ''}{name.replace('_', '-')}": value
            for name, value in vars(self).items()
            if value is not None and (value is not False or name == "flips")
        }


@dataclass(frozen=True)
class Preparation(_Told):
    """How pictures are read, and made ready for a model."""

    size: int | None = None
    channels: int | None = None
    skip_unreadable: bool = False
    most: int | None = None
    download: bool = False


@dataclass(frozen=True)
class ImageTraining(_Told):
    """What is asked of a training on images."""

    network: str | None = None
    method: str | None = None
    noise: str | None = None
    staged: bool = False
    flips: bool | None = None
    upside_down: bool = False
    batch: int | None = None
    track: Path | None = None
    half: bool = False


def refuse(given: Mapping[str, object], kind: str, other: str, told: str) -> None:
    """Refuse options that belong to data of another kind than those in `told`."""
    wrong = [option for option, value in given.items() if value not in (None, [])]
    if wrong:
        raise InputError(
            f"expected options for {kind}, as {told!r} is, got {wrong[0]}, which is for {other};"
            " leave it out"
        )
