"""The model: one density, whether it is evaluated, differentiated, integrated or sampled."""

import copy
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from known import normal, seeded
from scipy import stats
from torch import Tensor

import arcsm.autoregressive
import arcsm.scoring
from arcsm.conditional import Noise, Quadrature, TanhSumHead, annealed_langevin
from arcsm.context import MADE
from arcsm.errors import InputError
from arcsm.model import ARCSM
from arcsm.objectives import Perturbation

DENSITIES = ("flow", "quadrature")
every_density = pytest.mark.parametrize("density", DENSITIES)
every_order = pytest.mark.parametrize("order", ["natural", [2, 0, 1]], ids=["natural", "mixed"])
every_unit = pytest.mark.parametrize("decorrelate", [False, True], ids=["plain", "decorrelated"])


def random_model(
    dims: int,
    *,
    order: Any = "natural",
    density: str = "flow",
    condition_dims: int = 0,
    sigma_min: float = 0.2,
    steps: int = 5,
    seed: int = 0,
    **options: Any,
) -> ARCSM:
    """Return a model in float64 whose conditionals are far from normal, in units of their own."""
    model = ARCSM.made(
        dims,
        hidden=(16, 16),
        width=6,
        steps=steps,
        frequencies=1,
        order=order,
        density=density,
        condition_dims=condition_dims,
        noise=Noise(3.0, sigma_min),
        seed=seed,
        **options,
    ).double()
    g = seeded(seed + 100)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.4 * torch.randn(parameter.shape, generator=g, dtype=torch.float64))
    rows = normal(200, dims, seed=3)
    if model.decorrelate:  # each column with the one before it, and the first with the last
        rows = rows + 0.7 * rows.roll(1, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arcsm.autoregressive, "_NARROW", math.inf)  # regress every column
        model.standardise(units(rows))
    return model.requires_grad_(False)


def units(z: Tensor) -> Tensor:
    """Return columns of different location and scale."""
    d = torch.arange(z.shape[1], dtype=z.dtype)
    return z * (3.0 / (1 + d)) + 10 * d - 4


@every_unit
@every_order
def test_scores_are_the_derivatives_of_the_log_density(order: Any, decorrelate: bool) -> None:
    """In the units of the data, by difference quotients of fourth order."""
    model = random_model(3, order=order, decorrelate=decorrelate)
    x = units(normal(6, 3, seed=1))
    score, derivative = model.conditional_scores(x)
    for d in range(3):

        def term(shift: float, d: int = d) -> Tensor:
            moved = x.clone()
            moved[:, d] += shift
            return model.log_prob_terms(moved, method="quadrature")[0][:, d]

        h = 2e-3 * model.scale[d].item()
        far, near = (term(2 * h), term(-2 * h)), (term(h), term(-h))
        slope = (8 * (near[0] - near[1]) - (far[0] - far[1])) / (12 * h)
        bend = (16 * (near[0] + near[1]) - (far[0] + far[1]) - 30 * term(0.0)) / (12 * h**2)
        unit = 1 / model.scale[d].item()
        torch.testing.assert_close(score[:, d], slope, rtol=1e-6, atol=1e-6 * unit)
        torch.testing.assert_close(derivative[:, d], bend, rtol=1e-4, atol=1e-4 * unit**2)


@every_unit
@every_order
def test_scores_are_the_gradient_of_the_quadrature_density(order: Any, decorrelate: bool) -> None:
    model = random_model(3, order=order, decorrelate=decorrelate)
    x = units(normal(6, 3, seed=1))
    score, derivative = model.conditional_scores(x)
    spread = model.deviation if decorrelate else model.scale
    context = model.context((x - model.shift) / spread)
    for d in range(3):
        conditional = model.head.family(context[:, d]).at(model.noise.sigma_min)
        value = x[:, d : d + 1].clone().requires_grad_()
        centre = model.shift[d] + (
            (x - model.shift) @ model.regression[d] if model.regression is not None else 0
        )
        log_prob = Quadrature(conditional).log_prob(
            (value - centre.expand(6)[:, None]) / model.scale[d]
        )
        (slope,) = torch.autograd.grad(log_prob.sum(), value, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sum(), value)
        torch.testing.assert_close(score[:, d], slope[:, 0], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(derivative[:, d], bend[:, 0], rtol=1e-9, atol=1e-9)
        terms, _ = model.log_prob_terms(x, method="quadrature")
        expected = log_prob[:, 0] - model.scale[d].log()
        torch.testing.assert_close(terms[:, d], expected, rtol=1e-6, atol=1e-6)


def test_scores_at_another_noise_level() -> None:
    model = random_model(2)
    x = units(normal(5, 2))
    z = (x - model.shift) / model.scale
    for sigma in (3.0, 0.5):
        score, _ = model.conditional_scores(x, sigma=sigma)
        for d in range(2):
            conditional = model.head.family(model.context(z)[:, d]).at(sigma)
            expected, _ = conditional.jet(z[:, d : d + 1])
            torch.testing.assert_close(score[:, d], expected[:, 0] / model.scale[d])
    default, _ = model.conditional_scores(x)
    explicit, _ = model.conditional_scores(x, sigma=0.2)
    assert torch.equal(default, explicit)


def panels(conditional: Any, rows: int, count: int) -> tuple[Tensor, Tensor]:
    """Return nodes and weights of Gauss's rule, `count` of them between neighbouring quantiles."""
    tail = [1e-7, 1e-4, 0.01, 0.1, 0.3]
    p = torch.tensor([*tail, 0.5, *(1 - q for q in reversed(tail))], dtype=torch.float64)
    edges = conditional.quantile(p.expand(rows, -1))
    nodes, weights = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(count))
    half = edges.diff()[..., None] / 2
    return (edges[:, :-1, None] + half * (nodes + 1)).flatten(1), (half * weights).flatten(1)


