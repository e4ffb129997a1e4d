"""Recalibration: curves that can be inverted, densities that stay exact, widths that are found."""

import math

import pytest
import torch
from known import log_integral, normal, random_head, seeded
from scipy import stats
from torch import Tensor

from arcsm.conditional import FlowDensity, Noise
from arcsm.conditional.density import BentNormal
from arcsm.conditional.normal import NormalDensity
from arcsm.conditional.recalibration import _NUMBERS, Curve, Recalibration
from arcsm.errors import InputError

WIDE = Noise(3.0, 0.3)


def random_curve(rows: int, *, strength: float = 0.5, seed: int = 0) -> Curve:
    return Curve.from_numbers(strength * normal(rows, _NUMBERS, seed=seed))


def random_recalibration(widths: int = 3, *, seed: int = 0) -> Recalibration:
    """Return curves that are far from straight, for widths around those of random heads."""
    found = Recalibration(widths).double()
    found.widths.copy_(torch.linspace(-1.5, 1.0, widths))
    found.numbers.copy_(0.4 * normal(widths, _NUMBERS, seed=seed))
    return found


def test_numbers_of_zero_are_the_straight_line() -> None:
    z = torch.linspace(-20, 20, 401, dtype=torch.float64)[None]
    value, log_slope = Curve.from_numbers(torch.zeros(1, _NUMBERS, dtype=torch.float64))(z)
    torch.testing.assert_close(value, z, rtol=0, atol=1e-13)
    assert log_slope.abs().max() < 1e-13


def test_curves_increase_and_their_slope_is_that_of_autograd() -> None:
    z = torch.linspace(-9, 9, 1000, dtype=torch.float64).repeat(5, 1).requires_grad_()
    value, log_slope = random_curve(5)(z)
    assert bool((value.diff(dim=-1) > 0).all())
    (slope,) = torch.autograd.grad(value.sum(), z)
    torch.testing.assert_close(log_slope.exp(), slope, rtol=1e-10, atol=1e-12)


def test_slopes_do_not_jump_at_the_knots() -> None:
    """The density is continuous: a jump would be seen in log-likelihoods."""
    knots = torch.arange(-4, 5, dtype=torch.float64).repeat(5, 1)
    curve = random_curve(5, seed=3)
    for index in (0, 1):
        torch.testing.assert_close(
            curve(knots - 1e-9)[index], curve(knots + 1e-9)[index], rtol=0, atol=1e-6
        )


@pytest.mark.parametrize("strength", [0.1, 1.0])
def test_the_inverse_undoes_the_curve(strength: float) -> None:
    curve = random_curve(7, strength=strength, seed=1)
    z = 3 * normal(7, 300, seed=2)
    torch.testing.assert_close(curve.inverse(curve(z)[0]), z, rtol=1e-9, atol=1e-9)


def test_bent_normals_are_densities() -> None:
    """The integral of exp(log_prob) is 1, and up to a point it is the CDF of that point."""
    mean, std = normal(3, seed=4), normal(3, seed=5).exp()
    density = BentNormal(mean, std, random_curve(3, seed=6))
    ends = density.quantile(torch.tensor([[1e-12, 0.3, 1 - 1e-12]], dtype=torch.float64))
    for row in range(3):

        def log_density(x: Tensor, row: int = row) -> Tensor:
            return density.log_prob(x.expand(3, -1))[row]

        low, middle, high = ends[row]
        whole = torch.linspace(low, high, 200, dtype=torch.float64)
        part = torch.linspace(low, middle, 200, dtype=torch.float64)
        assert math.exp(log_integral(log_density, whole)) == pytest.approx(1, abs=1e-6)
        assert math.exp(log_integral(log_density, part)) == pytest.approx(0.3, abs=1e-6)
    torch.testing.assert_close(
        density.cdf(ends), torch.tensor([[1e-12, 0.3, 1 - 1e-12]]).double().expand(3, -1)
    )


def test_masses_of_bent_normals_are_exact_in_both_tails() -> None:
    density = BentNormal(torch.zeros(1), torch.ones(1), random_curve(1, seed=7))
    p = torch.tensor([[1e-250, 1e-30, 0.2, 0.7]], dtype=torch.float64)
    x = density.quantile(p)
    found = density.log_mass(x[:, :-1], x[:, 1:]).exp()
    torch.testing.assert_close(found, p.diff(dim=-1), rtol=1e-9, atol=0)
    infinite = torch.full_like(x, math.inf)
    torch.testing.assert_close(density.log_mass(-infinite, x).exp(), p, rtol=1e-9, atol=0)
    torch.testing.assert_close(density.log_mass(x, infinite).exp(), 1 - p, rtol=1e-9, atol=0)
    assert density.log_mass(-infinite, infinite).abs().max() < 1e-12


