"""PixelCNN++ as a context network: one context for each channel, from all that comes before."""

import json

import pytest
import torch
from known import normal
from torch import Tensor

from arcsm.context import PixelCNN
from arcsm.context.pixels import SIZES
from arcsm.errors import InputError

NETWORKS = [
    ((4, 5, 1), (3,), 2),
    ((6, 5, 3), (2, 3), 1),
    ((5, 7, 1), (2, 3, 2), 1),
    ((5, 4, 3), (2, 3, 4), 1),
    ((4, 4, 2), (3, 3), 1),
]
every_network = pytest.mark.parametrize(("shape", "filters", "blocks"), NETWORKS)


def network(
    shape: tuple[int, ...], filters: tuple[int, ...], blocks: int, *, spread: float = 0.3
) -> PixelCNN:
    """Return a network in float64 whose weights, gains and biases all show."""
    made = PixelCNN(shape, width=4, filters=filters, blocks=blocks, levels=len(filters)).double()
    with torch.no_grad():
        for place, parameter in enumerate(made.parameters()):
            parameter.add_(spread * normal(*parameter.shape, seed=place))
    return made.requires_grad_(False)


def influence(made: PixelCNN) -> Tensor:
    """Return which scalars (columns) the context of each scalar (rows) changes with."""
    rows = normal(1, made.dims, seed=3).repeat(made.dims, 1).requires_grad_()
    mixed = made(rows) @ normal(made.width, seed=4)
    (gradient,) = torch.autograd.grad(mixed.diagonal().sum(), rows)
    return gradient != 0


@every_network
@pytest.mark.parametrize("spread", [0.3, 3.0])
def test_no_context_sees_its_own_scalar_or_a_later_one(
    shape: tuple[int, ...], filters: tuple[int, ...], blocks: int, spread: float
) -> None:
    seen = influence(network(shape, filters, blocks, spread=spread))
    assert not bool(seen.triu().any())


@every_network
def test_contexts_see_every_earlier_scalar(
    shape: tuple[int, ...], filters: tuple[int, ...], blocks: int
) -> None:
    seen = influence(network(shape, filters, blocks))
    assert torch.equal(seen, torch.ones_like(seen).tril(-1))


@every_network
def test_cursor_hands_out_the_contexts_of_the_forward_pass(
    shape: tuple[int, ...], filters: tuple[int, ...], blocks: int
) -> None:
    made = network(shape, filters, blocks)
    x = normal(3, made.dims, seed=6)
    contexts = made(x)
    cursor = made.cursor(3)
    for place in range(made.dims):
        assert cursor.position == place
        torch.testing.assert_close(cursor.context(), contexts[:, place], rtol=1e-10, atol=1e-10)
        cursor.push(x[:, place])
    assert cursor.position == made.dims


def test_scalars_may_be_pushed_without_asking_for_their_context() -> None:
    made = network((4, 4, 3), (2, 3), 1)
    x = normal(2, made.dims, seed=7)
    contexts = made(x)
    cursor = made.cursor(2)
    for place in range(made.dims):
        if place % 4 == 1:  # any channel may be the first that is asked for
            torch.testing.assert_close(cursor.context(), contexts[:, place], rtol=1e-10, atol=1e-10)
        cursor.push(x[:, place])


def test_cursor_has_the_dtype_of_the_weights_and_no_gradient() -> None:
    made = PixelCNN((4, 4, 1), width=5, filters=4, blocks=1, levels=2)
    x = torch.rand(2, 16)
    cursor = made.cursor(2)
    contexts = made(x)
    for place in range(made.dims):
        context = cursor.context()
        assert context.dtype == torch.float32 and not context.requires_grad
        torch.testing.assert_close(context, contexts[:, place], rtol=1e-4, atol=1e-5)
        cursor.push(x[:, place])


def test_the_first_context_is_the_same_for_all_rows() -> None:
    contexts = network((4, 4, 3), (2, 3), 1)(normal(5, 48))[:, 0]
    assert torch.equal(contexts, contexts[:1].expand(5, -1))


def test_channels_have_networks_of_their_own() -> None:
    made = network((4, 4, 3), (2, 3), 1)
    contexts = made(torch.zeros(1, 48, dtype=torch.float64))[0].unflatten(0, (16, 3))
    apart = torch.cdist(contexts, contexts)
    assert float(apart[:, [0, 0, 1], [1, 2, 2]].min()) > 1e-3


