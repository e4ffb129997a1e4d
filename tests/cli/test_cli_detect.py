"""`arcsm detect`: which rows are unusual, and why."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arcsm import ARCSMDetector
from arcsm.cli import scoring
from arcsm.data import Table, read_table, write_table

Run = Callable[..., Any]

QUICK = ("--max-steps", 20, "--seed", 3)


@pytest.fixture(scope="session")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """People, the last of whom are odd: rich, old, and from elsewhere."""
    table = {
        "name": np.array(["Ann", "Bob", "Cid", "Dan"], dtype=object),
        "city": np.array(["Bern", "Chur", "Bern", "Rome"], dtype=object),
        "income": np.array([2.0, 1e6, 3.0, 2.5]),
        "age": np.array([30, 40, 900, 50]),
    }
    path = tmp_path_factory.mktemp("data") / "odd.csv"
    write_table(path, table)
    return path


@pytest.fixture(scope="session")
def detector(run: Run, csv: Path, odd: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a detector; not to be written to."""
    path = tmp_path_factory.mktemp("models") / "detector"
    output = tmp_path_factory.mktemp("out") / "s.csv"
    result = run("detect", odd, "--train", csv, "--save", path, "-o", output, *QUICK)
    assert result.exit_code == 0, result.output
    return path


def test_scores_are_those_of_the_estimator(
    run: Run, csv: Path, odd: Path, detector: Path, tmp_path: Path
) -> None:
    result = run("detect", odd, "--train", csv, "-o", tmp_path / "s.csv", *QUICK)
    assert result.exit_code == 0, result.output
    assert result.stdout == "" and "of 4 rows are outliers" in result.stderr
    found = read_table(tmp_path / "s.csv")
    assert found.names == ("outlier_score", "outlier")
    fitted = ARCSMDetector(max_steps=20, random_state=3).fit(read_table(csv))
    rows = read_table(odd).select(["age", "income", "city"])
    np.testing.assert_allclose(found["outlier_score"], -fitted.score_samples(rows))
    assert found["outlier"].tolist() == (fitted.predict(rows) == -1).tolist()
    assert found["outlier"].tolist()[:3] == [False, True, True]
    # What was saved says the same.
    run("detect", odd, "--model", detector, "-o", tmp_path / "again.csv")
    again = read_table(tmp_path / "again.csv")
    np.testing.assert_array_equal(again["outlier_score"], found["outlier_score"])


def test_outliers_are_explained_and_only_these(
    run: Run, odd: Path, detector: Path, tmp_path: Path
) -> None:
    path = tmp_path / "s.csv"
    result = run("detect", odd, "--model", detector, "--explain", "--keep", "name", "-o", path)
    assert result.exit_code == 0, result.output
    found = read_table(path)
    surprises = [f"surprise[{name}]" for name in ("age", "income", "city")]
    assert list(found.names) == ["name", "outlier_score", "outlier", "because", *surprises]
    assert found["name"].tolist() == ["Ann", "Bob", "Cid", "Dan"]
    assert found["because"].tolist()[:3] == [None, "income", "age"]
    rows = read_table(odd).select(["age", "income", "city"])
    expected = ARCSMDetector.load(detector).explain(rows)
    for row in range(4):
        values = np.array([found[name][row] for name in surprises])
        if found["outlier"][row]:
            np.testing.assert_allclose(values, expected[row])
        else:
            assert np.isnan(values).all()


def test_rows_go_to_stdout_and_json_to_scripts(
    run: Run, odd: Path, detector: Path, tmp_path: Path, fails: Run
) -> None:
    lines = run("detect", odd, "--model", detector, "--quiet").stdout.splitlines()
    assert lines[0] == "outlier_score,outlier" and len(lines) == 5
    told = json.loads(
        run("detect", odd, "--model", detector, "-o", tmp_path / "s.csv", "--json").stdout
    )
    threshold = -ARCSMDetector.load(detector).offset_
    assert told["rows"] == 4 and told["threshold"] == threshold
    assert told["outliers"] == (read_table(tmp_path / "s.csv")["outlier_score"] > threshold).sum()
    assert "add -o FILE" in fails("detect", odd, "--model", detector, "--json")


