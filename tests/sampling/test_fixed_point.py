"""Passes over all scalars at once end at what the walk along the order draws."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from chains import KINDS, condition_for, every_density, every_kind, random_chain, uniforms
from torch import Tensor

import arcsm.sampling.fixed_point
from arcsm.model import ARCSM
from arcsm.sampling import Draw, solve_fixed_point
from arcsm.sampling.chain import Request
from arcsm.sampling.fixed_point import FixedPoint

LONG = 10


def long_chain(strength: float, **options: Any) -> ARCSM:
    return random_chain(LONG, strength=strength, **options)


def passes(model: ARCSM, uniform: Tensor, **options: Any) -> int:
    block = options.pop("block", None)
    request = Request(len(uniform), uniform, options.pop("given", None), None)
    how = Draw(solver="gauss-seidel" if block else "jacobi", block=block, **options)
    return solve_fixed_point(model, request, how).passes


@pytest.mark.parametrize("block", [None, 1, 2, 4, 50], ids=str)
@every_density
@every_kind
def test_solvers_end_where_the_walk_does(kind: str, density: str, block: int | None) -> None:
    model = random_chain(density=density, **KINDS[kind])
    uniform, condition = uniforms(8, 4), condition_for(model, 8)
    expected = model.sample(8, uniform=uniform, condition=condition)
    solver = "jacobi" if block is None else "gauss-seidel"
    x = model.sample(8, uniform=uniform, condition=condition, solver=solver, block=block)
    torch.testing.assert_close(x, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("block", [None, 1, 3], ids=str)
@pytest.mark.parametrize("known", [1, 3, 4])
@every_density
def test_solvers_keep_what_is_given(density: str, known: int, block: int | None) -> None:
    model = random_chain(density=density, **KINDS["everything"])
    uniform, condition = uniforms(6, 4), condition_for(model, 6)
    first = list(model.context.order[:known])
    given = model.shift[first] + uniforms(6, known, seed=2)
    options: Any = {"uniform": uniform, "condition": condition, "given": given}
    solver = "jacobi" if block is None else "gauss-seidel"
    x = model.sample(6, solver=solver, block=block, **options)
    assert torch.equal(x[:, first], given)
    torch.testing.assert_close(x, model.sample(6, **options), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("block", [None, 1, 3, 7], ids=str)
@pytest.mark.parametrize("strength", [0.02, 0.4, 3.0])
@pytest.mark.parametrize("order", ["natural", "random"])
def test_long_chains_are_solved_exactly(order: str, strength: float, block: int | None) -> None:
    """Some rows settle long before others, and leave the batch."""
    model = long_chain(strength, order=order)
    uniform = uniforms(30, LONG)
    solver = "jacobi" if block is None else "gauss-seidel"
    x = model.sample(30, uniform=uniform, solver=solver, block=block)
    torch.testing.assert_close(x, model.sample(30, uniform=uniform), rtol=1e-9, atol=1e-9)


@every_density
def test_passes_grow_with_the_dependence(density: str) -> None:
    """From two, of scalars that are independent, to one for each scalar."""
    uniform = uniforms(20, LONG)
    found = [
        passes(long_chain(strength), uniform, method=density) for strength in (0.0, 1e-4, 0.4, 3.0)
    ]
    # The second pass of the first finds nothing changed; of the last, all change until the end.
    assert found[0] == 2
    assert found[1] <= LONG / 2
    assert found[0] <= found[1] < found[2] <= found[3]
    assert found[3] in (LONG - 1, LONG)


@pytest.mark.parametrize("strength", [0.0, 0.4, 3.0])
@pytest.mark.parametrize("known", [0, 4, 9, 10])
@pytest.mark.parametrize("block", [None, 1, 3, 64], ids=str)
def test_each_pass_settles_one_scalar_at_least(
    strength: float, known: int, block: int | None
) -> None:
    model = long_chain(strength)
    given = model.shift[:known].expand(5, -1) if known else None
    found = passes(model, uniforms(5, LONG), block=block, given=given)
    unknown = LONG - known
    assert min(1, unknown) <= found <= unknown
    if block == 1:
        assert found == unknown


def test_two_passes_would_not_do_where_the_second_moves_a_scalar() -> None:
    """One scalar decides on the other: x_2 is right after the second pass, and not the first."""
    model = random_chain(2)
    assert passes(model, uniforms(12, 2)) == 2
    assert passes(random_chain(1), uniforms(12, 1)) == 1


def test_conditions_stay_with_their_rows() -> None:
    """While rows leave the batch, those that are left keep what they are given."""
    model = long_chain(0.4, condition_dims=2)
    uniform, condition = uniforms(40, LONG), condition_for(model, 40)
    expected = model.sample(40, uniform=uniform, condition=condition)
    x = model.sample(40, uniform=uniform, condition=condition, solver="jacobi")
    torch.testing.assert_close(x, expected, rtol=1e-9, atol=1e-9)


class Ramps:
    """A chain to be followed by hand: x_d = u_d + max(x_{d−1} − 1/2, 0), without the deaf ones.

    Of a row of numbers up to 1/2 no scalar moves another; of a row of ones each moves the next.
    """

    def __init__(self, dims: int, deaf: tuple[int, ...] = ()):
        self.dims, self.deaf = dims, list(deaf)
        self.shift, self.scale = torch.zeros(dims), torch.ones(dims)
        self.head = SimpleNamespace(family=lambda contexts: contexts)
        self.sizes: list[int] = []

    @property
    def context(self) -> Any:
        order = tuple(range(self.dims))
        return _Callable(self._contexts, order=order)

    def _contexts(self, x: Tensor, condition: None) -> Tensor:
        self.sizes.append(len(x))
        before = torch.nn.functional.pad(x[:, :-1], (1, 0))
        before[:, self.deaf] = 0
        return before[..., None]

    def centres(self, x: Tensor) -> Tensor:
        return self.shift[None]

    def context_inputs(self, x: Tensor) -> Tensor:
        return x

    def conditionals_at_once(self, method: str) -> int:
        return 1000

    def density_of(self, contexts: Tensor, method: str) -> Any:
        return SimpleNamespace(quantile=lambda u: u + (contexts - 0.5).clamp(min=0))

    def solved(self, uniform: Tensor, block: int | None = None) -> FixedPoint:
        self.sizes.clear()
        how = Draw(solver="jacobi" if block is None else "gauss-seidel", block=block)
        chain: Any = self
        return solve_fixed_point(chain, Request(len(uniform), uniform, None, None), how)


class _Callable:
    def __init__(self, function: Callable[..., Tensor], order: tuple[int, ...]):
        self._function, self.order = function, order

    def __call__(self, *arguments: Any) -> Tensor:
        return self._function(*arguments)


def test_rows_that_settled_are_not_computed_again() -> None:
    uniform = torch.full((4, 6), 0.25)
    uniform[2] = 1.0
    expected = uniform.clone()
    expected[2] = torch.tensor([1.0, 1.5, 2.0, 2.5, 3.0, 3.5])
    ramps = Ramps(6)
    found = ramps.solved(uniform)
    assert torch.equal(found.x, expected)
    assert found.passes == 6
    assert ramps.sizes == [4, 4, 1, 1, 1, 1]
    assert ramps.solved(uniform[:2]).passes == 2
    # Three scalars at a time: two passes for each block, or as many as it has scalars.
    found = ramps.solved(uniform[2:3], block=3)
    assert torch.equal(found.x, expected[2:3]) and found.passes == 6
    found = ramps.solved(uniform[:2], block=3)
    assert torch.equal(found.x, expected[:2]) and found.passes == 4


def test_scalars_that_settled_early_do_not_vouch_for_others() -> None:
    """The fourth and the fifth hear nothing and never change; the third needs three passes."""
    ramps = Ramps(6, deaf=(3, 4))
    found = ramps.solved(torch.ones(1, 6))
    assert found.x.tolist() == [[1.0, 1.5, 2.0, 1.0, 1.0, 1.5]]
    # The fourth pass finds the third as it was.
    assert found.passes == 4


def test_what_has_settled_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes may round differently; values that have settled, and were built on, do not follow."""
    model, uniform = random_chain(6), uniforms(8, 6)
    exact = arcsm.sampling.fixed_point.quantiles
    passes: list[Tensor] = []

    def rounded_anew(*arguments: Any) -> Tensor:
        found = exact(*arguments) + 1e-9 * len(passes)
        passes.append(found)
        return found

    monkeypatch.setattr(arcsm.sampling.fixed_point, "quantiles", rounded_anew)
    found = solve_fixed_point(model, Request(8, uniform, None, None), Draw(solver="jacobi"))
    assert found.passes == len(passes) == 6  # each settles one, and nothing else is ever the same
    first = passes[0].view(8, 6)[:, 0] * model.scale[0] + model.shift[0]
    assert torch.equal(found.x[:, 0], first)
