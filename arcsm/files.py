"""Files, and directories, that are replaced as a whole or not at all.

A file is written under a temporary name in its own directory, flushed to the disk, and renamed
over the old one. Whoever reads the path sees the old content or the new, never a part of it.
"""

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from arcsm.errors import InputError

# .NAME.PID-HOST-RANDOM.partial; the host is there because process ids mean nothing on another
# machine that shares the directory.
_TEMPORARY = re.compile(r"\.(?P<name>.+)\.(?P<pid>\d+)-(?P<host>[0-9a-f]{8})-[0-9a-f]{8}\.partial")

# A temporary untouched for this long is abandoned, whatever its process id says: ids are reused,
# and another machine's cannot be looked up.
_ABANDONED_AFTER_SECONDS = 24 * 3600


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path whose file replaces `path` when the block ends without an exception.

    Missing parent directories are created, a symbolic link is followed, and temporaries of the
    same file that a killed process left behind are removed. On any exception, an interrupt
    included, the temporary goes and `path` stays as it was.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     target = Path(directory) / "notes.txt"
    ...     with atomic_path(target) as temporary:
    ...         _ = temporary.write_text("whole")
    ...     target.read_text()
    'whole'
    """
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise InputError(
            f"expected the path of a file, got the directory {os.fspath(path)!r}; add a file name"
        )
    _prepare_parent(path, target)
    temporary = target.with_name(f".{target.name}.{_mark()}.partial")
    try:
        yield temporary
        _flush_to_disk(temporary)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # elsewhere a directory cannot be opened, nor needs to be
        _flush_to_disk(target.parent)


@contextmanager
def atomic_directory(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary directory that takes the place of `path` when the block ends well.

    A directory that is already there is replaced: whether it may be is for the caller to say. On
    any exception the temporary goes, with all that is in it, and `path` stays as it was.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_dir():
        raise InputError(
            f"expected the path of a directory, got the file {os.fspath(path)!r};"
            " choose another path"
        )
    _prepare_parent(path, target)
    _settle_former(target)
    temporary = target.with_name(f".{target.name}.{_mark()}.partial")
    temporary.mkdir()
    try:
        yield temporary
        for file in temporary.rglob("*"):
            _flush_to_disk(file)
        if target.exists():
            os.rename(target, target.with_name(f".{target.name}.former"))
        os.rename(temporary, target)
        _settle_former(target)
    except BaseException:
        _settle_former(target)
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    if os.name == "posix":
        _flush_to_disk(target.parent)


def _settle_former(target: Path) -> None:
    """Remove the directory that `target` has replaced, or put it back if nothing came after it."""
    former = target.with_name(f".{target.name}.former")
    if former.is_dir() and target.exists():
        _discard(former, target.name)
    elif former.is_dir():
        os.rename(former, target)


def discard_directory(path: str | os.PathLike[str]) -> None:
    """Remove a directory so that it is whole or gone, whenever the process is killed.

    That another process has removed it is no trouble.
    """
    target = Path(os.path.realpath(path))
    with contextlib.suppress(FileNotFoundError):
        _discard(target, target.name)


def _discard(directory: Path, name: str) -> None:
    # As a temporary of `name`, of which the next write to that name removes what is left.
    abandoned = directory.with_name(f".{name}.{_mark()}.partial")
    os.rename(directory, abandoned)
    shutil.rmtree(abandoned)


@contextmanager
def scratch_directory(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a new directory beside `path`, for parts of what is to be there; it goes at the end."""
    target = Path(os.path.realpath(path))
    _prepare_parent(path, target)
    temporary = target.with_name(f".{target.name}.{_mark()}.partial")
    try:
        temporary.mkdir()
        yield temporary
    finally:
        # Another process may put a file there while it is being removed, once.
        for _ in range(3):
            shutil.rmtree(temporary, ignore_errors=True)


def write_atomic(path: str | os.PathLike[str], write: Callable[[BinaryIO], object]) -> None:
    """Replace the file at `path` by what `write` puts into the binary file it is given."""
    with atomic_path(path) as temporary, temporary.open("xb") as file:
        write(file)


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Replace the file at `path` by `content`."""
    write_atomic(path, lambda file: file.write(content))


def write_text(path: str | os.PathLike[str], content: str) -> None:
    """Replace the file at `path` by `content` in UTF-8, line ends as they are."""
    write_bytes(path, content.encode("utf-8"))


def parse_json(text: str) -> Any:
    """Return the content of JSON; whatever is wrong with it is a ValueError.

    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ValueError: lists or objects within each other, too many to be read
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("lists or objects within each other, too many to be read") from None


def write_json(path: str | os.PathLike[str], content: Any, *, indent: int | None = 2) -> None:
    """Replace the file at `path` by `content` as JSON; NaN and infinity are refused.

    It is indented for people to read; `indent` = None puts all of it on one line.
    """
    try:
        text = json.dumps(content, indent=indent, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"expected content that JSON can hold for {os.fspath(path)!r}, got: {error};"
            " convert it to plain finite numbers, strings, lists and dictionaries"
        ) from error
    write_text(path, text + "\n")


def _prepare_parent(path: str | os.PathLike[str], target: Path) -> None:
    """Make the directories above `target`, and remove what killed writers of it left there."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(
            f"expected directories above {os.fspath(path)!r}, got a file among them;"
            " choose another path"
        ) from error
    _remove_stale(target.parent, target.name)


def _mark() -> str:
    return f"{os.getpid()}-{_host()}-{secrets.token_hex(4)}"


def remove_stale_temporaries(
    directory: str | os.PathLike[str], name: str | None = None
) -> list[Path]:
    """Remove and return the temporaries in `directory` whose writing process is gone.

    With a `name` only those of the file or directory that is called so.
    """
    return _remove_stale(Path(directory), name)


def _remove_stale(directory: Path, name: str | None) -> list[Path]:
    """Remove the stale temporaries of the file called `name`, or of every file when it is None."""
    removed = []
    for candidate in directory.iterdir():
        match = _TEMPORARY.fullmatch(candidate.name)
        if match is None or name not in (None, match["name"]):
            continue
        # A file that another process finished or removed meanwhile is no longer ours to judge.
        with contextlib.suppress(FileNotFoundError):
            if _is_stale(candidate, int(match["pid"]), match["host"]):
                if candidate.is_dir() and not candidate.is_symlink():
                    shutil.rmtree(candidate)
                else:
                    candidate.unlink()
                removed.append(candidate)
    return removed


def _is_stale(temporary: Path, pid: int, host: str) -> bool:
    if time.time() - temporary.stat().st_mtime > _ABANDONED_AFTER_SECONDS:
        return True
    return host == _host() and not _is_alive(pid)


def _is_alive(pid: int) -> bool:
    if os.name != "posix":  # on Windows os.kill(pid, 0) would end the process
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it lives, under another user
        return True
    return True


def _host() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def _flush_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
