"""Quadrature: normalises whatever it is given, knows its error, and overlooks no peak."""

import itertools
import math

import pytest
import torch
from known import (
    FAMILIES,
    GaussianMixture,
    landmarks,
    log_integral,
    mixture_family,
    normal,
    one_of,
    random_conditionals,
    seeded,
)
from scipy import integrate
from torch import Tensor

from arcsm.conditional import Quadrature, TanhSum, TanhSumHead
from arcsm.errors import ArcsmError

SCALES = (0.1, 1.0, 10.0, 100.0, 1000.0)
SIGMAS = (3.0, 0.3, 0.01)
every_size = pytest.mark.parametrize(
    ("scale", "sigma"), list(itertools.product(SCALES, SIGMAS)), ids=lambda value: f"{value:g}"
)


def log_normaliser(conditional: TanhSum) -> Tensor:
    """Return log Z of each entry of the batch, by Simpson's rule between the peaks."""
    found = []
    for index in range(len(conditional.sigma)):
        one = one_of(conditional, index)
        found.append(log_integral(lambda x, one=one: one.energy(x[None])[0], landmarks(one)))
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize("sigma", [0.0, 0.01, 0.3, 3.0])
@pytest.mark.parametrize("name", FAMILIES)
def test_known_mixtures(name: str, sigma: float) -> None:
    known = FAMILIES[name].at(sigma)
    found = Quadrature(known)
    assert found.log_z.item() == pytest.approx(known.offset, abs=1e-8)
    x = torch.linspace(-6, 6, 241, dtype=torch.float64)[None]
    torch.testing.assert_close(found.log_prob(x), known.log_prob(x), rtol=0, atol=1e-8)
    torch.testing.assert_close(found.cdf(x), known.cdf(x), rtol=0, atol=1e-8)
    p = torch.tensor([[1e-9, 1e-3, 0.25, 0.5, 0.9, 1 - 1e-6]], dtype=torch.float64)
    torch.testing.assert_close(known.cdf(found.quantile(p)), p, rtol=0, atol=1e-8)


@every_size
def test_conditionals_of_any_parameters_integrate_to_one(scale: float, sigma: float) -> None:
    conditional = random_conditionals(scale, sigma, count=5)
    found = Quadrature(conditional)
    for index in range(5):
        one = one_of(conditional, index)

        def log_prob(x: Tensor, index: int = index) -> Tensor:
            return found.log_prob(x.expand(5, -1))[index]

        size = found.log_z[index].abs().item()
        mass = math.exp(log_integral(log_prob, landmarks(one), magnitude=size))
        assert mass == pytest.approx(1, abs=2e-6)


@every_size
def test_stated_error_bounds_the_error(scale: float, sigma: float) -> None:
    """Also where far too few panels are allowed, and little of the mass has been seen."""
    conditional = random_conditionals(scale, sigma, count=6, seed=3)
    truth = log_normaliser(conditional)
    for most_panels in (16, 48, 80, 112, 176, 1024):
        found = Quadrature(conditional, most_panels=most_panels)
        error = (truth - found.log_z).expm1().abs()
        assert bool((error <= found.log_z_error).all()), most_panels
    assert found.log_z_error.max().item() < 2e-6


def test_stated_error_bounds_the_error_of_peaks_between_the_nodes() -> None:
    """A narrow peak in every place of a few panels: by chance, rules may agree on a wrong mass."""
    place = torch.linspace(-3, 3, 101, dtype=torch.float64)
    width = torch.logspace(-3, 0, 31, dtype=torch.float64)
    mean, std = (part.flatten() for part in torch.meshgrid(place, width, indexing="ij"))
    one = torch.ones_like(mean)
    known = GaussianMixture(
        weight=torch.stack([0.5 * one, 0.5 * one], -1),
        mean=torch.stack([0 * one, mean], -1),
        std=torch.stack([2 * one, std], -1),
    )
    for panels in (2, 3, 8):
        found = Quadrature(known, panels=panels, most_panels=panels)
        error = (-found.log_z).expm1().abs()
        assert bool((error <= found.log_z_error).all())


