"""Normalising a one-dimensional density by certified adaptive quadrature.

Panels are integrated by the Gauss-Kronrod pair of 7 and 15 nodes and halved where the error is
largest. A panel counts as seen only if the conditional's own upper bound on it (`ceiling`) rules
out a peak between the nodes; until then its error is taken to be that bound times its width.
All arithmetic is in float64.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from arcsm.conditional.protocol import Conditional
from arcsm.conditional.roots import solve_increasing

# The 15 Kronrod nodes on [−1, 1] and their weights; the 7 Gauss nodes are every second one.
_NODES = (0.991455371120812639206854697526329, 0.949107912342758524526189684047851,
          0.864864423359769072789712788640926, 0.741531185599394439863864773280788,
          0.586087235467691130294144691693331, 0.405845151377397166906606412076961,
          0.207784955007898467600689403773245)  # fmt: skip
_KRONROD = (0.022935322010529224963732008058970, 0.063092092629978553290700663189204,
            0.104790010322250183839876322541518, 0.140653259715525918745189590510238,
            0.169004726639267902826583426598550, 0.190350578064785409913256402421014,
            0.204432940075298892414161999234649, 0.209482141084727828012999174891714)  # fmt: skip
_GAUSS = (0.129484966168869693270611432679082, 0.279705391489276667901467771423780,
          0.381830050505118944950369775488975, 0.417959183673469387755102040816327)  # fmt: skip

# A panel whose bound exceeds what its nodes show by more than this (nats) may hide a peak.
_HIDDEN = 1.0


class Quadrature:
    """The normalised density of a conditional: log Z, log q, CDF and quantile, with errors.

    `tolerance` bounds the relative error of Z that refinement aims at; `log_z_error` is the
    estimate of what remains, for each entry of the batch.
    """

    def __init__(
        self,
        conditional: Conditional,
        *,
        tolerance: float = 1e-7,
        panels: int = 16,
        most_panels: int = 1024,
    ):
        self._conditional = conditional.double()
        low, high = self._conditional.bounds()
        place = torch.linspace(0, 1, panels + 1, dtype=low.dtype, device=low.device)
        edges = low[..., None] + (high - low)[..., None] * place
        left, right = edges[..., :-1], edges[..., 1:]
        mass, error = self._integrate(left, right)
        while left.shape[-1] < most_panels:
            log_z = mass.logsumexp(-1)
            excess = error.logsumexp(-1) - log_z
            # An excess of NaN or infinity is never settled by halving: stop and let it be seen.
            unsettled = (excess > math.log(tolerance)) & excess.isfinite()
            if not bool(unsettled.any()):
                break
            worst = error.topk(min(32, error.shape[-1]), -1).indices
            halves = self._halve(left, right, worst)
            new_mass, new_error = self._integrate(*halves)
            count = worst.shape[-1]
            left, right, mass, error = (
                torch.cat([old.scatter(-1, worst, new[..., :count]), new[..., count:]], -1)
                for old, new in zip(
                    (left, right, mass, error), (*halves, new_mass, new_error), strict=True
                )
            )
        sort = left.argsort(-1)
        self.left, self.right, mass, error = (
            panel.gather(-1, sort) for panel in (left, right, mass, error)
        )
        self.log_z: Float[Tensor, "*batch"] = mass.logsumexp(-1)
        # Energies far from 0 are rounded: log Z cannot be better than their last digits.
        rounding = 8 * torch.finfo(torch.float64).eps * (1 + self.log_z.abs())
        self.log_z_error: Float[Tensor, "*batch"] = (
            error.logsumexp(-1) - self.log_z
        ).exp() + rounding
        self._log_share = mass - self.log_z[..., None]
        share = self._log_share.exp()
        cumulative = share.cumsum(-1)
        self._before = cumulative - share  # mass to the left of each panel
        self._total = cumulative[..., -1:]

    def log_prob(self, x: Float[Tensor, "*batch points"]) -> Float[Tensor, "*batch points"]:
        """Return log q(x) = E(x) − log Z."""
        return self._conditional.energy(x.double()) - self.log_z[..., None]

    def cdf(self, x: Float[Tensor, "*batch points"]) -> Float[Tensor, "*batch points"]:
        """Return the probability of values up to x; its error is at most `log_z_error`."""
        x = x.double()
        inside = torch.minimum(torch.maximum(x, self.left[..., :1]), self.right[..., -1:])
        panel = torch.searchsorted(self.left, inside.contiguous(), right=True) - 1
        left = self.left.gather(-1, panel)
        mass, _ = self._partial_mass(left, inside)
        return (self._before.gather(-1, panel) + mass).clamp(0, 1)

    def log_mass(
        self, low: Float[Tensor, "*batch points"], high: Float[Tensor, "*batch points"]
    ) -> Float[Tensor, "*batch points"]:
        """Return log P(low < x < high), a sum of positive parts: no digits cancel in the tails.

        Beyond the outermost panels, where s points inwards and less than 1e-14 of the mass lies,
        the tail is taken to fall off as it does at its inner end.
        """
        low, high = low.double(), high.double()
        left, right = self.left[..., :1], self.right[..., -1:]
        inner_low = torch.minimum(torch.maximum(low, left), right)
        inner_high = torch.minimum(torch.maximum(high, left), right)
        first = torch.searchsorted(self.left, inner_low.contiguous(), right=True) - 1
        last = torch.searchsorted(self.left, inner_high.contiguous(), right=True) - 1
        # Whole panels between the two that hold the ends, and the parts of those two.
        index = torch.arange(self.left.shape[-1], device=low.device)
        whole = (index > first[..., None]) & (index < last[..., None])
        between = self._log_share[..., None, :].where(whole, -math.inf).logsumexp(-1)
        end_of_first = torch.minimum(self.right.gather(-1, first), inner_high)
        start_of_last = torch.maximum(self.left.gather(-1, last), inner_low)
        same = first == last
        parts = [
            between,
            self._log_panel_mass(inner_low, end_of_first),
            self._log_panel_mass(start_of_last, inner_high).where(~same, -math.inf),
            self._log_tail(torch.maximum(low, right), high, outwards=1),
            self._log_tail(torch.minimum(high, left), low, outwards=-1),
        ]
        return torch.stack(parts).logsumexp(0).clamp(max=0.0)

    def log_prob_error(self) -> Float[Tensor, "*batch"]:
        """Return `log_z_error`, which is all that is not exact about log q."""
        return self.log_z_error

    def quantile(
        self, probability: Float[Tensor, "*batch points"]
    ) -> Float[Tensor, "*batch points"]:
        """Return x with cdf(x) = probability; for 0 and 1, points beyond which no mass is left."""
        target = probability.double() * self._total
        panel = torch.searchsorted(self._before, target.contiguous(), right=True) - 1
        panel = panel.clamp(min=0)
        left, right = self.left.gather(-1, panel), self.right.gather(-1, panel)
        rest = target - self._before.gather(-1, panel)
        x, _ = solve_increasing(
            lambda t: self._partial_mass(left, t), rest, left, right, (left + right) / 2
        )
        return x

    def quantile_error(self, x: Float[Tensor, "*batch points"]) -> Float[Tensor, "*batch points"]:
        """Return the error of a quantile at x: the error of the CDF over the density there."""
        return self.log_z_error[..., None] / self.log_prob(x).exp()

    def _partial_mass(self, left: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mass between `left` and x, within one panel, and the density at x."""
        nodes, kronrod, _ = _rule(x)
        half = (x - left) / 2
        points = left[..., None] + half[..., None] * (nodes + 1)
        flat = points.flatten(-2)
        energy = self._conditional.energy(torch.cat([flat, x], -1)) - self.log_z[..., None]
        inner = energy[..., : flat.shape[-1]].unflatten(-1, (-1, nodes.shape[-1]))
        return half * (inner.exp() * kronrod).sum(-1), energy[..., flat.shape[-1] :].exp()

    def _log_panel_mass(self, start: Tensor, end: Tensor) -> Tensor:
        """Return the log of the mass between two points of one panel."""
        nodes, kronrod, _ = _rule(start)
        half = (end - start).clamp(min=0) / 2
        points = start[..., None] + half[..., None] * (nodes + 1)
        energy = self._conditional.energy(points.flatten(-2)).unflatten(-1, points.shape[-2:])
        inner = (energy + kronrod.log()).logsumexp(-1) - self.log_z[..., None]
        return inner + half.log()

    def _log_tail(self, start: Tensor, end: Tensor, *, outwards: int) -> Tensor:
        """Return the log of the mass from `start`, beyond the panels, to `end`."""
        length = (outwards * (end - start)).clamp(min=0)
        score, _ = self._conditional.jet(start.where(start.isfinite(), 0.0))
        rate = -outwards * score
        energy = self._conditional.energy(start.where(start.isfinite(), 0.0))
        share = torch.log(-torch.expm1(-rate * length)) - rate.log()
        value = energy - self.log_z[..., None] + share
        return value.where(start.isfinite() & (length > 0), -math.inf)

    def _integrate(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """Return log mass and log error of each panel."""
        nodes, kronrod, gauss = _rule(left)
        half = (right - left) / 2
        points = (left + half)[..., None] + half[..., None] * nodes
        energy = self._conditional.energy(points.flatten(-2)).unflatten(-1, points.shape[-2:])
        top = energy.amax(-1)
        height = (energy - top[..., None]).exp()
        mass, coarse = (height * kronrod).sum(-1), (height * gauss).sum(-1)
        log_half = half.log()
        # Their difference bounds the error once the integrand is resolved. Before that it may be
        # small by chance, and the rule of QUADPACK holds: up to all of the variation is wrong.
        difference = (mass - coarse).abs()
        spread = ((height - mass[..., None] / 2).abs() * kronrod).sum(-1).clamp(min=1e-300)
        ratio = difference / spread
        unresolved = spread * (200 * ratio).clamp(max=1).pow(1.5)
        error = torch.where(ratio > 1e-4, unresolved, difference)
        log_error = top + error.clamp(min=1e-300).log() + log_half
        between = torch.cat([left[..., None], points, right[..., None]], -1)
        ceiling = self._conditional.ceiling(between.flatten(-2))
        ceiling = torch.nn.functional.pad(ceiling, (0, 1)).unflatten(-1, between.shape[-2:])
        ceiling = ceiling[..., :-1].amax(-1)  # the last interval of a panel leads to the next one
        hidden = ceiling + log_half + math.log(2)
        log_error = torch.where(
            ceiling > top + _HIDDEN, torch.maximum(log_error, hidden), log_error
        )
        return top + mass.log() + log_half, log_error

    @staticmethod
    def _halve(left: Tensor, right: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        """Return the left halves of the chosen panels followed by their right halves."""
        a, b = left.gather(-1, which), right.gather(-1, which)
        middle = (a + b) / 2
        return torch.cat([a, middle], -1), torch.cat([middle, b], -1)


def _rule(like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the nodes on [−1, 1] in increasing order, Kronrod weights and Gauss weights."""
    nodes = torch.tensor([*(-x for x in _NODES), 0.0, *_NODES[::-1]], dtype=torch.float64)
    kronrod = torch.tensor([*_KRONROD[:-1], _KRONROD[-1], *_KRONROD[-2::-1]], dtype=torch.float64)
    gauss = torch.zeros(15, dtype=torch.float64)
    gauss[1::2] = torch.tensor([*_GAUSS, *_GAUSS[-2::-1]], dtype=torch.float64)
    return nodes.to(like.device), kronrod.to(like.device), gauss.to(like.device)
