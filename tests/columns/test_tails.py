"""The tail map is inverted to rounding, has the derivative it says, and is used with reason."""

import math

import numpy as np
import pytest

from arcsm.columns.sample import Sample
from arcsm.columns.tails import HEAVIEST, TailMap, fit_tail_map, tail_index

MAPS = {
    "linear": TailMap(2.0, 3.0),
    "both tails": TailMap(0.0, 1.0, 0.3, 0.7),
    "left only": TailMap(-5.0, 0.01, 1.5, 0.0),
    "right only": TailMap(1e6, 1e3, 0.0, 0.06),
}


@pytest.mark.parametrize("h", [1e-12, 0.05, 1 / 3, 1.0, 1.5, 20.0])
def test_inverse_solves_the_equation_from_denormals_to_1e300(h: float) -> None:
    u = np.concatenate([[5e-324, 1e-310], np.logspace(-300, 300, 2001)])
    z = TailMap(0.0, 1.0, 0.0, h).to_normal(u)
    # log u = log z + h z²/2, whose right side is known to a few units in the last place of its
    # terms.
    size = 1 + np.abs(np.log(z)) + h * z * z / 2 + np.abs(np.log(u))
    assert (np.abs(np.log(z) + h * z * z / 2 - np.log(u)) <= 8e-16 * size).all()
    assert (np.diff(z) >= 0).all()
    left = TailMap(0.0, 1.0, h, 0.0).to_normal(-u)
    np.testing.assert_array_equal(left, -z)


def test_inverse_is_the_lambert_function() -> None:
    lambertw = pytest.importorskip("scipy.special").lambertw
    u = np.logspace(-8, 100, 500)
    expected = np.sqrt(lambertw(0.4 * u * u).real / 0.4)
    np.testing.assert_allclose(TailMap(0.0, 1.0, 0.4, 0.4).to_normal(u), expected, rtol=1e-14)


def test_zero_stays_zero_and_nothing_overflows() -> None:
    line = TailMap(0.0, 1e-5, 0.3, 0.3)
    x = np.array([0.0, -0.0, 1.7e308, -1.7e308])
    z = line.to_normal(x)
    assert (z[:2] == 0).all() and np.isfinite(z).all()
    for line in MAPS.values():
        x = line.from_normal(np.array([-1e300, -1e6, 1e6, 1e300]))
        assert np.isfinite(x).all() and (x[1:] >= x[:-1]).all()


@pytest.mark.parametrize("line", MAPS.values(), ids=MAPS.keys())
def test_round_trip_and_derivative(line: TailMap) -> None:
    z = np.linspace(-6, 6, 241)
    x = line.from_normal(z)
    np.testing.assert_allclose(line.to_normal(x), z, rtol=1e-9, atol=1e-9)
    step = 1e-5
    slope = (line.from_normal(z + step) - line.from_normal(z - step)) / (2 * step)
    np.testing.assert_allclose(line.log_derivative(z), -np.log(slope), atol=1e-6)


def test_derivative_stays_finite_far_out() -> None:
    line = TailMap(0.0, 1.0, 0.0, 0.5)
    z = line.to_normal(np.array([1e300]))
    # In closed form z ≈ sqrt(2·log(u/z)/h), and −log(dx/dz) = −log u + log z − log(1 + h z²).
    expected = -math.log(1e300) + math.log(z[0]) - math.log1p(0.5 * z[0] ** 2)
    assert line.log_derivative(z)[0] == pytest.approx(expected, rel=1e-13)


def fitted(x: np.ndarray, weight: np.ndarray | None = None) -> TailMap:
    return fit_tail_map(Sample.of(x, weight))[0]


@pytest.mark.parametrize("seed", range(6))
def test_tails_of_student_t_are_found(seed: int) -> None:
    x = np.random.default_rng(seed).standard_t(3, 20_000)
    line, said = fit_tail_map(Sample.of(x, None))
    assert line.left == pytest.approx(1 / 3, abs=0.13)
    assert line.right == pytest.approx(1 / 3, abs=0.13)
    assert len(said) == 2 and all("heavier than normal: ξ = 0." in text for text in said)
    assert line.location == pytest.approx(np.median(x), abs=1e-12)
    assert line.scale == pytest.approx(0.7649 * 2 / 1.349, rel=0.05)  # quartiles of t₃


@pytest.mark.parametrize("rows", [60, 300, 20_000])
@pytest.mark.parametrize("law", ["normal", "uniform", "exponential", "laplace"])
def test_light_tails_are_left_alone(law: str, rows: int) -> None:
    for seed in range(5):
        x = getattr(np.random.default_rng(seed), law)(size=rows)
        line = fitted(x)
        assert (line.left, line.right) == (0, 0)
        assert line.location == pytest.approx(x.mean(), rel=1e-9, abs=1e-12)
        assert line.scale == pytest.approx(x.std(), rel=1e-9)


def test_only_the_heavy_side_is_bent() -> None:
    x = np.random.default_rng(0).pareto(1.5, 5000)
    line = fitted(x)
    assert line.left == 0 and line.right == pytest.approx(1 / 1.5, abs=0.2)


def test_index_is_clipped() -> None:
    x = np.random.default_rng(0).pareto(0.3, 5000)
    line, said = fit_tail_map(Sample.of(x, None))
    assert line.right == HEAVIEST and "taken as 1.5" in said[0]


def test_a_few_wild_rows_do_not_press_the_others_together() -> None:
    x = np.append(np.random.default_rng(0).normal(size=29), 1e9)
    line, said = fit_tail_map(Sample.of(x, None))
    z = line.to_normal(x)
    assert z[:29].std() > 0.5 and z[29] < 8 and "far out" in said[0]


def test_ties_do_not_break_the_estimate() -> None:
    assert tail_index(np.full(100, 2.0)) is None
    assert tail_index(np.arange(1.0, 20.0)) is None


def test_weights_count_as_repeated_rows() -> None:
    x = np.random.default_rng(0).standard_t(2, 400)
    times = np.random.default_rng(1).integers(0, 4, 400)
    weighted = Sample.of(x, times.astype(float))
    repeated = Sample.of(np.repeat(x, times), None)
    p = np.array([0.05, 0.25, 0.5, 0.9])
    np.testing.assert_allclose(weighted.quantile(p), repeated.quantile(p))
    np.testing.assert_allclose(weighted.mean_and_deviation(), repeated.mean_and_deviation())
    assert weighted.robust_scale() == pytest.approx(repeated.robust_scale())


def test_rows_without_weight_have_no_tails() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=2000), 5 + rng.pareto(0.5, 400)])
    weight = np.repeat([1.0, 0.0], [2000, 400])
    assert tail_index(np.sort(x[x > 0])).index > 1
    line = fit_tail_map(Sample.of(x, weight))[0]
    assert (line.left, line.right) == (0, 0)
    assert line.scale == pytest.approx(x[:2000].std())


def test_quantiles_of_rows_that_weigh_the_same_are_the_usual_ones() -> None:
    x = np.random.default_rng(0).normal(size=101)
    sample = Sample.of(x, None)
    for p in (0.1, 0.25, 0.5, 0.99):
        assert sample.quantile(p) == np.quantile(x, p, method="averaged_inverted_cdf")


def test_scale_where_one_value_fills_the_middle() -> None:
    x = np.concatenate([np.zeros(80), np.linspace(-1, 1, 21)])
    assert 0 < Sample.of(x, None).robust_scale() < 1
    lonely = Sample.of(np.array([0.0, 1.0, 2.0]), np.array([1.0, 0.0, 0.0]))
    assert fit_tail_map(lonely)[0].scale > 0
