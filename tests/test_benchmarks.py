"""The parts of the benchmarks that decide what their numbers mean."""

import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from scipy import integrate, special, stats

# The scripts import each other by their bare names, as they do when they are run.
sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
rows, rivals, ranking, shapes, tables = map(
    import_module, ("rows", "rivals", "ranking", "shapes", "tables")
)


# Rows


def test_noise_is_as_wide_as_the_steps_of_a_column() -> None:
    random = np.random.default_rng(0)
    normal = random.normal(size=1000)
    assert rows.noise_width(np.round(normal * 4) / 4) == 0.25
    assert rows.noise_width(np.where(normal > 0, 3.0, 1.0)) == 2.0
    assert rows.noise_width(random.poisson(3, size=1000).astype(float)) == 1.0
    assert rows.noise_width(normal) == 0.0
    assert rows.noise_width(np.full(1000, 2.0)) == 0.0


def test_noise_of_repeated_values_on_no_grid_is_their_median_gap() -> None:
    random = np.random.default_rng(0)
    normal = random.normal(size=1000)
    gap = np.median(np.diff(np.unique(np.where(normal > 1, 1.0, normal))))
    assert rows.noise_width(np.where(normal > 1, 1.0, normal)) == pytest.approx(gap)
    # No value has 5 % of the rows, but every one is shared.
    levels = np.repeat(random.normal(size=100), 10)
    gap = np.median(np.diff(np.unique(levels)))
    assert rows.noise_width(levels) == pytest.approx(gap)
    # A few pairs of equal values need no noise.
    assert rows.noise_width(np.concatenate([normal, normal[:100]])) == 0.0


def test_split_is_70_to_30_without_a_row_in_both_parts() -> None:
    table = np.random.default_rng(0).normal(size=(1000, 3))
    split = rows.split_rows(table, seed=1)
    assert split.train.shape == (700, 3) and split.test.shape == (300, 3)
    together = np.vstack([split.train, split.test])
    np.testing.assert_array_equal(np.sort(together, 0), np.sort(table, 0))
    assert not np.array_equal(rows.split_rows(table, seed=2).train, split.train)
    np.testing.assert_array_equal(rows.split_rows(table, seed=1).test, split.test)


def test_split_of_a_large_table_is_cut_off() -> None:
    table = np.random.default_rng(0).normal(size=(40_000, 1))
    split = rows.split_rows(table, seed=0)
    assert len(split.train) == 20_000 and len(split.test) == 10_000


def test_split_adds_noise_of_one_quantum_to_discrete_columns_alone() -> None:
    random = np.random.default_rng(0)
    table = np.column_stack([random.poisson(4, size=2000) * 3.0, random.normal(size=2000)])
    split = rows.split_rows(table, seed=0)
    together = np.vstack([split.train, split.test])
    noise = together[:, 0] - 3 * np.round(together[:, 0] / 3)
    assert stats.kstest(noise, stats.uniform(-1.5, 3).cdf).pvalue > 0.01
    np.testing.assert_array_equal(np.sort(together[:, 1]), np.sort(table[:, 1]))


def test_split_leaves_out_what_is_constant_in_the_training_rows() -> None:
    table = np.random.default_rng(0).normal(size=(100, 3))
    table[:, 1] = 7.0
    assert rows.split_rows(table, seed=0).test.shape == (30, 2)
    # Varied over all rows, but in the test rows only.
    table[:, 0] = np.arange(100)
    test_row = int(rows.split_rows(table, seed=0).test[0, 0].round())
    table[test_row, 1] = 8.0
    assert rows.split_rows(table, seed=0).train.shape == (70, 2)


def test_a_grid_of_the_training_rows_counts_where_a_test_row_is_off_it() -> None:
    table = np.arange(100.0)[:, None] % 10
    marked = np.column_stack([table, np.arange(100.0)])
    test_row = int(rows.split_rows(marked, seed=0).test[0, 1].round())
    table = np.random.default_rng(0).permutation(500).astype(float)[:100, None]
    table[test_row] += 1 / np.pi
    assert rows.noise_width(table[:, 0]) == 0.0
    train = rows.split_rows(table, seed=0).train
    assert (np.abs(train - np.round(train)) > 0.01).mean() > 0.9


def test_speed_table_is_correlated_and_partly_discrete() -> None:
    table = rows.speed_table(2000, seed=0)
    assert table.shape == (2000, 20)
    assert [rows.noise_width(column) for column in table.T] == [0.0] * 12 + [1.0] * 4 + [
        0.25,
        0.25,
        1.0,
        1.0,
    ]
    correlation = np.abs(np.corrcoef(table[:, :4].T) - np.eye(4))
    assert correlation.max() > 0.3


# Rivals


def test_rivals_give_densities_in_the_units_of_the_rows() -> None:
    random = np.random.default_rng(0)
    scale, mean = np.array([100.0, 0.01]), np.array([5.0, -3.0])
    train, test = (random.normal(size=(2, 1000, 2)) * scale + mean).astype(np.float64)
    truth = stats.norm.logpdf(test, mean, scale).sum(1).mean()
    mixture = rivals.gaussian_mixture(train, test, seed=0)
    assert mixture.log_density.mean() == pytest.approx(truth, abs=0.05)
    assert mixture.chosen.startswith("1 components")
    kernels = rivals.kernel_density(train[:300], test, seed=0)
    assert kernels.log_density.mean() == pytest.approx(truth, abs=0.15)


def test_the_spline_flow_keeps_to_its_limit() -> None:
    pytest.importorskip("zuko")
    random = np.random.default_rng(0)
    train, test = random.normal(size=(2, 1000, 2)) * 10
    flow = rivals.spline_flow(train, test, seed=0, limit=0.3)
    assert flow.chosen.endswith("time limit") and flow.seconds < 2
    truth = stats.norm.logpdf(test, 0, 10).sum(1).mean()
    assert flow.log_density.shape == (1000,)
    assert flow.log_density.mean() == pytest.approx(truth, abs=1)


# Ranks


def test_ranks_put_the_highest_first_and_failures_last() -> None:
    np.testing.assert_array_equal(ranking.ranks([-3.0, 1.0, -2.0, 0.0]), [4, 1, 3, 2])
    np.testing.assert_array_equal(ranking.ranks([None, -1e6, np.nan, -np.inf]), [3, 1, 3, 3])
    np.testing.assert_array_equal(ranking.ranks([1.0, 1.0, 0.0]), [1.5, 1.5, 3])


def _entry(name: str, method: str, mean: float | None, **changes: object) -> object:
    values = {
        "set": name,
        "seed": 0,
        "method": method,
        "max_steps": None,
        "commit": "0",
        "rows": 10,
        "columns": 2,
        "tested": 4,
        "mean": mean,
        "spread": None if mean is None else 1.0,
        "seconds": 1.0,
        "chosen": "nothing",
        "reason": "failed" if mean is None else None,
    }
    return ranking.Entry(**values | changes)


def test_summary_averages_ranks_and_differences_over_the_sets() -> None:
    methods = ["arcsm", "kde", "flow"]
    scores = {"a": (3.0, 1.0, 2.0), "b": (0.0, 5.0, None)}
    entries = [
        _entry(name, method, mean)
        for name, means in scores.items()
        for method, mean in zip(methods, means, strict=True)
    ]
    found = {
        (metric.name, metric.labels["method"]): metric.value
        for metric in ranking.summarise(entries, methods)
        if set(metric.labels) == {"method"}
    }
    assert found == {
        ("average rank", "arcsm"): 1.5,
        ("average rank", "kde"): 2.0,
        ("average rank", "flow"): 2.5,
        ("wins", "arcsm"): 1,
        ("wins", "kde"): 1,
        ("wins", "flow"): 0,
        ("mean difference to arcsm", "kde"): 1.5,
        ("median difference to arcsm", "kde"): 1.5,
        ("mean difference to arcsm", "flow"): -1.0,
        ("median difference to arcsm", "flow"): -1.0,
    }


def test_nobody_wins_where_all_fail() -> None:
    methods = ["arcsm", "kde"]
    metrics = ranking.summarise([_entry("a", method, None) for method in methods], methods)
    assert [metric.value for metric in metrics if metric.name == "wins"] == [0, 0]
    (difference,) = [m for m in metrics if m.name == "mean difference to arcsm"]
    assert difference.value is None and difference.reason


def test_a_method_that_fails_is_recorded_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    split = rows.Split(np.zeros((5, 1)), np.zeros((4, 1)))

    def infinite(*_: object) -> object:
        return rivals.Outcome(np.array([0.0, -np.inf, np.nan, 0.0]), 1.0, "nothing")

    def broken(*_: object) -> object:
        raise ValueError("no good\nat all")

    for stand_in, reason in (
        (infinite, "no finite log-density for 2 of 4 test rows"),
        (broken, "ValueError: no good"),
    ):
        monkeypatch.setattr(rivals, "kernel_density", stand_in)
        entry = tables.measure("a", 0, "kde", split, None, 1.0, "0")
        assert (entry.mean, entry.reason) == (None, reason)


