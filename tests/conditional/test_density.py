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
from arcsm.conditional.normal import NormalDensity

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
    x = density.quantile(p)
    found = density.cdf(x)
    error = density.log_prob_and_error(x)[1] + 1e-9
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
        density = kind(family, Noise(3.0, 0.01))
        found, error = density.log_prob_and_error(torch.tensor([[-3.0, 2.0]]).double())
        assert torch.equal(found, density.log_prob(torch.tensor([[-3.0, 2.0]]).double()))
        assert error.shape == (1, 2) and 0 < error.min().item() <= error.max().item() < 2e-7
    exact, x = family.at(0.01), torch.linspace(-4, 3, 50, dtype=torch.float64)[None]
    density = QuadratureDensity(family, Noise(3.0, 0.01))
    found, error = density.log_prob_and_error(x)
    assert bool(((found - exact.log_prob(x)).abs() <= error).all())


# Normal densities.


MEANS, STDS = [-1.5, 0.0, 40.0], [0.3, 1.0, 25.0]


def normal_density() -> tuple[NormalDensity, list]:
    mean, std = torch.tensor(MEANS), torch.tensor(STDS).double()
    frozen = [stats.norm(*pair) for pair in zip(MEANS, std.tolist(), strict=True)]
    return NormalDensity(mean, std), frozen


def check(found: Tensor, expected: list, rtol: float, atol: float = 0.0) -> None:
    """Compare one row for each density with what scipy says."""
    assert found.dtype == torch.float64
    known = torch.stack([torch.as_tensor(row) for row in expected])
    torch.testing.assert_close(found, known, rtol=rtol, atol=atol)


def test_normal_density_is_that_of_scipy() -> None:
    density, known = normal_density()
    z = torch.cat([torch.linspace(-4, 4, 33), torch.tensor([-100.0, -37.0, 8.0, 100.0])]).double()
    x = torch.tensor(MEANS)[:, None] + torch.tensor(STDS).double()[:, None] * z
    check(density.log_prob(x), [k.logpdf(row) for k, row in zip(known, x, strict=True)], 1e-12)
    check(density.cdf(x), [k.cdf(row) for k, row in zip(known, x, strict=True)], 1e-10, 1e-17)
    p = torch.cat([torch.logspace(-300, -1, 40), torch.linspace(0.1, 0.9999, 40)]).double()
    check(density.quantile(p.expand(3, -1)), [k.ppf(p) for k in known], 1e-9, atol=1e-12)
    torch.testing.assert_close(density.cdf(density.quantile(p.expand(3, -1))), p.expand(3, -1))
    ends = density.quantile(torch.tensor([[0.0, 1.0]]).double().expand(3, -1))
    assert ends[:, 0].tolist() == [-math.inf] * 3 and ends[:, 1].tolist() == [math.inf] * 3
    assert torch.equal(density.log_z_error, torch.zeros(3).double())


def log_mass_of_scipy(low: Tensor, high: Tensor) -> Tensor:
    """Return log P(low < z < high) for a standard normal z, from the lower tail."""
    mirrored = low + high > 0
    a, b = torch.where(mirrored, -high, low), torch.where(mirrored, -low, high)
    log_a, log_b = (torch.from_numpy(stats.norm.logcdf(end.numpy())) for end in (a, b))
    return log_b + torch.log1p(-torch.exp(log_a - log_b))


def test_normal_mass_of_cells() -> None:
    density, _ = normal_density()
    edges = torch.tensor(
        [-math.inf, -200, -38.5, -38.4, -9, -3, -1, -0.2, 0, 0.1, 2, 6, 6.01, 39, 150, math.inf],
        dtype=torch.float64,
    )
    first, last = torch.triu_indices(len(edges), len(edges), offset=1)
    low, high = edges[first], edges[last]
    expected = log_mass_of_scipy(low, high)
    assert bool(expected.isfinite().all()) and expected.min().item() < -1e4
    mean, std = torch.tensor(MEANS)[:, None], torch.tensor(STDS).double()[:, None]
    found = density.log_mass(mean + std * low, mean + std * high)
    # The ends are rounded to 1e-16 of their size, which moves far tails by z times as much.
    torch.testing.assert_close(found, expected.expand(3, -1), rtol=1e-10, atol=1e-11)
    # Seen from the other side of the mean it is the same.
    mirrored = density.log_mass(mean - std * high, mean - std * low)
    torch.testing.assert_close(found, mirrored, rtol=1e-10, atol=1e-11)
    partition = density.log_mass(mean + std * edges[:-1], mean + std * edges[1:])
    torch.testing.assert_close(partition.exp().sum(1), torch.ones(3).double(), rtol=0, atol=1e-14)
    assert density.log_mass(mean - math.inf, mean + math.inf).tolist() == [[0.0]] * 3
    x = mean + std * torch.tensor([-50.0, -1.0, 0.0, 0.5, 60.0])
    assert bool((density.log_mass(x, x) == -math.inf).all())


