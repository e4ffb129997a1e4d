"""Commands that several processes run together: the same results, one voice, nothing left over."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from several import arcsm, command, start

from arcsm import ARCSMDensity, distributed
from arcsm.data import Table, read_table, write_table
from arcsm.errors import ArcsmError, InputError

Run = Callable[..., Any]

# Chunks of ten rows of three columns, and pieces of eight.
CHUNKS = {"arcsm.cli.scoring._NUMBERS": 30, "arcsm.tabular.pieces._NUMBERS": 40}


def cut(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CHUNKS.items():
        monkeypatch.setattr(name, value)


@pytest.fixture
def rows(csv: Path, tmp_path: Path) -> Path:
    """People with a note, which some lack."""
    table = read_table(csv).take(np.arange(47))
    notes = np.array([None, "", 'a "b", c'] * 16, dtype=object)[:47]
    path = tmp_path / "data" / "rows.parquet"
    write_table(path, Table({**table.columns, "note": notes}))
    return path


@pytest.mark.parametrize("name", ["s.csv", "s.tsv.gz", "s.parquet", "s.npz", "-"])
def test_scores_are_the_same_to_the_bit(
    run: Run, model: Path, rows: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut(monkeypatch)
    words = ["score", model, rows, "--terms", "--keep", "note"]
    output = [tmp_path / place / name if name != "-" else "-" for place in ("one", "two")]
    alone = run(*words, "-o", output[0])
    ended = arcsm([*words, "-o", output[1]], folder=tmp_path / "said", patches=CHUNKS)
    assert [process.code for process in ended] == [0, 0], ended
    if name == "-":
        assert ended[0].stdout == alone.stdout and alone.stdout.count("\n") == 48
    else:
        assert Path(output[0]).read_bytes() == Path(output[1]).read_bytes()
        assert os.listdir(tmp_path / "two") == [name] and ended[0].stdout == ""
    # The first alone speaks, and of all rows.
    assert ended[0].stderr.splitlines()[0] == alone.stderr.splitlines()[0]
    assert "of 47 rows" in ended[0].stderr and "Wrote 47 rows" in ended[0].stderr
    assert ended[1].stdout == ended[1].stderr == ""


@pytest.mark.parametrize("given", [(), ("--given", "age=40")])
def test_samples_are_the_same_to_the_bit(
    run: Run, model: Path, tmp_path: Path, given: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    cut(monkeypatch)
    words = ["sample", model, "-n", 45, "--seed", 3, *given, "--json"]
    alone = run(*words, "-o", tmp_path / "one.parquet")
    ended = arcsm([*words, "-o", tmp_path / "two.parquet"], folder=tmp_path / "s", patches=CHUNKS)
    assert [process.code for process in ended] == [0, 0], ended
    assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "two.parquet").read_bytes()
    assert json.loads(ended[0].stdout)["rows"] == json.loads(alone.stdout)["rows"] == 45
    assert ended[1].stdout == ended[0].stderr == ended[1].stderr == ""
    drawn = read_table(tmp_path / "two.parquet")
    assert len(set(drawn["income"].tolist())) == 45  # no piece is drawn twice
    if not given:
        frame = ARCSMDensity.load(model).sample(45, random_state=3)
        assert drawn["income"].tolist() == frame["income"].tolist()


def close(one: Path, other: Path) -> None:
    weights, others = (load_file(path / "model.safetensors") for path in (one, other))
    assert weights.keys() == others.keys()
    for name, value in weights.items():
        np.testing.assert_allclose(others[name], value, rtol=1e-3, atol=1e-4, err_msg=name)


def test_a_table_is_trained_on_together(run: Run, csv: Path, tmp_path: Path) -> None:
    words = ["train", csv, "--max-steps", 5, "--seed", 2, "--no-card"]
    assert run(*words, "-o", tmp_path / "one").exit_code == 0
    ended = arcsm([*words, "-o", tmp_path / "two"], folder=tmp_path / "said")
    assert [process.code for process in ended] == [0, 0], ended
    assert sorted(os.listdir(tmp_path)) == ["one", "said", "two"]
    assert sorted(os.listdir(tmp_path / "two")) == sorted(os.listdir(tmp_path / "one"))
    close(tmp_path / "one", tmp_path / "two")
    assert "Held out: mean log-density of 18 rows" in ended[0].stderr
    assert ended[1].stdout == ended[1].stderr == ""


def test_images_are_trained_on_together(run: Run, tmp_path: Path) -> None:
    from arcsm.plots.pictures import save_picture

    random = np.random.default_rng(0)
    for number in range(24):
        save_picture(
            tmp_path / "spots" / f"{number}.png", random.integers(0, 256, (6, 6, 1), np.uint8)
        )
    words = ["train", tmp_path / "spots", "--network", "made", "--max-steps", 2, "--no-card"]
    words += ["--batch", 8]
    assert run(*words, "-o", tmp_path / "one").exit_code == 0
    ended = arcsm([*words, "-o", tmp_path / "two"], folder=tmp_path / "said")
    assert [process.code for process in ended] == [0, 0], ended
    close(tmp_path / "one", tmp_path / "two")
    assert "Wrote" in ended[0].stderr and ended[1].stderr == ""
    ended = arcsm(["sample", tmp_path / "two", "-o", tmp_path / "s.png"], folder=tmp_path / "said")
    assert one_line(ended) == (
        "arcsm: expected one process for `arcsm sample`, got 2; run it without torchrun, which of"
        " images trains alone\n"
    )


def test_outliers_are_found_together(run: Run, csv: Path, tmp_path: Path) -> None:
    words = ["detect", csv, "--train", csv, "--max-steps", 2, "--explain"]
    assert run(*words, "-o", tmp_path / "one.csv").exit_code == 0
    words += ["-o", tmp_path / "two.csv", "--save", tmp_path / "d"]
    ended = arcsm(words, folder=tmp_path / "said", patches=CHUNKS)
    assert [process.code for process in ended] == [0, 0], ended
    one, two = (read_table(tmp_path / f"{name}.csv") for name in ("one", "two"))
    assert one.names == two.names
    np.testing.assert_allclose(one["outlier_score"], two["outlier_score"], rtol=0.01)
    assert "of 120 rows are outliers" in ended[0].stderr and ended[1].stderr == ""
    assert sorted(os.listdir(tmp_path)) == ["d", "one.csv", "said", "two.csv"]


def one_line(ended: list[Any]) -> str:
    """Return the only line that was said by processes that all failed."""
    assert [process.code for process in ended] == [2, 2], ended
    said = "".join(process.stdout + process.stderr for process in ended)
    assert said.startswith("arcsm: ") and said.count("\n") == 1, said
    return said


@pytest.mark.parametrize("place", [5, 15])
def test_a_bad_row_in_one_share_ends_all(
    csv: Path, model: Path, tmp_path: Path, place: int
) -> None:
    lines = csv.read_text().splitlines()
    lines[place + 1] = "30,,Bern"
    data, folder = tmp_path / "bad.csv", tmp_path / "out"
    data.write_text("\n".join(lines) + "\n")
    ended = arcsm(
        ["score", model, data, "-o", folder / "s.csv"], folder=tmp_path / "said", patches=CHUNKS
    )
    assert "missing value in row 5" in one_line(ended)
    assert os.listdir(folder) == []


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["score", "MODEL", "nothing.csv"], "nothing.csv"),
        (["score", "MODEL"], "Missing argument"),
        (["check", "MODEL"], "expected one process for `arcsm check`, got 2"),
        (["train", "DATA", "-o", "MODEL"], "add --force"),
    ],
)
def test_what_is_wrong_for_all_is_said_once(
    csv: Path, model: Path, tmp_path: Path, words: list[str], reason: str
) -> None:
    told = [{"MODEL": str(model), "DATA": str(csv)}.get(word, word) for word in words]
    assert reason in one_line(arcsm(told, folder=tmp_path))


def test_parts_that_the_first_process_cannot_see(csv: Path, model: Path, tmp_path: Path) -> None:
    each = [["score", model, csv, "-o", tmp_path / place / "s.csv"] for place in ("a", "b")]
    (tmp_path / "b").mkdir()
    ended = arcsm(*each, folder=tmp_path / "said", patches=CHUNKS)
    assert "that all hosts can reach" in one_line(ended)
    assert os.listdir(tmp_path / "a") == os.listdir(tmp_path / "b") == []


def test_stdout_of_several_hosts(
    csv: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from arcsm.cli.together import _meeting_place

    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(InputError, match="several hosts"):
        _meeting_place("-", ExitStack())


@pytest.mark.parametrize("failed", [True, False])
def test_a_folder_that_is_gone_is_no_riddle_once_the_first_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed: bool
) -> None:
    from arcsm.cli.together import _meeting_place

    monkeypatch.setenv("WORLD_SIZE", "2")
    told = {"is_first": False, "wait_for": ".s.csv.gone", "others_failed": failed}
    for name, answer in told.items():
        monkeypatch.setattr(distributed, name, lambda *_, answer=answer: answer)
    with pytest.raises(ArcsmError) as caught:
        _meeting_place(str(tmp_path / "s.csv"), ExitStack())
    assert isinstance(caught.value, distributed.Stopped) == failed


def absent(rank: int, words: list[list[str]], patches: dict[str, Any]) -> None:
    """Score, but for a second process that comes and then does nothing."""
    if rank == 0:
        command(rank, words, patches)
    distributed.meet()
    time.sleep(60)


def test_a_process_that_is_ended_removes_its_files(csv: Path, model: Path, tmp_path: Path) -> None:
    folder, words = tmp_path / "out", ["score", str(model), str(csv), "-o", "OUT"]
    words[-1] = str(folder / "s.csv")
    processes = start(absent, 2, tmp_path / "said", [words], CHUNKS)
    end = time.monotonic() + 30
    while not list(folder.glob(".*/4.npz")) and time.monotonic() < end:
        time.sleep(0.01)  # until the first waits for the parts of the second
    assert len(os.listdir(folder)) == 2
    processes[0].terminate()
    processes[0].join(20)
    processes[1].kill()
    assert processes[0].exitcode == 143 and os.listdir(folder) == []


@pytest.mark.slow
@pytest.mark.parametrize("good", [True, False])
def test_torchrun_runs_a_command_with_one_voice(
    csv: Path, model: Path, tmp_path: Path, good: bool
) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    data = csv if good else tmp_path / "none.csv"
    words = ["score", str(model), str(data), "-o", str(tmp_path / "s.csv")]
    result = subprocess.run(
        [*torchrun, "--nproc-per-node=2", "-m", "arcsm", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (result.returncode == 0) == good, result.stderr
    ours = [line for line in result.stderr.splitlines() if line.startswith(("arcsm: ", "Wrote"))]
    if good:
        assert read_table(tmp_path / "s.csv").rows == 120 and os.listdir(tmp_path) == ["s.csv"]
        assert len(ours) == 1 and "Wrote 120 rows" in ours[0]
    else:
        assert len(ours) == 1 and "none.csv" in ours[0] and os.listdir(tmp_path) == []
