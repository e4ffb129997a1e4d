"""A table of people, a model of them, and a way to run a command."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from arcsm import cli
from arcsm.data import Table, write_table

Run = Callable[..., Any]


@pytest.fixture(scope="session")
def run() -> Run:
    """Run `arcsm` with some words; the result has exit_code, stdout and stderr."""

    def run(*words: object) -> Any:
        return CliRunner().invoke(cli.app, [str(word) for word in words], prog_name="arcsm")

    return run


@pytest.fixture(scope="session")
def fails(run: Run) -> Run:
    """Run `arcsm`, which must end with one line on stderr and code 2; return the line."""

    def fails(*words: object) -> str:
        result = run(*words)
        assert result.exit_code == 2, (result.exit_code, result.output, result.exception)
        assert result.stderr.startswith("arcsm: ") and result.stderr.count("\n") == 1
        assert "Traceback" not in result.output and result.stdout == ""
        return str(result.stderr)

    return fails


def people(rows: int = 120) -> Table:
    random = np.random.default_rng(3)
    age = random.integers(18, 80, rows)
    return Table(
        {
            "age": age,
            "income": np.exp(0.02 * age + random.normal(size=rows)),
            "city": np.array(["Bern", "Basel", "Chur"], dtype=object)[random.integers(0, 3, rows)],
        }
    )


@pytest.fixture(scope="session")
def csv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "people.csv"
    write_table(path, people())
    return path


@pytest.fixture(scope="session")
def model(run: Run, csv: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a model of `csv`; not to be written to."""
    path = tmp_path_factory.mktemp("models") / "people"
    result = run("train", csv, "-o", path, "--max-steps", 20, "--no-card")
    assert result.exit_code == 0, result.output
    return path
