"""Grids, levels and categories: found where they are, and cells that divide the line."""

import itertools
import math

import numpy as np
import pytest

from arcsm.columns import Columns
from arcsm.columns.category import Category
from arcsm.columns.encoded import Encoded
from arcsm.columns.grids import find_grid, whole_grid
from arcsm.data.table import Table


def logistic(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z))


def probabilities(encoded: Encoded, shift: float = 0.3) -> np.ndarray:
    with np.errstate(over="ignore"):
        terms = logistic(encoded.high - shift) - logistic(encoded.low - shift)
    return np.where(encoded.certain, 1, terms).prod(axis=1)


def learn(x: np.ndarray, kind=None) -> Columns:
    return Columns.learn(Table({"x": x}), kinds=None if kind is None else {"x": kind})


def encode(columns: Columns, values: np.ndarray) -> Encoded:
    return columns.encode(Table({"x": np.asarray(values)}))


GRIDS = {
    "0, 2, 5": ([0.0, 2.0, 5.0], 1),
    "tens": ([10.0, 40.0, 80.0, 100.0], 10),
    "halves": ([0.5, 1.0, 2.5, 7.0], 0.5),
    "cents": ([0.99, 1.5, 19.95, 3.02], 0.01),
    "thirds": ([0, 1 / 3, 4 / 3, 3.0, 11 / 3, 7.0], 1 / 3),
    "float32 tenths": ([float(np.float32(v)) for v in (0.1, 0.3, 1.7, 12.4)], 0.1),
    "measured multiples of π": (
        [math.pi * k + 1e-4 * math.sin(5 * k) for k in (0, 2, 4, 10, 31, 99, 400, 1601, 5000)],
        math.pi,
    ),
    "multiples of π from 1": ([1 + math.pi * k for k in (0, 2, 4, 10, 13, 16, 200)], math.pi),
}


@pytest.mark.parametrize(("values", "quantum"), GRIDS.values(), ids=GRIDS.keys())
def test_grids_are_found(values: list[float], quantum: float) -> None:
    grid = find_grid(np.sort(values), least=0.0)
    assert grid is not None and grid.quantum == pytest.approx(quantum, rel=1e-7)
    index = grid.index(np.array(values))
    assert (index == np.rint(index)).all()
    np.testing.assert_allclose(grid.value(index), values, atol=1e-3 * quantum)


def test_continuous_values_lie_on_no_grid() -> None:
    rng = np.random.default_rng(0)
    for rows in (3, 4, 5, 8, 20, 1000):
        for _ in range(50):
            assert find_grid(np.sort(rng.normal(size=rows)), least=0.0) is None


