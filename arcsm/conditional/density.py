"""The two normalised densities that one family of conditionals can stand for.

`FlowDensity` normalises the conditional at σ_max, where it is smooth and all of it has been seen in
training (and where the head may make it normal outright), and carries it to σ_min by the
probability flow. `QuadratureDensity` normalises the
conditional at σ_min directly; where that has gaps between its modes, energies across a gap are
untrained and the modes may be weighed wrongly. The two agree for scores that obey the heat
equation in σ, exact ones for instance.
"""

import math
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from arcsm.conditional.flow import flow_down, flow_levels, flow_up
from arcsm.conditional.noise import Noise
from arcsm.conditional.protocol import Family
from arcsm.conditional.quadrature import Quadrature


class Density(Protocol):
    """Normalised one-dimensional densities, one for each entry of a batch shape."""

    def log_prob(self, x: Float[Tensor, "*batch points"]) -> Float[Tensor, "*batch points"]:
        """Return log q(x)."""

    def cdf(self, x: Float[Tensor, "*batch points"]) -> Float[Tensor, "*batch points"]:
        """Return the probability of values up to x."""

    def log_mass(
        self, low: Float[Tensor, "*batch points"], high: Float[Tensor, "*batch points"]
    ) -> Float[Tensor, "*batch points"]:
        """Return log P(low < x < high), which is exact in the tails too; ends may be infinite."""

    def quantile(
        self, probability: Float[Tensor, "*batch points"]
    ) -> Float[Tensor, "*batch points"]:
        """Return x with cdf(x) = probability."""

    def log_prob_error(self) -> Float[Tensor, "*batch"]:
        """Return an estimate of the numerical error of log q."""


class NormalDensity:
    """Normal densities, of which every answer is a closed form."""

    def __init__(self, mean: Float[Tensor, "*batch"], std: Float[Tensor, "*batch"]):
        self._mean, self._std = mean.double()[..., None], std.double()[..., None]

    def log_prob(self, x: Float[Tensor, "*batch points"]) -> Float[Tensor, "*batch points"]:
        """Return log q(x)."""
        z = (x - self._mean) / self._std
        return -z.square() / 2 - self._std.log() - math.log(2 * math.pi) / 2

    def cdf(self, x: Float[Tensor, "*batch points"]) -> Float[Tensor, "*batch points"]:
        """Return the probability of values up to x."""
        return torch.special.ndtr((x - self._mean) / self._std)

    def log_mass(
        self, low: Float[Tensor, "*batch points"], high: Float[Tensor, "*batch points"]
    ) -> Float[Tensor, "*batch points"]:
        """Return log P(low < x < high), from the tail that is nearer."""
        a, b = (low - self._mean) / self._std, (high - self._mean) / self._std
        mirror = a > -b  # the middle lies above the mean: look at it from the other side
        a, b = torch.where(mirror, -b, a), torch.where(mirror, -a, b)
        upper = torch.special.log_ndtr(b)
        return upper + torch.log(-torch.expm1(torch.special.log_ndtr(a) - upper))

    def quantile(
        self, probability: Float[Tensor, "*batch points"]
    ) -> Float[Tensor, "*batch points"]:
        """Return x with cdf(x) = probability; infinite for 0 and 1."""
        return self._mean + self._std * torch.special.ndtri(probability.double())

    def log_prob_error(self) -> Float[Tensor, "*batch"]:
        """Return zeros."""
        return torch.zeros_like(self._mean[..., 0])


class QuadratureDensity:
    """q(x) = exp E(x, σ_min)/Z."""

    def __init__(self, family: Family, noise: Noise):
        self._quadrature = Quadrature(family.at(noise.sigma_min))

    def log_prob(self, x: Float[Tensor, "*batch points"]) -> Float[Tensor, "*batch points"]:
        """Return log q(x)."""
        return self._quadrature.log_prob(x).to(x.dtype)

    def cdf(self, x: Float[Tensor, "*batch points"]) -> Float[Tensor, "*batch points"]:
        """Return the probability of values up to x."""
        return self._quadrature.cdf(x).to(x.dtype)

    def log_mass(
        self, low: Float[Tensor, "*batch points"], high: Float[Tensor, "*batch points"]
    ) -> Float[Tensor, "*batch points"]:
        """Return log P(low < x < high)."""
        return self._quadrature.log_mass(low, high).to(low.dtype)

    def quantile(
        self, probability: Float[Tensor, "*batch points"]
    ) -> Float[Tensor, "*batch points"]:
        """Return x with cdf(x) = probability."""
        return self._quadrature.quantile(probability).to(probability.dtype)

    def log_prob_error(self) -> Float[Tensor, "*batch"]:
        """Return the estimated error of log Z."""
        return self._quadrature.log_prob_error()


class FlowDensity:
    """q = law of flow_down(y) for y from the normalised conditional at σ_max."""

    def __init__(self, family: Family, noise: Noise, *, steps: int | None = None):
        self._family = family
        self._levels = flow_levels(noise, steps)
        widest = family.at(noise.sigma_max)
        self._epsilon = torch.finfo(widest.bounds()[0].dtype).eps
        normal = widest.normal()
        self._base = Quadrature(widest) if normal is None else NormalDensity(*normal)

    def log_prob(self, x: Float[Tensor, "*batch points"]) -> Float[Tensor, "*batch points"]:
        """Return log q(x) = log q_max(y) − log dx/dy, where x is the image of y."""
        y, log_slope = flow_up(self._family, x, self._levels)
        return self._base.log_prob(y).to(x.dtype) - log_slope

    def cdf(self, x: Float[Tensor, "*batch points"]) -> Float[Tensor, "*batch points"]:
        """Return the probability of values up to x: the flow is increasing."""
        y, _ = flow_up(self._family, x, self._levels)
        return self._base.cdf(y).to(x.dtype)

    def log_mass(
        self, low: Float[Tensor, "*batch points"], high: Float[Tensor, "*batch points"]
    ) -> Float[Tensor, "*batch points"]:
        """Return log P(low < x < high), which the flow carries to σ_max unchanged."""
        ends = torch.cat([low, high], -1)
        finite = ends.isfinite()
        y, _ = flow_up(self._family, ends.where(finite, 0.0), self._levels)
        y_low, y_high = y.where(finite, ends).chunk(2, -1)
        return self._base.log_mass(y_low, y_high).to(low.dtype)

    def quantile(
        self, probability: Float[Tensor, "*batch points"]
    ) -> Float[Tensor, "*batch points"]:
        """Return x with cdf(x) = probability; for 0 and 1, that of the nearest one inside.

        A uniform draw of 0 stands for what lies below the next one, eps/2.
        """
        epsilon = torch.finfo(probability.dtype).eps
        inside = probability.double().clamp(epsilon / 4, 1 - epsilon / 2)
        y = self._base.quantile(inside).to(probability.dtype)
        x, _ = flow_down(self._family, y, self._levels)
        return x

    def log_prob_error(self) -> Float[Tensor, "*batch"]:
        """Return the estimated error of log Z at σ_max and the rounding of the steps.

        The discrete flow itself is exact.
        """
        return self._base.log_prob_error() + len(self._levels) * self._epsilon
