"""Annealed one-dimensional Langevin dynamics, as in the paper (Appendix C.3)."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from arcsm.conditional.protocol import Family
from arcsm.errors import InputError


def annealed_langevin(
    family: Family,
    start: Float[Tensor, "*batch points"],
    ladder: list[float],
    *,
    steps: int,
    step_size: float | None = None,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "*batch points"]:
    """Move `start` by Langevin steps at each level of the ladder in turn.

    At level σ_i, T = `steps` times:  x ← x + (ε/2) s(x, σ_i) + √ε z,  z ~ N(0, 1), with
    ε = ε₀ σ_i²/σ_L² and ε₀ = `step_size`, by default σ_L²/2. The paper starts from N(0, 1).
    """
    if step_size is None and ladder:
        step_size = ladder[-1] ** 2 / 2
    if not ladder or steps < 1 or step_size is None or not 0 < step_size < math.inf:
        raise InputError(
            "expected at least one level, at least one step and a positive step size, got"
            f" {len(ladder)} levels, steps={steps}, step_size={step_size}; correct these"
        )
    x = start
    for sigma, conditional in zip(ladder, family.ladder(ladder), strict=True):
        epsilon = step_size * sigma**2 / ladder[-1] ** 2
        for _ in range(steps):
            score = conditional.score(x)
            noise = torch.randn(x.shape, generator=generator, dtype=x.dtype, device=x.device)
            x = x + epsilon / 2 * score + math.sqrt(epsilon) * noise
    return x


def surviving_offset(ladder: list[float], *, steps: int, step_size: float) -> float:
    """Return the share of a starting offset that is left at the end: 0 is well mixed.

    On a point smoothed by σ_i the score is −x/σ_i², and each of its T steps multiplies an offset by
    1 − ε/2σ_i² = 1 − ε₀/2σ_L²: the slowest that a conditional of the ladder can contract is less.

    >>> round(surviving_offset([1.0] * 9 + [0.04], steps=20, step_size=2e-5), 2)
    0.29
    """
    return abs(1 - step_size / (2 * ladder[-1] ** 2)) ** (steps * len(ladder))
