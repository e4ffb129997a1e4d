"""Training: each method learns, runs side by side are those alone, and runs can be resumed."""

import math
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from arcsm.errors import CheckpointError, InputError, NonFiniteLossError
from arcsm.replay import compiled as compiled_alone
from arcsm.vae import (
    ESTIMATORS,
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
    importance_bounds,
    make_estimator,
    normal_proposal,
)
from arcsm.vae.estimators import LearnedEntropy
from arcsm.vae.stack import ModuleStack
from arcsm.vae.state import load_run, save_run

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


@pytest.mark.parametrize("method", list(ESTIMATORS))
def test_every_method_learns_the_bit(method: str) -> None:
    stack = stack_of(
        method,
        steps=120,
        batch=32,
        particles=1 if method == "elbo" else 8,
        learning_rate=5e-3,
        score_learning_rate=2e-3,
        head_start=20,
        evaluate_every=120,
    )
    stack.train()
    encoder, decoder = stack.run(0)
    x = halves().draw(1, 200, torch.Generator().manual_seed(0))[0]
    found = importance_bounds(decoder, x, normal_proposal(encoder, x), samples=200)
    # Each pixel keeps its side with probability p: the entropy is one bit, and that of 16 pixels.
    p = 12 / 255
    noise = -PIXELS * (p * math.log(p) + (1 - p) * math.log(1 - p))
    assert -found.iwae.mean().item() < math.log(2) + noise + 1.5


@pytest.mark.parametrize("method", list(ESTIMATORS))
def test_members_of_a_stack_compute_what_they_compute_alone(method: str) -> None:
    both = stack_of(method, (0, 1))
    x, eps = torch.rand(2, 3, PIXELS).round(), torch.randn(2, 4, 3, 2)
    drawn, _ = both._encode(x, eps)
    z = drawn.z
    log_joint = both._log_joint(x, z)
    for index in range(2):
        encoder, decoder = both.run(index)
        alone = encoder(x[index], eps[index])
        torch.testing.assert_close(z[index], alone)
        terms = decoder.log_prob(x[index], alone[:1]) - alone[:1].square().sum(-1) / 2
        torch.testing.assert_close(log_joint[index], terms.mean() - math.log(2 * math.pi))
        torch.testing.assert_close(drawn.mean[index], encoder.units(x[index])[0])
        if both.fields is not None:
            estimator = both.fields.member(index)
            assert isinstance(estimator, LearnedEntropy)
            own = both._scores(drawn)[index]
            expected = estimator.scores_in(alone, x[index], *encoder.units(x[index]))
            torch.testing.assert_close(own, expected)


@pytest.mark.parametrize("method", list(ESTIMATORS))
def test_the_gradient_of_a_step_is_that_of_the_surrogate(method: str) -> None:
    stack = stack_of(method, (0, 1), scores_before=True, learning_rate=1e-3)
    encoder, decoder = stack.run(1)
    estimator = stack.estimator(1, encoder)
    state = stack.generator.get_state()
    stack.take_steps()
    weights = [*stack.encoders.parameters.values(), *stack.decoders.parameters.values()]
    found = [value.grad[1] for value in weights if value.grad is not None]
    stack.generator.set_state(state)
    x, eps = stack._draw(1)[0][1], stack._noise(1)[0][1]
    z = encoder(x, eps)
    surrogate = estimator.entropy_surrogate(z, x)
    log_joint = decoder.log_prob(x, z[:1]) - z[:1].square().sum(-1) / 2
    loss = -log_joint.mean() - surrogate
    expected = torch.autograd.grad(loss, [*encoder.parameters(), *decoder.parameters()])
    torch.testing.assert_close(found, list(expected), rtol=1e-4, atol=1e-6)
    value = loss.item() + math.log(2 * math.pi)  # of the prior
    assert stack._totals[1][1].item() == pytest.approx(value, rel=1e-4)


