"""On a GPU: the kernels of the flow carry points to where the eager flow carries them."""

import pytest
import torch
from known import normal
from torch import Tensor

import arcsm.conditional.flow
from arcsm.conditional import FlowDensity, Noise, TanhSumHead
from arcsm.conditional.flow import flow_down, flow_levels, flow_up

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

NOISE = Noise(4.0, 0.02)
LEVELS = flow_levels(NOISE)


def bumpy_head(dtype: torch.dtype, spread: float = 1.0) -> TanhSumHead:
    """Return a head of several modes, narrow and wide."""
    head = TanhSumHead(8, steps=7, depth=2, normal_at=4.0)
    with torch.no_grad():
        for place, parameter in enumerate(head.parameters()):
            parameter += spread * normal(*parameter.shape, seed=place).to(parameter)
    return head.to(dtype).requires_grad_(False)


# With steeper steps single precision knows no slope: a rounding of y moves it.
CASES = [
    (torch.float32, 0.3),
    (torch.float32, 1.0),
    (torch.float64, 0.3),
    (torch.float64, 1.0),
    (torch.float64, 3.0),
]


@pytest.mark.parametrize(("dtype", "spread"), CASES, ids=str)
@pytest.mark.parametrize("at_once", [2**28, 20_000])
@torch.no_grad()
def test_kernels_carry_points_as_the_eager_flow_does(
    dtype: torch.dtype, spread: float, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arcsm.conditional.flow, "_NUMBERS_ON_GPU", at_once)
    head = bumpy_head(dtype, spread)
    context, x = normal(9, 3, 8, seed=50).to(dtype), 2 * normal(9, 3, 5, seed=51).to(dtype)
    y, log_slope = flow_up(head.family(context), x, LEVELS)
    on_gpu = head.cuda().family(context.cuda())
    found, found_slope = flow_up(on_gpu, x.cuda(), LEVELS)
    tolerance = 1e-3 if dtype == torch.float32 else 1e-9
    close = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(found.cpu(), y, **close)
    torch.testing.assert_close(found_slope.cpu(), log_slope, **close)
    # On the way back what is rounded off y grows by dx/dy.
    back = flow_down(on_gpu, found, LEVELS).cpu()
    assert ((back - x).abs() <= tolerance * (1 + x.abs()) * (1 + log_slope.exp())).all()


@torch.no_grad()
def test_densities_are_those_of_the_cpu() -> None:
    head = bumpy_head(torch.float64)
    context, x = normal(40, 8, seed=52), 2 * normal(40, 6, seed=53)

    def of(device: str) -> list[Tensor]:
        density = FlowDensity(head.to(device).family(context.to(device)), NOISE)
        at = x.to(device)
        return [
            density.log_prob(at),
            density.cdf(at),
            density.log_mass(at, at + 0.3),
            density.cdf(density.quantile(density.cdf(at))),
        ]

    for here, there in zip(of("cpu"), of("cuda"), strict=True):
        torch.testing.assert_close(there.cpu(), here, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_no_points_are_carried_nowhere() -> None:
    head = bumpy_head(torch.float32).cuda()
    for rows, points in ((0, 3), (2, 0)):
        family, x = head.family(torch.zeros(rows, 8).cuda()), torch.zeros(rows, points).cuda()
        assert flow_up(family, x, LEVELS)[0].shape == flow_down(family, x, LEVELS).shape == x.shape


def test_gradients_go_through_the_eager_flow() -> None:
    head = bumpy_head(torch.float64).cuda()
    context = normal(4, 8, seed=54).cuda().requires_grad_()
    x = normal(4, 3, seed=55).cuda()
    (pull,) = torch.autograd.grad(
        FlowDensity(head.family(context), NOISE).log_prob(x).sum(), context
    )
    assert pull.isfinite().all() and bool((pull != 0).any())
