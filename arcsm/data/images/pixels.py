"""Pixels: what a set of images is, smaller images by averages, and rows of scalars for models."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from arcsm.data.arrays import as_rows
from arcsm.errors import InputError

# Noise is drawn in steps of 2⁻¹⁶: 255 plus such a number has 24 significant bits, so the sum is
# exact in float32. With finer noise, 255.9999999 would round up to the next pixel value.
_NOISE_STEPS = 2**16
# Numbers averaged at once; the temporary holds them in 4 bytes each.
_CHUNK_ELEMENTS = 2**22
# The part of pictures that are no set: all of them.
WHOLE = "all"


@dataclass(frozen=True, eq=False)
class Images:
    """Images of one size: uint8 `pixels` (n, height, width, channels), with int64 `labels` or None.

    `name` and `part` say which set this is; the part of pictures that are none is `WHOLE`. `note`
    says what is partial or re-encoded about the copy that was read, and is empty for a complete one
    in its published form.
    """

    pixels: np.ndarray
    labels: np.ndarray | None
    name: str
    part: str
    note: str = ""

    def __post_init__(self) -> None:
        _check_pixels(self.pixels)
        if self.labels is None:
            return
        labels = np.asarray(self.labels)
        if labels is not self.labels or labels.dtype != np.int64 or labels.shape != (len(self),):
            raise InputError(
                f"expected labels as an int64 array of shape ({len(self)},), got"
                f" {type(self.labels).__name__} ({labels.dtype}) of shape {labels.shape};"
                " give one for each image"
            )

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of one image."""
        _, height, width, channels = self.pixels.shape
        return height, width, channels


def dequantise(
    pixels: np.ndarray | Tensor, *, seed: int | torch.Generator = 0
) -> Float[Tensor, "images scalars"]:
    """Return (pixels + u) / 256 with u uniform on [0, 1), as float32 rows in [0, 1).

    A row has the pixels in reading order with their channels side by side: R, G and B of the first
    pixel, R, G and B of the second. One seed gives the same rows always; a generator gives others
    with each call, on its device. `to_pixels` takes the rows back to exactly these pixels.

    >>> grey = np.array([0, 128, 255, 7], dtype=np.uint8).reshape(1, 2, 2, 1)
    >>> rows = dequantise(grey, seed=1)
    >>> rows.shape, bool((to_pixels(rows, (2, 2, 1)) == grey).all())
    (torch.Size([1, 4]), True)
    """
    if isinstance(pixels, Tensor):
        pixels = pixels.cpu().numpy()
    _check_pixels(pixels)
    if not isinstance(seed, (int, torch.Generator)):
        raise InputError(f"expected seed as a whole number or a torch.Generator, got {seed!r}")
    generator = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)
    rows = torch.rand(
        (len(pixels), math.prod(pixels.shape[1:])),
        generator=generator,
        device=generator.device,
        dtype=torch.float32,
    )
    rows.mul_(_NOISE_STEPS).floor_().div_(_NOISE_STEPS)
    whole = torch.from_numpy(np.require(pixels, requirements=["C", "W"])).reshape(rows.shape)
    return rows.add_(whole.to(rows.device)).div_(256)


def to_pixels(x: Any, shape: tuple[int, int, int]) -> np.ndarray:
    """Return rows of scalars as uint8 images of `shape` (height, width, channels).

    A number in [k/256, (k+1)/256) becomes k; what lies outside [0, 1) becomes 0 or 255.
    """
    if len(shape) != 3 or min(shape) < 1:
        raise InputError(f"expected shape (height, width, channels), got {shape!r}")
    rows = as_rows(x, dims=math.prod(shape))
    steps = rows.detach().mul(256).floor_().clamp_(0, 255)
    return steps.to(torch.uint8).cpu().numpy().reshape(-1, *shape)


def as_size(size: int | None, side: int) -> int:
    """Return the side of images after `shrink`: `size`, which must divide `side`, or `side`."""
    if size is None:
        return side
    if not isinstance(size, int) or isinstance(size, bool) or size < 1 or side % size:
        divisors = [str(k) for k in range(1, side + 1) if side % k == 0]
        raise InputError(
            f"expected size to divide the height and width of {side}, got {size!r};"
            f" choose one of {', '.join(divisors)}"
        )
    return size


def shrink(pixels: np.ndarray, size: int) -> np.ndarray:
    """Return squares with sides of `size`: the averages of blocks, rounded to whole numbers."""
    n, side, _, channels = pixels.shape
    block = side // size
    if block == 1:
        return pixels
    small = np.empty((n, size, size, channels), dtype=np.uint8)
    images = max(1, _CHUNK_ELEMENTS // (side * side * channels))
    for start in range(0, n, images):
        part = pixels[start : start + images]
        blocks = part.reshape(-1, size, block, size, block, channels)
        total = blocks.sum(axis=(2, 4), dtype=np.uint32)
        small[start : start + images] = (total + block * block // 2) // (block * block)
    return small


def as_most(most: int | None) -> int | None:
    """Return `most`, the number of images to read at most; refuse what is no such number."""
    if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
        raise InputError(f"expected most as a positive whole number or None, got {most!r}")
    return most


def _check_pixels(pixels: Any) -> None:
    if not isinstance(pixels, np.ndarray):
        raise InputError(
            f"expected pixels as a numpy array, got {type(pixels).__name__};"
            " of Images, pass their pixels"
        )
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or 0 in pixels.shape:
        raise InputError(
            "expected pixels as uint8 of shape (images, height, width, channels), got"
            f" {pixels.dtype} of shape {pixels.shape}; convert or reshape them"
        )
