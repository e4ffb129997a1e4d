"""What the buttons do, without a browser."""

import re
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from test_app_ink import address

from arcsm.app import handlers, server
from arcsm.app.digits import DigitSizes, Restored
from arcsm.app.learning import LearningSizes
from arcsm.app.tables import TableSizes
from arcsm.data import write_table
from arcsm.errors import InputError
from arcsm.images import ImageModel, ImageSettings
from arcsm.model import ARCSM
from arcsm.tasks.images import Gaussian, SaltAndPepper

gr = pytest.importorskip("gradio", reason="the page needs the extra app")

LEARNING = LearningSizes(
    rows=200, steps=3, batch_size=32, hidden=(8,), grid=12, shown=20, pause=0.0
)
TABLES = TableSizes(seconds=20, max_steps=2, ensemble=1, odd=2, samples=20)


def shown(handler: Iterator[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return all that a handler shows; what is left as it was is None."""
    return [tuple(None if part == gr.skip() else part for part in parts) for parts in handler]


def told(handler: Iterator[tuple[Any, ...]]) -> str:
    """Return the sentence with which a handler refuses its input."""
    # Outside of a page a warning of Gradio's is one of Python's.
    with pytest.warns(UserWarning, match="expected"):
        last = shown(handler)[-1]
    assert 'class="arcsm-status bad"' in last[0] and all(part is None for part in last[1:])
    return re.sub("<[^>]*>", "", last[0])


def drawing() -> str:
    picture = np.zeros((40, 40, 4), np.uint8)
    picture[10:30, 5:35] = 255
    return address(picture)


def test_a_drawing_is_learned_with_pictures_on_the_way() -> None:
    parts = shown(handlers.learn_points(LEARNING, Event(), handlers.MY_DRAWING, drawing()))
    assert parts[1][0] == '<div class="arcsm-status">Learning …<div class="arcsm-bar">' + (
        '<i style="width:0%"></i></div></div>'
    )
    assert ["step 1 of 3" in parts[2][0], "step 2 of 3" in parts[3][0]] == [True, True]
    assert "Learned in 3 steps" in parts[-1][0] and len(parts) == 5
    assert [part[1].count("<img") for part in parts[1:]] == [1, 3, 3, 3]
    again = shown(handlers.learn_points(LEARNING, Event(), handlers.MY_DRAWING, drawing()))
    assert again[-1][1] == parts[-1][1]  # the same drawing, the same picture


def test_a_toy_is_learned_whatever_is_on_the_pad() -> None:
    assert "Learned in" in shown(handlers.learn_points(LEARNING, Event(), "rings", None))[-1][0]


def test_what_was_told_to_stop_says_so_and_keeps_the_picture() -> None:
    stop = Event()
    work = handlers.learn_points(LEARNING, stop, "rings", None)
    assert "Learning" in [next(work) for _ in range(2)][-1][0]
    stop.set()
    (last,) = shown(work)
    assert "Stopped." in last[0] and last[1] is None


def test_an_empty_pad_is_a_sentence() -> None:
    sentence = told(handlers.learn_points(LEARNING, Event(), handlers.MY_DRAWING, None))
    assert sentence.startswith("Expected a drawing, got an empty pad;")


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(handlers, "learn", broken)
    with pytest.raises(ZeroDivisionError):
        shown(handlers.learn_points(LEARNING, Event(), "rings", None))


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    path = tmp_path / "people.csv"
    names = np.array([f"p{i}" for i in range(50)], dtype=object)
    write_table(path, {"name": names, "x": random.normal(size=50), "n": random.integers(0, 9, 50)})
    return path


def test_a_file_is_looked_at_and_identifiers_are_not_chosen(csv: Path) -> None:
    status, source, columns, view = handlers.read_table_of(str(csv), None)
    assert status == "" and source.table.rows == 50
    assert columns["choices"] == ["name", "x", "n"] and columns["value"] == ["x", "n"]
    assert columns["visible"] is True
    assert "people.csv: 50 rows, 3 columns" in view and "left out" in view


def test_nothing_and_a_bad_file_leave_no_table(tmp_path: Path) -> None:
    assert handlers.read_table_of(None, None)[:2] == ("", None)
    (tmp_path / "bad.csv").write_bytes(b"\x00\x01")
    with pytest.warns(UserWarning, match=r"bad\.csv"):
        status, source, columns, _ = handlers.read_table_of(str(tmp_path / "bad.csv"), None)
    assert "bad.csv" in status and source is None and columns["visible"] is False


def test_a_warning_does_not_run_what_a_file_says(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("<b>evil</b>,<b>evil</b>\n" + "1,2\n" * 30)
    with pytest.warns(UserWarning) as warned:
        status = handlers.read_table_of(str(path), None)[0]
    assert "&lt;b&gt;evil" in str(warned[0].message) and "<b>" not in str(warned[0].message)
    assert "&lt;b&gt;evil" in status and "<b>" not in status


def test_a_table_is_learned_part_by_part(csv: Path) -> None:
    source = handlers.read_table_of(str(csv), None)[1]
    parts = shown(handlers.learn_table(TABLES, Event(), source, ["x", "n"]))
    filled_in = [tuple(bool(part) for part in line[1:]) for line in parts]
    assert (True, False, True, False) in filled_in  # columns and density
    assert (False, False, False, True) in filled_in  # odd rows
    assert parts[0][2:] == ("", "", "")  # what was there from another table goes
    assert "Step 1 of 2" in parts[1][0] and "Done: people.csv." in parts[-1][0]


@pytest.mark.parametrize(
    ("names", "message"),
    [([], "expected a column to learn"), (["name"], "identifier"), (["gone"], "gone")],
)
def test_columns_that_cannot_be_learned_are_a_sentence(
    csv: Path, names: list[str], message: str
) -> None:
    source = handlers.read_table_of(str(csv), None)[1]
    assert message.lower() in told(handlers.learn_table(TABLES, Event(), source, names)).lower()


def test_no_table_is_a_sentence() -> None:
    assert "drop a CSV file" in told(handlers.learn_table(TABLES, Event(), None, []))


def test_the_chosen_digit_and_noise_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def restore(model: Any, digit: Any, noise: Any, sizes: Any, report: Any) -> Restored:
        asked.append((model, digit, noise))
        part = Restored(digit, digit)
        for _ in range(2):
            report(part)
        return part

    monkeypatch.setattr(handlers, "restore", restore)
    model: Any = object()
    examples = np.arange(2, dtype=np.uint8)[:, None, None, None] + np.zeros((28, 28, 1), np.uint8)

    def clean(*told: Any) -> list[tuple[Any, ...]]:
        return shown(handlers.clean_digit(model, examples, DigitSizes(), Event(), *told))

    parts = clean(handlers.PICKED, 1.0, None, handlers.GAUSSIAN, 0.5, 0.2)
    assert [re.sub("<[^>]*>", "", part[0]) for part in parts] == [
        "Reading the digit …",
        "Cleaning …",
        "Drawing completions …",
        "Done.",
    ]
    clean(handlers.DRAWN, 1.0, drawing(), handlers.SALT_AND_PEPPER, 0.5, 0.2)
    assert asked[0][0] is model and (asked[0][1] == 1).all() and asked[0][2] == Gaussian(0.5)
    assert asked[1][1].max() == 255 and asked[1][2] == SaltAndPepper(0.2)


def test_a_taken_port_and_an_unknown_host_are_told() -> None:
    import socket

    model = ImageModel(ARCSM.made(784, hidden=(4,), seed=0), (28, 28, 1), ImageSettings())
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} of '127.0.0.1', got: .*choose another"):
            server.start_server(model, port=port)
    with pytest.raises(InputError, match="choose another --port or --host"):
        server.start_server(model, host="no such host")
