"""Images side by side, and PNG files of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arcsm.errors import InputError
from arcsm.plots.pictures import picture_grid, save_picture

PIL = pytest.importorskip("PIL.Image")


def test_images_lie_row_by_row_with_gaps() -> None:
    images = np.arange(3 * 2 * 2, dtype=np.uint8).reshape(3, 2, 2, 1)
    grid = picture_grid(images, columns=2, enlarge=1, gap=1)[..., 0]
    expected = [
        [255] * 7,
        [255, 0, 1, 255, 4, 5, 255],
        [255, 2, 3, 255, 6, 7, 255],
        [255] * 7,
        [255, 8, 9, 255, 255, 255, 255],
        [255, 10, 11, 255, 255, 255, 255],
        [255] * 7,
    ]
    assert grid.tolist() == expected


def test_small_images_are_enlarged_by_whole_numbers() -> None:
    images = np.random.default_rng(0).integers(0, 256, (4, 28, 28, 3), dtype=np.uint8)
    grid = picture_grid(images, gap=2)
    assert grid.shape == (2 * 58 + 2, 2 * 58 + 2, 3)
    for row in range(2):
        for column in range(2):
            np.testing.assert_array_equal(grid[2 + row : 58 : 2, 2 + column : 58 : 2], images[0])
    assert picture_grid(images[:1].repeat(5, 1), gap=0).shape == (140, 28, 3)


@pytest.mark.parametrize("channels", [1, 3])
def test_files_hold_the_pixels_exactly(tmp_path: Path, channels: int) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (5, 7, channels), dtype=np.uint8)
    save_picture(tmp_path / "new" / "p.PNG", picture)
    with PIL.open(tmp_path / "new" / "p.PNG") as image:
        assert image.format == "PNG"
        np.testing.assert_array_equal(np.asarray(image).reshape(picture.shape), picture)


@pytest.mark.parametrize(
    "arguments",
    [
        {"pixels": np.zeros((2, 3, 3), np.uint8)},
        {"pixels": np.zeros((2, 3, 3, 1))},
        {"pixels": np.zeros((2, 3, 3, 2), np.uint8)},
        {"pixels": np.zeros((0, 3, 3, 1), np.uint8)},
        {"pixels": [1]},
        {"columns": 0},
        {"enlarge": 0},
        {"gap": -1},
        {"gap": 1.5},
    ],
)
def test_what_is_no_grid_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        picture_grid(**{"pixels": np.zeros((2, 3, 3, 1), np.uint8), **arguments})


def test_other_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.png"):
        save_picture(tmp_path / "p.jpg", np.zeros((3, 3, 1), np.uint8))
    assert list(tmp_path.iterdir()) == []
