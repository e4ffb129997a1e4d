"""One model for all orders: losses over sets, densities of anything given anything."""

import copy
import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from known import normal, seeded
from torch import Tensor

from arcsm.agnostic import OrderAgnosticARCSM, SubsetPerturbation
from arcsm.conditional import Noise, TanhSumHead
from arcsm.context import MADE
from arcsm.errors import InputError
from arcsm.model import ARCSM
from arcsm.objectives import Perturbation
from arcsm.train import TrainConfig, fit, load_model, save_model


def random_model(dims: int = 3, *, condition_dims: int = 0, **options: Any) -> OrderAgnosticARCSM:
    """Return a model in float64 whose conditionals are far from normal, in units of their own."""
    model = OrderAgnosticARCSM.made(
        dims,
        hidden=(16, 16),
        width=6,
        steps=5,
        frequencies=1,
        condition_dims=condition_dims,
        noise=Noise(3.0, 0.2),
        seed=0,
        **options,
    ).double()
    with torch.no_grad():
        for place, parameter in enumerate(model.parameters()):
            parameter.add_(0.4 * normal(*parameter.shape, seed=place))
    model.standardise(rows_of(200, dims))
    return model.requires_grad_(False)


def rows_of(count: int, dims: int = 3, seed: int = 3) -> Tensor:
    return normal(count, dims, seed=seed) * torch.linspace(0.5, 3, dims).double() + 4


def subsets(dims: int) -> list[tuple[tuple[int, ...], float]]:
    """Return every set that leaves something unknown, with its probability."""
    return [
        (chosen, 1 / dims / math.comb(dims, size))
        for size in range(dims)
        for chosen in itertools.combinations(range(dims), size)
    ]


def mask(chosen: Sequence[int], rows: int, dims: int = 3) -> Tensor:
    known = torch.zeros(rows, dims, dtype=torch.float64)
    known[:, list(chosen)] = 1
    return known


# Training.


@pytest.mark.parametrize("mix", [0.0, 0.5])
def test_over_sets_the_loss_is_that_over_all_orders(mix: float) -> None:
    """Its expectation is the mean over the 6 orders of the loss of a model of one order."""
    model = random_model(condition_dims=2)
    x, condition = rows_of(7, seed=1), normal(7, 2, seed=2)
    jitter = 0.1 * normal(7, 3, seed=4)
    noise = ARCSM.draw_noise(model, 7, levels=2, generator=seeded(5))
    noise = Perturbation(*(part.double() for part in noise))
    options = {"condition": condition, "jitter": jitter, "mix": mix}
    over_sets = sum(
        share * model.loss_terms(x, SubsetPerturbation(*noise, mask(chosen, 7)), **options)
        for chosen, share in subsets(3)
    )
    over_orders = [
        ARCSM.loss_terms(model.with_order(order), x, noise, **options)
        for order in itertools.permutations(range(3))
    ]
    expected = torch.stack(over_orders).mean(0)
    torch.testing.assert_close(over_sets, expected, rtol=1e-10, atol=1e-10)


def test_sets_are_drawn_with_their_probabilities() -> None:
    model = random_model()
    rows = 40_000
    known = model.draw_noise(rows, generator=seeded()).known
    assert known.shape == (rows, 3) and set(known.unique().tolist()) == {0.0, 1.0}
    for chosen, share in subsets(3):
        drawn = (known == mask(chosen, 1)).all(1).double().mean().item()
        assert drawn == pytest.approx(share, abs=4 * math.sqrt(share / rows))
    assert not bool(known.all(1).any())


def test_noise_is_that_of_the_generator() -> None:
    model = random_model()
    drawn, again, other = (model.draw_noise(5, levels=2, generator=seeded(s)) for s in (1, 1, 2))
    assert all(torch.equal(*pair) for pair in zip(drawn, again, strict=True))
    assert not torch.equal(drawn.epsilon, other.epsilon)
    assert drawn.epsilon.shape == (5, 3, 2, 4) and drawn.sigma.shape == (5, 1, 2)


