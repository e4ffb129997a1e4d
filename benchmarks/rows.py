"""The rows that benchmarks/tables.py fits: which sets, how they are split, what noise they get.

Sets: the normal rows (y = 0) of the ADBench sets, and sets of scikit-learn, here called
sklearn/NAME. Of these linnerud is left out: its 20 rows cannot tell four methods apart.

Protocol, for each set and seed: the rows are shuffled; 70 % are for training (at most 20,000) and
the others for testing (at most 10,000). A column that is constant in the training rows is left out.

The density of a value that repeats has no bound: whoever puts the narrowest spike on it wins. So
all methods get the same rows, in which such columns are no longer discrete. Judged on all rows,
and where those call for no noise on the training rows,
- a column on a grid (as `arcsm.columns` finds it) gets uniform noise of ± half a quantum, and so
  does a column of two values, its quantum being their distance;
- a column on no grid gets uniform noise as wide as the median gap between its distinct values if
  one value has more than 5 % of the rows, or if most rows share their value with another row.
"""

from dataclasses import dataclass

import numpy as np

from arcsm.columns.grids import find_grid
from arcsm.columns.sample import Sample
from arcsm.data.sets import ADBENCH, load_adbench, load_sklearn

SETS = (
    *ADBENCH,
    *(f"sklearn/{name}" for name in ("breast_cancer", "diabetes", "digits", "iris", "wine")),
)
MOST_TRAIN, MOST_TEST, TRAIN_SHARE = 20_000, 10_000, 0.7
# As arcsm.columns has it: a quantum below this part of the width is as good as continuous.
LEAST_QUANTUM = 0.002
MOST_REPEATED = 0.05


@dataclass(frozen=True, eq=False)
class Split:
    """Training and test rows of one set and seed, without discrete columns."""

    train: np.ndarray
    test: np.ndarray


def read_set(name: str) -> np.ndarray:
    """Return the rows of a set in `SETS`; of an ADBench set the normal ones."""
    if name.startswith("sklearn/"):
        return load_sklearn(name.removeprefix("sklearn/")).to_numpy()
    table, anomaly = load_adbench(name)
    return table.take(anomaly == 0).to_numpy()


def noise_width(column: np.ndarray) -> float:
    """Return the width of the noise that makes a column continuous: 0 where it already is."""
    sample = Sample.of(column, None)
    if sample.distinct < 2:
        return 0.0
    if sample.distinct == 2:
        return float(np.ptp(sample.values))
    deviation, robust = sample.mean_and_deviation()[1], sample.robust_scale()
    width = min(deviation, robust) if robust > 0 else deviation
    grid = find_grid(sample.values, least=LEAST_QUANTUM * width)
    if grid is not None:
        return float(grid.quantum)
    shared = sample.counts[sample.counts > 1].sum() / sample.rows
    if sample.counts.max() / sample.rows > MOST_REPEATED or shared > 0.5:
        return float(np.median(np.diff(sample.values)))
    return 0.0


def split_rows(rows: np.ndarray, seed: int) -> Split:
    """Shuffle, split, leave out constant columns and add the noise, as the protocol says."""
    random = np.random.default_rng(seed)
    order = random.permutation(len(rows))
    cut = round(TRAIN_SHARE * len(rows))
    train, test = rows[order[:cut][:MOST_TRAIN]], rows[order[cut:][:MOST_TEST]]
    varied = np.ptp(train, axis=0) > 0
    widths = np.array([noise_width(column) for column in rows.T])
    # A few odd rows can hide a grid that those who see the training rows alone would find.
    seen = np.array([noise_width(column) for column in train.T])
    widths = np.where(widths > 0, widths, seen)
    noisy = [
        part[:, varied] + random.uniform(-0.5, 0.5, size=(len(part), varied.sum())) * widths[varied]
        for part in (train, test)
    ]
    return Split(*noisy)


def speed_table(rows: int, seed: int) -> np.ndarray:
    """Return 20 correlated columns, partly discrete, driven by five hidden normal factors.

    Each column starts as a normal z = loadings · factors + own noise, of variance 1. Eight stay
    real: four as they are, two as exp z, two as z³. Four are shares 1/(1 + e^−z), four are counts
    (Poisson of rate e^(1 + z/2)), two are readings in steps of 0.25, two are 0 or 1.
    """
    # The loadings are the same for every seed: other seeds are other rows of the same table.
    loadings = np.random.default_rng(0).normal(size=(5, 20))
    loadings *= np.sqrt(0.7) / np.linalg.norm(loadings, axis=0)
    random = np.random.default_rng(seed + 1)
    z = random.normal(size=(rows, 5)) @ loadings + np.sqrt(0.3) * random.normal(size=(rows, 20))
    z[:, 4:6] = np.exp(z[:, 4:6])
    z[:, 6:8] **= 3
    z[:, 8:12] = 1 / (1 + np.exp(-z[:, 8:12]))
    z[:, 12:16] = random.poisson(np.exp(1 + z[:, 12:16] / 2))
    z[:, 16:18] = np.round(z[:, 16:18] * 4) / 4
    z[:, 18:] = z[:, 18:] > 0
    return z
