"""Ensembles: the mean of densities, and members that train side by side as they would alone."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from known import normal, seeded
from torch import Tensor

import arcsm.ensemble
from arcsm.agnostic import OrderAgnosticARCSM
from arcsm.conditional import Noise
from arcsm.ensemble import Ensemble
from arcsm.errors import InputError
from arcsm.model import ARCSM
from arcsm.train import TrainConfig, fit, load_model, save_model

DIFFERENT = ([2, 0, 1], [0, 1, 2], [1, 2, 0])
FOUR = (*DIFFERENT, [2, 1, 0])
SHAPE: dict[str, Any] = {
    "hidden": (16, 12),
    "width": 6,
    "steps": 5,
    "frequencies": 1,
    "noise": Noise(3.0, 0.2),
}


def random_ensemble(orders: Any = DIFFERENT, *, dims: int = 3, **options: Any) -> Ensemble:
    """Return one in float64, of members whose conditionals are neither normal nor alike."""
    model = Ensemble.made(dims, orders=orders, seed=0, **{**SHAPE, **options}).double()
    with torch.no_grad():
        for place, parameter in enumerate(model.parameters()):
            parameter.add_(0.4 * normal(*parameter.shape, seed=place))
    model.standardise(rows_of(200, dims))
    return model


def rows_of(count: int, dims: int = 3, seed: int = 3) -> Tensor:
    rows = normal(count, dims, seed=seed)
    return (rows + 0.7 * rows.roll(1, 1)) * torch.linspace(0.5, 3, dims).double() + 4


def noise_of(model: ARCSM | Ensemble, rows: int, seed: int = 5, **options: Any) -> Any:
    noise = model.draw_noise(rows, generator=seeded(seed), **options)
    return type(noise)(*(part.double() for part in noise))


def own(noise: Any, member: int) -> Any:
    return type(noise)(*(part[:, member] for part in noise))


def agnostic_ensemble() -> Ensemble:
    members = [OrderAgnosticARCSM.made(3, order=order, seed=2, **SHAPE) for order in FOUR]
    model = Ensemble(members).double()
    model.standardise(rows_of(200))
    return model


# Training.


@pytest.mark.parametrize("limit", [1, 1600, 10**9], ids=["apart", "in pairs", "all at once"])
@pytest.mark.parametrize("kind", ["plain", "decorrelated", "agnostic"])
def test_the_loss_is_the_mean_of_the_members(
    kind: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With their gradients, however many members are computed at one time."""
    if kind == "agnostic":
        model = agnostic_ensemble()
    else:
        model = random_ensemble(FOUR, decorrelate=kind == "decorrelated")
    x, jitter = rows_of(9, seed=1), 0.1 * normal(9, 3)
    noise = noise_of(model, 9, levels=1)
    options = {"jitter": jitter, "mix": 0.3}
    weight = torch.linspace(0.5, 2, 9).double()
    each = [
        member.loss_terms(x, own(noise, place), **options)
        for place, member in enumerate(model.models)
    ]
    expected = torch.stack(each).mean(0)
    names, parameters = zip(*model.named_parameters(), strict=True)
    gradients = torch.autograd.grad((weight * expected).sum(), parameters)

    calls = []
    plain = type(model.models[0]).loss_terms
    monkeypatch.setattr(
        type(model.models[0]),
        "loss_terms",
        lambda *args, **kwargs: calls.append(1) or plain(*args, **kwargs),
    )
    monkeypatch.setattr(arcsm.ensemble, "_STACKED_ON_CPU", limit)
    got = model.loss_terms(x, noise, **options)
    assert len(calls) == {1: 4, 1600: 2, 10**9: 1}[limit]
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
    assert len({round(term.sum().item(), 6) for term in each}) == 4
    found = torch.autograd.grad((weight * got).sum(), parameters)
    for name, ours, theirs in zip(names, found, gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10, msg=name)


def test_conditions_reach_all_members() -> None:
    model = random_ensemble(condition_dims=2)
    x, condition = rows_of(6, seed=1), normal(6, 2)
    noise = noise_of(model, 6)
    each = [
        member.loss_terms(x, own(noise, place), condition=condition)
        for place, member in enumerate(model.models)
    ]
    got = model.loss_terms(x, noise, condition=condition)
    torch.testing.assert_close(got, torch.stack(each).mean(0), rtol=1e-10, atol=1e-10)
    assert not torch.equal(got, model.loss_terms(x, noise, condition=condition + 1))


