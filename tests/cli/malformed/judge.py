"""Running one command line in a directory of its own, and what must hold of how it ends."""

import contextlib
import os
import re
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from arcsm import cli

from .corpus import files_below
from .lines import SLOTS, Case, Line

_SENTENCE = re.compile(
    r"arcsm: (?:.*expected .*\bgot\b.*|could not .+|.*\(see arcsm .*--help\))\n", re.DOTALL
)


@contextlib.contextmanager
def within(directory: str) -> Iterator[None]:
    """Stand in a directory for the time of the block."""
    before = os.getcwd()
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(before)


def judge(line: Line, case: Case) -> int:
    """Run a command line; fail unless it ended well, or with a sentence and without a trace."""
    with tempfile.TemporaryDirectory() as directory, within(directory):
        place = Path(directory)
        told: dict[str, str] = {}
        for slot in line.slots:
            odd = case.odd if slot == case.slot else None
            word = (odd or SLOTS[slot]()[0]).put(place, slot)
            told[slot] = word.replace("{source}", next(iter(told.values()), "source"))
        words = [told[w[1:-1]] if w.startswith("{") else w for w in line.words.split()]
        words += case.further
        before = files_below(place)
        result = CliRunner().invoke(cli.app, words, prog_name="arcsm")
        after = files_below(place)
        _check_end(line, words, result)
        changed = {
            name for name in after.keys() | before.keys() if after.get(name) != before.get(name)
        }
        if result.exit_code == 2:
            assert not changed, f"failed and left {sorted(changed)}: {words} {result.stderr}"
        elif result.exit_code == 0:
            left = [name for name in after if ".partial" in name and name not in before]
            assert not left, f"left {left}: {words}"
            if line.output is not None and line.out is not None and "--help" not in words:
                output = _output(words, told[line.out])
                if output is not None:
                    line.output(place / output)
        return int(result.exit_code)


def _check_end(line: Line, words: list[str], result: Any) -> None:
    error = result.exception
    if error is not None and not isinstance(error, SystemExit):
        trace = "".join(traceback.format_exception(error))
        raise AssertionError(f"a traceback for {_short(words)}\n{trace}") from error
    assert result.exit_code in line.codes, f"{result.exit_code}: {_short(words)} {result.output}"
    if result.exit_code == 2:
        said = result.stderr
        assert said.count("\n") == 1 and _SENTENCE.fullmatch(said), f"{_short(words)}: {said!r}"
        assert len(said) < 20_000, f"a sentence of {len(said)} characters: {_short(words)}"


def _output(words: list[str], told: str) -> str | None:
    """Return where the output went: options come last, and the last one counts."""
    for option, value in zip(words[::-1][1:], words[::-1], strict=False):
        if option in ("-o", "--output"):
            told = value
            break
    return None if told == "-" else told


def _short(words: list[str]) -> str:
    return " ".join(word if len(word) < 200 else f"{word[:200]}…" for word in words)
