"""Variances of objectives, against closed forms on a linear score."""

import json
from typing import Any

import pytest
import torch
from known import normal, seeded
from torch import nn

from arcsm.experiments.experiment import Place
from arcsm.experiments.fields import METHODS, IsotropicGaussian, fisher_divergence, make_field
from arcsm.experiments.objective_variance import (
    BUDGETS,
    EXPERIMENT,
    RunningMoments,
    measure,
    metrics,
    pieces,
    regress,
    run,
    verdicts,
)

SMOKE = BUDGETS["smoke"]


class Linear(nn.Module):
    """s(x) = −a x."""

    def __init__(self, slope: float) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(slope))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -self.slope * x

    def conditional_scores(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return -self.slope * x, -self.slope.expand_as(x)


def test_running_moments_are_those_of_all_vectors() -> None:
    vectors, moments = normal(50, 4), RunningMoments()
    for vector in vectors:
        moments.add(vector + 100)
    assert moments.trace() == pytest.approx(vectors.var(0).sum().item())
    mean = (vectors + 100).mean(0).square().sum().item()
    assert moments.squared_norm() == pytest.approx(mean - moments.trace() / 50)


def test_squared_norm_of_a_mean_that_is_zero_is_zero_on_average() -> None:
    found = []
    for seed in range(200):
        moments = RunningMoments()
        for vector in normal(5, 10, seed=seed):
            moments.add(vector)
        found.append(moments.squared_norm())
    # The plain norm would be 10/5 on average.
    assert abs(sum(found) / len(found)) < 0.2


@pytest.mark.parametrize("name", ["csm", "ssm", "ssm-vr"])
@pytest.mark.parametrize("projections", [1, 4])
def test_variance_over_projections_of_a_linear_score(name: str, projections: int) -> None:
    dims, batch, a = 6, 10, 3.0
    found = measure(
        Linear(a),  # type: ignore[arg-type]
        METHODS[name],
        IsotropicGaussian(dims, 1.0),
        rows="fixed",
        batch=batch,
        projections=projections,
        repeats=600,
        seed=0,
        device="cpu",
    )
    x = IsotropicGaussian(dims, 1.0).sample(batch, generator=seeded(0))
    square = x.square().sum(-1)
    if name == "csm":
        assert len(set(found["losses"])) == 1 and found["gradient_trace"] == 0
        assert found["losses"][0] == pytest.approx((a**2 * square / 2 - a * dims).mean().item())
        return
    # Of −a v·v and, in its slope, of v·v; with (v·x)² besides where it is not reduced.
    objective = torch.full((batch,), 2 * a**2 * dims)
    gradient = torch.full((batch,), 2.0 * dims)
    if name == "ssm":
        objective += a**4 * square**2 / 2 - 2 * a**3 * square
        gradient += 2 * a**2 * square**2 - 4 * a * square
    share = batch**2 * projections
    assert torch.tensor(found["losses"]).var().item() == pytest.approx(
        objective.sum().item() / share, rel=0.25
    )
    assert found["gradient_trace"] == pytest.approx(gradient.sum().item() / share, rel=0.25)


def test_fresh_rows_add_the_variance_of_the_data() -> None:
    dims, batch, a = 6, 10, 3.0
    found = measure(
        Linear(a),  # type: ignore[arg-type]
        METHODS["csm"],
        IsotropicGaussian(dims, 1.0),
        rows="fresh",
        batch=batch,
        projections=1,
        repeats=600,
        seed=0,
        device="cpu",
    )
    # ½ a² x·x, and its slope a x·x, with Var x·x = 2D.
    losses = torch.tensor(found["losses"])
    assert losses.var().item() == pytest.approx(a**4 * dims / 2 / batch, rel=0.25)
    assert found["gradient_trace"] == pytest.approx(2 * a**2 * dims / batch, rel=0.25)
    # The mean gradient is a D − D.
    assert found["gradient_squared_norm"] == pytest.approx((a - 1) ** 2 * dims**2, rel=0.1)


@pytest.mark.parametrize("kind", ["joint", "autoregressive"])
def test_regression_brings_a_field_just_to_a_tenth_of_its_divergence(kind: str) -> None:
    truth = IsotropicGaussian(SMOKE["dims"], SMOKE["std"])
    field = make_field(kind, SMOKE["dims"], joint_width=16, seed=0)
    x = truth.sample(1000, generator=seeded(5))
    before = fisher_divergence(field(x), truth.score(x)).item()
    regress(field, truth, SMOKE, seeded())
    assert 0.02 < fisher_divergence(field(x), truth.score(x)).item() / before < 0.13


def test_mean_of_ssm_on_the_autoregressive_field_is_csm() -> None:
    settings = {**SMOKE, "repeats": 25, "most_regression_steps": 30}
    wanted = [one for one in pieces(settings) if one.labels["method"] in ("csm", "ssm-ar")]
    raw = {one.name: run(settings, one, Place("cpu", lambda share: None)) for one in wanted}
    json.dumps(raw)
    found = metrics(settings, raw)
    off = [one for one in found if one.name == "mean of SSM-AR − CSM, in standard errors"]
    assert len(off) == 4  # two states, two numbers of projections
    assert all(one.value is not None and one.value < 4 for one in off)
    said = [one for one in verdicts(settings, found) if "standard errors" in one.text]
    assert [one.holds for one in said] == [True]
    fixed = [
        one
        for one in found
        if one.name == "variance of the objective"
        and (one.labels["method"], one.labels["rows"]) == ("csm", "fixed")
    ]
    assert [one.value for one in fixed] == [0, 0]
    assert set(EXPERIMENT.figures(settings, raw)) == {"objective", "gradient"}
    # Another objective than CSM is told from it.
    for data in raw.values():
        if data["method"] == "ssm-ar":
            for one in data["measured"]:
                one["losses"] = [loss + 1e3 for loss in one["losses"]]
    said = [one for one in verdicts(settings, metrics(settings, raw)) if "errors" in one.text]
    assert [one.holds for one in said] == [False]


def test_difference_to_csm_is_told_in_standard_errors_of_the_mean() -> None:
    def data(method: str, projections: int, losses: list[float]) -> dict[str, Any]:
        one = {"state": "trained", "rows": "fixed", "projections": projections, "losses": losses}
        moments = {"divergence": 1.0, "gradient_trace": 1.0, "gradient_squared_norm": 4.0}
        return {"method": method, "seed": 0, "measured": [{**one, **moments}]}

    raw = {"a": data("csm", 0, [0.0, 0.0]), "b": data("ssm-ar", 1, [1.0, 3.0])}
    found = {(one.name, one.labels["method"]): one.value for one in metrics(SMOKE, raw)}
    # The mean is 2, the deviation √2, that of the mean 1.
    name = "mean of SSM-AR − CSM, in standard errors"
    assert found[name, "ssm-ar"] == pytest.approx(2)
    assert found["variance of the gradient / its squared mean", "csm"] == pytest.approx(0.25)
