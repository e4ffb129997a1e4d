"""AIS and IWAE on a linear-Gaussian model, whose likelihood is known, and what goes wrong."""

import math

import pytest
import torch
from torch import Tensor, nn

from arcsm.errors import InputError
from arcsm.vae import (
    AISSettings,
    BernoulliDecoder,
    Decoder,
    GaussianEncoder,
    ais,
    importance_bounds,
    normal_proposal,
    reverse_ais,
)
from arcsm.vae.annealing import Normal


class LinearDecoder(Decoder):
    """x = W z + b + noise: log p(x) and the posterior are closed forms."""

    def __init__(self, dims: int = 3, scalars: int = 6, noise: float = 0.7):
        super().__init__()
        self.dims, self.shape, self.noise = dims, (scalars,), noise
        self.weight = nn.Parameter(0.7 * torch.randn(scalars, dims))
        self.bias = nn.Parameter(torch.randn(scalars))

    def forward(self, z: Tensor) -> Tensor:
        return z @ self.weight.T + self.bias

    def log_prob(self, x: Tensor, z: Tensor) -> Tensor:
        return torch.distributions.Normal(self(z), self.noise).log_prob(x).sum(-1)

    def exact(self, x: Tensor) -> Tensor:
        covariance = self.weight @ self.weight.T + self.noise**2 * torch.eye(*2 * self.shape)
        return torch.distributions.MultivariateNormal(self.bias, covariance).log_prob(x).detach()

    def posterior(self, x: Tensor) -> Normal:
        precision = torch.eye(self.dims) + self.weight.T @ self.weight / self.noise**2
        covariance = torch.linalg.inv(precision)
        mean = (x - self.bias) @ self.weight @ covariance / self.noise**2
        root = torch.linalg.cholesky(covariance).expand(len(x), -1, -1)
        return Normal(mean.detach(), root.detach())


ENOUGH = AISSettings(chains=64, temperatures=250, leapfrog=3, adaptation=1.05, first_step=0.2)


def simulated(decoder: LinearDecoder, count: int = 12) -> tuple[Tensor, Tensor]:
    z = torch.randn(count, decoder.dims)
    return z, (decoder(z) + decoder.noise * torch.randn(count, *decoder.shape)).detach()


def test_ais_is_exact_on_a_linear_gaussian_model_and_bounded_from_both_sides() -> None:
    decoder = LinearDecoder(2, noise=1.0)
    z, x = simulated(decoder)
    exact = decoder.exact(x)
    generator = torch.Generator().manual_seed(1)
    lower = ais(decoder, x, ENOUGH, generator=generator)
    upper = reverse_ais(decoder, x, z, ENOUGH, generator=generator)
    torch.testing.assert_close(lower.log_likelihood, exact, atol=0.1, rtol=0)
    assert abs((upper.log_likelihood - exact).mean()) < 0.1
    assert 0.4 < lower.acceptance.mean() < 0.9 and not lower.stuck.any()
    assert (lower.effective >= 1).all() and (lower.effective <= 64.01).all()
    assert all(parameter.requires_grad for parameter in decoder.parameters())


def test_few_temperatures_open_the_gap() -> None:
    decoder = LinearDecoder(noise=0.3)
    z, x = simulated(decoder)
    settings = AISSettings(temperatures=4, leapfrog=5, chains=4)
    gap = reverse_ais(decoder, x, z, settings).log_likelihood
    gap = gap - ais(decoder, x, settings).log_likelihood
    assert gap.mean() > 1


def test_a_start_at_the_posterior_is_exact_at_once() -> None:
    decoder = LinearDecoder()
    _, x = simulated(decoder)
    found = ais(decoder, x, AISSettings(temperatures=2, leapfrog=1), start=decoder.posterior(x))
    torch.testing.assert_close(found.log_likelihood, decoder.exact(x), atol=1e-3, rtol=0)


def test_inverse_temperatures_are_a_sigmoid() -> None:
    betas = AISSettings(temperatures=10).betas()
    assert betas[0] == 0 and betas[-1] == pytest.approx(1) and betas[5] == pytest.approx(0.5)
    steps = torch.tensor(betas).diff()
    assert (steps > 0).all() and steps[0] < steps[4] / 3


