import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch
from scipy import integrate, stats

from arcsm import plots
from arcsm.data import as_table
from arcsm.errors import InputError
from arcsm.plots.palette import DATA, HEAT, INK, MODEL, MUTED, SEVERAL
from arcsm.train import History


@pytest.fixture(autouse=True)
def pyplot_is_left_alone() -> Iterator[None]:
    figures, settings = plt.get_fignums(), dict(matplotlib.rcParams)
    backend = matplotlib.get_backend()
    yield
    assert plt.get_fignums() == figures
    assert dict(matplotlib.rcParams) == settings
    assert matplotlib.get_backend() == backend


def normal(rows: int, dims: int = 2, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, dims))


def new_axes() -> Axes:
    return Figure().add_subplot()


def bar_heights(ax: Axes) -> list[list[float]]:
    return [[bar.get_height() for bar in container] for container in ax.containers]


def outlines(ax: Axes) -> list[Any]:
    """The histograms of axes, each once although it is drawn as an area and as a line."""
    return [p.get_data() for p in ax.patches if isinstance(p, StepPatch) and p.get_fill()]


def heights_of(band: Any) -> tuple[float, float]:
    """The lower and the upper end of an area, whichever kind of patch it is."""
    corners = band.get_patch_transform().transform(band.get_path().vertices)
    return corners[:, 1].min(), corners[:, 1].max()


def dots(ax: Axes) -> np.ndarray:
    (collection,) = ax.collections
    return np.asarray(collection.get_offsets())


def texts(place: Any) -> list[str]:
    legend = place.legends[0] if isinstance(place, Figure) else place.get_legend()
    return [text.get_text() for text in legend.get_texts()]


def colour(artist: Any) -> str:
    return to_hex(artist.get_color())


# Pairs


def test_histograms_of_both_share_bins_and_integrate_to_one() -> None:
    data, samples = normal(5000), 2 * normal(3000, seed=1)
    data[0, 0] = 1e6  # far outside of the picture, and still counted
    for i, ax in enumerate(plots.pair_plot(data, samples).diagonal()):
        ours, theirs = outlines(ax)
        assert (ours.edges == theirs.edges).all()
        for histogram in (ours, theirs):
            assert (histogram.values * np.diff(histogram.edges)).sum() == pytest.approx(1)
        # Around 0 the densities are those of N(0, 1) and N(0, 4).
        middle = np.searchsorted(ours.edges, 0.0) - 1
        assert ours.values[middle] == pytest.approx(1 / math.sqrt(2 * math.pi), rel=0.2), i
        assert theirs.values[middle] == pytest.approx(0.5 / math.sqrt(2 * math.pi), rel=0.25), i


def test_limits_hold_all_data_but_a_percent() -> None:
    data = normal(20000)
    data[0] = 1e9
    axes = plots.pair_plot(data, data)
    reach = stats.norm.ppf(0.995)
    for ax, get in ((axes[1, 0], Axes.get_xlim), (axes[0, 1], Axes.get_ylim)):
        # 6 % of the width is added at either side.
        assert get(ax) == pytest.approx((-1.12 * reach, 1.12 * reach), rel=0.05)
    assert axes[0, 0].get_xlim() == axes[1, 0].get_xlim()
    assert axes[0, 1].get_xlim() == axes[1, 1].get_xlim()


def test_data_lie_below_the_diagonal_and_samples_above() -> None:
    data, samples = normal(50, 3), normal(40, 3, seed=1)
    axes = plots.pair_plot(torch.tensor(data, requires_grad=True), samples)
    assert axes.shape == (3, 3)
    assert dots(axes[2, 0]) == pytest.approx(data[:, [0, 2]])
    assert dots(axes[0, 2]) == pytest.approx(samples[:, [2, 0]])
    assert to_hex(axes[2, 0].collections[0].get_facecolor()[0]) == MUTED
    assert to_hex(axes[0, 2].collections[0].get_facecolor()[0]) == MODEL
    assert [ax.get_xlabel() for ax in axes[-1]] == ["x0", "x1", "x2"]
    assert [ax.get_ylabel() for ax in axes[:, 0]] == ["x0", "x1", "x2"]
    assert texts(axes[0, 0].figure) == ["data (below)", "samples (above)"]


