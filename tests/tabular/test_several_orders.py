"""Ensembles, learned orders and models of any order, as models of tables."""

import copy
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from arcsm.agnostic import OrderAgnosticARCSM
from arcsm.columns import Columns
from arcsm.data.table import Table, as_table
from arcsm.ensemble import Ensemble
from arcsm.errors import InputError
from arcsm.ordering import LearnedOrder
from arcsm.tabular import (
    Settings,
    TabularModel,
    fit_table,
    fitting,
    load_tabular,
    save_tabular,
)
from arcsm.tabular.ordering import race_seconds, seconds_left

ORDER = ("colour", "count", "real")


def mixed_table(rows: int = 200, seed: int = 0) -> Table:
    random = np.random.default_rng(seed)
    real = random.normal(3.0, 2.0, rows)
    return as_table(
        {
            "real": real,
            "count": random.poisson(np.exp(0.2 * real)),
            "colour": random.choice(["red", "green", "blue"], rows, p=[0.5, 0.3, 0.2]),
            "copy": 2 * real + 1,
        }
    )


def untrained(table: Table, *, seed: int = 0, **settings: Any) -> TabularModel:
    """Return a model whose weights are random, of members that are far from alike."""
    columns = Columns.learn(table)
    points = columns.encode(table).point
    model = Settings(hidden=(16, 16), **settings).model(columns, points, seed)
    model.standardise(torch.from_numpy(points).float())
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return TabularModel(columns, model)


def alone(model: TabularModel) -> list[TabularModel]:
    return [TabularModel(model.columns, member) for member in model.members]


def quick(**changes: Any) -> Settings:
    return Settings(**{"max_steps": 4, "hidden": (16, 16), **changes})


# What an ensemble is made of.


def test_orders_of_the_members() -> None:
    table = mixed_table()
    named = untrained(table, order=ORDER, ensemble=3)
    assert named.order == ORDER and [m.order for m in alone(named)] == [ORDER] * 3
    weights = [next(member.parameters()).detach() for member in named.members]
    assert not torch.equal(weights[0], weights[1])  # seeds differ
    natural = untrained(table, ensemble=5)
    orders = [member.order for member in alone(natural)]
    assert orders[0] == ("real", "count", "colour") and len(set(orders)) > 1
    assert natural.order == ()
    one = untrained(table, order="random", seed=4).order
    several = [m.order for m in alone(untrained(table, order="random", seed=4, ensemble=5))]
    assert several[0] == one and len(set(several)) > 1
    for member in natural.members:  # the two digits of the colour
        place = member.context.order.index
        assert place(3) == place(2) + 1
    again = untrained(table, ensemble=5)
    assert [member.order for member in alone(again)] == orders
    assert [m.order for m in alone(untrained(table, ensemble=5, seed=7))] != orders


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"ensemble": 0}, "1 to 100, got 0"),
        ({"ensemble": 10**9}, "1 to 100, got 1000000000"),
        ({"ensemble": True}, "got True"),
        ({"ensemble": 2.0}, "got 2.0"),
        ({"order": "best"}, "natural, random, auto, any"),
        ({"order": "any", "ensemble": 2}, "leave one of the two out"),
        ({"max_steps": 0}, "expected max_steps as a whole number, 1 or more, got 0"),
        ({"max_steps": 1.5}, "max_steps as a whole number, 1 or more, got 1.5"),
        ({"max_steps": True}, "max_steps .* got True"),
        ({"max_steps": np.float64(3)}, "max_steps .* got"),
        ({"max_seconds": 0}, "expected max_seconds as a number above 0, got 0"),
        ({"max_seconds": -1.0}, "max_seconds .* got -1.0"),
        ({"max_seconds": float("nan")}, "max_seconds .* got nan"),
        ({"max_seconds": float("inf")}, "max_seconds .* got inf"),
        ({"max_seconds": "60"}, "max_seconds .* got '60'"),
        ({"batch_size": 0}, "expected batch_size as a whole number, 1 or more, got 0"),
        ({"learning_rate": 0.0}, "expected learning_rate as a number above 0, got 0.0"),
        ({"validation_fraction": 1}, "expected validation_fraction as a share .* got 1"),
        ({"validation_fraction": -0.1}, "validation_fraction .* got -0.1"),
    ],
)
def test_settings_that_cannot_be(wrong: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason) as error:
        Settings(**wrong)
    assert "TrainConfig" not in str(error.value)


