"""The tanh-sum head: its closed forms are one another's derivatives, its bounds are bounds."""

import itertools
import json
import math

import pytest
import torch
from known import (
    landmarks,
    log_integral,
    normal,
    one_of,
    random_conditionals,
    random_head,
    steepest_head,
)
from torch import Tensor

from arcsm.conditional import HeadFamily, TanhSum, TanhSumHead
from arcsm.conditional.head import COEFFICIENT_LIMIT, SLOPE_LIMIT
from arcsm.errors import InputError

SCALES = (0.1, 1.0, 10.0, 100.0, 1000.0)
SIGMAS = (3.0, 0.3, 0.01)
every_size = pytest.mark.parametrize(
    ("scale", "sigma"), list(itertools.product(SCALES, SIGMAS)), ids=lambda value: f"{value:g}"
)


def points_of_interest(conditional: TanhSum, seed: int = 0) -> Tensor:
    """Return sorted points all over the range and close to every step, at its own scale."""
    low, high = (end[..., None] for end in conditional.bounds())
    everywhere = low + (high - low) * torch.linspace(-0.1, 1.1, 101, dtype=torch.float64)
    root = (1 + conditional.sigma.square()).sqrt()[..., None, None]
    around = normal(*conditional.height.shape, 9, seed=seed) * 2
    near = root * (conditional.centre[..., None] + around / conditional.slope[..., None])
    return torch.cat([everywhere, near.flatten(-2)], -1).sort(-1).values


@every_size
def test_jet_is_the_derivative_of_the_energy(scale: float, sigma: float) -> None:
    conditional = random_conditionals(scale, sigma, count=6)
    x = points_of_interest(conditional).requires_grad_()
    (slope,) = torch.autograd.grad(conditional.energy(x).sum(), x, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), x)
    for found, expected in zip(conditional.jet(x), (slope, bend), strict=True):
        magnitude = expected.abs().amax(-1, keepdim=True)
        assert bool(((found - expected).abs() <= 1e-10 * magnitude).all())


@pytest.mark.parametrize(("steps", "depth"), [(1, 1), (2, 3), (5, 2)])
def test_jet_of_other_shapes(steps: int, depth: int) -> None:
    conditional = random_head(1.0, seed=2, steps=steps, depth=depth).family(normal(4, 8)).at(0.1)
    x = points_of_interest(conditional).requires_grad_()
    (slope,) = torch.autograd.grad(conditional.energy(x).sum(), x, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), x)
    score, derivative = conditional.jet(x)
    torch.testing.assert_close(score, slope, rtol=1e-10, atol=1e-10 * slope.abs().max().item())
    torch.testing.assert_close(derivative, bend, rtol=1e-10, atol=1e-10 * bend.abs().max().item())


def test_score_is_the_formula_of_the_documentation() -> None:
    """s(x) = −x/v + F(u)/(σ√v), F(u) = m − q u + Σ a tanh(w (u − b)), by hand for two steps."""
    sigma, offset, pull = 0.5, 0.3, 0.2
    steps = [(0.7, 2.0, -0.4), (-1.1, 3.0, 0.8)]  # (a, w, b)
    height, slope, centre = torch.tensor([steps], dtype=torch.float64).unbind(-1)
    one = torch.ones(1, dtype=torch.float64)
    conditional = TanhSum(sigma * one, offset * one, pull * one, height, slope, centre)
    for x in (-2.0, 0.1, 1.7):
        variance = 1 + sigma**2
        u = x / math.sqrt(variance)
        inner = offset - pull * u + sum(a * math.tanh(w * (u - b)) for a, w, b in steps)
        expected = -x / variance + inner / (sigma * math.sqrt(variance))
        score, _ = conditional.jet(torch.tensor([[x]], dtype=torch.float64))
        assert score.item() == pytest.approx(expected, rel=1e-13)


@every_size
def test_slope_of_the_score_is_limited_from_below(scale: float, sigma: float) -> None:
    conditional = random_conditionals(scale, sigma, count=24, seed=4)
    _, derivative = conditional.jet(points_of_interest(conditional))
    assert derivative.min().item() >= -SLOPE_LIMIT / sigma**2


@pytest.mark.parametrize("sigma", SIGMAS)
def test_slope_limit_holds_at_the_worst_and_is_nearly_reached(sigma: float) -> None:
    conditional = steepest_head().family(torch.zeros(1, 2, dtype=torch.float64)).at(sigma)
    _, derivative = conditional.jet(torch.zeros(1, 1, dtype=torch.float64))
    limit = -SLOPE_LIMIT / sigma**2
    assert limit <= derivative.item()
    if sigma < 1:  # the limit is on F/σ alone; at large σ the factor 1/v keeps far from it
        assert derivative.item() < limit / (1 + sigma**2) * 0.99


