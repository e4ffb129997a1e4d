"""Noise on images: how often it comes, and the probabilities that it is known by."""

import math

import numpy as np
import pytest
import torch

from arcsm.errors import InputError
from arcsm.tasks.images import Gaussian, SaltAndPepper, gaussian, parse_noise, salt_and_pepper

LEVELS = torch.arange(256, dtype=torch.float64) / 255


def test_salt_and_pepper_spoils_a_share_of_the_scalars() -> None:
    pixels = np.full((50, 20, 20, 3), 77, np.uint8)
    noisy = salt_and_pepper(pixels, 0.1, np.random.default_rng(0))
    assert noisy.dtype == np.uint8 and set(np.unique(noisy)) == {0, 77, 255}
    n = pixels.size
    assert abs((noisy != 77).mean() - 0.1) < 5 * math.sqrt(0.09 / n)
    assert abs((noisy == 0).mean() - 0.05) < 5 * math.sqrt(0.05 / n)
    # Channels are spoiled apart: three at once are as rare as chance has them.
    assert (noisy != 77).all(3).mean() < 0.003
    assert (pixels == 77).all()


def test_gaussian_noise_has_half_the_deviation_of_pixels_from_minus_one_to_one() -> None:
    pixels = np.full((20, 20, 20, 1), 51, np.uint8)
    noisy = gaussian(pixels, 0.6, np.random.default_rng(0))
    assert noisy.dtype == np.float32
    assert abs(noisy.mean() - 0.2) < 5 * 0.3 / math.sqrt(noisy.size)
    assert abs(noisy.std() / 0.3 - 1) < 0.05
    assert noisy.min() < 0 and noisy.max() > 1  # nothing is cut off


@pytest.mark.parametrize("level", [0, 1, 100, 255])
def test_probabilities_of_what_is_observed_add_up(level: int) -> None:
    pepper = SaltAndPepper(0.2)
    here = torch.tensor([level / 255], dtype=torch.float64)
    total = pepper.log_likelihood(LEVELS, here, cut=True).exp().sum()
    assert abs(float(total) - 1) < 1e-12
    spread = Gaussian(0.4)
    # Relative to the density at 0 of one cell.
    cell = 1 / (255 * spread.scale * math.sqrt(2 * math.pi))
    total = spread.log_likelihood(LEVELS, here, cut=True).exp().sum() * cell
    assert abs(float(total) - 1) < 1e-4


def test_files_of_gaussian_noise_are_cut_off_and_known_to_be() -> None:
    spread, black = Gaussian(0.6), np.zeros((30, 20, 20, 1), np.uint8)
    files = spread.apply(black, np.random.default_rng(1))
    assert files.dtype == np.uint8 and 0.45 < (files == 0).mean() < 0.55
    zero = torch.zeros(1, dtype=torch.float64)
    cell = 1 / (255 * spread.scale * math.sqrt(2 * math.pi))
    found = float(spread.log_likelihood(zero, zero, cut=True).exp() * cell)
    assert abs(found - 0.5) < 0.01
    # What was not cut off lies on the bell curve.
    one = torch.tensor([0.9], dtype=torch.float64)
    free = spread.log_likelihood(one, LEVELS, cut=False)
    torch.testing.assert_close(free[0], -((0.9 - LEVELS) ** 2) / (2 * 0.3**2))


def test_only_black_and_white_are_in_doubt() -> None:
    doubt = SaltAndPepper(0.1).ambiguous(LEVELS)
    assert doubt.nonzero()[:, 0].tolist() == [0, 255]
    assert bool(Gaussian(0.1).ambiguous(LEVELS).all())


def test_words_for_noise() -> None:
    assert parse_noise("gaussian:0.6") == Gaussian(0.6)
    wrong = (
        "gaussian",
        "gaussian:much",
        "gaussian:0_6",
        "speckle:0.1",
        "salt-and-pepper:nan",
        None,
    )
    for told in wrong:
        with pytest.raises(InputError, match="salt-and-pepper:SHARE"):
            parse_noise(told)  # type: ignore[arg-type]
    for told in ("salt-and-pepper:0", "salt-and-pepper:1", "salt-and-pepper:-0.1"):
        with pytest.raises(InputError, match="above 0 and below 1"):
            parse_noise(told)
    for told in ("gaussian:0", "gaussian:1e-60", "gaussian:-1", "gaussian:11", "gaussian:inf"):
        with pytest.raises(InputError, match=r"sigma from 0\.001 to 10"):
            parse_noise(told)
