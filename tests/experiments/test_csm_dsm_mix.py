"""Gradients whose covariances are known, and the whole chain on a model of one parameter."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from arcsm.conditional import Noise
from arcsm.errors import InputError
from arcsm.experiments.csm_dsm_mix import (
    BEST_MIX,
    EXPERIMENT,
    OVERALL,
    VARIANCE,
    Moments,
    gradients,
    moments,
    rule,
)
from arcsm.experiments.experiment import Piece, Place
from arcsm.model import ARCSM
from arcsm.objectives import Perturbation, annealed_csm_terms


def draws_of(values: Tensor) -> Callable[[], tuple[Tensor, Tensor]]:
    pairs = iter(values)

    def draw() -> tuple[Tensor, Tensor]:
        first, second = next(pairs)
        return first, second

    return draw


def test_moments_are_traces_of_covariances() -> None:
    values = torch.randn((50, 2, 7), generator=torch.Generator().manual_seed(0)).double()
    values[:, 1] += 0.5 * values[:, 0] + 1000  # correlated, and with a mean that dwarfs the spread
    found = moments(draws_of(values), 50)
    covariance = torch.cov(values.flatten(1).T)
    assert found.csm == pytest.approx(covariance[:7, :7].trace().item(), rel=1e-9)
    assert found.dsm == pytest.approx(covariance[7:, 7:].trace().item(), rel=1e-9)
    assert found.both == pytest.approx(covariance[:7, 7:].trace().item(), rel=1e-9)
    means = values.mean(0).square().sum(-1)
    assert (found.mean_csm, found.mean_dsm) == pytest.approx(tuple(means.tolist()), rel=1e-9)
    # V(m) is the variance of the mixed gradient itself.
    mixed = 0.3 * values[:, 0] + 0.7 * values[:, 1]
    assert found.variance(0.7) == pytest.approx(mixed.var(0).sum().item(), rel=1e-9)
    with pytest.raises(InputError, match="at least 2"):
        moments(draws_of(values), 1)


def test_best_mix_is_where_the_variance_is_least() -> None:
    found = Moments(3.0, 1.0, 0.5, 0.0, 0.0)
    grid = [index / 1000 for index in range(1001)]
    assert found.best_mix == pytest.approx(min(grid, key=found.variance), abs=1e-3)
    # A weight below 0 or above 1 would be no mix.
    assert Moments(1.0, 9.0, 2.0, 0.0, 0.0).best_mix == 0
    assert Moments(9.0, 1.0, 2.0, 0.0, 0.0).best_mix == 1
    assert Moments(1.0, 1.0, 1.0, 0.0, 0.0).best_mix == 0.5  # they are the same


class Line:
    """The score −a·x, whose optimum on normal data of variance 1 is a = 1/(1 + σ²)."""

    def __init__(self, slope: Tensor) -> None:
        self.slope = slope

    def jet(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return -self.slope * x, (-self.slope).expand_as(x)


@pytest.mark.parametrize("sigma", [0.2, 1.0, 3.0])
def test_the_rule_is_the_best_mix_of_normal_data(sigma: float) -> None:
    count, generator = 5_000, torch.Generator().manual_seed(0)
    weight = sigma**2 * (1 + sigma**2)  # that of the level in the objective
    # A slope of its own for each row: the gradient in it is that of the row.
    slope = torch.full((count, 1, 1, 1), 1 / (1 + sigma**2), dtype=torch.float64).requires_grad_()
    normal = torch.randn((2, count, 1), generator=generator, dtype=torch.float64)
    noise = Perturbation(
        torch.full((count, 1, 1), sigma, dtype=torch.float64),
        normal[0][..., None],
        torch.zeros((count, 1), dtype=torch.float64),
    )
    conditionals: Any = lambda inputs, sigma: Line(slope)  # noqa: E731
    parts = []
    for mix in (0.0, 1.0):
        terms = annealed_csm_terms(conditionals, normal[1], Noise(), noise, mix=mix)
        parts.append(torch.autograd.grad(terms.sum(), slope)[0].view(count, 1) / weight)
    found = moments(draws_of(torch.stack(parts, 1)), count)
    # V_c = 2, V_d = 1/σ², C = 0; of products of four normal numbers, so with heavy tails.
    assert found.csm == pytest.approx(2, rel=0.2)
    assert found.dsm == pytest.approx(1 / sigma**2, rel=0.2)
    assert abs(found.both) < 0.1 * (found.csm * found.dsm) ** 0.5
    assert found.best_mix == pytest.approx(rule(sigma), abs=0.05)
    # At the optimum both have a mean of 0.
    assert found.mean_csm < 20 * found.csm / count and found.mean_dsm < 20 * found.dsm / count


def test_rule_in_numbers() -> None:
    assert rule(0.5**0.5) == pytest.approx(0.5)
    assert rule(0.01) == pytest.approx(2e-4, rel=1e-3)


def test_both_gradients_have_the_same_mean() -> None:
    model = ARCSM.made(2, hidden=(6,), width=4, steps=3, seed=0).double()
    x = torch.randn((64, 2), generator=torch.Generator().manual_seed(0)).double()
    one, other = gradients(model, x, 0.7, 16, torch.Generator().manual_seed(1))
    assert one.shape == other.shape == (sum(p.numel() for p in model.parameters()),)
    again, _ = gradients(model, x, 0.7, 16, torch.Generator().manual_seed(1))
    assert torch.equal(one, again) and not torch.allclose(one, other)
    count, generator = 60, torch.Generator().manual_seed(2)
    draws = torch.stack(
        [torch.stack(gradients(model, x, 0.7, 512, generator)) for _ in range(count)]
    )
    found = moments(draws_of(draws), count)
    # ‖difference of the means‖² has the expectation V(difference)/count.
    chance = (found.csm + found.dsm - 2 * found.both) / count
    first, second = draws.mean(0)
    assert (first - second).square().sum().item() < 3 * chance
    assert first.square().sum().item() > 20 * chance  # which is no mean of 0


def test_the_second_gradient_is_that_of_half_the_squared_error_of_denoising() -> None:
    model = ARCSM.made(2, hidden=(6,), width=4, steps=3, seed=0).double()
    x = torch.randn((64, 2), generator=torch.Generator().manual_seed(0)).double()
    _, found = gradients(model, x, 0.7, 16, torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(1)
    rows = x[torch.randint(64, (16,), generator=generator)]
    epsilon, context = torch.randn((16, 2, 2), generator=generator).double().unbind(-1)
    sigma = torch.full((16, 1, 1), 0.7, dtype=torch.float64)
    conditionals = model.conditionals(rows + model.noise.sigma_min * context, sigma)
    score, _ = conditionals.jet((rows + 0.7 * epsilon)[..., None, None])
    error = (score[..., 0, 0] + epsilon / 0.7).square().sum(1).mean() / 2
    parts = torch.autograd.grad(error, list(model.parameters()), materialize_grads=True)
    exact = torch.cat([part.flatten() for part in parts]) * 0.7**2 * (1 + 0.7**2)
    assert torch.allclose(found, exact, rtol=1e-9, atol=1e-12)


def level(sigma: float, fit: tuple[float, float], judge: tuple[float, float]) -> dict[str, Any]:
    parts = {"fit": fit, "judge": judge}
    return {
        "sigma": sigma,
        **{part: vars(Moments(csm, dsm, 0.0, 0.0, 0.0)) for part, (csm, dsm) in parts.items()},
    }


def test_metrics_and_verdicts_of_known_moments() -> None:
    settings = {**EXPERIMENT.budgets["smoke"], "points": [1.0], "levels": 2}
    levels = [level(1.0, (3.0, 1.0), (4.0, 4.0)), level(0.5, (1.0, 1.0), (2.0, 2.0))]
    metrics = EXPERIMENT.metrics(settings, {"two-moons.0": {"points": [{"levels": levels}]}})
    found = {
        (metric.name, metric.labels.get("sigma"), metric.labels.get("choice")): metric.value
        for metric in metrics
    }
    assert found[BEST_MIX, 1.0, None] == 0.75 and found[BEST_MIX, 0.5, None] == 0.5
    # Fitted on one part, judged on the other: V(0) = V(1) = 4, V(½) = 2, V(¾) = 2.5 at σ = 1,
    # and half of all but the last at σ = ½. The rule at σ = 1 is ⅔: V = 20/9.
    assert found[VARIANCE, 1.0, "csm"] == 2 and found[VARIANCE, 1.0, "dsm"] == 2
    assert found[VARIANCE, 1.0, "fitted"] == 1.25 and found[VARIANCE, 0.5, "fitted"] == 1
    assert found[VARIANCE, 1.0, "rule"] == pytest.approx(10 / 9)
    assert found[OVERALL, None, "fitted"] == pytest.approx(3.5 / 3)
    assert found[OVERALL, None, "csm"] == pytest.approx(2)
    csm, dsm, half, overall = EXPERIMENT.verdicts(settings, metrics)
    # CSM and DSM vary 1.6 and 2 times as much as the fitted mix, the default 0.8 times and as much.
    assert "varies 1.79 times" in csm.text and "(from 1.60 to 2 times)" in csm.text
    assert "varies 1.79 times" in dsm.text and "varies 0.89 times" in half.text
    assert csm.holds and dsm.holds and half.holds is False and overall.holds is False
    assert "leaves 1.17 of the variance" in overall.text


def test_a_piece_repeats_and_judges_on_other_batches_than_it_fits_on() -> None:
    settings = {**EXPERIMENT.budgets["smoke"], "steps": 10, "levels": 2, "gradients": 3}
    piece = Piece("two-moons.0", {"set": "two-moons", "seed": 0})
    shares: list[float] = []
    one = EXPERIMENT.run(settings, piece, Place("cpu", shares.append))
    assert one == EXPERIMENT.run(settings, piece, Place("cpu", shares.append))
    assert [point["step"] for point in one["points"]] == [0, 10]
    assert shares[:4] == [0.25, 0.5, 0.75, 1.0]
    for point in one["points"]:
        for level in point["levels"]:
            assert level["fit"] != level["judge"]
            assert level["judge"]["csm"] > 0 and level["judge"]["dsm"] > 0
