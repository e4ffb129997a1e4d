"""Distances between two sets of images by their features: FID and KID.

Both compare the distributions of features, not images one by one. FID is biased: it falls with the
number of images, and values are comparable only at the same numbers on both sides. KID is unbiased.

    >>> import torch
    >>> generator = torch.Generator().manual_seed(0)
    >>> one = torch.randn(500, 2, generator=generator)
    >>> round(fid(one, one + torch.tensor([3.0, 4.0])), 3)
    25.0
"""

import warnings
from typing import Any

import torch
from torch import Tensor

from arcsm.data.arrays import as_rows
from arcsm.errors import InputError
from arcsm.metrics.statistics import FeatureStatistics, feature_statistics

# A covariance may fail to be symmetric or positive by rounding, relative to its largest entry.
_ROUNDING = 1e-5


def frechet_distance(mean1: Any, cov1: Any, mean2: Any, cov2: Any) -> float:
    """Return the squared Fréchet distance of two normal distributions,

        |μ₁ - μ₂|² + tr(Σ₁ + Σ₂ - 2 (Σ₁ Σ₂)^½).

    With Σ = F Fᵀ, the trace of the root is the sum of the singular values of F₁ᵀ F₂. They are
    accurate to rounding where the covariances are singular too: no root is taken of an eigenvalue
    that is zero but for rounding.

    >>> frechet_distance([0.0], [[4.0]], [1.0], [[9.0]])
    2.0
    """
    mean1, factor1 = _moments(mean1, cov1, "1")
    mean2, factor2 = _moments(mean2, cov2, "2")
    if len(mean1) != len(mean2):
        raise InputError(
            f"expected two distributions over as many features, got {len(mean1)} and {len(mean2)};"
            " compute both with the same layer of the network"
        )
    mean2, factor2 = mean2.to(mean1.device), factor2.to(mean1.device)
    shared = torch.linalg.svdvals(factor1.T @ factor2).sum()
    spread = factor1.square().sum() + factor2.square().sum() - 2 * shared
    return float((mean1 - mean2).square().sum() + spread.clamp_min(0))


def fid(features_a: Any, features_b: Any) -> float:
    """Return the Fréchet inception distance of two sets of features (images × features).

    Either set may be given by its `FeatureStatistics`. A set of no more images than features, of
    which there are 2048 in published figures, has a covariance of deficient rank; the distance is
    then far too large, and a warning says so.
    """
    one, other = _statistics(features_a, "features_a"), _statistics(features_b, "features_b")
    for statistics, name in ((one, "features_a"), (other, "features_b")):
        if statistics.count <= len(statistics.mean):
            warnings.warn(
                f"{name} are those of {statistics.count} images, fewer than the"
                f" {len(statistics.mean) + 1} that a covariance of {len(statistics.mean)} features"
                " needs; the distance is biased upwards: use more images, or KID",
                stacklevel=2,
            )
    return frechet_distance(one.mean, one.covariance, other.mean, other.covariance)


