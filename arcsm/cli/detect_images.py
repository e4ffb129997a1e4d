"""`arcsm detect` of images: how unusual each is beside normal ones, and what is to blame."""

from pathlib import Path
from typing import TYPE_CHECKING

from arcsm.cli import options
from arcsm.cli.image_options import Preparation
from arcsm.cli.images import load, read_for
from arcsm.cli.options import Voice
from arcsm.cli.pictures import Pictures, find_pictures
from arcsm.cli.shell import check_new_folder, writing
from arcsm.cli.together import refuse_several
from arcsm.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from arcsm.tasks.images import HeatMap

# The share of normal images that are called outliers.
_SHARE = 0.01
# The colours of a map: more surprising than expected, and less.
_MORE, _LESS = (255, 165, 50), (70, 140, 255)


def detect_images(
    source: Pictures,
    how: Preparation,
    *,
    model: Path | None,
    train: str | None,
    output: str,
    method: str | None,
    heat: Path | None,
    seed: int,
    device: str,
    voice: Voice,
    as_json: bool,
) -> None:
    """Score images beside those of --train, and write a row for each."""
    refuse_several("detect", "which of images runs alone")
    if model is None or train is None:
        raise InputError(
            "expected --model DIR, a model of images, and --train, images that are normal, for"
            f" images as {source.told!r}, got not both; `arcsm train` makes a model"
        )
    normal = find_pictures(train)
    if normal is None:
        raise InputError(
            f"expected images for --train, as {source.told!r} is, got the table {train!r}; pass"
            " a folder, a zip file or a set of images"
        )
    if not options.is_of_images(model):
        raise InputError(
            f"expected a model of images in {str(model)!r}, got one of a table; pass another"
        )
    import numpy as np

    from arcsm.cli.output import RowsOut, check_apart
    from arcsm.data import Table
    from arcsm.tasks.images import ImageDetector
    from arcsm.tasks.images.novelty import REFERENCE

    out = RowsOut(output, model=model, data=source.told, as_json=as_json)
    if heat is not None:
        check_new_folder(heat, "--heat")
        check_apart(heat, model, None)
        for pictures in (source, normal):
            if pictures.name is None and heat.resolve().is_relative_to(
                Path(pictures.told).resolve()
            ):
                raise InputError(
                    f"expected --heat apart from the pictures, got {str(heat)!r} within"
                    f" {pictures.told!r}; choose another folder"
                )
    detector = ImageDetector(load(model, device), method or "auto", seed=seed)
    if heat is not None:
        detector.check_heat_map()
    reporter = voice.reporter()
    with reporter.stage("reading"):
        images = read_for(detector.model, source, how)
        known = read_for(detector.model, normal, how)
    fewest = round(1 / _SHARE)
    if len(known) < fewest:
        raise InputError(
            f"expected at least {fewest} normal images in --train, to know what one in {fewest} of"
            f" them is beyond, got {len(known)}; pass more of them"
        )
    with reporter.rows("looking at normal images", min(len(known), REFERENCE)) as advance:
        threshold = detector.fit(known, progress=advance).threshold(_SHARE)
    with (
        writing(out.place, "nothing was written"),
        out,
        reporter.rows("scoring", len(images)) as advance,
    ):
        score = detector.score(images, progress=advance)
        beyond = score > threshold
        out.append(
            Table({**source.columns(len(images)), "outlier_score": score, "outlier": beyond})
        )
    blamed = np.flatnonzero(beyond)
    if heat is not None and len(blamed):
        with reporter.stage("finding what is to blame"):
            found = detector.heat_map(images.pixels[blamed])
        _write_maps(heat, images.pixels[blamed], found, blamed, len(images))
    voice.say(
        f"{len(blamed):,} of {len(images):,} images are outliers: their outlier_score is above"
        f" {threshold:.4g}, as that of one in {fewest} normal ones is."
    )
    if heat is not None and not len(blamed):
        voice.say("There is nothing to blame: --heat wrote no picture.")
    voice.wrote(len(images), "row", out.place, reporter.total)
    voice.result(
        command="detect",
        data=source.told,
        train=train,
        model=str(model),
        method=detector.method,
        output=output,
        heat=None if heat is None else str(heat),
        images=len(images),
        outliers=len(blamed),
        threshold=threshold,
        seconds=reporter.total,
    )


def _write_maps(
    folder: Path, pixels: "np.ndarray", found: "HeatMap", numbers: "np.ndarray", count: int
) -> None:
    """Write each image beside its map, under its index, the brightest place being as bright.

    Orange is what surprises more than was expected, blue what surprises less: of an image that is
    too smooth, too likely as a whole, that is all there is to see.
    """
    import numpy as np

    from arcsm.files import atomic_directory
    from arcsm.plots.pictures import picture_grid, save_picture

    excess = found.smoothed()[..., None]
    share = excess / np.maximum(np.abs(excess).max((1, 2, 3), keepdims=True), 1e-9)
    colours = np.where(share > 0, _MORE, _LESS) * np.abs(share)
    coloured = np.broadcast_to(pixels, (*pixels.shape[:3], 3))
    both = np.stack([coloured, np.rint(colours).astype(np.uint8)], 1)
    digits = len(str(count - 1))
    enlarge = max(1, 128 // pixels.shape[1])
    with writing(folder, "the scores are written"), atomic_directory(folder) as target:
        for number, pair in zip(numbers, both, strict=True):
            grid = picture_grid(pair, columns=2, enlarge=enlarge)
            save_picture(target / f"{number:0{digits}d}.png", grid)
