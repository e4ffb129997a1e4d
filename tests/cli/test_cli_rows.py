"""`arcsm sample` and `arcsm score`: rows in, rows out."""

import errno
import json
import math
import os
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arcsm import ARCSMDensity
from arcsm.cli import scoring
from arcsm.data import Table, TableWriter, read_table, write_table

Run = Callable[..., Any]


def same(one: Table, other: Table) -> None:
    assert one.names == other.names
    for name in one.names:
        np.testing.assert_array_equal(one[name], other[name])


@pytest.fixture(scope="session")
def density(model: Path) -> ARCSMDensity:
    return ARCSMDensity.load(model)


@pytest.mark.parametrize("name", ["-", "s.csv", "s.tsv.gz", "s.parquet", "s.npz", "new/s.csv"])
def test_samples_are_those_of_the_estimator(
    run: Run, model: Path, density: ARCSMDensity, tmp_path: Path, name: str
) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    path = name if name == "-" else tmp_path / name
    result = run("sample", model, "-n", 40, "--seed", 7, "-o", path)
    assert result.exit_code == 0, result.output
    if name == "-":
        path = tmp_path / "stdout.csv"
        path.write_text(result.stdout)
    else:
        assert result.stdout == "" and "Wrote 40 rows" in result.stderr
    frame = density.sample(40, random_state=7)
    for column in ("age", "income", "city"):
        assert read_table(path)[column].tolist() == frame[column].tolist()


def test_samples_come_in_chunks(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    append = TableWriter.append
    monkeypatch.setattr("arcsm.tabular.model.rows_drawn_at_once", lambda *_: 4)
    monkeypatch.setattr(
        TableWriter, "append", lambda self, table: (counts.append(table.rows), append(self, table))
    )
    assert run("sample", model, "-n", 10, "-o", tmp_path / "s.csv", "-q").stderr == ""
    assert counts == [4, 4, 2] and read_table(tmp_path / "s.csv").rows == 10


def test_scores_and_terms_are_those_of_the_model(
    run: Run, model: Path, density: ARCSMDensity, csv: Path, tmp_path: Path
) -> None:
    words = ("--terms", "--keep", "city", "--keep", "age", "-o", tmp_path / "s.csv")
    result = run("score", model, csv, *words)
    assert result.exit_code == 0 and result.stdout == ""
    table, scores = read_table(csv), read_table(tmp_path / "s.csv")
    terms = [f"log_density[{name}]" for name in ("age", "income", "city")]
    assert scores.names == ("city", "age", "log_density", *terms)
    same(scores.select(["city", "age"]), table.select(["city", "age"]))
    expected = density.score_samples(table)
    np.testing.assert_allclose(scores["log_density"], expected, atol=1e-9)
    np.testing.assert_allclose(sum(scores[term] for term in terms), expected, atol=1e-9)
    assert f"of 120 rows: {expected.mean():.3f} nats.".replace("-", "−") in result.stderr


def test_scores_on_stdout_and_as_json_agree(
    run: Run, fails: Run, model: Path, csv: Path, tmp_path: Path
) -> None:
    (tmp_path / "s.csv").write_text(run("score", model, csv).stdout)
    result = run("score", model, csv, "-o", tmp_path / "j.csv", "--json")
    told = json.loads(result.stdout)
    assert result.stderr == "" and (told["rows"], told["impossible_rows"]) == (120, 0)
    scores = read_table(tmp_path / "s.csv")
    assert told["mean_log_density"] == pytest.approx(scores["log_density"].mean())
    assert (tmp_path / "s.csv").read_bytes() == (tmp_path / "j.csv").read_bytes()
    assert "add -o FILE" in fails("score", model, csv, "--json")
    assert "add -o FILE" in fails("sample", model, "--json")


def test_columns_are_found_by_their_names(run: Run, model: Path, csv: Path, tmp_path: Path) -> None:
    table = read_table(csv)
    moved = {"note": np.array(["x"] * 120, dtype=object)} | {
        name: table[name] for name in ("city", "income", "age")
    }
    write_table(tmp_path / "moved.csv", moved)
    assert run("score", model, tmp_path / "moved.csv").stdout == run("score", model, csv).stdout


def test_impossible_rows_are_counted_and_left_out_of_the_mean(
    run: Run, model: Path, csv: Path, tmp_path: Path
) -> None:
    table = read_table(csv).take(slice(0, 4))
    table["income"][1] = -1.0
    write_table(tmp_path / "t.csv", table)
    result = run("score", model, tmp_path / "t.csv", "-o", tmp_path / "s.csv")
    scores = read_table(tmp_path / "s.csv")["log_density"]
    assert scores[1] == -math.inf and np.isfinite(scores[[0, 2, 3]]).all()
    assert "of 3 rows" in result.stderr and "1 more is impossible" in result.stderr
    table["income"][:] = -1.0
    write_table(tmp_path / "t.csv", table)
    told = json.loads(
        run("score", model, tmp_path / "t.csv", "-o", tmp_path / "s.csv", "--json").stdout
    )
    assert told["mean_log_density"] is None and told["impossible_rows"] == 4
    result = run("score", model, tmp_path / "t.csv", "-o", tmp_path / "s.csv")
    assert "All 4 rows are impossible" in result.stderr


def test_memory_does_not_grow_with_the_file(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "_NUMBERS", 300)
    monkeypatch.setattr(
        "arcsm.tabular.TabularModel.log_prob_and_terms",
        lambda self, table: (np.zeros(table.rows), np.zeros((table.rows, 3))),
    )
    peaks = {}
    for rows in (500, 2_000, 20_000):
        (tmp_path / "t.csv").write_text("age,income,city\n" + "30,1.5,Bern\n" * rows)
        tracemalloc.start()
        assert run("score", model, tmp_path / "t.csv", "-o", tmp_path / "s.csv").exit_code == 0
        peaks[rows] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    # 18,000 rows more are 432 kB of scores and as much text.
    assert peaks[20_000] < peaks[2_000] + 200_000, peaks


HEAD = "age,income,city\n"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("age,city\n30,Bern\n", "['income'] of the model"),
        ("age,Income,city\n30,1.5,Bern\n", "['income'] of the model"),
        (HEAD + "30,1.5,Bern\nthirty,1.5,Bern\n", "'thirty'"),
        (HEAD + "30,1.5,Bern\n30,1.5\n", "line 3"),
        (HEAD + "30,1.5,Bern\n30,,Bern\n", "a missing value in row 1"),
        (HEAD + "30,1.5,Bern\n30,1.5,Rome\n", "'Rome' in row 1"),
        (HEAD, "'t.csv'"),
        ("", "'t.csv'"),
    ],
)
def test_data_that_do_not_fit_the_model_leave_no_file(
    fails: Run, model: Path, tmp_path: Path, content: str, reason: str
) -> None:
    (tmp_path / "t.csv").write_text(content)
    told = fails("score", model, tmp_path / "t.csv", "-o", tmp_path / "s.csv")
    assert reason in told, told
    assert os.listdir(tmp_path) == ["t.csv"]


