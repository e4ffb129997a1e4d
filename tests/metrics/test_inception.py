"""The inception network: its shape, its pools, its input, and features of batches."""

from pathlib import Path

import numpy as np
import pytest
import torch

from arcsm.errors import InputError
from arcsm.metrics import InceptionFeatures
from arcsm.metrics.inception import as_input, resize
from arcsm.metrics.network import InceptionNetwork


def meta_network(dims: int = 2048) -> InceptionNetwork:
    with torch.device("meta"):
        return InceptionNetwork(dims)


def test_it_has_the_parameters_of_the_published_graph() -> None:
    network = meta_network()
    # The counts that Keras documents for InceptionV3 without its classifier: 94 convolutions, and
    # 21,768,352 trainable numbers, the kernels and the offsets of the normalisation.
    assert len(network.convolutions()) == 94
    assert sum(parameter.numel() for parameter in network.parameters()) == 21_768_352


@pytest.mark.parametrize(
    ("dims", "last", "side"),
    [(64, "MaxPool_1", 73), (192, "MaxPool_2", 35), (768, "Mixed_6e", 17), (2048, "Mixed_7c", 8)],
)
def test_each_tap_ends_at_its_layer(dims: int, last: str, side: int) -> None:
    network = meta_network(dims)
    x = torch.empty(2, 3, 299, 299, device="meta")
    for layer in network.values():
        x = layer(x)
    assert list(network)[-1] == last
    assert x.shape == (2, dims, side, side)


def one_layer(name: str) -> torch.nn.Module:
    """Return a layer with weights of zero."""
    layer = meta_network()[name].to_empty(device="cpu").requires_grad_(False)
    for parameter in layer.parameters():
        parameter.zero_()
    return layer


@pytest.mark.parametrize(
    ("name", "channels", "made"),
    [("Mixed_5b", 192, 32), ("Mixed_5c", 256, 64), ("Mixed_6b", 768, 192), ("Mixed_7b", 1280, 192)],
)
def test_average_pools_do_not_count_the_padding(name: str, channels: int, made: int) -> None:
    layer = one_layer(name)
    layer["branch_pool"].weight[:, 0] = 1
    y = layer(torch.full((1, channels, 9, 9), 2.0))[0, -made:]
    torch.testing.assert_close(y, torch.full((made, 9, 9), 2.0))


@pytest.mark.parametrize(
    ("name", "channels", "value"), [("Mixed_7b", 1280, 1), ("Mixed_7c", 2048, 9)]
)
def test_the_pool_of_the_last_block_takes_the_maximum(
    name: str, channels: int, value: float
) -> None:
    layer = one_layer(name)
    layer["branch_pool"].weight[:, 0] = 1
    x = torch.zeros(1, channels, 8, 8)
    x[0, 0, 4, 3] = 9
    expected = torch.zeros(8, 8)
    expected[3:6, 2:5] = value
    torch.testing.assert_close(layer(x)[0, -1], expected)


def test_branches_are_stacked_in_the_order_of_the_graph() -> None:
    layer = one_layer("Mixed_7c")
    biases = [
        ("branch1x1", 320),
        ("branch3x3_2a", 384),
        ("branch3x3_2b", 384),
        ("branch3x3dbl_3a", 384),
        ("branch3x3dbl_3b", 384),
        ("branch_pool", 192),
    ]
    for number, (name, _) in enumerate(biases):
        layer[name].bias.fill_(number)
    y = layer(torch.ones(1, 2048, 3, 3))[0, :, 1, 1]
    expected = torch.cat([torch.full((made,), float(i)) for i, (_, made) in enumerate(biases)])
    torch.testing.assert_close(y, expected)
    assert layer["branch3x3_2a"].kernel_size == (1, 3)
    assert layer["branch3x3_2b"].kernel_size == (3, 1)


def test_pixels_are_placed_from_the_corner() -> None:
    x = torch.tensor([[[[0.0, 10.0], [20.0, 40.0]]]])
    # Positions 0, ½, 1, 1½ in a row of two, constant beyond the last pixel.
    expected = [[0, 5, 10, 10], [10, 17.5, 25, 25], [20, 30, 40, 40], [20, 30, 40, 40]]
    torch.testing.assert_close(resize(x, 4), torch.tensor([[expected]], dtype=torch.float32))


def test_smaller_images_are_picked_not_averaged() -> None:
    x = torch.arange(16.0).reshape(1, 1, 4, 4)
    torch.testing.assert_close(resize(x, 2), x[:, :, ::2, ::2])


