"""Samples of images: features, the kept reference, what pieces measure and what is made of it."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from arcsm.data.images import Images
from arcsm.errors import InputError
from arcsm.experiments import Store, image_models, image_parts, image_samples, run_experiment
from arcsm.experiments.experiment import Piece, Place
from arcsm.experiments.image_budgets import BUDGETS
from arcsm.experiments.image_parts import (
    RandomProjections,
    distances,
    from_png,
    load_data,
    load_features,
    name_features,
    reference_statistics,
    stand_in,
    to_png,
)
from arcsm.experiments.image_samples import (
    EXPERIMENT,
    METHODS,
    figures,
    image_settings,
    metrics,
    pieces,
    run,
    verdicts,
)
from arcsm.experiments.ood_budgets import BUDGETS as OOD
from arcsm.images import ImageSettings
from arcsm.images.networks import build_density
from arcsm.plots.pictures import picture_grid
from arcsm.train import History

SMOKE, GPU, PAPER = BUDGETS["smoke"], BUDGETS["gpu"], BUDGETS["paper"]


def piece_of(settings: Any, name: str) -> Piece:
    return next(piece for piece in pieces(settings) if piece.name == name)


def test_stand_ins_are_images_that_differ() -> None:
    images = stand_in(30, 8, 3)
    assert images.dtype == np.uint8 and images.shape == (30, 8, 8, 3)
    assert np.array_equal(images, stand_in(30, 8, 3))
    assert len(np.unique(images.reshape(30, -1), axis=0)) == 30
    # A bright square on a dark ground: both are in every image.
    flat = images.reshape(30, -1)
    assert flat.min(1).max() < 80 and flat.max(1).min() >= 120
    train, test = load_data(SMOKE["data"]["colour"])
    assert (len(train), len(test)) == (96, 24) and train.shape == (4, 4, 3)
    assert not np.array_equal(train.pixels[:24], test.pixels)


def test_random_projections_are_sums_with_signs() -> None:
    pixels = np.zeros((3, 2, 2, 1), np.uint8)
    pixels[1, 0, 1] = 255
    pixels[2] = 255
    found = RandomProjections(5)(pixels)
    assert found.shape == (3, 5) and (found[0] == 0).all()
    torch.testing.assert_close(found[1].abs(), torch.full((5,), 0.5))
    # Four signs add up to an even number.
    assert set((2 * found[2]).abs().tolist()) <= {0.0, 2.0, 4.0}


def test_reference_has_the_moments_of_the_features_and_distances_their_closed_form() -> None:
    images = Images(stand_in(90, 4, 1), None, "stand-in", "train")
    features = RandomProjections(8)
    reference = reference_statistics(SMOKE, images, features, "cpu")
    rows = features(images.pixels[:80]).double().numpy()
    assert reference.count == 80 and reference.features is not None
    assert len(reference.features) == 60
    np.testing.assert_allclose(reference.mean.numpy(), rows.mean(0), rtol=1e-6)
    np.testing.assert_allclose(reference.covariance.numpy(), np.cov(rows.T), rtol=1e-5)
    # The same features, moved: the distance is the square of how far.
    shift = torch.linspace(-1, 1, 8)
    found = distances(SMOKE, images.pixels[:80], lambda x, batch: features(x) + shift, reference)
    assert found["fid"] == pytest.approx(shift.square().sum().item(), rel=1e-4)
    assert found["kid"] > 10 * found["kid_deviation"] > 0
    same = distances(SMOKE, images.pixels[:80], features, reference)
    assert same["fid"] == pytest.approx(0, abs=1e-5) and abs(same["kid"]) < found["kid"] / 10


def test_reference_is_computed_once_for_the_same_pixels(tmp_path: Path) -> None:
    asked: list[int] = []
    plain = RandomProjections(8)

    def features(pixels: np.ndarray, *, batch: int) -> torch.Tensor:
        asked.append(len(pixels))
        return plain(pixels)

    settings = {
        **SMOKE,
        "features": {"network": "inception", "dims": 8},
        "reference_folder": str(tmp_path / "kept"),
    }
    images = Images(stand_in(90, 4, 1), None, "some", "train")
    one, again = (reference_statistics(settings, images, features, "cpu") for _ in range(2))
    assert asked == [80] and torch.equal(one.covariance, again.covariance)
    assert again.features is not None and torch.equal(again.features, plain(images.pixels[:60]))
    others = replace(images, pixels=images.pixels[::-1].copy())
    reference_statistics(settings, others, features, "cpu")
    assert asked == [80, 80] and len(list((tmp_path / "kept").iterdir())) == 2


def test_missing_weights_are_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARCSM_FID_WEIGHTS", str(tmp_path / "none"))

    def too_late(*_: Any, **__: Any) -> None:
        raise AssertionError("images were read first")

    monkeypatch.setattr(image_samples, "load_data", too_late)
    with pytest.raises(InputError, match="ARCSM_FID_WEIGHTS is the path"):
        run(GPU, piece_of(GPU, "mnist.made.csm.0"), Place("cpu", lambda _: None))
    assert isinstance(load_features(SMOKE, "cpu"), RandomProjections)


def test_names_of_features_say_what_they_are() -> None:
    assert name_features(GPU) == "2048 of the FID network"
    assert "not to be compared" in name_features(BUDGETS["cpu"])
    assert "stand-in" in name_features(SMOKE)


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_survive_as_text(channels: int) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (5, 7, channels), dtype=np.uint8)
    assert np.array_equal(from_png(to_png(picture)), picture)


def test_pieces_are_a_reference_and_both_methods_of_every_pair(tmp_path: Path) -> None:
    names = [piece.name for piece in pieces(GPU)]
    assert len(names) == 3 + 5 * 2
    assert names[:3] == ["reference.mnist", "mnist.made.likelihood.0", "mnist.made.csm.0"]
    assert names[-3:] == [
        "reference.celeba32",
        "celeba32.pixelcnn.likelihood.0",
        "celeba32.pixelcnn.csm.0",
    ]
    for piece in pieces(GPU):
        if "pair" in piece.labels:
            pair = GPU["pairs"][piece.labels["pair"]]
            assert piece.name.startswith(f"{pair['data']}.{pair['network']}.")
    assert len(Store(tmp_path, EXPERIMENT, "paper").pieces) == 13


def test_training_is_ended_by_the_time_or_by_epochs() -> None:
    for pair in GPU["pairs"]:
        for method in METHODS:
            told = image_settings(GPU, pair, method, 3, 50_000)
            assert told.max_seconds == GPU["train_seconds"] and told.seed == 3
            # No step budget must end it before: at a millisecond each.
            assert (told.steps or 0) > 1000 * GPU["train_seconds"]
    for pair in PAPER["pairs"]:
        own, other = (
            image_settings(PAPER, pair, method, 0, 1000) for method in ("csm", "likelihood")
        )
        batch = 256 if pair["network"] == "made" else 128
        assert own.steps == other.steps == 200 * math.ceil(1000 / batch)
        assert own.max_seconds is None and own.staged and own.noise == "paper"
        assert not other.staged and other.noise == "fine" and own.learning_rate == 2e-4


def parameters_of(pair: Any, method: str, shape: tuple[int, int, int]) -> int:
    told = ImageSettings(method=method, **pair[method]).filled(pair["data"], "cuda")
    density = build_density(told, shape, name=pair["data"], deviation=0.25)
    return sum(parameter.numel() for parameter in density.parameters())


SHAPES = {
    "mnist": (28, 28, 1),
    "cifar10": (32, 32, 3),
    "celeba32": (32, 32, 3),
    "grey": (8, 8, 1),
    "colour": (4, 4, 3),
}


@pytest.mark.parametrize("budget", ["smoke", "cpu", "gpu", "paper"])
def test_ours_have_at_most_as_many_parameters(budget: str) -> None:
    for pair in BUDGETS[budget]["pairs"]:
        if pair["network"] == "made" and budget != "smoke":
            continue  # large; the test below
        with torch.device("cpu" if budget == "smoke" else "meta"):
            own, other = (
                parameters_of(pair, method, SHAPES[pair["data"]])
                for method in ("csm", "likelihood")
            )
        assert own <= other
        if budget != "smoke":
            assert other < 1.1 * own


def test_a_made_of_ours_has_at_most_as_many_parameters() -> None:
    def count(dims: int, width: int, outputs: int) -> int:
        layers = (dims + 1) * width + 2 * (width + 1) * width
        return layers + (width + 1) * dims * outputs

    made = [pair for pair in GPU["pairs"] if pair["network"] == "made"]
    small = {"csm": {"network": "made", "options": {"hidden": [64, 64]}}, "data": "grey"}
    head = parameters_of(small, "csm", (8, 8, 1)) - count(64, 64, 16)
    assert 0 < head < 20_000  # the same whatever the images
    for pair, dims, least in zip(made, (784, 3072), (1024, 3072), strict=True):
        wide = pair["likelihood"]["options"]["hidden"][0]
        own, other = count(dims, least, 16) + head, count(dims, wide, 3)
        assert own <= other < 1.05 * own


class FakeModel:
    """A model whose samples and bits are known."""

    parameters, about_probability = 123, "the probability"
    settings = SimpleNamespace(batch=16)
    history = History([(5, 1.0)], [(5, 0.5)], 5, 10, 4.0)

    def __init__(self, images: np.ndarray, bits: np.ndarray):
        self.images, self.bits, self.drawn = images, bits, 0

    def sample(
        self, n: int, *, seed: int, batch_size: int, progress: Callable[[int], None] | None = None
    ) -> np.ndarray:
        if progress is not None:
            progress(n // 2)
            progress(n - n // 2)
        self.drawn += 1
        return self.images[:n]

    def bits_per_dim(self, images: np.ndarray) -> np.ndarray:
        return self.bits[: len(images)]


@pytest.mark.parametrize("impossible", [False, True])
def test_a_piece_measures_the_samples_of_what_was_trained(
    impossible: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, _ = load_data(SMOKE["data"]["grey"])
    shown = stand_in(64, 8, 1, seed=7)
    bits = np.linspace(1, 2, 24)
    if impossible:
        bits[3] = math.inf
    fake, fitted = FakeModel(shown, bits), []

    def fit(images: Images, told: ImageSettings, **options: Any) -> FakeModel:
        fitted.append((len(images), told))
        if "progress" in options:
            options["progress"](SimpleNamespace(done=1.0))
        return fake

    monkeypatch.setattr(image_samples, "fit_images", fit)
    monkeypatch.setattr(image_models, "fit_images", fit)
    seen: list[float] = []
    raw = run(SMOKE, piece_of(SMOKE, "grey.made.csm.0"), Place("cpu", seen.append))
    json.dumps(raw, allow_nan=False)
    # A few steps for the compiler, then the training itself on all images.
    (few, first), (every, second) = fitted
    assert (few, first.steps, first.max_seconds) == (64, 1, None)
    assert every == len(train) and second.max_seconds == SMOKE["train_seconds"]
    assert replace(first, steps=0, max_seconds=None) == replace(second, steps=0, max_seconds=None)
    assert seen == sorted(seen) and 0.6 in seen and 0 < seen[-1] <= 1
    assert raw["images_per_s"] == 10 * 16 / 4.0
    assert len(raw["timed_seconds"]) == 1 and fake.drawn == 3  # one draw did not count
    features = load_features(SMOKE, "cpu")
    reference = reference_statistics(SMOKE, train, features, "cpu")
    assert raw["fid"] == distances(SMOKE, shown, features, reference)["fid"] > 0
    expected = picture_grid(shown, columns=8, enlarge=8, gap=2)
    assert np.array_equal(from_png(raw["grid"]), expected)
    if impossible:
        assert raw["bits_per_dim"] is None and raw["impossible"] == 1
    else:
        assert raw["bits_per_dim"] == pytest.approx(bits[:16].mean()) and raw["impossible"] == 0


def test_references_say_how_far_real_test_images_are() -> None:
    seen: list[float] = []
    raw = run(SMOKE, piece_of(SMOKE, "reference.grey"), Place("cpu", seen.append))
    assert raw["images"] == 80 and raw["test_images"] == 24 and raw["test"]["fid"] > 0
    few = {**SMOKE, "kid": {**SMOKE["kid"], "subset_size": 30}}
    assert run(few, piece_of(few, "reference.grey"), Place("cpu", seen.append))["test"] is None


def test_a_model_is_trained_and_measured() -> None:
    seen: list[float] = []
    raw = run(SMOKE, piece_of(SMOKE, "colour.pixelcnn.csm.0"), Place("cpu", seen.append))
    json.dumps(raw, allow_nan=False)
    assert raw["steps"] > 0 and raw["train_seconds"] >= SMOKE["train_seconds"]
    assert 0 < raw["bits_per_dim"] < 12 and raw["fid"] > 0
    assert raw["memory_gib"] == {"training": None, "all": None}
    assert from_png(raw["grid"]).shape == (8 * 66 + 2, 8 * 66 + 2, 3)


@pytest.mark.slow
def test_models_side_by_side_say_so(tmp_path: Path) -> None:
    names = ["grey.made.csm.0", "grey.made.likelihood.0"]
    run_experiment(EXPERIMENT, "smoke", folder=tmp_path, only=names, jobs=2)
    finished = Store(tmp_path, EXPERIMENT, "smoke").load()
    assert [finished[name]["raw"]["side_by_side"] for name in names] == [2, 2]


def model_raw(name: str, fid: float | None, parameters: int, bits: float = 3.0) -> dict[str, Any]:
    data, network, method, seed = name.split(".")
    picture = np.zeros((20, 20, 3), np.uint8)
    return {
        "data": data, "network": network, "method": method, "seed": int(seed),
        "parameters": parameters, "train_seconds": 120.0, "steps": 9, "images_per_s": 8.0,
        "warm_up_seconds": 1.0, "side_by_side": 4 if network == "made" else 1,
        "sample_seconds": 2.0, "samples": 10_000, "timed_images": 64,
        "timed_seconds": [3.0, 1.0, 2.0], "fid": fid, "kid": 0.01, "kid_deviation": 0.001,
        "bits_per_dim": bits, "test_images": 2000, "probability": "the levels",
        "memory_gib": {"training": 3.0, "all": 4.0}, "grid": to_png(picture),
    }  # fmt: skip


def gpu_raw(own: list[float | None], parameters: int = 90) -> dict[str, Any]:
    """Return data in which maximum likelihood has a FID of 10 and 100 parameters everywhere."""
    raw: dict[str, Any] = {}
    places = iter(own)
    for piece in pieces(GPU):
        if "method" not in piece.labels:
            known = None if "celeba" in piece.name else {"fid": 1.0, "kid": 0.0}
            note = "22000 of 162770 images" if known is None else ""
            raw[piece.name] = {
                "data": piece.labels["data"], "images": 50_000, "note": note,
                "test_images": 2000, "test": known,
            }  # fmt: skip
        elif piece.labels["method"] == "csm":
            raw[piece.name] = model_raw(piece.name, next(places), parameters)
        else:
            raw[piece.name] = model_raw(piece.name, 10.0, 100)
    return raw


def test_metrics_tell_what_was_compared_with_what() -> None:
    found = metrics(GPU, gpu_raw([9.0, 8.0, 7.0, 6.0, None]))

    def of(name: str, **labels: Any) -> Any:
        fitting = [o for o in found if o.name == name and labels.items() <= o.labels.items()]
        assert len(fitting) == 1
        return fitting[0]

    one = of("FID", data="mnist", network="made", method="csm")
    assert one.value == 9.0 and one.labels["samples"] == 10_000
    assert one.labels["against"] == "50,000 training images" and one.n == 1
    lost = of("FID", data="celeba32", network="pixelcnn", method="csm")
    assert lost.value is None and "1 of 1 seeds" in lost.reason
    assert "22000 of 162770" in lost.labels["against"]
    assert of("FID", data="mnist", of="real test images").value == 1.0
    assert "too few" in of("FID", data="celeba32", of="real test images").reason
    time = of("seconds to draw 64 images", data="mnist", network="made", method="csm")
    assert (time.value, time.n, time.spread) == (2.0, 3, 1.0)
    assert time.labels["models side by side"] == 4 and "models side by side" not in one.labels
    alone = of("seconds to draw 64 images", data="mnist", network="pixelcnn", method="csm")
    assert "models side by side" not in alone.labels
    bits = of("bits per dimension", data="cifar10", network="made", method="likelihood")
    assert bits.labels["of"] == "the levels" and bits.labels["images"] == 2000
    assert of("peak memory", data="cifar10", network="made", method="csm").value == 4.0


@pytest.mark.parametrize(
    ("own", "parameters", "holds"),
    [
        ([9.0, 9.0, 9.0, 9.0, 11.0], 100, [True, True, None]),
        ([9.0, 9.0, 9.0, 10.0, 11.0], 101, [False, False, None]),
        ([9.0, 9.0, 9.0, None, None], 90, [False, True, None]),
        ([9.0, 9.0, 9.0, 9.0, None], 90, [True, True, None]),
    ],
)
def test_verdict_is_four_of_five(
    own: list[float | None], parameters: int, holds: list[bool | None]
) -> None:
    said = verdicts(GPU, metrics(GPU, gpu_raw(own, parameters)))
    assert [one.holds for one in said] == holds
    ahead = sum(value is not None and value < 10 for value in own)
    assert f"in {ahead} of 5 pairs" in said[0].text and "120 to 120 s" in said[1].text
    assert "CIFAR-10, PixelCNN++ 3.000 by CSM and 3.000 by maximum likelihood" in said[2].text
    # A stand-in decides nothing.
    assert {one.holds for one in verdicts({**GPU, "goal": None}, metrics(GPU, gpu_raw(own)))} == {
        None
    }


@pytest.mark.parametrize(
    ("own", "other", "holds"),
    [(121.0, 120.0, True), (126.0, 120.0, False), (116.0, 120.0, True), (119.0, 114.0, False)],
)
def test_more_time_for_csm_is_not_called_equal(own: float, other: float, holds: bool) -> None:
    """Each pair counts by itself, and less time is no advantage."""
    raw = gpu_raw([9.0] * 5)
    raw["celeba32.pixelcnn.csm.0"]["train_seconds"] = own
    raw["celeba32.pixelcnn.likelihood.0"]["train_seconds"] = other
    said = verdicts(GPU, metrics(GPU, raw))[1]
    assert said.holds is holds
    assert f"{min(own, 120):.0f} to {max(own, 120):.0f} s by CSM" in said.text
    assert f"{max(1, own / other):.3f} of the time" in said.text


def test_figures_are_the_distances_and_a_grid_for_each_pair() -> None:
    drawn = figures(GPU, gpu_raw([9.0, 8.0, 7.0, 6.0, None]))
    assert list(drawn)[:2] == ["fid", "samples-mnist-made"] and len(drawn) == 6
    (chart,) = drawn["fid"].axes
    own = chart.lines[1]
    assert list(own.get_xdata()) == [9.0, 8.0, 7.0, 6.0]
    left, right = drawn["samples-celeba32-pixelcnn"].axes
    assert left.get_title(loc="left") == "maximum likelihood, FID 10.0"
    assert right.get_title(loc="left") == "CSM, FID none"
    # Whole pixels: an axis is as large as the picture in it, at the dots of the runner.
    size = left.get_window_extent().width / drawn["samples-celeba32-pixelcnn"].dpi * 160
    assert size == pytest.approx(20)


def test_samples_of_real_images_are_never_in_the_data() -> None:
    raw = run(SMOKE, piece_of(SMOKE, "reference.colour"), Place("cpu", lambda _: None))
    assert set(raw) == {"data", "images", "note", "seconds", "test_images", "test"}
    assert set(raw["test"]) == {"fid", "kid", "kid_deviation"}


def test_former_work_is_forgotten_once_there_is_some(monkeypatch: pytest.MonkeyPatch) -> None:
    cleared: list[bool] = []
    fake = SimpleNamespace(reset=lambda: cleared.append(True))
    monkeypatch.setitem(image_parts.sys.modules, "torch._dynamo", fake)
    monkeypatch.setattr(torch, "_dynamo", fake)
    image_parts.forget_former_work("cpu")
    assert cleared == [True] and image_parts.peak_gib("cpu") is None


def test_a_model_is_kept_for_other_experiments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = {**SMOKE["pairs"][1], "kept": True}
    settings = {**SMOKE, "pairs": [SMOKE["pairs"][0], pair], "models_folder": str(tmp_path)}
    run(settings, piece_of(settings, "colour.pixelcnn.csm.0"), Place("cpu", lambda _: None))
    run(settings, piece_of(settings, "grey.made.csm.0"), Place("cpu", lambda _: None))
    assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.setattr(image_models, "fit_images", lambda *_, **__: pytest.fail("trained anew"))
    told = {
        "directory": None,
        "train_seconds": SMOKE["train_seconds"],
        "mirrored": [],
        "settings": {"csm": pair["csm"]},
    }
    train, _ = load_data(SMOKE["data"]["colour"])
    model, place = image_models.trained_model(
        told, train, method="csm", seed=0, device="cpu", folder=str(tmp_path), progress=print
    )
    assert place.parent == tmp_path and model.shape == (4, 4, 3) and model.history is not None


@pytest.mark.parametrize("method", METHODS)
def test_unusual_images_are_judged_by_the_same_models(method: str) -> None:
    for case in ("mnist", "cifar10"):
        model = OOD["gpu"]["cases"][case]["model"]
        pair = next(p for p in GPU["pairs"] if (p["data"], p["network"]) == (case, "pixelcnn"))
        assert pair["kept"] and pair[method] == model["settings"][method]
        assert model["train_seconds"] == GPU["train_seconds"] and model["mirrored"] == []
