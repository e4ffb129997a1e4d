"""Standardised units: a triangular map along the order, by regression where that is asked for."""

import math
from typing import Any

import pytest
import torch
from known import normal, seeded
from sklearn.covariance import ledoit_wolf
from torch import Tensor

import arcsm.autoregressive
from arcsm.autoregressive import _regression
from arcsm.errors import InputError
from arcsm.model import ARCSM

F64 = torch.float64
ORDERS: dict[str, Any] = {"natural": "natural", "mixed": [2, 0, 3, 1]}
every_order = pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)


@pytest.fixture
def every_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regress every column on those before it, not only the ones that these nearly determine."""
    monkeypatch.setattr(arcsm.autoregressive, "_NARROW", math.inf)


def model_of(order: Any = "natural", dims: int = 4, **options: Any) -> ARCSM:
    model = ARCSM.made(dims, hidden=(8,), order=order, decorrelate=True, seed=0, **options)
    return model.double().requires_grad_(False)


def chain(rows: int, order: tuple[int, ...], seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows of x_d = 10 d + Σ_{e<d} slope_de (x_e − 10 e) + std_d ε, slopes and stds."""
    dims = len(order)
    slope, std = torch.zeros(dims, dims, dtype=F64), 0.5 + torch.arange(dims, dtype=F64) / 4
    g = seeded(50 + seed)
    epsilon = torch.randn((rows, dims), generator=g, dtype=F64)
    x = torch.zeros(rows, dims, dtype=F64)
    for place, d in enumerate(order):
        before = list(order[:place])
        slope[d, before] = 0.6 * torch.randn(place, generator=g, dtype=F64)
        x[:, d] = x @ slope[d] + std[d] * epsilon[:, d]
    return x + 10 * torch.arange(dims), slope, std


@pytest.mark.usefixtures("every_column")
@every_order
def test_units_are_a_triangular_map_along_the_order(order: Any) -> None:
    """∂z/∂x is lower triangular in the order, with 1/scale on its diagonal."""
    model = model_of(order)
    x, _, _ = chain(200, model.context.order)
    model.standardise(x)
    place = list(model.context.order)
    for row in x[:3]:
        jacobian = torch.autograd.functional.jacobian(lambda v: model.to_standard(v[None])[0], row)
        ordered = jacobian[place][:, place]
        assert bool((ordered.triu(1) == 0).all())
        assert bool((ordered.tril(-1)[ordered.new_ones(4, 4).tril(-1) > 0] != 0).all())
        torch.testing.assert_close(jacobian.diagonal(), 1 / model.scale)


@pytest.mark.usefixtures("every_column")
@every_order
def test_one_scalar_at_a_time_is_the_whole_row(order: Any) -> None:
    model = model_of(order)
    x, _, _ = chain(200, model.context.order)
    model.standardise(x)
    z = model.to_standard(x)
    inputs = model.context_inputs(x)
    known = torch.zeros_like(x)  # what comes later is not known yet
    for d in model.context.order:
        centre = model.centre(known, d)
        torch.testing.assert_close((x[:, d] - centre) / model.scale[d], z[:, d])
        torch.testing.assert_close(centre, model.centres(x)[:, d])
        torch.testing.assert_close(model.context_input(x[:, d], d), inputs[:, d])
        known[:, d] = x[:, d]


@pytest.mark.usefixtures("every_column")
@every_order
def test_residuals_of_a_gaussian_chain_are_white(order: Any) -> None:
    """Up to the shrinkage, which is of the order 1/rows, in the rows that it was made of."""
    model = model_of(order)
    x, slope, std = chain(20_000, model.context.order)
    model.standardise(x)
    z = model.to_standard(x)
    assert z.mean(0).abs().max().item() < 1e-9
    torch.testing.assert_close(z.T @ z / len(z), torch.eye(4, dtype=F64), rtol=0, atol=2e-3)
    torch.testing.assert_close(z.square().mean(0), torch.ones(4, dtype=F64))
    # And the regression is that of the chain: coefficients to some std/(√rows · spread).
    torch.testing.assert_close(model.regression, slope, rtol=0, atol=0.03)
    torch.testing.assert_close(model.scale, std, rtol=0.03, atol=0)
    inputs = model.context_inputs(x)
    torch.testing.assert_close(inputs.mean(0), torch.zeros(4, dtype=F64), rtol=0, atol=1e-9)
    torch.testing.assert_close(inputs.std(0, correction=0), torch.ones(4, dtype=F64))


