"""`arcsm denoise` and `arcsm complete`: images without their noise, and what lies below their top.

Both take a picture or a folder of pictures, and a model that was trained on clean ones of the same
size.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated

import typer

from arcsm.cli import options
from arcsm.cli.options import (
    Device,
    Json,
    Quiet,
    Seed,
    Voice,
    counted,
    examples,
    model_directory,
    prose,
)
from arcsm.cli.shell import check_place, check_writable, writing
from arcsm.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from arcsm.data import Images
    from arcsm.images import ImageModel

DENOISE = prose("""Remove noise from a picture, or from those of a folder.

The model was trained on clean images of the same size. Each scalar becomes the mean of its
posterior, given what was observed of it and the cleaned scalars before it, above and to the left;
those after it count where several views are pooled: a model that was trained with --flips and
--upside-down has four. Under strong Gaussian noise the mean is found by particles, which look some
rows ahead and take longer. --method map or draw gives other estimates, langevin and single-step
those of the paper.""")
DENOISE_EXAMPLES = examples(
    "arcsm denoise noisy.png clean.png --model photos --noise salt-and-pepper:0.1",
    "arcsm denoise noisy clean --model digits --noise gaussian:0.6",
    "arcsm denoise noisy.png other.png --model digits --noise gaussian:0.6 --method draw --seed 7",
)
COMPLETE = prose("""Draw what lies below the top of a picture, or of each in a folder.

The result is a picture with a line for each image: its top, on a grey ground, and the draws.""")
COMPLETE_EXAMPLES = examples(
    "arcsm complete digit.png completed.png --model digits --rows half --draws 4",
    "arcsm complete faces completed.png --model faces --rows 12",
)
_GROUND = 128  # where nothing is known
# Beside one another in a picture.
_MOST_DRAWS = 1000

In = Annotated[
    Path, typer.Argument(metavar="IN", help="A picture, a folder or a .zip.", show_default=False)
]
ModelOption = Annotated[
    Path,
    typer.Option(
        "--model",
        "-m",
        metavar="DIR",
        help="A directory that `arcsm train` wrote, hf://OWNER/NAME, or arcsm:digits.",
        callback=model_directory,
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace an output that is there.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("denoise", help=DENOISE, epilog=DENOISE_EXAMPLES)(denoise)
    app.command("complete", help=COMPLETE, epilog=COMPLETE_EXAMPLES)(complete)


def denoise(
    source: In,
    output: Annotated[
        Path,
        typer.Argument(
            metavar="OUT",
            help="A .png file for a picture, a folder for several.",
            show_default=False,
        ),
    ],
    model: ModelOption,
    noise: Annotated[
        str,
        typer.Option(
            "--noise",
            metavar="KIND:NUMBER",
            help="salt-and-pepper:SHARE, the share of scalars that became black or white; or"
            " gaussian:SIGMA, its deviation for pixels from -1 to 1.",
        ),
    ],
    method: Annotated[
        str,
        typer.Option(
            "--method",
            metavar="NAME",
            help="mean, map, draw, particles, langevin, single-step; auto is particles for"
            " gaussian:0.3 and more, else mean.",
        ),
    ] = "auto",
    views: Annotated[
        list[str] | None,
        typer.Option(
            "--view",
            metavar="NAME",
            help="Pool what the model says of the image as it is (none) and mirrored (left-right,"
            " up-down, both), by any method but draw. Once for each.  \\[default: those it was"
            " trained on; of draw, langevin and single-step none]",
            show_default=False,
        ),
    ] = None,
    particles: Annotated[
        int | None,
        typer.Option(
            "--particles",
            metavar="N",
            min=1,
            help="Of --method particles: more are better, and take longer.  \\[default: 64]",
            show_default=False,
        ),
    ] = None,
    force: Force = False,
    seed: Seed = 0,
    device: Device = "cpu",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Clean pictures and write them."""
    from arcsm.tasks.images import Denoising, denoise_images, parse_noise

    voice = Voice(quiet=quiet, as_json=as_json)
    corruption = parse_noise(noise)
    how = Denoising(method, views=views or None).suited_to(corruption)
    if particles is not None:
        if how.method != "particles":
            raise InputError(
                f"expected --particles with the method particles, got it with {how.method}; leave"
                " it out, or add --method particles"
            )
        how = replace(how, particles=particles)
    several = not _is_file(source)
    _check_output(output, model, source, force=force, folder=several)
    loaded = _load(model, device)
    images, names = _read(source, loaded)
    targets = _targets(names)
    if several:
        _check_replaceable(output, targets)
    reporter = voice.reporter()
    with reporter.rows("denoising", len(images)) as advance:
        clean = denoise_images(loaded, images, corruption, how, seed=seed, progress=advance)
    _write(output, clean, targets if several else None)
    used = how.views_of(loaded)
    voice.say(f"Cleaned by {how.method}, views: {', '.join(used)}.{_unused(how.method, used)}")
    voice.wrote(len(clean), "image", output, reporter.total)
    voice.result(
        command="denoise",
        model=str(model),
        images=len(clean),
        output=str(output),
        noise=noise,
        method=how.method,
        views=list(used),
        seconds=reporter.total,
    )


