"""Columns with holes: what they are taken for, and how rows are encoded with a mask."""

import numpy as np
import pytest

from arcsm.columns import Columns
from arcsm.columns.incomplete import (
    Incomplete,
    as_whole_numbers,
    find_missing,
    learn_incomplete,
)
from arcsm.data.table import Table, as_table
from arcsm.errors import InputError


def people(rows: int = 200, seed: int = 0) -> Table:
    random = np.random.default_rng(seed)
    height = random.normal(170.0, 10.0, rows)
    return Table(
        {
            "height": height,
            "children": random.poisson(2.0, rows),
            "town": random.choice(np.array(["Bern", "Basel", "Genf"], dtype=object), rows),
            "share": random.beta(2.0, 3.0, rows),
            "inches": height / 2.54,
            "planet": np.full(rows, "Earth", dtype=object),
        }
    )


def with_holes(table: Table, share: float = 0.2, seed: int = 1) -> Table:
    random = np.random.default_rng(seed)
    columns = {}
    for name, values in table.columns.items():
        holes = random.random(table.rows) < share
        values = values.astype(object) if values.dtype == object else values.astype(np.float64)
        values[holes] = None if values.dtype == object else np.nan
        columns[name] = values
    return Table(columns)


def test_holes_are_found() -> None:
    table = as_table({"a": [1.0, None], "b": ["x", None], "c": [1, 2], "d": [True, False]})
    assert find_missing(table).tolist() == [[False] * 4, [True, True, False, False]]


def test_kinds_are_those_of_what_is_there() -> None:
    """Each column is learned from its known cells, to the last digit."""
    table = as_whole_numbers(with_holes(people()))
    missing = find_missing(with_holes(people()))
    columns = learn_incomplete(table, missing)
    kinds = {column["name"]: column["kind"] for column in columns.describe()}
    assert kinds == {
        "height": "real",
        "children": "integer",
        "town": "category",
        "share": "bounded",
        "inches": "duplicate",
        "planet": "constant",
    }
    for place, name in enumerate(table.names):
        if name != "inches":
            alone = Columns.learn(Table({name: table[name][~missing[:, place]]}))
            assert columns.config["columns"][place] == alone.config["columns"][0]


def test_without_holes_columns_are_the_same() -> None:
    table = people()
    assert learn_incomplete(table).config == Columns.learn(table).config


def test_what_stands_in_a_hole_changes_nothing() -> None:
    table = with_holes(people())
    missing = find_missing(table)
    whole = as_whole_numbers(table)
    moved = {
        name: np.where(missing[:, place], 77, values) if values.dtype == np.int64 else values
        for place, (name, values) in enumerate(whole.columns.items())
    }
    first, second = (learn_incomplete(part, missing) for part in (whole, Table(moved)))
    assert first.config == second.config
    one, other = (Incomplete.of(first, part, missing) for part in (whole, Table(moved)))
    np.testing.assert_array_equal(one.encoded.point, other.encoded.point)
    np.testing.assert_array_equal(one.observed, other.observed)


def test_known_cells_are_encoded_as_ever_and_holes_are_masked() -> None:
    whole, table = people(), with_holes(people())
    missing = find_missing(table)
    columns = learn_incomplete(as_whole_numbers(table), missing)
    part = Incomplete.of(columns, table)
    expected = columns.encode(whole).point
    np.testing.assert_allclose(part.encoded.point[part.observed], expected[part.observed])
    for name in ("children", "town", "share"):
        own, place = columns.scalars_of(name), table.names.index(name)
        for scalar in own:
            np.testing.assert_array_equal(part.observed[:, scalar], ~missing[:, place])
    # What inches tell of the height is known.
    own = columns.scalars_of("height")[0]
    either = ~(missing[:, 0] & missing[:, 4])
    np.testing.assert_array_equal(part.observed[:, own], either)
    assert np.isfinite(part.encoded.point).all()


