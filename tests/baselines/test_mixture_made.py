"""The maximum-likelihood baseline: normalised, with exact scores and samples, and it learns."""

import json
import math

import pytest
import torch
from scipy import stats
from torch import Tensor

from arcsm.baselines import MixtureMADE
from arcsm.baselines.mixture_made import KINDS, LOG_SCALE_MIN, Mixture
from arcsm.errors import InputError
from arcsm.objectives import csm, nll

F64 = torch.float64


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def model_of(kind: str, dims: int = 3, **options) -> MixtureMADE:
    """A model in float64 whose components differ, in units that are not the standard ones."""
    model = MixtureMADE(dims, components=4, kind=kind, hidden=(12, 12), seed=1, **options).double()
    with torch.no_grad():
        bias = model.context.output.bias
        bias.add_(0.5 * torch.randn(bias.shape, generator=seeded(2), dtype=F64))
        model.shift.copy_(torch.linspace(-1, 2, dims))
        model.scale.copy_(torch.linspace(0.5, 3, dims))
    return model


def rows(n: int, dims: int = 3) -> Tensor:
    return 3 * torch.randn(n, dims, generator=seeded(3), dtype=F64)


def stretched_grid(points: int, reach: float) -> tuple[Tensor, Tensor]:
    """Points over ±reach, dense in the middle, and their weights in the trapezoidal rule."""
    t = torch.linspace(-math.asinh(reach), math.asinh(reach), points, dtype=F64)
    return t.sinh(), t.cosh() * (t[1] - t[0])


