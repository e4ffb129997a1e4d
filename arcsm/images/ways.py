"""From images to the rows of a density and back: one way for each kind of model.

Each way gives the log-probability of images, in nats, and draws images. All but the paper's give
exact probabilities of levels.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from arcsm.baselines import GaussianMixture, MixtureMADE, PixelMixture
from arcsm.conditional.normal import NormalDensity
from arcsm.data.images import dequantise, to_pixels
from arcsm.errors import InputError
from arcsm.images.cells import LEVELS, PixelSnap, cell_ends, from_rows, to_rows
from arcsm.images.settings import PAPER_RANGE
from arcsm.model import ARCSM
from arcsm.staged import StagedARCSM

Shape = tuple[int, int, int]
Only = Sequence[int] | None

# Images drawn at one time, where the model itself does not limit them.
_AT_ONCE = 256


@dataclass(frozen=True)
class Drawing:
    """How images are drawn; ε₀ = `langevin_step_size` is in the paper's units, pixels in [−1, 1].

    `given` are the top rows of the images, uint8 (n or 1, rows, width, channels).
    """

    method: str = "auto"
    given: np.ndarray | None = None
    langevin_steps: int = 20
    langevin_step_size: float | None = None
    batch_size: int | None = None

    def step_size(self, scale: Tensor) -> float | None:
        """Return ε₀ in the standardised units of a model."""
        if self.langevin_step_size is None:
            return None
        return self.langevin_step_size / (PAPER_RANGE * float(scale[0])) ** 2


class Way(ABC):
    """What a model of images is asked for."""

    about: str  # what `log_prob` is the logarithm of

    @abstractmethod
    def log_prob_terms(
        self, pixels: np.ndarray, generator: torch.Generator, only: Only = None
    ) -> Float[Tensor, "images scalars"]:
        """Return log P(x_d | x_<d) of uint8 images, in nats; with `only`, of these scalars."""

    @abstractmethod
    def draw(self, n: int, how: Drawing, generator: torch.Generator) -> Iterator[np.ndarray]:
        """Yield batches of n images in all, uint8."""


def way_of(density: nn.Module, shape: Shape, noise: str) -> Way:
    """Return the way of a density; `noise` is that of the settings it was trained by."""
    if isinstance(density, PixelMixture):
        return _Levels(density, shape)
    if isinstance(density, MixtureMADE):
        return _Normals(density, shape)
    if isinstance(density, StagedARCSM):
        return _Stages(density, shape)
    if not isinstance(density, ARCSM):
        raise InputError(
            "expected a density of images (ARCSM, StagedARCSM, MixtureMADE or PixelMixture), got"
            f" {type(density).__name__}; choose one of these"
        )
    return _Cells(density, shape) if noise == "fine" else _Smoothed(density, shape)


class _Cells(Way):
    """Scores of levels that are spread over their cells."""

    about = (
        "the probability of the levels: of each given those before it a difference of the exact"
        " CDF of the model, whose smoothing σ_min, half a level or so, is part of it"
    )

    def __init__(self, model: ARCSM, shape: Shape):
        self._model, self._shape = model, shape

    def log_prob_terms(
        self, pixels: np.ndarray, generator: torch.Generator, only: Only = None
    ) -> Tensor:
        rows = to_rows(pixels)
        return self._model.log_prob_terms(rows, cells=cell_ends(rows), only=only)[0]

    def draw(self, n: int, how: Drawing, generator: torch.Generator) -> Iterator[np.ndarray]:
        batches = self._model.sample_batches(
            n,
            generator=generator,
            given=None if how.given is None else to_rows(how.given),
            method=how.method,
            snap=PixelSnap(),
            batch_size=how.batch_size,
            langevin_steps=how.langevin_steps,
            langevin_step_size=how.step_size(self._model.scale),
        )
        return (from_rows(rows, self._shape) for rows in batches)


class _Smoothed(Way):
    """The paper's way: dequantised pixels that carry the noise σ_L of the last level."""

    about = (
        "the density of the image with uniform noise of one level and normal noise of the last"
        " noise level σ_L on every pixel, which is what the model has learned, times the volume of"
        " a cell: of another, smoother distribution than that of the levels"
    )

    _method = "auto"

    def __init__(self, model: ARCSM, shape: Shape):
        self._model, self._shape = model, shape

    def log_prob_terms(
        self, pixels: np.ndarray, generator: torch.Generator, only: Only = None
    ) -> Tensor:
        rows = self._noisy(pixels, generator)
        terms, _ = self._model.log_prob_terms(rows, only=only, method=self._method)
        return terms - math.log(LEVELS)

    def draw(self, n: int, how: Drawing, generator: torch.Generator) -> Iterator[np.ndarray]:
        given = how.given
        done = 0
        for rows in self._rows(n, how, generator):
            images = to_pixels(rows, self._shape)
            if given is not None:
                # What was given comes out as it was, without the noise that the model wants.
                known = given if len(given) == 1 else given[done : done + len(images)]
                images[:, : given.shape[1]] = known
            done += len(images)
            yield images

    def _rows(self, n: int, how: Drawing, generator: torch.Generator) -> Iterator[Tensor]:
        given = how.given
        return self._model.sample_batches(
            n,
            generator=generator,
            given=None if given is None else self._noisy(given, generator),
            method=how.method,
            batch_size=how.batch_size,
            langevin_steps=how.langevin_steps,
            langevin_step_size=how.step_size(self._model.scale),
        )

    def _noisy(self, pixels: np.ndarray, generator: torch.Generator) -> Tensor:
        """Return images as contexts saw them in training: dequantised, with noise σ̂ = σ_L."""
        rows = dequantise(pixels, seed=generator)
        sigma = self._model.noise.sigma_min * self._model.scale[0].to(rows)
        noise = torch.randn(rows.shape, generator=generator, device=rows.device)
        return rows + sigma * noise


