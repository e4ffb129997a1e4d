"""Holes filled under models whose conditionals are known."""

import itertools
import math

import numpy as np
import pytest
import torch
from known import normal, seeded

from arcsm.agnostic import OrderAgnosticARCSM
from arcsm.columns import Columns
from arcsm.columns.category import Category
from arcsm.columns.incomplete import Incomplete
from arcsm.conditional import Noise
from arcsm.data.table import Table, as_table
from arcsm.ensemble import Ensemble
from arcsm.errors import InputError
from arcsm.model import ARCSM
from arcsm.tabular import Settings, TabularModel
from arcsm.tabular.incomplete import fit_incomplete
from arcsm.tasks.impute import Imputation
from arcsm.tasks.impute.any_order import AnyOrder

CORRELATION = np.array([[1.0, 0.8, -0.5], [0.8, 1.0, -0.3], [-0.5, -0.3, 1.0]])
FREE = np.tile([-np.inf, np.inf], (3, 1))  # as far as a density goes
MEAN, SPREAD = np.array([5.0, -2.0, 100.0]), np.array([0.5, 3.0, 20.0])


def make_normal(model: ARCSM) -> None:
    """Let all conditionals be standard normal in their own units."""
    with torch.no_grad():
        model.head.output.weight.zero_()
        model.head.output.bias.zero_()
        model.head.output.bias[-1] = -1e6  # no pull beyond that of the normal density itself
    # Towards the level from which on all are normal the head makes conditionals wider.
    assert model.head.normal_at is None


def gaussian(order: list[int]) -> tuple[TabularModel, Table]:
    """Return a model of one order that is a known normal density exactly, and rows of it.

    The noise that is left widens standard normal conditionals by a factor of 1 + 0.02²/2.
    """
    root = np.linalg.cholesky(CORRELATION)
    x = np.random.default_rng(0).normal(size=(3000, 3)) @ root.T * SPREAD + MEAN
    columns = Columns.learn(as_table(x), kinds=dict.fromkeys(("x0", "x1", "x2"), "linear"))
    # The scalars are linear in the columns: their moments are known as well.
    unit = columns.encode(as_table(np.stack([MEAN, MEAN + SPREAD]))).point
    shift, deviation = torch.from_numpy(unit[0]), torch.from_numpy(unit[1] - unit[0])
    model = ARCSM.made(
        3, order=order, decorrelate=True, hidden=(8, 8), noise=Noise(1.9, 0.02), seed=0
    ).double()
    model.shift.copy_(shift)
    model.deviation.copy_(deviation)
    assert model.regression is not None
    model.regression.zero_()
    for place, d in enumerate(order):
        known = order[:place]
        b = np.linalg.solve(CORRELATION[np.ix_(known, known)], CORRELATION[known, d])
        model.regression[d, known] = torch.from_numpy(b) * deviation[d] / deviation[known]
        model.scale[d] = deviation[d] * math.sqrt(1 - b @ CORRELATION[known, d])
    make_normal(model)
    return TabularModel(columns, model), as_table(x)


