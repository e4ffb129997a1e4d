"""benchmarks/kills.py: runs that are killed go on to the same bits, and the judge is not blind."""

import json
import os
import random
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

from arcsm import ARCSM
from arcsm.train import save_model

# The scripts import each other by their bare names, as they do when they are run.
sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
kills = import_module("kills")

posix = pytest.mark.skipif(os.name != "posix", reason="sends signals")


@pytest.mark.slow
@posix
def test_a_run_that_is_killed_twice_ends_with_the_same_bits() -> None:
    words = "train small.csv -o model --max-steps 60 --no-card"
    runs = kills.Runs("table", kills.Scenario(words, "model"))
    told = runs.killed(random.Random(3), 2)
    assert told.wrong is None, told
    assert told.signals  # else nothing was killed


def test_models_differ_in_a_bit_and_not_in_their_times(tmp_path: Path) -> None:
    model = ARCSM.made(2, hidden=(4,), seed=0)
    for name, seconds in (("one", 1.0), ("other", 2.0)):
        save_model(tmp_path / name, model, details={"seconds": seconds, "steps": 3})
    assert kills.contents(tmp_path / "one") == kills.contents(tmp_path / "other")
    first = next(model.parameters()).detach().view(-1)
    first[0] = torch.nextafter(first[0], torch.tensor(9.0))
    save_model(tmp_path / "other", model, details={"seconds": 1.0, "steps": 3})
    assert kills.contents(tmp_path / "one") != kills.contents(tmp_path / "other")


def test_records_differ_in_numbers_and_not_in_dates(tmp_path: Path) -> None:
    for name, date, value in (("one", "2020", 1), ("two", "2021", 1), ("three", "2020", 2)):
        (tmp_path / name).mkdir()
        took = {"value": date, "unit": "s"}
        record = {"date": date, "metrics": [{"value": value, "training seconds": date}, took]}
        (tmp_path / name / "a.json").write_text(json.dumps(record))
    one, two, three = (kills.contents(tmp_path / name) for name in ("one", "two", "three"))
    assert one == two and one != three


def test_what_is_left_behind_is_told(tmp_path: Path) -> None:
    runs = object.__new__(kills.Runs)
    runs.scenario, runs.expected = kills.Scenario("train", "model"), {}
    (tmp_path / "model").mkdir()
    assert runs._compare(tmp_path, set()) is None
    (tmp_path / "model.partial").mkdir()
    assert "model.partial" in runs._compare(tmp_path, set())


def test_metrics_count_runs_and_signals() -> None:
    told = [
        kills.Told("a", ["SIGKILL", "SIGINT"], [1.0, 2.0], anew=1),
        kills.Told("a", ["SIGKILL"], [1.0], wrong="other bits"),
    ]
    values = {
        (metric.name, metric.labels.get("signal")): metric.value
        for metric in kills.summary(told, {"scenario": "a"})
    }
    assert values["runs with the same bits", None] == 0.5 and values["started anew", None] == 1
    assert values["signals", "SIGKILL"] == 2 and values["signals", "SIGTERM"] == 0
    assert "other bits" in str(told[1]) and "same bits" in str(told[0])
