"""What the commands do with images and with models of them."""

import math
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from arcsm.cli.image_options import ImageTraining, Preparation
from arcsm.cli.options import Voice
from arcsm.cli.pictures import Pictures, by_options
from arcsm.cli.runs import check_places, told_how_to_resume
from arcsm.cli.shell import check_new_folder, check_place, check_writable, writing
from arcsm.cli.together import refuse_several, speaks
from arcsm.errors import InputError

if TYPE_CHECKING:
    from arcsm.data import Images
    from arcsm.images import ImageModel

# Scalars of held-out images whose probability is told at the end of a training: some seconds. The
# paper's noise needs an integral for each.
_TOLD, _TOLD_TO_INTEGRATE = 100_000, 10_000
_SHOWN = 64  # images of a grid, unless another number is asked for


def train_images(
    source: Pictures,
    how: Preparation,
    asked: ImageTraining,
    *,
    output: Path,
    seed: int,
    max_seconds: float | None,
    max_steps: int | None,
    device: str,
    resume: bool,
    force: bool,
    card: bool,
    again: str,
    voice: Voice,
) -> None:
    """Train on images, and save; `again` is the command line that goes on with the run."""
    partial = check_places(output, resume=resume, force=force)
    if asked.track is not None:
        check_place(asked.track / "events")
    from arcsm.cards import write_image_card
    from arcsm.devices import check_device
    from arcsm.files import atomic_directory, discard_directory
    from arcsm.images import ImageSettings, fit_images
    from arcsm.images.store import write_images_model

    check_device(device)
    settings = ImageSettings(
        network=asked.network,
        method=asked.method or "csm",
        noise=asked.noise or "fine",
        staged=asked.staged,
        flips=asked.flips,
        upside_down=asked.upside_down,
        steps=max_steps,
        max_seconds=max_seconds,
        batch=asked.batch,
        seed=seed,
    )
    reporter = voice.reporter()
    with reporter.stage("reading"):
        images = source.read(how)
    voice.say(_about(images))
    with told_how_to_resume(partial, again):
        with (
            by_options(),
            writing(partial, f"make room, then go on with: {again}"),
            reporter.training("training", None) as progress,
        ):
            model = fit_images(
                images,
                settings,
                device=device,
                directory=partial,
                resume=resume,
                progress=progress,
                track=asked.track if speaks() else None,
                prepared={"size": how.size, "channels": how.channels, "part": images.part},
            )
        if not speaks():
            return  # the first process has the same model, and keeps it
        with reporter.stage("scoring"):
            bits = _held_out_bits(model, images)
        with (
            writing(output, f"make room, then go on with: {again}"),
            reporter.stage("saving"),
            atomic_directory(output) as folder,
        ):
            write_images_model(folder, model, half=asked.half)
            if card:
                title, options = output.resolve().name, {**asked.told(), **how.told()}
                options |= {"--max-seconds": max_seconds, "--max-steps": max_steps}
                options |= {"--seed": seed or None, "--device": device}
                command = _published_command(source.published, title, options)
                write_image_card(folder, model, title=title, bits=bits, command=command)
    discard_directory(partial)
    history = model.history
    assert history is not None
    if bits is not None:
        voice.say(f"Held out: {bits[0]:.3f} bits per dimension, mean of {bits[1]} images.")
    voice.say(
        f"Wrote {output} after {history.steps:,} steps, in {reporter.total:.0f} s.",
        f"Next: arcsm sample {shlex.quote(str(output))} -o samples.png",
    )
    voice.result(
        command="train",
        model=str(output),
        images=len(images),
        note=images.note,
        **model.describe(),
        best_step=history.best_step,
        held_out_images=None if bits is None else bits[1],
        held_out_bits_per_dim=None if bits is None else bits[0],
    )


def _published_command(data: str, title: str, options: dict[str, object]) -> str:
    """Return the command line that makes a model, without the folders of this machine."""
    said = {
        name: value
        for name, value in options.items()
        if value is not None and name not in ("--track", "--download") and value != "cpu"
    }
    words = [word for name, value in said.items() for word in _words(name, value)]
    return shlex.join(["arcsm", "train", data, "-o", title, *words])


def _words(option: str, value: object) -> list[str]:
    return [option] if isinstance(value, bool) else [option, f"{value}"]


