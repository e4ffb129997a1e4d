"""The parts of benchmarks/conditional.py that decide what its numbers mean."""

import json
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from scipy import integrate, stats

from arcsm.errors import InputError

# The scripts import each other by their bare names, as they do when they are run.
sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
conditional, forecasts, regressors = map(import_module, ("conditional", "forecasts", "regressors"))


def entry(method: str, fold: int, score: float, **changes: object) -> object:
    figures = dict.fromkeys(forecasts.FIGURES, 1.0) | {"log-score": score, "CRPS": -score}
    fields = {
        "set": "diabetes",
        "seed": 0,
        "fold": fold,
        "method": method,
        "figures": figures,
        "rows": 90,
        "tested": 10,
        "seconds": 1.0,
        "chosen": "",
        "commit": "abc",
    }
    return forecasts.Entry(**{**fields, **changes})


def test_the_crps_of_a_normal_is_the_closed_form() -> None:
    y = np.array([-1.0, 0.0, 2.5])
    quantiles = np.tile(stats.norm.ppf(forecasts.LEVELS), (3, 1))
    predicted = regressors.Predicted(quantiles, stats.norm.logpdf(y), "")
    figures = forecasts.judged(predicted, y)
    z = y
    exact = z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / np.sqrt(np.pi)
    assert figures["CRPS"] == pytest.approx(exact.mean(), rel=0.01)
    assert figures["log-score"] == pytest.approx(stats.norm.logpdf(y).mean())
    assert figures["coverage of 90 % intervals"] == pytest.approx(2 / 3)
    assert figures["width of 90 % intervals"] == pytest.approx(2 * 1.6449, abs=1e-3)


def test_the_kernel_density_of_a_forest_integrates_to_1() -> None:
    quantiles = stats.norm.ppf(forecasts.LEVELS, 3.0, 2.0)[None]
    total, _ = integrate.quad(
        lambda y: np.exp(regressors.kernel_log_density(quantiles, np.array([y]), 1.0)[0]), -20, 26
    )
    assert total == pytest.approx(1, abs=1e-6)
    at = np.array([3.0])
    found = regressors.kernel_log_density(quantiles, at, 0.5)
    assert found[0] == pytest.approx(stats.norm.logpdf(3.0, 3.0, 2.0), abs=0.05)
    # Of a leaf with one value there is a density all the same.
    assert np.isfinite(
        regressors.kernel_log_density(np.vstack([quantiles, 0 * quantiles]), at, 1.0)
    ).all()


def test_the_target_is_the_first_that_is_no_near_copy() -> None:
    random = np.random.default_rng(0)
    size, shade = random.normal(size=(2, 200))
    x = np.column_stack([size, shade, size + 1e-3 * shade, shade**3, random.normal(size=200)])
    names = ["mean size", "mean shade", "mean area", "shade error", "worst size"]
    target, others = conditional.choose_target(x, names)
    assert names[target] == "mean shade" and others == [0, 2, 4]
    with pytest.raises(InputError, match="no near-copy"):
        conditional.choose_target(x[:, [0, 2]], ["mean size", "mean area"])


def test_the_sets_are_what_is_said_of_them() -> None:
    cancer, diabetes = conditional.load("breast_cancer"), conditional.load("diabetes")
    assert cancer.target == "mean texture" and cancer.x.shape == (569, 27)
    assert not any("texture" in name for name in cancer.names)
    assert diabetes.x.shape == (442, 10)


def test_gains_are_taken_in_the_same_parts() -> None:
    done = {}
    for fold, score in enumerate((1.0, 2.0, 4.0)):
        for made in (entry("arcsm", fold, score), entry("NGBoost", fold, score - fold)):
            done[made.set, made.seed, made.fold, made.method] = made
    metrics = forecasts.summarise(done, ["diabetes"], ["arcsm", "NGBoost"])
    gain = next(m for m in metrics if m.name == "gain in log-score")
    assert gain.value == pytest.approx(1.0) and gain.labels["over"] == "NGBoost"
    low, high = gain.interval
    # A deviation of 1 over three parts of ten: t(2) · √(1/3 + 1/9).
    assert (high - low) / 2 == pytest.approx(4.3027 * np.sqrt(1 / 3 + 1 / 9), rel=1e-4)
    crps = next(m for m in metrics if m.name == "gain in CRPS")
    assert crps.value == pytest.approx(1.0)  # less is better


def test_a_failure_is_no_number() -> None:
    failed = entry("NGBoost", 0, 0.0, figures=None, reason="it broke")
    done = {(failed.set, failed.seed, failed.fold, failed.method): failed}
    metrics = forecasts.summarise(done, ["diabetes"], ["NGBoost"])
    assert metrics[0].value is None and metrics[0].reason == "it broke"


def test_a_job_that_fails_is_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("out of order\nand more")

    monkeypatch.setitem(conditional.METHODS, "NGBoost", broken)
    path = tmp_path / "lines"
    (failed,) = conditional.run_job("diabetes", 0, 1, "NGBoost", None, "abc", path)
    assert (failed.figures, failed.reason) == (None, "RuntimeError: out of order")
    assert conditional.job_of(failed) == ("diabetes", 0, 1, "NGBoost")
    assert json.loads(path.read_text())["reason"] == failed.reason


@pytest.mark.parametrize(
    ("package", "method", "search"),
    [
        (
            "quantile_forest",
            "quantile_forest",
            {"min_samples_leaf": (5, 20), "n_estimators": (10,)},
        ),
        ("ngboost", "ngboost", {"n_estimators": (20,)}),
    ],
)
def test_rivals_predict_what_they_should(
    package: str, method: str, search: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(package)
    for name in ("FOREST_SEARCH", "NGBOOST_SEARCH"):
        monkeypatch.setattr(regressors, name, search)
    random = np.random.default_rng(0)
    x = random.uniform(-1, 1, (120, 2))
    y = 3 * x[:, 0] + random.normal(size=120)
    levels = np.array([0.1, 0.5, 0.9])
    found = getattr(regressors, method)(x, y, x[:20], y[:20], levels, 0, search=True)
    assert found.quantiles.shape == (20, 3) and (np.diff(found.quantiles, axis=1) >= 0).all()
    assert found.log_density.shape == (20,) and np.isfinite(found.log_density).all()
    assert np.corrcoef(found.quantiles[:, 1], x[:20, 0])[0, 1] > 0.7
    assert "n_estimators" in found.chosen
