import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import arcsm
from arcsm.errors import InputError

Run = Callable[..., Any]


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Put a recorder in the place of the demonstration; its entries are the calls."""
    calls: list[Any] = []
    monkeypatch.setattr("arcsm.demo.run_demo", lambda *arguments: calls.append(arguments))
    return calls


def test_version(run: Run) -> None:
    result = run("--version")
    assert result.exit_code == 0 and result.stdout == f"arcsm {arcsm.__version__}\n"


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_help_names_the_commands(run: Run, arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code == 0
    assert "Usage: arcsm" in result.stdout and "demo" in result.stdout


def test_help_does_not_wait_for_torch() -> None:
    code = "import sys, arcsm.cli; sys.exit(any(m in sys.modules for m in ('torch', 'sklearn')))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_every_public_name_exists_and_is_found_where_it_is_declared() -> None:
    declared = [name for names in arcsm._HOMES.values() for name in names]
    assert sorted(declared) == sorted(arcsm.__all__)
    assert set(arcsm.__all__) <= set(dir(arcsm))
    for name in arcsm.__all__:
        assert getattr(arcsm, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = arcsm.nonsense


COMMANDS = ("train", "sample", "score", "check", "demo", "reproduce", "report")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_teaches_by_two_examples(run: Run, command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    _, _, examples = result.stdout.partition("Examples:")
    assert examples.count(f" arcsm {command}") >= 2 and result.stdout == run(command, "-h").stdout


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["tarin"], ["'tarin'", "Did you mean 'train'?", "(see arcsm --help)"]),
        (["--nonsense"], ["--nonsense", "(see arcsm --help)"]),
        (["train", "--nonsense"], ["--nonsense", "(see arcsm train --help)"]),
        (["train", "x.csv"], ["Missing option '--output' / '-o'", "(see arcsm train --help)"]),
        (["score", "m"], ["DATA", "(see arcsm score --help)"]),
        (["sample", "m", "-n", "0"], ["'--rows' / '-n'", "1"]),
        (["sample", "m", "-n", "many"], ["'--rows' / '-n'", "integer"]),
        (["sample", "m", "--seed", "-1"], ["'--seed'", "0"]),
    ],
)
def test_a_command_line_typed_wrong_is_one_line(
    fails: Run, words: list[str], parts: list[str]
) -> None:
    told = fails(*words)
    assert all(part in told for part in parts), told


def test_demo_passes_its_options_on(run: Run, training: list[Any], tmp_path: Path) -> None:
    from arcsm.demo import Settings

    page = tmp_path / "new" / "page.html"
    result = run("demo", "-o", str(page), "--seed", "7", "--toy", "rings", "--quick")
    assert result.exit_code == 0, result.output
    assert training == [(page, Settings(toy="rings", seed=7, quick=True))]
    assert list(tmp_path.iterdir()) == []  # looking whether it can be written leaves nothing


@pytest.mark.parametrize("arguments", [("--seed", "-1"), ("--seed", "x"), ("--nonsense",)])
def test_demo_refuses_options_that_do_not_parse(
    run: Run, training: list[Any], arguments: tuple[str, ...]
) -> None:
    assert run("demo", *arguments).exit_code == 2
    assert training == []


def bad_outputs(directory: Path) -> dict[str, str]:
    (directory / "file").write_text("kept")
    os.mkfifo(directory / "pipe")
    return {
        str(directory): "directory",
        str(directory / "file" / "page.html"): "cannot|can be written",
        str(directory / "pipe"): "pipe",
        "/proc/page.html": "can be written",
    }


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs a directory nobody can write to")
@pytest.mark.parametrize("which", range(4))
def test_demo_refuses_an_output_it_cannot_write_before_training(
    run: Run, training: list[Any], tmp_path: Path, which: int
) -> None:
    path, reason = list(bad_outputs(tmp_path).items())[which]
    result = run("demo", "-o", path)
    assert result.exit_code == 2 and training == []
    assert result.stderr.startswith("arcsm: expected ") and result.stderr.count("\n") == 1
    assert any(word in result.stderr for word in reason.split("|"))
    assert (tmp_path / "file").read_text() == "kept"


def test_demo_refuses_an_unknown_toy_in_one_line(run: Run, tmp_path: Path) -> None:
    result = run("demo", "--toy", "donut", "-o", str(tmp_path / "page.html"))
    assert result.exit_code == 2
    assert "two-spirals" in result.stderr and "'donut'" in result.stderr
    assert result.stderr.count("\n") == 1 and "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InputError("expected one\nthing, got  two"), 2, "arcsm: expected one thing, got two\n"),
        (KeyboardInterrupt(), 130, "arcsm: interrupted\n"),
        (
            OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "page.html"),
            2,
            "arcsm: could not read or write 'page.html': No space left on device\n",
        ),
        (BrokenPipeError(), 141, ""),
    ],
)
def test_errors_of_a_command_become_one_line_and_a_code(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    error: BaseException,
    code: int,
    line: str,
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr("arcsm.demo.run_demo", fail)
    result = run("demo", "-o", str(tmp_path / "page.html"))
    assert (result.exit_code, result.stderr) == (code, line)


def test_a_bug_is_not_dressed_up_as_a_mistake_of_the_user(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("arcsm.demo.run_demo", fail)
    result = run("demo", "-o", str(tmp_path / "page.html"))
    assert isinstance(result.exception, ZeroDivisionError)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_interrupt_ends_the_program_with_130_and_no_file(tmp_path: Path) -> None:
    program = subprocess.Popen(
        [sys.executable, "-m", "arcsm", "demo", "-o", "page.html"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        # What a shell starts in its background, these tests perhaps, begins with Ctrl-C ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert program.stderr is not None
    with pytest.raises(subprocess.TimeoutExpired):
        program.wait(timeout=12)  # well into the training, which takes a minute
    program.send_signal(signal.SIGINT)
    _, errors = program.communicate(timeout=60)
    assert program.returncode == 130
    assert errors.splitlines()[-1] == "arcsm: interrupted" and "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []
