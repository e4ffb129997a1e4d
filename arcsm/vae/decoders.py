"""Decoders p(x|z): Bernoulli pixels by a small network, and colour images by convolutions.

The prior is N(0, I). A decoder has `dims` latents and says log p(x|z) for latents with any axes in
front of that of the batch; `means` are what it would show of z.
"""

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from arcsm.checks import check_whole
from arcsm.errors import InputError

Latents = Float[Tensor, "*particles batch dims"]

GROUPS = 8  # of channels that are normalised together


def check_convolutions(channels: int, width: int, side: int) -> tuple[int, int, int]:
    """Return the sizes of networks of four strided convolutions; refuse those that do not fit."""
    channels, width = check_whole(channels, "channels"), check_whole(width, "width")
    side = check_whole(side, "side")
    if side % 16:
        raise InputError(
            f"expected images with sides of a multiple of 16, got {side}; four layers halve or"
            " double them each: crop or resize the images"
        )
    if width % GROUPS:
        raise InputError(
            f"expected a width of a multiple of {GROUPS}, got {width}; channels are normalised in"
            f" {GROUPS} groups of one size: take {GROUPS * math.ceil(width / GROUPS)}"
        )
    return channels, width, side


def log_prior(z: Latents) -> Float[Tensor, "*particles batch"]:
    """Return log N(z; 0, I)."""
    return -z.square().sum(-1) / 2 - z.shape[-1] * math.log(2 * math.pi) / 2


