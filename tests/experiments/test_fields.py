"""The two score fields, and the known score that they are compared with."""

import math

import pytest
import torch
from known import DOUBLE, normal, seeded
from torch import nn

from arcsm.errors import InputError
from arcsm.experiments.fields import (
    METHODS,
    AutoregressiveField,
    IsotropicGaussian,
    JointField,
    Method,
    fisher_divergence,
    free_parameters,
    make_field,
    matched_width,
)


def field_of(dims: int, width: int = 12) -> AutoregressiveField:
    return AutoregressiveField(dims, width=width, context=3, head=5).to(DOUBLE)


def test_derivative_is_that_of_autograd() -> None:
    field, x = field_of(4), normal(6, 4).requires_grad_()
    score, derivative = field.conditional_scores(x)
    for d in range(4):
        (row,) = torch.autograd.grad(score[:, d].sum(), x, retain_graph=True)
        torch.testing.assert_close(derivative[:, d], row[:, d])
    assert (derivative.abs() > 1e-6).all()


def test_scores_alone_are_those_of_the_jet() -> None:
    field, x = field_of(4), normal(6, 4)
    torch.testing.assert_close(field(x), field.conditional_scores(x)[0])


def test_autoregressive_field_sees_what_came_before_and_its_own_scalar() -> None:
    jacobian = torch.autograd.functional.jacobian(field_of(4), normal(1, 4))[0, :, 0]
    assert (jacobian.triu(1) == 0).all()
    assert (jacobian[torch.tril(torch.ones(4, 4)) > 0].abs() > 1e-7).all()


def test_free_parameters_are_those_that_change_a_score() -> None:
    field, x = field_of(3, width=7), normal(5, 3)
    score, derivative = field.conditional_scores(x)
    (score.square().sum() + derivative.square().sum()).backward()
    moved = sum(int((p.grad != 0).sum()) for p in field.parameters() if p.grad is not None)
    assert free_parameters(field) == moved
    assert moved < sum(p.numel() for p in field.parameters())
    # (3 + 1) · 4 + 2 · (4 + 1) · 4 + (4 + 1) · 3
    assert free_parameters(JointField(3, width=4)) == 71


@pytest.mark.parametrize(("dims", "width"), [(2, 64), (20, 64), (100, 128)])
def test_fields_have_as_many_parameters_as_whole_units_allow(dims: int, width: int) -> None:
    aim = free_parameters(make_field("joint", dims, joint_width=width, seed=0))
    best = matched_width(dims, width)

    def distance(units: int) -> int:
        return abs(free_parameters(AutoregressiveField(dims, width=units)) - aim)

    assert distance(best) <= min(distance(best - 1), distance(best + 1))
    assert distance(best) < 0.03 * aim


def test_weights_come_from_the_seed_alone() -> None:
    state = torch.random.get_rng_state()
    one, same, other = (make_field("autoregressive", 3, joint_width=8, seed=s) for s in (1, 1, 2))
    assert torch.equal(one.output.weight, same.output.weight)
    assert not torch.equal(one.output.weight, other.output.weight)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_unknown_field_is_refused() -> None:
    with pytest.raises(InputError, match="'joint' or 'autoregressive', got 'conditional'"):
        make_field("conditional", 3, joint_width=8, seed=0)


def test_csm_needs_conditional_scores() -> None:
    with pytest.raises(InputError, match="conditional scores"):
        METHODS["csm"].loss_of(JointField(3, width=4), torch.zeros(2, 3))


def test_regression_needs_the_truth_and_is_the_divergence_to_it() -> None:
    field, x, method = JointField(3, width=4), torch.randn(5, 3), METHODS["regression"]
    with pytest.raises(InputError, match="the truth"):
        method.loss(field, None, x)
    found = method.loss(field, None, x, truth=IsotropicGaussian(3, 0.5))
    torch.testing.assert_close(found, (field(x) + 4 * x).square().sum(-1).mean() / 2)


def test_score_of_the_gaussian_is_the_gradient_of_its_log_density() -> None:
    truth = IsotropicGaussian(3, 0.1)
    x = truth.sample(5, generator=seeded()).requires_grad_()
    log_density = torch.distributions.Normal(0.0, 0.1).log_prob(x).sum()
    (expected,) = torch.autograd.grad(log_density, x)
    torch.testing.assert_close(truth.score(x), expected)


def test_dsm_aims_at_a_score_whose_divergence_to_the_clean_one_is_known() -> None:
    truth, sigma = IsotropicGaussian(100, 0.1), 0.05
    x = truth.sample(20_000, generator=seeded())
    assert x.std().item() == pytest.approx(0.1, rel=0.01)
    found = fisher_divergence(truth.smoothed(sigma).score(x), truth.score(x)).item()
    # ½ D s² (1/s² − 1/(s² + σ²))², with 1/s² = 100 and 1/(s² + σ²) = 80.
    assert found == pytest.approx(0.5 * 100 * 0.01 * 20**2, rel=0.01)


def test_divergence_of_the_true_score_is_zero_and_that_of_nothing_half_its_square() -> None:
    truth, x = IsotropicGaussian(2, 2.0), torch.tensor([[4.0, 0.0], [0.0, 8.0]])
    assert fisher_divergence(truth.score(x), truth.score(x)).item() == 0
    # Scores are −1 and −2 in one coordinate each: ½ (1 + 4)/2.
    assert fisher_divergence(torch.zeros(2, 2), truth.score(x)).item() == pytest.approx(1.25)


class Linear(nn.Module):
    """s(x) = −a x, a field on which every objective is a closed form."""

    def __init__(self, slope: float) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(slope))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -self.slope * x

    def conditional_scores(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return -self.slope * x, -self.slope.expand_as(x)


@pytest.mark.parametrize("name", ["csm", "sm", "ssm", "ssm-vr", "ssm-ar", "dsm-0.05"])
def test_objective_of_a_linear_score(name: str) -> None:
    field, x, a = Linear(3.0), torch.randn(7, 4, generator=seeded(1)), 3.0
    v = torch.randn((2, 7, 4), generator=seeded(2))
    square = (a * x).square().sum(-1) / 2
    slices = -a * v.square().sum(-1)
    expected = {
        "csm": square - 4 * a,
        "sm": square - 4 * a,
        "ssm": (slices + (a * v * x).sum(-1).square() / 2).mean(0),
        "ssm-vr": slices.mean(0) + square,
        "ssm-ar": (slices + (a * v * x).sum(-1).square() / 2).mean(0),
    }
    if name == "dsm-0.05":
        noise = torch.randn((7, 4), generator=seeded(2))
        expected[name] = (noise / 0.05 - a * (x + 0.05 * noise)).square().sum(-1) / 2
    found = METHODS[name].loss_of(field, x, projections=2, generator=seeded(2))  # type: ignore[arg-type]
    torch.testing.assert_close(found, expected[name].mean())


def test_labels_tell_methods_apart() -> None:
    labels = [method.label for method in METHODS.values()]
    assert len(set(labels)) == len(labels)
    assert Method("dsm", "joint", sigma=0.05).label == "DSM, σ = 0.05"
    assert METHODS["ssm-vr-ar"].label == "SSM-VR-AR"
    assert math.isclose(METHODS["dsm-0.1"].sigma, 0.1)
