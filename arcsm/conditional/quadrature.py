"""Normalising a one-dimensional density by certified adaptive quadrature.

Panels are integrated by the Gauss-Kronrod pair of 7 and 15 nodes and halved where the error is
largest. A panel counts as seen only if the conditional's own upper bound on it (`ceiling`) rules
out a peak between the nodes; until then its error is taken to be that bound times its width.
All arithmetic is in float64.
"""

import math
from dataclasses import dataclass, fields
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from arcsm.conditional.protocol import Conditional
from arcsm.conditional.roots import solve_increasing
from arcsm.errors import ArcsmError

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

# Panels evaluated at one time: on a CPU what they need stays within the cache.
_PANELS_AT_ONCE = {"cpu": 2**11, "other": 2**17}


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
        self._batch = low.shape
        panel = self._refine(low.flatten(), high.flatten(), tolerance, panels, most_panels)
        self.left, self.right, mass = _pad(panel, self._batch)
        self.log_z: Float[Tensor, "*batch"] = log_sum(panel.mass, panel.entry, panel.entries).view(
            self._batch
        )
        # Energies far from 0 are rounded: log Z cannot be better than their last digits.
        rounding = 8 * torch.finfo(torch.float64).eps * (1 + self.log_z.abs())
        self.log_z_error: Float[Tensor, "*batch"] = (
            log_sum(panel.error, panel.entry, panel.entries).view(self._batch) - self.log_z
        ).exp() + rounding
        self._log_share = mass - self.log_z[..., None]
        share = self._log_share.exp()
        cumulative = share.cumsum(-1)
        self._before = cumulative - share  # mass to the left of each panel
        self._total = cumulative[..., -1:]

    def _refine(
        self, low: Tensor, high: Tensor, tolerance: float, panels: int, most_panels: int
    ) -> "_Panels":
        """Return panels of all entries, sorted by entry and place, each entry with its own number.

        In every round the entries that are not settled yet have those panels halved whose error
        matters, and no other panel is looked at again.
        """
        _require_finite(low, high)
        count = len(low)
        flat = entries_of(self._conditional, self._batch)
        place = torch.linspace(0, 1, panels + 1, dtype=low.dtype, device=low.device)
        edges = low[:, None] + (high - low)[:, None] * place
        entry = torch.arange(count, device=low.device).repeat_interleave(panels)
        panel = _measure(flat, entry, edges[:, :-1].flatten(), edges[:, 1:].flatten(), count)
        while True:
            log_z, number = log_sum(panel.mass, panel.entry, panel.entries), panel.number()
            _require_finite(log_z)
            excess = log_sum(panel.error, panel.entry, panel.entries) - log_z
            room = (most_panels - number).where(excess > math.log(tolerance), 0)
            # Of errors below this the sum stays within half of the tolerance.
            small = log_z + math.log(tolerance / 2) - number.log()
            halved = (room[panel.entry] > 0) & (panel.error > small[panel.entry])
            halved = _worst(panel, halved.nonzero()[:, 0], room)
            if len(halved) == 0:
                return panel.sorted()
            left, right = panel.left[halved], panel.right[halved]
            middle = (left + right) / 2
            halves = _measure(
                flat,
                panel.entry[halved].repeat(2),
                torch.cat([left, middle]),
                torch.cat([middle, right]),
                count,
            )
            panel = panel.replaced(halved, halves)

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


@dataclass(frozen=True)
class _Panels:
    """Panels of all entries of a flattened batch in one list, in any order."""

    entry: Int[Tensor, "panels"]
    left: Float[Tensor, "panels"]
    right: Float[Tensor, "panels"]
    mass: Float[Tensor, "panels"]  # the log of it
    error: Float[Tensor, "panels"]  # the log of its bound
    entries: int

    def number(self) -> Int[Tensor, "entries"]:
        """Return how many panels each entry has."""
        return self.entry.bincount(minlength=self.entries)

    def sorted(self) -> "_Panels":
        """Return all panels, sorted by entry and place."""
        order = self.left.argsort()
        order = order[self.entry[order].argsort(stable=True)]
        parts = (self.entry, self.left, self.right, self.mass, self.error)
        entry, left, right, mass, error = (part[order] for part in parts)
        return _Panels(entry, left, right, mass, error, self.entries)

    def replaced(self, which: Tensor, others: "_Panels") -> "_Panels":
        """Return the panels without those at the places `which`, and others."""
        kept = torch.ones_like(self.entry, dtype=torch.bool)
        kept[which] = False
        return _Panels(
            torch.cat([self.entry[kept], others.entry]),
            torch.cat([self.left[kept], others.left]),
            torch.cat([self.right[kept], others.right]),
            torch.cat([self.mass[kept], others.mass]),
            torch.cat([self.error[kept], others.error]),
            self.entries,
        )


def log_sum(terms: Tensor, entry: Tensor, entries: int) -> Float[Tensor, "entries"]:
    """Return the log of the sum of exp(terms) over the panels of each entry."""
    with torch.no_grad():
        top = terms.new_full((entries,), -math.inf).scatter_reduce(0, entry, terms, "amax")
        level = top.where(top.isfinite(), 0.0)
    total = torch.zeros_like(top).index_add(0, entry, (terms - level[entry]).exp())
    # Where no term is finite, the greatest of them is all there is to say.
    return (total.log() + level).where(top.isfinite(), top)


