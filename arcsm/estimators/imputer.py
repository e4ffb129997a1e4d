"""`ARCSMImputer`: tables with holes filled in, by scikit-learn's contract for transformers."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from arcsm.data.table import Table
from arcsm.errors import CheckpointError, InputError
from arcsm.estimators.frames import Rows, as_reach, frame_of, of_reach, read_rows
from arcsm.estimators.parameters import by_name, plain, print_progress
from arcsm.files import atomic_directory
from arcsm.tabular import Settings, TabularModel, load_tabular, save_tabular
from arcsm.tabular.incomplete import fit_incomplete
from arcsm.tasks.impute import Imputation, check_strategy
from arcsm.train import History, Progress, holds_model

_SEEDS = 2**31 - 1


class ARCSMImputer(TransformerMixin, BaseEstimator):
    """Missing values of a table, filled in by autoregressive score matching.

    One model learns every column given any of the others, from rows that may have holes
    themselves, any pattern in any row. What a column is (real numbers, bounded, whole numbers,
    categories, …) is chosen from the data. Missing are NaN in arrays, and NaN, None and NA in data
    frames, also among whole numbers, truth values and text. What is there comes back bit for bit.

    What is learned is right where a hole is as likely whatever the missing value would have been,
    given what else the row knows. A row of which nothing is known is filled by what is usual.

    Parameters
    ----------
    strategy : "mean", "median" or "draw", default="mean"
        What to put in a hole, given all that is known of its row: the mean (least squared error),
        the median (least absolute error), or a draw, jointly for all holes of the row, which keeps
        the spread of the columns and how they hang together. Of categories mean and median are
        the most probable value. Medians and draws are values that the column can have: whole
        numbers are whole. So are means in a data frame; in an array a mean is any real number,
        that of two values 0 and 1 for instance the probability of 1.
    columns : dict, default=None
        What single columns are, by name or position, as in `ARCSMDensity`.
    keep_empty_features : bool, default=False
        Whether a column without a single value in `fit` is kept, and filled with 0, with "" if it
        is text, and with the first of its categories; otherwise `transform` leaves it out.
    hidden : tuple of int, default=None
        Widths of the network's layers; by default two of 64 for less than 500 rows.
    max_steps, max_seconds : int and float, default=None
        Limits on the training. By default it stops when the held-out rows say so.
    batch_size : int, default=None
    learning_rate : float, default=None
    validation_fraction : float, default=None
        The share of the rows that is held out to stop early; 0 uses all rows for training.
    device : str, default="cpu"
        Where to compute: "cpu", "cuda", …
    verbose : bool, default=False
        Print the losses during training.
    random_state : int, RandomState instance or None, default=None
        Determines weights, noise and the split, and the draws of `transform`.

    Attributes
    ----------
    model_ : TabularModel
        The columns and the model over their scalars.
    reach_ : ndarray of shape (n_scalars, 2)
        The ends between which filled-in values lie: a little beyond all that was seen.
    columns_ : list of dict
        What each column was taken for, and why.
    history_ : History
        Losses on training and held-out rows.
    empty_features_ : tuple of str
        The columns without a value in `fit`.
    n_features_in_, feature_names_in_ : number and names of the columns seen in `fit`.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(200, 1)) + 0.1 * rng.normal(size=(200, 3))
    >>> x[rng.random(x.shape) < 0.2] = np.nan
    >>> imputer = ARCSMImputer(max_steps=20, hidden=(16, 16), random_state=0)
    >>> bool(np.isnan(imputer.fit_transform(x)).any())
    False
    >>> lower, upper = imputer.intervals(x, coverage=0.9)
    >>> bool((np.isnan(lower) == ~np.isnan(x)).all())
    True
    """

    reach_: np.ndarray | None

    def __init__(
        self,
        *,
        strategy: str = "mean",
        columns: Mapping[str | int, Any] | None = None,
        keep_empty_features: bool = False,
        hidden: Sequence[int] | None = None,
        max_steps: int | None = None,
        max_seconds: float | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        validation_fraction: float | None = None,
        device: str = "cpu",
        verbose: bool = False,
        random_state: Any = None,
    ):
        self.strategy = strategy
        self.columns = columns
        self.keep_empty_features = keep_empty_features
        self.hidden = hidden
        self.max_steps = max_steps
        self.max_seconds = max_seconds
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.validation_fraction = validation_fraction
        self.device = device
        self.verbose = verbose
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> "ARCSMImputer":
        """Learn from the rows of X, which may have holes.

        Parameters
        ----------
        X : array-like or data frame of shape (n_samples, n_features)
            The rows; columns may be numbers, truth values or, in a data frame, text.
        y : ignored
            Not used; for the sake of pipelines.

        Returns
        -------
        self
        """
        return self.fit_with_progress(X)

    def fit_with_progress(
        self, X: Any, *, progress: Callable[[Progress], None] | None = None
    ) -> "ARCSMImputer":
        """Learn as `fit` does; `progress` is called after each look at the held-out rows."""
        check_strategy(self.strategy)
        rows = self._rows(X, reset=True)
        empty = np.asarray(rows.missing.all(0))
        used = [name for name, none in zip(rows.table.names, empty, strict=True) if not none]
        if not used:
            raise InputError("expected a value in some column, got none at all; pass other rows")
        settings = Settings(
            order="any",
            hidden=self.hidden,
            max_steps=self.max_steps,
            max_seconds=self.max_seconds,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            validation_fraction=self.validation_fraction,
        )
        kinds = None if self.columns is None else by_name(self.columns, rows.table.names)
        if progress is None and self.verbose:
            progress = print_progress
        seed = int(check_random_state(self.random_state).randint(_SEEDS))
        # What an earlier fit has learned stays until this one has succeeded.
        model, reach, history = fit_incomplete(
            rows.table.select(used),
            settings,
            missing=rows.missing[:, ~empty],
            kinds={name: kind for name, kind in (kinds or {}).items() if name in used},
            seed=seed,
            device=self.device,
            progress=progress,
        )
        self.model_, self.reach_, self.history_ = model, reach, history
        self.names_ = rows.table.names
        self.empty_features_ = tuple(n for n in rows.table.names if n not in used)
        self.columns_ = model.columns.describe()
        self._objects = rows.objects
        return self

    def transform(self, X: Any) -> Any:
        """Return X with its holes filled by `strategy`.

        Parameters
        ----------
        X : array-like or data frame of shape (n_samples, n_features)
            Rows with the columns of `fit`.

        Returns
        -------
        ndarray or data frame of shape (n_samples, n_features_out)
            A data frame if X is one, with columns of the types that they had; a
            :class:`~arcsm.data.table.Table` if X is one.
        """
        check_is_fitted(self)
        check_strategy(self.strategy)
        rows = self._rows(X, reset=False)
        generator = self._generator(None) if self.strategy == "draw" else None
        filled = Imputation(self.model_, reach=self.reach_).fill(
            self._used(rows.table),
            self.strategy,
            missing=self._used_cells(rows.missing),
            fractional=rows.array is not None,
            generator=generator,
        )
        return self._out(rows, filled)

    def multiple(self, X: Any, m: int = 5, random_state: Any = None) -> list[Any]:
        """Return m versions of X, each with its holes filled by a joint draw.

        For multiple imputation: what is computed from each, and how far the results differ, tells
        how much the holes leave open.

        Parameters
        ----------
        X : array-like or data frame of shape (n_samples, n_features)
            Rows with the columns of `fit`.
        m : int, default=5
            How many.
        random_state : int, RandomState instance or None, default=None
            By default that of the estimator.
        """
        check_is_fitted(self)
        rows = self._rows(X, reset=False)
        drawn = Imputation(self.model_, reach=self.reach_).draws(
            self._used(rows.table),
            m,
            missing=self._used_cells(rows.missing),
            generator=self._generator(random_state),
        )
        return [self._out(rows, filled) for filled in drawn]

    def intervals(self, X: Any, coverage: float = 0.9) -> tuple[Any, Any]:
        """Return the ends between which each missing value lies with the probability `coverage`.

        Each hole is looked at alone, given all that is known of its row.

        Returns
        -------
        lower, upper : two arrays or data frames of the shape that `transform` returns
            NaN where nothing is missing; None in columns of text, of which only ordered levels
            have ends.
        """
        check_is_fitted(self)
        rows = self._rows(X, reset=False)
        ends = Imputation(self.model_, reach=self.reach_).intervals(
            self._used(rows.table), coverage, missing=self._used_cells(rows.missing)
        )
        names = self._names_out()
        whole = []
        for table in ends:
            nothing = np.full(table.rows, np.nan)
            own = {name: table[name] if name in table.columns else nothing for name in names}
            whole.append(Table(own))
        if rows.frame is not None:
            lower, upper = (frame_of(table, rows.frame) for table in whole)
            return lower, upper
        if rows.array is None:
            return whole[0], whole[1]
        return whole[0].to_numpy(), whole[1].to_numpy()

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Return the names of the columns that `transform` returns."""
        check_is_fitted(self)
        if input_features is not None:
            told = [str(name) for name in input_features]
            if len(told) != len(self.names_) or (
                hasattr(self, "feature_names_in_") and told != list(self.feature_names_in_)
            ):
                raise InputError(
                    "input_features is not equal to feature_names_in_: expected the"
                    f" {len(self.names_)} columns of fit, got {told}; leave it out"
                )
            by_place = dict(zip(self.names_, told, strict=True))
            return np.array([by_place[name] for name in self._names_out()], dtype=object)
        return np.array(self._names_out(), dtype=object)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted imputer to a directory.

        A model that is already there is replaced; a directory of anything else is refused.
        """
        check_is_fitted(self)
        if Path(path).is_dir() and any(Path(path).iterdir()) and not holds_model(path):
            raise InputError(
                f"expected a new directory or that of a model, got {os.fspath(path)!r}, which"
                " holds other files; choose another path"
            )
        params = self.get_params()
        if self.columns is not None:
            params["columns"] = by_name(self.columns, self.names_)  # as JSON has no other keys
        if not isinstance(self.random_state, int | np.integer | None):
            params["random_state"] = None  # a generator is not part of what was learned
        details = {
            "estimator": type(self).__name__,
            "parameters": plain(params),
            "names": list(self.names_),
            "reach": of_reach(self.reach_),
            "objects": self._objects,
            "named": hasattr(self, "feature_names_in_"),
            "history": {
                "training": self.history_.training,
                "validation": self.history_.validation,
                "best_step": self.history_.best_step,
                "steps": self.history_.steps,
                "seconds": self.history_.seconds,
            },
        }
        with atomic_directory(path) as directory:
            save_tabular(directory, self.model_, details=details)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, device: str = "cpu") -> "ARCSMImputer":
        """Read an imputer that `save` wrote. Nothing is unpickled."""
        model, details = load_tabular(path, device=device)
        try:
            if details["estimator"] != cls.__name__:
                raise CheckpointError(
                    f"expected an {cls.__name__} in {os.fspath(path)!r}, got an"
                    f" {details['estimator']}; load it with that class"
                )
            parameters = {**details["parameters"], "device": device}
            if isinstance(parameters["hidden"], list):
                parameters["hidden"] = tuple(parameters["hidden"])
            imputer = cls(**parameters)
            history = dict(details["history"])
            for curve in ("training", "validation"):
                history[curve] = [(step, loss) for step, loss in history[curve]]
            imputer.history_ = History(**history)
            imputer.names_ = tuple(details["names"])
            imputer._objects = dict(details.get("objects", {}))  # earlier ones did not tell
            imputer.reach_ = as_reach(details["reach"])
            named = details["named"]
        except (KeyError, TypeError) as error:
            raise CheckpointError(
                f"expected an imputer of this release in {os.fspath(path)!r}, got one that does"
                f" not fit: {error}; load it with the release of arcsm that wrote it"
            ) from error
        imputer._take(model)
        imputer.n_features_in_ = len(imputer.names_)
        if named:
            imputer.feature_names_in_ = np.array(imputer.names_, dtype=object)
        return imputer

    @classmethod
    def from_density(cls, density: Any, **parameters: Any) -> "ARCSMImputer":
        """Return an imputer that uses a fitted `ARCSMDensity`, best one of order="any".

        With a density of one order holes are filled exactly, but for the noise of the draws, where
        they are the last columns of that order, and else by weighted draws: see
        :class:`arcsm.tasks.impute.Imputation`, whose `effective` says what these are worth.
        `parameters` are those of the imputer.
        """
        check_is_fitted(density)
        imputer = cls(**{"device": density.device, **parameters})
        Imputation(density.model_)  # which says what cannot be used
        imputer.names_, imputer._objects = density.model_.columns.names, {}
        imputer.history_, imputer.reach_ = density.history_, None
        imputer._take(density.model_)
        imputer.n_features_in_ = density.n_features_in_
        if hasattr(density, "feature_names_in_"):
            imputer.feature_names_in_ = density.feature_names_in_
        return imputer

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _take(self, model: TabularModel) -> None:
        """Let a model be the one that was learned."""
        self.model_, self.columns_ = model, model.columns.describe()
        self.empty_features_ = tuple(n for n in self.names_ if n not in model.columns.names)

    def _generator(self, random_state: Any) -> torch.Generator:
        state = check_random_state(self.random_state if random_state is None else random_state)
        generator = torch.Generator(self.model_.model.device)
        return generator.manual_seed(int(state.randint(_SEEDS)))

    def _names_out(self) -> list[str]:
        kept = () if self.keep_empty_features else self.empty_features_
        return [name for name in self.names_ if name not in kept]

    def _used(self, table: Table) -> Table:
        return table.select(list(self.model_.columns.names))

    def _used_cells(self, missing: np.ndarray) -> np.ndarray:
        return missing[:, [self.names_.index(name) for name in self.model_.columns.names]]

    def _out(self, rows: Rows, filled: Table) -> Any:
        """Return rows as they came, with their holes filled."""
        names = self._names_out()
        whole = {n: filled[n] if n in filled.columns else rows.with_nothing(n) for n in names}
        places = [self.names_.index(name) for name in names]
        return rows.with_values(Table(whole), places, self._objects)

    def _rows(self, X: Any, *, reset: bool) -> Rows:
        return read_rows(self, X, None if reset else self.names_)
