"""What a word of a command line stands for, put on the disk for one example."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .corpus import put


@dataclass(frozen=True)
class Told:
    """A word that stands for itself."""

    word: str

    def put(self, place: Path, slot: str) -> str:
        """Return the word."""
        return self.word


@dataclass(frozen=True)
class File:
    """A file; `suffix` is how its name ends."""

    suffix: str
    content: bytes

    def put(self, place: Path, slot: str) -> str:
        """Write the file and return its name."""
        (place / f"{slot}{self.suffix}").write_bytes(self.content)
        return f"{slot}{self.suffix}"

    def __repr__(self) -> str:
        more = f" … {len(self.content)} bytes" if len(self.content) > 600 else ""
        return f"File({self.suffix!r}, {self.content[:600]!r}{more})"


@dataclass(frozen=True)
class Folder:
    """A folder with files, and links by the names that they have to where they lead."""

    files: Mapping[str, bytes]
    links: Mapping[str, str] | None = None
    ending: str = ""  # a run keeps its state in NAME.partial, but is called NAME

    def put(self, place: Path, slot: str) -> str:
        """Write the folder and return its name."""
        folder = put(place / f"{slot}{self.ending}", self.files)
        for name, target in (self.links or {}).items():
            os.symlink(target, folder / name)
        return slot

    def __repr__(self) -> str:
        short = {name: content[:400] for name, content in self.files.items()}
        return f"Folder({short!r}, {self.links!r}, {self.ending!r})"


Thing = Told | File | Folder
