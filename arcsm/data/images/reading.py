"""Images of one's own: any folder or zip file of pictures."""

import os
from pathlib import Path

import numpy as np

from arcsm.data.images.decode import Decoded, as_array, decode, need_pillow, quiet_decoders
from arcsm.data.images.pictures import SUFFIXES, UnreadableError, open_pictures
from arcsm.data.images.pixels import WHOLE, Images, as_most
from arcsm.errors import InputError


def read_images(
    path: str | os.PathLike[str],
    *,
    size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    skip_unreadable: bool = False,
    most: int | None = None,
) -> Images:
    """Return the pictures of a folder, those of folders within included, or of a zip file.

    They come sorted by name, at most `most` of them; png, jpg, webp, bmp, gif and tiff files are
    read, others are passed over, and so are hidden ones. A file that is no whole picture is named
    by an error, or, with `skip_unreadable`, counted in the note. So is a picture of more than 100
    million pixels.

    All must be of one size and one kind, or `size` and `channels` must make them so. `size`, a
    number for squares or (height, width), cuts the largest centred part of that shape out of a
    picture of another size and scales it, bilinear and without aliasing. `channels` 3 turns grey
    into RGB, 1 turns colour into grey; both put what is transparent on white, which is refused
    without them.

    A picture is turned upright as its EXIF data say. Of animations the first frame is read. Of 16
    bits a channel the upper 8 are kept. Palettes, CMYK and other colour spaces become RGB. What
    happened to how many is in the note.
    """
    need_pillow()
    shape, most = _as_shape(size), as_most(most)
    if channels not in (None, 1, 3) or isinstance(channels, bool):
        raise InputError(
            f"expected channels as 1 (grey), 3 (colour) or None (as they are), got {channels!r}"
        )
    source = Path(os.path.expanduser(path))  # pathlib raises where there is no such user
    with quiet_decoders(), open_pictures(source) as pictures:
        names = pictures.names()
        if not names:
            raise InputError(
                f"expected images in {str(source)!r}, got no file that ends in"
                f" {', '.join(sorted(SUFFIXES))}; choose another folder"
            )
        stack = _Stack(len(names) if most is None else min(most, len(names)))
        for name in names:
            if stack.is_full:
                break
            try:
                decoded = decode(pictures.read(name))
            except UnreadableError as error:
                if not skip_unreadable:
                    raise InputError(
                        f"expected a whole image in {name!r} of {str(source)!r}, got: {error};"
                        " remove it, or pass skip_unreadable=True"
                    ) from error
                stack.skipped.append(name)
                continue
            if decoded.has_alpha and channels is None:
                raise InputError(
                    f"expected images without transparency, got some in {name!r} of"
                    f" {str(source)!r}; channels=3 or channels=1 puts them on white"
                )
            stack.add(name, decoded, as_array(decoded, size=shape, channels=channels))
    if stack.pixels is None:
        raise InputError(
            f"expected an image that can be read in {str(source)!r}, got none among {len(names)};"
            " leave out skip_unreadable to see why"
        )
    kept = stack.pixels[: stack.count]
    return Images(kept, None, name=source.stem, part=WHOLE, note=stack.note())


class _Stack:
    """Pictures of one shape, put into one array that is made with the first of them."""

    def __init__(self, room: int):
        self.pixels: np.ndarray | None = None
        self.count = 0
        self.skipped: list[str] = []
        self._room = room
        self._first = ""
        self._deep = self._frames = 0

    @property
    def is_full(self) -> bool:
        return self.count == self._room

    def add(self, name: str, decoded: Decoded, pixels: np.ndarray) -> None:
        if self.pixels is None:
            self._first = name
            self.pixels = self._make(pixels.shape)
        self._check(name, pixels.shape, self.pixels.shape[1:])
        self.pixels[self.count] = pixels
        self.count += 1
        self._deep += decoded.was_deep
        self._frames += decoded.had_frames

    def note(self) -> str:
        notes = []
        if self.skipped:
            more = "" if len(self.skipped) == 1 else f" (the first: {self.skipped[0]})"
            told = self.skipped[0] if len(self.skipped) == 1 else f"{len(self.skipped)} files"
            notes.append(f"skipped as unreadable: {told}{more}")
        if self._deep:
            notes.append(f"reduced from 16 to 8 bits a channel: {self._deep}")
        if self._frames:
            notes.append(f"only the first frame of an animation: {self._frames}")
        return "; ".join(notes)

    def _make(self, shape: tuple[int, ...]) -> np.ndarray:
        try:
            return np.empty((self._room, *shape), dtype=np.uint8)
        except (MemoryError, ValueError) as error:
            raise InputError(
                f"expected images that fit into memory, got {self._room} of shape {shape};"
                " pass a smaller size=..., or most=..."
            ) from error

    def _check(self, name: str, shape: tuple[int, ...], known: tuple[int, ...]) -> None:
        if shape[2] != known[2]:
            kinds = {1: "grey", 3: "colour"}
            raise InputError(
                f"expected images that are all grey or all colour, got {self._first!r} in"
                f" {kinds[known[2]]} and {name!r} in {kinds[shape[2]]};"
                " channels=3 or channels=1 makes them alike"
            )
        if shape != known:
            raise InputError(
                f"expected images of one size, got {self._first!r} of {known[1]} x {known[0]} and"
                f" {name!r} of {shape[1]} x {shape[0]}; pass size=..., for example"
                f" size={min(*known[:2], *shape[:2])}, to cut and scale them"
            )


def _as_shape(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    if size is None:
        return None
    sides = size if isinstance(size, tuple) else (size, size)
    if len(sides) != 2 or not all(
        isinstance(side, int) and not isinstance(side, bool) and side >= 1 for side in sides
    ):
        raise InputError(
            f"expected size as a positive whole number or (height, width), got {size!r}"
        )
    return sides[0], sides[1]