def test_a_fine_grid_counts_as_continuous() -> None:
    x = np.round(np.random.default_rng(0).normal(0, 1000, 300), 2)
    assert learn(x).describe()[0]["kind"] == "real"
    assert learn(x / 1000 // 0.01 * 0.01).describe()[0]["kind"] == "quantised"


def test_whole_numbers_keep_every_digit() -> None:
    stamps = 1_700_000_000_000_000_001 + 60 * np.array([0, 1, 5, 7, 100], dtype=np.int64)
    assert whole_grid(stamps).quantum == 60
    columns = learn(stamps)
    decoded = columns.decode(encode(columns, stamps).point)["x"]
    assert decoded.dtype == np.int64 and (decoded == stamps).all()
    wide = np.array([-(2**63), 0, 2**62, 2**63 - 1])
    assert whole_grid(wide).quantum == 1
    assert np.isfinite(encode(learn(wide), wide).point).all()


def test_far_draws_do_not_wrap_round_int64() -> None:
    for offset in (-3, 5, 2**61 + 1, -(2**61) - 1):
        columns = learn(np.array([0, 1, 2, 4, 5, 9, 13, 14] * 3) + offset)
        far = columns.decode(np.array([[-1e300], [1e300]]))["x"]
        assert far[0] < -(2**62) and far[1] > 2**62


def test_decimals_come_back_as_written() -> None:
    x = np.round(np.random.default_rng(0).lognormal(1, 0.5, 500), 2)
    columns = learn(x)
    assert (columns.decode(encode(columns, x).point)["x"] == x).all()


@pytest.mark.parametrize("heavy", [False, True])
def test_cells_of_counts_divide_the_line(heavy: bool) -> None:
    rng = np.random.default_rng(0)
    x = np.floor(rng.pareto(1.0, 3000)).astype(np.int64) if heavy else rng.poisson(9, 3000)
    columns = learn(x)
    assert columns.describe()[0]["reason"].startswith("whole numbers from 0 up")
    assert (columns.describe()[0]["parameters"]["right"] > 0) == heavy
    encoded = encode(columns, np.arange(200))
    assert encoded.low[0, 0] == -np.inf
    np.testing.assert_array_equal(encoded.low[1:], encoded.high[:-1])
    assert probabilities(encoded).sum() == pytest.approx(
        logistic(encoded.high[-1, 0] - 0.3), abs=1e-12
    )
    middle = encoded.high[:, 0] - encoded.spread[:, 0]
    np.testing.assert_allclose(encoded.point[:, 0], middle, atol=1e-12)
    assert (encoded.log_det == 0).all()
    assert encode(columns, [-1, 0]).impossible.tolist() == [True, False]


def test_quantum_makes_the_probability_a_density() -> None:
    x = np.round(np.random.default_rng(0).normal(0, 1, 1000), 1)
    columns = learn(x)
    values = np.round(np.arange(-200, 201) * 0.1, 1)
    encoded = encode(columns, values)
    np.testing.assert_allclose(encoded.log_det, -math.log(0.1))
    density = probabilities(encoded) * np.exp(encoded.log_det[:, 0])
    assert (density * 0.1).sum() == pytest.approx(1, abs=1e-6)


def test_a_value_off_the_grid_has_the_cell_around_itself() -> None:
    columns = learn(np.random.default_rng(0).poisson(50, 1000), "integer")
    encoded = encode(columns, np.array([50.0, 50.25, 51.0]))
    low, high = encoded.low[:, 0], encoded.high[:, 0]
    assert low[1] == pytest.approx(low[0] + (high[0] - low[0]) / 4)
    assert high[1] == pytest.approx(high[0] + (high[2] - low[2]) / 4)


def test_coarse_steps_leave_gaps_and_fine_ones_do_not() -> None:
    rng = np.random.default_rng(0)
    few = np.array([0, 1, 9, 10])[rng.integers(0, 4, 500)]
    for x in (few, rng.integers(0, 4, 500), rng.poisson(1.5, 500)):
        encoded = encode(learn(x), np.array([1, 2]))
        np.testing.assert_allclose(encoded.spread, (encoded.high - encoded.low) / 4)
    encoded = encode(learn(rng.poisson(30, 500)), np.array([30, 31]))
    np.testing.assert_allclose(encoded.spread, (encoded.high - encoded.low) / 2)


def test_no_cell_is_empty() -> None:
    columns = learn(np.random.default_rng(0).poisson(50, 1000))
    far = encode(columns, np.array([1e17, -1e17, 1e250, 1.7e308]))
    assert (far.low < far.high).all() and np.isfinite(far.point).all()


def test_wild_rows_do_not_hide_a_grid() -> None:
    x = np.floor(np.random.default_rng(0).pareto(0.6, 2000))
    assert x.std() > 500
    assert learn(x).describe()[0]["kind"] == "integer"


KINDS = {
    "counts": (np.random.default_rng(0).poisson(4, 300), None),
    "heavy counts": (np.floor(np.random.default_rng(0).pareto(1, 900)).astype(int), None),
    "signed halves": (np.round(np.random.default_rng(1).normal(0, 9, 300)) / 2, None),
    "0 to 10": (
        np.random.default_rng(0).integers(0, 11, 300),
        {"kind": "integer", "lower": 0, "upper": 10},
    ),
    "levels": (np.array([0.1, 0.25, 0.77, 1.9, 4.3] * 20), None),
    "category": (np.array(list("aaabbcde") * 10, dtype=object), None),
}


@pytest.mark.parametrize(("x", "kind"), KINDS.values(), ids=KINDS.keys())
def test_whatever_is_drawn_becomes_a_value_and_its_own_point(x, kind) -> None:
    columns = learn(x, kind)
    rng = np.random.default_rng(0)
    points = np.empty((2000, 0))
    for scalar in range(columns.scalars):
        drawn = np.concatenate(
            [1.3 * rng.normal(size=1990), np.repeat([1e6, -1e6, 1e3], [4, 3, 3])]
        )
        snapped = columns.snap(scalar, drawn, points)
        points = np.column_stack([points, snapped])
    values = columns.decode(points)
    assert values["x"].dtype == x.dtype
    encoded = columns.encode(values)
    assert not encoded.impossible.any()
    ordinary = np.arange(2000) < 1990
    np.testing.assert_array_equal(encoded.point[ordinary], points[ordinary])
    # A drawn value lies in the cell it is snapped to.
    if columns.scalars == 1:
        inside = (encoded.low[:, 0] <= drawn) & (drawn <= encoded.high[:, 0])
        assert inside[ordinary].all()


def test_user_bounds_close_the_outer_cells() -> None:
    columns = learn(*KINDS["0 to 10"])
    encoded = encode(columns, np.arange(11))
    assert probabilities(encoded).sum() == pytest.approx(1, abs=1e-12)
    assert encode(columns, [11, 10]).impossible.tolist() == [True, False]


def test_levels_divide_the_line() -> None:
    columns = learn(*KINDS["levels"])
    assert columns.describe()[0]["kind"] == "ordinal"
    encoded = encode(columns, np.array([0.1, 0.25, 0.77, 1.9, 4.3]))
    assert probabilities(encoded).sum() == pytest.approx(1, abs=1e-12)
    assert (np.diff(encoded.point[:, 0]) > 0).all() and (encoded.log_det == 0).all()


def test_text_levels_in_the_order_given() -> None:
    x = np.array(["low", "high", "middle", "low"] * 5, dtype=object)
    columns = learn(x, {"kind": "ordinal", "levels": ["low", "middle", "high", "extreme"]})
    encoded = encode(columns, np.array(["low", "middle", "high", "extreme"], dtype=object))
    assert (np.diff(encoded.point[:, 0]) > 0).all()
    assert probabilities(encoded).sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("count", range(2, 21))
def test_categories_add_up_to_one_for_any_digits(count: int) -> None:
    values = np.array([f"v{i:02}" for i in range(count)], dtype=object)
    category = Category("", tuple(values))
    digits = category.scalars
    assert digits == max(1, math.ceil(math.log2(count)))
    columns = Columns({"x": category}, {"x": "text"})
    encoded = encode(columns, values)
    # The chance of a digit 1 depends on all digits before it, drawn at random for each prefix.
    rng = np.random.default_rng(count)
    chance = {
        prefix: rng.uniform()
        for length in range(digits)
        for prefix in itertools.product((-1.0, 1.0), repeat=length)
    }
    total = 0.0
    for point, certain in zip(encoded.point, encoded.certain, strict=True):
        probability = 1.0
        for digit in range(digits):
            one = chance[tuple(point[:digit])]
            if not certain[digit]:
                probability *= one if point[digit] > 0 else 1 - one
        total += probability
    assert total == pytest.approx(1, abs=1e-12)
    np.testing.assert_array_equal(encoded.low, np.where(encoded.point > 0, 0, -np.inf))
    np.testing.assert_array_equal(encoded.high, np.where(encoded.point > 0, np.inf, 0))
    assert len({tuple(point) for point in encoded.point}) == count


def test_certain_digits_are_forced() -> None:
    category = Category("", ("a", "b", "c", "d", "e"))  # e is 100: two certain digits
    columns = Columns({"x": category, "y": category}, {"x": "text", "y": "text"})
    last, first = np.array(["e", "a"], dtype=object), np.array(["a", "a"], dtype=object)
    assert columns.encode(Table({"x": first, "y": last})).certain.tolist() == [
        [False] * 3 + [False, True, True],
        [False] * 6,
    ]
    points = np.empty((1, 0))
    for scalar, drawn in enumerate([-5.0, -5.0, -5.0, 5.0, 5.0, 5.0]):
        points = np.column_stack([points, columns.snap(scalar, np.array([drawn]), points)])
    assert points.tolist() == [[-1, -1, -1, 1, -1, -1]]
    decoded = columns.decode(points)
    assert decoded["x"].tolist() == ["a"] and decoded["y"].tolist() == ["e"]


def test_frequent_values_come_first_and_weights_count() -> None:
    x = np.array(["a"] * 5 + ["b"] * 9 + ["c"] * 2, dtype=object)
    assert learn(x).describe()[0]["parameters"]["values"] == ["b", "a", "c"]
    weight = np.where(x == "c", 10.0, 1.0)
    columns = Columns.learn(Table({"x": x}), weight=weight)
    assert columns.describe()[0]["parameters"]["values"] == ["c", "b", "a"]


def test_numbers_and_truth_values_as_categories() -> None:
    codes = np.array([7, 3, 3, 12] * 5)
    columns = learn(codes, "category")
    assert columns.scalars == 2
    assert (columns.decode(encode(columns, codes).point)["x"] == codes).all()
    assert (encode(columns, codes.astype(float)).point == encode(columns, codes).point).all()
    flags = np.array([True, False, False] * 4)
    columns = learn(flags)
    decoded = columns.decode(encode(columns, flags).point)["x"]
    assert decoded.dtype == bool and (decoded == flags).all()
