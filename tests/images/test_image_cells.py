"""Cells of levels, how samples return to them, and flips."""

import math

import numpy as np
import pytest
import torch

from arcsm.errors import InputError
from arcsm.images import Flips, PixelCells, PixelSnap, cell_ends
from arcsm.images.cells import WholeLevels, from_rows, to_rows

LEVELS = np.arange(256, dtype=np.uint8)


def all_levels() -> torch.Tensor:
    return to_rows(LEVELS.reshape(1, 16, 16, 1))


def spread(rule: PixelCells | WholeLevels, place: float) -> np.ndarray:
    """Return, in levels, where in its range the rule puts each level."""
    rows = all_levels()
    below, above = rule(rows)
    return ((rows + (below + above) * place - below) * 255).numpy()[0]


def test_rows_hold_channels_innermost_and_return_to_the_same_levels() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 2, 3, 3), dtype=np.uint8)
    rows = to_rows(pixels)
    assert rows.dtype == torch.float32 and rows.shape == (5, 18)
    assert rows[4, 4].item() == pytest.approx(pixels[4, 0, 1, 1] / 255)
    np.testing.assert_array_equal(from_rows(rows, (2, 3, 3)), pixels)


def test_targets_fill_the_cells_and_leave_the_image_at_its_ends() -> None:
    low, high = spread(PixelCells(), 0.0), spread(PixelCells(), 1.0)
    np.testing.assert_allclose(low[1:255], np.arange(1, 255) - 0.5, atol=1e-4)
    np.testing.assert_allclose(high[1:255], np.arange(1, 255) + 0.5, atol=1e-4)
    np.testing.assert_allclose([low[0], high[0]], [-8.5, -0.5], atol=1e-4)
    np.testing.assert_allclose([low[255], high[255]], [255.5, 263.5], atol=1e-4)


def test_plain_dequantisation_treats_all_levels_alike() -> None:
    np.testing.assert_allclose(spread(WholeLevels(), 0.0), np.arange(256) - 0.5, atol=1e-4)
    np.testing.assert_allclose(spread(WholeLevels(), 1.0), np.arange(256) + 0.5, atol=1e-4)


def test_cells_cover_the_line_without_gaps() -> None:
    low, high = (end[0] for end in cell_ends(all_levels()))
    assert low.dtype == torch.float64
    assert low[0] == -math.inf and high[-1] == math.inf
    assert torch.equal(low[1:], high[:-1])
    np.testing.assert_allclose(low[1:].numpy() * 255, np.arange(1, 256) - 0.5)


def test_what_is_drawn_in_a_cell_returns_to_its_level() -> None:
    snap = PixelSnap()
    for place in (0.01, 0.5, 0.99):
        drawn = torch.tensor(spread(PixelCells(), place) / 255)
        np.testing.assert_array_equal((snap.move(drawn) * 255).round().numpy(), LEVELS)
    far = torch.tensor([-3.0, 7.0])
    assert snap(0, far, far[:, None]).tolist() == [0.0, 1.0]
    assert snap == PixelSnap() and hash(snap) == hash(PixelSnap())


def test_levels_stay_as_they_are_when_snapped() -> None:
    assert torch.equal(PixelSnap().move(all_levels()), all_levels())


@pytest.mark.parametrize("channels", [1, 3])
def test_half_of_the_images_are_mirrored_left_to_right(channels: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (400, 3, 4, channels), dtype=np.uint8)
    rows, shape = to_rows(pixels), (3, 4, channels)
    flips = Flips(shape)
    found = from_rows(flips(rows, torch.Generator().manual_seed(1)), shape)
    same = (found == pixels).all((1, 2, 3))
    np.testing.assert_array_equal(found[~same], pixels[~same][:, :, ::-1])
    assert 150 < np.count_nonzero(same) < 250
    again = flips(rows, torch.Generator().manual_seed(1))
    np.testing.assert_array_equal(from_rows(again, shape), found)


def test_images_are_mirrored_along_both_axes_each_by_itself() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (400, 3, 4, 1), dtype=np.uint8)
    flips = Flips((3, 4, 1), (0, 1))
    found = from_rows(flips(to_rows(pixels), torch.Generator().manual_seed(1)), (3, 4, 1))
    ways = (pixels, pixels[:, ::-1], pixels[:, :, ::-1], pixels[:, ::-1, ::-1])
    counts = [np.count_nonzero((found == way).all((1, 2, 3))) for way in ways]
    assert sum(counts) == 400 and min(counts) > 60


def test_flips_refuse_rows_of_another_shape() -> None:
    with pytest.raises(InputError, match="12 scalars"):
        Flips((3, 4, 1))(torch.zeros(2, 11), torch.Generator())


def test_rules_are_known_by_what_they_print() -> None:
    assert repr(Flips((3, 4, 1))) == "Flips(shape=(3, 4, 1), axes=(1,))"
    assert repr(PixelCells()) == "PixelCells()"
