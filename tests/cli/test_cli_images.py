"""Images on the command line: from a folder of pictures to new ones."""

import json
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file

from arcsm.cli import pictures as cli_pictures
from arcsm.cli.pictures import by_options, find_pictures
from arcsm.data import Images, read_images, read_table
from arcsm.errors import ArcsmError, InputError
from arcsm.images import ImageModel
from arcsm.train import loop

Run = Callable[..., Any]
QUICK = ("--network", "made", "--max-steps", 2, "--batch", 8)


@pytest.fixture(scope="module", autouse=True)
def small_networks() -> Iterator[None]:
    """A MADE of few units, so that runs take moments and their states little room."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("arcsm.images.networks._HIDDEN", 16)
        yield


def opened(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image)


def draw(folder: Path, count: int = 60, side: int = 8, channels: int = 1) -> Path:
    """Write pictures with a bright spot each."""
    random = np.random.default_rng(5)
    folder.mkdir(parents=True)
    for number in range(count):
        pixels = random.integers(0, 40, (side, side, channels), dtype=np.uint8)
        top, left = random.integers(0, side - 3, 2)
        pixels[top : top + 3, left : left + 3] = 255
        image = pixels[..., 0] if channels == 1 else pixels
        Image.fromarray(image).save(folder / f"{number:03d}.png")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw(tmp_path_factory.mktemp("data") / "spots")


@pytest.fixture(scope="module")
def spots(
    small_networks: None, run: Run, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The directory of a model of `folder`; not to be written to."""
    path = tmp_path_factory.mktemp("models") / "spots"
    result = run("train", folder, "-o", path, *QUICK, "--no-card")
    assert result.exit_code == 0, (result.output, result.exception)
    return path


def test_the_model_that_comes_with_arcsm_is_drawn_from_at_once(
    run: Run, fails: Run, tmp_path: Path
) -> None:
    result = run("sample", "arcsm:digits", "-n", 1, "-o", tmp_path / "one.png")
    assert result.exit_code == 0, (result.output, result.exception)
    assert opened(tmp_path / "one.png").size > 28 * 28
    assert "arcsm:digits), got 'arcsm:faces'" in fails("sample", "arcsm:faces")
    assert "names that begin with 'arcsm:'" in fails("train", "mnist", "-o", "arcsm:mine")
    assert "names that begin" in fails(
        "detect", "a.csv", "--train", "b.csv", "--save", "arcsm:mine", "-o", tmp_path / "o.csv"
    )


def test_a_model_of_a_folder_appears_with_a_card(run: Run, folder: Path, tmp_path: Path) -> None:
    result = run("train", folder, "-o", tmp_path / "m", *QUICK, "--half", "--json")
    assert result.exit_code == 0, (result.output, result.exception)
    told = json.loads(result.stdout)
    assert result.stderr == "" and os.listdir(tmp_path) == ["m"]
    assert (told["images"], told["shape"], told["network"]) == (60, [8, 8, 1], "made")
    assert (told["steps"], told["name"], told["held_out_images"]) == (2, "spots", 3)
    assert 0 < told["held_out_bits_per_dim"] < 12
    names = ["README.md", "config.json", "loss.png", "model.safetensors", "samples.png"]
    assert sorted(os.listdir(tmp_path / "m")) == names
    card = (tmp_path / "m" / "README.md").read_text()
    assert "8 x 8 pixels in grey" in card and "samples.png" in card and "exact CDF" in card
    made = "`arcsm train spots -o m --network made --batch 8 --half --max-steps 2`"
    assert made in card  # without the folders of this machine
    assert opened(tmp_path / "m" / "samples.png").shape == (8 * 66 + 2, 8 * 66 + 2)
    weights = load_file(tmp_path / "m" / "model.safetensors")
    assert weights["context.input.weight"].dtype == np.float16
    assert ImageModel.load(tmp_path / "m").settings.flips is True


