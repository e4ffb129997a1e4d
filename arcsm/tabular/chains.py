"""The models that a table may have, one or several, and what is asked of each of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from arcsm.columns.encoded import Encoded
from arcsm.ensemble import Ensemble
from arcsm.errors import InputError
from arcsm.model import ARCSM

# A value this many deviations out has density 0 for all purposes; beyond, float32 would overflow.
_FARTHEST = 1e9

Chains = ARCSM | Ensemble


def members_of(model: Chains) -> list[ARCSM]:
    """Return the models whose densities are averaged."""
    return model.models if isinstance(model, Ensemble) else [model]


def order_of(model: Chains) -> tuple[int, ...] | None:
    """Return the order of the scalars, None if there are several."""
    return model.order if isinstance(model, Ensemble) else model.context.order


def one_order_of(model: Chains) -> tuple[int, ...]:
    """Return the order of the scalars; refuse several."""
    order = order_of(model)
    if order is None:
        raise InputError(
            "expected a model of one order for its conditionals, got an ensemble of several;"
            " train it with one order: order=[names] with ensemble=K"
        )
    return order


def terms_of(
    model: Chains, encoded: Encoded, only: Sequence[int] | None = None, method: str = "auto"
) -> Float[Tensor, "members rows scalars"]:
    """Return what each scalar adds to the log-density of each member, in the units of the table."""
    point = as_tensor(encoded.point, model)
    # In double precision: the ends of a cell may be close to each other.
    cells = (torch.from_numpy(encoded.low), torch.from_numpy(encoded.high))
    options: dict[str, Any] = {"only": only, "method": method}
    options["condition"] = condition_of(encoded, model)
    each = torch.stack(
        [
            member.log_prob_terms(point, cells=cells, **options)[0].double().cpu()
            for member in members_of(model)
        ]
    )
    # Cells are known by their probability alone; points by a density in the model's units.
    terms = each + torch.from_numpy(encoded.log_det)
    return terms.where(~torch.from_numpy(encoded.certain), 0.0)


def condition_of(encoded: Encoded, model: Chains) -> Tensor | None:
    """Return what is told of covariates, as the model takes it."""
    return None if encoded.condition is None else as_tensor(encoded.condition, model)


def as_tensor(values: np.ndarray, model: Chains) -> Tensor:
    """Return numbers as the model takes them."""
    clipped = np.where(np.isinf(values), values, np.clip(values, -_FARTHEST, _FARTHEST))
    return torch.from_numpy(clipped).to(model.device, model.dtype)
