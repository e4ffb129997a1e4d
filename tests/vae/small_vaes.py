"""VAEs of a few weights, on images of one bit."""

from functools import partial
from typing import Any

import torch

from arcsm.vae import (
    ESTIMATORS,
    BernoulliDecoder,
    BinaryImages,
    Decoder,
    Encoder,
    EntropyEstimator,
    FreeEncoder,
    GaussianEncoder,
    ImplicitEncoder,
    VAESettings,
    VAEStack,
    make_estimator,
)

PIXELS = 16


def make(method: str, dims: int = 2) -> tuple[Encoder, Decoder, EntropyEstimator]:
    kinds = {"elbo": GaussianEncoder, "csm": ImplicitEncoder, "ssm-ar": ImplicitEncoder}
    encoder = kinds.get(method, FreeEncoder)(dims, PIXELS, hidden=16)
    options = {"width": 16} if ESTIMATORS[method].learns else {}
    estimator = make_estimator(method, encoder, PIXELS, **options)
    return encoder, BernoulliDecoder(dims, PIXELS, hidden=16), estimator


def halves() -> BinaryImages:
    """Images of which one half is bright: one bit, which a latent can hold."""
    left = torch.zeros(1, PIXELS)
    left[:, : PIXELS // 2] = 1
    levels = torch.cat([left, 1 - left]) * 230 + 12
    return BinaryImages(levels.to(torch.uint8))


def stack_of(
    method: str, seeds: Any = (0,), dims: int = 2, device: str = "cpu", **changes: Any
) -> VAEStack:
    told: dict[str, Any] = {"steps": 4, "batch": 8, "head_start": 2, "evaluate_every": 2}
    if method == "elbo":
        told["particles"] = 1
    settings = VAESettings(method=method, **{**told, **changes})
    return VAEStack(partial(make, method, dims), halves(), settings, seeds=seeds, device=device)
