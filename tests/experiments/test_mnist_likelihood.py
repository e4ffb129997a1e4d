"""Likelihoods by score matching: losses against closed forms, and what is made of the curves."""

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from known import seeded

from arcsm.baselines import MixtureMADE
from arcsm.experiments.experiment import Place
from arcsm.experiments.mnist_likelihood import (
    BUDGETS,
    EXPERIMENT,
    LABELS,
    chosen_runs,
    first_below,
    load_rows,
    loss_function,
    make_model,
    metrics,
    pieces,
    run,
    stand_in,
    verdicts,
)

SMOKE = BUDGETS["smoke"]


def independent_normals() -> MixtureMADE:
    """Return a model whose pixels are independent N(0.5, 0.2²), in units with a shift and scale."""
    model = MixtureMADE(4, components=1, kind="gaussian", hidden=(8,), seed=0)
    model.shift.fill_(0.3)
    model.scale.fill_(2.0)
    with torch.no_grad():
        model.context.output.weight.zero_()
        # Logit, mean and log-scale of each pixel.
        model.context.output.bias.copy_(torch.tensor([0.0, 0.1, math.log(0.1)]).repeat(4))
    return model


@pytest.mark.parametrize("name", list(LABELS))
def test_losses_of_independent_normals(name: str) -> None:
    model, x = independent_normals(), torch.rand(6, 4, generator=seeded())
    settings = {**SMOKE, "projections": 2}
    found = loss_function(name, model, settings, seeded(1))(x)
    variance = 0.04
    score = -(x - 0.5) / variance
    v = torch.randn((2, 6, 4), generator=seeded(1))
    curvature = -v.square().sum(-1) / variance
    if name == "mle":
        log_density = torch.distributions.Normal(0.5, 0.2).log_prob(x).sum(-1)
        expected = -log_density
    elif name == "csm":
        expected = (score.square() / 2 - 1 / variance).sum(-1)
    elif name == "ssm":
        expected = (curvature + (score * v).sum(-1).square() / 2).mean(0)
    elif name == "ssm-vr":
        expected = curvature.mean(0) + score.square().sum(-1) / 2
    else:
        sigma = float(name[4:])
        noise = torch.randn((6, 4), generator=seeded(1))
        noisy = -(x + sigma * noise - 0.5) / variance
        expected = (noisy + noise / sigma).square().sum(-1) / 2
    torch.testing.assert_close(found, expected.mean(), rtol=1e-4, atol=1e-3)
    found.backward()
    gradient = model.context.output.bias.grad
    assert gradient is not None and (gradient.view(4, 3)[:, 1:] != 0).all()


def test_stand_in_has_the_form_of_mnist() -> None:
    images = stand_in(20, seed=0)
    assert images.dtype == np.uint8 and images.shape == (20, 28, 28, 1)
    assert images[:, :2].max() == 0 and images.reshape(20, -1).max(1).min() > 200
    assert np.array_equal(images, stand_in(20, seed=0))
    assert len(np.unique(images.reshape(20, -1), axis=0)) == 20


def test_rows_are_pixels_between_minus_one_and_one_with_noise_where_they_are_held_out() -> None:
    rows = load_rows(SMOKE, "cpu")
    assert {part: len(some) for part, some in rows.items()} == {
        "training": 200,
        "validation": 50,
        "test": 50,
    }
    assert rows["training"].shape[1] == 784
    assert rows["training"].min() >= -1 and rows["training"].max() < 1
    # The first two lines of pixels are black: −1, up to one step of 2/256, and the noise.
    black = rows["test"][:, :56]
    assert black.mean().item() == pytest.approx(-1 + 1 / 256, abs=0.01)
    assert black.std().item() == pytest.approx(SMOKE["noise"], rel=0.05)


def test_model_has_one_unit_for_all_pixels() -> None:
    rows = torch.rand(1000, 9, generator=seeded())
    model = make_model({**SMOKE, "noise": 0.4}, rows, seed=0)
    assert model.shift.unique().numel() == model.scale.unique().numel() == 1
    assert model.shift[0].item() == pytest.approx(0.5, abs=0.01)
    # Uniform on [0, 1], and the noise besides.
    assert model.scale[0].item() == pytest.approx(math.sqrt(1 / 12 + 0.16), rel=0.01)


def curve(method: str, rate: float, seed: int, test: list[Any]) -> dict[str, Any]:
    return {
        "method": method,
        "learning_rate": rate,
        "seed": seed,
        "step": [0, 1, 10],
        "seconds": [0.0, 0.1, 1.0],
        "validation": test,
        "test": test,
    }


def test_level_counts_from_where_a_curve_stays_below() -> None:
    assert first_below(curve("csm", 0.1, 0, [5.0, 1.0, 0.5]), 1.0, "step") == 1
    assert first_below(curve("csm", 0.1, 0, [5.0, 1.0, 2.0]), 1.0, "step") is None
    assert first_below(curve("csm", 0.1, 0, [5.0, None, 0.5]), 1.0, "seconds") == 1.0


def test_rate_is_the_best_on_validation_rows() -> None:
    raw = {
        "a": curve("csm", 0.1, 0, [5.0, 1.0, 1.0]),
        "b": curve("csm", 0.01, 0, [5.0, 1.0, 2.0]),
        "c": curve("csm", 0.001, 0, [5.0, 1.0, None]),
    }
    assert chosen_runs(SMOKE, raw, "csm") == [raw["a"]]
    raw["a"]["validation"] = [5.0, 1.0, 3.0]  # the test rows must not choose
    assert chosen_runs(SMOKE, raw, "csm") == [raw["b"]]


def test_verdicts_compare_the_ends_and_who_is_near_first() -> None:
    settings = {**SMOKE, "source": "mnist", "methods": ["mle", "csm", "ssm", "dsm-0.1"]}
    raw = {
        "mle": curve("mle", 0.1, 0, [100.0, 0.0, 0.0]),
        "csm": curve("csm", 0.1, 0, [100.0, 9.0, 4.0]),
        "ssm": curve("ssm", 0.1, 0, [100.0, 50.0, 30.0]),
        "dsm": curve("dsm-0.1", 0.1, 0, [100.0, 5.0, 3.0]),
    }
    found = metrics(settings, raw)
    near = {one.labels["method"]: one.value for one in found if one.name == "step near the floor"}
    assert near == {"mle": 1, "csm": 1, "ssm": None, "dsm-0.1": 1}
    said = verdicts(settings, found)
    ends = {one.text.split("under ")[-1]: one.holds for one in said if "nats under CSM" in one.text}
    assert list(ends.values()) == [True, False]
    assert any("4.0 nats above maximum likelihood" in one.text for one in said)
    # A stand-in proves nothing.
    assert {one.holds for one in verdicts(SMOKE, found)} == {None}


def test_pieces_run_and_maximum_likelihood_learns() -> None:
    settings = {**SMOKE, "methods": ["mle", "csm"], "hidden": [8, 8]}
    seen: list[float] = []
    raw = {one.name: run(settings, one, Place("cpu", seen.append)) for one in pieces(settings)}
    json.dumps(raw)
    mle, csm = raw["mle-0.001-0"], raw["csm-0.001-0"]
    assert mle["test"][-1] < mle["test"][0] - 1
    # The same weights and rows to begin with, whatever the method.
    assert csm["test"][0] == mle["test"][0]
    assert set(EXPERIMENT.figures(settings, raw)) == {"nll-step", "nll-seconds"}
