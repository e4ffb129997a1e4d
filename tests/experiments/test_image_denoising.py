"""The experiment on noise: rivals, what is measured, and what is made of it."""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arcsm.data.images import Images
from arcsm.experiments import denoising_rivals, image_models
from arcsm.experiments.denoising_budgets import BUDGETS
from arcsm.experiments.denoising_rivals import (
    apply,
    choose_settings,
    median_filter,
    median_of_extremes,
    rivals_for,
)
from arcsm.experiments.experiment import Piece, Place
from arcsm.experiments.image_denoising import (
    EXPERIMENT,
    NOISY,
    figures,
    measured,
    metrics,
    pieces,
    run,
    spoiled,
    verdicts,
)
from arcsm.experiments.image_models import trained_model, with_mirrored
from arcsm.experiments.image_parts import stand_in, to_png
from arcsm.images import ImageModel
from arcsm.tasks.images import Gaussian, SaltAndPepper, salt_and_pepper

SMOKE: Any = BUDGETS["smoke"]
PLACE = Place("cpu", lambda share: None)


def test_pieces_are_rivals_and_methods() -> None:
    names = [piece.name for piece in pieces(BUDGETS["gpu"])]
    assert len(names) == len(set(names)) and names[0] == "cifar10.rivals.0"
    methods = {piece.labels.get("method") for piece in pieces(BUDGETS["gpu"])}
    assert {"the paper's Langevin", "the paper's single step", "mean, four views"} <= methods
    for settings in BUDGETS.values():
        for case in settings["cases"].values():
            assert case["default"] in case["ours"]


def test_filters_restore_what_they_are_made_for() -> None:
    original = np.repeat(np.linspace(0.2, 0.8, 12), 12).reshape(1, 12, 12, 1)
    levels = np.rint(original * 255).astype(np.uint8)
    noisy = salt_and_pepper(levels, 0.05, np.random.default_rng(0))
    by_median = apply(median_filter, noisy / 255, {"size": 3})
    assert np.abs(by_median[0, 1:-1].astype(int) - levels[0, 1:-1]).max() <= 60
    by_extremes = apply(median_of_extremes, noisy / 255, {"size": 3})
    kept = (noisy > 0) & (noisy < 255)
    assert (by_extremes[kept] == levels[kept]).all()
    assert np.abs(by_extremes.astype(int) - levels).max() <= 20
    chosen = choose_settings(median_filter, {"size": [1, 3]}, noisy / 255, levels)
    assert chosen == {"size": 3}