def test_error_grows_with_the_tolerance_asked_for() -> None:
    conditional = random_conditionals(0.3, 0.1, count=4)
    truth = log_normaliser(conditional)
    panels = []
    for tolerance in (1e-2, 1e-5, 1e-8):
        found = Quadrature(conditional, tolerance=tolerance)
        assert bool((found.log_z_error <= 1.01 * tolerance).all())
        assert bool(((truth - found.log_z).expm1().abs() <= tolerance).all())
        panels.append(found.left.shape[-1])
    assert panels[0] < panels[-1]


def test_two_narrow_peaks_far_apart() -> None:
    """Peaks 0.01 wide, 1000 apart; one of them light, in every place relative to the panels."""
    for place in torch.rand(5, generator=seeded(), dtype=torch.float64).tolist():
        known = mixture_family((1e-3, -500 + place, 0.01), (1 - 1e-3, 500.0, 0.01)).at(0.0)
        found = Quadrature(known)
        assert found.log_z.item() == pytest.approx(0, abs=1e-8)
        x = torch.tensor([[-500 + place, 0.0, 500.0]], dtype=torch.float64)
        torch.testing.assert_close(found.cdf(x), known.cdf(x), rtol=0, atol=1e-8)
        p = torch.tensor([[5e-4]], dtype=torch.float64)
        assert found.quantile(p).item() == pytest.approx(-500 + place, abs=1e-6)


def test_two_narrow_peaks_of_a_tanh_sum() -> None:
    """Steps down at ±500 make peaks, a step up between them a valley 1e5 nats deep."""
    sigma, shift = 0.01, 5e-5
    one = torch.ones(1, dtype=torch.float64)
    root = math.sqrt(1 + sigma**2)
    conditional = TanhSum(
        sigma=sigma * one,
        offset=0 * one,
        pull=0 * one,
        height=torch.tensor([[-5.0, 10.0, -5.0]], dtype=torch.float64),
        slope=torch.tensor([[20.0, 1.0, 20.0]], dtype=torch.float64),
        centre=torch.tensor([[-500.0, shift, 500.0]], dtype=torch.float64),
    )
    tops = root * torch.tensor([[-500.0, 500.0]], dtype=torch.float64)
    score, derivative = conditional.jet(tops)
    assert score.abs().max().item() < 1e-2
    assert (-derivative).rsqrt().max().item() == pytest.approx(0.01, rel=1e-3)
    found = Quadrature(conditional)
    # The valley's centre shifted by δ changes the energies of the peaks by ∓ a δ/σ.
    ratio = math.exp(2 * 10.0 * shift / sigma)
    left = found.cdf(torch.zeros(1, 1, dtype=torch.float64)).item()
    assert left == pytest.approx(ratio / (1 + ratio), abs=1e-5)
    quartiles = found.quantile(torch.tensor([[left / 2, (1 + left) / 2]], dtype=torch.float64))
    torch.testing.assert_close(quartiles, tops, rtol=0, atol=1e-4)
    truth = log_normaliser(conditional).item()
    assert found.log_z.item() == pytest.approx(truth, abs=1e-7 + 1e-15 * abs(truth))


@pytest.mark.parametrize("name", FAMILIES)
def test_score_to_density_to_score_of_known_scores(name: str) -> None:
    """Theorem 3: log q is the integral of the score, and its derivative is the score again."""
    known = FAMILIES[name].at(0.1)

    def score(x: float) -> float:
        return known.jet(torch.tensor([[x]], dtype=torch.float64))[0].item()

    density = Quadrature(known)
    ends = torch.tensor([[-1.0, 1.3]], dtype=torch.float64)
    risen, _ = integrate.quad(score, -1.0, 1.3, epsabs=1e-11, epsrel=1e-11, limit=200)
    assert density.log_prob(ends).diff().item() == pytest.approx(risen, abs=1e-9)
    x = torch.linspace(-3, 3, 61, dtype=torch.float64)[None].requires_grad_()
    (slope,) = torch.autograd.grad(density.log_prob(x).sum(), x)
    torch.testing.assert_close(slope, known.jet(x)[0], rtol=1e-8, atol=1e-8)


