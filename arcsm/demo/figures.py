"""Pictures made of pixels: PNG, without text, so that the page's own fonts and colours apply."""

import io

import matplotlib
import matplotlib.image
import numpy as np
from jaxtyping import Float
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy import ndarray

from arcsm.plots.palette import HEAT

# Of points and heat maps; both are legible on a light and on a dark page.
MODEL_COLOUR = "#4a7fe0"
DATA_COLOUR = "#8a8f9c"

_BACKGROUND = np.array([0x16, 0x18, 0x20]) / 255  # behind digits
_INK = np.array([0xF4, 0xF1, 0xEA]) / 255
_BLAME = np.array([0xFF, 0x5A, 0x36]) / 255


def scatter(
    points: Float[ndarray, "rows 2"], centre: tuple[float, float], reach: float, colour: str
) -> bytes:
    """Draw points on a transparent square that spans `reach` to all sides of `centre`."""
    figure = Figure(figsize=(6, 6), dpi=120)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(centre[0] - reach, centre[0] + reach)
    axes.set_ylim(centre[1] - reach, centre[1] + reach)
    axes.scatter(points[:, 0], points[:, 1], s=5, c=colour, alpha=0.5, linewidths=0)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", transparent=True)
    return buffer.getvalue()


def heat_map(density: Float[ndarray, "height width"], top: float) -> bytes:
    """Draw a density, axis 0 upwards, from 0 (dark) to `top` (bright)."""
    return _png(matplotlib.colormaps[HEAT](np.clip(density[::-1] / top, 0, 1)))


def heat_scale() -> bytes:
    """Draw the colours of `heat_map` from left to right."""
    return _png(matplotlib.colormaps[HEAT](np.linspace(0, 1, 256)[None].repeat(8, 0)))


def montage(
    images: Float[ndarray, "count pixels"], columns: int, *, peak: float, side: int
) -> bytes:
    """Draw square images in rows of `columns`, 0 dark and `peak` bright, one pixel for each."""
    return _png(_tiles(_shades(images, peak), columns, side))


def blame(
    images: Float[ndarray, "count pixels"],
    excess: Float[ndarray, "count pixels"],
    columns: int,
    *,
    peak: float,
    side: int,
    top: float,
) -> bytes:
    """Draw dimmed images and over them, in red, where `excess` is above 0, in full from `top`."""
    share = np.clip(excess / top, 0, 1)[..., None] ** 0.8
    shades = _BACKGROUND + 0.55 * (_shades(images, peak) - _BACKGROUND)
    return _png(_tiles(shades + share * (_BLAME - shades), columns, side))


def _shades(images: ndarray, peak: float) -> Float[ndarray, "count pixels 3"]:
    return _BACKGROUND + np.clip(images / peak, 0, 1)[..., None] * (_INK - _BACKGROUND)


def _tiles(colours: Float[ndarray, "count pixels 3"], columns: int, side: int) -> ndarray:
    """Lay images out in rows, each pixel as several and a transparent gap between images."""
    zoom, gap = 8, 8
    rows = -(-len(colours) // columns)
    size = side * zoom
    canvas = np.zeros((rows * (size + gap) - gap, columns * (size + gap) - gap, 4))
    for index, colour in enumerate(colours):
        top, left = (place * (size + gap) for place in divmod(index, columns))
        image = colour.reshape(side, side, 3).repeat(zoom, 0).repeat(zoom, 1)
        canvas[top : top + size, left : left + size, :3] = image
        canvas[top : top + size, left : left + size, 3] = 1
    return canvas


def _png(colours: ndarray) -> bytes:
    buffer = io.BytesIO()
    matplotlib.image.imsave(buffer, np.clip(colours, 0, 1), format="png")
    return buffer.getvalue()
