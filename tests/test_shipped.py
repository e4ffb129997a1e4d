"""The models that come with arcsm."""

import re
from pathlib import Path

import numpy as np
import pytest

import arcsm
from arcsm.errors import InputError
from arcsm.images import ImageModel
from arcsm.shipped import directory_of, refuse_shipped_name, shipped_names


def test_the_model_of_digits_is_there_small_and_says_how_it_was_made() -> None:
    assert shipped_names() == ["digits"]
    files = [path for path in directory_of("arcsm:digits").iterdir() if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 5e6
    card = (directory_of("arcsm:digits") / "README.md").read_text(encoding="utf-8")
    assert "`arcsm train mnist -o digits" in card


def test_it_knows_a_digit_from_noise() -> None:
    """A stroke is likelier than the same pixels in other places, by more than its edges explain."""
    model = arcsm.load("arcsm:digits")
    assert model.shape == (28, 28, 1)
    one = np.zeros((28, 28, 1), np.uint8)
    one[5:23, 12:15] = 250
    shuffled = np.random.default_rng(0).permutation(one.reshape(-1)).reshape(one.shape)
    likely, unlikely = model.log_prob(np.stack([one, shuffled]))
    assert likely - unlikely > 784  # a nat for each pixel


def test_a_path_stays_what_it_is(tmp_path: Path) -> None:
    assert directory_of(tmp_path) == tmp_path
    assert directory_of("digits") == Path("digits")
    assert directory_of("./arcsm:digits") == Path("./arcsm:digits")


def test_no_directory_takes_the_place_of_a_shipped_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "arcsm:digits").mkdir()
    monkeypatch.chdir(tmp_path)
    assert arcsm.load("arcsm:digits").shape == (28, 28, 1)
    assert ImageModel.load("arcsm:digits").shape == (28, 28, 1)
    with pytest.raises(InputError, match="names that begin with 'arcsm:'"):
        refuse_shipped_name("arcsm:mine")


def test_all_of_it_is_packaged() -> None:
    project = Path(arcsm.__file__).parents[1] / "pyproject.toml"
    if not project.exists():
        pytest.skip("not in a checkout")
    told = re.search(r'^arcsm = \[(.*"checkpoints.*)\]$', project.read_text(), re.MULTILINE)
    assert told is not None
    package = Path(arcsm.__file__).parent
    patterns = [pattern.strip(' "') for pattern in told[1].split(",")]
    packaged = {path for pattern in patterns for path in package.glob(pattern)}
    shipped = {path for path in (package / "checkpoints").rglob("*") if path.is_file()}
    assert shipped and shipped <= packaged


def test_a_name_that_there_is_none_of_is_refused_with_those_there_are() -> None:
    with pytest.raises(InputError, match=r"\(arcsm:digits\), got 'arcsm:faces'"):
        directory_of("arcsm:faces")
