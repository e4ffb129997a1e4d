"""log Z for training: its value, its gradient, and the memory that it takes."""

import math
from dataclasses import fields, replace

import pytest
import torch
from known import FAMILIES, GaussianMixture, mixture_family, random_conditionals
from torch import Tensor

from arcsm.conditional import Quadrature, TanhSum, normaliser
from arcsm.conditional.head import SLOPE_LIMIT
from arcsm.conditional.normaliser import log_normaliser
from arcsm.errors import InputError


@pytest.mark.parametrize("sigma", [0.01, 0.3])
@pytest.mark.parametrize("name", FAMILIES)
def test_known_mixtures(name: str, sigma: float) -> None:
    known = FAMILIES[name].at(sigma)
    found = log_normaliser(known, known.std.min().item())
    assert found.shape == (1,) and found.item() == pytest.approx(known.offset, abs=1e-4)


def test_two_narrow_peaks_far_apart() -> None:
    known = mixture_family((1e-3, -499.7, 0.01), (1 - 1e-3, 500.0, 0.01), offset=3.0).at(0.0)
    assert log_normaliser(known, 0.01).item() == pytest.approx(3.0, abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("scale", "sigma"), [(0.1, 0.3), (0.1, 0.01), (0.3, 0.1), (1.0, 0.3)])
def test_conditionals_of_a_head(scale: float, sigma: float, dtype: torch.dtype) -> None:
    """Against the certified quadrature: within 1e-3 nats, and what float32 energies leave."""
    conditional = random_conditionals(scale, sigma, count=40)
    single = TanhSum(*(getattr(conditional, f.name).to(dtype) for f in fields(conditional)))
    found = log_normaliser(single, sigma / SLOPE_LIMIT**0.5)
    expected = Quadrature(single).log_z
    assert found.dtype == dtype
    rounding = 16 * torch.finfo(dtype).eps * (1 + expected.abs())
    assert bool(((found.double() - expected).abs() <= 1e-3 + rounding).all())
    assert abs((found.double() - expected).mean().item()) < 1e-3 + rounding.mean().item()


PARTS = ("offset", "pull", "height", "slope", "centre")


def gradients(value: Tensor, parts: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(value.sum(), parts))


def test_gradients_are_those_of_a_dense_integral() -> None:
    """By autograd through 200,001 points of the trapezoidal rule, in float64."""
    made = random_conditionals(0.5, 0.1, count=4, seed=2)
    parts = [getattr(made, name).clone().requires_grad_() for name in PARTS]
    conditional = replace(made, **dict(zip(PARTS, parts, strict=True)))
    low, high = (end.detach()[:, None] for end in made.bounds())
    x = low + (high - low) * torch.linspace(0, 1, 200_001, dtype=torch.float64)
    dense = conditional.energy(x).logsumexp(-1) + ((high - low)[:, 0] / 200_000).log()
    found = log_normaliser(conditional, 0.1 / 2)
    torch.testing.assert_close(found, dense, rtol=0, atol=1e-5)
    for mine, known in zip(gradients(found, parts), gradients(dense, parts), strict=True):
        assert known.abs().max().item() > 1e-3
        torch.testing.assert_close(mine, known, rtol=1e-3, atol=1e-4)


def test_pieces_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = random_conditionals(0.5, 0.1, count=6, seed=2)
    parts = [getattr(made, name).clone().requires_grad_() for name in PARTS]
    conditional = replace(made, **dict(zip(PARTS, parts, strict=True)))
    whole = log_normaliser(conditional, 0.05)
    expected = gradients(whole, parts)
    most = []
    energy = TanhSum.energy

    def counted(self: TanhSum, x: Tensor) -> Tensor:
        most.append(len(x))
        return energy(self, x)

    monkeypatch.setattr(TanhSum, "energy", counted)
    monkeypatch.setattr(normaliser, "_PANELS_AT_ONCE", 7)
    found = log_normaliser(conditional, 0.05)
    torch.testing.assert_close(found, whole)
    for mine, known in zip(gradients(found, parts), expected, strict=True):
        torch.testing.assert_close(mine, known)
    assert max(most) <= 7


def test_entries_of_a_batch_do_not_mix() -> None:
    std = torch.logspace(-2, 1, 24, dtype=torch.float64).view(2, 3, 4)
    mean = torch.linspace(-30, 30, 24, dtype=torch.float64).view(4, 2, 3).permute(1, 2, 0)
    known = GaussianMixture(torch.full_like(std, 0.25), mean, std, offset=4.0)
    found = log_normaliser(known, 0.01)
    torch.testing.assert_close(found, torch.full((2, 3), 4.0).double(), rtol=0, atol=1e-4)


def test_bad_arguments() -> None:
    known = FAMILIES["normal"].at(0.1)
    for narrowest, tolerance in ((0.0, 1e-4), (math.nan, 1e-4), (0.1, 0.0), (0.1, 1.0)):
        with pytest.raises(InputError, match="narrowest and a tolerance"):
            log_normaliser(known, narrowest, tolerance=tolerance)


def test_kinks_inside_a_panel_are_found() -> None:
    """E = −x²/2v + |x − c|/2 or so: no peak is hidden by the kink, but the rules see it."""
    one = torch.ones(9, dtype=torch.float64)
    conditional = TanhSum(
        sigma=0.1 * one,
        offset=0 * one,
        pull=0 * one,
        height=0.05 * one[:, None],
        slope=5000 * one[:, None],
        centre=torch.linspace(-1, 1.1, 9, dtype=torch.float64)[:, None],
    )
    found = log_normaliser(conditional, 0.05, tolerance=1e-7)
    torch.testing.assert_close(found, Quadrature(conditional).log_z, rtol=0, atol=5e-6)
