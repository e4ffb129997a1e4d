import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from arcsm.columns import Columns
from arcsm.data.table import as_table
from arcsm.errors import InputError, NonFiniteLossError
from arcsm.model import ARCSM
from arcsm.ordering import learn_order, race_rows
from arcsm.ordering.race import _Race
from arcsm.ordering.rules import (
    candidate_orders,
    greedy_order,
    negentropy,
    order_of_groups,
    tree_r2,
)
from arcsm.tabular import Settings, fit_table
from arcsm.tabular.ordering import race_columns


def rows(count: int = 60, columns: int = 4, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return random.normal(size=(count, columns)) @ random.normal(size=(columns, columns))


def wave(count: int = 1500) -> np.ndarray:
    """y = cos 2.5x and a little noise; y comes first."""
    random = np.random.default_rng(0)
    x = random.normal(size=count)
    return np.stack([np.cos(2.5 * x) + 0.03 * random.normal(size=count), x], axis=1)


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[int, ...], np.ndarray]:
    """Put known log-densities of the judged rows in the place of trainings, by the order."""
    known: dict[tuple[int, ...], np.ndarray] = {}

    def train(self: _Race, model: ARCSM) -> np.ndarray:
        return known.get(model.context.order, np.full(len(self._judged), -5.0))

    monkeypatch.setattr(_Race, "_train", train)
    return known


# The race.


def test_a_cause_comes_before_what_it_does_not_follow_from() -> None:
    """Given y there are four x or so; given x there is one y, and a normal around it."""
    found = learn_order(wave(), steps=100)
    assert found.order == (1, 0)
    natural, other = found.candidates
    assert (natural.name, natural.order, natural.error) == ("natural", (0, 1), 0.0)
    assert other.log_prob - natural.log_prob > 3 * other.error > 0
    # What the true density has: that of a standard normal, and that of the noise.
    entropy = 2 * (0.5 * math.log(2 * math.pi) + 0.5) + math.log(0.03)
    assert -entropy - 1 < other.log_prob < -entropy + 0.2


def test_the_seed_decides_and_the_number_of_threads_does_not() -> None:
    x = rows()
    former = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = learn_order(x, steps=4, most=4, seed=3)
        torch.set_num_threads(2)
        two = learn_order(x, steps=4, most=4, seed=3)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(former)
    assert one.order == two.order and one.left_out == two.left_out == ()
    for a, b in zip(one.candidates, two.candidates, strict=True):
        assert (a.name, a.order, a.log_prob, a.error) == (b.name, b.order, b.log_prob, b.error)
    assert len({candidate.log_prob for candidate in one.candidates}) == 4
    other = learn_order(x, steps=4, most=4, seed=4)
    assert other.candidates[0].log_prob != one.candidates[0].log_prob


def test_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    learn_order(rows(), steps=1, most=2)
    torch.testing.assert_close(torch.rand(3), expected, rtol=0, atol=0)


def test_the_best_mean_wins(scored: dict[tuple[int, ...], np.ndarray]) -> None:
    x = rows(100)  # of which 30 are held out
    scored[3, 2, 1, 0] = np.r_[np.full(10, -8.0), np.full(20, -2.0)]  # a mean of −4
    found = learn_order(x)
    assert found.order == (3, 2, 1, 0)
    best = max(found.candidates, key=lambda candidate: candidate.log_prob)
    assert best.log_prob == pytest.approx(-4.0)
    # Differences of −3 and 3 around 1.
    assert best.error == pytest.approx(np.std([-3] * 10 + [3] * 20, ddof=1) / math.sqrt(30))
    assert len(found.candidates) == 20 and found.left_out == ()


def test_natural_unless_beaten(scored: dict[tuple[int, ...], np.ndarray]) -> None:
    found = learn_order(rows(100), most=5)
    assert found.order == (0, 1, 2, 3) and found.candidates[0].name == "natural"
    assert {candidate.log_prob for candidate in found.candidates} == {-5.0}


def test_rows_of_weight_0_take_no_part(scored: dict[tuple[int, ...], np.ndarray]) -> None:
    x = np.r_[rows(100), np.full((7, 4), 1e6)]
    scored[3, 2, 1, 0] = np.full(30, -4.0)
    weight = np.r_[np.full(100, 0.5), np.zeros(7)]
    assert learn_order(x, weight=weight).order == (3, 2, 1, 0)
    alone = learn_order(rows(100))
    assert learn_order(x, weight=weight).candidates[0].log_prob == alone.candidates[0].log_prob


