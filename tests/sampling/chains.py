"""Chains to draw from, whose conditionals are far from normal, and what a draw has to satisfy."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from known import normal, seeded
from torch import Tensor

import arcsm.autoregressive
from arcsm.conditional import Noise
from arcsm.model import ARCSM

DENSITIES = ("flow", "quadrature")


def random_chain(
    dims: int = 4,
    *,
    order: str | Sequence[int] = "natural",
    density: str | None = None,
    decorrelate: bool = False,
    condition_dims: int = 0,
    frequencies: int = 0,
    strength: float = 0.4,
    noise: Noise | None = None,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    **options: Any,
) -> ARCSM:
    """Return a model of random weights; `strength` 0 makes its scalars independent."""
    model = ARCSM.made(
        dims,
        hidden=(12, 9),
        width=4,
        steps=3,
        frequencies=frequencies,
        order=order,
        density=density,
        decorrelate=decorrelate,
        condition_dims=condition_dims,
        noise=noise or Noise(3.0, 0.3),
        seed=seed,
        **options,
    ).double()
    g = seeded(seed + 100)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.4 * torch.randn(parameter.shape, generator=g, dtype=torch.float64))
        if not isinstance(model.context.output, torch.nn.Linear):
            raise TypeError("expected a MADE")
        model.context.output.weight.mul_(strength / 0.4)
    d = torch.arange(dims, dtype=torch.float64)
    rows = normal(200, dims, seed=3)
    if decorrelate:  # each column with the one before it, and the first with the last
        rows = rows + 0.7 * rows.roll(1, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arcsm.autoregressive, "_NARROW", math.inf)  # regress every column
        model.standardise(rows * (3.0 / (1 + d)) + 10 * d - 4)
    return model.to(dtype).requires_grad_(False)


def condition_for(model: ARCSM, rows: int, seed: int = 5) -> Tensor | None:
    """Return a condition for each row if the model wants one."""
    if not model.condition_dims:
        return None
    return normal(rows, model.condition_dims, seed=seed).to(model.shift)


def uniforms(rows: int, dims: int, seed: int = 1) -> Tensor:
    return torch.rand(rows, dims, generator=seeded(seed), dtype=torch.float64)


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "permuted": {"order": [2, 0, 3, 1]},
    "waves": {"frequencies": 2},
    "decorrelated": {"order": [3, 1, 0, 2], "decorrelate": True},
    "conditioned": {"condition_dims": 2},
    "everything": {
        "order": [1, 3, 0, 2],
        "decorrelate": True,
        "condition_dims": 2,
        "frequencies": 2,
    },
}
every_kind = pytest.mark.parametrize("kind", KINDS)
every_density = pytest.mark.parametrize("density", DENSITIES)
