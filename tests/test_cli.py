import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import arcsm
from arcsm import cli
from arcsm.errors import InputError


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli.app, list(arguments), prog_name="arcsm")


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Put a recorder in the place of the demonstration; its entries are the calls."""
    calls: list[Any] = []
    monkeypatch.setattr("arcsm.demo.run_demo", lambda *arguments: calls.append(arguments))
    return calls


def test_version() -> None:
    result = run("--version")
    assert result.exit_code == 0 and result.stdout == f"arcsm {arcsm.__version__}\n"


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_help_names_the_commands(arguments: tuple[str, ...]) -> None:
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


def test_demo_passes_its_options_on(training: list[Any], tmp_path: Path) -> None:
    from arcsm.demo import Settings

    page = tmp_path / "new" / "page.html"
    result = run("demo", "-o", str(page), "--seed", "7", "--toy", "rings", "--quick")
    assert result.exit_code == 0, result.output
    assert training == [(page, Settings(toy="rings", seed=7, quick=True))]
    assert list(tmp_path.iterdir()) == []  # looking whether it can be written leaves nothing


@pytest.mark.parametrize("arguments", [("--seed", "-1"), ("--seed", "x"), ("--nonsense",)])
def test_demo_refuses_options_that_do_not_parse(
    training: list[Any], arguments: tuple[str, ...]
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
    training: list[Any], tmp_path: Path, which: int
) -> None:
    path, reason = list(bad_outputs(tmp_path).items())[which]
    result = run("demo", "-o", path)
    assert result.exit_code == 2 and training == []
    assert result.stderr.startswith("arcsm: expected ") and result.stderr.count("\n") == 1
    assert any(word in result.stderr for word in reason.split("|"))
    assert (tmp_path / "file").read_text() == "kept"


def test_demo_refuses_an_unknown_toy_in_one_line(tmp_path: Path) -> None:
    result = run("demo", "--toy", "donut", "-o", str(tmp_path / "page.html"))
    assert result.exit_code == 2
    assert "two-spirals" in result.stderr and "'donut'" in result.stderr
    assert result.stderr.count("\n") == 1 and "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InputError("expected one\nthing, got  two"), 2, "arcsm: expected one thing, got two\n"),
        (KeyboardInterrupt(), 130, "arcsm: interrupted\n"),
    ],
)
def test_errors_of_a_command_become_one_line_and_a_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: BaseException, code: int, line: str
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr("arcsm.demo.run_demo", fail)
    result = run("demo", "-o", str(tmp_path / "page.html"))
    assert (result.exit_code, result.stderr) == (code, line)


def test_a_bug_is_not_dressed_up_as_a_mistake_of_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
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
    )
    assert program.stderr is not None
    with pytest.raises(subprocess.TimeoutExpired):
        program.wait(timeout=12)  # well into the training, which takes a minute
    program.send_signal(signal.SIGINT)
    _, errors = program.communicate(timeout=60)
    assert program.returncode == 130
    assert errors.splitlines()[-1] == "arcsm: interrupted" and "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []
