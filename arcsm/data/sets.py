"""Real data sets, from a folder the user has or from scikit-learn; nothing is downloaded.

The folder holds `adbench/NAME.npz` with the arrays X and y, and `power/power.npz` with an array
for each column of whole numbers.
"""

import os
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from arcsm.data.table import Table, as_table
from arcsm.errors import InputError

ADBENCH = (
    "Ionosphere",
    "WDBC",
    "annthyroid",
    "breastw",
    "cardio",
    "fault",
    "glass",
    "letter",
    "magic.gamma",
    "mnist",
    "optdigits",
    "pendigits",
    "satellite",
    "shuttle",
    "thyroid",
    "vowels",
    "wine",
)
SKLEARN = ("breast_cancer", "diabetes", "digits", "iris", "linnerud", "wine")

# The six columns of POWER: the array in the file, its units in one unit of the column (kW, V, Wh,
# Wh, Wh, minutes), and the width of the noise in units of the column, which is one step of the
# meter. The time gets none.
_POWER = (
    ("global_active_power_W", 1000, 0.001),
    ("voltage_cV", 100, 0.01),
    ("sub_metering_1", 1, 1.0),
    ("sub_metering_2", 1, 1.0),
    ("sub_metering_3", 1, 1.0),
    ("minute_of_day", 1, 0.0),
)
POWER_COLUMNS = (
    "active_power",
    "voltage",
    "sub_metering_1",
    "sub_metering_2",
    "sub_metering_3",
    "minute_of_day",
)


@dataclass(frozen=True, eq=False)
class PowerSplit:
    """The POWER set, standardised, in float64 arrays (rows, 6) of `POWER_COLUMNS`.

    `quanta` holds, in standardised units, the width of the uniform noise of each column, and
    `mean` and `scale` what takes a row back to kW, V, Wh and minutes: row * scale + mean.
    """

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    quanta: np.ndarray
    mean: np.ndarray
    scale: np.ndarray


def data_folder(folder: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of data sets: `folder`, else what the variable ARCSM_DATA says."""
    told = os.fspath(folder) if folder is not None else os.environ.get("ARCSM_DATA", "")
    if not told:
        raise InputError(
            "expected a folder of data sets, got none; pass folder=..., or set the environment"
            " variable: export ARCSM_DATA=/path/to/data"
        )
    path = Path(os.path.expanduser(told))  # pathlib raises where there is no such user
    if not path.is_dir():
        source = "folder" if folder is not None else "ARCSM_DATA"
        raise InputError(
            f"expected {source} to be an existing folder of data sets, got {told!r};"
            " correct the path"
        )
    return path


def load_adbench(
    name: str, folder: str | os.PathLike[str] | None = None
) -> tuple[Table, np.ndarray]:
    """Return the rows of an ADBench set, columns x0, x1, ..., and y: 0 normal, 1 anomaly.

    The names known are in `ADBENCH`; any other set of the same form in the folder loads as well.
    """
    directory = data_folder(folder) / "adbench"
    found = sorted(path.stem for path in directory.glob("*.npz"))
    if name not in found:
        raise InputError(
            f"expected the name of an ADBench set in {str(directory)!r}, got {name!r};"
            f" found there: {', '.join(found) or 'none'}"
        )
    arrays = _load(directory / f"{name}.npz", ("X", "y"))
    table, y = as_table(arrays["X"]), arrays["y"]
    if y.shape != (table.rows,) or not np.isin(y, (0, 1)).all():
        raise InputError(
            f"expected y of {name!r} with 0 or 1 for each of {table.rows} rows, got shape {y.shape}"
            f" with the values {np.unique(y)[:5].tolist()}; fetch the file again"
        )
    return table, y.astype(np.int64)


def load_power(folder: str | os.PathLike[str] | None = None, *, seed: int = 0) -> PowerSplit:
    """Return UCI household electric power in the six columns that density models use.

    The rows are shuffled by a numpy generator of `seed`, and to each value uniform noise of one
    step of its meter is added: 0.001 kW, 0.01 V, 1 Wh three times, none to the time of day. The
    last tenth of the rows is the test set and the last tenth of the others the validation set. All
    are standardised by the mean and the standard deviation of training and validation rows.

    This is the recipe of the published benchmark (MAF), not its split: 22 of its rows are not
    here, the shuffle is another, and that its time column is this one was not verified. So
    log-likelihoods are close to the published ones, but not the same.
    """
    path = data_folder(folder) / "power" / "power.npz"
    if not path.is_file():
        raise InputError(f"expected the POWER set at {str(path)!r}, got nothing there")
    arrays = _load(path, tuple(name for name, _, _ in _POWER))
    random = np.random.default_rng(seed)
    rows = len(arrays["minute_of_day"])
    order = random.permutation(rows)
    x = np.stack([arrays[name][order] / units for name, units, _ in _POWER], axis=1)
    width = np.array([noise for _, _, noise in _POWER])
    x += random.uniform(size=x.shape) * width
    test = rows // 10
    validation = (rows - test) // 10
    if validation == 0:
        raise InputError(f"expected at least 12 rows in {str(path)!r}, got {rows}")
    mean, scale = x[:-test].mean(0), x[:-test].std(0)
    x = (x - mean) / scale
    return PowerSplit(
        train=x[: -test - validation],
        validation=x[-test - validation : -test],
        test=x[-test:],
        quanta=width / scale,
        mean=mean,
        scale=scale,
    )


def load_sklearn(name: str) -> Table:
    """Return the features of a real set that scikit-learn brings along, in their own units.

    The names are in `SKLEARN`. Classes and targets are left out.
    """
    if name not in SKLEARN:
        raise InputError(f"expected one of the sets {', '.join(SKLEARN)}, got {name!r}")
    from sklearn import datasets

    # Only diabetes comes scaled unless asked otherwise.
    options = {"scaled": False} if name == "diabetes" else {}
    bunch = getattr(datasets, f"load_{name}")(**options)
    return as_table(bunch.data, names=[str(column) for column in bunch.feature_names])


def _load(path: Path, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    try:
        # Opened here, because numpy leaves the file of a torn archive open.
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            absent = [name for name in names if name not in file.files]
            if absent:
                raise InputError(
                    f"expected the arrays {absent} in {str(path)!r}, got {file.files};"
                    " fetch the file again"
                )
            return {name: file[name] for name in names}
    # Archives of other versions, other compressions or with a password are errors at run time.
    except (ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"expected a whole .npz file at {str(path)!r}, got: {error}; fetch the file again"
        ) from error
