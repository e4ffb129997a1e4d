"""The probability flow as Triton kernels, one for each way; imported only where there is a GPU."""

import torch
import triton  # type: ignore[import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,unused-ignore]
from jaxtyping import Float
from torch import Tensor

from arcsm.conditional.head import SLOPE_LIMIT, Gates
from arcsm.conditional.roots import ITERATIONS, rounding_of

_ROWS = 4  # values that one program carries


def flow_down_kernel(
    gates: Gates, y: Float[Tensor, "rows points"], sigma: Float[Tensor, "levels"]
) -> Float[Tensor, "rows points"]:
    """Carry values from the first of the levels to the last, as `flow_down` does.

    The gates have the shapes (levels, rows, 1) and (levels, rows, 1, steps).
    """
    y = y.contiguous()
    x = torch.empty_like(y)
    parts, sizes = _laid_out(gates, y)
    with torch.cuda.device_of(y):  # not always the current one
        _flow_down[_grid(y)](x, y, sigma, *parts, *sizes, ROWS=_ROWS, STEPS=_width(gates),
                             num_warps=2)  # fmt: skip
    return x


def flow_up_kernel(
    gates: Gates, x: Float[Tensor, "rows points"], sigma: Float[Tensor, "levels"]
) -> tuple[
    Float[Tensor, "rows points"], Float[Tensor, "rows points"], Float[Tensor, "rows points"]
]:
    """Invert `flow_down_kernel`, as `flow_up` does.

    Return the values at the first level, log dx/dy, and the least slope of all steps on the way.
    """
    x = x.contiguous()
    y, log_slope, least = (torch.empty_like(x) for _ in range(3))
    parts, sizes = _laid_out(gates, x)
    with torch.cuda.device_of(x):
        # Every thread of a row has a copy of its sums over the steps. A product that is fused into
        # such a sum is rounded by all threads but one: copies would differ in their last bits, and
        # threads leave the loop below at different times.
        _flow_up[_grid(x)](y, log_slope, least, x, sigma, *parts, *sizes, rounding_of(x.dtype),
                           ROWS=_ROWS, STEPS=_width(gates), LIMIT=SLOPE_LIMIT,
                           ITERATIONS=ITERATIONS, num_warps=2,
                           enable_fp_fusion=False)  # fmt: skip
    return y, log_slope, least


def _laid_out(
    gates: Gates, values: Float[Tensor, "rows points"]
) -> tuple[list[Tensor], tuple[int, int, int, int]]:
    """Return root, offset, pull, height, slope and centre as kernels read them, and the sizes."""
    levels, rows, _, steps = gates.height.shape
    root = gates.root[:, 0, 0].contiguous()  # the rows share their levels
    apart = [part.expand(levels, rows, 1).contiguous() for part in (gates.offset, gates.pull)]
    stepped = [
        part.expand(levels, rows, 1, steps).contiguous()
        for part in (gates.height, gates.slope, gates.centre)
    ]
    return [root, *apart, *stepped], (rows, values.shape[1], levels, steps)


def _grid(values: Tensor) -> tuple[int]:
    return (triton.cdiv(values.numel(), _ROWS),)


def _width(gates: Gates) -> int:
    return int(triton.next_power_of_2(gates.height.shape[-1]))


