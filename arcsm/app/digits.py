"""Digits of 28 × 28 pixels: where they come from, and what a model makes of them when spoiled."""

import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt8
from numpy import ndarray

from arcsm.data import load_images
from arcsm.errors import InputError
from arcsm.images import ImageModel
from arcsm.metrics import psnr
from arcsm.tasks.images import Corruption, complete, denoise_images

SIDE = 28
SHAPE = (SIDE, SIDE, 1)
# As in MNIST: a digit fills a square of 20 pixels, with its centre of mass in the middle.
_BOX = 20
_LEAST_INK = 20.0


@dataclass(frozen=True)
class DigitSizes:
    """How much of everything."""

    draws: int = 6  # completions


@dataclass(frozen=True)
class Restored:
    """A digit and what became of it; what is not there yet is None."""

    digit: UInt8[ndarray, "28 28 1"]
    noisy: UInt8[ndarray, "28 28 1"]
    cleaned: UInt8[ndarray, "28 28 1"] | None = None
    completed: UInt8[ndarray, "draws 28 28 1"] | None = None

    @property
    def gain(self) -> tuple[float, float] | None:
        """The PSNR before and after, in dB."""
        if self.cleaned is None:
            return None
        before, after = psnr(np.stack([self.noisy, self.cleaned]), np.stack([self.digit] * 2))
        return float(before), float(after)


def load_digits(directory: str | os.PathLike[str]) -> ImageModel:
    """Read a model of digits, and refuse one that could not clean or complete them."""
    model = ImageModel.load(directory)
    settings = model.settings
    able = settings.method == "csm" and settings.noise == "fine" and not settings.staged
    if model.shape != SHAPE or not able:
        height, width, channels = model.shape
        raise InputError(
            f"expected a model of grey digits, {SIDE} x {SIDE}, trained by score matching with fine"
            f" noise, got one of {width} x {height} x {channels} by {settings.method!r} with noise"
            f" {settings.noise!r} in {os.fspath(directory)!r}; train one with:"
            " arcsm train mnist -o digits"
        )
    return model


def example_digits() -> UInt8[ndarray, "10 28 28 1"]:
    """Return a digit of each kind: of MNIST's test set where it is found, else of scikit-learn.

    Those of scikit-learn have 8 × 8 pixels, and are enlarged; what that has blurred is made crisp,
    as a model of MNIST knows no grey strokes.
    """
    try:
        images = load_images("mnist", "test")
        return np.stack([images.pixels[_first(images.labels, kind)] for kind in range(10)])
    except InputError:
        from sklearn.datasets import load_digits as load_small

        small = load_small()
        found = [framed(small.images[_first(small.target, kind)] / 16) for kind in range(10)]
        ink = (np.stack(found) / 255 - 0.4) / 0.35
        return (ink.clip(0, 1) * 255).astype(np.uint8)


def _first(labels: ndarray | None, kind: int) -> int:
    return int(np.flatnonzero(np.asarray(labels) == kind)[0])


def framed(ink: Float[ndarray, "height width"]) -> UInt8[ndarray, "28 28 1"]:
    """Return ink, from 0 to 1, as a digit of the form that MNIST has: white on black."""
    from PIL import Image

    if ink.max(initial=0.0) <= 0.1:
        raise _nothing()
    rows, columns = (np.flatnonzero(ink.max(axis) > 0.1) for axis in (1, 0))
    part = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    scale = _BOX / max(part.shape)
    size = [max(1, round(scale * length)) for length in part.shape]
    small = Image.fromarray((part * 255).astype(np.uint8)).resize(
        (size[1], size[0]), Image.Resampling.BICUBIC if scale > 1 else Image.Resampling.BOX
    )
    levels = np.asarray(small, dtype=np.uint8)
    mass = levels.sum() or 1
    digit = np.zeros((SIDE, SIDE, 1), np.uint8)
    corner = []
    for axis, length in enumerate(size):
        centre = (levels.sum(1 - axis) * (np.arange(length) + 0.5)).sum() / mass
        corner.append(int(np.clip(round(SIDE / 2 - centre), 0, SIDE - length)))
    digit[corner[0] : corner[0] + size[0], corner[1] : corner[1] + size[1], 0] = levels
    return digit


def digit_of(picture: UInt8[ndarray, "height width 4"]) -> UInt8[ndarray, "28 28 1"]:
    """Return the digit on a pad, RGB and alpha: one that was drawn there, or a picture of one.

    Dark on light and light on dark are told apart by the corners of the picture.
    """
    seen = picture[..., 3] > 0
    if not seen.any():
        raise _nothing()
    # An uploaded picture is as high or as wide as the pad, and opaque up to its corners.
    rows, columns = (np.flatnonzero(seen.any(axis)) for axis in (1, 0))
    part = picture[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    fills = part.shape[0] == picture.shape[0] or part.shape[1] == picture.shape[1]
    uploaded = fills and bool((part[[0, 0, -1, -1], [0, -1, 0, -1], 3] == 255).all())
    ink = _ink_of_picture(part) if uploaded else picture[..., 3] / 255
    if ink.sum() < _LEAST_INK:
        raise _nothing()
    return framed(ink)


def _ink_of_picture(picture: UInt8[ndarray, "height width 4"]) -> Float[ndarray, "height width"]:
    """Return from 0 to 1 how far each pixel is from the ground that the corners show."""
    grey = picture[..., :3].mean(-1) / 255
    height, width = grey.shape
    tall, wide = max(1, height // 10), max(1, width // 10)
    corners = np.concatenate(
        [grey[rows, columns].ravel() for rows in (slice(tall), slice(-tall, None))
         for columns in (slice(wide), slice(-wide, None))]
    )  # fmt: skip
    return 1 - grey if np.median(corners) > 0.5 else grey


def restore(
    model: ImageModel,
    digit: UInt8[ndarray, "28 28 1"],
    noise: Corruption,
    sizes: DigitSizes,
    report: Callable[[Restored], None],
    *,
    seed: int = 0,
) -> Restored:
    """Spoil a digit, clean it, and complete its upper half; report each as it is ready."""
    noisy = noise.apply(digit[None], np.random.default_rng(seed))
    found = Restored(digit, noisy[0])
    report(found)
    cleaned = denoise_images(model, noisy, noise, seed=seed)
    found = Restored(digit, noisy[0], cleaned[0])
    report(found)
    drawn = complete(model, digit[None, : SIDE // 2], sizes.draws, seed)
    return Restored(digit, noisy[0], cleaned[0], drawn[0])


def _nothing() -> InputError:
    return InputError(
        "expected a digit, got an empty pad; draw one, upload a picture of one, or pick one"
    )