def sample_images(
    directory: Path,
    *,
    n: int | None,
    output: str,
    each: Path | None,
    method: str,
    steps: int | None,
    step_size: float | None,
    seed: int,
    device: str,
    voice: Voice,
) -> None:
    """Draw images, and write a grid of them or each to a file of its own."""
    refuse_several("sample", "which of images trains alone")
    from arcsm.cli.output import STDOUT, check_apart
    from arcsm.files import atomic_directory
    from arcsm.plots.pictures import picture_grid, save_picture

    grid = None if output == STDOUT else Path(output)
    if grid is None and each is None:
        raise InputError(
            "expected a file for the images of this model, got none; add -o FILE.png, or --each"
            " FOLDER"
        )
    if grid is not None:
        if grid.suffix.lower() != ".png":
            raise InputError(
                f"expected an --output that ends in .png for images, got {output!r}; change it"
            )
        check_writable(grid)
        check_apart(grid, directory, None)
    if each is not None:
        check_new_folder(each, "--each")
        check_apart(each, directory, None)
    if (steps, step_size) != (None, None) and method not in ("auto", "langevin"):
        raise InputError(
            f"expected --steps and --step-size with --method langevin, got {method!r}; leave them"
            " out"
        )
    model = load(directory, device)
    if (steps, step_size) != (None, None) and method == "auto" and not model.settings.staged:
        instead = "" if model.settings.method == "likelihood" else ", or add it"
        raise InputError(
            "expected --steps and --step-size with --method langevin, got them without; leave them"
            f" out{instead}"
        )
    count, reporter = n or _SHOWN, voice.reporter()
    with reporter.rows("sampling", count) as advance:
        images = model.sample(
            count,
            seed=seed,
            method=method,
            langevin_steps=steps,
            langevin_step_size=step_size,
            progress=advance,
        )
    if grid is not None:
        with writing(grid, "nothing was written"):
            save_picture(grid, picture_grid(images))
    if each is not None:
        digits = len(str(count))
        with writing(each, "nothing was written"), atomic_directory(each) as folder:
            for number, image in enumerate(images, start=1):
                save_picture(folder / f"{number:0{digits}d}.png", image)
    places = " and ".join(str(place) for place in (grid, each) if place is not None)
    voice.wrote(count, "image", places, reporter.total)
    voice.result(
        command="sample",
        model=str(directory),
        images=count,
        output=None if grid is None else str(grid),
        each=None if each is None else str(each),
        method=method,
        seconds=reporter.total,
    )


def score_images(
    directory: Path,
    source: Pictures,
    how: Preparation,
    *,
    output: str,
    device: str,
    voice: Voice,
    as_json: bool,
) -> None:
    """Give the log-probability of each image, and its bits per dimension."""
    refuse_several("score", "which of images trains alone")
    import numpy as np

    from arcsm.cli.output import RowsOut
    from arcsm.data import Table

    out = RowsOut(output, model=directory, data=source.told, as_json=as_json)
    model = load(directory, device)
    images = read_for(model, source, how)
    reporter = voice.reporter()
    with (
        writing(out.place, "nothing was written"),
        out,
        reporter.rows("scoring", len(images)) as advance,
    ):
        nats = model.log_prob(images, progress=advance)
        bits = -nats / (model.dims * np.log(2))
        out.append(
            Table({**source.columns(len(images)), "log_probability": nats, "bits_per_dim": bits})
        )
    mean = float(bits.mean())
    voice.say(
        f"Mean: {mean:.3f} bits per dimension, of {len(images):,} images.",
        f"What is scored: {model.about_probability}.",
    )
    voice.wrote(len(images), "row", out.place, reporter.total)
    voice.result(
        command="score",
        model=str(directory),
        data=source.told,
        output=output,
        images=len(images),
        mean_bits_per_dim=mean if np.isfinite(mean) else None,
        probability=model.about_probability,
        seconds=reporter.total,
    )


def load(directory: Path, device: str) -> "ImageModel":
    """Return the model of images in a directory."""
    from arcsm.devices import check_device
    from arcsm.images import ImageModel

    check_device(device)
    return ImageModel.load(directory, device=device)


def read_for(model: "ImageModel", source: Pictures, how: Preparation) -> "Images":
    """Return images for a model, made ready as those that it was trained on."""
    size = model.prepared.get("size") if how.size is None else how.size
    channels = model.prepared.get("channels") if how.channels is None else how.channels
    if source.name is not None:  # the images of a set are alike but for their size
        channels = how.channels
    images = source.read(replace(how, size=size, channels=channels))
    if images.shape != model.shape:
        from arcsm.images.model import in_words

        height, width, channels = model.shape
        square = f"--size {height} " if height == width else ""
        raise InputError(
            f"expected images of {in_words(model.shape)}, as the model was trained on, got"
            f" {in_words(images.shape)} in {source.told!r}; {square}--channels {channels} brings"
            " pictures of a folder to that"
        )
    return images


def _about(images: "Images") -> str:
    from arcsm.images.model import in_words

    note = f" ({images.note})" if images.note else ""
    return f"{len(images):,} images of {in_words(images.shape)}{note}"


def _held_out_bits(model: "ImageModel", images: "Images") -> tuple[float, int] | None:
    """Return the mean bits per dimension of some held-out images, and how many they are."""
    from arcsm.train import split_rows

    _, held_out = split_rows(len(images), model.settings.training(len(images)))
    scalars = _TOLD if model.settings.noise == "fine" else _TOLD_TO_INTEGRATE
    some = held_out[: max(1, scalars // model.dims)].numpy()
    if len(some) == 0:
        return None
    mean = float(model.bits_per_dim(images.pixels[some]).mean())
    return (mean, len(some)) if math.isfinite(mean) else None