def test_each_member_has_noise_of_its_own() -> None:
    model = random_ensemble()
    noise = model.draw_noise(7, levels=2, generator=seeded(1))
    g = seeded(1)
    for place, member in enumerate(model.models):
        expected = member.draw_noise(7, levels=2, generator=g)
        assert all(torch.equal(*pair) for pair in zip(own(noise, place), expected, strict=True))
    assert {len(part) for part in noise} == {7}
    assert not torch.equal(noise.epsilon[:, 0], noise.epsilon[:, 1])


class WithNoiseOf(ARCSM):
    """A model that is given the noise of one member of an ensemble."""

    member: int
    norms: list[float]

    def draw_noise(self, rows: int, **options: Any) -> Any:
        for _ in range(self.member):
            super().draw_noise(rows, **options)
        return super().draw_noise(rows, **options)

    def clip_gradients(self, limit: float) -> Tensor:
        norm = super().clip_gradients(limit)
        self.norms.append(norm.item())
        return norm


def test_members_train_as_they_would_alone() -> None:
    """Same batches and noise; the gradients of some are clipped, those of others are not."""
    model = random_ensemble()
    x = rows_of(60, seed=2)
    config = TrainConfig(
        steps=6,
        batch_size=16,
        learning_rate=1e-2,
        warmup=2,
        clip=12.0,
        weight_decay=0.01,
        validation=0,
        evaluate_every=6,
    )
    alone = []
    for place, member in enumerate(model.models):
        other = WithNoiseOf.from_config(member.config).double()
        other.load_state_dict(member.state_dict())
        assert isinstance(other, WithNoiseOf)
        other.member = place
        alone.append(other)
    start = [{k: v.clone() for k, v in m.state_dict().items()} for m in model.models]
    norms: list[list[float]] = [[], [], []]
    for other, kept in zip(alone, norms, strict=True):
        other.norms = kept
        fit(other, x, config)
    assert min(map(min, norms)) < config.clip < max(map(max, norms))
    fit(model, x, config)
    for member, other, before in zip(model.models, alone, start, strict=True):
        for name, value in member.state_dict().items():
            torch.testing.assert_close(value, other.state_dict()[name], rtol=1e-7, atol=1e-8)
        assert not torch.allclose(member.head.output.weight, before["head.output.weight"])


def test_a_gradient_that_is_not_finite_is_told() -> None:
    model = random_ensemble()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    assert model.clip_gradients(1.0).isfinite()
    model.models[1].head.output.bias.grad[0] = math.nan
    assert not model.clip_gradients(1.0).isfinite()


@pytest.mark.parametrize("orders", [DIFFERENT, "natural"])
def test_an_interrupted_training_goes_on_to_the_same_bits(orders: Any, tmp_path: Path) -> None:
    config = TrainConfig(steps=12, batch_size=16, evaluate_every=4, checkpoint_every=4)
    x = rows_of(60).float()

    def train(directory: str, progress: Any = None, resume: bool = False) -> Ensemble:
        members = 3 if isinstance(orders, str) else None
        model = Ensemble.made(3, members=members, orders=orders, seed=0, **SHAPE)
        path = tmp_path / directory
        fit(model, x, config, directory=path, resume=resume, progress=progress)
        return model

    def stop(progress: Any) -> None:
        if progress.step == 8:
            raise InterruptedError

    whole = train("whole")
    with pytest.raises(InterruptedError):
        train("halves", stop)
    again = train("halves", resume=True)
    loaded = load_model(tmp_path / "halves")
    for name, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
        assert torch.equal(value, loaded.state_dict()[name])


# Densities.


