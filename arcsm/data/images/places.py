"""Where image sets lie on the disk: the folder that was named, or the user's cache."""

import os
import sys
from pathlib import Path

from arcsm.data.sets import data_folder
from arcsm.errors import InputError

# The folders, within the folder of data sets, that hold a set: that of arcsm, which downloads go
# to, then those of other programs. An empty name is the folder itself: only for sets whose files
# have names that no other set has.
_WITHIN = {
    "mnist": ("mnist", "MNIST/raw"),
    "fashion-mnist": ("fashion-mnist", "FashionMNIST/raw"),
    "cifar10": ("cifar10", ""),
    "svhn": ("svhn", ""),
    "celeba": ("celeba", ""),
}
# Where the Debian package dataset-fashion-mnist puts its files.
DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")


def images_folder(folder: str | os.PathLike[str] | None = None) -> Path:
    """Return `folder`, else the folder in ARCSM_DATA, else the cache, which need not exist yet.

    A folder that was named must exist: a slip of the pen is not a place for large downloads.
    """
    if folder is not None or os.environ.get("ARCSM_DATA"):
        return data_folder(folder)
    return user_cache() / "arcsm" / "data"


def user_cache() -> Path:
    """Return the directory that this system keeps the caches of the user in."""
    try:
        if sys.platform == "win32":
            return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches"
        told = Path(os.environ.get("XDG_CACHE_HOME", ""))
        # The standard says to ignore a relative path.
        return told if told.is_absolute() else Path.home() / ".cache"
    except RuntimeError as error:  # no home directory
        raise InputError(
            f"expected a home directory to keep data sets in, got: {error}; pass folder=...,"
            " or set the environment variable: export ARCSM_DATA=/path/to/data"
        ) from error


def places(name: str, folder: Path) -> list[Path]:
    """Return the directories to look for the set in, in this order; the first takes downloads."""
    found = [folder / within for within in _WITHIN[name]]
    if name == "fashion-mnist":
        found.append(DEBIAN_FASHION_MNIST)
    return found


def find(directories: list[Path], *names: str) -> Path | None:
    """Return the first path there is: each of the names in the first directory, and so on."""
    for directory in directories:
        for name in names:
            if (directory / name).exists():
                return directory / name
    return None