@pytest.mark.parametrize(
    ("density", "order", "decorrelate"),
    [
        ("flow", "natural", False),
        ("flow", [1, 0], False),
        ("flow", [1, 0], True),
        ("quadrature", [1, 0], False),
        ("quadrature", "natural", True),
    ],
)
def test_density_integrates_to_one_over_the_plane(
    density: str, order: Any, decorrelate: bool
) -> None:
    model = random_model(
        2, order=order, density=density, sigma_min=0.4, steps=3, decorrelate=decorrelate
    )
    first, second = model.context.order
    count = {"flow": 6, "quadrature": 4}[density]  # the flow makes narrower features
    marginal = model.conditional(model.shift[None], first)
    outer, outer_weight = (part[0] for part in panels(marginal, 1, count))
    rows = model.shift.repeat(len(outer), 1)
    rows[:, first] = outer
    inner, inner_weight = panels(model.conditional(rows, second), len(rows), count)
    x = rows[:, None].repeat(1, inner.shape[1], 1)
    x[..., second] = inner
    height = model.log_prob(x.flatten(0, 1)).exp().view_as(inner)
    mass = (outer_weight[:, None] * inner_weight * height).sum().item()
    assert mass == pytest.approx(1, abs=1e-4)


@every_unit
@every_density
@every_order
def test_terms_conditionals_and_the_joint_are_one_density(
    density: str, order: Any, decorrelate: bool
) -> None:
    model = random_model(3, order=order, density=density, decorrelate=decorrelate)
    x = units(normal(5, 3, seed=2))
    terms, error = model.log_prob_terms(x)
    torch.testing.assert_close(model.log_prob(x), terms.sum(-1))
    assert error.shape == x.shape and bool((error > 0).all()) and error.max().item() < 2e-7
    p = torch.tensor([0.001, 0.3, 0.5, 0.8, 0.9999], dtype=torch.float64).expand(5, -1)
    for d in range(3):
        conditional = model.conditional(x, d)
        torch.testing.assert_close(
            conditional.log_prob(x[:, d : d + 1])[:, 0], terms[:, d], rtol=0, atol=2e-7
        )
        quantile = conditional.quantile(p)
        torch.testing.assert_close(conditional.cdf(quantile), p, rtol=0, atol=2e-7)
        h = 1e-4 * model.scale[d]
        density_found = (conditional.cdf(quantile + h) - conditional.cdf(quantile - h)) / (2 * h)
        expected = conditional.log_prob(quantile).exp()
        torch.testing.assert_close(
            density_found, expected, rtol=1e-5, atol=1e-7 / model.scale[d].item()
        )


@every_unit
@every_order
def test_only_earlier_scalars_matter(order: Any, decorrelate: bool) -> None:
    model = random_model(3, order=order, decorrelate=decorrelate)
    x = units(normal(4, 3))
    terms, _ = model.log_prob_terms(x)
    score, _ = model.conditional_scores(x)
    for place, d in enumerate(model.context.order):
        later = list(model.context.order[place + 1 :])
        changed = x.clone()
        changed[:, later] += 50.0
        torch.testing.assert_close(model.log_prob_terms(changed)[0][:, d], terms[:, d])
        torch.testing.assert_close(model.conditional_scores(changed)[0][:, d], score[:, d])
        changed[:, d] += 50.0
        found = model.conditional(changed, d).log_prob(x[:, d : d + 1])[:, 0]
        torch.testing.assert_close(found, terms[:, d])
        if place:
            before = x.clone()
            before[:, model.context.order[0]] += model.scale[model.context.order[0]]
            difference = model.log_prob_terms(before)[0][:, d] - terms[:, d]
            assert difference.abs().min().item() > 1e-6


def test_standardisation_changes_units_only() -> None:
    model = random_model(3)
    plain = copy.deepcopy(model)
    plain.shift.zero_()
    plain.scale.fill_(1.0)
    x = units(normal(5, 3))
    z = (x - model.shift) / model.scale
    torch.testing.assert_close(model.log_prob(x), plain.log_prob(z) - model.scale.log().sum())
    score, derivative = model.conditional_scores(x)
    plain_score, plain_derivative = plain.conditional_scores(z)
    torch.testing.assert_close(score, plain_score / model.scale)
    torch.testing.assert_close(derivative, plain_derivative / model.scale**2)
    draws = [m.sample(4, generator=seeded(1)) for m in (model, plain)]
    torch.testing.assert_close(draws[0], draws[1] * model.scale + model.shift)