def test_a_file_that_is_there_is_replaced_as_all_commands_say(
    run: Run, odd: Path, detector: Path, tmp_path: Path
) -> None:
    path = tmp_path / "s.csv"
    path.write_text("mine\n" * 100)
    assert run("detect", odd, "--model", detector, "-o", path).exit_code == 0
    assert read_table(path).names == ("outlier_score", "outlier")
    for command in ("detect", "impute", "predict", "sample", "score"):
        told = "".join(c for c in run(command, "--help").stdout if c not in "│╭╮╰╯─")
        assert "A file that is there is replaced." in " ".join(told.split())


def test_rows_come_in_chunks(
    run: Run, csv: Path, detector: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("detect", csv, "--model", detector, "-o", tmp_path / "whole.csv")
    monkeypatch.setattr(scoring, "_NUMBERS", 30)
    result = run("detect", csv, "--model", detector, "-o", tmp_path / "parts.csv")
    assert result.exit_code == 0
    whole, parts = (read_table(tmp_path / f"{name}.csv") for name in ("whole", "parts"))
    np.testing.assert_allclose(whole["outlier_score"], parts["outlier_score"])


def test_options_of_the_training(run: Run, csv: Path, odd: Path, tmp_path: Path) -> None:
    result = run(
        *("detect", odd, "--train", csv, "--drop", "city", "--columns", "income=bounded:0:"),
        *("--contamination", 0.25, "--save", tmp_path / "d", "-o", tmp_path / "s.csv", *QUICK),
    )
    assert result.exit_code == 0, result.output
    loaded = ARCSMDetector.load(tmp_path / "d")
    assert loaded.density_.model_.columns.names == ("age", "income")
    assert loaded.density_.columns_[1]["kind"] == "bounded"
    assert loaded.contamination == 0.25
    assert (loaded.training_scores_ < loaded.offset_).mean() == 0.25


def test_one_of_two_ways_to_know_what_is_normal(
    fails: Run, csv: Path, odd: Path, detector: Path
) -> None:
    assert "--train TABLE or --model DIR, got neither" in fails("detect", odd)
    both = fails("detect", odd, "--train", csv, "--model", detector)
    assert "got both" in both
    idle = fails("detect", odd, "--model", detector, "--drop", "city", "--max-steps", 3)
    assert "expected --drop, --max-steps with --train" in idle


def test_what_cannot_be_is_refused_before_the_training(
    fails: Run, csv: Path, odd: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(*_: Any, **__: Any) -> None:
        raise AssertionError("began to train")

    monkeypatch.setattr(ARCSMDetector, "fit_with_progress", fit)
    base = ("detect", odd, "--train", csv)
    short = tmp_path / "short.csv"
    write_table(short, {"age": np.array([1, 2])})
    assert "['income', 'city'] of --train" in fails("detect", short, "--train", csv)
    assert "of --keep" in fails(*base, "--keep", "street")
    copy = shutil.copy(csv, tmp_path / "train.csv")
    assert "other than --train" in fails("detect", odd, "--train", copy, "-o", copy)
    assert "other than DATA" in fails("detect", copy, "--train", csv, "-o", copy)
    assert "--drop of columns among" in fails(*base, "--drop", "street")
    dropped = [word for name in ("age", "income", "city") for word in ("--drop", name)]
    assert "drop fewer" in fails(*base, *dropped)
    assert "above 0" in fails(*base, "--max-seconds", 0)
    assert "--columns as NAME=KIND" in fails(*base, "--columns", "age")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    assert "holds other files" in fails(*base, "--save", tmp_path / "mine")
    assert "got the file" in fails(*base, "--save", copy)
    assert "nothing there" in fails("detect", odd, "--model", tmp_path / "none")
    other = fails("detect", odd, "--model", model)
    assert "expected the directory of a detector" in other and "another model" in other
    assert "a device that torch" in (line := fails(*base, "--device", "abacus"))
    assert "--train" not in line
    for share in (0.7, 0, "nan"):
        line = fails(*base, "--contamination", share)
        assert f"expected --contamination as a share above 0 and up to 0.5, got {share};" in line
        assert "auto" not in line
    line = fails(*base, "--keep", "age", "--keep", "name", "-o", tmp_path / "s.npy")
    assert "got text in column 'name'" in line


@pytest.mark.parametrize("name", ["new/s.csv", "new/deep/s.csv", "new", "a/../new/s.csv"])
def test_rows_do_not_go_into_a_model_that_is_still_to_be_made(
    fails: Run, csv: Path, odd: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / "a").mkdir()
    save, output = tmp_path / "new", tmp_path / name
    if name == "new":  # the very place, which would be a file and a directory
        save = output = tmp_path / "new.csv"
    line = fails("detect", odd, "--train", csv, "--save", save, "-o", output, *QUICK)
    assert f"expected an --output outside of the model in {str(save)!r}" in line
    assert not save.exists()


def test_rows_may_go_beside_a_new_model(run: Run, csv: Path, odd: Path, tmp_path: Path) -> None:
    output = tmp_path / "new.csv"  # which begins like the directory, and does not lie in it
    result = run("detect", odd, "--train", csv, "--save", tmp_path / "new", "-o", output, *QUICK)
    assert result.exit_code == 0, result.output
    assert read_table(output).rows == 4


def test_a_column_that_would_be_written_twice(fails: Run, detector: Path, tmp_path: Path) -> None:
    table = Table(
        {
            "outlier": np.zeros(2),
            "age": np.array([3, 4]),
            "income": np.ones(2),
            "city": np.array(["Bern", "Bern"], dtype=object),
        }
    )
    write_table(tmp_path / "d.csv", table)
    line = fails("detect", tmp_path / "d.csv", "--model", detector, "--keep", "outlier")
    assert "rename the column" in line


@pytest.mark.parametrize("added", ["outlier_score", "outlier", "because", "surprise[age]"])
def test_such_a_column_is_found_before_the_training(
    fails: Run, csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, added: str
) -> None:
    def fit(*_: Any, **__: Any) -> None:
        raise AssertionError("began to train")

    monkeypatch.setattr(ARCSMDetector, "fit_with_progress", fit)
    rows = read_table(csv).take(slice(0, 2))
    write_table(tmp_path / "d.csv", Table({**rows.columns, added: np.zeros(2)}))
    line = fails("detect", tmp_path / "d.csv", "--train", csv, "--explain", "--keep", added)
    assert f"those that are added, got ['{added}']; rename the column in DATA" in line


@pytest.mark.parametrize(
    ("content", "words", "reason"),
    [
        ("age,size\n1,2\n,3\n4,5\n", (), "column 'age', got a missing value in row 1"),
        ("age,size\n1,2\n", (), "at least 2 rows, got a table of 1 sample(s); add some"),
        ("age,size\n1,2\n1,2\n1,2\n", (), "rows that differ"),
        ("age,size\n1,2\n3,4\n", ("--columns", "age=bounded:2:"), "in row 0 (1 such row); correct"),
        ("age,name\n" + "".join(f"{i},n{i}\n" for i in range(300)), (), "an identifier"),
        ("age,age\n1,2\n", (), "unique"),
        ("age,size\n1,2\n1\n", (), "fields"),
        ("", (), "header"),
    ],
)
def test_what_is_wrong_with_the_normal_rows_is_said_of_them(
    fails: Run, tmp_path: Path, content: str, words: tuple[str, ...], reason: str
) -> None:
    path, data = tmp_path / "normal.csv", tmp_path / "d.csv"
    path.write_text(content)
    write_table(data, {name: np.ones(1) for name in ("age", "size", "name")})
    line = fails("detect", data, "--train", path, *words, *QUICK)
    assert line.startswith(f"arcsm: --train {str(path)!r}: ") and reason in line


def test_what_is_wrong_with_the_new_rows_is_not_said_of_the_normal_ones(
    fails: Run, csv: Path, tmp_path: Path
) -> None:
    (tmp_path / "d.csv").write_text("age,income,city\n30,,Bern\n")
    line = fails("detect", tmp_path / "d.csv", "--train", csv, "-q", *QUICK)
    assert line.startswith(f"arcsm: {str(tmp_path / 'd.csv')!r}: expected")


def test_a_missing_value_is_an_error_and_nothing_is_written(
    fails: Run, detector: Path, tmp_path: Path
) -> None:
    (tmp_path / "d.csv").write_text("age,income,city\n30,1.5,Bern\n,2.5,Chur\n")
    output = tmp_path / "s.csv"
    line = fails("detect", tmp_path / "d.csv", "--model", detector, "-o", output)
    assert "'age'" in line and "missing value in row 1" in line
    assert not output.exists()
