"""A density in two dimensions, learned in seconds, with looks at it on the way."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray

from arcsm.conditional import Noise
from arcsm.data import get_toy
from arcsm.model import ARCSM
from arcsm.threads import limited_threads
from arcsm.train import History, Progress, TrainConfig, fit


@dataclass(frozen=True)
class LearningSizes:
    """How much of everything. With the defaults: about 25 s."""

    rows: int = 10_000
    steps: int = 900
    batch_size: int = 512
    hidden: tuple[int, ...] = (128, 128, 128)
    grid: int = 100  # cells on a side of the map
    shown: int = 400  # samples over the map
    pause: float = 1.5  # least seconds between two looks
    # The same points give the same picture where steps end the training. Time does only on a
    # machine on which it would take twice as long as it should.
    max_seconds: float = 45.0


@dataclass(frozen=True)
class Look:
    """What has been learned so far; the map's first row is at the bottom."""

    step: int
    steps: int
    history: History
    extent: tuple[float, float, float, float]
    log_density: Float[ndarray, "grid grid"]
    samples: Float[ndarray, "shown 2"]
    seconds: float
    final: bool = False


def toy_points(name: str, rows: int, seed: int = 0) -> Float[ndarray, "rows 2"]:
    """Draw points of a toy distribution."""
    points = get_toy(name).sample(rows, generator=torch.Generator().manual_seed(seed))
    return np.asarray(points.numpy())


def learn(
    points: Float[ndarray, "rows 2"],
    sizes: LearningSizes,
    look: Callable[[Look], None],
    *,
    seed: int = 0,
) -> Look:
    """Train a model on the points, tell `look` now and then, and return the last look.

    What `look` raises ends the training.
    """
    model = ARCSM.made(2, hidden=sizes.hidden, noise=Noise(2.0, 0.02), seed=seed)
    config = TrainConfig(
        steps=sizes.steps,
        batch_size=sizes.batch_size,
        # Long strides: the best that was found for a training this short.
        learning_rate=1.5e-2,
        warmup=sizes.steps // 10,
        evaluate_every=max(1, sizes.steps // 50),
        max_seconds=sizes.max_seconds,
        seed=seed,
    )
    training: list[tuple[int, float]] = []
    validation: list[tuple[int, float]] = []
    extent = _extent(points)
    shown = time.monotonic()

    def watch(progress: Progress) -> None:
        nonlocal shown
        training.append((progress.step, progress.loss))
        if progress.validation is not None:
            validation.append((progress.step, progress.validation))
        if time.monotonic() - shown < sizes.pause or progress.done >= 1:
            return
        # Not to be changed under the eyes of whoever draws it.
        best = min(validation, key=lambda entry: entry[1], default=(0, 0.0))[0]
        so_far = History([*training], [*validation], best, progress.step, progress.seconds)
        look(_look(model, so_far, sizes, extent, seed))
        shown = time.monotonic()

    # A second thread would bring a fifth, on a machine with other work much less than nothing.
    with limited_threads(1):
        history = fit(model, points, config, progress=watch)
        return _look(model, history, sizes, extent, seed, final=True)


def _extent(points: Float[ndarray, "rows 2"]) -> tuple[float, float, float, float]:
    """Return the edges of a square around the points, with a margin: left, right, bottom, top."""
    low, high = points.min(0), points.max(0)
    middle, reach = (low + high) / 2, 0.56 * float((high - low).max())
    left, right, bottom, top = (
        float(edge)
        for edge in (middle[0] - reach, middle[0] + reach, middle[1] - reach, middle[1] + reach)
    )
    return left, right, bottom, top


def _look(
    model: ARCSM,
    history: History,
    sizes: LearningSizes,
    extent: tuple[float, float, float, float],
    seed: int,
    *,
    final: bool = False,
) -> Look:
    """Return the density in the middles of the cells of a grid, and samples."""
    left, right, bottom, top = extent
    place = (torch.arange(sizes.grid) + 0.5) / sizes.grid
    across, up = left + (right - left) * place, bottom + (top - bottom) * place
    columns = torch.stack([across, torch.zeros_like(across)], 1)
    # One conditional of the first scalar, and one of the second for each column of cells.
    first = model.conditional(columns[:1], 0).log_prob(across[None])[0]
    second = model.conditional(columns, 1).log_prob(up.expand(sizes.grid, sizes.grid))
    log_density = (first[:, None] + second).T
    samples = model.sample(sizes.shown, generator=torch.Generator().manual_seed(seed))
    return Look(
        history.steps,
        sizes.steps,
        history,
        extent,
        log_density.double().numpy(),
        samples.double().numpy(),
        history.seconds,
        final,
    )
