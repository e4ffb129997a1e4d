"""Roots of increasing functions, for a whole batch at once."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

ITERATIONS = 60


def rounding_of(dtype: torch.dtype) -> float:
    """Return the share of 1 + |t| by which a root t is known at best."""
    return 4 * torch.finfo(dtype).eps


def solve_increasing(
    function: Callable[[Tensor], tuple[Tensor, Tensor]],
    target: Float[Tensor, "*shape"],
    low: Float[Tensor, "*shape"],
    high: Float[Tensor, "*shape"],
    guess: Float[Tensor, "*shape"],
    *,
    first: tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]] | None = None,
    iterations: int = ITERATIONS,
    tolerance: float | None = None,
) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
    """Solve function(t) = target for t in [low, high]; `function` returns values and slopes.

    Newton's method inside a bracket that shrinks: a step that would leave the bracket becomes a
    bisection, so that the root is found whatever the shape of the increasing function. Returns
    the roots and the slopes there, which are what `function` was called for last. `first` is
    function(guess), if that is known and the guess lies in the bracket. A root is found if what is
    left to go is a share `tolerance` of 1 + |t|, by default that of rounding.
    """
    low, high = low.clone(), high.clone()
    t = torch.minimum(torch.maximum(guess, low), high)
    value, slope = function(t) if first is None else first
    epsilon = rounding_of(t.dtype) if tolerance is None else tolerance
    settled = (target - value).abs() <= epsilon * (1 + t.abs()) * slope
    for iteration in range(iterations):
        if bool(settled.all()):
            break
        below = value < target
        low, high = torch.where(below, t, low), torch.where(below, high, t)
        newton = t + (target - value) / slope
        # Every fourth step bisects: Newton may creep along one side of a long flat stretch.
        inside = (newton >= low) & (newton <= high) & (iteration % 4 != 3)
        step = torch.where(inside, newton, (low + high) / 2)
        step = torch.where(settled, t, step)  # a bisection would lead away from a root found
        moved = (step - t).abs()
        t = step
        value, slope = function(t)
        # Settled too is where the next step of Newton's would be too small to matter.
        close = (target - value).abs() <= epsilon * (1 + t.abs()) * slope
        settled = settled | (moved <= epsilon * (1 + t.abs())) | close
    return t, slope
