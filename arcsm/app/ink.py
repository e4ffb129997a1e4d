"""Ink on a pad, as a density from which points are drawn."""

import base64
import binascii

import numpy as np
from jaxtyping import Float, UInt8
from numpy import ndarray

from arcsm.data.images.decode import decode, need_pillow
from arcsm.data.images.pictures import UnreadableError
from arcsm.errors import InputError

# Ink of less than this many full pixels is a slip of the mouse.
_LEAST_INK = 20.0
_MOST_PIXELS = 2_000_000
# A pen has a sharp edge and paper an end; densities are easier to look at without either.
JITTER = 0.012


def picture_of(address: str | None) -> UInt8[ndarray, "height width 4"]:
    """Return the picture that a drawing pad holds as an address (data:…), in RGB and alpha."""
    head, _, content = (address or "").partition(",")
    if not head.startswith("data:image/") or not head.endswith(";base64"):
        raise _empty()
    need_pillow()
    try:
        picture = decode(base64.b64decode(content, validate=True)).image.convert("RGBA")
    except (binascii.Error, UnreadableError) as error:
        raise InputError(
            f"expected a drawing as a picture, got one that cannot be read: {error}; draw it again"
        ) from error
    if picture.width * picture.height > _MOST_PIXELS:
        raise InputError(
            f"expected a drawing of at most {_MOST_PIXELS:,} pixels, got"
            f" {picture.width} x {picture.height}; draw it on the pad"
        )
    return np.asarray(picture)


def ink_of(picture: UInt8[ndarray, "height width 4"]) -> Float[ndarray, "height width"]:
    """Return how much ink there is in each pixel, from 0 to 1."""
    ink: ndarray = picture[..., 3] / 255
    if ink.sum() < _LEAST_INK:
        raise _empty()
    return ink


def points_from_ink(
    ink: Float[ndarray, "height width"], rows: int, seed: int = 0
) -> Float[ndarray, "rows 2"]:
    """Draw points from a density proportional to the ink, with slight jitter.

    The width of the pad spans −1 to 1, and its middle is 0; the second coordinate points up.

    >>> ink = np.zeros((50, 100))
    >>> ink[:25, :] = 1.0  # the upper half
    >>> points = points_from_ink(ink, 1000)
    >>> bool((points[:, 1] > -0.1).all()), bool((abs(points[:, 1]) < 0.6).all())
    (True, True)
    """
    if ink.sum() < _LEAST_INK:
        raise _empty()
    height, width = ink.shape
    random = np.random.default_rng(seed)
    pixel = random.choice(ink.size, rows, p=(ink / ink.sum()).ravel())
    within = random.random((2, rows))
    right = pixel % width + within[0] - width / 2
    down = pixel // width + within[1] - height / 2
    points = np.stack([right, -down], axis=1) * (2 / width)
    return (points + JITTER * random.standard_normal((rows, 2))).astype(np.float32)


def _empty() -> InputError:
    return InputError(
        "expected a drawing, got an empty pad; draw something with the mouse, or choose a shape"
    )
