"""`arcsm impute`: holes filled in, and all else as it stood."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arcsm.data import Table, read_table, write_table
from arcsm.estimators import ARCSMImputer

from .conftest import people

Run = Callable[..., Any]

QUICK = ("--max-steps", 10, "--seed", 3)


@pytest.fixture(scope="session")
def holes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write people with holes, spelled in ways of their own, beside names that none can learn."""
    table, random = people(60), np.random.default_rng(0)
    lines = ["name,age,income,city,member"]
    for row in range(60):
        cells = [
            str(table["age"][row]),
            f"{table['income'][row]:.3e}",
            table["city"][row],
            "True" if table["age"][row] > 40 else "False",
        ]
        cells = ["" if random.random() < 0.2 else cell for cell in cells]
        lines.append(",".join([f"P{row}", *cells]))
    path = tmp_path_factory.mktemp("data") / "holes.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="session")
def imputer(run: Run, holes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an imputer; not to be written to."""
    path, output = tmp_path_factory.mktemp("models") / "imputer", tmp_path_factory.mktemp("out")
    words = ("--ignore", "name", "--save", path, "-o", output / "o.csv")
    result = run("impute", holes, *words, *QUICK)
    assert result.exit_code == 0, result.output
    return path


def test_what_is_there_stays_letter_by_letter(run: Run, holes: Path, tmp_path: Path) -> None:
    output = tmp_path / "filled.csv"
    result = run("impute", holes, "--ignore", "name", "-o", output, *QUICK)
    assert result.exit_code == 0, result.output
    assert "Copied as they are: name." in result.stderr and result.stdout == ""
    before, after = (path.read_text().splitlines() for path in (holes, output))
    assert len(before) == len(after)
    filled = 0
    for old, new in zip(before, after, strict=True):
        for one, other in zip(old.split(","), new.split(","), strict=True):
            assert other == one if one else other != ""
            filled += one == ""
    assert f"Filled {filled} holes" in result.stderr
    table = read_table(output)
    assert table["age"].dtype == np.int64 and table["member"].dtype == bool
    assert set(table["city"]) == {"Bern", "Basel", "Chur"}


def test_values_are_those_of_the_estimator(
    run: Run, holes: Path, imputer: Path, tmp_path: Path
) -> None:
    fitted = ARCSMImputer.load(imputer)
    chosen = read_table(holes).select(["age", "income", "city", "member"])
    for strategy in ("mean", "median"):
        words = ("--model", imputer, "--strategy", strategy, "-o", tmp_path / "f.parquet")
        assert run("impute", holes, *words).exit_code == 0
        found = read_table(tmp_path / "f.parquet")
        expected = fitted.set_params(strategy=strategy).transform(chosen)
        np.testing.assert_array_equal(found["income"], expected["income"])
        assert found["city"].tolist() == expected["city"].tolist()


def test_multiple_tables_and_intervals(
    run: Run, holes: Path, imputer: Path, tmp_path: Path
) -> None:
    bounds = tmp_path / "bounds.csv"
    words = ("--model", imputer, "--multiple", 3, "--seed", 1, "--intervals", bounds)
    result = run("impute", holes, *words, "-o", tmp_path / "m.csv", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["rows"] == 180
    assert told["tables"] == 3 and told["strategy"] == "draw" and told["exact"] is True
    table = read_table(tmp_path / "m.csv")
    assert table.names[:2] == ("imputation", "name") and table.rows == 180
    assert table["imputation"].tolist() == [1] * 60 + [2] * 60 + [3] * 60
    missing = np.isnan(read_table(holes)["income"])
    parts = [table["income"][k * 60 : (k + 1) * 60] for k in range(3)]
    np.testing.assert_array_equal(parts[0][~missing], parts[1][~missing])
    assert (parts[0][missing] != parts[1][missing]).any()
    ends = read_table(bounds)
    assert ends.names == ("row", "column", "lower", "upper") and ends.rows == told["holes"]
    own = ends["column"] == "income"
    assert ends["row"][own].tolist() == np.flatnonzero(missing).tolist()
    assert (ends["lower"][own] < ends["upper"][own]).all()
    assert np.isnan(ends["lower"][ends["column"] == "city"]).all()


def test_a_density_of_one_order_says_how_far_it_can_be_relied_on(
    run: Run, model: Path, tmp_path: Path
) -> None:
    table = people(6)
    age = table["age"].astype(np.float64)
    city = table["city"].copy()
    age[0], city[1] = np.nan, None
    write_table(tmp_path / "h.csv", Table({**table.columns, "age": age, "city": city}))
    words = ("--model", model, "-o", tmp_path / "f.csv")
    result = run("impute", tmp_path / "h.csv", *words)
    assert result.exit_code == 0, result.output
    assert "exact, but for the noise of draws, in 1 rows" in result.stderr
    assert "In 1 others by weighted draws" in result.stderr
    told = json.loads(run("impute", tmp_path / "h.csv", *words, "--json").stdout)
    assert told["exact"] is False and 1 <= told["least_effective_draws"] < 200
    # Also if no row is exact, to compare with.
    age[:] = np.nan
    write_table(tmp_path / "n.csv", Table({**table.columns, "age": age}).take([0]))
    told = json.loads(run("impute", tmp_path / "n.csv", *words, "--json").stdout)
    assert told["exact"] is False
    result = run("impute", tmp_path / "n.csv", *words)
    assert "in 0 rows" in result.stderr and "draws of 200 in the middle" in result.stderr


def test_truth_values_stay_truth_values_in_any_file(
    run: Run, holes: Path, imputer: Path, tmp_path: Path
) -> None:
    import pyarrow as arrow
    from pyarrow import parquet

    table = read_table(holes)
    member = [None if value != value else bool(value) for value in table["member"]]
    columns = {**table.columns, "member": arrow.array(member, arrow.bool_())}
    parquet.write_table(arrow.table(columns), tmp_path / "holes.parquet")
    for data in (holes, tmp_path / "holes.parquet"):
        words = ("--model", imputer, "-o", tmp_path / "f.parquet")
        result = run("impute", data, *words)
        assert result.exit_code == 0, result.output
        found = read_table(tmp_path / "f.parquet")["member"]
        assert found.dtype == bool
        known = [value is not None for value in member]
        assert found[known].tolist() == [value for value in member if value is not None]


def test_mistakes_are_one_line(
    fails: Run, holes: Path, imputer: Path, tmp_path: Path, csv: Path
) -> None:
    output = tmp_path / "f.csv"
    assert "looks like an identifier" in fails("impute", holes, "-o", output, *QUICK)
    assert "without --model" in fails("impute", holes, "--model", imputer, "--train", csv)
    assert "other than DATA" in fails("impute", holes, "--model", imputer, "-o", holes)
    assert "a strategy among" in fails("impute", holes, "--strategy", "mode")
    assert "--multiple with --strategy draw, got 'median'" in fails(
        "impute", holes, "--strategy", "median", "--multiple", 2
    )
    assert "--coverage between" in fails("impute", holes, "--coverage", 1.5)
    assert "columns ['member'] of the model" in fails("impute", csv, "--model", imputer)
    assert "--ignore of columns among" in fails("impute", holes, "--ignore", "nobody")
    assert "directory of a model" in fails("impute", holes, "--model", tmp_path / "none")
    assert "other than --output" in fails(
        "impute", holes, "--model", imputer, "-o", output, "--intervals", output
    )
    for name, words in (("DATA", ("--model", imputer)), ("--train", ("--train", holes))):
        data = csv if name == "--train" else holes
        line = fails("impute", data, *words, "-o", output, "--intervals", holes)
        assert f"an --intervals other than {name}" in line
    assert "an --output other than --train" in fails("impute", csv, "--train", holes, "-o", holes)
    new = tmp_path / "new"
    words = ("impute", holes, "--ignore", "name", "--save", new, *QUICK)
    assert "an --output outside of the model" in fails(*words, "-o", new / "f.csv")
    assert "an --intervals outside of the model" in fails(
        *words, "-o", output, "--intervals", new / "i.csv"
    )
    assert not new.exists()
    assert not output.exists()


def test_an_error_says_which_rows_it_is_of(fails: Run, tmp_path: Path) -> None:
    data, rows = tmp_path / "d.csv", tmp_path / "rows.csv"
    data.write_text("age,size\n1,2\n,3\n")
    rows.write_text("age,size\n1,2\n1,2\n")
    line = fails("impute", data, "--train", rows, *QUICK)
    assert line.startswith(f"arcsm: --train {str(rows)!r}: expected a column whose known values")
    line = fails("impute", rows, *QUICK)
    assert line.startswith(f"arcsm: {str(rows)!r}: expected a column whose known values")
    rows.write_text("age,size\n1\n")
    assert fails("impute", data, "--train", rows).startswith(f"arcsm: --train {str(rows)!r}: ")
    # What is not of the rows is not said of them.
    assert fails("impute", data, "--device", "abacus").startswith("arcsm: expected a device")
