"""The walk of fixed programs hands out the contexts of the forward pass, again and again."""

import itertools
from collections.abc import Sequence

import pytest
import torch
from known import normal
from torch import Tensor

from arcsm.context import MADE
from arcsm.context.walk import MADEWalk
from arcsm.errors import InputError

# Layers narrower than the scalars leave degrees without units; those of other widths need skips.
HIDDEN = ((1,), (3,), (2, 3, 2), (16, 16), (24, 8, 13), (1, 5))
every_network = pytest.mark.parametrize(
    ("dims", "order", "hidden", "condition_dims", "frequencies"),
    list(itertools.product((1, 2, 7), ("natural", "random"), HIDDEN, (0, 3), (0, 2))),
)


def network(
    dims: int, order: str, hidden: Sequence[int], condition_dims: int, frequencies: int
) -> MADE:
    """Return a network in float64 of weights that show everywhere."""
    made = MADE(
        dims,
        width=3,
        hidden=hidden,
        order=order,
        condition_dims=condition_dims,
        frequencies=frequencies,
    ).double()
    change(made, seed=9)
    return made.requires_grad_(False)


@torch.no_grad()
def change(made: MADE, seed: int) -> None:
    for place, parameter in enumerate(made.parameters()):
        parameter += 0.5 * normal(*parameter.shape, seed=seed + place)


def walked(walk: MADEWalk, made: MADE, x: Tensor, condition: Tensor | None) -> Tensor:
    """Return the contexts of a whole walk in the layout of the forward pass."""
    walk.restart(condition)
    found = torch.full((len(x), made.dims, made.width), torch.nan, dtype=x.dtype)
    position = torch.zeros(1, dtype=torch.long)
    for place, d in enumerate(made.order):
        position.fill_(place)
        found[:, d] = walk.context(position)
        walk.push(position, x[:, d])
    return found


@every_network
def test_walk_hands_out_the_contexts_of_the_forward_pass(
    dims: int, order: str, hidden: Sequence[int], condition_dims: int, frequencies: int
) -> None:
    made = network(dims, order, hidden, condition_dims, frequencies)
    walk = MADEWalk(made, 4)
    for seed in (1, 2):  # the second time, nothing is left of the first
        x = normal(4, dims, seed=seed)
        condition = normal(4, condition_dims, seed=seed + 10) if condition_dims else None
        torch.testing.assert_close(
            walked(walk, made, x, condition), made(x, condition), rtol=1e-12, atol=1e-12
        )


@every_network
def test_walk_and_cursor_agree(
    dims: int, order: str, hidden: Sequence[int], condition_dims: int, frequencies: int
) -> None:
    made = network(dims, order, hidden, condition_dims, frequencies)
    x = normal(3, dims)
    condition = normal(3, condition_dims, seed=4) if condition_dims else None
    found = walked(MADEWalk(made, 3), made, x, condition)
    cursor = made.cursor(3, condition)
    for d in made.order:
        torch.testing.assert_close(cursor.context(), found[:, d], rtol=1e-12, atol=1e-12)
        cursor.push(x[:, d])


def test_a_walk_broken_off_leaves_nothing_behind() -> None:
    made = network(5, "random", (7, 6), 2, 1)
    walk = MADEWalk(made, 3)
    walk.restart(normal(3, 2, seed=8))
    for place in range(3):
        walk.push(torch.tensor([place]), torch.full((3,), torch.nan, dtype=torch.float64))
    x, condition = normal(3, 5, seed=1), normal(3, 2, seed=2)
    torch.testing.assert_close(
        walked(walk, made, x, condition), made(x, condition), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("condition_dims", [0, 2])
def test_a_restart_reads_the_weights_as_they_are_now(condition_dims: int) -> None:
    made = network(4, "random", (8, 6, 6), condition_dims, 1)
    walk = MADEWalk(made, 3)
    x = normal(3, 4, seed=1)
    condition = normal(3, 2, seed=2) if condition_dims else None
    before = walked(walk, made, x, condition)
    for parameter in made.parameters():  # each of them is read
        parameter.add_(0.3 * normal(*parameter.shape, seed=7))
        after = walked(walk, made, x, condition)
        torch.testing.assert_close(after, made(x, condition), rtol=1e-12, atol=1e-12)
        assert not torch.allclose(after, before)
        before = after


def test_the_first_context_is_known_before_anything_is_pushed() -> None:
    made = network(3, "natural", (6, 6), 2, 0)
    condition = normal(2, 2, seed=3)
    walk = MADEWalk(made, 2)
    walk.restart(condition)
    expected = made(normal(2, 3), condition)[:, 0]
    torch.testing.assert_close(walk.context(torch.tensor([0])), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("built_with", "shape", "expected"),
    [
        (0, (4, 3), "expected no condition"),
        (3, None, r"expected a condition of shape \(4, 3\), got none"),
        (3, (5, 3), r"expected a condition of shape \(4, 3\), got shape \(5, 3\)"),
    ],
)
def test_condition_must_fit(built_with: int, shape: tuple[int, ...] | None, expected: str) -> None:
    walk = MADEWalk(MADE(2, hidden=(8,), condition_dims=built_with).requires_grad_(False), 4)
    with pytest.raises(InputError, match=expected):
        walk.restart(None if shape is None else torch.zeros(shape))
