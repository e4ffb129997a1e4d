"""One picture from its bytes, by Pillow: upright, in 8 bits, grey or colour, alpha or not."""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from arcsm.data.images.pictures import UnreadableError
from arcsm.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

# Only these decoders are tried, whatever a file is called: others call programs (EPS).
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
# A file of a few kilobytes can claim to be a picture of any size; a large photograph has 50 million
# pixels.
MOST_PIXELS = 100_000_000


@dataclass(frozen=True)
class Decoded:
    """A picture in mode L, LA, RGB or RGBA, and what was left behind on the way."""

    image: "Image"
    was_deep: bool = False  # 16 bits a channel
    had_frames: bool = False  # an animation, or several pages

    @property
    def has_alpha(self) -> bool:
        """Whether some of it is transparent."""
        return "A" in self.image.getbands()


def need_pillow() -> None:
    """Raise InputError, with what to do about it, where Pillow is not installed."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise InputError(
            "expected Pillow, which reads images, got none installed;"
            " install it with: pip install 'arcsm[images]'"
        ) from error


@contextmanager
def quiet_decoders() -> Iterator[None]:
    """Keep what Pillow has to say about odd metadata from the user; what matters is raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def decode(content: bytes) -> Decoded:
    """Return the first picture in `content`, or raise UnreadableError.

    It is turned upright as its EXIF data say. Of 16 bits a channel the upper 8 are kept. Palettes
    and other colour spaces become RGB. An alpha channel that is opaque everywhere is dropped.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as opened:
            if opened.width * opened.height > MOST_PIXELS:
                raise UnreadableError(
                    f"{opened.width} x {opened.height} pixels, more than the {MOST_PIXELS} that"
                    " are read"
                )
            deep = opened.mode.startswith("I") or _is_deep_colour(opened)
            # Cameras append previews to a JPEG (MPO); these are not lost frames.
            frames = opened.format != "MPO" and getattr(opened, "is_animated", False)
            opened.load()
            return Decoded(_plain(_upright(opened), opened.format), deep, frames)
    except (UnreadableError, MemoryError):
        raise
    except UnidentifiedImageError as error:  # which names the buffer, not the file
        kinds = f"{', '.join(_FORMATS[:-1])} or {_FORMATS[-1]}"
        got = f"no picture that can be read ({kinds})" if content else "an empty file"
        raise UnreadableError(got) from error
    # Decoders raise nearly every exception there is on damaged files.
    except Exception as error:
        raise UnreadableError(str(error) or type(error).__name__) from error


def as_array(decoded: Decoded, *, size: tuple[int, int] | None, channels: int | None) -> np.ndarray:
    """Return pixels (height, width, channels) of a picture.

    With `channels`, what is transparent is put on white, then grey becomes RGB or RGB grey (ITU-R
    601 luma). With `size` (height, width), the largest centred part of that shape is cut out and
    scaled, bilinear and without aliasing.
    """
    from PIL import Image, ImageOps

    image = decoded.image
    if channels is not None:
        if decoded.has_alpha:
            white = Image.new("RGBA", image.size, "white")
            image = Image.alpha_composite(white, image.convert("RGBA"))
        image = image.convert("RGB" if channels == 3 else "L")
    if size is not None and (image.height, image.width) != size:
        image = ImageOps.fit(image, (size[1], size[0]), method=Image.Resampling.BILINEAR)
    pixels = np.asarray(image, dtype=np.uint8)
    return pixels.reshape(image.height, image.width, -1)


def _upright(image: "Image") -> "Image":
    from PIL import ImageOps

    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # unreadable metadata do not spoil the pixels
        return image


def _plain(image: "Image", kind: str | None) -> "Image":
    from PIL import Image

    mode = image.mode
    if mode.startswith("I;16") or (mode == "I" and kind == "PNG"):  # older Pillow: I
        values = np.asarray(image)
        return Image.fromarray((values >> 8).clip(0, 255).astype(np.uint8))
    if mode in ("I", "F"):
        raise UnreadableError(f"numbers without a range (mode {mode}), not 8 or 16 bits a channel")
    if mode == "La" or mode == "LA" or (mode in ("1", "L") and "transparency" in image.info):
        image = image.convert("LA")
    elif mode in ("1", "L"):
        image = image.convert("L")
    elif mode in ("RGBA", "RGBa", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
    else:
        image = image.convert("RGB")
    if "A" in image.getbands() and image.getchannel("A").getextrema() == (255, 255):
        image = image.convert("L" if image.mode == "LA" else "RGB")
    return image


def _is_deep_colour(image: "Image") -> bool:
    """Whether the file has 16 bits a channel in colour, of which Pillow keeps the upper 8."""
    for tile in getattr(image, "tile", ()):
        arguments = tile[3] if isinstance(tile[3], tuple) else (tile[3],)
        if any(isinstance(text, str) and ";16" in text for text in arguments):
            return True
    return False