@pytest.mark.parametrize("orders", [DIFFERENT[:2], ([1, 0, 2],) * 2], ids=["different", "same"])
def test_the_density_is_the_mean_of_densities(orders: Any) -> None:
    model = random_ensemble(orders, condition_dims=2)
    x, condition = rows_of(6, seed=1), normal(6, 2)
    cells = (x.clone(), x.clone())
    cells[1][:, 1] += 0.5
    for options in ({}, {"cells": cells}, {"method": "quadrature"}):
        each = [m.log_prob(x, condition=condition, **options) for m in model.models]
        got, error = model.log_prob(x, condition=condition, return_error=True, **options)
        torch.testing.assert_close(got.exp(), torch.stack(each).exp().mean(0))
        assert torch.equal(got, model.log_prob(x, condition=condition, **options))
        assert bool((error >= 0).all()) and error.max().item() < 1e-4


def test_it_integrates_to_one() -> None:
    model = random_ensemble(([1, 0], [0, 1]), dims=2).requires_grad_(False)
    steps = torch.linspace(-7, 7, 71).double()
    z = torch.cartesian_prod(steps, steps)
    scale = rows_of(200, 2).std(0)
    q = model.log_prob(z * scale + 4).exp() * scale.prod()
    assert q.sum().item() * (14 / 70) ** 2 == pytest.approx(1, abs=5e-3)


def test_terms_of_one_order_are_the_conditionals_of_the_mixture() -> None:
    order = [2, 0, 1]
    model = random_ensemble((order,) * 3)
    assert model.order == (2, 0, 1)
    x = rows_of(5, seed=1)
    terms, errors = model.log_prob_terms(x)
    torch.testing.assert_close(terms.sum(1), model.log_prob(x))
    each = torch.stack([m.log_prob_terms(x)[0] for m in model.models]).exp()
    # q(x_a, x_b, …) of the mixture, prefix by prefix.
    for place, d in enumerate(order):
        joint, before = (each[..., order[:k]].prod(-1).mean(0) for k in (place + 1, place))
        torch.testing.assert_close(terms[:, d].exp(), joint / before)
    assert bool((errors >= 0).all()) and errors.max().item() < 1e-4
    for only in ([0], [1, 2], []):
        some, their_errors = model.log_prob_terms(x, only=only)
        wanted = torch.zeros(3).index_fill(0, torch.tensor(only, dtype=torch.long), 1.0)
        torch.testing.assert_close(some, terms * wanted)
        torch.testing.assert_close(their_errors, errors * wanted)


