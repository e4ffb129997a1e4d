"""Unusual images: a number for each, and a map of the pixels to blame."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from arcsm.checks import check_seed
from arcsm.data.images import Images
from arcsm.errors import InputError
from arcsm.images import ImageModel
from arcsm.images.cells import to_rows
from arcsm.model import ARCSM
from arcsm.tasks.images.judges import JUDGES, WITHOUT_SCORES, Judge, make_judge, place_of
from arcsm.tasks.images.levels import Bins, log_probabilities
from arcsm.tasks.images.statistics import LEVELS, Progress, Statistics, gather

METHODS = ("auto", *JUDGES)
DEFAULT = "neighbours"
# Training images that are compared with: more of them hardly change what is usual.
REFERENCE = 5000
# Of fewer there are no two halves to be compared with each other.
_FEWEST = 4


@dataclass(frozen=True, eq=False)
class HeatMap:
    """What each pixel adds to −log P of its image, in nats, and what it was expected to add.

    `surprise` (images, height, width) adds up to −log P. `expected` is the entropy of the model's
    distribution of the pixel given those before it: where a picture is rough much is expected.
    """

    surprise: np.ndarray
    expected: np.ndarray

    @property
    def excess(self) -> np.ndarray:
        """How much more surprising a pixel is than expected: 0 on average in images drawn."""
        return np.asarray(self.surprise - self.expected)

    def smoothed(self, sigma: float = 1.5) -> np.ndarray:
        """Return the excess as a mean over neighbours, under a normal window of `sigma` pixels.

        Single pixels are surprising by chance everywhere; where something is wrong, many are.
        """
        from scipy.ndimage import gaussian_filter

        if not 0 <= sigma < math.inf:
            raise InputError(
                f"expected sigma of 0 pixels or more, got {sigma!r}; 1 or 2 are good values"
            )
        return np.asarray(gaussian_filter(self.excess, (0, sigma, sigma)))


class ImageDetector:
    """How unusual images are, compared with training images; `method` is one of `METHODS`.

    "auto" is "neighbours", and for a model trained by maximum likelihood "typicality"; see `judges`
    for what each does. `sigma` is the noise level of "h", "csm" or "csm-typicality", one of
    `levels`; the others have none.
    """

    def __init__(
        self,
        model: ImageModel,
        method: str = "auto",
        *,
        levels: Sequence[float] | None = None,
        sigma: float | None = None,
        seed: int = 0,
    ):
        if method not in METHODS:
            raise InputError(
                f"expected a method among {', '.join(METHODS)}, got {method!r}; choose one of these"
            )
        if not isinstance(model, ImageModel):
            raise InputError(
                f"expected a model of images, got {type(model).__name__}; load it by"
                " ImageModel.load"
            )
        scored = isinstance(model.density, ARCSM)
        if method == "auto":
            method = DEFAULT if scored else "typicality"
        if not scored and method not in WITHOUT_SCORES:
            raise InputError(
                f"expected a method among {', '.join(WITHOUT_SCORES)} for a model without scores,"
                f" got {method!r}; choose one, or train by score matching in one network"
            )
        self.model, self.method, self.seed = model, method, check_seed(seed)
        self.levels = _levels_of(model) if levels is None else _checked_levels(levels, model)
        self._new_judge = partial(make_judge, method, sigma=sigma, seed=self.seed)
        self._judge: Judge = self._new_judge()
        place_of(sigma, self.levels)  # before the work
        self._known, self._usual = 0, np.empty(0)

    def fit(
        self, train: Images | np.ndarray, *, progress: Progress | None = None
    ) -> "ImageDetector":
        """Take from training images what others are compared with; 5,000 of them, if there are.

        `progress` is told, here and in `score`, how many further images have been looked at.
        """
        pixels = self.model.checked(train)
        chosen = np.random.default_rng(self.seed).permutation(len(pixels))[:REFERENCE]
        some = pixels[np.sort(chosen)]
        return self.fit_statistics(self.statistics(some, progress=progress))

    def score(self, images: Images | np.ndarray, *, progress: Progress | None = None) -> np.ndarray:
        """Return a number for each image (n,), the higher the more unusual."""
        self._refuse_unfitted()  # before the work
        return self.score_statistics(self.statistics(images, progress=progress))

    def statistics(
        self, images: Images | np.ndarray, *, progress: Progress | None = None
    ) -> Statistics:
        """Return what the method needs of images: passes that several methods can share."""
        return gather(
            self.model,
            self.model.checked(images),
            levels=self.levels,
            likelihood=self.method not in ("h", "csm", "csm-typicality"),
            scores=self.method not in WITHOUT_SCORES,
            progress=progress,
        )

    def fit_statistics(self, train: Statistics) -> "ImageDetector":
        """Do what `fit` does, with statistics of training images."""
        self._judge.learn(train)
        self._known = len(train)
        # What images like them score when they are new: each half beside the other one.
        halves = [train.some(slice(first, None, 2)) for first in range(2)]
        if len(train) >= _FEWEST:
            self._usual = np.concatenate(
                [self._new_judge().learn(known).judge(new) for known, new in (halves, halves[::-1])]
            )
        return self

    def threshold(self, share: float = 0.01) -> float:
        """Return the score that a `share` of images like those of `fit` is beyond."""
        self._refuse_unfitted()
        if not 0 < share < 1:
            raise InputError(f"expected a share between 0 and 1, got {share!r}; correct it")
        if len(self._usual) * share < 1:
            raise InputError(
                f"expected {math.ceil(1 / share)} training images or more to know what {share:.3g}"
                f" of them is beyond, got {self._known}; pass more of them"
            )
        return float(np.quantile(self._usual, 1 - share))

    def score_statistics(self, images: Statistics) -> np.ndarray:
        """Do what `score` does, with statistics of images."""
        self._refuse_unfitted()
        return self._judge.judge(images)

    @torch.no_grad()
    def heat_map(self, images: Images | np.ndarray) -> HeatMap:
        """Return which pixels make images improbable; it needs no training images.

        For a model of exact levels that was trained by score matching.
        """
        self.check_heat_map()
        chain: Any = self.model.density
        pixels = self.model.checked(images)
        surprise = -self.model.log_prob_terms(pixels).sum(3)
        expected = np.empty(pixels.shape)
        for index, image in enumerate(pixels):
            rows = to_rows(image[None]).to(chain.shift)
            contexts = chain.context(chain.context_inputs(rows))[0]
            # All scalars of a model of images share their units.
            log_p = log_probabilities(chain, contexts, 0, Bins()).double()
            entropy = -(log_p.exp() * log_p).sum(1)
            expected[index] = entropy.cpu().numpy().reshape(self.model.shape)
        return HeatMap(surprise, expected.sum(3))

    def check_heat_map(self) -> None:
        """Refuse a model that can have no heat map."""
        chain = self.model.density
        if not isinstance(chain, ARCSM) or self.model.settings.noise != "fine":
            raise InputError(
                "expected a model trained by score matching with fine noise for a heat map, got"
                f" {type(chain).__name__}; train one"
            )

    def _refuse_unfitted(self) -> None:
        if not self._known:
            raise InputError(
                "expected a detector that has seen training images, got one that has not; call fit"
            )


def _levels_of(model: ImageModel) -> tuple[float, ...]:
    """Return those of `LEVELS` that a model knows; of a ladder its own, as it knows no others."""
    noise = getattr(model.density, "noise", None)
    if noise is None:
        return LEVELS
    if noise.levels is not None:
        return tuple(noise.ladder())
    return tuple(level for level in LEVELS if noise.sigma_min <= level <= noise.sigma_max)


def _checked_levels(levels: Sequence[float], model: ImageModel) -> tuple[float, ...]:
    try:
        told = tuple(float(level) for level in levels)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"expected a sequence of noise levels, got {levels!r}; pass (0.1, 0.3) for instance"
        ) from error
    noise = getattr(model.density, "noise", None)
    least, most = (0.0, float("inf")) if noise is None else (noise.sigma_min, noise.sigma_max)
    if not told or not all(least <= level <= most for level in told):
        raise InputError(
            f"expected noise levels from {least:g} to {most:g}, those of the model, got {told};"
            " choose others"
        )
    return told