def _worst(panel: _Panels, some: Tensor, most: Tensor) -> Tensor:
    """Return, of `some` panels, for each entry the `most` of them with the largest errors."""
    some = some[panel.error[some].argsort(descending=True)]
    some = some[panel.entry[some].argsort(stable=True)]
    entry = panel.entry[some]
    number = entry.bincount(minlength=panel.entries)
    rank = torch.arange(len(some), device=some.device) - (number.cumsum(0) - number)[entry]
    return some[rank < most[entry]]


def _pad(panel: _Panels, batch: torch.Size) -> tuple[Tensor, Tensor, Tensor]:
    """Return left ends, right ends and log masses of sorted panels, a row for each entry.

    Rows are as long as the longest; what is missing are panels without width at the right end.
    """
    number = panel.number()
    length = int(number.max()) if len(number) else 1
    first = number.cumsum(0) - number
    rank = torch.arange(len(panel.entry), device=panel.entry.device) - first[panel.entry]
    end = panel.right[first + number - 1][:, None].expand(-1, length)
    nothing = torch.full_like(end, -math.inf)
    where = (panel.entry, rank)
    rows = (
        base.clone().index_put(where, part)
        for base, part in ((end, panel.left), (end, panel.right), (nothing, panel.mass))
    )
    left, right, mass = (row.unflatten(0, batch) if batch else row[0] for row in rows)
    return left, right, mass


def _measure(
    flat: Conditional, entry: Tensor, left: Tensor, right: Tensor, entries: int
) -> _Panels:
    """Return panels with log mass and log error, a bounded number of them at a time."""
    size = _PANELS_AT_ONCE["cpu" if left.device.type == "cpu" else "other"]
    pieces = [part.split(size) for part in (entry, left, right)]
    measured = [
        _integrate(entries_of(flat, left.shape, some), low, high)
        for some, low, high in zip(*pieces, strict=True)
    ]
    mass, error = (torch.cat(parts) for parts in zip(*measured, strict=True))
    return _Panels(entry, left, right, mass, error, entries)


def _integrate(conditional: Conditional, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return log mass and log error of one panel of each entry."""
    half = (right - left) / 2
    points = kronrod_points(left, right)
    energy = conditional.energy(points)
    mass, log_error = panel_mass(energy, half)
    top = energy.amax(-1)
    ceiling = conditional.ceiling(torch.cat([left[:, None], points, right[:, None]], -1)).amax(-1)
    hidden = ceiling + half.log() + math.log(2)
    log_error = torch.where(ceiling > top + _HIDDEN, torch.maximum(log_error, hidden), log_error)
    return mass, log_error


def kronrod_points(left: Tensor, right: Tensor) -> Float[Tensor, "panels nodes"]:
    """Return the 15 nodes of each panel."""
    half = (right - left) / 2
    return (left + half)[:, None] + half[:, None] * _rule(left)[0]


def panel_mass(
    energy: Float[Tensor, "panels nodes"], half: Float[Tensor, "panels"]
) -> tuple[Float[Tensor, "panels"], Float[Tensor, "panels"]]:
    """Return log ∫ exp E over panels of half-width `half`, and the log of its error as seen.

    The energies are those at the nodes; what lies between these is not known.
    """
    _, kronrod, gauss = _rule(energy)
    top = energy.detach().amax(-1)
    height = (energy - top[:, None]).exp()
    mass, coarse = (height * kronrod).sum(-1), (height * gauss).sum(-1)
    log_half = half.log()
    # Their difference bounds the error once the integrand is resolved. Before that it may be
    # small by chance, and the rule of QUADPACK holds: up to all of the variation is wrong.
    least = torch.finfo(energy.dtype).tiny
    difference = (mass - coarse).abs()
    spread = ((height - mass[:, None] / 2).abs() * kronrod).sum(-1).clamp(min=least)
    ratio = difference / spread
    unresolved = spread * (200 * ratio).clamp(max=1).pow(1.5)
    error = torch.where(ratio > 1e-4, unresolved, difference)
    return top + mass.log() + log_half, top + error.clamp(min=least).log() + log_half


def entries_of(conditional: Conditional, batch: torch.Size, some: Tensor | None = None) -> Any:
    """Return the conditional with its batch flattened, or with `some` entries of a flat one."""
    parts = {}
    for field in fields(cast(Any, conditional)):
        part = getattr(conditional, field.name)
        if isinstance(part, Tensor):
            if some is not None:
                part = part[some]
            else:
                own = part.shape[len(batch) :]
                part = part.expand(*batch, *own).reshape(-1, *own)
        parts[field.name] = part
    return type(conditional)(**parts)


def _require_finite(*numbers: Tensor) -> None:
    for each in numbers:
        bad = ~each.isfinite()
        if bool(bad.any()):
            raise ArcsmError(
                "expected conditionals that can be normalised, got energies that are not finite"
                f" numbers in {int(bad.sum())} of {len(each)} of them; look for weights or inputs"
                " of the model that are not finite, or too large"
            )


def _rule(like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the nodes on [−1, 1] in increasing order, Kronrod weights and Gauss weights."""
    nodes = torch.tensor([*(-x for x in _NODES), 0.0, *_NODES[::-1]], dtype=torch.float64)
    kronrod = torch.tensor([*_KRONROD[:-1], _KRONROD[-1], *_KRONROD[-2::-1]], dtype=torch.float64)
    gauss = torch.zeros(15, dtype=torch.float64)
    gauss[1::2] = torch.tensor([*_GAUSS, *_GAUSS[-2::-1]], dtype=torch.float64)
    return nodes.to(like), kronrod.to(like), gauss.to(like)
