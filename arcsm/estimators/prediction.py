"""Quantiles, intervals and means of columns given others, as methods of an estimator."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from arcsm.errors import InputError
from arcsm.estimators.parameters import column_names
from arcsm.estimators.rows import checked_table, given_columns
from arcsm.tabular import TabularModel
from arcsm.tabular.predict import (
    check_levels,
    has_mean,
    has_quantiles,
    interval_levels,
    predict,
)

_SEEDS = 2**31 - 1


class Predictions:
    """What a fitted model says of columns that are not known, given those that are.

    With `conditional_on` X holds the covariates; what else it holds makes no difference. Otherwise
    X is a data frame or a mapping of the columns that are known, which have to come first in the
    order (any columns with order="any"), and all others are predicted.

    What is told of the first column that is not known is computed from its distribution; of columns
    after that from `draws` draws for each row. Constants, and copies of other columns, follow from
    what is known of these. Name `columns` to have single ones.

    >>> import numpy as np
    >>> from arcsm import ARCSMDensity
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=200)
    >>> table = np.column_stack([x, 2 * x + rng.normal(size=200)])
    >>> model = ARCSMDensity(conditional_on=[0], ensemble=1, max_steps=20, random_state=0)
    >>> model = model.fit(table)
    >>> model.quantile([[0.5], [1.0]], [0.05, 0.5, 0.95]).shape
    (2, 3)
    """

    model_: TabularModel
    random_state: Any

    def quantile(
        self,
        X: Any,
        q: Any = 0.5,
        *,
        columns: Sequence[str | int] | None = None,
        draws: int = 1000,
        random_state: Any = None,
    ) -> np.ndarray:
        """Return quantiles of the columns that are not known.

        Parameters
        ----------
        X : data frame, Table, mapping or array of shape (n_samples, n_given)
            The columns that are known.
        q : float or list of float, default=0.5
            Levels between 0 and 1.
        columns : list of str or int, default=None
            Which columns to predict; by default all that are not known, in the order of the table,
            but for categories, text and truth values: these have no order, and so no quantiles.
            To name one of them is an error, and so is it if there are no others.
        draws : int, default=1000
            For each row, of columns that are not the next in the order.
        random_state : int, RandomState instance or None, default=None
            Of the draws, where these are needed; by default that of the estimator.

        Returns
        -------
        ndarray of shape (n_samples, [n_columns,] [n_levels])
            Without the axis of columns if there is one, and that of levels if q is a number.
        """
        levels = check_levels(q)
        found = self._predict(X, levels, columns, draws, random_state)
        return found[..., 0] if np.ndim(q) == 0 else found

    def interval(
        self,
        X: Any,
        coverage: float = 0.9,
        *,
        columns: Sequence[str | int] | None = None,
        draws: int = 1000,
        random_state: Any = None,
    ) -> np.ndarray:
        """Return central intervals that hold a value with a probability of `coverage`.

        The two ends are the last axis, of shape (n_samples, [n_columns,] 2); see `quantile`.
        """
        return self._predict(X, interval_levels(coverage), columns, draws, random_state)

    def mean(
        self,
        X: Any,
        *,
        columns: Sequence[str | int] | None = None,
        draws: int = 1000,
        random_state: Any = None,
    ) -> np.ndarray:
        """Return means of the columns that are not known, (n_samples, [n_columns]).

        That of truth values is the probability of true. Other categories, text and ordinal columns
        have none: by default they are left out, and to name one is an error. The mean of a real
        column is that of its values but for the outermost 1e-9 on either side, as heavy tails need
        not have any.
        """
        return self._predict(X, None, columns, draws, random_state)

    def pit(self, X: Any, random_state: Any = None) -> dict[str, np.ndarray]:
        """Return, for each modelled column, the probability of a smaller value than that of X.

        Under the right model these are uniform, and independent. X holds all columns. The
        probability of a discrete value itself is split at random.
        """
        check_is_fitted(self)
        state = check_random_state(self.random_state if random_state is None else random_state)
        random = np.random.default_rng(int(state.randint(_SEEDS)))
        return self.model_.pit(checked_table(self, X, self.model_.columns.names), random=random)

    def _predict(
        self,
        X: Any,
        levels: np.ndarray | None,
        columns: Sequence[str | int] | None,
        draws: int,
        random_state: Any,
    ) -> np.ndarray:
        check_is_fitted(self)
        if not isinstance(draws, int | np.integer) or isinstance(draws, bool) or draws < 1:
            raise InputError(f"expected a positive number of draws, got {draws!r}; 1000 is usual")
        model, given = self.model_, given_columns(self, X)
        targets = [name for name in model.columns.names if name not in given.columns]
        if columns is not None:
            if isinstance(columns, str):
                columns = [columns]
            wanted = column_names(columns, model.columns.names)
            if not wanted or not set(wanted) <= set(targets):
                raise InputError(
                    f"expected columns to predict among {targets}, got {list(columns)}; choose"
                    " some of these"
                )
            targets = wanted
        else:
            has = has_mean if levels is None else has_quantiles
            # Where nothing is left, what is wrong is said of the first.
            targets = [name for name in targets if has(model.columns, name)] or targets
        if not targets:
            raise InputError(
                f"expected a column that is not known, got all of {list(model.columns.names)};"
                " leave out those to be predicted"
            )
        state = check_random_state(self.random_state if random_state is None else random_state)
        generator = torch.Generator(model.model.device)
        generator.manual_seed(int(state.randint(_SEEDS)))
        found = predict(model, given, targets, levels=levels, draws=int(draws), generator=generator)
        values = [found[name] for name in targets]
        return values[0] if len(values) == 1 else np.stack(values, axis=1)
