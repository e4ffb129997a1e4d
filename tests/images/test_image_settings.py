"""Settings: what is refused, what is filled in, and the networks they ask for."""

import math
from typing import Any

import pytest
import torch

from arcsm.autoregressive import TrainableModel
from arcsm.baselines import MixtureMADE, PixelMixture
from arcsm.errors import InputError
from arcsm.images import ImageSettings
from arcsm.images.networks import build_density
from arcsm.model import ARCSM


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"network": "huge"}, "network among made"),
        ({"method": "mle"}, "method among csm"),
        ({"noise": "none"}, "noise among fine"),
        ({"method": "likelihood", "noise": "paper"}, "'csm' alone"),
        ({"method": "likelihood", "recalibrate": True}, "'csm' and the noise 'fine' alone"),
        ({"noise": "paper", "recalibrate": True}, "'csm' and the noise 'fine' alone"),
        ({"staged": True}, "staged with the noise 'paper'"),
        ({"draws": 0}, "draws"),
        ({"mix": 1.5}, "mix"),
        ({"dropout": 1.0}, "dropout"),
        ({"langevin_steps": 0}, "langevin_steps"),
        ({"langevin_step_size": 0.0}, "langevin_step_size"),
        ({"batch": 1.5}, "batch"),
    ],
)
def test_settings_that_mean_nothing_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        ImageSettings(**options)


def test_defaults_depend_on_the_device_and_the_images(monkeypatch: pytest.MonkeyPatch) -> None:
    capabilities = {"avx512_bf16": False, "amx_bf16": False}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    digits = ImageSettings().filled("mnist", "cpu")
    assert (digits.network, digits.flips, digits.langevin_steps) == ("tiny", False, 20)
    assert (digits.bfloat16, digits.compile, digits.mix) == (False, False, 0.5)
    assert digits.recalibrate
    capabilities["avx512_bf16"] = True
    assert ImageSettings().filled("mnist", "cpu").bfloat16
    assert not ImageSettings(network="made").filled("mnist", "cpu").bfloat16
    assert not ImageSettings(bfloat16=False).filled("mnist", "cpu").bfloat16
    monkeypatch.delattr(torch.cpu, "get_capabilities")  # as in older releases of torch
    assert not ImageSettings().filled("mnist", "cpu").bfloat16
    photos = ImageSettings(noise="paper").filled("cifar10", "cuda")
    assert (photos.network, photos.flips, photos.langevin_steps) == ("small", True, 10)
    assert (photos.bfloat16, photos.compile, photos.mix) == (True, True, 0.0)
    assert not photos.recalibrate
    assert not ImageSettings(method="likelihood").filled("mnist", "cpu").recalibrate
    told = ImageSettings(network="base", flips=False, batch=7, compile=False, mix=0.25)
    told = told.filled("cifar10", "cuda")
    assert (told.network, told.flips, told.batch) == ("base", False, 7)
    assert (told.compile, told.mix) == (False, 0.25)


def test_stages_share_the_steps_and_the_time() -> None:
    settings = ImageSettings(noise="paper", staged=True, steps=1000, max_seconds=50.0)
    config = settings.filled("mnist", "cpu").training(60_000)
    assert (config.steps, config.max_seconds) == (100, 5.0)
    assert config.validation * 60_000 == pytest.approx(2048)


def test_a_part_of_the_time_is_kept_for_the_recalibration() -> None:
    for told, seconds in (({}, 95.0), ({"recalibrate": False}, 100.0), ({"noise": "paper"}, 100.0)):
        settings = ImageSettings(max_seconds=100.0, **told).filled("mnist", "cpu")
        assert settings.training(1000).max_seconds == pytest.approx(seconds)


def test_options_of_score_matching_are_not_those_of_likelihood() -> None:
    config = ImageSettings(method="likelihood", steps=3).filled("mnist", "cpu").training(100)
    assert config.noise == {} and config.objective == {} and config.validation == 0.05


def test_settings_survive_json_as_they_are() -> None:
    settings = ImageSettings(options={"hidden": [8, 8]}, noise="paper").filled("svhn", "cpu")
    assert ImageSettings(**settings.config) == settings


def density(shape: tuple[int, int, int], *, name: str = "x", **options: Any) -> TrainableModel:
    settings = ImageSettings(network="made", **options).filled(name, "cpu")
    return build_density(settings, shape, name=name, deviation=0.25)


def test_the_ladder_of_the_paper_is_in_its_units() -> None:
    # Appendix C: pixels from −1 to 1, so that a deviation of 0.25 of pixels in [0, 1] is 0.5.
    digits = density((4, 4, 1), name="mnist", noise="paper", options={"hidden": [8]})
    assert isinstance(digits, ARCSM)
    ladder = digits.noise.ladder()
    assert len(ladder) == 10 and ladder[0] == pytest.approx(2.0)
    assert ladder[-1] == pytest.approx(0.08)
    others = density((4, 4, 1), name="cifar10", noise="paper", options={"hidden": [8]})
    assert isinstance(others, ARCSM)
    assert others.noise.ladder()[0] == pytest.approx(0.4)


def test_fine_noise_is_half_a_level_at_most_and_ends_normal() -> None:
    model = density((4, 4, 1), options={"hidden": [8]})
    assert isinstance(model, ARCSM) and model.shared_units
    assert model.noise.levels is None and model.noise.sigma_min * 0.31 * 255 < 0.5
    assert model.head.normal_at == model.noise.sigma_max


def count(model: TrainableModel) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_the_rival_of_a_made_has_as_many_parameters() -> None:
    shape = (10, 10, 1)
    scores, rival = density(shape), density(shape, method="likelihood")
    assert isinstance(rival, MixtureMADE) and rival.shared_units
    assert (rival.kind, rival.components) == ("gaussian", 1)
    assert math.log(count(rival) / count(scores)) == pytest.approx(0.0, abs=0.02)


def test_the_rival_of_a_pixelcnn_has_its_backbone() -> None:
    options = {"filters": [4, 6], "blocks": 1, "levels": 2}
    settings = ImageSettings(network="tiny", options=options)
    built = [
        build_density(
            ImageSettings(**{**settings.config, "method": method}).filled("x", "cpu"),
            (5, 6, 3),
            name="x",
            deviation=0.3,
        )
        for method in ("csm", "likelihood")
    ]
    scores, rival = built
    assert isinstance(scores, ARCSM) and isinstance(rival, PixelMixture)
    assert scores.context.config["filters"] == list(rival.streams.filters) == [4, 6]
    assert torch.equal(scores.scale, torch.ones(90)) and scores.shared_units


def test_options_that_a_network_does_not_have_are_refused() -> None:
    with pytest.raises(InputError, match="'made'"):
        density((4, 4, 1), options={"filters": 8})
