"""`model.check`: sound models pass, and what is wrong is said in words, with what to do."""

import copy
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

import arcsm.scoring
from arcsm.conditional import Noise
from arcsm.errors import ArcsmError, InputError
from arcsm.model import ARCSM
from arcsm.soundness import Finding, Report, calibration, ks_distance, ks_limit
from arcsm.train import TrainConfig, fit


def two_modes(rows: int, seed: int) -> Tensor:
    """Two modes at 90:10, each 0.05 wide, one unit apart."""
    g = torch.Generator().manual_seed(seed)
    second = torch.rand((rows, 1), generator=g) < 0.1
    return second.float() + 0.05 * torch.randn((rows, 1), generator=g)


@pytest.fixture(scope="module")
def gap() -> ARCSM:
    """A model of the two modes: between them, energies at σ_min were never trained."""
    model = ARCSM.made(1, hidden=(16,), width=16, steps=12, seed=0)
    config = TrainConfig(steps=700, batch_size=256, validation=0.0, learning_rate=1e-2)
    fit(model, two_modes(4000, 0), config)
    return model.requires_grad_(False)


def test_the_flow_weighs_two_modes_rightly(gap: ARCSM) -> None:
    drawn = gap.sample(8000, generator=torch.Generator().manual_seed(0))
    share = (drawn < 0.5).double().mean().item()
    assert share == pytest.approx(0.90, abs=0.02)


def test_quadrature_that_weighs_them_wrongly_is_flagged(gap: ARCSM) -> None:
    x = torch.linspace(-2, 3, 2001)
    truth = 0.9 * stats.norm(0, 0.05).cdf(x) + 0.1 * stats.norm(1, 0.05).cdf(x)
    wrong = np.abs(gap.conditional_cdf(x[:, None], method="quadrature")[:, 0].numpy() - truth).max()
    assert wrong > 0.05  # of this check has to tell
    report = gap.check(two_modes(1500, 1))
    flow, quadrature = report["calibration by flow"], report["calibration by quadrature"]
    assert flow.good and report.good, str(report)
    assert not quadrature.good and not quadrature.matters
    assert quadrature.numbers["ks_distance"]["column 0"] == pytest.approx(wrong, abs=0.06)
    heat = report["heat equation"]
    assert not heat.good and "does not obey the heat equation" in heat.text
    assert heat.numbers["mean_difference"] > 0.1 and not heat.matters
    text = str(report)
    assert text.count("\n! ") == 2 and "✗" not in text and text.endswith("\nSound.")
    assert 'stay with the canonical density, "flow"' in text


def test_a_canonical_density_that_is_wrong_is_not_sound(gap: ARCSM) -> None:
    model = copy.deepcopy(gap)
    model.density = "quadrature"
    report = model.check(two_modes(1500, 1))
    assert not report.good and str(report).endswith("\nNot sound.")
    bad = report["calibration by quadrature"]
    assert not bad.good and bad.matters and 'model.density = "flow"' in bad.advice
    assert report["heat equation"].matters
    assert f"✗ {bad.text} What to do: {bad.advice}." in str(report).splitlines()


def test_rows_of_another_kind(gap: ARCSM) -> None:
    report = gap.check(two_modes(500, 1) + 3.0)
    assert not report.good
    assert not report["range"].good and report["range"].numbers["share"] == 1.0
    assert "train for more steps" in report["calibration by flow"].advice
    assert report["integrals"].good and report["integrals"].numbers["farthest"] < 1e-3


def test_report_is_json_and_reproducible(gap: ARCSM) -> None:
    x = two_modes(400, 2)
    report = gap.check(x, rows=100, seed=3)
    told = json.loads(json.dumps(report.to_dict()))
    assert told["good"] == report.good and len(told["findings"]) == len(report.findings) == 6
    assert told["findings"][1]["numbers"]["rows"] == 100
    assert gap.check(x, rows=100, seed=3) == report != gap.check(x, rows=100, seed=4)
    assert gap.check(x.double().numpy(), rows=100, seed=3) == report
    with pytest.raises(InputError, match="a finding among integrals"):
        report["nothing"]