def test_what_is_read_and_done_is_said(run: Run, folder: Path, tmp_path: Path) -> None:
    archive = tmp_path / "spots.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted(folder.iterdir()):
            file.write(path, path.name)
    words = ("--method", "likelihood", "--no-flips", "--upside-down", "--most", 50, "--no-card")
    result = run("train", archive, "-o", tmp_path / "m", *QUICK, *words, "--seed", 3)
    assert result.exit_code == 0 and result.stdout == "", (result.output, result.exception)
    for word in ("50 images of 8 x 8 pixels in grey", "bits per dimension", "arcsm sample"):
        assert word in result.stderr
    settings = ImageModel.load(tmp_path / "m").settings
    assert (settings.method, settings.seed) == ("likelihood", 3)
    assert (settings.flips, settings.upside_down) == (False, True)


def test_sets_are_read_by_name(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def load(name: str, part: str, **options: Any) -> Images:
        asked.append((name, part, options))
        pixels = np.random.default_rng(0).integers(0, 256, (20, 4, 4, 1), dtype=np.uint8)
        return Images(pixels, None, name, part, "20 of 60000 images")

    monkeypatch.setattr("arcsm.data.load_images", load)
    (tmp_path / "mnist").mkdir()  # the name means the set all the same
    monkeypatch.chdir(tmp_path)
    result = run("train", "mnist", "-o", "m", *QUICK, "--download", "--size", 4, "--no-card")
    assert result.exit_code == 0, (result.output, result.exception)
    assert "20 of 60000 images" in result.stderr
    assert run("score", "m", "mnist:test", "--most", 3, "-o", "bits.csv").exit_code == 0
    options = {"download": True, "size": 4, "most": None}
    assert asked[0] == ("mnist", "train", options)
    assert asked[1] == ("mnist", "test", {"download": False, "size": 4, "most": 3})
    assert read_table(tmp_path / "bits.csv").names == ("index", "log_probability", "bits_per_dim")
    model = ImageModel.load("m")
    assert model.name == "mnist" and model.settings.flips is False


@pytest.mark.parametrize("name", ["spots.v2", "mnist"])
def test_the_card_names_what_was_trained_on(
    name: str, run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    result = run("train", f"./{name}", "-o", "m", *QUICK, "--most", 12)
    assert result.exit_code == 0, (result.output, result.exception)
    told = "./mnist" if name == "mnist" else name  # without ./ it would mean the set
    assert f"`arcsm train {told} -o m " in (tmp_path / "m" / "README.md").read_text()
    model = ImageModel.load("m")
    assert model.prepared["part"] == "all" and model.settings.flips is True


def test_the_card_names_the_part_of_a_set() -> None:
    found = find_pictures("mnist:test")
    assert found is not None and found.published == "mnist:test"
    found = find_pictures("pictures.zip")
    assert found is not None and found.published == "pictures.zip"


def test_langevin_options_need_langevin(run: Run, spots: Path, tmp_path: Path) -> None:
    for option in (("--steps", 5), ("--step-size", 1e-4)):
        result = run("sample", spots, "-n", 2, *option, "-o", tmp_path / "s.png")
        assert result.exit_code == 2 and "with --method langevin" in result.stderr
    assert not (tmp_path / "s.png").exists()


def test_the_paper_in_stages(run: Run, folder: Path, tmp_path: Path) -> None:
    words = ("--network", "made", "--noise", "paper", "--staged", "--max-steps", 10, "--no-card")
    result = run("train", folder, "-o", tmp_path / "m", *words, "--json", "--most", 12)
    assert result.exit_code == 0, (result.output, result.exception)
    told = json.loads(result.stdout)
    assert told["staged"] and told["density"] == "StagedARCSM" and told["steps"] == 10
    assert told["held_out_images"] == 1 and told["held_out_bits_per_dim"] > 0
    options = ("-n", 2, "--method", "langevin", "--steps", 1, "--step-size", 1e-4)
    result = run("sample", tmp_path / "m", *options, "-o", tmp_path / "s.png")
    assert result.exit_code == 0, (result.output, result.exception)


@pytest.mark.parametrize("kind", [(), ("--noise", "paper", "--staged")])
def test_a_run_is_interrupted_and_resumed(
    run: Run,
    fails: Run,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: tuple[str, ...],
) -> None:
    steps = 20 if kind else 8
    words = ("train", folder, "-o", tmp_path / "m", "--network", "made", "--max-steps", steps)
    words = (*words, "--batch", 8, "--no-card", "--most", 20, *kind)
    validate, calls = loop._validate, []

    def interrupt(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return validate(*args)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "_validate", interrupt)
        result = run(*words)
    assert result.exit_code == 130 and "go on with: arcsm train" in result.stderr
    assert os.listdir(tmp_path) == ["m.partial"]
    assert "add --resume" in fails(*words)
    assert run(*words, "--resume").exit_code == 0
    assert os.listdir(tmp_path) == ["m"]
    assert run(*words[:3], tmp_path / "whole", *words[4:]).exit_code == 0
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("m", "whole"))
    assert all((one[name] == other[name]).all() for name in other)


def test_grids_and_single_files(run: Run, spots: Path, tmp_path: Path) -> None:
    words = ("sample", spots, "-n", 5, "--seed", 2)
    result = run(*words, "-o", tmp_path / "new" / "g.png", "--each", tmp_path / "each", "--json")
    assert result.exit_code == 0, (result.output, result.exception)
    assert json.loads(result.stdout)["images"] == 5
    images = ImageModel.load(spots).sample(5, seed=2)
    np.testing.assert_array_equal(read_images(tmp_path / "each").pixels, images)
    assert sorted(os.listdir(tmp_path / "each")) == [f"{i}.png" for i in range(1, 6)]
    # Three columns and two rows, each pixel 8 x 8, with gaps of 2.
    grid = opened(tmp_path / "new" / "g.png")
    assert grid.shape == (2 * 66 + 2, 3 * 66 + 2)
    np.testing.assert_array_equal(grid[2:66:8, 68:132:8], images[1, ..., 0])
    assert (grid[:2] == 255).all() and (grid[68:, 134:] == 255).all()  # there is no sixth


def test_scores_name_the_files(run: Run, spots: Path, folder: Path, tmp_path: Path) -> None:
    result = run("score", spots, folder, "-o", tmp_path / "bits.csv", "--most", 7)
    assert result.exit_code == 0, (result.output, result.exception)
    table = read_table(tmp_path / "bits.csv")
    assert table["file"].tolist() == [f"{i:03d}.png" for i in range(7)]
    assert table["index"].tolist() == list(range(7))
    images = read_images(folder, most=7)
    model = ImageModel.load(spots)
    np.testing.assert_allclose(table["log_probability"], model.log_prob(images), rtol=1e-9)
    np.testing.assert_allclose(table["bits_per_dim"], model.bits_per_dim(images), rtol=1e-9)
    assert "What is scored: the probability of the levels" in result.stderr


def test_pictures_are_made_ready_as_in_training(
    run: Run, fails: Run, spots: Path, tmp_path: Path
) -> None:
    colour = draw(tmp_path / "colour", 12, side=9, channels=3)
    words = ("--size", 8, "--channels", 1, "--no-card")
    assert run("train", colour, "-o", tmp_path / "m", *QUICK, *words).exit_code == 0
    result = run("score", tmp_path / "m", colour, "-o", tmp_path / "a.csv")
    assert result.exit_code == 0, (result.output, result.exception)
    told = fails("score", spots, colour, "-o", tmp_path / "b.csv")
    assert "expected images of 8 x 8 pixels in grey, as the model was trained on" in told
    assert "got 9 x 9 pixels in colour" in told and "--size 8 --channels 1" in told
    assert run("score", spots, colour, *words[:4], "-o", tmp_path / "b.csv").exit_code == 0
    one, other = (read_table(tmp_path / name) for name in ("a.csv", "b.csv"))
    assert one.rows == other.rows == 12 and not (tmp_path / "none.csv").exists()


def test_files_that_were_skipped_are_not_scored(run: Run, spots: Path, tmp_path: Path) -> None:
    some = draw(tmp_path / "some", 4)
    (some / "001.png").write_bytes(b"no picture")
    words = ("score", spots, some, "--skip-unreadable", "-o", tmp_path / "bits.csv")
    result = run(*words)
    assert result.exit_code == 0, (result.output, result.exception)
    names = read_table(tmp_path / "bits.csv")["file"].tolist()
    assert names == ["000.png", "002.png", "003.png"]


def test_a_model_of_images_is_checked(run: Run, spots: Path, folder: Path) -> None:
    result = run("check", spots, folder, "--json")
    assert result.exit_code == 0, (result.output, result.exception)
    found = {finding["name"]: finding for finding in json.loads(result.stdout)["findings"]}
    assert list(found) == ["loads", "levels", "images"] and found["levels"]["error"] < 1e-4
    result = run("check", spots)
    assert result.exit_code == 0 and "add up to 1" in result.stderr


def test_a_damaged_model_is_not_sound(run: Run, spots: Path, tmp_path: Path) -> None:
    shutil.copytree(spots, tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").write_bytes(b"\0" * 100)
    result = run("check", tmp_path / "m")
    assert result.exit_code == 1 and "It does not load" in result.stderr


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda f: Image.new("L", (9, 9)).save(f / "z.png"), ["one size", "add --size 8 to cut"]),
        (lambda f: Image.new("RGB", (8, 8)).save(f / "z.png"), ["grey", "--channels 3 or"]),
        (lambda f: Image.new("LA", (8, 8)).save(f / "z.png"), ["transparency", "--channels 1"]),
        (lambda f: (f / "z.png").write_bytes(b"x"), ["'z.png'", "add --skip-unreadable"]),
        (lambda f: Image.new("F", (8, 8)).save(f / "z.tiff"), ["16 bits", "--skip-unreadable"]),
    ],
)
def test_pictures_that_do_not_go_together_are_refused(
    fails: Run, tmp_path: Path, spoil: Callable[[Path], Any], named: list[str]
) -> None:
    folder = draw(tmp_path / "some", 3)
    spoil(folder)
    told = fails("train", folder, "-o", tmp_path / "m", *QUICK)
    assert all(word in told for word in named) and "=" not in told.replace("ARCSM_DATA=", "")
    assert os.listdir(tmp_path) == ["some"]


