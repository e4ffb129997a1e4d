"""The two normalised densities that one family of conditionals can stand for.

`FlowDensity` normalises the conditional at σ_max, where it is smooth and all of it has been seen in
training (and where the head may make it normal outright, to be corrected by a `Recalibration`), and
carries it to σ_min by the probability flow. `QuadratureDensity` normalises the conditional at σ_min
directly; where that has gaps between its modes, energies across a gap are untrained and the modes
may be weighed wrongly. The two agree for scores that obey the heat equation in σ, exact ones for
instance.
"""

from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from arcsm.conditional.flow import flow_down, flow_levels, flow_up
from arcsm.conditional.noise import Noise
from arcsm.conditional.normal import NormalDensity
from arcsm.conditional.protocol import Conditional, Family
from arcsm.conditional.quadrature import Quadrature
from arcsm.conditional.recalibration import Curve, Recalibration
from arcsm.errors import InputError

Points = Float[Tensor, "*batch points"]

# What the rounding of all that a term is made of comes to, in units of its parts. Measured against
# models of double precision: 99 of 100 terms are closer to theirs than this, most of them 10 to 30
# times as close.
_FLOW_ROUNDING = 6.0
_QUADRATURE_ROUNDING = 2.0
_PER_NAT = 30.0


class Density(Protocol):
    """Normalised one-dimensional densities, one for each entry of a batch shape."""

    def log_prob(self, x: Points) -> Points:
        """Return log q(x)."""

    def cdf(self, x: Points) -> Points:
        """Return the probability of values up to x."""

    def log_mass(self, low: Points, high: Points) -> Points:
        """Return log P(low < x < high), which is exact in the tails too; ends may be infinite."""

    def quantile(self, probability: Points) -> Points:
        """Return x with cdf(x) = probability."""

    def log_prob_and_error(self, x: Points) -> tuple[Points, Points]:
        """Return log q(x) and an estimate of its numerical error, in nats."""

    def log_mass_and_error(self, low: Points, high: Points) -> tuple[Points, Points]:
        """Return log P(low < x < high) and an estimate of its numerical error, in nats."""


class BentNormal:
    """Densities of y = mean + std·z with h(z) standard normal, for increasing curves h."""

    def __init__(self, mean: Float[Tensor, "*batch"], std: Float[Tensor, "*batch"], curve: Curve):
        self._mean, self._std = mean.double()[..., None], std.double()[..., None]
        self._curve = curve
        self._standard = NormalDensity(torch.zeros_like(mean), torch.ones_like(std))

    def log_prob(self, x: Points) -> Points:
        """Return log q(x)."""
        value, log_slope = self._curve((x - self._mean) / self._std)
        return self._standard.log_prob(value) + log_slope - self._std.log()

    def cdf(self, x: Points) -> Points:
        """Return the probability of values up to x."""
        return self._standard.cdf(self._straight(x))

    def log_mass(self, low: Points, high: Points) -> Points:
        """Return log P(low < x < high), from the tail that is nearer."""
        return self._standard.log_mass(self._straight(low), self._straight(high))

    def quantile(self, probability: Points) -> Points:
        """Return x with cdf(x) = probability; infinite for 0 and 1."""
        return self._mean + self._std * self._curve.inverse(self._standard.quantile(probability))

    @property
    def log_z_error(self) -> Float[Tensor, "*batch"]:
        """Zeros: nothing had to be integrated."""
        return self._standard.log_z_error

    def _straight(self, x: Points) -> Points:
        finite = x.isfinite()
        z = (x.where(finite, 0.0) - self._mean) / self._std
        return self._curve(z)[0].where(finite, x.double())


class QuadratureDensity:
    """q(x) = exp E(x, σ_min)/Z."""

    def __init__(self, family: Family, noise: Noise):
        conditional = family.at(noise.sigma_min)
        self._quadrature = Quadrature(conditional)
        self._epsilon = _epsilon(conditional)
        self._scale = 1 / noise.sigma_min

    def log_prob(self, x: Points) -> Points:
        """Return log q(x)."""
        return self._quadrature.log_prob(x).to(x.dtype)

    def cdf(self, x: Points) -> Points:
        """Return the probability of values up to x."""
        return self._quadrature.cdf(x).to(x.dtype)

    def log_mass(self, low: Points, high: Points) -> Points:
        """Return log P(low < x < high)."""
        return self._quadrature.log_mass(low, high).to(low.dtype)

    def quantile(self, probability: Points) -> Points:
        """Return x with cdf(x) = probability."""
        return self._quadrature.quantile(probability).to(probability.dtype)

    def log_prob_and_error(self, x: Points) -> tuple[Points, Points]:
        """Return log q(x), and the errors of log Z and of the energy."""
        found = self._quadrature.log_prob(x)
        return found.to(x.dtype), (self._error(found)).to(x.dtype)

    def log_mass_and_error(self, low: Points, high: Points) -> tuple[Points, Points]:
        """Return log P(low < x < high), and the errors of log Z, of energies and of the ends."""
        found = self._quadrature.log_mass(low, high)
        slack = _end_error(self._quadrature, low, high, found, self._epsilon)
        return found.to(low.dtype), (self._error(found) + slack).to(low.dtype)

    def _error(self, found: Points) -> Points:
        # The energy is a sum of parts of size 1/σ, whose coefficients were rounded on their way
        # through the network. They are the further off the further a point lies below the peaks.
        size = self._scale + _PER_NAT * found.abs()
        rounding = _QUADRATURE_ROUNDING * self._epsilon * size
        return self._quadrature.log_z_error[..., None] + rounding


