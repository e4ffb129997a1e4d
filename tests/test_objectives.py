"""Objectives: the paper's theorems by quadrature, closed forms, and one objective by another."""

import math
from collections.abc import Callable
from functools import cache

import pytest
import torch
from known import (
    AutoregressiveMixture,
    GaussianMixture,
    correlated_gaussian,
    normal,
    random_autoregressive,
    seeded,
)
from torch import Tensor

from arcsm.conditional import Noise
from arcsm.errors import InputError
from arcsm.model import ARCSM
from arcsm.objectives import (
    Perturbation,
    annealed_csm,
    annealed_csm_terms,
    csm,
    draw_perturbation,
    dsm,
    nll,
    sm,
    ssm,
    weighted_mean,
)

COVARIANCE_2 = [[1.0, 0.7], [0.7, 1.5]]
COVARIANCE_3 = [[1.0, 0.6, -0.3], [0.6, 2.0, 0.5], [-0.3, 0.5, 0.7]]
TRUTHS = {
    "gaussian, 2 scalars": correlated_gaussian(COVARIANCE_2, [0.5, -1.0]),
    "gaussian, 3 scalars": correlated_gaussian(COVARIANCE_3, [0.5, -1.0, 0.3]),
    "mixture, 2 scalars": random_autoregressive(2, 2, seed=1),
    "mixture, 3 scalars": random_autoregressive(3, 2, seed=5),
}
every_truth = pytest.mark.parametrize("name", TRUTHS)


@cache
def grid(name: str) -> tuple[Tensor, Tensor]:
    """Return points and their probabilities: the trapezoidal rule, exact to rounding here.

    The densities are made of normal ones some 0.6 wide, or more: the rule integrates those with a
    relative error of exp(−2π² (0.6/h)²) at the spacing h.
    """
    truth = TRUTHS[name]
    step, reach = (0.15, 10.5) if truth.dims == 2 else (0.32, 9.6)
    axis = torch.arange(-reach, reach + step / 2, step, dtype=torch.float64)
    x = torch.cartesian_prod(*[axis] * truth.dims)
    weight = truth.log_prob(x).exp() * step**truth.dims
    keep = weight > 1e-13 * weight.max()
    return x[keep], weight[keep]


def divergence(
    truth: AutoregressiveMixture, model: Callable, points: tuple[Tensor, Tensor]
) -> float:
    """Return L_CSM = ½ Σ_d E (s_d − s_θd)², Eq. 4 of the paper."""
    x, weight = points
    difference = truth.conditional_scores(x)[0] - model(x)[0]
    return (weight * difference.square().sum(-1)).sum().item() / 2


def neural_scores(dims: int, seed: int) -> Callable:
    """Return the conditional scores of a model with random weights, smoothed enough for a grid."""
    model = ARCSM.made(dims, hidden=(16, 16), width=6, steps=5, frequencies=0, seed=seed)
    model.standardise(torch.randn((500, dims), generator=seeded(seed)) * 1.3 + 0.2)
    model.double().requires_grad_(False)
    return lambda x: model.conditional_scores(x, sigma=1.0)


def models_for(truth: AutoregressiveMixture) -> list[Callable]:
    """Return the scores of several models: near and far, simple and neural, and wrong in one."""
    dims = truth.dims
    shifted = AutoregressiveMixture(
        truth.mean + 0.1, truth.std, truth.mean_slope, truth.logit, truth.logit_slope
    )
    independent = AutoregressiveMixture(
        truth.mean, truth.std, torch.zeros_like(truth.mean_slope), truth.logit
    )
    return [
        truth.conditional_scores,
        shifted.conditional_scores,
        independent.conditional_scores,
        random_autoregressive(dims, 1, seed=11).conditional_scores,
        random_autoregressive(dims, 3, seed=12).conditional_scores,
        neural_scores(dims, seed=13),
        neural_scores(dims, seed=14),
    ]


