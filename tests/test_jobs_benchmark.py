"""Jobs of the benchmarks: what is kept, what is left to do, and how the five of them resume."""

import argparse
import json
import math
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from arcsm.errors import InputError

# The scripts import each other by their bare names, as they do when they are run.
sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
jobs = import_module("jobs")


@dataclass(frozen=True)
class Entry:
    name: str
    value: float | None = None


class InThisProcess(ThreadPoolExecutor):
    """Stands for the pool of processes: one thread of this one."""

    def __init__(self, processes: int, **_: object) -> None:
        super().__init__(1)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "ProcessPoolExecutor", InThisProcess)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # which a run sets for good


# The command line


def test_options() -> None:
    parser = argparse.ArgumentParser()
    jobs.add_options(parser, limit=True, what="fit")
    assert vars(parser.parse_args([])) == {"jobs": 1, "limit": math.inf, "resume": False}
    given = parser.parse_args(["--jobs", "3", "--limit", "2.5", "--resume"])
    assert vars(given) == {"jobs": 3, "limit": 2.5, "resume": True}
    assert "keep the fits of a run cut short" in parser.format_help()
    with pytest.raises(SystemExit):
        parser.parse_args(["--jobs", "0"])
    unlimited = argparse.ArgumentParser()
    jobs.add_options(unlimited)
    assert "limit" not in vars(unlimited.parse_args([]))


# What is kept


def test_lines_lie_beside_the_output_and_are_kept_to_resume(tmp_path: Path) -> None:
    output = tmp_path / "new" / "x.json"
    path = jobs.partial_file(output, resume=True)
    assert path == tmp_path / "new" / ".x.jsonl.partial" and not path.exists()
    jobs.append_entries(path, [Entry("a", 1.0), Entry("b")])
    assert path.read_text() == '{"name": "a", "value": 1.0}\n{"name": "b", "value": null}\n'
    before = path.read_bytes()
    jobs.partial_file(output, resume=True)
    assert path.read_bytes() == before
    jobs.partial_file(output, resume=False)
    assert not path.exists()


def test_lines_of_a_job_are_one_write() -> None:
    writes: list[bytes] = []
    path = SimpleNamespace(
        open=lambda mode, buffering: nullcontext(SimpleNamespace(write=writes.append))
    )
    jobs.append_entries(path, [Entry("a"), Entry("b")])
    assert len(writes) == 1 and writes[0].count(b"\n") == 2


def test_a_cut_last_line_is_passed_over_and_harms_no_other(tmp_path: Path) -> None:
    path = jobs.partial_file(tmp_path / "x.json", resume=False)
    assert jobs.read_entries(path, Entry) == []
    jobs.append_entries(path, [Entry("a", 1.0), Entry("b", 2.0)])
    path.write_bytes(path.read_bytes()[:-5])
    assert jobs.read_entries(path, Entry) == [Entry("a", 1.0)]
    jobs.partial_file(tmp_path / "x.json", resume=True)
    jobs.append_entries(path, [Entry("c", 3.0)])
    assert jobs.read_entries(path, Entry) == [Entry("a", 1.0), Entry("c", 3.0)]


def test_lines_of_another_format_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text('{"name": "a", "age": 3}\n{"name": "b"}\n[1]\n')
    assert jobs.read_entries(path, Entry) == [Entry("b")]


def test_what_is_done_is_not_left() -> None:
    entries = [Entry("a 1", 1.0), Entry("b 1", 2.0), Entry("a 2", 3.0)]
    done = jobs.by_job(entries, lambda entry: entry.name[0])
    assert done == {"a": [entries[0], entries[2]], "b": [entries[1]]}
    assert jobs.jobs_left(["c", "a", "d", "c"], done) == ["c", "d"]


def test_words_of_an_entry() -> None:
    assert jobs.commit_name({"id": "abc", "dirty": True}) == "abc-dirty"
    assert [jobs.commit_name({"id": "abc", "dirty": d}) for d in (False, None)] == ["abc"] * 2
    assert jobs.reason_of(ValueError("no good\nat all")) == "ValueError: no good"
    assert len(jobs.reason_of(ValueError("x" * 1000))) == 300


# Processes


