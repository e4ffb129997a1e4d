"""The backbone of PixelCNN++: causal, complete, and the same at once and pixel by pixel."""

import pytest
import torch
from known import normal
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from arcsm.context.pixels import SIZES, PixelStreams
from arcsm.context.pixels.layers import Convolution
from arcsm.errors import InputError

# Odd and even sizes, images lower and wider than the kernels, one resolution and several.
NETWORKS = [
    ((4, 5, 1), (3,), 2),
    ((1, 6, 1), (2,), 1),
    ((5, 1, 2), (2,), 1),
    ((6, 6, 3), (2, 3), 1),
    ((5, 7, 1), (3, 2), 1),
    ((8, 8, 1), (2, 3, 4), 1),
    ((7, 5, 3), (3, 2, 2), 1),
    ((9, 6, 1), (2, 2, 3), 2),
    ((4, 9, 1), (2, 2, 2), 1),
]
every_network = pytest.mark.parametrize(("shape", "filters", "blocks"), NETWORKS)


def network(
    shape: tuple[int, ...], filters: tuple[int, ...], blocks: int, *, spread: float = 0.3
) -> PixelStreams:
    """Return a backbone in float64 whose weights, gains and biases all show."""
    streams = PixelStreams(shape, filters, blocks, levels=len(filters)).double()
    with torch.no_grad():
        for place, parameter in enumerate(streams.parameters()):
            parameter.add_(spread * normal(*parameter.shape, seed=place))
    return streams.requires_grad_(False)


def influence(streams: PixelStreams, seed: int = 0) -> Tensor:
    """Return which pixels (columns) the features of each pixel (rows) change with."""
    height, width, channels = streams.shape
    count = height * width
    # One copy of the image for each pixel whose features are asked for: one backward pass.
    image = normal(1, height, width, channels, seed=seed)
    images = image.repeat(count, 1, 1, 1).requires_grad_()
    features = streams(images).flatten(2)
    mixed = torch.einsum("ifp,f->ip", features, normal(streams.features, seed=seed + 1))
    (gradient,) = torch.autograd.grad(mixed.diagonal().sum(), images)
    return (gradient != 0).flatten(1, 2)


def earlier(streams: PixelStreams) -> Tensor:
    height, width, channels = streams.shape
    pixel = torch.arange(height * width)
    return (pixel[None, :] < pixel[:, None])[..., None].expand(-1, -1, channels)


@every_network
@pytest.mark.parametrize("spread", [0.3, 3.0])
def test_no_feature_sees_its_own_pixel_or_a_later_one(
    shape: tuple[int, ...], filters: tuple[int, ...], blocks: int, spread: float
) -> None:
    streams = network(shape, filters, blocks, spread=spread)
    assert not bool((influence(streams) & ~earlier(streams)).any())


@every_network
def test_features_see_every_earlier_pixel(
    shape: tuple[int, ...], filters: tuple[int, ...], blocks: int
) -> None:
    streams = network(shape, filters, blocks)
    assert torch.equal(influence(streams), earlier(streams))


def test_coarse_levels_see_further_than_fine_ones() -> None:
    count = [int(influence(network((4, 40, 1), (2,) * levels, 1)).sum()) for levels in (1, 2, 3)]
    assert count[0] < count[1] < count[2]


@every_network
def test_a_walk_meets_the_features_of_the_forward_pass(
    shape: tuple[int, ...], filters: tuple[int, ...], blocks: int
) -> None:
    streams = network(shape, filters, blocks)
    height, width, _ = shape
    x = normal(3, *shape, seed=5)
    features = streams(x)
    cursor = streams.cursor(3)
    for row in range(height):
        for column in range(width):
            expected = features[:, :, row, column]
            torch.testing.assert_close(cursor.features(), expected, rtol=1e-10, atol=1e-10)
            cursor.push(x[:, row, column])