def test_no_more_rows_than_asked_for_are_drawn_and_the_seed_chooses_them() -> None:
    data, samples = normal(500), normal(30, seed=1)
    one, same, other = (plots.pair_plot(data, samples, rows=100, seed=s) for s in (1, 1, 2))
    drawn = dots(one[1, 0])
    assert len(drawn) == 100
    assert len({tuple(row) for row in drawn} & {tuple(row) for row in data}) == 100
    assert (drawn == dots(same[1, 0])).all()
    assert not (drawn == dots(other[1, 0])).all()
    assert len(dots(one[0, 1])) == 30
    # The histograms are of all rows.
    histogram = outlines(one[0, 0])[0]
    counts = histogram.values * np.diff(histogram.edges) * 500
    assert counts == pytest.approx(np.rint(counts))


def test_whole_numbers_of_few_values_are_bars_side_by_side() -> None:
    data = np.repeat([0.0, 2.0, 4.0], [5, 3, 2])
    samples = np.repeat([0.0, 4.0, 6.0], [1, 2, 1])
    ax = plots.pair_plot(data[:, None], samples[:, None])[0, 0]
    assert bar_heights(ax) == [[0.5, 0.3, 0.2, 0.0], [0.25, 0.0, 0.5, 0.25]]
    ours, theirs = ([(b.get_x(), b.get_width()) for b in c] for c in ax.containers)
    assert [left for left, _ in ours] == pytest.approx([-0.8, 1.2, 3.2, 5.2])
    for (left, width), (next_left, _) in zip(ours, theirs, strict=True):
        assert next_left == pytest.approx(left + width)


def test_whole_numbers_of_many_values_have_bins_of_equally_many() -> None:
    data = np.random.default_rng(0).integers(0, 100, (4000, 1))
    histogram = outlines(plots.pair_plot(data, data)[0, 0])[0]
    widths = np.diff(histogram.edges)
    assert (widths == widths[0]).all() and widths[0] == round(widths[0])
    assert histogram.edges[0] % 1 == 0.5


def test_discrete_values_are_moved_by_less_than_half_a_step() -> None:
    whole = np.random.default_rng(0).integers(0, 3, (200, 2)) * 10
    drawn = dots(plots.pair_plot(whole, whole)[1, 0])
    moved = np.abs(drawn - whole)
    assert 2 < moved.max() < 3
    assert len(np.unique(drawn)) == 400
    # Continuous columns stay where they are.
    mixed = np.column_stack([whole[:, 0], normal(200)[:, 0]])
    assert (dots(plots.pair_plot(mixed, mixed)[1, 0])[:, 1] == mixed[:, 1]).all()


def test_text_is_bars_of_categories_by_frequency() -> None:
    data = {"kind": ["b", "c", "c", "a", "c", "b", "c", "c"], "size": np.linspace(0, 1, 8)}
    samples = {"size": np.linspace(0, 1, 4), "kind": np.array(["d", "c", "c", "b"])}
    axes = plots.pair_plot(data, samples)
    assert bar_heights(axes[0, 0]) == [[0.625, 0.25, 0.125, 0.0], [0.5, 0.25, 0.0, 0.25]]
    labels = [tick.get_text() for tick in axes[1, 0].get_xticklabels()]
    assert labels == ["c", "b", "a", "d"]
    assert np.rint(dots(axes[1, 0])[:, 0]).tolist() == [1, 0, 0, 2, 0, 1, 0, 0]
    assert np.rint(dots(axes[0, 1])[:, 1]).tolist() == [3, 0, 0, 1]


def test_rare_categories_are_taken_together_and_long_names_cut() -> None:
    kinds = [f"a rather long name {i:02}" for i in range(15) for _ in range(20 - i)]
    ax = plots.pair_plot({"kind": kinds}, {"kind": kinds})[0, 0]
    labels = [tick.get_text() for tick in ax.get_xticklabels()]
    assert len(labels) == 10
    assert labels[0] == "a rather lo…" and labels[-1] == "6 others"
    rare = sum(20 - i for i in range(9, 15))
    assert bar_heights(ax)[0][-1] == pytest.approx(rare / len(kinds))


