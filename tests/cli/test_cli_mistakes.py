"""Slips of the pen around images: the line is about what is wrong, in words of the command line."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import arcsm
from arcsm.cli.pictures import find_pictures
from arcsm.errors import InputError
from arcsm.shipped import directory_of

Run = Callable[..., Any]
DIGITS = "arcsm:digits"


def squares(folder: Path, side: int = 8, count: int = 4) -> Path:
    folder.mkdir()
    for number in range(count):
        pixels = np.random.default_rng(number).integers(0, 256, (side, side), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


def test_data_that_are_not_there(
    fails: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (
        ("train", "nosuch", "-o", "m"),
        ("train", "nosuch", "-o", "m", "--network", "made"),
        ("train", "nosuch.csv", "-o", "m"),
        ("train", "sklern:wine", "-o", "m"),
        ("train", "~nobody-at-all/nosuch", "-o", "m"),
        ("train", "~nobody-at-all/nosuch.zip", "-o", "m"),
        ("score", DIGITS, "nosuch", "-o", "a.csv"),
        ("check", DIGITS, "nosuch"),
        ("impute", "nosuch", "-o", "a.csv"),
        ("detect", "nosuch", "--train", "nosuch", "-o", "a.csv"),
    ):
        told = fails(*words)
        assert "nothing there" in told and told.endswith("the path\n")
        assert "ends in" not in told and "--network" not in told
    assert os.listdir(tmp_path) == []


def test_a_name_is_taken_for_a_table_before_it_is_missed(tmp_path: Path) -> None:
    for name in ("a.csv", "b.TSV.gz", "sklearn:wine", "adbench:cardio", "power"):
        assert find_pictures(name) is None
    (tmp_path / "table.xlsx").touch()  # which its reader refuses, with the reason
    assert find_pictures(str(tmp_path / "table.xlsx")) is None
    with pytest.raises(InputError, match="nothing there"):
        find_pictures(str(tmp_path / "other.xlsx"))


@pytest.fixture
def no_models(tmp_path: Path) -> Path:
    """Directories that are no models of a table or of images, each in its own way."""
    squares(tmp_path / "pictures")
    shutil.copytree(directory_of(Path(DIGITS)), tmp_path / "staged")
    raw = arcsm.ARCSM.made(2, hidden=(4,))
    arcsm.save_model(tmp_path / "staged" / "stage-01", raw)
    arcsm.save_model(tmp_path / "raw", raw)
    shutil.copytree(tmp_path / "staged", tmp_path / "bare")
    (tmp_path / "bare" / "config.json").unlink()
    shutil.copytree(tmp_path / "staged", tmp_path / "cut")
    (tmp_path / "cut" / "config.json").write_text("{")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("pictures", "expected a model's config.json in "),
        ("bare", "expected a model's config.json in "),
        ("cut", "expected JSON in "),
        ("raw", "got one of neither; pass a directory that `arcsm train` wrote"),
        ("staged/stage-01", "got a stage of the model in "),
    ],
)
def test_a_directory_is_looked_at_before_the_output(
    run: Run, fails: Run, no_models: Path, name: str, named: str
) -> None:
    directory = no_models / name
    for output in ("a.png", "a.csv"):
        told = fails("sample", directory, "-n", 2, "-o", no_models / output)
        assert named in told and str(directory) in told and "ends in" not in told
    if name == "cut":  # which the loader tells, of whatever kind it was
        return
    words = ("--model", directory, "--noise", "gaussian:0.1")
    assert named in fails("denoise", no_models / "pictures", no_models / "clean", *words)
    assert named in fails("score", directory, no_models / "pictures", "-o", no_models / "a.csv")
    result = run("check", directory)
    assert result.exit_code == 1 and named in result.stderr


@pytest.mark.parametrize("side", [1, 2, 3])
def test_pictures_too_small_for_the_network(
    run: Run, tmp_path: Path, side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arcsm.images.networks._HIDDEN", 8)
    words = ("train", squares(tmp_path / "small", side), "-o", tmp_path / "m", "--max-steps", 1)
    result = run(*words)
    assert result.exit_code == 2 and "levels" not in result.stderr
    assert f"expected images of 4×4 pixels or more for this network, got {side}×{side} pixels;" in (
        result.stderr
    )
    assert "add --size 4, or --network made" in result.stderr
    result = run(*words, "--network", "made", "--no-card")
    assert result.exit_code == 0, (result.output, result.exception)


def test_a_single_picture_is_no_folder(fails: Run, tmp_path: Path) -> None:
    picture = squares(tmp_path / "some") / "0.png"
    for words in (("train", picture, "-o", tmp_path / "m"), ("score", DIGITS, picture)):
        told = fails(*words)
        assert f"got the single picture {str(picture)!r}; pass the folder" in told


def test_options_of_langevin_dynamics(fails: Run, tmp_path: Path) -> None:
    words = ("sample", DIGITS, "-n", 1, "-o", tmp_path / "a.png")
    for size, said in (("-1", "-1"), ("0", "0"), ("nan", "nan"), ("inf", "inf")):
        told = fails(*words, "--method", "langevin", "--step-size", size)
        assert f"expected --step-size above 0, got {said}; leave it out" in told
    assert "'--steps'" in fails(*words, "--method", "langevin", "--steps", 0)
    for option in ("--steps", "--step-size"):  # which would do nothing
        told = fails(*words, option, 5)
        assert option in told and "--method langevin" in told and "leave them out" in told
    assert os.listdir(tmp_path) == []


def test_a_model_in_stages_has_options_of_langevin_dynamics_by_itself(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arcsm.images.networks._HIDDEN", 8)
    words = ("--network", "made", "--noise", "paper", "--staged", "--max-steps", 10, "--no-card")
    model = tmp_path / "m"
    assert run("train", squares(tmp_path / "some"), "-o", model, *words).exit_code == 0
    for options in (("--steps", 1), ("--steps", 1, "--step-size", 1e-4)):
        result = run("sample", model, "-n", 1, "-o", tmp_path / "a.png", *options)
        assert result.exit_code == 0, (result.output, result.exception)
