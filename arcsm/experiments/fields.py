"""Two score fields of as many parameters, and objectives on them (Section 5.1 of the paper).

The joint field maps R^D to R^D by a fully connected network with three hidden layers; SM, SSM and
DSM train it. The autoregressive field is a MADE of as many layers whose contexts c_d, together with
x_d, enter one small head, shared by all scalars; CSM trains it. The head is the paper's, an MLP on
[c_d, x_d] (Section 4.1), with its derivative carried along by hand. The tanh sum that arcsm ships
would not do here: it is made for smoothed data, σ > 0, in standardised units, and brings a score
that falls linearly with it, which is the very answer for a Gaussian.

Both fields see rows as they are, in units of the data, and have SiLU throughout. Parameters are
compared as those that a mask leaves free; the arithmetic of a masked layer is that of a full one,
so CSM is not spared any of its cost.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from arcsm.autoregressive import seeded
from arcsm.context.made import MADE, MaskedLinear
from arcsm.errors import InputError
from arcsm.objectives import Rows, csm, dsm, sm, ssm

# Widths of the contexts and of the two hidden layers of the head.
CONTEXT = 8
HEAD = 16


class JointField(nn.Module):
    """s: R^D → R^D, with three hidden layers of `width` units.

    >>> JointField(5, width=16)(torch.zeros(2, 5)).shape
    torch.Size([2, 5])
    """

    def __init__(self, dims: int, *, width: int):
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.Linear(dims, width), nn.Linear(width, width), nn.Linear(width, width)]
        )
        self.output = nn.Linear(width, dims)

    def forward(self, x: Rows) -> Rows:
        """Return the scores."""
        for layer in self.layers:
            x = F.silu(layer(x))
        return self.output(x)


class AutoregressiveField(nn.Module):
    """s_d(x_<d, x_d) from the context of a MADE and a head that all scalars share (Section 4.1).

    A MADE of two residual widths has three layers of activations, as many as the joint field.

    >>> AutoregressiveField(5, width=16)(torch.zeros(2, 5)).shape
    torch.Size([2, 5])
    """

    def __init__(self, dims: int, *, width: int, context: int = CONTEXT, head: int = HEAD):
        super().__init__()
        self.context = MADE(dims, width=context, hidden=(width, width), frequencies=0)
        self.first = nn.Linear(context + 1, head)
        self.second = nn.Linear(head, head)
        self.output = nn.Linear(head, 1)

    def forward(self, x: Rows) -> Rows:
        """Return the conditional scores alone: what SSM-AR takes for a joint field."""
        h = F.silu(self._first(x))
        return self.output(F.silu(self.second(h)))[..., 0]

    def conditional_scores(self, x: Rows) -> tuple[Rows, Rows]:
        """Return s_d and ∂s_d/∂x_d in one pass: the tangent in x_d goes through the head alone."""
        h = self._first(x)
        tangent = self.first.weight[:, -1].expand_as(h)
        h, tangent = _silu_jet(h, tangent)
        h, tangent = _silu_jet(self.second(h), F.linear(tangent, self.second.weight))
        return self.output(h)[..., 0], F.linear(tangent, self.output.weight)[..., 0]

    def _first(self, x: Rows) -> Float[Tensor, "rows dims head"]:
        """Return the first layer on [c_d, x_d], without writing these side by side."""
        from_context, from_scalar = self.first.weight[:, :-1], self.first.weight[:, -1]
        made = F.linear(self.context(x), from_context, self.first.bias)
        return torch.addcmul(made, x[..., None], from_scalar)


def _silu_jet(h: Tensor, tangent: Tensor) -> tuple[Tensor, Tensor]:
    """Return h·σ(h) and its derivative times the tangent."""
    gate = torch.sigmoid(h)
    return h * gate, gate * (1 + h * (1 - gate)) * tangent


Field = JointField | AutoregressiveField


def free_parameters(module: nn.Module) -> int:
    """Return how many parameters there are, without those that a mask sets to nothing."""
    masked = sum(
        int((~part.mask).sum()) for part in module.modules() if isinstance(part, MaskedLinear)
    )
    return sum(parameter.numel() for parameter in module.parameters()) - masked


@functools.cache
def matched_width(dims: int, joint_width: int) -> int:
    """Return the width at which the autoregressive field has as many parameters as the joint one.

    The nearest that a whole number of units can come.
    """
    with seeded(0):  # the caller's generator is left alone
        aim = free_parameters(JointField(dims, width=joint_width))

    @functools.cache
    def count(width: int) -> int:
        with seeded(0):
            return free_parameters(AutoregressiveField(dims, width=width))

    low, high = 1, 2
    while count(high) < aim:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(middle) < aim else (low, middle)
    return min((low, high), key=lambda width: abs(count(width) - aim))


def make_field(kind: str, dims: int, *, joint_width: int, seed: int) -> Field:
    """Return the field "joint" or "autoregressive" with weights drawn from the seed."""
    if kind not in ("joint", "autoregressive"):
        raise InputError(f"expected a field 'joint' or 'autoregressive', got {kind!r}; choose one")
    width = joint_width if kind == "joint" else matched_width(dims, joint_width)
    with seeded(seed):
        if kind == "joint":
            return JointField(dims, width=width)
        return AutoregressiveField(dims, width=width)


@dataclass(frozen=True)
class Method:
    """An objective, the field that it acts on, and its options."""

    objective: str
    field: str
    sigma: float = 0.0
    variance_reduced: bool = False

    @property
    def label(self) -> str:
        """The name in figures."""
        name = {"csm": "CSM", "sm": "SM", "ssm": "SSM", "dsm": "DSM", "regression": "regression"}[
            self.objective
        ]
        name += "-VR" if self.variance_reduced else ""
        name += "-AR" if self.field == "autoregressive" and self.objective != "csm" else ""
        return f"{name}, σ = {self.sigma:g}" if self.sigma else name

    def loss(
        self,
        field: Callable[[Rows], Rows],
        conditional_scores: Callable[[Rows], tuple[Rows, Rows]] | None,
        x: Rows,
        *,
        projections: int = 1,
        truth: "IsotropicGaussian | None" = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, ""]:
        """Return the objective on a batch.

        Only CSM needs `conditional_scores`, and only regression the truth: it is no method, but
        tells how fast a field could learn at best.
        """
        if self.objective == "regression":
            if truth is None:
                raise InputError("expected the truth for a regression on it, got none; pass it")
            return fisher_divergence(field(x), truth.score(x))
        if self.objective == "csm":
            if conditional_scores is None:
                raise InputError("expected conditional scores for CSM, got none; pass them")
            return csm(conditional_scores, x)
        if self.objective == "sm":
            return sm(field, x)
        if self.objective == "ssm":
            return ssm(
                field,
                x,
                projections=projections,
                variance_reduced=self.variance_reduced,
                generator=generator,
            )
        return dsm(field, x, sigma=self.sigma, generator=generator)

    def loss_of(
        self,
        field: Field,
        x: Rows,
        *,
        projections: int = 1,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, ""]:
        """Return the objective of one field on a batch."""
        conditional = getattr(field, "conditional_scores", None)
        return self.loss(field, conditional, x, projections=projections, generator=generator)


METHODS: dict[str, Method] = {
    "csm": Method("csm", "autoregressive"),
    "sm": Method("sm", "joint"),
    "ssm": Method("ssm", "joint"),
    "ssm-vr": Method("ssm", "joint", variance_reduced=True),
    "ssm-ar": Method("ssm", "autoregressive"),
    "ssm-vr-ar": Method("ssm", "autoregressive", variance_reduced=True),
    "regression": Method("regression", "joint"),
    "regression-ar": Method("regression", "autoregressive"),
    "dsm-0.01": Method("dsm", "joint", sigma=0.01),
    "dsm-0.05": Method("dsm", "joint", sigma=0.05),
    "dsm-0.1": Method("dsm", "joint", sigma=0.1),
}


@dataclass(frozen=True)
class IsotropicGaussian:
    """N(0, std² I): its conditional scores and its joint ones are the same, −x/std²."""

    dims: int
    std: float

    def sample(
        self, rows: int, *, generator: torch.Generator, device: torch.device | str = "cpu"
    ) -> Rows:
        """Draw rows."""
        return self.std * torch.randn(rows, self.dims, generator=generator, device=device)

    def score(self, x: Rows) -> Rows:
        """Return ∇ log p(x)."""
        return -x / self.std**2

    def smoothed(self, sigma: float) -> "IsotropicGaussian":
        """Return the density of x + σε, which is what DSM aims at."""
        return IsotropicGaussian(self.dims, math.hypot(self.std, sigma))


def fisher_divergence(
    score: Float[Tensor, "*batch rows dims"], true_score: Float[Tensor, "*batch rows dims"]
) -> Float[Tensor, "*batch"]:
    """Return ½ E‖s − s*‖² over rows drawn from the truth."""
    return (score - true_score).square().sum(-1).mean(-1) / 2
