"""A table of areas under curves as a figure, in which the good ones are seen at once."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from arcsm.plots.canvas import add_title
from arcsm.plots.palette import INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def table_figure(
    values: Mapping[str, Sequence[float]], columns: Sequence[str], *, title: str
) -> "Figure":
    """Return a table with a line for each name; the darker a cell, the farther from chance up."""
    from matplotlib.figure import Figure

    table = np.array(list(values.values()), dtype=float)
    figure = Figure(
        figsize=(3.2 + 1.1 * len(columns), 1.1 + 0.3 * len(values)), layout="constrained"
    )
    ax = figure.add_subplot()
    ax.imshow(table, cmap="Blues", vmin=0.5, vmax=1.3, aspect="auto")
    ax.set_yticks(range(len(values)), list(values), color=INK, parse_math=False)
    ax.set_xticks(range(len(columns)), columns, color=INK, parse_math=False)
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    for side in ax.spines.values():
        side.set_visible(False)
    for row, column in np.ndindex(*table.shape):
        ax.text(column, row, f"{table[row, column]:.3f}", ha="center", va="center", color=INK)
    add_title(ax, title)
    return figure
