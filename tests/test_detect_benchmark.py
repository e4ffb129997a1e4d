"""The parts of benchmarks/detect.py that decide what its numbers mean."""

import json
import math
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from arcsm.data.table import as_table
from arcsm.errors import InputError

# The scripts import each other by their bare names, as they do when they are run.
sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
anomalies, detect, verdicts = map(import_module, ("anomalies", "detect", "verdicts"))


def fake_set(rows: int, odd: int) -> object:
    """Return what stands for `load_adbench`: the first column says which row it is."""
    x = np.column_stack([np.arange(rows), np.random.default_rng(0).normal(size=(rows, 2))])
    return lambda name: (as_table(x), (np.arange(rows) < odd).astype(np.int64))


def test_half_of_the_normal_rows_are_for_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anomalies, "load_adbench", fake_set(101, 20))
    task = anomalies.adbench_task("any", 0)
    trained, tested = (set(part[:, 0]) for part in (task.train, task.test))
    assert len(trained) == 40 and not trained & set(range(20))
    assert trained.isdisjoint(tested) and len(trained | tested) == 101
    np.testing.assert_array_equal(task.kind == "anomaly", task.test[:, 0] < 20)
    other = anomalies.adbench_task("any", 1)
    assert set(other.train[:, 0]) != trained


def test_large_sets_are_cut_at_random(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anomalies, "load_adbench", fake_set(12_000, 6000))
    task = anomalies.adbench_task("any", 0)
    assert len(task.train) + len(task.test) == 10_000
    assert 0.45 < (task.kind == "anomaly").sum() / 10_000 < 0.55


def test_unsupervised_training_rows_hold_half_of_the_anomalies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(anomalies, "load_adbench", fake_set(100, 20))
    task = anomalies.adbench_task("any", 0, unsupervised=True)
    assert (task.train[:, 0] < 20).sum() == 10 and len(task.train) == 50
    assert (task.kind == "anomaly").sum() == 10


def test_made_anomalies_are_what_they_are_called() -> None:
    random = np.random.default_rng(0)
    first = random.normal(size=2000)
    normal = np.column_stack([first, first + 0.1 * random.normal(size=2000)]) * [1, 100] + [5, 0]
    made = anomalies.made_anomalies(normal, 0)
    assert set(made) == {"local", "clustered", "global", "dependency"}
    scaled = {kind: (rows - normal.mean(0)) / normal.std(0) for kind, rows in made.items()}
    # Local: both widths are √5 times as large.
    across = (scaled["local"][:, 0] - scaled["local"][:, 1]).std()
    assert across == pytest.approx(math.sqrt(5) * 0.1, rel=0.25)
    assert np.abs(np.corrcoef(scaled["dependency"].T)[0, 1]) < 0.25
    assert scaled["dependency"].std(0) == pytest.approx([1, 1], rel=0.2)
    z = (normal - normal.mean(0)) / normal.std(0)
    assert (scaled["global"].max(0) <= 1.1 * z.max(0)).all()
    assert (scaled["global"].std(0) > 1.5).all()
    assert np.linalg.norm(scaled["clustered"].mean(0)) > 2


def test_tasks_to_choose_by() -> None:
    for name in ("iris 1", "wine 1", "diabetes", "curve"):
        task = anomalies.choice_task(name, 0)
        assert task.train.shape[1] == task.test.shape[1] and "normal" in task.kind
        again = anomalies.choice_task(name, 0)
        np.testing.assert_array_equal(task.test, again.test)
    assert anomalies.choice_task("iris 1", 0).train.shape == (25, 4)
    assert anomalies.choice_task("curve", 0).kinds == ["clustered", "dependency", "global", "local"]


def test_one_column_of_each_row_is_corrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    train = np.column_stack([random.normal(size=(50, 3)), np.ones(50)])
    test = np.column_stack([random.normal(size=(40, 3)) + 100, np.ones(40)])
    task = anomalies.Task(train, test, np.array(["normal"] * 30 + ["anomaly"] * 10))
    rows, column = anomalies.corrupted_columns(task, 20, 0)
    assert rows.shape == (20, 4) and set(column) <= {0, 1, 2}
    for row, changed in zip(rows, column, strict=True):
        assert row[changed] in train[:, changed]
        others = [place for place in range(3) if place != changed]
        assert (row[others] > 90).all()


@pytest.mark.parametrize("name", anomalies.NORMAL)
def test_a_gaussian_finds_what_was_changed_in_normal_rows(name: str) -> None:
    task = anomalies.normal_task(name, 5)
    covariance = anomalies.NORMAL[name]
    assert task.train.shape == task.test.shape == (2000, len(covariance)) and task.kinds == []
    np.testing.assert_allclose(np.cov(task.train.T), covariance, atol=0.35)
    rows, column = anomalies.corrupted_columns(task, 300, 5)
    found = detect.conditional_z(task.train, rows).argmax(1)
    # With the covariance that the rows were drawn with, without any fitting.
    precision = np.linalg.inv(covariance)
    known = np.abs(rows @ precision / np.sqrt(np.diag(precision))).argmax(1)
    assert (known == column).mean() > 0.8 and (found == known).mean() > 0.95


