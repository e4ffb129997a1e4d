"""How close restored images are to the originals: PSNR and SSIM, of uint8 images."""

import numpy as np

from arcsm.errors import InputError

_RANGE = 255.0
# Wang et al. (2004): a normal window of 11 by 11 with σ = 1.5, and the constants K₁ and K₂.
_WINDOW, _SIGMA, _K1, _K2 = 11, 1.5, 0.01, 0.03


def psnr(images: np.ndarray, originals: np.ndarray) -> np.ndarray:
    """Return 10 log₁₀(255²/mean square error) of each image, in dB; ∞ where nothing differs.

    >>> psnr(np.full((1, 4, 4, 1), 10, np.uint8), np.zeros((1, 4, 4, 1), np.uint8)).round(2)
    array([28.13])
    """
    one, other = _checked(images, originals)
    error = np.square(one - other).mean((1, 2, 3))
    with np.errstate(divide="ignore"):
        return np.asarray(10 * np.log10(_RANGE**2 / error))


def ssim(images: np.ndarray, originals: np.ndarray) -> np.ndarray:
    """Return the mean structural similarity of each image, over channels and windows.

    Local moments are weighted by a normal window 11 wide with σ = 1.5, without Bessel's correction,
    and only windows that lie within the image count: the definition of Wang et al. (2004).
    """
    one, other = _checked(images, originals)
    if min(one.shape[1:3]) < _WINDOW:
        raise InputError(
            f"expected images of {_WINDOW} x {_WINDOW} pixels at least for SSIM, got"
            f" {one.shape[2]} x {one.shape[1]}; leave it out"
        )
    mean_one, mean_other = _smooth(one), _smooth(other)
    variance_one = _smooth(one * one) - mean_one**2
    variance_other = _smooth(other * other) - mean_other**2
    covariance = _smooth(one * other) - mean_one * mean_other
    c1, c2 = (_K1 * _RANGE) ** 2, (_K2 * _RANGE) ** 2
    luminance = (2 * mean_one * mean_other + c1) / (mean_one**2 + mean_other**2 + c1)
    structure = (2 * covariance + c2) / (variance_one + variance_other + c2)
    return np.asarray((luminance * structure).mean((1, 2, 3)))


def _smooth(values: np.ndarray) -> np.ndarray:
    """Return weighted means over all windows within images (n, height, width, channels)."""
    offset = np.arange(_WINDOW) - _WINDOW // 2
    weight = np.exp(-(offset**2) / (2 * _SIGMA**2))
    weight /= weight.sum()
    for axis in (1, 2):
        windows = np.lib.stride_tricks.sliding_window_view(values, _WINDOW, axis)
        values = windows @ weight
    return values


def _checked(images: np.ndarray, originals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    good = (
        images.shape == originals.shape
        and images.ndim == 4
        and images.dtype == originals.dtype == np.uint8
        and len(images) > 0
    )
    if not good:
        raise InputError(
            "expected uint8 images (n, height, width, channels) and as many originals, got"
            f" {images.dtype} {images.shape} and {originals.dtype} {originals.shape};"
            " convert or reshape them"
        )
    return images.astype(np.float64), originals.astype(np.float64)
