"""`arcsm check`: sound models pass, each kind of damage is found."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from arcsm import ARCSMDensity
from arcsm.data import Table, read_table, write_table
from arcsm.tabular import soundness

Run = Callable[..., Any]


@pytest.fixture(autouse=True)
def few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soundness, "_OWN_ROWS", 250)
    monkeypatch.setattr("arcsm.soundness._CONDITIONALS", 60)


def findings(result: Any) -> dict[str, dict[str, Any]]:
    return {finding["name"]: finding for finding in json.loads(result.stdout)["findings"]}


def test_a_sound_model_passes(run: Run, model: Path) -> None:
    result = run("check", model)
    assert result.exit_code == 0, result.stderr
    assert result.stdout == "" and result.stderr.splitlines()[-1] == "Sound."
    # Warnings aside, and with one line on arithmetic.
    assert result.stderr.count("✓") >= 6 and "✗" not in result.stderr
    assert run("check", model, "-q").stderr == ""


@pytest.fixture(scope="module")
def normal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of standard normal rows x, and of y = ±1 in equal shares, that has learned enough."""
    path = tmp_path_factory.mktemp("normal") / "m"
    random = np.random.default_rng(0)
    table = Table({"x": random.normal(size=800), "y": random.choice([-1, 1], 800)})
    ARCSMDensity(max_steps=400, hidden=(16,), random_state=0).fit(table).save(path, card=False)
    return path


def rows(path: Path, seed: int, **changes: Any) -> Path:
    random = np.random.default_rng(seed)
    table = {"x": random.normal(size=400), "y": random.choice([-1, 1], 400)}
    write_table(path, table | {name: change(table[name]) for name, change in changes.items()})
    return path


def test_data_like_those_learned_are_calibrated(run: Run, normal: Path, tmp_path: Path) -> None:
    result = run("check", normal, rows(tmp_path / "t.csv", 2), "--json")
    told = findings(result)
    assert result.exit_code == 0 and json.loads(result.stdout)["sound"], result.stdout
    entropy = 0.5 * np.log(2 * np.pi * np.e) + np.log(2)
    assert told["data"]["mean_log_density"] == pytest.approx(-entropy, abs=0.15)
    # The limit of Kolmogorov and Smirnov at 1 % for two columns, from its asymptotic formula.
    limit = np.sqrt(-np.log(0.005 / 2) / 2 / 400)
    assert told["calibration on the data"]["limit"] == pytest.approx(limit, rel=0.02)


def test_a_column_that_is_off_is_named(run: Run, normal: Path, tmp_path: Path) -> None:
    result = run("check", normal, rows(tmp_path / "t.csv", 2, x=lambda x: x + 0.5))
    assert result.exit_code == 1
    (line,) = [line for line in result.stderr.splitlines() if "Not calibrated" in line]
    # Two normal distributions half a deviation apart are 2Φ(1/4) − 1 = 0.197 apart.
    assert "Not calibrated on the data" in line and "1 of 2 go beyond: x 0." in line
    told = findings(run("check", normal, tmp_path / "t.csv", "--json"))
    distance = told["calibration on the data"]["ks_distance"]
    assert distance["x"] == pytest.approx(0.197, abs=0.06) and distance["y"] < 0.1


def test_many_impossible_rows_are_not_sound(
    run: Run, model: Path, csv: Path, tmp_path: Path
) -> None:
    table = read_table(csv)
    table["income"][:1] = -1.0
    write_table(tmp_path / "t.csv", table)
    assert findings(run("check", model, tmp_path / "t.csv", "--json"))["data"]["good"]
    table["income"][:2] = -1.0
    write_table(tmp_path / "t.csv", table)
    result = run("check", model, tmp_path / "t.csv", "--json")
    assert result.exit_code == 1
    assert findings(result)["data"] | {"text": ""} == {
        "name": "data",
        "good": False,
        "matters": True,
        "text": "",
        "advice": "leave these rows out, or train on rows like them",
        "rows": 120,
        "impossible_rows": 2,
        "mean_log_density": findings(result)["data"]["mean_log_density"],
    }


def test_calibration_is_looked_at_with_a_random_part_of_many_rows(
    run: Run, normal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soundness, "_ROWS", 150)
    monkeypatch.setattr("arcsm.cli.scoring._NUMBERS", 200)
    path = rows(tmp_path / "t.csv", 2, x=np.sort)  # the first 150 rows are not like all of them
    told = findings(run("check", normal, path, "--json"))
    assert told["calibration on the data"]["rows"] == 150 and told["data"]["rows"] == 400
    assert told["calibration on the data"]["good"]


def test_a_model_that_does_not_load_is_not_sound(
    run: Run, fails: Run, model: Path, tmp_path: Path
) -> None:
    shutil.copytree(model, tmp_path / "m")
    weights = tmp_path / "m" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    result = run("check", tmp_path / "m")
    assert result.exit_code == 1 and "✗ It does not load: " in result.stderr
    assert "nothing there" in fails("check", tmp_path / "none")


def test_weights_that_are_no_numbers_are_found(run: Run, normal: Path, tmp_path: Path) -> None:
    density = ARCSMDensity.load(normal)
    with torch.no_grad():
        next(density.model_.model.parameters()).flatten()[0] = torch.nan
    density.save(tmp_path / "m", card=False)
    result = run("check", tmp_path / "m")
    assert result.exit_code == 1 and "not finite numbers" in result.stderr


