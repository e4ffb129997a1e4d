"""The rows that benchmarks/detect.py judges detectors on.

ADBench, one-class: of at most 10,000 rows, drawn at random where a set has more, half of the normal
ones are for training; the others and all anomalies are for testing. Unsupervised: half of all rows
for training, anomalies among them as they come, and the other half for testing.

Tasks to choose defaults by, none of them an ADBench set: classes of scikit-learn's sets (other
classes as the normal ones than ADBench has, where it holds the same data), and anomalies made for
tables without any, of the four kinds that ADBench describes:
- local: from a Gaussian mixture fitted to the normal rows, its covariances five times as wide;
- clustered: from that mixture, its means five times as far from the mean of all rows;
- global: each column uniform, a tenth beyond the range of the normal rows;
- dependency: each column drawn from the normal rows by itself, so that only the marginals are kept.

Tables of normally distributed rows, of which a Gaussian knows all that there is to know: it finds a
column that was changed as well as can be.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from rows import speed_table
from sklearn import datasets
from sklearn.mixture import GaussianMixture

from arcsm.data.sets import load_adbench, load_power

MOST_ROWS = 10_000
MADE = 150  # anomalies of each kind
MOST_COMPONENTS = 5


@dataclass(frozen=True, eq=False)
class Task:
    """Training rows, test rows, and what each test row is: "normal", or a kind of anomaly."""

    train: np.ndarray
    test: np.ndarray
    kind: np.ndarray

    @property
    def kinds(self) -> list[str]:
        """The kinds of anomalies among the test rows."""
        return sorted(set(self.kind.tolist()) - {"normal"})


def adbench_task(name: str, seed: int, *, unsupervised: bool = False) -> Task:
    """Return an ADBench set, split as said above."""
    table, anomalous = load_adbench(name)
    rows, random = table.to_numpy(), np.random.default_rng(seed)
    order = random.permutation(len(rows))[:MOST_ROWS]
    rows, anomalous = rows[order], anomalous[order] == 1
    kind = np.where(anomalous, "anomaly", "normal")
    train = np.zeros(len(rows), dtype=bool)
    for group in (~anomalous, anomalous) if unsupervised else (~anomalous,):
        members = np.flatnonzero(group)
        train[members[: len(members) // 2]] = True
    return Task(rows[train], rows[~train], kind[~train])


def one_class(normal: np.ndarray, anomalies: dict[str, np.ndarray], seed: int) -> Task:
    """Return a task with half of the normal rows for training, and all anomalies for testing."""
    order = np.random.default_rng(seed).permutation(len(normal))
    train, rest = np.split(normal[order], [len(normal) // 2])
    kind = ["normal"] * len(rest) + [name for name, rows in anomalies.items() for _ in rows]
    return Task(train, np.concatenate([rest, *anomalies.values()]), np.array(kind))


def made_anomalies(normal: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    """Return anomalies of the four kinds."""
    random = np.random.default_rng((seed, 1))
    mean, scale = normal.mean(0), normal.std(0) + 1e-12
    z = (normal - mean) / scale
    mixtures = [
        GaussianMixture(count, reg_covar=1e-4, random_state=0).fit(z)
        for count in range(1, MOST_COMPONENTS + 1)
    ]
    mixture = min(mixtures, key=lambda fitted: fitted.bic(z))

    def drawn(wider: float, farther: float) -> np.ndarray:
        parts = random.choice(len(mixture.weights_), MADE, p=mixture.weights_)
        return np.stack(
            [
                random.multivariate_normal(
                    mixture.means_[part] * farther, mixture.covariances_[part] * wider
                )
                for part in parts
            ]
        )

    clustered = drawn(1.0, 5.0)
    if len(mixture.means_) == 1:  # whose mean is 0 however far it is moved
        clustered = clustered + 2 * random.choice([-1.0, 1.0], z.shape[1])
    found = {
        "local": drawn(5.0, 1.0),
        "clustered": clustered,
        "global": random.uniform(1.1 * z.min(0), 1.1 * z.max(0), (MADE, z.shape[1])),
        "dependency": np.stack([random.choice(column, MADE) for column in z.T], 1),
    }
    return {kind: rows * scale + mean for kind, rows in found.items()}


def choice_task(name: str, seed: int) -> Task:
    """Return one of the tasks in `CHOICE`."""
    return CHOICE[name](seed)


# Tables without anomalies, and classes


def _with_made(rows: Callable[[int], np.ndarray], seed: int) -> Task:
    normal = rows(seed)
    return one_class(normal, made_anomalies(normal, seed), seed)


def _class(load: Callable[[], object], normal: tuple[int, ...], most: int, seed: int) -> Task:
    bunch = load()
    own = np.isin(bunch.target, normal)
    random = np.random.default_rng((seed, 2))
    chosen = [random.permutation(rows)[:most] for rows in (bunch.data[own], bunch.data[~own])]
    return one_class(chosen[0], {"class": chosen[1]}, seed)


def _mixture(seed: int) -> np.ndarray:
    """Return five clusters in eight columns, each narrow in some direction."""
    shape, random = np.random.default_rng(1), np.random.default_rng(seed)
    parts = []
    for _ in range(5):
        axes = shape.normal(size=(8, 8)) * np.geomspace(1, 0.1, 8)
        parts.append(random.normal(size=(240, 8)) @ axes.T + 3 * shape.normal(size=8))
    return np.concatenate(parts)


def _moons(seed: int) -> np.ndarray:
    """Return two moons among eight columns of noise, turned in space."""
    random = np.random.default_rng(seed)
    moons = datasets.make_moons(1200, noise=0.06, random_state=seed)[0]
    turn, _ = np.linalg.qr(np.random.default_rng(2).normal(size=(10, 10)))
    return np.concatenate([moons, 0.3 * random.normal(size=(1200, 8))], 1) @ turn


def _curve(seed: int) -> np.ndarray:
    """Return six columns, five of which follow from one hidden number up to noise."""
    random = np.random.default_rng(seed)
    t = random.uniform(0, 6, 900)
    bent = np.stack([np.sin(t), np.cos(t), t**2 / 10, np.exp(t / 3), np.sin(2 * t)], 1)
    noise = 0.05 * random.normal(size=bent.shape)
    return np.column_stack([bent + noise, random.gamma(2, size=900)])


def _power(seed: int) -> np.ndarray:
    rows = load_power().train
    return rows[np.random.default_rng(seed).permutation(len(rows))[:1600]]


def _diabetes(seed: int) -> np.ndarray:
    return np.asarray(datasets.load_diabetes(scaled=False).data)


def _benign(seed: int) -> np.ndarray:
    bunch = datasets.load_breast_cancer()
    return np.asarray(bunch.data[bunch.target == 1])


def _mixed(seed: int) -> np.ndarray:
    return speed_table(1200, seed)


CHOICE: dict[str, Callable[[int], Task]] = {
    "digits 2": partial(_class, datasets.load_digits, (2,), 300),
    "digits 6": partial(_class, datasets.load_digits, (6,), 300),
    "digits but 3": partial(_class, datasets.load_digits, (0, 1, 2, 4, 5, 6, 7, 8, 9), 900),
    "digits but 8": partial(_class, datasets.load_digits, (0, 1, 2, 3, 4, 5, 6, 7, 9), 900),
    "malignant": partial(_class, datasets.load_breast_cancer, (0,), 400),
    "wine 1": partial(_class, datasets.load_wine, (1,), 400),
    "iris 1": partial(_class, datasets.load_iris, (1,), 400),
    **{
        rows.__name__.strip("_"): partial(_with_made, rows)
        for rows in (_diabetes, _benign, _power, _mixture, _moons, _curve, _mixed)
    },
}


# Normally distributed rows


def _factors(columns: int, count: int, own: float) -> np.ndarray:
    """Return the covariance of columns that share some factors; each has a little of its own."""
    loadings = np.random.default_rng(3).normal(size=(columns, count)) / math.sqrt(count)
    return loadings @ loadings.T + own**2 * np.eye(columns)


def _chain(columns: int, correlation: float) -> np.ndarray:
    """Return the covariance of columns each of which follows the one before."""
    place = np.arange(columns)
    return correlation ** np.abs(place[:, None] - place)


NORMAL = {
    "normal, one factor": _factors(10, 1, 0.1),
    "normal, three factors": _factors(15, 3, 0.1),
    "normal, a chain": _chain(12, 0.99),
}


def normal_task(name: str, seed: int) -> Task:
    """Return one of the tables in `NORMAL`: 2,000 rows for training, and as many for testing."""
    covariance = NORMAL[name]
    random = np.random.default_rng((seed, 4))
    rows = random.multivariate_normal(np.zeros(len(covariance)), covariance, 4000)
    return one_class(rows, {}, seed)


def auroc(outlier_score: np.ndarray, anomalous: np.ndarray) -> float:
    """Return the probability that an anomaly scores above a normal row; ties count half."""
    from sklearn.metrics import roc_auc_score

    if not np.isfinite(outlier_score).all():
        return math.nan
    return float(roc_auc_score(anomalous, outlier_score))


def corrupted_columns(task: Task, most: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return normal test rows with one column each from another training row, and which it is.

    Columns that are constant in the training rows are left alone, and a draw that would leave a
    value as it was is made again, up to a hundred times.
    """
    random = np.random.default_rng((seed, 3))
    rows = task.test[task.kind == "normal"]
    rows = rows[random.permutation(len(rows))[:most]].copy()
    varied = np.flatnonzero(np.ptp(task.train, axis=0) > 0)
    column = random.choice(varied, len(rows))
    changed = np.zeros(len(rows), dtype=bool)
    for place in range(len(rows)):
        for _ in range(100):
            value = random.choice(task.train[:, column[place]])
            if value != rows[place, column[place]]:
                rows[place, column[place]], changed[place] = value, True
                break
    return rows[changed], column[changed]