class Decoder(nn.Module):
    """What decoders share."""

    dims: int
    shape: tuple[int, ...]  # of one x

    def forward(self, z: Latents) -> Tensor:
        """Return the parameters of p(x|z), one for each scalar of x."""
        raise NotImplementedError

    def log_prob(self, x: Tensor, z: Latents) -> Float[Tensor, "*particles batch"]:
        """Return log p(x|z) in nats."""
        raise NotImplementedError

    def means(self, z: Latents) -> Tensor:
        """Return E[x|z]."""
        raise NotImplementedError

    def sample(self, z: Latents, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw from p(x|z)."""
        raise NotImplementedError

    def check(self, x: Tensor) -> None:
        """Refuse observations that p(x|z) gives no probability; `log_prob` takes them as told."""
        if not isinstance(x, Tensor) or tuple(x.shape[1:]) != self.shape:
            got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise InputError(
                f"expected observations of shape (batch, {', '.join(map(str, self.shape))}), got"
                f" {got}; make them a tensor of this shape"
            )
        if not len(x):
            raise InputError(
                f"expected at least one image, got {tuple(x.shape)}; look at how they were chosen"
            )
        if not bool(x.isfinite().all()):
            raise InputError("expected finite observations, got NaN or infinity; look for them")
        self.check_range(float(x.min()), float(x.max()), x)

    def check_range(self, low: float, high: float, x: Tensor) -> None:
        """Refuse values out of the range of p(x|z)."""


class BernoulliDecoder(Decoder):
    """Pixels of 0 or 1 by a network z → 256 → 256 → pixels with tanh, the encoder's mirror image.

    >>> decoder = BernoulliDecoder(8, pixels=784)
    >>> decoder.log_prob(torch.ones(5, 784), torch.zeros(3, 5, 8)).shape
    torch.Size([3, 5])
    """

    def __init__(self, dims: int, pixels: int = 784, *, hidden: int = 256):
        super().__init__()
        dims, pixels = check_whole(dims, "dims"), check_whole(pixels, "pixels")
        hidden = check_whole(hidden, "hidden")
        self.dims, self.shape = dims, (pixels,)
        self.network = nn.Sequential(
            nn.Linear(dims, hidden),
            nn.Tanh(),
            nn.Linear(hidden, hidden),
            nn.Tanh(),
            nn.Linear(hidden, pixels),
        )

    def forward(self, z: Latents) -> Float[Tensor, "*particles batch pixels"]:
        """Return log-odds of a bright pixel."""
        return self.network(z)

    def log_prob(self, x: Tensor, z: Latents) -> Float[Tensor, "*particles batch"]:
        """Return Σ x·logit − log(1 + e^logit)."""
        logits = self(z)
        return (x * logits - F.softplus(logits)).sum(-1)

    def means(self, z: Latents) -> Tensor:
        """Return the probabilities of bright pixels."""
        return torch.sigmoid(self(z))

    def sample(self, z: Latents, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw pixels of 0 or 1."""
        chance = self.means(z)
        uniform = torch.rand(chance.shape, generator=generator, device=z.device, dtype=z.dtype)
        return (uniform < chance).to(z.dtype)

    def check_range(self, low: float, high: float, x: Tensor) -> None:
        """Refuse pixels other than 0 and 1: they have no Bernoulli probability."""
        if not bool(((x == 0) | (x == 1)).all()):
            raise InputError(
                f"expected pixels of 0 or 1 for a Bernoulli likelihood, got values from {low:g} to"
                f" {high:g}; binarise them (arcsm.vae.binarise)"
            )


class ConvolutionalDecoder(Decoder):
    """Colour images in [−1, 1]: four strided transposed convolutions, as in DCGAN's generator.

    p(x|z) is normal with one deviation for all scalars, which is learned: how much the
    reconstruction counts beside the entropy then is no setting.
    """

    def __init__(self, dims: int, channels: int = 3, *, width: int = 64, side: int = 64):
        super().__init__()
        dims = check_whole(dims, "dims")
        channels, width, side = check_convolutions(channels, width, side)
        self.dims, self.shape = dims, (channels, side, side)
        self._start = (8 * width, side // 16, side // 16)
        self.input = nn.Linear(dims, math.prod(self._start))
        widths = [8 * width, 4 * width, 2 * width, width]
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [
                nn.GroupNorm(GROUPS, before),
                nn.SiLU(),
                nn.ConvTranspose2d(before, after, 4, 2, 1),
            ]
        layers += [
            nn.GroupNorm(GROUPS, width),
            nn.SiLU(),
            nn.ConvTranspose2d(width, channels, 4, 2, 1),
        ]
        self.layers = nn.Sequential(*layers, nn.Tanh())
        self.log_deviation = nn.Parameter(torch.tensor(-1.0))

    def forward(self, z: Latents) -> Float[Tensor, "*particles batch channels side side"]:
        """Return the mean images."""
        start = self.input(z).reshape(-1, *self._start)
        return self.layers(start).unflatten(0, z.shape[:-1])

    def log_prob(self, x: Tensor, z: Latents) -> Float[Tensor, "*particles batch"]:
        """Return the log-density of N(x; mean(z), σ² I)."""
        error = (x - self(z)).square().flatten(-3).sum(-1)
        scalars = math.prod(self.shape)
        log_norm = scalars * (self.log_deviation + math.log(2 * math.pi) / 2)
        return -error * torch.exp(-2 * self.log_deviation) / 2 - log_norm

    def means(self, z: Latents) -> Tensor:
        """Return the mean images."""
        return self(z)

    @torch.no_grad()
    def sample(self, z: Latents, *, generator: torch.Generator | None = None) -> Tensor:
        """Draw images: means and normal noise of the learned deviation, which may leave [−1, 1]."""
        means = self(z)
        noise = torch.randn(means.shape, generator=generator, device=z.device, dtype=means.dtype)
        return means + self.log_deviation.exp() * noise

    def check_range(self, low: float, high: float, x: Tensor) -> None:
        """Refuse values that neither a mean, in [−1, 1], nor the noise around one would reach."""
        # Images that were drawn leave the range, but not by eight deviations.
        furthest = 1 + 8 * float(self.log_deviation.detach().exp())
        if low < -furthest or high > furthest:
            raise InputError(
                f"expected images scaled to [−1, 1], got values from {low:g} to {high:g};"
                " pixels become pixels/127.5 − 1"
            )


def binarise(
    levels: Tensor, *, generator: torch.Generator | None = None
) -> Float[Tensor, "*shape"]:
    """Draw pixels of 0 or 1 with the probabilities level/255: grey levels are of type uint8.

    Drawn anew for each batch this is the dynamic binarisation of images; with a seed, a fixed one.
    """
    if levels.dtype != torch.uint8:
        raise InputError(
            f"expected grey levels of type uint8, 0 to 255, got {levels.dtype}; convert them"
        )
    drawn = torch.empty(levels.shape, device=levels.device)
    return drawn.uniform_(0, 255, generator=generator).lt_(levels)
