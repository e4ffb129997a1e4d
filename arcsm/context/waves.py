"""Sines and cosines that accompany a scalar on its way into a network."""

import torch
from jaxtyping import Float
from torch import Tensor


def with_waves(x: Float[Tensor, "*batch"], frequencies: int) -> Float[Tensor, "*batch features"]:
    """Return x, sin 2ᵏx and cos 2ᵏx for k < `frequencies`, on a new axis.

    A plain network is slow to learn what changes quickly with a scalar.
    """
    angles = [x * 2.0**k for k in range(frequencies)]
    waves = [wave(angle) for angle in angles for wave in (torch.sin, torch.cos)]
    return torch.stack([x, *waves], -1)
