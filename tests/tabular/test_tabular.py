import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from arcsm.columns import Columns
from arcsm.data.table import Table, as_table
from arcsm.errors import CheckpointError, InputError
from arcsm.model import ARCSM
from arcsm.tabular import Settings, TabularModel, fit_table, load_tabular, save_tabular
from arcsm.tabular.pieces import rows_drawn_at_once
from arcsm.train import save_model


def mixed_table(rows: int = 400, seed: int = 0) -> Table:
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
            "copy": 2 * real + 1,
        }
    )


def untrained(table: Table, *, seed: int = 0, order: str = "natural") -> TabularModel:
    """Return a model whose weights are random: its densities must hold all the same."""
    kinds = {"share": {"kind": "bounded", "lower": 0, "upper": 1}}
    columns = Columns.learn(table, kinds=kinds if "share" in table.names else None)
    points = columns.encode(table).point
    model = Settings(hidden=(16, 16), order=order).model(columns, points, seed)
    model.standardise(torch.from_numpy(points).float())
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    return TabularModel(columns, model)


def with_column(row: Table, name: str, values: np.ndarray) -> Table:
    columns = {other: np.repeat(cells, len(values)) for other, cells in row.columns.items()}
    return Table({**columns, name: values})


@pytest.mark.parametrize("order", ["natural", "random"])
def test_conditionals_of_every_kind_add_up_to_one(order: str) -> None:
    table = mixed_table()
    model = untrained(table, order=order)
    row = table.take([5])
    for name, values in {
        "count": np.arange(0, 200),
        "colour": np.array(["red", "green", "blue"], dtype=object),
        "flag": np.array([False, True]),
    }.items():
        total = np.exp(model.conditional_log_prob(row, name, values)).sum()
        assert total == pytest.approx(1, abs=1e-5), name
    for name, grid in {
        "real": np.linspace(-40, 40, 2001),
        "share": 1 / (1 + np.exp(-np.linspace(-16, 16, 2001))),  # close to both bounds
    }.items():
        density = np.exp(model.conditional_log_prob(row, name, grid))
        assert np.trapezoid(density, grid) == pytest.approx(1, abs=2e-3), name


def test_terms_of_columns_add_up_and_constants_have_none() -> None:
    table = mixed_table()
    model = untrained(table)
    terms = model.log_prob_terms(table)
    assert terms.shape == (400, 7)
    np.testing.assert_allclose(model.log_prob(table), terms.sum(1))
    assert (terms[:, 5:] == 0).all() and np.isfinite(terms).all()
    assert model.chained == ("real", "count", "colour", "flag", "share")


def test_densities_are_in_the_units_of_the_table() -> None:
    """Of columns measured in other units the density changes by the log of the factor."""
    random = np.random.default_rng(3)
    values = random.normal(size=(300, 2))
    # The weights are random, and drawn in the same way for both.
    torch.manual_seed(0)
    one = untrained(as_table(values))
    torch.manual_seed(0)
    other = untrained(as_table(values * [1000.0, 0.01]))
    expected = one.log_prob_terms(as_table(values)) - np.log([1000.0, 0.01])
    found = other.log_prob_terms(as_table(values * [1000.0, 0.01]))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_rows_that_cannot_be() -> None:
    table = mixed_table()
    model = untrained(table)
    changed = {name: cells.copy() for name, cells in table.take(slice(0, 4)).columns.items()}
    changed["same"][0] = 8
    changed["copy"][1] += 1.0
    changed["share"][2] = 1.5
    log_prob = model.log_prob(Table(changed))
    assert np.isneginf(log_prob[:3]).all() and np.isfinite(log_prob[3])
    with pytest.raises(InputError, match="row 0, which has none"):
        model.pit(Table(changed), random=np.random.default_rng(0))


def test_samples_have_the_columns_of_the_table() -> None:
    table = mixed_table()
    model = untrained(table)
    sample = model.sample(500, generator=torch.Generator().manual_seed(1))
    assert sample.names == table.names and sample.rows == 500
    assert [sample[name].dtype for name in sample.names] == [table[n].dtype for n in table.names]
    assert (sample["count"] >= 0).all() and set(sample["colour"]) <= {"red", "green", "blue"}
    assert ((sample["share"] > 0) & (sample["share"] < 1)).all() and (sample["same"] == 7).all()
    np.testing.assert_allclose(sample["copy"], 2 * sample["real"] + 1)
    assert np.isfinite(model.log_prob(sample)).all()
    again = model.sample(500, generator=torch.Generator().manual_seed(1))
    assert all(np.array_equal(sample[name], again[name]) for name in sample.names)


