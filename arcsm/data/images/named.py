"""Image sets by name, from a folder on the disk, and downloaded into it if they are not there."""

import os
from pathlib import Path

import numpy as np

from arcsm.data.images.celeba import read_celeba
from arcsm.data.images.cifar import FOLDER as CIFAR_FOLDER
from arcsm.data.images.cifar import read_cifar
from arcsm.data.images.download import Progress, fetch
from arcsm.data.images.idx import read_idx_pair
from arcsm.data.images.pixels import Images, as_most, as_size, shrink
from arcsm.data.images.places import find, images_folder, places
from arcsm.data.images.published import COUNTS, PUBLISHED, SIDES
from arcsm.data.images.svhn import read_first_svhn, read_svhn
from arcsm.errors import InputError

IMAGE_SETS = ("mnist", "fashion-mnist", "cifar10", "svhn", "celeba")
_PARTS = ("train", "test")


def load_images(
    name: str,
    part: str = "train",
    *,
    folder: str | os.PathLike[str] | None = None,
    download: bool = True,
    size: int | None = None,
    most: int | None = None,
    progress: Progress | None = None,
) -> Images:
    """Return the training or the test part of the set `name`; the names are in `IMAGE_SETS`.

    | set | published files that are read | others |
    |---|---|---|
    | mnist, fashion-mnist | the four idx files, `.gz` or not | Debian's dataset-fashion-mnist |
    | cifar10 | cifar-10-python.tar.gz, or the folder it holds | cifar-10-batches-py.tar.xz |
    | svhn | train_32x32.mat, test_32x32.mat | svhn_train_firstN.npz, no labels |
    | celeba | img_align_celeba(.zip), list_eval_partition.txt | celeba64.zip |

    They are looked for in `folder`, else in the folder that ARCSM_DATA says, else in the cache of
    the user, under the name of the set. What is in none of these forms there is downloaded, if
    `download` says so, and checked by its digest; `progress` is called with the bytes that came
    and the bytes in all. CelebA cannot be downloaded by a program. Where only a partial or a
    re-encoded copy is there, it is read and the note says so; with `most` the first that many
    images are read.

    `size` averages blocks of pixels: 32 for CelebA, whose images are 64 x 64, or 14 for MNIST.
    """
    if name not in IMAGE_SETS:
        raise InputError(f"expected one of the sets {', '.join(IMAGE_SETS)}, got {name!r}")
    if part not in _PARTS:
        raise InputError(f"expected part as 'train' or 'test', got {part!r}")
    side, most = as_size(size, SIDES[name]), as_most(most)
    base = images_folder(folder)
    if name == "celeba":
        pixels, note = read_celeba(places(name, base), part, size=side, most=most)
        return Images(pixels, None, name, part, note)
    labels: np.ndarray | None
    if name == "svhn" and part == "train" and (first := _first_svhn(base)) is not None:
        pixels, labels, note = read_first_svhn(first), None, "no labels"
    else:
        paths = _published(name, part, base, download=download, progress=progress)
        note = ""
        if name == "cifar10":
            pixels, labels, note = read_cifar(paths[0], part)
        elif name == "svhn":
            pixels, labels = read_svhn(paths[0])
        else:
            pixels, labels = read_idx_pair(*paths, most=COUNTS[name, part])
    whole = COUNTS[name, part]
    if len(pixels) != whole:
        note = "; ".join(filter(None, (f"{len(pixels)} of {whole} images", note)))
    if most is not None and most < len(pixels):  # copies: a view would hold the rest in memory
        pixels, labels = pixels[:most].copy(), None if labels is None else labels[:most].copy()
    return Images(shrink(pixels, side), labels, name, part, note)


def _first_svhn(base: Path) -> Path | None:
    """Return the file of the first training images, where the published one is not there."""
    directories = places("svhn", base)
    if find(directories, PUBLISHED["svhn", "train"][0].file) is not None:
        return None
    found = [path for place in directories for path in sorted(place.glob("svhn_train_first*.npz"))]
    return found[0] if found else None


def _published(
    name: str, part: str, base: Path, *, download: bool, progress: Progress | None
) -> list[Path]:
    """Return the paths of the files of one part, after those that are missing were fetched."""
    directories = places(name, base)
    remotes = PUBLISHED[name, part]
    found = [find(directories, *_forms(remote.file)) for remote in remotes]
    missing = [remote for remote, path in zip(remotes, found, strict=True) if path is None]
    if missing and not download:
        raise InputError(
            f"expected {' and '.join(remote.file for remote in missing)} in"
            f" {str(directories[0])!r}, got nothing there; pass download=True, or get"
            f" {' and '.join(remote.urls[0] for remote in missing)}"
        )
    fetched = iter(fetch(missing, directories[0], progress=progress))
    return [next(fetched) if path is None else path for path in found]


def _forms(file: str) -> tuple[str, ...]:
    """Return the names under which a published file may lie on the disk, the best first."""
    if file.startswith("cifar"):
        return CIFAR_FOLDER, file, f"{CIFAR_FOLDER}.tar.xz", f"{CIFAR_FOLDER}.tar.gz"
    return file, file.removesuffix(".gz")