def test_each_fit_is_kept_as_soon_as_it_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ARCSM comes first, and the flow has its time, but 10 s at least."""
    limits = []

    def measure(name: str, seed: int, method: str, *rest: object) -> object:
        limits.append(rest[2])
        if method == "flow":
            raise KeyboardInterrupt
        return _entry(name, method, 1.0, seconds=25.0)

    monkeypatch.setattr(tables, "read_set", lambda name: np.zeros((10, 2)))
    monkeypatch.setattr(tables, "measure", measure)
    path = tmp_path / "lines"
    with pytest.raises(KeyboardInterrupt):
        tables.run_job("a", 0, ["flow", "arcsm"], None, 0.0, "0", path)
    assert limits == [10.0, 25.0]
    assert [json.loads(line)["method"] for line in path.read_text().splitlines()] == ["arcsm"]


# Shapes


# Boxes in which the density is not too uneven and that are not too rare.
@pytest.mark.parametrize(
    ("name", "centre", "half"),
    [
        ("funnel", [0, 0], [0.9, 0.9]),
        ("funnel-10", [0] * 10, [0.6] + [1.4] * 9),
        ("modes", [0, 0], [1, 1]),
        ("modes", [10, 0], [0.8, 0.8]),
        ("modes", [0, -15], [0.6, 0.6]),
        ("bent-t", [-1, 0.5], [0.8, 0.8]),
        ("gamma-exponential", [1, 1], [0.8, 0.8]),
    ],
)
def test_rows_of_a_shape_have_its_density(
    name: str, centre: list[float], half: list[float]
) -> None:
    """E[g(x)/p(x)] = 1 under p for every density g that is 0 where p is 0, such as a box."""
    shape = shapes.SHAPES[name]
    x = shape.sample(np.random.default_rng(0), 200_000)
    low, width = np.subtract(centre, half), 2 * np.array(half)
    ratio = np.exp(stats.uniform(low, width).logpdf(x).sum(1) - shape.log_prob(x))
    error = ratio.std() / len(ratio) ** 0.5
    assert error < 0.03  # so that the next line notices an error of 12 %
    assert abs(ratio.mean() - 1) < 4 * error


@pytest.mark.parametrize("name", shapes.SHAPES)
def test_marginals_of_a_shape_are_those_of_its_rows(name: str) -> None:
    shape = shapes.SHAPES[name]
    x = shape.sample(np.random.default_rng(1), 3000)
    assert len(shape.marginals) == x.shape[1]
    for column, cdf in list(zip(x.T, shape.marginals, strict=True))[:2]:
        # Exceeded with probability 1e-4.
        assert shapes.ks_distance(column, cdf) < special.kolmogi(1e-4) / len(x) ** 0.5


@pytest.mark.parametrize(
    ("name", "density", "part"),
    [
        ("funnel", stats.norm(0, 3).pdf, lambda v, y: stats.norm.cdf(y * np.exp(-v / 2))),
        ("bent-t", stats.t(3).pdf, lambda a, y: stats.t.cdf(y - a**2 / 2, 3)),
        ("gamma-exponential", stats.gamma(2).pdf, lambda a, y: -np.expm1(-max(a, 0) * max(y, 0))),
    ],
)
def test_second_marginal_is_its_integral(
    name: str, density: Callable[[float], float], part: Callable[[float, float], float]
) -> None:
    points = np.array([-1.0, 0.3, 2.0, 20.0])
    found = shapes.SHAPES[name].marginals[1](points)
    for y, value in zip(points, found, strict=True):
        expected = sum(
            integrate.quad(lambda a, y=y: density(a) * part(a, y), low, high)[0]
            for low, high in ((-60, -5), (-5, 0), (0, 5), (5, 60))
        )
        assert value == pytest.approx(expected, abs=2e-5)


def test_weights_of_the_modes() -> None:
    first, second = shapes.SHAPES["modes"].marginals
    np.testing.assert_allclose(first(np.array([5.0])), 0.92, atol=1e-6)
    np.testing.assert_allclose(second(np.array([-8.0])), 0.02, atol=1e-6)


def test_distance_is_that_of_kolmogorov_and_smirnov() -> None:
    x = np.random.default_rng(0).normal(0.3, size=50)
    expected = stats.ks_1samp(x, stats.norm.cdf).statistic
    assert shapes.ks_distance(x, stats.norm.cdf) == pytest.approx(expected)
    assert shapes.ks_distance(-x, stats.norm.cdf) == pytest.approx(expected)
