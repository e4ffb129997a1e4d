"""Columns that are fixed while the others are drawn."""

import itertools
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from arcsm.columns import Columns
from arcsm.data.table import Table, as_table
from arcsm.errors import InputError
from arcsm.tabular import Settings, TabularModel
from arcsm.tabular.given import Given

ANY: dict[str, Any] = {"order": "any"}


def mixed_table(rows: int = 300, seed: int = 0) -> Table:
    random = np.random.default_rng(seed)
    real = random.normal(3.0, 2.0, rows)
    return as_table(
        {
            "real": real,
            "count": random.poisson(np.exp(0.2 * real)),
            "colour": random.choice(["red", "green", "blue"], rows, p=[0.5, 0.3, 0.2]),
            "flag": random.random(rows) < 0.3,
            "share": random.beta(2.0, 3.0, rows),
            "same": np.full(rows, 7),
            "line": 2 * real + 1,
            "twin": real,
        }
    )


def untrained(table: Table, *, seed: int = 0, **settings: Any) -> TabularModel:
    """Return a model whose weights are random, of members that are far from alike."""
    kinds = {
        "share": {"kind": "bounded", "lower": 0, "upper": 1},
        "number": {"kind": "integer", "lower": 0, "upper": 3},
    }
    columns = Columns.learn(table, kinds={n: k for n, k in kinds.items() if n in table.names})
    points = columns.encode(table).point
    model = Settings(hidden=(16, 16), **settings).model(columns, points, seed)
    model.standardise(torch.from_numpy(points).float())
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return TabularModel(columns, model)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# The distribution of the others.


def letters(rows: int = 300) -> Table:
    random = np.random.default_rng(1)
    return as_table(
        {
            "letter": random.choice(list("abc"), rows, p=[0.5, 0.3, 0.2]),
            "flag": random.random(rows) < 0.4,
            "number": random.integers(0, 4, rows),
        }
    )


def listed() -> Table:
    cells = list(itertools.product("abc", [False, True], range(4)))
    return as_table(
        {name: [cell[k] for cell in cells] for k, name in enumerate(("letter", "flag", "number"))}
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"order": ["flag", "letter", "number"]},
        {"order": ["flag", "letter", "number"], "ensemble": 3},
    ],
    ids=["one", "ensemble"],
)
def test_the_others_have_the_distribution_of_the_conditional(settings: dict[str, Any]) -> None:
    """By Bayes' rule, from the probabilities of all rows that there are."""
    model = untrained(letters(), **settings)
    every, rows = listed(), 4000
    joint = np.exp(model.log_prob(every))
    assert joint.sum() == pytest.approx(1, abs=1e-5)
    for flag in (False, True):
        sample = model.sample(rows, given={"flag": flag}, generator=seeded())
        assert (sample["flag"] == flag).all()
        possible = every["flag"] == flag
        expected = np.where(possible, joint, 0.0) / joint[possible].sum()
        for place in np.flatnonzero(possible):
            p = expected[place]
            same = [sample[name] == every[name][place] for name in ("letter", "number")]
            found = np.mean(same[0] & same[1])
            assert abs(found - p) < 4.5 * math.sqrt(p * (1 - p) / rows) + 1e-4


def test_members_are_drawn_by_the_probability_of_what_is_given() -> None:
    """A member that holds the given value to be impossible gives no rows."""
    model = untrained(letters(), order=["flag", "letter", "number"], ensemble=2)
    alone = [TabularModel(model.columns, member) for member in model.members]
    with torch.no_grad():
        model.members[1].shift[model.columns.scalars_of("flag").start] += 50.0  # always true
    rows = 3000
    sample = model.sample(rows, given={"flag": False}, generator=seeded())
    for letter in "abc":
        row = as_table({"letter": ["a"], "flag": [False], "number": [0]})
        value = np.array([letter], dtype=object)
        expected = float(np.exp(alone[0].conditional_log_prob(row, "letter", value)[0]))
        error = 4.5 * math.sqrt(expected * (1 - expected) / rows) + 1e-4
        assert abs((sample["letter"] == letter).mean() - expected) < error


@pytest.mark.parametrize("first", [["number"], ["letter"], ["flag", "number"]])
def test_a_model_of_any_order_draws_given_any_columns(first: list[str]) -> None:
    model = untrained(letters(), **ANY)
    rows, row = 3000, as_table({"letter": ["b"], "flag": [True], "number": [2]})
    given = {name: row[name][0] for name in first}
    sample = model.sample(rows, given=given, generator=seeded())
    (name, values) = (
        ("letter", np.array(["a", "b", "c"], dtype=object))
        if "letter" not in first
        else ("flag", np.array([False, True]))
    )
    probability = np.exp(model.conditional_log_prob(row, name, values, given=first))
    assert probability.sum() == pytest.approx(1, abs=1e-6)
    # The next in the order is drawn from that very conditional, if it comes next.
    if name == "letter":
        for value, p in zip(values, probability, strict=True):
            assert abs((sample[name] == value).mean() - p) < 4.5 * math.sqrt(p / rows) + 1e-4
    assert all((sample[other] == row[other][0]).all() for other in first)


