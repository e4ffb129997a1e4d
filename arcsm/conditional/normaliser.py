"""log Z of one-dimensional energies as a function that can be differentiated, for training.

`Quadrature` finds Z to seven digits in float64 and certifies it; a training step needs four, and
the gradient: that of log Z is the mean of the gradients of the energy under the density. Panels
are chosen without gradients: halved until the conditional's own upper bound (`ceiling`) leaves no
room for a peak between the points that were seen, left out where next to no mass can be, and
halved further where the rules of Gauss and Kronrod differ. The latter's nodes on what remains are
then differentiated. All arithmetic is in the precision of the conditional.
"""

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from arcsm.conditional.protocol import Conditional
from arcsm.conditional.quadrature import entries_of, kronrod_points, log_sum, panel_mass
from arcsm.errors import InputError

# A panel is fine enough if no peak in it can be this much (nats) above what was seen of it, and
# the energy at its ends and its middle differs by no more than the second number.
_HIDDEN, _RANGE = 1.0, 10.0
_PANELS, _ROUNDS, _HALVINGS = 16, 40, 6
_MOST_PANELS = 256  # for each entry, on average
# Panels evaluated at one time. More are differentiated in pieces that are computed twice, so that
# their intermediate results need not all be kept.
_PANELS_AT_ONCE = 2**14


def log_normaliser(
    conditional: Conditional, narrowest: float, *, tolerance: float = 1e-4
) -> Float[Tensor, "*batch"]:
    """Return log ∫ exp E of each entry, to about `tolerance` nats, with its gradient.

    `narrowest` is a width (standard deviation) that no peak falls short of: s' ≥ −1/narrowest².
    """
    if not 0 < narrowest < math.inf or not 0 < tolerance < 1:
        raise InputError(
            "expected a positive narrowest and a tolerance between 0 and 1, got"
            f" {narrowest} and {tolerance}; correct these"
        )
    with torch.no_grad():
        low, high = conditional.bounds()
        flat = entries_of(conditional, low.shape)
        panels = _find(flat, low.flatten(), high.flatten(), narrowest, tolerance)
        entry, left, right = _refine(flat, *panels, low.numel(), tolerance)
    flat = entries_of(conditional, low.shape)
    pieces = list(_split(entry, left, right))
    mass = torch.cat(
        [
            _log_mass(flat, *piece)
            if len(pieces) == 1
            else checkpoint(_log_mass, flat, *piece, use_reentrant=False, preserve_rng_state=False)
            for piece in pieces
        ]
    )
    return log_sum(mass, entry, low.numel()).view(low.shape)


def _log_mass(flat: Conditional, entry: Tensor, left: Tensor, right: Tensor) -> Tensor:
    points = kronrod_points(left, right)
    energy = entries_of(flat, left.shape, entry).energy(points)
    return panel_mass(energy, (right - left) / 2)[0]


def _refine(
    flat: Conditional, entry: Tensor, left: Tensor, right: Tensor, entries: int, tolerance: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Halve panels until the errors that the rules show add up to the tolerance."""
    measured = _measure(flat, entry, left, right)
    for _ in range(_HALVINGS):
        mass, error = measured
        number = entry.bincount(minlength=entries).clamp(min=1)
        small = log_sum(mass, entry, entries) + math.log(tolerance) - number.log()
        # Below the rounding of the energies there is nothing to be found.
        level = (mass - ((right - left) / 2).log()).abs()
        floor = mass + (32 * torch.finfo(mass.dtype).eps * (1 + level)).log()
        halved = error > torch.maximum(small[entry], floor)
        if not bool(halved.any()) or len(entry) > _MOST_PANELS * entries:
            break
        a, b = left[halved], right[halved]
        middle = (a + b) / 2
        kept = ~halved
        halves = (entry[halved].repeat(2), torch.cat([a, middle]), torch.cat([middle, b]))
        new = _measure(flat, *halves)
        entry, left, right, mass, error = (
            torch.cat([old[kept], more])
            for old, more in zip((entry, left, right, mass, error), (*halves, *new), strict=True)
        )
        measured = mass, error
    return entry, left, right


def _measure(
    flat: Conditional, entry: Tensor, left: Tensor, right: Tensor
) -> tuple[Tensor, Tensor]:
    """Return log mass and log error of panels, a bounded number of them at a time."""
    found = [
        panel_mass(
            entries_of(flat, low.shape, some).energy(kronrod_points(low, high)), (high - low) / 2
        )
        for some, low, high in _split(entry, left, right)
    ]
    mass, error = (torch.cat(parts) for parts in zip(*found, strict=True))
    return mass, error


def _split(*parts: Tensor) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(part.split(_PANELS_AT_ONCE) for part in parts), strict=True)


def _find(
    flat: Conditional, low: Tensor, high: Tensor, narrowest: float, tolerance: float
) -> tuple[Int[Tensor, "panels"], Float[Tensor, "panels"], Float[Tensor, "panels"]]:
    """Return entry, left and right end of all panels that matter."""
    place = torch.linspace(0, 1, _PANELS + 1, dtype=low.dtype, device=low.device)
    edges = low[:, None] + (high - low)[:, None] * place
    energy = flat.energy(edges)
    entry = torch.arange(len(low), device=low.device).repeat_interleave(_PANELS)
    left, right = edges[:, :-1].flatten(), edges[:, 1:].flatten()
    at_left, at_right = energy[:, :-1].flatten(), energy[:, 1:].flatten()
    best = energy.amax(-1)
    # From any point the energy falls no faster, in one direction, than a normal density of the
    # least width: Z is at least so much.
    least = math.log(narrowest * math.sqrt(math.pi / 2)) + math.log(tolerance / 64)
    chosen: list[tuple[Tensor, Tensor, Tensor]] = []
    for _ in range(_ROUNDS):
        middle = (left + right) / 2
        measured = [
            _look(entries_of(flat, mid.shape, some), a, mid, b)
            for some, a, mid, b in _split(entry, left, middle, right)
        ]
        at_middle, ceiling = (torch.cat(parts) for parts in zip(*measured, strict=True))
        best = best.scatter_reduce(0, entry, at_middle, "amax")
        matters = ceiling + (right - left).log() > best[entry] + least
        three = torch.stack([at_left, at_middle, at_right])
        top = three.amax(0)
        fine = (ceiling - top <= _HIDDEN) & (top - three.amin(0) <= _RANGE)
        # Float32 cannot tell points apart that lie closer than this.
        fine = fine | (right - left <= narrowest / 64)
        kept, halved = matters & fine, matters & ~fine
        chosen.append((entry[kept], left[kept], right[kept]))
        entry, left, middle, right, at_left, at_middle, at_right = (
            part[halved] for part in (entry, left, middle, right, at_left, at_middle, at_right)
        )
        if not 0 < len(entry) <= _MOST_PANELS * len(low):
            break
        entry = entry.repeat(2)
        left, right = torch.cat([left, middle]), torch.cat([middle, right])
        at_left, at_right = torch.cat([at_left, at_middle]), torch.cat([at_middle, at_right])
    chosen.append((entry, left, right))
    found = [torch.cat(parts) for parts in zip(*chosen, strict=True)]
    return found[0], found[1], found[2]


def _look(
    conditional: Conditional, left: Tensor, middle: Tensor, right: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the energy in the middle of each panel, and an upper bound of it on the panel."""
    ceiling = conditional.ceiling(torch.stack([left, middle, right], -1)).amax(-1)
    return conditional.energy(middle[:, None])[:, 0], ceiling
