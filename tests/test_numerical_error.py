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
