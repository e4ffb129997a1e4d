"""AIS and IWAE on a linear-Gaussian model, whose likelihood is known, and what goes wrong."""

import math
import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from arcsm.devices import matmul_precision
from arcsm.errors import InputError
from arcsm.vae import (
    AISSettings,
    BernoulliDecoder,
    ConvolutionalDecoder,
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


def check_unbiased(decoder: LinearDecoder, weight: float, temperatures: int) -> float:
    """Check E w = p(x), and backwards E 1/w = 1/p(x), at fixed steps; return the acceptance."""
    with torch.no_grad():
        decoder.weight.fill_(weight)
        decoder.bias.zero_()
    x = torch.full((1, 1), 1.5)
    exact = decoder.exact(x).item()
    generator = torch.Generator().manual_seed(1)

    def settings(chains: int) -> AISSettings:
        return AISSettings(chains, temperatures, leapfrog=3, first_step=0.4, adaptation=1.0)

    forth = ais(decoder, x, settings(40_000), generator=generator)
    assert forth.log_likelihood.item() == pytest.approx(exact, abs=0.03)
    # An exact draw of the posterior for each chain.
    draws = decoder.posterior(x).sample(40_000, generator)[:, 0]
    with warnings.catch_warnings():
        # Some of 40,000 chains, one for each x here, may.
        warnings.filterwarnings("ignore", "the AIS chains of .* rejected every move")
        back = reverse_ais(decoder, x.expand(40_000, 1), draws, settings(1), generator=generator)
    backwards = -torch.logsumexp(-back.log_likelihood, 0) + math.log(40_000)
    assert backwards.item() == pytest.approx(exact, abs=0.03)
    return forth.acceptance.item()


def test_weights_are_unbiased_at_two_temperatures_where_steps_are_fixed() -> None:
    """Weights and moves in another order miss that."""
    check_unbiased(LinearDecoder(1, 1, noise=1.0), 0.8, temperatures=2)


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
    sigmoid = torch.sigmoid(4 * torch.linspace(-1, 1, 11).double())
    expected = (sigmoid - sigmoid[0]) / (sigmoid[-1] - sigmoid[0])
    torch.testing.assert_close(torch.tensor(betas).double(), expected)
    # A flat one is a line, and a steep one a step.
    assert AISSettings(temperatures=4, steepness=1e-30).betas() == [0, 0.25, 0.5, 0.75, 1]
    assert AISSettings(temperatures=4, steepness=1e4).betas() == [0, 0, 0.5, 1, 1]


def test_steps_follow_the_acceptance() -> None:
    decoder = LinearDecoder()
    _, x = simulated(decoder, 3)
    for first in (0.001, 3.0):
        settings = AISSettings(temperatures=300, leapfrog=2, adaptation=1.1, first_step=first)
        assert ais(decoder, x, settings).acceptance.mean().item() == pytest.approx(0.65, abs=0.12)


class CoarseDecoder(LinearDecoder):
    """Where gradients are wanted, those of another density."""

    def log_prob(self, x: Tensor, z: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return 0.7 * super().log_prob(x, z.mul(4).round().div(4).detach() + z - z.detach())
        return super().log_prob(x, z)


def test_coarse_gradients_move_chains_and_change_no_estimate() -> None:
    """Weights and acceptance are those of the density itself."""
    fine, coarse = (
        check_unbiased(kind(1, 1, noise=1.0), 1.1, temperatures=3)
        for kind in (LinearDecoder, CoarseDecoder)
    )
    assert coarse < fine - 1e-3


class WatchedDecoder(BernoulliDecoder):
    """Notes with which precision it is asked for what."""

    def __init__(self) -> None:
        super().__init__(2, 6, hidden=8)
        self.asked: set[tuple[bool, str, bool]] = set()

    def log_prob(self, x: Tensor, z: Tensor) -> Tensor:
        precise = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        self.asked.add((torch.is_grad_enabled(), *precise))
        return super().log_prob(x, z)


@pytest.mark.parametrize("usual", ["highest", "high"])
def test_gradients_alone_are_rounded(usual: str) -> None:
    decoder, x = WatchedDecoder(), torch.rand(3, 6).round()
    with matmul_precision(usual):
        for tf32, expected in ((False, usual), (True, "high")):
            decoder.asked.clear()
            ais(decoder, x, AISSettings(4, 5, 2, tf32=tf32))
            of_convolutions = {asked[2] for asked in decoder.asked if asked[0]}
            assert of_convolutions == {torch.backends.cudnn.allow_tf32}
            assert {asked[:2] for asked in decoder.asked} == {(True, expected), (False, "highest")}
            assert not any(asked[2] for asked in decoder.asked if not asked[0])
        assert torch.get_float32_matmul_precision() == usual
    assert torch.backends.cudnn.allow_tf32


def test_a_compiled_density_gives_the_same_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    decoder, x = BernoulliDecoder(2, 6, hidden=8), torch.rand(3, 6).round()
    plain, compiled = (
        ais(
            decoder,
            x,
            AISSettings(4, 5, 2, compile=compile),
            generator=torch.Generator().manual_seed(1),
        )
        for compile in (False, True)
    )
    torch.testing.assert_close(compiled.log_likelihood, plain.log_likelihood)


def test_chains_that_all_reject_are_reported() -> None:
    decoder = LinearDecoder(noise=0.01)
    _, x = simulated(decoder, 4)
    settings = AISSettings(temperatures=6, leapfrog=3, first_step=500.0, adaptation=1.0)
    with pytest.warns(UserWarning, match="chains of 4 of 4 images rejected every move"):
        found = ais(decoder, x, settings)
    assert found.stuck.all() and (found.acceptance == 0).all()


@pytest.mark.parametrize(("first_step", "adaptation"), [(100.0, 1.02), (1e-6, 1.02), (1e-6, 1.0)])
def test_chains_of_which_one_carries_the_weight_are_reported(
    first_step: float, adaptation: float
) -> None:
    decoder = LinearDecoder(noise=0.3)
    _, x = simulated(decoder, 8)
    settings = AISSettings(temperatures=300, first_step=first_step, adaptation=adaptation)
    with pytest.warns(UserWarning, match="of 8 images fewer than 2 of 16 AIS chains carry"):
        far = (ais(decoder, x, settings).log_likelihood - decoder.exact(x)).mean()
    assert far < -1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        near = ais(decoder, x, AISSettings(temperatures=300)).log_likelihood - decoder.exact(x)
    assert near.abs().mean() < 0.5


class FarDecoder(LinearDecoder):
    """One that gives some far latents more than any density."""

    def log_prob(self, x: Tensor, z: Tensor) -> Tensor:
        return super().log_prob(x, z).where(z[..., 0] < 1, math.inf)


def test_infinite_densities_that_chains_come_upon_are_refused() -> None:
    decoder = FarDecoder()
    settings = AISSettings(chains=2, temperatures=200, leapfrog=5)
    x = torch.randn(1, 6)
    start = Normal(torch.full((1, 3), -2.0), 0.1 * torch.eye(3)[None])
    with pytest.raises(InputError, match="NaN or infinity for 1 of 1 images"):
        ais(decoder, x, settings, start=start)


class Summed(LinearDecoder):
    """One that forgets to sum over the scalars of x."""

    def log_prob(self, x: Tensor, z: Tensor) -> Tensor:
        return torch.distributions.Normal(self(z), self.noise).log_prob(x)


class Weightless(Decoder):
    """x = z + noise, without weights."""

    dims, shape = 2, (2,)

    def log_prob(self, x: Tensor, z: Tensor) -> Tensor:
        return torch.distributions.Normal(z, 1.0).log_prob(x).sum(-1)


def test_decoders_of_ones_own_are_taken_or_refused_in_a_sentence() -> None:
    x = torch.randn(5, 2)
    exact = torch.distributions.Normal(0.0, math.sqrt(2)).log_prob(x).sum(-1)
    found = ais(Weightless(), x, AISSettings(temperatures=100, leapfrog=5))
    assert (found.log_likelihood - exact).abs().max() < 0.3
    with pytest.raises(InputError, match=r"of shape \(particles, batch\), .* got \(16, 5, 6\)"):
        ais(Summed(), torch.randn(5, 6))
    encoder: Any = GaussianEncoder(2, 2)
    for call in (
        partial(ais, encoder, x),
        partial(reverse_ais, encoder, x, x),
        partial(importance_bounds, encoder, x, standard(5, 2)),
    ):
        with pytest.raises(InputError, match=r"module derived from arcsm\.vae\.Decoder"):
            call()
    wrong: Any = Weightless()
    with pytest.raises(InputError, match=r"module derived from arcsm\.vae\.Encoder"):
        normal_proposal(wrong, x)
    with pytest.raises(InputError, match="settings of AIS, got a dict"):
        ais(Weightless(), x, {"chains": 3})  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"of shape \(5, 2\), got list"):
        reverse_ais(Weightless(), x, [[0.0, 0.0]] * 5)  # type: ignore[arg-type]


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
    generators = (torch.Generator().manual_seed(0) for _ in range(2))
    narrow, wide = (
        normal_proposal(encoder, x, widen=widen, generator=generator)
        for widen, generator in zip((1.0, 1.5), generators, strict=True)
    )
    torch.testing.assert_close(wide.root, 1.5 * narrow.root)


def test_normal_densities_are_those_of_torch() -> None:
    root = torch.randn(4, 3, 3).tril()
    root = root - torch.diag_embed(root.diagonal(dim1=1, dim2=2)) + torch.eye(3)
    normal = Normal(torch.randn(4, 3), root)
    z = torch.randn(5, 4, 3)
    expected = torch.distributions.MultivariateNormal(normal.mean, scale_tril=root).log_prob(z)
    torch.testing.assert_close(normal.log_prob(z), expected)


def standard(batch: int, dims: int) -> Normal:
    return Normal(torch.zeros(batch, dims), torch.eye(dims).expand(batch, dims, dims))


def test_roots_that_are_not_lower_triangular_are_refused() -> None:
    """Draws would read all of the root and densities half of it, for a bound above the truth."""
    decoder = LinearDecoder()
    _, x = simulated(decoder, 4)
    exact = decoder.posterior(x)
    values, vectors = torch.linalg.eigh(exact.root @ exact.root.mT)
    symmetric = vectors @ torch.diag_embed(values.sqrt()) @ vectors.mT
    with pytest.raises(InputError, match=r"above the diagonal.*cholesky"):
        Normal(exact.mean, symmetric)
    with pytest.raises(InputError, match="diagonal that is not positive"):
        Normal(exact.mean, -exact.root)
    with pytest.raises(InputError, match="NaN"):
        Normal(exact.mean, exact.root * math.nan)
    with pytest.raises(InputError, match="infinity"):
        Normal(exact.mean / 0, exact.root)
    for root in (exact.root[0], exact.root[:1], exact.root[:, :2, :2], exact.root[:, 0]):
        with pytest.raises(InputError, match=r"\(batch, dims, dims\), got \(4, 3\)"):
            Normal(exact.mean, root)
    with pytest.raises(InputError, match="of one type"):
        Normal(exact.mean, exact.root.double())


@pytest.mark.parametrize("shape", [(1, 2), (4, 2), (3, 1), (3, 3)])
def test_proposals_of_other_images_or_latents_are_refused(shape: tuple[int, int]) -> None:
    decoder = BernoulliDecoder(2, pixels=4, hidden=4)
    x, z, other = torch.zeros(3, 4), torch.zeros(3, 2), standard(*shape)
    with pytest.raises(InputError, match=r"as start .* \(3, 2\), .* got \(\d, \d\)"):
        ais(decoder, x, start=other)
    with pytest.raises(InputError, match=r"as start .* \(3, 2\)"):
        reverse_ais(decoder, x, z, start=other)
    with pytest.raises(InputError, match=r"as proposal .* \(3, 2\)"):
        importance_bounds(decoder, x, other)
    with pytest.raises(InputError, match=r"as proposal a Normal .* got NoneType"):
        importance_bounds(decoder, x, None)


def test_observations_are_checked_wherever_they_come_in() -> None:
    decoder = BernoulliDecoder(2, pixels=4, hidden=4)
    wrong = {
        "0 or 1": torch.full((3, 4), 255.0),
        "at least one image": torch.zeros(0, 4),
        "finite": torch.full((3, 4), math.nan),
        r"\(batch, 4\)": torch.zeros(3, 5),
    }
    for message, x in wrong.items():
        with pytest.raises(InputError, match=message):
            ais(decoder, x)
        with pytest.raises(InputError, match=message):
            reverse_ais(decoder, x, torch.zeros(len(x), 2))
        with pytest.raises(InputError, match=message):
            importance_bounds(decoder, x, standard(len(x), 2))
    # An encoder does not know what is possible of x, but what it can see.
    del wrong["0 or 1"]
    wrong["features of shape"] = wrong.pop(r"\(batch, 4\)")
    for message, x in wrong.items():
        with pytest.raises(InputError, match=message):
            normal_proposal(GaussianEncoder(2, 4), x)


def test_values_that_are_no_numbers_are_not_blamed_on_steps() -> None:
    decoder = BernoulliDecoder(2, pixels=4, hidden=4)
    encoder = GaussianEncoder(2, 4)
    x, z = torch.zeros(3, 4), torch.zeros(3, 2)
    with pytest.raises(InputError, match="finite latents"):
        reverse_ais(decoder, x, z * math.nan)
    with torch.no_grad():
        decoder.network[-1].bias.fill_(math.nan)
        encoder.head.bias.fill_(math.nan)
    with pytest.raises(InputError, match=r"NaN or infinity for 3 of 3 images.*weights"):
        ais(decoder, x)
    with pytest.raises(InputError, match="for 3 of 3 images"):
        reverse_ais(decoder, x, z)
    with pytest.raises(InputError, match="for 3 of 3 images"):
        importance_bounds(decoder, x, standard(3, 2))
    with pytest.raises(InputError, match="encoder that draws finite latents"):
        normal_proposal(encoder, x)


def test_simulated_colour_images_are_bounded_from_both_sides() -> None:
    """Their noise leaves [−1, 1], and they are observations all the same."""
    decoder = ConvolutionalDecoder(2, 1, width=8, side=16)
    with torch.no_grad():
        decoder.log_deviation.fill_(0.5)
    z = torch.randn(3, 2)
    x = decoder.sample(z)
    assert x.abs().max() > 3 and not x.requires_grad
    settings = AISSettings(chains=4, temperatures=60, leapfrog=2, adaptation=1.05)
    lower = ais(decoder, x, settings).log_likelihood
    upper = reverse_ais(decoder, x, z, settings).log_likelihood
    assert (upper - lower).mean().item() == pytest.approx(0, abs=1)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        *((name, (0, -1, 2.5, 2.0, True, "2", None)) for name in ("chains", "temperatures")),
        ("leapfrog", (0, 1.5, True, np.bool_(True))),
        ("target", (0, 1, 1.5, -0.5, math.nan, True, "0.5", None)),
        ("first_step", (0, -0.1, math.inf, math.nan, True, torch.tensor(0.1))),
        ("adaptation", (0.5, math.inf, math.nan, True)),
        ("steepness", (0, -4.0, math.inf, math.nan, False, None)),
        *((name, (1, 0.0, "yes", None)) for name in ("tf32", "compile")),
    ],
)
def test_settings_are_checked(name: str, values: tuple[Any, ...]) -> None:
    for value in values:
        with pytest.raises(InputError, match=f"{name} (to be|of)|True or False as {name}"):
            AISSettings(**{name: value})