@every_size
def test_score_to_density_to_score_of_a_head(scale: float, sigma: float) -> None:
    conditional = random_conditionals(scale, sigma, count=3, seed=5)
    density = Quadrature(conditional)
    low, high = (end[:, None] for end in conditional.bounds())
    x = low + (high - low) * torch.rand((3, 200), generator=seeded(), dtype=torch.float64)
    x.requires_grad_()
    (slope,) = torch.autograd.grad(density.log_prob(x).sum(), x)
    torch.testing.assert_close(slope, conditional.jet(x)[0], rtol=1e-8, atol=1e-8)


def test_density_is_the_normalised_integral_of_the_score() -> None:
    """Only the score enters here: integrate it, exponentiate, normalise, all on a grid."""
    conditional = random_conditionals(0.3, 0.3, count=1)
    low, high = (end.item() for end in conditional.bounds())
    x = torch.linspace(low, high, 20001, dtype=torch.float64)
    score, _ = conditional.jet(x[None])
    energy = integrate.cumulative_simpson(score[0].numpy(), x=x.numpy(), initial=0)
    log_z = torch.from_numpy(energy).logsumexp(0) + math.log((high - low) / 20000)
    expected = torch.from_numpy(energy) - log_z
    found = Quadrature(conditional).log_prob(x[None])[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-7)


@every_size
def test_cdf_and_quantile_of_a_head(scale: float, sigma: float) -> None:
    conditional = random_conditionals(scale, sigma, count=3, seed=6)
    density = Quadrature(conditional)
    p = torch.cat([torch.logspace(-9, -1, 17), torch.linspace(0.1, 0.999, 30)]).double()
    p = p.expand(3, -1)
    x = density.quantile(p)
    assert bool((x.diff() >= 0).all())
    error = density.log_z_error[:, None] + 1e-9
    assert bool(((density.cdf(x) - p).abs() <= error).all())
    # The CDF is the integral of the density, here taken by Simpson's rule between two quantiles.
    for index in range(3):
        inner = landmarks(one_of(conditional, index))
        low, high = x[index, 20].item(), x[index, 40].item()
        inner = inner[(inner > low) & (inner < high)]
        edges = torch.cat([x[index, 20:41], inner])

        def log_prob(x: Tensor, index: int = index) -> Tensor:
            return density.log_prob(x.expand(3, -1))[index]

        size = density.log_z[index].abs().item()
        mass = math.exp(log_integral(log_prob, edges, magnitude=size))
        assert mass == pytest.approx((p[0, 40] - p[0, 20]).item(), abs=2e-6)


def test_ends_of_the_probability_scale() -> None:
    known = FAMILIES["lopsided"].at(0.1)
    density = Quadrature(known)
    ends = density.quantile(torch.tensor([[0.0, 1.0]], dtype=torch.float64))
    low, high = known.bounds()
    assert low.item() <= ends[0, 0].item() < ends[0, 1].item() <= high.item()
    torch.testing.assert_close(
        known.cdf(ends), torch.tensor([[0.0, 1.0]]).double(), atol=1e-14, rtol=0
    )
    outside = torch.tensor([[-1e9, 1e9]], dtype=torch.float64)
    torch.testing.assert_close(density.cdf(outside), torch.tensor([[0.0, 1.0]]).double())


def test_entries_of_a_batch_do_not_mix() -> None:
    g = seeded()
    weight = torch.rand((2, 3, 4), generator=g, dtype=torch.float64)
    weight = weight / weight.sum(-1, keepdim=True)
    mean = 3 * torch.randn((2, 3, 4), generator=g, dtype=torch.float64)
    std = torch.logspace(-3, 1, 24, dtype=torch.float64).view(2, 3, 4)
    known = GaussianMixture(weight, mean, std, offset=4.0)
    density = Quadrature(known)
    torch.testing.assert_close(density.log_z, torch.full((2, 3), 4.0).double(), atol=1e-7, rtol=0)
    x = 3 * normal(2, 3, 7)
    torch.testing.assert_close(density.log_prob(x), known.log_prob(x), atol=1e-7, rtol=0)
    torch.testing.assert_close(density.cdf(x), known.cdf(x), atol=1e-7, rtol=0)
    p = torch.rand((2, 3, 7), generator=g, dtype=torch.float64)
    torch.testing.assert_close(known.cdf(density.quantile(p)), p, atol=1e-7, rtol=0)


