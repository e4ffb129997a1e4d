"""The autoregressive energy machine: its estimates, its gradients, and what it learns."""

import json
import math

import pytest
import torch
from torch import Tensor

from arcsm.baselines import AEM
from arcsm.conditional import Quadrature
from arcsm.errors import InputError
from arcsm.train import TrainConfig, fit, load_model, save_model


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rows(count: int, seed: int) -> Tensor:
    """y = x² + noise, x from two modes."""
    g = seeded(seed)
    x = torch.randn((count, 2), generator=g)
    x[:, 0] = torch.where(torch.rand(count, generator=g) < 0.7, -1.0, 1.0) + 0.2 * x[:, 0]
    x[:, 1] = 5 + x[:, 0].square() + 0.3 * x[:, 1]
    return x


def small(**options: object) -> AEM:
    settings = {"hidden": (16, 16), "width": 8, "steps": 6, "components": 4, "sigma": 0.1}
    return AEM(2, **{**settings, "seed": 0, **options})


@pytest.fixture(scope="module")
def trained() -> AEM:
    model = small()
    fit(model, rows(3000, 0), TrainConfig(steps=300, batch_size=256, learning_rate=1e-2))
    return model.requires_grad_(False)


def exact_log_prob(model: AEM, x: Tensor) -> Tensor:
    z = model.to_standard(x)
    terms = Quadrature(model.conditionals(z)).log_prob(z[..., None])[..., 0]
    return (terms - model.scale.log()).sum(-1)


def test_log_prob_is_within_its_standard_error(trained: AEM) -> None:
    x = rows(200, 1)
    found, error = trained.log_prob(x, return_error=True)
    away = (found - exact_log_prob(trained, x)) / error
    assert 0.5 < away.square().mean().sqrt().item() < 2.0
    assert bool((error > 0).all()) and error.mean().item() < 0.1
    _, more = trained.log_prob(x, samples=4000, return_error=True)
    assert more.mean().item() == pytest.approx(error.mean().item() / 2, rel=0.15)
    assert torch.equal(trained.log_prob(x), found)
    assert not torch.equal(trained.log_prob(x, seed=1), found)


def test_few_samples_overstate_the_likelihood(trained: AEM) -> None:
    """Jensen: E[log Ẑ] < log Z, by about var/2S; integrated normalisers have no such bias."""
    x = rows(100, 2)
    exact = exact_log_prob(trained, x)
    few = torch.stack([trained.log_prob(x, samples=5, seed=s) for s in range(40)]).mean(0)
    many = torch.stack([trained.log_prob(x, samples=50, seed=s) for s in range(40)]).mean(0)
    assert (few - exact).mean().item() > 4 * abs((many - exact).mean().item()) > 0


def test_it_learns_and_draws_what_it_learned(trained: AEM) -> None:
    x = rows(4000, 3)
    log_two_pi_e = math.log(2 * math.pi * math.e)
    # Two modes that hardly overlap, then a normal density: the entropy of the whole.
    modes = -(0.7 * math.log(0.7) + 0.3 * math.log(0.3))
    entropy = modes + log_two_pi_e + math.log(0.2) + math.log(0.3)
    assert trained.log_prob(x[:500]).mean().item() == pytest.approx(-entropy, abs=0.15)
    drawn = trained.sample(4000, generator=seeded(0))
    assert (drawn[:, 0] < 0).double().mean().item() == pytest.approx(0.7, abs=0.04)
    torch.testing.assert_close(drawn.mean(0), x.mean(0), rtol=0, atol=0.1)
    torch.testing.assert_close(drawn.std(0), x.std(0), rtol=0, atol=0.1)
    assert torch.equal(drawn, trained.sample(4000, generator=seeded(0)))


def test_gradients_stay_on_their_side() -> None:
    """Energies learn nothing of log p, the proposal nothing of log Z."""
    model, x = small().double(), rows(8, 0).double()
    model.standardise(x)
    noise = type(model.draw_noise(1))(
        *(p.double() for p in model.draw_noise(8, generator=seeded(0)))
    )
    loss = model.loss_terms(x, noise).sum()
    mine = torch.autograd.grad(loss, list(model.proposal.parameters()))
    proposal = model.proposal.loss_terms(x).sum()
    known = torch.autograd.grad(proposal, list(model.proposal.parameters()))
    for found, expected in zip(mine, known, strict=True):
        torch.testing.assert_close(found, expected)
    # With very many draws the gradient of the energies is that of the exact likelihood.
    z = model.to_standard(x[:1])
    weights = list(model.head.parameters())
    many = type(noise)(*torch.rand((2, 1, 2, 400_000), generator=seeded(1), dtype=z.dtype))
    estimated = torch.autograd.grad(model.loss_terms(x[:1], many).sum(), weights)
    energies = model.conditionals(z)
    grid = torch.linspace(-12, 12, 100_001, dtype=z.dtype)
    log_z = energies.energy(grid.expand(1, 2, -1)).logsumexp(-1)
    exact = torch.autograd.grad((log_z - energies.energy(z[..., None])[..., 0]).sum(), weights)
    for found, expected in zip(estimated, exact, strict=True):
        torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)


def test_loss_is_minus_both_likelihoods() -> None:
    model, x = small(), rows(6, 0)
    model.standardise(rows(500, 0))
    noise = model.draw_noise(6, samples=20_000, generator=seeded(0))
    both = exact_log_prob(model, x) + model.proposal.log_prob(x)
    torch.testing.assert_close(model.loss_terms(x, noise).double(), -both, rtol=0, atol=0.1)
    jitter = torch.full_like(x, 0.3)
    moved = model.loss_terms(x, noise, jitter=jitter)
    assert bool((moved != model.loss_terms(x, noise)).all())
    assert bool((moved != model.loss_terms(x + jitter, noise)).all())


def test_conditions_and_orders() -> None:
    model = small(order=[1, 0], condition_dims=1).double()
    x = rows(5, 0).double()
    one, other = torch.zeros(5, 1).double(), torch.ones(5, 1).double()
    terms, _ = model.log_prob_terms(x, condition=one)
    assert bool((terms != model.log_prob_terms(x, condition=other)[0]).all())
    changed = x.clone()
    changed[:, 0] += 1  # the last in the order: no context sees it
    assert torch.equal(model.log_prob_terms(changed, condition=one)[0][:, 1], terms[:, 1])
    assert model.sample(5, condition=one, generator=seeded(0)).shape == (5, 2)


def test_save_and_load(trained: AEM, tmp_path) -> None:
    save_model(tmp_path / "m", trained)
    again = load_model(tmp_path / "m")
    x = rows(5, 0)
    assert isinstance(again, AEM) and torch.equal(again.log_prob(x), trained.log_prob(x))
    assert AEM.from_config(json.loads(json.dumps(trained.config))).config == trained.config


def test_bad_arguments() -> None:
    with pytest.raises(InputError, match="positive sigma"):
        small(sigma=0.0)
    for samples in (0, 1.5, True):
        with pytest.raises(InputError, match="number of samples"):
            small().draw_noise(3, samples=samples)
        with pytest.raises(InputError, match="number of samples"):
            small().log_prob(rows(3, 0), samples=samples)
        with pytest.raises(InputError, match="number of samples"):
            small().sample(3, samples=samples)
