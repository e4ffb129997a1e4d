"""Removing noise from images with a model of clean ones.

| method | what a scalar becomes | what is used of the image |
|---|---|---|
| mean, map, draw | mean, top or draw of its level's posterior (exact¹) | scalars before it |
| …with several views | the same, of the pooled views (see `posterior`) | all of it, approximately |
| particles | mean of draws from the posterior (see `particles`) | all, up to `lag` rows below |
| langevin | the paper's: Langevin dynamics from where it is | scalars before it |
| single-step | the paper's: x̃ + σ² s(x̃, σ), Gaussian noise alone | scalars before it |

¹ Under Gaussian noise levels closer than σ/8, eight at most, are taken for one.

The first four know the noise; Langevin dynamics does not. Means have the least square error, draws
look most like images.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from arcsm.checks import check_positive, check_seed, check_whole
from arcsm.data.images import Images
from arcsm.errors import InputError
from arcsm.images import ImageModel
from arcsm.images.cells import HIGHEST, LEVELS, from_rows
from arcsm.model import ARCSM
from arcsm.tasks.images.corruption import Corruption, Gaussian, SaltAndPepper
from arcsm.tasks.images.dynamics import by_langevin, by_single_step, langevin_ladder
from arcsm.tasks.images.levels import Bins
from arcsm.tasks.images.mirrors import check_views, scalars_of, usual_views
from arcsm.tasks.images.particles import particle_mean
from arcsm.tasks.images.posterior import (
    ESTIMATES,
    POOLS,
    Observation,
    numbers_per_image,
    restore,
)

METHODS = ("auto", *ESTIMATES, "particles", "langevin", "single-step")
# From this σ on, of pixels from −1 to 1, means of one scalar after another are no good contexts.
_STRONG = 0.3
_MOST_PARTICLES = 10_000
# Deviations of noise beyond black and white that no scalar of any image is.
_FARTHEST = 10.0
# Numbers that are kept at one time, on a CPU and on a GPU.
_NUMBERS, _NUMBERS_ON_GPU = 2**26, 2**30

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Denoising:
    """How noise is removed.

    `method` is one of `METHODS`; "auto" is "particles" for Gaussian noise of σ ≥ 0.3, else "mean".
    `views` are those of `mirrors.VIEWS` that are pooled by `pool`, "product" or "mixture"; of
    particles the mean is taken. None takes those that the model has seen the like of in training,
    and for "draw", which cannot be pooled, and the paper's methods the image as it is.
    `context` says what later scalars see of cleaned ones: their "mean" (brought to its level),
    "map" or "draw", by default what `method` says.

    `particles` and `lag`, in rows of the image, are those of "particles". T = `langevin_steps`,
    ε₀ = `langevin_step_size` (by default σ_L²/2) and the σ at which the dynamics starts,
    `langevin_start` (by default the middle of the ladder), are in the units of pixels from −1 to 1;
    so is `langevin_end`, by default the end of the ladder.
    """

    method: str = "auto"
    views: Sequence[str] | None = None
    pool: str = "product"
    context: str | None = None
    particles: int = 64
    lag: int = 6
    langevin_steps: int | None = None
    langevin_step_size: float | None = None
    langevin_start: float | None = None
    langevin_end: float | None = None

    def __post_init__(self) -> None:
        for name, known in (("method", METHODS), ("pool", POOLS), ("context", ESTIMATES)):
            value = getattr(self, name)
            if value not in known and not (name == "context" and value is None):
                raise InputError(
                    f"expected {name} among {', '.join(known)}, got {value!r}; choose one of these"
                )
        if self.views is not None:
            views = check_views(self.views)
            if self.method == "draw" and len(views) > 1:
                raise InputError(
                    f"expected one view for draws, got {', '.join(views)}; several can be pooled"
                    " for means, scalar by scalar, but not for draws of whole images"
                )
        for name, least in (("particles", 1), ("lag", 0), ("langevin_steps", 1)):
            value = getattr(self, name)
            if value is not None or name != "langevin_steps":
                check_whole(value, name, least)
        if self.particles > _MOST_PARTICLES:
            raise InputError(
                f"expected at most {_MOST_PARTICLES:,} particles, got {self.particles:,}: those of"
                " an image are kept at once; take fewer"
            )
        for name in ("langevin_step_size", "langevin_start", "langevin_end"):
            if getattr(self, name) is not None:
                check_positive(getattr(self, name), name)

    def suited_to(self, noise: Corruption) -> "Denoising":
        """Return the same with "auto" replaced by the method that suits the noise."""
        if self.method != "auto":
            return self
        strong = isinstance(noise, Gaussian) and noise.sigma >= _STRONG
        return replace(self, method="particles" if strong else "mean")

    def views_of(self, model: ImageModel) -> tuple[str, ...]:
        """Return the views to pool."""
        if self.views is not None:
            return check_views(self.views)
        if self.method in ("draw", "langevin", "single-step"):
            return ("none",)
        return usual_views(model)


def denoise_images(
    model: ImageModel,
    noisy: Images | np.ndarray,
    noise: Corruption,
    how: Denoising | None = None,
    *,
    seed: int = 0,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> np.ndarray:
    """Return images, uint8 (n, height, width, channels), cleaned of `noise`.

    `noisy` are uint8 images, rounded and cut off as files are, or, of Gaussian noise, floats of
    level/255 that are neither. All but the paper's methods need a model of exact levels (noise
    "fine", trained by score matching). `progress` is called with the number of further images.
    """
    _check_arguments(model, noise, how, seed, batch_size)
    how = (how or Denoising()).suited_to(noise)
    if how.method == "single-step" and not isinstance(noise, Gaussian):
        raise InputError(
            f"expected Gaussian noise for the method 'single-step', got {noise}; choose another"
        )
    pixels = _checked(model, noisy, noise)
    chain = _chain(model, how)
    views = how.views_of(model)
    cleaner = _Cleaner(model, chain, noise, how, views, pixels.dtype == np.uint8)
    size = cleaner.batch_size() if batch_size is None else batch_size
    generator = torch.Generator(model.device).manual_seed(seed)
    found = []
    for start in range(0, len(pixels), size):
        some = pixels[start : start + size]
        found.append(cleaner(some, generator))
        if progress is not None:
            progress(len(some))
    return np.concatenate(found)


class _Cleaner:
    """Cleans images of one kind of noise in one way."""

    def __init__(
        self,
        model: ImageModel,
        chain: ARCSM,
        noise: Corruption,
        how: Denoising,
        views: Sequence[str],
        cut: bool,
    ):
        self._shape, self._settings = model.shape, model.settings
        self._chain, self._noise, self._how, self._views = chain, noise, how, views
        self._cut, self._bins = cut, Bins(noise.finest)
        self._fine = model.settings.noise == "fine"

    def batch_size(self) -> int:
        """Return how many images to clean at one time."""
        numbers = _NUMBERS_ON_GPU if self._chain.shift.is_cuda else _NUMBERS
        each = numbers_per_image(self._chain, self._bins, len(self._views))
        if self._how.method == "particles":
            each = self._how.particles * self._chain.context.numbers_per_row
        return max(1, numbers // each)

    def __call__(self, pixels: np.ndarray, generator: torch.Generator) -> np.ndarray:
        """Return the images, uint8."""
        rows = torch.from_numpy(np.require(pixels, requirements=["C", "W"])).flatten(1)
        rows = rows.to(self._chain.shift)
        rows = rows / HIGHEST if self._cut else rows
        return from_rows(self._clean(rows, generator), self._shape)

    def _clean(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        how, chain = self._how, self._chain
        if how.method in ESTIMATES:
            return restore(
                chain,
                Observation(rows, self._noise, self._cut),
                self._shape,
                self._bins,
                kind=how.method,
                context=how.context or how.method,
                views=self._views,
                pool=how.pool,
                generator=generator,
            )
        return self._mean_of_views(rows, generator)

    def _mean_of_views(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        """Clean each view by itself; the mean of all of them, scalar by scalar."""
        total = torch.zeros_like(rows)
        for view in self._views:
            scalars = scalars_of(view, self._shape).to(rows.device)
            clean = self._clean_view(rows[:, scalars], generator)
            total += clean[:, scalars.argsort()]
        return total / len(self._views)

    def _clean_view(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        how, chain = self._how, self._chain
        if how.method == "particles":
            return particle_mean(
                chain,
                Observation(rows, self._noise, self._cut),
                self._shape,
                self._bins,
                particles=how.particles,
                lag=how.lag,
                generator=generator,
            )
        # The paper's pixels lie in the middle of cells of 1/256.
        own = rows if self._fine else (rows * HIGHEST + 0.5) / LEVELS
        if how.method == "langevin":
            told = self._settings
            clean = by_langevin(
                chain,
                own,
                langevin_ladder(chain, how.langevin_start, how.langevin_end),
                steps=how.langevin_steps or told.langevin_steps or 10,
                step_size=how.langevin_step_size or told.langevin_step_size,
                snapped=self._fine,
                generator=generator,
            )
        else:
            assert isinstance(self._noise, Gaussian)
            clean = by_single_step(chain, own, self._noise.scale, snapped=self._fine)
        return clean if self._fine else (clean * LEVELS - 0.5) / HIGHEST


def _checked(model: ImageModel, noisy: Images | np.ndarray, noise: Corruption) -> np.ndarray:
    """Return noisy pixels of the model's shape, uint8 or float."""
    pixels: Any = noisy.pixels if isinstance(noisy, Images) else noisy
    if not isinstance(pixels, np.ndarray) or pixels.dtype.kind != "f":
        return model.checked(pixels)
    if isinstance(noise, SaltAndPepper):
        raise InputError(
            f"expected uint8 images for salt and pepper, got {pixels.dtype}; convert them"
        )
    model.checked(np.zeros(pixels.shape, np.uint8))
    if not np.isfinite(pixels).all():
        raise InputError("expected finite pixels, got some that are not; leave these images out")
    if not isinstance(noise, Gaussian):  # one of the user's, who knows
        return pixels
    farthest = float(np.abs(pixels - 0.5).max(initial=0.0)) - 0.5
    if farthest > _FARTHEST * noise.scale:
        raise InputError(
            f"expected floats of level/255, from 0 to 1 but for noise of {noise}, got some from"
            f" {pixels.min():g} to {pixels.max():g}; divide levels by 255"
        )
    return pixels