def test_standardise_takes_mean_and_standard_deviation() -> None:
    model = ARCSM.made(2, hidden=(8,))
    x = units(normal(50, 2))
    model.standardise(x)
    torch.testing.assert_close(model.shift.double(), x.mean(0), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(model.scale.double(), x.std(0, correction=0), rtol=1e-6, atol=1e-6)


@every_unit
@every_density
@every_order
def test_samples_are_quantiles_of_the_uniforms_drawn(
    density: str, order: Any, decorrelate: bool
) -> None:
    """The probability integral transform gives back the numbers that the samples were made of."""
    model = random_model(3, order=order, density=density, decorrelate=decorrelate)
    x = model.sample(40, generator=seeded(5))
    uniform = torch.rand((40, 3), generator=seeded(5), dtype=torch.float64)
    for d in model.context.order:
        transformed = model.conditional(x, d).cdf(x[:, d : d + 1])
        torch.testing.assert_close(transformed, uniform[:, d : d + 1], rtol=0, atol=2e-7)


@every_density
def test_samples_in_single_precision(density: str) -> None:
    model = random_model(2, density=density, sigma_min=0.05).float()
    x = model.sample(200, generator=seeded(5))
    assert x.dtype == torch.float32
    uniform = torch.rand((200, 2), generator=seeded(5))
    for d in range(2):
        transformed = model.conditional(x, d).cdf(x[:, d : d + 1])
        torch.testing.assert_close(transformed, uniform[:, d : d + 1], rtol=0, atol=1e-4)
    single, double = model.log_prob(x), copy.deepcopy(model).double().log_prob(x.double())
    torch.testing.assert_close(single.double(), double, rtol=0, atol=2e-3)


@every_unit
@every_density
def test_samples_follow_the_log_density(density: str, decorrelate: bool) -> None:
    """A Kolmogorov-Smirnov test against CDFs that Gauss's rule integrates from log_prob."""
    model = random_model(2, order=[1, 0], density=density, sigma_min=0.3, decorrelate=decorrelate)
    x = model.sample(200, generator=seeded(2))
    nodes, weights = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(64))
    transformed = []
    for d in model.context.order:
        conditional, value = model.conditional(x, d), x[:, d : d + 1]
        ends = torch.tensor([[1e-7, 1 - 1e-7]], dtype=torch.float64).expand(200, -1)
        low, high = conditional.quantile(ends).split(1, -1)
        below, above = (
            ((b - a) / 2 * weights * conditional.log_prob(a + (b - a) / 2 * (nodes + 1)).exp())
            for a, b in ((low, value), (value, high))
        )
        total = below.sum(-1) + above.sum(-1)
        torch.testing.assert_close(total, torch.ones(200).double(), rtol=0, atol=1e-3)
        transformed.append((below.sum(-1) / total).numpy())
        assert stats.kstest(transformed[-1], "uniform").pvalue > 0.01
    assert stats.spearmanr(*transformed).pvalue > 0.01


@every_density
def test_other_methods_name_the_densities(density: str) -> None:
    model = random_model(2, density=density)
    other = copy.deepcopy(model)
    other.density = DENSITIES[1 - DENSITIES.index(density)]
    x = units(normal(4, 2))
    for method, reference in ((density, model), (other.density, other)):
        assert torch.equal(model.log_prob(x, method=method), reference.log_prob(x))
        assert torch.equal(
            model.sample(4, method=method, generator=seeded(1)),
            reference.sample(4, generator=seeded(1)),
        )
    # A random network is no solution of the heat equation: the two densities differ.
    assert not torch.allclose(model.log_prob(x), other.log_prob(x), atol=1e-3)


@pytest.mark.parametrize(("steps", "step_size"), [(20, None), (3, 1e-3)])
@pytest.mark.parametrize("levels", [None, 4])
def test_langevin_walks_the_order(levels: int | None, steps: int, step_size: float | None) -> None:
    model = random_model(3, order=[2, 0, 1])
    model.noise = Noise(3.0, 0.2, levels=levels)
    options = {} if step_size is None else {"langevin_steps": 3, "langevin_step_size": step_size}
    found = model.sample(5, method="langevin", generator=seeded(3), **options)
    g = seeded(3)
    z = torch.zeros(5, 3, dtype=torch.float64)
    ladder = model.noise.ladder(levels or 10)
    for d in (2, 0, 1):
        start = torch.randn((5, 1), generator=g, dtype=torch.float64)
        family = model.head.family(model.context(z)[:, d])
        size = 0.2**2 / 2 if step_size is None else step_size
        drawn = annealed_langevin(family, start, ladder, steps=steps, step_size=size, generator=g)
        z[:, d] = drawn[:, 0]
    torch.testing.assert_close(found, z * model.scale + model.shift)