@every_truth
def test_grid_is_exact(name: str) -> None:
    x, weight = grid(name)
    assert weight.sum().item() == pytest.approx(1, abs=1e-7)
    if name.startswith("gaussian, 3"):
        mean = (weight[:, None] * x).sum(0)
        covariance = (x - mean).T @ (weight[:, None] * (x - mean))
        torch.testing.assert_close(
            covariance, torch.tensor(COVARIANCE_3, dtype=torch.float64), rtol=0, atol=1e-7
        )


@every_truth
def test_theorem_2_objective_and_divergence_differ_by_a_constant(name: str) -> None:
    """L_CSM(θ) − J_CSM(θ) = ½ Σ_d E s_d², whatever θ is."""
    truth = TRUTHS[name]
    points = grid(name)
    x, weight = points
    score, _ = truth.conditional_scores(x)
    constant = (weight * score.square().sum(-1)).sum().item() / 2
    if name.startswith("gaussian"):  # E s_d² = 1/variance of x_d given x_<d
        assert constant == pytest.approx(truth.std.pow(-2).sum().item() / 2, abs=1e-6)
    for model in models_for(truth):
        objective = csm(model, x, weight=weight).item()
        assert divergence(truth, model, points) - objective == pytest.approx(constant, abs=1e-6)


@every_truth
def test_theorem_1_divergence_vanishes_at_the_truth_alone(name: str) -> None:
    truth = TRUTHS[name]
    points = grid(name)
    x, weight = points
    at_truth, *elsewhere = models_for(truth)
    assert divergence(truth, at_truth, points) == 0
    least = csm(at_truth, x, weight=weight).item()
    for model in elsewhere:
        assert divergence(truth, model, points) > 1e-3
        assert csm(model, x, weight=weight).item() > least + 1e-3
    # The truth in other words: the components of each mixture in another order.
    turned = AutoregressiveMixture(
        *(
            part.flip(1) if part.ndim > 1 else part
            for part in (truth.mean, truth.std, truth.mean_slope, truth.logit, truth.logit_slope)
        )
    )
    assert divergence(truth, turned.conditional_scores, points) < 1e-20


@pytest.mark.parametrize("amount", [-0.4, -0.05, 0.05, 0.4])
@pytest.mark.parametrize("part", ["mean", "std", "mean_slope", "logit", "logit_slope"])
def test_theorem_1_every_parameter_counts(part: str, amount: float) -> None:
    """Of the last scalar, where a change of one parameter is easiest to lose."""
    truth = TRUTHS["mixture, 2 scalars"]
    parts = {
        name: getattr(truth, name).clone()
        for name in ("mean", "std", "mean_slope", "logit", "logit_slope")
    }
    parts[part][-1, 0] += amount
    points = grid("mixture, 2 scalars")
    moved = AutoregressiveMixture(**parts).conditional_scores
    assert divergence(truth, moved, points) > 1e-4 * amount**2
    x, weight = points
    at_truth = csm(truth.conditional_scores, x, weight=weight).item()
    assert csm(moved, x, weight=weight).item() > at_truth