def test_a_straight_curve_leaves_a_normal_density_as_it_is() -> None:
    mean, std = normal(4, seed=8), normal(4, seed=9).exp()
    x = 2 * normal(4, 9, seed=10)
    plain = NormalDensity(mean, std)
    bent = BentNormal(mean, std, Curve.from_numbers(torch.zeros(4, _NUMBERS).double()))
    for one, other in (
        (plain.log_prob(x), bent.log_prob(x)),
        (plain.cdf(x), bent.cdf(x)),
        (plain.quantile(plain.cdf(x)), bent.quantile(plain.cdf(x))),
        (plain.log_mass(x, x + 0.1), bent.log_mass(x, x + 0.1)),
    ):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_recalibrated_flows_are_densities_whose_quantiles_are_undone() -> None:
    family = random_head(0.5, seed=5, normal_at=3.0).family(normal(4, 8, seed=6))
    density = FlowDensity(family, WIDE, recalibration=random_recalibration())
    p = torch.linspace(1e-6, 1 - 1e-6, 200, dtype=torch.float64).expand(4, -1)
    x = density.quantile(p)
    torch.testing.assert_close(density.cdf(x), p, rtol=1e-7, atol=1e-9)
    plain = FlowDensity(family, WIDE)
    assert (plain.cdf(x) - p).abs().max() > 0.05  # or the test would see nothing
    for row in range(4):
        mass = log_integral(
            lambda x, row=row: density.log_prob(x.expand(4, -1))[row], x[row], tolerance=1e-7
        )
        assert math.exp(mass) == pytest.approx(1, abs=1e-4)
    torch.testing.assert_close(
        density.log_mass(x[:, :-1], x[:, 1:]).exp(), p.diff(dim=-1), rtol=1e-6, atol=1e-12
    )


def law_of(log_width: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of z where conditionals have these widths."""
    return -0.1 * (log_width + 2), 1.0 + 0.15 * (log_width + 3)


@pytest.mark.parametrize("kind", ["points", "cells", "half open"])
def test_what_was_wrong_with_the_widths_is_found(kind: str) -> None:
    """z normal with a mean and a deviation that follow the width: h(z) = (z − mean)/deviation."""
    log_width = -4 + 3 * torch.rand(60_000, generator=seeded(0), dtype=torch.float64)
    mean, deviation = law_of(log_width)
    low = high = z = mean + deviation * normal(len(mean), seed=1)
    if kind != "points":
        low = (z / 0.25).floor() * 0.25
        high = low + 0.25
    if kind == "half open":  # the open cells of the first and the last level
        low, high = low.where(low >= -1, -math.inf), high.where(high <= 1, math.inf)
        low, high = low.clamp(max=1.0), high.clamp(min=-1.0)
    found = Recalibration.fit(low, high, log_width)
    at = torch.tensor([-3.7, -2.5, -1.3], dtype=torch.float64)
    inner = torch.linspace(-1, 1, 9, dtype=torch.float64).expand(3, -1)
    mean, deviation = law_of(at)
    expected = (inner - mean[:, None]) / deviation[:, None]
    value, _ = found.curve(at)(inner)
    torch.testing.assert_close(value, expected, rtol=0, atol=0.05)


def test_the_likelihood_of_new_entries_gains_what_the_divergence_says() -> None:
    """KL(N(0, s²) ‖ N(0, 1)) = (s² − 1)/2 − log s nats for each entry."""
    s = 0.8
    z, other = s * normal(40_000, seed=2), s * normal(20_000, seed=3)
    log_width = torch.zeros(len(z), dtype=torch.float64)
    found = Recalibration.fit(z, z, log_width)
    assert len(found.widths) == 1  # all alike: one curve
    value, log_slope = found.curve(log_width[: len(other)])(other[:, None])
    gain = (log_slope + (other[:, None].square() - value.square()) / 2).mean().item()
    assert gain == pytest.approx((s**2 - 1) / 2 - math.log(s), abs=0.003)
    assert stats.kstest(value[:, 0].numpy(), "norm").pvalue > 1e-4


def test_few_entries_change_little() -> None:
    """Of five entries nothing can be learned; the curves stay near the straight line."""
    found = Recalibration.fit(normal(5), normal(5), normal(5, seed=1))
    assert found.numbers.abs().max() < 0.3


def test_values_far_out_do_not_spoil_the_curves() -> None:
    z = normal(20_000, seed=4)
    z[:3] = torch.tensor([1e6, -1e9, math.inf])
    low, high = z.where(z != math.inf, 50.0), z
    found = Recalibration.fit(low, high, torch.zeros(len(z)))
    assert bool(found.numbers.isfinite().all())
    inner = torch.linspace(-2, 2, 9, dtype=torch.float64)[None]
    value, _ = found.curve(torch.zeros(1))(inner)
    torch.testing.assert_close(value, inner, rtol=0, atol=0.08)


def test_conditionals_that_are_not_normal_at_the_start_are_refused() -> None:
    family = random_head(1.0, seed=5, normal_at=None).family(normal(2, 8))
    refused = pytest.raises(InputError, match=r"expected conditionals that are normal at σ_max")
    with refused:
        FlowDensity(family, WIDE).standard_ends(torch.zeros(2, 1), torch.ones(2, 1))
    with refused:
        FlowDensity(family, WIDE, recalibration=random_recalibration())
    with pytest.raises(InputError, match="at least one width"):
        Recalibration(0)
