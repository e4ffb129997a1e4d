"""The parts of benchmarks/impute.py that decide what its numbers mean."""

import json
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

# The scripts import each other by their bare names, as they do when they are run.
sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
holes, impute = map(import_module, ("holes", "impute"))


def rows(count: int = 4000) -> np.ndarray:
    random = np.random.default_rng(0)
    return np.exp(random.normal(size=(count, 6)))


@pytest.mark.parametrize("mechanism", holes.MECHANISMS)
def test_a_fifth_of_all_cells_is_missing_and_no_row_is_empty(mechanism: str) -> None:
    missing = holes.make_holes(rows(), mechanism, 0)
    assert missing.mean() == pytest.approx(0.2, abs=0.01) and not missing.all(1).any()
    np.testing.assert_array_equal(missing, holes.make_holes(rows(), mechanism, 0))
    assert (missing != holes.make_holes(rows(), mechanism, 1)).any()
    few = holes.make_holes(rows()[:, :1], mechanism, 0) if mechanism == "mcar" else None
    assert few is None or not few.any()  # the only cell of a row stays


def test_what_holes_depend_on() -> None:
    x = rows()
    higher = x > np.median(x, axis=0)
    completely = holes.make_holes(x, "mcar", 0)
    by_value = holes.make_holes(x, "mnar", 0)
    given_others = holes.make_holes(x, "mar", 0)
    for column in range(6):
        own = higher[:, column]
        rates = [completely[some, column].mean() for some in (own, ~own)]
        assert abs(rates[0] - rates[1]) < 0.05
        rates = [by_value[some, column].mean() for some in (own, ~own)]
        assert rates[0] > 3 * rates[1]
    complete = np.flatnonzero(~given_others.any(0))
    assert len(complete) == 2
    for column in set(range(6)) - set(complete):
        # One of the complete columns drives it, which its own values do not.
        ratios = [
            given_others[higher[:, d], column].mean() / given_others[~higher[:, d], column].mean()
            for d in (*complete, column)
        ]
        assert max(ratios[:2]) > 2 and 0.8 < ratios[2] < 1.25


def test_measures_of_a_filling() -> None:
    random = np.random.default_rng(0)
    true = random.normal(size=(3000, 3))
    missing = random.random(true.shape) < 0.2
    assert holes.rmse(true + 2.0, true, missing) == pytest.approx(2.0)
    assert holes.rmse(np.where(missing, true, 9.0), true, missing) == 0.0
    draws = random.normal(size=(holes.DRAWS, *true.shape))
    inside, width = holes.coverage(draws, true, missing)
    assert inside == pytest.approx(0.9, abs=0.02) and 3 < width < 4.5
    assert holes.coverage(0.5 * draws, true, missing)[0] < 0.8
    right = holes.energy_distance(np.where(missing, draws[0], true), true, missing, 0)
    means = holes.energy_distance(np.where(missing, 0.0, true), true, missing, 0)
    assert abs(right) < 0.01 < means


def test_two_values_are_covered_as_often_as_they_are_drawn() -> None:
    """Of draws of 0 or 1, most of the 19 are on both sides: a tie counts by half."""
    true = np.array([[0.0], [1.0]])
    missing = np.ones((2, 1), dtype=bool)
    both = np.tile(np.arange(19.0) % 2, (2, 1)).T[..., None]
    assert holes.coverage(both, true, missing)[0] == 0.5
    assert holes.coverage(np.zeros((19, 2, 1)), true, missing)[0] == 0.5


def entry(method: str, value: float | None, **changes: object) -> object:
    fields = {
        "set": "s",
        "mechanism": "mar",
        "seed": 0,
        "method": method,
        "way": method,
        "what": impute.RMSE,
        "value": value,
        "rows": 10,
        "columns": 2,
        "holes": 4,
        "seconds": 1.0,
        "commit": "c",
    }
    return impute.Entry(**{**fields, **changes})


def test_ranks_and_means_are_over_sets_and_mechanisms() -> None:
    done = {}
    for place, values in enumerate([(1, 2, 3, 4), (2, 1, 3, 4)]):
        for method, value in zip(impute.METHODS, values, strict=True):
            one = entry(method, float(value), mechanism=holes.MECHANISMS[place])
            done[one.key] = [one]
    found = {
        (m.name, m.labels["method"]): m.value
        for m in impute.summarise(done, [0])
        if set(m.labels) == {"method"}
    }
    assert found["mean RMSE", "arcsm"] == 1.5 and found["mean rank, RMSE", "arcsm"] == 1.5
    assert found["won, RMSE", "iterative"] == 1 and found["mean rank, RMSE", "mean"] == 4
    # What is not done everywhere does not count.
    one = entry("arcsm", 0.0, set="t")
    assert len(impute.summarise({**done, one.key: [one]}, [0])) == len(found) + 9


def test_a_job_judges_and_keeps_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(120, 1)) + 0.1 * random.normal(size=(120, 3))
    monkeypatch.setattr(impute, "read_set", lambda name: np.column_stack([x, np.ones(120)]))
    path = tmp_path / "partial"
    linear, mean = (impute.run_job("s", "mcar", 0, method, "c", path) for method in ("knn", "mean"))
    assert linear[0].value < 0.5 < mean[0].value and linear[0].columns == 3
    assert len(path.read_text().splitlines()) == 4
    monkeypatch.setattr(impute, "rival", lambda *_: 1 / 0)
    (failed,) = impute.run_job("s", "mcar", 0, "knn", "c", path)
    assert failed.value is None and "ZeroDivisionError" in failed.reason
    assert json.loads(path.read_text().splitlines()[-1])["reason"] == failed.reason
