"""`PyODView`: a detector of unusual rows with the names and signs of PyOD."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from arcsm.errors import InputError
from arcsm.estimators.parameters import AUTO_SHARE

if TYPE_CHECKING:
    from arcsm.estimators.detector import ARCSMDetector


class PyODView:
    """An `ARCSMDetector` with the names and signs of PyOD, which need not be installed.

    Scores are higher for more unusual rows, labels 1 for outliers and 0 for others. The threshold
    follows from the detector's `contamination`; PyOD's default would be 0.1.

    >>> import numpy as np
    >>> from arcsm import ARCSMDetector
    >>> x = np.random.default_rng(0).normal(size=(200, 2))
    >>> view = ARCSMDetector(contamination=0.1, max_steps=20, ensemble=1, random_state=0).pyod()
    >>> int(view.fit(x).labels_.sum())
    20
    """

    def __init__(self, detector: "ARCSMDetector"):
        self.detector = detector

    @property
    def contamination(self) -> float:
        """The share of outliers among rows like those of `fit`."""
        told = self.detector.contamination
        return AUTO_SHARE if told == "auto" else float(told)

    def fit(self, X: Any, y: Any = None) -> "PyODView":
        """Learn what is normal from the rows of X; y is not used."""
        self.detector.fit(X)
        return self

    @property
    def decision_scores_(self) -> np.ndarray:
        """The scores of the rows of `fit`."""
        check_is_fitted(self.detector)
        return -self.detector.training_scores_

    @property
    def threshold_(self) -> float:
        """The score above which a row is an outlier."""
        check_is_fitted(self.detector)
        return -self.detector.offset_

    @property
    def labels_(self) -> np.ndarray:
        """1 for each row of `fit` that is an outlier, 0 for the others."""
        return (self.decision_scores_ > self.threshold_).astype(np.int64)

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the scores of other rows: the higher, the more unusual."""
        return -self.detector.score_samples(X)

    def predict(self, X: Any, return_confidence: bool = False) -> Any:
        """Return 1 for each row that is an outlier, 0 for the others; with confidence on demand."""
        labels = (self.decision_function(X) > self.threshold_).astype(np.int64)
        return (labels, self.predict_confidence(X)) if return_confidence else labels

    def predict_proba(self, X: Any, method: str = "linear", return_confidence: bool = False) -> Any:
        """Return how far each row is an inlier and an outlier, as shares of 1 (n_samples, 2).

        "linear" puts the scores of the rows of `fit` between 0 and 1; "unify" (Kriegel et al.,
        2011) takes them as normal, and says how far above their mean a score is.
        """
        from scipy.special import erf

        known, scores = self.decision_scores_, self.decision_function(X)
        if method == "linear":
            share = (scores - known.min()) / max(np.ptp(known), np.finfo(float).tiny)
        elif method == "unify":
            share = erf((scores - known.mean()) / max(known.std(), 1e-300) / math.sqrt(2))
        else:
            raise InputError(f'expected method "linear" or "unify", got {method!r}; choose one')
        outlier = np.clip(share, 0.0, 1.0)
        shares = np.stack([1 - outlier, outlier], axis=1)
        return (shares, self.predict_confidence(X)) if return_confidence else shares

    def predict_confidence(self, X: Any) -> np.ndarray:
        """Return how sure each label of `predict` is, had other rows been drawn (n_samples,).

        A row that b of the n rows of `fit` are below is beyond a share of (1 + b)/(2 + n) of all
        rows. The confidence in an outlier is the chance that of n others so many are below it as
        make it one, by `contamination` (Perini, Vercruyssen and Davis, 2020).
        """
        from scipy.stats import binom

        known, scores = np.sort(self.decision_scores_), self.decision_function(X)
        rows = len(known)
        below = np.searchsorted(known, scores, side="right")
        outliers = max(1, int(rows * self.contamination))
        sure = binom.sf(rows - outliers, rows, (1 + below) / (2 + rows))
        return np.where(scores > self.threshold_, sure, 1 - sure)

    def fit_predict(self, X: Any, y: Any = None) -> np.ndarray:
        """Learn from the rows of X and return their labels."""
        return self.fit(X).labels_
