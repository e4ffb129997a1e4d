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

import arcsm.model
from arcsm.conditional import Noise, Quadrature, TanhSumHead, annealed_langevin
from arcsm.context import MADE
from arcsm.errors import InputError
from arcsm.model import ARCSM
from arcsm.objectives import Perturbation

DENSITIES = ("flow", "quadrature")
every_density = pytest.mark.parametrize("density", DENSITIES)
every_order = pytest.mark.parametrize("order", ["natural", [2, 0, 1]], ids=["natural", "mixed"])


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
    model.standardise(units(normal(200, dims, seed=3)))
    return model.requires_grad_(False)


def units(z: Tensor) -> Tensor:
    """Return columns of different location and scale."""
    d = torch.arange(z.shape[1], dtype=z.dtype)
    return z * (3.0 / (1 + d)) + 10 * d - 4


@every_order
def test_scores_are_the_derivatives_of_the_log_density(order: Any) -> None:
    """In the units of the data, by difference quotients of fourth order."""
    model = random_model(3, order=order)
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


@every_order
def test_scores_are_the_gradient_of_the_quadrature_density(order: Any) -> None:
    model = random_model(3, order=order)
    x = units(normal(6, 3, seed=1))
    score, derivative = model.conditional_scores(x)
    context = model.context((x - model.shift) / model.scale)
    for d in range(3):
        conditional = model.head.family(context[:, d]).at(model.noise.sigma_min)
        value = x[:, d : d + 1].clone().requires_grad_()
        log_prob = Quadrature(conditional).log_prob((value - model.shift[d]) / model.scale[d])
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
    ("density", "order"), [("flow", "natural"), ("flow", [1, 0]), ("quadrature", [1, 0])]
)
def test_density_integrates_to_one_over_the_plane(density: str, order: Any) -> None:
    model = random_model(2, order=order, density=density, sigma_min=0.4, steps=3)
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


@every_density
@every_order
def test_terms_conditionals_and_the_joint_are_one_density(density: str, order: Any) -> None:
    model = random_model(3, order=order, density=density)
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


@every_order
def test_only_earlier_scalars_matter(order: Any) -> None:
    model = random_model(3, order=order)
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


@every_density
@every_order
def test_samples_are_quantiles_of_the_uniforms_drawn(density: str, order: Any) -> None:
    """The probability integral transform gives back the numbers that the samples were made of."""
    model = random_model(3, order=order, density=density)
    x = model.sample(40, generator=seeded(5))
    g = seeded(5)
    for d in model.context.order:
        uniform = torch.rand((40, 1), generator=g, dtype=torch.float64)
        transformed = model.conditional(x, d).cdf(x[:, d : d + 1])
        torch.testing.assert_close(transformed, uniform, rtol=0, atol=2e-7)


@every_density
def test_samples_in_single_precision(density: str) -> None:
    model = random_model(2, density=density, sigma_min=0.05).float()
    x = model.sample(200, generator=seeded(5))
    assert x.dtype == torch.float32
    g = seeded(5)
    for d in range(2):
        uniform = torch.rand((200, 1), generator=g)
        transformed = model.conditional(x, d).cdf(x[:, d : d + 1])
        torch.testing.assert_close(transformed, uniform, rtol=0, atol=1e-4)
    single, double = model.log_prob(x), copy.deepcopy(model).double().log_prob(x.double())
    torch.testing.assert_close(single.double(), double, rtol=0, atol=2e-3)


@every_density
def test_samples_follow_the_log_density(density: str) -> None:
    """A Kolmogorov-Smirnov test against CDFs that Gauss's rule integrates from log_prob."""
    model = random_model(2, order=[1, 0], density=density, sigma_min=0.3)
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


@every_density
def test_config_makes_the_model_anew(density: str) -> None:
    model = random_model(
        3, order="random", density=density, condition_dims=2, head_depth=2, flow_steps=40
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
    g = seeded(1)
    for d in range(2):
        uniform = torch.rand((5, 1), generator=g, dtype=torch.float64)
        for draw, condition in zip(draws, conditions, strict=True):
            conditional = model.conditional(draw, d, condition=condition)
            found = conditional.cdf(draw[:, d : d + 1])
            torch.testing.assert_close(found, uniform, rtol=0, atol=2e-7)


def test_results_do_not_depend_on_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(3)
    x = units(normal(7, 3))
    whole = model.log_prob_terms(x), model.sample(7, generator=seeded())
    monkeypatch.setattr(arcsm.model, "_CHUNK", 4)
    parts = model.log_prob_terms(x), model.sample(7, generator=seeded())
    torch.testing.assert_close(parts[0][0], whole[0][0], rtol=0, atol=2e-7)
    torch.testing.assert_close(parts[1], whole[1], rtol=1e-5, atol=1e-5)


def test_flow_steps_are_those_asked_for() -> None:
    x = units(normal(4, 2))
    few, many, most = (random_model(2, flow_steps=steps).log_prob(x) for steps in (None, 300, 600))
    assert (many - most).abs().max().item() < 0.1 * (few - most).abs().max().item()
    with pytest.raises(InputError, match=r"expected at least 13 flow steps .* got 12"):
        random_model(2, flow_steps=12).log_prob(x)


@pytest.mark.parametrize("mix", [0.0, 0.5, 1.0])
def test_loss_terms_without_noise_are_made_of_the_scores(mix: float) -> None:
    """At ε = ε̂ = 0 a term is σ²(1 + σ²) [½ s² + (1 − mix) s'], in standardised units."""
    model = random_model(3)
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
        noise = ARCSM.made(dims, hidden=(8,)).draw_noise(5)
        assert noise.sigma.shape[-1] == levels and noise.epsilon.shape == (5, dims, levels)


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