@pytest.mark.usefixtures("in_this_process")
def test_jobs_are_worked_off_in_turn_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    def work(name: str, number: int) -> list[Entry]:
        return [Entry(name, float(place)) for place in range(number)]

    def told(entries: list[Entry]) -> str:
        return "\n".join(f"{entry.name} {entry.value}" for entry in entries)

    found = jobs.run_jobs(work, [("a", 1), ("b", 2)], told, processes=1)
    assert found == [Entry("a", 0.0), Entry("b", 0.0), Entry("b", 1.0)]
    assert capsys.readouterr().out.splitlines() == ["[1/2] a 0.0", "[2/2] b 0.0", "[2/2] b 1.0"]
    assert jobs.run_jobs(work, [], told, processes=1) == []


@pytest.mark.usefixtures("in_this_process")
def test_no_job_begins_after_the_deadline(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr(jobs, "time", SimpleNamespace(time=lambda: now[0]))

    def work(seconds: float) -> list[Entry]:
        now[0] += seconds
        return [Entry("job", now[0])]

    # They begin at 100 and 110; the third would at 120.
    calls = [(10.0,), (10.0,), (1.0,), (1.0,)]
    found = jobs.run_jobs(work, calls, lambda entries: "told", processes=1, end=115.0)
    assert found == [Entry("job", 110.0), Entry("job", 120.0)]
    assert capsys.readouterr().out.splitlines() == ["[1/4] told", "[2/4] told"]


def test_what_a_job_raises_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = threading.Event()
    begun = []

    class Pool(InThisProcess):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(False, cancel_futures=cancel_futures)
            stopped.set()
            super().shutdown(wait)

    def work(number: int) -> list[Entry]:
        begun.append(number)
        if number == 1:
            raise RuntimeError("out of order")
        stopped.wait(10)  # begun before the failure is noticed, or not at all
        return []

    monkeypatch.setattr(jobs, "ProcessPoolExecutor", Pool)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with pytest.raises(RuntimeError, match="out of order"):
        jobs.run_jobs(work, [(1,), (2,), (3,)], str, processes=1)
    assert 1 in begun and 3 not in begun


def test_processes_are_fresh_and_have_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A module of its own: the process has to import it.
    (tmp_path / "work_of_a_test.py").write_text(
        "import os, torch\n"
        "from threadpoolctl import threadpool_info\n"
        "def work(lines):\n"
        "    pools = [pool['num_threads'] for pool in threadpool_info()]\n"
        "    return [os.getpid(), os.environ['OMP_NUM_THREADS'], torch.get_num_threads(), *pools]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for library in ("OMP", "MKL", "OPENBLAS"):
        monkeypatch.setenv(f"{library}_NUM_THREADS", "2")
    work = import_module("work_of_a_test").work
    process, variable, *threads = jobs.run_jobs(work, [("x",)], str, processes=1)
    assert process != os.getpid() and variable == "1" and set(threads) == {1}


# How the benchmarks go on. The lines are such as are on disks: their format is not to change.

_DETECT = {
    "set": "wine",
    "seed": 0,
    "method": "KNN",
    "kind": "anomaly",
    "value": 0.9,
    "rows": 50,
    "columns": 3,
    "tested": 70,
    "fit_seconds": 1.0,
    "score_seconds": 0.1,
    "commit": "before",
    "reason": None,
}
_IMPUTE = {
    "set": "s",
    "mechanism": "mar",
    "seed": 0,
    "method": "knn",
    "way": "knn",
    "what": "RMSE",
    "value": 0.5,
    "rows": 10,
    "columns": 2,
    "holes": 4,
    "seconds": 1.0,
    "commit": "before",
    "reason": None,
}
_CONDITIONAL = {
    "set": "diabetes",
    "seed": 0,
    "fold": 0,
    "method": "NGBoost",
    "figures": None,
    "rows": 90,
    "tested": 10,
    "seconds": 1.0,
    "chosen": "",
    "commit": "before",
    "reason": "it broke",
}
_ORDERS = {
    "set": "wine",
    "seed": 0,
    "method": "auto",
    "commit": "before",
    "rows": 10,
    "columns": 2,
    "order": ["a", "b"],
    "log_density": [-1.0, None, -2.0],
    "seconds": 1.0,
    "race_seconds": 2.0,
    "candidates": [["natural", -1.0, 0.0, 2.0]],
    "left_out": [],
}
_TABLES = {
    "set": "wine",
    "seed": 0,
    "method": "arcsm",
    "max_steps": None,
    "commit": "before",
    "rows": 10,
    "columns": 2,
    "tested": 4,
    "mean": 1.0,
    "spread": 1.0,
    "seconds": 30.0,
    "chosen": "nothing",
    "reason": None,
}
# Options, lines of the run cut short, and the job that is left: its arguments and its method.
RESUMED: dict[str, tuple[str, list[dict[str, Any]], tuple[Any, ...], str]] = {
    "detect": (
        "--sets wine --seeds 0 --methods KNN LOF",
        [_DETECT, {**_DETECT, "seed": 1, "commit": "other"}],
        ("detect", "wine", 0, "LOF", "now"),
        "LOF",
    ),
    "impute": (
        "--sets s --mechanisms mar --seeds 0 --methods knn mean",
        [_IMPUTE, {**_IMPUTE, "way": "knn draws"}, {**_IMPUTE, "seed": 1, "commit": "other"}],
        ("s", "mar", 0, "mean", "now"),
        "mean",
    ),
    "conditional": (
        "--sets diabetes --seeds 0 --folds 1 --methods arcsm NGBoost --max-steps 7",
        [_CONDITIONAL, {**_CONDITIONAL, "seed": 1, "commit": "other"}],
        ("diabetes", 0, 0, "arcsm", 7, "now"),
        "arcsm",
    ),
    "orders": (
        "--sets wine --seeds 0 --race-seconds 5",
        [
            *({**_ORDERS, "method": m} for m in ("auto", "random 1", "random 2", "random 3")),
            {**_ORDERS, "seed": 1, "commit": "other"},
        ],
        ("wine", 0, "natural", 5.0, "now"),
        "natural",
    ),
    "tables": (
        "--sets wine --seeds 1 --methods arcsm,kde",
        # The second is of other settings.
        [_TABLES, {**_TABLES, "method": "kde", "max_steps": 5, "commit": "other"}],
        ("wine", 0, ["kde"], None, 30.0, "now"),
        "kde",
    ),
}


def without_data(benchmark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a benchmark know its commit, and the size of a set that is not there."""
    monkeypatch.setattr(benchmark, "current_commit", lambda: {"id": "now", "dirty": False})
    task = SimpleNamespace(train=np.zeros((3, 2)), size=6, shape=(3, 2), target="y")
    for loader in ("load", "read_set"):
        if hasattr(benchmark, loader):
            monkeypatch.setattr(benchmark, loader, lambda *_: task)


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("name", RESUMED)
def test_a_benchmark_goes_on_where_it_was_cut_short(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, lines, left, method = RESUMED[name]
    benchmark = import_module(name)
    entry = benchmark.Entry(**lines[0])
    begun = []

    def run_job(*call: Any) -> list[object]:
        begun.append(call)
        made = replace(entry, method=method, commit="now")
        made = replace(made, way=method) if name == "impute" else made
        jobs.append_entries(call[-1], [made])
        return [made]

    monkeypatch.setattr(benchmark, "run_job", run_job)
    without_data(benchmark, monkeypatch)
    partial = tmp_path / ".out.jsonl.partial"
    text = "".join(json.dumps(line) + "\n" for line in lines)
    partial.write_text(text + json.dumps(lines[0])[:40])
    output = tmp_path / "out.json"
    arguments = [name, *options.split(), "--resume", "-o", str(output)]
    monkeypatch.setattr(sys, "argv", arguments)
    benchmark.main()
    assert begun == [(*left, partial)]
    settings = json.loads(output.read_text())["settings"]
    assert settings["commits"] == ["before", "now"]
    assert settings.get("resumed", 1) == (4 if name == "orders" else 1)
    # Again, and nothing is left.
    benchmark.main()
    assert len(begun) == 1


@pytest.mark.parametrize("name", RESUMED)
def test_a_benchmark_begins_anew_within_its_limits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark = import_module(name)
    given = {}

    def stop(*_: object, **settings: float) -> None:
        given.update(settings)
        raise InputError("enough")

    monkeypatch.setattr(benchmark, "run_jobs", stop)
    without_data(benchmark, monkeypatch)
    partial = tmp_path / ".out.jsonl.partial"
    partial.write_text("".join(json.dumps(line) + "\n" for line in RESUMED[name][1]))
    limit = ["--limit", "1e9"] if name in ("detect", "impute", "orders") else []
    options = [*RESUMED[name][0].split(), *limit, "--jobs", "3"]
    monkeypatch.setattr(sys, "argv", [name, *options, "-o", str(tmp_path / "out.json")])
    with pytest.raises(InputError, match="enough"):
        benchmark.main()
    assert not partial.exists() and given["processes"] == 3
    if limit:
        assert given["end"] == pytest.approx(time.time() + 1e9, abs=60)
