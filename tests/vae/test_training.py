"""Training: each method learns, and runs side by side, or steps at once, are those alone."""

import math
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from small_vaes import PIXELS, halves, make, stack_of
from torch import nn

from arcsm.replay import compiled as compiled_alone
from arcsm.vae import (
    ESTIMATORS,
    Decoder,
    Encoder,
    EntropyEstimator,
    ImplicitEncoder,
    VAESettings,
    VAEStack,
    importance_bounds,
    make_estimator,
    normal_proposal,
)
from arcsm.vae.descent import Descent
from arcsm.vae.estimators import LearnedEntropy
from arcsm.vae.stack import ModuleStack


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
        units = encoder.units(x[index])
        if method in ("ssm-ar", "csm"):
            units = encoder.conditional_units(x[index], alone)
        torch.testing.assert_close(drawn.mean[index], units[0])
        if both.fields is not None:
            estimator = both.fields.member(index)
            assert isinstance(estimator, LearnedEntropy)
            own = both._scores(drawn)[index]
            expected = estimator.scores_in(alone, x[index], *units)
            torch.testing.assert_close(own, expected)


@pytest.mark.parametrize("method", list(ESTIMATORS))
@pytest.mark.parametrize(("scores_before", "decoded"), [(True, 1), (False, 1), (True, 3)])
def test_the_gradient_of_a_step_is_that_of_the_surrogate(
    method: str, scores_before: bool, decoded: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, Any] = {"scores_before": scores_before, "decoded": decoded, "particles": 4}
    stack = stack_of(method, (0, 1), learning_rate=1e-3, score_learning_rate=0.02, **told)
    encoder, decoder = stack.run(1)
    estimator = stack.estimator(1, encoder)
    state = stack.generator.get_state()
    of_parts: dict[str, list[torch.Tensor]] = {}

    def look_and_move(
        part: str,
        move: Callable[[Sequence[torch.Tensor]], None],
        gradients: Sequence[torch.Tensor],
    ) -> None:
        move(gradients)  # which masks them
        of_parts[part] = [gradient[1] for gradient in gradients]

    for part, descent in zip(("encoder", "decoder"), stack._descents, strict=True):
        monkeypatch.setattr(descent, "step", partial(look_and_move, part, descent.step))
    stack.take_steps()
    found = [*of_parts["encoder"], *of_parts["decoder"]]
    stack.generator.set_state(state)
    x, eps = stack._draw(1)[0][1], stack._noise(1)[0][1]
    z = encoder(x, eps)
    if not scores_before and isinstance(estimator, LearnedEntropy):
        # The paper's order: the estimator learns from the latents first, by the same directions.
        direction = stack._noise(1)[0][1] if estimator.sliced else None
        monkeypatch.setattr(torch, "randn_like", lambda like: direction)
        estimator.update(z, x)
    surrogate = estimator.entropy_surrogate(z, x)
    shown = z[:decoded]
    log_joint = decoder.log_prob(x, shown) - shown.square().sum(-1) / 2
    loss = -log_joint.mean() - surrogate
    expected = torch.autograd.grad(loss, [*encoder.parameters(), *decoder.parameters()])
    torch.testing.assert_close(found, list(expected), rtol=1e-4, atol=1e-6)
    value = loss.item() + math.log(2 * math.pi)  # of the prior
    assert stack._losses.totals["autoencoder"][1].item() == pytest.approx(value, rel=1e-4)


def check_compiled_steps(method: str, seeds: tuple[int, ...]) -> None:
    told: dict[str, Any] = {"scores_before": True, "head_start": 0, "average": 0.9}
    plain, compiled = (stack_of(method, seeds, compile=how, **told) for how in (False, True))
    plain.train()
    compiled.train()
    for name, value in plain.state().items():
        torch.testing.assert_close(compiled.state()[name], value, msg=name)
    check_curves(compiled, plain)


def check_curves(found: VAEStack, plain: VAEStack) -> None:
    """Records of `plain`, each of as many steps or of fewer, are those of `found`, averaged."""
    for kind in ("loss", "score_loss"):
        whole, parts = (np.array(getattr(stack.curve, kind)) for stack in (found, plain))
        means = parts.reshape(len(whole), -1, parts.shape[-1]).mean(1)
        np.testing.assert_allclose(whole, means, rtol=1e-3, atol=1e-3, err_msg=kind)