@pytest.mark.parametrize("method", ["auto", "quadrature", "langevin"])
def test_seeds_reproduce_samples(method: str) -> None:
    model = random_model(2)
    draws = [model.sample(6, method=method, generator=seeded(seed)) for seed in (1, 1, 2)]
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])


def test_seeds_reproduce_weights_and_leave_the_generator_alone() -> None:
    before = torch.get_rng_state()
    models = [ARCSM.made(2, hidden=(8,), order="random", seed=seed) for seed in (1, 1, 2)]
    assert torch.equal(torch.get_rng_state(), before)
    states = [torch.cat([p.flatten() for p in model.parameters()]) for model in models]
    assert torch.equal(states[0], states[1]) and not torch.equal(states[0], states[2])
    assert models[0].context.order == models[1].context.order


@every_unit
@every_density
def test_config_makes_the_model_anew(density: str, decorrelate: bool) -> None:
    model = random_model(
        3,
        order="random",
        density=density,
        condition_dims=2,
        head_depth=2,
        flow_steps=40,
        decorrelate=decorrelate,
    )
    config = json.loads(json.dumps(model.config))
    again = ARCSM.from_config(config).double()
    x, condition = units(normal(4, 3)), normal(4, 2, seed=8)
    assert not torch.equal(
        again.log_prob(x, condition=condition), model.log_prob(x, condition=condition)
    )
    again.load_state_dict(model.state_dict())
    assert torch.equal(
        again.log_prob(x, condition=condition), model.log_prob(x, condition=condition)
    )
    assert torch.equal(
        again.sample(4, condition=condition, generator=seeded()),
        model.sample(4, condition=condition, generator=seeded()),
    )
    assert again.config == model.config
    assert torch.equal(again.shift, model.shift) and torch.equal(again.scale, model.scale)


def test_config_of_an_unknown_part_is_refused() -> None:
    config = random_model(2).config
    config["context"]["kind"] = "Transformer"
    with pytest.raises(InputError, match=r"expected a part among MADE.* got 'Transformer'"):
        ARCSM.from_config(config)


@every_density
def test_condition_changes_the_density(density: str) -> None:
    model = random_model(2, density=density, condition_dims=2)
    x = units(normal(5, 2))
    conditions = [normal(5, 2, seed=seed) for seed in (1, 2)]
    terms = [model.log_prob_terms(x, condition=condition)[0] for condition in conditions]
    assert (terms[0] - terms[1]).abs().min().item() > 1e-4  # of every scalar, the first as well
    scores = [model.conditional_scores(x, condition=condition)[0] for condition in conditions]
    assert (scores[0] - scores[1]).abs().min().item() > 1e-4
    draws = [model.sample(5, condition=c, generator=seeded(1)) for c in conditions]
    uniform = torch.rand((5, 2), generator=seeded(1), dtype=torch.float64)
    for d in range(2):
        for draw, condition in zip(draws, conditions, strict=True):
            conditional = model.conditional(draw, d, condition=condition)
            found = conditional.cdf(draw[:, d : d + 1])
            torch.testing.assert_close(found, uniform[:, d : d + 1], rtol=0, atol=2e-7)


def test_results_do_not_depend_on_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(3)
    x = units(normal(7, 3))
    whole = model.log_prob_terms(x), model.sample(7, generator=seeded())
    monkeypatch.setattr(arcsm.scoring, "_CHUNK", 4)
    parts = model.log_prob_terms(x), model.sample(7, generator=seeded())
    torch.testing.assert_close(parts[0][0], whole[0][0], rtol=0, atol=2e-7)
    torch.testing.assert_close(parts[1], whole[1], rtol=1e-5, atol=1e-5)


def test_flow_steps_are_those_asked_for() -> None:
    x = units(normal(4, 2))
    few, many, most = (random_model(2, flow_steps=steps).log_prob(x) for steps in (None, 300, 600))
    assert (many - most).abs().max().item() < 0.1 * (few - most).abs().max().item()
    with pytest.raises(InputError, match=r"expected at least 13 flow steps .* got 12"):
        random_model(2, flow_steps=12).log_prob(x)


@every_unit
@pytest.mark.parametrize("mix", [0.0, 0.5, 1.0])
def test_loss_terms_without_noise_are_made_of_the_scores(mix: float, decorrelate: bool) -> None:
    """At ε = ε̂ = 0 a term is σ²(1 + σ²) [½ s² + (1 − mix) s'], in standardised units."""
    model = random_model(3, decorrelate=decorrelate)
    x = units(normal(6, 3))
    levels = (0.2, 1.0)
    sigma = torch.tensor(levels, dtype=torch.float64).expand(6, 1, 2)
    noise = Perturbation(sigma, torch.zeros(6, 3, 2).double(), torch.zeros(6, 3).double())
    expected = torch.zeros(6, dtype=torch.float64)
    for level in levels:
        score, derivative = model.conditional_scores(x, sigma=level)
        score, derivative = score * model.scale, derivative * model.scale**2
        term = level**2 * (1 + level**2) * (score**2 / 2 + (1 - mix) * derivative)
        expected += term.sum(-1) / 2
    torch.testing.assert_close(model.loss_terms(x, noise, mix=mix), expected)


