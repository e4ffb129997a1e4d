"""A trained density of images: new ones, the completion of others, and how probable they are."""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from arcsm.data.images import Images
from arcsm.errors import InputError
from arcsm.images.settings import ImageSettings
from arcsm.images.ways import Drawing, Shape, way_of
from arcsm.train import History

# Scalars of images that are evaluated at one time.
_SCALARS = 2**20

Progress = Callable[[int], None]


@dataclass(frozen=True, eq=False)
class ImageModel:
    """A density over images of one `shape` (height, width, channels), of pixels in uint8.

    `density` is what was trained, `settings` how, `name` what the images are called. `prepared`
    says how pictures were made ready for it: the size and the channels that they were brought to.
    """

    density: nn.Module = field(repr=False)
    shape: Shape
    settings: ImageSettings
    name: str = "images"
    history: History | None = None
    prepared: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._way()

    @property
    def dims(self) -> int:
        """The number of scalars of an image."""
        return math.prod(self.shape)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.density.parameters()).device

    @property
    def parameters(self) -> int:
        """The number of parameters."""
        return sum(parameter.numel() for parameter in self.density.parameters())

    @property
    def about_probability(self) -> str:
        """What `log_prob` is the logarithm of, in words."""
        return self._way().about

    def sample(
        self,
        n: int,
        *,
        seed: int = 0,
        generator: torch.Generator | None = None,
        method: str = "auto",
        given: np.ndarray | None = None,
        langevin_steps: int | None = None,
        langevin_step_size: float | None = None,
        batch_size: int | None = None,
        progress: Progress | None = None,
    ) -> np.ndarray:
        """Draw n images, uint8 (n, height, width, channels), by a `seed` or a generator.

        `method`: "auto" draws from what `log_prob` evaluates (a model in stages has Langevin
        dynamics alone); "flow", "quadrature" and "langevin", for models trained by score matching,
        are those of `ARCSM.sample`. T = `langevin_steps` and ε₀ = `langevin_step_size`, in the
        paper's units, are by default those of the settings.

        `given`, uint8 (n or 1, rows, width, channels), are the top rows of the images, which stay
        as they are; the rest is drawn given these. `progress` is called with the number of
        further images after each batch.
        """
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise InputError(f"expected a positive whole number of images, got {n!r}; ask for 1")
        how = Drawing(
            method,
            None if given is None else self._checked_given(given, n),
            _first(langevin_steps, self.settings.langevin_steps, 20),
            _first(langevin_step_size, self.settings.langevin_step_size, None),
            batch_size,
        )
        found = []
        for images in self._way().draw(n, how, self._generator(seed, generator)):
            found.append(images)
            if progress is not None:
                progress(len(images))
        return np.concatenate(found)

    def log_prob(
        self,
        images: Images | np.ndarray,
        *,
        seed: int = 0,
        generator: torch.Generator | None = None,
        progress: Progress | None = None,
    ) -> np.ndarray:
        """Return the log-probability of each image, in nats, float64 (n,).

        It is the logarithm of what `about_probability` says. With the noise "fine" and in models
        trained by maximum likelihood that is the probability of the 256 levels, exactly, and
        nothing is random. With the noise "paper" it is a density: that of pixels with uniform
        noise of one level and normal noise σ_L, drawn by `seed`, times the volume of a cell.
        """
        found = [
            terms.reshape(len(terms), -1).sum(1)
            for terms in self._terms(images, seed, generator, None, progress)
        ]
        return np.concatenate(found)

    def log_prob_terms(
        self,
        images: Images | np.ndarray,
        *,
        only: Sequence[int] | None = None,
        seed: int = 0,
        generator: torch.Generator | None = None,
        progress: Progress | None = None,
    ) -> np.ndarray:
        """Return log P(scalar | those before it), in nats, float64 in the shape of the images.

        They add up to `log_prob`. With `only`, where an image is laid flat, these alone are told
        for, and the others may be 0.
        """
        return np.concatenate(list(self._terms(images, seed, generator, only, progress)))

    def bits_per_dim(
        self,
        images: Images | np.ndarray,
        *,
        seed: int = 0,
        generator: torch.Generator | None = None,
        progress: Progress | None = None,
    ) -> np.ndarray:
        """Return −log₂ of the probability of each image for each of its scalars.

        Of which probability depends on the model, and is that of `log_prob`:

        - noise "fine": P(levels), a distribution over 256 levels; the smoothing σ_min of the model
          belongs to it and takes nothing away from its exactness. 8 bits if all levels are alike.
        - method "likelihood": P(levels) as well, in closed form. The MADE was trained on a lower
          bound of it, by dequantised levels; what is returned is the probability itself.
        - noise "paper": the density of dequantised pixels with noise σ_L, relative to cells of
          1/256. It is that of other data than the levels, and smoother ones: its bits do not
          compare with those above, and are greater, as noise takes bits to describe.
        """
        nats = self.log_prob(images, seed=seed, generator=generator, progress=progress)
        return -nats / (self.dims * math.log(2))

    def describe(self) -> dict[str, Any]:
        """Return what the model is, in plain numbers and words."""
        return {
            "name": self.name,
            "shape": list(self.shape),
            "density": type(self.density).__name__,
            "network": self.settings.network,
            "method": self.settings.method,
            "noise": self.settings.noise if self.settings.method == "csm" else None,
            "staged": self.settings.staged,
            "parameters": self.parameters,
            "steps": None if self.history is None else self.history.steps,
            "seconds": None if self.history is None else self.history.seconds,
            "probability": self.about_probability,
        }

    def save(self, directory: str | os.PathLike[str], *, half: bool = False) -> None:
        """Write the model to a directory, as a whole: safetensors and JSON, nothing pickled.

        A model that is already there is replaced; a directory of anything else is refused.
        With `half` the weights take 16 bits each, for a small file to publish; what is loaded
        from it computes in 32 bits again.
        """
        from arcsm.images.store import save_images_model

        save_images_model(directory, self, half=half)

    @staticmethod
    def load(
        directory: str | os.PathLike[str], *, device: torch.device | str = "cpu"
    ) -> "ImageModel":
        """Read a model that `save` wrote."""
        from arcsm.images.store import load_images_model

        return load_images_model(directory, device=device)

    def checked(self, images: Images | np.ndarray) -> np.ndarray:
        """Return the pixels of images, after their shape was checked."""
        pixels = images.pixels if isinstance(images, Images) else images
        expected = f"uint8 images of shape (n, {', '.join(map(str, self.shape))})"
        if not isinstance(pixels, np.ndarray):
            raise InputError(
                f"expected {expected} as an array or Images, got {type(pixels).__name__};"
                " convert them"
            )
        if pixels.dtype != np.uint8 or pixels.ndim != 4 or len(pixels) == 0:
            raise InputError(
                f"expected {expected}, got {pixels.dtype} of shape {pixels.shape};"
                " convert or reshape them"
            )
        if pixels.shape[1:] != self.shape:
            raise InputError(
                f"expected images of {in_words(self.shape)} as the model was trained on, got"
                f" {in_words(pixels.shape[1:])}; bring them to that size, or use another model"
            )
        return pixels

    def _terms(
        self,
        images: Images | np.ndarray,
        seed: int,
        generator: torch.Generator | None,
        only: Sequence[int] | None,
        progress: Progress | None,
    ) -> Iterator[np.ndarray]:
        """Yield the terms of some images at a time."""
        pixels = self.checked(images)
        random, way = self._generator(seed, generator), self._way()
        size = max(1, _SCALARS // self.dims)
        for start in range(0, len(pixels), size):
            piece = pixels[start : start + size]
            terms = way.log_prob_terms(piece, random, only)
            yield terms.double().cpu().numpy().reshape(piece.shape)
            if progress is not None:
                progress(len(piece))

    def _checked_given(self, given: np.ndarray, n: int) -> np.ndarray:
        height, width, channels = self.shape
        good = (
            isinstance(given, np.ndarray)
            and given.dtype == np.uint8
            and given.ndim == 4
            and given.shape[2:] == (width, channels)
            and 1 <= given.shape[1] <= height
            and len(given) in (1, n)
        )
        if not good:
            got = f"{given.dtype} {given.shape}" if isinstance(given, np.ndarray) else repr(given)
            raise InputError(
                f"expected given as uint8 of shape (1 or {n}, rows, {width}, {channels}) with 1 to"
                f" {height} rows, got {got}; pass the top rows of images of the model's shape"
            )
        return given

    def _generator(self, seed: int, generator: torch.Generator | None) -> torch.Generator:
        if generator is not None:
            return generator
        return torch.Generator(self.device).manual_seed(seed)

    def _way(self) -> Any:
        return way_of(self.density, self.shape, self.settings.noise)


def _first(*told: Any) -> Any:
    """Return the first that is not None, or the last."""
    return next((value for value in told[:-1] if value is not None), told[-1])


def in_words(shape: tuple[int, ...]) -> str:
    """Return the shape of an image as people say it.

    >>> in_words((32, 24, 3))
    '24 x 32 pixels in colour'
    """
    height, width, channels = shape
    kinds = {1: "in grey", 3: "in colour"}
    return f"{width} x {height} pixels {kinds.get(channels, f'with {channels} channels')}"