def test_noise_of_each_kind_has_its_rivals(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "median of what is neither black nor white" in rivals_for(SaltAndPepper(0.1))
    gaussian = rivals_for(Gaussian(0.6))
    assert set(gaussian) == {"median filter", "non-local means", "total variation", "BM3D"}
    assert gaussian["BM3D"][1]["sigma"][2] == pytest.approx(0.3)
    monkeypatch.setitem(sys.modules, "bm3d", None)
    with pytest.raises(ImportError):
        denoising_rivals.block_matching(np.zeros((4, 4, 1)), sigma=0.1)


def test_noise_is_the_same_for_all_and_not_cut_off() -> None:
    pixels = stand_in(3, 8, 1)
    one = spoiled(pixels, Gaussian(0.6), 0)
    assert one.dtype.kind == "f" and np.array_equal(one, spoiled(pixels, Gaussian(0.6), 0))
    assert spoiled(pixels, SaltAndPepper(0.1), 0).dtype == np.uint8


def test_a_perfect_image_has_a_finite_measure() -> None:
    pixels = stand_in(2, 12, 1)
    found = measured(pixels, pixels)
    assert found["psnr"] == pytest.approx(10 * np.log10(255**2 * 144)) and found["ssim"] == 1
    assert measured(pixels[:, :4, :4], pixels[:, :4, :4])["ssim"] is None


def ask_for(told: Any, images: Images, folder: Path, **changes: Any) -> tuple[ImageModel, Path]:
    options: dict[str, Any] = {"method": "csm", "seed": 0, "device": "cpu", "folder": str(folder)}
    return trained_model(told, images, progress=lambda share: None, **{**options, **changes})


def test_models_are_trained_once_on_mirrored_images_too(tmp_path: Path) -> None:
    images = Images(stand_in(20, 4, 1), None, "stand-in", "train")
    both = with_mirrored(images, ["up-down", "left-right"]).pixels
    assert len(both) == 80
    assert np.array_equal(both[20], images.pixels[0, ::-1])
    assert np.array_equal(both[40], images.pixels[0, :, ::-1])
    told = {**SMOKE["cases"]["grey"]["model"], "train_seconds": 0.05}
    model, place = ask_for(told, images, tmp_path)
    assert model.prepared["mirrored"] == ["up-down", "left-right"]
    stamp = (place / "config.json").stat().st_mtime_ns
    again, same = ask_for(told, images, tmp_path)
    assert same == place and (place / "config.json").stat().st_mtime_ns == stamp
    taken, own = ask_for({**told, "directory": str(place)}, images, tmp_path)
    assert own == place and taken.shape == again.shape == (4, 4, 1)
    _, other = ask_for(told, images, tmp_path, seed=1)
    assert other != place


def test_of_two_that_want_a_model_one_trains_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = Images(stand_in(20, 4, 1), None, "stand-in", "train")
    told = {**SMOKE["cases"]["grey"]["model"], "train_seconds": 0.05}
    begun, whole = [], image_models.fit_images

    def fit(*arguments: Any, **options: Any) -> Any:
        begun.append(threading.get_ident())
        time.sleep(0.2)  # the other one asks meanwhile
        return whole(*arguments, **options)

    monkeypatch.setattr(image_models, "fit_images", fit)

    def ask(_: int) -> Path:
        return ask_for(told, images, tmp_path)[1]

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(ask, range(2))
    assert first == second and len(begun) == 1


def test_on_a_gpu_the_compiler_has_no_share_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of a few steps comes first, without a limit of time, on few images."""
    images = Images(stand_in(200, 4, 1), None, "stand-in", "train")
    told = {**SMOKE["cases"]["grey"]["model"], "train_seconds": 0.05, "mirrored": []}
    fitted = []
    whole = image_models.fit_images

    def fit(images: Images, settings: Any, **options: Any) -> Any:
        fitted.append((len(images), settings.steps, settings.max_seconds))
        return whole(images, settings, **options)

    monkeypatch.setattr(image_models, "fit_images", fit)
    monkeypatch.setattr(image_models, "on_gpu", lambda device: True)
    ask_for(told, images, tmp_path)
    (few, steps, limit), (every, _, seconds) = fitted
    assert (few, steps, limit) == (64, 4, None) and (every, seconds) == (200, 0.05)


def test_a_piece_of_each_kind_is_run(tmp_path: Path) -> None:
    settings = {**SMOKE, "models_folder": str(tmp_path)}
    settings["cases"] = {"colour": SMOKE["cases"]["colour"]}
    rivals = run(settings, Piece("colour.rivals.0", {"case": "colour", "seed": 0}), PLACE)
    assert {"median filter", NOISY} <= set(rivals["rivals"])
    assert rivals["rivals"]["median filter"]["settings"]["size"] in (3, 5)
    labels = {"case": "colour", "seed": 0, "method": "mean, four views"}
    ours = run(settings, Piece("colour.0.0", labels), PLACE)
    assert len(ours["views"]) == 4 and ours["psnr"] > 0 and ours["images"] == 2


def raw_of(settings: Any, ahead: float) -> dict[str, Any]:
    png = to_png(np.zeros((1, 1, 1), np.uint8))
    one = {"psnr": 20.0, "psnr_deviation": 1.0, "ssim": 0.5, "ssim_deviation": 0.1}
    common = {"images": 4, "seconds": 2.0, "settings": {}, "train_seconds": 1.0, "grid": png}
    found: dict[str, Any] = {}
    for piece in pieces(settings):
        if "method" in piece.labels:
            better = {**one, "psnr": 20.0 + ahead, "ssim": 0.5 + ahead / 100}
            name = piece.labels["method"]
            found[piece.name] = {**common, **better, "method": name, "completed": None}
            found[piece.name]["side_by_side"] = 1
        else:
            rivals = {
                NOISY: {**one, "psnr": 10.0, "settings": {}, "seconds": 0.0},
                "median filter": {**one, "settings": {"size": 3}, "seconds": 0.1},
                "BM3D": {"missing": "the package bm3d is not installed"},
            }
            found[piece.name] = {"rivals": rivals, "grids": {NOISY: png}, "images": 4}
    return found


def test_verdicts_compare_with_the_best_rival() -> None:
    settings = {**SMOKE, "goal": True}
    for ahead, holds in ((2.0, None), (-2.0, False)):
        said = verdicts(settings, metrics(settings, raw_of(settings, ahead)))
        assert [one.holds for one in said] == [holds, holds]
        assert f"PSNR {20 + ahead:.1f} against 20.0 (median filter)" in said[0].text
        assert "Not installed: BM3D" in said[0].text
    raw = raw_of(settings, 2.0)
    for one in raw.values():
        one.get("rivals", {}).pop("BM3D", None)
    assert [one.holds for one in verdicts(settings, metrics(settings, raw))] == [True, True]
    found = metrics(settings, raw_of(settings, 2.0))
    missing = [one for one in found if one.value is None]
    assert missing and all("not installed" in (one.reason or "") for one in missing)


def test_speeds_of_a_shared_machine_say_so() -> None:
    raw = raw_of(SMOKE, 1.0)
    raw["colour.0.0"]["side_by_side"] = 3
    shared = [one for one in metrics(SMOKE, raw) if one.labels.get("methods side by side") == 3]
    assert [one.name for one in shared] == ["images a second"] and shared[0].value == 2.0


def test_figures_are_drawn_of_every_case() -> None:
    drawn = figures(SMOKE, raw_of(SMOKE, 1.0))
    assert set(drawn) == {"pictures-colour", "psnr-colour", "pictures-grey", "psnr-grey"}
    assert EXPERIMENT.name == "image-denoising" and "gpu" in EXPERIMENT.budgets
