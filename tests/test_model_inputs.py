"""What a model is asked with: conditions, columns and values that are refused, and many rows."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from known import normal
from torch import Tensor

import arcsm.scoring
from arcsm.conditional import Noise
from arcsm.errors import InputError
from arcsm.model import ARCSM

CALLS: dict[str, Callable[[ARCSM, Tensor, Any], Any]] = {
    "log_prob": lambda m, x, c: m.log_prob(x, condition=c),
    "log_prob_terms": lambda m, x, c: m.log_prob_terms(x, condition=c)[0],
    "conditional_cdf": lambda m, x, c: m.conditional_cdf(x, condition=c),
    "conditional_scores": lambda m, x, c: m.conditional_scores(x, condition=c)[0],
    "conditional": lambda m, x, c: m.conditional(x, 1, condition=c).log_prob(x[:, 1:]),
}


def small(**options: Any) -> ARCSM:
    settings: dict[str, Any] = {"hidden": (8, 8), "width": 4, "steps": 4, "seed": 0}
    made = ARCSM.made(2, **{"noise": Noise(3.0, 0.2), **settings, **options})
    with torch.no_grad():
        for place, parameter in enumerate(made.parameters()):
            parameter.add_(0.3 * normal(*parameter.shape, seed=place))
    return made.requires_grad_(False)


def points(rows: int = 5) -> Tensor:
    return normal(rows, 2, seed=3).float()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_conditions_may_be_arrays_of_any_precision(call: Callable[..., Tensor]) -> None:
    model, x, condition = small(condition_dims=1), points(), normal(5, 1, seed=4).float()
    expected = call(model, x, condition)
    assert not torch.equal(expected, call(model, x, condition + 1))
    for same in (condition.double(), condition.numpy(), condition.double().numpy()):
        assert torch.equal(call(model, x, same), expected)
    with pytest.raises(InputError, match="finite numbers in condition, got nan in row 2"):
        call(model, x, torch.where(torch.arange(5)[:, None] == 2, math.nan, condition))
    with pytest.raises(InputError, match="a numpy array or a torch tensor, got list"):
        call(model, x, [[0.0]] * 5)
    for missing in (None, condition[:4]):
        with pytest.raises(InputError, match=r"a condition of shape \(5, 1\)"):
            call(model, x, missing)
    with pytest.raises(InputError, match="expected no condition"):
        call(small(), x, condition)


def test_many_rows_are_evaluated_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, condition = small(condition_dims=1), points(23), normal(23, 1, seed=4).float()
    cells = (x - 0.1, x + torch.linspace(-0.2, 0.3, 23)[:, None])
    at = points(23).flip(0)

    def answers() -> list[Tensor]:
        terms = model.log_prob_terms(x, condition=condition)
        masses = model.log_prob_terms(x, condition=condition, cells=cells)
        return [*terms, *masses, model.conditional_cdf(x, at=at, condition=condition)]

    expected = answers()
    batches: list[int] = []
    whole = type(model.context).forward

    def counted(self: Any, inputs: Tensor, given: Any = None) -> Tensor:
        batches.append(len(inputs))
        return whole(self, inputs, given)

    monkeypatch.setattr(type(model.context), "forward", counted)
    monkeypatch.setattr(arcsm.scoring, "_NUMBERS", 10 * model.context.numbers_per_row)
    for found, known in zip(answers(), expected, strict=True):
        torch.testing.assert_close(found, known, rtol=1e-5, atol=1e-5)
    assert batches == [10, 10, 3] * 3


@pytest.mark.parametrize("only", [[7], [-1], [0, 2]])
def test_only_columns_that_exist(only: list[int]) -> None:
    with pytest.raises(InputError, match="columns from 0 to 1 in only"):
        small().log_prob_terms(points(), only=only)


def test_bad_values_of_at() -> None:
    x = points()
    for bad in (torch.full_like(x, math.nan), x[:3]):
        with pytest.raises(InputError, match=r"at of shape \(5, 2\) without NaN"):
            small().conditional_cdf(x, at=bad)


def test_one_noise_level_has_no_flow() -> None:
    model, x = small(noise=Noise(0.2, 0.2, levels=1)), points()
    sentence = "more than one noise level for the flow, got one"
    for refused in (
        lambda: model.log_prob(x, method="flow"),
        lambda: model.conditional_cdf(x, method="flow"),
        lambda: model.density_of(model.head.family(torch.zeros(1, 4)), "flow"),
        lambda: model.sample(2, method="flow"),
    ):
        with pytest.raises(InputError, match=sentence):
            refused()
    assert torch.equal(model.log_prob(x), model.log_prob(x, method="quadrature"))


def test_a_density_that_does_not_exist_is_named() -> None:
    model = small()
    model.density = "zz"
    with pytest.raises(InputError, match="got 'zz'"):
        model.log_prob(points())


@pytest.mark.parametrize("value", [1e20, -1e30, 1e38, 1e300])
@pytest.mark.parametrize("method", ["flow", "quadrature"])
def test_what_is_too_far_out_has_no_log_density(method: str, value: float) -> None:
    model = small()
    x = np.array([[value, 0.0], [0.0, value], [0.0, 0.0], [1e6, 0.0]])
    found, error = model.log_prob(x, method=method, return_error=True)
    assert found[:2].tolist() == [-math.inf] * 2 and error[:2].tolist() == [math.inf] * 2
    assert bool(found[2:].isfinite().all()) and bool(error[2:].isfinite().all())
    cdf = model.conditional_cdf(x, method=method)
    assert cdf[0, 0].item() == cdf[1, 1].item() == float(value > 0)
