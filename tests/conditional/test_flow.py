"""The probability flow: a discrete map that is increasing, differentiable and exactly inverted."""

import itertools
import math
from dataclasses import dataclass

import pytest
import torch
from known import (
    FAMILIES,
    landmarks,
    mixture_family,
    normal,
    one_of,
    random_head,
    seeded,
    steepest_head,
)
from torch import Tensor

from arcsm.conditional import Noise, Quadrature, flow_down, flow_up
from arcsm.conditional.flow import flow_levels
from arcsm.conditional.head import SLOPE_LIMIT
from arcsm.errors import ArcsmError, InputError

NOISE = Noise(3.0, 0.01)
SCALES = (0.1, 1.0, 10.0, 100.0, 1000.0)
every_size = pytest.mark.parametrize(
    ("scale", "sigma_min"),
    list(itertools.product(SCALES, (0.3, 0.01))),
    ids=lambda value: f"{value:g}",
)


def values_at_the_top(family, rows: int, count: int = 40) -> Tensor:
    """Return values spread as the conditional at σ_max is, and its tails."""
    p = torch.cat([torch.logspace(-8, -1, 8), torch.linspace(0.1, 0.9999, count)]).double()
    return Quadrature(family.at(3.0)).quantile(p.expand(rows, -1))


def down_with_slope(family, y: Tensor, levels: list[float]) -> tuple[Tensor, Tensor]:
    """Return what `flow_down` makes of y, and log dx/dy by autograd."""
    y = y.detach().requires_grad_()
    x = flow_down(family, y, levels)
    (slope,) = torch.autograd.grad(x.sum(), y)
    return x.detach(), slope.log()


@pytest.mark.parametrize("name", FAMILIES)
def test_up_undoes_down_for_known_scores(name: str) -> None:
    family = FAMILIES[name]
    levels = flow_levels(NOISE)
    y = values_at_the_top(family, 1)
    x, log_slope = down_with_slope(family, y, levels)
    back, log_slope_back = flow_up(family, x, levels)
    torch.testing.assert_close(back, y, rtol=0, atol=1e-8)
    torch.testing.assert_close(log_slope_back, log_slope, rtol=0, atol=1e-8)


@every_size
def test_up_undoes_down_for_heads_of_any_size(scale: float, sigma_min: float) -> None:
    family = random_head(scale, seed=5).family(normal(3, 8, seed=6))
    levels = flow_levels(Noise(3.0, sigma_min))
    y = values_at_the_top(family, 3)
    x, log_slope = down_with_slope(family, y, levels)
    back, log_slope_back = flow_up(family, x, levels)
    torch.testing.assert_close(back, y, rtol=0, atol=1e-8)
    torch.testing.assert_close(log_slope_back, log_slope, rtol=0, atol=1e-8)
    # And the other way round, from values that were not made by the flow.
    x = x + 0.1 * torch.randn(x.shape, generator=seeded(), dtype=x.dtype)
    up, log_slope = flow_up(family, x, levels)
    rounding = 1e-14 * (1 + up.abs()) * log_slope.exp()  # of y, as the flow magnifies it
    assert bool(((flow_down(family, up, levels) - x).abs() <= 1e-8 + rounding).all())


@every_size
def test_slope_is_the_derivative(scale: float, sigma_min: float) -> None:
    family = random_head(scale, seed=5).family(normal(2, 8, seed=6))
    levels = flow_levels(Noise(3.0, sigma_min))
    x, log_slope = down_with_slope(family, values_at_the_top(family, 2), levels)
    torch.testing.assert_close(flow_up(family, x, levels)[1], log_slope, rtol=0, atol=1e-8)


@every_size
def test_flow_is_increasing_for_heads_of_any_size(scale: float, sigma_min: float) -> None:
    """Everywhere: across the range, and around every step of the score at its own scale."""
    family = random_head(scale, seed=8).family(normal(4, 8, seed=9))
    levels = flow_levels(Noise(3.0, sigma_min))
    conditional = family.at(3.0)
    for index in range(4):
        points = landmarks(one_of(conditional, index))[::8]
        close = points[points.diff(prepend=points[:1] - 1) > 1e-9 * (1 + points.abs())]
        y = close.expand(4, -1)
        x, log_slope = down_with_slope(family, y, levels)
        assert bool(log_slope.isfinite().all())
        assert bool((x.diff() > 0).all())


@pytest.mark.parametrize("sigma_min", [1.0, 0.1, 0.01, 0.001])
def test_fewest_steps_suffice_for_the_steepest_head(sigma_min: float) -> None:
    """A head at the limit of its negative slopes everywhere, and steps as large as are allowed."""
    family = steepest_head().family(torch.zeros(1, 2, dtype=torch.float64))
    noise = Noise(3.0, sigma_min)
    levels = flow_levels(noise, fewest_steps(noise))
    scale = torch.logspace(-6, 1, 200, dtype=torch.float64)
    y = torch.cat([-scale.flip(0), scale])[None]
    x, log_slope = down_with_slope(family, y, levels)
    assert bool(log_slope.isfinite().all()) and bool((x.diff() > 0).all())
    assert log_slope.min().item() < -1  # it does squeeze


