import copy
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import arcsm
from arcsm import results
from arcsm.errors import InputError
from arcsm.results import (
    Metric,
    current_command,
    current_commit,
    read_result,
    validate_record,
    write_result,
)

REPOSITORY = Path(__file__).resolve().parent.parent
COMMIT = {"id": "0123abc", "dirty": False}


@pytest.fixture
def arguments() -> dict[str, Any]:
    """What an experiment passes to write_result."""
    return {
        "experiment": "moons",
        "metrics": [
            Metric("nll", 1.25, unit="nats", n=3, spread=0.1, interval=(1.1, 1.4)),
            Metric("nll", 2, unit="nats", n=1, labels={"dataset": "moons", "D": 8}),
            Metric("time to target", None, unit="s", n=0, reason="the target was never reached"),
        ],
        "seeds": [0, 1, 2],
        "settings": {"rate": 1e-3, "widths": (64, 64), "deep": {"flag": True, "none": None}},
        "seconds": 12.5,
        "command": "python experiments/moons.py --seeds 3",
        "commit": COMMIT,
    }


@pytest.fixture
def record(arguments: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    return write_result(tmp_path / "moons.json", **arguments)


def test_what_is_written_is_what_is_read(arguments: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "results" / "moons.json"
    record = write_result(path, **arguments)
    assert read_result(path) == record
    assert record["format"] == "arcsm-results"
    assert record["version"] == 1
    assert record["metrics"][0] == {
        "name": "nll",
        "value": 1.25,
        "unit": "nats",
        "n": 3,
        "spread": 0.1,
        "interval": [1.1, 1.4],
        "labels": {},
        "reason": None,
    }
    assert record["settings"]["widths"] == [64, 64]
    assert record["commit"] == COMMIT
    assert record["versions"]["arcsm"] == arcsm.__version__
    assert record["versions"]["torch"] == torch.__version__
    assert record["hardware"]["cpu"]
    assert record["hardware"]["cores"] >= 1
    assert record["date"].endswith("+00:00")


def test_scalars_of_numpy_and_torch_become_plain_numbers(arguments, tmp_path: Path) -> None:
    arguments["metrics"] = [
        Metric("a", np.float32(0.5), "1", np.int64(3), labels={"D": np.int32(8)}),
        Metric("b", torch.tensor(0.25, dtype=torch.bfloat16), "1", torch.tensor(2)),
        Metric("c", np.array([7]), "1", 1, interval=(np.float64(0), torch.tensor(1.0))),
    ]
    arguments["seeds"] = np.arange(3)
    arguments["settings"] = {"rate": np.float64(0.5), "out": Path("runs") / "a"}
    arguments["seconds"] = torch.tensor(1.5)
    record = write_result(tmp_path / "a.json", **arguments)
    assert [metric["value"] for metric in record["metrics"]] == [0.5, 0.25, 7]
    assert record["seeds"] == [0, 1, 2]
    assert record["settings"] == {"rate": 0.5, "out": "runs/a"}
    assert record["seconds"] == 1.5
    assert json.loads((tmp_path / "a.json").read_text()) == record


PROVENANCE = [
    ("format",),
    ("version",),
    ("experiment",),
    ("metrics",),
    ("seeds",),
    ("settings",),
    ("command",),
    ("commit",),
    ("commit", "id"),
    ("commit", "dirty"),
    ("hardware",),
    ("hardware", "cpu"),
    ("hardware", "cores"),
    ("hardware", "gpu"),
    ("hardware", "memory_gib"),
    ("versions",),
    ("versions", "python"),
    ("versions", "torch"),
    ("versions", "numpy"),
    ("versions", "arcsm"),
    ("seconds",),
    ("date",),
    *(("metrics", 0, name) for name in ("name", "value", "unit", "n", "labels", "reason")),
]


def walk(record: Any, *steps: Any) -> Any:
    for step in steps:
        record = record[step]
    return record


def test_the_list_of_fields_to_miss_is_complete(record: dict[str, Any]) -> None:
    nested = [(a, b) for a in ("commit", "hardware", "versions") for b in record[a]]
    assert {*nested, *((name,) for name in record)} <= set(PROVENANCE)


@pytest.mark.parametrize("steps", PROVENANCE, ids=lambda steps: ".".join(map(str, steps)))
def test_a_missing_field_is_refused(record, steps, tmp_path: Path) -> None:
    del walk(record, *steps[:-1])[steps[-1]]
    with pytest.raises(InputError, match=steps[-1]):
        validate_record(record)
    path = tmp_path / "partial.json"
    path.write_text(json.dumps(record))
    with pytest.raises(InputError, match=r"partial\.json.*" + steps[-1]):
        read_result(path)


@pytest.mark.parametrize(
    ("steps", "value"),
    [
        (("format",), "other-results"),
        (("version",), 2),
        (("version",), True),
        (("experiment",), " "),
        (("metrics",), []),
        (("metrics",), {}),
        (("metrics", 0), None),
        (("metrics", 0, "value"), None),
        (("metrics", 0, "value"), float("nan")),
        (("metrics", 0, "value"), "1.0"),
        (("metrics", 0, "value"), True),
        (("metrics", 0, "unit"), ""),
        (("metrics", 0, "n"), 0),
        (("metrics", 0, "n"), 1.5),
        (("metrics", 0, "spread"), -1.0),
        (("metrics", 0, "interval"), [2.0, 1.0]),
        (("metrics", 0, "interval"), [1.0]),
        (("metrics", 0, "labels"), ["moons"]),
        (("metrics", 0, "labels"), {"D": [8]}),
        (("metrics", 0, "labels"), {"file": "/home/someone/a.csv"}),
        (("metrics", 0, "reason"), "there is a value"),
        (("metrics", 0, "extra"), 1),
        (("metrics", 2, "reason"), None),
        (("seeds",), None),
        (("seeds",), 0),
        (("seeds",), [0.5]),
        (("seeds",), [-1]),
        (("settings",), None),
        (("settings", "rate"), float("inf")),
        (("settings", "deep"), {"path": ["/home/someone"]}),
        (("command",), ""),
        (("command",), "python '"),
        (("command",), "/usr/bin/python a.py"),
        (("command",), "python a.py --out=/home/someone/a.json"),
        (("command",), r"python 'C:\Users\someone\a.py'"),
        (("commit",), "0123abc"),
        (("commit", "id"), None),
        (("commit", "dirty"), "no"),
        (("hardware", "cores"), 0),
        (("hardware", "gpu"), ""),
        (("hardware", "memory_gib"), -1),
        (("versions", "torch"), None),
        (("seconds",), -1.0),
        (("seconds",), None),
        (("date",), "yesterday"),
        (("date",), 2026),
        (("date",), "2026-01-01T00:00:00"),
        (("date",), "2026-01-01T00:00:00+02:00"),
        (("extra",), 1),
    ],
)
def test_a_wrong_value_is_refused(record: dict[str, Any], steps, value: object) -> None:
    walk(record, *steps[:-1])[steps[-1]] = value
    with pytest.raises(InputError, match=r"expected .* got .*; ") as refusal:
        validate_record(record)
    named = [str(step) for step in steps if isinstance(step, str)]
    assert named[-1] in str(refusal.value) or named[0] in str(refusal.value)


def test_metrics_that_labels_do_not_tell_apart_are_refused(record: dict[str, Any]) -> None:
    record["metrics"].append(copy.deepcopy(record["metrics"][1]))
    with pytest.raises(InputError, match="twice"):
        validate_record(record)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Metric("nll", float("nan"), "nats", 1),
        lambda: Metric("nll", torch.tensor(float("inf")), "nats", 1),
        lambda: Metric("nll", np.zeros(2), "nats", 1),
        lambda: Metric("nll", None, "nats", 1),
        lambda: Metric("nll", 1j, "nats", 1),
        lambda: Metric("nll", 1.0, "nats", 1, labels={1: 2}),
    ],
)
def test_a_metric_without_a_finite_value_or_a_reason_is_refused(make: Callable) -> None:
    with pytest.raises(InputError, match="expected"):
        make()


