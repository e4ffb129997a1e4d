"""Curves and maps: conditional densities, training losses, densities of two columns."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from arcsm.errors import InputError
from arcsm.plots.canvas import (
    add_legend,
    add_title,
    as_density,
    as_numbers,
    label_axes,
    take_axes,
)
from arcsm.plots.palette import DATA, HEAT, INK, MODEL, RULE, SEVERAL, SEVERAL_STYLES
from arcsm.train import History

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

# With fewer losses than this the single ones can be followed by eye.
SMOOTHED_FROM = 24


def conditional_plot(
    grid: Any,
    log_density: Any,
    *,
    observed: Any = None,
    name: str | None = None,
    labels: Sequence[str] | None = None,
    discrete: bool = False,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw conditional densities of one column, one for each row of `log_density`.

    `grid` holds the places in ascending order. `observed` values are ticks at the foot; where
    there is one for each of several rows, each has the colour of its row. `labels` name the rows.
    `discrete` draws bars at the places instead, whose heights are probabilities.
    """
    places = as_numbers(grid, "grid", ndims=(1,))
    density = np.atleast_2d(as_density(log_density, ndims=(1, 2)))
    rows = len(density)
    if density.shape[1] != len(places):
        raise InputError(
            f"expected log_density with {len(places)} columns, one for each point of the grid,"
            f" got {density.shape[1]}; evaluate it on the grid"
        )
    if (np.diff(places) <= 0).any() or (len(places) < 2 and not discrete):
        raise InputError(
            "expected two or more points of the grid in ascending order, got others;"
            " sort them and leave out repetitions"
        )
    if labels is not None and len(labels) != rows:
        raise InputError(f"expected {rows} labels, one for each row, got {len(labels)}")
    seen = None if observed is None else as_numbers(observed, "observed", ndims=(0, 1)).ravel()
    ax = take_axes(ax)
    before = ax.get_ylim()[1] if ax.has_data() else 0.0
    looks = _looks(rows)
    gap = float(np.diff(places).min()) if len(places) > 1 else 1.0
    drawn: list[Any] = []
    width = 0.8 * gap / rows
    shifts = (np.arange(rows) - (rows - 1) / 2) * width
    for heights, shift, (colour, style) in zip(density, shifts, looks, strict=True):
        if discrete:
            drawn.append(ax.bar(places + shift, heights, width=width, color=colour))
        else:
            # Overlapping washes turn to mud: the more rows, the lighter each.
            wash = 0.22 if rows == 1 else 0.3 / rows
            ax.fill_between(places, heights, color=colour, alpha=wash, linewidth=0)
            drawn.append(ax.plot(places, heights, color=colour, linestyle=style, linewidth=1.8)[0])
    low, high = places[0], places[-1]
    if discrete:
        low, high = low - 0.6 * gap, high + 0.6 * gap
    if seen is not None:
        paired = rows > 1 and len(seen) == rows
        # On a bar of its own colour a tick would vanish: there it is known by its place.
        own = paired and not discrete
        colours = [colour for colour, _ in looks] if own else [INK] * len(seen)
        marks = _mark(ax, seen + shifts if paired and discrete else seen, colours)
        low, high = min(low, seen.min()), max(high, seen.max())
    ax.set_xlim(low, high)
    ax.set_ylim(0, max(before, 1.08 * float(density.max())) or 1.0)
    label_axes(ax, name or "value", "probability" if discrete else "density")
    named = list(zip(drawn, labels, strict=True)) if labels is not None else []
    if seen is not None:
        named.append((marks, "observed"))
    if named:
        add_legend(ax, [handle for handle, _ in named], [label for _, label in named], loc="best")
    return ax


def loss_plot(history: History, *, ax: "Axes | None" = None) -> "Axes":
    """Draw the training and the held-out loss over the steps, and mark the step that was kept.

    The first tenth of the steps falls from far above and may leave the picture at the top. The
    lower end stays above 0 where all losses do, so that the axis can be made logarithmic.
    """
    from matplotlib.ticker import MaxNLocator

    training = _as_losses(history.training, "training")
    validation = _as_losses(history.validation, "validation")
    everything = np.concatenate([training, validation])
    if not len(everything):
        raise InputError("expected a history with losses, got an empty one; train for longer")
    ax = take_axes(ax)
    ax.grid(axis="y", color=RULE, linewidth=0.8)
    ax.set_axisbelow(True)
    drawn: list[tuple[Artist, str]] = []
    smooth = training
    if len(training):
        if len(training) >= SMOOTHED_FROM:
            ax.plot(*training.T, color=DATA, linewidth=0.8, alpha=0.5)
            smooth = np.column_stack([training[:, 0], _running_mean(training[:, 1])])
        label = "training" if smooth is training else "training, running mean"
        drawn.append((ax.plot(*smooth.T, color=DATA, linewidth=1.8)[0], label))
    if len(validation):
        drawn.append((ax.plot(*validation.T, color=MODEL, linewidth=2.0)[0], "held-out rows"))
        best = validation[validation[:, 0] == history.best_step]
        if len(best):
            loss = f"{best[0, 1]:.4g}".replace("-", "−")
            marker = ax.plot(*best[:1].T, "o", color=MODEL, markersize=7, markeredgecolor="white")
            drawn.append((marker[0], f"best: {loss} at step {history.best_step:,}"))
    end = max(float(everything[:, 0].max()), 1.0)
    ax.set_xlim(0, 1.02 * end)
    ax.set_ylim(*_settled_range(np.concatenate([smooth, validation]), end))
    ax.xaxis.set_major_locator(MaxNLocator(7, integer=True))
    ax.xaxis.set_major_formatter("{x:,.0f}")
    label_axes(ax, "step", "loss")
    add_legend(ax, [handle for handle, _ in drawn], [label for _, label in drawn], loc="best")
    return ax