def test_single_precision_is_integrated_in_double() -> None:
    conditional = TanhSumHead(4).family(torch.randn(2, 4)).at(0.1)
    found, expected = Quadrature(conditional), Quadrature(conditional.double())
    assert found.log_z.dtype == torch.float64
    assert torch.equal(found.log_z, expected.log_z)


def test_parameters_that_are_not_numbers_are_refused() -> None:
    conditional = random_conditionals(1.0, 0.1, count=3)
    conditional.offset[0] = math.nan
    with pytest.raises(ArcsmError, match="not finite numbers in 1 of 3 of them"):
        Quadrature(conditional)


def test_a_normaliser_beyond_all_numbers_is_refused() -> None:
    """The energies are finite in places, or not at all; no number may come out of it."""
    known = mixture_family((1.0, 0.0, 1.0)).at(0.0)
    for offset in (math.inf, -math.inf, math.nan):
        with pytest.raises(ArcsmError, match="energies that are not finite"):
            Quadrature(GaussianMixture(known.weight, known.mean, known.std, offset))


def test_only_entries_that_are_not_settled_are_refined() -> None:
    """Beside many easy entries, a hard one costs as much as by itself."""
    easy, hard = (0.5, 0.0, 1.0), (0.5, 400.0, 1e-3)
    evaluated = []

    class Counting(GaussianMixture):
        def energy(self, x: Tensor) -> Tensor:
            evaluated.append(x.numel())
            return super().energy(x)

        def double(self) -> "Counting":
            return self

    def made(*rows: list[tuple[float, float, float]]) -> Counting:
        return Counting(*torch.tensor(rows, dtype=torch.float64).unbind(-1))

    counts, many = [], [[easy, easy]] * 99
    for conditional in (made([easy, hard]), made([easy, easy]), made([easy, hard], *many)):
        evaluated.clear()
        found = Quadrature(conditional)
        counts.append(sum(evaluated))
        torch.testing.assert_close(found.log_z, torch.zeros_like(found.log_z), rtol=0, atol=1e-7)
    assert counts[0] > 3 * counts[1]
    assert counts[2] == counts[0] + 99 * counts[1]
    # Rows of fewer panels are filled up with such as have no width and no mass.
    assert found.left.shape == found.right.shape and len(found.left) == 100
    p = torch.tensor([[0.1, 0.5, 0.999999]], dtype=torch.float64).expand(100, -1)
    torch.testing.assert_close(conditional.cdf(found.quantile(p)), p, rtol=0, atol=1e-7)
    ends = torch.full((100, 1), 2e3, dtype=torch.float64)
    torch.testing.assert_close(found.cdf(ends), torch.ones(100, 1).double())
    assert bool((found.log_mass(-ends, ends).abs() < 1e-9).all())


# The mass of cells.


def cells(low: float, high: float, count: int) -> tuple[Tensor, Tensor]:
    """Return the adjoining cells between evenly spaced points, for one entry of a batch."""
    edges = torch.linspace(low, high, count + 1, dtype=torch.float64)[None]
    return edges[:, :-1], edges[:, 1:]


INFINITY = torch.full((1, 1), math.inf, dtype=torch.float64)


