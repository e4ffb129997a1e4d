"""Encoders and decoders: shapes, forms, closed forms, and what they refuse."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from arcsm.errors import InputError
from arcsm.vae import (
    BernoulliDecoder,
    ConvolutionalBody,
    ConvolutionalDecoder,
    Encoder,
    FreeEncoder,
    GaussianEncoder,
    ImplicitEncoder,
    binarise,
    encoders,
    log_prior,
)
from arcsm.vae.data import BinaryImages, ScaledImages
from arcsm.vae.encoders import Extra, check_independence, check_noise


def rough_encoder(dims: int = 5) -> ImplicitEncoder:
    """Return one whose latents depend on each other, and on noise not monotonically."""
    encoder = ImplicitEncoder(dims, 3, hidden=32).double()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.mul_(3)
    return encoder


def no_bumps(encoder: ImplicitEncoder) -> torch.Tensor:
    """Make the coefficients of the bumps constants, of 0; return these, to be set."""
    rows = slice(2 * encoder.dims, (2 + 3 * encoder.bumps) * encoder.dims)
    with torch.no_grad():
        encoder.head.weight[rows] = 0
        encoder.head.bias[rows] = 0
    return encoder.head.bias.detach()[rows]


def test_latents_depend_on_noise_up_to_their_own() -> None:
    encoder = rough_encoder()
    x, eps = torch.randn(1, 3).double(), torch.randn(1, 1, 5).double()
    jacobian = torch.autograd.functional.jacobian(lambda e: encoder(x, e)[0, 0], eps)[:, 0, 0]
    assert bool((jacobian.triu(1) == 0).all())
    below = jacobian[torch.tril_indices(5, 5).unbind()]
    assert below.abs().min() > 1e-6


def test_earlier_noise_enters_only_through_earlier_latents() -> None:
    """Noises with the same z_1 give the same z_2, though they are far apart."""
    encoder = ImplicitEncoder(2, 3, hidden=8, bumps=1).double()
    with torch.no_grad():
        for parameter in encoder.output.parameters():
            parameter.fill_(1.0)
    # w = ε − 3 tanh(ε + 1.5): of s = ε + 1.5 the roots of s = 3 tanh s have one value of w.
    no_bumps(encoder).copy_(torch.tensor([-3.0, -3.0, 1.0, 1.0, 0.0, 0.0]))
    s = torch.tensor(3.0).double()
    for _ in range(60):
        s = 3 * torch.tanh(s)
    first = torch.stack([-s, 0 * s, s]) - 1.5
    eps = torch.stack([first, torch.full_like(first, 0.7)], -1)[:, None]
    z = encoder(torch.randn(1, 3).double(), eps)[:, 0]
    torch.testing.assert_close(z, z[:1].expand(3, 2))
    # And z_2 does depend on z_1.
    eps[1, 0, 0] += 0.5
    assert abs(encoder(torch.zeros(1, 3).double(), eps)[:, 0, 1].diff()[0]) > 1e-3


def test_a_latent_grows_in_straight_lines_with_its_own_w() -> None:
    """Without bumps w is ε: m_d and c_d then must not see ε_d, so that z_d tells w_d."""
    encoder = rough_encoder(4)
    no_bumps(encoder)
    x, eps = torch.randn(1, 3).double(), torch.randn(1, 1, 4).double()
    for d in range(4):
        moved = eps.repeat(3, 1, 1)
        moved[:, 0, d] += torch.tensor([-1.0, 0.0, 1.0]).double()
        low, middle, high = encoder(x, moved)[:, 0, d]
        torch.testing.assert_close(high - middle, middle - low)
        assert high > middle


def test_in_its_conditional_units_a_latent_has_mean_0_and_deviation_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(encoders, "_NODES", 48)  # the short rule lacks digits for one so rough
    encoder = rough_encoder(3)
    features, eps = torch.randn(4, 3).double(), torch.randn(20_000, 4, 3).double()
    z, middle, log_width = encoder.latents_and_conditional_units(features, eps)
    torch.testing.assert_close(z, encoder(features, eps))
    w = (z - middle) / log_width.exp()
    assert w.mean(0).abs().max() < 0.04 and (w.std(0) - 1).abs().max() < 0.04
    # Shapes differ: it is no normal noise that is left.
    assert w.pow(4).mean(0).sub(3).abs().max() > 0.3
    few = z[:6]
    for found, direct in zip(
        encoder.conditional_units(features, few), (middle, log_width), strict=True
    ):
        torch.testing.assert_close(found, direct[:6])
    # They tell of z_<d alone.
    moved = few.clone()
    moved[..., 1:] += 1
    for found, direct in zip(
        encoder.conditional_units(features, moved), (middle, log_width), strict=True
    ):
        torch.testing.assert_close(found[..., :2], direct[:6, :, :2])
        assert (found[..., 2] - direct[:6, :, 2]).abs().min() > 0


@pytest.mark.parametrize("kind", [rough_encoder, lambda: GaussianEncoder(5, 3).double()])
def test_in_conditional_units_a_latent_depends_on_its_own_noise_alone(
    kind: Callable[[], Encoder],
) -> None:
    """Which `independent_in_units` says: estimators then leave earlier latents out."""
    encoder = kind()
    assert encoder.independent_in_units and not FreeEncoder(5, 3).independent_in_units
    features, eps = torch.randn(4, 3).double(), torch.randn(2, 4, 5).double()
    for d in range(5):
        other = torch.randn_like(eps)
        other[..., d] = eps[..., d]
        drawn = [encoder.latents_and_conditional_units(features, e) for e in (eps, other)]
        own, same = ((z - middle) * torch.exp(-log_width) for z, middle, log_width in drawn)
        torch.testing.assert_close(own[..., d], same[..., d])
        assert d == 4 or (own[..., d + 1 :] - same[..., d + 1 :]).abs().min() > 0


class Correlated(GaussianEncoder):
    """Latents that are not independent, whatever its parent says."""

    def standard(self, features: Tensor, extra: Extra, eps: Tensor) -> Tensor:
        return eps + 0.5 * torch.cat([torch.zeros_like(eps[..., :1]), eps[..., :-1]], -1)


def test_units_that_do_not_hold_what_earlier_latents_say_are_refused() -> None:
    features, eps = torch.randn(4, 3), torch.randn(2, 4, 5, requires_grad=True)
    for encoder in (rough_encoder().float(), GaussianEncoder(5, 3), ImplicitEncoder(5, 3)):
        check_independence(encoder, features, eps)
    with pytest.raises(InputError, match=r"0\.5 of the one of z_. by ε_.*independent_in_units"):
        check_independence(Correlated(5, 3), features, eps)
    source = BinaryImages(torch.randint(256, (20, 3), dtype=torch.uint8))
    with pytest.raises(InputError, match="a Correlated gives"):
        source.check_networks(Correlated(5, 3), BernoulliDecoder(5, 3), "CSM")
    source.check_networks(Correlated(5, 3), BernoulliDecoder(5, 3))  # for methods of joint scores
    told = Correlated(5, 3)
    told.independent_in_units = False
    source.check_networks(told, BernoulliDecoder(5, 3), "CSM")


@pytest.mark.parametrize("kind", [GaussianEncoder, FreeEncoder])
def test_encoders_without_conditionals_have_units_of_x(kind: type[Encoder]) -> None:
    encoder, features, eps = kind(2, 3, hidden=8), torch.randn(4, 3), torch.randn(5, 4, 2)
    z, *units = encoder.latents_and_conditional_units(features, eps)
    assert torch.equal(z, encoder(features, eps))
    for found in (units, encoder.conditional_units(features, z)):
        for one, expected in zip(found, encoder.units(features), strict=True):
            assert torch.equal(one, expected)


def test_noise_of_later_latents_is_found() -> None:
    x, eps = torch.randn(4, 3), torch.randn(2, 4, 5, requires_grad=True)
    encoder = ImplicitEncoder(5, 3, hidden=32)
    for kind in (encoder, rough_encoder().float(), GaussianEncoder(5, 3)):
        z = kind(x, eps)
        with torch.no_grad():  # what the caller may be in
            check_noise(z, eps)
        z.sum().backward()  # the graph is there still
    with pytest.raises(InputError, match=r"for SSM-AR, .* of z_1 by ε_2"):
        check_noise(FreeEncoder(5, 3)(x, eps), eps, "SSM-AR")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_single_latent_that_looks_ahead_is_found(dtype: torch.dtype) -> None:
    eps = torch.randn(3, 2, 2, dtype=dtype, requires_grad=True)
    first, second = eps.unbind(-1)

    def latents(a: float) -> Tensor:
        return torch.stack([first + a * second, second], -1)

    check_noise(latents(0), eps)
    check_noise(torch.stack([first, 7 * first + second], -1), eps)
    check_noise(eps, eps)
    for a in (1.0, -1e-3):
        with pytest.raises(InputError, match=rf"{abs(a):g} of z_1 by ε_2.*ImplicitEncoder"):
            check_noise(latents(a), eps)
    # It is found where only one of the draws does so.
    with pytest.raises(InputError, match="z_1 by ε_2"):
        ahead = torch.zeros_like(second).index_fill(0, torch.tensor([1]), 1.0)
        check_noise(torch.stack([first + ahead * second, second], -1), eps)


def test_a_narrow_latent_must_not_look_ahead_either() -> None:
    eps = torch.randn(3, 4, 2, requires_grad=True)
    z = torch.stack([1e-3 * eps[..., 0] + 1e-5 * eps[..., 1], 1e2 * eps[..., 1]], -1)
    with pytest.raises(InputError, match="of z_1 by ε_2"):
        check_noise(z, eps)
    z = torch.stack([1e-3 * eps[..., 0], 1e2 * eps[..., 1] + 3 * eps[..., 0]], -1)
    check_noise(z, eps)


def test_noise_that_cannot_be_checked_is_refused() -> None:
    eps = torch.randn(3, 2, 2, requires_grad=True)
    with pytest.raises(InputError, match="requires_grad_"):
        check_noise(eps.detach().sin(), eps)
    with pytest.raises(InputError, match="requires_grad_"):
        check_noise(eps.sin(), eps.detach())
    with pytest.raises(InputError, match="requires_grad_"):  # noise of another draw
        check_noise(eps.sin(), torch.randn(3, 2, 2, requires_grad=True))
    with pytest.raises(InputError, match=r"one shape .* got \(3, 2\) and \(3, 2, 2\)"):
        check_noise(eps[:, 0], eps)
    with pytest.raises(InputError, match="finite derivatives"):
        check_noise(eps * math.inf, eps)
    with pytest.raises(InputError, match="at least one latent"):
        check_noise(eps[:0], eps[:0])


def test_gradients_reach_every_weight() -> None:
    for kind in (GaussianEncoder, FreeEncoder, ImplicitEncoder):
        encoder = kind(3, 4, hidden=16)
        z = encoder(torch.randn(6, 4), torch.randn(2, 6, 3))
        assert z.shape == (2, 6, 3)
        (z**2).sum().backward()
        assert all(bool((p.grad != 0).any()) for p in encoder.parameters()), kind


@pytest.mark.parametrize("kind", [GaussianEncoder, FreeEncoder, ImplicitEncoder])
def test_units_are_read_off_two_layers_and_views_are_others(kind: type[Encoder]) -> None:
    encoder, x, eps = kind(2, 3, hidden=4), torch.randn(5, 3), torch.randn(6, 5, 2)
    hidden = torch.tanh(encoder.deeper(torch.tanh(encoder.from_x(x)[:, :4])))
    read = (hidden @ encoder.head.weight.T + encoder.head.bias)[:, :4]
    torch.testing.assert_close(torch.cat(encoder.units(x), -1), read)
    before = encoder(x, eps)
    with torch.no_grad():
        encoder.from_x.bias[4:] += 1
    assert torch.equal(torch.cat(encoder.units(x), -1), read)
    assert torch.equal(encoder(x, eps), before) == (kind is GaussianEncoder)


def test_an_implicit_encoder_begins_near_to_independent_normal_latents() -> None:
    dims, hidden, bumps = 3, 40, 4
    encoder, x = ImplicitEncoder(dims, 5, hidden=hidden, bumps=bumps), torch.randn(50, 5)
    rows = encoder.head(torch.tanh(encoder.deeper(torch.tanh(encoder.from_x(x)[:, :hidden]))))
    sizes = [2 * dims, *[dims * bumps] * 3, *[hidden] * 3]
    _, height, slope, shift, outer, move, gate = rows.split(sizes, -1)
    for part, middle in ((height, 0), (slope, 1), (shift, 0), (outer, 1), (move, 0), (gate, 1)):
        assert abs(part.mean().item() - middle) < 0.1 and part.std() < 0.4
    mean, log_scale = encoder.units(x)
    w = (encoder(x, eps := torch.randn(2000, 50, dims)) - mean) * torch.exp(-log_scale)
    assert torch.corrcoef(torch.stack([w.flatten(), eps.flatten()]))[0, 1] > 0.95
    between = torch.corrcoef(w.flatten(0, 1).T) - torch.eye(dims)
    assert between.abs().max() < 0.1


def test_units_that_see_latents_have_slopes_shifts_and_gates_by_x() -> None:
    encoder, x, eps = ImplicitEncoder(2, 3, hidden=4), torch.randn(5, 3), torch.randn(6, 5, 2)
    hidden = torch.tanh(encoder.deeper(torch.tanh(encoder.from_x(x)[:, :4])))
    slope, shift, gate = encoder.head(hidden)[:, -12:].chunk(3, -1)
    shift = encoder.from_x(x)[:, 4:] + shift
    mean, log_scale = encoder.units(x)
    z, middle, log_width = encoder.latents_and_conditional_units(x, eps)
    w = (z - middle) * torch.exp(-log_width)
    first, last = (layer.weight * layer.mask for layer in (encoder.from_latents, encoder.output))
    seen = gate * torch.tanh(slope * (w @ first.T) + shift)
    move, stretch = (seen @ last.T + encoder.output.bias).chunk(2, -1)
    torch.testing.assert_close(middle, mean + log_scale.exp() * move)
    torch.testing.assert_close(log_width, log_scale + 3 * torch.tanh(stretch / 3))
    assert (middle[..., 1] - middle[:1, :, 1]).abs().max() > 0.01  # it depends on w_1


def test_free_encoder_is_one_network_on_x_beside_noise() -> None:
    encoder = FreeEncoder(2, 3, hidden=4)
    x, eps = torch.randn(5, 3), torch.randn(1, 5, 2)
    layer = nn.Linear(5, 4)
    with torch.no_grad():
        seen = encoder.from_x.weight[4:]
        layer.weight.copy_(torch.cat([seen, encoder.from_noise.weight], 1))
        layer.bias.copy_(encoder.from_x.bias[4:])
    joined = torch.tanh(layer(torch.cat([x, eps[0]], 1)))
    mean, log_scale = encoder.units(x)
    r = eps[0] + encoder.output(torch.tanh(encoder.middle(joined)))
    expected = mean + log_scale.exp() * r
    torch.testing.assert_close(encoder(x, eps)[0], expected)


def test_bernoulli_likelihood_is_a_probability() -> None:
    decoder = BernoulliDecoder(2, pixels=3, hidden=4)
    z = torch.randn(1, 2)
    every = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 3)
    total = decoder.log_prob(every, z.expand(8, 2)).exp().sum()
    assert total.item() == pytest.approx(1, abs=1e-5)
    drawn = decoder.sample(z.expand(20_000, 2), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(drawn.mean(0), decoder.means(z)[0], atol=0.02, rtol=0)


def test_convolutional_likelihood_is_normal() -> None:
    decoder = ConvolutionalDecoder(2, width=8, side=16)
    body = ConvolutionalBody(width=8, side=16)
    x, z = torch.rand(3, 3, 16, 16) * 2 - 1, torch.randn(4, 3, 2)
    assert body(x).shape == (3, body.features)
    assert decoder(z).shape == (4, 3, 3, 16, 16) and decoder(z).abs().max() <= 1
    normal = torch.distributions.Normal(decoder(z), decoder.log_deviation.exp())
    torch.testing.assert_close(
        decoder.log_prob(x, z), normal.log_prob(x).flatten(-3).sum(-1), rtol=1e-4, atol=1e-2
    )
    encoder = ImplicitEncoder(2, body.features, hidden=8, body=body)
    assert encoder(x, torch.randn(1, 3, 2)).shape == (1, 3, 2)


def test_colour_images_are_drawn_with_the_learned_deviation() -> None:
    decoder = ConvolutionalDecoder(2, 1, width=8, side=16).double()
    with torch.no_grad():
        decoder.log_deviation.fill_(math.log(0.3))
    z = torch.randn(1, 2).double()
    generator = torch.Generator().manual_seed(0)
    drawn = decoder.sample(z.expand(2000, 1, 2), generator=generator)
    assert drawn.shape == (2000, 1, 1, 16, 16) and drawn.dtype == torch.float64
    noise = drawn - decoder.means(z)
    # Of each pixel the deviation of the mean is 0.3/√2000 = 0.0067.
    assert noise.mean(0).abs().max() < 0.03
    assert noise.mean().item() == pytest.approx(0, abs=2e-3)
    assert noise.std().item() == pytest.approx(0.3, abs=2e-3)
    # Pixels are independent: the sum of all 256 is √256 times as wide as one.
    assert noise.flatten(1).sum(1).std().item() == pytest.approx(0.3 * 16, rel=0.1)
    assert not drawn.requires_grad
    again = decoder.sample(z.expand(2000, 1, 2), generator=generator.manual_seed(0))
    torch.testing.assert_close(again, drawn, rtol=0, atol=0)


def test_sizes_that_do_not_fit_are_refused() -> None:
    for make in (ConvolutionalBody, lambda **sizes: ConvolutionalDecoder(2, **sizes)):
        for side in (8, 24, 31):
            with pytest.raises(InputError, match=f"multiple of 16, got {side}"):
                make(side=side)
        for width in (4, 12):
            with pytest.raises(InputError, match=rf"multiple of 8, got {width}; .* take (8|16)"):
                make(width=width)
        for name in ("side", "width", "channels"):
            for value in (0, -16, 16.0, True, None):
                with pytest.raises(InputError, match=f"{name} to be a whole number"):
                    make(**{name: value})
    for size in (0, -1, 2.0, True, "2", None):
        with pytest.raises(InputError, match="dims to be a whole number of at least 1"):
            ConvolutionalDecoder(size)
        for name in ("dims", "pixels", "hidden"):
            with pytest.raises(InputError, match=f"{name} to be a whole number of at least 1"):
                BernoulliDecoder(**{"dims": 2, "pixels": 3, "hidden": 4, name: size})
        for kind in (GaussianEncoder, FreeEncoder, ImplicitEncoder):
            for name in ("dims", "features", "hidden"):
                with pytest.raises(InputError, match=f"{name} to be a whole number of at least 1"):
                    kind(**{"dims": 2, "features": 3, "hidden": 4, name: size})
    with pytest.raises(InputError, match="bumps"):
        ImplicitEncoder(2, 3, bumps=-1)


def test_whole_numbers_of_numpy_are_sizes() -> None:
    two, eight, sixteen = (np.int64(n) for n in (2, 8, 16))
    body = ConvolutionalBody(two, width=eight, side=sixteen)
    colour = ConvolutionalDecoder(two, two, width=eight, side=sixteen)
    pixels = BernoulliDecoder(two, sixteen, hidden=np.int32(4))
    x = colour.sample(torch.randn(3, 2))
    assert pixels.sample(torch.randn(3, 2)).shape == (3, 16)
    for kind in (GaussianEncoder, FreeEncoder, ImplicitEncoder):
        encoder = kind(two, np.int64(body.features), hidden=eight, body=body)
        assert encoder(x, torch.randn(1, 3, 2)).shape == (1, 3, 2)
        assert all(type(part.dims) is int for part in (encoder, colour, pixels))
    assert {type(n) for n in (*colour.shape, *pixels.shape, body.features)} == {int}


def test_prior_is_standard_normal() -> None:
    z = torch.randn(4, 3)
    expected = torch.distributions.Normal(0.0, 1.0).log_prob(z).sum(-1)
    torch.testing.assert_close(log_prior(z), expected)
    assert log_prior(torch.zeros(1, 1)).item() == pytest.approx(-math.log(2 * math.pi) / 2)


def test_binarisation_has_the_levels_as_probabilities() -> None:
    levels = torch.tensor([0, 51, 255], dtype=torch.uint8).expand(20_000, 3)
    drawn = binarise(levels, generator=torch.Generator().manual_seed(0))
    assert set(drawn.unique().tolist()) == {0.0, 1.0}
    assert drawn[:, 0].sum() == 0 and drawn[:, 2].min() == 1
    assert drawn[:, 1].mean().item() == pytest.approx(0.2, abs=0.01)


def test_sources_draw_their_images() -> None:
    pixels = torch.arange(5, dtype=torch.uint8)[:, None].expand(5, 4).contiguous() * 60
    drawn = BinaryImages(pixels).draw(2, 500, torch.Generator().manual_seed(0))
    assert drawn.shape == (2, 500, 4)
    assert drawn.mean().item() == pytest.approx(pixels.float().mean().item() / 255, abs=0.03)
    pictures = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 3, 16, 16)
    scaled = ScaledImages(pictures.contiguous()).draw(1, 50, torch.Generator().manual_seed(0))
    assert set(scaled.unique().tolist()) == {-1.0, 1.0}


def test_images_out_of_range_are_refused() -> None:
    decoder = BernoulliDecoder(2, pixels=4, hidden=4)
    with pytest.raises(InputError, match=r"0 or 1 .* from 0\.5 to 0\.5"):
        decoder.check(torch.full((3, 4), 0.5))
    with pytest.raises(InputError, match=r"\(batch, 4\)"):
        decoder.check(torch.zeros(3, 5))
    with pytest.raises(InputError, match="NaN"):
        decoder.check(torch.full((3, 4), math.nan))
    with pytest.raises(InputError, match=r"at least one image, got \(0, 4\)"):
        decoder.check(torch.zeros(0, 4))
    with pytest.raises(InputError, match="got ndarray"):
        decoder.check(np.zeros((3, 4)))
    with pytest.raises(InputError, match=r"\[−1, 1\], got values from 0 to 255"):
        ConvolutionalDecoder(2, width=8, side=16).check(
            torch.linspace(0, 255, 768).view(1, 3, 16, 16)
        )
    with pytest.raises(InputError, match="uint8"):
        binarise(torch.rand(3, 4))
    with pytest.raises(InputError, match="uint8"):
        BinaryImages(torch.rand(3, 4))
    with pytest.raises(InputError, match=r"\(particles, 6, 3\)"):
        FreeEncoder(3, 4)(torch.zeros(6, 4), torch.zeros(6, 3))
