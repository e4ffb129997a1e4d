"""Values that are given stay as they are, and the others are drawn given these."""

import math
from typing import Any

import pytest
import torch
from chains import KINDS, condition_for, every_density, every_kind, random_chain, uniforms
from known import seeded

from arcsm.errors import InputError


@pytest.mark.parametrize("known", [1, 2, 3, 4])
@every_density
@every_kind
def test_the_rest_has_its_conditional_distribution(kind: str, density: str, known: int) -> None:
    model = random_chain(density=density, **KINDS[kind])
    uniform, condition = uniforms(6, 4), condition_for(model, 6)
    first, rest = list(model.context.order[:known]), list(model.context.order[known:])
    given = model.shift[first] + uniforms(6, known, seed=2) - 0.5
    x = model.sample(6, uniform=uniform, condition=condition, given=given)
    assert torch.equal(x[:, first], given)
    found = model.conditional_cdf(x, condition=condition)
    torch.testing.assert_close(found[:, rest], uniform[:, rest], rtol=0, atol=3e-7)
    if known == 4:
        assert torch.equal(x[:, list(model.context.order)], given)


@every_density
def test_one_row_is_given_for_all(density: str) -> None:
    model = random_chain(density=density, **KINDS["permuted"])
    given = torch.tensor([[15.0, -3.0]], dtype=torch.float64)  # of columns 2 and 0
    uniform = uniforms(5, 4)
    x = model.sample(5, uniform=uniform, given=given)
    assert torch.equal(x[:, [2, 0]], given.expand(5, -1))
    assert torch.equal(x, model.sample(5, uniform=uniform, given=given.repeat(5, 1)))
    torch.testing.assert_close(
        model.sample(5, uniform=uniform, given=given, batch_size=2), x, rtol=1e-9, atol=1e-9
    )


def test_what_was_drawn_is_drawn_again_from_its_beginning() -> None:
    model = random_chain(**KINDS["everything"])
    uniform, condition = uniforms(6, 4), condition_for(model, 6)
    x = model.sample(6, uniform=uniform, condition=condition)
    for known in (1, 2, 3):
        given = x[:, list(model.context.order[:known])]
        again = model.sample(6, uniform=uniform, condition=condition, given=given)
        torch.testing.assert_close(again, x, rtol=1e-9, atol=1e-9)


def test_langevin_dynamics_keeps_what_is_given() -> None:
    model = random_chain(**KINDS["permuted"])
    given = torch.tensor([[15.0, -3.0]], dtype=torch.float64)
    draws = [
        model.sample(4, given=given + shift, method="langevin", generator=seeded(1))
        for shift in (0.0, 0.0, 3.0)
    ]
    assert torch.equal(draws[0][:, [2, 0]], given.expand(4, -1))
    assert torch.equal(draws[0], draws[1])
    # The same noise, and other contexts.
    assert (draws[0] - draws[2])[:, [3, 1]].abs().min().item() > 1e-6


def test_snapping_leaves_what_is_given_alone() -> None:
    model = random_chain()
    given = torch.tensor([[0.25]], dtype=torch.float64)
    x = model.sample(4, given=given, generator=seeded(), snap=lambda d, drawn, rows: drawn.round())
    assert bool((x[:, 0] == 0.25).all()) and torch.equal(x[:, 1:], x[:, 1:].round())


BAD: dict[str, tuple[Any, str]] = {
    "no values": (torch.zeros(3, 0), r"given with rows and columns, got shape \(3, 0\)"),
    "too many values": (torch.zeros(3, 5), "at most 4 given values for each row, got 5"),
    "too few rows": (torch.zeros(2, 1), "given values for one row or for 3, got 2 rows"),
    "too many rows": (torch.zeros(4, 1), "given values for one row or for 3, got 4 rows"),
    "NaN": (torch.tensor([[1.0, math.nan]]), "finite numbers in given, got nan in row 0, column 1"),
    "infinity": (torch.tensor([[math.inf]]), "finite numbers in given, got inf"),
    "no rows": (torch.zeros(3), r"given of shape \(rows, columns\), got shape \(3,\)"),
    "whole numbers": (torch.zeros(3, 1, dtype=torch.long), "given of dtype .* got int64"),
    "a list": ([[0.0]], "given as a numpy array or a torch tensor, got list"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_given_is_refused(name: str) -> None:
    given, message = BAD[name]
    with pytest.raises(InputError, match=f"expected {message}"):
        random_chain().sample_batches(3, given=given)
