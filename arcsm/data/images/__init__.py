"""Images: named sets, folders and zip files of pictures, and the way from pixels to rows and back.

Pixels are always uint8 arrays (images, height, width, channels), channels last.
"""

from arcsm.data.images.named import IMAGE_SETS, load_images
from arcsm.data.images.pixels import WHOLE, Images, dequantise, to_pixels
from arcsm.data.images.reading import read_images

__all__ = [
    "IMAGE_SETS",
    "WHOLE",
    "Images",
    "dequantise",
    "load_images",
    "read_images",
    "to_pixels",
]
