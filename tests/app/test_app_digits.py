"""Digits: brought into the form that MNIST has, spoiled, cleaned and completed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arcsm.app import digits
from arcsm.app.digits import DigitSizes, Restored, digit_of, framed, load_digits, restore
from arcsm.errors import InputError
from arcsm.images import ImageModel, ImageSettings
from arcsm.metrics import psnr
from arcsm.model import ARCSM
from arcsm.tasks.images import SaltAndPepper


def centre_of(digit: np.ndarray) -> tuple[float, float]:
    weight = digit[..., 0] / digit.sum()
    place = np.arange(28) + 0.5
    return float((weight.sum(1) * place).sum()), float((weight.sum(0) * place).sum())


@pytest.mark.parametrize("shape", [(100, 30), (30, 100), (7, 7), (200, 200)])
def test_a_digit_fills_a_box_of_twenty_around_the_middle(shape: tuple[int, int]) -> None:
    ink = np.zeros((300, 300))
    ink[40 : 40 + shape[0], 90 : 90 + shape[1]] = 1.0
    digit = framed(ink)
    assert digit.shape == (28, 28, 1) and digit.dtype == np.uint8
    rows, columns = (np.flatnonzero(digit[..., 0].max(axis)) for axis in (1, 0))
    assert max(len(rows), len(columns)) == 20
    longer = max(shape)
    assert len(rows) == round(20 * shape[0] / longer)
    assert len(columns) == round(20 * shape[1] / longer)
    assert centre_of(digit) == pytest.approx((14, 14), abs=0.51)


def test_the_centre_of_mass_is_in_the_middle_not_that_of_the_box() -> None:
    ink = np.zeros((100, 100))
    ink[:, 40:60] = 0.6
    ink[:30, 20:80] = 1.0  # heavy at the top
    digit = framed(ink)
    rows = np.flatnonzero(digit[..., 0].max(1))
    assert (rows[0] + rows[-1] + 1) / 2 > 16
    assert centre_of(digit) == pytest.approx((14, 14), abs=0.51)


def pad() -> np.ndarray:
    return np.zeros((420, 420, 4), np.uint8)


def test_drawn_dark_on_light_and_light_on_dark_are_the_same_digit() -> None:
    stroke = (slice(100, 300), slice(180, 220))
    drawn, light, dark = pad(), pad(), pad()
    drawn[stroke] = (28, 34, 48, 255)
    light[:] = 255
    light[stroke] = (0, 0, 0, 255)
    dark[..., 3] = 255
    dark[stroke] = 255
    expected = digit_of(drawn)
    assert np.array_equal(digit_of(light), expected)
    assert np.array_equal(digit_of(dark), expected)
    assert expected.max() == 255 and expected[0].max() == 0


def test_a_picture_that_fills_a_part_of_the_pad() -> None:
    whole, wide = pad(), pad()
    whole[:] = 255
    whole[150:250, 200:220, :3] = 0
    wide[110:310] = 255  # transparent above and below
    wide[150:250, 200:220, :3] = 0
    assert np.array_equal(digit_of(wide), digit_of(whole))


def test_an_empty_pad_is_told() -> None:
    with pytest.raises(InputError, match="expected a digit, got an empty pad"):
        digit_of(pad())
    white = np.full((420, 420, 4), 255, np.uint8)
    with pytest.raises(InputError, match="empty pad"):
        digit_of(white)


def test_without_mnist_the_examples_are_those_of_scikit_learn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ARCSM_DATA", raising=False)
    examples = digits.example_digits()
    assert examples.shape == (10, 28, 28, 1) and examples.dtype == np.uint8
    assert (examples.reshape(10, -1).max(1) > 200).all()
    # To the model that comes with arcsm they are digits: blurred ones would have 2.5 bits.
    assert load_digits("arcsm:digits").bits_per_dim(examples).mean() < 1.5
    # The hole of a zero, and none in a one.
    assert examples[0, 14, 14, 0] < 60 < examples[1, 14, 14, 0]


def image_model(side: int, **settings: Any) -> ImageModel:
    """Return a model of grey images that has learned nothing."""
    density = ARCSM.made(side * side, hidden=(4,), seed=0)
    return ImageModel(density, (side, side, 1), ImageSettings(network="made", **settings))


def test_each_step_is_reported_as_it_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def halve(model: ImageModel, noisy: np.ndarray, noise: Any, *, seed: int) -> np.ndarray:
        asked.append((model, noise, seed))
        return noisy // 2

    def repeat(model: ImageModel, top: np.ndarray, draws: int, seed: int) -> np.ndarray:
        asked.append((model, top, seed))
        return np.concatenate([top, top], 1)[:, None].repeat(draws, 1)

    monkeypatch.setattr(digits, "denoise_images", halve)
    monkeypatch.setattr(digits, "complete", repeat)
    model, noise = image_model(28), SaltAndPepper(0.5)
    digit = digits.example_digits()[3]
    seen: list[Restored] = []
    last = restore(model, digit, noise, DigitSizes(draws=2), seen.append, seed=5)
    assert [(x.cleaned is None, x.completed is None) for x in seen] == [(True, True), (False, True)]
    assert seen[0].gain is None
    assert asked[0] == (model, noise, 5)
    assert asked[1][0] is model and asked[1][2] == 5
    assert np.array_equal(asked[1][1], digit[None, :14])
    assert last.completed is not None and last.cleaned is not None
    assert last.completed.shape == (2, 28, 28, 1)
    assert np.array_equal(last.cleaned, last.noisy // 2)
    # What is neither black nor white was not spoiled, and half of all was.
    kept = (last.noisy != 0) & (last.noisy != 255)
    assert np.array_equal(last.noisy[kept], digit[kept])
    assert np.isin(last.noisy, (0, 255)).mean() > 0.45
    assert last.gain == (
        pytest.approx(psnr(last.noisy[None], digit[None])[0]),
        pytest.approx(psnr(last.cleaned[None], digit[None])[0]),
    )
    again = restore(model, digit, noise, DigitSizes(draws=2), seen.append, seed=5)
    assert np.array_equal(again.noisy, last.noisy)


def test_a_model_that_is_not_of_digits_is_refused(tmp_path: Path) -> None:
    image_model(28).save(tmp_path / "digits")
    assert load_digits(tmp_path / "digits").shape == (28, 28, 1)
    image_model(8).save(tmp_path / "small")
    with pytest.raises(InputError, match=r"28 x 28.*got one of 8 x 8 x 1"):
        load_digits(tmp_path / "small")
    image_model(28, noise="paper").save(tmp_path / "paper")
    with pytest.raises(InputError, match=r"with fine noise, got .* noise 'paper'"):
        load_digits(tmp_path / "paper")
