"""Fitting images: from pixels to a trained model, in a run that can be interrupted."""

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from arcsm.autoregressive import TrainableModel
from arcsm.baselines import PixelMixture
from arcsm.data.images import WHOLE, Images, dequantise
from arcsm.devices import check_device
from arcsm.errors import InputError
from arcsm.images.cells import HIGHEST, LEVELS, Flips, PixelCells, WholeLevels, cell_ends, to_rows
from arcsm.images.memory import check_batch_fits, check_weights_fit, within_memory
from arcsm.images.model import ImageModel
from arcsm.images.networks import build_density, fewest_weights
from arcsm.images.settings import PAPER_LEVELS, ImageSettings
from arcsm.images.tracking import tracking
from arcsm.model import ARCSM
from arcsm.train import History, Progress, TrainConfig, fit, fit_staged, split_rows

# Images of a grid that is drawn during the training.
_SHOWN = 16
# Held-out images that widths are corrected by: of each some scalars.
_LOOKED_AT = 512


def fit_images(
    images: Images | np.ndarray,
    settings: ImageSettings | None = None,
    *,
    device: torch.device | str = "cpu",
    directory: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: Callable[[Progress], None] | None = None,
    track: str | os.PathLike[str] | None = None,
    prepared: Mapping[str, Any] | None = None,
) -> ImageModel:
    """Learn the density of `images`, an array of uint8 (n, height, width, channels) or `Images`.

    With a `directory` the state of the training is kept there, and `resume` goes on from it to the
    same bits, with the same images and settings. `progress` is called after each look at the
    held-out images. `track` is a folder for TensorBoard: loss curves, and now and then a grid of
    images, drawn from the same noise each time, in at most a tenth of the time. `prepared` is kept
    with the model (see `ImageModel`).
    """
    given = settings or ImageSettings()
    check_device(device)
    images = _checked(images)
    pixels, shape = images.pixels, images.shape
    # Pictures of someone's own that are called as a set is are still no set.
    known = "" if images.part == WHOLE else images.name
    chosen = given.filled(known, device)
    check_weights_fit(fewest_weights(chosen, shape), device)
    density = build_density(chosen, shape, name=known, deviation=_deviation(pixels, chosen))
    density = density.to(device)
    model = ImageModel(density, shape, chosen, images.name, prepared=dict(prepared or {}))
    rows = _rows(pixels, chosen)
    config = chosen.training(len(rows))
    check_batch_fits(density, rows, config)
    draw = None if chosen.staged else lambda: model.sample(_SHOWN, seed=chosen.seed)
    spread, augment = _spread(density, chosen), _flips(chosen, shape)
    with tracking(track, draw) as tracker:

        def tell(state: Progress) -> None:
            tracker(state)
            if progress is not None:
                progress(state)

        def train() -> ImageModel:
            if chosen.staged and isinstance(density, ARCSM):
                return _fit_stages(
                    model,
                    density,
                    rows,
                    config,
                    augment=augment,
                    directory=directory,
                    resume=resume,
                    tell=tell,
                )
            history = fit(
                density,
                rows,
                config,
                spread=spread,
                augment=augment,
                directory=directory,
                resume=resume,
                progress=tell,
            )
            began = time.perf_counter()
            if chosen.recalibrate and isinstance(density, ARCSM):
                _recalibrate(density, rows, config)
            spent = history.seconds + time.perf_counter() - began
            return replace(model, history=replace(history, seconds=spent))

        return within_memory(train, density, rows, config, spread=spread is not None)


def _checked(images: Images | np.ndarray) -> Images:
    """Return images that can be learned from."""
    if not isinstance(images, Images):
        images = Images(images, None, "images", WHOLE)
    if images.shape[2] not in (1, 3):
        raise InputError(
            f"expected images of 1 channel (grey) or 3 (colour), got {images.shape[2]};"
            " convert them"
        )
    if len(images) < 2:
        raise InputError(f"expected at least two images, got {len(images)}; add some")
    return images


def _deviation(pixels: np.ndarray, settings: ImageSettings) -> float:
    """Return the deviation of the entries of rows, all of them together.

    By counting levels: in float64 without an array of that size.
    """
    counts = np.bincount(pixels.reshape(-1), minlength=LEVELS).astype(np.float64)
    share, levels = counts / counts.sum(), np.arange(LEVELS)
    mean = float(share @ levels)
    variance = float(share @ (levels - mean) ** 2)
    if variance == 0:
        raise InputError(
            f"expected images that differ, got {int(mean)} everywhere; pass other images"
        )
    if settings.noise == "paper":  # which is uniform over a level
        return math.sqrt(variance + 1 / 12) / LEVELS
    return math.sqrt(variance) / HIGHEST


def _rows(pixels: np.ndarray, settings: ImageSettings) -> Tensor:
    """Return what is trained on.

    The paper's pixels are dequantised once: noise σ_L, which is several levels, comes anew at
    every step.
    """
    if settings.noise != "paper":
        return to_rows(pixels)
    return dequantise(pixels, seed=settings.seed)


def _flips(settings: ImageSettings, shape: tuple[int, int, int]) -> Flips | None:
    """Return how images are mirrored, if they are."""
    axes = (0,) * settings.upside_down + (1,) * bool(settings.flips)
    return Flips(shape, axes) if axes else None


def _spread(
    density: TrainableModel, settings: ImageSettings
) -> Callable[[Tensor], tuple[Tensor, Tensor]] | None:
    """Return the rule by which targets are spread over their cells."""
    if settings.noise == "paper" or isinstance(density, PixelMixture):
        return None
    return PixelCells() if isinstance(density, ARCSM) else WholeLevels()


def _recalibrate(density: ARCSM, rows: Tensor, config: TrainConfig) -> None:
    """Correct the widths of conditionals by the held-out images, if there are any."""
    _, held_out = split_rows(len(rows), config)
    if len(held_out) == 0:
        return
    seen = rows[held_out[:_LOOKED_AT]]
    generator = torch.Generator().manual_seed(config.seed)
    density.recalibrate(seen, cells=cell_ends(seen), generator=generator)


def _fit_stages(
    model: ImageModel,
    density: ARCSM,
    rows: Tensor,
    config: TrainConfig,
    *,
    augment: Flips | None,
    directory: str | os.PathLike[str] | None,
    resume: bool,
    tell: Callable[[Progress], None],
) -> ImageModel:
    """Train one network after the other, and tell of them as of one training."""
    whole = History(training=[], validation=[], best_step=0, steps=0, seconds=0.0)

    def tell_stage(stage: int, state: Progress) -> None:
        tell(
            replace(
                state,
                step=(stage - 1) * config.steps + state.step,
                steps=PAPER_LEVELS * config.steps,
                seconds=whole.seconds + state.seconds,
                done=(stage - 1 + state.done) / PAPER_LEVELS,
            )
        )

    def add_stage(stage: int, history: History) -> None:
        nonlocal whole
        before = (stage - 1) * config.steps
        last = before + history.steps
        whole = History(
            training=whole.training + [(before + step, loss) for step, loss in history.training],
            validation=whole.validation
            + [(before + step, loss) for step, loss in history.validation],
            # The weights are those of every stage's best look at the held-out images.
            best_step=last,
            steps=last,
            seconds=whole.seconds + history.seconds,
        )

    staged = fit_staged(
        density,
        rows,
        config,
        augment=augment,
        directory=directory,
        resume=resume,
        progress=tell_stage,
        finished=add_stage,
    )
    return replace(model, density=staged, history=whole)
