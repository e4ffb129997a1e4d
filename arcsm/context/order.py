"""Variable orders: which scalar comes first in the chain rule."""

from collections.abc import Sequence

import torch

from arcsm.errors import InputError


def resolve_order(
    order: str | Sequence[int], dims: int, *, generator: torch.Generator | None = None
) -> tuple[int, ...]:
    """Return `order` as a tuple whose i-th entry is the index of the scalar that comes i-th.

    "natural" is 0, 1, …, dims − 1; "random" is drawn from `generator`; a sequence must be a
    permutation of 0 … dims − 1.

    >>> resolve_order("natural", 3)
    (0, 1, 2)
    >>> resolve_order([2, 0, 1], 3)
    (2, 0, 1)
    """
    if isinstance(order, str):
        if order == "natural":
            return tuple(range(dims))
        if order == "random":
            return tuple(torch.randperm(dims, generator=generator).tolist())
        remedy = (
            "learn it from rows by arcsm.learn_order, and pass its order"
            if order == "auto"
            else "choose one of these"
        )
        raise InputError(
            f'expected the order "natural", "random" or a permutation, got {order!r}; {remedy}'
        )
    try:
        indices = tuple(int(index) for index in order)
        whole = all(index == given for index, given in zip(indices, order, strict=True))
    except (TypeError, ValueError, OverflowError):
        indices, whole = (), False
    if not whole or sorted(indices) != list(range(dims)):
        raise InputError(
            f"expected an order that is a permutation of 0 … {dims - 1}, got {order!r};"
            " list every column index exactly once"
        )
    return indices
