"""Models of images: exact probabilities of their levels, new images, and the rest of given ones."""

from arcsm.images.cells import Flips, PixelCells, PixelSnap, cell_ends
from arcsm.images.fitting import fit_images
from arcsm.images.model import ImageModel
from arcsm.images.settings import NETWORKS, ImageSettings
from arcsm.images.store import holds_images_model

__all__ = [
    "NETWORKS",
    "Flips",
    "ImageModel",
    "ImageSettings",
    "PixelCells",
    "PixelSnap",
    "cell_ends",
    "fit_images",
    "holds_images_model",
]
