"""The finished pieces of a run on the disk, so that none is run twice.

While a run is under way each finished piece is a file in `FOLDER/NAME-BUDGET/pieces`. When all are
there they become one file, `FOLDER/NAME-BUDGET/curves.json`, from which metrics and figures can be
made anew. Pieces know the digest of the settings they were run with, of those that they depend on:
pieces of others are not mixed.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from arcsm.errors import InputError
from arcsm.experiments.experiment import Experiment, Piece, Settings
from arcsm.files import parse_json, write_json
from arcsm.results import current_date, current_hardware, current_versions, read_result

PIECE, CURVES, VERSION = "arcsm-piece", "arcsm-curves", 1

_PIECE_FIELDS = {
    "format", "version", "experiment", "budget", "name", "labels", "digest", "seconds", "device",
    "commit", "hardware", "versions", "date", "raw",
}  # fmt: skip
_CURVES_FIELDS = {"format", "version", "experiment", "budget", "settings", "digest", "pieces"}
_ADVICE = "delete it, or run with --fresh"


class Store:
    """Where one experiment under one budget keeps what it has: `folder` is that of all results."""

    def __init__(self, folder: str | os.PathLike[str], experiment: Experiment, budget: str) -> None:
        if budget not in experiment.budgets:
            raise InputError(
                f"expected a budget of {experiment.name} among {', '.join(experiment.budgets)},"
                f" got {budget!r}; choose one of these"
            )
        self.experiment, self.budget = experiment, budget
        self.settings = plain_settings(experiment, budget)
        self.pieces = list(experiment.pieces(self.settings))
        self._digests = {piece.name: self._digest_of(piece.depends_on) for piece in self.pieces}
        if len({piece.name for piece in self.pieces}) < len(self.pieces):
            raise InputError(f"expected a name of its own for each piece of {experiment.name}")
        self.record = Path(folder) / f"{experiment.name}-{budget}.json"
        self.directory = Path(folder) / f"{experiment.name}-{budget}"
        self.curves = self.directory / "curves.json"
        self._files = self.directory / "pieces"
        # Files that are to be discarded, as they were; and pieces that are to be kept of them.
        self._given_up: dict[Path, tuple[int, ...]] = {}
        self._kept: Mapping[str, Mapping[str, Any]] = {}

    def load(self, *, strict: bool = True) -> dict[str, dict[str, Any]]:
        """Return the finished pieces by name, in the order of the run.

        Those of other settings and damaged ones are refused, or, if not `strict`, left out. Those
        that the run no longer has are let alone. Curves are read last: others may be making them of
        the pieces, which go when they are there.
        """
        found: dict[str, dict[str, Any]] = {}
        stale: set[str] = set()
        for path in (*sorted(self._files.glob("*.json")), self.curves):
            try:
                pieces = self._pieces_in(path)
            except InputError:
                if strict:
                    raise
                continue
            for piece in pieces:
                name, digest = piece["name"], self._digests.get(piece["name"])
                if piece["digest"] == digest:
                    found.setdefault(name, piece)
                elif digest is not None:
                    stale.add(name)
        if strict and (stale := stale - found.keys()):
            raise InputError(
                f"expected pieces of today's settings in {str(self.directory)!r}, got some of"
                f" others: {some_of(sorted(stale))}; --fresh discards these, and of the rest those"
                " that are chosen, or all if none are; --out takes another folder"
            )
        return {piece.name: found[piece.name] for piece in self.pieces if piece.name in found}

    def add(
        self,
        piece: Piece,
        raw: Mapping[str, Any],
        *,
        seconds: float,
        device: str,
        commit: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Write a finished piece and return it as it will be read.

        Once the first is there, those go which `begin_anew` has given up.
        """
        content = {
            "format": PIECE,
            "version": VERSION,
            "experiment": self.experiment.name,
            "budget": self.budget,
            "name": piece.name,
            "labels": dict(piece.labels),
            "digest": self._digests[piece.name],
            "seconds": seconds,
            "device": device,
            "commit": dict(commit),
            "hardware": _hardware_of(device),
            "versions": current_versions(),
            "date": current_date(),
            "raw": dict(raw),
        }
        path = self._path(piece.name)
        write_json(path, content, indent=None)
        self.discard()
        return _read(path, PIECE, _PIECE_FIELDS)

    def fold(self, finished: Mapping[str, Mapping[str, Any]]) -> None:
        """Make one file of all pieces."""
        content = {
            "format": CURVES,
            "version": VERSION,
            "experiment": self.experiment.name,
            "budget": self.budget,
            "settings": self.settings,
            "digest": self._digest_of(self.settings),
            "pieces": list(finished.values()),
        }
        write_json(self.curves, content, indent=None)
        for name in finished:
            self._path(name).unlink(missing_ok=True)
        self._remove_if_empty()

    def record_stays(self, finished: Mapping[str, Mapping[str, Any]]) -> bool:
        """Say whether there is the record of a whole run, and not all of its pieces are finished.

        It may be of other settings; where today's experiment cannot tell the pieces of these, the
        record stays.
        """
        settings = self._recorded_settings()
        if settings is None or "left" in settings:
            return False
        try:
            told = {piece.name for piece in self.experiment.pieces(settings["experiment"])}
        except (LookupError, TypeError, ValueError, AttributeError):
            return True
        return not told <= finished.keys()

    def _recorded_settings(self) -> Mapping[str, Any] | None:
        """Return what the record says of its run, if there is one."""
        if not self.record.exists():
            return None
        try:
            settings = read_result(self.record)["settings"]
        except InputError as error:
            raise InputError(f"{error}; or move it out of the folder") from error
        assert isinstance(settings, dict)
        return settings

    def finished_by_others(self, piece: Piece) -> dict[str, Any] | None:
        """Return a piece that was to be run, if by now another process has finished it."""
        path = self._path(piece.name)
        if _stamp(path) == self._given_up.get(path, ()):  # as it was, or not there
            return None
        try:
            found = self._pieces_in(path)
        except InputError:
            return None
        return next((one for one in found if one["digest"] == self._digests[piece.name]), None)

    def state(self) -> str | None:
        """Return in few words what there is of a run, or None."""
        recorded = self._recorded_settings()
        if self._files.is_dir() or (recorded is not None and "left" in recorded):
            return f"{len(self.load(strict=False))} of {len(self.pieces)} pieces"
        return None if recorded is None else f"run {read_result(self.record)['date'][:10]}"

    def begin_anew(self, kept: Mapping[str, Mapping[str, Any]]) -> None:
        """Give up the pieces that are there, but for some.

        They stay until there is a new one, or `discard` is called: so nothing is lost by a run that
        fails at once. Those that others finish meanwhile are none of them. Record and figures stay
        until others take their place.
        """
        of_kept = {self._path(name) for name in kept}
        files = {self.curves, *self._files.glob("*.json")} - of_kept
        self._given_up = {path: _stamp(path) for path in files if path.exists()}
        self._kept = kept

    def discard(self) -> bool:
        """Discard what was given up, if there is something, and say so.

        A file in whose place there is another by now is let alone.
        """
        given_up = [path for path, then in self._given_up.items() if _stamp(path) == then]
        if self.curves in given_up:
            there = self.load(strict=False)
            for name, piece in self._kept.items():
                # It may be in that file alone; and others may have run it anew meanwhile.
                write_json(self._path(name), there.get(name, piece), indent=None)
        for path in given_up:
            path.unlink(missing_ok=True)
        self._remove_if_empty()
        found, self._given_up = bool(self._given_up), {}
        return found

    def _remove_if_empty(self) -> None:
        with suppress(OSError):  # it is not empty, or not there
            self._files.rmdir()

    def _pieces_in(self, path: Path) -> list[dict[str, Any]]:
        """Return the pieces of one file: many, if it is that of the curves; none, if it is gone."""
        of_all = path == self.curves
        try:
            content = _read(path, *((CURVES, _CURVES_FIELDS) if of_all else (PIECE, _PIECE_FIELDS)))
        except FileNotFoundError:  # others may have made one file of all
            return []
        pieces = content["pieces"] if of_all else [content]
        if not isinstance(pieces, list) or not all(map(_is_piece, pieces)):
            raise InputError(
                f"expected pieces of an experiment in {str(path)!r}, got something else; {_ADVICE}"
            )
        return pieces

    def _path(self, piece: str) -> Path:
        return self._files / _file_name(piece)

    def _digest_of(self, settings: Settings | None) -> str:
        """Return the digest of some of the settings, or of all."""
        settings = self.settings if settings is None else settings
        return _digest({"experiment": self.experiment.name, "settings": settings})


