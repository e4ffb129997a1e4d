"""Entropy gradients where the truth is known: the truth itself, and a run in small."""

import math
from pathlib import Path

import pytest
import torch

from arcsm.experiments import run_experiment
from arcsm.experiments.entropy_gradients import BIAS, BUDGETS, EXPERIMENT, SPREAD, WarpedSampler
from arcsm.experiments.lines import Line, line_figure
from arcsm.results import read_result


def test_the_entropy_of_a_normal_sampler_is_that_of_its_covariance() -> None:
    sampler = WarpedSampler(3, narrowing=2.0)
    assert sampler.log_scale.tolist() == pytest.approx([-0.4, -2.0, 0.4])
    jacobian = torch.autograd.functional.jacobian(sampler, torch.zeros(3))
    normal = torch.distributions.MultivariateNormal(torch.zeros(3), jacobian @ jacobian.T)
    assert sampler.entropy().item() == pytest.approx(normal.entropy().item(), rel=1e-5)


def test_the_entropy_of_a_bent_sampler_is_the_mean_log_density() -> None:
    sampler = WarpedSampler(2, 0.4)
    eps = torch.randn(200_000, 2)
    log_normal = -eps.square().sum(1) / 2 - math.log(2 * math.pi)
    stretch = torch.log1p(sampler.bend * torch.cosh(eps)) + sampler.log_scale
    expected = -(log_normal - stretch.sum(1)).mean()
    assert sampler.entropy().item() == pytest.approx(expected.item(), abs=0.02)
    # The triangle does not change it.
    assert sampler.gradient(sampler.entropy())[-4:].abs().max() == 0


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_run_in_small(tmp_path: Path) -> None:
    paths = run_experiment(EXPERIMENT, "smoke", device="cpu", folder=tmp_path).written
    record = read_result(paths[0])
    settings = BUDGETS["smoke"]
    count = len(settings["methods"]) * len(settings["samplers"]) * len(settings["particles"])
    names = [one["name"] for one in record["metrics"]]
    assert names.count(BIAS) == names.count(SPREAD) == count
    deviation = {
        tuple(one["labels"].values()): one["value"]
        for one in record["metrics"]
        if one["name"] == SPREAD
    }
    assert deviation["normal", "csm", 20] < deviation["normal", "csm", 5]
    assert len(list((tmp_path / "entropy-gradients-smoke").glob("*.png"))) == 6


@pytest.mark.parametrize(("largest", "plain"), [(0.5, True), (500.0, False)])
def test_axes_of_less_than_two_decades_have_plain_numbers(largest: float, plain: bool) -> None:
    figure = line_figure({"bias": Line([1, 10], [0.02, largest])}, x="x", y="y", title="title")
    figure.draw_without_rendering()
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert ("0.05" in labels) is plain
