"""Trained models of images: probabilities, samples, completion, files."""

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.special import ndtr
from scipy.stats import chi2

from arcsm.baselines import MixtureMADE
from arcsm.context.made import MADECursor
from arcsm.data import Images
from arcsm.data.images import dequantise
from arcsm.errors import CheckpointError, InputError
from arcsm.images import ImageModel, fit_images, holds_images_model
from arcsm.images.soundness import check_alone, check_beside
from arcsm.model import ARCSM
from arcsm.train import save_model

from .image_kinds import EXACT, KINDS, pictures, settings

Models = dict[str, ImageModel]
# The flow of a ladder that begins low starts from integrals, which take their time.
BY_LANGEVIN: dict[str, Any] = {"method": "langevin", "langevin_steps": 2}


def at_every_level(image: np.ndarray, scalar: int) -> np.ndarray:
    """Return 256 copies of an image that differ in one scalar."""
    copies = np.repeat(image[None], 256, axis=0)
    copies.reshape(256, -1)[:, scalar] = np.arange(256)
    return copies


@pytest.mark.parametrize("kind", EXACT)
@pytest.mark.parametrize("scalar", [0, 9, 15])
def test_levels_of_a_pixel_add_up_to_one(models: Models, kind: str, scalar: int) -> None:
    images = at_every_level(pictures(1)[0], scalar)
    terms = models[kind].log_prob_terms(images, only=[scalar]).reshape(256, -1)[:, scalar]
    assert np.exp(terms).sum() == pytest.approx(1.0, abs=2e-5)
    assert np.exp(terms).max() < 0.999  # nothing of this says that it could not fail


@pytest.mark.parametrize("kind", EXACT)
def test_terms_add_up_and_see_only_what_comes_before(models: Models, kind: str) -> None:
    model, images = models[kind], pictures(3)
    terms = model.log_prob_terms(images)
    assert terms.shape == images.shape and terms.dtype == np.float64
    np.testing.assert_allclose(terms.sum((1, 2, 3)), model.log_prob(images), rtol=1e-5)
    np.testing.assert_allclose(
        model.bits_per_dim(images), -model.log_prob(images) / (16 * math.log(2))
    )
    changed = images.copy()
    changed[:, 2, 1] ^= 255
    others = model.log_prob_terms(changed).reshape(3, -1)
    np.testing.assert_allclose(others[:, :9], terms.reshape(3, -1)[:, :9], atol=1e-5)
    assert np.abs(others[:, 10:] - terms.reshape(3, -1)[:, 10:]).max() > 1e-6


def test_normal_conditionals_have_the_mass_of_a_normal_in_each_cell(models: Models) -> None:
    model = models["made-likelihood"]
    density = model.density
    assert isinstance(density, MixtureMADE)
    mixture = density.conditionals(density.to_standard(torch.zeros(1, 16)))
    mean, width = (part[0, 0, 0].item() for part in (mixture.mean, mixture.log_scale.exp()))
    ends = np.concatenate([[-np.inf], (np.arange(255) + 0.5) / 255, [np.inf]])
    standard = (ends - density.shift[0].item()) / density.scale[0].item()
    expected = np.diff(ndtr((standard - mean) / width))
    terms = model.log_prob_terms(at_every_level(pictures(1)[0], 0))[:, 0, 0, 0]
    np.testing.assert_allclose(np.exp(terms), expected, rtol=1e-4, atol=1e-9)


def test_the_density_of_the_paper_is_that_of_noisy_pixels(models: Models) -> None:
    model = models["paper"]
    density, images = model.density, pictures(2)
    assert isinstance(density, ARCSM)
    generator = torch.Generator().manual_seed(3)
    # σ_L = 0.04 of pixels from −1 to 1, here from 0 to 1.
    rows = dequantise(images, seed=generator)
    rows = rows + 0.02 * torch.randn(rows.shape, generator=generator)
    expected = density.log_prob(rows).double().numpy() / (16 * math.log(2))
    found = model.bits_per_dim(images, seed=3)
    np.testing.assert_allclose(found, 8 - expected, rtol=1e-4)


