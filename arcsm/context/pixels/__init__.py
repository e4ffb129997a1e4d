"""PixelCNN++: a context network for images, and the backbone it is made of."""

from arcsm.context.pixels.pixelcnn import SIZES, PixelCNN
from arcsm.context.pixels.streams import PixelStreams

__all__ = ["SIZES", "PixelCNN", "PixelStreams"]