@pytest.mark.parametrize(("height", "width"), [(28, 28), (32, 48), (299, 299), (640, 480), (1, 5)])
def test_a_slope_stays_a_slope(height: int, width: int) -> None:
    rows, columns = torch.arange(float(height)), torch.arange(float(width))
    x = (3 * rows[:, None] - 2 * columns)[None, None]
    place = torch.arange(299, dtype=torch.float64)
    down = (place * height / 299).clamp_max(height - 1)
    right = (place * width / 299).clamp_max(width - 1)
    expected = (3 * down[:, None] - 2 * right).float()[None, None]
    torch.testing.assert_close(resize(x, 299), expected, atol=2e-3, rtol=0)


def test_an_image_of_the_size_of_the_network_is_not_changed() -> None:
    x = torch.randint(256, (1, 3, 299, 299)).float()
    assert torch.equal(resize(x, 299), x)


def test_pixels_go_from_minus_one_to_just_below_one() -> None:
    pixels = torch.tensor([0, 128, 255], dtype=torch.uint8).reshape(3, 1, 1, 1)
    x = as_input(pixels)
    assert x.shape == (3, 3, 299, 299)
    expected = torch.tensor([-1, 0, 127 / 128]).reshape(3, 1, 1, 1).expand(x.shape)
    torch.testing.assert_close(x, expected, rtol=0, atol=0)


def test_channels_keep_their_places() -> None:
    pixels = torch.zeros(1, 4, 4, 3, dtype=torch.uint8)
    pixels[..., 1] = 128
    pixels[..., 2] = 192
    assert as_input(pixels)[0, :, 100, 100].tolist() == [-1, 0, 0.5]


def images(count: int, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 16, 16, channels), dtype=np.uint8)


@pytest.mark.usefixtures("accepted")
def test_features_do_not_depend_on_the_batch(random_file: Path) -> None:
    features = InceptionFeatures(random_file, dims=64)
    pixels = images(3)
    calls: list[tuple[int, int]] = []
    together = features(pixels, progress=lambda done, total: calls.append((done, total)))
    assert together.shape == (3, 64)
    assert together.dtype == torch.float32
    assert together.std(0).min() > 0
    one = features(pixels, batch=2, progress=lambda done, total: calls.append((done, total)))
    torch.testing.assert_close(one, together, rtol=1e-5, atol=1e-6)
    assert calls == [(3, 3), (2, 3), (3, 3)]
    torch.testing.assert_close(features(torch.from_numpy(pixels)), together, rtol=0, atol=0)
    torch.testing.assert_close(features(pixels[::-1]), together.flip(0), rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("accepted")
def test_grey_images_are_coloured_ones_of_equal_channels(random_file: Path) -> None:
    features = InceptionFeatures(random_file, dims=192)
    grey = images(2, channels=1)
    torch.testing.assert_close(
        features(grey), features(grey.repeat(3, axis=3)), rtol=1e-5, atol=1e-6
    )


@pytest.mark.usefixtures("accepted")
def test_features_are_the_averages_of_the_last_maps(random_file: Path) -> None:
    features = InceptionFeatures(random_file, dims=192)
    pixels = images(1)
    x = as_input(torch.from_numpy(pixels))
    for layer in features._network.values():
        x = layer(x)
    torch.testing.assert_close(features(pixels), x.flatten(2).mean(2), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("accepted")
def test_the_global_generator_is_left_alone(random_file: Path) -> None:
    before = torch.get_rng_state()
    InceptionFeatures(random_file, dims=64)(images(1))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.usefixtures("accepted")
def test_images_of_another_form_are_refused(random_file: Path) -> None:
    features = InceptionFeatures(random_file, dims=64)
    for bad in (
        images(2).astype(np.float32),
        images(2)[0],
        images(2, channels=4),
        images(2).transpose(0, 3, 1, 2),
        images(0),
        torch.zeros(2, 8, 8, 3),
    ):
        with pytest.raises(InputError, match=r"expected images as uint8 of shape .* got .* shape"):
            features(bad)
    with pytest.raises(InputError, match="got list"):
        features([images(1)])
    with pytest.raises(InputError, match="positive whole number, got 0"):
        features(images(1), batch=0)


def test_options_that_do_not_exist_are_refused(random_file: Path) -> None:
    with pytest.raises(InputError, match="64, 192, 768, 2048, got 100"):
        InceptionFeatures(random_file, dims=100)
    with pytest.raises(InputError, match="device"):
        InceptionFeatures(random_file, "nonsense")
