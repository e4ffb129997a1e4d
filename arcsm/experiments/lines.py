"""Line charts for experiments: each curve has its name at its end, and bands show the seeds."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from arcsm.experiments.ticks import plain_log_ticks
from arcsm.plots.canvas import add_title, dress, label_axes
from arcsm.plots.palette import INK, RULE, SEVERAL, SEVERAL_STYLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# An axis that spans less than this factor has too few powers of ten to be read by.
_FEW_DECADES = 100


@dataclass(frozen=True)
class Line:
    """Points of one curve, and what lies between the lowest and the highest seed."""

    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


def line_figure(lines: Mapping[str, Line], **options: Any) -> "Figure":
    """Return a figure with one chart of named curves; the options are those of `line_chart`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.4), layout="constrained")
    line_chart(lines, ax=figure.add_subplot(), **options)
    return figure


def line_chart(
    lines: Mapping[str, Line],
    *,
    ax: "Axes",
    x: str,
    y: str,
    title: str,
    log_x: bool = True,
    log_y: bool = True,
    doublings: bool = False,
    known: str | None = None,
) -> None:
    """Draw named curves on axes that are logarithmic unless said otherwise.

    With `doublings` single points matter: they are marked, and x has ticks at powers of two. The
    curve `known` is one that others are measured by, and has the colour of the truth.
    """
    dress(ax)
    from matplotlib.ticker import LogLocator, NullFormatter

    ax.set_xscale("log" if log_x else "linear")
    ax.set_yscale("log" if log_y else "linear")
    ax.grid(axis="y", color=RULE, linewidth=0.8)
    ax.set_axisbelow(True)
    ends: list[tuple[float, float, str, str]] = []
    looks = itertools.cycle(zip(SEVERAL, SEVERAL_STYLES, strict=True))
    for name, line in lines.items():
        colour, style = (INK, (0, (1, 1.2))) if name == known else next(looks)
        mark = "o" if doublings else None
        ax.plot(line.x, line.y, color=colour, linestyle=style, marker=mark, ms=3.5, lw=1.8)
        if line.low is not None and line.high is not None:
            ax.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, linewidth=0)
        if len(line.x):
            ends.append((line.x[-1], line.y[-1], name, colour))
    if log_x:
        ax.xaxis.set_major_locator(LogLocator(base=2 if doublings else 10))
        ax.xaxis.set_major_formatter("{x:,g}")
        ax.xaxis.set_minor_formatter(NullFormatter())
    low, high = ax.get_ylim()
    if log_y and high < _FEW_DECADES * low:  # else powers of ten are enough
        plain_log_ticks(ax.yaxis)
    label_axes(ax, x, y)
    add_title(ax, title)
    _name_ends(ax, ends)


def _name_ends(ax: "Axes", ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Write names to the right of the plot, at the height of the ends, none over another."""
    ax.get_ylim()  # what was drawn has its place only after limits were asked for
    height = ax.get_window_extent().height
    least = 13.0 * ax.figure.dpi / 72  # a line of text, in pixels
    bottom = ax.get_window_extent().y0
    places = [ax.transData.transform(end[:2])[1] for end in ends]
    order = sorted(range(len(ends)), key=lambda i: places[i])
    # From below upwards no closer than a line of text, then down again where the top was passed.
    at: list[float] = []
    for i in order:
        wanted = places[i] if math.isfinite(places[i]) else bottom
        at.append(max(wanted, at[-1] + least if at else bottom))
    for k in reversed(range(len(at))):
        at[k] = min(at[k], at[k + 1] - least if k + 1 < len(at) else bottom + height)
    for i, pixel in zip(order, at, strict=True):
        _, _, name, colour = ends[i]
        share = (pixel - bottom) / height
        ax.annotate(
            name,
            (1.0, share),
            xycoords="axes fraction",
            xytext=(6, 0),
            textcoords="offset points",
            color=colour,
            fontsize=9,
            va="center",
            annotation_clip=False,
            parse_math=False,
        )
