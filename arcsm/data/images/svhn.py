"""SVHN's cropped digits: the published MATLAB files, or the first training images in an .npz."""

import lzma
import zipfile
import zlib
from pathlib import Path

import numpy as np

from arcsm.errors import InputError

_SHAPE = (32, 32, 3)
_TORN = (
    OSError,
    ValueError,
    EOFError,
    KeyError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)


def read_svhn(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the pixels and the labels of train_32x32.mat or test_32x32.mat; digit 0 is label 0."""
    import scipy.io

    try:
        arrays = scipy.io.loadmat(path, variable_names=("X", "y"))
    # The reader raises what its innards meet in a torn file; the fault is the file's all the same.
    except Exception as error:
        if isinstance(error, MemoryError):
            raise
        raise _refuse(path, f"{error or type(error).__name__}") from error
    images, labels = arrays.get("X"), arrays.get("y")
    if (
        not isinstance(images, np.ndarray)
        or not isinstance(labels, np.ndarray)
        or images.dtype != np.uint8
        or images.ndim != 4
        or images.shape[:3] != _SHAPE
        or images.shape[3] == 0
        or labels.size != images.shape[3]
        or not np.isin(labels, np.arange(1, 11)).all()
    ):
        raise _refuse(path, f"X of {_form(images)} and y of {_form(labels)}")
    # The files count from 1 to 10, and 10 is the digit 0.
    digits = labels.reshape(-1).astype(np.int64) % 10
    return np.ascontiguousarray(images.transpose(3, 0, 1, 2)), digits


def read_first_svhn(path: Path) -> np.ndarray:
    """Return the array `images` (n, 32, 32, 3) of an .npz file."""
    try:
        with zipfile.ZipFile(path):  # numpy.load takes other files for other things
            pass
        # Opened here, because numpy leaves the file of a torn archive open.
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            images = np.asarray(file["images"])
    except _TORN as error:
        raise InputError(
            f"expected the array images in {str(path)!r}, got: {error}; fetch the file again"
        ) from error
    if images.dtype != np.uint8 or images.shape[1:] != _SHAPE or len(images) == 0:
        raise InputError(
            f"expected images as uint8 of shape (n, 32, 32, 3) in {str(path)!r}, got"
            f" {_form(images)}; fetch the file again"
        )
    return images


def _refuse(path: Path, got: str) -> InputError:
    return InputError(
        f"expected X as uint8 of shape (32, 32, 3, n) and y from 1 to 10 in {str(path)!r}, got"
        f" {got}; delete the file, and it will be fetched again"
    )


def _form(array: object) -> str:
    if not isinstance(array, np.ndarray):
        return "nothing"
    return f"{array.dtype} of shape {array.shape}"
