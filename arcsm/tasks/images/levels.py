"""How probable each level is, given the scalars before it: the CDF of a conditional at its edges.

Levels that the noise cannot tell apart may be taken together, as bins of several; black and white,
on which most of the mass of many pictures lies, are always bins of their own.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from arcsm.images.cells import HIGHEST
from arcsm.model import ARCSM

# Points of conditionals that are evaluated at one time: on a CPU as many as its cache holds.
_POINTS, _POINTS_ON_GPU = 2**13, 2**22
# No level is impossible: float32 knows a CDF to about 1e-7.
_LEAST = 1e-12


@dataclass(frozen=True)
class Bins:
    """Runs of `width` levels, the last one perhaps shorter, between black and white.

    >>> Bins(100).first
    (0, 1, 101, 201, 255)
    """

    width: int = 1

    @property
    def first(self) -> tuple[int, ...]:
        """The first level of each bin."""
        return (0, *range(1, HIGHEST, self.width), HIGHEST)

    def edges(self, like: Tensor) -> Float[Tensor, "edges"]:
        """Return what divides a bin from the next, as level/255."""
        return (like.new_tensor(self.first[1:]) - 0.5) / HIGHEST

    def centres(self, like: Tensor) -> Float[Tensor, "bins"]:
        """Return the mean level of each bin, as level/255."""
        first = like.new_tensor(self.first)
        last = torch.cat([first[1:] - 1, first[-1:]])
        return (first + last) / (2 * HIGHEST)


@torch.no_grad()
def log_probabilities(
    chain: ARCSM, context: Float[Tensor, "rows width"], d: int, bins: Bins
) -> Float[Tensor, "rows bins"]:
    """Return log P(bin | context) of scalar d: exact but for the rounding of the CDF."""
    edges = (bins.edges(chain.shift) - chain.shift[d]) / chain.scale[d]
    at_once = max(1, (_POINTS_ON_GPU if context.is_cuda else _POINTS) // len(edges))
    found = []
    for some in context.split(at_once):
        density = chain.density_of(chain.head.family(some))
        cdf = density.cdf(edges.expand(len(some), -1))
        ends = cdf.new_zeros(len(some), 1)
        # Rounding may make the CDF fall by its last digit.
        mass = torch.cat([ends, cdf, ends + 1], 1).diff().clamp(min=_LEAST)
        found.append(mass.log() - mass.sum(1, keepdim=True).log())
    return torch.cat(found)


def draw_bins(
    log_p: Float[Tensor, "rows bins"], bins: Bins, generator: torch.Generator | None
) -> Float[Tensor, "rows"]:
    """Draw a level of each row, as level/255: a bin by its probability, evenly within it."""
    uniform = torch.rand(
        (2, len(log_p)), generator=generator, dtype=log_p.dtype, device=log_p.device
    )
    upto = log_p.exp().cumsum(1)
    # Relative to the last of them, as rounding may leave it beside 1.
    chosen = (upto < uniform[0][:, None] * upto[:, -1:]).sum(1)
    first = torch.tensor([*bins.first, HIGHEST + 1], device=log_p.device)
    width = first.diff()[chosen]
    return (first[chosen] + (uniform[1] * width).floor().clamp(max=width - 1)) / HIGHEST