@pytest.mark.parametrize(("method", "seeds"), [("elbo", (0,)), ("csm", (0, 1))])
def test_a_compiled_step_is_the_step_itself(
    method: str, seeds: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Traced and differentiated as a whole; that code made of it is right is the compiler's affair.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    told: dict[str, Any] = {"scores_before": True, "head_start": 0}
    plain, compiled = (stack_of(method, seeds, compile=how, **told) for how in (False, True))
    plain.train()
    compiled.train()
    for name, value in plain.state().items():
        torch.testing.assert_close(compiled.state()[name], value, msg=name)


def test_what_is_compiled_for_one_stack_drives_out_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        made.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    x = torch.ones(3)
    for factor in range(12):  # more than are remembered of one function
        made_of_it = compiled_alone(partial(torch.mul, other=factor))
        assert torch.equal(made_of_it(x), factor * x)
    assert len(made) == 12


def test_masked_weights_stay_masked_and_gradients_need_no_copy() -> None:
    stack = stack_of("csm", (0, 1))
    stack.train()
    assert stack.fields is not None
    for part in (stack.encoders, stack.fields):
        assert part.masks
        for name, mask in part.masks.items():
            weight = part.parameters[name]
            assert bool((weight[mask == 0] == 0).all()) and bool((weight[mask == 1] != 0).any())
    z = stack._encode(torch.rand(2, 3, PIXELS), torch.randn(2, 4, 3, 2))[0].z
    weights = list(stack.encoders.parameters.values())
    for weight, gradient in zip(weights, torch.autograd.grad(z.sum(), weights), strict=True):
        assert gradient.stride() == weight.stride()


def test_scores_before_the_update_are_those_of_the_pass_itself() -> None:
    stack = stack_of("csm")
    drawn = stack._encode(torch.rand(1, 8, PIXELS).round(), torch.randn(1, 4, 8, 2))[0]
    _, scores = stack._score_losses(drawn, None)
    torch.testing.assert_close(scores, stack._scores(drawn))


def test_runs_are_repeatable_and_differ_by_seed() -> None:
    one, again = (stack_of("csm", (3, 4)) for _ in range(2))
    assert one.train().loss == again.train().loss
    assert one.curve.loss[-1][0] != one.curve.loss[-1][1]
    assert one.curve.step == [2, 4] and len(one.curve.score_loss) == 2


def test_averages_of_the_weights_are_those_of_all_steps() -> None:
    plain, averaged = (stack_of("csm", (0, 1), average=average) for average in (0.0, 0.75))
    expected = {}
    for index in range(2):
        for name, value in plain.run(index)[1].named_parameters():
            expected[index, name] = value.detach().clone()
    for _ in range(3):
        plain.advance()
        averaged.advance()
        for index in range(2):
            for name, value in plain.run(index)[1].named_parameters():
                expected[index, name] = 0.75 * expected[index, name] + 0.25 * value.detach()
    for index in range(2):
        for name, value in averaged.run(index)[1].named_parameters():
            torch.testing.assert_close(value.detach(), expected[index, name])
    moved = averaged.decoders.parameters
    assert all(torch.equal(moved[k], v) for k, v in plain.decoders.parameters.items())


@pytest.mark.parametrize("method", ["elbo", "stein", "csm"])
def test_an_interrupted_run_ends_with_the_same_bits(method: str, tmp_path: Path) -> None:
    whole = stack_of(method, (0, 1), average=0.9)
    whole.train()
    path = tmp_path / "vae.safetensors"

    class Stop(Exception):
        pass

    def stop(stack: VAEStack) -> None:
        save_run(stack, path)
        raise Stop

    with pytest.raises(Stop):
        stack_of(method, (0, 1), average=0.9).train(progress=stop)
    later = stack_of(method, (0, 1), average=0.9)
    later.train(folder=tmp_path)
    assert later.curve.loss == whole.curve.loss and later.step == 4
    for name, value in whole.state().items():
        assert torch.equal(value, later.state()[name]), name


@pytest.mark.parametrize("method", ["elbo", "csm"])
def test_ctrl_c_within_a_step_keeps_that_step_and_loses_no_bit(method: str, tmp_path: Path) -> None:
    whole = stack_of(method, (0, 1), average=0.9, steps=6, evaluate_every=4)
    whole.train()
    first = stack_of(method, (0, 1), average=0.9, steps=6, evaluate_every=4)
    average = first._average

    def interrupt() -> None:
        if first.step == 2:  # the weights are moved, their averages are not
            signal.raise_signal(signal.SIGINT)
        average()

    first._average = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        first.train(folder=tmp_path / "new")
    assert first.step == 3 and first.curve.step == []
    later = stack_of(method, (0, 1), average=0.9, steps=6, evaluate_every=4)
    taken = counted_steps(later)
    later.train(folder=tmp_path / "new")
    assert taken == [3, 4, 5] and later.curve.loss == whole.curve.loss
    assert later.seconds > first.seconds > 0
    for name, value in whole.state().items():
        assert torch.equal(value, later.state()[name]), name


def counted_steps(stack: VAEStack) -> list[int]:
    """Return a list that the number of each step is added to as it is taken."""
    taken: list[int] = []
    advance = stack.advance

    def count() -> None:
        taken.append(stack.step)
        advance()

    stack.advance = count  # type: ignore[method-assign]
    return taken


def test_half_a_step_is_never_saved(tmp_path: Path) -> None:
    stack = stack_of("csm", average=0.9)

    def interrupt() -> None:  # as if asked for twice: that does not wait
        if stack.step == 3:
            raise KeyboardInterrupt

    stack._average = interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        stack.train(folder=tmp_path, save_seconds=-1)
    later = stack_of("csm", average=0.9)
    load_run(later, tmp_path / "vae.safetensors")
    assert later.step == 2


@pytest.mark.parametrize("within", ["_learn_from_fresh_latents", "_forget"])
def test_a_head_start_that_was_interrupted_is_taken_again(within: str, tmp_path: Path) -> None:
    stack = stack_of("csm")
    plain = getattr(stack, within)

    def interrupt(*arguments: Any) -> None:
        plain(*arguments)
        raise KeyboardInterrupt

    setattr(stack, within, interrupt)
    with pytest.raises(KeyboardInterrupt):
        stack.train(folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_finished_run_is_kept_and_not_trained_again(tmp_path: Path) -> None:
    whole = stack_of("csm", (0, 1))
    whole.train(folder=tmp_path)
    later, told = stack_of("csm", (0, 1)), list[int]()
    taken = counted_steps(later)
    later.train(folder=tmp_path, progress=lambda stack: told.append(stack.step))
    assert taken == [] and later.curve == whole.curve
    assert told == [4]  # what was told of the last record may have been lost
    for name, value in whole.state().items():
        assert torch.equal(value, later.state()[name]), name


@pytest.mark.parametrize("method", list(ESTIMATORS))
def test_the_estimator_of_a_run_is_that_which_was_trained(method: str) -> None:
    stack = stack_of(method, (0, 1), learning_rate=0.05)
    stack.train()
    encoder, _ = stack.run(1)
    x, eps = torch.rand(2, 3, PIXELS).round(), torch.randn(2, 4, 3, 2)
    drawn, _ = stack._encode(x, eps)
    if stack.fields is not None:
        expected = stack._scores(drawn)[1]
    else:
        expected = make_estimator(method, encoder).scores(drawn.z[1], encoder.features(x[1]))
    for estimator in (stack.estimator(1), stack.estimator(1, encoder)):
        assert type(estimator) is ESTIMATORS[method]
        found = estimator.scores(drawn.z[1], encoder.features(x[1]))
        torch.testing.assert_close(found, expected)
    assert not any(p is q for p in stack.estimator(1).parameters() for q in encoder.parameters())


def test_an_estimator_by_kernels_keeps_its_settings() -> None:
    def parts() -> tuple[Encoder, Decoder, EntropyEstimator]:
        encoder, decoder, _ = make("stein")
        return encoder, decoder, make_estimator("stein", encoder, ridge=0.5)

    stack = VAEStack(parts, halves(), VAESettings(method="stein", steps=1), seeds=(0,))
    assert getattr(stack.estimator(0), "ridge", None) == 0.5


def with_fixed_numbers(stack: VAEStack) -> VAEStack:
    """Let all steps have the same images and noise, however many are taken at once."""
    runs, told, device = len(stack.seeds), stack.settings, stack.device
    x = torch.rand(runs, told.batch, PIXELS, generator=torch.Generator().manual_seed(1)).round()
    shape = (runs, told.particles, told.batch, stack._estimator.dims)
    eps = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    x, eps = x.to(device), eps.to(device)
    stack._draw = lambda steps: (x,) * steps  # type: ignore[method-assign]
    stack._noise = lambda steps: (eps,) * steps  # type: ignore[method-assign]
    return stack


@pytest.mark.parametrize("method", ["elbo", "csm"])
def test_several_steps_at_once_are_the_steps_one_by_one(method: str) -> None:
    one_by_one, at_once = (
        with_fixed_numbers(stack_of(method, (0, 1), steps=6, evaluate_every=6, average=0.9))
        for _ in range(2)
    )
    at_once._at_once = 3
    one_by_one.train()
    at_once.train()
    assert at_once.step == one_by_one.step == 6 and at_once.curve.step == [6]
    for name, value in one_by_one.state().items():
        assert torch.equal(value, at_once.state()[name]), name


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("method", ["elbo", "stein", "ssm", "csm"])
@pytest.mark.parametrize("scores_before", [False, True])
def test_on_a_gpu_captured_steps_are_the_steps_one_by_one(method: str, scores_before: bool) -> None:
    def trained(**changes: Any) -> VAEStack:
        told: dict[str, Any] = {"steps": 60, "head_start": 0, "scores_before": scores_before}
        stack = stack_of(method, (0, 1), device="cuda", **{**told, **changes})
        with_fixed_numbers(stack).train()
        return stack

    captured, plain = trained(evaluate_every=20), trained(evaluate_every=1, capture=False)
    assert captured.captured and not plain.captured
    assert (captured._at_once, plain._at_once) == (10, 1)
    for name, value in plain.encoders.parameters.items():
        torch.testing.assert_close(
            captured.encoders.parameters[name], value, rtol=1e-3, atol=1e-3, msg=name
        )


def test_a_foreign_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "vae.safetensors"
    save_run(stack_of("csm"), path)
    with pytest.raises(CheckpointError, match="same settings, seeds, images"):
        load_run(stack_of("csm", learning_rate=0.5), path)
    with pytest.raises(CheckpointError, match="same settings, seeds, images"):
        load_run(stack_of("csm", (1,)), path)
    with pytest.raises(CheckpointError, match="weights of these networks"):
        load_run(stack_of("csm", dims=3), path)


def test_more_updates_of_the_scores_teach_them_more() -> None:
    losses = []
    for updates in (1, 4):
        stack = stack_of(
            "csm", score_updates=updates, steps=40, evaluate_every=40, learning_rate=1e-9
        )
        losses.append(stack.train().score_loss[-1][0])
    assert losses[1] < losses[0]


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


def test_bad_settings_are_refused() -> None:
    for changes, words in (
        ({"method": "iwae"}, "method among elbo"),
        ({"steps": 0}, "steps of at least 1"),
        ({"batch": True}, "batch of at least 1, a whole number, got True"),
        ({"evaluate_every": 1.5}, "evaluate_every of at least 1, a whole number, got 1.5"),
        ({"head_start": -5}, "head_start of at least 0, a whole number, got -5"),
        ({"head_start": 1.5}, "head_start of at least 0, a whole number, got 1.5"),
        ({"head_start": True}, "head_start of at least 0"),
        ({"method": "stein", "particles": 1}, "at least 2 particles for stein"),
        ({"decoded": 9}, "at least 9 particles"),
        ({"learning_rate": 0.0}, "positive learning rates"),
        ({"average": 1.0}, "average from 0"),
    ):
        with pytest.raises(InputError, match=words):
            VAESettings(**changes)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="at least one seed"):
        stack_of("csm", ())
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


def test_a_stack_calls_methods_with_missing_arguments() -> None:
    members = [torch.nn.Linear(2, 3) for _ in range(2)]
    stack = ModuleStack(members, "cpu")
    x = torch.randn(2, 5, 2)
    for index in range(2):
        expected = members[index](x[index])
        torch.testing.assert_close(stack.call("forward", x)[index], expected)
        one = stack.member(index)
        torch.testing.assert_close(one(x[index]), expected)


def test_an_encoder_that_looks_ahead_is_found_though_it_says_otherwise() -> None:
    class LookingAhead(FreeEncoder):
        autoregressive_noise = True

    def parts() -> tuple[Encoder, Decoder, EntropyEstimator]:
        encoder = LookingAhead(2, PIXELS, hidden=16)
        decoder = BernoulliDecoder(2, PIXELS, hidden=16)
        return encoder, decoder, make_estimator("csm", encoder, PIXELS, width=16)

    with pytest.raises(InputError, match=r"for CSM.*derivative of .* of z_1 by ε_2"):
        VAEStack(parts, halves(), VAESettings(method="csm"), seeds=(0,))


@pytest.mark.parametrize("method", ["csm", "ssm"])
def test_scores_that_run_away_halt_the_run_before_they_leave_the_numbers(method: str) -> None:
    stack = stack_of(method, score_learning_rate=10.0, steps=100, evaluate_every=50, batch=32)
    with pytest.raises(NonFiniteLossError, match=r"score estimator of .* diverged at its step"):
        stack.train()
