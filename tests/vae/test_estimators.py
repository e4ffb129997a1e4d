"""Entropy gradients against exact ones: normal encoders, and push-forwards of known entropy."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from arcsm.context.made import MADE
from arcsm.devices import matmul_precision
from arcsm.errors import InputError, NonFiniteLossError
from arcsm.experiments.entropy_gradients import WarpedSampler
from arcsm.vae import (
    ESTIMATORS,
    FreeEncoder,
    GaussianEncoder,
    ImplicitEncoder,
    make_estimator,
)
from arcsm.vae.encoders import normal_entropy
from arcsm.vae.estimators import EntropyEstimator, LearnedEntropy
from arcsm.vae.kernels import _kernel_and_pushes, stein_scores


def gradients(value: Tensor, sampler: nn.Module) -> Tensor:
    found = torch.autograd.grad(value, list(sampler.parameters()), allow_unused=True)
    return torch.cat(
        [
            (torch.zeros_like(p) if g is None else g).flatten()
            for g, p in zip(found, sampler.parameters(), strict=True)
        ]
    ).detach()


def estimates(
    estimator: EntropyEstimator, sampler: Any, particles: int, repeats: int, batch: int = 1
) -> Tensor:
    found = []
    for _ in range(repeats):
        z = sampler(torch.randn(particles, batch, sampler.dims))
        found.append(gradients(estimator.entropy_surrogate(z), sampler))
    return torch.stack(found)


def teach(
    estimator: Any, draw: Callable[[], Tensor], x: Tensor | None = None, *, steps: int, rate: float
) -> None:
    """Train, with a rate that falls to 0: what is left is bias, not the noise of last steps."""
    for step in range(steps):
        with torch.no_grad():
            z = draw()
        estimator.set_learning_rate(rate * (1 - step / steps))
        estimator.update(z, x)


def trained(method: str, sampler: Any, steps: int) -> EntropyEstimator:
    estimator = make_estimator(method, sampler, width=32)
    teach(estimator, lambda: sampler(torch.randn(128, 1, sampler.dims)), steps=steps, rate=5e-3)
    return estimator


def relative_bias(found: Tensor, exact: Tensor) -> float:
    return ((found.mean(0) - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize(
    ("method", "bend"), [("csm", 0.0), ("csm", 0.3), ("ssm-ar", 0.3), ("ssm", 0.3)]
)
def test_learned_scores_give_the_exact_gradient(method: str, bend: float) -> None:
    sampler = WarpedSampler(2, bend)
    exact = gradients(sampler.entropy(), sampler).float()
    estimator = trained(method, sampler, 250)
    found = estimates(estimator, sampler, 4000, 6)
    assert relative_bias(found, exact) < 0.1


@pytest.mark.parametrize("method", ["csm", "ssm"])
def test_narrow_conditionals_have_their_steep_scores(method: str) -> None:
    """z_2 is far narrower given z_1 than alone; a bound on scores would be seen here."""
    sampler = WarpedSampler(2, narrowing=3.0)
    estimator = make_estimator(method, sampler, width=32)
    teach(estimator, lambda: sampler(torch.randn(128, 1, 2)), steps=900, rate=5e-3)
    found = estimates(estimator, sampler, 4000, 6).mean(0)
    assert found[1].item() == pytest.approx(1, abs=0.12)  # dH/d log width of z_2 given z_1


def test_variance_falls_with_the_number_of_samples() -> None:
    sampler = WarpedSampler(2, 0.0)
    estimator = trained("csm", sampler, 100)
    few, many = (estimates(estimator, sampler, n, 200).var(0).sum() for n in (50, 800))
    assert 8 < few / many < 32  # 16, but for chance


@pytest.mark.parametrize("bend", [0.0, 0.3])
@pytest.mark.parametrize(("method", "bound"), [("stein", 0.15), ("spectral", 0.15)])
def test_kernels_near_the_exact_gradient_as_particles_grow(
    method: str, bound: float, bend: float
) -> None:
    sampler = WarpedSampler(2, bend)
    exact = gradients(sampler.entropy(), sampler).float()
    estimator = make_estimator(method, sampler)
    # Particles of one x make a score, and those of other x come beside them.
    biases = [
        relative_bias(estimates(estimator, sampler, n, 3, batch=6000 // n), exact)
        for n in (10, 300)
    ]
    assert biases[1] < bound and biases[1] < biases[0]


def test_kernels_are_as_wide_as_the_median_distance() -> None:
    # Distances are 1, 2, 3, 6, 8, 9, each twice: the lower one of the middle two is 3.
    z = torch.tensor([0.0, 1.0, 3.0, 9.0]).double()[:, None]
    kernel, pushes = _kernel_and_pushes(z)
    apart = (z - z.T).square()
    width = 3.0**2
    expected = torch.exp(-apart / (2 * width))
    torch.testing.assert_close(kernel, expected)
    # S_i = Σ_j ∂K_ij/∂z_j.
    torch.testing.assert_close(pushes, (expected * (z - z.T)).sum(1, keepdim=True) / width)
    scores = stein_scores(z, 0.1)
    solved = (expected + 0.1 * torch.eye(4).double()) @ scores
    torch.testing.assert_close(solved, -pushes)


def test_steins_equations_that_are_not_solved_have_no_scores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = torch.linalg.cholesky_ex

    def second_fails(matrix: Tensor) -> tuple[Tensor, Tensor]:
        factor, failed = whole(matrix)
        return factor, failed.index_fill(0, torch.tensor([1]), 3)

    z = torch.randn(3, 6, 2)
    expected = stein_scores(z, 0.1)
    monkeypatch.setattr(torch.linalg, "cholesky_ex", second_fails)
    found = stein_scores(z, 0.1)
    assert bool(found[1].isnan().all())
    assert torch.equal(found[[0, 2]], expected[[0, 2]])


@pytest.mark.parametrize("method", ["csm", "ssm-ar", "ssm"])
def test_without_x_fields_learn_units_whatever_a_sampler_says(method: str) -> None:
    sampler = WarpedSampler(2)
    sampler.units = nn.Linear(2, 2)  # which is nothing of the kind
    estimator = make_estimator(method, sampler, width=8)
    z = sampler(torch.randn(16, 1, 2))
    assert estimator.update(z) is not None
    assert math.isfinite(estimator.entropy_surrogate(z).item())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("draws", [2, 5, 32, 100, 128, 130])
@pytest.mark.parametrize("dims", [1, 8, 32])
def test_on_a_gpu_steins_equations_are_solved_as_well(draws: int, dims: int) -> None:
    z = torch.randn(3, 4, draws, dims, generator=torch.Generator().manual_seed(draws))
    ridge = 1e-2
    exact = stein_scores(z.double(), ridge)
    with matmul_precision("high"):  # which is not for kernels
        found = stein_scores(z.cuda(), ridge).cpu()
    # The largest eigenvalue of the kernel is at most the number of draws, the smallest the ridge.
    worst = torch.finfo(torch.float32).eps * draws / ridge * exact.abs().max()
    assert found.shape == z.shape and (found - exact).abs().max() <= worst + 1e-5
    assert stein_scores(z[:0].cuda(), ridge).shape == (0, 4, draws, dims)


def test_elbo_is_the_closed_form() -> None:
    encoder = GaussianEncoder(3, 5, hidden=8)
    x = torch.randn(4, 5)
    estimator = make_estimator("elbo", encoder)
    z = encoder(x, torch.randn(2, 4, 3))
    mean, log_scale = encoder.units(x)
    normal = torch.distributions.Normal(mean, log_scale.exp())
    exact = normal.entropy().sum(-1).mean()
    assert estimator.entropy_surrogate(z, x).item() == pytest.approx(exact.item(), rel=1e-5)
    torch.testing.assert_close(
        gradients(estimator.entropy_surrogate(z, x), encoder), gradients(exact, encoder)
    )
    # Its scores are those of the density.
    at = z.detach().requires_grad_()
    (score,) = torch.autograd.grad(normal.log_prob(at).sum(), at)
    torch.testing.assert_close(estimator.scores(z, x), score, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["elbo", "ssm", "csm"])
def test_x_is_what_the_encoder_has_made_of_images(method: str) -> None:
    body = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
    kinds = {"elbo": GaussianEncoder, "csm": ImplicitEncoder}
    encoder = kinds.get(method, FreeEncoder)(2, 5, hidden=8, body=body)
    images, eps = torch.randn(4, 3, 4), torch.randn(6, 4, 2)
    options = {} if method == "elbo" else {"width": 8}
    estimator = make_estimator(method, encoder, 5, **options)
    features = encoder.features(images)
    z = encoder.latents(features, eps)
    estimator.update(z, features)  # which leaves the graph of the encoder alone
    assert body[1].weight.grad is None
    surrogate = estimator.entropy_surrogate(z, features)
    surrogate.backward()
    assert body[1].weight.grad is not None
    if isinstance(encoder, GaussianEncoder):
        assert surrogate.item() == pytest.approx(encoder.entropy(images).mean().item())
        mean, log_scale = encoder.units(features)
        expected = (mean - z) / log_scale.exp().square()
        torch.testing.assert_close(estimator.scores(z, features), expected)


def test_conditional_scores_follow_x() -> None:
    # q(z|x) = N(x, 0.1² or 1): a posterior ten times as narrow as another.
    class Sampler(nn.Module):
        dims, autoregressive_noise = 1, True

    x = torch.tensor([[-1.0], [1.0]])
    scale = torch.where(x > 0, 0.1, 1.0)
    estimator = make_estimator("csm", Sampler(), 1, width=32)
    teach(estimator, lambda: x + scale * torch.randn(64, 2, 1), x, steps=400, rate=1e-2)
    z = x + scale * torch.randn(500, 2, 1)
    exact = -(z - x) / scale**2
    error = (estimator.scores(z, x) - exact).detach().square().mean(0) / exact.square().mean(0)
    assert error.max() < 0.05


@pytest.mark.parametrize("method", ["csm", "ssm-ar"])
def test_conditional_scores_follow_the_encoder_at_once(method: str) -> None:
    """Without bumps latents are normal given those before: the entropy is a closed form."""
    encoder = ImplicitEncoder(4, 3, hidden=16, bumps=0)
    with torch.no_grad():
        encoder.output.weight.mul_(30)
    estimator = make_estimator(method, encoder, 3, width=32)
    x = torch.randn(8, 3)
    teach(estimator, lambda: encoder(x, torch.randn(64, 8, 4)), x, steps=60, rate=2e-3)
    with torch.no_grad():  # the encoder goes on, the estimator does not
        for layer in (encoder.head, encoder.from_x):  # units of x, and what the others see of it
            layer.bias.add_(torch.randn_like(layer.bias))
    eps = torch.randn(4000, 8, 4)
    log_width = encoder.latents_and_conditional_units(x, eps)[2]
    exact = gradients(normal_entropy(log_width).mean(), encoder)
    found = gradients(estimator.entropy_surrogate(encoder(x, eps), x), encoder)
    assert (found - exact).norm() < 0.1 * exact.norm()


@pytest.mark.parametrize("method", ["csm", "ssm-ar"])
def test_fields_see_earlier_latents_unless_units_hold_what_these_say(method: str) -> None:
    def sees_earlier(sampler: nn.Module, condition_dims: int) -> bool:
        estimator = make_estimator(method, sampler, condition_dims, width=8)
        assert isinstance(estimator, LearnedEntropy)
        return isinstance(estimator.field.context, MADE)

    assert not sees_earlier(ImplicitEncoder(2, 3, hidden=4), 3)
    assert not sees_earlier(GaussianEncoder(2, 3, hidden=4), 3)
    assert sees_earlier(ImplicitEncoder(2, 3, hidden=4), 0)  # which knows of no units then
    assert sees_earlier(WarpedSampler(2), 0)
    encoder = ImplicitEncoder(2, 3, hidden=4)
    encoder.independent_in_units = False
    assert sees_earlier(encoder, 3)


def test_joint_scores_are_in_units_of_x_alone() -> None:
    """Units that move with z would need terms of their own in the joint score."""
    encoder = ImplicitEncoder(3, 2, hidden=8)
    with torch.no_grad():
        encoder.output.weight.mul_(30)
    x = torch.randn(4, 2)
    z = encoder(x, torch.randn(5, 4, 3)).detach()
    for method, units in (("ssm", encoder.units(x)), ("csm", encoder.conditional_units(x, z))):
        estimator = make_estimator(method, encoder, 2, width=8)
        assert isinstance(estimator, LearnedEntropy)
        scale = units[1].exp()
        inner = estimator.field.scaled((z - units[0]) / scale, estimator.field.hidden(x))
        torch.testing.assert_close(estimator.scores(z, x), inner / scale)


@pytest.mark.parametrize("method", ["csm", "ssm-ar"])
def test_encoders_of_another_form_are_refused(method: str) -> None:
    with pytest.raises(InputError, match=r"z_<d.*FreeEncoder.*would not vanish"):
        make_estimator(method, FreeEncoder(2, 3), 3)
    make_estimator(method, ImplicitEncoder(2, 3, hidden=4), 3, width=4)
    make_estimator("ssm", FreeEncoder(2, 3), 3, width=4)


def test_other_bad_input_is_named() -> None:
    sampler = WarpedSampler(2)
    with pytest.raises(InputError, match="method among elbo"):
        make_estimator("score", sampler)
    with pytest.raises(InputError, match="attribute dims"):
        make_estimator("stein", nn.Linear(2, 2))
    with pytest.raises(InputError, match="GaussianEncoder for ELBO"):
        make_estimator("elbo", sampler)
    with pytest.raises(InputError, match="at least 2 particles for Stein"):
        make_estimator("stein", sampler).entropy_surrogate(torch.zeros(1, 3, 2))
    with pytest.raises(InputError, match=r"\(particles, batch, 2\)"):
        make_estimator("spectral", sampler).entropy_surrogate(torch.zeros(5, 2))
    for ridge in (0.0, 1e-9, math.nan, "small"):
        with pytest.raises(InputError, match="ridge of at least 1e-06"):
            make_estimator("stein", sampler, ridge=ridge)
    for share in (0.0, 1.0, 1.5):
        with pytest.raises(InputError, match="share above 0 and below 1"):
            make_estimator("spectral", sampler, share=share)
    with pytest.raises(InputError, match="options of stein among ridge, got 'width'"):
        make_estimator("stein", sampler, width=4)
    for rate in (-1, math.inf, "fast", True):
        with pytest.raises(InputError, match="learning rate of 0 or more"):
            make_estimator("csm", sampler, learning_rate=rate)
        with pytest.raises(InputError, match="learning rate of 0 or more"):
            make_estimator("csm", sampler, width=4).set_learning_rate(rate)
    conditional = make_estimator("csm", sampler, 4, width=4)
    with pytest.raises(InputError, match=r"\(batch, 4\), got none"):
        conditional.scores(torch.zeros(1, 3, 2))
    with pytest.raises(InputError, match="expected no x"):
        make_estimator("csm", sampler, width=4).scores(torch.zeros(1, 3, 2), torch.zeros(3, 4))
    z = torch.zeros(5, 3, 2)
    for x in (torch.zeros(7, 4), torch.zeros(4), torch.zeros(5, 3, 4), [0.0]):
        for method in ("stein", "csm"):
            options = {"width": 4} if method == "csm" else {}
            with pytest.raises(InputError, match=r"x of shape \(3, features\)"):
                make_estimator(method, sampler, 4, **options).entropy_surrogate(z, x)


@pytest.mark.parametrize("method", ["stein", "spectral", "ssm", "csm"])
def test_latents_that_are_none_are_refused(method: str) -> None:
    options = {"width": 4} if ESTIMATORS[method].learns else {}
    estimator = make_estimator(method, WarpedSampler(2), **options)
    for z in ([[0.0]], torch.zeros(5, 0, 2), torch.zeros(0, 3, 2)):
        with pytest.raises(InputError, match=r"shape \(particles, batch, 2\), at least one"):
            estimator.entropy_surrogate(z)
    for value in (math.nan, math.inf):
        with pytest.raises(InputError, match="finite latents"):
            estimator.entropy_surrogate(torch.full((5, 3, 2), value))
    whole = torch.zeros(5, 3, 2, dtype=torch.long)
    with pytest.raises(InputError, match=r"expected latents of .*got torch.int64"):
        estimator.entropy_surrogate(whole)
    if estimator.learns:
        with pytest.raises(InputError, match=r"latents of torch.float32.*got torch.float64"):
            estimator.entropy_surrogate(torch.zeros(5, 3, 2).double())


class Anywhere(nn.Module):
    """A sampler of which the estimator knows no more than that it has this form."""

    dims, autoregressive_noise = 3, True


@pytest.mark.parametrize("method", ["csm", "ssm-ar", "ssm"])
@pytest.mark.parametrize(("middle", "width"), [(100.0, 1.0), (0.0, 100.0), (-1000.0, 0.1)])
def test_scores_are_learned_wherever_draws_are_and_however_wide(
    method: str, middle: float, width: float
) -> None:
    torch.manual_seed(0)
    estimator = make_estimator(method, Anywhere(), width=32, learning_rate=2e-3)
    for _ in range(300):
        estimator.update(middle + width * torch.randn(256, 1, 3))
    z = middle + width * torch.randn(4000, 1, 3)
    # E s (z − μ) = −1 by Stein's identity.
    share = -(estimator.scores(z) * (z - middle)).mean().item()
    assert share == pytest.approx(1, abs=0.1)


def test_scores_that_are_not_finite_are_no_surrogate() -> None:
    draws = torch.randn(8, 2, 3)
    spectral = make_estimator("spectral", Anywhere())
    with pytest.raises(NonFiniteLossError, match=r"scores of Spectral .* latents up to .*e\+2"):
        spectral.entropy_surrogate(1e25 * draws)
    for kind in (torch.float16, torch.bfloat16):
        scores = spectral.scores(draws.to(kind))
        expected = spectral.scores(draws.to(kind).float())
        assert scores.dtype == kind and torch.equal(scores, expected.to(kind))
    learned = make_estimator("csm", Anywhere(), 4)
    with pytest.raises(InputError, match="finite x"):
        learned.update(draws, torch.full((2, 4), math.nan))


def test_learning_needs_no_gradients_to_be_on() -> None:
    estimator = make_estimator("csm", WarpedSampler(2), width=4)
    with torch.no_grad():
        assert estimator.update(torch.randn(8, 1, 2)) is not None


@pytest.mark.parametrize("draws", [100, 600])
def test_small_ridges_are_solved_exactly_in_single_precision_too(draws: int) -> None:
    z = torch.randn(draws, 2, generator=torch.Generator().manual_seed(0))
    exact = stein_scores(z.double(), 1e-6)
    assert (stein_scores(z, 1e-6) - exact).norm() < 1e-4 * exact.norm()


@pytest.mark.parametrize("method", ["csm", "ssm", "ssm-ar"])
def test_a_diverging_estimator_halts_and_is_named(method: str) -> None:
    estimator = make_estimator(method, WarpedSampler(2), width=16, learning_rate=10)
    with pytest.raises(NonFiniteLossError, match=rf"{estimator.name} diverged at its step \d"):
        for _ in range(200):
            estimator.update(torch.randn(64, 1, 2))


@pytest.mark.parametrize("method", list(ESTIMATORS))
def test_one_latent_and_detached_scores(method: str) -> None:
    kinds = {"elbo": GaussianEncoder, "csm": ImplicitEncoder, "ssm-ar": ImplicitEncoder}
    encoder = kinds.get(method, FreeEncoder)(1, 3, hidden=8)
    x = torch.randn(4, 3)
    options = {"width": 8} if ESTIMATORS[method].learns else {}
    estimator = make_estimator(method, encoder, 3, **options)
    z = encoder(x, torch.randn(6, 4, 1))
    estimator.update(z, x)
    value = estimator.entropy_surrogate(z, x)
    value.backward()
    assert value.isfinite()
    moved = [p for p in encoder.parameters() if p.grad is not None and bool((p.grad != 0).any())]
    assert moved
    # Only the step of the estimator itself may have reached its parameters, not the surrogate.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = [None if p.grad is None else p.grad.clone() for p in estimator.parameters()]
        estimator.entropy_surrogate(encoder(x, torch.randn(6, 4, 1)), x).backward()
    for old, parameter in zip(before, estimator.parameters(), strict=True):
        assert (old is None) == (parameter.grad is None)
        assert old is None or torch.equal(old, parameter.grad)


def test_centred_scores_leave_the_expectation_alone() -> None:
    sampler = WarpedSampler(2, 0.0)
    estimator = make_estimator("csm", sampler, width=4)
    z = torch.randn(5, 3, 2)
    plain, centred = estimator.scores(z), estimator.centred_scores(z)
    others = (plain.sum(0, keepdim=True) - plain) / 4
    torch.testing.assert_close(centred, plain - others)
    assert torch.equal(estimator.centred_scores(z[:1]), estimator.scores(z[:1]))
