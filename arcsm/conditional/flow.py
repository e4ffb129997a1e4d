"""The one-dimensional probability flow between σ_max and σ_min, as an exactly invertible map.

The conditionals of a scalar over σ obey a heat equation, so the flow dx/dσ = −σ s(x, σ) carries
each into the next. Here it is taken in a fixed number of Heun steps downwards (Karras et al.,
2022), and the density of the model is that of the *discrete* map: x = G(y), with y drawn at σ_max,
has log q(x) = log q_max(y) − log G'(y), whatever the number of steps. `flow_up` inverts the very
same map, so that the density evaluated and the density sampled are one.

A Heun step from σ to σ' < σ is increasing for every x if r = σ'/σ > κ/(1 + κ), where −κ/σ² bounds
s' from below. With D = x + σ²s and D' ≥ −(κ − 1) at both levels, its slope is least where both
D' = −(κ − 1), and with e = 1 − r is then

    1 − e κ + e² κ (κ − 1)/(2 r) > 0.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import TypeGuard

import torch
from jaxtyping import Float
from torch import Tensor

from arcsm.conditional.head import SLOPE_LIMIT, Gates, HeadFamily
from arcsm.conditional.noise import Noise
from arcsm.conditional.protocol import Conditional, Family
from arcsm.conditional.roots import solve_increasing
from arcsm.devices import has_triton
from arcsm.errors import ArcsmError, InputError

_MOST_STEPS = 100_000  # more are a slip of the pen, and would not end
# Numbers that a kernel on a GPU is given at one time.
_NUMBERS_ON_GPU = 2**28


def fewest_steps(noise: Noise) -> int:
    """Return the fewest steps that keep the flow increasing for every value of the parameters."""
    decades = math.log(noise.sigma_max / noise.sigma_min)
    return math.floor(decades / math.log1p(1 / SLOPE_LIMIT)) + 1


def check_flow_steps(steps: object) -> None:
    """Refuse a number of steps that is none; None stands for the default."""
    whole = isinstance(steps, int) and not isinstance(steps, bool)
    if steps is not None and not (whole and 1 <= steps <= _MOST_STEPS):  # type: ignore[operator]
        raise InputError(
            f"expected flow steps from 1 to {_MOST_STEPS}, or None, got {steps!r}; choose some"
        )


def flow_levels(noise: Noise, steps: int | None = None) -> list[float]:
    """Return the levels σ_max = σ_0 > … > σ_steps = σ_min of the flow.

    The default is the fewest steps that are allowed, and at least 32.
    """
    fewest = fewest_steps(noise)
    if steps is None:
        steps = max(32, fewest)
    if steps < fewest:
        raise InputError(
            f"expected at least {fewest} flow steps from σ = {noise.sigma_max} to"
            f" {noise.sigma_min}, got {steps}; with fewer the flow may fold over itself"
        )
    return noise.ladder(steps + 1)


def flow_down(
    family: Family, y: Float[Tensor, "*batch points"], levels: list[float]
) -> Float[Tensor, "*batch points"]:
    """Carry values at the first level to the last."""
    if _can_fuse(family, y):
        from arcsm.conditional.kernels import flow_down_kernel

        return _in_pieces(lambda *some: (flow_down_kernel(*some),), family, y, levels)[0]
    for sigma, below, upper, lower in _steps(levels, family.ladder(levels)):
        change = below - sigma
        score = upper.score(y)
        euler = torch.add(y, score, alpha=-change * sigma)
        both = torch.add(score * sigma, lower.score(euler), alpha=below)
        y = torch.add(y, both, alpha=-change / 2)
    return y


def flow_up(
    family: Family, x: Float[Tensor, "*batch points"], levels: list[float]
) -> tuple[Float[Tensor, "*batch points"], Float[Tensor, "*batch points"]]:
    """Invert `flow_down`: return the values at the first level and log dx/dy."""
    if _can_fuse(family, x):
        from arcsm.conditional.kernels import flow_up_kernel

        y, log_slope, least = _in_pieces(flow_up_kernel, family, x, levels)
        _check_increasing(least)
        return y, log_slope
    log_slope = torch.zeros_like(x)
    upwards = levels[::-1]
    score: Tensor | None = None
    for below, sigma, lower, upper in _steps(upwards, family.ladder(upwards)):
        if score is None:
            score = lower.score(x)
        x, slope, score = _invert_heun(upper, lower, sigma, below, x, score)
        _check_increasing(slope)
        log_slope = log_slope + slope.log()
    return x, log_slope


def _can_fuse(family: Family, points: Tensor) -> TypeGuard[HeadFamily]:
    """Say whether the flow is one kernel on a GPU, which knows no gradients."""
    there = points.is_cuda and points.numel() > 0  # of no points there is nothing to launch
    fusable = isinstance(family, HeadFamily) and not torch.is_grad_enabled()
    return there and fusable and has_triton()


def _in_pieces(
    kernel: Callable[[Gates, Tensor, Tensor], tuple[Tensor, ...]],
    family: HeadFamily,
    points: Float[Tensor, "*batch points"],
    levels: list[float],
) -> tuple[Float[Tensor, "*batch points"], ...]:
    """Call a kernel with the gates at all levels, for as many conditionals as memory is meant for.

    It has rows in place of a batch of any shape.
    """
    head = family.head
    contexts = family.context.reshape(-1, family.context.shape[-1])
    # What the head makes on its way to them takes some room, too.
    each = len(levels) * (2 * contexts.shape[1] + 8 * head.steps)
    at_once = max(1, _NUMBERS_ON_GPU // each)
    sigma = points.new_tensor(levels)
    found = [
        kernel(HeadFamily(head, context).stack(levels).gates(), some, sigma)
        for context, some in zip(
            contexts.split(at_once),
            points.reshape(len(contexts), -1).split(at_once),
            strict=True,
        )
    ]
    return tuple(torch.cat(part).view_as(points) for part in zip(*found, strict=True))


def _steps(
    levels: list[float], conditionals: Iterable[Conditional]
) -> Iterator[tuple[float, float, Conditional, Conditional]]:
    """Return levels and conditionals of each step: where it starts and where it ends."""
    for (start, end), (first, last) in zip(
        itertools.pairwise(levels), itertools.pairwise(conditionals), strict=True
    ):
        yield start, end, first, last


def _heun(
    upper: Conditional, lower: Conditional, sigma: float, below: float, y: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return one step from `sigma` down to `below`, its derivative in y, and the score at y."""
    score, curvature = upper.jet(y)
    change = below - sigma
    euler, euler_slope = y - change * sigma * score, 1 - change * sigma * curvature
    score_below, curvature_below = lower.jet(euler)
    moved = y - change / 2 * (sigma * score + below * score_below)
    slope = 1 - change / 2 * (sigma * curvature + below * curvature_below * euler_slope)
    return moved, slope, score


