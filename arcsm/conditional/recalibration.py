"""Conditionals corrected by what held-out rows say: one increasing curve for each width.

A network trained by score matching may make its conditionals too wide or too narrow, mostly those
whose width is near the least noise, and along a walk such errors add up. Rows that were not
trained on tell by how much. The flow makes each scalar from a standard normal number z by a normal
density at σ_max; on held-out rows z should be standard normal, and where it is not, a curve h makes
it so: h(z) takes the place of z. The curve is the same for all conditionals of one width, so that
little has to be learned, by maximum likelihood, and the density stays exact: it gains log h'(z) and
the density of h(z) in the place of that of z.

h is a rational-quadratic spline (Gregory and Delbourgo, 1982) between ±4, straight beyond.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from arcsm.conditional.normal import NormalDensity
from arcsm.errors import InputError

# Where the curve becomes a straight line, and its pieces up to there.
_REACH, _PIECES = 4.0, 8
_STEP = 2 * _REACH / _PIECES
# The height at 0, the rises of the pieces, and the slopes between them.
_NUMBERS = 1 + _PIECES + (_PIECES + 1)
# Widths for which there is a curve; between them curves are interpolated.
_WIDTHS = 8
# What the held-out rows are weighed against: so many entries which say that all is well.
_DOUBT = 30.0
# Beyond so many deviations nothing is known in floating point, and nothing learned.
_FARTHEST = 30.0

Points = Float[Tensor, "*batch points"]


@dataclass(frozen=True)
class Curve:
    """Increasing curves h, one for each entry of a batch shape, by their knots.

    `height` and `slope` are those of h at −4, −3, …, 4.
    """

    height: Float[Tensor, "*batch knots"]
    slope: Float[Tensor, "*batch knots"]

    @classmethod
    def from_numbers(cls, numbers: Float[Tensor, "*batch numbers"]) -> "Curve":
        """Return the curve that any numbers stand for; zeros are h(z) = z."""
        middle, rises, slopes = numbers.split([1, _PIECES, _PIECES + 1], dim=-1)
        below = (_STEP * rises.exp()).cumsum(-1)
        height = torch.cat([torch.zeros_like(middle), below], -1)
        return cls(middle + height - height[..., _PIECES // 2, None], slopes.exp())

    def __call__(self, z: Points) -> tuple[Points, Points]:
        """Return h(z) and log h'(z)."""
        place = ((z + _REACH) / _STEP).clamp(0, _PIECES - 1).floor()
        low, rise, first, last = self._piece(place.long())
        t = (z - (place * _STEP - _REACH)) / _STEP
        inside = t.clamp(0, 1)
        mean = rise / _STEP
        blend = inside * (1 - inside)
        below = mean + (first + last - 2 * mean) * blend
        above = rise * (mean * inside.square() + first * blend)
        slope = last * inside.square() + 2 * mean * blend + first * (1 - inside).square()
        slope = mean.square() * slope / below.square()
        # Beyond the last knots the slope stays what it is there.
        return low + above / below + slope * (t - inside) * _STEP, slope.log()

    def inverse(self, value: Points) -> Points:
        """Return z with h(z) = value."""
        place = torch.searchsorted(self.height[..., 1:-1].contiguous(), value.contiguous())
        low, rise, first, last = self._piece(place)
        start = place * _STEP - _REACH
        y = value - low
        inside = torch.minimum(y.clamp(min=0), rise)
        mean = rise / _STEP
        # A quadratic in the place t within the piece, solved without cancellation.
        bend = (first + last - 2 * mean) * inside
        a = rise * (mean - first) + bend
        b = rise * first - bend
        c = -mean * inside
        t = 2 * c / (-b - (b.square() - 4 * a * c).clamp(min=0).sqrt())
        end = torch.where(y < 0, first, last)
        return start + t * _STEP + (y - inside) / end

    def _piece(self, place: Tensor) -> tuple[Points, Points, Points, Points]:
        """Return where a piece of the curve begins, its rise, and the slopes at its ends."""
        shape = (*place.shape[:-1], self.height.shape[-1])
        height, slope = self.height.expand(shape), self.slope.expand(shape)
        low, first = height.gather(-1, place), slope.gather(-1, place)
        return low, height.gather(-1, place + 1) - low, first, slope.gather(-1, place + 1)