def test_heavy_rows_count_for_more() -> None:
    """Few light rows from afar hardly move the mean, though they do without weights."""
    random = np.random.default_rng(0)
    x = np.r_[rows(90, 2), 1e3 * random.normal(size=(10, 2))][random.permutation(100)]
    light = np.abs(x).max(1) > 20
    weight = np.where(light, 1e-6, 1.0)
    weighted = learn_order(x, weight=weight, steps=5).candidates[0].log_prob
    only = learn_order(x, weight=np.where(light, 0.0, 1.0), steps=5).candidates[0].log_prob
    assert abs(weighted - only) < 3 < abs(learn_order(x, steps=5).candidates[0].log_prob - only)


def test_a_row_without_density_counts_as_the_lowest(
    scored: dict[tuple[int, ...], np.ndarray],
) -> None:
    scored[0, 1, 2, 3] = np.r_[np.full(29, -1.0), -math.inf]
    scored[3, 2, 1, 0] = np.full(30, -2.0)
    found = learn_order(rows(100))
    assert found.order == (0, 1, 2, 3)
    assert found.candidates[0].log_prob == pytest.approx((-29 - 5) / 30)


def test_an_order_that_cannot_be_trained_does_not_win(monkeypatch: pytest.MonkeyPatch) -> None:
    def fit(model: ARCSM, *_: Any, **__: Any) -> None:
        if model.context.order != (3, 2, 1, 0):
            raise NonFiniteLossError("no")
        model.standardise(torch.from_numpy(rows(100)).float())

    monkeypatch.setattr("arcsm.ordering.race.fit", fit)
    assert learn_order(rows(100), most=12).order == (3, 2, 1, 0)


def test_no_order_is_started_that_would_not_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0  # by a clock that only trainings move on, however busy the machine is

    def train(self: _Race, model: ARCSM) -> np.ndarray:
        nonlocal now
        now += 0.05
        return np.zeros(len(self._judged))

    monkeypatch.setattr(_Race, "_train", train)
    monkeypatch.setattr("arcsm.ordering.race.time", SimpleNamespace(monotonic=lambda: now))
    told: list[tuple[int, int]] = []
    short = learn_order(rows(), seconds=1e-6, progress=lambda *done: told.append(done))
    assert [candidate.name for candidate in short.candidates] == ["natural", "linear first"]
    assert len(short.left_out) == 18 and told == [(1, 20), (2, 20)]
    assert all(candidate.seconds >= 0.049 for candidate in short.candidates)
    monkeypatch.setattr("arcsm.ordering.race.candidate_orders", some_orders)
    longer = learn_order(rows(), seconds=0.4)
    assert 2 < len(longer.candidates) < 9 and longer.seconds <= 0.451
    assert len(longer.candidates) + len(longer.left_out) == 24


def some_orders(x: np.ndarray, groups: Any, **_: Any) -> dict[str, tuple[int, ...]]:
    """Return orders without a moment's thought."""
    return {str(order): order for order in itertools.permutations(range(len(groups)))}


def test_groups_stay_together(scored: dict[tuple[int, ...], np.ndarray]) -> None:
    found = learn_order(rows(100, 6), groups=[(4, 3), (0, 1)])
    assert found.candidates[0].order == (0, 1, 2, 4, 3, 5)
    for candidate in found.candidates:
        text = "".join(map(str, candidate.order))
        assert sorted(text) == list("012345") and "43" in text and "01" in text
    assert len(found.candidates) == 20
    apart = learn_order(rows(100, 4), groups=[(3, 0)])
    assert apart.candidates[0].order == (3, 0, 1, 2)


def test_what_there_is_no_choice_in_is_not_raced() -> None:
    for x, groups in ((rows(60, 1), None), (rows(60, 3), [(0, 1, 2)]), (rows(19, 3), None)):
        found = learn_order(x, groups=groups)
        assert found.order == tuple(range(x.shape[1])) and found.candidates == ()