def test_precision_is_looked_at(gap: ARCSM, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ARCSM.log_prob_terms

    def rough(self: ARCSM, x: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        terms, error = honest(self, x, **options)
        return terms, error + 0.5

    monkeypatch.setattr(ARCSM, "log_prob_terms", rough)
    finding = gap.check(two_modes(60, 1))["precision"]
    assert not finding.good and finding.numbers["error_99"] == pytest.approx(0.5, abs=0.01)
    assert "float64" in finding.advice


@pytest.mark.parametrize("factor", [0.9, math.nan])
def test_densities_that_do_not_integrate_to_one(
    gap: ARCSM, monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    honest = arcsm.scoring.ScaledDensity.log_prob
    monkeypatch.setattr(
        arcsm.scoring.ScaledDensity, "log_prob", lambda self, x: honest(self, x) + np.log(factor)
    )
    finding = gap.check(two_modes(60, 1))["integrals"]
    expected = None if math.isnan(factor) else pytest.approx(0.1, abs=0.001)
    assert not finding.good and finding.numbers["farthest"] == expected


@pytest.mark.parametrize("part", ["context", "head"])
def test_weights_that_are_not_finite_are_told_in_words(gap: ARCSM, part: str) -> None:
    model = copy.deepcopy(gap)
    next(getattr(model, part).parameters()).fill_(math.nan)
    report = model.check(two_modes(60, 1))
    assert not report.good and len(report.findings) == 1
    assert "weights are not finite" in str(report) and "load them anew" in str(report)
    assert "train for more steps" not in str(report)
    json.dumps(report.to_dict(), allow_nan=False)


def test_terms_that_are_not_finite_are_told_in_words(
    gap: ARCSM, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = ARCSM.log_prob_terms

    def broken(self: ARCSM, x: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        terms, error = honest(self, x, **options)
        terms[3] = -math.inf
        return terms, error

    monkeypatch.setattr(ARCSM, "log_prob_terms", broken)
    report = gap.check(two_modes(60, 1))
    assert not report.good and "1 of 60 rows have a log-density" in report["precision"].text
    assert not report["heat equation"].good
    json.dumps(report.to_dict(), allow_nan=False)


def test_of_one_noise_level_there_is_one_density() -> None:
    model = ARCSM.made(1, hidden=(8,), steps=4, noise=Noise(0.2, 0.2, levels=1), seed=0)
    x = model.sample(400, generator=torch.Generator().manual_seed(0))
    report = model.check(x)
    names = [finding.name for finding in report.findings]
    assert names == ["integrals", "calibration by quadrature", "range", "precision"]
    assert report.good, str(report)
    assert not model.check(x + 3 * x.std())["calibration by quadrature"].good


def test_rows_out_of_all_range_are_counted(gap: ARCSM) -> None:
    x = two_modes(60, 1)
    x[7], x[9] = 1e30, -1e25
    precision = gap.check(x)["precision"]
    assert not precision.good and "2 of 60 rows have a log-density" in precision.text


def test_a_density_that_fails_is_told_in_words(gap: ARCSM, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise ArcsmError("expected sun, got rain; wait")

    monkeypatch.setattr(arcsm.scoring, "QuadratureDensity", fails)
    report = gap.check(two_modes(60, 1))
    assert report.good, str(report)  # the flow is the canonical one
    assert "by quadrature fails: expected sun" in report["calibration by quadrature"].text
    monkeypatch.setattr(arcsm.scoring, "FlowDensity", fails)
    assert not gap.check(two_modes(60, 1)).good


def test_conditions_go_with_their_rows() -> None:
    """A model that was told where its values lie: shuffled apart they would not be calibrated."""
    g = torch.Generator().manual_seed(0)
    condition = 2 * torch.rand((3000, 1), generator=g) - 1
    x = condition + 0.3 * torch.randn((3000, 1), generator=g)
    model = ARCSM.made(1, hidden=(16,), condition_dims=1, noise=Noise(3.0, 0.05), seed=0)
    fit(model, x, TrainConfig(steps=300, batch_size=256, validation=0.0), condition=condition)
    assert model.check(x, condition=condition, rows=300)["calibration by flow"].good
    wrong = model.check(x, condition=condition.roll(1, 0), rows=300)
    assert not wrong["calibration by flow"].good
    with pytest.raises(InputError, match="a condition of shape"):
        model.check(x)
    with pytest.raises(InputError, match="a condition of shape"):
        model.check(x, condition=condition[:-1])


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((19, 1)), "at least 20 rows"),
        (np.zeros((30, 2)), "1 columns, got 2"),
        (np.full((30, 1), np.nan), "finite numbers in data"),
        ([[0.0]], "numpy array"),
    ],
)
def test_bad_rows(gap: ARCSM, x: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        gap.check(x)


def test_bad_number_of_rows(gap: ARCSM) -> None:
    for rows in (5, 20.0, True):
        with pytest.raises(InputError, match="rows of at least 20"):
            gap.check(two_modes(60, 1), rows=rows)


def test_limits_of_kolmogorov_and_smirnov() -> None:
    values = np.array([0.1, 0.4, 0.45, 0.9])
    assert ks_distance(values) == pytest.approx(stats.kstest(values, "uniform").statistic)
    for rows, chance in ((10, 0.05), (1000, 0.001)):
        limit = ks_limit(rows, chance)
        assert stats.kstwo.sf(limit, rows) == pytest.approx(chance, rel=1e-6)


def test_calibration_shares_the_chance_among_the_columns() -> None:
    random = np.random.default_rng(0)
    uniform = {f"c{i}": random.random(500) for i in range(5)}
    good = calibration(uniform, "the data")
    assert good.good and good.numbers["limit"] == pytest.approx(ks_limit(500, 0.01 / 5))
    bad = calibration(uniform | {"c3": uniform["c3"] ** 1.6}, "the data")
    assert not bad.good and "1 of 5 go beyond: c3 0." in bad.text and bad.advice
    assert not calibration({"c": np.full(30, np.nan)}, "the data").good


def test_warnings_do_not_spoil_a_report() -> None:
    fine, warning = Finding("a", True, "A."), Finding("b", False, "B.", "b", matters=False)
    assert Report((fine, warning)).good
    assert str(Report((fine, warning))) == "✓ A.\n! B. What to do: b.\nSound."
    assert not Report((fine, Finding("c", False, "C."))).good
