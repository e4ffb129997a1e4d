import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from arcsm.conditional import Noise
from arcsm.data import TOYS
from arcsm.errors import InputError
from arcsm.model import ARCSM
from arcsm.tasks import denoise
from arcsm.train import TrainConfig, fit

SHORT = TrainConfig(steps=400, batch_size=256, warmup=30, ema=0.98, validation=0.0)


def standard_normal_model(shift: list[float], scale: list[float], noise: Noise) -> ARCSM:
    """Return a model of independent N(shift, scale²): its head's network is silent."""
    model = ARCSM.made(len(shift), hidden=(8,), noise=noise, seed=0)
    model.head.normal_at = None  # its limit would come with a wider pull
    with torch.no_grad():
        model.head.output.weight.zero_()
        model.head.output.bias.zero_()
        model.head.output.bias[-1] = -30.0  # the pull
        model.shift.copy_(torch.tensor(shift))
        model.scale.copy_(torch.tensor(scale))
    return model


@dataclass
class LinearCursor:
    """The context of a scalar is its conditional mean under a linear Gaussian chain."""

    slope: Tensor
    order: tuple[int, ...]
    x: Tensor
    position: int = 0

    def context(self) -> Tensor:
        return self.x @ self.slope[self.order[self.position]]

    def push(self, value: Tensor) -> None:
        self.x[:, self.order[self.position]] = value
        self.position += 1


class LinearGaussian:
    """x_d = Σ slope_de x_e + std·ε over the e before d in the order: every score is exact."""

    def __init__(self, slope: Tensor, std: float, order: tuple[int, ...], scale: Tensor):
        self.dims, self.slope, self.std = len(slope), slope, std
        self.shift, self.scale = torch.zeros(self.dims, dtype=slope.dtype), scale
        self.noise = Noise(100.0, 1e-3)
        self.context = SimpleNamespace(order=order, cursor=self._cursor)
        self.head = SimpleNamespace(family=self._family)

    def centre(self, x: Tensor, d: int) -> Tensor:
        return self.shift[d, None]

    def context_input(self, value: Tensor, d: int) -> Tensor:
        return (value - self.shift[d]) / self.scale[d]

    def _cursor(self, rows: int, condition: Any) -> LinearCursor:
        assert condition is None
        return LinearCursor(self.slope, self.context.order, self.slope.new_zeros(rows, self.dims))

    def _family(self, mean: Tensor) -> Any:
        def at(sigma: float) -> Any:
            variance = self.std**2 + sigma**2
            jet = lambda x: ((mean[:, None] - x) / variance, None)  # noqa: E731
            return SimpleNamespace(jet=jet)

        return SimpleNamespace(at=at)