def test_conditionals_given_any_columns_are_those_of_the_core() -> None:
    table = mixed_table()
    model = untrained(table, **ANY)
    row = table.take([5])
    values = np.linspace(-4, 10, 9)
    encoded = model.columns.encode(row)
    given = ["colour", "share"]
    scalars = [s for name in given for s in model.columns.scalars_of(name)]
    core: Any = model.model.double()
    density = core.conditional(torch.from_numpy(encoded.point), 0, given=scalars)
    changed = Table(
        {name: np.repeat(cells, 9) for name, cells in row.columns.items()} | {"real": values}
    )
    points = model.columns.encode(changed)
    expected = density.log_prob(torch.from_numpy(points.point[:, 0])[None])[0].numpy()
    found = model.conditional_log_prob(row, "real", values, given=given)
    np.testing.assert_allclose(found, expected + points.log_det[:, 0], atol=1e-6)
    by_copy = model.conditional_log_prob(row, "count", np.arange(3), given=["twin"])
    by_source = model.conditional_log_prob(row, "count", np.arange(3), given=["real"])
    np.testing.assert_array_equal(by_copy, by_source)


def test_conditionals_given_other_columns_need_a_model_for_that() -> None:
    table = mixed_table()
    model, row = untrained(table), table.take([0])
    plain = model.conditional_log_prob(row, "count", np.arange(4))
    np.testing.assert_array_equal(
        model.conditional_log_prob(row, "count", np.arange(4), given=["real"]), plain
    )
    for given in (["colour"], ["real", "colour"], []):
        with pytest.raises(InputError, match='order="any"'):
            model.conditional_log_prob(row, "count", np.arange(4), given=given)
    served = untrained(table, **ANY)
    with pytest.raises(InputError, match="do not determine 'real'"):
        served.conditional_log_prob(row, "real", np.zeros(1), given=["twin"])
    with pytest.raises(InputError, match="a column among"):
        served.conditional_log_prob(row, "real", np.zeros(1), given=["size"])


# What comes back.


def test_given_cells_come_back_as_they_were() -> None:
    model = untrained(mixed_table(), **ANY)
    given = {"real": 1 / 3, "count": 2**40 + 1, "colour": "blue", "flag": True, "share": 0.1}
    for size in range(1, 6):
        for names in itertools.combinations(given, size):
            known = {name: given[name] for name in names}
            sample = model.sample(3, given=known, generator=seeded())
            for name, value in known.items():
                assert sample[name].tolist() == [value] * 3, name
    assert [sample[name].dtype for name in sample.names] == [
        mixed_table()[name].dtype for name in sample.names
    ]
    assert (sample["twin"] == 1 / 3).all() and sample["line"][0] == pytest.approx(5 / 3)
    assert np.isfinite(model.log_prob(sample)).all()


def test_copies_tell_of_what_they_copy() -> None:
    model = untrained(mixed_table())
    for known in ({"line": 4.0}, {"twin": 1.5}, {"twin": 1.5, "line": 4.0, "real": 1.5, "same": 7}):
        sample = model.sample(4, given=known, generator=seeded())
        np.testing.assert_allclose(sample["real"], 1.5)
        np.testing.assert_allclose(sample["line"], 4.0)
        assert np.isfinite(model.log_prob(sample)).all()
    free = model.sample(4, given={"same": 7}, generator=seeded())
    plain = model.sample(4, generator=seeded())
    for name in free.names:
        np.testing.assert_array_equal(free[name], plain[name])


def test_copies_of_whole_numbers_stay_whole() -> None:
    numbers = np.arange(100) % 37
    table = as_table({"n": numbers, "triple": 3.0 * numbers + 1, "again": numbers.astype(float)})
    columns = Columns.learn(table)
    kinds = [column["kind"] for column in columns.describe()]
    assert kinds == ["integer", "duplicate", "duplicate"]
    known = Given.of(columns, {"triple": 16}, 5)
    assert known.fixed == ("n", "triple", "again")
    assert [known.table[name].tolist() for name in table.names] == [[5], [16.0], [5.0]]
    assert known.table["n"].dtype == np.int64 and known.table["triple"].dtype == np.float64
    with pytest.raises(InputError, match="value of 'triple' that can be"):
        Given.of(columns, {"triple": 17}, 5)


