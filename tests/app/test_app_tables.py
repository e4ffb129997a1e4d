"""Tables that somebody brings: read, looked at, learned."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arcsm.app import tables
from arcsm.app.tables import (
    EXAMPLES,
    LEAST_ROWS,
    MADE_UP,
    Filled,
    Learned,
    OddRows,
    Source,
    Stage,
    TableSizes,
    analyse,
    example,
    look_at,
    read_source,
)
from arcsm.data import Table, write_table
from arcsm.errors import InputError

TINY = TableSizes(seconds=20, max_steps=2, ensemble=1, odd=2, samples=30, shown_gaps=3)


def people(rows: int = 60, gaps: bool = False) -> Table:
    random = np.random.default_rng(0)
    age = random.integers(18, 80, rows).astype(np.float64)
    city = np.array(["Bern", "Chur"], dtype=object)[random.integers(0, 2, rows)]
    height = random.normal(170, 10, rows)
    height[5] = 900.0  # from another world
    if gaps:
        age[[3, 9]], city[4] = np.nan, None
    return Table({"age": age, "height": height, "city": city})


def source_of(table: Table) -> Source:
    return Source("people.csv", table, table.rows, np.arange(table.rows) + 100)


def test_a_file_is_read_with_its_name_and_all_rows(tmp_path: Path) -> None:
    write_table(tmp_path / "people.csv", people())
    source = read_source(tmp_path / "people.csv")
    assert (source.name, source.rows, source.table.names) == (
        "people.csv",
        60,
        ("age", "height", "city"),
    )
    assert source.places.tolist() == list(range(60))


def test_of_too_many_rows_some_are_drawn_and_their_places_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "MOST_ROWS", 30)
    write_table(tmp_path / "long.csv", {"n": np.arange(500), "one": np.ones(500)})
    source = read_source(tmp_path / "long.csv")
    assert source.table.rows == 30 and source.rows == 500
    assert np.array_equal(source.table["n"], source.places)
    assert source.places.max() > 100  # not the first ones
    again = read_source(tmp_path / "long.csv")
    assert np.array_equal(again.places, source.places)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("people.xlsx", b"PK", "ends in .csv or .tsv, got 'people.xlsx'; save the table as CSV"),
        ("empty.csv", b"", "empty.csv"),
        ("few.csv", b"a,b\n" + b"1,2\n" * (LEAST_ROWS - 1), f"at least {LEAST_ROWS} rows, got"),
        ("wide.csv", b",".join(b"c%d" % i for i in range(40)) + b"\n", "wide.csv"),
        ("ragged.csv", b"a,b\n1,2\n1,2,3\n", "ragged.csv"),
        ("latin.csv", "a,b\nZürich,1\n".encode("latin-1"), "latin.csv"),
    ],
)
def test_a_bad_file_is_told_in_a_sentence(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as told:
        read_source(tmp_path / name)
    assert message in str(told.value) and "\n" not in str(told.value)
    assert str(tmp_path) not in str(told.value)  # the user knows the name, not where it went


def test_a_wide_table_and_a_large_file_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "wide.csv"
    write_table(path, {f"c{i}": np.arange(30.0) for i in range(31)})
    with pytest.raises(InputError, match="at most 30 columns, got 31"):
        read_source(path)
    monkeypatch.setattr(tables, "MOST_BYTES", 1_000_000)
    path.write_bytes(b"a\n" + b"1.5\n" * 400_000)
    with pytest.raises(InputError, match=r"at most 1 MB, got 1\.6 MB"):
        read_source(path)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_can_be_learned(name: str) -> None:
    source = example(name)
    assert source.table.rows >= 100
    assert all(note.kind is not None for note in look_at(source.table))
    gaps = sum(note.gaps for note in look_at(source.table))
    assert (gaps > 0) == (name == MADE_UP)


def test_columns_are_looked_at_by_the_cells_that_are_there() -> None:
    rows = 60
    table = Table(
        {
            **people(rows, gaps=True).columns,
            "id": np.array([f"p{i}" for i in range(rows)], dtype=object),
            "same": np.full(rows, 7),
            "nothing": np.full(rows, np.nan),
        }
    )
    notes = {note.name: note for note in look_at(table)}
    assert {name: note.kind for name, note in notes.items()} == {
        "age": "integer",
        "height": "real",
        "city": "category",
        "id": None,
        "same": "constant",
        "nothing": None,
    }
    assert [notes[name].gaps for name in ("age", "height", "city", "nothing")] == [2, 0, 1, rows]
    assert "looks like an identifier" in notes["id"].reason


def found_in(table: Table, names: tuple[str, ...] | None = None) -> list[Any]:
    found: list[Any] = []
    analyse(source_of(table), names or table.names, TINY, found.append)
    return found


def test_a_complete_table_has_a_density_and_odd_rows() -> None:
    table = people()
    found = found_in(table)
    stages = [part for part in found if isinstance(part, Stage)]
    assert stages[0] == Stage("Step 1 of 2: learning the density", 0.0)
    assert stages[-1].words == "Step 2 of 2: looking for odd rows" and stages[-1].done == 1.0
    learned, odd = (part for part in found if not isinstance(part, Stage))
    assert isinstance(learned, Learned) and isinstance(odd, OddRows)
    assert learned.trained + len(learned.held_out) == 60 and len(learned.held_out) == 9
    assert learned.samples.shape == (30, 3)
    assert [note.name for note in learned.columns] == ["age", "height", "city"]
    # Row 5 is from another world, and the place is that in the file.
    assert odd.rows[0] == 105 and odd.table["height"][0] == 900.0
    assert odd.surprise.shape == (2, 3) and odd.surprise[0].argmax() == 1
    assert odd.of == 60 and odd.beyond >= odd.outlier.sum()


def test_gaps_are_filled_and_the_complete_rows_learned() -> None:
    table = people(gaps=True)
    table["city"][3] = "Zug"  # a row whose age is missing
    found = [part for part in found_in(table) if not isinstance(part, Stage)]
    filled, learned, odd = found
    assert isinstance(filled, Filled)
    assert filled.cells == 3 and filled.rows == [103, 104, 109]
    assert np.array_equal(
        filled.was_empty, [[True, False, False], [False, False, True], [True, False, False]]
    )
    assert np.isfinite(filled.table["age"]).all() and filled.table["city"][1] in ("Bern", "Chur")
    assert np.array_equal(filled.table["height"], table["height"][[3, 4, 9]])
    assert learned.data.rows == 57
    assert [note.gaps for note in learned.columns] == [2, 0, 1]
    assert learned.columns[2].reason == "3 values"
    assert odd.rows[0] == 105  # though rows before it were left out
    assert odd.left_out == 3


def test_with_too_few_complete_rows_the_filled_table_is_learned() -> None:
    table = people()
    table["age"][10:] = np.nan
    *_, learned, odd = (part for part in found_in(table) if not isinstance(part, Stage))
    assert learned.data.rows == 60 and odd.of == 60
    assert np.isfinite(learned.data["age"]).all()


def test_what_cannot_be_learned_is_told() -> None:
    with pytest.raises(InputError, match="expected a column to learn, got none"):
        analyse(source_of(people()), [], TINY, lambda part: None)
    same = Table({"one": np.ones(40), "two": np.full(40, 2)})
    with pytest.raises(InputError, match="constant"):
        found_in(same)
