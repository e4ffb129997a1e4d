"""Images as DATA on the command line: a set by its name, a folder, or a zip file."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from arcsm.cli.image_options import Preparation
from arcsm.cli.sources import is_named_as_table
from arcsm.errors import ArcsmError, InputError

if TYPE_CHECKING:
    import numpy as np

    from arcsm.data import Images

_SET = re.compile(r"(?P<name>mnist|fashion-mnist|cifar10|svhn|celeba)(?::(?P<part>.*))?")

# What Python calls by a keyword has an option here.
_WORDS = tuple(
    (re.compile(python), option)
    for python, option in (
        (r"pass size=\.\.\., for example size=(\d+), to", r"add --size \1 to"),
        (r"pass a smaller size=\.\.\., or most=\.\.\.", "give a smaller --size, or --most"),
        (r"expected size to divide", "expected --size to divide"),
        (r"channels=(\d) or channels=(\d) (puts|makes)", r"--channels \1 or --channels \2 \3"),
        (
            r"expected channels as 1 \(grey\), 3 \(colour\) or None \(as they are\)",
            "expected --channels 1 (grey) or 3 (colour)",
        ),
        (r"pass skip_unreadable=True", "add --skip-unreadable"),
        (r"leave out skip_unreadable", "leave out --skip-unreadable"),
        (r"pass download=True", "add --download"),
        (r"pass folder=\.\.\., or set", "set"),
        (r"batch=(\d+) would fit", r"--batch \1 would fit"),
        (
            r"of (\d+)×\d+ pixels or more, to be halved .*, got (.*) and levels=\d+; use larger"
            r" images, or levels=\d+( or fewer)?",
            r"of \1×\1 pixels or more for this network, got \2; add --size \1, or --network made",
        ),
    )
)


@contextmanager
def by_options() -> Iterator[None]:
    """Say of an error what to do by options of the command line, not by keywords of Python."""
    try:
        yield
    except ArcsmError as error:
        message = str(error)
        for python, option in _WORDS:
            message = python.sub(option, message)
        raise type(error)(message) from error


@dataclass(frozen=True)
class Pictures:
    """Images that are not read yet; `name` and `part` are those of a set, if it is one."""

    told: str
    name: str | None = None
    part: str = "train"

    @property
    def published(self) -> str:
        """What was told, without the folders of this machine."""
        if self.name is not None:
            return self.told
        name = Path(self.told).expanduser().resolve().name
        return name if _SET.fullmatch(name) is None else f"./{name}"

    def read(self, how: Preparation) -> "Images":
        """Return the images, made ready."""
        from arcsm.data import load_images, read_images

        with by_options():
            if self.name is None:
                if how.download:
                    raise InputError(
                        f"expected --download with the name of a set, got {self.told!r}, which is"
                        " on the disk; leave it out"
                    )
                return read_images(
                    self.told,
                    size=how.size,
                    channels=how.channels,
                    skip_unreadable=how.skip_unreadable,
                    most=how.most,
                )
            for option, value in how.told().items():
                if option in ("--channels", "--skip-unreadable") and value:
                    raise InputError(
                        f"expected {option} with a folder or a zip file of pictures, got the set"
                        f" {self.told!r}, whose images are alike; leave it out"
                    )
            return load_images(
                self.name, self.part, download=how.download, size=how.size, most=how.most
            )

    def columns(self, count: int) -> "dict[str, np.ndarray]":
        """Return what names the first `count` pictures in a table: index and, of files, file."""
        import numpy as np

        found = {"index": np.arange(count)}
        files = self.files(count)
        if files is not None:
            found["file"] = np.array(files, dtype=object)
        return found

    def files(self, count: int) -> list[str] | None:
        """Return the names of the first `count` pictures that can be read; None of a set."""
        if self.name is not None:
            return None
        from arcsm.data.images.decode import decode, quiet_decoders
        from arcsm.data.images.pictures import UnreadableError, open_pictures

        with quiet_decoders(), open_pictures(Path(self.told).expanduser()) as pictures:
            names = pictures.names()
            if len(names) == count:
                return names
            found: list[str] = []
            for name in names:  # some were passed over, or only the first were read
                if len(found) == count:
                    break
                try:
                    decode(pictures.read(name))
                except UnreadableError:
                    continue
                found.append(name)
            return found


def find_pictures(told: str) -> Pictures | None:
    """Return the images that DATA means, None if it is a table.

    The name of a set means the set: a folder that is called so is ./NAME. A name that says neither,
    and that nothing has, is refused: it may be that of a folder, mistyped.
    """
    match = _SET.fullmatch(told)
    if match is not None:
        return Pictures(told, match["name"], match["part"] or "train")
    from arcsm.data.images.pictures import SUFFIXES

    path = Path(os.path.expanduser(told))  # pathlib raises where there is no such user
    if path.is_dir() or path.suffix.lower() == ".zip" or path.suffix.lower() in SUFFIXES:
        return Pictures(told)
    if not path.exists() and not is_named_as_table(told):
        raise InputError(
            f"expected a table, or a folder or a zip file of pictures, at {told!r}, got nothing"
            " there; check the path"
        )
    return None