def _invert_heun(
    upper: Conditional, lower: Conditional, sigma: float, below: float, x: Tensor, score: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y with _heun(y) = x, the step's derivative and the score of `upper` there.

    `score` is that of `lower` at x, which the step before has computed.
    """
    # The flow taken upwards is a guess with an error of third order.
    change = sigma - below
    score_above = upper.score(x - change * below * score)
    guess = x - change / 2 * (below * score + sigma * score_above)

    def step(y: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal score
        moved, slope, score = _heun(upper, lower, sigma, below, y)
        return moved, slope

    first = step(guess)
    reach = (first[0] - x).abs() / _least_slope(below / sigma) + 1e-6 * (1 + x.abs())
    y, slope = solve_increasing(step, x, guess - reach, guess + reach, guess, first=first)
    return y, slope, score


def _least_slope(ratio: float) -> float:
    """Return the least derivative that a Heun step from σ to ratio·σ can have."""
    drop = 1 - ratio
    return 1 - drop * SLOPE_LIMIT + drop**2 * SLOPE_LIMIT * (SLOPE_LIMIT - 1) / (2 * ratio)


def _check_increasing(slope: Tensor) -> None:
    if not bool((slope > 0).all()):
        raise ArcsmError(
            f"expected an increasing flow, got a step of slope {slope.min().item():.3g};"
            " the scores are steeper than a density's can be: use more flow steps, or quadrature"
        )
