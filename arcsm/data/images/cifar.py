"""CIFAR-10 in its Python version: six pickled batches, in a folder or in a tar file."""

import lzma
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from arcsm.data.images.unpickle import unpickle_plain
from arcsm.errors import InputError

FOLDER = "cifar-10-batches-py"
BATCHES = {"train": tuple(f"data_batch_{k}" for k in range(1, 6)), "test": ("test_batch",)}
_SIDE, _CHANNELS, _CLASSES = 32, 3, 10
# A batch of 10,000 images with their labels and file names takes 31 MB.
_MOST_BYTES = 2**26


def read_cifar(path: Path, part: str) -> tuple[np.ndarray, np.ndarray, str]:
    """Return pixels, labels and a note, from the folder of the batches or from a tar file of it."""
    wanted = BATCHES[part]
    found = {
        name: _as_batch(content, f"{name} of {str(path)!r}")
        for name, content in (_in_folder if path.is_dir() else _in_tar)(path, wanted)
    }
    absent = [name for name in wanted if name not in found]
    if absent:
        raise InputError(
            f"expected {', '.join(absent)} in {str(path)!r}, got nothing of that name;"
            " delete it, and it will be fetched again"
        )
    labels = np.concatenate([found[name][1] for name in wanted])
    whole = all(named for _, _, named in found.values())
    note = "" if whole else "re-packed batches, without their lists of file names"
    pixels = np.empty((len(labels), _SIDE, _SIDE, _CHANNELS), dtype=np.uint8)
    start = 0
    for name in wanted:
        rows = found.pop(name)[0]  # popped, so that its memory is free for the next
        # A row has all of red, then all of green, then all of blue.
        planes = rows.reshape(-1, _CHANNELS, _SIDE, _SIDE)
        pixels[start : start + len(rows)] = planes.transpose(0, 2, 3, 1)
        start += len(rows)
    return pixels, labels, note


def _in_folder(path: Path, wanted: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    for name in wanted:
        file = path / name
        if file.is_file():
            _check_size(file.stat().st_size, name, path)
            yield name, file.read_bytes()


def _in_tar(path: Path, wanted: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the members that are wanted, in the order of the file: it is decompressed once."""
    missing = set(wanted)
    try:
        with tarfile.open(path, "r|*") as archive:
            for member in archive:
                folder, _, name = member.name.removeprefix("./").rpartition("/")
                if folder != FOLDER or name not in missing or not member.isfile():
                    continue
                _check_size(member.size, name, path)
                opened = archive.extractfile(member)
                missing.remove(name)
                yield name, b"" if opened is None else opened.read()
                if not missing:
                    return
    except (OSError, EOFError, tarfile.TarError, zlib.error, lzma.LZMAError) as error:
        raise InputError(
            f"expected a whole tar file at {str(path)!r}, got: {error};"
            " delete it, and it will be fetched again"
        ) from error


def _check_size(size: int, name: str, path: Path) -> None:
    if size > _MOST_BYTES:
        raise InputError(
            f"expected {name} of {str(path)!r} with 31 MB, got {size} bytes; fetch it again"
        )


def _as_batch(content: bytes, source: str) -> tuple[np.ndarray, np.ndarray, bool]:
    """Return the rows and the labels of a batch, and whether it has its file names."""
    batch: Any = unpickle_plain(content, source)
    if isinstance(batch, dict):  # keys are bytes in the published files, text in some copies
        batch = {key.decode() if isinstance(key, bytes) else key: batch[key] for key in batch}
    else:
        batch = {}
    data, labels = batch.get("data"), batch.get("labels")
    if (
        not isinstance(data, np.ndarray)
        or not isinstance(labels, list)
        or data.shape != (len(labels), _CHANNELS * _SIDE * _SIDE)
        or not labels
        or not all(type(label) is int and 0 <= label < _CLASSES for label in labels)
    ):
        raise InputError(
            f"expected data of 3,072 bytes and a label from 0 to 9 for each image in {source}, got"
            f" {data.shape if isinstance(data, np.ndarray) else type(data).__name__} and"
            f" {len(labels) if isinstance(labels, list) else type(labels).__name__};"
            " fetch the file again"
        )
    return data, np.array(labels, dtype=np.int64), "filenames" in batch
