"""Ink becomes points with the density of the ink."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from arcsm.app.ink import JITTER, ink_of, picture_of, points_from_ink
from arcsm.errors import InputError


def address(picture: np.ndarray) -> str:
    """Return a picture (height, width, 4) as the browser sends it."""
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def test_as_many_points_in_each_part_as_its_share_of_the_ink() -> None:
    ink = np.zeros((100, 100))
    ink[10:30, 20:40] = 1.0  # up on the left
    ink[60:80, 70:90] = 0.25  # down on the right, a quarter as dark
    points = points_from_ink(ink, 20_000)
    upper = points[:, 1] > 0
    assert upper.mean() == pytest.approx(0.8, abs=4 * np.sqrt(0.8 * 0.2 / 20_000))
    # Pixels 20 to 40 of 100 span -0.6 to -0.2; rows 10 to 30 span 0.8 to 0.4, upwards.
    x, y = points[upper].T
    for values, low, high in ((x, -0.6, -0.2), (y, 0.4, 0.8)):
        assert low - 5 * JITTER < values.min() and values.max() < high + 5 * JITTER
        assert values.mean() == pytest.approx((low + high) / 2, abs=0.006)
        assert values.var() == pytest.approx(0.4**2 / 12 + JITTER**2, rel=0.05)


def test_a_pad_that_is_not_square_keeps_its_form() -> None:
    ink = np.ones((50, 100))
    x, y = points_from_ink(ink, 5_000).T
    assert x.max() == pytest.approx(1.0, abs=6 * JITTER)
    assert y.max() == pytest.approx(0.5, abs=6 * JITTER)
    assert y.min() == pytest.approx(-0.5, abs=6 * JITTER)


def test_the_same_ink_gives_the_same_points() -> None:
    ink = np.random.default_rng(0).random((20, 20))
    assert np.array_equal(points_from_ink(ink, 100), points_from_ink(ink, 100))
    assert not np.array_equal(points_from_ink(ink, 100), points_from_ink(ink, 100, seed=1))


def test_the_ink_of_a_pad_is_what_is_not_transparent() -> None:
    picture = np.zeros((30, 40, 4), np.uint8)
    picture[5:15, 5:15] = (28, 34, 48, 255)
    picture[20:25, 20:30] = (0, 0, 0, 51)
    ink = ink_of(picture_of(address(picture)))
    assert ink.shape == (30, 40)
    assert ink[5:15, 5:15].min() == 1.0
    assert ink[20:25, 20:30] == pytest.approx(0.2)
    assert ink.sum() == pytest.approx(100 + 50 * 0.2)


@pytest.mark.parametrize("picture", [None, "", "nothing", "data:text/plain;base64,YQ=="])
def test_no_drawing_is_told(picture: str | None) -> None:
    with pytest.raises(InputError, match="empty pad"):
        picture_of(picture)


def test_an_empty_pad_and_a_slip_of_the_mouse_are_told() -> None:
    blank = np.zeros((30, 30, 4), np.uint8)
    with pytest.raises(InputError, match="empty pad"):
        ink_of(blank)
    blank[0, :5] = 255
    with pytest.raises(InputError, match="empty pad"):
        ink_of(blank)
    with pytest.raises(InputError, match="empty pad"):
        points_from_ink(blank[..., 3] / 255, 10)


@pytest.mark.parametrize("content", ["%%%", base64.b64encode(b"no picture").decode()])
def test_a_broken_drawing_is_told(content: str) -> None:
    with pytest.raises(InputError, match="draw it again"):
        picture_of("data:image/png;base64," + content)


def test_a_giant_drawing_is_told() -> None:
    with pytest.raises(InputError, match="at most 2,000,000 pixels"):
        picture_of(address(np.zeros((1500, 1500, 4), np.uint8)))
