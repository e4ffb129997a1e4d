"""`ARCSMDetector`: unusual rows of a table, by scikit-learn's contract for outliers."""

import math
import os
from collections.abc import Callable, Mapping
from numbers import Real as Number
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, OutlierMixin, clone
from sklearn.utils.validation import check_is_fitted

from arcsm.data.table import Table
from arcsm.errors import CheckpointError, InputError
from arcsm.estimators.density import ARCSMDensity
from arcsm.estimators.parameters import AUTO_SHARE, by_name, plain
from arcsm.estimators.pyod_view import PyODView
from arcsm.estimators.rows import checked_table
from arcsm.files import atomic_directory
from arcsm.tabular import TabularModel, load_tabular, save_tabular
from arcsm.tasks.detect import NEIGHBOURS, Detector, check_method
from arcsm.train import Progress, holds_model
from arcsm.train.checkpoint import describe, read_tensors, write_tensors

# By this share of it the threshold then lies below the last row of `fit` that is none, so that
# this one stays so when its score is rounded in another way.
_ROUNDING = 1e-6
_STATE = "detector.safetensors"
# Fewer rows than this are not fitted a second time.
_LEAST_KEPT = 20


class ARCSMDetector(OutlierMixin, BaseEstimator):
    """Unusual rows of a table, by the conditional scores of autoregressive score matching.

    An ensemble of density models, each in an order of its own, learns the rows of `fit`, which are
    taken as normal but for a few. A row is unusual if its density is low at several scales, or if
    its scores are unlike those of all training rows. What a column is (numbers, truth values,
    text) is seen from the data; a category that was never seen before is not an error, and makes a
    row unusual unless such values are frequent.

    Parameters
    ----------
    contamination : "auto" or float in (0, 0.5], default="auto"
        The share of outliers among the rows of `fit`, which sets the threshold of `predict`. The
        models are then fitted twice, the second time without the most unusual rows, and so many
        rows count as neighbours that outliers do not vouch for each other. With "auto" the rows
        are taken as normal, and one in a hundred like them is called an outlier: give a number
        where anomalies may be among them.
    method : str, default="auto"
        What makes a row unusual: "auto", "nll", "csm", "multiscale", "typicality" or "h"; see
        :mod:`arcsm.tasks.detect`.
    columns : dict, default=None
        What single columns are, by name or position, as in `ARCSMDensity`. Columns of numbers are
        by default taken as real and as they are ("linear"), so that no value is impossible and
        what lies far out stays there.
    ensemble : int, default=4
        How many models to train side by side.
    max_steps, max_seconds : int and float, default=None
        Limits on the training; with a number for `contamination` on each of both.
    device : str, default="cpu"
        Where to compute: "cpu", "cuda", …
    verbose : bool, default=False
        Print the losses during training.
    random_state : int, RandomState instance or None, default=None
        Determines orders, weights, noise and the split.

    Attributes
    ----------
    density_ : ARCSMDensity
        The density of the rows.
    detector_ : Detector
        What makes outlier scores of it.
    offset_ : float
        `decision_function` is `score_samples` less this; below 0 are the outliers.
    training_scores_ : ndarray of shape (n_samples,)
        `score_samples` of the rows of `fit`.
    kept_ : ndarray of shape (n_samples,)
        Whether a row of `fit` was learned from: all were, unless `contamination` is a number.
    n_features_in_, feature_names_in_ : number and names of the columns seen in `fit`.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(200, 2))
    >>> detector = ARCSMDetector(max_steps=20, ensemble=1, random_state=0).fit(x)
    >>> detector.predict([[0.0, 0.0], [30.0, 30.0]])
    array([ 1, -1])
    """

    def __init__(
        self,
        *,
        contamination: float | str = "auto",
        method: str = "auto",
        columns: Mapping[str | int, Any] | None = None,
        ensemble: int = 4,
        max_steps: int | None = None,
        max_seconds: float | None = None,
        device: str = "cpu",
        verbose: bool = False,
        random_state: Any = None,
    ):
        self.contamination = contamination
        self.method = method
        self.columns = columns
        self.ensemble = ensemble
        self.max_steps = max_steps
        self.max_seconds = max_seconds
        self.device = device
        self.verbose = verbose
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> "ARCSMDetector":
        """Learn what is normal from the rows of X.

        Parameters
        ----------
        X : array-like or data frame of shape (n_samples, n_features)
            The rows; columns may be numbers, truth values or, in a data frame, text. A missing
            value is an error.
        y : ignored
            Not used; for the sake of pipelines.

        Returns
        -------
        self
        """
        return self.fit_with_progress(X)

    def fit_with_progress(
        self, X: Any, *, progress: Callable[[Progress], None] | None = None
    ) -> "ARCSMDetector":
        """Learn as `fit` does; `progress` is called after each look at the held-out rows."""
        check_contamination(self.contamination)
        check_method(self.method)
        # What an earlier fit has learned stays whole until this one has succeeded.
        table = checked_table(clone(self), X, None)
        told = {} if self.columns is None else by_name(self.columns, table.names)
        kinds = {**_numbers_as_they_are(table), **told}
        density = ARCSMDensity(
            columns=dict[str | int, Any](kinds.items()),
            order="random",
            ensemble=self.ensemble,
            max_steps=_default_steps(table.rows) if self.max_steps is None else self.max_steps,
            max_seconds=self.max_seconds,
            device=self.device,
            verbose=self.verbose,
            random_state=self.random_state,
        )
        density.fit_resumable(X, progress=progress)
        kept = np.ones(table.rows, dtype=bool)
        detector = self._learn(density, table, kept)
        if self.contamination != "auto":
            scores = -detector.state["training_scores"]
            # No more than the share: rows that are alike stay together.
            kept = scores >= np.sort(scores)[int(float(self.contamination) * len(scores))]
            # Some rows have to be left, and have to differ, to be learned from.
            if kept.sum() >= _LEAST_KEPT and _vary(table.take(kept)):
                density = _fit_again(density, table.take(kept), progress)
                detector = self._learn(density, table, kept)
            else:
                kept[:] = True
        self._take(density, detector, kept)
        return self

    def score_samples(self, X: Any) -> np.ndarray:
        """Return how normal each row is, of shape (n_samples,): the lower the more unusual."""
        check_is_fitted(self)
        return -self.detector_.outlier_score(self._table(X))

    def decision_function(self, X: Any) -> np.ndarray:
        """Return `score_samples` less `offset_`: below 0 for outliers, of shape (n_samples,)."""
        check_is_fitted(self)
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> np.ndarray:
        """Return −1 for each row that is an outlier and 1 for the others."""
        check_is_fitted(self)
        return np.where(self.decision_function(X) < 0, -1, 1)

    def explain(self, X: Any) -> np.ndarray:
        """Return the surprise of each column given the others, of shape (n_samples, n_features).

        It is in nats, averaged over the orders of the ensemble, and above 0 where the others would
        sit better with another value of the column: see :mod:`arcsm.tasks.detect.explain`.
        :func:`arcsm.plots.surprise_plot` draws a row of it. Explaining takes hundreds of times as
        long as scoring: pass the rows that matter.
        """
        check_is_fitted(self)
        return self.detector_.explain(self._table(X))

    def with_method(self, method: str, X: Any) -> "ARCSMDetector":
        """Return a detector with another `method` and the same fitted models; X as in `fit`."""
        check_is_fitted(self)
        check_method(method)
        table = self._table(X)
        same = table.rows == len(self.kept_) and np.allclose(
            -self.detector_.outlier_score(table), self.training_scores_, rtol=1e-3, atol=1e-4
        )
        if not same:
            raise InputError(
                f"expected the {len(self.kept_)} rows of `fit` in their order, got"
                f" {table.rows} that are not these; pass the same X"
            )
        other: ARCSMDetector = clone(self).set_params(method=method)
        other._take(self.density_, other._learn(self.density_, table, self.kept_), self.kept_)
        return other

    def pyod(self) -> PyODView:
        """Return the detector as those who know PyOD expect it: higher is more unusual."""
        return PyODView(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted detector to a directory.

        A model that is already there is replaced; a directory of anything else is refused.
        """
        check_is_fitted(self)
        target = Path(path)
        if target.is_dir() and any(target.iterdir()) and not holds_model(target):
            raise InputError(
                f"expected a new directory or that of a model, got {os.fspath(path)!r}, which"
                " holds other files; choose another path"
            )
        params = self.get_params()
        if self.columns is not None:  # by name, as JSON has no other keys
            params["columns"] = by_name(self.columns, self.density_.model_.columns.names)
        if not isinstance(self.random_state, int | np.integer | None):
            params["random_state"] = None  # a generator is not part of what was learned
        details = {
            "estimator": type(self).__name__,
            "parameters": plain(params),
            "frame": self.frame_,
            "named": hasattr(self, "feature_names_in_"),
        }
        model, state = self.density_.model_, dict(self.detector_.state)
        state |= {"kept": self.kept_, "held_out": self.density_.held_out_}
        tensors = {name: torch.from_numpy(np.array(values)) for name, values in state.items()}
        with atomic_directory(path) as directory:
            save_tabular(directory, model, details=details)
            write_tensors(directory / _STATE, tensors, describe(model.model))

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, device: str = "cpu") -> "ARCSMDetector":
        """Read a detector that `save` wrote. Nothing is unpickled."""
        model, details = load_tabular(path, device=device)
        try:
            if details["estimator"] != cls.__name__:
                raise CheckpointError(
                    f"expected an {cls.__name__} in {os.fspath(path)!r}, got an"
                    f" {details['estimator']}; load it with that class"
                )
            detector = cls(**{**details["parameters"], "device": device})
            tensors, _ = read_tensors(Path(path) / _STATE)
            state = {name: values.numpy() for name, values in tensors.items()}
            kept, held_out = state.pop("kept"), state.pop("held_out")
            density = _density_of(model, held_out, frame=details["frame"], named=details["named"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(
                f"expected a detector of this release in {os.fspath(path)!r}, got one that does"
                f" not fit: {error}; load it with the release of arcsm that wrote it"
            ) from error
        detector._take(density, Detector(model, detector.method, state), kept)
        return detector

    def _table(self, X: Any) -> Table:
        """Return rows like those of `fit`."""
        return checked_table(self, X, self.density_.model_.columns.names)

    def _learn(self, density: ARCSMDensity, table: Table, kept: np.ndarray) -> Detector:
        """Return what makes outlier scores of a density, which has learned the rows kept."""
        told = 0.0 if self.contamination == "auto" else float(self.contamination)
        # So many outliers may form a group: they are near each other, but not near more rows.
        neighbours = max(NEIGHBOURS, math.ceil(told * int(kept.sum())))
        return Detector.learn(
            density.model_,
            table,
            method=self.method,
            kept=kept,
            held_out=density.held_out_,
            neighbours=neighbours,
        )

    def _take(self, density: ARCSMDensity, detector: Detector, kept: np.ndarray) -> None:
        """Be fitted: to these models, by what was learned from so many of the rows."""
        self.density_, self.detector_, self.kept_ = density, detector, kept
        self.training_scores_ = -detector.state["training_scores"]
        self.offset_ = self._offset()
        self.n_features_in_, self.frame_ = density.n_features_in_, density.frame_
        if hasattr(density, "feature_names_in_"):
            self.feature_names_in_ = density.feature_names_in_
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _offset(self) -> float:
        """Return the threshold of `score_samples`."""
        if self.contamination != "auto":
            return float(np.quantile(self.training_scores_, float(self.contamination)))
        # Of fewer than a hundred rows none is an outlier.
        state = self.detector_.state
        threshold = float(np.quantile(-state["apart"], AUTO_SHARE, method="lower") - state["drop"])
        return threshold - _ROUNDING * abs(threshold)


def check_contamination(contamination: Any) -> None:
    """Refuse a contamination that is neither "auto" nor a share of the rows."""
    if isinstance(contamination, str) and contamination == "auto":
        return
    number = isinstance(contamination, Number) and not isinstance(contamination, bool)
    if not number or not 0 < contamination <= 0.5:
        raise InputError(
            'expected contamination as "auto" or as a share above 0 and up to 0.5, got'
            f" {contamination!r}; leave it out if the rows are normal"
        )


def _numbers_as_they_are(table: Table) -> dict[str, str]:
    """Return "linear" for each column of numbers.

    As whole numbers, or within bounds, they would have values that cannot be, of which a density
    says no more than that; and tails that are made normal look near however far they reach.
    """
    return {name: "linear" for name, values in table.columns.items() if values.dtype.kind in "fi"}


def _default_steps(rows: int) -> int:
    """Return the steps of the training: unusual rows are told apart long before it converges."""
    return 500 if rows < 2000 else 1000


def _vary(table: Table) -> bool:
    """Return whether two rows of a table differ."""
    return any(bool((values != values[0]).any()) for values in table.columns.values())


def _fit_again(
    first: ARCSMDensity, table: Table, progress: Callable[[Progress], None] | None
) -> ARCSMDensity:
    """Return a density fitted to other rows, given as a table, with the columns of the first."""
    second: ARCSMDensity = clone(first).fit_resumable(table, progress=progress)
    second.frame_ = first.frame_
    if not hasattr(first, "feature_names_in_"):
        del second.feature_names_in_
    return second


def _density_of(
    model: TabularModel, held_out: np.ndarray, *, frame: bool, named: bool
) -> ARCSMDensity:
    """Return the density that a detector was saved with, as far as scores need it."""
    density = ARCSMDensity()
    density.model_, density.frame_ = model, frame
    density.columns_, density.order_ = model.columns.describe(), model.order
    density.held_out_ = held_out
    density.n_features_in_ = len(model.columns.names)
    if named:
        density.feature_names_in_ = np.array(model.columns.names, dtype=object)
    return density
