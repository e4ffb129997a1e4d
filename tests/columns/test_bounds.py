"""Bounded columns: derivatives, masses at the bounds, and nothing beyond them."""

import math

import numpy as np
import pytest

from arcsm.columns import Columns
from arcsm.columns.bounds import Bounds
from arcsm.columns.natural import natural_bounds
from arcsm.columns.sample import Sample
from arcsm.data.table import Table

BOUNDS = {
    "from 0": Bounds(0.0, None, 2.0),
    "from 3": Bounds(3.0, None, 0.1),
    "up to 0": Bounds(None, 0.0, 5.0),
    "up to -1": Bounds(None, -1.0, 0.5),
    "0 to 1": Bounds(0.0, 1.0),
    "-1 to 3": Bounds(-1.0, 3.0),
}


@pytest.mark.parametrize("bounds", BOUNDS.values(), ids=BOUNDS.keys())
def test_map_is_inverted_and_has_the_derivative_it_says(bounds: Bounds) -> None:
    y = np.linspace(-8, 8, 161) * bounds.bend
    x = bounds.from_line(y)
    again, log_derivative = bounds.to_line(x)
    near = 1e-9 * bounds.bend + 1e-12 * np.exp(np.abs(y) / bounds.bend)
    assert (np.abs(again - y) < near).all()
    step = 1e-5 * bounds.bend
    slope = (bounds.from_line(y + step) - bounds.from_line(y - step)) / (2 * step)
    np.testing.assert_allclose(log_derivative, -np.log(slope), atol=1e-5)


@pytest.mark.parametrize("bounds", BOUNDS.values(), ids=BOUNDS.keys())
def test_nothing_leaves_the_bounds(bounds: Bounds) -> None:
    x = bounds.from_line(np.array([-1e300, -1e6, -800.0, 800.0, 1e6, 1e300]))
    assert np.isfinite(x).all()
    assert bounds.lower is None or (x > bounds.lower).all()
    assert bounds.upper is None or (x < bounds.upper).all()
    y, log_derivative = bounds.to_line(x)
    assert np.isfinite(y).all() and np.isfinite(log_derivative).all()


def test_one_bound_is_a_logarithm_near_it_and_the_identity_far_away() -> None:
    bounds = Bounds(0.0, None, 2.0)
    near, far = np.array([5e-324, 1e-300, 1e-12]), np.array([200.0, 1e8, 1e300])
    np.testing.assert_allclose(
        bounds.to_line(near)[0], 2 * (np.log(near) - math.log(2)), rtol=1e-12
    )
    np.testing.assert_allclose(bounds.to_line(near)[1], -np.log(near) + math.log(2), rtol=1e-12)
    np.testing.assert_allclose(bounds.to_line(far)[0], far, rtol=1e-15)


def bounded(x: np.ndarray, **options: float) -> Columns:
    return Columns.learn(Table({"x": x}), kinds={"x": {"kind": "bounded", **options}})


@pytest.mark.parametrize("sign", [1, -1])
def test_log_det_of_the_column(sign: int) -> None:
    x = sign * np.random.default_rng(0).lognormal(0, 1.5, 4000)
    columns = bounded(x, **({"lower": 0} if sign > 0 else {"upper": 0}))
    line = columns.describe()[0]["parameters"]
    assert (line["right"] if sign > 0 else line["left"]) > 0
    assert (line["left"] if sign > 0 else line["right"]) == 0
    at = sign * np.logspace(-4, 3, 50)

    def point(values: np.ndarray) -> np.ndarray:
        return columns.encode(Table({"x": values})).point[:, 0]

    slope = (point(at * (1 + 1e-6)) - point(at * (1 - 1e-6))) / (2e-6 * at)
    log_det = columns.encode(Table({"x": at})).log_det[:, 0]
    np.testing.assert_allclose(log_det, np.log(slope), atol=1e-6)


def test_density_integrates_to_one_with_masses_at_both_bounds() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([np.zeros(50), np.ones(20), rng.beta(2, 1, 300)])
    columns = bounded(x, lower=0, upper=1)
    assert "mass at 0 (13.51%" in columns.describe()[0]["reason"]
    inside = np.linspace(0, 1, 400_001)[1:-1]
    encoded = columns.encode(Table({"x": np.concatenate([[0.0, 1.0], inside])}))
    assert not encoded.impossible.any()

    def logistic(z: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-z))

    point, low, high = encoded.point[:, 0], encoded.low[:, 0], encoded.high[:, 0]
    assert low[0] == -np.inf and high[1] == np.inf
    assert (encoded.log_det[:2] == 0).all() and (encoded.spread[:2] > 0).all()
    assert (point - encoded.spread[:, 0] >= low).all() and (
        point + encoded.spread[:, 0] <= high
    ).all()
    atoms = logistic(high[0]) + 1 - logistic(low[1])
    # Values nearer to a bound than half of any learned belong to the cell of the bound.
    continuous = low == high
    density = logistic(point) * logistic(-point) * np.exp(encoded.log_det[:, 0])
    total = atoms + density[continuous].sum() / 400_000
    assert total == pytest.approx(1, abs=1e-4)
    assert 0 < (~continuous).sum() - 2 < 40_000


