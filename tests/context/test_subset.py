"""A network for any set of known scalars: contexts see these, all of them and no others."""

import itertools
import json
import math
from typing import Any

import pytest
import torch
from known import normal
from torch import Tensor

import arcsm.context.subset
from arcsm.context import SubsetNetwork
from arcsm.context.waves import with_waves
from arcsm.errors import InputError

every_network = pytest.mark.parametrize(
    "case",  # dims, order, hidden, condition_dims, frequencies
    list(
        itertools.product(
            (1, 2, 5), ("natural", "reversed", "random"), ((8,), (12, 12, 9)), (0, 3), (0, 2)
        )
    ),
)


def network(
    dims: int = 4,
    order: Any = "natural",
    hidden: tuple[int, ...] = (12, 12, 9),
    condition_dims: int = 0,
    frequencies: int = 2,
) -> SubsetNetwork:
    """Return a network in float64 whose weights, biases included, are large enough to show."""
    made = SubsetNetwork(
        dims,
        width=3,
        hidden=hidden,
        order=list(range(dims))[::-1] if order == "reversed" else order,
        condition_dims=condition_dims,
        frequencies=frequencies,
    ).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, dtype=torch.float64))
    return made.requires_grad_(False)


def condition_for(made: SubsetNetwork, rows: int) -> Tensor | None:
    return normal(rows, made.condition_dims, seed=5) if made.condition_dims else None


def earlier(made: SubsetNetwork) -> Tensor:
    """Return a table of which scalar e (column) comes before d (row) in the order."""
    place = [made.order.index(d) for d in range(made.dims)]
    return torch.tensor([[e < d for e in place] for d in place])


@every_network
def test_along_the_order_contexts_see_what_comes_before(case: tuple[Any, ...]) -> None:
    made = network(*case)
    condition = condition_for(made, 1)
    jacobian = torch.autograd.functional.jacobian(
        lambda x: made(x[None], condition)[0], normal(made.dims)
    )
    assert torch.equal((jacobian != 0).any(1), earlier(made))


@every_network
def test_forward_pass_and_cursor_are_those_of_the_sets(case: tuple[Any, ...]) -> None:
    made = network(*case)
    x, condition = normal(4, made.dims), condition_for(made, 4)
    contexts, before = made(x, condition), earlier(made)
    cursor = made.cursor(4, condition)
    for place, d in enumerate(made.order):
        assert cursor.position == place
        expected = made.contexts(x, before[d].expand(4, -1), condition)[:, d]
        torch.testing.assert_close(contexts[:, d], expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(cursor.context(), expected, rtol=1e-12, atol=1e-12)
        cursor.push(x[:, d])
    assert cursor.position == made.dims


def test_contexts_see_known_scalars_and_which_they_are() -> None:
    made = network()
    x = normal(1, 4)
    for known in itertools.product([True, False], repeat=4):
        mask = torch.tensor([known])
        jacobian = torch.autograd.functional.jacobian(
            lambda x, mask=mask: made.contexts(x, mask)[0], x
        )
        seen = (jacobian[:, :, 0] != 0).any(1)
        assert torch.equal(seen, mask.expand(4, -1))
        assert torch.equal(made.contexts(x, mask), made.contexts(x, mask.double()))
        strange = x.where(mask, math.nan)
        assert torch.equal(made.contexts(strange, mask), made.contexts(x, mask))


def test_a_known_zero_says_more_than_an_unknown_one() -> None:
    made, zero = network(frequencies=0), torch.zeros(1, 4).double()
    nothing = made.contexts(zero, zero)
    for d in range(4):
        known = zero.index_fill(1, torch.tensor(d), 1)
        difference = made.contexts(zero, known) - nothing
        assert difference.abs().amax(-1).min().item() > 1e-6


@pytest.mark.parametrize("passes", [1, 11, 20])
def test_pieces_make_no_difference(passes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = network(order="random", condition_dims=2)
    x, condition = normal(7, 4), condition_for(made, 7)
    whole = made(x, condition)
    monkeypatch.setattr(arcsm.context.subset, "_PASSES", passes)
    torch.testing.assert_close(made(x, condition), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_condition_reaches_every_context_through_every_layer(layer: int) -> None:
    made = network(condition_dims=3)
    maps = [made.condition, *(block.condition for block in made.blocks)]
    for place, to_units in enumerate(maps):
        if place != layer:
            to_units.weight.zero_()
    known = torch.tensor([[True, False, False, True]])
    for contexts in (
        lambda y: made(normal(1, 4), y[None])[0],
        lambda y: made.contexts(normal(1, 4), known, y[None])[0],
    ):
        jacobian = torch.autograd.functional.jacobian(contexts, normal(3, seed=5))
        assert bool((jacobian != 0).any(1).all())


def test_another_order_has_the_same_weights() -> None:
    made = network(order=[2, 0, 3, 1])
    other = made.with_order([1, 3, 0, 2])
    assert made.order == (2, 0, 3, 1) and other.order == (1, 3, 0, 2)
    pairs = zip(made.parameters(), other.parameters(), strict=True)
    assert all(ours is theirs for ours, theirs in pairs)
    x = normal(3, 4)
    before = other(x)
    with torch.no_grad():
        made.output.bias.add_(1)
    torch.testing.assert_close(other(x), before + 1)
    with pytest.raises(InputError, match="expected an order that is a permutation"):
        made.with_order([0, 1, 2, 2])


def test_waves_are_the_scalar_its_sines_and_cosines() -> None:
    x = normal(5)
    expected = [x, x.sin(), x.cos(), (2 * x).sin(), (2 * x).cos()]
    torch.testing.assert_close(with_waves(x, 2), torch.stack(expected, -1))
    torch.testing.assert_close(with_waves(x, 0), x[:, None])


@pytest.mark.parametrize("condition", [None, torch.zeros(4, 2), torch.zeros(5, 3)])
def test_condition_must_fit(condition: Tensor | None) -> None:
    made = SubsetNetwork(2, hidden=(8,), condition_dims=3)
    x = torch.zeros(4, 2)
    for use in (
        lambda: made(x, condition),
        lambda: made.contexts(x, x > 0, condition),
        lambda: made.cursor(4, condition),
    ):
        with pytest.raises(InputError, match=r"expected a condition of shape \(4, 3\), got"):
            use()


@pytest.mark.parametrize(
    ("settings", "got"),
    [
        ({"dims": 0}, "dims=0"),
        ({"width": 0}, "width=0"),
        ({"hidden": ()}, r"hidden=\(\)"),
        ({"hidden": (8, 0)}, r"hidden=\(8, 0\)"),
        ({"condition_dims": -1}, "condition_dims=-1"),
        ({"frequencies": -1}, "frequencies=-1"),
    ],
)
def test_sizes_must_make_sense(settings: dict[str, Any], got: str) -> None:
    with pytest.raises(InputError, match=f"expected .* got .*{got}"):
        SubsetNetwork(**{"dims": 2, **settings})


def test_config_makes_the_network_anew() -> None:
    made = SubsetNetwork(5, width=3, hidden=(9, 7), order="random", condition_dims=2, frequencies=1)
    again = SubsetNetwork(**json.loads(json.dumps(made.config)))
    again.load_state_dict(made.state_dict())
    x, condition = torch.randn(3, 5), torch.randn(3, 2)
    assert torch.equal(made(x, condition), again(x, condition))
