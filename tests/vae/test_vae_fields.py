"""Score fields: derivatives against autograd, what sees what, units, and bounds."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.func import jacrev, vmap

from arcsm.errors import InputError
from arcsm.vae.fields import FAR, AutoregressiveField, JointField

AR_OF_X = partial(AutoregressiveField, sees_earlier=False)


def make(kind: Callable[..., Any], **options: int) -> AutoregressiveField | JointField:
    field = kind(3, 2, width=12, **options).double()
    with torch.no_grad():
        for parameter in field.parameters():
            parameter.mul_(2)
    return field


@pytest.mark.parametrize("kind", [AutoregressiveField, JointField])
def test_units_begin_with_the_middle_and_the_width_of_draws(kind: Callable[..., Any]) -> None:
    field = kind(3, 0, width=12)
    middle, width = torch.tensor([100.0, -3.0, 0.0]), torch.tensor([0.01, 500.0, 1.0])
    z = middle + width * torch.randn(50, 200, 3)
    z[0] = 1e6  # far draws move neither
    field.place(z)
    with torch.no_grad():
        found, log_width = field.units(field.hidden(None), None)
    assert ((found - middle) / width).abs().max() < 0.2  # but for what the features say
    assert (log_width.exp() / width).log().abs().max() < 0.2
    # Once: later draws move units by learning, and so it is in a copy that is loaded.
    state = {name: value.clone() for name, value in field.state_dict().items()}
    again = kind(3, 0, width=12)
    again.load_state_dict(state)
    for one in (field, again):
        one.place(z + 7)
        assert torch.equal(one.unit_layer.bias, state["unit_layer.bias"])
    # Of draws of one value nothing is known of the width.
    alone = kind(3, 0, width=12)
    alone.place(torch.full((1, 1, 3), 4.0))
    assert torch.equal(alone.unit_layer.bias, torch.tensor([4.0] * 3 + [0.0] * 3))
    with pytest.raises(InputError, match=r"widths are between .* got some from"):
        kind(3, 0, width=12).place(1e-8 * z[1:])


@pytest.mark.parametrize("kind", [AutoregressiveField, JointField])
def test_far_draws_teach_units_alone(kind: Callable[..., Any]) -> None:
    field = kind(2, 0, width=8)
    direction = torch.randn(1, 1, 2) if kind is JointField else None
    far = torch.tensor([[[3e3, 0.5]]])
    loss, _ = field.objective(far, None, direction)
    gradients = dict(
        zip(
            dict(field.named_parameters()),
            torch.autograd.grad(loss, list(field.parameters()), allow_unused=True),
            strict=True,
        )
    )
    moved = {name for name, g in gradients.items() if g is not None and g.abs().max() > 0}
    assert moved == {"unit_layer.weight", "unit_layer.bias", "constant"}


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_the_jet_is_the_diagonal_of_the_jacobian_and_earlier_latents_are_all_it_sees(
    layers: int,
) -> None:
    field = make(AutoregressiveField, layers=layers)
    r, hidden = torch.randn(2, 4, 3).double(), torch.randn(4, 12).double()
    score, slope = field.jet(r, hidden)
    for b in range(4):

        def one(at: torch.Tensor, b: int = b) -> torch.Tensor:
            return field.scaled(at[None, None], hidden[b : b + 1])[0, 0]

        jacobian = vmap(jacrev(one))(r[:, b])
        torch.testing.assert_close(slope[:, b], jacobian.diagonal(dim1=1, dim2=2))
        assert bool((jacobian.triu(1) == 0).all()) and jacobian.tril(-1).abs().max() > 1e-6
        torch.testing.assert_close(score[:, b], vmap(one)(r[:, b]))


@pytest.mark.parametrize("layers", [1, 2])
def test_fields_that_see_no_earlier_latents_have_a_diagonal_jacobian(layers: int) -> None:
    field = make(AutoregressiveField, layers=layers, sees_earlier=False)
    r, x = torch.randn(1, 4, 3).double(), torch.randn(4, 2).double()
    hidden = field.hidden(x)
    score, slope = field.jet(r, hidden)
    jacobian = jacrev(lambda at: field.scaled(at, hidden))(r)
    torch.testing.assert_close(slope.flatten(), jacobian.reshape(12, 12).diagonal())
    assert bool((jacobian.reshape(12, 12).diagonal().diag() == jacobian.reshape(12, 12)).all())
    # What they see of x: another one, another score.
    assert (field.scaled(r, field.hidden(x.flip(0))) - score).abs().min() > 1e-9


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", [AutoregressiveField, AR_OF_X, JointField])
def test_ssm_is_the_quadratic_form_of_the_jacobian(kind: Callable[..., Any], layers: int) -> None:
    field = make(kind, learns_units=False, layers=layers)
    z, x, v = (torch.randn(shape).double() for shape in ((1, 4, 3), (4, 2), (1, 4, 3)))
    units = torch.zeros(4, 3).double(), torch.zeros(4, 3).double()
    loss, scores = field.objective(z, x, v, units)
    hidden, expected = field.hidden(x), 0.0
    for b in range(4):
        jacobian = jacrev(lambda at, b=b: field.scaled(at[None, None], hidden[b : b + 1])[0, 0])(
            z[0, b]
        )
        score = field.scaled(z, hidden)[0, b]
        expected += (v[0, b] @ jacobian @ v[0, b] + score.square().sum() / 2).item() / 4
    assert loss.item() == pytest.approx(expected)
    torch.testing.assert_close(scores, field(z, x, units).detach())


def test_scores_are_in_units_of_the_sampler() -> None:
    """If z is s·r + m, so is the score of z that of r, divided by s."""
    field = make(AutoregressiveField, learns_units=False)
    r, x = torch.randn(5, 4, 3).double(), torch.randn(4, 2).double()
    mean, log_scale = torch.randn(4, 3).double(), torch.randn(4, 3).double()
    plain = field(r, x, (torch.zeros_like(mean), torch.zeros_like(mean)))
    scaled = field(mean + log_scale.exp() * r, x, (mean, log_scale))
    torch.testing.assert_close(scaled, plain / log_scale.exp())
    with pytest.raises(InputError, match="units of the sampler"):
        field(r, x)


@pytest.mark.parametrize("kind", [AutoregressiveField, JointField])
def test_scores_grow_no_more_far_out_and_are_the_field_s_own_before(kind: type) -> None:
    field = make(kind, learns_units=False)
    with torch.no_grad():  # of a posterior much narrower than its units
        last = field.output if isinstance(field, JointField) else field.context.output
        last.weight.mul_(30)
    units = torch.zeros(4, 3).double(), torch.zeros(4, 3).double()
    x, r = torch.randn(4, 2).double(), torch.randn(1, 4, 3).double()
    hidden, edge = field.hidden(x), FAR * r.sign()
    near = field(r, x, units)
    torch.testing.assert_close(near, field.scaled(r, hidden))
    assert near.abs().max() > 8  # as at eight deviations, which are nothing to a narrow one
    torch.testing.assert_close(field(1e4 * edge, x, units), field.scaled(edge, hidden))
    direction = torch.randn_like(r)
    found, scores = field.objective(1e4 * edge, x, direction, units)
    torch.testing.assert_close(scores, field.scaled(edge, hidden).detach())
    torch.testing.assert_close(found, field.objective(edge, x, direction, units)[0])


@pytest.mark.parametrize("kind", [AutoregressiveField, JointField])
def test_nothing_but_the_field_learns(kind: type) -> None:
    field = make(kind, learns_units=False)
    z, x = (torch.randn(shape).double().requires_grad_() for shape in ((2, 4, 3), (4, 2)))
    units = torch.zeros(4, 3).double(), torch.zeros(4, 3).double()
    loss, _ = field.objective(z, x, torch.randn(2, 4, 3).double(), units)
    loss.backward()
    assert z.grad is None and x.grad is None
    assert all(weight.grad is not None for weight in field.parameters())


def test_units_are_learned_where_the_sampler_has_none() -> None:
    field = AutoregressiveField(1, 0, width=8)
    optimizer = torch.optim.Adam(field.parameters(), lr=2e-2)
    for _ in range(300):
        loss, _ = field.objective(3 + 0.2 * torch.randn(64, 1, 1), None, None)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    mean, log_scale = field.units(field.hidden(None), None)
    assert mean.item() == pytest.approx(3, abs=0.1)
    assert log_scale.exp().item() == pytest.approx(0.2, rel=0.3)


@pytest.mark.parametrize("kind", [AutoregressiveField, JointField])
def test_more_layers_have_more_weights(kind: type) -> None:
    one, two, three = (
        sum(p.numel() for p in kind(3, 2, width=12, layers=layers).parameters())
        for layers in (1, 2, 3)
    )
    assert three - two == two - one > 0
    with pytest.raises(InputError, match="layers to be a whole number of at least 1"):
        kind(3, 2, layers=0)


def test_a_joint_field_has_no_jet() -> None:
    with pytest.raises(InputError, match="autoregressive field for CSM, got JointField"):
        make(JointField).objective(torch.zeros(1, 4, 3).double(), torch.zeros(4, 2).double(), None)
    with pytest.raises(InputError, match="dims to be a whole number of at least 1"):
        JointField(0, 2)