@pytest.mark.parametrize("kind", list(KINDS))
def test_samples_are_images_and_depend_on_the_seed_alone(models: Models, kind: str) -> None:
    model, counted = models[kind], []
    options = BY_LANGEVIN if kind in ("paper", "staged") else {}
    drawn = model.sample(5, seed=4, batch_size=3, progress=counted.append, **options)
    assert drawn.shape == (5, 4, 4, 1) and drawn.dtype == np.uint8 and len(np.unique(drawn)) > 8
    assert counted == [3, 2]
    again = model.sample(5, generator=torch.Generator().manual_seed(4), batch_size=3, **options)
    np.testing.assert_array_equal(drawn, again)
    assert (model.sample(5, seed=5, **options) != drawn).any()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "staged"])
@pytest.mark.parametrize("count", [1, 4])
def test_completion_keeps_the_rows_that_are_given(models: Models, kind: str, count: int) -> None:
    given = pictures(count)[:, :2]
    options = BY_LANGEVIN if kind == "paper" else {}
    drawn = models[kind].sample(4, given=given, batch_size=3, **options)
    np.testing.assert_array_equal(drawn[:, :2], np.broadcast_to(given, (4, 2, 4, 1)))
    assert (drawn[0, 2:] != drawn[1, 2:]).any()


@pytest.mark.parametrize("kind", EXACT)
def test_the_rest_depends_on_what_is_given(kind: str) -> None:
    # Two pixels, the second the opposite of the first: learned in a moment, but only if contexts
    # in sampling are those of training.
    first = np.random.default_rng(0).integers(0, 2, (256, 1, 1, 1), dtype=np.uint8) * 255
    column = np.concatenate([first, 255 - first], axis=1)
    pixels = np.concatenate([column, column], axis=2)
    options: dict[str, Any] = {"steps": 60, "batch": 64, "learning_rate": 2e-2, "ema": 0.9}
    if kind.startswith("pixelcnn"):
        options["options"] = {"filters": [6], "blocks": 1, "levels": 1}
    model = fit_images(pixels, settings(kind, flips=False, **options))
    given = np.array([0, 255], np.uint8).repeat(20).reshape(40, 1, 1, 1).repeat(2, axis=2)
    drawn = model.sample(40, given=given)[:, 1]
    assert (np.abs(drawn.astype(int) - (255 - given[:, 0].astype(int))) < 128).mean() > 0.9


