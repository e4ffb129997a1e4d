"""Variable orders: names, permutations, and what is neither."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from known import seeded

from arcsm.context import MADE, resolve_order
from arcsm.errors import InputError


@pytest.mark.parametrize("dims", [1, 2, 7])
def test_natural_and_random_orders(dims: int) -> None:
    assert resolve_order("natural", dims) == tuple(range(dims))
    drawn = resolve_order("random", dims, generator=seeded(1))
    assert sorted(drawn) == list(range(dims))
    assert drawn == resolve_order("random", dims, generator=seeded(1))


def test_random_orders_differ() -> None:
    orders = {resolve_order("random", 5, generator=seeded(seed)) for seed in range(20)}
    assert len(orders) > 10


@pytest.mark.parametrize(
    "order", [[2, 0, 1], (2, 0, 1), np.array([2, 0, 1]), torch.tensor([2, 0, 1])]
)
def test_permutations(order: Any) -> None:
    resolved = resolve_order(order, 3)
    assert resolved == (2, 0, 1) and all(type(index) is int for index in resolved)


BAD: dict[str, Any] = {
    "too short": [0, 1],
    "too long": [0, 1, 2, 3],
    "empty": [],
    "repeated": [0, 1, 1],
    "out of range": [1, 2, 3],
    "negative": [-1, 0, 1],
    "floats": [0.5, 1.5, 2.0],
    "infinite": [math.inf, 0, 1],
    "not a number": [math.nan, 0, 1],
    "strings": ["0", "1", "2"],
    "names": ["a", "b", "c"],
    "nested": [[0], [1, 2]],
    "no sequence": 3,
    "nothing": None,
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_permutation_is_refused(name: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve_order(BAD[name], 3)
    message = str(caught.value)
    assert "expected an order that is a permutation of 0 … 2" in message
    assert f"got {BAD[name]!r}" in message


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InputError, match=r"expected the order .natural., .* got 'reverse'"):
        resolve_order("reverse", 3)


def test_the_network_refuses_them_too() -> None:
    with pytest.raises(InputError, match="permutation of 0 … 2, got"):
        MADE(3, order=[0, 0, 1])
