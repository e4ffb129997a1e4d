"""`arcsm train --given` and `arcsm predict`: columns from others."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arcsm import ARCSMDensity
from arcsm.cli import predict
from arcsm.data import Table, TableWriter, read_table, write_table

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def income(run: Run, csv: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the income given age and city."""
    path = tmp_path_factory.mktemp("given") / "income"
    words = ("--given", "city", "--given", "age", "--max-steps", 5, "--ensemble", 2, "--no-card")
    result = run("train", csv, "-o", path, *words)
    assert result.exit_code == 0, result.output
    return path


@pytest.fixture(scope="module")
def covariates(csv: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The covariates alone, in another order, with a column more."""
    table = read_table(csv)
    path = tmp_path_factory.mktemp("new") / "new.csv"
    write_table(
        path, Table({"city": table["city"], "id": np.arange(table.rows), "age": table["age"]})
    )
    return path


def test_training_says_what_is_given(run: Run, csv: Path, income: Path) -> None:
    density = ARCSMDensity.load(income)
    assert density.conditional_on == ["age", "city"] and density.order_ == ("income",)
    assert len(density.model_.members) == 2
    result = run("train", csv, "-o", income.parent / "b", "--given", "age", "--max-steps", 1)
    assert result.exit_code == 0 and "given integer" in result.stderr
    assert "given age" in (income.parent / "b" / "README.md").read_text()
    assert len(ARCSMDensity.load(income.parent / "b").model_.members) == 4


def test_quantiles_are_those_of_the_estimator(
    run: Run, income: Path, csv: Path, covariates: Path, tmp_path: Path
) -> None:
    result = run("predict", income, covariates, "-o", tmp_path / "p.csv", "--keep", "id")
    assert result.exit_code == 0 and "Wrote 120 rows" in result.stderr
    found = read_table(tmp_path / "p.csv")
    assert found.names == ("id", "q0.05[income]", "q0.5[income]", "q0.95[income]")
    exact = ARCSMDensity.load(income).quantile(read_table(csv), [0.05, 0.5, 0.95])
    np.testing.assert_allclose(np.column_stack([found[n] for n in found.names[1:]]), exact)
    assert found["id"].tolist() == list(range(120))


def test_all_that_can_be_asked_for(
    run: Run, income: Path, csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predict, "_NUMBERS", 64 * 3 * 50)  # 50 rows at a time
    counts = []
    append = TableWriter.append
    monkeypatch.setattr(
        TableWriter, "append", lambda self, table: (counts.append(table.rows), append(self, table))
    )
    words = ("--interval", 0.8, "--mean", "--draws", 2, "--log-density", "--json")
    result = run("predict", income, csv, "-o", tmp_path / "p.csv", *words)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["rows"] == 120 and told["given"] == ["age", "city"]
    assert told["columns"] == ["income"] and counts == [50, 50, 20]
    found, table = read_table(tmp_path / "p.csv"), read_table(csv)
    density = ARCSMDensity.load(income)
    assert found.names == (
        *("low[income]", "high[income]", "mean[income]"),
        *("draw1[income]", "draw2[income]", "log_density"),
    )
    low, high = density.interval(table, 0.8).T
    np.testing.assert_allclose(found["low[income]"], low)
    np.testing.assert_allclose(found["high[income]"], high)
    np.testing.assert_allclose(found["mean[income]"], density.mean(table))
    np.testing.assert_allclose(found["log_density"], density.score_samples(table), atol=1e-9)
    inside = (found["draw1[income]"] > low) & (found["draw1[income]"] < high)
    assert 0.65 < inside.mean() < 0.92
    assert (found["draw1[income]"] != found["draw2[income]"]).all()


def test_other_commands_take_such_a_model(
    run: Run, income: Path, csv: Path, tmp_path: Path
) -> None:
    words = ("-n", 3, "--given", "age=40", "--given", "city=Bern", "-o", tmp_path / "s.csv")
    assert run("sample", income, *words).exit_code == 0
    drawn = read_table(tmp_path / "s.csv")
    assert drawn["age"].tolist() == [40] * 3 and drawn["city"].tolist() == ["Bern"] * 3
    assert run("score", income, csv, "-o", tmp_path / "l.csv").exit_code == 0
    assert "Conditional densities integrate to 1" in run("check", income).stderr
    told = " ".join(run("score", "--help").output.replace("│", " ").split())
    assert "log q(targets | covariates)" in told


def test_a_model_of_all_columns_predicts_what_the_data_lack(
    run: Run, model: Path, csv: Path, tmp_path: Path
) -> None:
    write_table(tmp_path / "age.csv", read_table(csv).select(["age"]).take(slice(0, 3)))
    words = ("--column", "income", "-o", tmp_path / "p.csv")
    result = run("predict", model, tmp_path / "age.csv", *words)
    assert result.exit_code == 0, result.output
    assert read_table(tmp_path / "p.csv").names[0] == "q0.05[income]"


@pytest.fixture(scope="module")
def several(run: Run, csv: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two cities, a constant, a copy and two incomes given the age."""
    path, table = tmp_path_factory.mktemp("several"), read_table(csv)
    noise = np.random.default_rng(0).normal(size=table.rows)
    columns = {
        **table.select(["age", "city", "income"]).columns,
        "later": table["income"] + noise,
        "debt": -table["income"],
        "year": np.full(table.rows, 2020),
    }
    write_table(path / "data.csv", Table(columns))
    words = ("--given", "age", "--max-steps", 5, "--ensemble", 1, "--no-card")
    result = run("train", path / "data.csv", "-o", path / "m", *words)
    assert result.exit_code == 0, result.output
    return path / "m"


def test_what_has_no_quantiles_is_left_out_and_what_follows_is_not(
    run: Run, fails: Run, several: Path, csv: Path, tmp_path: Path
) -> None:
    write_table(tmp_path / "age.csv", read_table(csv).select(["age"]).take(slice(0, 4)))
    words = ("predict", several, tmp_path / "age.csv", "-o", tmp_path / "p.csv")
    asked = ("--quantile", 0.05, "--quantile", 0.95, "--interval", 0.9, "--mean")
    result = run(*words, *asked)
    assert result.exit_code == 0, result.output
    assert "Left out, as they have no quantiles: city" in result.stderr
    assert "no means: city" in result.stderr
    found = read_table(tmp_path / "p.csv")
    assert not [name for name in found.names if "city" in name]
    for name in ("income", "later", "debt", "year"):
        # By the same draws, two ways to ask for the same have the same answer.
        for quantile, end in (("q0.05", "low"), ("q0.95", "high")):
            np.testing.assert_allclose(
                found[f"{quantile}[{name}]"], found[f"{end}[{name}]"], rtol=1e-9
            )
    np.testing.assert_allclose(found["low[debt]"], -found["high[income]"], rtol=1e-6)
    np.testing.assert_allclose(found["mean[debt]"], -found["mean[income]"], rtol=1e-6)
    assert set(found["q0.05[year]"]) == {2020}
    again = json.loads(run(*words, "--json").stdout)
    assert again["columns"] == ["income", "later", "debt", "year"]
    assert "have an order" in fails(*words, "--column", "income", "--column", "city")


def test_mistakes_are_told(
    fails: Run, income: Path, model: Path, csv: Path, covariates: Path, tmp_path: Path
) -> None:
    out = ("-o", tmp_path / "p.csv")
    assert "between 0 and 1" in fails("predict", income, csv, "--quantile", 5, *out)
    assert "coverage" in fails("predict", income, csv, "--interval", 1, *out)
    assert "['income']" in fails("predict", income, covariates, "--log-density", *out)
    assert "--column among" in fails("predict", income, csv, "--column", "age", *out)
    assert "got all of them" in fails("predict", model, csv, *out)
    assert "use arcsm score" in fails(
        "predict", model, csv, "--column", "city", "--log-density", *out
    )
    write_table(tmp_path / "bare.csv", Table({"age": np.array([40])}))
    assert "['city']" in fails("predict", income, tmp_path / "bare.csv", *out)
    rome = Table({"age": np.array([40]), "city": np.array(["Rome"], dtype=object)})
    write_table(tmp_path / "rome.csv", rome)
    assert "'Rome'" in fails("predict", income, tmp_path / "rome.csv", *out)
    assert not (tmp_path / "p.csv").exists()
    new = tmp_path / "m"
    assert "covariates among" in fails("train", csv, "-o", new, "--given", "size")
    words = [word for name in ("age", "income", "city") for word in ("--given", name)]
    assert "no covariate" in fails("train", csv, "-o", new, *words)
    assert "natural" in fails("train", csv, "-o", new, "--given", "age", "--order", "any")
