"""Tables as scalars and back: the automatic choice, round trips, configuration, refusals."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from arcsm.columns import Columns
from arcsm.data.table import Table
from arcsm.errors import InputError

ROWS = 1000
PLACES = np.array(["Bern", "Basel", "Chur"], dtype=object)

# What a column is drawn as, and the kind it is expected to be seen as.
TYPICAL: dict[str, tuple[Callable[[np.random.Generator], np.ndarray], str]] = {
    "normal": (lambda rng: rng.normal(size=ROWS), "real"),
    "t3": (lambda rng: rng.standard_t(3, ROWS), "real"),
    "exponential": (lambda rng: rng.exponential(size=ROWS), "bounded"),
    "gamma": (lambda rng: rng.gamma(2, size=ROWS), "bounded"),
    "beta": (lambda rng: rng.beta(0.8, 1.2, size=ROWS), "bounded"),
    "uniform": (lambda rng: rng.uniform(size=ROWS), "bounded"),
    "lognormal": (lambda rng: rng.lognormal(size=ROWS), "bounded"),
    "zero-inflated": (
        lambda rng: rng.gamma(2, size=ROWS) * (rng.uniform(size=ROWS) < 0.7),
        "bounded",
    ),
    "poisson": (lambda rng: rng.poisson(4, ROWS), "integer"),
    "negative binomial": (lambda rng: rng.negative_binomial(2, 0.2, ROWS), "integer"),
    "counts as floats": (lambda rng: rng.poisson(4, ROWS).astype(float), "integer"),
    "years": (lambda rng: rng.integers(1950, 2020, ROWS), "integer"),
    "binary floats": (lambda rng: (rng.uniform(size=ROWS) < 0.3).astype(float), "category"),
    "prices": (lambda rng: np.round(rng.lognormal(0, 0.5, ROWS), 2), "quantised"),
    "measured": (lambda rng: np.round(rng.normal(170, 10, ROWS), 1), "quantised"),
    "levels": (
        lambda rng: np.array([0.1, 0.25, 0.7, 1.9, 4.3])[rng.integers(0, 5, ROWS)],
        "ordinal",
    ),
    "text": (lambda rng: PLACES[rng.integers(0, 3, ROWS)], "category"),
    "bool": (lambda rng: rng.uniform(size=ROWS) < 0.2, "category"),
    "constant": (lambda rng: np.full(ROWS, 2.5), "constant"),
    "constant text": (lambda rng: np.full(ROWS, "same", dtype=object), "constant"),
}


def typical(seed: int) -> Table:
    rng = np.random.default_rng(seed)
    columns = {name: draw(rng) for name, (draw, _) in TYPICAL.items()}
    columns["copy"] = columns["normal"].copy()
    columns["fahrenheit"] = 32 + 1.8 * columns["t3"]
    columns["copied text"] = columns["text"].copy()
    columns["one more"] = columns["poisson"] + 1
    return Table(columns)


@pytest.fixture(scope="module")
def table() -> Table:
    return typical(0)


@pytest.fixture(scope="module")
def columns(table: Table) -> Columns:
    return Columns.learn(table)


@pytest.mark.parametrize("name", TYPICAL)
def test_typical_columns_are_seen_for_what_they_are(name: str) -> None:
    draw, kind = TYPICAL[name]
    for seed in range(3):
        learned = Columns.learn(Table({"x": draw(np.random.default_rng(seed))}))
        assert learned.describe()[0]["kind"] == kind


def test_description_gives_reasons(columns: Columns) -> None:
    said = {row["name"]: row["reason"] for row in columns.describe()}
    assert said["poisson"] == "whole numbers from 0 up"
    assert said["zero-inflated"].startswith("positive values that come close to 0; a probability")
    assert said["copy"] == "equal to column 'normal'"
    assert said["fahrenheit"] == "y = 32 + 1.8·x for x in 't3'"
    assert said["text"] == "3 values"
    assert {row["name"]: row["kind"] for row in columns.describe()}["one more"] == "duplicate"


def test_scalars_are_contiguous_and_in_table_order(columns: Columns) -> None:
    all_scalars = [scalar for name in columns.names for scalar in columns.scalars_of(name)]
    assert all_scalars == list(range(columns.scalars))
    assert len(columns.scalars_of("text")) == 2
    for name in ("constant", "constant text", "copy", "fahrenheit", "copied text", "one more"):
        assert len(columns.scalars_of(name)) == 0


@pytest.mark.parametrize("seed", range(4))
def test_decode_undoes_encode(seed: int) -> None:
    table = typical(seed)
    columns = Columns.learn(table)
    encoded = columns.encode(table)
    assert not encoded.impossible.any()
    decoded = columns.decode(encoded.point)
    assert decoded.names == table.names
    for name in table.names:
        assert decoded[name].dtype == table[name].dtype
        if table[name].dtype == np.float64:
            np.testing.assert_allclose(decoded[name], table[name], rtol=1e-11, atol=1e-12)
        else:
            np.testing.assert_array_equal(decoded[name], table[name])


def test_training_targets_stay_in_their_cells(columns: Columns, table: Table) -> None:
    encoded = columns.encode(table)
    assert np.isfinite(encoded.point).all() and np.isfinite(encoded.log_det).all()
    assert (encoded.spread >= 0).all()
    cell = encoded.low < encoded.high
    rounding = 1e-12 * (1 + np.abs(encoded.point))
    assert (encoded.point - encoded.spread >= encoded.low - rounding).all()
    assert (encoded.point + encoded.spread <= encoded.high + rounding).all()
    assert (cell == (encoded.spread > 0)).all()
    np.testing.assert_array_equal(encoded.low[~cell], encoded.point[~cell])


def test_anything_drawn_is_a_possible_row(columns: Columns, table: Table) -> None:
    rng = np.random.default_rng(5)
    far = np.array([-1e6, -50, 0, 50, 1e6])
    points = np.empty((505, 0))
    for scalar in range(columns.scalars):
        drawn = np.concatenate([rng.normal(size=500), far])
        points = np.column_stack([points, columns.snap(scalar, drawn, points)])
    decoded = columns.decode(points)
    assert not columns.encode(decoded).impossible.any()
    for name, lower, upper in (("exponential", 0, np.inf), ("uniform", 0, 1), ("beta", 0, 1)):
        assert (decoded[name] > lower).all() and (decoded[name] < upper).all()
    assert (decoded["zero-inflated"] >= 0).all() and (decoded["poisson"] >= 0).all()
    grid = decoded["measured"][:500] * 10
    np.testing.assert_allclose(grid, np.rint(grid), atol=1e-9)


def test_configuration_is_exact_through_json(columns: Columns, table: Table) -> None:
    text = json.dumps(columns.config, allow_nan=False)
    again = Columns.from_config(json.loads(text))
    assert json.dumps(again.config) == text and again.describe() == columns.describe()
    first, second = columns.encode(table), again.encode(table)
    for field in vars(first):
        np.testing.assert_array_equal(getattr(first, field), getattr(second, field))
    for config in ({}, {"format": 99}, {"format": 1, "columns": [{"name": "x"}]}):
        with pytest.raises(InputError):
            Columns.from_config(config)


def test_constants_and_copies_that_differ_are_impossible(columns: Columns, table: Table) -> None:
    for name, value in (
        ("constant", 2.6),
        ("constant text", "other"),
        ("copy", 0.0),
        ("fahrenheit", 32.001),
        ("copied text", "nowhere"),
        ("one more", 77),
    ):
        changed = {key: table[key].copy() for key in table.names}
        changed[name][7] = value
        assert np.flatnonzero(columns.encode(Table(changed)).impossible).tolist() == [7]


def test_agreement_by_accident_is_no_copy() -> None:
    flag = np.zeros(1000, dtype=bool)
    flag[3] = True
    table = Table({"a": flag, "b": flag.copy(), "c": np.where(flag, 5.0, 2.0)})
    assert [row["kind"] for row in Columns.learn(table).describe()] == ["category"] * 3
    x = np.random.default_rng(0).normal(size=50)
    x[0] = 1e13
    y = np.random.default_rng(1).normal(size=50)
    y[0] = 1e13
    assert [row["kind"] for row in Columns.learn(Table({"x": x, "y": y})).describe()] == [
        "real",
        "real",
    ]


def test_three_rows_make_no_line() -> None:
    table = Table({"x": np.array([0.3, 1.7, 1e40]), "y": np.array([5.1, 2.9, 7e41])})
    kinds = [row["kind"] for row in Columns.learn(table).describe()]
    assert "duplicate" not in kinds


def test_weights_move_location_and_scale() -> None:
    x = np.random.default_rng(0).normal(size=500)
    weight = (x > 0).astype(float)
    found = Columns.learn(Table({"x": x}), weight=weight).describe()[0]["parameters"]
    assert found["location"] == pytest.approx(x[x > 0].mean())
    assert found["scale"] == pytest.approx(x[x > 0].std())


def test_kinds_can_be_chosen() -> None:
    rng = np.random.default_rng(0)
    counts, share = rng.poisson(4, 200), rng.uniform(0.4, 0.6, 200)
    table = Table({"counts": counts, "share": share, "copy": share.copy()})
    kinds: dict[str, Any] = {
        "counts": "real",
        "share": {"kind": "bounded", "lower": 0, "upper": 1},
        "copy": {"kind": "integer", "quantum": 0.01, "lower": 0},
    }
    columns = Columns.learn(table, kinds=kinds)
    assert [row["kind"] for row in columns.describe()] == ["real", "bounded", "quantised"]
    encoded = columns.encode(table)
    odds = np.log(share / (1 - share))
    np.testing.assert_allclose(encoded.point[:, 1], (odds - odds.mean()) / odds.std(), rtol=1e-9)
    decoded = columns.decode(encoded.point - 1e-9)
    assert decoded["counts"].dtype == np.int64 and (decoded["counts"] == counts).all()
    assert np.abs(decoded["copy"] - share).max() <= 0.005 + 1e-12


def test_whole_numbers_and_floats_may_stand_for_each_other() -> None:
    rng = np.random.default_rng(0)
    columns = Columns.learn(Table({"i": rng.poisson(9, 200), "f": rng.normal(0, 9, 200)}))
    as_floats = columns.encode(Table({"i": np.array([3.0, 4.0]), "f": np.array([1.0, 2.0])}))
    as_whole = columns.encode(Table({"i": np.array([3, 4]), "f": np.array([1, 2])}))
    np.testing.assert_array_equal(as_floats.point, as_whole.point)


def test_a_table_of_constants_has_no_scalars() -> None:
    table = Table({"a": np.ones(3), "b": np.array(["x"] * 3, dtype=object)})
    columns = Columns.learn(table)
    assert columns.scalars == 0 and columns.encode(table).point.shape == (3, 0)
    assert columns.decode(np.empty((2, 0)))["b"].tolist() == ["x", "x"]


def test_no_rows_are_encoded_to_none(columns: Columns, table: Table) -> None:
    nothing = table.take(slice(0, 0))
    assert columns.encode(nothing).point.shape == (0, columns.scalars)


X = np.random.default_rng(0).normal(size=30)
TEXT = np.array(["a", "b", "a"] * 10, dtype=object)


def changed(x: np.ndarray, row: int, value: Any) -> np.ndarray:
    x = x.copy()
    x[row] = value
    return x


REFUSED: dict[str, tuple[dict[str, np.ndarray], Any, str]] = {
    "one row": ({"x": X[:1]}, None, "at least 2 rows, got 1; add some"),
    "missing": ({"x": changed(X, 4, np.nan)}, None, r"'x', got a missing value in row 4 \(1 such"),
    "infinite": ({"x": changed(X, 4, -np.inf)}, None, "'x', got -inf in row 4"),
    "missing text": ({"t": changed(TEXT, 6, None)}, None, "'t', got a missing value in row 6"),
    "identifier": ({"t": np.array([f"id{i}" for i in range(30)], object)}, None, "'t'.*identifier"),
    "many texts": (
        {"t": np.array([f"{i // 2}" for i in range(600)], object)},
        None,
        "got 300 in 600",
    ),
    "unknown column": ({"x": X}, {"y": "real"}, r"among \['x'\], got \['y'\]"),
    "unknown kind": ({"x": X}, {"x": "normal"}, "for column 'x', got 'normal'"),
    "unknown option": ({"x": X}, {"x": {"kind": "real", "lower": 0}}, "'x' among: none; got lower"),
    "outside": (
        {"x": X},
        {"x": {"kind": "bounded", "lower": X.min() + 1e-3}},
        "'x', got .* in row",
    ),
    "bounds crossed": (
        {"x": X},
        {"x": {"kind": "bounded", "lower": 1, "upper": 0}},
        "lower < upper",
    ),
    "bounds unknown": ({"x": X}, {"x": "bounded"}, "bounds for column 'x'"),
    "not a number": ({"x": X}, {"x": {"kind": "bounded", "lower": "0"}}, "lower of column 'x'"),
    "quantum 0": ({"x": X}, {"x": {"kind": "integer", "quantum": 0}}, "positive quantum .*'x'"),
    "no grid": ({"x": X}, {"x": "integer"}, "grid in column 'x'"),
    "real text": ({"t": TEXT}, {"t": "real"}, "numbers in column 't'"),
    "real bool": ({"b": X > 0}, {"b": "real"}, "truth values in column 'b'"),
    "level missing": (
        {"t": TEXT},
        {"t": {"kind": "ordinal", "levels": ["a", "c"]}},
        "levels 'a', 'c' in column 't', got 'b' in row 1",
    ),
    "half quantum": (
        {"i": np.arange(30)},
        {"i": {"kind": "integer", "quantum": 0.5}},
        "whole quantum .*'i'",
    ),
    "only bounds": (
        {"x": (X > 0).astype(float)},
        {"x": {"kind": "bounded", "lower": 0, "upper": 1}},
        "strictly inside the bounds in column 'x'",
    ),
}


@pytest.mark.parametrize(("given", "kinds", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_learning_refuses(given: dict[str, np.ndarray], kinds: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Columns.learn(Table(given), kinds=kinds)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (np.ones(3), "each of 30 rows"),
        (np.zeros(30), "positive weight"),
        (changed(np.ones(30), 5, -1.0), "got -1.0 in row 5"),
        (changed(np.ones(30), 5, np.nan), "got nan in row 5"),
        (["a"] * 30, "weights as numbers"),
    ],
)
def test_weights_are_checked(weight: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Columns.learn(Table({"x": X}), weight=weight)


LEVELS = np.array([0.1, 0.25, 4.3] * 10)
GOOD = {"x": X, "t": TEXT, "l": LEVELS, "b": X > 0}
NOT_ENCODED: dict[str, tuple[dict[str, np.ndarray], str]] = {
    "names": (
        {"x": X, "t": TEXT, "y": X, "b": X > 0},
        r"missing: \['l'\]; unexpected: \['y'\]",
    ),
    "order": ({"t": TEXT, "x": X, "l": LEVELS, "b": X > 0}, "order .*; reorder with"),
    "text for numbers": ({**GOOD, "x": TEXT}, r"numbers in column 'x'.*got text \(row 0: 'a'\)"),
    "numbers for text": ({**GOOD, "t": X}, "text in column 't' as learned, got numbers"),
    "text for bool": ({**GOOD, "b": TEXT}, r"truth values in column 'b'.*\(row 0: 'a'\)"),
    "text among truth": (
        {**GOOD, "b": np.array(["true", None, "False", "maybe", "no"] * 6, dtype=object)},
        r"truth values in column 'b'.*got text \(row 3: 'maybe'\)",
    ),
    "text among numbers": (
        {**GOOD, "x": np.array(["1.5", None, "-2e3", "1_000", "many"] * 6, dtype=object)},
        r"numbers in column 'x'.*got text \(row 3: '1_000'\)",
    ),
    "missing": (
        {**GOOD, "x": changed(X, 9, np.nan)},
        r"column 'x', got a missing value in row 9 \(1 such row\); leave",
    ),
    "several missing": (
        {**GOOD, "x": changed(changed(X, 9, np.nan), 12, np.nan)},
        r"got a missing value in row 9 \(2 such rows\); leave",
    ),
    "unknown text": (
        {**GOOD, "t": changed(TEXT, 8, "z")},
        "'a', 'b' in column 't', got 'z' in row 8",
    ),
    "unknown level": (
        {**GOOD, "l": changed(LEVELS, 2, 0.2)},
        "levels 0.1, 0.25, 4.3 in column 'l', got 0.2 in row 2",
    ),
    "unknown truth": ({**GOOD, "b": np.full(30, 2)}, "column 'b', got 2.0 in row 0"),
}


@pytest.mark.parametrize(("given", "message"), NOT_ENCODED.values(), ids=NOT_ENCODED.keys())
def test_encoding_refuses(given: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Columns.learn(Table(GOOD)).encode(Table(given))


def test_whole_numbers_that_are_one_float_are_on_no_line() -> None:
    large = 2**60 + 1 + np.arange(50)
    columns = Columns.learn(Table({"large": large, "week": np.arange(50) % 7}))
    assert [column["kind"] for column in columns.describe()] == ["integer", "integer"]


def test_decoding_and_snapping_check_their_shapes(columns: Columns) -> None:
    with pytest.raises(InputError, match=r"shape \(rows, \d+\), got \(2, 1\)"):
        columns.decode(np.zeros((2, 1)))
    with pytest.raises(InputError, match="got nan in row 1"):
        columns.decode(np.full((2, columns.scalars), [[0.0], [np.nan]]))
    with pytest.raises(InputError, match="scalar below"):
        columns.snap(columns.scalars, np.zeros(2), np.zeros((2, columns.scalars)))
    with pytest.raises(InputError, match="column among"):
        columns.scalars_of("none")
    with pytest.raises(InputError, match="expected a Table"):
        columns.encode({"x": X})  # type: ignore[arg-type]


def test_what_to_do_about_missing_and_infinite_values() -> None:
    """An imputer refuses infinities as well: it is advised for what is missing alone."""
    for bad, advice in ((np.nan, "fill them in with ARCSMImputer"), (np.inf, "or replace them")):
        with pytest.raises(InputError, match=advice) as told:
            Columns.learn(Table({"x": np.array([1.0, bad, 2.0])}))
        assert ("ARCSMImputer" in str(told.value)) == np.isnan(bad)
