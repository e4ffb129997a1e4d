"""From the statistics of an image to one number: how unusual it is.

Each judge takes what it compares with from the statistics of training images alone.

- "nll": −log P(x), in nats. Smooth images are "too likely": of many unusual ones it is small.
- "typicality": |−log P(x) − its mean over training images|.
- "h": −Σ_d s_d at one noise level, by default 0.3 or that nearest to it: minus the paper's h(x),
  which is the smaller the more unusual an image is. (It states neither the sign nor the level; of
  the levels of its ladder this one did best on the pairs that `arcsm reproduce ood` chooses by.)
- "csm": Σ_d ½ (σ s_d)² + σ² ∂s_d/∂x_d at one σ, by default the same, the integrand of composite
  score matching.
- "csm-typicality": the distance of that from its mean over training images.
- "gaussian", "mixture", "neighbours": the vector of all statistics at all levels, under a normal
  density with a shrunken covariance (Ledoit and Wolf), under a mixture of a few, or by the mean
  distance to its nearest neighbours in the units of that covariance.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from arcsm.errors import InputError
from arcsm.tasks.images.statistics import Statistics

JUDGES = ("nll", "typicality", "h", "csm", "csm-typicality", "gaussian", "mixture", "neighbours")
OF_VECTORS = ("gaussian", "mixture", "neighbours")
WITHOUT_SCORES = ("nll", "typicality")
OF_ONE_LEVEL = ("h", "csm", "csm-typicality")

_LEVEL = 0.3
_NEIGHBOURS = 5
# An image so much nearer than the last of these is the training image itself, or a copy of it.
_SAME = 1e-3
_COMPONENTS = 4
# Added to the variances of components, whose units are the deviations of training images.
_REGULAR = 0.05
# What the logarithm of a square is kept from: the scores of a constant image may all but vanish.
_LEAST = 1e-8
# A statistic this many deviations off is as far as any.
_FARTHEST = 1e4


class Judge(ABC):
    """Learns from training images, then gives each image a number: higher is more unusual."""

    def learn(self, train: Statistics) -> "Judge":
        """Take what is compared with."""
        return self

    @abstractmethod
    def judge(self, images: Statistics) -> np.ndarray:
        """Return a number for each image (n,)."""


def make_judge(name: str, *, sigma: float | None = None, seed: int = 0) -> Judge:
    """Return a judge that has learned nothing yet; `sigma` is the level of those of one level."""
    if sigma is not None and name in JUDGES and name not in OF_ONE_LEVEL:
        raise InputError(
            f"expected no sigma for {name!r}, which takes no level of its own, got {sigma!r}; leave"
            f" it out, or choose one of {', '.join(OF_ONE_LEVEL)}"
        )
    if name == "nll":
        return _Nll()
    if name == "typicality":
        return _Typicality(_Nll())
    if name == "h":
        return _MinusH(sigma)
    if name == "csm":
        return _Integrand(sigma)
    if name == "csm-typicality":
        return _Typicality(_Integrand(sigma))
    if name in OF_VECTORS:
        return _OfVectors(name, seed)
    raise InputError(f"expected a judge among {', '.join(JUDGES)}, got {name!r}; choose one")


class _Nll(Judge):
    def judge(self, images: Statistics) -> np.ndarray:
        return np.asarray(images.nll.sum(1))


class _MinusH(Judge):
    def __init__(self, sigma: float | None):
        self._sigma = sigma

    def judge(self, images: Statistics) -> np.ndarray:
        score = _of_scores(images.score)
        level = place_of(self._sigma, images.levels)
        pixels = images.shape[0] * images.shape[1]
        return np.asarray(-pixels * score[:, level].sum(1) / images.levels[level])


class _Integrand(Judge):
    def __init__(self, sigma: float | None):
        self._sigma = sigma

    def judge(self, images: Statistics) -> np.ndarray:
        square, bend = _of_scores(images.square), _of_scores(images.bend)
        level = place_of(self._sigma, images.levels)
        pixels = images.shape[0] * images.shape[1]
        return np.asarray(pixels * (square / 2 + bend)[:, level].sum(1))


class _Typicality(Judge):
    def __init__(self, of: Judge):
        self._of, self._mean = of, math.nan

    def learn(self, train: Statistics) -> Judge:
        self._mean = float(self._of.learn(train).judge(train).mean())
        return self

    def judge(self, images: Statistics) -> np.ndarray:
        return np.asarray(np.abs(self._of.judge(images) - self._mean))


class _OfVectors(Judge):
    def __init__(self, density: str, seed: int):
        self._density, self._seed = density, seed

    def learn(self, train: Statistics) -> Judge:
        from sklearn.covariance import LedoitWolf
        from sklearn.mixture import GaussianMixture
        from sklearn.neighbors import NearestNeighbors

        vectors = vectors_of(train)
        if len(vectors) < 2:
            raise InputError(
                f"expected at least two training images, got {len(vectors)}; pass more of them"
            )
        self._mean, deviation = vectors.mean(0), vectors.std(0)
        # What is the same in all training images has no unit of its own: its own size stands in.
        unit = 1e-6 * np.abs(self._mean) + 1e-12
        self._deviation = np.where(deviation > unit, deviation, np.maximum(unit, 1e-3))
        z = self._standardised(vectors)
        covariance = LedoitWolf(assume_centered=True).fit(z).covariance_
        values, axes = np.linalg.eigh(covariance)
        self._whiten = axes / np.sqrt(np.maximum(values, 1e-9))
        if self._density == "mixture":
            count = max(1, min(_COMPONENTS, len(z) // 50))
            self._mixture = GaussianMixture(
                count, reg_covar=_REGULAR, random_state=self._seed, max_iter=200
            ).fit(z @ self._whiten)
        elif self._density == "neighbours":
            count = min(_NEIGHBOURS + 1, len(z))
            self._search = NearestNeighbors(n_neighbors=count, algorithm="brute")
            self._known = z @ self._whiten
            self._search.fit(self._known)
        return self

    def judge(self, images: Statistics) -> np.ndarray:
        white = self._standardised(vectors_of(images)) @ self._whiten
        if self._density == "gaussian":
            return np.asarray(np.square(white).sum(1))
        if self._density == "mixture":
            return np.asarray(-self._mixture.score_samples(white))
        distance, index = self._search.kneighbors(white)
        # A training image is its own nearest neighbour, which says nothing. The search takes
        # differences of squares, which leave a rest, and likelihoods may be rounded otherwise.
        nearest = np.linalg.norm(white - self._known[index[:, 0]], axis=1)
        itself = nearest <= _SAME * distance[:, -1]
        others = np.where(itself[:, None], distance[:, 1:], distance[:, :-1])
        return np.asarray(others.mean(1))

    def _standardised(self, vectors: np.ndarray) -> np.ndarray:
        z = (vectors - self._mean) / self._deviation
        return np.asarray(np.clip(z, -_FARTHEST, _FARTHEST))


def vectors_of(images: Statistics) -> np.ndarray:
    """Return all statistics of each image side by side (n, numbers).

    Squares as logarithms, since they differ by orders of magnitude; products relative to squares.
    """
    parts = [images.nll / (images.shape[0] * images.shape[1])]
    if images.square is not None:
        score, bend = _of_scores(images.score), _of_scores(images.bend)
        product = _of_scores(images.product)
        mean_square = images.square.mean(2, keepdims=True)
        squares = np.log(images.square + _LEAST)
        parts += [score, squares, bend, product / (mean_square + _LEAST)]
    return np.concatenate([part.reshape(len(images), -1) for part in parts], axis=1)


def place_of(sigma: float | None, levels: Sequence[float]) -> int:
    """Return the place of a noise level, or of the usual one, among those that there are."""
    if sigma is None:
        sigma = min(levels, key=lambda level: abs(math.log(level / _LEVEL)))
    if sigma not in levels:
        told = ", ".join(f"{level:g}" for level in levels)
        raise InputError(f"expected sigma among {told}, got {sigma!r}; choose one of these")
    return list(levels).index(sigma)


def _of_scores(part: np.ndarray | None) -> np.ndarray:
    if part is None:
        raise InputError(
            "expected scores for this way to judge, got a model trained by maximum likelihood;"
            f" use one of {', '.join(WITHOUT_SCORES)}, or a model trained by score matching"
        )
    return part
