"""What was found, as HTML: complete, well formed, and with the user's text escaped."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from arcsm.app import views
from arcsm.app.digits import Restored
from arcsm.app.learning import Look
from arcsm.app.tables import ColumnNote, Filled, Learned, OddRows, Source
from arcsm.data import Table
from arcsm.train import History

EVIL = "<img src=x onerror=alert(1)>&"


class Reader(HTMLParser):
    """Tags that are open, images with what they say, and the text."""

    def __init__(self, html: str):
        super().__init__()
        self.open: list[str] = []
        self.alt: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == [], html[:300]

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        told = dict(attributes)
        assert not any(name.startswith("on") for name in told)
        if tag == "img":
            assert str(told["src"]).startswith("data:image/png;base64,")
            self.alt.append(str(told["alt"]))
        else:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + " "


def text_of(html: str) -> str:
    return re.sub(r"\s+", " ", Reader(html).text).strip()


def test_lines_escape_what_they_say() -> None:
    for line in (views.note, views.problem, views.empty, views.status):
        assert EVIL in text_of(line(EVIL))
    assert text_of(views.problem("expected a, got b; do c")) == "Expected a, got b; do c."
    assert "width:40%" in views.status("half", 0.4) and "width:100%" in views.status("x", 7.0)


def test_points_alone_then_with_what_was_learned() -> None:
    points = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
    assert len(Reader(views.points_view(points)).alt) == 1
    history = History([(1, 2.0), (2, 1.0)], [(1, 2.0), (2, 1.5)], 2, 2, 0.1)
    samples = np.array([[0.0, 0.0], [9.0, 9.0]])  # the second is far beyond the picture
    look = Look(2, 5, history, (-1, 1, -1, 1), np.zeros((8, 8)), samples, 0.1)
    page = Reader(views.points_view(points, look))
    assert len(page.alt) == 3 and "Loss" in page.text


def test_columns_that_cannot_be_learned_are_marked_with_the_reason() -> None:
    notes = [ColumnNote(EVIL, "real", "because", 0), ColumnNote("id", None, "it is one", 3)]
    table = Table({EVIL: np.arange(3.0), "id": np.array(["a", "b", "c"], dtype=object)})
    text = text_of(views.source_view(Source(EVIL, table, 10, np.arange(3)), notes))
    assert f"{EVIL}: 3 of 10 rows, drawn at random, 2 columns." in text
    assert "id left out It is one. 3" in text
    assert "empty cells" not in text_of(views.columns_view(notes[:1]))


def table() -> Table:
    random = np.random.default_rng(0)
    text = np.array([EVIL, "b"], dtype=object)[random.integers(0, 2, 40)]
    return Table({EVIL: random.normal(size=40), "n": random.integers(0, 9, 40), "t": text})


def test_the_density_is_told_with_its_error() -> None:
    notes = [ColumnNote(name, "real", "", 0) for name in table().names]
    held_out = np.array([-1.0, -2.0, -3.0, -np.inf])
    page = Reader(
        views.learned_view(Learned(notes, held_out, 36, 500, 1.4, table(), table().to_pandas()))
    )
    # The deviation of three numbers one apart is 1, and its root 1/√3.
    assert "−2.00 ± 0.58 nats" in page.text and "of 3 rows" in page.text
    assert "1 held-out rows cannot be" in page.text and len(page.alt) == 1


def test_odd_rows_have_reasons() -> None:
    some = table().take([0, 1])
    surprise = np.array([[4.0, 0.2, 2.0], [0.5, 0.4, -1.0]])
    odd = OddRows([6, 9], some, surprise, np.array([True, False]), 3, 40)
    page = Reader(views.odd_view(odd))
    text = re.sub(r"\s+", " ", page.text)
    assert f"row 7 {EVIL} = {some[EVIL][0]:.4g} (4.0 nats); t = {some['t'][0]} (2.0 nats)" in text
    assert "row 10 all columns together" in text
    assert "3 of 40 rows lie beyond" in text and len(page.alt) == 1
    assert "left out" not in text
    none = OddRows([6], some.take([0]), surprise[:1], np.array([False]), 0, 40, left_out=12)
    assert "No row lies beyond" in text_of(views.odd_view(none))
    assert "12 rows with gaps were left out here" in text_of(views.odd_view(none))


def test_filled_cells_are_marked() -> None:
    some = Table({EVIL: np.array([1986.0, 2.5]), "t": np.array([EVIL, "b"], dtype=object)})
    filled = Filled([3, 5], some, np.array([[True, False], [False, True]]), 7)
    html = views.filled_view(filled)
    assert re.findall(r'filled">([^<]*)<', html) == ["1986", "b"]
    assert text_of(html).startswith(f"Gaps row {EVIL} t 4 1986 {EVIL} 6 2.5 b 7 empty cells")


@pytest.mark.parametrize(("parts", "pictures"), [(0, 2), (1, 3), (2, 4)])
def test_a_digit_is_shown_as_far_as_it_is(parts: int, pictures: int) -> None:
    digit = np.zeros((28, 28, 1), np.uint8)
    noisy = np.full_like(digit, 255)
    cleaned = digit if parts > 0 else None
    completed = digit[None].repeat(3, 0) if parts > 1 else None
    page = Reader(views.restored_view(Restored(digit, noisy, cleaned, completed)))
    assert len(page.alt) == pictures
    if parts:
        assert "0.0 dB" in page.text and "∞" in page.text
