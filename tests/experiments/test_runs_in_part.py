"""Runs in part: what their records tell, what others do meanwhile, and what is begun anew."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from counting import Counter, Heard, go

from arcsm.errors import InputError
from arcsm.experiments import Store
from arcsm.experiments.experiment import Piece, Place, Raw, Settings
from arcsm.files import write_json
from arcsm.progress import Reporter
from arcsm.results import Metric, read_result


def test_some_pieces_have_a_record_that_names_the_others(folder: Path) -> None:
    counter = Counter()
    counter.experiment = dataclasses.replace(counter.experiment, tells_of_some=True)
    path, figure = folder / "counting-smoke.json", folder / "counting-smoke/squares.png"
    told = go(counter, folder, only=["n=3/x"])
    assert told.left == read_result(path)["settings"]["left"] == ["n=1/x", "n=2/x"]
    assert told.written == [path, figure, figure.with_suffix(".svg")]
    # Begun by the last of them, but told in the order of the run.
    assert go(counter, folder, only=["n=1/x"]).left == ["n=2/x"]
    record, drawn = read_result(path), figure.read_bytes()
    assert record["settings"]["left"] == ["n=2/x"] and record["settings"]["pieces"] == 2
    assert [metric["value"] for metric in record["metrics"]] == [1, 9]
    assert record["settings"]["figures"] == ["squares"]
    assert not (folder / "counting-smoke/curves.json").exists()
    assert go(counter, folder).written[0] == path and counter.asked == [3, 1, 2]
    whole = read_result(path)
    assert "left" not in whole["settings"] and len(whole["metrics"]) == 3
    assert figure.read_bytes() != drawn
    # What is begun anew takes nothing away from what is whole, until it is whole itself.
    drawn, heard = figure.read_bytes(), Heard()
    told = go(counter, folder, max_seconds=1e-9, resume=False, reporter=Reporter(heard))
    assert told == ([], ["n=2/x", "n=3/x"]) and "and stays until these, or all" in heard.text
    assert read_result(path) == whole and figure.read_bytes() == drawn
    assert not go(counter, folder).left and read_result(path)["date"] >= whole["date"]


def test_a_longer_run_is_told_of_before_it_is_whole(folder: Path) -> None:
    counter = Counter()
    path, curves = folder / "counting-smoke.json", folder / "counting-smoke/curves.json"
    assert not go(counter, folder).left
    numbers = {"smoke": {"numbers": (1, 2, 3, 4, 5), "seeds": [0]}}

    def pieces(settings: Settings) -> list[Piece]:  # none depends on how many others there are
        return [Piece(f"n={n}/x", {"n": n}, depends_on={"n": n}) for n in settings["numbers"]]

    short = dataclasses.replace(counter.experiment, pieces=pieces, tells_of_some=True)
    counter.experiment = short
    assert not go(counter, folder, resume=False).left
    whole, kept = read_result(path), curves.read_bytes()
    counter.experiment = dataclasses.replace(short, budgets=numbers)
    # All that the record of the whole run tells of is in that of some pieces.
    assert go(counter, folder, only=["n=5/x"]).written[0] == path
    record = read_result(path)
    assert record["settings"]["left"] == ["n=4/x"]
    assert [metric["value"] for metric in record["metrics"]] == [1, 4, 9, 25]
    assert record["metrics"][:3] == whole["metrics"] and curves.read_bytes() == kept
    assert not go(counter, folder).left and "left" not in read_result(path)["settings"]
    # Of a run without one of the pieces that the record has, nothing is written.
    fewer = {"smoke": {"numbers": (2, 3, 4, 6), "seeds": [0]}}
    counter.experiment = dataclasses.replace(short, budgets=fewer)
    whole = read_result(path)
    told = go(counter, folder, only=["n=2/x"], reporter=Reporter(heard := Heard()))
    assert told.written == [] and read_result(path) == whole
    assert "stays until these, or all of today's, are" in heard.text
    # What is begun anew takes the curves away, but not what the record has.
    longer = {"smoke": {"numbers": (1, 2, 3, 4, 5, 6), "seeds": [0]}}
    counter.experiment = dataclasses.replace(short, budgets=longer)
    assert go(counter, folder, only=["n=6/x"], resume=False).left == []
    counter.experiment = dataclasses.replace(
        short, budgets={"smoke": {"numbers": (1, 2, 3, 4, 5, 6, 7)}}
    )
    assert go(counter, folder, only=["n=5/x"], resume=False).left == ["n=7/x"]
    assert not curves.exists() and read_result(path)["settings"]["left"] == ["n=7/x"]


def test_a_record_whose_pieces_cannot_be_told_stays(folder: Path) -> None:
    counter = Counter()
    counter.experiment = dataclasses.replace(counter.experiment, tells_of_some=True)
    go(counter, folder)
    record = read_result(folder / "counting-smoke.json")
    store = Store(folder, counter.experiment, "smoke")
    finished = store.load()
    assert not store.record_stays(finished)
    assert store.record_stays({name: finished[name] for name in list(finished)[:2]})
    record["settings"]["experiment"] = {"squares_of": [1, 2]}  # as an older release had it
    write_json(store.record, record)
    assert store.record_stays(finished)


def test_pieces_that_become_curves_while_they_are_read_are_not_missed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = Counter()
    go(counter, folder, only=["n=1/x", "n=2/x"])
    store, other = (Store(folder, counter.experiment, "smoke") for _ in range(2))
    read, finished = store._pieces_in, store.load()

    def read_and_fold(path: Path) -> list[dict[str, Any]]:
        found = read(path)
        other.fold(finished)
        return found

    monkeypatch.setattr(store, "_pieces_in", read_and_fold)
    assert store.load() == finished and not list(folder.glob("*/pieces/*"))


def test_the_list_tells_a_run_in_part_from_a_whole_one(folder: Path) -> None:
    counter = Counter()
    store = Store(folder, counter.experiment, "smoke")
    assert store.state() is None
    go(counter, folder, only=["n=1/x"])
    assert store.state() == "1 of 3 pieces"
    go(counter, folder)
    told = store.state()
    assert told is not None and told.startswith("run 2")
    # A record of some pieces whose raw data are all among the curves.
    record = read_result(store.record)
    write_json(store.record, {**record, "settings": {**record["settings"], "left": ["n=4/x"]}})
    assert store.state() == "3 of 3 pieces"


def test_what_another_process_has_finished_meanwhile_is_not_run_again(folder: Path) -> None:
    counter, other = Counter(), Counter()
    run = counter.experiment.run

    def run_beside(settings: Settings, piece: Piece, place: Place) -> Raw:
        if piece.labels["n"] == 1:
            go(other, folder, only=["n=3/x"])
        return run(settings, piece, place)

    counter.experiment = dataclasses.replace(counter.experiment, run=run_beside)
    assert not go(counter, folder).left
    assert counter.asked == [1, 2] and other.asked == [3]
    # What is there before is run anew if that was asked for.
    counter.asked.clear()
    counter.experiment = dataclasses.replace(counter.experiment, run=run)
    assert go(counter, folder, only=["n=1/x"], resume=False).written
    assert go(counter, folder, only=["n=3/x"], resume=False).written
    assert counter.asked == [1, 3]


def test_a_piece_that_is_refused_leaves_a_record_of_the_others(folder: Path) -> None:
    counter = Counter()
    plain = counter.experiment.run

    def run(settings: Settings, piece: Piece, place: Place) -> Raw:
        if piece.labels["n"] == 3:
            raise InputError("expected a table, got none; fetch it")
        return plain(settings, piece, place)

    counter.experiment = dataclasses.replace(counter.experiment, run=run, tells_of_some=True)
    with pytest.raises(InputError, match="expected a table"):
        go(counter, folder)
    record = read_result(folder / "counting-smoke.json")
    assert record["settings"]["left"] == ["n=3/x"] and len(record["metrics"]) == 2


def test_what_pieces_lack_is_refused_before_the_first(folder: Path) -> None:
    counter = Counter()
    asked: list[list[str]] = []

    def check(settings: Settings, pieces: Sequence[Piece]) -> None:
        asked.append([piece.name for piece in pieces])
        if len(pieces) == 2:
            raise InputError("expected a table, got none; fetch it")

    counter.experiment = dataclasses.replace(counter.experiment, check=check)
    assert go(counter, folder, only=["n=2/x"]).left and counter.asked == [2]
    with pytest.raises(InputError, match="expected a table"):
        go(counter, folder)
    assert asked == [["n=2/x"], ["n=1/x", "n=3/x"]] and counter.asked == [2]


def test_a_record_of_some_pieces_has_those_that_others_finished_meanwhile(folder: Path) -> None:
    counter, other = Counter(), Counter()
    plain = counter.run

    def run(settings: Settings, piece: Piece, place: Place) -> Raw:
        go(other, folder, only=["n=1/x"])
        return plain(settings, piece, place)

    counter.experiment = dataclasses.replace(counter.experiment, run=run, tells_of_some=True)
    assert go(counter, folder, only=["n=3/x"]).left == ["n=2/x"]
    record = read_result(folder / "counting-smoke.json")
    assert [metric["value"] for metric in record["metrics"]] == [1, 9]
    assert counter.asked == [3] and other.asked == [1]


def test_a_record_of_some_pieces_does_not_take_the_place_of_a_whole_one(folder: Path) -> None:
    counter, other = Counter(), Counter()
    plain = counter.metrics

    def metrics(settings: Settings, raws: Mapping[str, Raw]) -> list[Metric]:
        # While this one tells of its piece, another one finishes all.
        go(other, folder)
        return plain(settings, raws)

    counter.experiment = dataclasses.replace(
        counter.experiment, metrics=metrics, tells_of_some=True
    )
    other.experiment = dataclasses.replace(other.experiment, tells_of_some=True)
    assert go(counter, folder, only=["n=1/x"]).written == []
    assert "left" not in read_result(folder / "counting-smoke.json")["settings"]
    assert (folder / "counting-smoke/curves.json").exists() and other.asked == [2, 3]


@pytest.mark.parametrize("content", ["garbage", '{"format": "arcsm-results", "version": 99}'])
def test_a_record_that_cannot_be_read_is_refused_before_the_work(
    folder: Path, content: str
) -> None:
    counter = Counter()
    counter.experiment = dataclasses.replace(counter.experiment, tells_of_some=True)
    folder.mkdir()
    (folder / "counting-smoke.json").write_text(content)
    with pytest.raises(InputError, match=r"counting-smoke\.json.*move it out of the folder"):
        go(counter, folder, only=["n=3/x"])
    assert counter.asked == [] and [path.name for path in folder.iterdir()] == [
        "counting-smoke.json"
    ]


@pytest.mark.parametrize("whole", [True, False])
def test_fresh_with_a_choice_discards_only_what_is_chosen(folder: Path, whole: bool) -> None:
    counter = Counter()
    go(counter, folder, only=None if whole else ["n=1/x", "n=2/x"])
    counter.asked.clear()
    told = go(counter, folder, only=["n=2/x"], resume=False)
    assert counter.asked == [2] and told.left == ([] if whole else ["n=3/x"])
    # Were it interrupted, it would be the chosen ones that are missing.
    counter.stop_at = 2
    with pytest.raises(KeyboardInterrupt):
        go(counter, folder, only=["n=2/x"], resume=False)
    kept = Store(folder, counter.experiment, "smoke").load()
    assert list(kept) == (["n=1/x", "n=3/x"] if whole else ["n=1/x"])


def test_fresh_with_a_choice_keeps_what_is_whole_beside_what_is_damaged(folder: Path) -> None:
    counter = Counter()
    go(counter, folder, only=["n=1/x", "n=2/x"])
    first, second = sorted((folder / "counting-smoke/pieces").iterdir())
    assert "n-1" in first.name
    second.write_text("{")
    assert not go(counter, folder, only=["n=2/x", "n=3/x"], resume=False).left
    assert counter.asked == [1, 2, 2, 3]


def test_fresh_with_a_choice_discards_what_is_of_other_settings(folder: Path) -> None:
    go(Counter(), folder)
    other = Counter(numbers=(2, 3))
    assert go(other, folder, only=["n=2/x"], resume=False).left == ["n=3/x"]
    assert not go(other, folder).left and other.asked == [2, 3]


def test_where_some_pieces_tell_nothing_there_is_no_record(folder: Path) -> None:
    assert go(Counter(), folder, only=["n=3/x"]).left
    assert [path.name for path in folder.iterdir()] == ["counting-smoke"]
