"""Small networks of one shape trained side by side, each with its own weights and learning rate."""

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap

from arcsm.errors import InputError
from arcsm.experiments.fields import AutoregressiveField, Field
from arcsm.objectives import Rows


class Stack:
    """Networks of one shape side by side: rows come and go as those of one after another."""

    def __init__(self, members: Sequence[Field], device: str):
        self.size = len(members)
        stacked, self._buffers = stack_module_state(list(members))
        self.parameters = {
            name: value.detach().to(device).requires_grad_() for name, value in stacked.items()
        }
        self._buffers = {name: value.to(device) for name, value in self._buffers.items()}
        self._shape = _Jet(copy.deepcopy(members[0])).to("meta")

    def scores(self, x: Rows) -> Rows:
        """Return the scores of each network on its rows."""
        return self._call(x, False)

    def conditional_scores(self, x: Rows) -> tuple[Rows, Rows]:
        """Return conditional scores and their derivatives of each network on its rows."""
        return self._call(x, True)

    def one(self, index: int) -> "Stack":
        """Return one of the networks, on the same weights, as a stack of one."""
        alone = copy.copy(self)
        alone.size = 1
        alone.parameters = {name: p[index : index + 1] for name, p in self.parameters.items()}
        alone._buffers = {name: b[index : index + 1] for name, b in self._buffers.items()}
        return alone

    def _call(self, x: Rows, jet: bool) -> Any:
        def one(parameters: Any, buffers: Any, rows: Rows) -> Any:
            state = {f"field.{name}": value for name, value in {**parameters, **buffers}.items()}
            return functional_call(self._shape, state, (rows, jet))

        apart = x.unflatten(0, (self.size, -1))
        out = vmap(one)(self.parameters, self._buffers, apart)
        return tuple(part.flatten(0, 1) for part in out) if jet else out.flatten(0, 1)


class _Jet(torch.nn.Module):
    """A field called for scores or for conditional scores: a functional call has but one entry."""

    def __init__(self, field: Field):
        super().__init__()
        self.field = field

    def forward(self, x: Rows, jet: bool) -> Any:
        """Return what was asked for."""
        if not jet:
            return self.field(x)
        if not isinstance(self.field, AutoregressiveField):
            raise InputError(
                "expected autoregressive fields for conditional scores, got joint ones"
            )
        return self.field.conditional_scores(x)


class StackAdam:
    """Adam (Kingma and Ba, 2015) with a learning rate for each network of a stack."""

    def __init__(
        self, parameters: Sequence[Tensor], rates: Float[Tensor, "members"], betas: Sequence[float]
    ):
        self._parameters, self._betas, self._steps = list(parameters), betas, 0
        self._rates = [rates.view(-1, *(1,) * (p.ndim - 1)) for p in self._parameters]
        self._mean = [torch.zeros_like(p) for p in self._parameters]
        self._square = [torch.zeros_like(p) for p in self._parameters]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        """Move the parameters."""
        self._steps += 1
        first, second = self._betas
        unbias = math.sqrt(1 - second**self._steps)
        scale = unbias / (1 - first**self._steps)
        for parameter, gradient, mean, square, rate in zip(
            self._parameters, gradients, self._mean, self._square, self._rates, strict=True
        ):
            mean.lerp_(gradient, 1 - first)
            square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
            parameter.sub_(rate * scale * mean / (square.sqrt() + 1e-8 * unbias))
