"""What does not fit, or runs away: refused or halted, and named."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from small_vaes import PIXELS, halves, make, stack_of

from arcsm.errors import InputError, NonFiniteLossError
from arcsm.vae import (
    BernoulliDecoder,
    BinaryImages,
    ConvolutionalBody,
    ConvolutionalDecoder,
    Decoder,
    Encoder,
    EntropyEstimator,
    FreeEncoder,
    GaussianEncoder,
    ImplicitEncoder,
    ScaledImages,
    VAESettings,
    VAEStack,
    make_estimator,
)


def test_what_diverges_is_named() -> None:
    stack = stack_of("csm")
    assert stack.fields is not None
    with torch.no_grad():
        next(iter(stack.fields.parameters.values())).fill_(math.nan)
    with pytest.raises(NonFiniteLossError, match="score estimator of CSM diverged at its step"):
        stack.train()
    stack = stack_of("elbo")
    with torch.no_grad():
        next(iter(stack.decoders.parameters.values())).fill_(math.nan)
    with pytest.raises(NonFiniteLossError, match="autoencoder trained by ELBO diverged at step 1"):
        stack.train()


def test_what_diverged_first_is_named() -> None:
    stack = stack_of("csm")
    with torch.no_grad():
        next(iter(stack.decoders.parameters.values())).fill_(math.nan)
    with pytest.raises(NonFiniteLossError, match="autoencoder trained by CSM diverged at step 1"):
        stack.train()


@pytest.mark.parametrize(("updates", "words"), [(1, "its step 3"), (3, "its step 3")])
def test_the_first_bad_step_is_named_though_it_is_seen_later(updates: int, words: str) -> None:
    stack = stack_of("csm", steps=6, evaluate_every=6, head_start=0, score_updates=updates)
    advance = stack.advance

    def poison() -> None:
        if stack.step == 2 and stack.fields is not None:
            with torch.no_grad():
                next(iter(stack.fields.parameters.values())).fill_(math.nan)
        advance()

    stack.advance = poison  # type: ignore[method-assign]
    with pytest.raises(NonFiniteLossError, match=words):
        stack.train()


def test_whole_numbers_of_numpy_are_taken_as_plain_ones() -> None:
    assert type(VAESettings(steps=np.int64(3)).steps) is int  # type: ignore[arg-type]


def test_bad_settings_are_refused() -> None:
    for changes, words in (
        ({"method": "iwae"}, "method among elbo"),
        ({"steps": 0}, "steps to be a whole number of at least 1"),
        ({"batch": True}, "batch to be a whole number of at least 1, got True"),
        ({"evaluate_every": 1.5}, "evaluate_every to be a whole number of at least 1, got 1.5"),
        ({"head_start": -5}, "head_start to be a whole number of at least 0, got -5"),
        ({"head_start": 1.5}, "head_start to be a whole number of at least 0, got 1.5"),
        ({"head_start": True}, "head_start to be a whole number of at least 0"),
        ({"method": "stein", "particles": 1}, "at least 2 particles for stein"),
        ({"decoded": 9}, "at least 9 particles"),
        ({"learning_rate": 0.0}, "learning_rate to be a positive, finite number"),
        ({"average": 1.0}, "average from 0"),
        ({"decay": 1.5}, "decay from 0"),
        ({"decay": "x"}, "a number as decay"),
        ({"average": None}, "a number as average"),
        ({"scores_before": "no"}, "True or False as scores_before"),
    ):
        with pytest.raises(InputError, match=words):
            VAESettings(**changes)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="at least one seed"):
        stack_of("csm", ())
    with pytest.raises(InputError, match=r"seeds that differ, got \(0, 1, 0\)"):
        stack_of("csm", (0, 1, 0))
    for seeds in (0, (0.5,), "01", None):
        with pytest.raises(InputError, match=r"sequence of whole numbers as seeds, .* got"):
            stack_of("csm", seeds)
    assert VAESettings(head_start=0).head_start == 0
    with pytest.raises(InputError, match="estimator of ssm, a SSMEntropy, got a CSMEntropy"):
        VAEStack(partial(make, "csm"), halves(), VAESettings(method="ssm"), seeds=(0,))


def parts_of(
    pixels: int = PIXELS, seen: int = PIXELS, dims: tuple[int, int, int] = (2, 2, 2)
) -> tuple[Encoder, Decoder, EntropyEstimator]:
    """Return a decoder of so many pixels, an encoder that sees so many, and their latents."""
    encoder, other = (ImplicitEncoder(size, seen, hidden=16) for size in (dims[0], dims[2]))
    decoder = BernoulliDecoder(dims[1], pixels, hidden=16)
    return encoder, decoder, make_estimator("csm", other, seen, width=16)


def coloured(channels: int, side: int) -> tuple[Encoder, Decoder, EntropyEstimator]:
    """Return networks whose decoder is for images of 3 × 16 × 16."""
    body = ConvolutionalBody(channels, width=8, side=side)
    encoder = ImplicitEncoder(2, body.features, hidden=16, body=body)
    estimator = make_estimator("csm", encoder, body.features, width=16)
    return encoder, ConvolutionalDecoder(2, 3, width=8, side=16), estimator


def test_parts_that_do_not_fit_are_refused_before_the_first_step() -> None:
    told = VAESettings(steps=1, batch=4)
    for dims in ((3, 2, 2), (2, 3, 2), (2, 2, 3)):
        words = f"encoder with {dims[0]}, a decoder with {dims[1]} and an estimator for {dims[2]}"
        with pytest.raises(InputError, match=words):
            VAEStack(partial(parts_of, dims=dims), halves(), told, seeds=(0,))
    with pytest.raises(InputError, match=r"shape \(batch, 25\), got \(8, 16\)"):
        VAEStack(partial(parts_of, pixels=25), halves(), told, seeds=(0,))
    with pytest.raises(InputError, match=r"\(8, 25\) of images of shape \(8, 16\), got features"):
        VAEStack(partial(parts_of, seen=25), halves(), told, seeds=(0,))
    scaled = ScaledImages(halves().pixels)
    with pytest.raises(InputError, match="pixels of 0 or 1"):
        VAEStack(parts_of, scaled, told, seeds=(0,))
    images = ScaledImages(torch.zeros(4, 3, 16, 16, dtype=torch.uint8))
    VAEStack(partial(coloured, 3, 16), images, told, seeds=(0,))
    with pytest.raises(InputError, match=r"shape \(8, 3, 16, 16\): .*\[8, 1, 4, 4\]"):
        VAEStack(partial(coloured, 1, 16), images, told, seeds=(0,))
    with pytest.raises(InputError, match=r"\(8, 256\) of images of .* got features of .*\(8, 64\)"):
        VAEStack(partial(coloured, 3, 32), images, told, seeds=(0,))


class Silent(Encoder):
    """An encoder that does not say what r is."""

    def __init__(self) -> None:
        super().__init__(2, PIXELS, 16, None)


class Asking(BernoulliDecoder):
    """A decoder that asks for a value."""

    def log_prob(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return super().log_prob(x, z) * (1.0 if z.abs().max().item() < 1e9 else 0.0)


class Unsummed(BernoulliDecoder):
    """A decoder with a number for each pixel."""

    def log_prob(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return -(x - self(z)).square()


def spoilt(part: torch.nn.Module) -> torch.nn.Module:
    with torch.no_grad():
        next(part.parameters()).fill_(math.nan)
    return part


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda e, d: (Silent(), d), "got a Silent that does not; override standard"),
        (lambda e, d: (spoilt(e), d), "encoder that draws finite latents"),
        (lambda e, d: (e, spoilt(d)), r"finite number for each latent, .* got NaN"),
        (lambda e, d: (e, Unsummed(2, PIXELS)), r"of shape \(1, 8\) here, got \(1, 8, 16\)"),
        (lambda e, d: (e, Asking(2, PIXELS)), r"torch.vmap, got: .*item.*take out"),
        (lambda e, d: (e.double(), d), r"of torch.float32, .* a GaussianEncoder with weights of"),
        (lambda e, d: (e, d.double()), r"a BernoulliDecoder with weights of torch.float64"),
    ],
)
def test_networks_that_cannot_be_trained_are_refused_with_the_reason(
    change: Callable[..., Any], words: str
) -> None:
    def parts() -> Any:
        encoder, decoder, estimator = make("elbo")
        return *change(encoder, decoder), estimator

    with pytest.raises(InputError, match=words):
        VAEStack(parts, halves(), VAESettings(method="elbo", particles=1), seeds=(0, 1))


def test_what_is_no_part_of_a_run_is_refused() -> None:
    told: Any = VAESettings(method="elbo", particles=1)
    parts: Any = partial(make, "elbo")
    for arguments, words in (
        ((parts, halves().pixels, told), "as source arcsm.vae.ImageSource, got a Tensor"),
        ((parts, halves(), {"steps": 3}), "as settings arcsm.vae.VAESettings, got a dict"),
        ((parts(), halves(), told), "a function that makes .* got a tuple"),
        ((lambda: parts()[:2], halves(), told), "make.. to return .* got 2 of them"),
        ((lambda: None, halves(), told), "got NoneType"),
    ):
        with pytest.raises(InputError, match=words):
            VAEStack(*arguments, seeds=(0,))
    stack = VAEStack(parts, halves(), told, seeds=(0, 1))
    assert stack.run(-1)[0] is not stack.run(1)[0]
    with pytest.raises(InputError, match="index of one of 2 runs, from 0, got 2"):
        stack.run(2)
    with pytest.raises(InputError, match=r"got a ndarray; arrays become torch\.from_numpy"):
        BinaryImages(np.zeros((3, 4), np.uint8))  # type: ignore[arg-type]


def test_networks_are_tried_without_random_numbers_of_the_run() -> None:
    before = torch.random.get_rng_state()
    stack = stack_of("csm")
    assert torch.equal(torch.random.get_rng_state(), before)
    fresh = torch.Generator().manual_seed(stack._seed)
    assert torch.equal(stack.generator.get_state(), fresh.get_state())


def test_images_that_are_binary_already_are_refused() -> None:
    binary = torch.eye(4, dtype=torch.uint8)
    for pixels in (binary, torch.zeros_like(binary)):
        with pytest.raises(InputError, match="multiply them by 255"):
            BinaryImages(pixels)
    drawn = BinaryImages(255 * binary).draw(1, 50, torch.Generator().manual_seed(0))
    assert torch.equal(drawn.sum(-1), torch.ones(1, 50))
    for nothing in (torch.zeros(0, 4, dtype=torch.uint8), torch.zeros((), dtype=torch.uint8)):
        with pytest.raises(InputError, match="type uint8"):
            BinaryImages(nothing)


def test_an_encoder_that_looks_ahead_is_found_though_it_says_otherwise() -> None:
    class LookingAhead(FreeEncoder):
        autoregressive_noise = True

    def parts() -> tuple[Encoder, Decoder, EntropyEstimator]:
        encoder = LookingAhead(2, PIXELS, hidden=16)
        decoder = BernoulliDecoder(2, PIXELS, hidden=16)
        return encoder, decoder, make_estimator("csm", encoder, PIXELS, width=16)

    with pytest.raises(
        InputError, match=r"^expected latents z_d .* for CSM.*derivative of .* of z_1 by ε_2"
    ):
        VAEStack(parts, halves(), VAESettings(method="csm"), seeds=(0,))


@pytest.mark.parametrize("method", ["csm", "ssm"])
def test_scores_that_run_away_halt_the_run_before_they_leave_the_numbers(method: str) -> None:
    stack = stack_of(method, score_learning_rate=10.0, steps=100, evaluate_every=50, batch=32)
    with pytest.raises(NonFiniteLossError, match=r"score estimator of .* diverged at its step"):
        stack.train()


class Shifted(GaussianEncoder):
    """An encoder whose latents are changed, but not those that it is trained by."""

    def latents(self, features: torch.Tensor, eps: torch.Tensor) -> torch.Tensor:
        return super().latents(features, eps) + 1


class Alone(torch.nn.Module):
    """What may be an encoder elsewhere."""

    dims, feature_dims = 2, PIXELS


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (partial(Shifted, 2, PIXELS), "latents_and_units that are those of latents"),
        (Alone, r"as encoder a module derived from arcsm\.vae\.Encoder, got a Alone"),
    ],
)
def test_encoders_that_would_be_judged_by_other_latents_are_refused(
    kind: Callable[[], Any], words: str
) -> None:
    def parts() -> tuple[Encoder, Decoder, EntropyEstimator]:
        encoder = kind()
        return encoder, BernoulliDecoder(2, PIXELS), make_estimator("stein", encoder)

    with pytest.raises(InputError, match=words):
        VAEStack(parts, halves(), VAESettings(method="stein"), seeds=(0,))


def test_the_rate_of_an_estimator_is_that_of_the_settings_and_x_is_checked_first() -> None:
    stack = stack_of("csm", score_learning_rate=0.0125)
    encoder, _ = stack.run(0)
    estimator = stack.estimator(0, encoder)
    assert estimator.learning_rate == 0.0125
    z = torch.randn(4, 3, 2)
    with pytest.raises(InputError, match=rf"x of shape \(batch, {PIXELS}\), got shape \(3, 5\)"):
        estimator.update(z, torch.randn(3, 5))
    with pytest.raises(InputError, match="a ridge of at least"):
        make_estimator("stein", encoder, ridge=True)
    assert make_estimator("stein", encoder, ridge=np.float32(1e-3)).ridge == pytest.approx(1e-3)
