"""CelebA's aligned faces at 64 x 64: from the published files, or from a zip file of WebP images.

From the published images of 178 x 218 the centre of 140 x 140 is cut out and scaled to 64 x 64 by
Pillow's bilinear filter, as in the paper. There are no labels.
"""

import os
from pathlib import Path

import numpy as np

from arcsm.data.images.decode import Decoded, decode, need_pillow, quiet_decoders
from arcsm.data.images.pictures import Pictures, UnreadableError, open_pictures
from arcsm.data.images.pixels import shrink
from arcsm.data.images.places import find
from arcsm.data.images.published import COUNTS, SIDES
from arcsm.errors import InputError

_SIDE = SIDES["celeba"]
_ALIGNED = (178, 218)  # width and height
_CROP = (19, 39, 19 + 140, 39 + 140)  # left, top, right, bottom
_PARTITION = "list_eval_partition.txt"
_CODES = {"train": "0", "test": "2"}  # 1 is the validation part
_PAGE = "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html"


def read_celeba(
    directories: list[Path], part: str, *, size: int, most: int | None
) -> tuple[np.ndarray, str]:
    """Return pixels and a note of what is found first: published images, or celeba64.zip."""
    need_pillow()
    aligned = find(
        directories,
        "img_align_celeba",
        "img_align_celeba.zip",
        "Img/img_align_celeba",
        "Img/img_align_celeba.zip",
    )
    if aligned is not None:
        partition = find(directories, _PARTITION, f"Eval/{_PARTITION}")
        if partition is None:
            raise InputError(
                f"expected {_PARTITION} beside {str(aligned)!r}, got nothing there;"
                f" get it from {_PAGE} (folder Eval)"
            )
        return _read_aligned(aligned, partition, part, size=size, most=most)
    small = find(directories, "celeba64.zip")
    if small is None:
        raise InputError(
            f"expected CelebA in {str(directories[0])!r}, got nothing there, and it cannot be"
            f" fetched by a program: from {_PAGE} get img_align_celeba.zip and {_PARTITION}, and"
            " put both there"
        )
    return _read_small(small, part, size=size, most=most)


def _read_aligned(
    path: Path, partition: Path, part: str, *, size: int, most: int | None
) -> tuple[np.ndarray, str]:
    files = _listed(partition, part)
    whole = COUNTS["celeba", part]
    note = "" if len(files) == whole else f"{len(files)} of {whole} images"
    with quiet_decoders(), open_pictures(path) as pictures:
        # Both the zip file and some who unpack it have one more folder of the same name.
        inner = "img_align_celeba/"
        nested = not path.is_dir() or (path / inner).is_dir()
        names = [inner + file if nested else file for file in files[:most]]
        return _read(pictures, names, _ALIGNED, size), note


def _read_small(path: Path, part: str, *, size: int, most: int | None) -> tuple[np.ndarray, str]:
    with quiet_decoders(), open_pictures(path) as pictures:
        names = [name for name in pictures.names() if name.startswith(f"{part}/")]
        if not names:
            raise InputError(
                f"expected images under {part}/ in {str(path)!r}, got none; fetch the file again"
            )
        whole = COUNTS["celeba", part]
        note = (
            f"{len(names)} of {whole} images, re-encoded as WebP at {_SIDE} x {_SIDE}"
            " (slightly lossy)"
        )
        return _read(pictures, names[:most], (_SIDE, _SIDE), size), note


def _read(pictures: Pictures, names: list[str], expected: tuple[int, int], size: int) -> np.ndarray:
    """Read images one by one into an array of the size that was asked for."""
    pixels = np.empty((len(names), size, size, 3), dtype=np.uint8)
    for row, name in enumerate(names):
        try:
            pixels[row] = shrink(_face(decode(pictures.read(name)), expected)[None], size)[0]
        except UnreadableError as error:
            raise InputError(
                f"expected a whole image in {name!r} of {os.fspath(pictures.path)!r}, got:"
                f" {error}; unpack or fetch it again"
            ) from error
    return pixels


def _face(decoded: Decoded, expected: tuple[int, int]) -> np.ndarray:
    """Return the 64 x 64 pixels of a picture whose width and height are the expected ones."""
    from PIL import Image

    image = decoded.image
    if image.size != expected or image.mode != "RGB":
        raise UnreadableError(
            f"mode {image.mode} and {image.width} x {image.height}, not RGB and"
            f" {expected[0]} x {expected[1]}"
        )
    if expected == _ALIGNED:
        image = image.crop(_CROP).resize((_SIDE, _SIDE), Image.Resampling.BILINEAR)
    return np.asarray(image)


def _listed(partition: Path, part: str) -> list[str]:
    """Return the file names of one part, as the list of the data set gives them."""
    files = []
    with partition.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            words = line.split()
            if not words:
                continue
            if len(words) != 2 or words[1] not in ("0", "1", "2"):
                raise InputError(
                    f"expected a file name and 0, 1 or 2 in line {number} of {str(partition)!r},"
                    f" got {line.strip()!r}; get the list again from {_PAGE}"
                )
            if words[1] == _CODES[part]:
                files.append(words[0])
    if not files:
        raise InputError(f"expected images of the {part} part in {str(partition)!r}, got none")
    return files
