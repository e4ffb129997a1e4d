"""The two normalised densities that one family of conditionals can stand for.

`FlowDensity` normalises the conditional at σ_max, where it is smooth and all of it has been seen in
training, and carries it to σ_min by the probability flow. `QuadratureDensity` normalises the
conditional at σ_min directly; where that has gaps between its modes, energies across a gap are
untrained and the modes may be weighed wrongly. The two agree for scores that obey the heat
equation in σ, exact ones for instance.
"""

from typing import Protocol

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

    def quantile(
        self, probability: Float[Tensor, "*batch points"]
    ) -> Float[Tensor, "*batch points"]:
        """Return x with cdf(x) = probability."""

    def log_prob_error(self) -> Float[Tensor, "*batch"]:
        """Return an estimate of the numerical error of log q."""


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

    def quantile(
        self, probability: Float[Tensor, "*batch points"]
    ) -> Float[Tensor, "*batch points"]:
        """Return x with cdf(x) = probability."""
        return self._quadrature.quantile(probability).to(probability.dtype)

    def log_prob_error(self) -> Float[Tensor, "*batch"]:
        """Return the estimated error of log Z."""
        return self._quadrature.log_z_error


class FlowDensity:
    """q = law of flow_down(y) for y from the normalised conditional at σ_max."""

    def __init__(self, family: Family, noise: Noise, *, steps: int | None = None):
        self._family = family
        self._levels = flow_levels(noise, steps)
        self._base = Quadrature(family.at(noise.sigma_max))

    def log_prob(self, x: Float[Tensor, "*batch points"]) -> Float[Tensor, "*batch points"]:
        """Return log q(x) = log q_max(y) − log dx/dy, where x is the image of y."""
        y, log_slope = flow_up(self._family, x, self._levels)
        return self._base.log_prob(y).to(x.dtype) - log_slope

    def cdf(self, x: Float[Tensor, "*batch points"]) -> Float[Tensor, "*batch points"]:
        """Return the probability of values up to x: the flow is increasing."""
        y, _ = flow_up(self._family, x, self._levels)
        return self._base.cdf(y).to(x.dtype)

    def quantile(
        self, probability: Float[Tensor, "*batch points"]
    ) -> Float[Tensor, "*batch points"]:
        """Return x with cdf(x) = probability."""
        y = self._base.quantile(probability).to(probability.dtype)
        x, _ = flow_down(self._family, y, self._levels)
        return x

    def log_prob_error(self) -> Float[Tensor, "*batch"]:
        """Return the estimated error of log Z at σ_max; the discrete flow itself is exact."""
        return self._base.log_z_error