def test_of_one_column_nothing_is_ever_known() -> None:
    model = random_model(dims=1)
    x = rows_of(6, 1)
    noise = model.draw_noise(6, generator=seeded())
    assert not bool(noise.known.any())
    noise = SubsetPerturbation(*(part.double() for part in noise))
    expected = ARCSM.loss_terms(model, x, Perturbation(*noise[:3]))
    torch.testing.assert_close(model.loss_terms(x, noise), expected, rtol=1e-10, atol=1e-10)


# Densities.


def test_along_any_order_terms_are_conditionals_given_what_comes_before() -> None:
    model = random_model(condition_dims=2)
    x, condition = rows_of(5, seed=1), normal(5, 2, seed=2)
    for order in itertools.permutations(range(3)):
        terms, _ = model.with_order(order).log_prob_terms(x, condition=condition)
        for place, d in enumerate(order):
            density = model.conditional(x, d, given=order[:place], condition=condition)
            torch.testing.assert_close(terms[:, d], density.log_prob(x[:, d : d + 1])[:, 0])
            implied = model.with_order(order).conditional(x, d, condition=condition)
            torch.testing.assert_close(implied.cdf(x[:, d : d + 1]), density.cdf(x[:, d : d + 1]))


def test_conditionals_are_densities_that_see_what_is_given() -> None:
    model = random_model()
    x = rows_of(2, seed=1)
    for d in range(3):
        others = [e for e in range(3) if e != d]
        for given in ([], others[:1], others[1:], others):
            density = model.conditional(x, d, given=given)
            ends = density.quantile(torch.tensor([[1e-7, 1 - 1e-7]]).double().expand(2, -1))
            grid = torch.linspace(0, 1, 401).double() * ends.diff() + ends[:, :1]
            mass = torch.trapezoid(density.log_prob(grid).exp(), grid)
            torch.testing.assert_close(mass, torch.ones(2).double(), rtol=0, atol=1e-3)
            points = x[:, d : d + 1]
            for e in range(3):
                moved = x.clone()
                moved[:, e] += 1
                again = model.conditional(moved, d, given=given).log_prob(points)
                assert torch.equal(again, density.log_prob(points)) == (e not in given)


def test_the_mean_over_orders_is_one_of_densities() -> None:
    model = random_model()
    x = rows_of(6, seed=1)
    got = model.log_prob_over_orders(x, 4, generator=seeded(2))
    g = seeded(2)
    orders = [torch.randperm(3, generator=g).tolist() for _ in range(4)]
    assert len({tuple(order) for order in orders}) > 1
    densities = [model.with_order(order).log_prob(x).exp() for order in orders]
    torch.testing.assert_close(got.exp(), torch.stack(densities).mean(0))
    one = model.log_prob_over_orders(x, 1, generator=seeded(2))
    torch.testing.assert_close(one, model.with_order(orders[0]).log_prob(x))
    for wrong in (0, 1.5, True):
        with pytest.raises(InputError, match="expected a positive number of orders, got"):
            model.log_prob_over_orders(x, wrong)


def test_samples_are_drawn_along_the_order() -> None:
    """What of them comes first has the density that nothing is given for."""
    model = random_model().with_order([2])
    drawn = model.sample(2000, generator=seeded())
    for d in (2, 0, 1):
        place = (2, 0, 1).index(d)
        density = model.conditional(drawn, d, given=(2, 0, 1)[:place])
        ranks = density.cdf(drawn[:, d : d + 1])[:, 0].sort().values
        steps = torch.arange(1, 2001).double() / 2000
        # Kolmogorov's statistic of 2,000 uniform numbers is above 0.04 once in 300 times.
        assert (ranks - steps).abs().max().item() < 0.04


def test_what_is_given_is_kept_and_conditioned_on() -> None:
    """Columns 1 and 2 are given; of column 0 is drawn what the model says given these."""
    model = random_model()
    given = torch.tensor([[2.0, 5.0]]).double()
    drawn = model.with_order([2, 1]).sample(2000, given=given, generator=seeded())
    assert torch.equal(drawn[:, [2, 1]], given.expand(2000, -1))
    density = model.conditional(drawn[:1], 0, given=[1, 2])
    ranks = density.cdf(drawn[:, :1].T)[0].sort().values
    # As above.
    assert (ranks - torch.arange(1, 2001).double() / 2000).abs().max().item() < 0.04


