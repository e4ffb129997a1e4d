"""Compiled draws are those of the flow density; what has no fixed program is refused."""

import copy
import pickle

import pytest
import torch
from known import normal, seeded

import arcsm.conditional.fused
from arcsm.conditional import FlowDensity, Noise, TanhSumHead
from arcsm.conditional.fused import check_fusable, fused_quantile
from arcsm.errors import InputError

WIDE = Noise(3.0, 0.3)


def random_head(normal_at: float | None = 3.0, *, seed: int = 0) -> TanhSumHead:
    """Return a head in float64 whose conditionals are far from normal."""
    head = TanhSumHead(4, steps=3, normal_at=normal_at).double().requires_grad_(False)
    for place, parameter in enumerate(head.parameters()):
        parameter.add_(0.5 * normal(*parameter.shape, seed=seed + place))
    return head


def probabilities(rows: int) -> torch.Tensor:
    """Return probabilities, those of 0 and 1 among them."""
    found = torch.rand(rows, generator=seeded(7), dtype=torch.float64)
    if rows > 2:
        found[:2] = torch.tensor([0.0, 1.0])
    return found


def eager(head: TanhSumHead, noise: Noise, rows: int, steps: int | None = None) -> torch.Tensor:
    density = FlowDensity(head.family(normal(rows, 4, seed=rows)), noise, steps=steps)
    return density.quantile(probabilities(rows)[:, None])[:, 0]


@pytest.mark.parametrize("steps", [None, 11, 16, 17])
def test_the_program_is_that_of_the_flow_density(
    steps: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run as it is, before a compiler sees it: for numbers of steps that fill blocks and do not."""
    monkeypatch.setattr(arcsm.conditional.fused, "_compiled", lambda function: function)
    for normal_at in (3.0, 2.5):  # normal at σ_max, and above σ = 2.5 already
        head = random_head(normal_at)
        quantile = fused_quantile(head, WIDE, steps=steps)
        for rows in (1, 2, 9):
            found = quantile(normal(rows, 4, seed=rows), probabilities(rows))
            expected = eager(head, WIDE, rows, steps)
            assert found.shape == (rows,) and bool(found.isfinite().all())
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_the_program_is_that_of_single_precision_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """0 and 1 stand for the nearest numbers inside, which depend on the precision."""
    monkeypatch.setattr(arcsm.conditional.fused, "_compiled", lambda function: function)
    head = random_head().float()
    context, probability = normal(6, 4).float(), probabilities(6).float()
    found = fused_quantile(head, WIDE)(context, probability)
    expected = FlowDensity(head.family(context), WIDE).quantile(probability[:, None])[:, 0]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("normal_at", [None, 3.5])
def test_conditionals_that_have_to_be_integrated_are_refused(
    normal_at: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_asked_for(function: object) -> None:
        raise AssertionError("nothing is to be compiled")

    monkeypatch.setattr(arcsm.conditional.fused, "_compiled", not_asked_for)
    head = random_head(normal_at)
    for refuse in (fused_quantile, check_fusable):
        with pytest.raises(
            InputError, match=f"expected .*normal at σ_max .* normal_at={normal_at} and σ_max=3.0"
        ):
            refuse(head, WIDE)
    check_fusable(random_head(3.0), WIDE)


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(InputError, match=r"at least 11 flow steps .* got 10"):
        fused_quantile(random_head(), WIDE, steps=10)


def has_compiler() -> bool:
    """Look for a C++ compiler as torch does."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return False
    return True


@pytest.mark.slow
def test_compiled_draws_are_the_eager_ones() -> None:
    """One program for any number of rows, for changed weights and for other heads of its shape."""
    if not has_compiler():
        pytest.skip("no C++ compiler")
    head = random_head()
    quantile = fused_quantile(head, WIDE, steps=11)

    def compare(quantile: arcsm.conditional.fused.Quantile, head: TanhSumHead, rows: int) -> None:
        with torch.no_grad():
            found = quantile(normal(rows, 4, seed=rows), probabilities(rows))
        torch.testing.assert_close(found, eager(head, WIDE, rows, 11), rtol=1e-9, atol=1e-9)

    compare(quantile, head, 5)
    with torch.compiler.set_stance("fail_on_recompile"):
        for rows in (1, 2, 3, 4, 6, 7, 8, 9, 30):
            compare(quantile, head, rows)
        other = copy.deepcopy(pickle.loads(pickle.dumps(head)))
        for parameter in other.parameters():
            parameter.mul_(0.7)
        compare(fused_quantile(other, WIDE, steps=11), other, 5)
        compare(quantile, head, 5)
        for parameter in head.parameters():
            parameter.mul_(1.2)
        compare(quantile, head, 5)
