"""Noise that spoils images: how it comes about, and how probable it makes what is observed.

A corruption says P(observed | level) for each scalar by itself. That is all a denoiser has to know
of it: together with a model's P(level | context) it gives the posterior by Bayes' rule.

Values are level/255, from 0 to 1. The σ of Gaussian noise is in the paper's units, in which pixels
lie between −1 and 1: its σ = 0.6 is 76.5 of 255 levels.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from arcsm.checks import is_real
from arcsm.errors import InputError
from arcsm.images.cells import HIGHEST
from arcsm.images.settings import PAPER_RANGE

# Of noise for pixels from −1 to 1: an eighth of a level, and five times their range.
_LEAST_SIGMA, _LARGEST_SIGMA = 1e-3, 10.0
_SALT_AND_PEPPER, _GAUSSIAN = "salt-and-pepper", "gaussian"
_MOST_TOGETHER = 8


def salt_and_pepper(pixels: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Return uint8 images in which a `share` of the scalars is black or white, one as often.

    Channels of a pixel are spoiled apart from one another.
    """
    _check_share(share)
    _check_levels(pixels)
    where = rng.random(pixels.shape) < share
    instead = rng.integers(0, 2, pixels.shape, dtype=np.uint8) * np.uint8(HIGHEST)
    return np.where(where, instead, pixels)


def gaussian(pixels: np.ndarray, sigma: float, rng: np.random.Generator) -> np.ndarray:
    """Return images with normal noise, as float32 level/255, neither rounded nor cut off.

    `sigma` is its deviation for pixels from −1 to 1, so that the values returned have half of it.
    """
    _check_sigma(sigma)
    _check_levels(pixels)
    noise = rng.standard_normal(pixels.shape) * (sigma / PAPER_RANGE)
    return (pixels / HIGHEST + noise).astype(np.float32)


class Corruption(ABC):
    """Noise on each scalar by itself."""

    @abstractmethod
    def apply(self, pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return uint8 images with the noise."""

    @abstractmethod
    def log_likelihood(
        self, observed: Float[Tensor, "*batch"], levels: Float[Tensor, "levels"], *, cut: bool
    ) -> Float[Tensor, "*batch levels"]:
        """Return log P(observed | level), up to a constant for each observation.

        Both are level/255. With `cut` what was observed has been rounded to levels, and cut off at
        black and white, as in a file.
        """

    @abstractmethod
    def ambiguous(self, observed: Float[Tensor, "*batch"]) -> Tensor:
        """Say of which observations the level is not certain."""

    @property
    def finest(self) -> int:
        """How many levels may be taken for one beside this noise: 1 if each counts."""
        return 1


@dataclass(frozen=True)
class SaltAndPepper(Corruption):
    """A `share` of all scalars is replaced by black or by white, one as often as the other."""

    share: float

    def __post_init__(self) -> None:
        _check_share(self.share)

    def apply(self, pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return uint8 images with the noise."""
        return salt_and_pepper(pixels, self.share, rng)

    def log_likelihood(
        self, observed: Float[Tensor, "*batch"], levels: Float[Tensor, "levels"], *, cut: bool
    ) -> Float[Tensor, "*batch levels"]:
        """Return the log of (1 − share) [observed = level] + (share/2) [observed is an end]."""
        same = (observed[..., None] - levels).abs() < 0.5 / HIGHEST
        kept = (1 - self.share) * same.to(levels.dtype)
        replaced = self.share / 2 * self.ambiguous(observed).to(levels.dtype)
        return (kept + replaced[..., None]).log()

    def ambiguous(self, observed: Float[Tensor, "*batch"]) -> Tensor:
        """Black and white may be noise; all else is as it was."""
        return (observed < 0.5 / HIGHEST) | (observed > 1 - 0.5 / HIGHEST)


@dataclass(frozen=True)
class Gaussian(Corruption):
    """Normal noise of deviation `sigma`, for pixels from −1 to 1."""

    sigma: float

    def __post_init__(self) -> None:
        _check_sigma(self.sigma)

    @property
    def scale(self) -> float:
        """The deviation of level/255."""
        return self.sigma / PAPER_RANGE

    @property
    def finest(self) -> int:
        """Levels closer than σ/8 can hardly be told apart by what is observed.

        Within such a run the model knows more than its middle says: so they are few, in any noise.
        """
        return min(_MOST_TOGETHER, max(1, math.floor(self.scale * HIGHEST / 8)))

    def apply(self, pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return images as they would be in a file: rounded, and cut off at black and white."""
        levels = np.rint(gaussian(pixels, self.sigma, rng) * HIGHEST)
        return levels.clip(0, HIGHEST).astype(np.uint8)

    def log_likelihood(
        self, observed: Float[Tensor, "*batch"], levels: Float[Tensor, "levels"], *, cut: bool
    ) -> Float[Tensor, "*batch levels"]:
        """Return the log-density of the noise; of what was cut off, the log of all beyond."""
        off = (observed[..., None] - levels) / self.scale
        density = -off.square() / 2
        if not cut:
            return density
        # Relative to cells of one level, as the density is.
        width = 1 / (HIGHEST * self.scale)
        constant = math.log(width / math.sqrt(2 * math.pi))
        half = width / 2
        below = torch.special.log_ndtr(off + half) - constant
        beyond = torch.special.log_ndtr(half - off) - constant
        lowest, highest = observed < 0.5 / HIGHEST, observed > 1 - 0.5 / HIGHEST
        density = torch.where(lowest[..., None], below, density)
        return torch.where(highest[..., None], beyond, density)

    def ambiguous(self, observed: Float[Tensor, "*batch"]) -> Tensor:
        """Every one of them."""
        return torch.ones_like(observed, dtype=torch.bool)


def parse_noise(told: str) -> Corruption:
    """Return the corruption that words as salt-and-pepper:0.1 or gaussian:0.6 stand for.

    >>> parse_noise("salt-and-pepper:0.1")
    SaltAndPepper(share=0.1)
    """
    kind, _, number = str(told).partition(":")
    kinds: dict[str, Any] = {_SALT_AND_PEPPER: SaltAndPepper, _GAUSSIAN: Gaussian}
    try:
        value = math.nan if "_" in number else float(number)  # 0_6 is 6 to Python
    except ValueError:
        value = math.nan
    if kind not in kinds or math.isnan(value):
        raise InputError(
            f"expected noise as {_SALT_AND_PEPPER}:SHARE or {_GAUSSIAN}:SIGMA, got {told!r};"
            f" {_SALT_AND_PEPPER}:0.1 for instance"
        )
    found: Corruption = kinds[kind](value)
    return found


def _check_levels(pixels: np.ndarray) -> None:
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8:
        got = getattr(pixels, "dtype", type(pixels).__name__)
        raise InputError(f"expected images as uint8 arrays to spoil, got {got}; convert them")


def _check_share(share: float) -> None:
    if not is_real(share) or not 0 < share < 1:
        raise InputError(
            f"expected a share of spoiled scalars above 0 and below 1, got {share!r}; 0.1 for 10 %"
        )


def _check_sigma(sigma: float) -> None:
    if not is_real(sigma) or not _LEAST_SIGMA <= sigma <= _LARGEST_SIGMA:
        raise InputError(
            f"expected sigma from {_LEAST_SIGMA:g} to {_LARGEST_SIGMA:g}, for pixels from -1 to 1,"
            f" got {sigma!r}; 0.6 is strong noise"
        )
