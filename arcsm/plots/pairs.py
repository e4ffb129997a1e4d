"""Data against samples, column by column and pair by pair."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from arcsm.errors import InputError
from arcsm.plots.canvas import add_legend, dress
from arcsm.plots.columns import Column, make_column, match_columns
from arcsm.plots.palette import INK, MODEL, MUTED, SCORE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_COLUMNS = 6
LONGEST_LABEL = 12
# From this share on, samples that are out of the picture are worth a word.
NOTED_OUTSIDE = 0.02

_DATA = MUTED  # the paler grey of lines is lost in small dots


def pair_plot(
    data: Any,
    samples: Any,
    *,
    names: Sequence[str] | None = None,
    columns: Sequence[str | int] | None = None,
    rows: int = 2000,
    axes: Any = None,
    seed: int = 0,
) -> ndarray:
    """Draw data and samples of a model in a grid of (columns, columns) axes, and return the axes.

    On the diagonal are histograms of both, of all rows; bars for text and for whole numbers of few
    values. Below it are the data, pair by pair, above it the samples: at most `rows` of each, drawn
    with `seed`, and discrete values moved a little so that they do not hide each other. `data` and
    `samples` are arrays, tensors, tables or data frames; tables are matched by their names.
    `names` name the columns of arrays.
    `columns` chooses columns by name or place: without it, the first six are shown. The limits are
    those of the data but for its outermost half percent on either side.
    """
    if not isinstance(rows, int) or isinstance(rows, bool) or rows < 1:
        raise InputError(f"expected a positive number of rows, got {rows!r}; 2000 is usual")
    ours, theirs = match_columns(data, samples, names, columns)
    shown = theirs.names[:MOST_COLUMNS] if columns is None else theirs.names
    parts = [make_column(name, ours.columns[name], theirs.columns[name]) for name in shown]
    own = axes is None
    grid = _new_grid(len(parts)) if own else _given_grid(axes, len(parts))
    random = np.random.default_rng(seed)
    below = _points([(part, part.data) for part in parts], rows, random)
    above = _points([(part, part.samples) for part in parts], rows, random)
    # More dots need to be smaller and paler to show where they are dense.
    size, alpha = (7.0, 0.5) if rows < 800 else (3.5, 0.4)
    for i, j in np.ndindex(grid.shape):
        ax: Any = grid[i, j]
        dress(ax, 8.0)
        if i == j:
            handles = _marginal(ax, parts[i])
        else:
            dots, colour = (below, _DATA) if i > j else (above, MODEL)
            ax.scatter(
                dots[j], dots[i], s=size, c=colour, alpha=alpha, linewidths=0, rasterized=True
            )
            ax.set_ylim(parts[i].limits)
        ax.set_xlim(parts[j].limits)
        _label(ax, parts, i, j)
    left_out = len(ours.columns) - len(parts)
    figure = grid[0, 0].figure
    if left_out:
        first = "the first " if columns is None else ""
        note = f"{first}{len(parts)} of {len(ours.columns)} columns; {left_out} left out"
        figure.suptitle(note, fontsize=10, color=INK, x=0.01, ha="left")
    place, options = (
        (figure, {"loc": "outside upper right", "ncols": 2}) if own else (grid[0, 0], {})
    )
    labels = ["data (below)", "samples (above)"] if len(parts) > 1 else ["data", "samples"]
    add_legend(place, handles, labels, **options)
    return grid


def _new_grid(count: int) -> ndarray:
    from matplotlib.figure import Figure

    side = max(3.6, min(1.0 + 1.9 * count, 12.0))
    figure = Figure(figsize=(side, side), layout="constrained")
    return np.asarray(figure.subplots(count, count, squeeze=False))


def _given_grid(axes: Any, count: int) -> ndarray:
    from matplotlib.axes import Axes

    grid = np.array(axes, dtype=object)
    grid = grid.reshape(1, 1) if grid.ndim == 0 else grid
    if grid.shape != (count, count) or not all(isinstance(ax, Axes) for ax in grid.flat):
        raise InputError(
            f"expected matplotlib axes of shape ({count}, {count}), one for each pair of columns,"
            f" got shape {grid.shape}; leave axes out for new ones"
        )
    return grid


def _points(parts: list[tuple[Column, ndarray]], rows: int, random: np.random.Generator) -> ndarray:
    """Return some of the rows, column by column, discrete values moved at random."""
    count = len(parts[0][1])
    kept = np.arange(count) if count <= rows else random.choice(count, rows, replace=False)
    points = np.stack([values[kept] for _, values in parts])
    for place, (part, _) in enumerate(parts):
        if part.values is not None:
            points[place] += part.gap * random.uniform(-0.28, 0.28, len(kept))
    return points


def _marginal(ax: "Axes", part: Column) -> list[Any]:
    """Draw how often values occur in both; return what the legend shows."""
    handles: list[Any] = []
    for side, values, colour in ((-1, part.data, _DATA), (1, part.samples, MODEL)):
        if part.values is not None:
            shares = (values[:, None] == part.values).mean(0)
            middle = part.values + side * 0.2 * part.gap
            handles.append(ax.bar(middle, shares, width=0.4 * part.gap, color=colour))
            continue
        heights, _ = np.histogram(values, part.edges, density=True)
        filled = ax.stairs(heights, part.edges, fill=True, color=colour, alpha=0.35)
        ax.stairs(heights, part.edges, color=colour, linewidth=1.3)
        handles.append(filled)
    ax.set_ylim(bottom=0)
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    if part.outside > NOTED_OUTSIDE:
        note = f"{part.outside:.0%} of samples outside"
        ax.set_title(note, fontsize=8, color=SCORE)
    return handles


def _label(ax: "Axes", parts: list[Column], i: int, j: int) -> None:
    """Name the axes at the left and lower edge of the grid, and show ticks there alone."""
    last = len(parts) - 1
    if j == 0:
        ax.set_ylabel(_short(parts[i].name, 24), fontsize=10, color=INK, parse_math=False)
    if i == last:
        ax.set_xlabel(_short(parts[j].name, 24), fontsize=10, color=INK, parse_math=False)
    _ticks(ax.xaxis, parts[j], ("bottom", "top"), "bottom" if i == last else None)
    if i != j:
        # The first row begins with a histogram: the scale of its dots is at the other end.
        shown = "left" if j == 0 else "right" if i == 0 and j == last else None
        _ticks(ax.yaxis, parts[i], ("left", "right"), shown)
        if shown == "right":
            ax.tick_params(left=False, right=True)
            ax.spines["left"].set_visible(False)
            ax.spines["right"].set(visible=True, color=ax.spines["left"].get_edgecolor())


def _ticks(axis: Any, part: Column, sides: tuple[str, str], shown: str | None) -> None:
    """Place the ticks, and write their labels on the side that is shown."""
    from matplotlib.ticker import MaxNLocator

    if part.categories is not None:
        labels = [_short(text, LONGEST_LABEL) for text in part.categories]
        axis.set_ticks(
            part.values, labels, rotation=90 if "bottom" in sides else 0, parse_math=False
        )
    else:
        axis.set_major_locator(MaxNLocator(3, integer=part.values is not None))
    axis.set_tick_params(**{f"label{side}": side == shown for side in sides})


def _short(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
