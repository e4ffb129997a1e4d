"""Rows with holes: what a model of all orders learns from them, and what it must not."""

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from known import normal, seeded
from torch import Tensor

from arcsm.agnostic import OrderAgnosticARCSM, SubsetPerturbation
from arcsm.conditional import Noise
from arcsm.context.subset import SubsetRows
from arcsm.errors import InputError
from arcsm.model import ARCSM
from arcsm.objectives import Perturbation, annealed_csm_terms
from arcsm.train import TrainConfig, fit, load_model, save_model

PATTERNS = [pattern for pattern in itertools.product((True, False), repeat=3) if any(pattern)]


def random_model(**options: Any) -> OrderAgnosticARCSM:
    """Return a model of three scalars in float64 whose conditionals are far from normal."""
    model = OrderAgnosticARCSM.made(
        3,
        hidden=(16, 16),
        width=6,
        steps=5,
        frequencies=1,
        noise=Noise(3.0, 0.2),
        seed=0,
        **options,
    ).double()
    with torch.no_grad():
        for place, parameter in enumerate(model.parameters()):
            parameter.add_(0.4 * normal(*parameter.shape, seed=place))
    model.standardise(rows_of(200))
    return model.requires_grad_(False)


def rows_of(count: int, seed: int = 3) -> Tensor:
    mixed = normal(count, 3, seed=seed) @ torch.tensor(
        [[1.0, 0.8, 0.1], [0.0, 0.5, 0.7], [0.0, 0.0, 0.4]], dtype=torch.float64
    )
    return mixed * torch.tensor([0.5, 1.0, 3.0]).double() + 4


def noise_of(model: OrderAgnosticARCSM, rows: int) -> Perturbation:
    drawn = ARCSM.draw_noise(model, rows, levels=2, generator=seeded(5))
    return Perturbation(*(part.double() for part in drawn))


def term(
    model: OrderAgnosticARCSM, x: Tensor, noise: Perturbation, d: int, given: tuple[int, ...]
) -> Tensor:
    """Return the loss of scalar d given others, by the objective of one scalar alone."""
    known = torch.zeros_like(x)
    known[:, list(given)] = 1
    return annealed_csm_terms(
        lambda inputs, sigma: model.head(
            model.context.contexts(inputs, known)[:, [d], None, :], sigma
        ),
        model.to_standard(x)[:, [d]],
        model.noise,
        Perturbation(noise.sigma, noise.epsilon[:, [d]], noise.context_epsilon),
        mix=0.5,
        inputs=model.context_inputs(x),
    )


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_loss_is_that_over_all_orders_of_what_is_observed(
    pattern: tuple[bool, ...], linear: bool
) -> None:
    model = random_model(linear=linear)
    x = rows_of(4, seed=1)
    noise = noise_of(model, 4)
    observed = torch.tensor(pattern).expand(4, 3)
    expected_over_sets = torch.zeros(4).double()
    for size in range(3):
        for chosen in itertools.combinations(range(3), size):
            known = torch.zeros(4, 3).double()
            known[:, list(chosen)] = 1
            loss = model.loss_terms(x, SubsetPerturbation(*noise, known), observed=observed)
            expected_over_sets += loss / 3 / math.comb(3, size)
    seen = [d for d in range(3) if pattern[d]]
    orders = list(itertools.permutations(seen))
    over_orders = sum(
        term(model, x, noise, d, order[:place]) for order in orders for place, d in enumerate(order)
    )
    torch.testing.assert_close(expected_over_sets, over_orders / len(orders))


def test_without_holes_nothing_changes_to_the_bit() -> None:
    model = random_model().float()
    x = rows_of(50).float()
    noise = model.draw_noise(50, generator=seeded())
    jitter = 0.1 * normal(50, 3, seed=4).float()
    whole = torch.ones(50, 3, dtype=torch.bool)
    plain = model.loss_terms(x, noise, jitter=jitter)
    assert torch.equal(model.loss_terms(x, noise, jitter=jitter, observed=whole), plain)


@pytest.mark.parametrize("linear", [False, True])
def test_nothing_of_a_hole_leaks(linear: bool) -> None:
    model = random_model(linear=linear)
    x = rows_of(40)
    observed = torch.rand(40, 3, generator=seeded(1)) < 0.6
    noise = model.draw_noise(40, generator=seeded())
    noise = SubsetPerturbation(*(part.double() for part in noise))
    filled = x.where(observed, 0.0).requires_grad_()
    loss = model.loss_terms(filled, noise, observed=observed)
    other = model.loss_terms(x.where(observed, 1e3 * normal(40, 3)), noise, observed=observed)
    assert torch.equal(loss, other)
    (gradient,) = torch.autograd.grad(loss.sum(), filled)
    assert bool((gradient[~observed] == 0).all()) and bool((gradient[observed] != 0).any())
    # A row of which nothing is known says nothing.
    assert loss[~observed.any(1)].eq(0).all() and bool((~observed.any(1)).any())


def test_units_are_those_of_what_is_observed() -> None:
    x = rows_of(500)
    observed = torch.rand(500, 3, generator=seeded(1)) < 0.6
    holes = np.where(observed.numpy(), x.numpy(), np.nan)
    weight = torch.rand(500, generator=seeded(2), dtype=torch.float64)
    model = random_model()
    model.standardise(x.where(observed, 1e6), observed=observed)
    np.testing.assert_allclose(model.shift.numpy(), np.nanmean(holes, 0))
    np.testing.assert_allclose(model.scale.numpy(), np.nanstd(holes, 0))
    model.standardise(x.where(observed, 1e6), weight, observed)
    for d in range(3):
        own = observed[:, d].numpy()
        mean = np.average(holes[own, d], weights=weight.numpy()[own])
        assert model.shift[d].item() == pytest.approx(mean)
    for wrong in (x.where(observed, 5.0), x):
        wrong = wrong.clone()
        wrong[:, 1] = torch.where(observed[:, 1], 2.0, wrong[:, 1])
        with pytest.raises(InputError, match=r"constant or empty columns \[1\]"):
            model.standardise(wrong, observed=observed)


