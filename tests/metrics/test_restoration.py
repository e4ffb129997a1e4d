"""PSNR and SSIM against their definitions."""

import numpy as np
import pytest

from arcsm.errors import InputError
from arcsm.metrics.restoration import psnr, ssim


def pair(seed: int = 0, channels: int = 3) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    one = random.integers(0, 256, (2, 14, 12, channels)).astype(float)
    other = one + 30 * random.standard_normal(one.shape)
    return one.astype(np.uint8), other.clip(0, 255).astype(np.uint8)


def test_psnr() -> None:
    one, other = pair()
    error = ((one.astype(float) - other) ** 2)[1].mean()
    assert abs(psnr(one, other)[1] - 20 * np.log10(255 / np.sqrt(error))) < 1e-9
    assert np.isinf(psnr(one, one)).all()
    white = np.full((1, 3, 3, 1), 255, np.uint8)
    assert psnr(white, np.zeros_like(white))[0] == 0


def test_ssim_is_that_of_each_window() -> None:
    one, other = pair(channels=1)
    offset = np.arange(11) - 5
    weight = np.exp(-(offset[:, None] ** 2 + offset**2) / (2 * 1.5**2))
    weight /= weight.sum()
    found = []
    for top in range(4):
        for left in range(2):
            x, y = (z[0, top : top + 11, left : left + 11, 0].astype(float) for z in (one, other))
            mx, my = (weight * x).sum(), (weight * y).sum()
            vx, vy = (weight * (x - mx) ** 2).sum(), (weight * (y - my) ** 2).sum()
            c = (weight * (x - mx) * (y - my)).sum()
            c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
            found.append(
                (2 * mx * my + c1) * (2 * c + c2) / ((mx**2 + my**2 + c1) * (vx + vy + c2))
            )
    assert abs(ssim(one, other)[0] - np.mean(found)) < 1e-9
    np.testing.assert_allclose(ssim(one, one), 1.0)


def test_ssim_is_that_of_scikit_image() -> None:
    metrics = pytest.importorskip("skimage.metrics")
    one, other = pair()
    expected = metrics.structural_similarity(
        one[0],
        other[0],
        win_size=11,
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
        channel_axis=-1,
        data_range=255,
    )
    # It fills up at the borders, then leaves them out.
    assert abs(ssim(one, other)[0] - expected) < 1e-6


def test_images_that_do_not_go_together_are_refused() -> None:
    one, other = pair()
    with pytest.raises(InputError, match="as many originals"):
        psnr(one, other[:1])
    with pytest.raises(InputError, match="uint8"):
        psnr(one.astype(float), other)
    with pytest.raises(InputError, match="11 x 11"):
        ssim(one[:, :10], other[:, :10])
