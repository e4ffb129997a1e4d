"""What benchmarks/detect.py puts beside ARCSMDetector: PyOD, and a Gaussian.

The detectors of PyOD have its defaults, and get columns standardised by the training rows. They are
imported when they are used: pip install 'arcsm[bench]'.
"""

import time
import warnings
from importlib import import_module

import numpy as np
from anomalies import Task

from arcsm.errors import InputError

# Of PyOD: the module and the class.
RIVALS = {
    "KNN": ("knn", "KNN"),
    "LOF": ("lof", "LOF"),
    "IForest": ("iforest", "IForest"),
    "GMM": ("gmm", "GMM"),
    "OCSVM": ("ocsvm", "OCSVM"),
    "HBOS": ("hbos", "HBOS"),
    "PCA": ("pca", "PCA"),
    "ECOD": ("ecod", "ECOD"),
}

# Of each method, the outlier scores of the test rows, and the seconds that they took.
Scores = dict[str, tuple[np.ndarray, float]]


def rival_scores(task: Task, name: str) -> tuple[Scores, float]:
    """Return the outlier scores of a detector of PyOD, on standardised columns."""
    module, title = RIVALS[name]
    try:
        rival = getattr(import_module(f"pyod.models.{module}"), title)()
    except ImportError as error:
        raise InputError(
            f"expected pyod for {name}, got no such package; install it with:"
            " pip install 'arcsm[bench]'"
        ) from error
    mean, scale = task.train.mean(0), scale_of(task.train)
    train, test = ((rows - mean) / scale for rows in (task.train, task.test))
    if name == "PCA":  # divides by eigenvalues, which columns that do not vary make 0
        train, test = (rows[:, np.ptp(task.train, axis=0) > 0] for rows in (train, test))
    start = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of libraries, about each other
        rival.fit(train)
        fitted = time.monotonic()
        scores = np.asarray(rival.decision_function(test), dtype=np.float64)
    return {name: (scores, time.monotonic() - fitted)}, fitted - start


def scale_of(rows: np.ndarray) -> np.ndarray:
    """Return the standard deviations of the columns, 1 for those of none."""
    scale = rows.std(0)
    return np.where(scale > 0, scale, 1.0)


def conditional_z(train: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return |x_d − E[x_d | others]| over its standard deviation, for a Gaussian of `train`.

    With P the inverse of the covariance, that is |(P (x − mean))_d| / √P_dd.
    """
    mean, scale = train.mean(0), scale_of(train)
    z = (train - mean) / scale
    # A ridge that matters only to columns that others determine to a ten-thousandth.
    covariance = np.cov(z.T).reshape(z.shape[1], -1) + 1e-8 * np.eye(z.shape[1])
    precision = np.linalg.inv(covariance)
    return np.abs(((rows - mean) / scale) @ precision) / np.sqrt(precision.diagonal())
