"""`arcsm train --order --ensemble`, and `arcsm sample --given --method`."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arcsm import ARCSMDensity
from arcsm.columns import Columns
from arcsm.data import TableWriter, read_table, write_table
from arcsm.ordering import Candidate, LearnedOrder

Run = Callable[..., Any]


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("data") / "t.csv"
    write_table(
        path,
        {
            "a=b": random.normal(size=100),
            "a": random.integers(0, 50, 100),
            "ok": random.random(100) < 0.5,
            "city": np.array(["Bern", "x=y", "7"], dtype=object)[random.integers(0, 3, 100)],
        },
    )
    return path


def trained(run: Run, data: Path, directory: Path, *words: object) -> Path:
    result = run("train", data, "-o", directory, "--max-steps", 3, "--no-card", *words)
    assert result.exit_code == 0, result.output
    return directory


@pytest.fixture(scope="session")
def any_order(run: Run, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(run, data, tmp_path_factory.mktemp("models") / "any", "--order", "any")


@pytest.fixture(scope="session")
def several(run: Run, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(run, data, tmp_path_factory.mktemp("models") / "many", "--ensemble", 3)


# Training.


def test_an_ensemble_is_trained_and_told_of(run: Run, data: Path, tmp_path: Path) -> None:
    words = ("train", data, "--max-steps", 2, "--no-card", "--ensemble", 2)
    result = run(*words, "-o", tmp_path / "a")
    assert result.exit_code == 0 and "2 models, each in an order of its own." in result.stderr
    told = json.loads(run(*words, "-o", tmp_path / "b", "--json").stdout)
    assert (told["order"], told["any_order"], told["ensemble"]) == ([], False, 2)
    assert len(ARCSMDensity.load(tmp_path / "b").model_.members) == 2
    order = ("city", "a", "ok", "a=b")
    named = [word for name in order for word in ("--order", name)]
    result = run(*words, "-o", tmp_path / "c", *named)
    assert "2 models, all in the order city → a → ok → a=b." in result.stderr


def test_any_order_and_the_natural_one_are_told_of(run: Run, data: Path, tmp_path: Path) -> None:
    words = ("train", data, "--max-steps", 2, "--no-card")
    result = run(*words, "-o", tmp_path / "a", "--order", "any")
    assert result.exit_code == 0 and "One model for any order of the columns." in result.stderr
    assert ARCSMDensity.load(tmp_path / "a").model_.any_order
    told = json.loads(run(*words, "-o", tmp_path / "b", "--json").stdout)
    assert told["order"] == ["a=b", "a", "ok", "city"]
    assert (told["any_order"], told["ensemble"]) == (False, 1)


def test_a_learned_order_is_shown(
    run: Run, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = ["ok", "city", "a=b", "a"]

    def race(settings: Any, columns: Columns, *_: Any, progress: Any) -> LearnedOrder:
        learned = tuple(scalar for name in order for scalar in columns.scalars_of(name))
        natural = tuple(range(columns.scalars))
        progress(1, 2)
        tried = (
            Candidate("natural", natural, -3.0, 0.0, 1.0),
            Candidate("other", learned, -2.5, 0.125, 1.0),
        )
        return LearnedOrder(learned, tried, (), 2.0)

    monkeypatch.setattr("arcsm.tabular.fitting.race_columns", race)
    words = ("train", data, "--max-steps", 2, "--order", "auto")
    result = run(*words, "-o", tmp_path / "m")
    assert (
        "Order of the columns: ok → city → a=b → a (better than that of the table by 0.50 ± 0.12"
        " nats in short trainings of 2 orders)." in result.stderr
    )
    density = ARCSMDensity.load(tmp_path / "m")
    assert density.order == "auto" and density.order_ == tuple(order)
    assert "ok → city → a=b → a" in (tmp_path / "m" / "README.md").read_text()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--ensemble", "0"], "--ensemble"),
        (["--ensemble", "2", "--order", "any"], "leave one of the two out"),
        (["--order", "best"], "natural, random, auto, any"),
        (["--order", "any", "--order", "auto"], "natural, random, auto, any"),
    ],
)
def test_orders_that_cannot_be(
    fails: Run, data: Path, tmp_path: Path, words: list[str], reason: str
) -> None:
    assert reason in fails("train", data, "-o", tmp_path / "m", *words)
    assert os.listdir(tmp_path) == []


# Sampling.


def test_given_columns_have_their_values(run: Run, any_order: Path, tmp_path: Path) -> None:
    words = ("--given", "city=x=y", "--given", "a=7", "--given", "a=b=-1.5", "--given", "ok=true")
    for count in (2, 4, 6, 8):
        path = tmp_path / f"{count}.csv"
        result = run("sample", any_order, "-n", 9, "-o", path, "--json", *words[:count])
        assert result.exit_code == 0, result.output
        told, table = json.loads(result.stdout), read_table(path)
        values = {"city": "x=y", "a": 7, "a=b": -1.5, "ok": True}
        given = dict(list(values.items())[: count // 2])
        assert told["given"] == given and told["any_order"] and told["ensemble"] == 1
        for name, value in given.items():
            assert table[name].tolist() == [value] * 9
    assert read_table(tmp_path / "2.csv").rows == 9
    density = ARCSMDensity.load(any_order)
    frame = density.sample(9, random_state=0, given={"city": "x=y"})
    assert read_table(tmp_path / "2.csv")["a"].tolist() == frame["a"].tolist()


def test_text_that_is_a_number_stays_text(run: Run, any_order: Path) -> None:
    result = run("sample", any_order, "-n", 2, "--given", "city=7")
    assert [line.rsplit(",", 1)[1] for line in result.stdout.splitlines()] == ["city", "7", "7"]


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("town=Bern", "NAME=VALUE with a column among"),
        ("city", "NAME=VALUE"),
        ("a=seven", "a whole number for the column 'a', got 'seven'"),
        ("a=7.5", "whole numbers for the column 'a'"),
        ("a=", "a whole number for the column 'a', got ''"),
        ("a=b=x", "a number for the column 'a=b'"),
        ("a=b=nan", "a number for the column 'a=b'"),
        ("ok=7", "true or false for the column 'ok'"),
        ("city=Rome", "'Rome'"),
    ],
)
def test_given_words_that_cannot_be(
    fails: Run, any_order: Path, tmp_path: Path, word: str, reason: str
) -> None:
    told = fails("sample", any_order, "--given", word, "-o", tmp_path / "s.csv")
    assert reason in told, told
    assert os.listdir(tmp_path) == []


def test_given_columns_that_the_order_forbids(
    fails: Run, run: Run, model: Path, several: Path
) -> None:
    told = fails("sample", model, "--given", "city=Bern")
    assert "age → income → city" in told and "--order any" in told
    assert run("sample", model, "-n", 2, "--given", "age=40").stdout.count("\n40,") == 2
    assert "each has its own order" in fails("sample", several, "--given", "city=Bern")
    assert "got it twice" in fails("sample", model, "--given", "age=1", "--given", "age=2")


@pytest.mark.parametrize("method", ["auto", "flow", "quadrature", "langevin"])
def test_methods(run: Run, several: Path, tmp_path: Path, method: str) -> None:
    words = ("sample", several, "-n", 4, "-o", tmp_path / "s.csv", "--method", method, "--json")
    result = run(*words)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert (told["method"], told["ensemble"], told["order"]) == (method, 3, [])
    assert read_table(tmp_path / "s.csv").rows == 4


def test_a_method_that_is_none(fails: Run, model: Path, several: Path, tmp_path: Path) -> None:
    for path in (model, several):
        told = fails("sample", path, "--method", "magic", "-o", tmp_path / "s.csv")
        assert "'magic'" in told and "quadrature" in told
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("words", [(), ("--given", "a=b=0.5")])
def test_ensembles_are_sampled_in_chunks(
    run: Run,
    data: Path,
    several: Path,
    any_order: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
) -> None:
    counts: list[int] = []
    append = TableWriter.append
    monkeypatch.setattr("arcsm.tabular.model.rows_drawn_at_once", lambda *_: 4)
    monkeypatch.setattr(
        TableWriter, "append", lambda self, table: (counts.append(table.rows), append(self, table))
    )
    path = any_order if words else several
    result = run("sample", path, "-n", 10, "-o", tmp_path / "s.csv", "-q", *words)
    assert result.exit_code == 0, result.output
    assert counts == [4, 4, 2] and read_table(tmp_path / "s.csv").rows == 10


def test_scores_of_several_orders_are_those_of_the_mixture(
    run: Run, data: Path, several: Path, tmp_path: Path
) -> None:
    result = run("score", several, data, "--terms", "-o", tmp_path / "s.csv")
    assert result.exit_code == 0, result.output
    scores = read_table(tmp_path / "s.csv")
    density = ARCSMDensity.load(several)
    np.testing.assert_allclose(
        scores["log_density"], density.score_samples(read_table(data)), atol=1e-9
    )
    terms = sum(scores[f"log_density[{name}]"] for name in ("a=b", "a", "ok", "city"))
    assert (terms > scores["log_density"] - 1e-9).all()


@pytest.mark.parametrize("which", ["several", "any_order"])
def test_models_of_all_kinds_are_checked(
    run: Run, data: Path, which: str, request: pytest.FixtureRequest
) -> None:
    result = run("check", request.getfixturevalue(which), data, "--json")
    assert result.exit_code in (0, 1), result.output
    told = {finding["name"]: finding for finding in json.loads(result.stdout)["findings"]}
    assert told["calibration on its own samples"]["good"] and told["integrals"]["good"]
    assert "calibration on the data" in told