def test_dropout_is_for_training_alone() -> None:
    settings = {"width": 4, "filters": 4, "blocks": 1, "levels": 2}
    made = PixelCNN((4, 4, 1), dropout=0.5, **settings)
    without = PixelCNN((4, 4, 1), **settings)
    without.load_state_dict(made.state_dict())
    x = torch.rand(3, 16)
    assert not torch.equal(made(x), made(x))
    cursor = made.cursor(3)  # while the network is being trained, too
    cursor.push(x[:, 0])
    torch.testing.assert_close(cursor.context(), without(x)[:, 1], rtol=1e-4, atol=1e-5)
    made.eval()
    assert torch.equal(made(x), without(x))


def test_config_makes_the_network_anew() -> None:
    settings = {"width": 3, "filters": [3, 4], "blocks": 2, "levels": 2, "dropout": 0.25}
    made = PixelCNN((5, 4, 3), **settings)
    again = PixelCNN(**json.loads(json.dumps(made.config)))
    again.load_state_dict(made.state_dict())
    assert again.config == made.config == {"shape": [5, 4, 3], **settings}
    x = torch.rand(2, 60)
    assert torch.equal(made.eval()(x), again.eval()(x))


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("tiny", 0.45e6, 0.6e6), ("small", 3e6, 4e6), ("base", 10e6, 12e6), ("paper", 50e6, 57e6)],
)
def test_sizes_have_the_parameters_that_they_are_said_to_have(
    name: str, least: float, most: float
) -> None:
    with torch.device("meta"):
        made = PixelCNN((32, 32, 3), width=64, **SIZES[name])
    assert least <= sum(parameter.numel() for parameter in made.parameters()) <= most


def test_numbers_per_row_cover_what_a_pass_keeps() -> None:
    made = PixelCNN((12, 12, 3), width=8, filters=(4, 6), blocks=1, levels=2)
    assert made.numbers_per_row >= made.dims * made.width + 144 * 4 * 2 * 2


def test_training_finds_what_pixels_have_in_common() -> None:
    generator = torch.Generator().manual_seed(0)
    made = PixelCNN((4, 4, 1), width=4, filters=6, blocks=1, levels=1)
    optimiser = torch.optim.Adam(made.parameters(), 1e-2)
    for step in range(60):
        # Columns of one colour each: all but the first row can be told from the row above.
        x = torch.randn(32, 1, 4, generator=generator).expand(-1, 4, -1).flatten(1)
        loss = (made(x)[:, 4:, 0] - x[:, 4:]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step == 0:
            assert loss > 0.8
    assert loss < 0.4


def test_a_pass_in_bfloat16_is_close_to_one_in_single_precision() -> None:
    made = PixelCNN((8, 8, 3), width=8, filters=8, blocks=1, levels=2)
    x = torch.rand(2, 192)
    with torch.autocast("cpu", torch.bfloat16):
        contexts = made(x)
    assert contexts.dtype == torch.bfloat16
    contexts.float().square().mean().backward()
    gradients = [parameter.grad for parameter in made.parameters()]
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)
    torch.testing.assert_close(contexts.float(), made(x), rtol=0, atol=0.05)


@pytest.mark.slow
def test_a_pass_and_its_gradient_are_one_graph() -> None:
    made = PixelCNN((4, 4, 3), width=4, filters=(2, 2), blocks=1, levels=2)
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager", dynamic=False)
    x = torch.rand(2, 48)
    torch.testing.assert_close(compiled(x), made(x))
    compiled(x).square().sum().backward()
    found = [parameter.grad.clone() for parameter in made.parameters()]
    made.zero_grad()
    made(x).square().sum().backward()
    for gradient, parameter in zip(found, made.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad)


def test_no_condition_is_taken() -> None:
    made = PixelCNN((4, 4, 1), width=4, filters=2, blocks=1, levels=1)
    for use in (
        lambda: made(torch.zeros(2, 16), torch.zeros(2, 1)),
        lambda: made.cursor(2, torch.zeros(2, 1)),
    ):
        with pytest.raises(InputError, match=r"expected no condition, got shape \(2, 1\)"):
            use()


@pytest.mark.parametrize("shape", [(2, 47), (2, 4, 4, 3), (48,)])
def test_rows_must_be_flat_images(shape: tuple[int, ...]) -> None:
    made = PixelCNN((4, 4, 3), width=4, filters=2, blocks=1, levels=1)
    with pytest.raises(InputError, match="expected rows of 48 scalars"):
        made(torch.zeros(shape))


def test_width_must_be_positive() -> None:
    with pytest.raises(InputError, match="expected a positive width of contexts, got 0"):
        PixelCNN((4, 4, 1), width=0)