def test_areas_under_the_curve() -> None:
    odd = np.array([False, False, True, True])
    assert anomalies.auroc(np.array([0.0, 1.0, 2.0, 3.0]), odd) == 1.0
    assert anomalies.auroc(np.array([0.0, 3.0, 2.0, 3.0]), odd) == pytest.approx(2.5 / 4)
    assert math.isnan(anomalies.auroc(np.array([0.0, np.nan, 2.0, 3.0]), odd))


def test_conditional_deviations_of_a_gaussian() -> None:
    """Of two columns with correlation r the residual of one given the other has 1 − r²."""
    random = np.random.default_rng(0)
    first = random.normal(size=(200_000, 1))
    train = np.column_stack([first, 0.8 * first + 0.6 * random.normal(size=first.shape)])
    rows = np.array([[1.0, -1.0], [2.0, 1.6]])
    expected = np.array([[1.8 / 0.6, 1.8 / 0.6], [(2 - 0.8 * 1.6) / 0.6, 0.0]])
    np.testing.assert_allclose(detect.conditional_z(train, rows), expected, atol=0.03)


ENTRY = verdicts.Entry("wine", 0, "arcsm", "anomaly", 0.9, 50, 3, 70, 1.0, 0.1, "abc")


def done_with(values: dict[tuple[str, int, str], float | None]) -> dict:
    return {
        key: [
            replace(
                ENTRY,
                set=key[0],
                seed=key[1],
                method=key[2],
                value=value,
                reason="broken" if value is None else None,
            )
        ]
        for key, value in values.items()
    }


def test_sets_count_by_their_mean_over_seeds() -> None:
    methods, seeds = ["arcsm", "KNN", "LOF"], [0, 1]
    done = done_with(
        {
            ("wine", 0, "arcsm"): 0.9,
            ("wine", 1, "arcsm"): 0.7,
            ("wine", 0, "KNN"): 0.6,
            ("wine", 1, "KNN"): 0.8,
            ("wine", 0, "LOF"): 0.5,
            ("wine", 1, "LOF"): None,
            ("glass", 0, "arcsm"): 0.6,
            ("glass", 1, "arcsm"): 0.6,
            ("glass", 0, "KNN"): 0.9,
            ("glass", 1, "KNN"): 0.9,
            ("glass", 0, "LOF"): 0.8,
            ("glass", 1, "LOF"): 0.8,
            ("fault", 0, "arcsm"): 0.1,  # of which the rest is not done
        }
    )
    metrics = verdicts.summarise(done, methods, seeds, "AUROC", methods, ["KNN", "LOF"])
    found = {(m.name, m.labels["method"]): m for m in metrics if set(m.labels) == {"method"}}
    assert found["mean AUROC", "arcsm"].value == pytest.approx(0.7)
    assert found["mean AUROC", "KNN"].value == pytest.approx(0.8)
    assert found["mean AUROC", "LOF"].value is None
    assert found["mean rank", "arcsm"].value == 2.0
    assert found["mean rank", "LOF"].value == 2.5  # a failure ranks last
    assert found["sets won", "KNN"].value == 1
    best = found["mean AUROC", "best rival of each set, in hindsight"]
    assert best.value == pytest.approx(0.8) and best.n == 2
    singles = [m for m in metrics if m.name == "AUROC"]
    assert len(singles) == 12 and {m.labels["set"] for m in singles} == {"wine", "glass"}
    with pytest.raises(InputError, match="--resume"):
        verdicts.summarise(done, methods, [0, 1, 2], "AUROC", methods, [])


def test_methods_that_share_a_fit_are_one_job() -> None:
    found = [ENTRY, replace(ENTRY, method="arcsm nll"), replace(ENTRY, method="KNN")]
    jobs = [detect.job_of(entry) for entry in found]
    assert jobs == [("wine", 0, "arcsm"), ("wine", 0, "arcsm"), ("wine", 0, "KNN")]
    found = [replace(ENTRY, method=method, kind="corrupted") for method in detect.FINDERS]
    assert {detect.job_of(entry) for entry in found} == {("wine", 0, "arcsm")}


def test_a_job_that_fails_is_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anomalies, "load_adbench", fake_set(60, 10))

    def broken(task: object, name: str) -> None:
        raise RuntimeError("out of order\nand more")

    monkeypatch.setattr(detect, "rival_scores", broken)
    path = tmp_path / "lines"
    (entry,) = detect.run_job("detect", "any", 0, "KNN", "abc", path)
    assert (entry.value, entry.reason) == (None, "RuntimeError: out of order")
    assert json.loads(path.read_text())["reason"] == entry.reason


def test_methods_are_judged_by_their_outlier_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = np.array(["normal"] * 3 + ["local"] * 2 + ["global"] * 2)
    task = anomalies.Task(np.zeros((4, 1)), np.arange(7.0)[:, None], kind)
    scores = {"KNN": (np.array([0.0, 1, 2, 3, 4, -1, -2]), 0.5)}
    monkeypatch.setattr(detect, "rival_scores", lambda task, name: (scores, 2.0))
    found = detect.judged(task, "KNN", 0)
    assert found == [
        ("KNN", "global", 0.0, 2.0, 0.5, None),
        ("KNN", "local", 1.0, 2.0, 0.5, None),
    ]
