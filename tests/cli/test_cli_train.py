"""`arcsm train`: options, refusals, interruption."""

import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.numpy import load_file
from torch.optim.optimizer import register_optimizer_step_post_hook

from arcsm import ARCSMDensity, files
from arcsm.data import Table, read_table, write_table
from arcsm.progress import Reporter
from arcsm.train import loop

Run = Callable[..., Any]


def weights(directory: Path) -> dict[str, bytes]:
    return {
        name: value.tobytes() for name, value in load_file(directory / "model.safetensors").items()
    }


def description(directory: Path) -> Any:
    return json.loads((directory / "config.json").read_text())["details"]["table"]


def test_a_model_appears_and_the_state_of_the_run_goes(run: Run, csv: Path, tmp_path: Path) -> None:
    result = run("train", csv, "-o", tmp_path / "new" / "m", "--max-steps", 3, "--seed", 5)
    assert result.exit_code == 0 and result.stdout == ""
    assert os.listdir(tmp_path / "new") == ["m"]
    card = (tmp_path / "new" / "m" / "README.md").read_text()
    assert "The rows are those of the training" in card  # 18 were held out, which are too few
    for word in ("120 rows, 3 columns", "age", "integer", "Held out: mean log-density of 18 rows"):
        assert word in result.stderr
    density = ARCSMDensity.load(tmp_path / "new" / "m")
    assert density.random_state == 5 and density.history_.steps == 3
    assert list(density.sample(2).columns) == ["age", "income", "city"]


def test_result_as_json_agrees_with_the_model(run: Run, csv: Path, tmp_path: Path) -> None:
    result = run("train", csv, "-o", tmp_path / "m", "--max-steps", 4, "--no-card", "--json")
    assert result.exit_code == 0 and result.stderr == ""
    told = json.loads(result.stdout)
    kinds = [column["kind"] for column in told["columns"]]
    assert (told["command"], told["rows"], told["steps"]) == ("train", 120, 4)
    assert kinds == ["integer", "bounded", "category"]
    assert sorted(os.listdir(tmp_path / "m")) == ["config.json", "model.safetensors"]
    # The same split by other means: the rows that the loop itself holds out.
    density = ARCSMDensity(max_steps=4, random_state=0).fit(read_table(csv))
    held_out = read_table(csv).take(density.held_out_)
    assert told["held_out_rows"] == held_out.rows == 18
    assert told["held_out_mean_log_density"] == pytest.approx(density.score(held_out), abs=1e-9)


@pytest.mark.parametrize("zero", [0, 25])
def test_rows_called_held_out_are_those_that_the_loop_holds_out(
    monkeypatch: pytest.MonkeyPatch, csv: Path, zero: int
) -> None:
    table = read_table(csv).select(["age", "income"])
    seen: list[np.ndarray] = []
    original = loop._validate

    def spy(model: Any, state: Any, check: Any, config: Any) -> Any:
        seen.append(check.rows.numpy())
        return original(model, state, check, config)

    monkeypatch.setattr(loop, "_validate", spy)
    weight = np.r_[np.zeros(zero), np.ones(table.rows - zero)]
    density = ARCSMDensity(max_steps=2, random_state=1).fit(table, sample_weight=weight)
    # The loop counts rows among those with a weight.
    np.testing.assert_array_equal(np.sort(seen[0]) + zero, density.held_out_)


def test_quiet_says_nothing(run: Run, csv: Path, tmp_path: Path) -> None:
    result = run("train", csv, "-o", tmp_path / "m", "--max-steps", 2, "--no-card", "-q")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")


def test_options_reach_the_model(run: Run, csv: Path, tmp_path: Path) -> None:
    table = read_table(csv)
    write_table(tmp_path / "w.csv", {**table.columns, "w": np.r_[np.zeros(60), np.ones(60)]})
    result = run(
        *("train", tmp_path / "w.csv", "-o", tmp_path / "m", "--max-steps", 2, "--no-card"),
        *("--drop", "city", "--weight", "w", "--order", "income", "--order", "age"),
        *("--columns", "age=bounded:0:120"),
    )
    assert result.exit_code == 0, result.output
    density = ARCSMDensity.load(tmp_path / "m")
    assert density.model_.order == ("income", "age")
    age, income = density.columns_
    assert age["kind"] == "bounded" and (
        age["parameters"]["lower"],
        age["parameters"]["upper"],
    ) == (
        0,
        120,
    )
    # Without weight the first half of the rows is not there.
    half = ARCSMDensity(max_steps=2, random_state=0).fit(
        table.select(["age", "income"]).take(slice(60, None))
    )
    assert income["parameters"] == half.columns_[1]["parameters"]