def test_frames_and_tables_are_matched_by_name() -> None:
    pandas = pytest.importorskip("pandas")

    frame = pandas.DataFrame({"a": [1.5, 2.5, 4.0], "b": ["x", "y", "x"], "c": [True, False, True]})
    table = as_table({"c": [0, 1], "b": ["y", "y"], "a": [7.5, 8.0]})
    axes = plots.pair_plot(frame, table)
    assert [ax.get_xlabel() for ax in axes[-1]] == ["a", "b", "c"]
    assert dots(axes[1, 0])[:, 0].tolist() == [1.5, 2.5, 4.0]
    assert dots(axes[0, 1])[:, 1].tolist() == [7.5, 8.0]
    assert bar_heights(axes[1, 1]) == [pytest.approx([2 / 3, 1 / 3]), [0.0, 1.0]]
    # An array takes its names from the table beside it.
    axes = plots.pair_plot(normal(4, 3), table, columns=["a"])
    assert axes[0, 0].get_xlabel() == "a"


def test_six_columns_are_shown_and_the_title_says_what_is_left_out() -> None:
    data = normal(30, 8)
    axes = plots.pair_plot(data, data)
    assert axes.shape == (6, 6)
    assert axes[0, 0].figure.get_suptitle() == "the first 6 of 8 columns; 2 left out"
    axes = plots.pair_plot(data, data, names=list("abcdefgh"), columns=["g", -8, np.int64(2)])
    assert [ax.get_xlabel() for ax in axes[-1]] == ["g", "a", "c"]
    assert dots(axes[1, 0]) == pytest.approx(data[:, [6, 0]])
    assert axes[0, 0].figure.get_suptitle() == "3 of 8 columns; 5 left out"
    assert plots.pair_plot(data, data, columns=range(8))[0, 0].figure.get_suptitle() == ""


def test_samples_out_of_the_picture_are_noted() -> None:
    data = normal(2000, 1)
    samples = data.copy()
    samples[:200] = 50.0
    ax = plots.pair_plot(data, samples)[0, 0]
    assert ax.get_title() in ("10% of samples outside", "11% of samples outside")
    assert plots.pair_plot(data, data)[0, 0].get_title() == ""


def test_pairs_are_drawn_on_given_axes() -> None:
    given = Figure().subplots(2, 2)
    axes = plots.pair_plot(normal(20), normal(20), axes=given)
    assert all(one is other for one, other in zip(axes.flat, given.flat, strict=True))
    assert texts(given[0, 0]) == ["data (below)", "samples (above)"]


def test_a_constant_column_can_be_drawn(tmp_path: Path) -> None:
    for value in (0.3, 0.0, -4e12 - 0.5):
        data = np.full((20, 1), value)
        ax = plots.pair_plot(data, data)[0, 0]
        low, high = ax.get_xlim()
        assert low < value < high
        plots.save_figure(ax, tmp_path / "plot.png", dpi=20)