def fewest_steps(noise: Noise) -> int:
    """Return the smallest n for which (σ_min/σ_max)^(1/n) exceeds κ/(1 + κ), by trying."""
    steps = 1
    while (noise.sigma_min / noise.sigma_max) ** (1 / steps) <= SLOPE_LIMIT / (1 + SLOPE_LIMIT):
        steps += 1
    return steps


@pytest.mark.parametrize("sigma_min", [2.9, 1.0, 0.1, 0.01, 0.001])
def test_too_few_steps_are_refused(sigma_min: float) -> None:
    noise = Noise(3.0, sigma_min)
    fewest = fewest_steps(noise)
    assert len(flow_levels(noise, fewest)) == fewest + 1
    with pytest.raises(InputError, match=rf"at least {fewest} flow steps .* got {fewest - 1};"):
        flow_levels(noise, fewest - 1)


def test_levels_run_geometrically_from_the_largest_to_the_smallest() -> None:
    levels = flow_levels(NOISE)
    assert len(levels) == 33 and levels[0] == 3.0 and levels[-1] == 0.01
    for above, below in itertools.pairwise(levels):
        assert below / above == pytest.approx((0.01 / 3.0) ** (1 / 32), rel=1e-12)
    assert len(flow_levels(Noise(3.0, 1e-6))) > 33  # more where 32 would be too few


def test_one_level_is_no_flow() -> None:
    y = normal(1, 9)
    levels = flow_levels(Noise(0.5, 0.5, levels=1))
    x, log_slope = down_with_slope(FAMILIES["lopsided"], y, levels)
    assert torch.equal(x, y) and not log_slope.any()


def test_a_step_is_that_of_heun() -> None:
    """On N(0, τ²) the score at σ is −x/(τ² + σ²); one step, written out."""
    tau, above, below, y = 0.8, 1.0, 0.9, 0.7
    slope_above, slope_below = -1 / (tau**2 + above**2), -1 / (tau**2 + below**2)
    before = -above * slope_above * y  # dx/dσ = −σ s
    euler = y + (below - above) * before
    after = -below * slope_below * euler
    expected = y + (below - above) * (before + after) / 2
    family = mixture_family((1.0, 0.0, tau))
    start = torch.tensor([[y]], dtype=torch.float64)
    x, log_slope = down_with_slope(family, start, [above, below])
    assert x.item() == pytest.approx(expected, rel=1e-14)
    assert log_slope.item() == pytest.approx(math.log(expected / y), rel=1e-12)


def test_flow_converges_to_the_exact_one_with_order_two() -> None:
    """The flow of N(m, τ²) is x − m = (y − m) √((τ² + σ_min²)/(τ² + σ_max²))."""
    family = mixture_family((1.0, 0.7, 0.8))
    y = torch.linspace(-6, 6, 13, dtype=torch.float64)[None]
    shrink = math.sqrt((0.8**2 + 0.01**2) / (0.8**2 + 3.0**2))
    exact = 0.7 + (y - 0.7) * shrink
    errors = []
    for steps in (64, 128, 256):
        x = flow_down(family, y, flow_levels(NOISE, steps))
        errors.append((x - exact).abs().max().item())
    assert errors[-1] < 1e-4
    for coarse, fine in itertools.pairwise(errors):
        assert coarse / fine == pytest.approx(4, rel=0.1)


@dataclass(frozen=True)
class TooSteep:
    """Flat at σ = 1 and of slope −50/σ² below, which no density smoothed by σ can be."""

    sigma: float = 1.0

    def at(self, sigma: float) -> "TooSteep":
        return TooSteep(sigma)

    def jet(self, x: Tensor) -> tuple[Tensor, Tensor]:
        slope = 0.0 if self.sigma == 1 else -50 / self.sigma**2
        return slope * x, torch.full_like(x, slope)

    def score(self, x: Tensor) -> Tensor:
        return self.jet(x)[0]

    def ladder(self, levels: list[float]) -> "list[TooSteep]":
        return [TooSteep(sigma) for sigma in levels]


def test_a_flow_that_folds_is_an_error() -> None:
    y = torch.linspace(-1, 1, 5, dtype=torch.float64)[None]
    with pytest.raises(ArcsmError, match="expected an increasing flow, got a step of slope -"):
        flow_up(TooSteep(), y, [1.0, 0.9])


@every_size
def test_flow_of_heads_that_become_normal(scale: float, sigma_min: float) -> None:
    """The slope limit holds for them as well: the flow is increasing, and inverted."""
    for level in (3.0, 2.0):  # at the largest noise, and already below it
        family = random_head(scale, seed=5, normal_at=level).family(normal(3, 8, seed=6))
        mean, std = (part[:, None] for part in family.at(3.0).normal())
        levels = flow_levels(Noise(3.0, sigma_min))
        y = mean + std * torch.linspace(-7, 7, 60, dtype=torch.float64)
        x, log_slope = down_with_slope(family, y, levels)
        assert bool((x.diff() > 0).all()) and bool(log_slope.isfinite().all())
        back, log_slope_back = flow_up(family, x, levels)
        torch.testing.assert_close(back, y, rtol=0, atol=1e-7)
        torch.testing.assert_close(log_slope_back, log_slope, rtol=0, atol=1e-7)