@pytest.mark.parametrize("frame", [True, False])
def test_a_table_has_a_row_for_each(frame: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arcsm.tabular.model.rows_drawn_at_once", lambda *_: 7)  # in several pieces
    model = untrained(mixed_table(), order=["count", "real", "colour", "flag", "share"], ensemble=2)
    given = pd.DataFrame({"count": np.arange(20), "real": np.linspace(-1, 1, 20)})
    sample = model.sample(20, given=given if frame else as_table(given), generator=seeded())
    np.testing.assert_array_equal(sample["count"], np.arange(20))
    np.testing.assert_array_equal(sample["real"], np.linspace(-1, 1, 20))
    one = model.sample(20, given=given.iloc[:1], generator=seeded())
    assert (one["count"] == 0).all() and one.rows == 20


def test_rows_differ_by_what_they_are_given() -> None:
    """Each row is drawn given its own values: as if they were drawn apart."""
    model = untrained(mixed_table(), **ANY)
    given = as_table({"real": np.repeat([-2.0, 8.0], 400)})
    sample = model.sample(800, given=given, generator=seeded())
    for value, piece in ((-2.0, slice(0, 400)), (8.0, slice(400, 800))):
        row = mixed_table().take([0])
        numbers = np.arange(200)
        row.columns["real"][:] = value
        row.columns["twin"][:], row.columns["line"][:] = value, 2 * value + 1
        p = np.exp(model.conditional_log_prob(row, "count", numbers, given=["real"]))
        mean, variance = p @ numbers, p @ numbers**2 - (p @ numbers) ** 2
        found = sample["count"][piece].mean()
        assert abs(found - mean) < 4.5 * math.sqrt(variance / 400)


# Refusals.


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"size": 1.0}, r"columns among \['real'"),
        ({"colour": "mauve"}, "mauve"),
        ({"colour": 3}, "expected text in column 'colour'"),
        ({"real": "tall"}, "expected numbers in column 'real'"),
        ({"real": math.nan}, "missing value"),
        ({"share": 1.5}, "value of 'share' that can be .* got 1.5;"),
        ({"same": 8}, "value of 'same' that can be .* got 8;"),
        ({"count": 1.5}, "whole numbers for the column 'count'.* got 1.5"),
        ({"count": -1}, "value of 'count' that can be"),
        ({"count": 1e300}, "'count'"),
        ({"flag": 2}, "'flag'"),
        ({"real": 1.0, "line": 4.0}, "real=1.0, line=4.0: some columns follow from others"),
        ({"twin": 1.0, "line": 4.0}, "follow from others"),
        ({"line": "tall"}, "expected numbers in column"),
        ({"real": [1.0, 2.0]}, "one row or for 3, got 2 rows"),
        ({"same": [7, 7]}, "one row or for 3, got 2 rows"),
        ({"real": []}, "without rows"),
        ([1.0], "a mapping from names to values"),
    ],
)
def test_given_values_that_cannot_be(given: Any, reason: str) -> None:
    model = untrained(mixed_table(), **ANY)
    with pytest.raises(InputError, match=reason):
        model.sample(3, given=given)


def test_the_row_that_cannot_be_is_named() -> None:
    model = untrained(mixed_table(), **ANY)
    with pytest.raises(InputError, match=r"'share' .* got -1.0 in row 2;"):
        model.sample(3, given=as_table({"share": [0.5, 0.5, -1.0]}))


def test_the_order_decides_what_may_be_given() -> None:
    table = mixed_table()
    model = untrained(table)
    with pytest.raises(InputError, match=r"real → count → colour → flag → share.*--order any"):
        model.sample(3, given={"count": 1})
    with pytest.raises(InputError, match="--order any"):
        model.sample(3, given={"real": 1.0, "colour": "red"})
    model.sample(3, given={"count": 1, "real": 1.0})
    several = untrained(table, ensemble=3)
    with pytest.raises(InputError, match="each has its own order"):
        several.sample(3, given={"colour": "red"})
    assert several.sample(3, given={"same": 7}).rows == 3  # of which nothing depends


@pytest.mark.parametrize("method", ["flow", "quadrature", "langevin"])
def test_methods_reach_the_model(method: str) -> None:
    model = untrained(letters(), order=["flag", "letter", "number"], ensemble=2)
    drawn = [
        model.sample(20, given={"flag": True}, generator=seeded(), method=how)
        for how in (method, method, "auto")
    ]
    assert all(
        np.array_equal(drawn[0][name], drawn[1][name]) for name in ("letter", "flag", "number")
    )
    assert drawn[0]["flag"].all()
    equal = [np.array_equal(drawn[0][name], drawn[2][name]) for name in ("letter", "number")]
    assert all(equal) == (method == "flow")  # which is what the density stands for
    with pytest.raises(InputError, match="method among"):
        model.sample(2, method="magic")
