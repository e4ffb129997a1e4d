"""Ways to draw that there are not, each refused in a sentence of its own."""

import math
from typing import Any

import pytest
import torch
from chains import random_chain, uniforms
from known import seeded

from arcsm.conditional import Noise
from arcsm.errors import InputError

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "method": ({"method": "gibbs"}, r"a method among .*'langevin'\), got 'gibbs'; choose one"),
    "solver": ({"solver": "newton"}, r"a solver among .*, got 'newton'; choose one"),
    "solver of random steps": (
        {"method": "langevin", "solver": "jacobi"},
        "the sequential solver for Langevin dynamics, got 'jacobi'",
    ),
    "solver that compiles": (
        {"solver": "jacobi", "compile": True},
        "neither snap nor compile with the solver 'jacobi'",
    ),
    "solver that snaps": (
        {"solver": "gauss-seidel", "snap": lambda d, drawn, x: drawn},
        "neither snap nor compile with the solver 'gauss-seidel'",
    ),
    "block of none": ({"solver": "gauss-seidel", "block": 0}, "a positive whole block, got 0"),
    "block of a fraction": (
        {"solver": "gauss-seidel", "block": 1.5},
        "a positive whole block, got 1.5",
    ),
    "block of truth": (
        {"solver": "gauss-seidel", "block": True},
        "a positive whole block, got True",
    ),
    "block of jacobi": (
        {"solver": "jacobi", "block": 2},
        "a block with the solver gauss-seidel alone, got 2 with 'jacobi'",
    ),
    "block of the walk": (
        {"block": 2},
        "a block with .* gauss-seidel alone, got 2 with 'sequential'",
    ),
    "compiled quadrature": (
        {"compile": True, "method": "quadrature"},
        "the method flow with compile, got 'quadrature'",
    ),
    "compiled dynamics": (
        {"compile": True, "method": "langevin"},
        "the method flow with compile, got 'langevin'",
    ),
    "langevin steps": (
        {"method": "langevin", "langevin_steps": 0},
        "at least one Langevin step .* got steps=0",
    ),
    "langevin step size": (
        {"method": "langevin", "langevin_step_size": -1.0},
        ".* a positive step size, got .* step_size=-1.0",
    ),
    "langevin step without end": (
        {"method": "langevin", "langevin_step_size": math.inf},
        ".* a positive step size, got .* step_size=inf",
    ),
    "batch of none": ({"batch_size": 0}, "a positive whole batch_size, got 0"),
    "negative batch": ({"batch_size": -2}, "a positive whole batch_size, got -2"),
    "batch of a fraction": ({"batch_size": 2.0}, "a positive whole batch_size, got 2.0"),
    "batch of truth": ({"batch_size": True}, "a positive whole batch_size, got True"),
    "numbers below 0": ({"uniform": uniforms(3, 4) - 1}, "uniform numbers from 0 to 1, got others"),
    "numbers above 1": ({"uniform": uniforms(3, 4) + 1}, "uniform numbers from 0 to 1, got others"),
    "numbers that are none": (
        {"uniform": torch.full((3, 4), math.nan)},
        "finite numbers in uniform, got nan",
    ),
    "numbers for other columns": ({"uniform": uniforms(3, 3)}, "uniform with 4 columns, got 3"),
    "numbers for fewer rows": (
        {"uniform": uniforms(2, 4)},
        "uniform numbers for 3 rows, got 2 rows",
    ),
    "numbers for one row": ({"uniform": uniforms(1, 4)}, "uniform numbers for 3 rows, got 1 rows"),
    "numbers for more rows": (
        {"uniform": uniforms(4, 4)},
        "uniform numbers for 3 rows, got 4 rows",
    ),
    "numbers for dynamics": (
        {"uniform": uniforms(3, 4), "method": "langevin"},
        "a generator for Langevin dynamics, got uniform numbers",
    ),
    "unwanted condition": ({"condition": uniforms(3, 2)}, r"no condition, got shape \(3, 2\)"),
}


@pytest.mark.parametrize("name", BAD)
def test_ways_that_there_are_not_are_refused(name: str) -> None:
    options, message = BAD[name]
    with pytest.raises(InputError, match=f"^expected {message}"):
        random_chain().sample_batches(3, **options)


@pytest.mark.parametrize("rows", [0, -1, True, 2.5, "3", None])
def test_numbers_of_rows_are_positive_and_whole(rows: Any) -> None:
    for draw in (random_chain().sample, random_chain().sample_batches):
        with pytest.raises(InputError, match=f"whole number of samples, got {rows!r}"):
            draw(rows)


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (None, r"a condition of shape \(3, 2\), got none"),
        (uniforms(3, 1), r"a condition of shape \(3, 2\), got shape \(3, 1\)"),
        (uniforms(2, 2), r"a condition of shape \(3, 2\), got shape \(2, 2\)"),
        (torch.full((3, 2), math.nan), "finite numbers in condition, got nan"),
    ],
)
def test_conditions_have_to_fit(condition: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"^expected {message}"):
        random_chain(condition_dims=2).sample_batches(3, condition=condition)


def test_generators_are_on_the_device_of_the_model() -> None:
    model = random_chain().to("meta")
    with pytest.raises(InputError, match=r"a generator on the device of .*, meta, got .*cpu"):
        model.sample_batches(3, generator=seeded())


@pytest.mark.parametrize("solver", ["sequential", "jacobi"])
def test_one_noise_level_has_no_flow(solver: str) -> None:
    model = random_chain(noise=Noise(0.5, 0.5, levels=1))
    assert model.density == "quadrature"
    with pytest.raises(InputError, match="more than one noise level for the flow, got one"):
        model.sample_batches(3, method="flow", solver=solver)
    uniform = uniforms(3, 4)
    x = model.sample(3, solver=solver, uniform=uniform)
    found = model.conditional_cdf(x)
    torch.testing.assert_close(found, uniform, rtol=0, atol=3e-7)
    if solver == "sequential":
        assert model.sample(3, method="langevin").shape == (3, 4)


def test_too_few_steps_of_the_flow_are_refused() -> None:
    model = random_chain(flow_steps=11)
    assert model.sample(2).shape == (2, 4)
    model.flow_steps = 10
    with pytest.raises(InputError, match=r"at least 11 flow steps .* got 10"):
        model.sample_batches(2)
    assert model.sample(2, method="quadrature").shape == (2, 4)
