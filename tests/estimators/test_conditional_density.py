"""`ARCSMDensity(conditional_on=…)`: densities, quantiles, means and samples given covariates."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import kstest, norm

from arcsm import ARCSMDensity, InputError
from arcsm.data.table import as_table
from arcsm.tabular import TabularModel
from arcsm.tabular.predict import predict


def quick(**parameters: object) -> ARCSMDensity:
    return ARCSMDensity(
        **{
            "max_steps": 2,
            "hidden": (16, 16),
            "ensemble": 2,
            "random_state": 0,
            "conditional_on": ["x", "city"],
            **parameters,
        }
    )


def frame(rows: int = 150, seed: int = 0) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    x = random.uniform(-2, 2, rows)
    return pd.DataFrame(
        {
            "x": x,
            "y": 1 + 2 * x + np.exp(0.5 * x) * random.normal(size=rows),
            "city": random.choice(["Bern", "Basel", "Chur"], rows),
        }
    )


@pytest.fixture(scope="module")
def density() -> ARCSMDensity:
    """A model of y given x and city that has hardly been trained."""
    return quick().fit(frame())


@pytest.fixture(scope="module")
def trained() -> ARCSMDensity:
    """A model of y = 1 + 2 x + e^{x/2} N(0, 1) given x alone, trained for a moment."""
    return ARCSMDensity(
        conditional_on=["x"],
        ensemble=2,
        hidden=(32, 32),
        max_steps=300,
        learning_rate=0.02,
        random_state=0,
    ).fit(frame(1000)[["x", "y"]])


# Known answers


def test_quantiles_of_a_line_with_changing_noise(trained: ARCSMDensity) -> None:
    x = np.array([-1.5, -0.5, 0.5, 1.5])
    levels = np.array([0.05, 0.25, 0.5, 0.75, 0.95])
    exact = (1 + 2 * x)[:, None] + np.exp(0.5 * x)[:, None] * norm.ppf(levels)
    found = trained.quantile({"x": x}, levels)
    # Within so many deviations of the noise, of 1000 rows; farther out there are few.
    allowed = np.array([0.5, 0.2, 0.2, 0.2, 0.5])
    assert (np.abs(found - exact) < allowed * np.exp(0.5 * x)[:, None]).all()
    assert (np.abs(trained.mean({"x": x}) - (1 + 2 * x)) < 0.25 * np.exp(0.5 * x)).all()
    # The noise at 1.5 is 4.5 times that at −1.5.
    width = np.diff(trained.interval({"x": x}, 0.9), axis=1)[:, 0]
    assert 2.5 < width[-1] / width[0] < 7


def test_log_density_of_unseen_rows_is_close_to_the_truth(trained: ARCSMDensity) -> None:
    fresh = frame(1000, seed=1)[["x", "y"]]
    spread = np.exp(0.5 * fresh["x"])
    exact = norm.logpdf(fresh["y"], 1 + 2 * fresh["x"], spread)
    lost = np.mean(exact - trained.score_samples(fresh))
    # A line with equal noise everywhere, the best without the covariate's say, would lose more.
    equal = np.mean(
        exact - norm.logpdf(fresh["y"], 1 + 2 * fresh["x"], np.sqrt(np.mean(spread**2)))
    )
    assert -0.01 < lost < 0.04 < equal
    pit = trained.pit(fresh)["y"]
    assert kstest(pit, "uniform").statistic < 0.06
    assert trained.check(fresh).good


def test_log_density_integrates_to_1_over_the_target(density: ARCSMDensity) -> None:
    y = np.linspace(-40, 40, 4001)
    for x, city in ((-1.0, "Bern"), (1.9, "Chur")):
        rows = pd.DataFrame({"x": np.full(len(y), x), "y": y, "city": city})
        total = np.trapezoid(np.exp(density.score_samples(rows)), y)
        assert total == pytest.approx(1, abs=1e-3)


def test_mean_is_the_integral_of_the_density(density: ARCSMDensity) -> None:
    y = np.linspace(-40, 40, 4001)
    rows = pd.DataFrame({"x": np.full(len(y), 0.7), "y": y, "city": "Basel"})
    integral = np.trapezoid(y * np.exp(density.score_samples(rows)), y)
    assert density.mean({"x": 0.7, "city": "Basel"})[0] == pytest.approx(integral, abs=5e-3)


@pytest.mark.parametrize("members", [1, 3])
def test_quantiles_invert_the_distribution_function(members: int) -> None:
    density = quick(ensemble=members).fit(frame())
    levels = np.array([0.001, 0.05, 0.3, 0.5, 0.9, 0.999])
    given = frame(7, seed=3)[["x", "city"]]
    found = density.quantile(given, levels)
    assert found.shape == (7, 6) and (np.diff(found, axis=1) > 0).all()
    for place, level in enumerate(levels):
        rows = given.assign(y=found[:, place])[["x", "y", "city"]]
        np.testing.assert_allclose(density.pit(rows)["y"], level, atol=1e-6)


def test_quantiles_of_a_mixture_are_not_means_of_quantiles() -> None:
    """Those of the mixture lie between those of its members, but not in the middle."""
    density = quick(ensemble=2, max_steps=20).fit(frame())
    model, given, level = density.model_, frame(20, seed=4)[["x", "city"]], np.array([0.9])
    found = density.quantile(given, 0.9)
    alone = [
        predict(TabularModel(model.columns, member), as_table(given), ["y"], levels=level)
        for member in model.members
    ]
    one, other = (each["y"][:, 0] for each in alone)
    assert (found >= np.minimum(one, other) - 1e-6).all()
    assert (found <= np.maximum(one, other) + 1e-6).all()
    assert np.abs(found - (one + other) / 2).max() > 1e-5


def test_categories_have_probabilities_that_add_up_to_1() -> None:
    table = frame()
    density = quick(conditional_on=["x", "y"]).fit(table)
    total = np.zeros(5)
    for city in ("Bern", "Basel", "Chur"):
        total += np.exp(density.score_samples(table[:5].assign(city=city)))
    np.testing.assert_allclose(total, 1, atol=1e-9)
    with pytest.raises(InputError, match="have an order"):
        density.quantile(table, 0.5)
    with pytest.raises(InputError, match="no mean"):
        density.mean(table)


def test_targets_without_an_order_are_left_out_unless_named() -> None:
    table = frame().assign(member=lambda t: t["y"] > 0)[["city", "member", "x", "y"]]
    density = quick(conditional_on=["x"]).fit(table)
    options = {"draws": 50, "random_state": 0}
    given = table[["x"]][:3]
    quantiles = density.quantile(given, [0.1, 0.9], **options)
    assert quantiles.shape == (3, 2)
    np.testing.assert_array_equal(
        quantiles, density.quantile(given, [0.1, 0.9], columns=["y"], **options)
    )
    np.testing.assert_allclose(density.interval(given, 0.8, **options), quantiles, rtol=1e-9)
    # Of truth values there is a mean.
    both = density.mean(given, **options)
    assert both.shape == (3, 2) and ((both[:, 0] >= 0) & (both[:, 0] <= 1)).all()
    for name in ("city", "member"):
        with pytest.raises(InputError, match=f"have an order, got '{name}'"):
            density.quantile(given, 0.5, columns=["y", name], **options)
    with pytest.raises(InputError, match="no mean"):
        density.mean(given, columns=["city"], **options)
    alone = quick(conditional_on=["x", "y"], max_steps=1).fit(table)
    with pytest.raises(InputError, match="have an order"):
        alone.quantile(table[:3], 0.5)


def test_constants_and_copies_are_predicted_from_what_they_follow_from() -> None:
    table = frame().assign(
        one=7,
        falls=lambda t: 1 - 2 * t["y"],
        twice=lambda t: 2 * t["x"],
        member=lambda t: t["y"] > 0,
        not_member=lambda t: ~t["member"],
        kind="plain",
        copied=lambda t: t["city"],
    )
    density = quick(conditional_on=["x"]).fit(table[["x", "one", "falls", "twice", "y"]])
    assert density.order_ == ("falls",)  # y is the copy, on a line that falls
    given = table[["x"]][:4]
    found = density.quantile(given, [0.1, 0.3])
    one, falls, twice, y = found.transpose(1, 0, 2)
    assert (one == 7).all()
    np.testing.assert_allclose(twice, 2 * np.repeat(given.to_numpy(), 2, axis=1))
    upper = density.quantile(given, [0.9, 0.7], columns=["falls"])
    np.testing.assert_allclose(y, (1 - upper) / 2, atol=1e-6)
    assert (np.diff(y, axis=1) > 0).all() and (np.diff(falls, axis=1) > 0).all()
    mean = density.mean(given)
    np.testing.assert_allclose(mean[:, 3], (1 - mean[:, 1]) / 2, atol=1e-9)
    assert (mean[:, 0] == 7).all()
    np.testing.assert_array_equal(density.quantile(given, 0.5, columns=["one"]), [7] * 4)
    names = ["x", "member", "not_member", "kind", "city", "copied"]
    others = quick(conditional_on=["x"]).fit(table[names])
    true, false = others.mean(given, draws=20).T  # text has none, constant or not
    np.testing.assert_allclose(true + false, 1, atol=1e-12)
    for name in ("kind", "copied", "not_member"):
        with pytest.raises(InputError, match=f"have an order, got '{name}'"):
            others.quantile(given, 0.5, columns=[name])


def test_a_copy_of_what_is_known_is_known() -> None:
    table = frame()[["x", "y"]].assign(copy=lambda t: 3 * t["x"])
    plain = quick(conditional_on=None, order=["x", "y"]).fit(table)
    np.testing.assert_allclose(plain.quantile({"copy": [1.5]}, 0.5, columns=["x"]), [0.5])
    np.testing.assert_allclose(plain.mean({"x": [0.5]}, columns=["copy"]), [1.5])


def test_the_mean_of_truth_values_is_their_probability() -> None:
    table = frame().assign(member=lambda t: t["y"] > 0).drop(columns="y")
    density = quick(max_steps=30).fit(table)
    true = np.exp(density.score_samples(table[:6].assign(member=True)))
    false = np.exp(density.score_samples(table[:6].assign(member=False)))
    np.testing.assert_allclose(density.mean(table[:6]), true, atol=1e-9)
    np.testing.assert_allclose(true + false, 1, atol=1e-9)
    assert density.mean({"x": 1.9, "city": "Bern"}) > density.mean({"x": -1.9, "city": "Bern"})


def test_whole_numbers_have_whole_quantiles() -> None:
    random = np.random.default_rng(0)
    table = frame().assign(visits=lambda t: random.poisson(np.exp(0.5 * t["x"]))).drop(columns="y")
    density = quick().fit(table)
    given = {"x": 0.3, "city": "Bern"}
    values = np.arange(0, 60)
    rows = pd.DataFrame({"x": 0.3, "city": "Bern", "visits": values})
    probability = np.exp(density.score_samples(rows))
    assert probability.sum() == pytest.approx(1, abs=1e-6)
    for level in (0.05, 0.5, 0.8, 0.99):
        # The least value up to which there is so much probability.
        exact = values[np.searchsorted(np.cumsum(probability), level)]
        assert density.quantile(given, level)[0] == exact
    assert density.mean(given)[0] == pytest.approx(probability @ values, abs=1e-6)


# Samples


def test_samples_have_the_covariates_that_were_given(density: ARCSMDensity) -> None:
    given = frame(5, seed=2)[["city", "x"]]
    drawn = density.sample(given=given, random_state=1)
    assert list(drawn.columns) == ["x", "y", "city"] and len(drawn) == 5
    pd.testing.assert_frame_equal(drawn[["city", "x"]], given)
    assert drawn["y"].nunique() == 5
    pd.testing.assert_frame_equal(drawn, density.sample(given=given, random_state=1))


def test_samples_are_of_the_density_that_is_scored(density: ARCSMDensity) -> None:
    drawn = density.sample(2000, given={"x": 1.0, "city": "Chur"}, random_state=0)
    assert kstest(density.pit(drawn)["y"], "uniform").statistic < 0.035


def test_each_row_is_drawn_given_its_own_covariates(trained: ARCSMDensity) -> None:
    drawn = trained.sample(given=frame(1000, seed=8)[["x"]], random_state=0)
    assert kstest(trained.pit(drawn)["y"], "uniform").statistic < 0.05
    assert np.corrcoef(drawn["x"], drawn["y"])[0, 1] > 0.8


def test_whole_numbers_are_drawn_as_often_as_they_are_probable() -> None:
    random = np.random.default_rng(0)
    table = frame(300).assign(age=lambda t: np.rint(40 + 8 * t["x"] + 4 * random.normal(size=300)))
    table = table.astype({"age": int})[["x", "age"]]
    density = quick(conditional_on=["x"]).fit(table)
    drawn = density.sample(4000, given={"x": 1.0}, random_state=0)["age"]
    values = np.arange(drawn.min(), drawn.max() + 1)
    rows = pd.DataFrame({"x": 1.0, "age": values})
    probability = np.exp(density.score_samples(rows))
    counts = np.array([(drawn == value).mean() for value in values])
    assert drawn.dtype == np.int64 and np.abs(counts - probability).max() < 0.02


# Several targets, and models without covariates


def test_later_targets_are_predicted_from_draws() -> None:
    noise = 0.01 * np.random.default_rng(0).normal(size=150)
    table = frame().assign(z=lambda t: 3 * t["y"] + noise)
    density = quick(conditional_on=["x", "city"]).fit(table)
    given = table[["x", "city"]][:3]
    both = density.quantile(given, [0.1, 0.5], draws=400)
    assert both.shape == (3, 2, 2)
    np.testing.assert_allclose(
        both[:, 0], density.quantile(given, [0.1, 0.5], columns=["y"]), atol=1e-12
    )
    drawn = density.sample(4000, given={"x": given["x"][0], "city": given["city"][0]})
    share = (drawn["z"] <= both[0, 1, 1]).mean()
    assert share == pytest.approx(0.5, abs=0.1)
    # Given y it would be next to certain; given the covariates alone it varies as y does.
    width = np.diff(density.interval(given, 0.8, draws=400), axis=-1)[..., 0]
    np.testing.assert_allclose(width[:, 1], 3 * width[:, 0], rtol=0.2)
    assert density.mean(given, draws=50).shape == (3, 2)
    np.testing.assert_array_equal(
        density.quantile(given, 0.5, draws=50), density.quantile(given, 0.5, draws=50)
    )


def test_a_model_of_all_columns_predicts_along_its_order() -> None:
    table = frame()[["x", "y"]]
    plain = quick(conditional_on=None, order=["x", "y"]).fit(table)
    given = {"x": [0.5, -1.0]}
    found = plain.quantile(given, [0.2, 0.8])
    for place, level in enumerate((0.2, 0.8)):
        rows = pd.DataFrame({"x": [0.5, -1.0], "y": found[:, place]})
        np.testing.assert_allclose(plain.pit(rows)["y"], level, atol=1e-6)
    with pytest.raises(InputError, match="order of the model starts"):
        plain.quantile({"y": [0.5]}, 0.5)
    any_order = quick(conditional_on=None, order="any", ensemble=1).fit(table)
    assert any_order.quantile({"y": [0.5]}, 0.5).shape == (1,)
    with pytest.raises(InputError, match="names the columns"):
        plain.quantile(np.zeros((3, 1)), 0.5)
    with pytest.raises(InputError, match="a column that is not known"):
        plain.quantile(table, 0.5)


# What makes no difference


def test_quantiles_do_not_depend_on_the_target(density: ARCSMDensity) -> None:
    table = frame(6, seed=5)
    found = density.quantile(table, [0.1, 0.9])
    np.testing.assert_array_equal(
        found, density.quantile(table.assign(y=np.nan, other="?"), [0.1, 0.9])
    )
    np.testing.assert_array_equal(found, density.quantile(table[["city", "x"]], [0.1, 0.9]))
    np.testing.assert_array_equal(found, density.quantile(as_table(table), [0.1, 0.9]))


def test_rows_are_predicted_one_by_one(density: ARCSMDensity) -> None:
    table = frame(9, seed=6)
    order = np.random.default_rng(0).permutation(9)
    np.testing.assert_allclose(
        density.quantile(table, 0.3)[order], density.quantile(table.iloc[order], 0.3), atol=1e-9
    )
    np.testing.assert_allclose(
        density.score_samples(table)[order], density.score_samples(table.iloc[order]), atol=1e-9
    )
    np.testing.assert_allclose(density.mean(table)[:1], density.mean(table[:1]), atol=1e-9)
    ends = density.quantile(table[:3], [0.1, 0.9])
    np.testing.assert_allclose(density.interval(table[:3], 0.8), ends, atol=1e-9)


def test_positions_and_arrays() -> None:
    x = frame()[["x", "y"]].to_numpy()
    density = quick(conditional_on=[0]).fit(x)
    found = density.quantile(x[:4, :1], 0.5)
    np.testing.assert_array_equal(found, density.quantile(x[:4], 0.5))
    assert density.sample(given={0: 0.5}).shape == (1, 2)
    assert density.sample(3, given={0: 0.5})[:, 0].tolist() == [0.5] * 3
    with pytest.raises(InputError, match="1 covariates"):
        density.quantile(np.zeros((2, 5)), 0.5)


def test_covariates_of_whole_numbers_may_be_told_of_any() -> None:
    table = frame().assign(age=lambda t: np.rint(40 + 10 * t["x"]).astype(int))[["age", "y"]]
    density = quick(conditional_on=["age"]).fit(table)
    low, middle, high = density.quantile({"age": [40, 40.5, 41]}, 0.5)
    assert low != middle != high
    drawn = density.sample(given={"age": [40.0, 41.0]})
    assert drawn["age"].dtype == np.int64
    assert density.sample(given={"age": [40.5]})["age"][0] == 40.5


def test_saved_and_loaded(density: ARCSMDensity, tmp_path: Path) -> None:
    table = frame(4, seed=7)
    density.save(tmp_path / "model", data=frame(60), about_data="Rows.")
    again = ARCSMDensity.load(tmp_path / "model")
    assert again.conditional_on == ["x", "city"]
    np.testing.assert_array_equal(again.score_samples(table), density.score_samples(table))
    np.testing.assert_array_equal(again.quantile(table, 0.2), density.quantile(table, 0.2))
    card = (tmp_path / "model" / "README.md").read_text()
    assert "The density of y given x, city" in card and "| 50% | 80% | 90% | 95% |" in card
    assert (tmp_path / "model" / "pit.png").exists()


def test_covariates_take_no_part_in_the_chain(density: ARCSMDensity) -> None:
    assert density.order_ == ("y",)
    assert [column["kind"] for column in density.columns_] == [
        "given real",
        "real",
        "given category",
    ]
    assert len(quick(ensemble=None, max_steps=1).fit(frame()).model_.members) == 4
    # All of them in one order, so that there are conditionals to predict by.
    several = frame().assign(u=lambda t: t["y"] ** 2, v=lambda t: np.sin(t["y"]))
    assert quick(ensemble=4, max_steps=1).fit(several).order_ == ("y", "u", "v")
    plain = quick(ensemble=None, conditional_on=None, max_steps=1).fit(frame())
    assert len(plain.model_.members) == 1


def test_a_target_may_follow_from_a_covariate_that_stands_after_it() -> None:
    table = frame().assign(copy=lambda t: 3 * t["x"])[["copy", "y", "x"]]
    density = quick(conditional_on=["x"]).fit(table)
    assert density.order_ == ("y",)
    drawn = density.sample(given={"x": [0.5, 1.0]})
    np.testing.assert_allclose(drawn["copy"], [1.5, 3.0])
    assert np.isinf(density.score_samples(table[:1].assign(copy=9.0)))[0]


# Bad input


def test_what_cannot_be_fitted_is_said() -> None:
    table = frame()
    for covariates, message in (
        (["age"], "expected columns among"),
        (["x", "y", "city"], "no covariate"),
        ("x", "write \\['x'\\]"),
    ):
        with pytest.raises(InputError, match=message):
            quick(conditional_on=covariates).fit(table)
    with pytest.raises(InputError, match="column to model given"):
        quick(conditional_on=["x"]).fit(table[["x"]].assign(y=table["x"] * 2, one=1.0))
    for order in ("any", "auto"):
        for ensemble in (1, None):  # by default there are several models
            with pytest.raises(InputError, match="natural, random"):
                quick(order=order, ensemble=ensemble).fit(table)
    for twice in (["x", "x"], ["x", 0]):
        with pytest.raises(InputError, match="each covariate once"):
            quick(conditional_on=twice).fit(table)


def test_what_cannot_be_predicted_is_said(density: ARCSMDensity) -> None:
    table = frame(4)
    with pytest.raises(InputError, match="missing: \\['y'\\]"):
        density.score_samples(as_table(table[["x", "city"]]))
    with pytest.raises(ValueError, match="now missing:\n- y"):  # in the words of scikit-learn
        density.score_samples(table[["x", "city"]])
    with pytest.raises(InputError, match="'Rome'"):
        density.quantile(table.assign(city="Rome"), 0.5)
    with pytest.raises(InputError, match="no columns \\['city'\\]"):
        density.quantile(table[["x"]], 0.5)
    constant = quick(max_steps=1).fit(frame().assign(city="Bern"))
    assert constant.quantile(table.assign(city="Bern"), 0.5).shape == (4,)
    with pytest.raises(InputError, match=r"expected 'Bern' in column 'city'.*got 'Rome' in row 0"):
        constant.quantile(table.assign(city="Rome"), 0.5)
    with pytest.raises(InputError, match=r"got none of \['city'\]"):
        density.sample(given={"x": 1.0})
    with pytest.raises(InputError, match="covariates"):
        density.sample(3)
    with pytest.raises(InputError, match="missing value"):
        density.quantile(table.assign(x=np.nan), 0.5)
    for level in (0, 1, [0.5, 1.5], "half", [], [[0.5]]):
        with pytest.raises(InputError, match="levels of quantiles"):
            density.quantile(table, level)
    for coverage in (0, 1, 90, True, "most"):
        with pytest.raises(InputError, match="coverage"):
            density.interval(table, coverage)
    with pytest.raises(InputError, match="columns to predict among \\['y'\\]"):
        density.quantile(table, 0.5, columns=["x"])
    with pytest.raises(InputError, match="number of draws"):
        density.mean(table, draws=0)
