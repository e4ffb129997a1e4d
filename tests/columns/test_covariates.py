"""What a network is told of columns that are given."""

import json

import numpy as np
import pytest
from scipy.stats import norm

from arcsm.columns import Columns
from arcsm.columns.covariate import Covariate
from arcsm.data.table import Table, as_table
from arcsm.errors import InputError


def table(rows: int = 200) -> Table:
    random = np.random.default_rng(0)
    return Table(
        {
            "y": random.normal(size=rows),
            "x": np.exp(random.normal(size=rows)),
            "city": random.choice(["Bern", "Basel", "Chur"], rows).astype(object),
            "member": random.random(rows) < 0.3,
            "count": random.poisson(3.0, rows),
            "one": np.ones(rows),
        }
    )


def learned(*covariates: str) -> Columns:
    return Columns.learn(table(), covariates=covariates)


def test_covariates_have_features_and_no_scalars() -> None:
    columns = learned("x", "city", "member", "count", "one")
    assert columns.covariates == ("x", "city", "member", "count", "one")
    assert columns.scalars == 1 and not columns.scalars_of("x")
    encoded = columns.encode(table())
    # Two for a number, one for each of three cities, one for a truth value, none for a constant.
    assert columns.condition_dims == 2 + 3 + 1 + 2
    # With fewer rows for each covariate numbers are told by their values alone.
    few = Columns.learn(table(100), covariates=columns.covariates)
    assert few.condition_dims == 1 + 3 + 1 + 1
    assert encoded.condition is not None and encoded.condition.shape == (200, 8)
    assert np.isfinite(encoded.condition).all()


def test_without_covariates_nothing_is_told() -> None:
    columns = Columns.learn(table())
    assert columns.covariates == () and columns.condition_dims == 0
    assert columns.encode(table()).condition is None


def test_numbers_are_told_by_value_and_by_rank() -> None:
    data = table()
    kind = learned("x").kind("x")
    assert isinstance(kind, Covariate)
    value, rank = kind.features("x", data["x"]).T
    assert value.mean() == pytest.approx(0, abs=1e-9) and value.std() == pytest.approx(1)
    # Values are a lognormal sample: ranks are as good as their logarithms.
    inner = np.abs(np.log(data["x"])) < 2
    np.testing.assert_allclose(rank[inner], np.log(data["x"])[inner], atol=0.4)
    order = np.argsort(data["x"])
    assert (np.diff(value[order]) > 0).all() and (np.diff(rank[order]) >= 0).all()
    levels = (np.arange(200) + 0.5) / 200
    assert np.abs(norm.cdf(np.sort(rank)) - levels).max() < 0.03


def test_a_value_far_out_is_told_as_one_that_is_just_beyond() -> None:
    kind = learned("x").kind("x")
    assert isinstance(kind, Covariate)
    far, farther = kind.features("x", np.array([1e6, 1e9]))
    np.testing.assert_array_equal(far, farther)
    most = kind.features("x", np.array([table()["x"].max()]))[0]
    assert far[0] > most[0] and far[0] < 3 * most[0] and far[1] == most[1]
    # A covariate beyond its bounds makes no row impossible.
    rows = table(3)
    beyond = Table({**rows.columns, "x": np.array([-5.0, 0.0, 1e12])})
    assert not learned("x").encode(beyond).impossible.any()


def test_a_constant_has_to_stay_as_it_was() -> None:
    for covariates in (("one",), ("one", "x")):
        columns = learned(*covariates)
        rows = table(3)
        nearly = Table({**rows.columns, "one": np.array([1.0, 1.0, 1 + 1e-9])})
        assert not columns.encode(nearly).impossible.any()
        other = Table({**rows.columns, "one": np.array([1.0, 1.0, 2.0])})
        with pytest.raises(InputError, match=r"expected 1\.0 in column 'one'.*got 2\.0 in row 2"):
            columns.encode(other)


def test_categories_have_an_indicator_for_each_value() -> None:
    kind = learned("city").kind("city")
    assert isinstance(kind, Covariate)
    cities = np.array(["Bern", "Basel", "Chur", "Bern"], dtype=object)
    told = kind.features("city", cities)
    assert told.shape == (4, 3) and (told.sum(1) == 1).all()
    assert (told[0] == told[3]).all() and len(np.unique(told, axis=0)) == 3


def test_many_categories_differ_in_their_features() -> None:
    names = np.array([f"c{i:03d}" for i in range(100)], dtype=object)
    values = np.repeat(names, np.arange(102, 2, -1))
    columns = Columns.learn(Table({"c": values, "y": np.arange(len(values)) / 7}), covariates=["c"])
    kind = columns.kind("c")
    assert isinstance(kind, Covariate) and kind.width == 32 + 7
    assert len(np.unique(kind.features("c", names), axis=0)) == 100


def test_restored_from_json() -> None:
    columns = learned("x", "city", "member", "count", "one")
    again = Columns.from_config(json.loads(json.dumps(columns.config)))
    one, other = columns.encode(table()).condition, again.encode(table()).condition
    assert one is not None and other is not None
    np.testing.assert_array_equal(one, other)
    assert again.covariates == columns.covariates


def test_drawn_covariates_are_like_those_seen() -> None:
    columns, data = learned("x", "city", "member", "count", "one"), table()
    drawn = columns.draw_covariates(2000, np.random.default_rng(1))
    assert drawn.names == columns.covariates
    assert {name: values.dtype for name, values in drawn.columns.items()} == {
        name: data[name].dtype for name in drawn.names
    }
    for name in ("x", "count"):
        assert data[name].min() <= drawn[name].min() and drawn[name].max() <= data[name].max()
        assert np.median(drawn[name]) == pytest.approx(np.median(data[name]), rel=0.2)
    assert set(drawn["city"]) == {"Bern", "Basel", "Chur"}


def test_a_target_may_follow_from_a_covariate_but_not_the_other_way_round() -> None:
    x = np.random.default_rng(0).normal(size=50)
    both = as_table({"y": 2 * x + 1, "x": x, "z": x**2})
    columns = Columns.learn(both, covariates=["x"])
    kinds = [column["kind"] for column in columns.describe()]
    assert kinds[:2] == ["duplicate", "given real"]
    assert columns.scalars == 1
    decoded = columns.decode(columns.encode(both).point)
    assert decoded.names == ("y", "x", "z")
    np.testing.assert_allclose(decoded["y"], 1 + 2 * decoded["x"])


def test_covariates_that_follow_from_each_other_are_both_told() -> None:
    x = np.random.default_rng(0).normal(size=60)
    both = as_table({"x": x, "twice": 2 * x, "y": np.sin(5 * x)})
    columns = Columns.learn(both, covariates=["x", "twice"])
    assert [column["kind"] for column in columns.describe()][:2] == ["given real"] * 2
    # Nor is a row impossible in which they do not.
    other = Table({**both.columns, "twice": x})
    assert not columns.encode(other).impossible.any()