@pytest.mark.parametrize("sigma", [0.05, 0.7, 5.0])
def test_posterior_mean_of_normal_columns_in_the_units_of_the_data(sigma: float) -> None:
    shift, scale = [3.0, -40.0, 0.0], [0.5, 20.0, 1.0]
    model = standard_normal_model(shift, scale, Noise(20.0, 0.001))
    noisy = torch.tensor(shift) + torch.tensor(scale) * torch.linspace(-3, 3, 12).view(4, 3)
    cleaned = denoise(model, noisy, sigma)
    m, v = torch.tensor(shift).double(), torch.tensor(scale).double().square()
    expected = m + v / (v + sigma**2) * (noisy.double() - m)
    torch.testing.assert_close(cleaned.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
def test_posterior_mean_of_correlated_columns(
    order: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where z is standard normal, x_d given x_<d is N(c_d, scale_d²), c_d linear in x_<d."""
    monkeypatch.setattr("arcsm.autoregressive._NARROW", math.inf)  # regress every column
    model = ARCSM.made(3, hidden=(8,), order=order, decorrelate=True, seed=0).double()
    model.head.normal_at = None
    g = torch.Generator().manual_seed(0)
    mixing = torch.randn(3, 3, generator=g, dtype=torch.float64)
    x = torch.randn(300, 3, generator=g, dtype=torch.float64) @ mixing + 5
    model.standardise(x)
    with torch.no_grad():
        model.head.output.weight.zero_()
        model.head.output.bias.zero_()
        model.head.output.bias[-1] = -30.0
    sigma = 2 * model.scale.min().item()
    noisy = x[:40] + sigma * torch.randn(40, 3, generator=g, dtype=torch.float64)
    cleaned = denoise(model, noisy, sigma)
    mean, slope = x.mean(0), model.regression
    assert slope is not None
    expected = mean.repeat(40, 1)
    for d in order:
        centre = mean[d] + (expected - mean) @ slope[d]  # of scalars cleaned already
        gain = model.scale[d] ** 2 / (model.scale[d] ** 2 + sigma**2)
        expected[:, d] = centre + gain * (noisy[:, d] - centre)
    torch.testing.assert_close(cleaned, expected, rtol=1e-6, atol=1e-6)
    before = (noisy - x[:40]).square().mean()
    assert (cleaned - x[:40]).square().mean() < before


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_each_scalar_sees_those_already_cleaned_and_no_others(order: tuple[int, ...]) -> None:
    slope = torch.zeros(3, 3, dtype=torch.float64)
    for place, d in enumerate(order):
        for e in order[:place]:
            slope[d, e] = 0.9 - 0.3 * place + 0.1 * e
    scale = torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)
    model = LinearGaussian(slope, 0.6, order, scale)
    noisy = torch.randn(50, 3, dtype=torch.float64)
    sigma = 0.4
    cleaned = denoise(model, noisy, sigma)  # type: ignore[arg-type]
    expected = torch.zeros_like(noisy)
    for d in order:
        level = sigma / scale[d]
        mean = (expected / scale) @ slope[d]  # scalars that come later are still 0, and unused
        gain = 0.6**2 / (0.6**2 + level**2)
        expected[:, d] = scale[d] * (mean + gain * (noisy[:, d] / scale[d] - mean))
    torch.testing.assert_close(cleaned, expected)
    # A later scalar changes nothing before it.
    other = noisy.clone()
    other[:, order[-1]] += 10
    moved = denoise(model, other, sigma) != cleaned  # type: ignore[arg-type]
    assert moved[:, order[-1]].all() and not moved[:, list(order[:-1])].any()


@pytest.fixture(scope="module")
def trained_gaussian() -> ARCSM:
    """A model trained on x₁ ~ N(1, 4), x₂ | x₁ ~ N(x₁, 0.25)."""
    g = torch.Generator().manual_seed(0)
    x1 = 1 + 2 * torch.randn(8000, generator=g)
    x2 = x1 + 0.5 * torch.randn(8000, generator=g)
    model = ARCSM.made(2, hidden=(32, 32), noise=Noise(3.0, 0.02), seed=0)
    fit(model, torch.stack([x1, x2], 1), SHORT)
    return model


def test_trained_model_comes_close_to_the_closed_form(trained_gaussian: ARCSM) -> None:
    g = torch.Generator().manual_seed(1)
    x1 = 1 + 2 * torch.randn(500, generator=g)
    clean = torch.stack([x1, x1 + 0.5 * torch.randn(500, generator=g)], 1)
    sigma = 0.8
    noisy = clean + sigma * torch.randn(clean.shape, generator=g)
    cleaned = denoise(trained_gaussian, noisy, sigma)
    first = 1 + 4 / (4 + sigma**2) * (noisy[:, 0] - 1)
    # The context is what the model itself made of x₁.
    second = cleaned[:, 0] + 0.25 / (0.25 + sigma**2) * (noisy[:, 1] - cleaned[:, 0])
    for d, exact in enumerate((first, second)):
        distance = (cleaned[:, d] - exact).square().mean().sqrt()
        correction = (noisy[:, d] - exact).square().mean().sqrt()
        assert distance < 0.15 * correction, f"column {d}"


def test_noise_below_sigma_min_uses_the_score_at_sigma_min(trained_gaussian: ARCSM) -> None:
    model = trained_gaussian
    noisy = torch.tensor([[1.0, 2.0], [-2.0, -1.5]])
    sigma = 0.1 * model.noise.sigma_min * model.scale.min().item()
    cleaned = denoise(model, noisy, sigma)
    with torch.no_grad():
        score, _ = model.conditional_scores(noisy)
    torch.testing.assert_close(cleaned - noisy, sigma**2 * score, rtol=0.5, atol=1e-6)
    assert (cleaned - noisy).abs().max() < sigma


def test_psnr_improves_on_a_toy() -> None:
    g = torch.Generator().manual_seed(0)
    toy = TOYS["eight-gaussians"]
    model = ARCSM.made(2, hidden=(32, 32), noise=Noise(3.0, 0.02), seed=0)
    fit(model, toy.sample(4000, generator=g), SHORT)
    clean = toy.sample(1000, generator=g)
    noisy = clean + 0.6 * torch.randn(clean.shape, generator=g)
    before = (noisy - clean).square().mean()
    after = (denoise(model, noisy, 0.6) - clean).square().mean()
    # The truth is eight blobs of standard deviation 0.35: the best possible factor is near 1/3.
    assert after < 0.7 * before


def test_condition_reaches_the_context() -> None:
    model = ARCSM.made(2, hidden=(8,), condition_dims=1, seed=0)
    noisy = torch.zeros(2, 2)
    cleaned = denoise(model, noisy, 0.5, condition=torch.tensor([[0.0], [3.0]]))
    assert not torch.allclose(cleaned[0], cleaned[1])
    with pytest.raises(InputError, match="condition"):
        denoise(model, noisy, 0.5)


@pytest.mark.parametrize("sigma", [0, -1.0, math.nan, math.inf, True, "1", None])
def test_refuses_a_sigma_that_is_none(sigma: Any) -> None:
    with pytest.raises(InputError, match="expected sigma as a positive finite number"):
        denoise(ARCSM.made(2, hidden=(8,), seed=0), torch.zeros(1, 2), sigma)


def test_refuses_more_noise_than_was_trained_on_and_says_where() -> None:
    model = standard_normal_model([0.0, 0.0], [4.0, 0.5], Noise(3.0, 0.01))
    denoise(model, torch.zeros(1, 2), 1.5)  # 3 times the scale of column 1: just within
    with pytest.raises(InputError, match=r"up to 1\.5 .*got 1\.6, .* column 1; .*sigma_max"):
        denoise(model, torch.zeros(1, 2), 1.6)


@pytest.mark.parametrize(
    "noisy", [np.zeros((2, 3)), np.zeros((2, 2), int), np.full((2, 2), np.nan), [[0.0, 0.0]]]
)
def test_refuses_bad_rows(noisy: Any) -> None:
    with pytest.raises(InputError, match="noisy"):
        denoise(ARCSM.made(2, hidden=(8,), seed=0), noisy, 0.5)


def test_leaves_input_and_model_alone() -> None:
    model = ARCSM.made(3, hidden=(8,), seed=0)
    noisy = torch.ones(4, 3)
    cleaned = denoise(model, noisy, 0.5)
    assert torch.equal(noisy, torch.ones(4, 3)) and not cleaned.requires_grad