def _stamp(path: Path) -> tuple[int, ...]:
    """Return what tells a file from one that takes its place; nothing if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_size


def provenance(
    finished: Sequence[Mapping[str, Any]], anywhere: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Return what a record says of pieces: those finished last speak for all.

    Of the hardware those speak that were not run `anywhere`, if there are any.
    """
    bound = [piece for piece in finished if piece not in anywhere]
    last = max(bound or finished, key=lambda piece: piece["date"])
    commits = sorted({piece["commit"]["id"] for piece in finished})
    dirty = [piece["commit"]["dirty"] for piece in finished]
    return {
        "commit": {
            "id": last["commit"]["id"],
            # Unknown (None) of some and clean of the others is unknown of all.
            "dirty": True if True in dirty else None if None in dirty else False,
        },
        "hardware": last["hardware"],
        "versions": last["versions"],
        "date": last["date"],
        "seconds": sum(piece["seconds"] for piece in finished),
        "commits": commits,
        "device": last["device"],
    }


def _hardware_of(device: str) -> dict[str, Any]:
    """Return the hardware, without the GPUs if the work was done elsewhere."""
    hardware = current_hardware()
    return hardware if torch.device(device).type == "cuda" else {**hardware, "gpu": None}


def plain_settings(experiment: Experiment, budget: str) -> dict[str, Any]:
    """Return the settings as JSON brings them back, the same in a run and in what is read of it."""
    try:
        text = json.dumps(dict(experiment.budgets[budget]), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"expected settings of {experiment.name} that JSON can hold, got: {error};"
            " use plain numbers, strings, lists and dictionaries"
        ) from error
    settings = json.loads(text)
    assert isinstance(settings, dict)
    return settings


def some_of(names: Sequence[str], most: int = 6) -> str:
    """Return a list of names for people, cut where it grows long."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _file_name(piece: str) -> str:
    """Return a name that every file system takes, and that no other piece has."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", piece)
    return f"{plain}.json" if plain == piece else f"{plain}-{_digest(piece)[:8]}.json"


def _is_piece(content: object) -> bool:
    """Say whether this has what a piece has."""
    return (
        isinstance(content, dict)
        and set(content) == _PIECE_FIELDS
        and all(isinstance(content[field], str) for field in ("name", "digest"))
    )


def _read(path: Path, kind: str, names: set[str]) -> dict[str, Any]:
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, ValueError) as error:
        raise InputError(f"expected JSON in {str(path)!r}, got: {error}; {_ADVICE}") from error
    if not isinstance(content, dict) or content.get("format") != kind:
        raise InputError(
            f"expected a file of the format {kind} at {str(path)!r}, got another one; {_ADVICE}"
        )
    if content.get("version") != VERSION or set(content) != names:
        raise InputError(
            f"expected version {VERSION} of {kind} with the fields {', '.join(sorted(names))} in"
            f" {str(path)!r}, got version {content.get('version')!r} with others; {_ADVICE}"
        )
    return content