def density_map(
    log_density: Any,
    extent: Sequence[float],
    *,
    points: Any = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw a density of two columns as an image, with points over it if there are any.

    `log_density` has the shape (height, width), its first row at the bottom; `extent` is (left,
    right, bottom, top), the outer edges of the image. `points` have the shape (rows, 2).
    """
    density = as_density(log_density, ndims=(2,))
    edges = as_numbers(extent, "extent", ndims=(1,))
    if edges.shape != (4,) or edges[0] >= edges[1] or edges[2] >= edges[3]:
        raise InputError(
            f"expected extent as (left, right, bottom, top) with left < right and bottom < top,"
            f" got {tuple(edges.tolist())}"
        )
    dots = None if points is None else as_numbers(points, "points", ndims=(2,))
    if dots is not None and dots.shape[1] != 2:
        raise InputError(f"expected points of shape (rows, 2), got {dots.shape}")
    ax = take_axes(ax, 5.4, 4.6)
    left, right, bottom, top = edges.tolist()
    image = ax.imshow(
        density,
        cmap=HEAT,
        vmin=0.0,
        vmax=float(density.max()) or 1.0,
        origin="lower",
        extent=(left, right, bottom, top),
        aspect="auto",
        interpolation="nearest",
    )
    if dots is not None:
        # A dark rim keeps white dots visible on the bright end of the colours.
        ax.scatter(
            dots[:, 0], dots[:, 1], s=9, c="white", edgecolors="black", linewidths=0.4, alpha=0.8
        )
        ax.set_xlim(left, right)
        ax.set_ylim(bottom, top)
    bar = ax.figure.colorbar(image, ax=ax, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=INK, labelsize=9, width=0.8)
    bar.set_label("density", color=INK)
    if dots is not None:
        inside = (dots >= edges[::2]).all(1) & (dots <= edges[1::2]).all(1)
        if not inside.all():
            add_title(ax, f"{int((~inside).sum())} of {len(dots)} points outside")
    return ax


def _looks(count: int) -> list[tuple[Any, Any]]:
    """Return as many colours and styles of a line."""
    if count <= len(SEVERAL):
        return list(zip(SEVERAL[:count], SEVERAL_STYLES[:count], strict=True))
    import matplotlib

    # Without the brightest end, which vanishes on white.
    shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, count))
    return [(shade, "solid") for shade in shades]


def _mark(ax: "Axes", places: ndarray, colours: Sequence[Any]) -> "Artist":
    """Draw ticks at the foot, as high as a part of the axes; return a sign for the legend."""
    from matplotlib.lines import Line2D

    for place, colour in zip(places, colours, strict=True):
        transform = ax.get_xaxis_transform()
        ax.plot([place, place], [0, 0.07], color="white", linewidth=4, transform=transform)
        ax.plot([place, place], [0, 0.07], color=colour, linewidth=2, transform=transform)
    single = colours[0] if len(places) == 1 else INK
    return Line2D([], [], color=single, marker="|", markersize=9, markeredgewidth=2, linestyle="")


def _as_losses(losses: Sequence[tuple[int, float]], name: str) -> ndarray:
    if not len(losses):
        return np.empty((0, 2))
    pairs = as_numbers(losses, f"history.{name}", ndims=(2,))
    if pairs.shape[1] != 2:
        raise InputError(f"expected (step, loss) in history.{name}, got shape {pairs.shape}")
    return pairs


def _running_mean(losses: ndarray) -> ndarray:
    """Average each loss with its neighbours on both sides, a twelfth of all."""
    half = max(1, len(losses) // 24)
    sums = np.concatenate([[0.0], np.cumsum(losses)])
    index = np.arange(len(losses))
    # Both sides, since a mean of the past alone would lag behind a falling loss.
    first, last = np.maximum(index - half, 0), np.minimum(index + half + 1, len(losses))
    return (sums[last] - sums[first]) / (last - first)


def _settled_range(pairs: ndarray, end: float) -> tuple[float, float]:
    """Return the range of the losses after the first tenth of the steps, with a margin."""
    late = pairs[pairs[:, 0] > end / 10, 1]
    losses = late if len(late) else pairs[:, 1]
    low, high = float(losses.min()), float(losses.max())
    margin = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
    floor = low / 2 if pairs[:, 1].min() > 0 else -np.inf
    return max(low - margin, floor), high + margin
