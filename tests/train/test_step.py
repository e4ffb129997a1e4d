"""A step of training: what it computes and moves, and, on a GPU, that its graph does the same."""

from pathlib import Path
from typing import Any

import pytest
import torch
from training_runs import build, draw, happened, quick, same_bits, weights_of

from arcsm.train import fit
from arcsm.train.step import Batch, TrainStep

gpu = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),
    # The compiler looks at every attribute of the weights that an ensemble stacks.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
]
on_gpu = pytest.mark.parametrize("device", [pytest.param("cuda", marks=gpu)])


def some_batch(model: Any, rows: int = 6) -> Batch:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, model.dims, generator=generator)
    noise = model.draw_noise(rows, generator=generator)
    return Batch(x, torch.rand(rows, generator=generator), None, noise, None, None)


def test_a_step_is_one_of_adam_along_the_clipped_gradient_of_the_weighted_loss():
    model, other = build("ARCSM"), build("ARCSM")
    config = quick(weight_decay=0.1, clip=0.5)
    batch = some_batch(model)
    take_step = TrainStep(model, config)
    found, norm = take_step(batch, 0.3)

    loss = batch.weight @ other.loss_terms(batch.x, batch.noise)
    gradients = torch.autograd.grad(loss, list(other.parameters()))
    length = torch.cat([gradient.flatten() for gradient in gradients]).norm()
    assert length > 0.5 and not found.requires_grad
    torch.testing.assert_close((found, norm), (loss.detach(), length))
    # Adam's first step is the learning rate long, whichever way.
    for parameter, before, gradient in zip(
        model.parameters(), other.parameters(), gradients, strict=True
    ):
        clipped = gradient * 0.5 / length
        expected = before * (1 - 0.3 * 0.1) - 0.3 * clipped / (clipped.abs() + 1e-8)
        torch.testing.assert_close(parameter, expected, rtol=1e-4, atol=1e-5)

    take_step.forget()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_learning_rate_is_that_of_the_step():
    model = build("ARCSM")
    take_step = TrainStep(model, quick())
    take_step(some_batch(model), 0.1)
    before = weights_of(model)
    take_step(some_batch(model), 0.0)
    assert all(torch.equal(value, before[name]) for name, value in weights_of(model).items())


@on_gpu
@pytest.mark.parametrize("kind", ["ARCSM", "MixtureMADE", "Ensemble"])
def test_captured_steps_are_the_eager_ones(kind: str, device: str):
    runs = []
    for compiled in (True, False):
        model = build(kind).to(device)
        history = fit(model, draw(60), quick(compile=compiled, steps=12, evaluate_every=1))
        runs.append((history, weights_of(model)))
    (one, weights), (other, expected) = runs
    for name in ("training", "validation"):
        found, wanted = (torch.tensor(getattr(history, name)) for history in (one, other))
        torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(weights, expected, rtol=1e-2, atol=1e-2)


@on_gpu
def test_steps_are_captured_after_a_few_and_compute_on_what_they_are_given(device: str):
    model, other = (build("MixtureMADE").to(device) for _ in range(2))
    captured, eager = (
        TrainStep(each, quick(compile=compiled))
        for each, compiled in ((model, True), (other, False))
    )
    for step in range(8):
        x = torch.from_numpy(draw(16, seed=step)).to(device)
        batch = Batch(x, torch.full((16,), 1 / 16, device=device), None, (), None, None)
        found, expected = captured(batch, 0.01 / (step + 1)), eager(batch, 0.01 / (step + 1))
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
        assert captured._replayed.replays == (step >= 3) and not eager._replayed.replays


@on_gpu
def test_a_captured_run_is_resumed(device: str, tmp_path: Path):
    whole, parted = (build("ARCSM").to(device) for _ in range(2))
    config = quick(compile=True)
    expected = fit(whole, draw(60), config)

    def stop(state: Any) -> None:
        if state.step == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(parted, draw(60), config, directory=tmp_path / "run", progress=stop)
    found = fit(parted, draw(60), config, directory=tmp_path / "run", resume=True)
    assert happened(found) == happened(expected) and same_bits(parted, whole)


@on_gpu
def test_what_cannot_be_captured_is_trained_all_the_same(
    device: str, monkeypatch: pytest.MonkeyPatch
):
    expected, model = (build("MixtureMADE").to(device) for _ in range(2))
    fit(expected, draw(60), quick())
    plain = model.loss_terms

    def waits(*arguments: Any, **options: Any) -> Any:
        torch.cuda.synchronize()
        return plain(*arguments, **options)

    monkeypatch.setattr(model, "loss_terms", waits)
    monkeypatch.setattr(torch, "compile", lambda objective: objective)
    with pytest.warns(UserWarning, match="cannot be captured"):
        fit(model, draw(60), quick(compile=True))
    torch.testing.assert_close(weights_of(model), weights_of(expected), rtol=1e-4, atol=1e-5)
