"""Weighted draws, and drawing them anew where a few carry all the weight."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

# Particles are drawn anew where less than this share of them carries the weight.
EFFECTIVE = 0.5


def effective_size(log_weight: Float[Tensor, "rows particles"]) -> Float[Tensor, "rows"]:
    """Return how many draws of equal weight the weighted ones are worth."""
    return 1 / log_weight.softmax(1).square().sum(1)


def resampled(
    log_weight: Float[Tensor, "rows particles"], generator: torch.Generator | None
) -> Int[Tensor, "all"] | None:
    """Return which particles, of all rows in turn, to go on with, and make weights even.

    It is None if all may stay. Systematic: a particle of weight w is kept w · particles times,
    rounded up or down.
    """
    n, particles = log_weight.shape
    weight = log_weight.softmax(1)
    poor = 1 / weight.square().sum(1) < EFFECTIVE * particles
    if not bool(poor.any()):
        return None
    offset = torch.rand(n, 1, generator=generator, dtype=weight.dtype, device=weight.device)
    places = (offset + torch.arange(particles, device=weight.device)) / particles
    chosen = torch.searchsorted(weight.cumsum(1), places).clamp(max=particles - 1)
    own = torch.arange(particles, device=weight.device).expand_as(chosen)
    chosen = torch.where(poor[:, None], chosen, own)
    log_weight[poor] = 0.0
    first = torch.arange(n, device=weight.device)[:, None] * particles
    return (first + chosen).flatten()