def test_discrete_samples_have_the_probabilities_that_are_stated() -> None:
    random = np.random.default_rng(0)
    table = as_table(
        {
            "letter": random.choice(["a", "b", "c"], 300, p=[0.6, 0.3, 0.1]),
            "flag": random.random(300) < 0.4,
        }
    )
    model = untrained(table)
    rows = 8_000
    sample = model.sample(rows, generator=torch.Generator().manual_seed(0))
    cells = list(itertools.product("abc", [False, True]))
    listed = as_table({"letter": [c for c, _ in cells], "flag": [f for _, f in cells]})
    probability = np.exp(model.log_prob(listed))
    assert probability.sum() == pytest.approx(1, abs=1e-6)
    for (letter, flag), expected in zip(cells, probability, strict=True):
        found = np.mean((sample["letter"] == letter) & (sample["flag"] == flag))
        assert abs(found - expected) < 4.5 * math.sqrt(expected * (1 - expected) / rows) + 1e-4


def test_pit_of_own_samples_is_uniform() -> None:
    model = untrained(mixed_table())
    sample = model.sample(1000, generator=torch.Generator().manual_seed(2))
    pit = model.pit(sample, random=np.random.default_rng(0))
    assert set(pit) == {"real", "count", "flag", "share", "colour"}
    for name, values in pit.items():
        ordered = np.sort(values)
        distance = np.abs(ordered - (np.arange(len(ordered)) + 0.5) / len(ordered)).max()
        assert distance < 1.95 / math.sqrt(len(ordered)), name  # exceeded once in a thousand


def test_single_and_double_precision_agree() -> None:
    table = mixed_table(3400)
    model = untrained(table)
    rows = np.arange(0, 3400, 10)
    many, few = model.log_prob(table)[rows], model.log_prob(table.take(rows))
    assert not np.array_equal(many, few)
    difference = np.abs(many - few)
    assert np.median(difference) < 2e-5 and np.quantile(difference, 0.99) < 2e-3


def test_values_far_out_have_a_finite_density() -> None:
    table = mixed_table()
    model = untrained(table)
    for factor in (1e3, 1e8, 1e300):
        row = table.take([0])
        log_prob = model.conditional_log_prob(row, "real", np.array([factor, -factor]))
        assert np.isfinite(log_prob).all() and (log_prob < -1000).all()


# Fitting.


def quick(**changes: object) -> Settings:
    return Settings(**{"max_steps": 40, "hidden": (16, 16), **changes})


def test_fitting_is_reproducible_and_learns() -> None:
    table = mixed_table(600)
    one, history = fit_table(table, quick(max_steps=150), seed=1)
    same, _ = fit_table(table, quick(max_steps=150), seed=1)
    other, _ = fit_table(table, quick(max_steps=150), seed=2)
    fresh = mixed_table(300, seed=9)
    np.testing.assert_array_equal(one.log_prob(fresh), same.log_prob(fresh))
    assert not np.array_equal(one.log_prob(fresh), other.log_prob(fresh))
    assert history.validation
    start, _ = fit_table(table, quick(max_steps=1), seed=1)
    assert one.log_prob(fresh).mean() > start.log_prob(fresh).mean() + 0.15


def test_rows_of_weight_zero_do_not_count() -> None:
    table = mixed_table(300)
    weight = np.ones(300)
    weight[:150] = 0
    strange = {name: cells.copy() for name, cells in table.columns.items()}
    strange["colour"][:150] = "mauve"
    one, _ = fit_table(Table(strange), quick(), weight=weight)
    other, _ = fit_table(table.take(slice(150, 300)), quick(), weight=weight[150:])
    fresh = table.take(slice(200, 220))
    np.testing.assert_array_equal(one.log_prob(fresh), other.log_prob(fresh))


def test_a_rare_value_among_the_held_out_rows_alone() -> None:
    values = np.zeros(60, dtype=bool)
    for place in range(0, 60, 6):  # wherever it is, training or held out
        values[:] = False
        values[place] = True
        table = as_table({"rare": values, "x": np.random.default_rng(0).normal(size=60)})
        model, _ = fit_table(table, quick(max_steps=2))
        assert np.isfinite(model.log_prob(table)).all()


def test_the_order_is_one_of_columns() -> None:
    table = mixed_table(100)
    order = ["colour", "share", "real", "flag", "count"]
    model, _ = fit_table(table, quick(order=order, max_steps=1))
    assert model.order == tuple(order)
    scalars = model.model.context.order
    assert scalars.index(3) == scalars.index(2) + 1  # the two bits of the colour stay together
    for wrong in (order[:-1], [*order, "real"], [*order[:-1], "wrong"]):
        with pytest.raises(InputError, match="names each of the columns"):
            fit_table(table, quick(order=wrong))


def test_identical_rows_are_refused() -> None:
    with pytest.raises(InputError, match=r"got 1000 equal ones"):
        fit_table(as_table({"a": np.ones(1000), "b": np.full(1000, 3)}))


def test_more_columns_than_rows() -> None:
    table = as_table(np.random.default_rng(0).normal(size=(8, 30)))
    model, _ = fit_table(table, quick())
    assert np.isfinite(model.log_prob(table)).all()


# On disk.