def test_pictures_of_16_bits_are_reduced_and_that_is_said(run: Run, tmp_path: Path) -> None:
    folder = draw(tmp_path / "some", 6)
    deep = np.random.default_rng(0).integers(0, 2**16, (8, 8), dtype=np.uint16)
    Image.fromarray(deep).save(folder / "deep.png")
    result = run("train", folder, "-o", tmp_path / "m", *QUICK, "--no-card")
    assert result.exit_code == 0 and "reduced from 16 to 8 bits a channel: 1" in result.stderr


def test_options_of_tables_and_of_images_do_not_mix(
    fails: Run, csv: Path, folder: Path, model: Path, spots: Path, tmp_path: Path
) -> None:
    out = ("-o", tmp_path / "m")
    for words, option in (
        (("train", folder, *out, "--drop", "age"), "--drop, which is for tables"),
        (("train", folder, *out, "--ensemble", 2), "--ensemble, which is for tables"),
        (("train", csv, *out, "--network", "made"), "--network, which is for images"),
        (("train", csv, *out, "--no-flips"), "--no-flips, which is for images"),
        (("train", csv, *out, "--upside-down"), "--upside-down, which is for images"),
        (("train", csv, *out, "--skip-unreadable"), "--skip-unreadable, which is for images"),
        (("train", folder, *out, "--download"), "--download with the name of a set"),
        (("train", "mnist", *out, "--channels", 3), "--channels with a folder"),
        (("sample", spots, "-o", tmp_path / "a.png", "--given", "age=4"), "--given, which is for"),
        (("sample", model, "-o", tmp_path / "a.csv", "--each", "x"), "--each, which is for"),
        (("score", spots, folder, "--keep", "a", "-o", tmp_path / "a.csv"), "--keep, which is"),
        (("score", spots, csv, "-o", tmp_path / "a.csv"), "which is of images"),
        (("score", model, folder, "-o", tmp_path / "a.csv"), "which is of a table"),
        (("check", spots, csv), "which is of images"),
        (("check", model, folder), "which is of a table"),
    ):
        assert option in fails(*words)
    assert os.listdir(tmp_path) == []