# The mass of cells.


@pytest.mark.parametrize(
    ("name", "steps"), [("normal", 200), ("lopsided", 400), ("three modes", 400)]
)
def test_masses_agree_with_the_closed_form(name: str, steps: int) -> None:
    """Within 20 nats of all; in the far tails the log within one part in a hundred."""
    family, noise = FAMILIES[name], Noise(3.0, 0.05)
    exact = family.at(0.05)
    low, high = (end.item() for end in exact.bounds())
    edges = torch.linspace(low, high, 40, dtype=torch.float64)[None]
    edges = torch.cat(
        [edges.new_full((1, 1), -math.inf), edges, edges.new_full((1, 1), math.inf)], 1
    )
    cells = edges[:, :-1], edges[:, 1:]
    expected = exact.log_mass(*cells)
    likely = expected > -20
    assert 10 < likely.sum().item() < 40
    for density, error in (
        (QuadratureDensity(family, noise), 1e-6),
        (FlowDensity(family, noise, steps=steps), 0.01),
    ):
        found = density.log_mass(*cells)
        assert bool(found.isfinite().all())
        torch.testing.assert_close(found[likely], expected[likely], rtol=0, atol=error)
        torch.testing.assert_close(found, expected, rtol=0.01, atol=0.01)
        assert found.exp().sum().item() == pytest.approx(1, abs=1e-7)


@every_kind
@pytest.mark.parametrize("normal_at", [None, 3.0], ids=["quadrature", "normal"])
@pytest.mark.parametrize(
    ("scale", "sigma"), [(0.1, 0.3), (1.0, 0.01), (1.0, 3.0), (100.0, 0.3)], ids=str
)
def test_masses_of_any_head_add_up(
    kind: str, normal_at: float | None, scale: float, sigma: float
) -> None:
    head = random_head(scale, seed=15, normal_at=normal_at)
    density = KINDS[kind](head.family(normal(2, 8, seed=16)), noise_down_to(sigma))
    p = torch.tensor([1e-9, 1e-4, 0.1, 0.2, 0.5, 0.6, 0.999, 1 - 1e-9]).double().expand(2, -1)
    inner = density.quantile(p)
    ends = torch.full((2, 1), math.inf, dtype=torch.float64)
    outer = (inner[:, -1:] - inner[:, :1]).expand(2, 1)
    edges = torch.cat([-ends, inner[:, :1] - outer, inner, inner[:, -1:] + outer, ends], 1)
    mass = density.log_mass(edges[:, :-1], edges[:, 1:])
    assert not bool(mass.isnan().any()) and bool((mass <= 0).all())
    found, stated = density.log_mass_and_error(edges[:, :-1], edges[:, 1:])
    assert torch.equal(found, mass) and bool((stated >= 0).all())
    error = stated.where(mass > -30, 0.0).amax(1, keepdim=True) + 1e-9
    assert error.max().item() < 1e-6
    assert bool(((mass.exp().sum(1, keepdim=True) - 1).abs() <= error).all())
    assert bool(((mass[:, 2:-2].exp() - p.diff()).abs() <= error).all())
    both = density.log_mass(edges[:, :-2], edges[:, 2:])
    parts = torch.logaddexp(mass[:, :-1], mass[:, 1:])
    torch.testing.assert_close(both.exp(), parts.exp(), rtol=0, atol=2e-7)
    assert bool((density.log_mass(-ends, ends).abs() <= error).all())
    assert bool((density.log_mass(inner, inner) == -math.inf).all())


