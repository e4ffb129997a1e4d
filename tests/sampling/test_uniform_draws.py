"""Samples are functions of uniform numbers, row by row, whichever way they are batched."""

from typing import Any

import pytest
import torch
from chains import KINDS, condition_for, every_density, every_kind, random_chain, uniforms
from known import seeded
from torch import Tensor

import arcsm.sampling.batches
from arcsm.conditional import Noise
from arcsm.errors import InputError
from arcsm.model import ARCSM
from arcsm.sampling import Draw
from arcsm.sampling.chain import Request, walk


def some(condition: Tensor | None, rows: Any) -> Tensor | None:
    return None if condition is None else condition[rows]


@every_density
@every_kind
def test_the_cdf_gives_the_uniform_numbers_back(kind: str, density: str) -> None:
    model = random_chain(density=density, **KINDS[kind])
    uniform, condition = uniforms(9, 4), condition_for(model, 9)
    x = model.sample(9, uniform=uniform, condition=condition)
    found = model.conditional_cdf(x, condition=condition)
    torch.testing.assert_close(found, uniform, rtol=0, atol=3e-7)


@every_density
def test_methods_name_the_density_that_the_numbers_belong_to(density: str) -> None:
    model = random_chain(density="flow")
    uniform = uniforms(6, 4)
    x = model.sample(6, uniform=uniform, method=density)
    found = model.conditional_cdf(x, method=density)
    torch.testing.assert_close(found, uniform, rtol=0, atol=3e-7)
    other = {"flow": "quadrature", "quadrature": "flow"}[density]
    assert (model.conditional_cdf(x, method=other) - uniform).abs().max().item() > 1e-3


@every_density
def test_a_generator_stands_for_the_numbers_drawn_from_it(density: str) -> None:
    model = random_chain(density=density)
    drawn = model.sample(7, generator=seeded(3))
    uniform = torch.rand(7, 4, generator=seeded(3), dtype=torch.float64)
    assert torch.equal(drawn, model.sample(7, uniform=uniform))


def test_without_a_generator_the_global_one_is_used() -> None:
    model = random_chain()
    torch.manual_seed(3)
    drawn = model.sample(7)
    assert torch.equal(drawn, model.sample(7, generator=seeded(3)))


