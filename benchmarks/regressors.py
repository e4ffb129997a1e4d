"""The rivals of benchmarks/conditional.py: quantile forests, and boosted normal distributions.

Each predicts quantiles at the levels asked for, and log-densities. With `search` the parameters are
those that do best in cross-validation among the training rows alone, by the log-score for NGBoost
and by the pinball loss for the forest, which is made for quantiles.

A quantile forest has no density. Here it is given that of a Gaussian kernel on its predicted
quantiles, whose width, in units of Silverman's rule for them, is the one with the best log-score on
rows out of the bag: none is scored by trees that have seen it.
"""

import itertools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import logsumexp
from sklearn.model_selection import KFold

INNER_FOLDS = 3
WIDTHS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
FOREST_SEARCH = {"min_samples_leaf": (1, 5, 10, 20), "max_features": (1 / 3,)}
# Three times the default rate, and up to 200 steps, which reach as far as 600 of the default.
NGBOOST_SEARCH = {
    "learning_rate": (0.03,),
    "n_estimators": (200,),
    "minibatch_frac": (1.0, 0.5),
}


@dataclass(frozen=True)
class Predicted:
    """Quantiles (rows, levels) and log-densities (rows,) of the test rows, and what was chosen."""

    quantiles: np.ndarray
    log_density: np.ndarray
    chosen: str


def pinball(quantiles: np.ndarray, y: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Return the mean over levels of the pinball loss of each row."""
    error = y[:, None] - quantiles
    return np.maximum(levels * error, (levels - 1) * error).mean(1)


def quantile_forest(
    x: np.ndarray,
    y: np.ndarray,
    x_test: np.ndarray,
    y_test: np.ndarray,
    levels: np.ndarray,
    seed: int,
    *,
    search: bool,
) -> Predicted:
    """RandomForestQuantileRegressor of quantile-forest."""
    from quantile_forest import RandomForestQuantileRegressor

    def made(**options: Any) -> Any:
        return RandomForestQuantileRegressor(random_state=seed, n_jobs=1, **options)

    best: dict[str, Any] = {}
    if search:

        def loss(options: dict[str, Any]) -> float:
            parts = []
            for train, held_out in _inner(len(x), seed):
                fitted = made(**options).fit(x[train], y[train])
                found = fitted.predict(x[held_out], quantiles=list(levels))
                parts.append(pinball(found, y[held_out], levels).mean())
            return float(np.mean(parts))

        best = min(_grid(FOREST_SEARCH), key=loss)
    forest = made(**best).fit(x, y)
    with warnings.catch_warnings():
        # Of a row that all trees have seen there is nothing out of the bag.
        warnings.simplefilter("ignore")
        unseen = forest.predict(x, quantiles=list(levels), oob_score=True)
    known = np.isfinite(unseen).all(1)
    scores = [kernel_log_density(unseen[known], y[known], width).mean() for width in WIDTHS]
    width = WIDTHS[int(np.argmax(scores))]
    quantiles = forest.predict(x_test, quantiles=list(levels))
    return Predicted(
        quantiles, kernel_log_density(quantiles, y_test, width), f"{best}, kernel {width:g}"
    )


def kernel_log_density(quantiles: np.ndarray, y: np.ndarray, width: float) -> np.ndarray:
    """Return the log-density of a Gaussian kernel on quantiles, which count as equally likely.

    The bandwidth is `width` times that of Silverman's rule, and at least a thousandth of the
    standard deviation of all quantiles, as those of a row may be one number.
    """
    count = quantiles.shape[1]
    low, high = np.quantile(quantiles, [0.25, 0.75], axis=1)
    spread = np.minimum(quantiles.std(1), (high - low) / 1.349)
    bandwidth = width * 0.9 * spread * count ** (-1 / 5)
    bandwidth = np.maximum(bandwidth, 1e-3 * quantiles.std())[:, None]
    z = (y[:, None] - quantiles) / bandwidth
    each = -(z**2) / 2 - np.log(bandwidth * np.sqrt(2 * np.pi))
    return np.asarray(logsumexp(each, axis=1) - np.log(count))


def ngboost(
    x: np.ndarray,
    y: np.ndarray,
    x_test: np.ndarray,
    y_test: np.ndarray,
    levels: np.ndarray,
    seed: int,
    *,
    search: bool,
) -> Predicted:
    """NGBRegressor with a normal distribution; the search includes the number of steps."""
    from ngboost import NGBRegressor

    def made(**options: Any) -> Any:
        return NGBRegressor(random_state=seed, verbose=False, **options)

    best: dict[str, Any] = {}
    if search:
        losses: list[tuple[float, dict[str, Any]]] = []
        for options in _grid(NGBOOST_SEARCH):
            # Each number of steps, from one fit.
            curves = []
            for train, held_out in _inner(len(x), seed):
                fitted = made(**options).fit(x[train], y[train])
                stages = fitted.staged_pred_dist(x[held_out])
                curves.append([-stage.logpdf(y[held_out]).mean() for stage in stages])
            curve = np.mean([part[: min(map(len, curves))] for part in curves], axis=0)
            steps = int(np.argmin(curve)) + 1
            losses.append((float(curve[steps - 1]), {**options, "n_estimators": steps}))
        best = min(losses, key=lambda entry: entry[0])[1]
    distribution = made(**best).fit(x, y).pred_dist(x_test)
    quantiles = np.column_stack([distribution.ppf(level) for level in levels])
    return Predicted(quantiles, distribution.logpdf(y_test), str(best))


def _inner(rows: int, seed: int) -> Sequence[tuple[np.ndarray, np.ndarray]]:
    return list(KFold(INNER_FOLDS, shuffle=True, random_state=seed).split(np.empty(rows)))


def _grid(options: dict[str, tuple[Any, ...]]) -> list[dict[str, Any]]:
    return [
        dict(zip(options, values, strict=True)) for values in itertools.product(*options.values())
    ]