def test_what_does_not_vary_among_the_rows_drawn_comes_last(
    scored: dict[tuple[int, ...], np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arcsm.ordering.race._MOST_ROWS", 100)
    x = rows(3000, 5)
    x[:, [1, 3]] = 0.0
    x[next(i for i in range(3000) if i not in race_rows(3000, 0)), [1, 3]] = 1.0
    scored[2, 1, 0] = np.full(30, -1.0)
    assert learn_order(x).order == (4, 2, 0, 1, 3)
    assert learn_order(x, groups=[(2, 3)]).order == (4, 2, 3, 0, 1)
    scored[0, 1, 2] = np.zeros(30)
    assert learn_order(x).order == (0, 1, 2, 3, 4)


def test_cells_are_judged_by_their_probability() -> None:
    """Of the whole line it is 1, of a whole number that of its cell, below 1 in any case."""
    x = np.round(3 * rows(60, 2))
    spread = np.full_like(x, 0.5)
    numbers = learn_order(x, spread=spread, steps=3)
    assert all(candidate.log_prob < 0 for candidate in numbers.candidates)
    line = np.full_like(x, math.inf)
    certain = learn_order(x, spread=spread, cells=(-line, line), steps=3)
    assert [c.log_prob for c in certain.candidates] == pytest.approx([0.0, 0.0], abs=1e-5)
    same = learn_order(x, spread=spread, cells=(x - spread, x + spread), steps=3)
    assert same.candidates[0].log_prob == numbers.candidates[0].log_prob
    density = learn_order(x, spread=spread, cells=(x, x), steps=3)
    assert density.candidates[0].log_prob != numbers.candidates[0].log_prob
    # Targets that are not spread are other targets.
    sharp = learn_order(x, cells=(x - spread, x + spread), steps=3)
    assert sharp.candidates[0].log_prob != numbers.candidates[0].log_prob


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": np.zeros((30, 2))}, "constant columns"),
        ({"x": rows()[0]}, "shape"),
        ({"seconds": 0}, "positive number of seconds"),
        ({"seconds": "5"}, "positive number of seconds"),
        ({"most": 0}, "most"),
        ({"most": 2.0}, "most"),
        ({"seed": -1}, "seed"),
        ({"steps": 0}, "steps"),
        ({"groups": [(0, 1), (1, 2)]}, "groups"),
        ({"groups": [(0, 4)]}, "groups"),
        ({"groups": [()]}, "groups"),
        ({"weight": np.ones(3)}, "weights"),
        ({"spread": -np.ones((60, 4))}, "spread"),
        ({"cells": (rows() + 1, rows())}, "cells"),
        ({"cells": (rows(5), rows(5))}, "cells"),
    ],
)
def test_what_cannot_be_used_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        learn_order(**{"x": rows(), **arguments})


# Candidates.


def test_all_orders_of_few_columns_and_no_order_twice() -> None:
    x = rows(50, 3)
    orders = candidate_orders(x, [(0,), (1,), (2,)], most=20, seed=0)
    assert sorted(orders.values()) == sorted(itertools.permutations(range(3)))
    assert next(iter(orders)) == "natural"
    many = candidate_orders(rows(50, 8), [(i,) for i in range(8)], most=30, seed=0)
    assert len(set(many.values())) == 30
    assert many["reverse"] == tuple(range(8))[::-1]
    again = candidate_orders(rows(50, 8), [(i,) for i in range(8)], most=30, seed=1)
    assert many["random 1"] != again["random 1"] and many["odd first"] == again["odd first"]


def test_rules_find_what_they_are_after() -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(2000, 4))
    x[:, 1] = x[:, 0] + x[:, 2] + 0.3 * random.normal(size=2000)  # explained best, linearly
    x[:, 3] = random.integers(0, 2, size=2000)  # two values, far from normal
    x[:5, 0] = x[5:10, 0]  # hardly any value twice
    orders = candidate_orders(x, [(i,) for i in range(4)], most=24, seed=0)
    assert orders["linear first"][0] == 1
    assert orders["odd first"][0] == 3
    # Those without values that repeat are equal to this rule, and keep their order.
    assert "distinct first" not in orders and orders["natural"] == (0, 1, 2, 3)
    turned = candidate_orders(x[:, ::-1], [(i,) for i in range(4)], most=24, seed=0)
    assert turned["distinct first"] == (1, 2, 3, 0)


