"""What people use to remove noise without a model: filters, total variation, non-local means, BM3D.

Each has a setting or two, which are chosen on training images, by their mean PSNR. Pixels are
level/255; what leaves the range is cut off. Those whose package is not installed are left out.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from arcsm.metrics.restoration import psnr
from arcsm.tasks.images import Corruption, Gaussian

# One image, (height, width, channels) of level/255, and settings.
Filter = Callable[..., np.ndarray]

# Images of a single block, 8 pixels wide, make the package crash.
_LEAST_SIDE = 16


def to_uint8(values: np.ndarray) -> np.ndarray:
    """Return level/255 as levels."""
    return np.asarray(np.rint(values * 255).clip(0, 255).astype(np.uint8))


def median_filter(image: np.ndarray, *, size: int) -> np.ndarray:
    """Return the median of the square around each pixel, channel by channel."""
    from scipy.ndimage import median_filter as median

    return np.asarray(median(image, (size, size, 1), mode="nearest"))


def median_of_extremes(image: np.ndarray, *, size: int) -> np.ndarray:
    """Return the image with black and white replaced by the median of what is neither around."""
    from scipy.ndimage import generic_filter

    extreme = (image <= 0) | (image >= 1)
    known = np.where(extreme, np.nan, image)

    def middle(values: np.ndarray) -> float:
        inside = values[~np.isnan(values)]
        return float(np.median(inside)) if len(inside) else 0.5

    filled = generic_filter(known, middle, (size, size, 1), mode="nearest")
    return np.where(extreme, filled, image)


def non_local_means(image: np.ndarray, *, h: float, sigma: float) -> np.ndarray:
    """Return means over places with similar surroundings (scikit-image)."""
    restoration = import_module("skimage.restoration")
    found = restoration.denoise_nl_means(
        image, h=h, sigma=sigma, patch_size=5, patch_distance=9, fast_mode=True, channel_axis=-1
    )
    return np.asarray(found).reshape(image.shape)  # of a single channel its axis is lost


def total_variation(image: np.ndarray, *, weight: float) -> np.ndarray:
    """Return the image of least total variation beside its distance (scikit-image)."""
    restoration = import_module("skimage.restoration")
    return np.asarray(restoration.denoise_tv_chambolle(image, weight=weight, channel_axis=-1))


def block_matching(image: np.ndarray, *, sigma: float) -> np.ndarray:
    """Return the estimate of BM3D (package bm3d)."""
    bm3d = import_module("bm3d")
    height, width, channels = image.shape
    more = [(0, max(0, _LEAST_SIDE - side)) for side in (height, width)]
    padded = np.pad(image, [*more, (0, 0)], mode="symmetric")
    if channels == 3:
        return np.asarray(bm3d.bm3d_rgb(padded, sigma))[:height, :width]
    return np.asarray(bm3d.bm3d(padded[..., 0], sigma))[:height, :width, None]


def rivals_for(noise: Corruption) -> dict[str, tuple[Filter, Mapping[str, Sequence[Any]]]]:
    """Return each rival with the settings it may choose among."""
    scale = noise.scale if isinstance(noise, Gaussian) else 0.2
    around = [scale * factor for factor in (0.5, 0.75, 1.0, 1.5)]
    # Where what is compared is known to be noisy, the weights of non-local means fall off sooner.
    below = [scale * factor for factor in (0.1, 0.2, 0.35)]
    rivals: dict[str, tuple[Filter, Mapping[str, Sequence[Any]]]] = {
        "median filter": (median_filter, {"size": [3, 5]}),
        "non-local means": (non_local_means, {"h": [*below, *around], "sigma": [0.0, scale]}),
        "total variation": (total_variation, {"weight": [0.05, 0.1, 0.2, 0.4, 0.8]}),
        "BM3D": (block_matching, {"sigma": around}),
    }
    if not isinstance(noise, Gaussian):
        rivals["median of what is neither black nor white"] = (
            median_of_extremes,
            {"size": [3, 5]},
        )
    return rivals


def choose_settings(
    rival: Filter, grid: Mapping[str, Sequence[Any]], noisy: np.ndarray, originals: np.ndarray
) -> dict[str, Any]:
    """Return the settings with the largest mean PSNR; ImportError if a package is missing."""
    names = list(grid)
    best: tuple[float, dict[str, Any]] | None = None
    for values in itertools.product(*grid.values()):
        settings = dict(zip(names, values, strict=True))
        found = float(psnr(apply(rival, noisy, settings), originals).mean())
        if best is None or found > best[0]:
            best = found, settings
    assert best is not None
    return best[1]


def apply(rival: Filter, noisy: np.ndarray, settings: Mapping[str, Any]) -> np.ndarray:
    """Return noisy images, level/255 (n, height, width, channels), after a rival, as uint8."""
    return np.stack([to_uint8(rival(image, **settings)) for image in noisy])
