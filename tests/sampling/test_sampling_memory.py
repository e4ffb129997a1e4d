"""Memory that does not suffice is halved upon, and numbers that are none are never returned."""

import math
from typing import Any

import pytest
import torch
from chains import KINDS, condition_for, random_chain, uniforms
from known import seeded
from torch import Tensor

import arcsm.sampling.batches
from arcsm.conditional import Noise
from arcsm.errors import ArcsmError, InputError
from arcsm.sampling.batches import check_draw
from arcsm.sampling.chain import Draw, Request, walk
from arcsm.sampling.fixed_point import solve_fixed_point

CPU_ALLOCATOR = RuntimeError(
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory:"
    " you tried to allocate 4000000000000000 bytes. Error code 12 (Cannot allocate memory)"
)
SHORTAGES = {"gpu": torch.OutOfMemoryError("CUDA out of memory"), "cpu": CPU_ALLOCATOR}
SHORTAGES["python"] = MemoryError()
every_shortage = pytest.mark.parametrize("shortage", SHORTAGES)


def limit_rows(monkeypatch: pytest.MonkeyPatch, most: int, error: Exception) -> list[int]:
    """Let draws of more rows fail; return the sizes of those that are tried."""
    tried: list[int] = []

    def limited(draw: Any) -> Any:
        def within(model: Any, request: Request, *rest: Any) -> Any:
            tried.append(request.rows)
            if request.rows > most:
                raise error
            return draw(model, request, *rest)

        return within

    monkeypatch.setattr(arcsm.sampling.batches, "walk", limited(walk))
    monkeypatch.setattr(arcsm.sampling.batches, "solve_fixed_point", limited(solve_fixed_point))
    return tried


@every_shortage
@pytest.mark.parametrize("solver", ["sequential", "jacobi"])
def test_batches_are_halved_until_they_fit(
    solver: str, shortage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_chain(**KINDS["everything"])
    options: Any = {
        "uniform": uniforms(11, 4),
        "condition": condition_for(model, 11),
        "given": 10 + uniforms(11, 1, seed=2),
        "solver": solver,
    }
    expected = model.sample(11, **options)
    tried = limit_rows(monkeypatch, 3, SHORTAGES[shortage])
    torch.testing.assert_close(model.sample(11, **options), expected, rtol=1e-9, atol=1e-9)
    assert tried == [11, 6, 3, 3, 5, 3, 2]


def test_halves_draw_from_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_chain()
    expected = model.sample(8, generator=seeded(4), batch_size=5)
    limit_rows(monkeypatch, 2, SHORTAGES["gpu"])
    found = model.sample(8, generator=seeded(4), batch_size=5)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@every_shortage
def test_memory_for_one_row_has_to_be_there(shortage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = limit_rows(monkeypatch, 0, SHORTAGES[shortage])
    with pytest.raises(ArcsmError, match="expected memory for one row at least, got none") as found:
        random_chain().sample(5)
    assert found.value.__cause__ is SHORTAGES[shortage]
    assert tried == [5, 3, 2, 1]


@pytest.mark.parametrize("error", [RuntimeError("shapes do not fit"), InputError("no"), KeyError()])
def test_other_errors_are_passed_on(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = limit_rows(monkeypatch, 0, error)
    with pytest.raises(type(error)) as found:
        random_chain().sample(5)
    assert found.value is error and tried == [5]


def test_what_is_compiled_takes_smaller_batches() -> None:
    """The coefficients of all steps of the flow are kept at once, and not a chunk of them."""
    model = random_chain()
    numbers = arcsm.sampling.batches._numbers_per_row
    plain, compiled = numbers(model, Draw()), numbers(model, Draw(compile=True))
    assert plain == numbers(model, Draw(compile=False)) == model.context.numbers_per_row
    # Heights, slopes and centres of 3 steps each, at σ_max and after each of 32 steps.
    assert compiled - plain > 33 * 3 * 3


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("solver", ["sequential", "jacobi", "gauss-seidel"])
@pytest.mark.parametrize("place", [0, 2])
def test_weights_that_are_no_numbers_are_an_error(place: int, solver: str, value: float) -> None:
    """As a training that failed leaves them: those of the context of one scalar."""
    model = random_chain(**KINDS["permuted"])
    model.context.output.bias.view(4, -1)[model.context.order[place]] = value
    for method in ("flow", "quadrature"):
        with pytest.raises(ArcsmError, match="finite"):
            model.sample(4, method=method, solver=solver)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("column", [0, 3])
def test_samples_that_are_no_numbers_are_never_returned(
    column: int, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoilt(*arguments: Any) -> Tensor:
        x = walk(*arguments)
        x[-1, column] = value
        return x

    monkeypatch.setattr(arcsm.sampling.batches, "walk", spoilt)
    message = f"expected finite samples, got others in column {column}: the flow left its range"
    batches = random_chain().sample_batches(4, batch_size=2)
    with pytest.raises(ArcsmError, match=message):
        next(batches)


def test_samples_beyond_the_range_of_single_precision_are_an_error() -> None:
    model = random_chain(dtype=torch.float32)
    model.scale[3] = 3e38
    with pytest.raises(ArcsmError, match="expected finite samples, got others in column 3"):
        model.sample(50, generator=seeded(1))


def test_langevin_dynamics_that_diverges_is_an_error() -> None:
    model = random_chain()
    with pytest.raises(ArcsmError, match=r"finite samples.*: the langevin left its range"):
        model.sample(4, method="langevin", langevin_step_size=1e3, langevin_steps=400)


def test_snapped_values_are_looked_at_too() -> None:
    def nowhere(d: int, drawn: Tensor, x: Tensor) -> Tensor:
        return drawn if d < 3 else drawn / 0

    with pytest.raises(ArcsmError, match="finite samples, got others in column 3"):
        random_chain().sample(3, snap=nowhere)


@pytest.mark.parametrize("noise", [Noise(0.5, 0.5, levels=1), Noise(3.0, 0.3, levels=1)])
def test_one_level_is_no_canonical_flow(noise: Noise) -> None:
    with pytest.raises(InputError, match='"quadrature" for a single noise level, got "flow"'):
        random_chain(noise=noise, density="flow")
    with pytest.raises(InputError, match="more than one noise level"):
        check_draw(random_chain(noise=noise), Draw())
