"""`ARCSMImputer`: scikit-learn's contract, data frames, and what comes back as it was."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from arcsm import CheckpointError, InputError
from arcsm.data.table import Table, as_table
from arcsm.estimators import ARCSMDensity, ARCSMImputer
from arcsm.estimators import imputer as imputer_module


def quick(**parameters: object) -> ARCSMImputer:
    return ARCSMImputer(**{"max_steps": 10, "hidden": (16, 16), "random_state": 0, **parameters})


def numbers(rows: int = 150) -> np.ndarray:
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, 1)) + 0.3 * random.normal(size=(rows, 3))
    x[random.random(x.shape) < 0.2] = np.nan
    return x


def frame(rows: int = 150) -> pd.DataFrame:
    """Return columns of all types that pandas has for numbers, truth values and text."""
    random = np.random.default_rng(0)
    x = pd.DataFrame(
        {
            "height": random.normal(170.0, 10.0, rows),
            "single": random.normal(size=rows).astype(np.float32),
            "children": random.poisson(1.5, rows).astype(np.float64),
            "rooms": pd.array(random.poisson(5, rows), dtype="Int64"),
            "town": random.choice(["Bern", "Basel", "Genf"], rows),
            "grade": pd.Categorical(random.choice(["a", "b"], rows)),
            "known": random.random(rows) < 0.5,
            "object": (random.random(rows) < 0.5).astype(object),
            "member": pd.array(random.random(rows) < 0.5, dtype="boolean"),
            "word": pd.array(random.choice(["x", "y"], rows), dtype="string"),
        },
        index=np.arange(rows) + 7,
    )
    for name in x.columns:
        if name != "known":
            x.loc[x.index[random.random(rows) < 0.2], name] = None
    return x


@parametrize_with_checks([ARCSMImputer(max_steps=5, hidden=(8, 8))])
def test_scikit_learn_contract(estimator, check) -> None:
    check(estimator)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_arrays_are_filled_and_the_rest_is_as_it_was(dtype: type) -> None:
    x = numbers().astype(dtype)
    for strategy in ("mean", "median", "draw"):
        filled = quick(strategy=strategy).fit_transform(x)
        assert filled.dtype == dtype and np.isfinite(filled).all()
        known = ~np.isnan(x)
        np.testing.assert_array_equal(filled[known], x[known])
    assert np.isnan(x).any()  # and is left alone


def test_a_mean_of_an_array_may_be_fractional_and_others_are_values() -> None:
    x = numbers()
    x[:, 1] = np.where(np.isnan(x[:, 1]), np.nan, np.random.default_rng(1).poisson(3, len(x)))
    holes = np.isnan(x[:, 1])
    for strategy, whole in (("mean", False), ("median", True), ("draw", True)):
        filled = quick(strategy=strategy).fit_transform(x)[holes, 1]
        assert bool((filled == np.rint(filled)).all()) == whole
    table = pd.DataFrame(x, columns=["a", "b", "c"])
    mean = quick().fit_transform(table)["b"].to_numpy()[holes]
    assert (mean == np.rint(mean)).all()


@pytest.mark.parametrize("strategy", ["mean", "median", "draw"])
def test_data_frames_come_back_with_their_types(strategy: str) -> None:
    x = frame()
    filled = quick(strategy=strategy).fit_transform(x)
    assert list(filled.columns) == list(x.columns) and filled.index.equals(x.index)
    assert (filled.dtypes == x.dtypes).all() and not filled.isna().any().any()
    for name in x.columns:
        known = x[name].notna()
        assert (filled[name][known] == x[name][known]).all()
    assert set(filled["object"].map(type)) == {bool}
    assert set(filled["town"]) <= {"Bern", "Basel", "Genf"}
    assert (filled["children"] == filled["children"].round()).all()


def test_multiple_imputation_and_intervals() -> None:
    x = numbers()
    imputer = quick().fit(x)
    first, again = (imputer.multiple(x, 3, random_state=1) for _ in range(2))
    assert len(first) == 3
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)
    hole = np.isnan(x)
    assert (first[0][hole] != first[1][hole]).all()
    lower, upper = imputer.intervals(x, coverage=0.8)
    wide = imputer.intervals(x, coverage=0.95)
    assert (np.isnan(lower) == ~hole).all()
    assert (wide[0][hole] < lower[hole]).all() and (lower[hole] < upper[hole]).all()
    assert (upper[hole] < wide[1][hole]).all()
    table = frame()
    low, high = quick().fit(table).intervals(table)
    assert low.index.equals(table.index) and list(low.columns) == list(table.columns)
    assert (low["height"].notna() == table["height"].isna()).all() and low["town"].isna().all()
    assert (high["height"].dropna() > low["height"].dropna()).all()


def test_empty_features_are_left_out_or_filled_with_zeros() -> None:
    x = np.column_stack([numbers(), np.full(150, np.nan)])[:, [0, 3, 1, 2]]
    imputer = quick().fit(x)
    assert imputer.transform(x).shape == (150, 3) and imputer.empty_features_ == ("x1",)
    assert list(imputer.get_feature_names_out()) == ["x0", "x2", "x3"]
    kept = quick(keep_empty_features=True).fit(x)
    filled = kept.transform(x)
    assert filled.shape == (150, 4) and (filled[:, 1] == 0).all()
    assert kept.intervals(x)[0].shape == (150, 4)
    # A value there later on is kept, or left out with its column.
    x[0, 1] = 5.0
    assert kept.transform(x)[0, 1] == 5.0 and imputer.transform(x).shape == (150, 3)
    table = pd.DataFrame(x, columns=list("abcd")).assign(b=None)
    assert list(quick().fit_transform(table).columns) == ["a", "c", "d"]
    with pytest.raises(InputError, match="expected a value in some column"):
        quick().fit(np.full((5, 2), np.nan))


def test_rows_columns_and_values_at_the_edge() -> None:
    x = numbers()
    x[3] = np.nan  # nothing is known of this row
    x[:, 2] = np.where(np.arange(150) == 5, 7.0, np.nan)  # one value
    imputer = quick().fit(x)
    filled = imputer.transform(x)
    assert np.isfinite(filled).all() and (filled[:, 2] == 7.0).all()
    assert imputer.transform(np.full((2, 3), np.nan)).shape == (2, 3)
    with pytest.raises(InputError, match="expected a column whose known values differ"):
        quick().fit([[1.0, np.nan], [1.0, 2.0], [np.nan, 2.0]])
    with pytest.raises(InputError, match="at least two rows with a value"):
        quick().fit([[1.0, 2.0], [np.nan, np.nan]])
    with pytest.raises(ValueError, match="infinity"):
        imputer.transform([[np.inf, 1.0, 2.0]])
    with pytest.raises(InputError, match="expected a strategy among"):
        quick(strategy="mode").fit(x)
    with pytest.raises(NotFittedError):
        quick().multiple(x)


def test_unseen_categories_are_kept_and_columns_can_be_chosen() -> None:
    table = frame()[["height", "town"]]
    imputer = quick(columns={"height": "linear"}).fit(table)
    assert [column["kind"] for column in imputer.columns_] == ["real", "category"]
    strange = pd.DataFrame({"height": [np.nan, 180.0], "town": ["Rome", None]})
    filled = imputer.transform(strange)
    assert filled["town"][0] == "Rome" and filled["town"][1] in {"Bern", "Basel", "Genf"}
    assert np.isfinite(filled["height"]).all()
    with pytest.raises(InputError, match="expected columns among"):
        quick(columns={"age": "real"}).fit(table)


def test_tables_of_arcsm_are_taken_too() -> None:
    table = frame()[["height", "town"]]
    filled = quick().fit_transform(as_table(table))
    assert isinstance(filled, Table)
    expected = quick().fit_transform(table)
    np.testing.assert_array_equal(filled["height"], expected["height"].to_numpy())
    assert filled["town"].tolist() == expected["town"].tolist()


def test_pipelines_clones_and_output() -> None:
    x, y = numbers(), np.arange(150.0)
    pipeline = make_pipeline(quick(), LinearRegression()).fit(x, y)
    assert np.isfinite(pipeline.predict(x)).all()
    imputer = clone(quick(strategy="median")).set_output(transform="pandas").fit(x)
    assert isinstance(imputer.transform(x), pd.DataFrame)
    assert list(imputer.get_feature_names_out(["a", "b", "c"])) == ["a", "b", "c"]
    with pytest.raises(ValueError, match="input_features is not equal"):
        imputer.get_feature_names_out(["a"])


def test_what_was_learned_comes_back_from_disk(tmp_path) -> None:
    table = frame()
    imputer = quick(strategy="median").fit(table)
    imputer.save(tmp_path / "imputer")
    again = ARCSMImputer.load(tmp_path / "imputer")
    assert again.transform(table).equals(imputer.transform(table))
    assert again.get_params() == {**imputer.get_params(), "hidden": (16, 16)}
    assert list(again.feature_names_in_) == list(table.columns)
    with pytest.raises(CheckpointError, match="expected an ARCSMDensity"):
        ARCSMDensity.load(tmp_path / "imputer")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="holds other files"):
        imputer.save(tmp_path / "other")


def test_a_density_can_be_used_to_fill_holes() -> None:
    x = numbers()
    whole = x[~np.isnan(x).any(1)]
    for order in ("any", "natural"):
        density = ARCSMDensity(order=order, max_steps=10, hidden=(16, 16), random_state=0)
        imputer = ARCSMImputer.from_density(density.fit(whole), strategy="median")
        filled = imputer.transform(x)
        assert np.isfinite(filled).all()
        np.testing.assert_array_equal(filled[~np.isnan(x)], x[~np.isnan(x)])
    ensemble = ARCSMDensity(ensemble=2, max_steps=5, hidden=(8, 8), random_state=0).fit(whole)
    with pytest.raises(InputError, match="got an ensemble"):
        ARCSMImputer.from_density(ensemble)


def test_numbers_of_numpy_are_numbers() -> None:
    x = numbers()
    imputer = quick().fit(x)
    drawn = imputer.multiple(x, np.int64(2), random_state=1)
    np.testing.assert_array_equal(drawn, imputer.multiple(x, 2, random_state=1))
    for one, other in zip(
        imputer.intervals(x, np.float32(0.5)), imputer.intervals(x, 0.5), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_lists_become_numbers() -> None:
    filled = quick().fit_transform([[1, None], [2, 3], [4, 5.0]])
    assert filled.dtype == np.float64 and filled[1:].tolist() == [[2, 3], [4, 5]]
    assert np.isfinite(filled).all()


def test_empty_columns_of_every_type_are_filled() -> None:
    table = frame()[["height"]].assign(
        word=pd.array([None] * 150, dtype="string"),
        grade=pd.Categorical([None] * 150, categories=["b", "a"]),
        member=pd.array([None] * 150, dtype="boolean"),
        rooms=pd.array([None] * 150, dtype="Int64"),
        object=pd.Series([None] * 150, dtype=object),
    )
    imputer = quick(keep_empty_features=True).fit(table)
    filled = imputer.transform(table)
    assert (filled.dtypes == table.dtypes).all() and not filled.isna().any().any()
    assert filled.iloc[0, 1:].tolist() == ["", "b", False, 0, 0]
    later = table[:2].assign(word=pd.array(["here", None], dtype="string"))
    assert imputer.transform(later)["word"].tolist() == ["here", ""]
    assert imputer.transform(as_table(later))["word"].tolist() == ["here", ""]
    without = table.assign(grade=pd.Categorical([None] * 150))
    with pytest.raises(InputError, match="expected a category to fill the empty column 'grade'"):
        quick(keep_empty_features=True).fit_transform(without)


def test_objects_are_what_they_were_in_fit(tmp_path) -> None:
    """Whatever the other rows are that come with them, if any."""
    table = frame()[["height", "object"]]
    counts = np.random.default_rng(0).poisson(2, 150)
    table["whole"] = pd.Series([int(c) for c in counts], dtype=object, index=table.index)
    table["real"] = pd.Series([float(c) for c in counts[::-1]], dtype=object, index=table.index)
    table.iloc[::7, 2:] = None
    imputer = quick().fit(table)
    imputer.save(tmp_path / "imputer")
    alone = pd.DataFrame({"height": [170.0]}).assign(object=None, whole=None, real=None)
    alone = alone.astype({"object": object, "whole": object, "real": object})
    for own in (imputer, ARCSMImputer.load(tmp_path / "imputer")):
        filled = own.transform(alone).iloc[0]
        assert [type(filled[n]) for n in ("object", "whole", "real")] == [bool, int, float]


def test_an_imputer_of_an_earlier_release_is_loaded(tmp_path, monkeypatch) -> None:
    """It said whether it had seen a data frame, and nothing of objects."""
    table = frame()[["height", "town"]]
    imputer = quick().fit(table)
    write = imputer_module.save_tabular

    def write_as_before(*args: object, details: dict) -> None:
        del details["objects"]
        write(*args, details={**details, "frame": True})

    monkeypatch.setattr(imputer_module, "save_tabular", write_as_before)
    imputer.save(tmp_path / "imputer")
    again = ARCSMImputer.load(tmp_path / "imputer")
    assert again.transform(table).equals(imputer.transform(table))
