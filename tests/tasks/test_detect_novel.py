"""Values that a model has no place for."""

import numpy as np
import pytest

from arcsm.columns import Columns
from arcsm.columns.encoded import Encoded
from arcsm.data.table import Table
from arcsm.errors import InputError
from arcsm.tasks.detect.novel import make_familiar


def table(rows: int = 60) -> Table:
    random = np.random.default_rng(0)
    height = random.normal(170.0, 10.0, rows)
    return Table(
        {
            "height": height,
            "inches": height / 2.54,
            "unit": np.full(rows, "cm", dtype=object),
            "year": np.full(rows, 2020),
            "town": np.array(["Bern", "Chur", "Bern"], dtype=object)[np.arange(rows) % 3],
            "share": random.uniform(0.2, 0.8, rows),
        }
    )


def parts(columns: Columns, told: Table) -> tuple[Encoded, np.ndarray]:
    familiar = make_familiar(columns, told)
    # What stands in for new values is possible.
    assert not columns.encode(familiar.table).impossible.any()
    return familiar.encoded, familiar.novel


KINDS = {"share": {"kind": "bounded", "lower": 0, "upper": 1}}


def changed(row: int, **values: object) -> Table:
    columns = {name: cells.copy() for name, cells in table().columns.items()}
    for name, value in values.items():
        columns[name][row] = value
    return Table(columns)


def test_known_values_are_encoded_as_ever() -> None:
    columns = Columns.learn(table(), kinds=KINDS)
    encoded, novel = parts(columns, table())
    assert not novel.any()
    np.testing.assert_array_equal(encoded.point, columns.encode(table()).point)


@pytest.mark.parametrize(
    ("name", "value"),
    [("inches", 3.0), ("unit", "m"), ("year", 1980), ("town", "Genf"), ("share", 1.5)],
)
def test_a_new_value_is_told_and_stands_for_a_known_one(name: str, value: object) -> None:
    columns = Columns.learn(table(), kinds=KINDS)
    assert [c["kind"] for c in columns.describe()][:3] == ["real", "duplicate", "constant"]
    encoded, novel = parts(columns, changed(7, **{name: value}))
    expected = np.zeros_like(novel)
    expected[7, columns.names.index(name)] = True
    np.testing.assert_array_equal(novel, expected)
    assert np.isfinite(encoded.point).all()
    same = [s for other in columns.names if other != name for s in columns.scalars_of(other)]
    before = columns.encode(table()).point
    np.testing.assert_array_equal(encoded.point[:, same], before[:, same])


def test_several_new_values_in_one_row() -> None:
    columns = Columns.learn(table(), kinds=KINDS)
    _, novel = parts(columns, changed(0, unit="m", town="Genf", share=-1.0))
    assert novel[0].sum() == 3 and not novel[1:].any()


def test_a_new_value_of_a_column_with_a_copy_is_no_news_of_the_copy() -> None:
    columns = Columns.learn(table(), kinds=KINDS)
    _, novel = parts(columns, changed(0, height=400.0, inches=400 / 2.54))
    assert not novel.any()


def test_levels_that_were_not_seen() -> None:
    sizes = Table({"size": np.array(["S", "M", "L", "M"] * 10, dtype=object)})
    kinds = {"size": {"kind": "ordinal", "levels": ["S", "M", "L"]}}
    columns = Columns.learn(sizes, kinds=kinds)
    _, novel = parts(columns, Table({"size": np.array(["S", "XXL"], dtype=object)}))
    assert novel[:, 0].tolist() == [False, True]


def test_numbers_that_stand_for_categories() -> None:
    codes = Table({"code": np.array([1, 2, 1, 4] * 10)})
    columns = Columns.learn(codes, kinds={"code": "category"})
    _, novel = parts(columns, Table({"code": np.array([1.0, 2.5, 3.0, 4.0])}))
    assert novel[:, 0].tolist() == [False, True, True, False]


def test_missing_values_and_other_columns_are_refused() -> None:
    columns = Columns.learn(table(), kinds=KINDS)
    with pytest.raises(InputError, match=r"column 'height'.*missing"):
        parts(columns, changed(3, height=np.nan))
    with pytest.raises(InputError, match="expected the columns"):
        parts(columns, table().select(["height"]))