def test_only_learns_no_other_column(run: Run, csv: Path, tmp_path: Path) -> None:
    words = ("--max-steps", 2, "--no-card", "--order", "random", "--only", "income")
    assert run("train", csv, "-o", tmp_path / "m", *words).exit_code == 0
    assert ARCSMDensity.load(tmp_path / "m").model_.columns.names == ("income",)


def test_data_sets_by_name(
    run: Run, fails: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("-o", tmp_path / "m", "--max-steps", 2, "--no-card")
    assert run("train", "sklearn:iris", *words).exit_code == 0
    assert "sepal length (cm)" in ARCSMDensity.load(tmp_path / "m").model_.columns.names
    (tmp_path / "data" / "adbench").mkdir(parents=True)
    random = np.random.default_rng(0)
    np.savez(tmp_path / "data" / "adbench" / "tiny.npz", X=random.normal(size=(50, 2)), y=[0] * 50)
    monkeypatch.setenv("ARCSM_DATA", str(tmp_path / "data"))
    assert run("train", "adbench:tiny", *words, "--force").exit_code == 0
    result = run("score", tmp_path / "m", "adbench:tiny")
    assert result.exit_code == 0 and result.stdout.count("\n") == 51
    for told, reason in {
        "sklearn:penguins": "breast_cancer",
        "sklearn": "sklearn:NAME",
        "adbench:huge": "found there: tiny",
        "power:all": "train, validation, test",
        "power": "POWER",
    }.items():
        assert reason in fails("train", told, "-o", tmp_path / "other")


def bad_data(directory: Path) -> dict[str, tuple[str, str]]:
    """Content of a file, and a part of what is said of it."""
    ids = "".join(f"p{i},{i}\n" for i in range(20))
    return {
        "missing.csv": ("", "nothing there"),
        "table.xlsx": ("a,b\n1,2\n", ".parquet"),
        "broken.csv": ("a,b\n1,2\n3,4\n5\n6,7\n", "line 4"),
        "empty.csv": ("", "'empty.csv'"),
        "header.csv": ("a,b\n", "'header.csv'"),
        "one-row.csv": ("a,b\n1,2\n", "2 rows"),
        "equal.csv": ("a,b\n" + "1,2\n" * 1000, "constant"),
        "gaps.csv": ("a,b\n1,2\n3,\n4,5\n", "missing value in row 1"),
        "ids.csv": ("id,b\n" + ids, "identifier"),
        "twice.csv": ("a,a\n1,2\n3,4\n", "more than once"),
        "binary.csv": ("a,b\n1,\x00\udcff\n", "'binary.csv'"),
        "not.npy": ("a,b\n", "'not.npy'"),
    }


@pytest.mark.parametrize("name", bad_data(Path()))
def test_data_that_cannot_be_learned_leave_nothing_behind(
    fails: Run, tmp_path: Path, name: str
) -> None:
    content, reason = bad_data(tmp_path)[name]
    if name != "missing.csv":
        (tmp_path / name).write_bytes(content.encode(errors="surrogateescape"))
    before = os.listdir(tmp_path)
    assert reason in fails("train", tmp_path / name, "-o", tmp_path / "m", "--max-steps", 2)
    assert os.listdir(tmp_path) == before


def test_more_columns_than_rows_are_no_obstacle(run: Run, tmp_path: Path) -> None:
    np.save(tmp_path / "wide.npy", np.random.default_rng(0).normal(size=(4, 7)))
    words = ("-o", tmp_path / "m", "--max-steps", 2, "--no-card")
    result = run("train", tmp_path / "wide.npy", *words)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--drop", "agee"], "--drop of columns among ['age', 'income', 'city'], got ['agee']"),
        (["--only", "x"], "--only of columns among"),
        (["--only", "age", "--drop", "city"], "got both"),
        (["--drop", "age", "--drop", "income", "--drop", "city"], "a column to learn"),
        (["--weight", "city"], "numbers in the column 'city' of --weight"),
        (["--weight", "w"], "--weight of columns among"),
        (["--order", "age"], "once for each of the columns ['age', 'income', 'city'], got ['age']"),
        (["--order", "age", "--order", "city", "--order", "age", "--order", "income"], "--order"),
        (["--order", "age", "--order", "city", "--order", "x", "--order", "income"], "--order"),
        (["--columns", "age=small"], "got 'age=small'"),
        (["--columns", "city=real"], "got text"),
        (["--columns", "age=bounded:0:50"], "values from 0 to 50 in column 'age'"),
        (["--max-seconds", "0"], "--max-seconds above 0"),
        (["--device", "nonsense"], "device"),
        (["--resume"], "an interrupted run"),
    ],
)
def test_options_that_do_not_fit_the_table_are_refused(
    fails: Run, csv: Path, tmp_path: Path, words: list[str], reason: str
) -> None:
    told = fails("train", csv, "-o", tmp_path / "m", *words)
    assert reason in told
    assert os.listdir(tmp_path) == []


