"""AUROC against scikit-learn, and its interval."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from arcsm.errors import InputError
from arcsm.metrics.detection import auroc, auroc_interval


def scores(n: int, shift: float, seed: int) -> np.ndarray:
    # Rounded, so that there are ties.
    return np.round(np.random.default_rng(seed).standard_normal(n) + shift, 1)


def test_auroc_is_that_of_scikit_learn() -> None:
    usual, unusual = scores(80, 0.0, 0), scores(50, 0.7, 1)
    kind = np.r_[np.zeros(80), np.ones(50)]
    expected = roc_auc_score(kind, np.r_[usual, unusual])
    assert abs(auroc(usual, unusual) - expected) < 1e-12
    assert abs(auroc_interval(usual, unusual, resamples=5).value - expected) < 1e-12
    assert auroc(usual, usual.max() + 1 + unusual**2) == 1.0
    assert abs(auroc(usual, unusual) + auroc(unusual, usual) - 1) < 1e-12


def test_the_interval_has_the_width_of_the_sampling_error() -> None:
    found = auroc_interval(scores(400, 0.0, 2), scores(400, 1.0, 3), resamples=400)
    assert found.low < found.value < found.high
    # What repeated experiments scatter by.
    again = [auroc(scores(400, 0.0, 10 + i), scores(400, 1.0, 500 + i)) for i in range(200)]
    width = 2 * 1.96 * np.std(again)
    assert 0.75 < (found.high - found.low) / width < 1.3
    small = auroc_interval(scores(40, 0.0, 2), scores(40, 1.0, 3), resamples=200)
    assert small.high - small.low > 2 * (found.high - found.low)
    sure = auroc_interval(np.zeros(20), np.ones(20), resamples=20)
    assert tuple(sure) == (1.0, 1.0, 1.0)


def test_scores_that_are_none_are_refused() -> None:
    with pytest.raises(InputError, match="unusual cases"):
        auroc(np.zeros(3), np.array([]))
    with pytest.raises(InputError, match="without NaN"):
        auroc(np.array([np.nan]), np.zeros(2))