def test_numbers_of_numpy_are_numbers() -> None:
    settings = Settings(
        max_steps=np.int64(5), max_seconds=np.float32(2), validation_fraction=np.float64(0)
    )
    training = settings.training(50, 0)
    assert (training.steps, training.max_seconds, training.validation) == (5, 2.0, 0.0)
    assert type(training.steps) is int  # as a checkpoint can hold it


def test_an_order_that_nobody_learned_is_refused() -> None:
    with pytest.raises(InputError, match="learn it first"):
        untrained(mixed_table(), order="auto")


# Densities.


@pytest.mark.parametrize("order", ["natural", ORDER], ids=["several orders", "one order"])
def test_the_density_is_the_mean_of_those_of_the_members(order: Any) -> None:
    table = mixed_table()
    model = untrained(table, order=order, ensemble=3)
    few = table.take(slice(0, 40))
    each = np.array([member.log_prob(few) for member in alone(model)])
    assert each.std(0).mean() > 0.1
    np.testing.assert_allclose(np.exp(model.log_prob(few)), np.exp(each).mean(0), rtol=1e-6)


@pytest.mark.parametrize("order", ["natural", ORDER], ids=["several orders", "one order"])
def test_probabilities_of_an_ensemble_add_up_to_one(order: Any) -> None:
    """Of a table of categories, with digits that are certain among them."""
    random = np.random.default_rng(0)
    table = as_table(
        {
            "letter": random.choice(list("abcde"), 300, p=[0.4, 0.2, 0.2, 0.1, 0.1]),
            "flag": random.random(300) < 0.4,
        }
    )
    order = order if order == "natural" else ["flag", "letter"]
    model = untrained(table, order=order, ensemble=4)
    cells = list(itertools.product("abcde", [False, True]))
    listed = as_table({"letter": [c for c, _ in cells], "flag": [f for _, f in cells]})
    probability = np.exp(model.log_prob(listed))
    assert probability.sum() == pytest.approx(1, abs=1e-6)
    rows = 6_000
    sample = model.sample(rows, generator=torch.Generator().manual_seed(0))
    for (letter, flag), expected in zip(cells, probability, strict=True):
        found = np.mean((sample["letter"] == letter) & (sample["flag"] == flag))
        assert abs(found - expected) < 4.5 * math.sqrt(expected * (1 - expected) / rows) + 1e-4


def test_terms_of_one_order_are_the_conditionals_of_the_mixture() -> None:
    table = mixed_table()
    model = untrained(table, order=ORDER, ensemble=3)
    few = table.take(slice(0, 30))
    terms = model.log_prob_terms(few)
    np.testing.assert_allclose(terms.sum(1), model.log_prob(few), atol=1e-9)
    each = np.exp([member.log_prob_terms(few) for member in alone(model)])
    places = [model.columns.names.index(name) for name in ORDER]
    for count, place in enumerate(places):
        joint, before = (each[..., places[:k]].prod(-1).mean(0) for k in (count + 1, count))
        np.testing.assert_allclose(np.exp(terms[:, place]), joint / before, rtol=1e-5)
        only = model.log_prob_terms(few, only=ORDER[count])
        np.testing.assert_allclose(only[:, place], terms[:, place], atol=1e-9)
        assert not np.delete(only, place, 1).any()
    values = np.array(["red", "green", "blue"], dtype=object)
    assert np.exp(model.conditional_log_prob(few.take([0]), "colour", values)).sum() == (
        pytest.approx(1, abs=1e-6)
    )


def test_terms_of_several_orders_are_weighed_by_shares() -> None:
    table = mixed_table()
    model = untrained(table, ensemble=3)
    few = table.take(slice(0, 30))
    each = np.array([member.log_prob_terms(few) for member in alone(model)])
    share = np.exp(each.sum(-1)) / np.exp(each.sum(-1)).sum(0)
    expected = (share[..., None] * each).sum(0)
    log_prob, terms = model.log_prob_and_terms(few)
    np.testing.assert_allclose(terms, expected, atol=1e-6)
    np.testing.assert_array_equal(log_prob, model.log_prob(few))
    excess = terms.sum(1) - log_prob
    assert (excess > -1e-9).all() and (excess < math.log(3)).all() and excess.max() > 1e-3
    only = model.log_prob_terms(few, only="count")
    np.testing.assert_allclose(only[:, 1], terms[:, 1], atol=1e-9)