def test_masses_are_drawn_decoded_and_kept_apart() -> None:
    x = np.concatenate([np.zeros(50), np.random.default_rng(0).gamma(2, size=100)])
    columns = Columns.learn(Table({"x": x}))
    encoded = columns.encode(Table({"x": x}))
    drawn = np.concatenate([encoded.point[:, 0], [-1e6, encoded.high[0, 0] - 1e-9]])
    snapped = columns.snap(0, drawn, np.empty((len(drawn), 0)))
    np.testing.assert_array_equal(snapped[:-2], encoded.point[:, 0])
    decoded = columns.decode(snapped[:, None])["x"]
    np.testing.assert_allclose(decoded[:-2], x, rtol=1e-12)
    assert (decoded[[0, -1, -2]] == 0).all()
    at_edge = columns.decode(encoded.high[:1])
    assert columns.encode(at_edge).spread[0, 0] == 0
    just_above = columns.decode(np.array([[encoded.high[0, 0] + 1e-9]]))["x"][0]
    assert just_above >= x[x > 0].min() / 2


def test_an_edge_decodes_to_its_own_side() -> None:
    for seed in range(60):
        x = np.append(np.random.default_rng(seed).gamma(2, size=30), [0.0, 0.0])
        columns = Columns.learn(Table({"x": x}), kinds={"x": {"kind": "bounded", "lower": 0}})
        edge = columns.encode(Table({"x": np.zeros(1)})).high
        assert columns.encode(columns.decode(edge)).spread[0, 0] == 0


def test_the_tail_towards_a_bound_is_left_alone() -> None:
    x = np.exp(-np.random.default_rng(0).pareto(1.5, 3000))
    line = bounded(x, lower=0).describe()[0]["parameters"]
    assert line["left"] == 0


def test_values_outside_and_bounds_without_mass_are_impossible() -> None:
    x = np.random.default_rng(0).uniform(0.1, 0.9, 100)
    encoded = bounded(x, lower=0, upper=1).encode(
        Table({"x": np.array([-0.1, 0.0, 0.5, 1.0, 2.0])})
    )
    assert encoded.impossible.tolist() == [True, True, False, True, True]
    assert all(np.isfinite(part).all() for part in (encoded.point, encoded.low, encoded.log_det))


LAWS = {
    "exponential": (lambda rng: rng.exponential(size=2000), (0, None)),
    "gamma 2": (lambda rng: rng.gamma(2, size=2000), (0, None)),
    "gamma 1/2": (lambda rng: rng.gamma(0.5, size=2000), (0, None)),
    "log-normal": (lambda rng: rng.lognormal(size=2000), (0, None)),
    "a short exponential": (lambda rng: 0.05 * rng.exponential(size=2000), (0, None)),
    "minus exponential": (lambda rng: -rng.exponential(size=2000), (None, 0)),
    "uniform": (lambda rng: rng.uniform(size=2000), (0, 1)),
    "percent": (lambda rng: rng.uniform(0, 100, 2000), (0, 100)),
    "cosine": (lambda rng: np.cos(rng.uniform(0, np.pi, 2000)), (-1, 1)),
    "beta ½ ½": (lambda rng: rng.beta(0.5, 0.5, 2000), (0, 1)),
    "beta 2 2": (lambda rng: rng.beta(2, 2, 5000), (0, 1)),
    "beta 1 8": (lambda rng: rng.beta(1, 8, 2000), (0, None)),
    "normal": (lambda rng: rng.normal(size=2000), None),
    "positive normal": (lambda rng: rng.normal(5, 1, 2000), None),
    "normal far away": (lambda rng: rng.normal(100, 1, 2000), None),
    "uniform away from 0": (lambda rng: rng.uniform(0.5, 1.5, 2000), None),
    "normal inside 0 to 1": (lambda rng: rng.normal(0.5, 0.08, 2000), None),
}


@pytest.mark.parametrize(("draw", "expected"), LAWS.values(), ids=LAWS.keys())
def test_natural_bounds_are_found_and_no_others(draw, expected) -> None:
    for seed in range(4):
        found = natural_bounds(Sample.of(draw(np.random.default_rng(seed)), None))
        assert (None if found is None else found[:2]) == expected


def test_scaling_to_a_range_is_no_bound() -> None:
    for seed in range(20):
        x = np.random.default_rng(seed).normal(size=100)
        scaled = (x - x.min()) / (x.max() - x.min())
        assert natural_bounds(Sample.of(scaled, None)) is None