def _check_arguments(
    model: object, noise: object, how: object, seed: object, batch_size: object
) -> None:
    """Refuse what is of another kind than is asked for."""
    for name, value, kind, instead in (
        ("model", model, ImageModel, "load it by ImageModel.load"),
        ("noise", noise, Corruption, "Gaussian(0.6) or SaltAndPepper(0.1) for instance"),
        ("how", how, (Denoising, type(None)), "Denoising('mean') for instance"),
    ):
        if not isinstance(value, kind):
            known = kind[0] if isinstance(kind, tuple) else kind
            raise InputError(
                f"expected {name} as a {known.__name__}, got {type(value).__name__}; {instead}"
            )
    check_seed(seed)
    if batch_size is not None:
        check_whole(batch_size, "batch_size")


def _chain(model: ImageModel, how: Denoising) -> ARCSM:
    """Return the scores of a model that can do what is asked."""
    density = model.density
    paper = how.method in ("langevin", "single-step")
    if not isinstance(density, ARCSM) or (model.settings.noise != "fine" and not paper):
        kind = (
            "one network trained by score matching"
            if paper
            else "a model trained by score matching with fine noise"
        )
        raise InputError(
            f"expected {kind} for the method {how.method!r}, got {type(density).__name__} with"
            f" noise {model.settings.noise!r}; choose another method or model"
        )
    return density
