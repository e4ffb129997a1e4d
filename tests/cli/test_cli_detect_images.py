"""Unusual images on the command line: scores, a threshold, and pictures of what is to blame."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from arcsm.baselines import PixelMixture
from arcsm.conditional import Noise
from arcsm.data import read_table
from arcsm.images import ImageModel, ImageSettings
from arcsm.model import ARCSM
from arcsm.tasks.images import ImageDetector

Run = Callable[..., Any]
SHAPE = (4, 5, 1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of greys around 128, each by itself."""
    path = tmp_path_factory.mktemp("models") / "grey"
    chain = ARCSM.made(20, hidden=(8,), noise=Noise(3.0, 0.05), shared_units=True, seed=0)
    with torch.no_grad():
        chain.shift.fill_(0.5)
        chain.scale.fill_(0.1)
    ImageModel(chain, SHAPE, ImageSettings(network="made", flips=False)).save(path)
    return path


def greys(n: int, seed: int) -> np.ndarray:
    pixels = np.random.default_rng(seed).normal(128, 25, (n, *SHAPE))
    return np.asarray(pixels.clip(0, 255).astype(np.uint8))


def write(folder: Path, images: np.ndarray) -> Path:
    folder.mkdir()
    for number, image in enumerate(images):
        Image.fromarray(image[..., 0]).save(folder / f"{number:03d}.png")
    return folder


@pytest.fixture(scope="module")
def normal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("data") / "normal", greys(120, seed=1))


def test_where_nothing_is_odd_no_map_is_written_and_that_is_said(
    run: Run, model: Path, normal: Path, tmp_path: Path
) -> None:
    new, heat = write(tmp_path / "new", greys(120, seed=1)[:3]), tmp_path / "heat"
    words = ("--model", model, "--train", normal, "--heat", heat, "--method", "h")
    result = run("detect", new, *words, "-o", tmp_path / "s.csv")
    assert result.exit_code == 0 and "0 of 3 images are outliers" in result.stderr, result.output
    assert "--heat wrote no picture" in " ".join(result.stderr.split()) and not heat.exists()


def test_an_odd_picture_is_found_and_its_place_shown(
    run: Run, model: Path, normal: Path, tmp_path: Path
) -> None:
    images = greys(8, seed=2)
    images[3, 1:3, 3:] = 255
    new, out, heat = write(tmp_path / "new", images), tmp_path / "s.csv", tmp_path / "heat"
    words = ("--model", model, "--train", normal, "--heat", heat, "-o", out)
    result = run("detect", new, *words, "--json")
    assert result.exit_code == 0, (result.output, result.exception)
    told, table = json.loads(result.stdout), read_table(out)
    assert table.names == ("index", "file", "outlier_score", "outlier")
    assert list(table["file"]) == [f"{number:03d}.png" for number in range(8)]
    detector = ImageDetector(ImageModel.load(model)).fit(greys(120, seed=1))
    np.testing.assert_allclose(table["outlier_score"], detector.score(images), rtol=1e-9)
    assert told["threshold"] == pytest.approx(detector.threshold(0.01))
    assert told["outliers"] == 1 and table["outlier_score"].argmax() == 3
    assert [path.name for path in heat.iterdir()] == ["3.png"]
    with Image.open(heat / "3.png") as picture:
        shown = np.asarray(picture)[..., 0]  # more surprising than expected is orange, less is blue
    left, right = shown[:, : shown.shape[1] // 2], shown[:, -(shown.shape[1] // 2) :]
    # The image beside the map of it, both enlarged; the map is bright where the image is spoiled,
    # in the middle of its right half.
    height, width = right.shape
    middle = slice(height // 3, 2 * height // 3)
    assert left[middle, 3 * width // 4].mean() == 255
    assert right[middle, 3 * width // 4].mean() > 150 > 2 * right[middle, width // 4].mean()


def test_what_is_too_likely_is_blue(run: Run, model: Path, normal: Path, tmp_path: Path) -> None:
    new, heat = tmp_path / "new", tmp_path / "heat"
    write(new, np.full((1, *SHAPE), 128, np.uint8))
    words = ("--model", model, "--train", normal, "--heat", heat, "-o", tmp_path / "s.csv")
    result = run("detect", new, *words)
    assert result.exit_code == 0 and "1 of 1 images are outliers" in result.stderr, result.output
    with Image.open(heat / "0.png") as picture:
        shown = np.asarray(picture).astype(int)
    side = shown[:, -(shown.shape[1] // 2) :]
    assert side[..., 2].max() == 255 and (side[..., 2] >= side[..., 0]).all()


def test_another_method_and_a_set_by_its_name(
    run: Run, model: Path, normal: Path, tmp_path: Path
) -> None:
    new = write(tmp_path / "new", greys(3, seed=3))
    words = ("--model", model, "--train", normal, "--method", "typicality")
    result = run("detect", new, *words, "-o", tmp_path / "s.csv")
    assert result.exit_code == 0, (result.output, result.exception)
    assert "3 images are outliers: their outlier_score is above" in result.stderr
    expected = ImageDetector(ImageModel.load(model), "typicality").fit(greys(120, seed=1))
    found = read_table(tmp_path / "s.csv")["outlier_score"]
    np.testing.assert_allclose(found, expected.score(greys(3, seed=3)), rtol=1e-9)


def test_what_does_not_fit_is_refused_before_anything_is_written(
    run: Run, model: Path, normal: Path, tmp_path: Path
) -> None:
    out, heat = tmp_path / "s.csv", tmp_path / "heat"
    table = tmp_path / "t.csv"
    table.write_text("a,b\n1,2\n2,3\n")
    few = write(tmp_path / "few", greys(9, seed=4))
    large = write(tmp_path / "large", np.zeros((2, 8, 8, 1), np.uint8))
    full = write(tmp_path / "full", greys(2, seed=5))
    likelihood = tmp_path / "likelihood"
    mixture = PixelMixture(SHAPE, filters=(4,), blocks=1, levels=1, seed=0)
    told = ImageSettings(network="tiny", method="likelihood")
    ImageModel(mixture, SHAPE, told).save(likelihood)
    both = ("--model", model, "--train", normal)

    def line(*words: object) -> str:
        result = run("detect", *words, "-o", out)
        assert result.exit_code == 2 and not out.exists() and not heat.exists(), result.output
        return str(result.stderr)

    assert "--model DIR, a model of images, and --train" in line(normal, "--train", normal)
    assert "--model DIR, a model of images, and --train" in line(normal, "--model", model)
    assert "images for --train" in line(normal, "--model", model, "--train", table)
    assert "got --explain, which is for tables" in line(normal, *both, "--explain")
    assert "got --save, which is for tables" in line(normal, *both, "--save", tmp_path / "d")
    assert "got --heat, which is for images" in line(table, "--train", table, "--heat", heat)
    assert "got --method, which is for images" in line(table, "--train", table, "--method", "h")
    assert "a method among" in line(normal, *both, "--method", "magic")
    assert "expected images of 5 x 4 pixels" in line(large, *both)
    assert "100 normal images in --train" in line(normal, "--model", model, "--train", few)
    assert "new folder for --heat" in line(normal, *both, "--heat", full)
    words = ("--model", likelihood, "--train", normal)
    assert "fine noise for a heat map" in line(normal, *words, "--heat", heat)
    assert "--heat apart from the pictures" in line(normal, *both, "--heat", normal / "heat")
    assert "got --size, which is for images" in line(table, "--train", table, "--size", 4)
    assert "nothing there" in line(tmp_path / "nosuch", *both)
