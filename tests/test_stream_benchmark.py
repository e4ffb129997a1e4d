"""The parts of benchmarks/stream.py that decide what its numbers mean."""

import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from arcsm.data import read_table

# The scripts import each other by their bare names, as they do when they are run.
sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
stream = import_module("stream")


def test_rows_are_the_same_in_both_files_and_for_any_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_AT_ONCE", 40)
    stream.write_rows(tmp_path / "a.csv", 100, 6, seed=1)
    stream.write_rows(tmp_path / "b.parquet", 40, 6, seed=1)
    a, b = read_table(tmp_path / "a.csv"), read_table(tmp_path / "b.parquet")
    assert (a.rows, len(a.names), b.rows) == (100, 6, 40)
    np.testing.assert_array_equal(a.to_numpy()[:40], b.to_numpy())
    stream.write_rows(tmp_path / "c.csv", 40, 6, seed=2)
    assert not np.array_equal(read_table(tmp_path / "c.csv").to_numpy(), b.to_numpy())


def test_columns_have_the_covariance_of_the_factors(tmp_path: Path) -> None:
    stream.write_rows(tmp_path / "a.parquet", 20_000, 4, seed=0)
    loadings = np.random.default_rng(0).normal(size=(5, 4))
    covariance = np.cov(read_table(tmp_path / "a.parquet").to_numpy().T)
    np.testing.assert_allclose(covariance, loadings.T @ loadings + np.eye(4), rtol=0.1, atol=0.2)


def test_the_memory_of_a_process_is_its_own() -> None:
    little = stream.run([sys.executable, "-c", "pass"])
    much = stream.run([sys.executable, "-c", "b'x' * (200 << 20)"])
    assert 150 / 1024 < much.gib - little.gib < 300 / 1024
    # A process that came before does not count.
    assert stream.run([sys.executable, "-c", "pass"]).gib < little.gib + 50 / 1024


def test_a_process_that_fails_ends_the_benchmark() -> None:
    with pytest.raises(SystemExit, match="ended with code 3"):
        stream.run([sys.executable, "-c", "raise SystemExit(3)"])


def test_several_processes_are_started_by_torchrun() -> None:
    alone, together = stream.arcsm("score", 1), stream.arcsm("score", 1, processes=2)
    assert alone[1:] == ["-m", "arcsm", "score", "1", "--quiet"]
    assert together[-5:] == alone[1:] and "--nproc-per-node=2" in together