@pytest.mark.parametrize(("method", "seeds"), [("elbo", (0,)), ("csm", (0, 1))])
def test_a_compiled_step_is_the_step_itself(
    method: str, seeds: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Traced and differentiated as a whole; that code made of it is right is the compiler's affair.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    check_compiled_steps(method, seeds)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler of C++")
@pytest.mark.parametrize(
    ("method", "seeds", "independent"),
    [
        ("ssm", (0,), True),
        ("ssm-ar", (0, 1), False),  # by derivatives in forward mode
        ("csm", (0, 1), True),
    ],
)
def test_the_compiler_makes_the_right_code_of_a_step(
    method: str, seeds: tuple[int, ...], independent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of derivatives in forward mode it has made code that wrote where it must not.
    monkeypatch.setattr(ImplicitEncoder, "independent_in_units", independent)
    check_compiled_steps(method, seeds)


def test_what_is_compiled_for_one_stack_drives_out_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor], **_: Any) -> Any:
        made.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    x = torch.ones(3)
    for factor in range(12):  # more than are remembered of one function
        made_of_it = compiled_alone(partial(torch.mul, other=factor))
        assert torch.equal(made_of_it(x), factor * x)
    assert len(made) == 12


@pytest.mark.parametrize("betas", [(0.0, 0.99), (0.9, 0.99)])
@pytest.mark.parametrize("compile", [False, True])
def test_weights_move_as_by_adam(
    betas: tuple[float, float], compile: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    layers = [nn.Linear(3, 2) for _ in range(2)]
    stack = ModuleStack(layers, "cpu")
    descent = Descent(stack, 0.01, betas, average=0.75, compile=compile)
    known = torch.optim.Adam([p for one in layers for p in one.parameters()], 0.01, betas)
    averages = {name: value.detach().clone() for name, value in stack.parameters.items()}
    for step in range(5):
        rate = 0.01 / (1 + step)
        descent.set_rate(torch.tensor(rate) if step % 2 else rate)
        known.param_groups[0]["lr"] = rate
        gradients = [torch.randn_like(value) for value in stack.parameters.values()]
        for index, layer in enumerate(layers):
            for parameter, gradient in zip(layer.parameters(), gradients, strict=True):
                parameter.grad = gradient[index].clone()
        known.step()
        descent.step(gradients)
        descent.follow()
        for name, value in stack.parameters.items():
            averages[name] += 0.25 * (value.detach() - averages[name])
    for index, layer in enumerate(layers):
        for name, parameter in layer.named_parameters():
            torch.testing.assert_close(stack.parameters[name][index], parameter)
    assert descent.averages is not None
    for name, value in averages.items():
        torch.testing.assert_close(descent.averages[name], value)


def test_masked_weights_stay_masked_and_gradients_need_no_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A field that sees earlier latents has masks as well.
    monkeypatch.setattr(ImplicitEncoder, "independent_in_units", False)
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


def test_fields_learn_in_a_stack_as_by_themselves() -> None:
    stack = stack_of("csm", score_learning_rate=0.02)
    encoder, _ = stack.run(0)
    estimator = stack.estimator(0, encoder)
    x, eps = torch.rand(1, 8, PIXELS).round(), torch.randn(1, 4, 8, 2)
    drawn = stack._encode(x, eps)[0]
    drawn = drawn._replace(z=drawn.z.detach())
    for _ in range(4):  # the second moments of Adam differ from the second step on
        stack._learn(stack._score_losses(drawn, None)[0])
        estimator.update(drawn.z[0], x[0])
    for name, value in stack.estimator(0).named_parameters():
        expected = estimator.get_parameter(name)
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5, msg=name)


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


def test_the_learning_rate_falls_over_the_last_share_of_the_steps() -> None:
    told = VAESettings(steps=100, decay=0.25, learning_rate=0.4)
    assert [told.rate_at(step) for step in (0, 75, 80, 99)] == pytest.approx(
        [0.4, 0.4, 0.32, 0.016]
    )
    assert VAESettings(steps=100, learning_rate=0.4).rate_at(99) == 0.4
    assert told.rate_at(120) == 0  # steps after the last one change nothing
    # The first steps are those of a constant rate, and the last ones are not.
    stacks = [stack_of("csm", steps=8, decay=decay) for decay in (0.0, 0.5)]
    for step in range(8):
        for stack in stacks:
            stack.advance()
        constant, falling = (
            torch.cat([v.flatten() for v in s.decoders.parameters.values()]) for s in stacks
        )
        assert torch.equal(constant, falling) == (step <= 4)


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


def with_fixed_numbers(stack: VAEStack, many: int = 10) -> VAEStack:
    """Let so many steps have images of their own, and then the same ones again; noise is the same.

    However many steps are taken at once, if `many` is a multiple of that. Copies are handed out:
    what is done with them beside must not find their memory used for anything else.
    """
    runs, told = len(stack.seeds), stack.settings
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(many, runs, told.batch, PIXELS, generator=generator).round().to(stack.device)
    shape = (runs, told.particles, told.batch, stack._estimator.dims)
    eps = torch.randn(shape, generator=generator).to(stack.device)

    def draw(steps: int) -> tuple[torch.Tensor, ...]:
        return tuple(x[(stack.step + i) % many].clone() for i in range(steps))

    def noise(steps: int) -> tuple[torch.Tensor, ...]:
        return tuple(eps.clone() for _ in range(steps))

    stack._draw, stack._noise = draw, noise  # type: ignore[method-assign]
    return stack