@every_unit
def test_jitter_moves_the_targets_and_not_the_contexts(decorrelate: bool) -> None:
    """By hand: the score of x_d + jitter_d given x_<d, of scalar after scalar."""
    model = random_model(3, order=[2, 0, 1], decorrelate=decorrelate)
    x, jitter = units(normal(5, 3)), 0.4 * normal(5, 3, seed=7)
    sigma = 0.7
    noise = Perturbation(
        torch.full((5, 1, 1), sigma).double(), torch.zeros(5, 3, 1).double(), torch.zeros_like(x)
    )
    expected = torch.zeros(5, dtype=torch.float64)
    for d in range(3):
        moved = x.clone()
        moved[:, d] += jitter[:, d]  # later contexts see it, but this score does not look there
        score, derivative = model.conditional_scores(moved, sigma=sigma)
        score, derivative = score * model.scale, derivative * model.scale**2
        expected += sigma**2 * (1 + sigma**2) * (score**2 / 2 + derivative / 2)[:, d]
    torch.testing.assert_close(model.loss_terms(x, noise, jitter=jitter), expected)
    plain = model.loss_terms(x, noise)
    assert torch.equal(model.loss_terms(x, noise, jitter=torch.zeros_like(x)), plain)
    assert (plain - expected).abs().min().item() > 1e-4


def test_loss_moves_towards_the_data() -> None:
    """A few steps of gradient descent on the loss raise the likelihood of held-out rows."""
    model = ARCSM.made(2, hidden=(16, 16), steps=4, noise=Noise(3.0, 0.2), seed=0)
    g = seeded(1)

    def data(rows: int) -> Tensor:
        first = torch.randn((rows, 1), generator=g)
        return torch.cat([first, first.sin() + 0.3 * torch.randn((rows, 1), generator=g)], 1)

    held_out = data(200)
    model.standardise(held_out)
    before = model.log_prob(held_out).mean().item()
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(60):
        x = data(256)
        optimiser.zero_grad()
        model.loss_terms(x, model.draw_noise(256, generator=g)).mean().backward()
        optimiser.step()
    assert model.log_prob(held_out).mean().item() > before + 0.2


def test_noise_for_training_has_more_levels_for_fewer_columns() -> None:
    for dims, levels in ((1, 4), (2, 4), (3, 2), (4, 2), (8, 1), (20, 1)):
        model = ARCSM.made(dims, hidden=(8,))
        noise = model.draw_noise(5)
        points = (4,) if dims <= 8 else ()
        assert noise.sigma.shape[-1] == levels
        assert noise.epsilon.shape == (5, dims, levels, *points)
        assert model.draw_noise(5, points=1).epsilon.shape == (5, dims, levels)


def with_value(value: float) -> Tensor:
    x = torch.zeros(4, 2)
    x[3, 1] = value
    return x


BAD_ROWS: dict[str, tuple[Any, str]] = {
    "NaN": (with_value(math.nan), "finite numbers in x, got nan in row 3, column 1"),
    "infinity": (with_value(math.inf), "finite numbers in x, got inf in row 3, column 1"),
    "empty": (torch.zeros(0, 2), r"rows and columns, got shape \(0, 2\)"),
    "too few columns": (torch.zeros(4, 1), "x with 2 columns, got 1"),
    "too many columns": (torch.zeros(4, 3), "x with 2 columns, got 3"),
    "one row alone": (torch.zeros(2), r"shape \(rows, columns\), got shape \(2,\)"),
    "whole numbers": (torch.zeros(4, 2, dtype=torch.long), "float32 or float64, got int64"),
    "half precision": (torch.zeros(4, 2).half(), "float32 or float64, got float16"),
    "objects": (torch.zeros(4, 2).numpy().astype(object), "float32 or float64, got object"),
    "a list": ([[0.0, 0.0]], "numpy array or a torch tensor, got list"),
}


@pytest.mark.parametrize("use", ["log_prob", "log_prob_terms", "conditional_scores", "conditional"])
@pytest.mark.parametrize("name", BAD_ROWS)
def test_bad_rows_are_refused(name: str, use: str) -> None:
    model = ARCSM.made(2, hidden=(8,))
    x, message = BAD_ROWS[name]
    arguments = (x, 0) if use == "conditional" else (x,)
    with pytest.raises(InputError, match=f"expected .*{message}"):
        getattr(model, use)(*arguments)