def test_a_group_stands_where_its_scalars_stand_on_average() -> None:
    """The places of (1, 0) are 0 and 3, 1.5 on average: between 2, at 1, and 3, at 2."""
    assert order_of_groups([1, 2, 3, 0], [(1, 0), (2,), (3,)]) == [1, 0, 2]
    assert order_of_groups([1, 2, 3, 0], [(0,), (1,), (2,), (3,)]) == [1, 2, 3, 0]


def test_greedy_orders_of_a_known_covariance() -> None:
    """Scalar 0 explains 1 well and 2 a little; 3 has nothing to do with them."""
    correlation = np.eye(4)
    for other, value in ((1, 0.9), (2, 0.4)):
        correlation[0, other] = correlation[other, 0] = value
    correlation[1, 2] = correlation[2, 1] = 0.36
    assert greedy_order(correlation, "least") == [0, 1, 2, 3]
    assert greedy_order(correlation, "most") == [0, 3, 2, 1]
    # Given 0, what is left of 3 explains a variance of 1, that of 2 one of 0.84, of 1 one of 0.19.
    assert greedy_order(correlation, "gain") == [0, 3, 2, 1]


def test_negentropy_is_none_for_a_normal() -> None:
    from scipy.stats import norm

    levels = (np.arange(100_000) + 0.5) / 100_000
    columns = [norm.ppf(levels), (levels - 0.5) * math.sqrt(12), -np.log(levels) - 1]
    normal, uniform, exponential = negentropy(np.stack(columns, axis=1))
    assert normal < 1e-6
    assert exponential > uniform > 0.05


def test_trees_see_what_a_line_does_not() -> None:
    x = np.c_[wave(), np.random.default_rng(1).normal(size=1500)]
    y, cause, alone = tree_r2((x - x.mean(0)) / x.std(0))
    assert y > 0.4 > 0.1 > max(cause, alone)


# Tables.


def table(count: int = 60) -> Any:
    random = np.random.default_rng(0)
    number = random.normal(size=count)
    return as_table(
        {
            "number": number,
            "same": number,
            "one": np.ones(count),
            "colour": np.array(["red", "green", "blue"], dtype=object)[np.arange(count) % 3],
            "whole": random.poisson(4.0, size=count),
            "other": number + random.normal(size=count),
        }
    )


def test_the_order_of_a_table_names_each_column_in_the_chain_once() -> None:
    model, _ = fit_table(table(), Settings(order="auto", max_steps=2, max_seconds=5.0))
    assert sorted(model.order) == ["colour", "number", "other", "whole"]


def test_a_race_judges_rows_of_a_table_as_the_model_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to what is the same for all orders: the densities of the maps of the columns."""
    rows_of_table = table()
    columns = Columns.learn(rows_of_table)
    encoded = columns.encode(rows_of_table)
    calls: dict[str, Any] = {}

    def learn(points: np.ndarray, **options: Any) -> Any:
        calls.update(options, points=points)
        raise InputError("enough")

    monkeypatch.setattr("arcsm.tabular.ordering.learn_order_of_scalars", learn)
    points, spread = (part.astype(np.float32) for part in (encoded.point, encoded.spread))
    settings = Settings(order="auto", max_steps=7, max_seconds=3.0, learning_rate=0.1)
    with pytest.raises(InputError, match="enough"):
        race_columns(settings, columns, points, spread, None, 5)
    assert (calls["steps"], calls["seconds"], calls["seed"]) == (7, 1.0, 5)
    assert calls["learning_rate"] == 0.1
    assert calls["groups"] == [(0,), (1, 2), (3,), (4,)]
    model = ARCSM.made(5, hidden=(8,), decorrelate=True, seed=0).double()
    model.standardise(torch.from_numpy(encoded.point))
    whole = (torch.from_numpy(encoded.low), torch.from_numpy(encoded.high))
    terms, _ = model.log_prob_terms(torch.from_numpy(encoded.point), cells=whole)
    expected = terms.where(~torch.from_numpy(encoded.certain), 0.0).sum(1)
    cells = (torch.from_numpy(calls["cells"][0]), torch.from_numpy(calls["cells"][1]))
    raced = model.log_prob(torch.from_numpy(calls["points"]).double(), cells=cells)
    assert encoded.certain.any() and np.isinf(encoded.low).any()
    torch.testing.assert_close(raced, expected, rtol=0, atol=1e-4)
