"""Figures of experiments on images: what is drawn can be seen, whole."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from arcsm.experiments.image_figures import grid_figure, points_figure


def test_of_several_equal_values_none_hides_another() -> None:
    values = {name: {"one": [2.0], "two": [3.0]} for name in ("a", "b", "c")}
    (ax,) = points_figure(values, x="x", title="").axes
    heights = np.array([line.get_ydata() for line in ax.get_lines()])
    assert (np.diff(heights, axis=0) > 0.1).all()
    # The middle one is at the case's name, and no row reaches into another.
    np.testing.assert_allclose(heights[1], [0, 1])
    assert heights[-1, 0] + 0.2 < heights[0, 1] and heights.max() < 1.5


def test_two_series_are_at_the_height_of_the_name() -> None:
    values = {name: {"one": [2.0], "two": [None]} for name in ("a", "b")}
    (ax,) = points_figure(values, x="x", title="").axes
    assert [list(line.get_ydata()) for line in ax.get_lines()] == [[0], [0]]


@pytest.mark.parametrize(
    "title", ["i" * 90, "W" * 90, "a row for each latent, to its 95 %", "$100 or $\\frac{ " * 3]
)
def test_titles_of_grids_are_whole_and_the_page_is_no_wider(title: str) -> None:
    figure = grid_figure({"a": np.zeros((16, 16, 1), dtype=np.uint8)}, title=title)
    (text,) = figure.texts
    assert text.get_text() == title
    box = text.get_window_extent(FigureCanvasAgg(figure).get_renderer())
    width = figure.bbox.width
    assert box.x0 > 0 and 0.9 * width < box.x1 < width
