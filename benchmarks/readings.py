"""Densities over noisy readings of meters, from an ARCSM that knows the steps of the meters.

The contexts of the model see the middles of the cells in which values lie, in training, scoring and
sampling alike. Several models stand for the mixture of their densities.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from arcsm.data.sets import PowerSplit
from arcsm.model import ARCSM

# Rows evaluated, or drawn, at one time.
PIECE = 32_768


@dataclass(frozen=True, eq=False)
class Cells:
    """Rows as readings: the middle of the cell in which each value lies, and the cell's ends.

    Values without a step are their own middle, and their cell is empty: low = high.
    """

    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray


def recover_cells(x: np.ndarray, split: PowerSplit) -> Cells:
    """Return the readings of rows of `split`: noise took each up by less than a step."""
    step = split.quanta * split.scale
    measured = step > 0
    width = np.where(measured, step, 1.0)
    reading = np.floor((x * split.scale + split.mean) / width) * width
    low = np.where(measured, (reading - split.mean) / split.scale, x)
    return Cells(middle=low + split.quanta / 2, low=low, high=low + split.quanta)


def cell_log_prob(models: Sequence[ARCSM], x: np.ndarray, split: PowerSplit) -> np.ndarray:
    """Return the log-density of noisy rows that is even inside each cell."""
    cells = recover_cells(x, split)
    log_width = np.log(split.quanta[split.quanta > 0]).sum()
    return _mixed_log_prob(models, cells.middle, cells.low, cells.high) - log_width


def point_log_prob(models: Sequence[ARCSM], x: np.ndarray, split: PowerSplit) -> np.ndarray:
    """Return the log-density at the noisy values themselves, given the middles of those before.

    As the densities of cells so narrow that the model takes them for points.
    """
    cells = recover_cells(x, split)
    measured = split.quanta > 0
    narrow = min(model.noise.sigma_min * model.scale.min().item() for model in models) / 16
    half = np.where(measured, narrow / 2, 0.0)
    log_width = measured.sum() * math.log(narrow)
    return _mixed_log_prob(models, cells.middle, x - half, x + half) - log_width


def _mixed_log_prob(
    models: Sequence[ARCSM], middle: np.ndarray, low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """Return the log of the mean over models of what they give to cells."""
    pieces = []
    for start in range(0, len(middle), PIECE):
        rows, *ends = (
            torch.from_numpy(part[start : start + PIECE]).to(models[0].shift.device)
            for part in (middle, low, high)
        )
        each = [
            model.log_prob_terms(rows.float(), cells=(ends[0], ends[1]))[0].double().sum(-1)
            for model in models
        ]
        mixed = torch.stack(each).logsumexp(0) - math.log(len(models))
        pieces.append(mixed.cpu().numpy())
    return np.concatenate(pieces)


def draw(models: Sequence[ARCSM], rows: int, split: PowerSplit, seed: int) -> Tensor:
    """Draw noisy rows from the density of `cell_log_prob`, equally many from each model."""
    device = models[0].shift.device
    generator = torch.Generator(device).manual_seed(seed)
    mean, scale, quanta = (
        torch.from_numpy(part).to(device) for part in (split.mean, split.scale, split.quanta)
    )

    def snap(d: int, drawn: Tensor, _: Tensor) -> Tensor:
        if not split.quanta[d]:
            return drawn
        step = quanta[d] * scale[d]
        reading = ((drawn.double() * scale[d] + mean[d]) / step).floor() * step
        return ((reading - mean[d]) / scale[d] + quanta[d] / 2).to(drawn.dtype)

    share = -(-rows // len(models))
    pieces = [
        model.sample(min(PIECE, share - start), generator=generator, snap=snap)
        for model in models
        for start in range(0, share, PIECE)
    ]
    x = torch.cat(pieces)[:rows]
    noise = torch.rand(x.shape, generator=generator, dtype=torch.float64, device=device)
    return x + (noise - 0.5) * quanta
