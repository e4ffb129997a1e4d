"""Noise removed and pictures completed on the command line."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from arcsm.conditional import Noise
from arcsm.images import ImageModel, ImageSettings
from arcsm.model import ARCSM

Run = Callable[..., Any]
PEPPER = ("--noise", "salt-and-pepper:0.2")


def make_model(path: Path, shape: tuple[int, int, int]) -> Path:
    chain = ARCSM.made(
        int(np.prod(shape)), hidden=(8,), noise=Noise(3.0, 0.05), shared_units=True, seed=0
    )
    with torch.no_grad():
        chain.shift.fill_(0.5)
        chain.scale.fill_(0.2)
    ImageModel(chain, shape, ImageSettings(network="made", flips=False)).save(path)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "grey", (4, 5, 1))


def draw(path: Path, shape: tuple[int, ...] = (4, 5), seed: int = 0) -> Path:
    pixels = np.random.default_rng(seed).integers(60, 200, shape, dtype=np.uint8)
    pixels[0, 0], pixels[1, 2] = 0, 255
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def opened(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image)


def test_a_picture_is_cleaned_where_it_may_be_spoiled(
    run: Run, model: Path, tmp_path: Path
) -> None:
    noisy, clean = draw(tmp_path / "noisy.png"), tmp_path / "clean.png"
    result = run("denoise", noisy, clean, "--model", model, *PEPPER)
    assert result.exit_code == 0, result.output
    said = " ".join(result.stderr.split())
    assert "Cleaned by mean, views: none. What lies below a pixel was not used." in said
    before, after = opened(noisy), opened(clean)
    assert before.shape == after.shape
    changed = before != after
    assert changed[0, 0] and changed[1, 2] and changed.sum() == 2


def test_views_from_below_are_told(run: Run, model: Path, tmp_path: Path) -> None:
    noisy, clean = draw(tmp_path / "noisy.png"), tmp_path / "clean.png"
    views = ("--view", "none", "--view", "up-down")
    result = run("denoise", noisy, clean, "--model", model, *PEPPER, *views)
    assert "views: none, up-down." in result.stderr and "not used" not in result.stderr
    result = run("denoise", noisy, tmp_path / "c.png", "--model", model, *PEPPER, *views[2:])
    assert "What lies above a pixel was not used." in " ".join(result.stderr.split())


def test_particles_are_as_many_as_asked_for(
    run: Run, fails: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def clean(model: Any, images: Any, noise: Any, how: Any, **options: Any) -> np.ndarray:
        asked.append((how.method, how.particles))
        return np.asarray(images.pixels)

    monkeypatch.setattr("arcsm.tasks.images.denoise_images", clean)
    words = ("denoise", draw(tmp_path / "noisy.png"), tmp_path / "clean.png", "--model", model)
    for more in ((), ("--particles", 3)):
        result = run(*words, "--noise", "gaussian:0.6", "--force", *more)
        assert result.exit_code == 0 and "not used" not in result.stderr, result.output
    assert asked == [("particles", 64), ("particles", 3)]
    line = fails(*words, *PEPPER, "--force", "--particles", 3)
    assert "got it with mean; leave it out" in line and len(asked) == 2


def test_the_pictures_of_a_folder_keep_their_names(
    run: Run, fails: Run, model: Path, tmp_path: Path
) -> None:
    for name in ("b.png", "a.bmp", "within/c.png"):
        draw(tmp_path / "noisy" / name)
    out = tmp_path / "clean"
    words = ("denoise", tmp_path / "noisy", out, "--model", model, *PEPPER, "--method", "draw")
    result = run(*words, "--seed", 4, "--json")
    told = json.loads(result.stdout)
    assert told["images"] == 3 and told["method"] == "draw" and told["views"] == ["none"]
    found = sorted(path.relative_to(out).as_posix() for path in out.rglob("*.png"))
    assert found == ["a.png", "b.png", "within/c.png"]
    assert "--force" in fails(*words)
    assert run(*words, "--force").exit_code == 0
    (out / "notes.txt").write_text("mine")
    assert "notes.txt" in fails(*words, "--force") and (out / "notes.txt").exists()


def test_what_is_there_is_not_overwritten_unasked(
    run: Run, fails: Run, model: Path, tmp_path: Path
) -> None:
    noisy, clean = draw(tmp_path / "noisy.png"), tmp_path / "clean.png"
    clean.write_bytes(b"precious")
    words = ("denoise", noisy, clean, "--model", model, *PEPPER)
    assert "--force" in fails(*words) and clean.read_bytes() == b"precious"
    assert run(*words, "--force").exit_code == 0 and opened(clean).shape == (4, 5)
    # Not even then what is to be cleaned.
    fails("denoise", noisy, noisy, "--model", model, *PEPPER, "--force")
    folder = tmp_path / "pictures"
    draw(folder / "noisy" / "one.png")
    line = fails("denoise", folder / "noisy", folder, "--model", model, *PEPPER, "--force")
    assert "an OUT apart from IN" in line and (folder / "noisy" / "one.png").exists()


def test_bad_input_is_one_sentence(fails: Run, model: Path, csv: Path, tmp_path: Path) -> None:
    noisy, out = draw(tmp_path / "noisy.png"), tmp_path / "out.png"

    def line(source: Path, *words: object, to: Path = out, by: Path = model) -> str:
        return str(fails("denoise", source, to, "--model", by, *words))

    assert "5 x 4 pixels" in line(draw(tmp_path / "large.png", (5, 5)), *PEPPER)
    assert "in colour" in line(draw(tmp_path / "colour.png", (4, 5, 3)), *PEPPER)
    assert "below 1" in line(noisy, "--noise", "salt-and-pepper:1.5")
    assert "sigma from 0.001" in line(noisy, "--noise", "gaussian:0")
    assert "salt-and-pepper:SHARE" in line(noisy, "--noise", "rain")
    assert "method among" in line(noisy, *PEPPER, "--method", "magic")
    assert "views among" in line(noisy, *PEPPER, "--view", "askew")
    assert "ends in .png" in line(noisy, *PEPPER, to=tmp_path / "out.jpg")
    assert "nothing there" in line(tmp_path / "missing.png", *PEPPER)
    (tmp_path / "torn.png").write_bytes(noisy.read_bytes()[:40])
    assert "whole picture" in line(tmp_path / "torn.png", *PEPPER)
    (tmp_path / "empty").mkdir()
    empty = line(tmp_path / "empty", *PEPPER, to=tmp_path / "none")
    assert "no file that ends in" in empty and "choose another folder" in empty
    assert "correct the path" in line(csv, *PEPPER, to=tmp_path / "none")
    draw(tmp_path / "mixed" / "one.png")
    draw(tmp_path / "mixed" / "two.png", (5, 5))
    mixed = line(tmp_path / "mixed", *PEPPER, to=tmp_path / "none")
    assert "convert such pictures, or leave them out" in mixed and "size=" not in mixed
    assert "directory of a model" in line(noisy, *PEPPER, by=tmp_path / "nowhere")
    assert not out.exists() and not (tmp_path / "none").exists()


def test_completions_stand_beside_what_was_known(
    run: Run, fails: Run, model: Path, tmp_path: Path
) -> None:
    source, out = draw(tmp_path / "whole.png"), tmp_path / "completed.png"
    words = ("complete", source, out, "--model", model, "--draws", 3)
    result = run(*words, "--rows", 1)
    assert result.exit_code == 0 and "3 completions of 1 image," in result.stderr
    # A line of four images, each 16 times enlarged, with gaps of 2.
    picture, own = opened(out), opened(source)
    side, gap = 16, 2
    assert picture.shape == (4 * side + 2 * gap, 4 * (5 * side + gap) + gap)
    small = np.stack(
        [
            picture[gap + side // 2 :: side, gap + i * (5 * side + gap) + side // 2 :][
                :4, : 5 * side : side
            ]
            for i in range(4)
        ]
    )
    assert (small[:, 0] == own[0]).all() and (small[0, 1:] == 128).all()
    assert not np.array_equal(small[1], small[2])
    assert "--force" in fails(*words)
    out.unlink()
    for rows in ("0", "4", "most"):
        assert "--rows as half or a number from 1 to 3" in fails(*words, "--rows", rows)
    top = tmp_path / "top.png"
    Image.fromarray(own[:2]).save(top)
    assert "their upper 1 row alone" in fails("complete", top, *words[2:], "--rows", 1)
    assert run("complete", top, out, *words[3:5], "--draws", 10**8).exit_code == 2
    assert "rows" in json.loads(run(*words, "--json").stdout)


@pytest.mark.parametrize(
    "name", ["../out.png", "a/../../out.png", "/tmp/out.png", "a\\..\\out.png"]
)
def test_names_in_a_zip_that_lead_out_of_it_are_refused(
    name: str, run: Run, model: Path, tmp_path: Path
) -> None:
    picture = draw(tmp_path / "noisy.png")
    with zipfile.ZipFile(tmp_path / "in.zip", "w") as archive:
        archive.write(picture, "good.png")
        archive.writestr(zipfile.ZipInfo(name), picture.read_bytes())
    result = run("denoise", tmp_path / "in.zip", tmp_path / "d" / "out", "--model", model, *PEPPER)
    assert result.exit_code == 2 and "stay within" in result.stderr
    assert not (tmp_path / "d").exists() and not (tmp_path / "out.png").exists()


def test_pictures_that_are_not_results_are_not_replaced(
    run: Run, model: Path, tmp_path: Path
) -> None:
    noisy, out = tmp_path / "noisy", tmp_path / "out"
    draw(noisy / "a.png")
    words = ("denoise", noisy, out, "--model", model, *PEPPER, "--force")
    assert run(*words).exit_code == 0 and run(*words).exit_code == 0
    holiday = draw(out / "holiday.png")
    result = run(*words)
    assert result.exit_code == 2 and "with 'holiday.png' in it" in result.stderr
    assert holiday.exists()


@pytest.mark.parametrize("command", ["denoise", "complete"])
def test_results_do_not_lie_among_what_they_are_made_of(
    command: str, run: Run, model: Path, tmp_path: Path
) -> None:
    noisy = tmp_path / "noisy"
    draw(noisy / "a.png")
    out = noisy / "clean" if command == "denoise" else noisy / "ends.png"
    options = PEPPER if command == "denoise" else ("--rows", 2)
    result = run(command, noisy, out, "--model", model, *options)
    assert result.exit_code == 2 and "an OUT apart from IN" in result.stderr and not out.exists()


def test_advice_is_what_can_be_done(run: Run, model: Path, tmp_path: Path) -> None:
    draw(tmp_path / "sizes" / "a.png")
    draw(tmp_path / "sizes" / "b.png", (6, 7))
    draw(tmp_path / "bad" / "a.png")
    (tmp_path / "bad" / "b.png").write_bytes(b"no picture")
    for name, problem in (("sizes", "one size"), ("bad", "whole image in 'b.png'")):
        result = run("denoise", tmp_path / name, tmp_path / "out", "--model", model, *PEPPER)
        assert result.exit_code == 2 and problem in result.stderr
        assert "; convert such pictures, or leave them out" in result.stderr
        assert "--size" not in result.stderr and "--skip" not in result.stderr


def test_grey_that_was_saved_in_colour_is_grey(run: Run, model: Path, tmp_path: Path) -> None:
    plain = draw(tmp_path / "plain.png")
    with Image.open(plain) as picture:
        picture.convert("RGB").save(tmp_path / "colour.png")
    for name in ("plain", "colour"):
        words = (tmp_path / f"{name}.png", tmp_path / f"{name}-out.png")
        assert run("denoise", *words, "--model", model, *PEPPER).exit_code == 0
    assert np.array_equal(*(opened(tmp_path / f"{name}-out.png") for name in ("plain", "colour")))


def test_the_known_rows_alone_can_be_completed(run: Run, model: Path, tmp_path: Path) -> None:
    whole = draw(tmp_path / "whole.png")
    Image.fromarray(opened(whole)[:2]).save(tmp_path / "half.png")
    for name in ("whole", "half"):
        words = (tmp_path / f"{name}.png", tmp_path / f"{name}-ends.png", "--rows", "half")
        result = run("complete", *words, "--model", model)
        assert result.exit_code == 0, result.output
    assert np.array_equal(*(opened(tmp_path / f"{name}-ends.png") for name in ("whole", "half")))