def quick(**options: Any) -> TrainConfig:
    return TrainConfig(steps=12, batch_size=32, evaluate_every=6, warmup=2, **options)


def trained(x: Any, observed: Any = None, linear: bool = False) -> tuple[dict[str, Tensor], Any]:
    model = OrderAgnosticARCSM.made(3, hidden=(16, 16), linear=linear, seed=0)
    history = fit(model, x, quick(), observed=observed)
    return model.state_dict(), history


@pytest.mark.parametrize("linear", [False, True])
def test_training_does_not_see_what_stands_in_a_hole(linear: bool) -> None:
    x = rows_of(120).float().numpy()
    observed = np.random.default_rng(0).random(x.shape) < 0.7
    one, told = trained(np.where(observed, x, np.float32(np.nan)), observed, linear)
    other, again = trained(torch.from_numpy(x), torch.from_numpy(observed), linear)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert told.validation == again.validation and told.training == again.training
    whole, _ = trained(x, None, linear)
    assert any(not torch.equal(one[name], whole[name]) for name in one)


def test_held_out_rows_have_holes_too() -> None:
    class Watched(OrderAgnosticARCSM):
        def loss_terms(self, x: Tensor, noise: Any, **options: Any) -> Tensor:
            seen.append((torch.is_grad_enabled(), options["observed"]))
            return super().loss_terms(x, noise, **options)

    seen: list[tuple[bool, Tensor]] = []
    model = Watched.made(3, hidden=(8, 8), seed=0)
    x = rows_of(120).float()
    observed = torch.rand(120, 3, generator=seeded()) < 0.7
    fit(model, x, quick(validation=0.25), observed=observed)
    trained, held_out = ([mask for grad, mask in seen if grad == kind] for kind in (True, False))
    assert len(trained) == 12 and len(held_out) == 2
    # Each of the 30 held-out rows as often as all others, with the holes that it has.
    patterns, counts = held_out[0].unique(dim=0, return_counts=True)
    assert len(held_out[0]) % 30 == 0 and len(patterns) > 4
    assert bool((counts % (len(held_out[0]) // 30) == 0).all())


def test_a_mask_without_holes_trains_the_same_weights() -> None:
    x = rows_of(120).float()
    masked, history = trained(x, torch.ones_like(x, dtype=torch.bool))
    plain, expected = trained(x)
    for name, values in plain.items():
        torch.testing.assert_close(masked[name], values, rtol=1e-5, atol=1e-6)
    assert history.validation[0][1] == pytest.approx(expected.validation[0][1], rel=1e-5)


def test_wrong_masks_and_models_are_refused() -> None:
    x = rows_of(60).float()
    whole = torch.ones_like(x, dtype=torch.bool)
    with pytest.raises(InputError, match="expected a model of all orders for rows with holes"):
        fit(ARCSM.made(3, hidden=(8,)), x, quick(), observed=whole)
    model = OrderAgnosticARCSM.made(3, hidden=(8, 8))
    for wrong in (whole[:5], whole.float(), whole[:, :2]):
        with pytest.raises(InputError, match="expected observed as truth values of shape"):
            fit(model, x, quick(), observed=wrong)


# Linear predictions of what is unknown.


def test_along_any_order_terms_are_conditionals_with_predictions() -> None:
    model = random_model(linear=True)
    assert model.context.correlation[0, 1] > 0.5
    x = rows_of(5, seed=1)
    for order in itertools.permutations(range(3)):
        terms, _ = model.with_order(order).log_prob_terms(x)
        for place, d in enumerate(order):
            density = model.conditional(x, d, given=order[:place])
            torch.testing.assert_close(terms[:, d], density.log_prob(x[:, d : d + 1])[:, 0])


def test_samples_are_drawn_with_predictions() -> None:
    model = random_model(linear=True)
    drawn = model.with_order([2, 0, 1]).sample(400, generator=seeded())
    ranks = model.conditional(drawn, 0, given=[2]).cdf(drawn[:, :1])[:, 0].sort().values
    # Kolmogorov's statistic of 400 uniform numbers is above 0.09 once in 300 times.
    assert (ranks - torch.arange(1, 401).double() / 400).abs().max().item() < 0.09


def test_predictions_come_back_from_disk(tmp_path: Path) -> None:
    model = random_model(linear=True)
    save_model(tmp_path, model)
    again = load_model(tmp_path)
    x = rows_of(5, seed=1)
    assert isinstance(again, OrderAgnosticARCSM) and again.context.linear
    assert torch.equal(again.log_prob(x), model.log_prob(x))


def test_rows_that_know_scalars_of_their_own() -> None:
    """One by one they are told what a single pass is told at once."""
    for linear in (False, True):
        network = random_model(linear=linear).context
        x = normal(6, 3)
        known = torch.rand(6, 3, generator=seeded()) < 0.4
        rows = SubsetRows(network, x, known)
        some = torch.tensor([0, 2, 5])
        unknown = some[~known[some, 1]]
        rows.push(unknown, 1, x[unknown, 1])
        told = known.clone()
        told[unknown, 1] = True
        expected = network.contexts(x, told)
        for d in range(3):
            torch.testing.assert_close(rows.context(torch.arange(6), d), expected[:, d])
        copies = rows.copies(torch.tensor([1, 1]))
        copies.push(torch.tensor([0]), 2, normal(1, seed=9))
        torch.testing.assert_close(rows.context(torch.arange(6), 0), expected[:, 0])
