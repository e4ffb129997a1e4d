"""What one would use without arcsm: a Gaussian mixture and a kernel density, from scikit-learn."""

import itertools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import KFold
from sklearn.neighbors import KernelDensity
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]


@dataclass(frozen=True)
class Rival:
    """A density, what was chosen for it, and its log-likelihood of each held-out row in nats."""

    name: str
    choice: str
    log_prob: Float[ndarray, "rows"]


def gaussian_mixture(
    rows: Float[ndarray, "rows dims"],
    held_out: Float[ndarray, "held_out dims"],
    *,
    components: Sequence[int],
    kinds: Sequence[str] = ("full", "diag"),
    seed: int = 0,
) -> Rival:
    """Return the mixture with the lowest BIC among all numbers of components and covariances."""
    shift, scale = rows.mean(0), rows.std(0)
    z = (rows - shift) / scale
    candidates = []
    for kind, count in itertools.product(kinds, components):
        mixture = GaussianMixture(count, covariance_type=kind, random_state=seed, max_iter=200)
        # Its matrices are small: a second thread only slows it, thirtyfold on a busy machine.
        with threadpool_limits(1), warnings.catch_warnings():
            # A fit that has not settled is still a density, and BIC says what it is worth.
            warnings.simplefilter("ignore", ConvergenceWarning)
            mixture.fit(z)
        candidates.append((mixture.bic(z), mixture))
    best = min(candidates, key=lambda candidate: candidate[0])[1]
    log_prob = best.score_samples((held_out - shift) / scale) - np.log(scale).sum()
    covariance = {"full": "full", "diag": "diagonal"}[best.covariance_type]
    return Rival(
        "Gaussian mixture", f"{best.n_components} components, {covariance} covariance", log_prob
    )


def kernel_density(
    rows: Float[ndarray, "rows dims"],
    held_out: Float[ndarray, "held_out dims"],
    *,
    bandwidths: Sequence[float],
    folds: int = 5,
    scored: int,
) -> Rival:
    """Return the Gaussian kernel density with the bandwidth that cross-validation likes best.

    All rows outside a fold make the density, the first `scored` of those inside it are scored.
    """
    shift, scale = rows.mean(0), rows.std(0)
    z = (rows - shift) / scale
    score = np.zeros(len(bandwidths))
    for inside, outside in KFold(folds).split(z):
        for index, bandwidth in enumerate(bandwidths):
            density = KernelDensity(bandwidth=bandwidth, rtol=1e-4).fit(z[inside])
            score[index] += density.score_samples(z[outside[:scored]]).mean()
    bandwidth = bandwidths[int(score.argmax())]
    density = KernelDensity(bandwidth=bandwidth, rtol=1e-6).fit(z)
    log_prob = density.score_samples((held_out - shift) / scale) - np.log(scale).sum()
    return Rival("Kernel density", f"Gaussian, bandwidth {bandwidth:.2g} of a column's σ", log_prob)