@pytest.mark.parametrize("kind", KINDS)
def test_density_of_one_scalar_integrates_to_one(kind):
    model = model_of(kind, dims=1)
    x, weight = stretched_grid(2001, 100)
    mass = weight @ model.log_prob(x[:, None]).exp()
    assert mass.item() == pytest.approx(1, abs=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_density_of_two_scalars_integrates_to_one(kind):
    model = model_of(kind, dims=2, order=[1, 0])
    x, weight = stretched_grid(301, 300)
    density = model.log_prob(torch.cartesian_prod(x, x)).exp().view(301, 301)
    assert (weight @ density @ weight).item() == pytest.approx(1, abs=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_and_their_derivatives_are_those_of_autograd(kind):
    model = model_of(kind, order=[2, 0, 1])
    x = torch.cat([rows(40), 10 * rows(10)])  # the tails too
    z = ((x - model.shift) / model.scale).requires_grad_()
    # The mixtures are held fixed: only x_d varies in the score of scalar d.
    mixture = model.conditionals(z.detach())
    (first,) = torch.autograd.grad(mixture.log_prob(z).sum(), z, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), z)
    score, derivative = model.conditional_scores(x)
    torch.testing.assert_close(score, first.detach() / model.scale, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(derivative, second / model.scale.square(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_the_diagonal_of_the_jacobian_of_the_terms(kind):
    model = model_of(kind)
    x = rows(1)
    jacobian = torch.autograd.functional.jacobian(lambda y: model.log_prob_terms(y[None])[0], x[0])
    score, _ = model.conditional_scores(x)
    torch.testing.assert_close(jacobian[0].diagonal(), score[0], rtol=1e-10, atol=1e-10)


def test_terms_and_scores_see_only_what_precedes_them_in_the_order():
    order = [2, 0, 3, 1]
    model = model_of("logistic", dims=4, order=order)

    def outputs(y: Tensor) -> Tensor:
        return torch.stack([model.log_prob_terms(y[None])[0], *model.conditional_scores(y[None])])

    jacobian = torch.autograd.functional.jacobian(outputs, rows(1, 4)[0])[:, 0]
    jacobian = jacobian[:, order][:, :, order]  # both axes in the order of the walk
    assert (jacobian.triu(1) == 0).all()
    assert (jacobian.tril() != 0).sum() == 3 * 10


@pytest.mark.parametrize("kind", KINDS)
def test_distribution_function_has_the_density_as_its_derivative(kind):
    model = model_of(kind)
    z = rows(20).requires_grad_()
    mixture = model.conditionals(z.detach())
    (density,) = torch.autograd.grad(mixture.cdf(z).sum(), z)
    torch.testing.assert_close(density, mixture.log_prob(z).exp().detach(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_samples_follow_the_distribution_function(kind):
    model = model_of(kind, order=[1, 2, 0])
    uniform = model.conditional_cdf(model.sample(40000, generator=seeded())).numpy()
    for column in uniform.T:
        assert stats.kstest(column, "uniform").pvalue > 0.01
    # Given what precedes it, each is uniform still: those of one row are independent.
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert stats.spearmanr(uniform[:, a], uniform[:, b]).pvalue > 0.01


def test_samples_are_those_of_the_generator():
    model = model_of("logistic")
    assert torch.equal(model.sample(5, generator=seeded(7)), model.sample(5, generator=seeded(7)))


def test_loss_is_minus_the_mean_log_likelihood():
    model = model_of("logistic")
    x = rows(6)
    noise = model.draw_noise(6, generator=seeded())
    assert noise == ()
    torch.testing.assert_close(model.loss_terms(x, noise), -model.log_prob(x))
    torch.testing.assert_close(nll(model.log_prob, x), model.loss_terms(x).mean())
    weight = torch.tensor([1.0, 1, 1, 0, 0, 0], dtype=F64)
    torch.testing.assert_close(nll(model.log_prob, x, weight=weight), nll(model.log_prob, x[:3]))


def test_loss_is_one_graph_for_the_compiler():
    model = model_of("logistic")
    compiled = torch.compile(model.loss_terms, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(rows(6)), model.loss_terms(rows(6)))


@pytest.mark.parametrize("kind", KINDS)
def test_float32_and_outliers_stay_finite(kind):
    model = MixtureMADE(2, kind=kind, hidden=(8,), seed=0)
    x = torch.tensor([[1e4, -1e4], [0.0, 1e5], [-30.0, 30.0]])
    loss = nll(model.log_prob, x)
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert all(part.isfinite().all() for part in model.conditional_scores(x))


@pytest.mark.parametrize("kind", KINDS)
def test_components_have_a_least_width(kind):
    mixture: Mixture = KINDS[kind].from_context(torch.tensor([[0.0, 0.0, -50.0]]))
    assert mixture.log_scale.item() == LOG_SCALE_MIN
    peak = {"logistic": math.log(1 / 4), "gaussian": -math.log(2 * math.pi) / 2}[kind]
    assert mixture.log_prob(torch.zeros(1)).item() == pytest.approx(peak - LOG_SCALE_MIN)


def draw_pair(n: int, seed: int) -> Tensor:
    """x₀ from two normal distributions, x₁ from two others that move with x₀."""
    generator = seeded(seed)
    side = 2 * torch.randint(2, (n, 2), generator=generator) - 1
    noise = torch.randn(n, 2, generator=generator, dtype=F64)
    first = 3 * side[:, 0] + noise[:, 0]
    return torch.stack([first, 10 + first / 2 + 2 * side[:, 1] + noise[:, 1] / 2], 1)


def log_prob_of_pair(x: Tensor) -> Tensor:
    def two_normals(value: Tensor, distance: float, scale: float) -> Tensor:
        ends = torch.tensor([-distance, distance], dtype=F64)
        parts = torch.distributions.Normal(ends, scale).log_prob(value[:, None])
        return parts.logsumexp(-1) - math.log(2)

    return two_normals(x[:, 0], 3, 1) + two_normals(x[:, 1] - 10 - x[:, 0] / 2, 2, 0.5)


@pytest.mark.parametrize("kind", KINDS)
def test_training_recovers_the_log_likelihood_of_a_mixture(kind):
    x, unseen, steps = draw_pair(20000, 0), draw_pair(10000, 1), 500
    model = MixtureMADE(2, components=6, kind=kind, hidden=(32, 32), seed=0).double()
    model.standardise(x)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    generator = seeded()
    for _ in range(steps):
        optimiser.zero_grad()
        nll(model.log_prob, x[torch.randint(len(x), (512,), generator=generator)]).backward()
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        missing = (log_prob_of_pair(unseen) - model.log_prob(unseen)).mean()
    assert abs(missing) < 0.02


@pytest.mark.parametrize("kind", KINDS)
def test_composite_score_matching_trains_it_too(kind):
    generator = seeded()
    x = torch.randn(200, 2, generator=generator, dtype=F64)
    x[:, 1] += x[:, 0].square()
    model = MixtureMADE(2, components=4, kind=kind, hidden=(16, 16), seed=0).double()
    model.standardise(x)
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    losses, likelihoods = [], []
    for _ in range(100):
        optimiser.zero_grad()
        loss = csm(model.conditional_scores, x)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        likelihoods.append(model.log_prob(x).mean().item())
    assert losses[-1] < losses[0] - 0.5
    assert likelihoods[-1] > likelihoods[0]


def test_condition_reaches_every_scalar():
    model = model_of("logistic", condition_dims=2)
    x = rows(5)
    one, other = torch.zeros(5, 2, dtype=F64), torch.ones(5, 2, dtype=F64)
    terms, _ = model.log_prob_terms(x, condition=one)
    assert (terms != model.log_prob_terms(x, condition=other)[0]).all()
    assert model.sample(5, condition=one, generator=seeded()).shape == (5, 3)
    with pytest.raises(InputError, match=r"expected a condition of shape \(5, 2\), got none"):
        model.log_prob(x)


def test_model_is_made_anew_from_its_config():
    model = model_of("gaussian", order=[2, 1, 0])
    copy = MixtureMADE.from_config(json.loads(json.dumps(model.config))).double()
    copy.load_state_dict(model.state_dict())
    assert copy.config == model.config
    assert torch.equal(copy.log_prob(rows(4)), model.log_prob(rows(4)))


def test_seed_fixes_the_weights_and_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    one, same, other = (MixtureMADE(2, hidden=(8,), seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.context.input.weight, same.context.input.weight)
    assert not torch.equal(one.context.input.weight, other.context.input.weight)


def test_standardise_takes_the_moments_and_refuses_constants():
    model = MixtureMADE(3, hidden=(8,)).double()
    x = rows(50)
    model.standardise(x)
    torch.testing.assert_close(model.shift, x.mean(0))
    torch.testing.assert_close(model.scale, x.std(0, correction=0))
    x[:, 1] = 2
    with pytest.raises(InputError, match=r"expected columns that vary, got constant columns \[1\]"):
        model.standardise(x)


def test_bad_input_is_refused():
    with pytest.raises(InputError, match="expected at least one component, got 0"):
        MixtureMADE(2, components=0)
    with pytest.raises(InputError, match=r"expected a kind among .*, got 'cauchy'"):
        MixtureMADE(2, kind="cauchy")
    model = model_of("logistic")
    for method in (model.log_prob, model.conditional_scores, model.conditional_cdf):
        with pytest.raises(InputError, match="expected x with 3 columns, got 2"):
            method(rows(4, 2))
    with pytest.raises(InputError, match="expected finite numbers in x, got nan"):
        model.log_prob(torch.full((1, 3), math.nan))
    with pytest.raises(InputError, match="expected a positive whole number of samples, got 0"):
        model.sample(0)


@pytest.mark.parametrize("kind", KINDS)
def test_jitter_moves_the_targets_and_not_the_contexts(kind):
    """Σ_d −log q(x_d + jitter_d | x_<d), with one scalar moved at a time."""
    model = model_of(kind, order=[2, 0, 1])
    x, jitter = rows(8), 0.3 * rows(16)[8:]
    with torch.no_grad():
        expected = torch.zeros(8, dtype=F64)
        for d in range(3):
            moved = x.clone()
            moved[:, d] += jitter[:, d]  # the term of d itself does not look at what comes later
            expected -= model.log_prob_terms(moved)[0][:, d]
        torch.testing.assert_close(model.loss_terms(x, jitter=jitter), expected)
        plain = model.loss_terms(x)
        torch.testing.assert_close(plain, -model.log_prob(x))
        assert torch.equal(model.loss_terms(x, jitter=torch.zeros_like(x)), plain)
        assert (plain - expected).abs().min().item() > 1e-6
        assert not torch.allclose(model.loss_terms(x + jitter), expected)
