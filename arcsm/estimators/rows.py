"""What users pass as X, checked by scikit-learn's rules and by ours."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data

from arcsm.data.table import Table, as_table
from arcsm.errors import InputError
from arcsm.estimators.parameters import by_name, is_frame
from arcsm.tabular.given import as_given


def checked_table(estimator: Any, X: Any, names: Sequence[str] | None) -> Table:
    """Return X as a table with all columns.

    `names` are those of the columns in `fit`, or None while it is being fitted: then the estimator
    notes what it is fitted on.
    """
    reset = names is None
    least = 2 if reset else 1
    if isinstance(X, Table) or is_frame(X):
        table = as_table(X)
        if table.rows < least:
            raise InputError(
                f"expected at least {least} rows, got a table of {table.rows} sample(s); add some"
            )
        if not isinstance(X, Table):
            validate_data(estimator, X, reset=reset, skip_check_array=True)
            if names is not None and not _has_names(estimator):
                # Fitted without names: by position, of which scikit-learn has warned.
                table = Table(dict(zip(names, table.columns.values(), strict=True)))
        elif reset:
            estimator.n_features_in_ = len(table.names)
            estimator.feature_names_in_ = np.array(table.names, dtype=object)
    else:
        values = validate_data(
            estimator,
            X,
            reset=reset,
            dtype="numeric",
            ensure_min_samples=least,
        )
        table = as_table(values, names=None if names is None else list(names))
    if reset:
        estimator.frame_ = isinstance(X, Table) or is_frame(X)
    return table


def given_columns(estimator: Any, X: Any) -> Table:
    """Return the columns of X that predictions are made from.

    Of a model with covariates these, whatever else X holds; an array has them alone, or all columns
    of the table. Of another model all columns of X, which must have names.
    """
    columns = estimator.model_.columns
    covariates, names = columns.covariates, columns.names
    if isinstance(X, Mapping):
        X = as_given(by_name(X, names))
    named = isinstance(X, Table) or (is_frame(X) and _has_names(estimator))
    if not named:
        X = _with_names(X, names, covariates)
    table = as_table(X)
    if table.rows == 0:
        raise InputError("expected at least one row to predict for, got none; pass one")
    if not covariates:
        return table
    missing = [name for name in covariates if name not in table.columns]
    if missing:
        raise InputError(
            f"expected the covariates {list(covariates)}, got no columns {missing}; add them"
        )
    return table.select(covariates)


def _with_names(X: Any, names: Sequence[str], covariates: Sequence[str]) -> Table:
    table = as_table(X)
    for told in (covariates, names):
        if covariates and len(table.names) == len(told):
            return Table(dict(zip(told, table.columns.values(), strict=True)))
    if not covariates:
        raise InputError(
            f"expected a data frame or a mapping that names the columns which are given, among"
            f" {list(names)}, got {type(X).__name__}; name them"
        )
    raise InputError(
        f"expected the {len(covariates)} covariates {list(covariates)}, or all {len(names)}"
        f" columns, got {len(table.names)}; pass these"
    )


def _has_names(estimator: Any) -> bool:
    return bool(hasattr(estimator, "feature_names_in_") or estimator.frame_)
