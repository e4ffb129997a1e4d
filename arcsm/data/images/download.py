"""Published files, fetched once: whole and with the right digest, or not at all."""

import hashlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from arcsm.errors import InputError
from arcsm.files import atomic_path

Progress = Callable[[int, int], object]
"""Called with the bytes that have come so far and the bytes there are in all."""

TIMEOUT_SECONDS = 30.0  # without a byte, not for the whole file
_CHUNK_BYTES = 2**18


@dataclass(frozen=True)
class Remote:
    """A published file: its name, its length, its SHA-256, and where it is, best address first."""

    file: str
    size: int
    sha256: str
    urls: tuple[str, ...]


class _NotFetchedError(Exception):
    """One address did not give the file; the next one may."""


def fetch(
    remotes: Sequence[Remote], directory: Path, *, progress: Progress | None = None
) -> list[Path]:
    """Download files into `directory` and return their paths.

    Each is written under a temporary name and gets its own name only once its length and its
    SHA-256 are right, so that a download cut off leaves nothing behind that looks like a file.
    """
    total = sum(remote.size for remote in remotes)
    done = 0
    paths = []
    for remote in remotes:
        before = done

        def report(received: int, before: int = before) -> None:
            if progress is not None:
                progress(before + received, total)

        paths.append(_fetch_one(remote, directory / remote.file, report))
        done += remote.size
    return paths


def _fetch_one(remote: Remote, path: Path, report: Callable[[int], None]) -> Path:
    failures = []
    for url in remote.urls:
        try:
            with atomic_path(path) as temporary:
                _download(url, remote, temporary, report)
            return path
        except _NotFetchedError as error:
            failures.append(f"{url}: {error}")
        except OSError as error:
            raise InputError(
                f"expected to write {str(path)!r}, got: {error}; make room there, or pass"
                " folder=... with a folder that can be written to"
            ) from error
    raise InputError(
        f"expected to download {remote.file}, got from {'; from '.join(failures)};"
        f" try again later, or put the file there by hand as {str(path)!r}"
    )


def _download(url: str, remote: Remote, path: Path, report: Callable[[int], None]) -> None:
    """Write what is at `url` to `path`, or raise _NotFetchedError; OSError is the disk's alone."""
    request = urllib.request.Request(url, headers={"User-Agent": "arcsm"})
    digest = hashlib.sha256()
    received = 0
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()  # it holds the connection
        raise _NotFetchedError(f"the answer {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _NotFetchedError(_reason(error)) from error
    with response, path.open("xb") as file:
        report(0)
        while True:
            try:
                chunk = response.read(_CHUNK_BYTES)
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise _NotFetchedError(f"{_reason(error)} after {received} bytes") from error
            if not chunk:
                break
            received += len(chunk)
            if received > remote.size:  # no need to hear the rest of a wrong file
                raise _NotFetchedError(f"more than the {remote.size} bytes of that file")
            digest.update(chunk)
            file.write(chunk)
            report(received)
    if received != remote.size:
        raise _NotFetchedError(f"{received} of {remote.size} bytes")
    if digest.hexdigest() != remote.sha256:
        raise _NotFetchedError(
            f"another file of the same length (SHA-256 {digest.hexdigest()}, not {remote.sha256})"
        )


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", error)
    return str(reason) or type(error).__name__
