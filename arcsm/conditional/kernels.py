"""The probability flow as one Triton kernel; imported only where there is a GPU."""

import torch
import triton  # type: ignore[import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,unused-ignore]
from jaxtyping import Float
from torch import Tensor

from arcsm.conditional.head import Gates

_ROWS = 4  # values that one program carries down


def flow_down_kernel(
    gates: Gates, y: Float[Tensor, "rows points"], sigma: Float[Tensor, "levels"]
) -> Float[Tensor, "rows points"]:
    """Carry values from the first of the levels to the last, as `flow_down` does.

    The gates have the shapes (levels, rows, 1) and (levels, rows, 1, steps).
    """
    levels, rows, _, steps = gates.height.shape
    points = y.shape[1]
    y = y.contiguous()
    x = torch.empty_like(y)
    offset, pull = (
        part.expand(levels, rows, 1).contiguous() for part in (gates.offset, gates.pull)
    )
    root = gates.root[:, 0, 0].contiguous()  # the rows share their levels
    height, slope, centre = (
        part.expand(levels, rows, 1, steps).contiguous()
        for part in (gates.height, gates.slope, gates.centre)
    )
    with torch.cuda.device_of(y):  # not always the current one
        _flow_down[(triton.cdiv(rows * points, _ROWS),)](
            x, y, sigma, root, offset, pull, height, slope, centre,
            rows, points, levels, steps,
            ROWS=_ROWS, STEPS=triton.next_power_of_2(steps), num_warps=2,
        )  # fmt: skip
    return x


@triton.jit
def _flow_down(  # type: ignore[no-untyped-def]
    x_ptr, y_ptr, sigma_ptr, root_ptr, offset_ptr, pull_ptr, height_ptr, slope_ptr, centre_ptr,
    rows, points, levels, steps, ROWS: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    # In 64 bits: levels × rows × steps may be more than 32 can count.
    item = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row = item // points  # whose gates all of its points share
    step = tl.arange(0, STEPS)
    there = row < rows
    whole = there[:, None] & (step < steps)[None, :]
    x = tl.load(y_ptr + item, mask=there, other=0.0)
    # What is true of the upper level of a step was loaded as the lower one of the step before.
    place, places = row, row[:, None] * steps + step[None, :]
    sigma, root = tl.load(sigma_ptr), tl.load(root_ptr)
    offset = tl.load(offset_ptr + place, mask=there, other=0.0)
    pull = tl.load(pull_ptr + place, mask=there, other=0.0)
    height = tl.load(height_ptr + places, mask=whole, other=0.0)
    slope = tl.load(slope_ptr + places, mask=whole, other=0.0)
    centre = tl.load(centre_ptr + places, mask=whole, other=0.0)
    for level in range(1, levels):
        place += rows
        places += rows * steps
        below, root_below = tl.load(sigma_ptr + level), tl.load(root_ptr + level)
        offset_below = tl.load(offset_ptr + place, mask=there, other=0.0)
        pull_below = tl.load(pull_ptr + place, mask=there, other=0.0)
        height_below = tl.load(height_ptr + places, mask=whole, other=0.0)
        slope_below = tl.load(slope_ptr + places, mask=whole, other=0.0)
        centre_below = tl.load(centre_ptr + places, mask=whole, other=0.0)
        u = x / root
        gate = 1.0 / (1.0 + tl.exp(-(u[:, None] - centre) * slope))
        score = tl.sum(height * gate, axis=1) + offset - pull * u
        change = below - sigma
        u = (x - change * sigma * score) / root_below
        gate = 1.0 / (1.0 + tl.exp(-(u[:, None] - centre_below) * slope_below))
        score_below = tl.sum(height_below * gate, axis=1) + offset_below - pull_below * u
        x -= change * 0.5 * (sigma * score + below * score_below)
        sigma, root, offset, pull = below, root_below, offset_below, pull_below
        height, slope, centre = height_below, slope_below, centre_below
    tl.store(x_ptr + item, x, mask=there)