def test_samples_that_contradict_the_density_are_found(
    run: Run, normal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from arcsm.tabular import TabularModel

    honest = TabularModel.sample

    def shifted(self: TabularModel, count: int, **options: Any) -> Table:
        table = honest(self, count, **options)
        return Table({**table.columns, "x": table["x"] + 0.5})

    monkeypatch.setattr(TabularModel, "sample", shifted)
    result = run("check", normal, "--json")
    told = findings(result)
    assert result.exit_code == 1 and not told["calibration on its own samples"]["good"]
    bad = {name for name, finding in told.items() if not finding["good"]}
    assert bad <= {"calibration on its own samples", "heat equation"}


def test_samples_of_other_types_or_beyond_the_bounds_are_found(
    run: Run, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from arcsm.tabular import TabularModel

    honest = TabularModel.sample

    def wrong(self: TabularModel, count: int, **options: Any) -> Table:
        table = honest(self, count, **options)
        income = table["income"].copy()
        income[0] = -1.0
        return Table({**table.columns, "income": income, "age": table["age"].astype(float)})

    monkeypatch.setattr(TabularModel, "sample", wrong)
    result = run("check", model, "--json")
    told = findings(result)
    assert result.exit_code == 1
    assert "age" in told["types"]["text"] and not told["types"]["good"]
    assert told["possible"]["impossible_rows"] == 1 and not told["possible"]["good"]


@pytest.mark.parametrize("factor", [0.9, 1.1, float("nan")])
def test_a_density_that_does_not_integrate_to_one_is_found(
    run: Run, normal: Path, monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    from arcsm.scoring import ScaledDensity

    honest = ScaledDensity.log_prob
    monkeypatch.setattr(ScaledDensity, "log_prob", lambda self, x: honest(self, x) + np.log(factor))
    result = run("check", normal, "--json")
    told = findings(result)["integrals"]
    assert result.exit_code == 1 and not told["good"]
    expected = None if np.isnan(factor) else pytest.approx(0.1, abs=0.01)
    assert told["farthest"] == expected


def test_data_without_the_columns_are_an_error_of_the_user(
    fails: Run, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text("age,city\n30,Bern\n")
    assert "['income'] of the model" in fails("check", model, tmp_path / "t.csv")


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a, b, c in equal shares beside a normal x."""
    path = tmp_path_factory.mktemp("letters") / "m"
    random = np.random.default_rng(0)
    names = np.array(["a", "b", "c"], dtype=object)
    table = Table({"letter": names[random.integers(0, 3, 600)], "x": random.normal(size=600)})
    ARCSMDensity(max_steps=200, hidden=(16,), random_state=0).fit(table).save(path, card=False)
    return path


def letters_as_drawn(path: Path, names: str) -> Path:
    random = np.random.default_rng(5)
    letter = np.array(list(names), dtype=object)[random.integers(0, len(names), 200)]
    write_table(path, {"letter": letter, "x": random.normal(size=200)})
    return path


def test_categories_of_more_than_two_values_are_looked_at(
    run: Run, letters: Path, tmp_path: Path
) -> None:
    right = run("check", letters, letters_as_drawn(tmp_path / "abc.csv", "abc"), "--json")
    assert right.exit_code == 0, right.stdout
    assert set(findings(right)["calibration on the data"]["ks_distance"]) == {"letter", "x"}
    wrong = run("check", letters, letters_as_drawn(tmp_path / "a.csv", "a"), "--json")
    assert wrong.exit_code == 1 and not json.loads(wrong.stdout)["sound"]
    told = findings(wrong)["calibration on the data"]
    # All values are in one of three parts of the line, of which each is a third; the middle one
    # leaves a third on either side.
    assert told["ks_distance"]["letter"] > 0.25 and "letter" in told["text"]
    assert told["advice"].startswith("train") and told["matters"]


def test_what_does_not_matter_is_a_warning(
    run: Run, normal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arcsm.soundness._AGREEMENT", -1.0)  # nothing agrees so well
    result = run("check", normal, "--json")
    told = findings(result)
    assert result.exit_code == 0 and json.loads(result.stdout)["sound"]
    assert not told["heat equation"]["good"] and not told["heat equation"]["matters"]
    assert told["heat equation"]["advice"].startswith("trust the canonical density")
    assert "\n! The network does not obey" in run("check", normal).stderr
    monkeypatch.setattr("arcsm.soundness._ERROR", -1.0)
    worse = run("check", normal, "--json")
    assert worse.exit_code == 1 and not findings(worse)["precision"]["good"]


def test_a_few_rows_cannot_be_looked_at_and_it_says_so(
    run: Run, normal: Path, tmp_path: Path
) -> None:
    write_table(tmp_path / "t.csv", {"x": np.zeros(5), "y": np.ones(5, dtype=np.int64)})
    told = findings(run("check", normal, tmp_path / "t.csv", "--json"))
    found = told["calibration on the data"]
    assert not found["matters"] and "not looked at" in found["text"] and found["rows"] == 5


def test_the_estimator_finds_what_the_command_finds(run: Run, normal: Path, tmp_path: Path) -> None:
    path = rows(tmp_path / "t.csv", 2, x=lambda x: x + 0.5)
    report = ARCSMDensity.load(normal).check(read_table(path))
    assert not report.good
    assert str(report).splitlines() == [
        line for line in run("check", normal, path).stderr.splitlines() if line[0] in "✓✗!NS"
    ]