@every_density
@every_kind
def test_rows_do_not_depend_on_their_company(kind: str, density: str) -> None:
    model = random_chain(density=density, **KINDS[kind])
    uniform, condition = uniforms(9, 4), condition_for(model, 9)
    whole = model.sample(9, uniform=uniform, condition=condition)
    for rows in ([4], [8, 2, 5], list(range(8, -1, -1))):
        x = model.sample(len(rows), uniform=uniform[rows], condition=some(condition, rows))
        torch.testing.assert_close(x, whole[rows], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("solver", ["sequential", "jacobi", "gauss-seidel"])
@every_density
def test_any_batch_size_gives_the_same_rows(density: str, solver: str) -> None:
    model = random_chain(density=density, **KINDS["everything"])
    uniform, condition = uniforms(7, 4), condition_for(model, 7)
    first = model.context.order[0]
    given = model.shift[first] + torch.linspace(-1, 1, 7, dtype=torch.float64)[:, None]
    options: Any = {"uniform": uniform, "condition": condition, "given": given, "solver": solver}
    whole = model.sample(7, **options)
    for batch_size in (1, 2, 3, 7, 100):
        x = model.sample(7, batch_size=batch_size, **options)
        torch.testing.assert_close(x, whole, rtol=1e-9, atol=1e-9)


@every_density
def test_probabilities_of_0_and_1_have_finite_quantiles(density: str) -> None:
    model = random_chain(density=density)
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    uniform = torch.cartesian_prod(ends, ends, ends, ends)
    x = model.sample(16, uniform=uniform)
    torch.testing.assert_close(model.conditional_cdf(x), uniform, rtol=0, atol=1e-6)


def test_numbers_of_single_precision_and_of_numpy_are_numbers_too() -> None:
    model = random_chain()
    uniform = uniforms(5, 4).float()
    expected = model.sample(5, uniform=uniform.double())
    assert torch.equal(model.sample(5, uniform=uniform), expected)
    assert torch.equal(model.sample(5, uniform=uniform.double().numpy()), expected)
    conditioned = random_chain(condition_dims=2)
    condition = condition_for(conditioned, 5).float()
    assert torch.equal(
        conditioned.sample(5, uniform=uniform, condition=condition.numpy()),
        conditioned.sample(5, uniform=uniform, condition=condition.double()),
    )


# Streams of batches.


@pytest.mark.parametrize(
    ("rows", "batch_size", "sizes"),
    [(7, 3, [3, 3, 1]), (6, 3, [3, 3]), (2, 3, [2]), (3, 1, [1, 1, 1]), (5, None, [5])],
)
def test_batches_have_the_size_asked_for(
    rows: int, batch_size: int | None, sizes: list[int]
) -> None:
    batches = random_chain().sample_batches(rows, batch_size=batch_size, generator=seeded())
    assert [tuple(batch.shape) for batch in batches] == [(size, 4) for size in sizes]


def test_batches_are_as_large_as_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_chain()
    monkeypatch.setattr(arcsm.sampling.batches, "_NUMBERS", 2 * model.context.numbers_per_row + 1)
    assert [len(batch) for batch in model.sample_batches(5)] == [2, 2, 1]
    monkeypatch.setattr(arcsm.sampling.batches, "_NUMBERS", 1)
    assert [len(batch) for batch in model.sample_batches(2)] == [1, 1]


@pytest.mark.parametrize("method", ["flow", "quadrature", "langevin"])
def test_batches_together_are_the_sample(method: str) -> None:
    model = random_chain(condition_dims=2)
    options: Any = {"condition": condition_for(model, 7), "batch_size": 3, "method": method}
    whole = model.sample(7, generator=seeded(2), **options)
    batches = list(model.sample_batches(7, generator=seeded(2), **options))
    assert torch.equal(torch.cat(batches), whole)
    again = model.sample(7, generator=seeded(2), **options)
    assert torch.equal(again, whole)
    other = model.sample(7, generator=seeded(3), **options)
    assert not torch.equal(other, whole)
    assert not torch.equal(whole[:3], whole[3:6])  # each batch has its own noise


def test_nothing_is_drawn_before_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def counted(model: ARCSM, request: Request, how: Draw, generator: Any) -> Tensor:
        sizes.append(request.rows)
        return walk(model, request, how, generator)

    monkeypatch.setattr(arcsm.sampling.batches, "walk", counted)
    model, generator = random_chain(), seeded(1)
    before = generator.get_state()
    batches = model.sample_batches(10**9, batch_size=2, generator=generator)
    assert sizes == [] and torch.equal(generator.get_state(), before)
    first = next(batches)
    assert sizes == [2]
    expected = torch.rand(2, 4, generator=seeded(1), dtype=torch.float64)
    torch.testing.assert_close(model.conditional_cdf(first), expected, rtol=0, atol=3e-7)
    next(batches)
    assert sizes == [2, 2]


def test_errors_are_raised_at_the_call_and_not_at_the_first_batch() -> None:
    model = random_chain()
    bad: list[dict[str, Any]] = [
        {"method": "gibbs"},
        {"uniform": uniforms(4, 4)},
        {"condition": uniforms(3, 4)},
        {"given": uniforms(2, 1)},
        {"batch_size": 0},
        {"method": "langevin", "langevin_steps": 0},
        {"compile": True, "method": "quadrature"},
    ]
    for options in bad:
        with pytest.raises(InputError):
            model.sample_batches(3, **options)
    with pytest.raises(InputError, match="at least 11 flow steps"):
        random_chain(flow_steps=10).sample_batches(3)
    narrow = random_chain(noise=Noise(1.5, 0.3))
    with pytest.raises(InputError, match="normal at σ_max to compile"):
        narrow.sample_batches(3, compile=True)


def test_gradients_are_not_kept_and_the_mode_is_left_alone() -> None:
    model = random_chain().requires_grad_(True)
    batches = model.sample_batches(4, batch_size=2, generator=seeded())
    first = next(batches)
    assert torch.is_grad_enabled()  # between batches too
    assert not first.requires_grad and not next(batches).requires_grad
    for options in ({"solver": "jacobi"}, {"method": "quadrature"}, {"method": "langevin"}):
        assert not model.sample(2, **options).requires_grad