def test_copies_fill_each_other() -> None:
    table, whole = with_holes(people()), people()
    missing = find_missing(table)
    columns = learn_incomplete(as_whole_numbers(table), missing)
    part = Incomplete.of(columns, as_whole_numbers(table), missing)
    neither = missing[:, 0] & missing[:, 4]
    assert 0 < neither.sum() < 40
    np.testing.assert_array_equal(part.open[:, 0], neither)
    found = {
        name: np.full(int(holes.sum()), 1.0)
        for name, holes in zip(("height", "share"), (part.open[:, 0], part.open[:, 3]), strict=True)
    }
    found["children"] = np.full(int(part.open[:, 1].sum()), 4)
    found["town"] = np.full(int(part.open[:, 2].sum()), "Bern", dtype=object)
    filled = part.filled(columns, found)
    np.testing.assert_allclose(filled["height"][~neither], whole["height"][~neither])
    np.testing.assert_allclose(filled["inches"][~neither], whole["inches"][~neither])
    np.testing.assert_allclose(filled["inches"][neither], 1 / 2.54)
    np.testing.assert_allclose(filled["height"][neither], 1.0)
    assert set(filled["planet"]) == {"Earth"} and filled["children"].dtype == np.int64
    for place, name in enumerate(table.names):
        known = ~missing[:, place]
        np.testing.assert_array_equal(filled[name][known], table[name][known])


def test_unknown_categories_say_nothing_and_stay() -> None:
    columns = learn_incomplete(with_holes(people()))
    table = people(4)
    strange = Table({**table.columns, "town": np.array(["Rome", "Bern", None, "Genf"], object)})
    part = Incomplete.of(columns, strange)
    own = columns.scalars_of("town")
    np.testing.assert_array_equal(part.observed[:, own[0]], [False, True, False, True])
    assert part.open[:, 2].tolist() == [False, False, True, False]
    filled = part.filled(columns, {"town": np.array(["Basel"], dtype=object)})
    assert filled["town"].tolist() == ["Rome", "Bern", "Basel", "Genf"]


def test_values_beyond_the_bounds_count_as_the_nearest() -> None:
    columns = learn_incomplete(with_holes(people()))
    table = people(3)
    beyond = Table({**table.columns, "share": np.array([-0.5, 0.5, 7.0])})
    part = Incomplete.of(columns, beyond)
    assert np.isfinite(part.encoded.point).all() and part.observed.all()


def test_a_column_of_text_may_be_missing_throughout() -> None:
    columns = learn_incomplete(with_holes(people()))
    table = people(3)
    part = Incomplete.of(columns, Table({**table.columns, "town": np.full(3, np.nan)}))
    assert part.open[:, 2].all() and not part.observed[:, columns.scalars_of("town")[0]].any()


def test_one_value_is_a_constant_and_none_is_refused() -> None:
    table = as_table({"a": [1.5, 2.5, 3.7], "b": [None, 2.5, None], "c": ["x", None, None]})
    kinds = [column["kind"] for column in learn_incomplete(table).describe()]
    assert kinds[1:] == ["constant", "constant"]
    empty = Table({**table.columns, "d": np.full(3, np.nan)})
    with pytest.raises(InputError, match="expected a value in column 'd', got none in 3 rows"):
        learn_incomplete(empty)
    with pytest.raises(InputError, match="at least 2 rows, got 1; add some"):
        learn_incomplete(table.take([1]))
    with pytest.raises(InputError, match="expected kinds for columns among"):
        learn_incomplete(table, kinds={"e": "real"})


def test_other_columns_and_types_are_refused() -> None:
    columns = learn_incomplete(with_holes(people()))
    table = people(3)
    text = Table({**table.columns, "height": np.array(["a", None, "b"], dtype=object)})
    with pytest.raises(InputError, match="expected numbers in column 'height'"):
        Incomplete.of(columns, text)
    with pytest.raises(InputError, match="expected the columns"):
        Incomplete.of(columns, table.select(["height", "town"]))


def test_whole_numbers_with_holes_are_whole_again() -> None:
    table = as_table({"a": [1, None, 3], "b": [1.5, None, 2.0], "c": [1.0, 2.0, 3.0]})
    whole = as_whole_numbers(table)
    assert [whole[name].dtype.name for name in whole.names] == ["int64", "float64", "float64"]
    assert whole["a"].tolist() == [1, 0, 3]
