"""The stated numerical error of log q, against the same model in double precision."""

import copy

import pytest
import torch
from torch import Tensor

from arcsm.conditional import Noise
from arcsm.model import ARCSM
from arcsm.train import TrainConfig, fit


def rows(count: int, seed: int) -> Tensor:
    """A curved ridge, 0.05 wide, beside a lump of a tenth of the rows."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn((count, 3), generator=g)
    lump = torch.rand(count, generator=g) < 0.1
    x[:, 1] = x[:, 0].square() + 0.05 * x[:, 1]
    x[:, 2] = torch.where(lump, 4.0, x[:, 1].exp().clamp(max=3)) + 0.1 * x[:, 2]
    return x


@pytest.fixture(scope="module")
def model() -> ARCSM:
    made = ARCSM.made(3, hidden=(32, 32), seed=0, noise=Noise(3.0, 0.01))
    fit(made, rows(3000, 0), TrainConfig(steps=250, batch_size=256, validation=0.0))
    return made.requires_grad_(False)


@pytest.mark.parametrize("half", [None, 1e-4, 0.02, 0.2], ids=str)
@pytest.mark.parametrize("method", ["flow", "quadrature"])
def test_error_is_honest_and_not_timid(model: ARCSM, method: str, half: float | None) -> None:
    x = rows(150, 1)
    reach = None if half is None else half * model.scale
    found, error = model.log_prob(
        x,
        method=method,
        cells=None if reach is None else (x - reach, x + reach),
        return_error=True,
    )
    exact = copy.deepcopy(model).double()
    wide = x.double()
    cells = None if reach is None else ((x - reach).double(), (x + reach).double())
    off = (found.double() - exact.log_prob(wide, method=method, cells=cells)).abs()
    assert found.shape == error.shape == (150,) and found.dtype == error.dtype == torch.float32
    assert (off <= error).double().mean().item() >= 0.99
    assert off.max().item() > 1e-6
    assert error.median().item() <= 100 * off.median().item()
    _, double_error = exact.log_prob(wide, method=method, cells=cells, return_error=True)
    assert bool((double_error < error).all()) and double_error.max().item() < 1e-6


def test_error_of_a_row_is_the_sum_over_its_scalars(model: ARCSM) -> None:
    x = rows(5, 2)
    terms, errors = model.log_prob_terms(x)
    found, error = model.log_prob(x, return_error=True)
    torch.testing.assert_close(found, terms.sum(-1))
    torch.testing.assert_close(error, errors.sum(-1))
    assert torch.equal(model.log_prob(x), found)
    assert bool((errors > 0).all())


def coverage(model: ARCSM, x: Tensor, method: str) -> float:
    """Return the share of rows that are no farther from double precision than is stated."""
    found, error = model.log_prob(x, method=method, return_error=True)
    exact = copy.deepcopy(model).double().log_prob(x.double(), method=method)
    assert error.median().item() < 0.05  # or anything would be within it
    return ((found.double() - exact).abs() <= error).double().mean().item()


@pytest.mark.parametrize("offset", [1e4, 1e6])
@pytest.mark.parametrize("method", ["flow", "quadrature"])
def test_rows_far_from_zero_keep_their_digits(model: ARCSM, method: str, offset: float) -> None:
    """Float32 has steps of 0.06 at 1e6: rows of float64 must not be rounded to them."""
    far = copy.deepcopy(model)
    far.shift.add_(offset)
    x = rows(150, 1).double() + offset
    assert coverage(far, x, method) >= 0.99
    # A grid of its own: the same rows, in the units of the model, wherever 0 is.
    moved = (far.shift.double() - offset - model.shift.double()).to(x)
    near = model.log_prob(x - offset - moved, method=method)
    torch.testing.assert_close(far.log_prob(x, method=method), near, rtol=1e-3, atol=1e-3)
    cdf = far.conditional_cdf(x, method=method)
    expected = copy.deepcopy(far).double().conditional_cdf(x, method=method)
    torch.testing.assert_close(cdf.double(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("method", ["flow", "quadrature"])
def test_near_copies_keep_their_digits(method: str, dtype: torch.dtype) -> None:
    """What is left of a column beside its copy is a difference of nearly equal numbers."""
    g = torch.Generator().manual_seed(0)
    x = 100 + torch.randn((3000, 2), generator=g, dtype=torch.float64)
    x[:, 1] = x[:, 0] + 1e-3 * (x[:, 1] - 100)
    made = ARCSM.made(2, hidden=(16, 16), seed=0, decorrelate=True, noise=Noise(3.0, 0.05))
    fit(made, x, TrainConfig(steps=60, batch_size=256, validation=0.0))
    assert made.scale[1].item() < 0.01
    assert coverage(made, x[:200].to(dtype), method) >= 0.99