def test_copies_of_one_model_are_that_model() -> None:
    table = mixed_table()
    one = untrained(table)
    twice = TabularModel(one.columns, Ensemble([one.model, copy.deepcopy(one.model)]))
    assert twice.order == one.order and len(twice.members) == 2
    few = table.take(slice(0, 30))
    np.testing.assert_allclose(twice.log_prob(few), one.log_prob(few), atol=1e-9)
    np.testing.assert_allclose(twice.log_prob_terms(few), one.log_prob_terms(few), atol=1e-9)
    pits = [m.pit(few, random=np.random.default_rng(0)) for m in (one, twice)]
    assert set(pits[0]) == set(pits[1]) == {"real", "count", "colour"}
    for name in pits[0]:
        np.testing.assert_allclose(pits[0][name], pits[1][name], atol=1e-9)


def test_pit_of_samples_of_a_mixture_is_uniform() -> None:
    model = untrained(mixed_table(), order=ORDER, ensemble=3)
    sample = model.sample(300, generator=torch.Generator().manual_seed(2))
    for values in model.pit(sample, random=np.random.default_rng(0)).values():
        distance = np.abs(np.sort(values) - (np.arange(300) + 0.5) / 300).max()
        assert distance < 1.95 / math.sqrt(300)  # exceeded once in a thousand


def test_pit_of_a_mixture_weighs_members_by_what_came_before() -> None:
    table = mixed_table()
    model = untrained(table, order=ORDER, ensemble=3)
    few = table.take(slice(0, 30))
    places = [model.columns.names.index(name) for name in ORDER[:2]]
    before = np.exp([m.log_prob_terms(few)[:, places].sum(1) for m in alone(model)])
    each = [m.pit(few, random=np.random.default_rng(0))["real"] for m in alone(model)]
    expected = (before * each).sum(0) / before.sum(0)
    assert np.abs(expected - np.mean(each, 0)).max() > 1e-3
    found = model.pit(few, random=np.random.default_rng(0))["real"]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_rows_of_a_mixture_by_members_drawn_by_their_shares_are_uniform() -> None:
    model = untrained(mixed_table(), ensemble=2)
    with torch.no_grad():  # members that overlap, but are not alike
        for sign, member in zip((-1, 1), model.members, strict=True):
            member.shift[0] += 1.5 * sign
    assert model.order == ()
    sample = model.sample(400, generator=torch.Generator().manual_seed(2))

    def distances(table: Table) -> dict[str, float]:
        pit = model.pit_of_members(table, random=np.random.default_rng(0))
        assert set(pit) == {"real", "count", "colour"}
        places = (np.arange(400) + 0.5) / 400
        return {name: float(np.abs(np.sort(u) - places).max()) for name, u in pit.items()}

    limit = 1.95 / math.sqrt(400)  # exceeded once in a thousand
    assert max(distances(sample).values()) < limit
    moved = {"real": sample["real"] + 2, "copy": sample["copy"] + 4}
    assert distances(Table({**sample.columns, **moved}))["real"] > limit


def test_conditionals_of_several_orders_are_refused() -> None:
    table = mixed_table()
    model = untrained(table, ensemble=3)
    advice = r"order=\[names\] with ensemble=K"
    with pytest.raises(InputError, match=advice):
        model.pit(table, random=np.random.default_rng(0))
    with pytest.raises(InputError, match=advice):
        model.conditional_log_prob(table.take([0]), "real", np.zeros(2))


def test_rows_come_from_the_members_in_random_order() -> None:
    """Members that never agree show which row is whose."""
    model = untrained(mixed_table(), order=ORDER, ensemble=2)
    with torch.no_grad():
        for sign, member in zip((-1, 1), model.members, strict=True):
            member.shift[0] += sign * 1000  # of the real column, in standard deviations
    sample = model.sample(800, generator=torch.Generator().manual_seed(0))
    high = sample["real"] > 0
    assert abs(high.mean() - 0.5) < 0.08
    changes = np.count_nonzero(high[1:] != high[:-1])
    assert abs(changes / 799 - 0.5) < 0.08
    np.testing.assert_allclose(sample["copy"], 2 * sample["real"] + 1)
    assert sample["count"].dtype == np.int64 and (sample["count"] >= 0).all()
    assert np.isfinite(model.log_prob(sample)).all()


