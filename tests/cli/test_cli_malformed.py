"""Malformed tables, files and command lines: a sentence and code 2, or a whole output and code 0.

ARCSM_EXPLORE=20 makes twenty times as many examples, other ones each time:

    ARCSM_EXPLORE=20 pytest tests/cli/test_cli_malformed.py
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from arcsm import cli
from arcsm.errors import InputError

from .malformed import corpus
from .malformed.damage import damaged
from .malformed.judge import judge
from .malformed.lines import LINES, Case, Line, spoiled
from .malformed.things import File, Told

pytestmark = pytest.mark.slow  # models have to be trained first
EXPLORE = int(os.environ.get("ARCSM_EXPLORE", "0"))


@pytest.fixture(scope="module", autouse=True)
def nothing_takes_long() -> Iterator[None]:
    """Networks of few units; experiments and the demonstration are not run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("arcsm.images.networks._HIDDEN", 16)
        corpus.results()
        patch.setattr("arcsm.experiments.runner._run_pieces", lambda *_: None)
        patch.setattr("arcsm.demo.run_demo", lambda *_: None)
        patch.delenv("ARCSM_DATA", raising=False)
        if "app" in LINES:
            patch.setattr("arcsm.app.start_server", no_server)
        yield


def no_server(*_: object, **options: object) -> None:
    raise InputError(f"expected a port that is free, got {options['port']}; choose another one")


@pytest.mark.parametrize("name", LINES)
def test_what_is_malformed_is_refused_in_a_sentence_and_leaves_no_trace(name: str) -> None:
    line = LINES[name]

    @settings(
        max_examples=line.examples * max(1, EXPLORE),
        derandomize=not EXPLORE,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(spoiled(line))
    def property_holds(case: Case) -> None:
        judge(line, case)

    property_holds()


def test_there_are_500_examples_and_all_commands_have_some() -> None:
    assert sum(line.examples for line in LINES.values()) >= 500
    commands = {command.name for command in cli.app.registered_commands}
    assert {line.command for line in LINES.values()} == commands


@pytest.mark.parametrize("name", LINES)
def test_a_line_that_is_not_spoiled_ends_well(name: str) -> None:
    """Else the examples would be refused for what is the same in all of them."""
    line = LINES[name]
    # A model of two steps is not sound.
    assert judge(line, Case(None, None)) == max(set(line.codes) - {2}, default=2)


# The judge itself


def test_the_judge_sees_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("arcsm.cli.sources.Source.read", fail)
    with pytest.raises(AssertionError, match="a traceback"):
        judge(LINES["train"], Case(None, None))


def test_the_judge_sees_what_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def litter(*_: object) -> None:
        Path("half").write_text("")
        raise InputError("expected one thing, got another; correct it")

    monkeypatch.setattr("arcsm.cli.sources.Source.read", litter)
    with pytest.raises(AssertionError, match="left \\['half'\\]"):
        judge(LINES["train"], Case(None, None))


def test_the_judge_sees_a_sentence_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def mumble(*_: object) -> None:
        raise InputError("no")

    monkeypatch.setattr("arcsm.cli.sources.Source.read", mumble)
    with pytest.raises(AssertionError, match="arcsm: no"):
        judge(LINES["train"], Case(None, None))


def test_the_judge_sees_an_output_that_is_not_whole() -> None:
    line = Line("sample {anyone} -n 3 -o {rows}", 1, _never_whole, "rows")
    with pytest.raises(AssertionError, match="not whole"):
        judge(line, Case(None, None))


def _never_whole(path: object) -> None:
    raise AssertionError("not whole")


@settings(max_examples=20, derandomize=True, database=None)
@given(damaged(b"0123456789" * 30))
def test_damage_is_bytes(content: bytes) -> None:
    assert isinstance(content, bytes) and len(content) <= 600


# What the examples have found, each once


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("train", Case("table", File(".csv", b"a,b\n1," + b"9" * 5000 + b"\n2,3\n"))),
        ("train", Case("table", Told("\udcff.csv"), ("--json",))),
        ("score", Case("rows", Told("\udcff.csv"), ("--json",))),
        ("sample", Case(None, None, ("-n", "9" * 30))),
        ("sample", Case(None, None, ("--seed",))),
    ],
    ids=["digits", "name of data", "name of output", "too many", "no value"],
)
def test_once_found(name: str, case: Case) -> None:
    assert judge(LINES[name], case) in (0, 2)