# Orders.


def test_another_order_shares_the_weights_and_leaves_the_model_alone() -> None:
    model = random_model(order=[1, 0, 2])
    x = rows_of(4, seed=1)
    before = model.log_prob(x)
    other = model.with_order([2, 1])
    assert type(other) is OrderAgnosticARCSM
    assert other.context.order == (2, 1, 0) and model.context.order == (1, 0, 2)
    assert torch.equal(model.log_prob(x), before)
    assert not torch.equal(other.log_prob(x), before)
    ours, theirs = (dict(m.named_parameters()) for m in (model, other))
    assert ours.keys() == theirs.keys() and all(ours[name] is theirs[name] for name in ours)
    model.standardise(3 * x)
    assert torch.equal(other.scale, model.scale)
    assert model.with_order("natural").context.order == (0, 1, 2)
    # The order goes with what is written, and a copy is free of the original.
    assert other.config["context"]["order"] == [2, 1, 0]
    alone = copy.deepcopy(other)
    with torch.no_grad():
        alone.head.output.bias.add_(1)
    assert not torch.equal(alone.head.output.bias, model.head.output.bias)
    for wrong in ([0, 0], [3], [0.5], "backwards", 3):
        with pytest.raises(InputError, match=r"expected (an|the) order"):
            model.with_order(wrong)


def test_one_column_given_others_must_be_columns() -> None:
    model = random_model()
    x = rows_of(2)
    for d, given in ((1, [1]), (3, [0]), (-1, [0]), (0, [3]), (0, [-1])):
        with pytest.raises(InputError, match="expected columns from 0 to 2, d not among"):
            model.conditional(x, d, given=given)


def test_what_depends_on_the_order_is_refused() -> None:
    with pytest.raises(InputError, match="expected decorrelate=False"):
        OrderAgnosticARCSM.made(2, decorrelate=True)
    with pytest.raises(InputError, match=r"expected a SubsetNetwork, .* got MADE"):
        OrderAgnosticARCSM(MADE(2, width=4), TanhSumHead(4), Noise())
    config = OrderAgnosticARCSM.made(2, hidden=(8,)).config
    with pytest.raises(InputError, match="expected a SubsetNetwork as the context, got 'MADE'"):
        OrderAgnosticARCSM.from_config({**config, "context": {**config["context"], "kind": "MADE"}})


# As a model among others.


def test_options_are_those_of_the_usual_model() -> None:
    options: dict[str, Any] = {
        "width": 5,
        "steps": 3,
        "head_depth": 2,
        "noise": Noise(2.0, 0.1, levels=3),
        "density": "quadrature",
        "flow_steps": 9,
    }
    model = OrderAgnosticARCSM.made(
        4, hidden=(8, 9), frequencies=1, order=[3, 1, 0, 2], condition_dims=2, seed=1, **options
    )
    usual = ARCSM.made(4, **options)
    for name in ("head", "noise", "density", "flow_steps"):
        assert model.config[name] == usual.config[name]
    assert model.config["context"] == {
        "kind": "SubsetNetwork",
        "dims": 4,
        "width": 5,
        "hidden": [8, 9],
        "frequencies": 1,
        "order": [3, 1, 0, 2],
        "condition_dims": 2,
    }
    again = OrderAgnosticARCSM.from_config(json.loads(json.dumps(model.config)))
    assert again.config == model.config
    same = OrderAgnosticARCSM.made(
        4, hidden=(8, 9), frequencies=1, order=[3, 1, 0, 2], condition_dims=2, seed=1, **options
    )
    for name, value in model.state_dict().items():
        assert torch.equal(value, same.state_dict()[name])


def test_it_comes_back_from_disk(tmp_path: Path) -> None:
    model = random_model(condition_dims=2).with_order([2, 0, 1])
    save_model(tmp_path, model)
    again = load_model(tmp_path)
    assert type(again) is OrderAgnosticARCSM and again.config == model.config
    x, condition = rows_of(4, seed=1), normal(4, 2)
    assert torch.equal(
        again.log_prob(x, condition=condition), model.log_prob(x, condition=condition)
    )


