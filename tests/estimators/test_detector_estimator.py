import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from arcsm import ARCSMDensity, ARCSMDetector, ARCSMImputer, CheckpointError, InputError
from arcsm.data.table import as_table

QUICK = {"max_steps": 20, "ensemble": 1, "random_state": 0}


def quick(**parameters: object) -> ARCSMDetector:
    return ARCSMDetector(**{**QUICK, **parameters})


def frame(rows: int = 200, seed: int = 0) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "height": random.normal(170.0, 10.0, rows),
            "children": random.poisson(1.5, rows),
            "town": random.choice(["Bern", "Basel", "Genf"], rows),
            "member": random.random(rows) < 0.5,
            "unit": "cm",
        }
    )


@pytest.fixture(scope="module")
def people() -> ARCSMDetector:
    return quick().fit(frame())


@parametrize_with_checks([ARCSMDetector(max_steps=20, ensemble=1)])
def test_scikit_learn_contract(estimator, check) -> None:
    check(estimator)


def line(rows: int, seed: int) -> np.ndarray:
    """Return three columns of which the third is the sum of the others, but for a little noise."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, 3))
    x[:, 2] = x[:, 0] + x[:, 1] + 0.1 * x[:, 2]
    return x


@pytest.fixture(scope="module")
def lines() -> ARCSMDetector:
    return ARCSMDetector(max_steps=200, ensemble=1, random_state=0).fit(line(400, 0))


@pytest.mark.parametrize("method", ["auto", "nll", "csm", "multiscale", "typicality"])
def test_rows_off_the_line_are_unusual_though_no_column_is(
    lines: ARCSMDetector, method: str
) -> None:
    normal, random = line(200, 1), np.random.default_rng(2)
    shuffled = np.column_stack([random.permutation(column) for column in line(200, 3).T])
    detector = lines if method == "auto" else lines.with_method(method, line(400, 0))
    assert detector.method == method
    scores = detector.score_samples(np.concatenate([normal, shuffled]))
    assert roc_auc_score(np.arange(400) < 200, scores) > 0.9


def test_what_is_farther_out_is_more_unusual(lines: ARCSMDetector) -> None:
    away = 10.0 ** np.arange(1, 9)
    x = away[:, None] * np.array([1.0, -1.0, 2.0])
    for method in ("multiscale", "nll", "csm", "typicality"):
        scores = lines.with_method(method, line(400, 0)).score_samples(x)
        assert np.isfinite(scores).all() and (np.diff(scores) < 0).all(), method


def test_scores_thresholds_and_labels_agree() -> None:
    x = line(300, 0)
    detector = quick(contamination=0.1).fit(x)
    scores = detector.score_samples(x)
    np.testing.assert_allclose(detector.training_scores_, scores)
    np.testing.assert_allclose(detector.decision_function(x), scores - detector.offset_)
    assert (detector.predict(x) == -1).sum() == 30
    np.testing.assert_array_equal(detector.predict(x) == -1, detector.decision_function(x) < 0)


def test_by_default_one_row_in_a_hundred_is_an_outlier() -> None:
    detector = quick(max_steps=100).fit(line(1000, 0))
    assert 0.001 < (detector.predict(line(2000, 1)) == -1).mean() < 0.025


def test_a_training_row_is_judged_as_if_it_were_new() -> None:
    """Its distance to itself does not count: scores of both kinds of rows are distributed alike."""
    detector = quick().fit(line(300, 0))
    seen, new = -detector.training_scores_, -detector.score_samples(line(300, 1))
    assert np.median(seen) == pytest.approx(np.median(new), rel=0.15)


def test_rows_that_are_alike_are_not_left_out_together() -> None:
    random = np.random.default_rng(0)
    x = np.column_stack([random.integers(0, 3, 300), random.integers(0, 2, 300)]).astype(float)
    detector = quick(contamination=0.05).fit(x)
    assert detector.kept_.sum() >= 285
    assert (detector.predict(x) == 1).mean() >= 0.8
    assert (detector.predict([[1.0, 0.5], [1.5, 0.0], [9.0, 9.0]]) == -1).all()


@pytest.mark.parametrize("contamination", [0, 0.0, -0.1, 0.51, 1, "some", None, True, np.nan])
def test_contamination_is_a_share(contamination: object) -> None:
    with pytest.raises(InputError, match="contamination"):
        quick(contamination=contamination).fit(line(20, 0))


def test_an_unknown_method_is_refused_before_the_training() -> None:
    with pytest.raises(InputError, match="expected a method among auto, multiscale"):
        ARCSMDetector(method="magic").fit(line(20_000, 0))
    with pytest.raises(InputError, match="expected a method among"):
        quick().fit(line(20, 0)).with_method("magic", line(20, 0))


def test_data_frames_of_all_kinds_of_columns(people: ARCSMDetector) -> None:
    assert list(people.feature_names_in_) == list(frame().columns)
    scores = people.score_samples(frame(50, seed=1))
    assert scores.shape == (50,) and np.isfinite(scores).all()
    # Numbers are real numbers to a detector, whatever they look like.
    kinds = {c["name"]: c["kind"] for c in people.density_.columns_}
    assert kinds["children"] == "real" and kinds["town"] == "category"


@pytest.mark.parametrize(("column", "value"), [("town", "Chur"), ("unit", "m")])
@pytest.mark.parametrize("method", ["multiscale", "nll", "csm"])
def test_a_value_never_seen_is_unusual_not_an_error(
    people: ARCSMDetector, column: str, value: str, method: str
) -> None:
    detector = people.with_method(method, frame())
    rows = frame(20, seed=1)
    before = detector.score_samples(rows)
    changed = rows.copy()
    changed.loc[3, column] = value
    after = detector.score_samples(changed)
    np.testing.assert_allclose(np.delete(after, 3), np.delete(before, 3))
    assert after[3] < detector.training_scores_.min()
    assert detector.predict(changed)[3] == -1
    named = detector.explain(changed.iloc[[3]])
    assert named[0].argmax() == list(rows.columns).index(column)
    assert named[0].max() == pytest.approx(np.log(201))


def test_two_new_values_are_more_unusual_than_one(people: ARCSMDetector) -> None:
    rows = pd.concat([frame(1, seed=1)] * 3, ignore_index=True)
    rows.loc[1:, "town"] = "Chur"
    rows.loc[2:, "unit"] = "m"
    assert (np.diff(people.score_samples(rows)) < 0).all()


def test_missing_values_are_refused_by_the_name_of_the_column(people: ARCSMDetector) -> None:
    rows = frame(5)
    rows.loc[2, "height"] = np.nan
    for call in (people.score_samples, people.predict, people.explain):
        with pytest.raises(InputError, match=r"'height'.*missing value in row 2"):
            call(rows)
    with pytest.raises(InputError, match=r"'height'.*missing value in row 2"):
        quick().fit(rows)


def test_missing_values_are_filled_in_where_one_asks_for_it() -> None:
    rows = line(300, seed=1)
    holes = np.random.default_rng(0).random(rows.shape) < 0.1
    imputer = ARCSMImputer(strategy="median", max_steps=50, hidden=(16, 16), random_state=0)
    both = make_pipeline(imputer, quick(random_state=0)).fit(np.where(holes, np.nan, rows))
    scores = both.score_samples(np.where(holes, np.nan, rows))
    assert np.isfinite(scores).all()
    whole = ~holes.any(1)
    np.testing.assert_array_equal(scores[whole], both[-1].score_samples(rows[whole]))


def test_one_row_is_scored_but_nothing_is_learned_from_it(people: ARCSMDetector) -> None:
    one = frame(1, seed=1)
    many = people.score_samples(frame(1, seed=1))
    assert people.score_samples(one) == pytest.approx(many)
    assert people.predict(one).shape == (1,) and people.explain(one).shape == (1, 5)
    with pytest.raises(ValueError, match=r"2 rows|1 sample"):
        quick().fit(one)


def test_rows_that_are_all_the_same() -> None:
    with pytest.raises(InputError, match="expected rows that differ"):
        quick().fit(np.ones((50, 3)))


def test_constant_rows_are_scored(lines: ARCSMDetector) -> None:
    scores = lines.score_samples(np.zeros((4, 3)))
    np.testing.assert_allclose(scores, scores[0])


def test_few_rows_and_one_column() -> None:
    for x in (np.arange(3.0)[:, None], np.random.default_rng(0).normal(size=(40, 1))):
        detector = quick().fit(x)
        assert np.isfinite(detector.score_samples(x)).all()
        assert detector.predict([[1e6]]) == [-1]


def test_columns_can_be_told() -> None:
    x = np.abs(line(100, 0))
    detector = quick(columns={1: {"kind": "bounded", "lower": 0}}).fit(x)
    assert [c["kind"] for c in detector.density_.columns_] == ["real", "bounded", "real"]
    scores = detector.score_samples([[1.0, 1.0, 1.0], [1.0, -1.0, 1.0]])
    assert np.isfinite(scores).all() and scores[1] < scores[0]


def test_explanations_name_the_column_that_does_not_fit() -> None:
    random = np.random.default_rng(0)
    hidden = random.normal(size=(500, 1))
    x = np.column_stack([hidden + 0.2 * random.normal(size=(500, 4)), random.normal(size=500)])
    detector = ARCSMDetector(max_steps=300, ensemble=1, random_state=0).fit(x[:400])
    rows, column = x[400:].copy(), random.integers(0, 4, 100)
    rows[np.arange(100), column] = -np.sign(hidden[400:, 0]) * 1.5
    clear = np.abs(hidden[400:, 0]) > 0.5
    surprise = detector.explain(rows[clear])
    assert (surprise.argmax(1) == column[clear]).mean() > 0.9
    marginal = np.abs(rows[clear]).argmax(1)
    assert (marginal == column[clear]).mean() < 0.8  # which is not how it is done


def test_pyod_sees_what_it_knows() -> None:
    x = line(200, 0)
    view = quick(contamination=0.1).pyod().fit(x)
    assert view.contamination == 0.1
    assert view.labels_.tolist() == view.predict(x).tolist() and view.labels_.sum() == 20
    np.testing.assert_allclose(view.decision_scores_, view.decision_function(x))
    assert set(view.decision_scores_ > view.threshold_) == {False, True}
    far = view.decision_function([[0.0, 0.0, 0.0], [9.0, 9.0, -9.0]])
    assert far[1] > view.threshold_ > far[0] and view.predict([[9.0, 9.0, -9.0]]) == [1]
    assert quick().pyod().contamination == 0.01
    again = quick(contamination=0.1).pyod().fit_predict(x)
    np.testing.assert_array_equal(again, view.labels_)
    with pytest.raises(NotFittedError):
        _ = quick().pyod().labels_


def test_pyod_gives_shares_and_confidence() -> None:
    x = line(200, 0)
    view = quick(contamination=0.1).pyod().fit(x)
    known, rows = view.decision_scores_, np.concatenate([x[:20], [[0.0, 0, 0], [9.0, 9, -9]]])
    scores = view.decision_function(rows)
    linear, unified = view.predict_proba(rows), view.predict_proba(rows, method="unify")
    expected = np.clip((scores - known.min()) / (known.max() - known.min()), 0, 1)
    np.testing.assert_allclose(linear[:, 1], expected)
    expected = np.maximum(2 * norm.cdf(scores, known.mean(), known.std()) - 1, 0)
    np.testing.assert_allclose(unified[:, 1], expected, atol=1e-12)
    np.testing.assert_allclose(linear.sum(1), 1)
    # In 20 of 200 draws or more beyond the row it is no outlier: by simulation.
    below = np.array([(known <= score).sum() for score in scores])
    drawn = np.random.default_rng(0).binomial(200, ((1 + below) / 202)[:, None], (22, 20_000))
    sure = (drawn > 180).mean(1)
    expected = np.where(view.predict(rows) == 1, sure, 1 - sure)
    np.testing.assert_allclose(view.predict_confidence(rows), expected, atol=0.02)
    both = view.predict(rows, return_confidence=True), view.predict_proba(rows, "unify", True)
    np.testing.assert_array_equal(both[0][0], view.predict(rows))
    np.testing.assert_array_equal(both[1][0], unified)
    np.testing.assert_array_equal(both[0][1], both[1][1])
    with pytest.raises(InputError, match='expected method "linear" or "unify"'):
        view.predict_proba(x, method="magic")


def test_saved_and_loaded(people: ARCSMDetector, tmp_path: Path) -> None:
    people.save(tmp_path / "detector")
    loaded = ARCSMDetector.load(tmp_path / "detector")
    rows = frame(30, seed=1)
    np.testing.assert_array_equal(loaded.score_samples(rows), people.score_samples(rows))
    np.testing.assert_array_equal(loaded.predict(rows), people.predict(rows))
    np.testing.assert_array_equal(loaded.explain(rows[:2]), people.explain(rows[:2]))
    assert loaded.offset_ == people.offset_ and loaded.get_params() == people.get_params()
    assert list(loaded.feature_names_in_) == list(people.feature_names_in_)
    loaded.save(tmp_path / "detector")  # over itself
    with pytest.raises(CheckpointError, match="got an ARCSMDetector"):
        ARCSMDensity.load(tmp_path / "detector")


def test_a_directory_of_something_else_is_left_alone(people: ARCSMDetector, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="holds other files"):
        people.save(tmp_path)
    with pytest.raises(NotFittedError):
        quick().save(tmp_path / "new")


def test_a_damaged_or_foreign_directory_is_refused(people: ARCSMDetector, tmp_path: Path) -> None:
    people.save(tmp_path / "a")
    (tmp_path / "a" / "detector.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError):
        ARCSMDetector.load(tmp_path / "a")
    (tmp_path / "a" / "detector.safetensors").unlink()
    with pytest.raises(CheckpointError, match="expected a checkpoint"):
        ARCSMDetector.load(tmp_path / "a")
    ARCSMDensity(max_steps=5).fit(line(20, 0)).save(tmp_path / "b", card=False)
    with pytest.raises(CheckpointError, match="expected an ARCSMDetector"):
        ARCSMDetector.load(tmp_path / "b")
    assert json.loads((tmp_path / "b" / "config.json").read_text())


def test_messages_name_the_detector() -> None:
    x = line(60, 0)
    detector = quick().fit(x)
    holes = np.where(np.arange(180).reshape(60, 3) == 7, np.nan, x)
    for call, message in (
        (lambda: detector.score_samples(x[:, :2]), "ARCSMDetector is expecting 3 features"),
        (lambda: detector.predict(holes), "ARCSMDetector does not accept missing values"),
        (lambda: quick().fit(holes), "ARCSMDetector does not accept missing values"),
        (lambda: quick().fit(x[:1]), "required by ARCSMDetector"),
        (lambda: quick(max_steps=0).fit(x), "expected max_steps as a whole number, 1 or more"),
        (lambda: quick(max_seconds=0).fit(x), "expected max_seconds as a number above 0"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_names_and_positions(people: ARCSMDetector) -> None:
    array = line(60, 0)
    detector = quick().fit(pd.DataFrame(array, columns=list("abc")))
    with pytest.raises(ValueError, match="feature names"):
        detector.score_samples(pd.DataFrame(array, columns=list("abd")))
    with pytest.raises(ValueError, match="2 features"):
        quick().fit(array).score_samples(array[:, :2])
    table = as_table(array)
    fitted = quick().fit(table)
    np.testing.assert_array_equal(fitted.score_samples(table), fitted.score_samples(table))


def test_outliers_among_the_rows_are_not_learned_from() -> None:
    """They lie close together, so that each is near others of its kind."""
    random = np.random.default_rng(0)
    far = np.array([4.0, -4.0, 4.0]) + 0.05 * random.normal(size=(12, 3))
    x = np.concatenate([line(200, 0), far])
    plain = quick(max_steps=60).fit(x)
    robust = quick(max_steps=60, contamination=0.12).fit(x)
    assert robust.training_scores_.shape == (212,)
    assert (robust.predict(x) == -1).mean() == pytest.approx(0.12, abs=0.005)
    new = np.array([[4.0, -4.0, 4.0]])

    def share(detector: ARCSMDetector) -> float:
        """Return how unusual the place of these is, beside normal rows."""
        return float(detector.score_samples(new)[0] / np.median(detector.score_samples(x)))

    assert robust.kept_.sum() == 187  # 12 % of 212, rounded down, are left out
    assert share(robust) > 2 * share(plain)
    assert (robust.predict(far) == -1).all()
    assert not hasattr(robust, "feature_names_in_")


@pytest.mark.parametrize("contamination", ["auto", 0.1])
def test_a_new_value_is_an_outlier_however_far_the_rows_reach(contamination: float | str) -> None:
    random = np.random.default_rng(0)
    table = pd.DataFrame(random.standard_cauchy((300, 4)), columns=list("abcd"))
    table["town"] = random.choice(["Bern", "Basel"], 300)
    detector = quick(contamination=contamination).fit(table)
    new = table.iloc[:50].assign(town="Chur")
    assert (detector.predict(new) == -1).all()


def test_another_method_is_learned_from_the_same_rows(tmp_path: Path) -> None:
    """Without those that were left out, and with those held out, after loading too."""
    x = line(212, 0)
    for contamination in ("auto", 0.12):
        detector = quick(contamination=contamination).fit(x)
        detector.save(tmp_path / "detector")
        loaded = ARCSMDetector.load(tmp_path / "detector")
        np.testing.assert_array_equal(loaded.kept_, detector.kept_)
        for one in (detector, loaded):
            again = one.with_method("auto", x)
            np.testing.assert_array_equal(again.training_scores_, detector.training_scores_)
            assert again.offset_ == detector.offset_
            np.testing.assert_array_equal(again.kept_, detector.kept_)
        other = [one.with_method("nll", x) for one in (detector, loaded)]
        assert other[0].offset_ == other[1].offset_
        for others in (x[:100], x[::-1], line(212, 1)):
            with pytest.raises(InputError, match=r"212 rows of `fit` in their order, got \d+ that"):
                detector.with_method("nll", others)


def test_rows_that_repeat_do_not_make_all_others_outliers() -> None:
    random = np.random.default_rng(0)
    x, new = random.normal(size=(100, 2)), random.normal(size=(300, 2))
    once, often = quick().fit(x), quick().fit(np.concatenate([x] * 5))
    assert (once.predict(new) == -1).mean() < 0.06
    assert (often.predict(new) == -1).mean() < 0.06
    assert often.predict([[9.0, -9.0]]) == [-1]
    assert (often.predict(x) == 1).all()


def test_known_categories_are_no_outliers_in_any_batch() -> None:
    """Their distances are rounding, and differ with the rows that are scored beside them."""
    random = np.random.default_rng(5)
    towns = pd.DataFrame({"town": random.choice(["a", "b", "c"], 300, p=[0.5, 0.3, 0.2])})
    detector = ARCSMDetector(max_steps=100, random_state=5).fit(towns)
    assert (detector.predict(towns) == 1).all()
    assert detector.predict(pd.DataFrame({"town": ["a", "b", "c"]})).tolist() == [1, 1, 1]
    assert detector.predict(pd.DataFrame({"town": ["b", "d"]})).tolist() == [1, -1]


def test_a_new_category_is_not_blamed_on_what_depends_on_it() -> None:
    """What stands in for it is what the rest of the row makes likely, not the most frequent."""
    random = np.random.default_rng(0)
    site = random.choice(["a", "b", "c"], 400, p=[0.5, 0.3, 0.2])
    power = np.select([site == "a", site == "b"], [0.0, 10.0], 20.0) + random.normal(0, 0.2, 400)
    table = pd.DataFrame({"site": site, "power": power, "z": random.normal(size=400)})
    detector = quick(max_steps=150).fit(table)
    new = pd.DataFrame({"site": ["zz"] * 3, "power": [0.0, 10.0, 20.0], "z": 0.0})
    assert (detector.predict(new) == -1).all()
    assert detector.explain(new).argmax(1).tolist() == [0, 0, 0]
    scores = detector.score_samples(new)
    assert np.ptp(scores) < 0.2 * np.abs(scores).mean()


def test_of_few_normal_rows_none_is_an_outlier() -> None:
    for count in (2, 3, 60):
        x = line(count, 0)
        detector = quick().fit(x)
        assert (detector.predict(x) == 1).all()
        assert all(detector.predict(x[[row]]) == [1] for row in range(min(count, 5)))


def test_few_rows_are_not_fitted_twice() -> None:
    x = np.concatenate([np.zeros((25, 2)), np.arange(6.0).reshape(3, 2) + 1])
    detector = quick(contamination=0.2).fit(x)  # what is kept is all the same
    assert np.isfinite(detector.training_scores_).all()


def test_seeds_pipelines_and_clones() -> None:
    x = line(100, 0)
    one, two = quick().fit(x), clone(quick()).fit(x)
    np.testing.assert_array_equal(one.score_samples(x), two.score_samples(x))
    other = quick(random_state=1).fit(x)
    assert not np.array_equal(one.score_samples(x), other.score_samples(x))
    piped = make_pipeline(StandardScaler(), quick()).fit(x)
    assert piped.predict(x).shape == (100,)


def test_a_fit_that_fails_leaves_what_was_learned() -> None:
    x = line(60, 0)
    detector = quick().fit(x)
    before = detector.score_samples(x)
    with pytest.raises(InputError):
        detector.fit(np.ones((50, 2)))
    np.testing.assert_array_equal(detector.score_samples(x), before)
