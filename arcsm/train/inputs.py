"""What is trained on, checked, and a digest by which it is known again."""

import hashlib
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from arcsm.data.arrays import as_rows
from arcsm.errors import InputError


def check_range(rows: Tensor | None, dtype: torch.dtype, name: str) -> None:
    """Refuse numbers that become infinite in the precision of the model."""
    if rows is None:
        return
    largest = max(abs(end.item()) for end in rows.aminmax())
    if largest > torch.finfo(dtype).max:
        raise InputError(
            f"expected numbers in {name} within the range of {dtype}, got {largest};"
            " rescale the columns, or use model.double()"
        )


def check_weights(weight: Any, count: int) -> Float[Tensor, "rows"]:
    """Return the weights of the rows, the largest of them 1."""
    if weight is None:
        return torch.ones(count, dtype=torch.float64)
    weights = torch.as_tensor(weight, dtype=torch.float64).cpu()
    good = weights.shape == (count,) and bool(weights.isfinite().all())
    if not good or bool((weights < 0).any()) or int((weights > 0).sum()) < 2:
        raise InputError(
            f"expected {count} finite weights, none negative and at least two above 0, got shape"
            f" {tuple(weights.shape)}; pass one weight for each row"
        )
    return weights / weights.max()  # only their ratios count; tiny ones would vanish in float32


def check_condition(condition: Any, count: int, dims: int) -> Tensor | None:
    """Return what the model is conditioned on, one row for each row."""
    if condition is None and dims == 0:
        return None
    if condition is None or dims == 0:
        got = "none" if condition is None else "one"
        raise InputError(f"expected a condition of {dims} columns, got {got}; see condition_dims")
    rows = as_rows(condition, dims=dims, name="condition")
    if len(rows) != count:
        raise InputError(f"expected {count} rows of condition, got {len(rows)}; one for each row")
    return rows


def check_spread(spread: Any, rows: Tensor) -> Tensor | None:
    """Return how far each entry is spread, in the shape of the rows; None if a rule says it."""
    if spread is None or callable(spread):
        return None
    widths = as_rows(spread, dims=rows.shape[1], name="spread")
    if len(widths) != len(rows) or bool((widths < 0).any()):
        raise InputError(
            f"expected a spread of shape {tuple(rows.shape)} without negative numbers, got shape"
            f" {tuple(widths.shape)} and a least of {widths.min().item():g}; pass one for each"
            " entry of x, 0 where it is exact"
        )
    return widths


def check_observed(observed: Any, x: Any) -> tuple[Any, Bool[Tensor, "rows dims"] | None]:
    """Return x with 0 in the place of all that is missing, and which entries are not.

    So nothing that stood there can be learned. Rows of which nothing is known teach nothing.
    """
    if observed is None:
        return x, None
    mask, shape = torch.as_tensor(observed), tuple(getattr(x, "shape", ()))
    if mask.dtype != torch.bool or mask.shape != shape:
        raise InputError(
            f"expected observed as truth values of shape {shape}, got"
            f" {str(mask.dtype).removeprefix('torch.')} of shape {tuple(mask.shape)}; pass one"
            " for each entry of x"
        )
    if isinstance(x, Tensor):
        mask = mask.to(x.device)
        return x.where(mask, torch.zeros((), dtype=x.dtype, device=x.device)), mask
    return np.where(mask.numpy(), x, np.zeros((), dtype=x.dtype)), mask


def fingerprint(*tensors: Tensor | None, rules: tuple[object, ...] = ()) -> str:
    """Return a digest of the data, by which a resumed run knows that it is the same.

    `rules`, what is done to the data at each step, are known by their `repr`.
    """
    digest = hashlib.sha256()
    for rule in rules:
        if rule is not None:
            digest.update(repr(rule).encode())
    for tensor in tensors:
        if tensor is not None:
            digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