def test_a_run_killed_before_its_first_state_is_whole_can_be_started_anew(
    run: Run, fails: Run, csv: Path, tmp_path: Path
) -> None:
    with subprocess.Popen(["true"]) as gone:  # a process that is no more
        pass
    mark = files._mark().replace(str(os.getpid()), str(gone.pid), 1)
    for directory in ("m.partial", "m.partial/stage-01"):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / f".training.safetensors.{mark}.partial").write_text("half")
    (tmp_path / f".m.partial.{mark}.partial").mkdir()  # the state of an earlier run, half gone
    words = ("train", csv, "-o", tmp_path / "m", "--max-steps", 2, "--no-card")
    assert "start one without --resume" in fails(*words, "--resume")
    assert run(*words).exit_code == 0
    assert os.listdir(tmp_path) == ["m"]


def test_places_that_are_taken_are_left_alone(
    run: Run, fails: Run, csv: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"format": "of another program"}')
    (tmp_path / "run.partial").mkdir()
    (tmp_path / "run.partial" / "notes").write_text("kept")
    for name, force, reason in [
        ("file", False, "the file"),
        ("file", True, "the file"),
        ("file/m", False, "can be written"),
        ("other", False, "other files"),
        ("other", True, "other files"),
        ("run", False, "move them away"),
    ]:
        words = ["--force"] if force else []
        told = fails("train", csv, "-o", tmp_path / name, "--max-steps", 2, *words)
        assert reason in told, told
    assert sorted(os.listdir(tmp_path)) == ["file", "other", "run.partial"]
    (tmp_path / "m").mkdir()  # an empty directory is as good as none
    words = ("--max-steps", 2, "--no-card")
    assert run("train", csv, "-o", tmp_path / "m", *words).exit_code == 0
    before = weights(tmp_path / "m")
    assert "add --force" in fails("train", csv, "-o", tmp_path / "m", *words)
    assert weights(tmp_path / "m") == before
    assert run("train", csv, "-o", tmp_path / "m", *words, "--force", "--seed", 1).exit_code == 0
    assert weights(tmp_path / "m") != before


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs a directory nobody can write to")
def test_a_place_that_cannot_be_written_is_refused(fails: Run, csv: Path) -> None:
    assert "can be written" in fails("train", csv, "-o", "/proc/m")


def test_the_root_is_no_place_for_a_model(fails: Run, csv: Path) -> None:
    assert "choose another path" in fails("train", csv, "-o", "/", "--force")


def test_what_a_killed_process_left_is_removed(run: Run, csv: Path, tmp_path: Path) -> None:
    from arcsm.files import _host

    # Beyond what the system gives out, so no process has this id.
    left = tmp_path / f".m.{2**30}-{_host()}-0123abcd.partial"
    left.mkdir()
    (left / "config.json").write_text("half")
    words = ("-o", tmp_path / "m", "--max-steps", 2, "--no-card")
    assert run("train", csv, *words).exit_code == 0
    assert os.listdir(tmp_path) == ["m"]


@pytest.fixture
def press_at_step(request: pytest.FixtureRequest) -> Iterator[Callable[[int], None]]:
    """Press Ctrl-C within the n-th step of the optimiser from now on."""
    hooks = []

    def arrange(number: int) -> None:
        count = 0

        def after_step(*_: object) -> None:
            nonlocal count
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGINT)

        hooks.append(register_optimizer_step_post_hook(after_step))

    yield arrange
    for hook in hooks:
        hook.remove()


