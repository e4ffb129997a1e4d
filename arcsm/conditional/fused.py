"""Draws from flow densities as a few fused kernels: for long runs of the same small batch.

Eager torch calls some hundred operations for each scalar, and for few rows the calls are what
takes the time. On a CPU the head and every few steps of the flow are each compiled into one
function (of the whole flow the compiler would make one too, but takes a minute for it); on a GPU
the head is compiled and the whole flow is one Triton kernel, which graphs can capture.

What is compiled serves any number of rows, and all heads of one shape.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from arcsm.conditional.density import log_half_gap
from arcsm.conditional.flow import flow_levels
from arcsm.conditional.head import Gates, TanhSum, TanhSumHead
from arcsm.conditional.noise import Noise
from arcsm.conditional.recalibration import Recalibration, interpolated
from arcsm.errors import InputError
from arcsm.threads import map_pieces

# Steps of the flow in one compiled function.
_STEPS = 8

# Rows of the programs for a CPU. Each size is one more to compile; one for all is far slower.
_ROWS = (64, 256, 1024)

Quantile = Callable[[Float[Tensor, "rows width"], Float[Tensor, "rows"]], Float[Tensor, "rows"]]


def can_fuse(head: TanhSumHead, noise: Noise) -> bool:
    """Say whether conditionals are normal at σ_max: an integral is no fixed program."""
    return head.normal_at is not None and head.normal_at <= noise.sigma_max


def check_fusable(head: TanhSumHead, noise: Noise) -> None:
    """Refuse conditionals that are not normal at σ_max."""
    if not can_fuse(head, noise):
        raise InputError(
            "expected conditionals that are normal at σ_max to compile draws from the flow, got a"
            f" head with normal_at={head.normal_at} and σ_max={noise.sigma_max}; sample without"
            " compile, or build the model with a σ_max of at least 2"
        )


def fused_quantile(
    head: TanhSumHead,
    noise: Noise,
    *,
    steps: int | None = None,
    recalibration: Recalibration | None = None,
) -> Quantile:
    """Return the function (context, probability) ↦ x of `FlowDensity.quantile`, compiled."""
    check_fusable(head, noise)
    levels = flow_levels(noise, steps)
    parameter = next(head.parameters())
    # Steps from σ_min to itself change nothing, and fill the last block.
    filled = levels + [levels[-1]] * (-(len(levels) - 1) % _STEPS)
    sigma = torch.tensor(filled, dtype=parameter.dtype, device=parameter.device)
    if parameter.is_cuda:
        from arcsm.conditional.kernels import flow_down_kernel

        def down(gates: Gates, y: Tensor) -> Tensor:
            return flow_down_kernel(gates, y, sigma)

    else:

        def down(gates: Gates, y: Tensor) -> Tensor:
            for first in range(0, len(filled) - 1, _STEPS):
                few = slice(first, first + _STEPS + 1)
                y = _compiled(_heun_steps)(Gates(*(part[few] for part in gates)), sigma[few], y)
            return y

    def quantile(context: Tensor, probability: Tensor) -> Tensor:
        if recalibration is None:
            return down(*_compiled(_start)(head, sigma, context, probability))[:, 0]
        gates, ends, start = _compiled(_start_to_bend)(head, sigma, context, probability)
        curves = recalibration.widths, recalibration.numbers
        return down(gates, _compiled(_bend)(*curves, down(gates, ends), start))[:, 0]

    if parameter.is_cuda:
        return quantile

    def some(piece: tuple[Tensor, Tensor]) -> Tensor:
        context, probability = piece
        rows = len(probability)
        more = next(size for size in _ROWS if size >= rows) - rows
        context, probability = F.pad(context, (0, 0, 0, more)), F.pad(probability, (0, more))
        return quantile(context, probability)[:rows]

    def all_of_them(context: Tensor, probability: Tensor) -> Tensor:
        most = _ROWS[-1]
        pieces = list(zip(context.split(most), probability.split(most), strict=True))
        return torch.cat(map_pieces(some, pieces, context.device))

    return all_of_them


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function compiled for each size of its tensors, once for all heads.

    In one thread: pieces are what is worked on in parallel. There is a limit to how many programs
    torch keeps of one function; beyond it what is new runs as it is, and more slowly.
    """
    return torch.compile(function, dynamic=False, options={"cpp.threads": 1})


class _Start(NamedTuple):
    """Where the flow starts: z of a standard normal, and what it is at the first level."""

    mean: Float[Tensor, "rows"]
    std: Float[Tensor, "rows"]
    z: Float[Tensor, "rows"]

    def value(self, z: Float[Tensor, "rows"]) -> Float[Tensor, "rows 1"]:
        return (self.mean.double() + self.std.double() * z).to(self.mean.dtype)[:, None]


def _start(
    head: TanhSumHead,
    sigma: Float[Tensor, "levels"],
    context: Float[Tensor, "rows width"],
    probability: Float[Tensor, "rows"],
) -> tuple[Gates, Float[Tensor, "rows 1"]]:
    """Return the gates at all levels, and the quantiles at the first, where they are normal."""
    conditionals = head(context[None], sigma[:, None])
    start = _normal_start(conditionals, probability)
    return conditionals.gates(), start.value(start.z)


def _start_to_bend(
    head: TanhSumHead,
    sigma: Float[Tensor, "levels"],
    context: Float[Tensor, "rows width"],
    probability: Float[Tensor, "rows"],
) -> tuple[Gates, Float[Tensor, "rows 2"], _Start]:
    """Return the gates, mean ± std at the first level, which tell of the width, and the start."""
    conditionals = head(context[None], sigma[:, None])
    start = _normal_start(conditionals, probability)
    ends = torch.stack([start.mean - start.std, start.mean + start.std], -1)
    return conditionals.gates(), ends, start


def _normal_start(conditionals: TanhSum, probability: Float[Tensor, "rows"]) -> _Start:
    width = conditionals.sigma[0] + conditionals.pull[0]
    root = (1 + conditionals.sigma[0].square()).sqrt()
    mean = conditionals.offset[0] * root / width
    std = root * (conditionals.sigma[0] / width).sqrt()
    epsilon = torch.finfo(probability.dtype).eps
    inside = probability.double().clamp(epsilon / 4, 1 - epsilon / 2)
    return _Start(mean, std, torch.special.ndtri(inside))


def _bend(
    widths: Float[Tensor, "widths"],
    numbers: Float[Tensor, "widths numbers"],
    ends: Float[Tensor, "rows 2"],
    start: _Start,
) -> Float[Tensor, "rows 1"]:
    """Return the quantiles at the first level, corrected by the curves of a recalibration."""
    curve = interpolated(widths, numbers, log_half_gap(*ends.unbind(-1)))
    return start.value(curve.inverse(start.z[:, None])[:, 0])


def _heun_steps(
    gates: Gates, sigma: Float[Tensor, "levels"], x: Float[Tensor, "rows points"]
) -> Float[Tensor, "rows points"]:
    """Carry x from the first of some levels to the last."""
    levels = [Gates(*parts) for parts in zip(*(part.unbind() for part in gates), strict=True)]
    for i in range(len(levels) - 1):
        change = sigma[i + 1] - sigma[i]
        score = levels[i].score(x)
        euler = x - change * sigma[i] * score
        x = x - change / 2 * (sigma[i] * score + sigma[i + 1] * levels[i + 1].score(euler))
    return x
