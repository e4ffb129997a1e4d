"""Holes under a model of one order, by weighted draws along it.

Each row has a number of particles. Along the order a hole is drawn from its conditional given what
comes before it, and a known scalar multiplies the weight of a particle by the probability that it
gives to it. (What is known before the first hole weighs all particles alike, and is left out.) With
ever more particles the weighted draws are draws given all that is known; if nothing known comes
after a hole they are so exactly, all of equal weight. Where few particles carry the weight all of
them are drawn anew from these; the least number of draws that they were worth is kept.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from arcsm.columns import Columns
from arcsm.columns.incomplete import Incomplete
from arcsm.model import ARCSM
from arcsm.sampling.chain import quantiles
from arcsm.tasks.impute.answers import weighted_point, weighted_quantiles
from arcsm.tasks.resampling import effective_size, resampled

# Numbers of all particles that are walked at one time.
_NUMBERS = 2**20

# A value this many deviations out says no more than one that is nearer, and does not overflow.
_FARTHEST = 1e9


@dataclass(frozen=True, eq=False)
class Draws:
    """Weighted draws of some rows: points (rows, particles, scalars) and weights that add up to 1.

    `worth`: the least number of draws that the particles of a row were worth on their way.
    """

    points: np.ndarray
    weight: np.ndarray
    worth: np.ndarray


class OneOrder:
    """What a model of one order says of the holes of some rows; with a seed of its own."""

    def __init__(self, columns: Columns, model: ARCSM, reach: np.ndarray, particles: int):
        self.columns, self.model = columns, model
        self.reach, self.particles = reach, particles

    def effective(self, part: Incomplete) -> np.ndarray | None:
        """Return how many draws each row is worth."""
        return np.concatenate([draws.worth for _, draws in self._draws(part, None)])

    def point(self, part: Incomplete, how: str, *, fractional: bool) -> dict[str, np.ndarray]:
        """Return the mean or median of each open hole, column by column."""
        found: dict[str, list[np.ndarray]] = {}
        for holes, draws in self._draws(part, None):
            for name, rows, values in self._values(holes, draws):
                kind, weight = self.columns.kind(name), draws.weight[rows]
                some = weighted_point(kind, values, weight, how, fractional=fractional)
                found.setdefault(name, []).append(some)
        return {name: np.concatenate(parts) for name, parts in found.items()}

    def quantiles(self, part: Incomplete, levels: Sequence[float]) -> dict[str, np.ndarray]:
        """Return quantiles of each open hole (holes, levels), column by column."""
        found: dict[str, list[np.ndarray]] = {}
        for holes, draws in self._draws(part, None):
            for name, rows, values in self._values(holes, draws):
                some = weighted_quantiles(
                    self.columns.kind(name), values, draws.weight[rows], levels
                )
                found.setdefault(name, []).append(some)
        return {name: np.concatenate(parts) for name, parts in found.items()}

    def draws(
        self, part: Incomplete, count: int, generator: torch.Generator | None
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield joint draws of all open holes, so many times: particles by their weights."""
        found: list[dict[str, list[np.ndarray]]] = [{} for _ in range(count)]
        choices = None if generator is None else _on_cpu(generator)
        for holes, draws in self._draws(part, generator):
            weight = torch.from_numpy(draws.weight)
            # With repetition: otherwise the last of many draws would be what the weights refuse.
            chosen = torch.multinomial(weight, count, True, generator=choices).numpy()
            for place, own in enumerate(found):
                for name, _, values in self._values(holes, draws, chosen[:, [place]]):
                    own.setdefault(name, []).append(values[:, 0])
        for own in found:
            yield {name: np.concatenate(parts) for name, parts in own.items()}

    def _values(
        self, holes: np.ndarray, draws: Draws, chosen: np.ndarray | None = None
    ) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """Yield for each column the rows with a hole, and the draws for it (holes, draws)."""
        for place, name in enumerate(self.columns.names):
            rows = np.flatnonzero(holes[:, place])
            own = self.columns.scalars_of(name)
            if not own or not len(rows):
                continue
            points = draws.points[rows][:, :, own.start : own.stop]
            if chosen is not None:
                points = np.take_along_axis(points, chosen[rows][..., None], 1)
            flat = self.columns.kind(name).decode(points.reshape(-1, len(own)))
            yield name, rows, flat.reshape(points.shape[:2])

    def _draws(
        self, part: Incomplete, generator: torch.Generator | None
    ) -> Iterator[tuple[np.ndarray, Draws]]:
        """Yield the open holes of some rows at a time, and draws for them.

        Without a generator they are the same each time.
        """
        if generator is None:
            generator = torch.Generator(self.model.device).manual_seed(0)
        at_once = max(1, _NUMBERS // (self.particles * self.columns.scalars))
        for start in range(0, len(part.observed), at_once):
            rows = slice(start, start + at_once)
            yield part.open[rows], self._walk(part, rows, generator)

    @torch.no_grad()
    def _walk(self, part: Incomplete, rows: slice, generator: torch.Generator) -> Draws:
        """Draw the holes of some rows along the order."""
        model, count, device = self.model, self.particles, self.model.device
        point = part.encoded.point[rows].clip(-_FARTHEST, _FARTHEST)
        observed = torch.from_numpy(part.observed[rows]).to(device)
        n = len(point)
        x = torch.from_numpy(point).to(model.shift).repeat_interleave(count, 0)
        log_weight = torch.zeros(n, count, dtype=torch.float64, device=device)
        worth = torch.full((n,), float(count), dtype=torch.float64, device=device)
        begun = torch.zeros(n, dtype=torch.bool, device=device)
        cursor = model.context.cursor(len(x))
        for d in model.context.order:
            holes, weighs = ~observed[:, d], observed[:, d] & begun
            context = cursor.context() if bool((holes | weighs).any()) else None
            if context is not None and bool(holes.any()):
                some = holes.repeat_interleave(count).nonzero()[:, 0]
                uniform = torch.rand(
                    len(x), generator=generator, dtype=torch.float64, device=device
                ).to(x.dtype)
                z = quantiles(model, context[some], uniform[some], model.density)
                drawn = z * model.scale[d] + model.centre(x[some], d)
                x[some, d] = self._snapped(d, drawn, x[some])
                begun |= holes
            if context is not None and bool(weighs.any()):
                some = weighs.repeat_interleave(count).nonzero()[:, 0]
                gain = self._log_likelihood(part, rows, some // count, context[some], x[some], d)
                log_weight[weighs] += gain.view(-1, count)
                worth = torch.minimum(worth, effective_size(log_weight))
                index = resampled(log_weight, generator)
                if index is not None:
                    x = x[index]
                    cursor.take(index)
            cursor.push(model.context_input(x[:, d], d))
        points = x.double().cpu().numpy().clip(*self.reach.T).reshape(n, count, -1)
        return Draws(points, log_weight.softmax(1).cpu().numpy(), worth.cpu().numpy())

    def _snapped(self, d: int, drawn: Tensor, x: Tensor) -> Tensor:
        values, earlier = (p.double().cpu().numpy() for p in (drawn, x[:, :d]))
        return torch.from_numpy(self.columns.snap(d, values, earlier)).to(drawn)

    def _log_likelihood(
        self,
        part: Incomplete,
        rows: slice,
        own: Tensor,
        context: Float[Tensor, "some width"],
        x: Float[Tensor, "some dims"],
        d: int,
    ) -> Float[Tensor, "some"]:
        """Return the log-probability, or density, of a known scalar for each particle."""
        model, which = self.model, own.cpu().numpy()
        ends = [getattr(part.encoded, name)[rows][which, d] for name in ("low", "high")]
        certain = torch.from_numpy(part.encoded.certain[rows][which, d]).to(x.device)
        centre = model.centre(x, d).to(x)
        low, high = (
            ((torch.from_numpy(end).to(x) - centre) / model.scale[d])[:, None] for end in ends
        )
        z = ((x[:, d] - centre) / model.scale[d])[:, None]
        found = torch.empty(len(x), dtype=torch.float64, device=x.device)
        # Across a narrow cell the density hardly changes, and the difference would be rounded.
        wide = (high - low > model.noise.sigma_min / 8)[:, 0]
        at_once = model.conditionals_at_once("auto")
        for some in torch.arange(len(x), device=x.device).split(at_once):
            for inside in (True, False):
                chosen = some[wide[some] == inside]
                if not len(chosen):
                    continue
                density = model.density_of(model.head.family(context[chosen]))
                term = (
                    density.log_mass(low[chosen], high[chosen])
                    if inside
                    else density.log_prob(z[chosen])
                )
                found[chosen] = term[:, 0].double()
        # Too far out for floating point: unlikely, but not so that all particles are lost.
        return found.where(~certain, 0.0).clamp(min=-1e6)


def _on_cpu(generator: torch.Generator) -> torch.Generator:
    """Return a generator of the CPU with a seed that another one, of any device, has drawn."""
    seed = torch.randint(2**63 - 1, (), generator=generator, device=generator.device)
    return torch.Generator().manual_seed(int(seed))
