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


@pytest.mark.parametrize("steps", [1, 2, 8, 16])
def test_an_untrained_staircase_climbs_nearly_as_fast_as_the_pull_falls(steps: int) -> None:
    """Over the reach of the steps F falls by the small rest alone, but for the stairs."""
    head = TanhSumHead(4, steps=steps, staircase=True).double().requires_grad_(False)
    head.output.weight.zero_()
    conditional = head.family(torch.zeros(1, 4, dtype=torch.float64)).at(0.05)

    def limited(value: Tensor) -> Tensor:
        return value / (1 + value.abs() / COEFFICIENT_LIMIT)

    reach = 2.5 if steps > 1 else 0.0
    centres = torch.linspace(-reach, reach, steps).double()
    torch.testing.assert_close(conditional.centre[0], limited(centres))
    climb = torch.full((steps,), 0.5 * 2.5 / max(steps - 1, 1)).double()
    torch.testing.assert_close(conditional.height[0], limited(climb))
    assert conditional.pull.item() == pytest.approx(0.8 / (1 + 0.8 * 0.05), rel=0.01)


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


# Normal from a noise level on.


every_size_and_limit = pytest.mark.parametrize(
    ("scale", "share"), list(itertools.product(SCALES, (1.0, 0.999, 0.6, 0.1))), ids=str
)


def integral(conditional: TanhSum, power: int, centre: float) -> float:
    """Return ∫ (x − centre)^power exp E over all x, for batch shape (1,), by the trapezoidal rule.

    Over 14 standard deviations on either side, where it is exact to rounding for normal densities.
    """
    low, high = (end.item() for end in conditional.bounds())
    middle, half = (low + high) / 2, (high - low) / 2 * 14 / 8.5
    x = torch.linspace(middle - half, middle + half, 4001, dtype=torch.float64)
    energy = conditional.energy(x[None])[0]
    peak = conditional.energy(torch.tensor([[centre]], dtype=torch.float64)).item()
    return ((x - centre) ** power * (energy - peak).exp()).sum().item() * 2 * half / 4000