class FlowDensity:
    """q = law of flow_down(y) for y from the normalised conditional at σ_max.

    Where that is normal it may be corrected by a `recalibration`.
    """

    def __init__(
        self,
        family: Family,
        noise: Noise,
        *,
        steps: int | None = None,
        recalibration: Recalibration | None = None,
    ):
        self._family = family
        self._levels = flow_levels(noise, steps)
        widest = family.at(noise.sigma_max)
        self._base: Quadrature | NormalDensity | BentNormal
        if recalibration is not None:
            mean, std = _normal(widest)
            self._base = BentNormal(mean, std, recalibration.curve(self._log_width(mean, std)))
        else:
            normal = widest.normal()
            self._base = Quadrature(widest) if normal is None else NormalDensity(*normal)

    def standard_ends(
        self, low: Points, high: Points
    ) -> tuple[Points, Points, Float[Tensor, "*batch"]]:
        """Return what a recalibration learns from: z at the ends of cells, and log-widths.

        The conditionals must be normal at σ_max.
        """
        normal = _normal(self._family.at(self._levels[0]))
        mean, std = (part.double()[..., None] for part in normal)
        y_low, y_high = self._ends(low, high)
        y_high = y_high.where(low != high, y_low)  # to the bit
        return (y_low - mean) / std, (y_high - mean) / std, self._log_width(*normal)

    def _log_width(
        self, mean: Float[Tensor, "*batch"], std: Float[Tensor, "*batch"]
    ) -> Float[Tensor, "*batch"]:
        """Return the log of half the way between the images of mean ± std."""
        ends = flow_down(self._family, torch.stack([mean - std, mean + std], -1), self._levels)
        return log_half_gap(ends[..., 0], ends[..., 1])

    def log_prob(self, x: Points) -> Points:
        """Return log q(x) = log q_max(y) − log dx/dy, where x is the image of y."""
        y, log_slope = flow_up(self._family, x, self._levels)
        return self._base.log_prob(y).to(x.dtype) - log_slope

    def cdf(self, x: Points) -> Points:
        """Return the probability of values up to x: the flow is increasing."""
        y, _ = flow_up(self._family, x, self._levels)
        return self._base.cdf(y).to(x.dtype)

    def log_mass(self, low: Points, high: Points) -> Points:
        """Return log P(low < x < high), which the flow carries to σ_max unchanged."""
        return self._base.log_mass(*self._ends(low, high)).to(low.dtype)

    def _ends(self, low: Points, high: Points) -> tuple[Points, Points]:
        """Return what both ends of a cell are at σ_max."""
        ends = torch.cat([low, high], -1)
        finite = ends.isfinite()
        y, _ = flow_up(self._family, ends.where(finite, 0.0), self._levels)
        y_low, y_high = y.where(finite, ends).chunk(2, -1)
        return y_low, y_high

    def quantile(self, probability: Points) -> Points:
        """Return x with cdf(x) = probability; for 0 and 1, that of the nearest one inside.

        A uniform draw of 0 stands for what lies below the next one, eps/2.
        """
        epsilon = torch.finfo(probability.dtype).eps
        inside = probability.double().clamp(epsilon / 4, 1 - epsilon / 2)
        y = self._base.quantile(inside).to(probability.dtype)
        return flow_down(self._family, y, self._levels)

    def log_prob_and_error(self, x: Points) -> tuple[Points, Points]:
        """Return log q(x), and the error of log Z at σ_max with the rounding of the steps.

        The discrete flow itself is exact.
        """
        return self.log_prob(x), self._error(x).to(x.dtype)

    def log_mass_and_error(self, low: Points, high: Points) -> tuple[Points, Points]:
        """Return log P(low < x < high), and the rounding of the steps and of both ends."""
        y_low, y_high = self._ends(low, high)
        found = self._base.log_mass(y_low, y_high)
        epsilon = torch.finfo(low.dtype).eps
        slack = _end_error(self._base, y_low, y_high, found, epsilon)
        # The mass itself is that at σ_max; what the steps round are the ends there.
        rounding = epsilon * (1 + found.abs()) + 3 * len(self._levels) * slack
        error = self._base.log_z_error[..., None] + rounding
        return found.to(low.dtype), error.to(low.dtype)

    def _error(self, x: Points) -> Points:
        # Each step rounds x, by a share of |x| and of the width of the peak that it lies on, and
        # so moves log q by |s| as much; each rounds its log-slope too.
        score, bend = self._family.at(self._levels[-1]).jet(x)
        size = len(self._levels) + (score * x).abs() + bend.abs().sqrt()
        rounding = _FLOW_ROUNDING * torch.finfo(x.dtype).eps * size
        return self._base.log_z_error[..., None] + rounding


def _normal(widest: Conditional) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """Return means and deviations of conditionals that must be normal."""
    normal = widest.normal()
    if normal is None:
        raise InputError(
            "expected conditionals that are normal at σ_max to recalibrate them, got others;"
            " build the model with a σ_max of at least 2"
        )
    return normal


def log_half_gap(low: Tensor, high: Tensor) -> Tensor:
    """Return the log of half the distance between two ends, however close they are."""
    return ((high - low) / 2).clamp(min=torch.finfo(low.dtype).tiny).log()


def _epsilon(conditional: Conditional) -> float:
    return torch.finfo(conditional.bounds()[0].dtype).eps


def _end_error(
    density: Quadrature | NormalDensity | BentNormal,
    low: Points,
    high: Points,
    log_mass: Points,
    epsilon: float,
) -> Points:
    """Return the error that the rounding of the ends of a cell leaves in the log of its mass."""
    total = torch.zeros_like(log_mass)
    for end in (low.double(), high.double()):
        finite = end.isfinite()
        inside = end.where(finite, 0.0)
        share = (density.log_prob(inside) - log_mass).exp() * (1 + inside.abs())
        total = total + share.where(finite, 0.0)
    return epsilon * total
