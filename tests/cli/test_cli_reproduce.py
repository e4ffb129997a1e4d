"""`arcsm reproduce` and `arcsm report`: options that arrive, and sentences that help."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from arcsm.errors import InputError
from arcsm.experiments import NAMES, Outcome
from arcsm.experiments.experiment import Experiment

Run = Callable[..., Any]
CSM, TOYS = "csm-dsm-mix", "toy-samples"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Put a recorder in the place of the runner; its entries are the calls."""
    calls: list[Any] = []

    def run_experiment(experiment: Experiment, budget: str, **options: Any) -> Outcome:
        options.pop("reporter")
        calls.append((experiment.name, budget, options))
        return Outcome([Path(f"{experiment.name}-{budget}.json")], [])

    monkeypatch.setattr("arcsm.experiments.run_experiment", run_experiment)
    return calls


def test_options_arrive(run: Run, calls: list[Any], tmp_path: Path) -> None:
    result = run(
        "reproduce",
        TOYS,
        "--budget",
        "smoke",
        "--device",
        "cpu",
        "--fresh",
        "--jobs",
        3,
        "--out",
        tmp_path / "r",
    )
    assert result.exit_code == 0, result.output
    ((name, budget, options),) = calls
    assert (name, budget) == (TOYS, "smoke")
    assert options == {
        "device": "cpu", "folder": tmp_path / "r", "resume": False, "max_seconds": None, "jobs": 3,
    }  # fmt: skip
    assert list(tmp_path.iterdir()) == []


def test_all_runs_each_that_has_the_budget_in_the_time_that_is_left(
    run: Run, calls: list[Any], tmp_path: Path
) -> None:
    from arcsm.experiments import get_experiment

    result = run(
        "reproduce", "all", "--budget", "gpu", "--seconds", 100, "--out", tmp_path, "--json"
    )
    assert result.exit_code == 0, result.output
    names = [name for name in NAMES if "gpu" in get_experiment(name).budgets]
    assert [call[0] for call in calls] == names and TOYS not in names
    times = [call[2]["max_seconds"] for call in calls]
    assert times == sorted(set(times), reverse=True) and 50 < times[-1] <= times[0] <= 100
    told = json.loads(result.stdout)
    assert told["unfinished"] == [] and len(told["written"]) == len(names)


def test_missing_data_of_one_do_not_keep_the_others_waiting(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def run_experiment(experiment: Experiment, budget: str, **options: Any) -> Outcome:
        asked.append(experiment.name)
        if experiment.name == "mnist-likelihood":
            raise InputError("expected a folder of data sets, got none; set ARCSM_DATA")
        return Outcome([], ["a piece"])

    monkeypatch.setattr("arcsm.experiments.run_experiment", run_experiment)
    result = run("reproduce", "all", "--budget", "smoke", "--out", tmp_path)
    assert asked == list(NAMES)
    assert result.exit_code == 2 and "mnist-likelihood: expected a folder of data" in result.stderr
    assert f"Not finished: {NAMES[0]}" in result.stderr


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([], ["NAME", "--list"]),
        (["toys"], ["toy-samples", "'toys'"]),
        ([TOYS, "--budget", "huge"], ["smoke, cpu, gpu, paper", "'huge'"]),
        ([TOYS, "--budget", "gpu"], ["smoke, cpu, paper", "'gpu'"]),
        ([TOYS, "--budget", "smoke", "--device", "abacus"], ["device", "'abacus'"]),
        ([TOYS, "--budget", "smoke", "--seconds", "0"], ["positive number of seconds"]),
        ([TOYS, "--budget", "smoke", "--seconds=-1"], ["positive number of seconds, got -1.0;"]),
        ([TOYS, "--seconds", "soon"], ["--seconds"]),
    ],
)
def test_what_is_asked_wrongly_is_one_line(
    fails: Run, tmp_path: Path, words: list[str], parts: list[str]
) -> None:
    told = fails("reproduce", *words, "--out", tmp_path / "results")
    assert all(part in told for part in parts), told


def test_a_folder_that_cannot_be_made_is_refused_first(
    fails: Run, calls: list[Any], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("kept")
    told = fails("reproduce", TOYS, "--out", tmp_path / "file")
    assert "can be written" in told and calls == []


@pytest.mark.slow
def test_the_list_says_what_has_been_run(run: Run, tmp_path: Path) -> None:
    result = run("reproduce", "--list", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert all(f"{name}\n" in result.stdout for name in NAMES)
    assert "budgets: smoke, cpu, gpu, paper" in result.stdout and "run 20" not in result.stdout
    made = run("reproduce", CSM, "--budget", "smoke", "--out", tmp_path, "--quiet")
    assert made.exit_code == 0 and made.stdout == made.stderr == "", made.output
    listed = json.loads(run("reproduce", CSM, "--list", "--out", tmp_path, "--json").stdout)
    (only,) = listed["experiments"]
    assert only["name"] == CSM and only["question"].endswith("?")
    assert only["budgets"]["smoke"].startswith("run 20") and only["budgets"]["cpu"] is None


def test_report_of_a_folder(run: Run, fails: Run, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert "nothing there" in fails("report", "--results", tmp_path / "none", "-o", page)
    (tmp_path / "results").mkdir()
    result = run("report", "--results", tmp_path / "results", "-o", page, "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["run"] == [] and told["missing"] == list(NAMES) and told["others"] == []
    assert page.read_text(encoding="utf-8").count("Not run.") == len(NAMES)
    (tmp_path / "results" / "x.json").write_text("{")
    assert "x.json" in fails("report", "--results", tmp_path / "results", "-o", page)
    readme = tmp_path / "README.md"
    readme.write_text("no marks")
    (tmp_path / "results" / "x.json").unlink()
    told = fails("report", "--results", tmp_path / "results", "-o", page, "--readme", readme)
    assert "results: begin" in told
