"""The idx files of MNIST and Fashion-MNIST, plain or compressed by gzip."""

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

from arcsm.errors import InputError

SIDE = 28
CLASSES = 10
_UNSIGNED_BYTE = 0x08


def read_idx_pair(images: Path, labels: Path, *, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return pixels (n, 28, 28, 1) and labels (n,) of two files that belong together.

    `most` is the number of images of the published file; fewer are a partial copy.
    """
    pixels = _read_idx(images, (SIDE, SIDE), most=most)
    marks = _read_idx(labels, (), most=most)
    if len(pixels) != len(marks):
        raise InputError(
            f"expected as many labels as images, got {len(marks)} in {str(labels)!r} and"
            f" {len(pixels)} in {str(images)!r}; {_REMEDY}"
        )
    if marks.max() >= CLASSES:
        raise InputError(
            f"expected labels from 0 to 9 in {str(labels)!r}, got {marks.max()}; {_REMEDY}"
        )
    return pixels[..., None], marks.astype(np.int64)


_REMEDY = "delete these files, and they will be fetched again"


def _read_idx(path: Path, shape: tuple[int, ...], *, most: int) -> np.ndarray:
    """Return the uint8 array in an idx file of items of `shape`, every byte accounted for."""

    def refuse(expected: str, got: object) -> InputError:
        return InputError(f"expected {expected} in {str(path)!r}, got {got}; {_REMEDY}")

    try:
        with _open(path) as file:
            start = file.read(4)
            dims = 1 + len(shape)
            magic = bytes((0, 0, _UNSIGNED_BYTE, dims))
            if start != magic:
                raise refuse(f"an idx file that begins with {magic.hex()}", start.hex() or "none")
            header = file.read(4 * dims)
            if len(header) != 4 * dims:
                raise refuse(f"a header of {4 + 4 * dims} bytes", 4 + len(header))
            count, *item = struct.unpack(f">{dims}I", header)
            if tuple(item) != shape:
                raise refuse(f"items of shape {shape}", tuple(item))
            # Checked before anything of that size is read.
            if not 1 <= count <= most:
                raise refuse(f"between 1 and {most} items", count)
            length = count * math.prod(shape)
            content = file.read(length + 1)
            if len(content) != length:
                got = "more" if len(content) > length else len(content)
                raise refuse(f"{length} bytes after the header", got)
    except (OSError, EOFError, zlib.error) as error:
        raise refuse("a whole idx file", error) from error
    # A copy, because the bytes of a file cannot be written to.
    return np.frombuffer(content, dtype=np.uint8).reshape(count, *shape).copy()


def _open(path: Path) -> gzip.GzipFile | BinaryIO:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")