class Recalibration(nn.Module):
    """The curves of all widths: `widths`, ascending, in logs, and the numbers of each curve."""

    widths: Float[Tensor, "widths"]
    numbers: Float[Tensor, "widths numbers"]

    def __init__(self, widths: int = _WIDTHS):
        super().__init__()
        if widths < 1:
            raise InputError(f"expected at least one width, got {widths}; pass 1 or more")
        # In the precision of the model that they belong to; curves are computed in float64.
        self.register_buffer("widths", torch.arange(float(widths)))
        self.register_buffer("numbers", torch.zeros(widths, _NUMBERS))

    @property
    def config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {"widths": len(self.widths)}

    def curve(self, log_width: Float[Tensor, "*batch"]) -> Curve:
        """Return the curves of conditionals of these widths, in logs."""
        return interpolated(self.widths, self.numbers, log_width)

    @classmethod
    def fit(
        cls,
        low: Float[Tensor, "entries"],
        high: Float[Tensor, "entries"],
        log_width: Float[Tensor, "entries"],
    ) -> "Recalibration":
        """Learn the curves from held-out entries, each known to lie at z from `low` to `high`.

        An end may be infinite; entries with low = high are points.
        """
        share = torch.linspace(0, 1, 2 * _WIDTHS + 1, dtype=torch.float64, device=low.device)[1::2]
        every = log_width.double()
        widths = torch.quantile(every[:: max(1, len(every) // 2**20)], share)
        # Widths that are all alike need one curve, not several at the same place; in float32 too.
        widths = widths.float().unique().double()
        found = cls(len(widths)).to(low.device, torch.float64)
        found.widths.copy_(widths)
        ends = [end.double().clamp(-_FARTHEST, _FARTHEST) for end in (low, high)]
        numbers = found.numbers.clone().requires_grad_()
        optimizer = torch.optim.LBFGS(
            [numbers], max_iter=60, history_size=20, line_search_fn="strong_wolfe"
        )

        def loss() -> Tensor:
            optimizer.zero_grad()
            curve = interpolated(widths, numbers, every)
            doubt = _DOUBT * numbers.square().sum() / 2
            value = (doubt - _log_likelihood(curve, *ends).sum()) / len(every)
            value.backward()
            return value.detach()

        with torch.enable_grad():
            optimizer.step(loss)
        if not bool(numbers.isfinite().all()):
            raise InputError(
                "expected held-out entries that a curve can be fitted to, got none: are the"
                " weights of the model finite?"
            )
        found.numbers.copy_(numbers.detach())
        return found


def interpolated(
    widths: Float[Tensor, "widths"],
    numbers: Float[Tensor, "widths numbers"],
    log_width: Float[Tensor, "*batch"],
) -> Curve:
    """Return curves between those of the nearest widths; beyond the last ones, theirs."""
    widths, numbers = widths.double(), numbers.double()
    if len(widths) == 1:
        return Curve.from_numbers(numbers[0].expand(*log_width.shape, -1))
    at = log_width.to(widths).clamp(widths[0], widths[-1])
    after = torch.searchsorted(widths, at.contiguous()).clamp(1, len(widths) - 1)
    start, end = widths[after - 1], widths[after]
    share = ((at - start) / (end - start))[..., None]
    return Curve.from_numbers(torch.lerp(numbers[after - 1], numbers[after], share))


def _log_likelihood(
    curve: Curve, low: Float[Tensor, "entries"], high: Float[Tensor, "entries"]
) -> Float[Tensor, "entries"]:
    """Return the log-probability that z lies in its cell, or the log-density of points."""
    values, log_slopes = curve(torch.stack([low, high], -1))
    start, end = values[..., :1], values[..., 1:]
    standard = NormalDensity(*low.new_tensor([[0.0], [1.0]]))
    point = (low == high)[..., None]
    # The log of an empty cell would have an infinite gradient.
    cell = standard.log_mass(start.where(~point, end - 1), end)
    return torch.where(point, standard.log_prob(start) + log_slopes[..., :1], cell)[..., 0]