def test_outputs_that_cannot_be_are_refused_at_once(
    fails: Run, spots: Path, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    for words, named in (
        (("sample", spots), "add -o FILE.png"),
        (("sample", spots, "-o", tmp_path / "a.csv"), "ends in .png"),
        (("sample", spots, "-o", spots / "a.png"), "outside of the model"),
        (("sample", spots, "--each", tmp_path / "full"), "new folder"),
        (("sample", spots, "-o", tmp_path / "a.png", "--method", "magic"), "method among"),
        (("sample", spots, "-o", tmp_path / "a.png", "--method", "flow", "--steps", 3), "--steps"),
        (("train", folder, "-o", tmp_path / "full", *QUICK), "holds other files"),
        (("train", folder, "-o", spots, *QUICK), "add --force"),
        (("train", tmp_path / "no.zip", "-o", tmp_path / "m"), "nothing there"),
        (("train", folder, "-o", tmp_path / "m", "--network", "huge"), "network among"),
        (("train", folder, "-o", tmp_path / "m", "--staged"), "noise 'paper'"),
        (("train", folder, "-o", tmp_path / "m", "--channels", 2), "--channels 1 (grey)"),
    ):
        assert named in fails(*words)
    assert os.listdir(tmp_path) == ["full"]


def test_a_gpu_that_is_not_there(fails: Run, folder: Path, tmp_path: Path) -> None:
    if torch.cuda.device_count() > 7:
        pytest.skip("there are more GPUs than it takes")
    assert "use cpu" in fails("train", folder, "-o", tmp_path / "m", "--device", "cuda:7")


def test_want_of_memory_names_the_option(
    run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(*_: Any, **__: Any) -> None:
        raise ArcsmError("expected memory for batches of 64 images; batch=16 would fit")

    monkeypatch.setattr("arcsm.images.fit_images", fit)
    result = run("train", folder, "-o", tmp_path / "m", *QUICK)
    assert result.exit_code == 2 and "--batch 16 would fit" in result.stderr


def test_errors_keep_their_class_when_they_are_put_in_other_words() -> None:
    with pytest.raises(InputError, match=r"^add --download, or not$"), by_options():
        raise InputError("pass download=True, or not")
    with pytest.raises(ArcsmError) as caught, by_options():
        raise ArcsmError("nothing to translate")
    assert type(caught.value) is ArcsmError


def test_what_is_meant_by_data(tmp_path: Path, csv: Path) -> None:
    assert find_pictures(str(csv)) is None and find_pictures("sklearn:wine") is None
    assert find_pictures("cifar10:test") == cli_pictures.Pictures("cifar10:test", "cifar10", "test")
    assert find_pictures(str(tmp_path)) == cli_pictures.Pictures(str(tmp_path))
    for name in ("a.zip", "a.ZIP", "a.png"):
        assert find_pictures(name) == cli_pictures.Pictures(name)