def test_errors_of_terms_follow_those_of_the_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members moved by no more than their errors move the terms by no more than theirs."""
    model = random_ensemble(([2, 0, 1],) * 2)
    x = rows_of(20, seed=1)
    plain = ARCSM.log_prob_terms
    moved: dict[ARCSM, Tensor] = {}

    def terms(member: ARCSM, x: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        values, _ = plain(member, x, **options)
        return values + moved.get(member, 0.0), torch.full_like(values, 1e-4)

    monkeypatch.setattr(ARCSM, "log_prob_terms", terms)
    before, errors = model.log_prob_terms(x)
    worst = torch.zeros_like(before)
    for seed in range(30):
        for place, member in enumerate(model.models):
            moved[member] = 1e-4 * normal(20, 3, seed=2 * seed + place).sign()
        worst = torch.maximum(worst, (model.log_prob_terms(x)[0] - before).abs())
    assert bool((worst <= errors * 1.001).all())
    assert bool((errors[:, 2] <= 1.001e-4).all())  # of the first there is nothing before
    assert (worst / errors).max().item() > 0.99  # nor are they much larger than need be


def test_terms_of_different_orders_exceed_the_density_by_what_is_documented() -> None:
    model = random_ensemble()
    assert model.order is None
    x = rows_of(8, seed=1)
    terms, errors = model.log_prob_terms(x)
    each = torch.stack([m.log_prob(x) for m in model.models])
    share = each.exp() / each.exp().sum(0)
    entropy = -(share * share.log()).sum(0)
    torch.testing.assert_close(terms.sum(1) - model.log_prob(x), math.log(3) - entropy)
    assert bool((errors >= 0).all()) and errors.max().item() < 1e-4
    only, _ = model.log_prob_terms(x, only=[1])
    torch.testing.assert_close(only[:, 1], terms[:, 1])
    assert not bool(only[:, [0, 2]].any())


@pytest.mark.parametrize("orders", [DIFFERENT, ([2, 0, 1],) * 3], ids=["different", "same"])
def test_members_without_density_do_not_count(orders: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_ensemble(orders)
    plain, x = ARCSM.log_prob_terms, rows_of(4, seed=1)
    impossible = {model.models[0], model.models[2]}

    def terms(member: ARCSM, x: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        values, errors = plain(member, x, **options)
        if member in impossible:
            values[:, 2] = -math.inf
        return values, errors

    monkeypatch.setattr(ARCSM, "log_prob_terms", terms)
    expected = plain(model.models[1], x)[0]
    got, errors = model.log_prob_terms(x)
    if model.order is not None:  # scalar 2 comes first, and decides
        expected[:, 2] -= math.log(3)
    torch.testing.assert_close(got, expected)
    assert bool(errors.isfinite().all())
    alone = plain(model.models[1], x)[0].sum(1)
    torch.testing.assert_close(model.log_prob(x), alone - math.log(3))
    impossible.add(model.models[1])
    got, errors = model.log_prob_terms(x)
    assert torch.equal(got[:, 2], torch.full((4,), -math.inf).double())
    assert bool(got[:, :2].isfinite().all()) and bool(errors.isfinite().all())
    assert torch.equal(model.log_prob(x), torch.full((4,), -math.inf).double())


def test_probabilities_are_the_integrals_of_the_terms() -> None:
    model = random_ensemble(([2, 0, 1],) * 2, condition_dims=2)
    x, condition = rows_of(5, seed=1), normal(5, 2)
    terms, _ = model.log_prob_terms(x, condition=condition)
    h = 1e-4
    above, below = (
        model.conditional_cdf(x, at=x + shift, condition=condition) for shift in (h, -h)
    )
    torch.testing.assert_close((above - below) / (2 * h), terms.exp(), rtol=1e-4, atol=1e-6)
    ends = torch.full_like(x, math.inf)
    ones = model.conditional_cdf(x, at=ends, condition=condition)
    torch.testing.assert_close(ones, torch.ones_like(x))
    assert not bool(model.conditional_cdf(x, at=-ends, condition=condition).any())


def test_different_orders_have_no_conditional_probabilities() -> None:
    with pytest.raises(InputError, match=r"expected members of one order .* got different ones"):
        random_ensemble().conditional_cdf(rows_of(2))


# Samples.


def test_samples_come_from_the_density() -> None:
    model = random_ensemble(([2, 0, 1],) * 2)
    x = model.sample(2000, generator=seeded(4))
    ranks = model.conditional_cdf(x).sort(0).values
    steps = torch.arange(1, 2001).double()[:, None] / 2000
    # Kolmogorov's statistic of 2,000 uniform numbers is above 0.04 once in 300 times.
    assert (ranks - steps).abs().max().item() < 0.04


def apart(orders: Any = DIFFERENT, **options: Any) -> Ensemble:
    """Return an ensemble in which a row tells the member that it comes from."""
    model = random_ensemble(orders, **options)
    for place, member in enumerate(model.models):
        member.shift += 1000 * place
    return model


def origin(x: Tensor) -> Tensor:
    return ((x[:, 0] + 500) / 1000).floor().long()


def test_members_are_drawn_evenly_and_in_random_order() -> None:
    model = apart()
    drawn = model.sample(900, generator=seeded(1))
    member = origin(drawn)
    share = torch.bincount(member, minlength=3) / 900
    # Three standard errors of a third among 900 are 0.047.
    torch.testing.assert_close(share, torch.full((3,), 1 / 3), atol=0.047, rtol=0)
    # Neighbours differ two times out of three; in groups they would differ twice.
    assert (member[1:] != member[:-1]).float().mean().item() == pytest.approx(2 / 3, abs=0.06)
    assert torch.equal(model.sample(900, generator=seeded(1)), drawn)
    assert not torch.equal(model.sample(900, generator=seeded(2)), drawn)
    assert model.sample(1, generator=seeded(1)).shape == (1, 3)
    with pytest.raises(InputError, match="expected a positive whole number of samples"):
        model.sample(0)
    with pytest.raises(InputError, match="expected a generator for an ensemble, got uniform"):
        model.sample(2, uniform=torch.rand(2, 3))


def test_conditions_and_options_reach_the_rows_they_belong_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = random_ensemble(condition_dims=3)
    condition, seen = normal(50, 3), []

    def sample(member: ARCSM, n: int, *, condition: Tensor, **options: Any) -> Tensor:
        seen.append((member, n, options))
        return condition

    monkeypatch.setattr(ARCSM, "sample", sample)
    snap = lambda d, drawn, x: drawn  # noqa: E731
    g = seeded()
    got = model.sample(50, generator=g, condition=condition, method="flow", snap=snap, block=3)
    assert torch.equal(got, condition)
    assert [member for member, _, _ in seen] == model.models
    assert sum(n for _, n, _ in seen) == 50
    expected = {"generator": g, "method": "flow", "snap": snap, "block": 3}
    assert all(options == expected for _, _, options in seen)
    with pytest.raises(InputError, match=r"expected a condition of shape \(50, 3\)"):
        model.sample(50, condition=condition[:9])


@pytest.mark.parametrize("rows", [1, 2000])
def test_what_is_given_chooses_among_the_members(rows: int) -> None:
    """P(member | given) ∝ q_member(given); what it draws is known from its shift."""
    model = random_ensemble(([2, 0, 1], [2, 1, 0]))
    given = torch.tensor([[5.5]]).double()
    density = torch.cat([m.conditional(rows_of(1), 2).log_prob(given).exp() for m in model.models])
    expected = (density / density.sum())[1].item()
    assert 0.02 < expected < 0.4 or 0.6 < expected < 0.98  # not what a fair coin would do
    for place, member in enumerate(model.models):  # columns 0 and 1 tell the member
        member.shift[:2] += 1000 * place
    drawn = model.sample(2000, given=given.expand(rows, -1), generator=seeded())
    assert torch.equal(drawn[:, 2], given.expand(2000, -1)[:, 0])
    share = origin(drawn).double().mean().item()
    error = math.sqrt(expected * (1 - expected) / 2000)
    assert share == pytest.approx(expected, abs=3.5 * error)


def test_each_row_has_its_own_given_values() -> None:
    """One member lies around 4, one around 1004 in the column that is given."""
    model = apart(([0, 1, 2], [0, 2, 1]))
    member = torch.randint(2, (40,), generator=seeded())
    given = (1000.0 * member + 4)[:, None].double()
    drawn = model.sample(40, given=given, generator=seeded())
    assert torch.equal(drawn[:, :1], given)
    assert torch.equal(((drawn[:, 1] + 500) / 1000).floor().long(), member)


def test_given_values_must_come_first_in_all_orders() -> None:
    model = random_ensemble(([2, 0, 1], [2, 1, 0]))
    given = torch.tensor([[5.5, 4.0]]).double()
    with pytest.raises(InputError, match=r"start with the same 2 scalars, got \[2, 0\], \[2, 1\]"):
        model.sample(5, given=given)
    for wrong in (given[:, :1].expand(3, -1), torch.zeros(1, 4)):
        with pytest.raises(InputError, match="expected given of 1 or 5 rows and at most 3 col"):
            model.sample(5, given=wrong)


# Members.


def test_made_takes_orders_members_and_a_seed() -> None:
    model = Ensemble.made(6, seed=0, **SHAPE)
    assert len(model.models) == 4
    assert len({member.context.order for member in model.models}) == 4
    again = Ensemble.made(6, seed=0, **SHAPE)
    assert again.config == model.config
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
    other = Ensemble.made(6, seed=1, **SHAPE)
    assert other.config != model.config
    weights = [member.head.output.weight for member in (*model.models, *other.models)]
    assert len({weight[0, 0].item() for weight in weights}) == 8
    assert Ensemble.made(6, members=2, orders="natural", **SHAPE).order == tuple(range(6))
    listed = Ensemble.made(3, orders=["natural", [2, 1, 0]], **SHAPE)
    assert [member.context.order for member in listed.models] == [(0, 1, 2), (2, 1, 0)]
    with pytest.raises(InputError, match="expected an order for each of 3 members, got 2"):
        Ensemble.made(3, members=3, orders=["natural", [2, 1, 0]], **SHAPE)


def test_members_must_be_alike_and_their_own() -> None:
    one = ARCSM.made(3, **SHAPE)
    with pytest.raises(InputError, match="expected at least one member, got none"):
        Ensemble([])
    with pytest.raises(InputError, match="expected at least one member, got none"):
        Ensemble.made(3, members=0)
    for other in (
        ARCSM.made(2, **SHAPE),
        ARCSM.made(3, **{**SHAPE, "hidden": (16, 16)}),
        ARCSM.made(3, **{**SHAPE, "noise": Noise(3.0, 0.1)}),
        ARCSM.made(3, **SHAPE).double(),
        OrderAgnosticARCSM.made(3, **SHAPE),
    ):
        with pytest.raises(InputError, match="got member 1 of another shape than member 0"):
            Ensemble([one, other])
    with pytest.raises(InputError, match="expected members with weights of their own"):
        Ensemble([one, one])
    agnostic = OrderAgnosticARCSM.made(3, **SHAPE)
    with pytest.raises(InputError, match="expected members with weights of their own"):
        Ensemble([agnostic, agnostic.with_order([2])])
    with pytest.raises(InputError, match=r"expected members among ARCSM, .* got WithNoiseOf"):
        Ensemble([WithNoiseOf.made(3, **SHAPE)])


@pytest.mark.parametrize("kind", ["plain", "decorrelated", "agnostic"])
def test_it_comes_back_from_disk(kind: str, tmp_path: Path) -> None:
    if kind == "agnostic":
        model = agnostic_ensemble()
    else:
        model = random_ensemble(decorrelate=kind == "decorrelated")
    save_model(tmp_path, model)
    again = load_model(tmp_path)
    assert type(again) is Ensemble and again.config == model.config
    assert again.dims == 3 and again.condition_dims == 0 and again.dtype == torch.float64
    x = rows_of(4, seed=1)
    assert torch.equal(again.log_prob(x), model.log_prob(x))
    drawn = (m.sample(5, generator=seeded(1)) for m in (again, model))
    assert torch.equal(*drawn)


def test_configurations_of_other_members_are_refused() -> None:
    config = json.loads(json.dumps(random_ensemble().config))
    with pytest.raises(InputError, match=r"expected members among ARCSM, .* got 'MixtureMADE'"):
        Ensemble.from_config({**config, "kind": "MixtureMADE"})


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.ones(1, 2), "weight with 3 columns"),
        (torch.ones(3), "weight of shape"),
        (torch.ones(2, 3), "one row or for 4, got 2"),
        (torch.zeros(1, 3), "weights of at least 0"),
        (torch.tensor([[1.0, -1.0, 1.0]]), "weights of at least 0"),
        (torch.tensor([[1.0, math.nan, 1.0]]), "finite numbers in weight"),
        (torch.tensor([[1.0, math.inf, 1.0]]), "finite numbers in weight"),
    ],
)
def test_weights_that_nothing_can_be_drawn_by(weight: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        random_ensemble().sample(4, weight=weight)


def test_weights_choose_the_member() -> None:
    model = apart().float()
    for place in range(3):
        weight = torch.eye(3, dtype=torch.float64)[place : place + 1] * 1e-150
        assert bool((origin(model.sample(20, weight=weight)) == place).all())
    weight = torch.eye(3)[[2, 0, 1, 0]]
    assert origin(model.sample(4, weight=weight)).tolist() == [2, 0, 1, 0]


def test_conditions_of_samples_may_be_arrays() -> None:
    model = random_ensemble(condition_dims=1).float()
    condition = normal(6, 1, seed=4).float()
    expected = model.sample(6, condition=condition, generator=seeded(1))
    for same in (condition.double(), condition.numpy()):
        assert torch.equal(model.sample(6, condition=same, generator=seeded(1)), expected)
    with pytest.raises(InputError, match="finite numbers in condition"):
        model.sample(6, condition=condition * math.nan)
    with pytest.raises(InputError, match="a numpy array or a torch tensor, got list"):
        model.sample(6, condition=[[0.0]] * 6)


def test_only_columns_that_exist() -> None:
    for orders in (DIFFERENT, [[0, 1, 2]] * 2):
        with pytest.raises(InputError, match="columns from 0 to 2 in only"):
            random_ensemble(orders).log_prob_terms(rows_of(2), only=[7])
