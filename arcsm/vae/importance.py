"""Bounds of log p(x) by importance sampling (IWAE; Burda et al., 2016) for any encoder.

An implicit encoder has no density, and importance weights need one. So the proposal of every
encoder, a normal one included, is a normal density with the mean and covariance of its draws, made
somewhat wider. The bound is E log (1/k) Σ_i p(x, z_i)/r(z_i): with k = 1 an evidence lower bound,
which rises to log p(x) as k grows.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from arcsm.checks import check_positive, check_whole
from arcsm.errors import InputError
from arcsm.vae.annealing import Normal, check_decoder, check_numbers, check_proposal
from arcsm.vae.decoders import Decoder, log_prior
from arcsm.vae.encoders import Encoder, check_finite


@dataclass(frozen=True)
class ImportanceEstimate:
    """Bounds for each x: `elbo` with one draw, in the mean, `iwae` with all of them."""

    elbo: Float[Tensor, "batch"]
    iwae: Float[Tensor, "batch"]
    effective: Float[Tensor, "batch"]  # how many of the draws carry the weight


@torch.no_grad()
def normal_proposal(
    encoder: Encoder,
    x: Tensor,
    *,
    draws: int = 256,
    widen: float = 1.2,
    generator: torch.Generator | None = None,
) -> Normal:
    """Return normal densities with the moments of the encoder's draws, `widen` times as wide.

    Only what no encoder could see is refused of x: which values are possible the decoder knows.
    """
    draws = check_whole(draws, "draws", 2)  # of one there is no covariance
    check_positive(widen, "widen")
    if not isinstance(x, Tensor) or not x.ndim or not len(x):
        got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"expected a tensor of at least one image, got {got}; pass images")
    if not bool(x.isfinite().all()):
        raise InputError("expected finite observations, got NaN or infinity; look for them")
    if not isinstance(encoder, Encoder):
        raise InputError(
            "expected an encoder, a module derived from arcsm.vae.Encoder, got a"
            f" {type(encoder).__name__}; the decoder is for the bounds"
        )
    features = encoder.features(x)
    if features.shape != (len(x), encoder.feature_dims):
        raise InputError(
            f"expected images of which the encoder sees features of shape ({len(x)},"
            f" {encoder.feature_dims}), got {tuple(features.shape)}; reshape the images"
        )
    shape = (draws, len(features), encoder.dims)
    eps = torch.randn(shape, generator=generator, device=features.device).to(features.dtype)
    z = encoder.latents(features, eps)
    check_finite(z)
    mean = z.mean(0)
    away = (z - mean).movedim(0, 1)
    covariance = away.mT @ away / (draws - 1)
    # Of few draws a covariance is nearly singular; and what was never drawn is not impossible.
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    rest = encoder.dims / (draws + encoder.dims)
    covariance = (1 - rest) * covariance + torch.diag_embed(rest * variance + 1e-6)
    return Normal(mean, widen * torch.linalg.cholesky(covariance))


@torch.no_grad()
def importance_bounds(
    decoder: Decoder,
    x: Tensor,
    proposal: Normal,
    *,
    samples: int = 1000,
    at_once: int = 100,
    generator: torch.Generator | None = None,
) -> ImportanceEstimate:
    """Return bounds of log p(x), in nats, from so many draws of the proposal."""
    samples, at_once = check_whole(samples, "samples"), check_whole(at_once, "at_once")
    check_decoder(decoder)
    decoder.check(x)
    check_proposal(proposal, decoder, x, "proposal")
    logs = []
    for first in range(0, samples, at_once):
        z = proposal.sample(min(at_once, samples - first), generator)
        logs.append(decoder.log_prob(x, z) + log_prior(z) - proposal.log_prob(z))
    log_weight = torch.cat(logs)
    check_numbers(log_weight)
    total = log_weight.logsumexp(0)
    effective = torch.exp(2 * total - (2 * log_weight).logsumexp(0))
    return ImportanceEstimate(log_weight.mean(0), total - math.log(samples), effective)