def test_a_run_that_was_interrupted_goes_on_to_the_same_bits(
    run: Run, fails: Run, csv: Path, tmp_path: Path, press_at_step: Callable[[int], None]
) -> None:
    words = ("train", csv, "--max-steps", 25, "--no-card", "-o")
    assert run(*words, tmp_path / "whole").exit_code == 0
    press_at_step(7)
    result = run(*words, tmp_path / "m")
    assert result.exit_code == 130 and result.stdout == ""
    last = result.stderr.splitlines()[-1]
    assert last.startswith("arcsm: interrupted; go on with: arcsm train ")
    assert last.endswith(" --resume") and "Traceback" not in result.stderr
    assert sorted(os.listdir(tmp_path)) == ["m.partial", "whole"]
    told = fails(*words, tmp_path / "m")
    assert "--resume" in told and "remove that directory" in told
    assert "other values of seed" in fails(*words, tmp_path / "m", "--resume", "--seed", 4)
    assert "other data" in fails(
        *words, tmp_path / "m", "--resume", "--columns", "age=bounded:0:99"
    )
    result = run(*words, tmp_path / "m", "--resume")
    assert result.exit_code == 0, result.output
    assert sorted(os.listdir(tmp_path)) == ["m", "whole"]
    assert weights(tmp_path / "m") == weights(tmp_path / "whole")
    assert (
        description(tmp_path / "m")["history"]["training"]
        == (description(tmp_path / "whole")["history"]["training"])
    )


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_ctrl_c_from_outside(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    # Of so many rows the first 1,200 steps are made in any case.
    write_table(tmp_path / "t.csv", Table({"x": random.normal(size=5000)}))
    words = ["train", "t.csv", "-o", "m", "--max-steps", "5000", "--no-card"]
    program = subprocess.Popen(
        [sys.executable, "-m", "arcsm", *words],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    while not (tmp_path / "m.partial" / "training.safetensors").exists():
        assert program.poll() is None
        time.sleep(0.05)
    program.send_signal(signal.SIGINT)
    _, errors = program.communicate(timeout=60)
    assert program.returncode == 130
    command = f"arcsm {' '.join(words)} --resume"
    assert errors.splitlines()[-1] == f"arcsm: interrupted; go on with: {command}"
    assert "Traceback" not in errors and sorted(os.listdir(tmp_path)) == ["m.partial", "t.csv"]


@pytest.mark.parametrize("when", ["the state", "the model"])
def test_a_full_disk_is_one_line_and_the_run_can_go_on(
    run: Run, csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/a/temporary")

    words = ("train", csv, "-o", tmp_path / "m", "--max-steps", 3, "--no-card")
    where = (
        "arcsm.train.loop.save_state" if when == "the state" else "arcsm.tabular.store.save_model"
    )
    with monkeypatch.context() as patch:
        patch.setattr(where, full)
        result = run(*words)
    assert result.exit_code == 2 and "Traceback" not in result.output
    last = result.stderr.splitlines()[-1]
    place = tmp_path / ("m.partial" if when == "the state" else "m")
    assert last.startswith(f"arcsm: could not write '{place}': No space left on device; make room")
    assert "/a/temporary" not in last and not (tmp_path / "m").exists()
    if when == "the model":
        assert os.listdir(tmp_path) == ["m.partial"]
        assert run(*words, "--resume").exit_code == 0
        assert os.listdir(tmp_path) == ["m"]


def test_disk_full_inside_of_safetensors_is_no_traceback(
    run: Run, csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors import SafetensorError

    def full(*_: Any, **__: Any) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("arcsm.train.checkpoint.save_file", full)
    result = run("train", csv, "-o", tmp_path / "m", "--max-steps", 2, "--no-card")
    assert result.exit_code == 2
    assert "No space left on device" in result.stderr.splitlines()[-1]


def test_held_out_rows_are_on_the_card_if_they_are_enough(run: Run, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    write_table(tmp_path / "t.csv", Table({"x": random.normal(size=400)}))
    words = ("-o", tmp_path / "m", "--max-steps", 2)
    assert run("train", tmp_path / "t.csv", *words).exit_code == 0
    card = (tmp_path / "m" / "README.md").read_text()
    assert "held out from the training" in card and "Mean log-density of 60 rows" in card
    assert {"loss.png", "calibration.png"} < set(os.listdir(tmp_path / "m"))


def test_torch_is_available_to_the_device_check() -> None:
    from arcsm.devices import check_device

    check_device("cpu")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="use cpu"):
            check_device("cuda")


def test_the_bar_tells_of_the_orders_that_are_tried() -> None:
    out = io.StringIO()
    reporter = Reporter(Console(file=out, force_terminal=True, width=100))
    with reporter.training("training", None) as bar:
        bar.racing()
        bar.racing(3, 20)
    assert "learning the order 3/20" in out.getvalue()
