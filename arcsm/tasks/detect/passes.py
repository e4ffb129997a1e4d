"""What one chain says of encoded rows: scores at several noise levels, and smoothed densities.

All of it is in the standardised units of the chain, in which noise levels are given too. A score
at level σ is that of x_d + σ·noise given the clean x_<d; times σ, and its derivative times σ², it
is of the same size at every level.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from arcsm.conditional import FlowDensity, Noise
from arcsm.conditional.flow import fewest_steps
from arcsm.model import ARCSM
from arcsm.threads import even_sizes, map_pieces

# Conditionals evaluated at one time: what they need stays in the cache of a core.
_CONDITIONALS = 8192


@torch.no_grad()
def scaled_jets(
    chain: ARCSM, points: Float[Tensor, "rows dims"], levels: Sequence[float]
) -> tuple[Float[Tensor, "rows levels dims"], Float[Tensor, "rows levels dims"]]:
    """Return σ s_d and σ² ∂s_d/∂x_d at every level, from one pass of the context network."""

    def evaluate(piece: Tensor) -> tuple[Tensor, Tensor]:
        z, family = chain.to_standard(piece)[..., None], _family(chain, piece)
        found = [family.at(level).jet(z) for level in levels]
        scores = [score[..., 0] * level for (score, _), level in zip(found, levels, strict=True)]
        bends = [bend[..., 0] * level**2 for (_, bend), level in zip(found, levels, strict=True)]
        return torch.stack(scores, 1), torch.stack(bends, 1)

    parts = map_pieces(evaluate, _pieces(chain, points), points.device)
    scores, bends = zip(*parts, strict=True)
    return torch.cat(scores), torch.cat(bends)


@torch.no_grad()
def smoothed_terms(
    chain: ARCSM,
    points: Float[Tensor, "rows dims"],
    sigma: float,
    *,
    only: Sequence[int] | None = None,
) -> Float[Tensor, "rows dims"]:
    """Return log q_σ(x_d | x_<d) in nats, of x_d + σ·noise, by the flow from σ_max to σ.

    With `only` these scalars alone, in that order.
    """
    noise = Noise(chain.noise.sigma_max, max(sigma, chain.noise.sigma_min))
    wanted = list(range(chain.dims)) if only is None else list(only)
    log_scale = chain.scale.log()[wanted]

    def evaluate(piece: Tensor) -> Tensor:
        z = chain.to_standard(piece)[:, wanted]
        contexts = chain.context(chain.context_inputs(piece))[:, wanted]
        family = chain.head.family(contexts.flatten(0, 1))
        density = FlowDensity(family, noise, steps=fewest_steps(noise))
        return density.log_prob(z.reshape(-1, 1)).view_as(z) - log_scale

    return torch.cat(map_pieces(evaluate, _pieces(chain, points, len(wanted)), points.device))


def _family(chain: ARCSM, points: Float[Tensor, "rows dims"]) -> Any:
    return chain.head.family(chain.context(chain.context_inputs(points)))


def _pieces(
    chain: ARCSM, points: Float[Tensor, "rows dims"], scalars: int | None = None
) -> list[Tensor]:
    at_once = max(1, _CONDITIONALS // max(chain.dims if scalars is None else scalars, 1))
    sizes = even_sizes(len(points), at_once, points.device)
    return list(points.split(sizes))
