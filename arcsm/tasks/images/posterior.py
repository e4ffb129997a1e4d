"""Denoising by Bayes' rule along the order, and the views of an image from several corners.

At each scalar the model gives P(level | context), the corruption P(observed | level). Their product
is, normalised, the posterior of the level given what was observed of this scalar and the context.
If the context is right that is exact. It is not the posterior given the whole image: of the later
scalars nothing is used. And the context is made of scalars that are cleaned already, so it is only
as right as they are.

Several views of an image, mirrored ones, begin at other corners. What they say of a scalar is
pooled before the observation is taken into account, once:

- "product": P ∝ Π_v P_v^(1/n_v), where n_v is the number of views from above, or of those from
  below, as v is one of these or of those: each half of the image counts once. That would be exact
  if what lies above and what lies below, given the scalar, had nothing to do with each other, and
  all levels were as probable before either is seen; both are not quite so.
- "mixture": the mean of the P_v, which is right when one of the contexts is and others mislead.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from arcsm.images.cells import PixelSnap
from arcsm.model import ARCSM
from arcsm.tasks.images.corruption import Corruption
from arcsm.tasks.images.levels import Bins, draw_bins, log_probabilities
from arcsm.tasks.images.mirrors import VIEWS, scalars_of

ESTIMATES = ("mean", "map", "draw")
POOLS = ("product", "mixture")

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Observation:
    """Rows with noise, as level/255; `cut` says that they were rounded and cut off, as in files."""

    rows: Float[Tensor, "images scalars"]
    noise: Corruption
    cut: bool

    def log_likelihood(self, which: Tensor, d: int, levels: Tensor) -> Float[Tensor, "rows levels"]:
        """Return log P(observed | level) of scalar d of some rows."""
        return self.noise.log_likelihood(self.rows[which, d], levels, cut=self.cut)

    def viewed(self, scalars: Tensor) -> "Observation":
        """Return the same of images whose scalars lie elsewhere."""
        return Observation(self.rows[:, scalars], self.noise, self.cut)


def estimate(
    log_posterior: Float[Tensor, "rows bins"],
    bins: Bins,
    kind: str,
    generator: torch.Generator | None,
) -> Float[Tensor, "rows"]:
    """Return the mean, the most probable bin or a draw of each row, as level/255."""
    if kind == "draw":
        return draw_bins(log_posterior, bins, generator)
    centres = bins.centres(log_posterior)
    if kind == "map":
        return centres[log_posterior.argmax(1)]
    return log_posterior.softmax(1) @ centres


@torch.no_grad()
def walk(
    chain: ARCSM,
    observation: Observation,
    bins: Bins,
    kind: str,
    generator: torch.Generator | None,
    tell: Callable[[int, Tensor, Tensor], None] | None = None,
) -> Float[Tensor, "images scalars"]:
    """Clean rows scalar by scalar; contexts see the estimates, each brought to its level.

    `tell(d, which, log_p)` is called with log P(bin | context) of the rows whose scalar d is not
    certain.
    """
    observed, snap = observation.rows, PixelSnap()
    clean = observed.clone()
    certain = ~observation.noise.ambiguous(observed)
    cursor = chain.context.cursor(len(observed))
    for d in range(chain.dims):
        which = (~certain[:, d]).nonzero()[:, 0]
        if len(which):
            log_p = log_probabilities(chain, cursor.context()[which], d, bins)
            if tell is not None:
                tell(d, which, log_p)
            joint = log_p + observation.log_likelihood(which, d, bins.centres(log_p))
            clean[which, d] = estimate(joint.log_softmax(1), bins, kind, generator)
        cursor.push(chain.context_input(snap.move(clean[:, d]), d))
    return clean


def restore(
    chain: ARCSM,
    observation: Observation,
    shape: Shape,
    bins: Bins,
    *,
    kind: str,
    context: str,
    views: Sequence[str],
    pool: str,
    generator: torch.Generator | None,
) -> Float[Tensor, "images scalars"]:
    """Return estimates of the `kind` by pooling the views; contexts are made of `context` ones.

    With one view and contexts of the same kind they are those of the walk itself.
    """
    places = [scalars_of(view, shape).to(observation.rows.device) for view in views]
    if len(views) == 1 and kind == context:
        clean = walk(chain, observation.viewed(places[0]), bins, kind, generator)
        return clean[:, places[0].argsort()]
    pooled = _Pooled(chain, observation, bins, places, pool, _powers(views))
    mirrored = torch.cat([observation.rows[:, scalars] for scalars in places])
    walk(
        chain,
        Observation(mirrored, observation.noise, observation.cut),
        bins,
        context,
        generator,
        pooled.add,
    )
    return pooled.estimates(kind, generator)


class _Pooled:
    """What several views say of each scalar, before the observation is taken into account."""

    def __init__(
        self,
        chain: ARCSM,
        observation: Observation,
        bins: Bins,
        places: Sequence[Tensor],
        pool: str,
        powers: Sequence[float],
    ):
        self._observation, self._bins = observation, bins
        self._places, self._pool, self._powers = torch.stack(list(places)).cpu(), pool, powers
        rows = observation.rows
        self._uncertain = observation.noise.ambiguous(rows)
        nothing = 0.0 if pool == "product" else -math.inf
        self._log_p = rows.new_full((len(rows), chain.dims, len(bins.first)), nothing)

    def add(self, d: int, which: Tensor, log_p: Tensor) -> None:
        """Add what place d of the views says; rows are those of the first view, the second, …"""
        n = len(self._log_p)
        for view, scalar in enumerate(self._places[:, d].tolist()):
            mine = (which >= view * n) & (which < (view + 1) * n)
            self._put(which[mine] - view * n, scalar, log_p[mine], self._powers[view])

    def estimates(self, kind: str, generator: torch.Generator | None) -> Tensor:
        """Return an estimate of each scalar, as level/255."""
        clean = self._observation.rows.clone()
        centres = self._bins.centres(clean)
        for d in range(clean.shape[1]):
            which = self._uncertain[:, d].nonzero()[:, 0]
            likelihood = self._observation.log_likelihood(which, d, centres)
            joint = self._log_p[which, d] + likelihood
            clean[which, d] = estimate(joint.log_softmax(1), self._bins, kind, generator)
        return clean

    def _put(self, image: Tensor, scalar: int, log_p: Tensor, power: float) -> None:
        # No image comes twice, so that none is lost.
        if self._pool == "product":
            self._log_p[image, scalar] += power * log_p
        else:
            before = self._log_p[image, scalar]
            self._log_p[image, scalar] = torch.logaddexp(before, log_p)


def numbers_per_image(chain: ARCSM, bins: Bins, views: int) -> int:
    """Return about how many numbers pooling keeps for an image."""
    return chain.dims * len(bins.first) + views * chain.context.numbers_per_row


def _powers(views: Sequence[str]) -> list[float]:
    """Return the power of each view in the product: each half of the image is to count once."""
    from_below = [0 in VIEWS[view] for view in views]
    return [1 / from_below.count(half) for half in from_below]