@triton.jit
def _flow_down(  # type: ignore[no-untyped-def]
    x_ptr, y_ptr, sigma_ptr, root_ptr, offset_ptr, pull_ptr, height_ptr, slope_ptr, centre_ptr,
    rows, points, levels, steps, ROWS: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    # In 64 bits: levels × rows × steps may be more than 32 can count.
    item = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row = item // points  # whose gates all of its points share
    x = tl.load(y_ptr + item, mask=row < rows, other=0.0)
    # What is true of the upper level of a step was loaded as the lower one of the step before.
    sigma, root = tl.load(sigma_ptr), tl.load(root_ptr)
    offset, pull, height, slope, centre = _load(
        0, row, offset_ptr, pull_ptr, height_ptr, slope_ptr, centre_ptr, rows, steps, STEPS
    )
    for level in range(1, levels):
        below, root_below = tl.load(sigma_ptr + level), tl.load(root_ptr + level)
        offset_below, pull_below, height_below, slope_below, centre_below = _load(
            level, row, offset_ptr, pull_ptr, height_ptr, slope_ptr, centre_ptr, rows, steps, STEPS
        )
        score = _score(x, root, offset, pull, height, slope, centre)
        change = below - sigma
        score_below = _score(
            x - change * sigma * score,
            root_below, offset_below, pull_below, height_below, slope_below, centre_below,
        )  # fmt: skip
        x -= change * 0.5 * (sigma * score + below * score_below)
        sigma, root, offset, pull = below, root_below, offset_below, pull_below
        height, slope, centre = height_below, slope_below, centre_below
    tl.store(x_ptr + item, x, mask=row < rows)


@triton.jit
def _flow_up(  # type: ignore[no-untyped-def]
    y_ptr, log_slope_ptr, least_ptr, x_ptr,
    sigma_ptr, root_ptr, offset_ptr, pull_ptr, height_ptr, slope_ptr, centre_ptr,
    rows, points, levels, steps, epsilon,
    ROWS: tl.constexpr, STEPS: tl.constexpr, LIMIT: tl.constexpr, ITERATIONS: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row = item // points
    there = row < rows
    x = tl.load(x_ptr + item, mask=there, other=0.0)
    last = levels - 1
    below, root_below = tl.load(sigma_ptr + last), tl.load(root_ptr + last)
    offset_below, pull_below, height_below, slope_below, centre_below = _load(
        last, row, offset_ptr, pull_ptr, height_ptr, slope_ptr, centre_ptr, rows, steps, STEPS
    )
    score = _score(x, root_below, offset_below, pull_below, height_below, slope_below, centre_below)
    log_slope = tl.zeros_like(x)
    least = tl.zeros_like(x) + float("inf")
    for back in range(1, levels):
        level = last - back
        sigma, root = tl.load(sigma_ptr + level), tl.load(root_ptr + level)
        offset, pull, height, slope, centre = _load(
            level, row, offset_ptr, pull_ptr, height_ptr, slope_ptr, centre_ptr, rows, steps, STEPS
        )
        # The flow taken upwards is a guess with an error of third order.
        change = sigma - below
        above = _score(x - change * below * score, root, offset, pull, height, slope, centre)
        t = x - change * 0.5 * (below * score + sigma * above)
        value, gain, score = _heun(
            t, sigma, root, offset, pull, height, slope, centre, below,
            root_below, offset_below, pull_below, height_below, slope_below, centre_below,
        )  # fmt: skip
        ratio = below / sigma
        drop = 1 - ratio
        slowest = 1 - drop * LIMIT + drop * drop * LIMIT * (LIMIT - 1) / (2 * ratio)
        reach = tl.abs(value - x) / slowest + 1e-6 * (1 + tl.abs(x))
        low, high = t - reach, t + reach
        # Newton's method inside a bracket, as in `solve_increasing`.
        settled = (tl.abs(x - value) <= epsilon * (1 + tl.abs(t)) * gain) | (row >= rows)
        iteration = 0
        while (tl.min(settled.to(tl.int32), axis=0) == 0) & (iteration < ITERATIONS):
            low, high = tl.where(value < x, t, low), tl.where(value < x, high, t)
            newton = t + (x - value) / gain
            inside = (newton >= low) & (newton <= high) & (iteration % 4 != 3)
            step = tl.where(settled, t, tl.where(inside, newton, (low + high) * 0.5))
            moved = tl.abs(step - t)
            t = step
            value, gain, score = _heun(
                t, sigma, root, offset, pull, height, slope, centre, below,
                root_below, offset_below, pull_below, height_below, slope_below, centre_below,
            )  # fmt: skip
            close = tl.abs(x - value) <= epsilon * (1 + tl.abs(t)) * gain
            settled = settled | (moved <= epsilon * (1 + tl.abs(t))) | close
            iteration += 1
        x = t
        log_slope += tl.log(gain)
        least = tl.minimum(least, gain)
        below, root_below, offset_below, pull_below = sigma, root, offset, pull
        height_below, slope_below, centre_below = height, slope, centre
    tl.store(y_ptr + item, x, mask=there)
    tl.store(log_slope_ptr + item, log_slope, mask=there)
    tl.store(least_ptr + item, least, mask=there)


@triton.jit
def _load(  # type: ignore[no-untyped-def]
    level, row, offset_ptr, pull_ptr, height_ptr, slope_ptr, centre_ptr, rows, steps,
    STEPS: tl.constexpr,
):  # fmt: skip
    """Return the gates of some rows at one level."""
    step = tl.arange(0, STEPS)
    there = row < rows
    whole = there[:, None] & (step < steps)[None, :]
    place = row + level * rows
    places = place[:, None] * steps + step[None, :]
    return (
        tl.load(offset_ptr + place, mask=there, other=0.0),
        tl.load(pull_ptr + place, mask=there, other=0.0),
        tl.load(height_ptr + places, mask=whole, other=0.0),
        tl.load(slope_ptr + places, mask=whole, other=0.0),
        tl.load(centre_ptr + places, mask=whole, other=0.0),
    )


@triton.jit
def _score(x, root, offset, pull, height, slope, centre):  # type: ignore[no-untyped-def]
    """Return s(x), as `Gates.score` does."""
    u = x / root
    gate = 1.0 / (1.0 + tl.exp(-(u[:, None] - centre) * slope))
    return tl.sum(height * gate, axis=1) + offset - pull * u


@triton.jit
def _jet(x, root, offset, pull, height, slope, centre):  # type: ignore[no-untyped-def]
    """Return s(x) and s'(x), as `TanhSum.jet` does."""
    u = x / root
    gate = 1.0 / (1.0 + tl.exp(-(u[:, None] - centre) * slope))
    score = tl.sum(height * gate, axis=1) + offset - pull * u
    bend = tl.sum(height * slope * (gate - gate * gate), axis=1)
    return score, (bend - pull) / root


@triton.jit
def _heun(  # type: ignore[no-untyped-def]
    y, sigma, root, offset, pull, height, slope, centre, below,
    root_below, offset_below, pull_below, height_below, slope_below, centre_below,
):  # fmt: skip
    """Return a step from σ down to σ', its derivative in y, and the score at y."""
    score, bend = _jet(y, root, offset, pull, height, slope, centre)
    change = below - sigma
    score_below, bend_below = _jet(
        y - change * sigma * score,
        root_below, offset_below, pull_below, height_below, slope_below, centre_below,
    )  # fmt: skip
    euler_slope = 1 - change * sigma * bend
    moved = y - change * 0.5 * (sigma * score + below * score_below)
    gain = 1 - change * 0.5 * (sigma * bend + below * bend_below * euler_slope)
    return moved, gain, score