class _Stages(_Smoothed):
    """The same with one network for each noise level, which Langevin dynamics alone goes through.

    The density is that of the last stage, normalised by quadrature.
    """

    _method = "quadrature"  # no flow joins the stages

    def __init__(self, staged: StagedARCSM, shape: Shape):
        super().__init__(staged.last, shape)
        self._staged = staged

    def _rows(self, n: int, how: Drawing, generator: torch.Generator) -> Iterator[Tensor]:
        if how.method not in ("auto", "langevin") or how.given is not None:
            what = "rows that are given" if how.given is not None else f"method {how.method!r}"
            raise InputError(
                "expected Langevin dynamics without given rows for a model in stages, got"
                f" {what}; leave it out, or train without staged"
            )
        return (
            self._staged.sample(
                count,
                generator=generator,
                langevin_steps=how.langevin_steps,
                langevin_step_size=how.step_size(self._model.scale),
            )
            for count in _batches(n, how.batch_size)
        )


class _Normals(Way):
    """MADE with normal conditionals, trained on dequantised levels."""

    about = (
        "the probability of the levels: of each given those before it the mass of a normal"
        " distribution in its cell (maximum likelihood on dequantised levels bounds it from below)"
    )

    def __init__(self, model: MixtureMADE, shape: Shape):
        if model.kind != "gaussian" or model.components != 1:
            raise InputError(
                "expected normal conditionals, got mixtures of"
                f" {model.components} ({model.kind}); use kind='gaussian', components=1"
            )
        self._model, self._shape = model, shape

    @torch.no_grad()
    def log_prob_terms(
        self, pixels: np.ndarray, generator: torch.Generator, only: Only = None
    ) -> Tensor:
        model = self._model
        rows = to_rows(pixels).to(model.shift)
        mixture = model.conditionals(model.to_standard(rows))
        density = NormalDensity(mixture.mean[..., 0], mixture.log_scale[..., 0].exp())
        low, high = (
            ((end - model.shift.double()) / model.scale.double())[..., None]
            for end in cell_ends(rows)
        )
        return density.log_mass(low, high)[..., 0]

    def draw(self, n: int, how: Drawing, generator: torch.Generator) -> Iterator[np.ndarray]:
        _refuse_method(how)
        for start, count in _places(n, how.batch_size):
            rows = self._walk(count, _given_rows(how.given, start, count), generator)
            yield from_rows(rows, self._shape)

    @torch.no_grad()
    def _walk(self, n: int, given: Tensor | None, generator: torch.Generator) -> Tensor:
        """Draw rows scalar after scalar, each brought to its level before the next is drawn."""
        model, snap = self._model, PixelSnap()
        x = model.empty_rows(n)
        known = 0 if given is None else given.shape[1]
        if given is not None:
            x[:, :known] = given.to(x)
        cursor = model.context.cursor(n)
        for d in range(model.dims):
            if d >= known:
                z = GaussianMixture.from_context(cursor.context()).sample(generator)
                x[:, d] = snap.move(z * model.scale[d] + model.shift[d])
            cursor.push(model.context_input(x[:, d], d))
        return x


class _Levels(Way):
    """PixelCNN++ with discretised mixtures of logistics."""

    about = (
        "the probability of the levels: of each given those before it the mass of a mixture of"
        " logistic distributions in its cell"
    )

    def __init__(self, model: PixelMixture, shape: Shape):
        self._model, self._shape = model, shape

    def log_prob_terms(
        self, pixels: np.ndarray, generator: torch.Generator, only: Only = None
    ) -> Tensor:
        return self._model.log_prob_terms(to_rows(pixels))[0]

    def draw(self, n: int, how: Drawing, generator: torch.Generator) -> Iterator[np.ndarray]:
        _refuse_method(how)
        for start, count in _places(n, how.batch_size):
            rows = self._model.sample(
                count,
                generator=generator,
                given=_given_rows(how.given, start, count),
                batch_size=how.batch_size,
            )
            yield from_rows(rows, self._shape)


def _refuse_method(how: Drawing) -> None:
    if how.method != "auto":
        raise InputError(
            "expected the method 'auto' for a model trained by maximum likelihood, which has one"
            f" way to draw, got {how.method!r}; leave it out"
        )


def _batches(n: int, size: int | None) -> Iterator[int]:
    return (count for _, count in _places(n, size))


def _places(n: int, size: int | None) -> Iterator[tuple[int, int]]:
    """Yield where each batch starts, and how many images it has."""
    size = _AT_ONCE if size is None else size
    for start in range(0, n, size):
        yield start, min(size, n - start)


def _given_rows(given: np.ndarray | None, start: int, count: int) -> Tensor | None:
    """Return what is given to the images of a batch, a row for each."""
    if given is None:
        return None
    rows = to_rows(given if len(given) == 1 else given[start : start + count])
    return rows.expand(count, -1)