def test_an_interrupted_training_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    config = TrainConfig(steps=12, batch_size=16, evaluate_every=4, checkpoint_every=4)
    x = rows_of(60).float()

    def train(directory: str, progress: Any = None, resume: bool = False) -> OrderAgnosticARCSM:
        model = OrderAgnosticARCSM.made(3, hidden=(8,), width=4, steps=3, seed=0)
        path = tmp_path / directory
        fit(model, x, config, directory=path, resume=resume, progress=progress)
        return model

    whole = train("whole")

    def stop(progress: Any) -> None:
        if progress.step == 8:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        train("halves", stop)
    again = train("halves", resume=True)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])


@pytest.fixture(scope="module")
def learned() -> tuple[OrderAgnosticARCSM, Tensor, Tensor]:
    """Return a model trained on normal rows, with their mean and covariance."""
    mean = torch.tensor([1.0, -2.0, 0.5])
    root = torch.tensor([[1.0, 0.0, 0.0], [0.7, 0.6, 0.0], [-0.5, 0.8, 0.7]])
    x = mean + torch.randn(4000, 3, generator=seeded()) @ root.T
    model = OrderAgnosticARCSM.made(3, hidden=(32, 32), width=16, steps=6, frequencies=0, seed=0)
    config = TrainConfig(steps=1200, batch_size=256, validation=0, evaluate_every=1200)
    fit(model, x, config)
    return model.double(), mean.double(), (root @ root.T).double()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("d", "given"), [(d, k) for k, _ in subsets(3) for d in range(3) if d not in k]
)
def test_conditionals_of_normal_rows_are_learned(
    learned: tuple[OrderAgnosticARCSM, Tensor, Tensor], d: int, given: tuple[int, ...]
) -> None:
    """Every column given every set of others, against the closed form."""
    model, mean, covariance = learned
    x = mean + normal(200, 3, seed=7) @ torch.linalg.cholesky(covariance).T
    known = list(given)
    gain = torch.linalg.solve(covariance[known][:, known], covariance[known, d])
    centre = mean[d] + (x[:, known] - mean[known]) @ gain
    variance = covariance[d, d] - covariance[d, known] @ gain
    expected = torch.distributions.Normal(centre, variance.sqrt()).log_prob(x[:, d])
    got = model.conditional(x, d, given=given).log_prob(x[:, d : d + 1])[:, 0]
    # Rows as the data has them; the mean of the difference is KL from the truth.
    difference = expected - got
    assert abs(difference.mean().item()) < 0.03
    assert difference.abs().mean().item() < 0.1


def test_the_likelihood_is_no_objective_for_all_orders() -> None:
    config = TrainConfig(steps=2, objective={"objective": "likelihood"})
    with pytest.raises(InputError, match="objective 'csm' for a model of all orders"):
        fit(random_model().requires_grad_(True), rows_of(100), config)


def test_the_error_over_orders_is_the_largest_of_one() -> None:
    model, x = random_model(2), rows_of(5, 2)
    found, error = model.log_prob_over_orders(x, 6, generator=seeded(0), return_error=True)
    assert torch.equal(found, model.log_prob_over_orders(x, 6, generator=seeded(0)))
    both = [model.with_order(o).log_prob(x, return_error=True)[1] for o in ([0, 1], [1, 0])]
    assert torch.equal(error, torch.stack(both).amax(0))


def test_conditions_of_conditionals_may_be_arrays() -> None:
    model, x, condition = random_model(condition_dims=1), rows_of(4), normal(4, 1, seed=4)
    expected = model.conditional(x, 1, given=[2], condition=condition).cdf(x[:, :1])
    found = model.conditional(x, 1, given=[2], condition=condition.numpy()).cdf(x[:, :1])
    assert torch.equal(found, expected)
    with pytest.raises(InputError, match="finite numbers in condition"):
        model.conditional(x, 1, given=[2], condition=condition * math.nan)
