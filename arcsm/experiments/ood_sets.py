"""Images that are not of the kind a model was trained on."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from arcsm.data.images import load_images
from arcsm.errors import InputError
from arcsm.experiments.image_parts import stand_in


def make_unusual(told: Mapping[str, Any], spare: np.ndarray, n: int, seed: int) -> np.ndarray:
    """Return at most n unusual images, uint8, of the shape of `spare`: usual ones to be changed.

    InputError says what is missing where a set is not on the disk.
    """
    random = np.random.default_rng(seed)
    shape = spare.shape[1:]
    kind = told["kind"]
    if kind == "constant":
        colour = random.integers(0, 256, (n, 1, 1, shape[2]), dtype=np.uint8)
        return np.tile(colour, (1, shape[0], shape[1], 1))
    if kind == "uniform":
        return random.integers(0, 256, (n, *shape), dtype=np.uint8)
    if kind == "smoothed":
        return smoothed(spare[:n], told["sigma"])
    if kind == "permuted":
        places = random.permutation(shape[0] * shape[1])
        flat = spare[:n].reshape(len(spare[:n]), -1, shape[2])
        return np.ascontiguousarray(flat[:, places]).reshape(-1, *shape)
    if kind == "stand-in":
        return 255 - stand_in(n, shape[0], shape[2], seed=seed + 1)
    if kind == "set":
        images = load_images(told["name"], told["part"], download=False, size=told.get("size"))
        if images.shape != shape:
            raise InputError(f"images of shape {images.shape} in place of {shape}")
        return images.pixels[:n]
    raise InputError(f"expected a kind of unusual images, got {kind!r}; correct the settings")


def smoothed(pixels: np.ndarray, sigma: float) -> np.ndarray:
    """Return images under a normal blur of `sigma` pixels."""
    from scipy.ndimage import gaussian_filter

    blurred = gaussian_filter(pixels.astype(np.float64), (0, sigma, sigma, 0), mode="nearest")
    return np.asarray(np.rint(blurred).clip(0, 255).astype(np.uint8))


def blemished(pixels: np.ndarray, seed: int) -> np.ndarray:
    """Return images in which a square, a quarter as wide as the image, is torn: pixels shuffled."""
    random = np.random.default_rng(seed)
    spoiled = pixels.copy()
    height, width, channels = pixels.shape[1:]
    side = max(1, height // 4)
    for image in spoiled:
        top, left = random.integers(0, height - side + 1), random.integers(0, width - side + 1)
        patch = image[top : top + side, left : left + side]
        values = patch.reshape(-1, channels)
        patch[:] = values[random.permutation(len(values))].reshape(patch.shape)
    return spoiled