@pytest.mark.usefixtures("every_column")
@every_order
def test_many_rows_are_regressed_by_least_squares(order: Any) -> None:
    model = model_of(order)
    x, _, _ = chain(50_000, model.context.order)
    model.standardise(x)
    centred = x - x.mean(0)
    for place, d in enumerate(model.context.order):
        before = list(model.context.order[:place])
        assert not model.regression[d, [e for e in range(4) if e not in before]].any()
        if before:
            fitted = torch.linalg.lstsq(centred[:, before], centred[:, d : d + 1]).solution[:, 0]
            torch.testing.assert_close(model.regression[d, before], fitted, rtol=2e-3, atol=2e-3)
            left = (centred[:, d] - centred[:, before] @ fitted).square().mean().sqrt()
            torch.testing.assert_close(model.scale[d], left, rtol=1e-4, atol=0)


@pytest.mark.parametrize("dims", [2, 4, 30])
@pytest.mark.parametrize("rows", [3, 12, 100, 2000])
def test_covariance_is_shrunk_as_by_ledoit_and_wolf(rows: int, dims: int) -> None:
    """The regression is that of the covariance which sklearn estimates."""
    mixing = torch.eye(dims, dtype=F64) + 0.4 * normal(dims, dims, seed=dims)
    x = normal(rows, dims, seed=rows) @ mixing
    z = (x - x.mean(0)) / x.std(0, correction=0)
    covariance, shrinkage = ledoit_wolf(z.numpy(), assume_centered=True)
    assert 0 < shrinkage <= 1
    order = tuple(torch.randperm(dims, generator=seeded(dims)).tolist())
    found = _regression(z, torch.full((rows,), 1 / rows, dtype=F64), order)
    target = torch.from_numpy(covariance)
    expected = torch.zeros(dims, dims, dtype=F64)
    for place, d in enumerate(order):
        before = list(order[:place])
        if before:
            expected[d, before] = torch.linalg.solve(target[before][:, before], target[before, d])
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.usefixtures("every_column")
def test_few_rows_are_not_fitted_exactly() -> None:
    """Of ten rows in thirty columns a plain regression would leave nothing."""
    model = model_of(dims=30)
    x = normal(10, 30)
    model.standardise(x)
    deviation = x.std(0, correction=0)
    assert (model.scale / deviation).min().item() > 0.2
    assert (model.scale / deviation).max().item() <= 1 + 1e-9


@pytest.mark.usefixtures("every_column")
def test_weights_are_repeated_rows_up_to_the_shrinkage() -> None:
    x, _, _ = chain(20_000, (0, 1, 2, 3))
    x[:, 1:] += 0.3 * x[:, :1].square()
    weight = torch.randint(1, 4, (20_000,), generator=seeded(1))
    weight[x[:, 0] > 0] *= 3  # where the slopes are others: they matter
    weighted, repeated, plain, scaled = (model_of() for _ in range(4))
    weighted.standardise(x, weight.double())
    repeated.standardise(x.repeat_interleave(weight, 0))
    plain.standardise(x)
    scaled.standardise(x, 17.5 * weight.double())
    for name in ("shift", "deviation"):
        torch.testing.assert_close(getattr(weighted, name), getattr(repeated, name))
    for name in ("regression", "scale"):
        a, b, c = (getattr(model, name) for model in (weighted, repeated, plain))
        torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-3)
        assert (a - c).abs().max().item() > 5 * (a - b).abs().max().item()
    torch.testing.assert_close(scaled.state_dict(), weighted.state_dict())


@pytest.mark.usefixtures("every_column")
def test_equal_weights_are_none() -> None:
    x, _, _ = chain(50, (0, 1, 2, 3))
    one, other = model_of(), model_of()
    one.standardise(x)
    other.standardise(x, torch.full((50,), 3.0))
    torch.testing.assert_close(one.state_dict(), other.state_dict())