def test_numbers_of_numpy_are_numbers() -> None:
    decoder = LinearDecoder()
    _, x = simulated(decoder, 2)
    settings = AISSettings(np.int64(3), np.int32(4), np.int64(2), first_step=np.float32(0.1))
    proposal = decoder.posterior(x)
    assert ais(decoder, x, settings, start=proposal).log_likelihood.shape == (2,)
    found = importance_bounds(decoder, x, proposal, samples=np.int64(5), at_once=np.int32(2))
    torch.testing.assert_close(found.iwae, decoder.exact(x), atol=1e-4, rtol=0)


def test_bad_input_is_named() -> None:
    decoder = BernoulliDecoder(2, pixels=4, hidden=4)
    with pytest.raises(InputError, match=r"\(3, 2\), got \(3, 5\)"):
        reverse_ais(decoder, torch.zeros(3, 4), torch.zeros(3, 5))
    for name in ("samples", "at_once"):
        for value in (0, -1, 2.5, True):
            with pytest.raises(InputError, match=f"{name} to be a whole number"):
                importance_bounds(decoder, torch.zeros(3, 4), standard(3, 2), **{name: value})
    encoder, x = GaussianEncoder(2, 3), torch.zeros(1, 3)
    for draws in (1, 2.5, True):
        with pytest.raises(InputError, match="draws to be a whole number of at least 2"):
            normal_proposal(encoder, x, draws=draws)
    for widen in (0, -1.0, math.nan, True):
        with pytest.raises(InputError, match="widen to be a positive"):
            normal_proposal(encoder, x, widen=widen)