@pytest.mark.parametrize("sigma", [0.0, 0.3, 3.0])
@pytest.mark.parametrize("name", FAMILIES)
def test_mass_of_cells_of_known_mixtures(name: str, sigma: float) -> None:
    """In the log, out to where the panels end: nothing cancels in either tail."""
    known = FAMILIES[name].at(sigma)
    density = Quadrature(known)
    low, high = (end.item() for end in known.bounds())
    for count in (1, 7, 60, 1000):
        ends = cells(low, high, count)
        expected = known.log_mass(*ends)
        torch.testing.assert_close(density.log_mass(*ends), expected, rtol=1e-6, atol=1e-6)
    assert expected.min().item() < -35
    inner = cells(-1.5, 1.5, 20)
    difference = known.cdf(inner[1]) - known.cdf(inner[0])
    torch.testing.assert_close(density.log_mass(*inner).exp(), difference, rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", FAMILIES)
def test_mass_beyond_the_panels(name: str) -> None:
    """Tails fall off as at their inner end: some 1/z² too much, z standard deviations out."""
    known = FAMILIES[name].at(0.1)
    density = Quadrature(known)
    low, high = known.bounds()
    for start, outwards in ((low.item(), -1), (high.item(), 1)):
        for distance in (0.0, 0.5, 5.0, 500.0):
            near = torch.tensor([[start + outwards * distance]], dtype=torch.float64)
            for far in (near + outwards * 0.01, near + outwards * 3.0, outwards * INFINITY):
                ends = (near, far) if outwards > 0 else (far, near)
                found, expected = density.log_mass(*ends), known.log_mass(*ends)
                assert bool(expected.isfinite().all()) and expected.item() < -35
                torch.testing.assert_close(found, expected, rtol=1e-6, atol=0.025)


@every_size
def test_masses_of_a_head_add_up(scale: float, sigma: float) -> None:
    conditional = random_conditionals(scale, sigma, count=3, seed=6)
    density = Quadrature(conditional)
    low, high = (end[:, None] for end in conditional.bounds())
    place = torch.linspace(-0.2, 1.2, 60, dtype=torch.float64)
    edges = low + (high - low) * place
    ends = INFINITY.expand(3, 1)
    edges = torch.cat([-ends, edges, density.quantile(torch.full((3, 1), 0.3).double()), ends], 1)
    edges = edges.sort(1).values
    mass = density.log_mass(edges[:, :-1], edges[:, 1:])
    assert not bool(mass.isnan().any()) and bool((mass <= 0).all())
    error = density.log_z_error + 1e-9
    assert bool(((mass.exp().sum(1) - 1).abs() <= error).all())
    # Two adjoining cells are one; and the CDF says the same, where it does not cancel.
    both = density.log_mass(edges[:, :-2], edges[:, 2:])
    parts = torch.logaddexp(mass[:, :-1], mass[:, 1:])
    assert bool(((both.exp() - parts.exp()).abs() <= error[:, None]).all())
    cumulative = density.cdf(edges[:, 1:-1])
    found = density.log_mass(-ends.expand_as(cumulative), edges[:, 1:-1]).exp()
    assert bool(((found - cumulative).abs() <= error[:, None]).all())


def test_whole_line_and_empty_cells() -> None:
    for density in (
        Quadrature(FAMILIES["three modes"].at(0.1)),
        Quadrature(random_conditionals(1.0, 0.1, count=1)),
    ):
        whole = density.log_mass(-INFINITY, INFINITY)
        assert whole.item() == pytest.approx(0, abs=1e-12) and whole.item() <= 0
        x = torch.tensor([[-700.0, -1.0, 0.3, 700.0]], dtype=torch.float64)
        assert bool((density.log_mass(x, x) == -math.inf).all())


def test_mass_of_a_narrow_cell_is_density_times_width() -> None:
    known = FAMILIES["lopsided"].at(0.1)
    density = Quadrature(known)
    x = torch.linspace(-3, 4, 50, dtype=torch.float64)[None]
    for width in (1e-4, 1e-8, 1e-12):
        found = density.log_mass(x - width / 2, x + width / 2)
        # What is left of the width in the last digits of the ends:
        exact = ((x + width / 2) - (x - width / 2)).log()
        torch.testing.assert_close(found, known.log_prob(x) + exact, rtol=0, atol=1e-4)


def test_entries_of_a_batch_do_not_mix_in_masses() -> None:
    g = seeded()
    weight = torch.rand((2, 3, 4), generator=g, dtype=torch.float64)
    weight = weight / weight.sum(-1, keepdim=True)
    mean = 3 * torch.randn((2, 3, 4), generator=g, dtype=torch.float64)
    std = torch.logspace(-2, 1, 24, dtype=torch.float64).view(2, 3, 4)
    known = GaussianMixture(weight, mean, std, offset=4.0)
    low = 3 * normal(2, 3, 7)
    high = low + torch.rand((2, 3, 7), generator=g, dtype=torch.float64)
    found = Quadrature(known).log_mass(low, high)
    torch.testing.assert_close(found.exp(), known.log_mass(low, high).exp(), atol=1e-7, rtol=0)
