"""Flow and quadrature densities: normalised, invertible, and one where the scores are exact."""

import itertools
import math

import pytest
import torch
from known import (
    FAMILIES,
    NORMAL,
    log_integral,
    mixture_family,
    normal,
    random_head,
    seeded,
)
from scipy import integrate, stats
from torch import Tensor

from arcsm.conditional import FlowDensity, Noise, QuadratureDensity, TanhSumHead

SCALES = (0.1, 1.0, 10.0, 100.0, 1000.0)
SIGMAS = (3.0, 0.3, 0.01)
every_size = pytest.mark.parametrize(
    ("scale", "sigma"), list(itertools.product(SCALES, SIGMAS)), ids=lambda value: f"{value:g}"
)
KINDS = {"flow": FlowDensity, "quadrature": QuadratureDensity}
every_kind = pytest.mark.parametrize("kind", KINDS)


def noise_down_to(sigma: float) -> Noise:
    return Noise(3.0, 3.0, levels=1) if sigma == 3.0 else Noise(3.0, sigma)


def probabilities(count: int) -> Tensor:
    """Return probabilities from 1e-9 to 1 − 1e-9, dense everywhere and in both tails."""
    tail = torch.logspace(-9, -2, count // 4, dtype=torch.float64)
    inner = torch.linspace(0.01, 0.99, count // 2, dtype=torch.float64)
    return torch.cat([tail, inner, 1 - tail]).unique()


@every_kind
@every_size
def test_density_of_any_head_integrates_to_one(kind: str, scale: float, sigma: float) -> None:
    """exp(log_prob) by Simpson's rule, from the quantile of 1e-9 to that of 1 − 1e-9."""
    family = random_head(scale, seed=5).family(normal(1, 8, seed=6))
    density = KINDS[kind](family, noise_down_to(sigma))
    x = density.quantile(probabilities(300)[None])
    mass = log_integral(lambda x: density.log_prob(x[None])[0], x[0], tolerance=1e-7)
    assert math.exp(mass) == pytest.approx(1, abs=1e-4)


@every_kind
@every_size
def test_cdf_undoes_the_quantile(kind: str, scale: float, sigma: float) -> None:
    family = random_head(scale, seed=15).family(normal(2, 8, seed=16))
    density = KINDS[kind](family, noise_down_to(sigma))
    p = probabilities(80).expand(2, -1)
    found = density.cdf(density.quantile(p))
    error = density.log_prob_error()[:, None] + 1e-9
    assert bool(((found - p).abs() <= error).all())


@every_kind
def test_cdf_is_the_integral_of_the_density(kind: str) -> None:
    density = KINDS[kind](random_head(0.5, seed=1).family(normal(1, 8)), Noise(3.0, 0.2))
    low, high = density.quantile(torch.tensor([[0.01, 0.99]], dtype=torch.float64))[0].tolist()
    x = torch.linspace(low, high, 2001, dtype=torch.float64)
    heights = density.log_prob(x[None])[0].exp()
    mass = integrate.cumulative_simpson(heights.numpy(), x=x.numpy(), initial=0)
    torch.testing.assert_close(
        torch.from_numpy(mass) + 0.01, density.cdf(x[None])[0], rtol=0, atol=1e-6
    )


@pytest.mark.parametrize(
    ("name", "steps"), [("normal", 400), ("lopsided", 400), ("three modes", 700)]
)
def test_flow_and_quadrature_agree_with_the_closed_form(name: str, steps: int) -> None:
    """Within 12 nats of the highest density, with as many steps as that takes."""
    family, noise = FAMILIES[name], Noise(3.0, 0.05)
    exact = family.at(0.05)
    low, high = (end.item() for end in exact.bounds())
    x = torch.linspace(low, high, 60, dtype=torch.float64)[None]
    expected = exact.log_prob(x)
    x = x[:, (expected > expected.max() - 12)[0]]
    expected = exact.log_prob(x)
    quadrature = QuadratureDensity(family, noise)
    flow = FlowDensity(family, noise, steps=steps)
    torch.testing.assert_close(quadrature.log_prob(x), expected, rtol=0, atol=1e-8)
    torch.testing.assert_close(flow.log_prob(x), expected, rtol=0, atol=1e-3)
    torch.testing.assert_close(flow.log_prob(x), quadrature.log_prob(x), rtol=0, atol=1e-3)
    torch.testing.assert_close(quadrature.cdf(x), exact.cdf(x), rtol=0, atol=1e-8)
    torch.testing.assert_close(flow.cdf(x), exact.cdf(x), rtol=0, atol=1e-4)
    p = torch.linspace(0.001, 0.999, 50, dtype=torch.float64)[None]
    torch.testing.assert_close(exact.cdf(quadrature.quantile(p)), p, rtol=0, atol=1e-8)
    torch.testing.assert_close(exact.cdf(flow.quantile(p)), p, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", FAMILIES)
def test_default_number_of_steps_costs_little(name: str) -> None:
    """Weighed by the density, log q is off by less than 0.01 nats on average, the CDF by 0.002."""
    family, noise = FAMILIES[name], Noise(3.0, 0.01)
    exact, flow = family.at(0.01), FlowDensity(family, noise)
    low, high = (end.item() for end in exact.bounds())
    x = torch.linspace(low, high, 400, dtype=torch.float64)[None]
    weight = exact.log_prob(x).exp()
    error = (flow.log_prob(x) - exact.log_prob(x)).abs()
    assert ((error * weight).sum() / weight.sum()).item() < 0.01
    assert (flow.cdf(x) - exact.cdf(x)).abs().max().item() < 0.002


@every_kind
def test_quantiles_of_uniforms_are_draws(kind: str) -> None:
    family = FAMILIES["three modes"]
    density = KINDS[kind](family, Noise(3.0, 0.05), **({"steps": 256} if kind == "flow" else {}))
    uniform = torch.rand((1, 2000), generator=seeded(), dtype=torch.float64)
    draws = density.quantile(uniform)[0].numpy()
    exact = family.at(0.05)
    test = stats.kstest(draws, lambda x: exact.cdf(torch.from_numpy(x)[None])[0].numpy())
    assert test.pvalue > 0.01


@every_kind
def test_results_have_the_dtype_of_the_question(kind: str) -> None:
    family = TanhSumHead(4, steps=4).requires_grad_(False).family(torch.randn(2, 4))
    density = KINDS[kind](family, Noise())
    x = torch.randn(2, 3)
    p = torch.tensor([[0.1, 0.5, 0.9]]).expand(2, -1)
    for found in (density.log_prob(x), density.cdf(x), density.quantile(p)):
        assert found.dtype == torch.float32 and found.shape == (2, 3)
        assert bool(found.isfinite().all())
    torch.testing.assert_close(density.cdf(density.quantile(p)), p, rtol=0, atol=1e-4)


@every_kind
def test_far_tails_stay_finite(kind: str) -> None:
    density = KINDS[kind](NORMAL, Noise(3.0, 0.05))
    x = torch.tensor([[-1e4, -50.0, 50.0, 1e4]], dtype=torch.float64)
    log_prob = density.log_prob(x)
    assert bool(log_prob.isfinite().all()) and log_prob.max().item() < -300
    torch.testing.assert_close(density.cdf(x), torch.tensor([[0.0, 0.0, 1.0, 1.0]]).double())


def test_stated_error_is_that_of_the_normaliser() -> None:
    family = mixture_family((0.5, -3.0, 0.2), (0.5, 2.0, 0.1), offset=5.0)
    for kind in KINDS.values():
        error = kind(family, Noise(3.0, 0.01)).log_prob_error()
        assert error.shape == (1,) and 0 < error.item() < 2e-7
    exact, x = family.at(0.01), torch.linspace(-4, 3, 50, dtype=torch.float64)[None]
    density = QuadratureDensity(family, Noise(3.0, 0.01))
    difference = (density.log_prob(x) - exact.log_prob(x)).abs().max().item()
    assert difference <= density.log_prob_error().item() + 1e-12
    assert math.isfinite(difference)
