"""Images side by side in one picture, and pictures as PNG files."""

import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from arcsm.data.images.decode import need_pillow
from arcsm.errors import InputError
from arcsm.files import write_atomic

# A small image is enlarged, by a whole number, until it is about this high.
_HEIGHT = 64
# What lies between images, and around them.
_GAP_COLOUR = 255


def picture_grid(
    pixels: np.ndarray, *, columns: int | None = None, enlarge: int | None = None, gap: int = 2
) -> np.ndarray:
    """Return images, uint8 (n, height, width, channels), as one of (height, width, channels).

    They lie row by row in so many `columns`, by default about as many as rows, with thin white
    gaps. Each pixel becomes a square with sides of `enlarge`, by default enough to see it.

    >>> picture_grid(np.zeros((6, 8, 8, 1), np.uint8), columns=3, enlarge=1, gap=1).shape
    (19, 28, 1)
    """
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 4:
        got = f"{pixels.dtype} {pixels.shape}" if isinstance(pixels, np.ndarray) else repr(pixels)
        raise InputError(
            f"expected uint8 images (n, height, width, channels), got {got}; convert them"
        )
    n, height, width, channels = pixels.shape
    if 0 in pixels.shape or channels not in (1, 3):
        raise InputError(
            f"expected images of 1 or 3 channels, got shape {pixels.shape}; pass at least one"
        )
    columns = math.ceil(math.sqrt(n)) if columns is None else columns
    factor = max(1, round(_HEIGHT / height)) if enlarge is None else enlarge
    for name, value, least in (("columns", columns, 1), ("enlarge", factor, 1), ("gap", gap, 0)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InputError(f"expected {name} of {least} or more, got {value!r}; correct it")
    large = pixels.repeat(factor, axis=1).repeat(factor, axis=2)
    cell_height, cell_width = height * factor + gap, width * factor + gap
    rows = -(-n // columns)
    grid = np.full(
        (rows * cell_height + gap, columns * cell_width + gap, channels), _GAP_COLOUR, np.uint8
    )
    for place, image in enumerate(large):
        top, left = place // columns * cell_height + gap, place % columns * cell_width + gap
        grid[top : top + height * factor, left : left + width * factor] = image
    return grid


def save_picture(path: str | os.PathLike[str], picture: np.ndarray) -> None:
    """Write one image, uint8 (height, width, channels), as PNG; whole or not at all."""
    if Path(path).suffix.lower() != ".png":
        raise InputError(
            f"expected a path that ends in .png, got {os.fspath(path)!r}; change the suffix"
        )
    image = _as_image(picture)
    write_atomic(path, lambda file: image.save(file, format="PNG"))


def _as_image(picture: np.ndarray) -> Any:
    need_pillow()
    from PIL import Image

    return Image.fromarray(picture[..., 0] if picture.shape[-1] == 1 else picture)