@pytest.mark.parametrize("sigma", [3.0, 5.0], ids=["at the level", "above it"])
@pytest.mark.parametrize("scale", SCALES)
def test_conditionals_are_normal_from_the_level_on(scale: float, sigma: float) -> None:
    conditional = random_conditionals(scale, sigma, count=5, seed=2, normal_at=3.0)
    assert not conditional.height.any()
    found = conditional.normal()
    assert found is not None
    x = points_of_interest(conditional)
    mean, std = (part[:, None] for part in found)
    known = torch.distributions.Normal(mean, std).log_prob(x)
    energy = conditional.energy(x)
    difference = energy - known
    rounding = 1e-13 * (1 + energy.abs().amax(-1))
    assert bool((difference.amax(-1) - difference.amin(-1) <= rounding).all())
    for index in range(5):
        one, centre = one_of(conditional, index), mean[index].item()
        mass, first, second = (integral(one, power, centre) for power in range(3))
        spread = std[index].item()
        assert first / mass == pytest.approx(0, abs=1e-8 * (spread + abs(centre)))
        assert second / mass == pytest.approx(spread**2, rel=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_whatever_the_level_is_it_is_reached(dtype: torch.dtype) -> None:
    for level in torch.linspace(2, 9, 71).tolist():
        head = TanhSumHead(4, steps=3, normal_at=level).to(dtype)
        family = head.family(torch.randn(2, 4, dtype=dtype))
        assert family.at(level).normal() is not None
        assert family.at(level * (1 - 1e-3)).normal() is None


def test_steps_make_a_conditional_that_is_not_normal() -> None:
    assert random_conditionals(1.0, 3.0, count=2).normal() is None
    below = random_conditionals(1.0, 2.9, count=2, normal_at=3.0)
    assert below.normal() is None and bool((below.height != 0).any())


def test_heights_vanish_with_the_square_of_the_noise() -> None:
    """Towards the level they are 1 − (σ/level)² of what they would be; rising ones, exactly."""
    for sigma in (0.3, 1.5, 2.7):
        free = random_conditionals(1.0, sigma, count=6)
        limited = random_conditionals(1.0, sigma, count=6, normal_at=3.0)
        rising = free.height > 0
        assert torch.equal(rising, limited.height > 0) and bool(rising.any())
        expected = free.height * (1 - (sigma / 3) ** 2)
        torch.testing.assert_close(limited.height[rising], expected[rising])
        assert bool((limited.height.abs() <= free.height.abs()).all())


def test_conditionals_may_be_ten_times_as_wide_as_the_noisy_marginal_and_no_wider() -> None:
    """With v = 1 + σ²: a pull of −0.9σ leaves the variance v σ/(σ − 0.9σ) = 10 v."""
    head = TanhSumHead(2, steps=3, normal_at=3.0).double().requires_grad_(False)
    head.output.weight.zero_()
    for narrowing, widest in ((-30.0, True), (-4.0, False), (30.0, False)):
        head.output.bias.copy_(torch.cat([torch.zeros(10), torch.tensor([narrowing])]))
        conditional = head.family(torch.zeros(1, 2, dtype=torch.float64)).at(3.0)
        found = conditional.normal()
        assert found is not None
        variance = found[1].square().item()
        if widest:
            assert conditional.pull.item() == pytest.approx(-0.9 * 3.0, rel=1e-6)
            assert variance == pytest.approx(10 * (1 + 3.0**2), rel=1e-6)
        else:
            assert 0 < variance < 10 * (1 + 3.0**2) * 0.9
    assert variance < 1 + 3.0**2  # the last one is pulled inwards


@every_size_and_limit
def test_slope_is_limited_from_below_towards_the_level(scale: float, share: float) -> None:
    for level in (0.5, 3.0):
        sigma = share * level
        conditional = random_conditionals(scale, sigma, count=24, seed=4, normal_at=level)
        assert bool((conditional.pull >= -0.9 * sigma * share**2 * (1 + 1e-12)).all())
        _, derivative = conditional.jet(points_of_interest(conditional))
        assert derivative.min().item() >= -SLOPE_LIMIT / sigma**2


def test_pulls_are_below_zero_for_some() -> None:
    conditional = random_conditionals(1.0, 2.0, count=100, seed=4, normal_at=3.0)
    assert conditional.pull.min().item() < 0 < conditional.pull.max().item()


@every_size_and_limit
def test_bounds_and_ceiling_hold_towards_the_level(scale: float, share: float) -> None:
    """E → −∞ also where the pull is negative, and what lies beyond the bounds is next to nothing.

    Beyond an end with the score s < 0, E is concave from there on or falls at least as fast as a
    parabola of curvature (1 + q/σ)/v: the mass outside is below exp E/|s|.
    """
    conditional = random_conditionals(scale, 3.0 * share, count=6, seed=9, normal_at=3.0)
    low, high = (end[:, None] for end in conditional.bounds())
    edges = points_of_interest(conditional)
    place = torch.linspace(0, 1, 33, dtype=torch.float64)
    inside = edges[..., :-1, None] + edges.diff()[..., None] * place
    energy = conditional.energy(inside.flatten(-2)).unflatten(-1, inside.shape[-2:])
    rounding = 1e-13 * (1 + energy.abs().amax())
    assert bool((energy <= conditional.ceiling(edges)[..., None] + rounding).all())
    top = energy.flatten(1).amax(1, keepdim=True)
    bend = (1 + conditional.pull / conditional.sigma) / (1 + conditional.sigma**2)
    assert bool((bend > 0).all())
    for end, outwards in ((low, -1.0), (high, 1.0)):
        beyond = end + outwards * torch.logspace(-3, 4, 50, dtype=torch.float64)
        score, _ = conditional.jet(torch.cat([end, beyond], 1))
        # At the end 8.5 standard deviations of the parabola, and so on: s = −(x − centre) · bend.
        least = 8.5 * bend.sqrt()[:, None] + bend[:, None] * (beyond - end).abs()
        assert bool((-outwards * score[:, 1:] >= least * (1 - 1e-9)).all())
        assert bool((conditional.energy(end) <= top - 8.5**2 / 2 + rounding).all())


def test_a_head_without_a_level_is_what_it_was() -> None:
    """The formulas of the head, written out."""
    head = random_head(1.0, seed=3, steps=4)
    context, sigma = normal(3, 8), 0.7
    found = head.family(context).at(sigma)
    angles = math.log(sigma) * torch.tensor([0.25, 0.5, 1.0, 2.0], dtype=torch.float64)
    noise = torch.cat([angles.sin(), angles.cos()])
    raw = head.output(torch.nn.functional.silu(context + head.noise(noise)))
    raw = raw / (1 + raw.abs() / COEFFICIENT_LIMIT)
    height, slope, centre, rest = raw.split([4, 4, 4, 2], -1)
    slope = (slope / 4 + math.log1p(1 / sigma) * head.sharpness).exp()
    pull = (1 + rest[:, 1].exp()).log()
    share = 1 / (1 + sigma / SLOPE_LIMIT * (pull - (height.clamp(max=0) * slope).sum(-1)))
    torch.testing.assert_close(found.offset, rest[:, 0])
    torch.testing.assert_close(found.pull, pull * torch.minimum(share, 1 / (1 + pull * sigma)))
    torch.testing.assert_close(
        found.height, torch.where(height < 0, height * share[:, None], height)
    )
    torch.testing.assert_close(found.slope, slope)
    torch.testing.assert_close(found.centre, centre)


@pytest.mark.parametrize("normal_at", [0.0, -1.0, math.nan])
def test_bad_levels_are_refused(normal_at: float) -> None:
    with pytest.raises(InputError, match=r"expected a positive normal_at, got .*; or None"):
        TanhSumHead(4, normal_at=normal_at)


@pytest.mark.parametrize("normal_at", [None, 2.5])
def test_config_keeps_the_level(normal_at: float | None) -> None:
    head = TanhSumHead(4, steps=3, normal_at=normal_at)
    again = TanhSumHead(**json.loads(json.dumps(head.config)))
    assert again.normal_at == normal_at and again.config == head.config
    again.load_state_dict(head.state_dict())
    x, context = torch.randn(2, 3), torch.randn(2, 4)
    for sigma in (0.1, 2.0, 2.5):
        assert torch.equal(
            head.family(context).at(sigma).energy(x), again.family(context).at(sigma).energy(x)
        )


# How jets are computed.


def jet_by_tanh(conditional: TanhSum, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return s and s' by the formulas of the documentation."""
    sigma = conditional.sigma[..., None]
    root = (1 + sigma**2).sqrt()
    u = x / root
    slope = conditional.slope[..., None, :]
    step = torch.tanh(slope * (u[..., None] - conditional.centre[..., None, :]))
    height, pull = conditional.height[..., None, :], conditional.pull[..., None]
    value = conditional.offset[..., None] - pull * u + (height * step).sum(-1)
    derivative = -pull + (height * slope * (1 - step**2)).sum(-1)
    return -x / root**2 + value / (sigma * root), -1 / root**2 + derivative / (sigma * root**2)


@every_size
def test_logistic_functions_are_the_tanh(scale: float, sigma: float) -> None:
    conditional = random_conditionals(scale, sigma, count=4, seed=8)
    x = points_of_interest(conditional)
    for _ in range(2):  # the second time from what the first one has kept
        for found, expected in zip(conditional.jet(x), jet_by_tanh(conditional, x), strict=True):
            magnitude = expected.abs().amax(-1, keepdim=True)
            assert bool(((found - expected).abs() <= 1e-12 * magnitude).all())


def leaves(seed: int = 0) -> TanhSum:
    """Return conditionals whose coefficients are leaves of their own."""
    made = random_conditionals(1.0, 0.4, count=3, seed=seed)
    parts = (getattr(made, name) for name in ("sigma", "offset", "pull"))
    steps = (getattr(made, name) for name in ("height", "slope", "centre"))
    return TanhSum(*(part.clone().requires_grad_() for part in (*parts, *steps)))


COEFFICIENTS = ("sigma", "offset", "pull", "height", "slope", "centre")


def gradients(jet: tuple[Tensor, Tensor], conditional: TanhSum) -> list[Tensor]:
    score, derivative = jet
    loss = (score.square() / 2 + derivative).sum()
    return list(torch.autograd.grad(loss, [getattr(conditional, name) for name in COEFFICIENTS]))


@pytest.mark.parametrize("before", ["nothing", "no_grad", "with a graph", "detached points"])
def test_gradients_do_not_depend_on_jets_taken_before(before: str) -> None:
    conditional = leaves()
    x = normal(3, 7, seed=4)
    expected = gradients(jet_by_tanh(conditional, x), conditional)
    if before == "no_grad":
        with torch.no_grad():
            conditional.jet(x)
    elif before == "with a graph":
        conditional.jet(x)
    elif before == "detached points":
        conditional.jet(x.clone().requires_grad_())
    for _ in range(2):  # and twice: the first backward pass frees its graph
        found = gradients(conditional.jet(x), conditional)
        for part, value in zip(found, expected, strict=True):
            torch.testing.assert_close(part, value, rtol=1e-10, atol=1e-10)
    with torch.no_grad():
        score, _ = conditional.jet(x)
    assert not score.requires_grad
    torch.testing.assert_close(score, jet_by_tanh(conditional, x)[0])


@pytest.mark.slow
def test_compiled_jets_are_the_eager_ones() -> None:
    conditional = leaves(seed=2)
    x = normal(3, 7, seed=4)
    with torch.no_grad():
        conditional.jet(x)  # fills what a graph must not look at

    def jet(*coefficients: Tensor) -> tuple[Tensor, Tensor]:
        return TanhSum(*coefficients).jet(x)

    parts = [getattr(conditional, name) for name in COEFFICIENTS]
    compiled = torch.compile(jet, backend="aot_eager", fullgraph=True)(*parts)
    whole = torch.compile(lambda points: conditional.jet(points), backend="eager", fullgraph=True)
    for found in (compiled, whole(x)):
        torch.testing.assert_close(found, jet_by_tanh(conditional, x), rtol=1e-10, atol=1e-10)
    expected = gradients(jet_by_tanh(conditional, x), conditional)
    torch.testing.assert_close(gradients(compiled, conditional), expected, rtol=1e-9, atol=1e-9)
    torch._dynamo.reset()