@every_size
def test_ceiling_bounds_the_energy_between_points(scale: float, sigma: float) -> None:
    conditional = random_conditionals(scale, sigma, count=4, seed=7)
    everywhere = points_of_interest(conditional)
    for stride in (1, 7, 40):
        edges = everywhere[..., ::stride]
        place = torch.linspace(0, 1, 65, dtype=torch.float64)
        inside = edges[..., :-1, None] + edges.diff()[..., None] * place
        energy = conditional.energy(inside.flatten(-2)).unflatten(-1, inside.shape[-2:])
        ceiling = conditional.ceiling(edges)
        assert ceiling.shape == (*edges.shape[:-1], edges.shape[-1] - 1)
        rounding = 1e-13 * (1 + energy.abs().amax())
        assert bool((energy <= ceiling[..., None] + rounding).all())


@every_size
def test_ceiling_is_tight_on_short_intervals(scale: float, sigma: float) -> None:
    """Otherwise no panel of a quadrature would ever count as seen."""
    conditional = random_conditionals(scale, sigma, count=4, seed=7)
    middle = points_of_interest(conditional)
    # Within a tenth of the narrowest features of the energy, which are steps of slope w.
    width = 0.1 / (1 + conditional.slope.amax(-1) + 1 / conditional.sigma)[:, None]
    score, _ = conditional.jet(middle)
    width = width / (1 + width * score.abs())
    edges = torch.stack([middle, middle + width], -1).flatten(-2)
    ceiling = conditional.ceiling(edges)[..., ::2]
    energy = conditional.energy(middle)
    assert bool((ceiling - energy <= 1.0 + 1e-13 * energy.abs()).all())


@every_size
def test_bounds_contain_all_the_mass(scale: float, sigma: float) -> None:
    conditional = random_conditionals(scale, sigma, count=3, seed=9)
    for index in range(3):
        one = one_of(conditional, index)
        points = landmarks(one)
        low, high = (end.item() for end in one.bounds())
        assert points[0] < low < high < points[-1]

        def energy(x: Tensor, one: TanhSum = one) -> Tensor:
            return one.energy(x[None])[0]

        total = log_integral(energy, points)
        for end, beyond in ((low, points[0].item()), (high, points[-1].item())):
            fractions = torch.cat([torch.zeros(1), torch.logspace(-9, 0, 91)]).double()
            outside = log_integral(energy, end + (beyond - end) * fractions)
            assert outside - total < math.log(1e-14 / 2)


@every_size
def test_coefficients_are_limited_and_finite(scale: float, sigma: float) -> None:
    conditional = random_conditionals(1e6 * scale, sigma, count=8)
    for name, value in vars(conditional).items():
        assert bool(value.isfinite().all()), name
    assert conditional.centre.abs().max().item() <= COEFFICIENT_LIMIT
    assert conditional.height.abs().max().item() <= COEFFICIENT_LIMIT
    assert conditional.slope.min().item() > 0
    assert conditional.pull.min().item() >= 0


def test_family_is_the_head_at_every_level() -> None:
    head = random_head(1.0, seed=1)
    context = normal(3, 8)
    family = head.family(context)
    assert isinstance(family, HeadFamily)
    x = normal(3, 5, seed=8)
    for sigma in SIGMAS:
        levels = torch.full((3,), sigma, dtype=torch.float64)
        expected = head(context, levels).jet(x)
        for found, value in zip(family.at(sigma).jet(x), expected, strict=True):
            torch.testing.assert_close(found, value)
    assert not torch.equal(family.at(3.0).offset, family.at(0.3).offset)


def test_levels_of_one_batch_do_not_mix() -> None:
    head = random_head(1.0, seed=1)
    context = normal(4, 8)
    sigma = torch.tensor([[3.0, 0.2], [1.0, 0.1], [0.5, 0.05], [0.3, 0.01]], dtype=torch.float64)
    together = head(context[:, None], sigma)
    x = normal(4, 2, 3, seed=3)
    score, derivative = together.jet(x)
    for row, level in itertools.product(range(4), range(2)):
        alone = head(context[row : row + 1], sigma[row : row + 1, level])
        expected = alone.jet(x[row : row + 1, level])
        torch.testing.assert_close(score[row : row + 1, level], expected[0])
        torch.testing.assert_close(derivative[row : row + 1, level], expected[1])
        energy = alone.energy(x[row : row + 1, level])
        torch.testing.assert_close(together.energy(x)[row : row + 1, level], energy)


def test_double_keeps_the_numbers() -> None:
    head = TanhSumHead(4, steps=3)
    single = head.family(torch.randn(2, 4)).at(0.3)
    double = single.double()
    for name, value in vars(double).items():
        assert value.dtype == torch.float64
        assert torch.equal(value, getattr(single, name).double())


@pytest.mark.parametrize("name", ["context_width", "steps", "depth"])
def test_sizes_must_be_positive(name: str) -> None:
    sizes = {"context_width": 4, "steps": 3, "depth": 1, name: 0}
    with pytest.raises(InputError, match=r"expected positive .*, got .*0"):
        TanhSumHead(sizes.pop("context_width"), **sizes)


def test_config_makes_the_head_anew() -> None:
    head = TanhSumHead(4, steps=3, depth=2)
    again = TanhSumHead(**json.loads(json.dumps(head.config)))
    again.load_state_dict(head.state_dict())
    x, context = torch.randn(2, 3), torch.randn(2, 4)
    assert torch.equal(
        head.family(context).at(0.1).energy(x), again.family(context).at(0.1).energy(x)
    )