def kid(
    features_a: Any,
    features_b: Any,
    *,
    subsets: int = 100,
    subset_size: int = 1000,
    generator: torch.Generator | None = None,
) -> tuple[float, float]:
    """Return the kernel inception distance of two sets of features: mean and deviation of subsets.

    It is the unbiased estimate of the squared maximum mean discrepancy under the kernel
    (x·y / features + 1)³, averaged over `subsets` pairs of subsets of `subset_size` images drawn
    without replacement by `generator`, torch's own if None; the second number is the standard
    deviation among them. Around zero it may be negative. Either set may be given by
    `FeatureStatistics` that kept the features.
    """
    one, other = _features(features_a, "features_a"), _features(features_b, "features_b")
    if one.shape[1] != other.shape[1]:
        raise InputError(
            f"expected two sets of as many features, got {one.shape[1]} and {other.shape[1]};"
            " compute both with the same layer of the network"
        )
    for name, value, least in (("subsets", subsets, 1), ("subset_size", subset_size, 2)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InputError(f"expected {name} as a whole number from {least} on, got {value!r}")
    fewest = min(len(one), len(other))
    if fewest < subset_size:
        raise InputError(
            f"expected at least subset_size = {subset_size} images in each set, got {fewest};"
            f" compute more, or pass subset_size={fewest}"
        )
    dtype = torch.promote_types(one.dtype, other.dtype)
    one, other = one.to(dtype), other.to(one.device, dtype)
    estimates = []
    for _ in range(subsets):
        x, y = (_subset(rows, subset_size, generator) for rows in (one, other))
        same = _kernel_sum(x, x, diagonal=False) + _kernel_sum(y, y, diagonal=False)
        across = _kernel_sum(x, y, diagonal=True) / subset_size**2
        estimates.append(same / (subset_size * (subset_size - 1)) - 2 * across)
    values = torch.tensor(estimates, dtype=torch.float64)
    return values.mean().item(), values.std(correction=0).item()


def _subset(rows: Tensor, size: int, generator: torch.Generator | None) -> Tensor:
    device = torch.device("cpu") if generator is None else generator.device
    chosen = torch.randperm(len(rows), generator=generator, device=device)[:size]
    return rows[chosen.to(rows.device)]


def _kernel_sum(x: Tensor, y: Tensor, *, diagonal: bool) -> float:
    """Return the sum of the kernel over all pairs, with or without those of equal numbers."""
    # The products keep the type of the features. The sums are of a million terms, whose differences
    # are the estimate: they are in double precision.
    kernel = _double(x @ y.T / x.shape[1]).add_(1).pow_(3)
    total = kernel.sum()
    return float(total if diagonal else total - kernel.diagonal().sum())


def _moments(mean: Any, covariance: Any, name: str) -> tuple[Tensor, Tensor]:
    """Return a mean, and F with F Fᵀ equal to the covariance, both in double precision."""
    mean, covariance = (_double(value) for value in (mean, covariance))
    dims = len(mean) if mean.ndim == 1 else None
    if dims is None or tuple(covariance.shape) != (dims, dims):
        raise InputError(
            f"expected mean{name} of shape (features,) and cov{name} of shape (features, features),"
            f" got {tuple(mean.shape)} and {tuple(covariance.shape)}; pass those of one set"
        )
    if not bool(mean.isfinite().all() and covariance.isfinite().all()):
        raise InputError(
            f"expected finite numbers in mean{name} and cov{name}, got others;"
            " look for features that are not finite"
        )
    values, vectors = torch.linalg.eigh(covariance)
    largest = values.abs().max()
    lopsided = (covariance - covariance.T).abs().max()
    if bool(lopsided > _ROUNDING * largest) or bool(values[0] < -_ROUNDING * largest):
        raise InputError(
            f"expected cov{name} to be a covariance, symmetric without negative eigenvalues, got"
            f" entries that differ by {lopsided:.3g} and an eigenvalue of {values[0]:.3g};"
            " pass a covariance, not deviations"
        )
    # Eigenvalues this small are zero but for rounding.
    kept = values > dims * torch.finfo(torch.float64).eps * largest
    return mean, vectors[:, kept] * values[kept].sqrt()


def _double(value: Any) -> Tensor:
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"expected an array of numbers, got {type(value).__name__}: {error};"
            " convert it with numpy.asarray"
        ) from error
    if tensor.device.type == "mps":  # which has no float64
        tensor = tensor.cpu()
    return tensor.detach().double()


def _statistics(value: Any, name: str) -> FeatureStatistics:
    if isinstance(value, FeatureStatistics):
        return value
    return feature_statistics(as_rows(value, name=name))


def _features(value: Any, name: str) -> Tensor:
    if not isinstance(value, FeatureStatistics):
        return as_rows(value, name=name)
    if value.features is None:
        raise InputError(
            f"expected {name} with the features themselves, got statistics without them;"
            " compute them again with feature_statistics(features, keep=True)"
        )
    return value.features