def complete(
    source: In,
    output: Annotated[Path, typer.Argument(metavar="OUT", help="A .png file.", show_default=False)],
    model: ModelOption,
    rows: Annotated[
        str, typer.Option("--rows", metavar="N", help="Rows that are known: a number, or half.")
    ] = "half",
    draws: Annotated[
        int,
        typer.Option(
            "--draws", metavar="N", min=1, max=_MOST_DRAWS, help="Completions of each image."
        ),
    ] = 4,
    force: Force = False,
    seed: Seed = 0,
    device: Device = "cpu",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Draw completions and write them as one picture."""
    import numpy as np

    from arcsm.plots.pictures import picture_grid, save_picture
    from arcsm.tasks.images import complete as complete_images

    voice = Voice(quiet=quiet, as_json=as_json)
    _check_output(output, model, source, force=force, folder=False)
    loaded = _load(model, device)
    known = _rows(rows, loaded.shape[0])
    images, _ = _read(source, loaded, known)
    reporter = voice.reporter()
    with reporter.rows("completing", len(images) * draws) as advance:
        drawn = complete_images(loaded, images.pixels[:, :known], draws, seed, progress=advance)
    tops = np.full((len(images), *loaded.shape), _GROUND, np.uint8)
    tops[:, :known] = images.pixels[:, :known]
    lines = np.concatenate([tops[:, None], drawn], 1)
    with writing(output, "nothing was written"):
        save_picture(output, picture_grid(lines.reshape(-1, *loaded.shape), columns=draws + 1))
    voice.say(
        f"Wrote {counted(draws, 'completion')} of {counted(len(images), 'image')}, of which"
        f" {counted(known, 'row')} were known, to {output} in {reporter.total:.1f} s."
    )
    voice.result(
        command="complete",
        model=str(model),
        images=len(images),
        rows=known,
        draws=draws,
        output=str(output),
        seconds=reporter.total,
    )


def _unused(method: str, views: Sequence[str]) -> str:
    """Say what of the image no view has used, as a sentence after others; of all of it nothing."""
    if method == "particles":  # they look ahead
        return ""
    from_below = {view in ("up-down", "both") for view in views}
    if len(from_below) == 2:
        return ""
    return f" What lies {'above' if True in from_below else 'below'} a pixel was not used."


def _is_file(source: Path) -> bool:
    """Say whether IN is a single picture."""
    from arcsm.data.images.pictures import SUFFIXES

    if not source.exists():
        raise InputError(
            f"expected a picture or a folder at {str(source)!r}, got nothing there; check the path"
        )
    return source.is_file() and source.suffix.lower() in SUFFIXES


def _load(directory: Path, device: str) -> "ImageModel":
    from arcsm.cli.images import load

    if not options.is_of_images(directory):
        raise InputError(
            f"expected a model of images in {str(directory)!r}, got one of a table; pass another"
        )
    return load(directory, device)


def _read(
    source: Path, model: "ImageModel", known: int | None = None
) -> "tuple[Images, list[str]]":
    """Return pictures of the size of the model, and their names; nothing is cut or scaled.

    Their upper `known` rows alone will do as well.
    """
    from arcsm.data import Images, read_images
    from arcsm.data.images import WHOLE
    from arcsm.data.images.decode import as_array, decode, quiet_decoders
    from arcsm.data.images.pictures import UnreadableError, open_pictures
    from arcsm.images.model import in_words

    if _is_file(source):
        try:
            with quiet_decoders():
                decoded = decode(source.read_bytes())
            pixels = as_array(decoded, size=None, channels=None)[None]
        except UnreadableError as error:
            raise InputError(
                f"expected a whole picture at {str(source)!r}, got: {error}; pass another"
            ) from error
        images, names = Images(pixels, None, source.name, WHOLE), [source.name]
    else:
        try:
            images = read_images(source)
        except InputError as error:  # which may tell of ways to change them
            problem, *advice = str(error).split("; ")
            if not advice or "=" in advice[0]:
                advice = ["convert such pictures, or leave them out"]
            raise InputError("; ".join([problem, *advice])) from error
        with open_pictures(source) as pictures:
            names = pictures.names()
        _check_inside(names, source)
    height, width, channels = model.shape
    if channels == 1 and bool((images.pixels == images.pixels[..., :1]).all()):
        images = replace(images, pixels=images.pixels[..., :1])  # grey, saved as if in colour
    if images.shape not in (model.shape, (known or height, width, channels)):
        rest = "pass others, or another model"
        if known is not None:
            rest = f"pass these whole, their upper {counted(known, 'row')} alone, or other --rows"
        raise InputError(
            f"expected images of {in_words(model.shape)}, as the model was trained on, got"
            f" {in_words(images.shape)} in {str(source)!r}; {rest}"
        )
    return images, names


def _check_inside(names: Sequence[str], source: Path) -> None:
    """Refuse names in a zip file that lead out of it: results are written under the same ones."""
    for name in names:
        path = PurePosixPath(name.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts:
            raise InputError(
                f"expected names of pictures that stay within {str(source)!r}, got {name!r}; pack"
                " them anew"
            )


def _check_output(output: Path, model: Path, source: Path, *, force: bool, folder: bool) -> None:
    """Refuse an output that cannot be, or that is there already, before any work."""
    from arcsm.cli.output import check_apart

    if output.exists() and not force:
        raise InputError(
            f"expected an output that is not there yet, got {str(output)!r}; add --force to replace"
            " it, or choose another"
        )
    if folder:
        if output.exists() and not output.is_dir():
            raise InputError(
                f"expected a folder for the pictures of {str(source)!r}, got the file"
                f" {str(output)!r}; choose another output"
            )
        check_place(output)
    else:
        if output.suffix.lower() != ".png":
            raise InputError(
                f"expected an output that ends in .png, got {str(output)!r}; change it"
            )
        check_writable(output)
    place, origin = output.resolve(), source.resolve()
    # What lies in IN would be read as pictures to be cleaned the next time.
    if place == origin or place in origin.parents or origin in place.parents:
        raise InputError(
            f"expected an OUT apart from IN, got {str(output)!r} and {str(source)!r}; choose"
            " another output"
        )
    check_apart(output, model, None)


def _check_replaceable(output: Path, targets: Sequence[str]) -> None:
    """Refuse a folder with more in it than what will be written anew."""
    kept = {Path(name) for name in targets}
    for path in sorted(output.rglob("*")) if output.is_dir() else ():
        if path.is_file() and path.relative_to(output) not in kept:
            raise InputError(
                "expected a folder with nothing in it but former results to be replaced, got"
                f" {str(output)!r} with {path.name!r} in it; choose another output"
            )


def _targets(names: Sequence[str]) -> list[str]:
    """Return the names of results: those the pictures came with, as .png files."""
    targets = [str(Path(name).with_suffix(".png")) for name in names]
    clash = len(set(targets)) < len(targets)  # a.jpg beside a.png
    return [f"{name}.png" for name in names] if clash else targets


def _write(output: Path, clean: "np.ndarray", targets: Sequence[str] | None) -> None:
    """Write one picture, or a folder of them."""
    from arcsm.files import atomic_directory
    from arcsm.plots.pictures import save_picture

    with writing(output, "nothing was written"):
        if targets is None:
            save_picture(output, clean[0])
            return
        with atomic_directory(output) as folder:
            for name, image in zip(targets, clean, strict=True):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                save_picture(folder / name, image)


def _rows(told: str, height: int) -> int:
    """Return the number of known rows."""
    if told == "half":
        return height // 2
    # Not every digit of Unicode is one to int(), nor are thousands of them.
    if not told.isdecimal() or len(told) > 9 or not 1 <= int(told) < height:
        raise InputError(
            f"expected --rows as half or a number from 1 to {height - 1}, got {told!r}; change it"
        )
    return int(told)
