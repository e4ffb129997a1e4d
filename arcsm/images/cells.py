"""Levels of pixels as cells: where training looks for them, how samples return to them; flips.

A row is a flattened image, channels innermost, of numbers level/255. Level k stands for the cell
from k − ½ to k + ½; the cells of 0 and of 255 reach to ∓∞, so that the probabilities of the 256
levels, differences of a CDF, add up to 1.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from arcsm.baselines.pixel_logistics import nearest_level
from arcsm.errors import InputError
from arcsm.sampling.chain import TensorSnap

LEVELS = 256
HIGHEST = LEVELS - 1

# How far beyond its edge the targets of level 0, and of level 255, are spread, in levels.
_BEYOND = 8.0


def to_rows(pixels: np.ndarray) -> Float[Tensor, "images scalars"]:
    """Return uint8 images (n, height, width, channels) as rows of level/255."""
    levels = torch.from_numpy(np.require(pixels, requirements=["C", "W"]))
    return levels.flatten(1).float() / HIGHEST


def from_rows(rows: Float[Tensor, "images scalars"], shape: tuple[int, int, int]) -> np.ndarray:
    """Return rows of level/255 as uint8 images of `shape` (height, width, channels)."""
    levels = (rows.detach() * HIGHEST).round().clamp(0, HIGHEST)
    return levels.to(torch.uint8).cpu().numpy().reshape(-1, *shape)


@dataclass(frozen=True)
class PixelCells:
    """How far the target of each entry is spread, below and above: evenly over a cell.

    Levels 1 to 254 are spread over their cells, ±½ level. The cells of 0 and 255 are open, so
    their targets may lie anywhere beyond the edge. They are spread outwards, over the 8 levels
    that begin a whole level beyond it (level 0: from −8.5 to −0.5): the smoothing σ_min of the
    model then carries none of their mass, which in many pictures is most of all, across the edge
    to the cell beside it.
    """

    def __call__(
        self, rows: Float[Tensor, "rows scalars"]
    ) -> tuple[Float[Tensor, "rows scalars"], Float[Tensor, "rows scalars"]]:
        """Return how far below and above the rows; a negative number is on the other side."""
        half, far = 0.5 / HIGHEST, (0.5 + _BEYOND) / HIGHEST
        lowest, highest = rows < half, rows > 1 - half
        inside = torch.full_like(rows, half)
        below = inside.masked_fill(lowest, far).masked_fill(highest, -half)
        above = inside.masked_fill(lowest, -half).masked_fill(highest, far)
        return below, above


@dataclass(frozen=True)
class WholeLevels:
    """The spread of plain dequantisation: ±½ level, at the ends as well."""

    def __call__(
        self, rows: Float[Tensor, "rows scalars"]
    ) -> tuple[Float[Tensor, "rows scalars"], Float[Tensor, "rows scalars"]]:
        """Return how far below and above the rows."""
        half = torch.full_like(rows, 0.5 / HIGHEST)
        return half, half


def cell_ends(
    rows: Float[Tensor, "rows scalars"],
) -> tuple[Float[Tensor, "rows scalars"], Float[Tensor, "rows scalars"]]:
    """Return the ends of the cells of the levels in `rows`, in float64; those of 0 and 255 are ∓∞.

    >>> low, high = cell_ends(torch.tensor([[0.0, 1 / 255, 1.0]]))
    >>> (low * 255).tolist(), (high * 255).tolist()
    ([[-inf, 0.5, 254.5]], [[0.5, 1.5, inf]])
    """
    levels = (rows.double() * HIGHEST).round()
    low, high = (levels - 0.5) / HIGHEST, (levels + 0.5) / HIGHEST
    return (
        low.masked_fill(levels <= 0, -math.inf),
        high.masked_fill(levels >= HIGHEST, math.inf),
    )


@dataclass(frozen=True)
class PixelSnap(TensorSnap):
    """Moves values to the nearest level, so that contexts in sampling are as in training."""

    def move(self, value: Float[Tensor, "rows"]) -> Float[Tensor, "rows"]:
        """Return the levels, as level/255, in whose cells the values lie."""
        return nearest_level(value)


@dataclass(frozen=True)
class Flips:
    """Mirrors images along each of `axes` with probability ½: 0 is top to bottom, 1 left to right.

    `shape` is (height, width, channels).
    """

    shape: tuple[int, int, int]
    axes: tuple[int, ...] = (1,)

    def __call__(
        self, rows: Float[Tensor, "rows scalars"], generator: torch.Generator
    ) -> Float[Tensor, "rows scalars"]:
        """Return the rows, some of them mirrored, by the generator alone."""
        if rows.shape[1] != math.prod(self.shape):
            raise InputError(
                f"expected rows of {math.prod(self.shape)} scalars for images of shape"
                f" {self.shape}, got {rows.shape[1]}; flatten images of that shape"
            )
        images = rows.unflatten(1, self.shape)
        for axis in self.axes:
            mirrored = torch.rand(len(rows), generator=generator, device=rows.device) < 0.5
            images = images.flip(1 + axis).where(mirrored[:, None, None, None], images)
        return images.flatten(1)