def exact(row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return means and covariance of the holes of a row, by the textbook."""
    covariance = CORRELATION * SPREAD * SPREAD[:, None]
    hole = np.isnan(row)
    known = ~hole
    b = np.linalg.solve(covariance[np.ix_(known, known)], covariance[np.ix_(known, hole)])
    left = covariance[np.ix_(hole, hole)] - b.T @ covariance[np.ix_(known, hole)]
    return MEAN[hole] + b.T @ (row - MEAN)[known], left


PATTERNS = [p for p in itertools.product((True, False), repeat=3) if any(p)]


def with_every_pattern(table: Table) -> Table:
    rows = table.to_numpy()[: len(PATTERNS)].copy()
    rows[np.array(PATTERNS)] = np.nan
    return as_table(rows)


def any_order(seed: int = 0) -> tuple[TabularModel, Table]:
    """Return a model of all orders with random weights, far from normal, and rows for it."""
    model = OrderAgnosticARCSM.made(
        3, hidden=(16, 16), steps=8, noise=Noise(3.0, 0.1), linear=True, seed=seed
    ).double()
    with torch.no_grad():
        for place, parameter in enumerate(model.parameters()):
            parameter.add_(0.4 * normal(*parameter.shape, seed=place))
    x = normal(300, 3, seed=1).cumsum(1).numpy() * 3 + 10
    columns = Columns.learn(as_table(x), kinds=dict.fromkeys(("x0", "x1", "x2"), "linear"))
    model.standardise(torch.from_numpy(columns.encode(as_table(x)).point))
    return TabularModel(columns, model.requires_grad_(False)), as_table(x)


def test_each_hole_is_filled_by_its_own_conditional() -> None:
    """Means, medians and intervals against the density of the model on a fine grid."""
    model, rows = any_order()
    table = with_every_pattern(rows)
    x, imputation = table.to_numpy(), Imputation(model, reach=FREE)
    assert imputation.exact and imputation.effective(table) is None
    mean, median = (imputation.fill(table, how).to_numpy() for how in ("mean", "median"))
    low, high = (end.to_numpy() for end in imputation.intervals(table, 0.8))
    hole = np.isnan(x)
    for part in (mean, median):
        np.testing.assert_array_equal(part[~hole], x[~hole])
    assert (np.isnan(low) == ~hole).all() and (np.isnan(high) == ~hole).all()
    assert isinstance(model.model, OrderAgnosticARCSM)
    whole = np.where(hole, 0.0, x)
    point = torch.from_numpy(model.columns.encode(as_table(whole)).point)
    for row, column in np.argwhere(hole):
        given = np.flatnonzero(~hole[row]).tolist()
        density = model.model.conditional(point[[row]], int(column), given=given)
        ends = density.quantile(torch.tensor([[1e-7, 1 - 1e-7]], dtype=torch.float64))
        grid = ends[:, :1] + torch.linspace(0, 1, 6001, dtype=torch.float64) * ends.diff()
        height = density.log_prob(grid).exp()[0].numpy()
        z = grid[0].numpy()
        values = model.columns.decode(np.repeat(z[:, None], 3, 1))[f"x{column}"]
        below = np.concatenate([[0], np.cumsum((height[1:] + height[:-1]) / 2 * np.diff(z))])
        assert below[-1] == pytest.approx(1, abs=1e-3)
        share = np.diff(below) / below[-1]
        middle = (values[1:] + values[:-1]) / 2
        told = float(share @ middle)
        spread = math.sqrt(share @ (middle - told) ** 2)
        assert mean[row, column] == pytest.approx(told, abs=0.01 * spread)
        for end, level in ((median, 0.5), (low, 0.1), (high, 0.9)):
            exact_end = np.interp(level * below[-1], below, values)
            assert end[row, column] == pytest.approx(exact_end, abs=0.01 * spread)


def test_draws_are_joint() -> None:
    """The first of two holes by its conditional, the second given the first: ranks are uniform."""
    model, rows = any_order()
    row = rows.to_numpy()[0].copy()
    row[[0, 1]] = np.nan
    table = as_table(np.tile(row, (1000, 1)))
    imputation = Imputation(model, reach=FREE)
    (drawn,) = imputation.draws(table, 1, generator=seeded())
    np.testing.assert_array_equal(drawn["x2"], table["x2"])
    assert isinstance(model.model, OrderAgnosticARCSM)
    point = torch.from_numpy(model.columns.encode(drawn).point)
    ranks = [
        model.model.conditional(point, d, given=given).cdf(point[:, [d]])[:, 0].numpy()
        for d, given in ((0, [2]), (1, [0, 2]))
    ]
    for part in ranks:
        # Kolmogorov's statistic of 1,000 uniform numbers is above 0.057 once in 400 times.
        assert np.abs(np.sort(part) - (np.arange(1000) + 0.5) / 1000).max() < 0.057
    assert abs(np.corrcoef(*ranks)[0, 1]) < 4 / math.sqrt(1000)
    again = imputation.draws(table, 2, generator=seeded())
    np.testing.assert_array_equal(again[0].to_numpy(), drawn.to_numpy())
    assert not np.array_equal(again[1].to_numpy(), drawn.to_numpy())


def test_a_model_learned_from_holes_knows_the_normal_density() -> None:
    """Within a quarter of the spread of the exact means, of which column means are 0.7 away."""
    random = np.random.default_rng(1)
    x = random.normal(size=(1000, 3)) @ np.linalg.cholesky(CORRELATION).T * SPREAD + MEAN
    x[random.random(x.shape) < 0.25] = np.nan
    table = as_table(x)
    model, reach, _ = fit_incomplete(table, Settings(max_steps=220, hidden=(64, 64)))
    rows = np.flatnonzero(np.isnan(x).any(1) & ~np.isnan(x).all(1))
    mean = Imputation(model, reach=reach).fill(table.take(rows), "mean").to_numpy()
    away = np.concatenate(
        [
            (mean[place][np.isnan(x[row])] - exact(x[row])[0]) / SPREAD[np.isnan(x[row])]
            for place, row in enumerate(rows)
        ]
    )
    assert (error := np.sqrt(np.mean(away**2))) < 0.25, error


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
def test_one_order_agrees_with_the_normal_density(order: list[int]) -> None:
    """Within four standard errors of the draws, and without weights where holes come last."""
    model, rows = gaussian(order)
    table = with_every_pattern(rows)
    x, imputation = table.to_numpy(), Imputation(model, particles=300)
    assert not imputation.exact
    worth = imputation.effective(table)
    assert worth is not None
    mean = imputation.fill(table, "mean").to_numpy()
    low, high = (end.to_numpy() for end in imputation.intervals(table, 0.8))
    for row in range(len(x)):
        hole = np.isnan(x[row])
        last = all(hole[d] for d in order[3 - hole.sum() :])
        assert (worth[row] > 299.99) == last
        told, covariance = exact(x[row])
        spread = np.sqrt(np.diag(covariance))
        error = spread / math.sqrt(worth[row])
        np.testing.assert_array_equal(mean[row, ~hole], x[row, ~hole])
        assert (np.abs(mean[row, hole] - told) < 4 * error).all()
        # A quantile at 0.1 has 1.71 times the error of a mean.
        for end, sign in ((low, -1), (high, 1)):
            away = end[row, hole] - told - sign * 1.2815516 * spread
            assert (np.abs(away) < 4 * 1.71 * error).all()


def test_draws_along_one_order_are_given_all_that_is_known() -> None:
    model, rows = gaussian([0, 1, 2])
    row = rows.to_numpy()[1].copy()
    row[0] = np.nan  # what comes first, given what follows
    told, covariance = exact(row)
    table = as_table(np.tile(row, (200, 1)))
    (drawn,) = Imputation(model, particles=30).draws(table, 1, generator=seeded())
    x = drawn.to_numpy()[:, 0]
    spread = math.sqrt(covariance[0, 0])
    assert abs(x.mean() - told[0]) < 4 * spread / math.sqrt(200)
    assert x.std() == pytest.approx(spread, rel=0.25)
    np.testing.assert_array_equal(drawn.to_numpy()[:, 1:], table.to_numpy()[:, 1:])


def test_as_many_draws_as_particles_follow_the_weights() -> None:
    """One of each particle would be draws that know nothing of what follows."""
    model, rows = gaussian([1, 2, 0])
    row = rows.to_numpy()[1].copy()
    row[2] = np.nan
    told, covariance = exact(row)
    imputation = Imputation(model, particles=50)
    table = as_table(np.tile(row, (100, 1)))
    x = np.stack([part["x2"] for part in imputation.draws(table, 50, generator=seeded())])
    spread = math.sqrt(covariance[0, 0])
    assert x.mean() == pytest.approx(told[0], abs=0.05 * spread)
    assert x.std() == pytest.approx(spread, rel=0.03)
    again = np.stack([part["x2"] for part in imputation.draws(table, 50, generator=seeded())])
    np.testing.assert_array_equal(again, x)


def test_a_generator_of_any_device_determines_the_choice_of_particles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The choice is made on the CPU, by a generator of its own that the given one has seeded."""
    model, rows = gaussian([0, 1, 2])
    table, given = with_every_pattern(rows), seeded()
    choose, used = torch.multinomial, []

    def watch(*args: object, generator: torch.Generator | None = None) -> torch.Tensor:
        used.append(generator)
        return choose(*args, generator=generator)

    monkeypatch.setattr(torch, "multinomial", watch)
    Imputation(model, particles=10).draws(table, 2, generator=given)
    (own,) = used
    assert own is not None and own is not given and own.device.type == "cpu"
    first = own.initial_seed()
    for seed, same in ((0, True), (1, False)):
        used.clear()
        Imputation(model, particles=10).draws(table, 2, generator=seeded(seed))
        assert (used[0].initial_seed() == first) == same


# Discrete columns, by enumeration.


def discrete(order: str | list[str] = "any") -> tuple[TabularModel, Table]:
    """Return a model with random weights of small whole numbers, five towns and two values."""
    random = np.random.default_rng(0)
    table = Table(
        {
            "n": random.integers(0, 4, 300),
            "town": random.choice(np.array(list("abcde"), dtype=object), 300),
            "b": random.integers(0, 2, 300),
        }
    )
    columns = Columns.learn(table, kinds={"n": {"kind": "integer", "lower": 0, "upper": 3}})
    options = {"hidden": (16, 16), "width": 8, "steps": 6, "noise": Noise(3.0, 0.4), "seed": 0}
    model: ARCSM
    if order == "any":
        model = OrderAgnosticARCSM.made(columns.scalars, **options).double()
    else:
        scalars = [scalar for name in order for scalar in columns.scalars_of(name)]
        model = ARCSM.made(columns.scalars, order=scalars, **options).double()
    with torch.no_grad():
        for place, parameter in enumerate(model.parameters()):
            parameter.add_(0.3 * normal(*parameter.shape, seed=place))
    model.standardise(torch.from_numpy(columns.encode(table).point))
    return TabularModel(columns, model.requires_grad_(False)), table


def test_discrete_columns_by_the_probabilities_of_their_values() -> None:
    """Most probable values, means and quantiles against the probabilities of single values."""
    model, rows = discrete()
    whole = rows.take(slice(0, 6))
    values = {"n": np.arange(4), "town": np.array(list("abcde"), object), "b": np.arange(2)}
    for name, options in values.items():
        others = [other for other in values if other != name]
        holes = np.full(6, None, object) if name == "town" else np.full(6, np.nan)
        table = Table({**whole.columns, name: holes})
        probability = np.exp(
            [
                model.conditional_log_prob(whole.take([row]), name, options, given=others)
                for row in range(6)
            ]
        )
        np.testing.assert_allclose(probability.sum(1), 1, atol=1e-9)
        if name != "n":
            assert isinstance(model.model, OrderAgnosticARCSM)
            free = np.tile([-np.inf, np.inf], (model.columns.scalars, 1))
            way = AnyOrder(model.columns, model.model, free)
            known = way._known(Incomplete.of(model.columns, table))
            found = way._probabilities(known, torch.arange(6), name)
            kind = model.columns.kind(name)
            assert isinstance(kind, Category)
            own = [list(options).index(value) for value in kind.values]
            np.testing.assert_allclose(found, probability[:, own], atol=1e-9)
        imputation = Imputation(model)
        likely = imputation.fill(table, "mean")[name]
        exact_mean = imputation.fill(table, "mean", fractional=True)[name]
        low, high = (end[name] for end in imputation.intervals(table, 0.5))
        below = probability.cumsum(1)
        if name == "town":
            assert likely.tolist() == options[probability.argmax(1)].tolist()
            assert low.tolist() == [None] * 6 and exact_mean.tolist() == likely.tolist()
            continue
        np.testing.assert_allclose(exact_mean, probability @ options, atol=1e-5)
        np.testing.assert_array_equal(low, (below < 0.25).sum(1))
        np.testing.assert_array_equal(high, (below < 0.75).sum(1))
        if name == "b":
            np.testing.assert_array_equal(likely, probability.argmax(1))
        else:
            np.testing.assert_array_equal(likely, np.rint(probability @ options))
            median = imputation.fill(table, "median")[name]
            np.testing.assert_array_equal(median, (below < 0.5).sum(1))


def test_one_order_agrees_with_the_enumeration_of_discrete_rows() -> None:
    """The town comes first, and is drawn; what is known of the others weighs the draws."""
    model, rows = discrete(["town", "n", "b"])
    towns = np.array(list("abcde"), dtype=object)
    row = rows.take([0])
    every = Table({"n": np.repeat(row["n"], 5), "town": towns, "b": np.repeat(row["b"], 5)})
    joint = np.exp(model.log_prob(every))
    told = joint / joint.sum()
    count = 200
    table = Table(
        {
            "n": np.repeat(row["n"], count),
            "town": np.full(count, None, dtype=object),
            "b": np.repeat(row["b"], count),
        }
    )
    imputation = Imputation(model, particles=25)
    (drawn,) = imputation.draws(table, 1, generator=seeded())
    found = np.array([(drawn["town"] == town).mean() for town in towns])
    # Draws of one row are of 25 particles, not quite independent of each other: 5 errors.
    assert (np.abs(found - told) < 5 * np.sqrt(told * (1 - told) / count)).all()
    prior = np.exp(model.log_prob_terms(every, only="town")[:, 1])
    assert np.abs(prior - told).max() > 0.05  # so that the weights matter
    likely = Imputation(model, particles=500).fill(table.take([0]), "mean")["town"][0]
    assert likely == towns[told.argmax()]
    worth = imputation.effective(table.take([0]))
    assert worth is not None and 3 < worth[0] < 24.9


# Means as integrals.


def test_means_of_conditionals_far_from_normal() -> None:
    """Also of values that are a step function, against sums over 20,000 quantiles."""
    model = OrderAgnosticARCSM.made(
        2, hidden=(16, 16), steps=8, noise=Noise(3.0, 0.02), seed=0
    ).double()
    with torch.no_grad():
        for place, parameter in enumerate(model.parameters()):
            parameter.add_(0.4 * normal(*parameter.shape, seed=place))
    x = normal(400, 2, seed=1)
    model.standardise(x)
    model.requires_grad_(False)
    columns = Columns.learn(as_table(x.numpy()), kinds={"x0": "linear", "x1": "linear"})
    table = as_table(np.where([[True, False]], np.nan, x[:5].numpy()))
    way = AnyOrder(columns, model, np.tile([-np.inf, np.inf], (2, 1)))
    part = Incomplete.of(columns, table)
    conditionals = way._conditionals(way._known(part), torch.arange(5), 0)
    levels = (np.arange(20_000) + 0.5) / 20_000
    values = conditionals.quantile(levels)
    for function in (lambda z: z, np.exp, lambda z: (z > 0.2).astype(np.float64)):
        told = function(values)
        mean = conditionals.mean(function)
        np.testing.assert_allclose(mean, told.mean(1), atol=0.01 * told.std())
    np.testing.assert_allclose(conditionals.cdf(values[0, ::4000])[0], levels[::4000], atol=1e-9)


def test_nothing_lies_beyond_the_reach() -> None:
    for model, rows in (any_order(), gaussian([0, 1, 2])):
        table = as_table(np.where([[True, True, False]], np.nan, rows.to_numpy()[:4]))
        near = np.tile([0.0, 0.5], (3, 1))
        low, high = (
            model.columns.decode(np.full((1, 3), end)).to_numpy()[0, :2] for end in (0.0, 0.5)
        )
        limited, free = (Imputation(model, reach=reach) for reach in (near, FREE))
        for part in (
            limited.fill(table, "mean"),
            *limited.draws(table, 3, generator=seeded()),
            *limited.intervals(table),
        ):
            values = part.to_numpy()[:, :2]
            assert (values >= low - 1e-9).all() and (values <= high + 1e-9).all()
        beyond = free.draws(table, 3, generator=seeded())
        assert any((part.to_numpy()[:, :2] > high).any() for part in beyond)


def test_the_reach_is_a_little_more_than_what_was_seen() -> None:
    """Of a heavy tail too, in which the means of a model without ends are endless."""
    random = np.random.default_rng(0)
    x = np.column_stack([random.standard_cauchy(300), random.normal(size=300)])
    x[random.random(x.shape) < 0.2] = np.nan
    table = as_table(x)
    model, reach, _ = fit_incomplete(table, Settings(max_steps=5, hidden=(8, 8)))
    ends = model.columns.decode(reach.T.copy())
    for name, values in zip(("x0", "x1"), x.T, strict=True):
        room = 0.1 * np.ptp(values[~np.isnan(values)])
        told = [np.nanmin(values) - room, np.nanmax(values) + room]
        np.testing.assert_allclose(ends[name], told, rtol=1e-6)


# What cannot be.


def test_wrong_requests_are_refused() -> None:
    model, rows = any_order()
    imputation = Imputation(model)
    table = with_every_pattern(rows)
    with pytest.raises(InputError, match="expected a strategy among mean, median, draw"):
        imputation.fill(table, "mode")
    for wrong in (0, 1.5, True):
        with pytest.raises(InputError, match="expected a positive number of tables"):
            imputation.draws(table, wrong)
    for coverage in (0, 1, 1.5, "half", True):
        with pytest.raises(InputError, match="expected a coverage between 0 and 1"):
            imputation.intervals(table, coverage)
    for particles in (1, 2.5):
        with pytest.raises(InputError, match="expected two particles or more"):
            Imputation(model, particles=particles)
    several = TabularModel(model.columns, Ensemble.made(3, orders=[[0, 1, 2]] * 2, hidden=(8,)))
    with pytest.raises(InputError, match="got an ensemble"):
        Imputation(several)


def test_a_table_without_holes_is_returned_as_it_is() -> None:
    model, rows = any_order()
    table = rows.take(slice(0, 3))
    imputation = Imputation(model)
    for how in ("mean", "median", "draw"):
        filled = imputation.fill(table, how)
        np.testing.assert_array_equal(filled.to_numpy(), table.to_numpy())
    assert np.isnan(imputation.intervals(table)[0].to_numpy()).all()