@pytest.mark.parametrize("kind", [{"ensemble": 2}, {"order": "any"}, {}])
def test_samples_do_not_depend_on_how_they_are_batched(
    kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values are moved to what they stand for, whichever rows are drawn at one time."""
    model = untrained(mixed_table(), **kind)
    monkeypatch.setattr("arcsm.sampling.batches._NUMBERS", 3000)  # a few rows
    sample = model.sample(60, generator=torch.Generator().manual_seed(0))
    assert sample.rows == 60 and sample["count"].dtype == np.int64
    assert set(sample["colour"]) <= {"red", "green", "blue"}
    assert np.isfinite(model.log_prob(sample)).all()


# Fitting, and on disk.


@pytest.mark.parametrize(
    "settings", [{"ensemble": 2}, {"order": "any"}, {"order": ORDER, "ensemble": 2}]
)
def test_what_is_trained_is_what_was_asked_for(settings: dict[str, Any], tmp_path: Any) -> None:
    table = mixed_table()
    model, _ = fit_table(table, quick(**settings), seed=3)
    same, _ = fit_table(table, quick(**settings), seed=3)
    kind = Ensemble if "ensemble" in settings else OrderAgnosticARCSM
    assert isinstance(model.model, kind) and model.any_order == (settings.get("order") == "any")
    fresh = mixed_table(30, seed=9)
    np.testing.assert_array_equal(model.log_prob(fresh), same.log_prob(fresh))
    save_tabular(tmp_path / "m", model, details={})
    loaded, _ = load_tabular(tmp_path / "m")
    assert loaded.order == model.order and isinstance(loaded.model, kind)
    np.testing.assert_array_equal(loaded.log_prob(fresh), model.log_prob(fresh))


@pytest.fixture
def learned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Put a rule in the place of the search for an order; the calls of it."""
    calls: list[tuple[Any, ...]] = []

    def race(*arguments: Any, **options: Any) -> LearnedOrder:
        calls.append(arguments)
        order = [scalar for name in ORDER for scalar in arguments[1].scalars_of(name)]
        return LearnedOrder(tuple(order), (), (), 0.0)

    monkeypatch.setattr("arcsm.tabular.fitting.race_columns", race)
    return calls


def test_a_learned_order_is_kept_with_the_model(
    learned: list[tuple[Any, ...]], tmp_path: Any
) -> None:
    table = mixed_table()
    weight = np.r_[0.0, np.ones(199)]
    model, _ = fit_table(table, quick(order="auto"), weight=weight, seed=5)
    assert model.order == ORDER
    ((settings, columns, points, spread, weights, seed),) = learned
    assert settings.order == "auto" and columns.names == table.names and seed == 5
    assert points.shape == spread.shape == (199, 4) and len(weights) == 199
    save_tabular(tmp_path / "m", model, details={})
    assert load_tabular(tmp_path / "m")[0].order == ORDER
    several, _ = fit_table(table, quick(order="auto", ensemble=4))
    orders = [member.order for member in alone(several)]
    assert orders[0] == ORDER and several.order == ()


@pytest.mark.parametrize("settings", [{}, {"ensemble": 2}])
def test_an_order_is_not_learned_again_when_a_run_goes_on(
    learned: list[tuple[Any, ...]], settings: dict[str, Any], tmp_path: Any
) -> None:
    table, how = mixed_table(), quick(order="auto", **settings)
    whole, _ = fit_table(table, how, directory=tmp_path / "run")
    again, _ = fit_table(table, how, directory=tmp_path / "run", resume=True)
    assert len(learned) == 1
    fresh = mixed_table(20, seed=9)
    np.testing.assert_array_equal(whole.log_prob(fresh), again.log_prob(fresh))
    tensors = load_file(tmp_path / "run" / "model.safetensors")
    assert set(tensors) == set(whole.model.state_dict())


@pytest.mark.parametrize(("raced", "left"), [(1.0, 400.0), (450.0, 150.0), (900.0, 60.0)])
def test_learning_the_order_takes_its_part_of_the_time(
    raced: float, left: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """Of 600 s the race may take 200, if the usual limit of it is not less."""
    monkeypatch.setattr("arcsm.tabular.ordering.race_seconds", lambda whole: whole / 3)
    order = tuple(range(4))
    monkeypatch.setattr(
        "arcsm.tabular.fitting.race_columns",
        lambda *_, **__: LearnedOrder(order, (), (), raced),
    )
    limits = []
    honest = fitting.fit

    def fit(model: Any, points: Any, config: Any, **options: Any) -> Any:
        limits.append(config.max_seconds)
        return honest(model, points, config, **options)

    monkeypatch.setattr(fitting, "fit", fit)
    how = quick(order="auto", max_seconds=600.0)
    for resume in (False, True):
        fit_table(mixed_table(), how, directory=tmp_path, resume=resume)
    assert limits == [pytest.approx(left)] * 2


def test_a_race_has_a_third_of_the_time_and_no_more_than_usual() -> None:
    assert race_seconds(None) == race_seconds(1e6) == 50.0
    assert race_seconds(60.0) == pytest.approx(20.0)
    assert seconds_left(3600.0) == 3550.0 and seconds_left(60.0) == pytest.approx(40.0)
