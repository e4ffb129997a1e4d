"""The rest of images whose top is known."""

import numpy as np
import pytest

from arcsm.errors import InputError
from arcsm.tasks.images import complete

from .small import level_probabilities, small_model


def test_what_is_given_stays_and_the_rest_is_drawn_given_it() -> None:
    model = small_model((3, 1, 1))
    top = np.array([[40], [200]], np.uint8).reshape(2, 1, 1, 1)
    drawn = complete(model, top, draws=150, seed=1)
    assert drawn.shape == (2, 150, 3, 1, 1) and drawn.dtype == np.uint8
    assert (drawn[:, :, 0] == top[:, None, 0]).all()
    for index, known in enumerate((40, 200)):
        p = level_probabilities(model, [known])
        mean = p @ np.arange(256)
        deviation = np.sqrt(p @ (np.arange(256) - mean) ** 2)
        second = drawn[index, :, 1].astype(float)
        assert abs(second.mean() - mean) < 4 * deviation / np.sqrt(150)
    again = complete(model, top, draws=150, seed=1)
    assert np.array_equal(drawn, again)
    assert not np.array_equal(drawn, complete(model, top, draws=150, seed=2))


def test_tops_that_do_not_fit_are_refused() -> None:
    model = small_model((3, 1, 1))
    with pytest.raises(InputError, match="draws to be a whole number of at least 1"):
        complete(model, np.zeros((1, 1, 1, 1), np.uint8), draws=0)
    with pytest.raises(InputError, match="at most 1,000,000 completions at once"):
        complete(model, np.zeros((2, 1, 1, 1), np.uint8), draws=500_001)
    with pytest.raises(InputError, match="a model of images, got NoneType"):
        complete(None, np.zeros((1, 1, 1, 1), np.uint8))  # type: ignore[arg-type]
    assert complete(model, np.zeros((1, 1, 1, 1), np.uint8), np.int64(2)).shape[1] == 2  # type: ignore[arg-type]
    with pytest.raises(InputError, match="at least one image"):
        complete(model, np.zeros((1, 1, 1), np.uint8))
    with pytest.raises(InputError, match="expected given"):
        complete(model, np.zeros((1, 1, 2, 1), np.uint8))
