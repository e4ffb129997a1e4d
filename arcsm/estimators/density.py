"""`ARCSMDensity`: a density over the columns of a table, by scikit-learn's contract."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import (
    _check_sample_weight,
    check_is_fitted,
)

from arcsm.cards import write_card
from arcsm.data.table import Table
from arcsm.errors import CheckpointError, InputError
from arcsm.estimators.parameters import (
    by_name,
    check_enough_weight,
    column_names,
    plain,
    print_progress,
)
from arcsm.estimators.prediction import Predictions
from arcsm.estimators.rows import checked_table
from arcsm.files import atomic_directory
from arcsm.soundness import Report
from arcsm.tabular import Settings, check_table, fit_table, load_tabular, save_tabular
from arcsm.tabular.given import given_rows
from arcsm.train import History, Progress, holds_model, split_rows

_SEEDS = 2**31 - 1
_MEMBERS = 4  # of a model with covariates, which is small


class ARCSMDensity(Predictions, BaseEstimator):
    """Density estimation for tables by autoregressive score matching.

    Every column is modelled given the columns before it. What a column is (real numbers, heavy
    tails, bounded, whole numbers, categories, …) is chosen from the data; densities are in the
    units of the table, in nats: of real columns a density, of whole numbers and quantised columns
    the probability of the value over the quantum, of categories the probability.

    Parameters
    ----------
    columns : dict, default=None
        What single columns are, by name or position, where the choice should not be left to the
        data: "real", "bounded", "integer", "quantised", "ordinal", "category", or a dictionary
        such as ``{"kind": "bounded", "lower": 0, "upper": 1}``.
    order : "natural", "random", "auto", "any" or list, default="natural"
        The order of the columns in the chain; a list holds names or positions. "auto" learns from
        the data which order does best. "any" trains one model for all orders, which can draw any
        columns given any others, at the cost of some likelihood and of slower scores.
    conditional_on : list of str or int, default=None
        Covariates, by name or position: the density is that of the other columns given these,
        q(y | x), and nothing is learned of how they are distributed themselves. See `quantile`,
        `interval` and `mean`.
    ensemble : int, default=None
        How many models to train side by side; the density is the mean of theirs. The first has the
        order asked for, the others have random ones; a list is the order of all of them, which
        keeps the conditionals, and so does `conditional_on`. By default 1, with covariates 4.
    hidden : tuple of int, default=None
        Widths of the network's layers.
    max_steps, max_seconds : int and float, default=None
        Limits on the training, with the time to learn an order. By default it stops when the
        held-out rows say so.
    batch_size : int, default=None
    learning_rate : float, default=None
    validation_fraction : float, default=None
        The share of the rows that is held out to stop early; 0 uses all rows for training.
    device : str, default="cpu"
        Where to compute: "cpu", "cuda", …
    verbose : bool, default=False
        Print the losses during training.
    random_state : int, RandomState instance or None, default=None
        Determines weights, noise and the split.

    Attributes
    ----------
    model_ : TabularModel
        The columns and the model over their scalars.
    columns_ : list of dict
        What each column was taken for, and why.
    order_ : tuple of str
        The columns in the order of the chain, without constant and duplicated ones; empty if the
        models of an ensemble have different orders. With order="any", the one that scores follow.
    history_ : History
        Losses on training and held-out rows.
    held_out_ : ndarray of int
        The rows that told when to stop; no weight was trained on them. Not kept by `save`.
    n_features_in_, feature_names_in_ : number and names of the columns seen in `fit`.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> x = np.column_stack([rng.gamma(2.0, size=300), rng.poisson(3.0, size=300)])
    >>> density = ARCSMDensity(max_steps=20, random_state=0).fit(x)
    >>> [column["kind"] for column in density.columns_]
    ['bounded', 'integer']
    >>> density.sample(2, random_state=0).shape
    (2, 2)
    """

    frame_: bool

    def __init__(
        self,
        *,
        columns: Mapping[str | int, Any] | None = None,
        order: str | Sequence[str | int] = "natural",
        conditional_on: Sequence[str | int] | None = None,
        ensemble: int | None = None,
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
        self.columns = columns
        self.order = order
        self.conditional_on = conditional_on
        self.ensemble = ensemble
        self.hidden = hidden
        self.max_steps = max_steps
        self.max_seconds = max_seconds
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.validation_fraction = validation_fraction
        self.device = device
        self.verbose = verbose
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> "ARCSMDensity":
        """Learn the density of the rows of X.

        Parameters
        ----------
        X : array-like or data frame of shape (n_samples, n_features)
            The rows; columns may be numbers, truth values or, in a data frame, text.
        y : ignored
            Not used; for the sake of pipelines.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows.

        Returns
        -------
        self
        """
        return self.fit_resumable(X, sample_weight)

    def fit_resumable(
        self,
        X: Any,
        sample_weight: Any = None,
        *,
        directory: str | os.PathLike[str] | None = None,
        resume: bool = False,
        progress: Callable[[Progress], None] | None = None,
        racing: Callable[[int, int], None] | None = None,
    ) -> "ARCSMDensity":
        """Learn the density as `fit` does, in a run that can be interrupted.

        With a `directory` the state of the training is kept there: now and then, and on Ctrl-C.
        `resume` goes on from it, with the same rows and parameters, to the same bits as if nothing
        had happened. `progress` is called after each look at the held-out rows; `racing`, while
        order="auto" learns an order, with the number of orders tried and of all that are to be.
        """
        # What an earlier fit has learned stays whole until this one has succeeded.
        fresh = clone(self)
        table = fresh._table(X, reset=True)
        weight = None
        if sample_weight is not None:
            weight = _check_sample_weight(
                sample_weight, np.empty((table.rows, 1)), ensure_non_negative=True
            )
            check_enough_weight(weight)
        settings = Settings(
            order=self.order
            if isinstance(self.order, str)
            else column_names(self.order, table.names),
            ensemble=(_MEMBERS if self.conditional_on else 1)
            if self.ensemble is None
            else self.ensemble,
            conditional_on=self._covariates(table.names),
            hidden=self.hidden,
            max_steps=self.max_steps,
            max_seconds=self.max_seconds,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            validation_fraction=self.validation_fraction,
        )
        kinds = None if self.columns is None else by_name(self.columns, table.names)
        if progress is None and self.verbose:
            progress = print_progress
        seed = int(check_random_state(self.random_state).randint(_SEEDS))
        counted = np.arange(table.rows) if weight is None else np.flatnonzero(weight)
        _, held_out = split_rows(len(counted), settings.training(len(counted), seed))
        fresh.held_out_ = np.sort(counted[held_out.numpy()])
        fresh.model_, fresh.history_ = fit_table(
            table,
            settings,
            kinds=kinds,
            weight=weight,
            seed=seed,
            device=self.device,
            directory=directory,
            resume=resume,
            progress=progress,
            racing=racing,
        )
        fresh.columns_ = fresh.model_.columns.describe()
        fresh.order_ = fresh.model_.order
        for name in [*vars(self)]:
            if name.endswith("_") and not name.startswith("_"):
                delattr(self, name)
        self.__dict__.update((k, v) for k, v in vars(fresh).items() if k.endswith("_"))
        return self

    def score_samples(self, X: Any) -> np.ndarray:
        """Return the log-density of each row, in nats, in the units of the table.

        Returns
        -------
        ndarray of shape (n_samples,)
            −inf for a row that cannot be: outside the bounds of a column, or different where a
            column was constant or a copy. A category that was not seen in `fit` is an error.
        """
        check_is_fitted(self)
        return self.model_.log_prob(self._table(X, reset=False))

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean log-density of the rows of X."""
        return float(np.mean(self.score_samples(X)))

    def sample(
        self,
        n_samples: int | None = None,
        random_state: Any = None,
        given: Any = None,
        method: str = "auto",
    ) -> Any:
        """Draw rows from the density.

        Parameters
        ----------
        n_samples : int, default=None
            How many; by default 1, or one for each row of `given`.
        random_state : int, RandomState instance or None, default=None
            By default that of the estimator.
        given : mapping, Table or data frame, default=None
            Values of some columns, such as ``{"age": 40}``, given which the others are drawn: for
            all rows, or a table with a row for each. They have to come first in `order_`, unless
            order="any". A value far beyond those seen in `fit` is taken as it is, though nothing
            was learned of what follows from it. Covariates have to be given.
        method : "auto", "flow", "quadrature" or "langevin", default="auto"
            How to draw: by default from the density that is scored; by annealed Langevin dynamics
            only nearly so.

        Returns
        -------
        ndarray or data frame of shape (n_samples, n_features)
            A data frame if one or a Table was fitted, with the same names, and columns of real
            numbers, whole numbers, truth values or text as they were.
        """
        check_is_fitted(self)
        if isinstance(given, Mapping):
            given = by_name(given, self.model_.columns.names)
        if n_samples is None:
            n_samples = 1 if given is None else given_rows(given)
        whole = isinstance(n_samples, int | np.integer) and not isinstance(n_samples, bool)
        if not whole or n_samples < 1:
            raise InputError(f"expected a positive number of samples, got {n_samples!r}")
        state = check_random_state(self.random_state if random_state is None else random_state)
        generator = torch.Generator(self.model_.model.device)
        generator.manual_seed(int(state.randint(_SEEDS)))
        drawn = self.model_.sample(int(n_samples), given=given, generator=generator, method=method)
        return drawn.to_pandas() if self.frame_ else drawn.to_numpy()

    def check(self, X: Any, *, seed: int = 0) -> Report:
        """Say in words whether the density can be trusted, beside rows that `fit` has not seen.

        The report is that of `arcsm check`: `print` shows a line for each thing looked at, and
        `good` says whether all that matters is as it should be.
        """
        check_is_fitted(self)
        return check_table(self.model_, self._table(X, reset=False), seed=seed)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        data: Any = None,
        about_data: str = "",
        card: bool = True,
    ) -> None:
        """Write the fitted estimator to a directory: weights, config.json and a model card.

        A model that is already there is replaced; a directory of anything else is refused.
        With `data`, best of rows that were not fitted, the card shows them beside samples;
        `about_data` is a sentence for the card that says which rows these are. Without `card`
        there is none.
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
            params["columns"] = by_name(self.columns, self.model_.columns.names)
        if self.conditional_on is not None:
            params["conditional_on"] = self._covariates(self.model_.columns.names)
        if not isinstance(self.random_state, int | np.integer | None):
            params["random_state"] = None  # a generator is not part of what was learned
        details = {
            "estimator": type(self).__name__,
            "parameters": plain(params),
            "frame": self.frame_,
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
            shown = None if data is None else self._table(data, reset=False)
            if card:
                write_card(
                    directory,
                    self.model_,
                    self.history_,
                    title=target.name,
                    data=shown,
                    about_data=about_data,
                )

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, device: str = "cpu") -> "ARCSMDensity":
        """Read an estimator that `save` wrote. Nothing is unpickled."""
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
            estimator = cls(**parameters)
            history = dict(details["history"])
            for curve in ("training", "validation"):
                history[curve] = [(step, loss) for step, loss in history[curve]]
            estimator.history_ = History(**history)
            estimator.frame_ = details["frame"]
            named = details["named"]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(
                f"expected an estimator of this release in {os.fspath(path)!r}, got one that does"
                f" not fit: {error}; load it with the release of arcsm that wrote it"
            ) from error
        estimator.model_ = model
        estimator.columns_ = model.columns.describe()
        estimator.order_ = model.order
        estimator.n_features_in_ = len(model.columns.names)
        if named:
            estimator.feature_names_in_ = np.array(model.columns.names, dtype=object)
        return estimator

    def _covariates(self, names: Sequence[str]) -> list[str]:
        if self.conditional_on is None:
            return []
        if isinstance(self.conditional_on, str):
            raise InputError(
                f"expected a list of covariates, got the text {self.conditional_on!r}; write"
                f" [{self.conditional_on!r}]"
            )
        return column_names(self.conditional_on, names)

    def _table(self, X: Any, *, reset: bool) -> Table:
        return checked_table(self, X, None if reset else self.model_.columns.names)
