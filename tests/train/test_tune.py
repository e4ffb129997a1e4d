"""Fine-tuning by the normalised likelihood."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from arcsm.baselines import MixtureMADE
from arcsm.conditional import Noise
from arcsm.data import get_toy
from arcsm.errors import InputError
from arcsm.model import ARCSM
from arcsm.train import TrainConfig, fine_tune, fit, load_model

QUICK = TrainConfig(steps=40, batch_size=128, learning_rate=2e-3, warmup=5, evaluate_every=20)


def moons(count: int, seed: int) -> Tensor:
    return get_toy("two-moons").sample(count, generator=torch.Generator().manual_seed(seed))


def scored(seed: int = 0, **options: object) -> ARCSM:
    """A model that score matching has brought some of the way."""
    model = ARCSM.made(
        2, hidden=(32, 32), width=16, steps=8, noise=Noise(3.0, 0.05), seed=seed, **options
    )
    fit(model, moons(2000, 0), TrainConfig(steps=200, batch_size=256, validation=0.0))
    return model


def test_it_raises_the_likelihood_of_rows_not_seen(tmp_path: Path) -> None:
    model, unseen = scored(), moons(2000, 1)
    before = model.log_prob(unseen, method="quadrature").mean().item()
    history = fine_tune(model, moons(2000, 0), QUICK, directory=tmp_path / "run")
    after = model.log_prob(unseen).mean().item()
    assert model.density == "quadrature" and after > before + 0.1
    # The loss is the likelihood itself, in nats.
    assert history.validation[-1][1] == pytest.approx(-after, abs=0.15)
    again = load_model(tmp_path / "run")
    assert again.density == "quadrature" and torch.equal(
        again.log_prob(unseen), model.log_prob(unseen)
    )


def test_loss_is_minus_the_log_density_by_quadrature() -> None:
    model, x = scored(), moons(50, 2)
    noise = model.draw_noise(50)
    loss = model.loss_terms(x, noise, objective="likelihood")
    torch.testing.assert_close(-loss, model.log_prob(x, method="quadrature"), rtol=0, atol=1e-3)
    # Jitter moves the targets and not the contexts.
    jitter = 0.1 * torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    expected = torch.zeros(50)
    for d in range(2):
        moved = x.clone()
        moved[:, d] += jitter[:, d]
        expected -= model.log_prob_terms(moved, method="quadrature")[0][:, d]
    loss = model.loss_terms(x, noise, objective="likelihood", jitter=jitter)
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-3)
    with pytest.raises(InputError, match="objective among"):
        model.loss_terms(x, noise, objective="luck")


def test_gradients_are_those_of_the_exact_likelihood() -> None:
    """Autograd through a dense quadrature in float64, for every parameter of the model."""
    model = scored().double()
    x = moons(6, 3).double()
    weights = list(model.parameters())
    loss = model.loss_terms(x, model.draw_noise(6), objective="likelihood").sum()
    found = torch.autograd.grad(loss, weights, allow_unused=True)
    z = model.to_standard(x)
    conditional = model.head.family(model.context(model.context_inputs(x))).at(0.05)
    grid = torch.linspace(-12, 12, 20_001, dtype=torch.float64).expand(6, 2, -1)
    log_z = conditional.energy(grid).logsumexp(-1) + math.log(24 / 20_000)
    dense = (log_z - conditional.energy(z[..., None])[..., 0]).sum()
    assert loss.item() == pytest.approx((dense + 6 * model.scale.log().sum()).item(), abs=1e-3)
    known = torch.autograd.grad(dense, weights, allow_unused=True)
    for mine, expected in zip(found, known, strict=True):
        assert (mine is None) == (expected is None)
        if mine is not None:
            size = expected.abs().max().item()
            torch.testing.assert_close(mine, expected, rtol=1e-3, atol=1e-3 * (size + 1e-3))


def test_conditions_and_spreads_go_along() -> None:
    x = moons(400, 0)
    condition = (x[:, :1] > 0).float()
    model = ARCSM.made(2, hidden=(8,), steps=4, condition_dims=1, noise=Noise(3.0, 0.1), seed=0)
    fit(model, x, TrainConfig(steps=20), condition=condition)
    config = TrainConfig(steps=3, batch_size=64, evaluate_every=3)
    spread = torch.full_like(x, 0.05)
    history = fine_tune(model, x, config, condition=condition, spread=spread)
    assert history.steps == 3 and math.isfinite(history.validation[-1][1])


def test_models_and_rows_that_do_not_fit() -> None:
    x = moons(200, 0)
    untrained = ARCSM.made(2, hidden=(8,), steps=4, seed=0)
    with pytest.raises(InputError, match="rows like those the model was trained on"):
        fine_tune(untrained, x)
    assert untrained.density == "flow"
    with pytest.raises(InputError, match="of type ARCSM, got MixtureMADE"):
        fine_tune(MixtureMADE(2, hidden=(8,)), x)
    model = ARCSM.made(2, hidden=(8,), steps=4, seed=0)
    fit(model, x, TrainConfig(steps=2))
    with pytest.raises(InputError, match="differ by"):
        fine_tune(model, x + 1)
    with pytest.raises(InputError, match="objective 'likelihood', got 'csm'"):
        fine_tune(model, x, TrainConfig(objective={"objective": "csm"}))


def test_a_run_that_fails_leaves_the_density_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    x = moons(200, 0)
    model = ARCSM.made(2, hidden=(8,), steps=4, seed=0)
    fit(model, x, TrainConfig(steps=2))

    def fails(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ARCSM, "loss_terms", fails)
    with pytest.raises(KeyboardInterrupt):
        fine_tune(model, x, QUICK)
    assert model.density == "flow"
