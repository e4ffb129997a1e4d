"""Removing Gaussian noise in one pass (Section 5.4 of the paper).

The context network was trained on contexts that are as good as clean, so it must not see the noisy
row: the walk goes scalar by scalar, and each scalar is cleaned before the next one looks at it.
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from arcsm.data.arrays import as_rows
from arcsm.errors import InputError
from arcsm.model import ARCSM


@torch.no_grad()
def denoise(
    model: ARCSM,
    noisy: Any,
    sigma: float,
    *,
    condition: Float[Tensor, "rows condition_dims"] | None = None,
) -> Float[Tensor, "rows dims"]:
    """Return the rows of `noisy`, cleaned of Gaussian noise of standard deviation `sigma`.

    Along the order of the model each noisy scalar x̃_d becomes its posterior mean (Tweedie)

        E[x_d | x_<d, x̃_d] = x̃_d + σ² s_d(x̃_d, σ),

    where the context x_<d is made of the scalars cleaned so far. Scalars that come later are not
    used, although their noisy values also say something of x_d: this is the single-step denoiser
    of the paper, not the posterior mean given the whole row.

    `sigma` is in the units of the data. A column of scale c has noise σ/c in the model, which may
    not exceed the model's `sigma_max`. Where it lies below `sigma_min` the score at `sigma_min` is
    used in its place: the least that was trained, for a correction that vanishes with σ².

    >>> import torch
    >>> model = ARCSM.made(2, hidden=(16, 16), seed=0)
    >>> denoise(model, torch.zeros(3, 2), 0.5).shape
    torch.Size([3, 2])
    """
    levels = _levels(model, sigma)
    rows = as_rows(noisy, dims=model.dims, name="noisy", dtype=model.shift.dtype)
    rows = rows.to(model.shift.device)
    clean = torch.zeros_like(rows)
    cursor = model.context.cursor(len(rows), condition)
    for d in model.context.order:
        family = model.head.family(cursor.context())
        level, centre = levels[d], model.centre(clean, d)
        z = (rows[:, d] - centre) / model.scale[d]
        score, _ = family.at(max(level, model.noise.sigma_min)).jet(z[:, None])
        z = z + level**2 * score[:, 0]
        clean[:, d] = z * model.scale[d] + centre
        cursor.push(model.context_input(clean[:, d], d))
    return clean


def _levels(model: ARCSM, sigma: float) -> list[float]:
    """Return σ of every column in standardised units; refuse what the model was not trained on."""
    number = isinstance(sigma, (int, float)) and not isinstance(sigma, bool)
    if not number or not 0 < sigma < math.inf:
        raise InputError(
            f"expected sigma as a positive finite number, got {sigma!r};"
            " pass the standard deviation of the noise in the units of the data"
        )
    levels: list[float] = (sigma / model.scale.double()).tolist()
    worst = max(range(len(levels)), key=levels.__getitem__)
    # The scales are single precision: a sigma meant to reach sigma_max exactly may land above it.
    if levels[worst] > model.noise.sigma_max * (1 + 1e-6):
        reach = model.noise.sigma_max * model.scale.double().min().item()
        raise InputError(
            f"expected sigma up to {reach:.4g} (sigma_max = {model.noise.sigma_max:g} times the"
            f" smallest scale of a column), got {sigma:g}, which is {levels[worst]:.4g} times the"
            f" scale of column {worst}; train a model with a larger sigma_max in its Noise"
        )
    return levels