@every_kind
def test_masses_have_the_dtype_of_the_question(kind: str) -> None:
    family = TanhSumHead(4, steps=4, normal_at=3.0).requires_grad_(False).family(torch.randn(2, 4))
    low = torch.tensor([[-math.inf, -1.0, 0.0], [-2.0, 0.5, 1.0]])
    high = torch.tensor([[-1.0, 0.0, math.inf], [0.5, 1.0, math.inf]])
    found = KINDS[kind](family, Noise()).log_mass(low, high)
    assert found.dtype == torch.float32 and bool(found.isfinite().all())
    assert found[0].exp().sum().item() == pytest.approx(1, abs=1e-5)


# A flow from a normal density.


@pytest.mark.parametrize(
    ("scale", "sigma"), [(0.1, 0.3), (1.0, 0.3), (1.0, 0.01), (10.0, 0.3), (1000.0, 0.3)], ids=str
)
def test_flow_from_a_normal_density(scale: float, sigma: float) -> None:
    """It integrates to one, its CDF undoes the quantile, and nothing was integrated for it."""
    family = random_head(scale, seed=5, normal_at=3.0).family(normal(1, 8, seed=6))
    density = FlowDensity(family, Noise(3.0, sigma))
    p = probabilities(200)[None]
    x = density.quantile(p)
    assert bool((x.diff() > 0).all())
    torch.testing.assert_close(density.cdf(x), p, rtol=0, atol=1e-9)
    assert density.log_prob_and_error(x)[1].max().item() < 1e-10
    mass = log_integral(lambda x: density.log_prob(x[None])[0], x[0], tolerance=1e-6)
    assert math.exp(mass) == pytest.approx(1, abs=1e-4)


def test_a_silent_flow_from_a_normal_density_is_known() -> None:
    """Without steps, offset and pull s = −x/(1 + σ²) at every level: N(0, 1) and its noise."""
    head = TanhSumHead(2, steps=3, normal_at=3.0).double().requires_grad_(False)
    head.output.weight.zero_()
    head.output.bias.zero_()
    # At σ_max the pull is softplus − 0.9 σ sigmoid(…), which this level of the last entry balances.
    low, high = torch.tensor([-30.0, 30.0], dtype=torch.float64)
    for _ in range(60):
        middle = (low + high) / 2
        head.output.bias[-1] = middle
        pull = head.family(torch.zeros(1, 2, dtype=torch.float64)).at(3.0).pull.item()
        low, high = (middle, high) if pull < 0 else (low, middle)
    family = head.family(torch.zeros(1, 2, dtype=torch.float64))
    density = FlowDensity(family, Noise(3.0, 3.0, levels=1))
    x = torch.linspace(-12, 12, 25, dtype=torch.float64)[None]
    known = torch.distributions.Normal(torch.zeros(()).double(), math.sqrt(1 + 3.0**2))
    torch.testing.assert_close(density.log_prob(x), known.log_prob(x))
    torch.testing.assert_close(density.cdf(x), known.cdf(x))
    torch.testing.assert_close(density.quantile(known.cdf(x)), x)


@pytest.mark.parametrize("normal_at", [None, 3.0], ids=["quadrature", "normal"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_of_exactly_0_and_1_are_finite(normal_at: float | None, dtype: torch.dtype) -> None:
    """Uniform numbers in single precision are 0 once in some ten million."""
    head = TanhSumHead(4, steps=4, normal_at=normal_at).to(dtype).requires_grad_(False)
    density = FlowDensity(head.family(torch.randn(2, 4, dtype=dtype)), Noise())
    epsilon = torch.finfo(dtype).eps
    told = [0.0, epsilon, 0.5, 1 - 16 * epsilon, 1 - epsilon, 1.0]
    x = density.quantile(torch.tensor([told], dtype=dtype).expand(2, -1))
    assert bool(x.isfinite().all()) and bool((x.diff() >= 0).all())
    # Near 1 a sum of masses is known to a few roundings only, and its quantile no better.
    assert bool((x[:, [0, 1, 2, 3, 5]].diff() > 0).all())
