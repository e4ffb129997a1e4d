"""Normal densities, which the flow starts from."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

Points = Float[Tensor, "*batch points"]


class NormalDensity:
    """Normal densities, of which every answer is a closed form."""

    def __init__(self, mean: Float[Tensor, "*batch"], std: Float[Tensor, "*batch"]):
        self._mean, self._std = mean.double()[..., None], std.double()[..., None]

    def log_prob(self, x: Points) -> Points:
        """Return log q(x)."""
        z = (x - self._mean) / self._std
        return -z.square() / 2 - self._std.log() - math.log(2 * math.pi) / 2

    def cdf(self, x: Points) -> Points:
        """Return the probability of values up to x."""
        return torch.special.ndtr((x - self._mean) / self._std)

    def log_mass(self, low: Points, high: Points) -> Points:
        """Return log P(low < x < high), from the tail that is nearer."""
        a, b = (low - self._mean) / self._std, (high - self._mean) / self._std
        mirror = a > -b  # the middle lies above the mean: look at it from the other side
        a, b = torch.where(mirror, -b, a), torch.where(mirror, -a, b)
        upper = torch.special.log_ndtr(b)
        return upper + torch.log(-torch.expm1(torch.special.log_ndtr(a) - upper))

    def quantile(self, probability: Points) -> Points:
        """Return x with cdf(x) = probability; infinite for 0 and 1."""
        return self._mean + self._std * torch.special.ndtri(probability.double())

    @property
    def log_z_error(self) -> Float[Tensor, "*batch"]:
        """Zeros: nothing had to be integrated."""
        return torch.zeros_like(self._mean[..., 0])
