"""A density in two dimensions, with looks at it on the way."""

import dataclasses

import numpy as np
import pytest

from arcsm.app.background import Abandoned
from arcsm.app.learning import LearningSizes, Look, learn, toy_points

TINY = LearningSizes(
    rows=400, steps=8, batch_size=64, hidden=(16, 16), grid=20, shown=50, pause=0.0
)


def test_the_map_is_a_density_that_lies_where_the_samples_lie() -> None:
    points = toy_points("eight-gaussians", 2_000)
    sizes = dataclasses.replace(TINY, grid=80, shown=400, pause=1e9)
    last = learn(points, sizes, lambda look: None)
    left, right, bottom, top = last.extent
    assert last.log_density.shape == (80, 80) and last.samples.shape == (400, 2)
    cell = (right - left) * (top - bottom) / 80**2
    mass = np.exp(last.log_density) * cell
    x, y = last.samples.T
    inside = (x > left) & (x < right) & (y > bottom) & (y < top)
    assert mass.sum() == pytest.approx(inside.mean(), abs=0.08)
    # The first row is at the bottom: the halves hold as much as the samples say.
    lower = ((y < (bottom + top) / 2) & inside).mean()
    assert mass[:40].sum() == pytest.approx(lower, abs=0.1)
    leftward = ((x < (left + right) / 2) & inside).mean()
    assert mass[:, :40].sum() == pytest.approx(leftward, abs=0.1)


def test_the_map_is_not_turned_over() -> None:
    # All points up on the left: there is the mass.
    points = np.random.default_rng(0).normal((-1.0, 1.0), 0.05, (400, 2)).astype(np.float32)
    points[0] = (1.0, -1.0)  # which makes the picture large
    last = learn(points, TINY, lambda look: None)
    mass = np.exp(last.log_density)
    assert mass[10:, :10].sum() > 0.8 * mass.sum()


def test_the_same_points_give_the_same_picture() -> None:
    points = toy_points("two-moons", TINY.rows)
    one, other = (learn(points, TINY, lambda look: None) for _ in range(2))
    assert np.array_equal(one.log_density, other.log_density)
    assert np.array_equal(one.samples, other.samples)


def test_looks_tell_of_the_losses_so_far_and_do_not_change_the_training() -> None:
    points = toy_points("rings", TINY.rows)
    looks: list[Look] = []
    watched = learn(points, TINY, looks.append)
    assert watched.final and not any(look.final for look in looks)
    assert [look.step for look in looks] == list(range(1, 8))
    assert [len(look.history.training) for look in looks] == list(range(1, 8))
    alone = learn(points, dataclasses.replace(TINY, pause=1e9), looks.append)
    assert len(looks) == 7
    assert np.array_equal(watched.samples, alone.samples)


def test_what_a_look_raises_ends_the_training() -> None:
    calls = []

    def look(seen: Look) -> None:
        calls.append(seen)
        raise Abandoned

    with pytest.raises(Abandoned):
        learn(toy_points("rings", TINY.rows), TINY, look)
    assert len(calls) == 1