def test_a_saved_model_is_the_same(tmp_path) -> None:
    model = untrained(mixed_table())
    save_tabular(tmp_path / "m", model, details={"note": [1, "two"]})
    loaded, details = load_tabular(tmp_path / "m")
    assert details["note"] == [1, "two"]
    fresh = mixed_table(50, seed=4)
    np.testing.assert_array_equal(loaded.log_prob(fresh), model.log_prob(fresh))


def test_models_that_are_not_of_tables_are_refused(tmp_path) -> None:
    save_model(tmp_path / "bare", ARCSM.made(2, hidden=(8,)))
    with pytest.raises(CheckpointError, match="without columns"):
        load_tabular(tmp_path / "bare")
    save_tabular(tmp_path / "m", untrained(mixed_table()), details={})
    path = tmp_path / "m" / "config.json"
    config = json.loads(path.read_text())
    config["details"]["table"]["columns"]["format"] = 99
    path.write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="two different ones"):
        load_tabular(tmp_path / "m")


def test_a_model_must_fit_its_columns() -> None:
    with pytest.raises(InputError, match="a model of 6 scalars"):
        TabularModel(Columns.learn(mixed_table()), ARCSM.made(2, hidden=(8,)))


def test_pit_of_a_category_lies_in_the_part_of_the_line_that_its_value_has() -> None:
    """The parts have the probabilities of the values, and follow each other by their codes."""
    letters = np.repeat(np.array(list("abcde"), dtype=object), [50, 40, 30, 20, 10])
    table = as_table({"letter": letters, "x": np.random.default_rng(0).normal(size=150)})
    model = untrained(table)
    one = Table({"letter": np.array(list("abcde"), dtype=object), "x": np.zeros(5)})
    probability = np.exp(model.log_prob_terms(one)[:, 0])
    assert probability.sum() == pytest.approx(1.0, abs=1e-9) and np.ptp(probability) > 0.01
    ends = np.r_[0.0, probability.cumsum()]
    many = one.take(np.repeat(np.arange(5), 400))
    found = model.pit(many, random=np.random.default_rng(0))["letter"].reshape(5, 400)
    assert (found > ends[:-1, None] - 1e-9).all() and (found < ends[1:, None] + 1e-9).all()
    # Within its part each is uniform: 400 values come close to both ends.
    width = probability[:, None]
    assert ((found - ends[:-1, None]) / width).min(1).max() < 0.05
    assert ((ends[1:, None] - found) / width).min(1).max() < 0.05


@pytest.mark.parametrize(
    ("values", "needed"),
    [
        ({}, False),
        ({"share": "bounded"}, False),
        ({"count": "integer"}, True),
        ({"zeros": "bounded"}, True),
    ],
)
def test_values_are_snapped_only_where_some_stand_for_cells(
    values: dict[str, str], needed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)
    known = {
        "share": random.beta(2, 2, 300),
        "count": random.poisson(3.0, 300),
        "zeros": np.where(random.random(300) < 0.3, 0.0, random.gamma(2.0, size=300)),
    }
    table = Table({"real": random.normal(size=300), **{name: known[name] for name in values}})
    model = untrained(table)
    kinds = {row["name"]: row["kind"] for row in model.columns.describe()}
    assert kinds == {"real": "real", **values}
    passed = []
    honest = ARCSM.sample

    def sample(self: ARCSM, *arguments: Any, **options: Any) -> Any:
        passed.append(options["snap"] is not None)
        return honest(self, *arguments, **options)

    monkeypatch.setattr(ARCSM, "sample", sample)
    drawn = model.sample(20, generator=torch.Generator().manual_seed(0))
    assert passed == [needed] and np.isfinite(model.log_prob(drawn)).all()


def test_nothing_given_is_no_condition() -> None:
    model = untrained(mixed_table())
    one, two = (
        model.sample(5, given=given, generator=torch.Generator().manual_seed(0))
        for given in (None, {})
    )
    assert all(np.array_equal(one[name], two[name]) for name in one.names)


def test_rows_of_many_scalars_are_drawn_in_smaller_pieces_by_numbers_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert rows_drawn_at_once(3, "cpu") == rows_drawn_at_once(784, "cuda") == 16_384
    assert rows_drawn_at_once(784, "cpu") == 334 and rows_drawn_at_once(10**7, "cpu") == 1
    model = untrained(mixed_table())
    whole = model.sample(30, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr("arcsm.tabular.model.rows_drawn_at_once", lambda *_: 7)
    pieces = model.sample(30, generator=torch.Generator().manual_seed(0))
    np.testing.assert_allclose(whole["real"][:7], pieces["real"][:7], rtol=1e-4, atol=1e-4)
    assert pieces.rows == 30 and len(set(pieces["real"].tolist())) == 30
    # A piece is the same, whether or not the others are drawn.
    generator = torch.Generator().manual_seed(0)
    third = list(model.drawings(30, generator=generator))[2]()
    np.testing.assert_array_equal(third["real"], pieces["real"][14:21])