def linear_field(slope: Tensor, shift: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: shift - x @ slope.T


def test_csm_of_a_gaussian_in_closed_form() -> None:
    """For x_d | x_<d ~ N(b·x_<d + m, v): Σ_d mean (x_d − b·x_<d − m)²/2v² − 1/v."""
    model = correlated_gaussian(COVARIANCE_3, [0.5, -1.0, 0.3])
    x = 2 * normal(50, 3) + 1
    expected = 0.0
    for d in range(3):
        inner = torch.tensor(COVARIANCE_3, dtype=torch.float64)
        gain = torch.linalg.solve(inner[:d, :d], inner[:d, d])
        variance = inner[d, d] - gain @ inner[:d, d]
        centre = torch.tensor([0.5, -1.0, 0.3], dtype=torch.float64)
        residual = x[:, d] - centre[d] - (x[:, :d] - centre[:d]) @ gain
        expected += ((residual / variance).square().mean() / 2 - 1 / variance).item()
    assert csm(model.conditional_scores, x).item() == pytest.approx(expected, rel=1e-12)


def test_csm_of_the_right_gaussian_by_sampling() -> None:
    """At the truth the objective is −½ Σ 1/v_d; N rows give it to a standard error."""
    model = correlated_gaussian(COVARIANCE_2, [0.5, -1.0])
    factor = torch.linalg.cholesky(torch.tensor(COVARIANCE_2, dtype=torch.float64))
    x = normal(20000, 2) @ factor.T + torch.tensor([0.5, -1.0])
    precision = model.std[:, 0].pow(-2)
    # ½ s_d² is chi-squared with one degree of freedom over 2v_d: its variance is 1/2v_d².
    error = math.sqrt((precision.square() / 2).sum().item() / 20000)
    found = csm(model.conditional_scores, x).item()
    assert found == pytest.approx(-precision.sum().item() / 2, abs=4 * error)


def test_sm_of_a_linear_field_in_closed_form() -> None:
    slope, shift = normal(4, 4), normal(4, seed=1)
    x = normal(30, 4, seed=2)
    field = linear_field(slope, shift)
    expected = field(x).square().sum(-1).mean() / 2 - slope.trace()
    torch.testing.assert_close(sm(field, x), expected)


@pytest.mark.parametrize("order", ["natural", [2, 0, 3, 1]])
def test_sm_of_an_autoregressive_field_is_csm(order: str | list[int]) -> None:
    model = ARCSM.made(4, hidden=(16, 16), order=order, seed=3).double()
    model.standardise(3 * normal(100, 4) + 1)
    x = 3 * normal(20, 4, seed=1) + 1

    def conditional(x: Tensor) -> tuple[Tensor, Tensor]:
        return model.conditional_scores(x, sigma=0.2)

    torch.testing.assert_close(sm(lambda x: conditional(x)[0], x), csm(conditional, x))


@pytest.mark.parametrize("variance_reduced", [True, False])
def test_ssm_is_unbiased_for_sm(variance_reduced: bool) -> None:
    slope, shift = normal(3, 3), normal(3, seed=1)
    x = normal(4, 3, seed=2)

    def field(x: Tensor) -> Tensor:
        return linear_field(slope, shift)(x).tanh() - x  # with a Jacobian that depends on x

    exact = sm(field, x).item()
    draws = torch.stack(
        [
            ssm(
                field,
                x,
                projections=50,
                variance_reduced=variance_reduced,
                generator=seeded(seed),
            ).detach()
            for seed in range(60)
        ]
    )
    error = draws.std().item() / math.sqrt(60)
    assert draws.mean().item() == pytest.approx(exact, abs=4 * error)
    assert error < 0.1


def test_ssm_variance_reduction_reduces_the_variance() -> None:
    field = linear_field(torch.eye(5).double() * torch.arange(1.0, 6.0), torch.zeros(5).double())
    x = normal(3, 5)
    spread = {
        reduced: torch.stack(
            [
                ssm(field, x, variance_reduced=reduced, generator=seeded(seed)).detach()
                for seed in range(300)
            ]
        ).var()
        for reduced in (True, False)
    }
    assert spread[True] < 0.7 * spread[False]


def test_ssm_projections_are_averaged() -> None:
    """With one direction of ±e: vᵀ∇s v + ½(vᵀs)² by hand, for each projection drawn."""
    slope, shift = normal(2, 2), normal(2, seed=1)
    x = normal(3, 2, seed=2)
    field = linear_field(slope, shift)
    v = torch.randn((4, 3, 2), generator=seeded(8), dtype=torch.float64)
    along = (field(x) * v).sum(-1)
    curvature = -torch.einsum("pni,ij,pnj->pn", v, slope, v)
    expected = (curvature + along.square() / 2).mean()
    found = ssm(field, x, projections=4, variance_reduced=False, generator=seeded(8))
    torch.testing.assert_close(found, expected)
    reduced = (curvature + field(x).square().sum(-1) / 2).mean()
    torch.testing.assert_close(ssm(field, x, projections=4, generator=seeded(8)), reduced)


def gaussian_score(mean: float, variance: float) -> Callable[[Tensor], Tensor]:
    return lambda x: -(x - mean) / variance


def test_dsm_is_sm_of_the_smoothed_density_up_to_a_constant() -> None:
    """Data N(μ, τ²): the smoothed density is N(μ, τ² + σ²), and for the score −(x − m)/v

    J_SM = ((τ² + σ²) + (μ − m)²)/2v² − 1/v,  DSM = J_SM + 1/2σ².
    """
    mu, tau, sigma, rows = 0.4, 0.8, 0.5, 200_000
    x = mu + tau * normal(rows, 1)
    smoothed = tau**2 + sigma**2
    for mean, variance in [(mu, smoothed), (0.0, 1.0), (1.5, 0.6), (mu, 2.0)]:
        expected = (smoothed + (mu - mean) ** 2) / (2 * variance**2) - 1 / variance
        expected += 1 / (2 * sigma**2)
        score = gaussian_score(mean, variance)
        found = dsm(score, x, sigma=sigma, generator=seeded(1)).item()
        # The spread of one term, from noise of its own.
        noise = normal(rows, 1, seed=9)
        terms = (score(x + sigma * noise) + noise / sigma).square() / 2
        assert found == pytest.approx(expected, abs=4 * terms.std().item() / math.sqrt(rows))


def test_dsm_is_least_at_the_smoothed_density() -> None:
    """Its minimiser over m and v, from the stationarity conditions, is the smoothed Gaussian.

    For s = a − b x, DSM is quadratic in (a, b): the optimum solves 2 × 2 normal equations, and is
    taken here from the gradient and the Hessian that autograd finds.
    """
    mu, tau, sigma, rows = 0.4, 0.8, 0.5, 200_000
    x = mu + tau * normal(rows, 1)

    def loss(parameters: Tensor) -> Tensor:
        return dsm(lambda x: parameters[0] - parameters[1] * x, x, sigma=sigma, generator=seeded(2))

    start = torch.tensor([0.0, 1.0], dtype=torch.float64)
    gradient = torch.autograd.functional.jacobian(loss, start)
    hessian = torch.autograd.functional.hessian(loss, start)
    a, b = start - torch.linalg.solve(hessian, gradient)
    smoothed = tau**2 + sigma**2
    assert (a / b).item() == pytest.approx(mu, abs=0.01)
    assert (1 / b).item() == pytest.approx(smoothed, rel=0.02)


def test_dsm_by_hand() -> None:
    x = normal(5, 2)
    score = gaussian_score(0.3, 1.7)
    epsilon = torch.randn((5, 2), generator=seeded(4), dtype=torch.float64)
    residual = score(x + 0.2 * epsilon) + epsilon / 0.2
    expected = residual.square().sum(-1).mean() / 2
    torch.testing.assert_close(dsm(score, x, sigma=0.2, generator=seeded(4)), expected)


@pytest.mark.parametrize("sigma", [0.0, -0.1, math.nan])
def test_dsm_needs_noise(sigma: float) -> None:
    with pytest.raises(InputError, match=f"expected a positive sigma, got {sigma}"):
        dsm(gaussian_score(0.0, 1.0), normal(3, 2), sigma=sigma)


def smoothed_gaussians(
    shift: float, variance: float, gain: float
) -> Callable[[Tensor, Tensor], GaussianMixture]:
    """Return conditionals(x̂, σ): x_d | x̂_<d is N(shift + gain · x̂_{d−1}, variance + σ²)."""

    def conditionals(context: Tensor, sigma: Tensor) -> GaussianMixture:
        before = torch.cat([torch.zeros_like(context[:, :1]), context[:, :-1]], 1)
        mean, std = torch.broadcast_tensors(
            (shift + gain * before)[..., None], (variance + sigma.square()).sqrt()
        )
        return GaussianMixture(torch.ones_like(mean)[..., None], mean[..., None], std[..., None])

    return conditionals


def test_annealed_csm_by_hand() -> None:
    """Σ_d mean over levels of σ²(1 + σ²) [½ s² + (1 − mix) s' + mix s ε/σ], a row at a time."""
    noise = Noise(2.0, 0.1)
    x = normal(3, 2)
    drawn = Perturbation(
        torch.tensor([[[0.1, 2.0]], [[0.3, 0.7]], [[1.0, 0.2]]], dtype=torch.float64),
        normal(3, 2, 2, seed=1),
        normal(3, 2, seed=2),
    )
    shift, variance, gain = 0.2, 0.6, -0.8
    for mix in (0.0, 0.3, 1.0):
        found = annealed_csm_terms(
            smoothed_gaussians(shift, variance, gain), x, noise, drawn, mix=mix
        )
        for row in range(3):
            expected = 0.0
            context = [x[row, d] + 0.1 * drawn.context_epsilon[row, d] for d in range(2)]
            for d in range(2):
                mean = shift + gain * (context[0] if d else 0.0)
                for level in range(2):
                    s = drawn.sigma[row, 0, level]
                    e = drawn.epsilon[row, d, level]
                    total = variance + s**2
                    score = -(x[row, d] + s * e - mean) / total
                    term = score**2 / 2 - (1 - mix) / total + mix * score * e / s
                    expected += (s**2 * (1 + s**2) * term / 2).item()
            assert found[row].item() == pytest.approx(expected, rel=1e-12)


def test_contexts_may_be_shown_other_inputs() -> None:
    """The targets are x all the same, and the noise of the contexts is added to the inputs."""
    noise = Noise(2.0, 0.1)
    x, inputs = normal(4, 3), 5 * normal(4, 3, seed=3)
    drawn = Perturbation(
        torch.tensor([0.1, 0.4, 1.0, 2.0], dtype=torch.float64).view(4, 1, 1),
        normal(4, 3, 1, seed=1),
        normal(4, 3, seed=2),
    )
    shift, variance, gain = 0.2, 0.6, -0.8
    model = smoothed_gaussians(shift, variance, gain)
    for mix in (0.0, 0.3, 1.0):
        found = annealed_csm_terms(model, x, noise, drawn, mix=mix, inputs=inputs)
        for row in range(4):
            s, expected = drawn.sigma[row, 0, 0], 0.0
            total = variance + s**2
            for d in range(3):
                before = inputs[row, d - 1] + 0.1 * drawn.context_epsilon[row, d - 1] if d else 0.0
                e = drawn.epsilon[row, d, 0]
                score = -(x[row, d] + s * e - shift - gain * before) / total
                term = score**2 / 2 - (1 - mix) / total + mix * score * e / s
                expected += (s**2 * (1 + s**2) * term).item()
            assert found[row].item() == pytest.approx(expected, rel=1e-12)
        same = annealed_csm_terms(model, x, noise, drawn, mix=mix, inputs=x)
        assert torch.equal(same, annealed_csm_terms(model, x, noise, drawn, mix=mix))


@pytest.mark.parametrize("mix", [0.0, 0.5, 1.0])
def test_annealed_csm_of_one_level_in_closed_form(mix: float) -> None:
    """Data N(0, 1), one scalar: σ²(1 + σ²) [(1 + σ²)/2V² − 1/V] for the score −x̃/V."""
    sigma, variance, rows = 0.7, 0.5, 200_000
    total = variance + sigma**2
    expected = sigma**2 * (1 + sigma**2) * ((1 + sigma**2) / (2 * total**2) - 1 / total)
    model = smoothed_gaussians(0.0, variance, 0.0)
    noise = Noise(sigma, sigma, levels=1)
    x = normal(rows, 1)
    terms = annealed_csm_terms(
        model, x, noise, draw_perturbation(rows, 1, noise, generator=seeded(3)), mix=mix
    )
    found = annealed_csm(model, x, noise, mix=mix, generator=seeded(5)).item()
    assert found == pytest.approx(expected, abs=4 * terms.std().item() / math.sqrt(rows))


@pytest.mark.parametrize("noise", [Noise(2.0, 0.1), Noise(2.0, 0.1, levels=4)])
def test_mix_changes_no_expectation(noise: Noise) -> None:
    """By Stein's identity, for each of several models; hence not for their differences either."""
    x = torch.cat([normal(20_000, 1), normal(20_000, 1, seed=1).tanh()], 1)
    means = []
    for shift, variance, gain in [(0.0, 1.0, 0.0), (0.3, 0.4, 0.9)]:
        model = smoothed_gaussians(shift, variance, gain)
        batches = []
        for seed in range(20):  # the two on the same noise
            composite, denoising = (
                annealed_csm(model, x, noise, levels=2, mix=mix, generator=seeded(seed)).item()
                for mix in (0.0, 1.0)
            )
            batches.append((composite, denoising))
        table = torch.tensor(batches, dtype=torch.float64)
        difference = table[:, 0] - table[:, 1]
        error = difference.std().item() / math.sqrt(20)
        assert abs(difference.mean().item()) < 4 * error
        means.append(table.mean(0))
    # The models differ by far more than that, in both forms.
    assert (means[1] - means[0]).abs().min().item() > 20 * error


def test_annealed_csm_is_least_at_the_smoothed_truth() -> None:
    noise = Noise(2.0, 0.1)
    x = normal(20_000, 1)
    values = {
        variance: annealed_csm(
            smoothed_gaussians(0.0, variance, 0.0), x, noise, mix=0.5, generator=seeded()
        ).item()
        for variance in (0.5, 0.8, 1.0, 1.25, 2.0)
    }
    assert min(values, key=values.get) == 1.0


def test_drawn_noise_is_what_it_says() -> None:
    noise = Noise(3.0, 0.01, levels=5)
    drawn = draw_perturbation(3000, 2, noise, levels=3, generator=seeded())
    assert drawn.sigma.shape == (3000, 1, 3)  # the scalars of a row share its levels
    assert drawn.epsilon.shape == (3000, 2, 3) and drawn.context_epsilon.shape == (3000, 2)
    torch.testing.assert_close(drawn.sigma.unique().flip(0), torch.tensor(noise.ladder()))
    parts = torch.cat([drawn.epsilon.flatten(1), drawn.context_epsilon], 1).double()
    torch.testing.assert_close(parts.T.cov(), torch.eye(8).double(), rtol=0, atol=0.1)
    assert parts.mean(0).abs().max().item() < 4 / math.sqrt(3000)
    again = draw_perturbation(3000, 2, noise, levels=3, generator=seeded())
    assert all(torch.equal(a, b) for a, b in zip(drawn, again, strict=True))


@pytest.mark.parametrize("noise", [Noise(3.0, 0.01), Noise(3.0, 0.01, levels=8)])
def test_noise_levels_of_a_batch_leave_no_gap(noise: Noise) -> None:
    """Of 64 · 4 levels one lies in each of 256 parts of log σ, those of a row in each quarter."""
    drawn = draw_perturbation(64, 2, noise, levels=4, generator=seeded())
    if noise.levels is not None:
        assert drawn.sigma.unique(return_counts=True)[1].tolist() == [32] * 8
        return
    place = (drawn.sigma.double().log() - math.log(0.01)) / math.log(300)
    assert (place.flatten() * 256).long().sort()[0].tolist() == list(range(256))
    assert (place[:, 0] * 4).long().sort(1)[0].tolist() == [[0, 1, 2, 3]] * 64


def test_several_points_lie_in_parts_of_equal_probability() -> None:
    noise, rows = Noise(3.0, 0.01), 4000
    drawn = draw_perturbation(rows, 2, noise, levels=3, points=5, generator=seeded())
    assert drawn.epsilon.shape == (rows, 2, 3, 5)
    part = (torch.special.ndtr(drawn.epsilon.double()) * 5).long()
    assert (part == torch.arange(5)).all()
    # All of them together are normal, and those of different scalars independent.
    values = drawn.epsilon.double().flatten()
    assert values.mean().item() == pytest.approx(0, abs=4 / math.sqrt(len(values)))
    assert values.square().mean().item() == pytest.approx(1, abs=8 / math.sqrt(len(values)))
    first, second = drawn.epsilon[:, 0, 0, 2].double(), drawn.epsilon[:, 1, 0, 2].double()
    assert abs(torch.corrcoef(torch.stack([first, second]))[0, 1].item()) < 4 / math.sqrt(rows)
    assert drawn.context_epsilon.std().item() == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("mix", [0.0, 0.5, 1.0])
def test_terms_of_several_points_are_means_over_them(mix: float) -> None:
    noise, x = Noise(2.0, 0.1), normal(5, 3)
    model = smoothed_gaussians(0.2, 0.6, -0.8)
    sigma = noise.draw((5, 1, 2), generator=seeded()).double()
    epsilon, context = normal(5, 3, 2, 4, seed=1), normal(5, 3, seed=2)
    found = annealed_csm_terms(model, x, noise, Perturbation(sigma, epsilon, context), mix=mix)
    alone = [
        annealed_csm_terms(
            model, x, noise, Perturbation(sigma, epsilon[..., point], context), mix=mix
        )
        for point in range(4)
    ]
    torch.testing.assert_close(found, torch.stack(alone).mean(0), rtol=1e-12, atol=1e-12)


def test_several_points_vary_less_than_as_many_independent_ones() -> None:
    """The mean of four is much closer to the expectation than half the deviation of one."""
    noise, x = Noise(0.5, 0.5, levels=1), normal(1, 1).expand(20_000, 1)
    model = smoothed_gaussians(0.0, 1.0, 0.0)
    deviation = []
    for points in (1, 4):
        drawn = draw_perturbation(len(x), 1, noise, points=points, generator=seeded())
        drawn = Perturbation(*(part.double() for part in drawn))
        deviation.append(annealed_csm_terms(model, x, noise, drawn, mix=0.5).std().item())
    assert deviation[1] < 0.3 * deviation[0]


def test_a_stage_has_one_level_and_the_contexts_the_last() -> None:
    noise = Noise(3.0, 0.01, levels=5)
    seen = {}

    def conditionals(context: Tensor, sigma: Tensor) -> GaussianMixture:
        seen["context"], seen["sigma"] = context, sigma
        return smoothed_gaussians(0.0, 1.0, 0.0)(context, sigma)

    x = torch.zeros(4000, 2, dtype=torch.float64)
    for stage, sigma in enumerate(noise.ladder()):
        annealed_csm(conditionals, x, noise, stage=stage, generator=seeded())
        torch.testing.assert_close(seen["sigma"], torch.full_like(seen["sigma"], sigma))
        assert seen["context"].std().item() == pytest.approx(0.01, rel=0.05)


def test_nll_is_the_mean_of_the_log_density() -> None:
    model = correlated_gaussian(COVARIANCE_2, [0.5, -1.0])
    joint = torch.distributions.MultivariateNormal(
        torch.tensor([0.5, -1.0]).double(), torch.tensor(COVARIANCE_2).double()
    )
    x = normal(30, 2)
    torch.testing.assert_close(nll(model.log_prob, x), -joint.log_prob(x).mean())


def objectives(x: Tensor) -> dict[str, Callable[[Tensor | None], Tensor]]:
    """Return every objective on x as a function of the weights, with its noise fixed."""
    chain = random_autoregressive(2, 2, seed=1)

    def joint(x: Tensor) -> Tensor:
        return chain.conditional_scores(x)[0]

    return {
        "csm": lambda w: csm(chain.conditional_scores, x, weight=w),
        "annealed_csm": lambda w: annealed_csm(
            smoothed_gaussians(0.1, 0.5, 0.3), x, Noise(), weight=w, generator=seeded(1)
        ),
        "sm": lambda w: sm(joint, x, weight=w),
        "ssm": lambda w: ssm(joint, x, weight=w, projections=2, generator=seeded(1)),
        "dsm": lambda w: dsm(joint, x, sigma=0.3, weight=w, generator=seeded(1)),
        "nll": lambda w: nll(chain.log_prob, x, weight=w),
    }


NAMES = list(objectives(torch.zeros(1, 2)))


@pytest.mark.parametrize("name", NAMES)
def test_weights_weigh_rows(name: str) -> None:
    objective = objectives(normal(5, 2))[name]
    rows = torch.stack([objective(one_hot) for one_hot in torch.eye(5, dtype=torch.float64)])
    weight = torch.tensor([0.5, 0.0, 2.0, 1.0, 3.5], dtype=torch.float64)
    torch.testing.assert_close(objective(weight), (weight * rows).sum() / 7)
    torch.testing.assert_close(objective(10 * weight), objective(weight))
    torch.testing.assert_close(objective(None), rows.mean())
    torch.testing.assert_close(objective(torch.ones(5).double()), rows.mean())


@pytest.mark.parametrize("name", ["csm", "sm", "nll"])
def test_whole_weights_are_repeated_rows(name: str) -> None:
    x = normal(4, 2)
    counts = torch.tensor([3, 0, 1, 2])
    repeated = objectives(x.repeat_interleave(counts, 0))[name]
    torch.testing.assert_close(objectives(x)[name](counts.double()), repeated(None))


@pytest.mark.parametrize(
    ("weight", "expected", "got"),
    [
        (torch.ones(3), "5 weights", r"got shape \(3,\)"),
        (torch.ones(5, 1), "5 weights", r"got shape \(5, 1\)"),
        (torch.tensor([1.0, 1, 1, 1, -1]), "not negative", "got some of -1"),
        (torch.zeros(5), "not all zero", "a sum of 0"),
        (torch.tensor([1.0, 1, 1, 1, math.nan]), "finite weights", "nan"),
        (torch.tensor([1.0, 1, 1, 1, math.inf]), "finite weights", "a sum of inf"),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_bad_weights_are_refused(name: str, weight: Tensor, expected: str, got: str) -> None:
    with pytest.raises(InputError, match=f"expected .*{expected}.*{got}"):
        objectives(normal(5, 2))[name](weight.double())


def test_weighted_mean_carries_gradients() -> None:
    terms = normal(4).requires_grad_()
    weighted_mean(terms, torch.tensor([1.0, 2.0, 0.0, 1.0]).double()).backward()
    assert terms.grad.tolist() == [0.25, 0.5, 0.0, 0.25]


@pytest.mark.parametrize("name", ["csm", "annealed_csm", "sm", "ssm", "dsm"])
def test_objectives_can_be_trained(name: str) -> None:
    """The gradient with respect to a parameter is that of a difference quotient."""
    x = normal(6, 2)

    def value(gain: Tensor) -> Tensor:
        def scores(x: Tensor) -> tuple[Tensor, Tensor]:
            score = -gain * x - x**3
            return score, -gain - 3 * x**2

        def conditionals(context: Tensor, sigma: Tensor) -> GaussianMixture:
            std = (gain + sigma.square()).sqrt()[..., None]
            return GaussianMixture(torch.ones_like(std), 0 * std, std)

        def joint(x: Tensor) -> Tensor:
            return scores(x)[0]

        return {
            "csm": lambda: csm(scores, x),
            "annealed_csm": lambda: annealed_csm(conditionals, x, Noise(), generator=seeded()),
            "sm": lambda: sm(joint, x),
            "ssm": lambda: ssm(joint, x, generator=seeded()),
            "dsm": lambda: dsm(joint, x, sigma=0.3, generator=seeded()),
        }[name]()

    gain = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(value(gain), gain)
    with torch.enable_grad():
        quotient = (value(gain.detach() + 1e-5) - value(gain.detach() - 1e-5)) / 2e-5
    assert slope.item() == pytest.approx(quotient.item(), rel=1e-6)
