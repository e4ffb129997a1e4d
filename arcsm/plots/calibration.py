"""Calibration: are the observed values spread over the predicted distributions as they should be?

The probability integral transform (PIT) of a value is the predicted probability of a smaller one.
Under the right model PIT values are uniform between 0 and 1; those of a discrete column are, if the
probability of the value itself is split at random.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from arcsm.errors import InputError
from arcsm.plots.canvas import add_legend, add_title, as_numbers, label_axes, take_axes
from arcsm.plots.palette import DATA, INK, MODEL, MUTED, RULE, SEVERAL, SEVERAL_STYLES
from arcsm.soundness import ks_distance, ks_limit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEVEL = 0.95
# Of an empirical distribution function; more steps cannot be told apart.
DRAWN_STEPS = 1000


def pit_plot(
    pit: Any, *, name: str | None = None, bins: int = 20, ax: "Axes | None" = None
) -> "Axes":
    """Draw the histogram of PIT values over the band that uniform values would keep to.

    The band holds the height of each single bar with a probability of 95 %. A histogram like a ∪
    belongs to predictions that are too narrow, one like a ∩ to predictions that are too wide, a
    slope to predictions that are off to one side.
    """
    from scipy.stats import binom

    values = _as_pit(pit, ndim=1)
    if not isinstance(bins, int) or isinstance(bins, bool) or bins < 2:
        raise InputError(f"expected at least 2 bins, got {bins!r}; 20 is usual")
    ax = take_axes(ax)
    counts, edges = np.histogram(values, bins, range=(0, 1))
    to_density = bins / len(values)
    tail = (1 - LEVEL) / 2
    low, high = binom.ppf([tail, 1 - tail], len(values), 1 / bins) * to_density
    band = ax.axhspan(low, high, color=DATA, alpha=0.35, linewidth=0, zorder=0.5)
    bars = ax.stairs(counts * to_density, edges, fill=True, color=MODEL, alpha=0.35)
    ax.stairs(counts * to_density, edges, color=MODEL, linewidth=1.4)
    ax.axhline(1.0, color=INK, linewidth=1.0, linestyle=(0, (4, 3)))
    ax.set_xlim(0, 1)
    # Room for the legend above the bars.
    ax.set_ylim(0, 1.28 * max(high, counts.max() * to_density))
    label_axes(ax, "predicted probability of a smaller value (PIT)", "density")
    distance, limit = ks_distance(values), ks_limit(len(values), 1 - LEVEL)
    add_title(ax, f"{_prefix(name)}KS distance {distance:.3f} (95 % limit {limit:.3f})")
    add_legend(
        ax, [bars, band], ["observed", "95 % band if calibrated"], loc="upper right", ncols=2
    )
    return ax


def pit_difference_plot(
    pit: Any, *, names: Sequence[str] | None = None, ax: "Axes | None" = None
) -> "Axes":
    """Draw, for each column of PIT values, their distribution function minus the uniform one.

    The band is the one of Kolmogorov and Smirnov: a calibrated column stays inside it as a whole
    with a probability of 95 %. The columns that go furthest are coloured and named.
    """
    values = _as_pit(pit, ndim=2)
    rows, columns = values.shape
    names = [f"x{i}" for i in range(columns)] if names is None else [str(n) for n in names]
    if len(names) != columns:
        raise InputError(
            f"expected a name for each of {columns} columns, got {len(names)}; pass as many"
        )
    ax = take_axes(ax)
    limit = ks_limit(rows, 1 - LEVEL)
    distances = np.array([ks_distance(values[:, i]) for i in range(columns)])
    furthest = np.argsort(-distances, kind="stable")
    named = furthest[: len(SEVERAL)]
    band = ax.axhspan(-limit, limit, color=RULE, alpha=0.8, linewidth=0, zorder=0.5)
    ax.axhline(0.0, color=MUTED, linewidth=0.8, zorder=0.6)
    others = furthest[len(SEVERAL) :]
    lines = {}
    for i in others:
        lines[i] = ax.plot(*_difference(values[:, i]), color=DATA, linewidth=0.8)[0]
    # The furthest last, on top.
    for place in reversed(range(len(named))):
        i, colour, style = named[place], SEVERAL[place], SEVERAL_STYLES[place]
        line = ax.plot(*_difference(values[:, i]), color=colour, linestyle=style, linewidth=1.6)
        lines[i] = line[0]
    ax.set_xlim(0, 1)
    reach = 1.15 * max(limit, float(distances.max()))
    ax.set_ylim(-reach, reach)
    label_axes(ax, "predicted probability of a smaller value (PIT)", "observed − predicted share")
    outside = int((distances > limit).sum())
    add_title(ax, f"{outside} of {columns} columns leave the 95 % band")
    handles = [lines[i] for i in named]
    labels = [f"{names[i]}: {distances[i]:.3f}" for i in named]
    if len(others):
        handles.append(lines[others[0]])
        labels.append(f"{len(others)} others: up to {distances[others].max():.3f}")
    add_legend(
        ax,
        [*handles, band],
        [*labels, f"95 % band: {limit:.3f}"],
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        title="largest distance",
        alignment="left",
    )
    return ax


def _difference(values: ndarray) -> tuple[ndarray, ndarray]:
    """Return places and heights of a line: both ends of each jump, and of the interval."""
    ordered = np.sort(values)
    rows = len(ordered)
    below, above = np.arange(rows) / rows - ordered, np.arange(1, rows + 1) / rows - ordered
    kept = np.arange(rows)
    if rows > DRAWN_STEPS:
        spread = np.linspace(0, rows - 1, DRAWN_STEPS).astype(int)
        kept = np.unique([*spread, below.argmin(), above.argmax()])
    places = np.repeat(ordered[kept], 2)
    heights = np.stack([below[kept], above[kept]], axis=1).ravel()
    return np.concatenate([[0], places, [1]]), np.concatenate([[0], heights, [0]])


def _as_pit(pit: Any, *, ndim: int) -> ndarray:
    values = as_numbers(pit, "pit", ndims=(1, 2))
    if values.ndim != ndim:
        other = "pit_difference_plot" if ndim == 1 else "pit_plot"
        raise InputError(
            f"expected pit of {ndim} dimension{'s' * (ndim > 1)}, got shape {values.shape};"
            f" use {other} for these"
        )
    if values.min() < 0 or values.max() > 1:
        raise InputError(
            f"expected PIT values between 0 and 1, got {values.min():g} to {values.max():g};"
            " pass the values of the predicted distribution functions"
        )
    return values


def _prefix(name: str | None) -> str:
    return "" if name is None else f"{name}: "
