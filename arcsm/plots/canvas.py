"""What all plots share: checked arrays, axes without pyplot, their dress, and files."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray
from torch import Tensor

from arcsm.errors import InputError
from arcsm.files import write_atomic
from arcsm.plots.palette import DATA, INK, MUTED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
# exp() of more than this is beyond float64, and no density that can be drawn.
HIGHEST_LOG_DENSITY = 700.0


def save_figure(axes_or_figure: Any, path: str | os.PathLike[str], *, dpi: float = 120) -> None:
    """Write a figure, or the figure of the given axes, as PNG, SVG or PDF by the path's suffix.

    The file is replaced as a whole or not at all.
    """
    from matplotlib.artist import Artist

    first: Any = axes_or_figure
    if isinstance(first, ndarray) and first.size:
        first = first.flat[0]
    if not isinstance(first, Artist) or getattr(first, "figure", None) is None:
        raise InputError(
            f"expected matplotlib axes or a figure, got {type(first).__name__};"
            " pass what the plot returned"
        )
    suffix = Path(path).suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        choices = ", ".join(f".{name}" for name in FORMATS)
        raise InputError(
            f"expected a path that ends in one of {choices}, got {os.fspath(path)!r};"
            " change the suffix"
        )
    if not 0 < dpi < float("inf"):
        raise InputError(f"expected a positive dpi, got {dpi!r}; 120 suits a screen")
    # The first step leads from axes to a figure, the second from a figure in a figure to the whole.
    figure = first.figure.figure
    write_atomic(path, lambda file: figure.savefig(file, format=suffix, dpi=dpi))


def as_numbers(x: Any, name: str, *, ndims: Sequence[int]) -> ndarray:
    """Return `x` as float64; refuse what is empty, of another dimension, NaN, infinite or text."""
    array = to_numpy(x)
    if array.dtype.kind not in "fiub":
        raise InputError(f"expected numbers in {name}, got dtype {array.dtype}; convert them")
    array = array.astype(np.float64)
    if array.ndim not in ndims:
        wanted = " or ".join(str(count) for count in ndims)
        raise InputError(
            f"expected {name} of {wanted} dimensions, got shape {array.shape}; reshape it"
        )
    if array.size == 0:
        raise InputError(f"expected values in {name}, got shape {array.shape}; pass at least one")
    if not np.isfinite(array).all():
        count = int((~np.isfinite(array)).sum())
        raise InputError(
            f"expected finite numbers in {name}, got {count} that are NaN or infinite; remove them"
        )
    return array


def as_density(x: Any, *, ndims: Sequence[int]) -> ndarray:
    """Return the densities of which `x` holds the natural logarithms; -inf is a density of 0."""
    array = to_numpy(x)
    if array.dtype.kind == "f":
        empty = np.isneginf(array)
        array = np.where(empty, 0.0, array)
    else:
        empty = np.zeros(array.shape, bool)
    logs = as_numbers(array, "log_density", ndims=ndims)
    if logs.max() > HIGHEST_LOG_DENSITY:
        raise InputError(
            f"expected natural logarithms of a density, got {logs.max():g}, whose exponential is"
            " no number; check its units"
        )
    return np.where(empty, 0.0, np.exp(logs))


def to_numpy(x: Any) -> ndarray:
    """Return an array or a tensor, wherever it is and with or without gradient, as an array."""
    if isinstance(x, Tensor):
        # numpy has no bfloat16.
        x = x.detach().cpu().double() if x.is_floating_point() else x.detach().cpu()
    try:
        return np.asarray(x)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"expected an array, got {type(x).__name__} ({error}); convert it with numpy.asarray"
        ) from error


def take_axes(ax: "Axes | None", width: float = 6.0, height: float = 3.8) -> "Axes":
    """Return dressed axes: those given, or those of a new figure that pyplot does not know."""
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    if ax is None:
        ax = Figure(figsize=(width, height), layout="constrained").add_subplot()
    elif not isinstance(ax, Axes):
        raise InputError(
            f"expected matplotlib axes as ax, got {type(ax).__name__}; leave it out for new ones"
        )
    dress(ax)
    return ax


def dress(ax: "Axes", size: float = 9.0) -> None:
    """Give axes quiet lines and ticks."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(DATA)
    ax.tick_params(colors=MUTED, labelsize=size, width=0.8)


def label_axes(ax: "Axes", x: str, y: str) -> None:
    """Name both axes; names are shown as they are, dollar signs included."""
    ax.set_xlabel(x, color=INK, parse_math=False)
    ax.set_ylabel(y, color=INK, parse_math=False)


def add_title(ax: "Axes", text: str) -> None:
    """Write a heading, flush left."""
    ax.set_title(text, loc="left", fontsize=11, color=INK, parse_math=False)


def add_legend(
    place: "Axes | Figure", handles: Sequence[Any], labels: Sequence[str], **options: Any
) -> None:
    """Add a legend; labels are shown as they are, dollar signs and leading underscores included."""
    options = {"frameon": False, "fontsize": 9, "labelcolor": INK, **options}
    # Before 3.10 matplotlib leaves out labels that begin with an underscore: set them afterwards.
    legend = place.legend(list(handles), [f"{i}" for i in range(len(labels))], **options)
    for text, label in zip(legend.get_texts(), labels, strict=True):
        text.set_parse_math(False)
        text.set_text(label)