@pytest.mark.parametrize("kind", ["made", "made-likelihood"])
def test_contexts_see_levels(models: Models, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []
    push = MADECursor.push

    def spy(self: MADECursor, value: torch.Tensor) -> None:
        seen.append(value)
        push(self, value)

    monkeypatch.setattr(MADECursor, "push", spy)
    density = models[kind].density
    assert isinstance(density, ARCSM | MixtureMADE)
    drawn = models[kind].sample(3)
    levels = (torch.stack(seen, 1) * density.scale + density.shift) * 255
    np.testing.assert_allclose(levels.numpy(), drawn.reshape(3, -1), atol=1e-3)


def test_samples_have_the_probabilities_that_are_scored() -> None:
    pixels = pictures(64, 1, 2)
    pixels[:, 0] = np.random.default_rng(2).choice([0, 3, 4, 200, 255], (64, 2, 1))
    model = fit_images(pixels, settings("made", steps=60, learning_rate=1e-2))
    drawn = model.sample(8_000, seed=1)[:, 0, 0, 0]
    probability = np.exp(model.log_prob_terms(at_every_level(pixels[0], 0), only=[0])[:, 0, 0, 0])
    counts, expected = np.bincount(drawn, minlength=256), 8_000 * probability
    common = expected > 20
    assert 3 < np.count_nonzero(common) < 255  # the rest is one class
    counts = np.append(counts[common], counts[~common].sum())
    expected = np.append(expected[common], expected[~common].sum())
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert statistic < chi2.ppf(1 - 1e-4, len(counts) - 1)


def test_langevin_dynamics_has_its_steps_from_the_settings(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []

    def spy(self: ARCSM, n: int, **options: Any) -> Iterator[torch.Tensor]:
        seen.append(options)
        yield torch.rand(n, self.dims)

    monkeypatch.setattr(ARCSM, "sample_batches", spy)
    paper = models["paper"]
    paper.sample(2, method="langevin")
    paper.sample(2, method="langevin", langevin_steps=3, langevin_step_size=2e-5)
    assert [options["langevin_steps"] for options in seen] == [10, 3]
    assert [options["method"] for options in seen] == ["langevin", "langevin"]
    assert seen[0]["langevin_step_size"] is None
    density = paper.density
    assert isinstance(density, ARCSM)
    # In units of σ_L² it is what it was in those of the paper, where σ_L = 0.04.
    share = seen[1]["langevin_step_size"] / density.noise.sigma_min**2
    assert share == pytest.approx(2e-5 / 0.04**2, rel=1e-3)


@pytest.mark.parametrize("kind", ["made", "pixelcnn", "paper"])
def test_langevin_dynamics_draws_images(models: Models, kind: str) -> None:
    drawn = models[kind].sample(2, method="langevin", langevin_steps=2)
    assert drawn.shape == (2, 4, 4, 1) and len(np.unique(drawn)) > 4


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("half", [False, True])
def test_a_model_is_the_same_after_it_was_saved(
    models: Models, kind: str, half: bool, tmp_path: Path
) -> None:
    model, images = models[kind], pictures(2)
    model.save(tmp_path / "m", half=half)
    loaded = ImageModel.load(tmp_path / "m")
    assert (loaded.shape, loaded.settings, loaded.name) == (model.shape, model.settings, "images")
    assert loaded.history == model.history and loaded.parameters == model.parameters
    assert not loaded.density.training and holds_images_model(tmp_path / "m")
    tolerance = 0.2 if half else 0.0
    np.testing.assert_allclose(loaded.log_prob(images), model.log_prob(images), rtol=tolerance)
    weights = load_file(tmp_path / "m" / "model.safetensors")
    stored = {str(value.dtype) for name, value in weights.items() if "weight" in name}
    assert stored == {"torch.float16" if half else "torch.float32"}
    assert {value.dtype for value in loaded.density.parameters()} == {torch.float32}
    names = ["config.json", "model.safetensors"]
    assert sorted(os.listdir(tmp_path / "m")) == (
        [*names, *(f"stage-{i:02d}" for i in range(1, 10))] if kind == "staged" else names
    )


def test_units_are_kept_in_full_precision(models: Models, tmp_path: Path) -> None:
    models["made"].save(tmp_path / "m", half=True)
    scale = load_file(tmp_path / "m" / "model.safetensors")["scale"]
    assert torch.equal(scale, models["made"].density.state_dict()["scale"])


def test_other_directories_are_neither_replaced_nor_read(models: Models, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="holds other files"):
        models["made"].save(tmp_path)
    assert os.listdir(tmp_path) == ["notes.txt"]
    save_model(tmp_path / "plain", ARCSM.made(2, hidden=(4,), seed=0))
    assert not holds_images_model(tmp_path / "plain")
    with pytest.raises(CheckpointError, match="model of images"):
        ImageModel.load(tmp_path / "plain")


def test_a_damaged_description_is_named(models: Models, tmp_path: Path) -> None:
    models["made"].save(tmp_path / "m")
    models["staged"].save(tmp_path / "s")
    (tmp_path / "s" / "stage-04" / "config.json").unlink()
    with pytest.raises(CheckpointError, match="stage-04"):
        ImageModel.load(tmp_path / "s")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    del config["details"]["images"]["shape"]
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError):
        ImageModel.load(tmp_path / "m")


@pytest.mark.parametrize(
    ("images", "named"),
    [
        (pictures(2, 5), "4 x 4 pixels in grey as the model was trained on, got 4 x 5"),
        (pictures(2, channels=3), "got 4 x 4 pixels in colour"),
        (pictures(2).astype(np.float32), "got float32"),
        (pictures(2)[0], "of shape"),
        (pictures(2)[:0], "of shape"),
        ([1, 2], "got list"),
    ],
)
def test_images_of_another_shape_are_refused(models: Models, images: Any, named: str) -> None:
    with pytest.raises(InputError, match=named):
        models["made"].log_prob(images)


def test_sets_of_images_are_taken_as_their_pixels(models: Models) -> None:
    pixels = pictures(2)
    found = models["made"].log_prob(Images(pixels, None, "x", "all"))
    np.testing.assert_array_equal(found, models["made"].log_prob(pixels))


@pytest.mark.parametrize(
    ("kind", "options", "named"),
    [
        ("made", {"n": 0}, "positive whole number of images"),
        ("made", {"given": pictures(2)[:, :2]}, "given as uint8"),
        ("made", {"given": pictures(1)[:, :, :3]}, "given as uint8"),
        ("made", {"given": [[1]]}, "given as uint8"),
        ("made", {"method": "magic"}, "method among"),
        ("made", {"method": "langevin", "langevin_steps": 0}, "Langevin step"),
        ("made-likelihood", {"method": "flow"}, "'auto'"),
        ("pixelcnn-likelihood", {"method": "langevin"}, "'auto'"),
        ("staged", {"method": "flow"}, "without given rows"),
        ("staged", {"given": pictures(1)[:, :2]}, "without given rows"),
    ],
)
def test_samples_that_cannot_be_are_refused(
    models: Models, kind: str, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(InputError, match=named):
        models[kind].sample(**{"n": 3, **options})


def test_a_model_says_what_it_is(models: Models) -> None:
    told = {kind: model.describe() for kind, model in models.items()}
    assert json.loads(json.dumps(told)) == told
    assert told["made"]["steps"] == 4 and told["made"]["shape"] == [4, 4, 1]
    assert "exact CDF" in told["pixelcnn"]["probability"]
    assert "σ_L" in told["staged"]["probability"] and told["staged"]["staged"]
    assert told["made-likelihood"]["noise"] is None


@pytest.mark.parametrize("kind", list(KINDS))
def test_soundness(models: Models, kind: str) -> None:
    findings = [*check_alone(models[kind]), *check_beside(models[kind], pictures(3))]
    assert [finding.name for finding in findings] == ["loads", "levels", "images"]
    assert all(finding.good for finding in findings)
    if kind in EXACT:
        assert findings[1].numbers["error"] < 1e-4
        bits = models[kind].bits_per_dim(pictures(3))
        assert findings[2].numbers["bits_per_dim"] == pytest.approx(bits.mean())


def test_soundness_finds_what_is_wrong(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models["made"].save(tmp_path / "m")
    broken = ImageModel.load(tmp_path / "m")
    with torch.no_grad():
        next(broken.density.parameters()).fill_(math.nan)
    assert [finding.good for finding in check_alone(broken)] == [False]
    model, terms = models["made"], ImageModel.log_prob_terms
    monkeypatch.setattr(
        ImageModel, "log_prob_terms", lambda *args, **options: terms(*args, **options) + 0.1
    )
    assert not check_alone(model)[1].good
    monkeypatch.setattr(ImageModel, "log_prob", lambda self, images, **_: np.full(3, -1e4))
    assert not check_beside(model, pictures(3))[0].good
    monkeypatch.setattr(ImageModel, "log_prob", lambda self, images, **_: np.full(3, -np.inf))
    assert "impossible" in check_beside(model, pictures(3))[0].text