@pytest.mark.usefixtures("every_column")
def test_changing_the_units_of_the_data_changes_nothing_else() -> None:
    x, _, _ = chain(100, (0, 1, 2, 3))
    factor, shift = torch.tensor([1e-3, 7.0, -2.0, 1e4], dtype=F64), torch.arange(4) - 2.5
    one, other = model_of(), model_of()
    one.standardise(x)
    other.standardise(x * factor + shift)
    z = other.to_standard(x * factor + shift)
    torch.testing.assert_close(z, one.to_standard(x) * factor.sign())


@pytest.mark.parametrize("noise", [0.0, 1e-7, 1e-5])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_columns_that_agree_to_many_digits_stay_finite(dtype: torch.dtype, noise: float) -> None:
    """Their residuals are taken to be 1e-4 of the column at least.

    The columns are coins, whose products are all alike: the covariance is known from a few rows,
    and hardly shrunk.
    """
    model = model_of(dims=3).to(dtype)
    first = 1 - 2 * (torch.arange(500, dtype=F64) % 2)[:, None]
    x = torch.cat([first, 3 * first + 5, -first], 1) + noise * normal(500, 3, seed=1)
    x = x.to(dtype)
    model.standardise(x)
    assert bool(model.regression.isfinite().all())
    smallest = torch.tensor([3e-4, 1e-4], dtype=dtype)
    torch.testing.assert_close(model.scale[1:], smallest, rtol=1e-3, atol=0)
    assert model.to_standard(x).abs().max().item() < 3
    assert bool(model.log_prob(x[:20]).isfinite().all())
    assert bool(model.sample(20, generator=seeded()).isfinite().all())


@pytest.mark.usefixtures("every_column")
@pytest.mark.parametrize("rows", [3, 50, 2000])
def test_copies_of_a_column_keep_a_spread_of_one(rows: int) -> None:
    """What shrinkage leaves of them is what the scale is made of."""
    first = normal(rows, 1)
    x = torch.cat([first, 3 * first + 5, -first, first], 1)
    model = model_of()
    model.standardise(x)
    z = model.to_standard(x)
    torch.testing.assert_close(z.square().mean(0), torch.ones(4, dtype=F64))
    assert (model.scale[1:] / model.deviation[1:]).max().item() < 6 / rows


def test_one_column_has_nothing_to_be_regressed_on() -> None:
    model = model_of(dims=1)
    x = 3 * normal(40, 1) + 2
    model.standardise(x)
    torch.testing.assert_close(model.to_standard(x), (x - x.mean(0)) / x.std(0, correction=0))


def test_constant_columns_are_refused() -> None:
    x = normal(10, 2)
    x[:, 1] = 0.1
    with pytest.raises(InputError, match=r"expected columns that vary, got constant columns \[1\]"):
        model_of(dims=2).standardise(x)


def test_without_regression_columns_are_only_shifted_and_scaled() -> None:
    model = ARCSM.made(4, hidden=(8,), seed=0).double()
    x, _, _ = chain(100, (0, 1, 2, 3))
    model.standardise(x)
    expected = (x - x.mean(0)) / x.std(0, correction=0)
    torch.testing.assert_close(model.to_standard(x), expected)
    torch.testing.assert_close(model.context_inputs(x), expected)
    assert model.regression is None
    assert not {"regression", "deviation"} & model.state_dict().keys()


def test_only_columns_that_others_nearly_determine_are_regressed() -> None:
    """What is left of a column must be below 0.05 of it; the others are only shifted and scaled."""
    first = normal(20_000, 1)
    left = torch.tensor([0.01, 0.04, 0.06, 0.5], dtype=F64)
    x = 3 * (first + left * normal(20_000, 4, seed=1))
    x = torch.cat([first, x], 1)
    for d, narrow in ((1, True), (2, True), (3, False), (4, False)):
        model = model_of(dims=2)
        rows = x[:, [0, d]]
        model.standardise(rows)
        assert bool(model.regression[1].any()) == narrow
        torch.testing.assert_close(model.to_standard(rows).square().mean(0), torch.ones(2).double())
        share = (model.scale[1] / model.deviation[1]).item()
        assert share == pytest.approx(left[d - 1].item() if narrow else 1, rel=0.02)