def test_a_refused_record_leaves_the_file_as_it_was(arguments, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_result(path, **arguments)
    before = path.read_bytes()
    for change in ({"settings": {"x": float("nan")}}, {"metrics": []}, {"metrics": [{"a": 1}]}):
        with pytest.raises(InputError):
            write_result(path, **{**arguments, **change})
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b"{}", b"\xff\xfe", b'{"a": NaN}'])
def test_a_foreign_file_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "foreign.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"foreign\.json"):
        read_result(path)


def test_no_file_is_refused_by_name(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(InputError, match=re.escape(path.name)):
            read_result(path)


def test_every_result_of_the_repository_is_valid() -> None:
    for path in sorted((REPOSITORY / "results").glob("*.json")):
        read_result(path)


# The commit


def git(directory: Path, *command: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", *identity, *command], cwd=directory, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git checkout with a package directory that holds results.py."""
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    root = tmp_path / "checkout"
    (root / "arcsm").mkdir(parents=True)
    (root / "arcsm" / "results.py").write_text("")
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "first")
    return root


def test_the_commit_comes_from_git(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCSM_COMMIT", "not asked")
    head = git(checkout, "rev-parse", "HEAD")
    assert current_commit(checkout / "arcsm") == {"id": head, "dirty": False}
    (checkout / "results").mkdir()
    (checkout / "results" / "a.json").write_text("")
    assert current_commit(checkout / "arcsm") == {"id": head, "dirty": False}
    # A hook of another repository does not lead it astray.
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert current_commit(checkout / "arcsm") == {"id": head, "dirty": False}


@pytest.mark.parametrize("changed", ["arcsm/results.py", "experiment.py"])
def test_a_changed_or_added_file_makes_the_tree_dirty(checkout: Path, changed: str) -> None:
    (checkout / changed).write_text("changed = True\n")
    head = git(checkout, "rev-parse", "HEAD")
    assert current_commit(checkout / "arcsm") == {"id": head, "dirty": True}


@pytest.mark.parametrize(("name", "dirty"), [("0123abc", None), ("0123abc-dirty", True)])
def test_without_git_the_commit_comes_from_the_environment(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, name: str, dirty: bool | None
) -> None:
    monkeypatch.setenv("ARCSM_COMMIT", name)
    installed = checkout / ".venv" / "arcsm"  # inside a checkout that does not track it
    installed.mkdir(parents=True)
    (installed / "results.py").write_text("")
    assert current_commit(installed) == {"id": "0123abc", "dirty": dirty}
    monkeypatch.setenv("PATH", "")
    assert current_commit(checkout / "arcsm") == {"id": "0123abc", "dirty": dirty}


def test_an_unknown_commit_is_refused(
    arguments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("ARCSM_COMMIT", raising=False)
    del arguments["commit"]
    with pytest.raises(InputError, match="set ARCSM_COMMIT"):
        write_result(tmp_path / "a.json", **arguments)
    assert not (tmp_path / "a.json").exists()


# The command


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (
            [str(REPOSITORY / "experiments" / "moons.py"), "--n", "3"],
            "python experiments/moons.py --n 3",
        ),
        (["experiments/moons.py", "two words"], "python experiments/moons.py 'two words'"),
        (["/somewhere/else/moons.py"], "python moons.py"),
        ([str(REPOSITORY / ".venv" / "bin" / "arcsm"), "demo"], "arcsm demo"),
        (
            ["a.py", "--out", str(REPOSITORY / "results" / "a.json")],
            "python a.py --out results/a.json",
        ),
        (["a.py", f"--out={REPOSITORY}/results/a.json"], "python a.py --out=results/a.json"),
        (["a.py", "--out=/somewhere/else/a.json"], "python a.py --out=a.json"),
        (["a.py", "out=/somewhere/else/a=b.json"], "python a.py out=a=b.json"),
        (["-c", "x"], "python -c x"),
        ([""], "python"),
    ],
)
def test_the_command_shows_no_path_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, argv: list[str], command: str
) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    assert current_command() == command
    results._check_command(command, "command")


def test_the_command_of_a_module_and_the_whole_record_show_no_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trial.py").write_text(
        "import sys\n"
        "from arcsm.results import Metric, write_result\n"
        "given = dict(experiment='a', metrics=[Metric('a', 1, '1', 1)], seeds=[], settings={})\n"
        "write_result(sys.argv[1], seconds=0, **given)\n"
    )
    monkeypatch.setenv("ARCSM_COMMIT", "0123abc")
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    out = tmp_path / "out.json"
    for start, shown in ((["-m", "trial"], "-m trial"), ([str(tmp_path / "trial.py")], "trial.py")):
        subprocess.run([sys.executable, *start, str(out)], cwd=tmp_path, check=True, timeout=120)
        assert read_result(out)["command"] == f"python {shown} out.json"
        for place in (tmp_path, REPOSITORY, Path.home(), Path(sys.prefix)):
            assert str(place) not in out.read_text() or place == Path("/")
        assert shlex.split(read_result(out)["command"])