@pytest.mark.parametrize(
    ("data", "samples", "options", "message"),
    [
        (normal(5)[0], normal(5), {}, "shape"),
        (normal(5)[:0], normal(5), {}, "rows"),
        (normal(5), normal(5, 3), {}, "samples with the 2 columns"),
        (np.full((5, 2), np.nan), normal(5), {}, "5 values that are missing"),
        (normal(5), np.full((5, 2), np.inf), {}, "of samples"),
        ({"a": ["x", None]}, {"a": ["x", "y"]}, {}, "missing"),
        ({"a": [1.0, 2.0]}, {"b": [1.0, 2.0]}, {}, "'a'"),
        ({"a": [1.0, 2.0], "b": [1.0]}, {"a": [1.0]}, {}, "equal length"),
        ({"a": np.array(["2020-01-01"], "datetime64[D]")}, {"a": [1.0]}, {}, "datetime"),
        (normal(5), normal(5), {"columns": ["y"]}, "'y'"),
        (normal(5), normal(5), {"columns": [2]}, "got 2"),
        (normal(5), normal(5), {"columns": []}, "one or more"),
        (normal(5), normal(5), {"columns": [0, "x0"]}, "once"),
        (normal(5), normal(5), {"names": ["a"]}, "1 columns"),
        (normal(5), normal(5), {"names": ["a", "a"]}, "unique"),
        (normal(5), normal(5), {"rows": 0}, "rows"),
        (normal(5), normal(5), {"axes": np.zeros((2, 2))}, "axes"),
    ],
)
def test_pairs_refuse(data: Any, samples: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        plots.pair_plot(data, samples, **options)


def test_missing_values_of_a_frame_are_refused() -> None:
    pandas = pytest.importorskip("pandas")
    unknown = np.array([1, pandas.NA], dtype=object)
    for values in (pandas.array([1, None], "Int64"), unknown, [1.0, None], ["x", None]):
        with pytest.raises(InputError, match="missing"):
            plots.pair_plot(pandas.DataFrame({"a": values}), {"a": [1.0, 2.0]})


# Conditional densities

GRID = np.linspace(-6, 6, 601)


def test_a_conditional_is_drawn_as_its_density() -> None:
    ax = new_axes()
    logs = torch.tensor(stats.norm.logpdf(GRID))
    assert plots.conditional_plot(GRID, logs, observed=1.5, name="$x_3", ax=ax) is ax
    curve, halo, tick = ax.lines
    x, y = curve.get_data()
    assert integrate.trapezoid(y, x) == pytest.approx(1, abs=1e-6)
    assert y.max() == pytest.approx(1 / math.sqrt(2 * math.pi))
    assert len(ax.collections) == 1  # the area below it
    assert list(tick.get_xdata()) == list(halo.get_xdata()) == [1.5, 1.5]
    assert colour(tick) == INK
    assert ax.get_xlim() == (-6, 6)
    assert ax.get_ylim() == pytest.approx((0, 1.08 * y.max()))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("$x_3", "density")
    assert not ax.xaxis.label.get_parse_math()
    assert texts(ax) == ["observed"]


def test_rows_differ_in_colour_and_so_do_their_observed_values() -> None:
    logs = [stats.norm.logpdf(GRID, mean) for mean in (-1, 0, 1, 2)]
    ax = plots.conditional_plot(GRID, logs, observed=[-1, 0, 1, 9], labels=["_a", "b", "$c$", "d"])
    curves, ticks = ax.lines[:4], ax.lines[5::2]
    assert [colour(line) for line in curves] == list(SEVERAL[:4])
    assert [colour(line) for line in ticks] == list(SEVERAL[:4])
    assert [tick.get_xdata()[0] for tick in ticks] == [-1, 0, 1, 9]
    assert ax.get_xlim() == (-6, 9)
    assert texts(ax) == ["_a", "b", "$c$", "d", "observed"]
    assert not any(text.get_parse_math() for text in ax.get_legend().get_texts())
    many = plots.conditional_plot(GRID, logs * 5)
    assert len(many.lines) == len({colour(line) for line in many.lines}) == 20
    assert many.get_legend() is None


def test_a_second_call_leaves_room_for_the_first() -> None:
    ax = plots.conditional_plot(GRID, stats.norm.logpdf(GRID, scale=0.5))
    top = ax.get_ylim()[1]
    plots.conditional_plot(GRID, stats.norm.logpdf(GRID, scale=2), ax=ax)
    assert ax.get_ylim()[1] == top


def test_discrete_conditionals_are_bars() -> None:
    values = np.arange(4.0) * 2
    chances = np.array([[0.1, 0.2, 0.7, 0.0], [0.25, 0.25, 0.25, 0.25]])
    with np.errstate(divide="ignore"):
        logs = np.log(chances)
    ax = plots.conditional_plot(values, logs, discrete=True, observed=[4, 0])
    assert np.array(bar_heights(ax)) == pytest.approx(chances)
    first, second = ([b.get_x() + b.get_width() / 2 for b in c] for c in ax.containers)
    assert first == pytest.approx(values - 0.4) and second == pytest.approx(values + 0.4)
    # Each observed value is on the bar of its row.
    assert [line.get_xdata()[0] for line in ax.lines[1::2]] == pytest.approx([3.6, 0.4])
    assert ax.get_ylabel() == "probability"
    assert bar_heights(plots.conditional_plot([3.0], [0.0], discrete=True)) == [[1.0]]


@pytest.mark.parametrize(
    ("grid", "logs", "options", "message"),
    [
        (GRID[:, None], GRID, {}, "grid of 1 dim"),
        (GRID, GRID[:-1], {}, "601 columns"),
        (GRID, GRID[None, None], {}, "1 or 2 dim"),
        (GRID[::-1], GRID, {}, "ascending"),
        (GRID[:1], GRID[:1], {}, "two or more"),
        (GRID, np.full(601, np.nan), {}, "601 that are NaN"),
        (GRID, np.full(601, np.inf), {}, "infinite"),
        (GRID, np.full(601, 1e4), {}, "logarithms"),
        ([], [], {}, "at least one"),
        (GRID, GRID, {"observed": [np.nan]}, "observed"),
        (GRID, GRID, {"labels": ["a", "b"]}, "1 labels"),
        (GRID, GRID, {"ax": "axes"}, "matplotlib axes"),
        (["a", "b"], [0.0, 0.0], {}, "numbers"),
        ([[1.0], [1.0, 2.0]], [0.0, 0.0], {}, "array"),
    ],
)
def test_conditionals_refuse(grid: Any, logs: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        plots.conditional_plot(grid, logs, **options)


# Calibration


def test_pit_histogram_and_the_band_of_binomial_quantiles() -> None:
    pit = np.concatenate([np.full(30, 0.0), np.full(50, 0.55), np.full(20, 1.0)])
    ax = new_axes()
    assert plots.pit_plot(pit, bins=4, name="age", ax=ax) is ax
    (histogram,) = outlines(ax)
    assert histogram.values == pytest.approx([1.2, 0.0, 2.0, 0.8])
    assert histogram.edges == pytest.approx([0, 0.25, 0.5, 0.75, 1])
    band = next(patch for patch in ax.patches if not isinstance(patch, StepPatch))
    low, high = heights_of(band)
    # The counts k of 100 with P(K < k) ≤ 2.5 % ≤ P(K ≤ k), and the same for 97.5 %, summed by hand.
    chances = [math.comb(100, k) * 0.25**k * 0.75 ** (100 - k) for k in range(101)]
    below = np.cumsum(chances)
    counts = [int(np.searchsorted(below, level)) for level in (0.025, 0.975)]
    assert (low, high) == pytest.approx((counts[0] * 0.04, counts[1] * 0.04))
    assert 0.6 < low < 1 < high < 1.5
    # The distance is 0.3 at 0, 0.25 on both sides of 0.55, and 0.2 just below 1.
    limit = stats.kstwo.ppf(0.95, 100)
    assert ax.get_title("left") == f"age: KS distance 0.300 (95 % limit {limit:.3f})"
    assert ax.get_xlim() == (0, 1)
    assert texts(ax) == ["observed", "95 % band if calibrated"]


def test_the_pit_distance_is_that_of_kolmogorov_and_smirnov() -> None:
    for pit in (np.random.default_rng(0).random(200) ** 1.5, 1 - 0.3 * np.arange(1, 9) / 9):
        distance = stats.kstest(pit, "uniform").statistic
        assert f"KS distance {distance:.3f}" in plots.pit_plot(pit).get_title("left")


@pytest.mark.parametrize("rows", [1, 40, 5000])
def test_pit_differences_reach_as_far_as_their_distance(rows: int) -> None:
    pit = np.random.default_rng(1).random((rows, 2))
    pit[:, 1] **= 3
    ax = new_axes()
    assert plots.pit_difference_plot(pit, names=["_good", "bad"], ax=ax) is ax
    curves = {line.get_color(): line.get_ydata() for line in ax.lines[1:]}
    distances = [stats.kstest(pit[:, i], "uniform").statistic for i in (0, 1)]
    order = sorted((0, 1), key=lambda i: -distances[i])
    for place, i in enumerate(order):
        assert np.abs(curves[SEVERAL[place]]).max() == pytest.approx(distances[i])
        assert texts(ax)[place] == f"{['_good', 'bad'][i]}: {distances[i]:.3f}"
    limit = stats.kstwo.ppf(0.95, rows)
    (band,) = ax.patches
    assert heights_of(band) == pytest.approx((-limit, limit))
    outside = sum(distance > limit for distance in distances)
    assert ax.get_title("left") == f"{outside} of 2 columns leave the 95 % band"
    assert all(len(line.get_xdata()) <= 2 * 1002 + 2 for line in ax.lines)


def test_pit_difference_is_the_distribution_function_minus_the_uniform() -> None:
    line = plots.pit_difference_plot([[0.5], [0.25]]).lines[1]
    assert list(line.get_xdata()) == [0, 0.25, 0.25, 0.5, 0.5, 1]
    assert list(line.get_ydata()) == [0, -0.25, 0.25, 0.0, 0.5, 0]


def test_of_many_columns_the_furthest_are_named() -> None:
    pit = np.random.default_rng(2).random((300, 15))
    pit[:, 11] **= 2
    ax = plots.pit_difference_plot(pit)
    colours = [colour(line) for line in ax.lines[1:]]
    assert colours.count(DATA) == 9 and set(SEVERAL) < set(colours)
    labels = texts(ax)
    assert labels[0].startswith("x11: ") and labels[6].startswith("9 others") and len(labels) == 8


@pytest.mark.parametrize(
    ("pit", "options", "message"),
    [
        ([], {}, "at least one"),
        ([0.5, np.nan], {}, "1 that are NaN"),
        ([0.5, 1.01], {}, "between 0 and 1"),
        ([-0.01, 0.5], {}, "between 0 and 1"),
        ([[0.5]], {}, "pit_difference_plot"),
        ([0.5], {"bins": 1}, "2 bins"),
        ([0.5], {"bins": 2.5}, "2 bins"),
        (["a"], {}, "numbers"),
    ],
)
def test_pit_refuses(pit: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        plots.pit_plot(pit, **options)


def test_pit_differences_refuse() -> None:
    with pytest.raises(InputError, match="use pit_plot"):
        plots.pit_difference_plot([0.5])
    with pytest.raises(InputError, match="each of 2 columns, got 1"):
        plots.pit_difference_plot([[0.5, 0.5]], names=["a"])
    with pytest.raises(InputError, match="between 0 and 1"):
        plots.pit_difference_plot([[0.5, 1.5]])


# Training


def test_losses_are_drawn_and_the_best_step_is_marked() -> None:
    training = [(1, 900.0), (10, 4.0), (20, 3.0)]
    validation = [(10, 4.5), (15, 3.25), (20, 3.5)]
    ax = new_axes()
    assert plots.loss_plot(History(training, validation, 15, 20, 1.0), ax=ax) is ax
    trained, held_out, best = ax.lines
    assert [tuple(point) for point in trained.get_xydata()] == training
    assert [tuple(point) for point in held_out.get_xydata()] == validation
    assert best.get_xydata().tolist() == [[15, 3.25]]
    assert texts(ax) == ["training", "held-out rows", "best: 3.25 at step 15"]
    low, high = ax.get_ylim()
    assert low == pytest.approx(3 - 0.08 * 1.5) and high == pytest.approx(4.5 + 0.08 * 1.5)


def test_many_losses_are_smoothed() -> None:
    steps = np.arange(1, 241)
    training = [(int(step), float(-1 + 0.5 * (-1) ** step)) for step in steps]
    raw, smooth = plots.loss_plot(History(training, [], 240, 240, 1.0)).lines
    assert len(raw.get_ydata()) == len(smooth.get_ydata()) == 240
    # 21 neighbours, but fewer at the ends: at most one of them is not cancelled.
    assert np.abs(smooth.get_ydata() + 1).max() <= 0.5 / 11 + 1e-12
    straight = [(int(step), float(step)) for step in steps]
    inner = plots.loss_plot(History(straight, [], 240, 240, 1.0)).lines[1].get_ydata()[10:-10]
    assert inner == pytest.approx(steps[10:-10])


def test_positive_losses_can_be_put_on_a_logarithmic_axis() -> None:
    history = History([(10, 100.0), (20, 0.01)], [], 20, 20, 1.0)
    assert 0 < plots.loss_plot(history).get_ylim()[0] < 0.01
    history = History([(10, 1.0), (20, -1.0)], [], 20, 20, 1.0)
    assert plots.loss_plot(history).get_ylim()[0] < -1
    low, high = plots.loss_plot(History([(1, 0.0)], [], 1, 1, 1.0)).get_ylim()
    assert low < 0 < high


@pytest.mark.parametrize(
    ("training", "message"),
    [([], "losses"), ([(1, math.nan)], "NaN"), ([(1, 2.0, 3.0)], "step, loss")],
)
def test_losses_refuse(training: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        plots.loss_plot(History(training, [], 0, 0, 0.0))


# Maps


def test_a_map_shows_densities_with_the_first_row_at_the_bottom() -> None:
    density = np.array([[0.0, 0.1, 0.2], [0.3, 0.4, 0.5]])
    with np.errstate(divide="ignore"):
        logs = np.log(density)
    ax = new_axes()
    assert plots.density_map(torch.tensor(logs), (0, 3, -1, 1), ax=ax) is ax
    (image,) = ax.images
    assert np.asarray(image.get_array()) == pytest.approx(density)
    assert image.origin == "lower" and list(image.get_extent()) == [0, 3, -1, 1]
    assert image.get_clim() == pytest.approx((0, 0.5))
    assert image.get_cmap().name == HEAT
    assert ax.get_title("left") == ""


def test_points_over_a_map_do_not_move_its_limits() -> None:
    points = np.array([[0.5, 0.0], [2.0, 0.5], [90.0, 0.0], [1.0, -7.0]])
    ax = plots.density_map(np.zeros((4, 5)), [0, 3, -1, 1], points=points)
    assert (dots(ax) == points).all()
    assert ax.get_xlim() == (0, 3) and ax.get_ylim() == (-1, 1)
    assert ax.get_title("left") == "2 of 4 points outside"


@pytest.mark.parametrize(
    ("logs", "extent", "points", "message"),
    [
        (np.zeros(4), (0, 1, 0, 1), None, "2 dim"),
        (np.full((2, 2), np.nan), (0, 1, 0, 1), None, "NaN"),
        (np.zeros((2, 2)), (0, 1, 0), None, "left, right"),
        (np.zeros((2, 2)), (1, 0, 0, 1), None, "left < right"),
        (np.zeros((2, 2)), (0, 1, 1, 1), None, "bottom < top"),
        (np.zeros((2, 2)), (0, 1, 0, 1), np.zeros((3, 3)), "rows, 2"),
    ],
)
def test_maps_refuse(logs: Any, extent: Any, points: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        plots.density_map(logs, extent, points=points)


# Files


@pytest.mark.parametrize("suffix", ["png", "PNG", "svg", "pdf"])
def test_figures_are_written_by_suffix(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "new" / f"plot.{suffix}"
    plots.save_figure(plots.pit_plot([0.1, 0.5, 0.7]), path)
    start = path.read_bytes()
    if suffix == "svg":
        assert ElementTree.fromstring(start).tag.endswith("svg")
    else:
        assert start.startswith(b"%PDF" if suffix == "pdf" else b"\x89PNG\r\n\x1a\n")
    assert list(path.parent.iterdir()) == [path]


def test_dpi_sets_the_size_and_a_grid_is_written_as_a_whole(tmp_path: Path) -> None:
    axes = plots.pair_plot(normal(20), normal(20), names=["$a", "_$b$_"])
    figure = axes[0, 0].figure
    for what in (axes, figure, axes[1, 1]):
        plots.save_figure(what, tmp_path / "plot.png", dpi=50)
        height, width = matplotlib.image.imread(tmp_path / "plot.png").shape[:2]
        assert (width, height) == tuple(int(side) for side in figure.get_size_inches() * 50)


def test_a_part_of_a_figure_is_saved_with_all_of_it(tmp_path: Path) -> None:
    figure = Figure(figsize=(4, 2))
    part = figure.subfigures(1, 2)[0].add_subplot()
    plots.save_figure(plots.pit_plot([0.5], ax=part), tmp_path / "plot.png", dpi=50)
    assert matplotlib.image.imread(tmp_path / "plot.png").shape[:2] == (100, 200)


def test_saving_refuses_other_formats_and_leaves_old_files(tmp_path: Path) -> None:
    path = tmp_path / "plot.png"
    path.write_bytes(b"old")
    ax = new_axes()
    with pytest.raises(InputError, match=r"\.png, \.svg, \.pdf"):
        plots.save_figure(ax, tmp_path / "plot.gif")
    with pytest.raises(InputError, match=r"\.png, \.svg, \.pdf"):
        plots.save_figure(ax, tmp_path / "plot")
    with pytest.raises(InputError, match="axes or a figure, got str"):
        plots.save_figure("axes", path)
    with pytest.raises(InputError, match="dpi"):
        plots.save_figure(ax, path, dpi=0)
    ax.set_title("$unbalanced{$")  # which matplotlib cannot draw
    with pytest.raises(ValueError):
        plots.save_figure(ax, path)
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]
