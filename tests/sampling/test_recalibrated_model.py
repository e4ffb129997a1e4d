"""A model that was recalibrated: one density in all that it does, corrected by held-out rows."""

import copy
import functools
import math
from pathlib import Path

import pytest
import torch
from chains import random_chain
from known import normal, seeded
from scipy import stats
from torch import Tensor

import arcsm.conditional.fused
from arcsm.agnostic import OrderAgnosticARCSM
from arcsm.conditional import Noise
from arcsm.errors import InputError
from arcsm.model import ARCSM
from arcsm.train import TrainConfig, fit, load_model, save_model


def wrong_chain(rows: int) -> tuple[ARCSM, Tensor]:
    """Return a model, and rows whose conditionals are narrower than its own by a quarter.

    They are drawn by the model itself, from quantiles of a normal law of deviation 0.75.
    """
    model = random_chain(3)
    narrow = stats.norm.cdf(0.75 * normal(rows, 3, seed=8).numpy())
    return model, model.sample(rows, uniform=torch.from_numpy(narrow))


@functools.cache
def once_recalibrated() -> tuple[ARCSM, Tensor]:
    model, x = wrong_chain(3000)
    model.recalibrate(x[::2], generator=seeded(1))
    return model, x[1::2]


def recalibrated() -> tuple[ARCSM, Tensor]:
    """Return a model that was corrected by half of the rows, and the other half."""
    return copy.deepcopy(once_recalibrated())


def test_held_out_rows_have_uniform_ranks_and_a_better_likelihood() -> None:
    model, x = wrong_chain(6000)
    before, ranks = model.log_prob(x[1::2]).mean(), model.conditional_cdf(x[1::2])
    assert stats.kstest(ranks.flatten().numpy(), "uniform").pvalue < 1e-20
    model.recalibrate(x[::2], generator=seeded(1))
    ranks = model.conditional_cdf(x[1::2])
    assert stats.kstest(ranks.flatten().numpy(), "uniform").pvalue > 1e-3
    # KL(N(0, s²) ‖ N(0, 1)) for each of three scalars: what there was to gain.
    gain = (model.log_prob(x[1::2]).mean() - before).item()
    assert gain == pytest.approx(3 * ((0.75**2 - 1) / 2 - math.log(0.75)), abs=0.02)


def test_cells_tell_the_same_as_points() -> None:
    model, x = wrong_chain(3000)
    low = (x / 0.05).floor() * 0.05
    model.recalibrate(x, cells=(low, low + 0.05), generator=seeded(1))
    ranks = model.conditional_cdf(x)
    assert stats.kstest(ranks.flatten().numpy(), "uniform").pvalue > 1e-3


def test_uniform_numbers_come_back_from_the_rows_that_they_made() -> None:
    model, _ = recalibrated()
    uniform = torch.rand(50, 3, generator=seeded(2), dtype=torch.float64)
    x = model.sample(50, uniform=uniform)
    torch.testing.assert_close(model.conditional_cdf(x), uniform, rtol=1e-8, atol=1e-9)
    for solver in ("jacobi", "gauss-seidel"):
        other = model.sample(50, uniform=uniform, solver=solver)
        torch.testing.assert_close(other, x, rtol=1e-9, atol=1e-9)


def test_fused_draws_are_those_of_the_density(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arcsm.conditional.fused, "_compiled", lambda function: function)
    model, _ = recalibrated()
    uniform = torch.rand(9, 3, generator=seeded(3), dtype=torch.float64)
    torch.testing.assert_close(
        model.sample(9, uniform=uniform, compile=True),
        model.sample(9, uniform=uniform, compile=False),
        rtol=1e-8,
        atol=1e-9,
    )


def test_log_prob_is_the_slope_of_the_cdf() -> None:
    model, x = recalibrated()
    x, step = x[:20], 1e-5
    for d in range(3):
        up, down = x.clone(), x.clone()
        up[:, d] += step
        down[:, d] -= step
        rise = model.conditional_cdf(x, at=up)[:, d] - model.conditional_cdf(x, at=down)[:, d]
        term = model.log_prob_terms(x)[0][:, d]
        torch.testing.assert_close((rise / (2 * step)).log(), term, rtol=1e-5, atol=1e-5)
        mass = model.log_prob_terms(x, cells=(down, up))[0][:, d]
        torch.testing.assert_close(mass, rise.log(), rtol=1e-5, atol=1e-5)


def test_the_scores_stay_what_they_are() -> None:
    model, x = wrong_chain(500)
    before = model.conditional_scores(x)
    model.recalibrate(x)
    for one, other in zip(before, model.conditional_scores(x), strict=True):
        assert torch.equal(one, other)


def test_it_is_kept_with_the_model(tmp_path: Path) -> None:
    model, x = recalibrated()
    save_model(tmp_path, model)
    again = load_model(tmp_path)
    assert isinstance(again, ARCSM) and torch.equal(again.log_prob(x), model.log_prob(x))
    save_model(tmp_path / "half", model, half=True)  # the weights alone lose digits
    half = load_model(tmp_path / "half")
    assert isinstance(half, ARCSM) and half.recalibration and model.recalibration
    assert torch.equal(half.recalibration.numbers, model.recalibration.numbers)


def test_it_is_kept_with_a_model_of_all_orders(tmp_path: Path) -> None:
    model = OrderAgnosticARCSM.made(2, hidden=(8, 8), seed=0)
    x = normal(400, 2, seed=5).float()
    model.recalibrate(0.7 * x, generator=seeded(1))
    save_model(tmp_path, model)
    again = load_model(tmp_path)
    assert isinstance(again, OrderAgnosticARCSM)
    assert torch.equal(again.log_prob(x), model.log_prob(x))
    assert model.with_linear().recalibration is None  # an untrained model


def test_a_second_recalibration_takes_the_place_of_the_first() -> None:
    model, x = recalibrated()
    first = model.log_prob(x)
    assert model.recalibration is not None
    numbers = model.recalibration.numbers.clone()
    _, rows = wrong_chain(3000)
    model.recalibrate(rows[::2], generator=seeded(1))
    assert torch.equal(model.recalibration.numbers, numbers)
    assert torch.equal(model.log_prob(x), first)


def test_a_new_training_forgets_it() -> None:
    """Curves of the weights before would bend those that come."""
    model, x = recalibrated()
    fit(model.requires_grad_(), x.contiguous(), TrainConfig(steps=1))
    assert model.recalibration is None
    other = OrderAgnosticARCSM.made(2, hidden=(8, 8), seed=0)
    for seen in (None, torch.ones(400, 2, dtype=torch.bool)):
        other.recalibrate(normal(400, 2).float())
        fit(other, normal(400, 2).float(), TrainConfig(steps=1), observed=seen)
        assert other.recalibration is None


def test_what_cannot_be_recalibrated_is_refused() -> None:
    flat = random_chain(2, noise=Noise(0.5, 0.5, levels=1), density="quadrature")
    with pytest.raises(InputError, match="expected a model whose density is a flow"):
        flat.recalibrate(normal(10, 2))
    with pytest.raises(InputError, match="expected entries to recalibrate by, got none"):
        random_chain(2).recalibrate(normal(10, 2), entries=0)