def test_steps_follow_the_acceptance() -> None:
    decoder = LinearDecoder()
    _, x = simulated(decoder, 3)
    for first in (0.001, 3.0):
        settings = AISSettings(temperatures=300, leapfrog=2, adaptation=1.1, first_step=first)
        assert ais(decoder, x, settings).acceptance.mean().item() == pytest.approx(0.65, abs=0.12)


def test_chains_that_all_reject_are_reported() -> None:
    decoder = LinearDecoder(noise=0.01)
    _, x = simulated(decoder, 4)
    settings = AISSettings(temperatures=6, leapfrog=3, first_step=500.0, adaptation=1.0)
    with pytest.warns(UserWarning, match="chains of 4 of 4 images rejected every move"):
        found = ais(decoder, x, settings)
    assert found.stuck.all() and (found.acceptance == 0).all()


def test_importance_sampling_is_exact_from_the_posterior_and_a_bound_otherwise() -> None:
    decoder = LinearDecoder()
    _, x = simulated(decoder, 40)
    exact = decoder.exact(x)
    found = importance_bounds(decoder, x, decoder.posterior(x), samples=5)
    torch.testing.assert_close(found.iwae, exact, atol=1e-4, rtol=0)
    torch.testing.assert_close(found.elbo, exact, atol=1e-4, rtol=0)
    torch.testing.assert_close(found.effective, torch.full((40,), 5.0), atol=1e-3, rtol=0)
    posterior = decoder.posterior(x)
    wide = Normal(posterior.mean, 1.5 * posterior.root)
    found = importance_bounds(decoder, x, wide, samples=3000, at_once=700)
    # E log p − log r: the divergence of the wide density from the posterior is a closed form.
    divergence = decoder.dims * (1.5**2 - 1 - 2 * math.log(1.5)) / 2
    assert (found.elbo - exact).mean().item() == pytest.approx(-divergence, abs=0.02)
    torch.testing.assert_close(found.iwae, exact, atol=0.1, rtol=0)
    one = importance_bounds(decoder, x, wide, samples=1)
    torch.testing.assert_close(one.elbo, one.iwae)


def test_proposals_have_the_moments_of_the_draws() -> None:
    encoder = GaussianEncoder(2, 3, hidden=8)
    x = torch.randn(4, 3)
    proposal = normal_proposal(encoder, x, draws=20_000, widen=1.0)
    mean, log_scale = encoder.units(x)
    torch.testing.assert_close(proposal.mean, mean, atol=0.05, rtol=0)
    covariance = proposal.root @ proposal.root.mT
    torch.testing.assert_close(
        covariance, torch.diag_embed(torch.exp(2 * log_scale)), atol=0.06, rtol=0
    )


def test_normal_densities_are_those_of_torch() -> None:
    root = torch.randn(4, 3, 3).tril()
    root = root - torch.diag_embed(root.diagonal(dim1=1, dim2=2)) + torch.eye(3)
    normal = Normal(torch.randn(4, 3), root)
    z = torch.randn(5, 4, 3)
    expected = torch.distributions.MultivariateNormal(normal.mean, scale_tril=root).log_prob(z)
    torch.testing.assert_close(normal.log_prob(z), expected)


def test_bad_input_is_named() -> None:
    decoder = BernoulliDecoder(2, pixels=4, hidden=4)
    with pytest.raises(InputError, match="0 or 1"):
        ais(decoder, torch.full((3, 4), 0.5))
    with pytest.raises(InputError, match=r"\(3, 2\), got \(3, 5\)"):
        reverse_ais(decoder, torch.zeros(3, 4), torch.zeros(3, 5))
    with pytest.raises(InputError, match="at least one chain"):
        AISSettings(chains=0)
    with pytest.raises(InputError, match="target"):
        AISSettings(target=1.0)
    with pytest.raises(InputError, match="at least one sample"):
        importance_bounds(
            decoder,
            torch.zeros(3, 4),
            Normal(torch.zeros(3, 2), torch.eye(2).expand(3, 2, 2)),
            samples=0,
        )
    with pytest.raises(InputError, match="at least 2 draws"):
        normal_proposal(GaussianEncoder(2, 3), torch.zeros(1, 3), draws=1)
