"""Models of images of a few pixels, so small that every posterior can be enumerated."""

import numpy as np
import torch

from arcsm.conditional import Noise
from arcsm.conditional.flow import fewest_steps
from arcsm.images import ImageModel, ImageSettings
from arcsm.model import ARCSM

SHAPE = (1, 3, 1)
NOISE = Noise(3.0, 0.02)


def small_model(
    shape: tuple[int, int, int] = SHAPE, *, flips: bool = False, seed: int = 3
) -> ImageModel:
    """Return a model with random weights, in which scalars depend on one another strongly."""
    dims = int(np.prod(shape))
    chain = ARCSM.made(
        dims,
        hidden=(16,),
        noise=NOISE,
        flow_steps=fewest_steps(NOISE),
        shared_units=True,
        seed=seed,
    ).double()
    with torch.no_grad():
        chain.shift.fill_(0.5)
        chain.scale.fill_(0.15)
        generator = torch.Generator().manual_seed(seed)
        for weight, size in ((chain.context.output.weight, 1.0), (chain.head.output.weight, 0.15)):
            noise = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
            weight.add_(noise, alpha=size)
    settings = ImageSettings(network="made", flips=flips)
    return ImageModel(chain.eval(), shape, settings)


def level_probabilities(model: ImageModel, known: list[int]) -> np.ndarray:
    """Return P(level | earlier levels) of all 256, each as the mass of its own cell."""
    pixels = np.zeros((256, *model.shape), np.uint8)
    flat = pixels.reshape(256, -1)
    flat[:, : len(known)] = known
    flat[:, len(known)] = np.arange(256)
    terms = model.log_prob_terms(pixels, only=[len(known)])
    return np.exp(terms.reshape(256, -1)[:, len(known)])
