"""Figures of experiments on images: samples side by side, and points on one line for each case."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from arcsm.experiments.ticks import plain_log_ticks
from arcsm.plots.canvas import add_legend, add_title, dress
from arcsm.plots.palette import INK, MODEL, MUTED, RULE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Dots of an inch with which the runner writes figures: pixels of grids then stay whole.
_DOTS = 160
# Inches around grids, and above them for titles, and for names alone.
_MARGIN, _BETWEEN, _TOP, _NAME = 0.15, 0.25, 0.62, 0.34
# Points of the letters of titles.
_LETTERS = 11
# Inches of a row of points, and from one series to the next.
_ROW, _STEP = 0.42, 0.075
# Of series that are compared with the model.
_MARKERS = ("D", "s", "^", "v", "P", "X")


def grid_figure(
    panels: Mapping[str, np.ndarray], *, title: str, across: int | None = None
) -> "Figure":
    """Return pictures, uint8 (height, width, channels), each with its name.

    They stand beside one another, `across` in a row, or all of them.
    """
    from matplotlib.figure import Figure
    from matplotlib.textpath import TextPath

    named = list(panels.items())
    count = across or len(named)
    rows = [named[start : start + count] for start in range(0, len(named), count)]
    wide = max(sum(picture.shape[1] for _, picture in row) / _DOTS for row in rows)
    width = wide + _BETWEEN * (max(len(row) for row in rows) - 1) + 2 * _MARGIN
    if title.strip():
        letters = TextPath((0, 0), title.replace("$", r"\$"), size=_LETTERS)
        width = max(width, letters.get_extents().width / 72 + 2 * _MARGIN)  # in inches
    highs = [max(picture.shape[0] for _, picture in row) / _DOTS for row in rows]
    height = sum(highs) + _TOP + _NAME * (len(rows) - 1) + _MARGIN
    figure = Figure(figsize=(width, height))
    figure.text(
        _MARGIN / width,
        1 - 0.1 / height,
        title,
        va="top",
        fontsize=_LETTERS,
        color=INK,
        parse_math=False,
    )
    top = height - _TOP
    for row, high in zip(rows, highs, strict=True):
        left = _MARGIN
        for name, picture in row:
            size = picture.shape[1] / _DOTS, picture.shape[0] / _DOTS
            place = left / width, (top - size[1]) / height, size[0] / width, size[1] / height
            ax = figure.add_axes(place)
            shown = picture[..., 0] if picture.shape[-1] == 1 else picture
            ax.imshow(shown, cmap="gray", vmin=0, vmax=255, interpolation="nearest", aspect="auto")
            ax.set_axis_off()
            ax.set_title(name, loc="left", fontsize=9.5, color=MUTED, pad=4, parse_math=False)
            left += size[0] + _BETWEEN
        top -= high + _NAME
    return figure


def points_figure(
    values: Mapping[str, Mapping[str, Sequence[float | None]]],
    *,
    x: str,
    title: str,
    log_x: bool = False,
) -> "Figure":
    """Return a chart with a row for each case, and in it the values of each of the series.

    The last series is what the others are compared with, and has the colour of the model. Of more
    than two each stands a little below the one before: of equal values none hides another.
    """
    from matplotlib.figure import Figure

    cases, count = list(next(iter(values.values()))), len(values)
    step = _STEP if count > 2 else 0.0
    row = max(_ROW, step * (count + 3))
    figure = Figure(figsize=(7.5, 1.3 + row * len(cases)), layout="constrained")
    ax = figure.add_subplot()
    dress(ax)
    ax.grid(axis="x", color=RULE, linewidth=0.8)
    ax.set_axisbelow(True)
    handles = []
    for index, of in enumerate(values.values()):
        last = index == count - 1
        below = (index - (count - 1) / 2) * step / row
        points = [
            (value, place + below)
            for place, case in enumerate(cases)
            for value in of[case]
            if value is not None
        ]
        handles += ax.plot(
            [point[0] for point in points],
            [point[1] for point in points],
            linestyle="",
            marker="o" if last else _MARKERS[index % len(_MARKERS)],
            markersize=7 if last else 6,
            color=MODEL if last else INK,
            markerfacecolor=MODEL if last else "white",
        )
    ax.set_yticks(range(len(cases)), cases, color=INK, parse_math=False)
    ax.set_ylim(len(cases) - 0.5, -0.5)
    if log_x:
        ax.set_xscale("log")
        plain_log_ticks(ax.xaxis, dense=False)
    else:
        ax.set_xlim(left=0)
    ax.set_xlabel(x, color=INK, parse_math=False)
    add_title(ax, title)
    add_legend(figure, handles, list(values), loc="outside lower right", ncols=count)
    return figure
