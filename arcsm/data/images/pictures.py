"""Folders and zip files of pictures: names in order, and the bytes under a name.

A member of a zip file is read into memory and nothing is ever extracted, so a name in it such as
../../picture.png means nothing.
"""

import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from arcsm.errors import InputError

SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"))
# No single picture needs more; a zip member may claim any length.
MOST_BYTES = 2**28


class UnreadableError(Exception):
    """One file is no picture, or not a whole one; the message says why."""


class Pictures:
    """The pictures in a folder or in a zip file, by name."""

    def __init__(self, path: Path, archive: zipfile.ZipFile | None):
        self.path = path
        self._archive = archive

    def names(self) -> list[str]:
        """Return the names of all pictures, folders within included, sorted; hidden ones not."""
        names = self._in_folder() if self._archive is None else self._archive.namelist()
        return sorted(name for name in set(names) if _is_picture(name))

    def read(self, name: str) -> bytes:
        """Return the content of one file, or raise UnreadableError."""
        try:
            if self._archive is None:
                file = self.path / name
                if not file.is_file():  # a link to a device has no end, a pipe may have no writer
                    raise UnreadableError("no plain file" if file.exists() else "no such file")
                _check_length(file.stat().st_size)
                return file.read_bytes()
            member = self._archive.getinfo(name)
            _check_length(member.file_size)
            return self._archive.read(member)
        except KeyError as error:
            raise UnreadableError("no file of that name") from error
        # Encrypted members, unknown compression, wrong checksums: each has its own exception.
        except (UnreadableError, MemoryError):
            raise
        except Exception as error:
            raise UnreadableError(str(error) or type(error).__name__) from error

    def _in_folder(self) -> Iterator[str]:
        for directory, _, files in os.walk(self.path):  # links to folders are not followed
            within = Path(directory).relative_to(self.path)
            for file in files:
                yield (within / file).as_posix()


@contextmanager
def open_pictures(path: Path) -> Iterator[Pictures]:
    """Open a folder or a zip file."""
    if path.is_dir():
        yield Pictures(path, None)
        return
    try:
        archive = zipfile.ZipFile(path)
    except (OSError, NotImplementedError, zipfile.BadZipFile) as error:
        if path.is_file() and path.suffix.lower() in SUFFIXES:
            raise InputError(
                "expected a folder or a zip file of pictures, got the single picture"
                f" {str(path)!r}; pass the folder that it is in"
            ) from error
        got = "nothing there" if not path.exists() else f"{error}"
        raise InputError(
            f"expected a folder or a whole zip file of images at {str(path)!r}, got: {got};"
            " correct the path"
        ) from error
    with archive:
        yield Pictures(path, archive)


def _is_picture(name: str) -> bool:
    path = PurePosixPath(name)
    # macOS adds files ._NAME beside those it copies, and a folder __MACOSX to zip files.
    hidden = any(part.startswith(".") and part != ".." for part in path.parts)
    return path.suffix.lower() in SUFFIXES and not hidden and "__MACOSX" not in path.parts


def _check_length(length: int) -> None:
    if length > MOST_BYTES:
        raise UnreadableError(f"{length} bytes, more than the {MOST_BYTES} that are read")
