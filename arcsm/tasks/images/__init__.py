"""What a model of images is for: removing noise, completing, and finding unusual images."""

from arcsm.tasks.images.completion import complete
from arcsm.tasks.images.corruption import (
    Corruption,
    Gaussian,
    SaltAndPepper,
    gaussian,
    parse_noise,
    salt_and_pepper,
)
from arcsm.tasks.images.denoise import Denoising, denoise_images
from arcsm.tasks.images.novelty import HeatMap, ImageDetector

__all__ = [
    "Corruption",
    "Denoising",
    "Gaussian",
    "HeatMap",
    "ImageDetector",
    "SaltAndPepper",
    "complete",
    "denoise_images",
    "gaussian",
    "parse_noise",
    "salt_and_pepper",
]