@pytest.mark.parametrize("method", ["elbo", "csm"])
def test_several_steps_at_once_are_the_steps_one_by_one(method: str) -> None:
    one_by_one, at_once = (
        with_fixed_numbers(
            stack_of(method, (0, 1), steps=6, evaluate_every=6, average=0.9, decay=0.7)
        )
        for _ in range(2)
    )
    at_once._at_once, at_once._rates = 3, torch.zeros(3)
    one_by_one.train()
    at_once.train()
    assert at_once.step == one_by_one.step == 6 and at_once.curve.step == [6]
    for name, value in one_by_one.state().items():
        assert torch.equal(value, at_once.state()[name]), name
    assert one_by_one.curve.loss == at_once.curve.loss
    assert one_by_one.curve.score_loss == at_once.curve.score_loss


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("method", list(ESTIMATORS))
@pytest.mark.parametrize(("scores_before", "updates"), [(False, 1), (True, 1), (True, 2)])
def test_on_a_gpu_captured_steps_are_the_steps_one_by_one(
    method: str, scores_before: bool, updates: int
) -> None:
    def trained(**changes: Any) -> VAEStack:
        told: dict[str, Any] = {"steps": 60, "head_start": 0, "scores_before": scores_before}
        told |= {"decay": 0.5, "average": 0.9, "score_updates": updates, "learning_rate": 5e-3}
        stack = stack_of(method, (0, 1), device="cuda", **{**told, **changes})
        # One step is captured by itself where the host has a hand in it: for it there is one draw.
        with_fixed_numbers(stack, 1 if method == "spectral" else 10).train()
        return stack

    captured, plain = trained(evaluate_every=20), trained(evaluate_every=1, capture=False)
    assert captured.captured and not plain.captured
    assert (captured._at_once, plain._at_once) == (1 if method == "spectral" else 10, 1)
    for name, value in plain.state().items():
        torch.testing.assert_close(captured.state()[name], value, rtol=1e-3, atol=1e-3, msg=name)
    check_curves(captured, plain)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("method", "seeds"), [("csm", (0, 1)), ("csm", (0,)), ("ssm", (0,))])
def test_on_a_gpu_compiled_steps_are_the_steps_themselves(
    method: str, seeds: tuple[int, ...]
) -> None:
    def trained(compile: bool) -> VAEStack:
        told: dict[str, Any] = {"steps": 20, "head_start": 0, "scores_before": True, "average": 0.9}
        told |= {"decay": 0.5}
        stack = stack_of(method, seeds, device="cuda", compile=compile, **told)
        with_fixed_numbers(stack).train()
        return stack

    compiled, plain = trained(True), trained(False)
    assert compiled.captured and plain.captured
    for name, value in plain.state().items():
        torch.testing.assert_close(compiled.state()[name], value, rtol=1e-3, atol=1e-3, msg=name)
    check_curves(compiled, plain)


def test_more_updates_of_the_scores_teach_them_more() -> None:
    losses = []
    for updates in (1, 4):
        told = {"score_updates": updates, "steps": 400, "evaluate_every": 400}
        stack = stack_of("csm", (0, 1, 2), learning_rate=1e-9, **told)
        losses.append(stack.train().score_loss[-1])
    # Of an encoder that stays where it is.
    assert all(many < one - 0.01 for one, many in zip(*losses, strict=True)), losses


class Louder(nn.Linear):
    """A layer of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


class Odd(nn.Module):
    """Layers that are not to be taken for others: of their own, with hooks, the same one twice."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.hooked, self.twice = Louder(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
        self.again = self.twice
        self.plain = nn.Linear(3, 3)
        self.hooked.register_forward_hook(lambda *of: of[2] + 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.plain(self.again(self.twice(self.hooked(self.own(x)))))


@pytest.mark.parametrize("by_particle", [False, True])
def test_a_stack_leaves_layers_of_other_kinds_as_they_are(by_particle: bool) -> None:
    members = [Odd() for _ in range(2)]
    stack = ModuleStack(members, "cpu", by_particle=by_particle)
    x = torch.randn(2, 4, 5, 3, requires_grad=True)
    found = stack.call("forward", x)
    for index, member in enumerate(members):
        torch.testing.assert_close(found[index], member(x[index]))
    found.sum().backward()
    for index, member in enumerate(members):
        member(x[index]).sum().backward()
        for name, parameter in member.named_parameters():
            assert stack.parameters[name].grad is not None
            torch.testing.assert_close(stack.parameters[name].grad[index], parameter.grad)


def test_a_stack_calls_methods_with_missing_arguments() -> None:
    members = [torch.nn.Linear(2, 3) for _ in range(2)]
    stack = ModuleStack(members, "cpu")
    x = torch.randn(2, 5, 2)
    for index in range(2):
        expected = members[index](x[index])
        torch.testing.assert_close(stack.call("forward", x)[index], expected)
        one = stack.member(index)
        torch.testing.assert_close(one(x[index]), expected)