def test_an_error_in_a_later_chunk_says_where_it_starts(
    fails: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "_NUMBERS", 30)
    (tmp_path / "t.csv").write_text(HEAD + "30,1.5,Bern\n" * 14 + "30,,Bern\n")
    told = fails("score", model, tmp_path / "t.csv", "-o", tmp_path / "s.csv")
    assert "counted from row 10: " in told and "in row 4" in told
    assert os.listdir(tmp_path) == ["t.csv"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--keep", "name"], "['name'] of --keep"),
        (["-o", "s.txt"], ".parquet"),
        (["-o", "."], "."),
        (["-o", "/proc/s.csv"], "can be written"),
        (["--device", "nonsense"], "use cpu"),
    ],
)
def test_options_that_cannot_be_met(
    fails: Run, model: Path, csv: Path, words: list[str], reason: str
) -> None:
    assert reason in fails("score", model, csv, *words)


def test_a_kept_column_may_not_take_the_name_of_a_score(
    fails: Run, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text("age,income,city,log_density\n30,1.5,Bern,0\n")
    assert "rename" in fails("score", model, tmp_path / "t.csv", "--keep", "log_density")


@pytest.mark.parametrize("command", ["sample", "score"])
@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_an_output_that_is_a_directory_is_refused(
    fails: Run, model: Path, csv: Path, tmp_path: Path, command: str, suffix: str
) -> None:
    (tmp_path / f"d{suffix}").mkdir()
    words = [model, csv] if command == "score" else [model]
    assert "the directory" in fails(command, *words, "-o", tmp_path / f"d{suffix}")


@pytest.mark.parametrize("how", ["same", "another way", "link"])
def test_scores_do_not_replace_the_data(
    fails: Run, model: Path, csv: Path, tmp_path: Path, how: str
) -> None:
    data = tmp_path / "data.csv"
    shutil.copy(csv, data)
    output = {"same": data, "another way": tmp_path / "." / ".." / tmp_path.name / "data.csv"}.get(
        how, tmp_path / "link.csv"
    )
    if how == "link":
        output.symlink_to(data)
    assert "other than DATA" in fails("score", model, data, "-o", output)
    assert data.read_bytes() == csv.read_bytes()


@pytest.mark.parametrize("name", ["rows.csv", "deep/rows.npz"])
@pytest.mark.parametrize("command", ["sample", "score"])
def test_rows_do_not_go_into_the_model(
    fails: Run, model: Path, csv: Path, command: str, name: str
) -> None:
    before = sorted(os.listdir(model))
    words = [model, csv] if command == "score" else [model]
    assert "outside of the model" in fails(command, *words, "-o", model / name)
    assert sorted(os.listdir(model)) == before


def test_text_that_looks_like_something_else_can_be_scored(run: Run, tmp_path: Path) -> None:
    data, model, new = tmp_path / "t.csv", tmp_path / "m", tmp_path / "new.csv"
    rows = [f"{flag},{code}" for flag in ("true", "false", "maybe") for code in ("01", "2", "A")]
    data.write_text("\n".join(["flag,code", *(rows * 20), ""]))
    assert run("train", data, "-o", model, "--max-steps", 5, "--no-card").exit_code == 0
    scores = []
    for beside in ("maybe,A\n", ""):
        new.write_text(f"flag,code\ntrue,01\nfalse,2\n{beside}")
        result = run("score", model, new, "--keep", "flag", "--keep", "code")
        assert result.exit_code == 0, result.output
        scores.append(result.stdout.splitlines()[1:3])
    assert scores[0] == scores[1]
    assert [row.rsplit(",", 1)[0] for row in scores[1]] == ["true,01", "false,2"]
    result = run("check", model, new)
    assert result.exit_code in (0, 1), result.output


def damaged(model: Path, directory: Path, how: str) -> Path:
    copy = directory / "m"
    if how == "missing":
        return copy
    if how == "file":
        copy.write_text("")
        return copy
    if how == "empty":
        copy.mkdir()
        return copy
    shutil.copytree(model, copy)
    config, weights = copy / "config.json", copy / "model.safetensors"
    if how == "version":
        config.write_text(config.read_text().replace('"version": 1', '"version": 9', 1))
    elif how == "no json":
        config.write_text(config.read_text()[:-20])
    elif how == "cut":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif how == "no weights":
        weights.unlink()
    return copy


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("missing", "nothing there"),
        ("file", "got a file"),
        ("empty", "config.json"),
        ("version", "of one model"),
        ("no json", "damaged"),
        ("cut", "damaged"),
        ("no weights", "got none"),
    ],
)
@pytest.mark.parametrize("command", ["sample", "score"])
def test_a_model_that_does_not_load(
    fails: Run, model: Path, csv: Path, tmp_path: Path, command: str, how: str, reason: str
) -> None:
    words = [csv] if command == "score" else []
    path = damaged(model, tmp_path, how)
    told = fails(command, path, *words, "-o", tmp_path / "out.csv")
    assert reason in told, told
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("name", ["out.csv", "out.npz"])
@pytest.mark.parametrize("command", ["sample", "score"])
def test_a_full_disk_is_one_line_and_no_file(
    fails: Run,
    model: Path,
    csv: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    name: str,
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("arcsm.files._flush_to_disk", full)
    words = [model, csv] if command == "score" else [model]
    told = fails(command, *words, "-o", tmp_path / name)
    assert told == (
        f"arcsm: could not write '{tmp_path / name}': No space left on device;"
        " nothing was written\n"
    )
    assert os.listdir(tmp_path) == []


def spawn(*words: object, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "arcsm", *map(str, words)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        **options,
    )


@pytest.mark.slow
def test_a_process_that_ends_soon_after_reading_is_not_aborted(csv: Path, tmp_path: Path) -> None:
    for _ in range(4):
        program = spawn("train", csv, "-o", tmp_path / "x", "--drop", "zz")
        _, errors = program.communicate(timeout=120)
        assert (program.returncode, errors.count("\n")) == (2, 1), errors


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="closes a pipe as a shell does")
def test_a_reader_that_has_enough_ends_the_command_silently(model: Path) -> None:
    program = spawn("sample", model, "-n", 1_000_000, stdout=subprocess.PIPE)
    assert program.stdout is not None and program.stderr is not None
    assert program.stdout.readline() == "age,income,city\n"
    program.stdout.close()
    assert program.stderr.read() == "" and program.wait(timeout=60) == 141
    program.stderr.close()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is full")
def test_a_full_stdout_is_one_line(model: Path) -> None:
    with open("/dev/full", "wb") as full:
        program = spawn("sample", model, "-n", 10, stdout=full)
        _, errors = program.communicate(timeout=60)
    assert program.returncode == 2
    assert (
        errors.startswith("arcsm: could not write 'stdout': No space") and errors.count("\n") == 1
    )


def test_text_has_no_place_in_npy(
    fails: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from arcsm.tabular import TabularModel

    drawn = []
    drawings = TabularModel.drawings

    def count(self: TabularModel, rows: int, **options: Any) -> Iterator[Callable[[], Table]]:
        for draw in drawings(self, rows, **options):
            drawn.append(4)
            yield draw

    monkeypatch.setattr("arcsm.tabular.model.rows_drawn_at_once", lambda *_: 4)
    monkeypatch.setattr(TabularModel, "drawings", count)
    assert "text in column 'city'" in fails("sample", model, "-n", 9, "-o", tmp_path / "s.npy")
    assert drawn == [4] and os.listdir(tmp_path) == []
