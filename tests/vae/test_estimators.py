"""Entropy gradients against exact ones: normal encoders, and push-forwards of known entropy."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from arcsm.errors import InputError, NonFiniteLossError
from arcsm.vae import (
    ESTIMATORS,
    FreeEncoder,
    GaussianEncoder,
    ImplicitEncoder,
    make_estimator,
)
from arcsm.vae.estimators import EntropyEstimator
from arcsm.vae.kernels import _kernel_and_pushes, stein_scores


class Warped(nn.Module):
    """z = L sinh-like(ε)·e^a: not normal, dependent latents, entropy by change of variables.

    u = ε + b sinh ε is increasing for b ≥ 0, and z_d = e^{a_d} u_d + Σ_{j<d} L_dj e^{a_j} u_j, so
    that H = H(ε) + Σ_d E log(1 + b_d cosh ε) + a_d. With b = 0 it is a normal density.
    """

    autoregressive_noise = True

    def __init__(self, dims: int = 3, bend: float = 0.3):
        super().__init__()
        self.dims = dims
        self.log_scale = nn.Parameter(torch.linspace(-0.4, 0.4, dims))
        self.bend = nn.Parameter(torch.full((dims,), bend))
        below = torch.tril(torch.ones(dims, dims), -1)
        self.mixing = nn.Parameter(0.7 * below)
        self.register_buffer("below", below)

    def forward(self, eps: Tensor) -> Tensor:
        u = torch.exp(self.log_scale) * (eps + self.bend * torch.sinh(eps))
        return u + u @ (self.mixing * self.below).T

    def entropy(self) -> Tensor:
        nodes = torch.linspace(-8, 8, 4001, dtype=torch.float64)
        weight = torch.exp(-nodes.square() / 2) / math.sqrt(2 * math.pi) * (nodes[1] - nodes[0])
        stretch = torch.log(1 + self.bend[:, None].double() * torch.cosh(nodes))
        normal = self.dims * (1 + math.log(2 * math.pi)) / 2
        return normal + (stretch * weight).sum() + self.log_scale.double().sum()


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
    sampler = Warped(2, bend)
    exact = gradients(sampler.entropy(), sampler).float()
    estimator = trained(method, sampler, 250)
    found = estimates(estimator, sampler, 4000, 6)
    assert relative_bias(found, exact) < 0.1


def test_variance_falls_with_the_number_of_samples() -> None:
    sampler = Warped(2, 0.0)
    estimator = trained("csm", sampler, 100)
    few, many = (estimates(estimator, sampler, n, 200).var(0).sum() for n in (50, 800))
    assert 8 < few / many < 32  # 16, but for chance


@pytest.mark.parametrize("bend", [0.0, 0.3])
@pytest.mark.parametrize(("method", "bound"), [("stein", 0.15), ("spectral", 0.15)])
def test_kernels_near_the_exact_gradient_as_particles_grow(
    method: str, bound: float, bend: float
) -> None:
    sampler = Warped(2, bend)
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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("draws", [2, 5, 32, 100, 128, 130])
@pytest.mark.parametrize("dims", [1, 8, 32])
def test_on_a_gpu_steins_equations_are_solved_as_well(draws: int, dims: int) -> None:
    z = torch.randn(3, 4, draws, dims, generator=torch.Generator().manual_seed(draws))
    exact = stein_scores(z.double(), 1e-2)
    found = stein_scores(z.cuda(), 1e-2).cpu()
    error, usual = ((of - exact).abs().max() for of in (found, stein_scores(z, 1e-2)))
    assert found.shape == z.shape and error <= 10 * usual + 1e-4
    assert stein_scores(z[:0].cuda(), 1e-2).shape == (0, 4, draws, dims)


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


def test_the_identity_fails_for_encoders_of_another_form() -> None:
    """z₁ = ε₁² + φ ε₁, z₂ = max(ε₁, 0) + ε₂ at φ = 0: ε₁ reaches z₂ around z₁."""
    # ∂z₁/∂φ = ε₁, and the score of z₁ ~ χ² is −½ − ½/ε₁²: their product is odd in ε₁, and its
    # mean 0. z₂ does not depend on φ. So exact conditional scores say that the gradient is 0.
    e1 = torch.linspace(-8, 8, 4000, dtype=torch.float64)
    by_identity = -((-0.5 - 0.5 / e1.square()) * e1 * torch.exp(-e1.square() / 2)).sum()

    # But with z₁ known ε₁ is one of two roots, z₂ a mixture of two normal densities, and the
    # gradient of H = H(z₁) + H(z₂|z₁), by differences on a grid, is another.
    def entropy(phi: float) -> float:
        e1 = torch.linspace(-8, 8, 4000, dtype=torch.float64)
        other = -e1 - phi  # the second root of ε² + φε = z₁
        p1, p2 = (torch.exp(-r.square() / 2) / math.sqrt(2 * math.pi) for r in (e1, other))
        share = p1 / (p1 + p2)
        jacobian = (2 * e1 + phi).abs().clamp_min(1e-12)
        log_q1 = torch.log((p1 + p2) / jacobian)
        z2 = torch.linspace(-7, 15, 441, dtype=torch.float64)

        def normal(mean: Tensor) -> Tensor:
            return torch.exp(-(z2 - mean[:, None]).square() / 2) / math.sqrt(2 * math.pi)

        step = e1[1] - e1[0]
        total = 0.0
        for part in torch.arange(len(e1)).split(2000):
            q2 = share[part, None] * normal(e1[part].clamp_min(0)) + (
                1 - share[part, None]
            ) * normal(other[part].clamp_min(0))
            h2 = -(q2 * q2.clamp_min(1e-300).log()).sum(1) * (z2[1] - z2[0])
            total += (p1[part] * (h2 - log_q1[part]) * step).sum().item()
        return total

    exact = (entropy(0.05) - entropy(-0.05)) / 0.1
    assert abs(by_identity.item()) < 1e-9
    assert abs(exact) == pytest.approx(0.07, abs=0.01)


@pytest.mark.parametrize("method", ["csm", "ssm-ar"])
def test_encoders_of_another_form_are_refused(method: str) -> None:
    with pytest.raises(InputError, match=r"z_<d.*FreeEncoder.*would not vanish"):
        make_estimator(method, FreeEncoder(2, 3), 3)
    make_estimator(method, ImplicitEncoder(2, 3, hidden=4), 3, width=4)
    make_estimator("ssm", FreeEncoder(2, 3), 3, width=4)


def test_other_bad_input_is_named() -> None:
    sampler = Warped(2)
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
    with pytest.raises(InputError, match="positive ridge"):
        make_estimator("stein", sampler, ridge=0.0)
    with pytest.raises(InputError, match="share in"):
        make_estimator("spectral", sampler, share=1.5)
    conditional = make_estimator("csm", sampler, 4, width=4)
    with pytest.raises(InputError, match=r"\(batch, 4\), got none"):
        conditional.scores(torch.zeros(1, 3, 2))
    with pytest.raises(InputError, match="expected no x"):
        make_estimator("csm", sampler, width=4).scores(torch.zeros(1, 3, 2), torch.zeros(3, 4))


@pytest.mark.parametrize("method", ["csm", "ssm", "ssm-ar"])
def test_a_diverging_estimator_halts_and_is_named(method: str) -> None:
    sampler = Warped(2)
    estimator = make_estimator(method, sampler, width=4)
    estimator.update(torch.randn(8, 1, 2))
    with pytest.raises(NonFiniteLossError, match=rf"{estimator.name} diverged at its step 2"):
        estimator.update(torch.full((8, 1, 2), math.inf))


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
    sampler = Warped(2, 0.0)
    estimator = make_estimator("csm", sampler, width=4)
    z = torch.randn(5, 3, 2)
    plain, centred = estimator.scores(z), estimator.centred_scores(z)
    others = (plain.sum(0, keepdim=True) - plain) / 4
    torch.testing.assert_close(centred, plain - others)
    assert torch.equal(estimator.centred_scores(z[:1]), estimator.scores(z[:1]))
