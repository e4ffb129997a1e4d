"""MADE: each context sees the scalars before it, all of them and no others."""

import itertools
import json
from collections.abc import Sequence

import pytest
import torch
from known import normal
from torch import Tensor

from arcsm.context import MADE
from arcsm.errors import InputError

DIMS = (1, 2, 7)
ORDERS = ("natural", "random", "reversed")
HIDDEN = ((3,), (2, 3, 2), (16, 16), (24, 8, 13), (8, 24, 24))
every_network = pytest.mark.parametrize(
    ("dims", "order", "hidden", "condition_dims", "frequencies"),
    [
        (*case, frequencies)
        for case, frequencies in itertools.product(
            itertools.product(DIMS, ORDERS, HIDDEN, (0, 3)), (0, 2)
        )
        if frequencies == 0 or case[2] in ((3,), (24, 8, 13))
    ],
)


def network(
    dims: int, order: str, hidden: Sequence[int], condition_dims: int, frequencies: int
) -> MADE:
    """Return a network in float64 whose weights, biases included, are large enough to show."""
    made = MADE(
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


def condition_for(made: MADE, rows: int) -> Tensor | None:
    return normal(rows, made.condition_dims, seed=5) if made.condition_dims else None


def earlier(made: MADE) -> Tensor:
    """Return a table of which scalar e (column) comes before d (row) in the order."""
    position = {d: place for place, d in enumerate(made.order)}
    return torch.tensor(
        [[position[e] < position[d] for e in range(made.dims)] for d in range(made.dims)]
    )


@every_network
def test_contexts_see_what_comes_before(
    dims: int, order: str, hidden: Sequence[int], condition_dims: int, frequencies: int
) -> None:
    made = network(dims, order, hidden, condition_dims, frequencies)
    condition = condition_for(made, 1)
    jacobian = torch.autograd.functional.jacobian(
        lambda x: made(x[None], condition)[0], normal(dims)
    )
    seen = (jacobian != 0).any(1)  # over the entries of a context
    assert not bool((seen & ~earlier(made)).any())
    # With fewer units than scalars there are not units of every degree.
    if min(hidden) >= dims:
        assert torch.equal(seen, earlier(made))


@every_network
def test_later_scalars_change_nothing(
    dims: int, order: str, hidden: Sequence[int], condition_dims: int, frequencies: int
) -> None:
    made = network(dims, order, hidden, condition_dims, frequencies)
    x, condition = normal(4, dims), condition_for(made, 4)
    contexts = made(x, condition)
    for place, d in enumerate(made.order):
        changed = x.clone()
        changed[:, list(made.order[place:])] += 1e3
        torch.testing.assert_close(made(changed, condition)[:, d], contexts[:, d], rtol=0, atol=0)


@every_network
def test_cursor_hands_out_the_contexts_of_the_forward_pass(
    dims: int, order: str, hidden: Sequence[int], condition_dims: int, frequencies: int
) -> None:
    made = network(dims, order, hidden, condition_dims, frequencies)
    x, condition = normal(4, dims), condition_for(made, 4)
    contexts = made(x, condition)
    cursor = made.cursor(4, condition)
    for place, d in enumerate(made.order):
        assert cursor.position == place
        torch.testing.assert_close(cursor.context(), contexts[:, d], rtol=1e-12, atol=1e-12)
        cursor.push(x[:, d])
    assert cursor.position == dims


def test_random_order_is_a_fixed_permutation() -> None:
    made = MADE(7, order="random")
    assert sorted(made.order) == list(range(7)) and made.order != tuple(range(7))
    assert made.config["order"] == list(made.order)


def test_first_context_is_the_same_for_all_rows() -> None:
    made = network(4, "random", (16, 16), 0, 0)
    contexts = made(normal(5, 4))[:, made.order[0]]
    assert torch.equal(contexts, contexts[:1].expand(5, -1))


@pytest.mark.parametrize("dims", DIMS)
@pytest.mark.parametrize("hidden", [(3,), (16, 16), (8, 24, 24)])
def test_condition_reaches_every_context(dims: int, hidden: Sequence[int]) -> None:
    made = network(dims, "random", hidden, 3, 0)
    jacobian = torch.autograd.functional.jacobian(
        lambda condition: made(normal(1, dims), condition[None])[0], normal(3, seed=5)
    )
    assert bool((jacobian != 0).any(1).all())


def test_features_are_the_scalar_its_sines_and_cosines() -> None:
    made = MADE(2, frequencies=3)
    x = normal(5)
    expected = [x]
    for k in range(3):
        expected += [(2**k * x).sin(), (2**k * x).cos()]
    torch.testing.assert_close(made.features(x), torch.stack(expected, -1))


@pytest.mark.parametrize(
    ("built_with", "shape", "expected", "got"),
    [
        (0, (4, 3), "expected no condition", r"got shape \(4, 3\)"),
        (3, None, r"expected a condition of shape \(4, 3\)", "got none"),
        (3, (4, 2), r"expected a condition of shape \(4, 3\)", r"got shape \(4, 2\)"),
        (3, (5, 3), r"expected a condition of shape \(4, 3\)", r"got shape \(5, 3\)"),
        (3, (3,), r"expected a condition of shape \(4, 3\)", r"got shape \(3,\)"),
    ],
)
def test_condition_must_fit(
    built_with: int, shape: tuple[int, ...] | None, expected: str, got: str
) -> None:
    made = MADE(2, hidden=(8,), condition_dims=built_with)
    condition = None if shape is None else torch.zeros(shape)
    for use in (
        lambda: made(torch.zeros(4, 2), condition),
        lambda: made.cursor(4, condition),
    ):
        with pytest.raises(InputError, match=f"{expected}, {got}"):
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
def test_sizes_must_make_sense(settings: dict, got: str) -> None:
    with pytest.raises(InputError, match=f"expected .* got .*{got}"):
        MADE(**{"dims": 2, **settings})


def test_config_makes_the_network_anew() -> None:
    made = MADE(5, width=3, hidden=(9, 7), order="random", condition_dims=2, frequencies=1)
    again = MADE(**json.loads(json.dumps(made.config)))
    again.load_state_dict(made.state_dict())
    x, condition = torch.randn(3, 5), torch.randn(3, 2)
    assert torch.equal(made(x, condition), again(x, condition))