def test_the_edge_of_an_image_is_seen() -> None:
    streams = network((5, 5, 1), (3, 3), 1)
    features = streams(torch.zeros(1, 5, 5, 1, dtype=torch.float64))[0].flatten(1)
    # An image of one colour: were it not for the edge, all its pixels would look the same.
    first = (features[:, :1] - features[:, 1:]).abs().amax(0)
    assert float(first.min()) > 1e-6


def test_features_lie_in_channels_last_memory() -> None:
    streams = PixelStreams((8, 6, 3), 4, 1, levels=2)
    features = streams(torch.rand(2, 8, 6, 3))
    assert features.shape == (2, streams.features, 8, 6)
    assert features.is_contiguous(memory_format=torch.channels_last)


def test_weights_are_normalised() -> None:
    streams = network((4, 4, 1), (2, 3), 1)
    for layer in (layer for layer in streams.modules() if isinstance(layer, Convolution)):
        length = layer.weight().flatten(1).norm(dim=1)
        torch.testing.assert_close(length, layer.gain.abs())
        along = (layer.weight() * layer.direction).flatten(1).sum(1)
        size = layer.direction.flatten(1).norm(dim=1)
        torch.testing.assert_close(along, layer.gain * size)


def test_a_walk_costs_about_as_much_as_a_pass() -> None:
    streams = PixelStreams((6, 6, 1), 4, 1, levels=2).requires_grad_(False)
    x = torch.rand(2, 6, 6, 1)
    with FlopCounterMode(display=False) as at_once:
        streams(x)
    with FlopCounterMode(display=False) as walked:
        cursor = streams.cursor(2)
        for row in range(6):
            for column in range(6):
                cursor.push(x[:, row, column])
    assert walked.get_total_flops() < 1.02 * at_once.get_total_flops()


def test_the_smallest_backbone_is_cheap() -> None:
    with torch.device("meta"):
        streams = PixelStreams((28, 28, 1), **SIZES["tiny"])
        with FlopCounterMode(display=False) as counter:
            streams(torch.empty(1, 28, 28, 1))
    assert counter.get_total_flops() / 2 < 0.12e9


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"shape": (8, 8)}, r"three positive whole numbers.* got \(8, 8\)"),
        ({"shape": (8, 0, 3)}, r"three positive whole numbers.* got \(8, 0, 3\)"),
        ({"shape": (8, 8.0, 3)}, r"three positive whole numbers.* got \(8, 8.0, 3\)"),
        ({"shape": (8, 3, 3)}, "4×4 .* got 8×3 pixels and levels=3; .* or levels=2 or fewer$"),
        ({"shape": (1, 8, 3)}, "4×4 .* got 1×8 pixels and levels=3; .* or levels=1$"),
        ({"levels": 0, "filters": 4}, "got levels=0"),
        ({"filters": (4, 4)}, r"got filters=\(4, 4\), blocks=1, levels=3"),
        ({"filters": (4, 0, 4)}, r"got filters=\(4, 0, 4\)"),
        ({"filters": 0}, "got filters=0"),
        ({"blocks": 0}, "blocks=0"),
        ({"dropout": 1.0}, "dropout .* got 1.0"),
        ({"dropout": -0.1}, "dropout .* got -0.1"),
    ],
)
def test_settings_must_make_sense(settings: dict, expected: str) -> None:
    usual = {"shape": (8, 8, 3), "filters": 4, "blocks": 1, "levels": 3}
    with pytest.raises(InputError, match=f"expected .*{expected}"):
        PixelStreams(**{**usual, **settings})


@pytest.mark.parametrize("shape", [(2, 8, 8, 1), (2, 8, 6, 3), (8, 8, 3)])
def test_images_must_be_of_the_shape(shape: tuple[int, ...]) -> None:
    streams = PixelStreams((8, 8, 3), 4, 1)
    with pytest.raises(InputError, match=r"expected images of shape \(batch, 8, 8, 3\), got"):
        streams(torch.zeros(shape))
