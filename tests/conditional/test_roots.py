"""Roots of increasing functions that are awkward for Newton's method."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from arcsm.conditional.roots import solve_increasing

Function = Callable[[Tensor], tuple[Tensor, Tensor]]

AWKWARD: dict[str, tuple[Function, Callable[[Tensor], Tensor]]] = {
    "cubic": (lambda t: (t**3, 3 * t**2), lambda v: v.sign() * v.abs() ** (1 / 3)),
    "saturated": (lambda t: (t.tanh(), 1 - t.tanh() ** 2), torch.atanh),
    "exponential": (lambda t: (t.exp(), t.exp()), torch.log),
    "steep": (
        lambda t: (t + 1000 * (100 * t).tanh(), 1 + 1e5 * (1 - (100 * t).tanh() ** 2)),
        lambda v: torch.where(v.abs() < 1e-300, 0 * v, v),  # only 0 is asked for
    ),
}


@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_functions(name: str) -> None:
    function, inverse = AWKWARD[name]
    values = {
        "cubic": [-8.0, 1e-9, 27.0],
        "saturated": [-0.999, 0.3, 0.9],
        "exponential": [1e-6, 1.0, 1e6],
        "steep": [0.0],
    }[name]
    target = torch.tensor(values, dtype=torch.float64)
    ends = torch.full_like(target, 40.0)
    for guess in (-39.0, 0.01, 40.0):
        root, slope = solve_increasing(
            function, target, -ends, ends, torch.full_like(target, guess)
        )
        torch.testing.assert_close(root, inverse(target), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(slope, function(root)[1])


def test_roots_found_early_stay_found() -> None:
    """Points of one batch settle at different times; none may be moved on again."""
    easy = torch.linspace(0.1, 0.9, 33, dtype=torch.float64)
    hard = torch.tensor([1 - 1e-15], dtype=torch.float64)
    target = torch.cat([easy, hard])
    low, high = torch.full_like(target, -1e6), torch.full_like(target, 1e6)
    root, _ = solve_increasing(
        lambda t: (torch.special.ndtr(t), (-t * t / 2).exp() / 2.5066282746310002),
        target, low, high, torch.zeros_like(target) + 3,
    )  # fmt: skip
    torch.testing.assert_close(root[:-1], torch.special.ndtri(easy), rtol=1e-13, atol=1e-13)


def test_a_root_at_an_end_and_a_flat_stretch() -> None:
    target = torch.tensor([0.0, 1.0], dtype=torch.float64)
    low, high = torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    root, _ = solve_increasing(lambda t: (t, torch.ones_like(t)), target, low, high, low + 0.3)
    torch.testing.assert_close(root, target)
    # Zero slope up to ½ makes Newton's step infinite, and 0/0 at the target 0.
    flat = torch.tensor([0.25, 0.0], dtype=torch.float64)
    root, _ = solve_increasing(
        lambda t: ((t - 0.5).clamp(min=0), (t > 0.5).double()), flat, low, high, low + 0.1
    )
    assert root[0].item() == pytest.approx(0.75, abs=1e-12)
    assert 0 <= root[1].item() <= 0.5
