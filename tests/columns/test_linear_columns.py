"""Real numbers whose tails stay as heavy as they are."""

import numpy as np
import pytest

from arcsm.columns import Columns
from arcsm.data.table import as_table


def test_heavy_tails_are_left_alone() -> None:
    x = np.random.default_rng(0).standard_t(2, size=(2000, 1))
    heavy, linear = (Columns.learn(as_table(x), kinds={"x0": kind}) for kind in ("real", "linear"))
    assert "tail heavier" in heavy.describe()[0]["reason"]
    assert [(c["kind"], c["reason"]) for c in linear.describe()] == [("real", "real numbers")]
    point = linear.encode(as_table(x)).point
    np.testing.assert_allclose(point, (x - x.mean()) / x.std())
    np.testing.assert_allclose(linear.decode(point)["x0"], x[:, 0])
    again = Columns.from_config(linear.config)
    np.testing.assert_array_equal(again.encode(as_table(x)).point, point)


@pytest.mark.parametrize(("far", "bent"), [(100.0, False), (1e6, True)])
def test_a_wild_row_does_not_press_all_others_together(far: float, bent: bool) -> None:
    x = np.append(np.random.default_rng(0).normal(size=500), far)[:, None]
    columns = Columns.learn(as_table(x), kinds={"x0": "linear"})
    assert (columns.describe()[0]["parameters"]["right"] > 0) == bent
    point = columns.encode(as_table(x)).point[:, 0]
    assert point[:-1].std() > 0.1 and point[-1] == point.max()


def test_whole_numbers_are_real_too() -> None:
    x = np.random.default_rng(0).poisson(3.0, size=(200, 1))
    columns = Columns.learn(as_table(x), kinds={"x0": "linear"})
    encoded = columns.encode(as_table(x + 0.5))
    assert not encoded.impossible.any() and (encoded.low == encoded.high).all()
