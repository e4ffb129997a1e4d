"""Draws from the posterior given all of a noisy image, by particles.

Each image has a number of particles: walks along the order in which every scalar is drawn from its
posterior given what was observed of it and the scalars drawn before. A particle whose draws made
what comes next improbable gets a small weight, and is, from time to time, replaced by a copy of a
better one. That is how later scalars have a say. With ever more particles their weighted mean is
the exact posterior mean given the whole image, under the model; with few it is a noisy estimate of
it, the noisier the farther back, since the survivors share their ancestors. So a row of the image
is settled when `lag` more rows have been walked: of what comes later still nothing is used.

Weights and draws are those of the "optimal proposal": with context c and observation o a scalar is
drawn from P(level | c) P(o | level)/P(o | c), and the weight is multiplied by P(o | c).
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from arcsm.images.cells import cell_ends
from arcsm.model import ARCSM
from arcsm.tasks.images.levels import Bins, draw_bins, log_probabilities
from arcsm.tasks.images.posterior import Observation, Shape
from arcsm.tasks.resampling import resampled


@torch.no_grad()
def particle_mean(
    chain: ARCSM,
    observation: Observation,
    shape: Shape,
    bins: Bins,
    *,
    particles: int,
    lag: int,
    generator: torch.Generator | None,
    progress: Callable[[float], None] | None = None,
) -> Float[Tensor, "images scalars"]:
    """Return the posterior means, as level/255, of `particles` for each image."""
    n, row = len(observation.rows), shape[1] * shape[2]
    rows = observation.rows.repeat_interleave(particles, 0)
    repeated = Observation(rows, observation.noise, observation.cut)
    uncertain = observation.noise.ambiguous(rows)
    x, log_weight = rows.clone(), rows.new_zeros(n, particles)
    mean = torch.zeros_like(observation.rows)
    cursor = chain.context.cursor(len(rows))
    for d in range(chain.dims):
        found, gain = _step(chain, cursor.context(), repeated, uncertain[:, d], d, bins, generator)
        x[:, d] = found
        log_weight += gain.view(n, particles)
        if (d + 1) % row == 0:
            settled = d + 1 - (lag + 1) * row
            if settled >= 0:
                part = slice(settled, settled + row)
                mean[:, part] = _weighted(x[:, part], log_weight)
            if d + 1 < chain.dims:
                index = resampled(log_weight, generator)
                if index is not None:
                    x = x[index]
                    cursor.take(index)
            if progress is not None:
                progress((d + 1) / chain.dims)
        cursor.push(chain.context_input(x[:, d], d))
    left = max(0, chain.dims - lag * row)
    mean[:, left:] = _weighted(x[:, left:], log_weight)
    return mean


def _step(
    chain: ARCSM,
    context: Float[Tensor, "rows width"],
    observation: Observation,
    uncertain: Tensor,
    d: int,
    bins: Bins,
    generator: torch.Generator | None,
) -> tuple[Float[Tensor, "rows"], Float[Tensor, "rows"]]:
    """Return a draw of scalar d for each row, and log P(observed | context)."""
    found, gain = observation.rows[:, d].clone(), torch.zeros_like(observation.rows[:, d])
    which = uncertain.nonzero()[:, 0]
    if len(which):
        log_p = log_probabilities(chain, context[which], d, bins)
        joint = log_p + observation.log_likelihood(which, d, bins.centres(log_p))
        gain[which] = joint.logsumexp(1)
        found[which] = draw_bins(joint.log_softmax(1), bins, generator)
    which = (~uncertain).nonzero()[:, 0]
    if len(which):
        ends = cell_ends(found[which, None])
        low, high = ((end.to(chain.shift) - chain.shift[d]) / chain.scale[d] for end in ends)
        density = chain.density_of(chain.head.family(context[which]))
        gain[which] = density.log_mass(low, high)[:, 0].to(gain)
    return found, gain


def _weighted(
    x: Float[Tensor, "rows scalars"], log_weight: Float[Tensor, "images particles"]
) -> Float[Tensor, "images scalars"]:
    """Return the means of the particles of each image."""
    values = x.view(*log_weight.shape, -1)
    return (log_weight.softmax(1)[..., None] * values).sum(1)