BAD_CALLS: dict[str, tuple[Any, str]] = {
    "sigma of zero": (
        lambda m: m.conditional_scores(torch.zeros(2, 2), sigma=0.0),
        "a positive sigma, got 0.0",
    ),
    "negative sigma": (
        lambda m: m.conditional_scores(torch.zeros(2, 2), sigma=-1.0),
        "a positive sigma, got -1.0",
    ),
    "negative column": (lambda m: m.conditional(torch.zeros(2, 2), -1), "d from 0 to 1, got -1"),
    "missing column": (lambda m: m.conditional(torch.zeros(2, 2), 2), "d from 0 to 1, got 2"),
    "no samples": (lambda m: m.sample(0), "a positive whole number of samples, got 0"),
    "samples of a fraction": (lambda m: m.sample(2.5), "whole number of samples, got 2.5"),
    "method of sampling": (lambda m: m.sample(2, method="gibbs"), "a method .* got 'gibbs'"),
    "method of evaluation": (
        lambda m: m.log_prob(torch.zeros(2, 2), method="langevin"),
        "a density .* got 'langevin'",
    ),
    "step size of zero": (
        lambda m: m.sample(2, method="langevin", langevin_step_size=0.0),
        "a positive step size, got .* step_size=0.0",
    ),
    "unwanted condition": (
        lambda m: m.log_prob(torch.zeros(2, 2), condition=torch.zeros(2, 1)),
        r"no condition, got shape \(2, 1\)",
    ),
    "constant column": (
        lambda m: m.standardise(torch.tensor([[0.1, 1.0], [0.1, 2.0], [0.1, 3.0]]).double()),
        r"columns that vary, got constant columns \[0\]",
    ),
    "one row to standardise by": (
        lambda m: m.standardise(torch.ones(1, 2)),
        r"columns that vary, got constant columns \[0, 1\]",
    ),
    "order": (lambda m: ARCSM.made(2, order=[0, 0]), r"a permutation of 0 … 1, got \[0, 0\]"),
    "noise": (lambda m: ARCSM.made(2, noise=Noise(1.0, 0.0)), "positive .*sigma_min, got 0.0"),
    "density": (lambda m: ARCSM.made(2, density="kde"), "a density among .* got 'kde'"),
    "widths": (
        lambda m: ARCSM(MADE(2, width=4), TanhSumHead(5), Noise()),
        "a head for contexts of width 4, got one for 5",
    ),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_bad_calls_are_refused(name: str) -> None:
    call, message = BAD_CALLS[name]
    with pytest.raises(InputError, match=f"expected .*{message}"):
        call(ARCSM.made(2, hidden=(8,)))


def test_one_scalar_is_a_model_too() -> None:
    model = random_model(1)
    x = model.sample(300, generator=seeded(4))
    assert stats.kstest(model.conditional(x[:1], 0).cdf(x.T)[0].numpy(), "uniform").pvalue > 0.01
    terms, _ = model.log_prob_terms(x)
    torch.testing.assert_close(terms[:, 0], model.conditional(x[:1], 0).log_prob(x.T)[0])


def test_numpy_rows_are_rows() -> None:
    model = random_model(2)
    x = units(normal(4, 2))
    assert torch.equal(model.log_prob(x.numpy()), model.log_prob(x))


@pytest.mark.parametrize("sigma_max", [1.9, 2.0, 3.0])
def test_conditionals_are_normal_at_the_largest_noise_if_that_is_large(sigma_max: float) -> None:
    model = ARCSM.made(2, hidden=(8,), noise=Noise(sigma_max, 0.1), seed=0)
    assert model.head.normal_at == (None if sigma_max < 2 else sigma_max)
    widest = model.head.family(torch.randn(3, 32)).at(sigma_max)
    assert (widest.normal() is None) == (sigma_max < 2)


# Cells.


def partition(model: ARCSM, x: Tensor, cells: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows, each row of x `cells` times, and in every column cells that fill the line.

    They are narrow in the middle of the column, and wide further out.
    """
    place = torch.sinh(torch.linspace(-3.5, 3.5, cells - 1, dtype=torch.float64)) / 10
    ends = torch.full((1,), math.inf, dtype=torch.float64)
    place = torch.cat([-ends, place, ends])[:, None, None]
    edges = model.shift.double() + model.scale.double() * place
    edges = edges.expand(-1, len(x), -1)
    low, high = (part.flatten(0, 1) for part in (edges[:-1], edges[1:]))
    return x.repeat(cells, 1), low, high


@every_unit
@every_density
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_probabilities_of_cells_that_fill_the_line_add_up_to_one(
    density: str, decorrelate: bool, dtype: torch.dtype
) -> None:
    model = random_model(3, order=[2, 0, 1], density=density, decorrelate=decorrelate).to(dtype)
    rows, low, high = partition(model, units(normal(4, 3, seed=2)).to(dtype), 41)
    width = (high - low) / model.scale
    assert bool((width < 0.2 / 8).any()) and bool((width > 0.2 / 8).any())  # both ways
    terms, error = model.log_prob_terms(rows, cells=(low, high))
    assert terms.dtype == dtype and bool((terms <= 1e-6).all())
    total = terms.double().exp().view(41, 4, 3).sum(0)
    # The middle of a narrow cell stands for all of it: 1/24 (width/σ)², here 0.001 of its mass.
    torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=2e-3)
    likely = terms > -20  # far out the ends of a cell, as they are rounded, are all that counts
    assert bool((error > 0).all()) and error[likely].max().item() < 5e-3
    torch.testing.assert_close(model.log_prob(rows, cells=(low, high)), terms.sum(-1))


@every_unit
@every_density
def test_cells_are_differences_of_the_cdf(density: str, decorrelate: bool) -> None:
    model = random_model(3, order=[2, 0, 1], density=density, decorrelate=decorrelate)
    x = units(normal(6, 3, seed=2))
    low = x - 0.4 * model.scale
    high = x + 0.7 * model.scale
    low[0], high[1] = -math.inf, math.inf
    low[2], high[2] = -math.inf, math.inf
    terms, _ = model.log_prob_terms(x, cells=(low, high))
    for d in range(3):
        conditional = model.conditional(x, d)
        ends = torch.stack([low[:, d], high[:, d]], 1)
        finite = ends.isfinite()
        cdf = conditional.cdf(ends.where(finite, 0.0)).where(finite, (ends > 0).double())
        torch.testing.assert_close(terms[:, d].exp(), cdf.diff()[:, 0], rtol=0, atol=3e-7)
    torch.testing.assert_close(terms[2], torch.zeros(3).double(), rtol=0, atol=1e-6)


@every_unit
@every_density
def test_narrow_cells_are_density_times_width(density: str, decorrelate: bool) -> None:
    """On both sides of the width from which on they are integrated, σ_min/8."""
    model = random_model(2, density=density, decorrelate=decorrelate)
    x = units(normal(20, 2, seed=2))
    points, _ = model.log_prob_terms(x)
    likely = points > points.amax() - 6
    for width in (1e-6, 0.2 / 8 * 0.999, 0.2 / 8 * 1.001):
        half = width / 2 * model.scale
        terms, _ = model.log_prob_terms(x, cells=(x - half, x + half))
        expected = points + (width * model.scale).log()
        torch.testing.assert_close(terms[likely], expected[likely], rtol=0, atol=5e-3)
    # Across the limit nothing jumps.
    near = [
        model.log_prob_terms(x, cells=(x - w * model.scale, x + w * model.scale))[0]
        for w in (0.1 / 8 * (1 - 1e-6), 0.1 / 8 * (1 + 1e-6))
    ]
    torch.testing.assert_close(near[0][likely], near[1][likely], rtol=0, atol=3e-3)


@every_unit
def test_cells_and_points_in_one_call(decorrelate: bool) -> None:
    """An entry whose ends agree is a point; a condition reaches all."""
    model = random_model(3, order=[1, 2, 0], condition_dims=1, decorrelate=decorrelate)
    x, condition = units(normal(9, 3, seed=2)), normal(9, 1, seed=5)
    half = torch.tensor([0.5, 1e-3, 0.0], dtype=torch.float64)[
        torch.randint(3, (9, 3), generator=seeded(3))
    ]
    assert sorted(half.unique().tolist()) == [0.0, 1e-3, 0.5]
    found, error = model.log_prob_terms(x, cells=(x - half, x + half), condition=condition)
    points, _ = model.log_prob_terms(x, condition=condition)
    for width in (0.5, 1e-3):
        cells, cells_error = model.log_prob_terms(
            x, cells=(x - width, x + width), condition=condition
        )
        some = half == width
        torch.testing.assert_close(found[some], cells[some], rtol=0, atol=1e-6)
        torch.testing.assert_close(error[some], cells_error[some], rtol=0, atol=1e-6)
    torch.testing.assert_close(found[half == 0], points[half == 0], rtol=0, atol=1e-6)
    same, _ = model.log_prob_terms(x, cells=(x, x), condition=condition)
    assert torch.equal(same, points)


@every_unit
def test_contexts_see_the_rows_and_not_the_cells(decorrelate: bool) -> None:
    """So the place of x_d in its cell matters to later scalars alone, and no cell to another."""
    model = random_model(3, order=[2, 0, 1], decorrelate=decorrelate)
    x = units(normal(5, 3, seed=2))
    cells = (x - 0.4, x + 0.6)
    terms, _ = model.log_prob_terms(x, cells=cells)
    for place, d in enumerate(model.context.order):
        later = list(model.context.order[place + 1 :])
        moved = x.clone()
        moved[:, d] += 0.3
        found, _ = model.log_prob_terms(moved, cells=cells)
        others = [e for e in range(3) if e not in later]
        torch.testing.assert_close(found[:, others], terms[:, others], rtol=0, atol=1e-7)
        if later:
            assert (found - terms)[:, later].abs().min().item() > 1e-6
        wider = cells[0].clone()
        wider[:, d] -= 1.0
        found, _ = model.log_prob_terms(x, cells=(wider, cells[1]))
        assert bool((found[:, d] > terms[:, d]).all())
        rest = [e for e in range(3) if e != d]
        torch.testing.assert_close(found[:, rest], terms[:, rest], rtol=0, atol=1e-7)


def test_cells_of_any_width_are_cells_in_single_precision() -> None:
    """Amounts to the cent, of 100,000 or so: in standardised units the ends of a cell agree."""
    model = random_model(2).float()
    model.scale.fill_(1e5)
    model.shift.zero_()
    x = torch.tensor([[2.5e5, 1.1e5], [-3.1e5, 0.7e5]])
    ends = x.double() - 0.005, x.double() + 0.005
    terms, _ = model.log_prob_terms(x, cells=ends)
    points, _ = model.log_prob_terms(x)
    torch.testing.assert_close(terms, points + math.log(0.01), rtol=0, atol=1e-3)


# Values that stand for others.


def to_whole_numbers(d: int, drawn: Tensor, x: Tensor) -> Tensor:
    return drawn.round()


@every_unit
def test_snapped_samples_have_the_probabilities_of_cells(decorrelate: bool) -> None:
    """Pearson's test of 8000 rows of whole numbers against exp(log_prob) of their cells."""
    model = random_model(2, order=[1, 0], decorrelate=decorrelate).float()
    # Few values, so that a context of what was drawn, not of what it stands for, would be seen.
    model.scale.copy_(torch.tensor([1.2, 0.9]))
    count = 8000
    x = model.sample(count, generator=seeded(1), snap=to_whole_numbers)
    assert torch.equal(x, x.round())
    values = [torch.arange(column.min() - 3, column.max() + 4) for column in x.T]
    rows = torch.cartesian_prod(*values)
    probability = model.log_prob(rows, cells=(rows - 0.5, rows + 0.5)).double().exp()
    assert probability.sum().item() == pytest.approx(1, abs=2e-3)
    found = (x[:, None] == rows).all(-1).sum(0).double()
    assert found.sum().item() == count
    common = probability * count >= 5
    assert common.sum().item() > 15
    observed = torch.cat([found[common], found[~common].sum()[None]])
    expected = torch.cat([probability[common], (1 - probability[common].sum())[None]]) * count
    assert stats.chisquare(observed.numpy(), expected.numpy()).pvalue > 0.01


def test_snap_is_told_the_column_and_the_rows_so_far() -> None:
    model = random_model(3, order=[2, 0, 1], decorrelate=True)
    told = []

    def snap(d: int, drawn: Tensor, x: Tensor) -> Tensor:
        told.append((d, x.clone()))
        assert torch.equal(drawn, x[:, d])
        return drawn.round() + d

    x = model.sample(7, generator=seeded(1), snap=snap)
    assert [d for d, _ in told] == [2, 0, 1]
    for place, (_, rows) in enumerate(told):
        before = [2, 0, 1][:place]
        assert torch.equal(rows[:, before], x[:, before])
        assert not rows[:, [2, 0, 1][place + 1 :]].any()
    # Each is the quantile of its uniform number given the values that the others stand for.
    uniform = torch.rand((7, 3), generator=seeded(1), dtype=torch.float64)
    for d in (2, 0, 1):
        quantile = model.conditional(x, d).quantile(uniform[:, d : d + 1])[:, 0]
        torch.testing.assert_close(x[:, d], quantile.round() + d)


def test_snapping_nothing_changes_nothing() -> None:
    model = random_model(2)
    plain, same = (
        model.sample(6, generator=seeded(1), snap=snap)
        for snap in (None, lambda d, drawn, x: drawn)
    )
    assert torch.equal(plain, same)


@pytest.mark.parametrize("decorrelate", [False, True])
def test_conditional_cdf_is_that_of_the_conditionals(decorrelate: bool) -> None:
    model = random_model(3, order=[1, 2, 0], decorrelate=decorrelate)
    x = units(normal(6, 3, seed=5))
    at = units(normal(6, 3, seed=6))
    for points, found in ((x, model.conditional_cdf(x)), (at, model.conditional_cdf(x, at=at))):
        for d in range(3):
            expected = model.conditional(x, d).cdf(points[:, d, None])[:, 0]
            torch.testing.assert_close(found[:, d], expected, rtol=1e-9, atol=1e-12)
    ends = torch.full_like(x, math.inf)
    assert bool((model.conditional_cdf(x, at=ends) == 1).all())
    assert bool((model.conditional_cdf(x, at=-ends) == 0).all())


def test_only_some_scalars_are_evaluated() -> None:
    model = random_model(3)
    x = units(normal(5, 3, seed=5))
    terms, errors = model.log_prob_terms(x)
    some, some_errors = model.log_prob_terms(x, only=[2, 0])
    torch.testing.assert_close(some[:, [0, 2]], terms[:, [0, 2]], rtol=1e-12, atol=1e-12)
    assert bool((some[:, 1] == 0).all()) and bool((some_errors[:, 1] == 0).all())
    assert bool((some_errors[:, [0, 2]] == errors[:, [0, 2]]).all())
