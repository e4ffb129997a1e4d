"""Why a row is unusual: the surprise of each of its columns given the others, as bars."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from arcsm.errors import InputError
from arcsm.plots.canvas import add_title, as_numbers, label_axes, take_axes
from arcsm.plots.palette import DATA, INK, MUTED, SCORE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Nats from which a column calls for attention: another value would be some twenty times as likely.
_NOTABLE = 3.0


def surprise_plot(
    surprise: Any,
    *,
    names: Sequence[str] | None = None,
    values: Any = None,
    title: str | None = None,
    most: int = 15,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw the surprise of the columns of one row, in nats, the most surprising at the top.

    `surprise` is what `explain` returns for one row, as (D,) or (1, D); `values` are those of the
    row, or a table of this row alone, to be shown beside the names. Of more than `most` columns
    only the first ones are drawn. Columns of which another value would be far more likely, given
    all the others, are coloured.
    """
    heights = as_numbers(surprise, "surprise", ndims=(1, 2))
    if heights.ndim == 2:
        if len(heights) > 1:
            raise InputError(
                f"expected the surprise of one row, got {len(heights)} rows; pass one of them,"
                " surprise[0] for the first"
            )
        heights = heights[0]
    names = [f"x{i}" for i in range(len(heights))] if names is None else [str(n) for n in names]
    values = None if values is None else _of_one_row(values)
    for what, given in (("names", names), ("values", values)):
        if given is not None and len(given) != len(heights):
            raise InputError(
                f"expected {what} for each of {len(heights)} columns, got {len(given)};"
                " pass as many"
            )
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        raise InputError(f"expected most as a number of columns, 1 or more, got {most!r}; give 15")
    shown = np.argsort(-heights, kind="stable")[:most]
    ax = take_axes(ax, height=1.1 + 0.27 * len(shown))
    places = np.arange(len(shown))
    colours = [SCORE if heights[i] >= _NOTABLE else DATA for i in shown]
    ax.barh(places, heights[shown], color=colours, height=0.7)
    ax.axvline(0.0, color=MUTED, linewidth=0.8)
    labels = [names[i] if values is None else f"{names[i]} = {_shown(values[i])}" for i in shown]
    ax.set_yticks(places)
    for tick, label in zip(ax.set_yticklabels(labels, color=INK), labels, strict=True):
        tick.set_parse_math(False)
        tick.set_text(label)
    ax.set_ylim(len(shown) - 0.4, -0.6)  # the first at the top
    label_axes(ax, "surprise given the other columns, nats", "")
    left = len(heights) - len(shown)
    add_title(ax, title or "Why this row is unusual")
    if left:
        ax.annotate(
            f"{left} more, up to {np.sort(heights)[::-1][len(shown)]:.1f}",
            (1.0, 0.0),
            xycoords="axes fraction",
            ha="right",
            va="bottom",
            color=MUTED,
            fontsize=9,
        )
    return ax


def _of_one_row(values: Any) -> list[Any]:
    """Return the values of a row by place: in pandas it has labels, and a frame lists its names."""
    shape: tuple[int, ...] = getattr(values, "shape", ())
    if len(shape) != 2:
        return list(values)
    if shape[0] != 1:
        raise InputError(
            f"expected the values of one row, got {shape[0]} rows; pass the row that surprise is of"
        )
    return list(np.asarray(values, dtype=object)[0])  # whole numbers beside others stay whole


def _shown(value: Any) -> str:
    """Return a value of a table in a few digits."""
    plain = value.item() if isinstance(value, np.generic) else value
    return f"{plain:.4g}" if isinstance(plain, float) else str(plain)
