"""Steps of optimisers on stacked weights, from gradients that are at hand."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from arcsm.vae.stack import ModuleStack


class Descent:
    """Adam on the weights of stacks; masked weights stay 0."""

    def __init__(
        self, stacks: Sequence[ModuleStack], rate: float, betas: tuple[float, float], on_gpu: bool
    ):
        self.weights = [value for stack in stacks for value in stack.parameters.values()]
        masks = [stack.masks.get(name) for stack in stacks for name in stack.parameters]
        self._masked = [i for i, mask in enumerate(masks) if mask is not None]
        self._masks = [mask for mask in masks if mask is not None]
        how: dict[str, Any] = {"fused": True, "capturable": True} if on_gpu else {"foreach": True}
        self.optimizer = torch.optim.Adam(self.weights, lr=rate, betas=betas, **how)

    def step(self, gradients: Sequence[Tensor]) -> None:
        """Move the weights down their gradients."""
        pairs = zip(gradients, self.weights, strict=True)
        own = [_alike(gradient, weight) for gradient, weight in pairs]
        if self._masked:  # all at once: they are many and small
            torch._foreach_mul_([own[i] for i in self._masked], self._masks)
        for weight, gradient in zip(self.weights, own, strict=True):
            weight.grad = gradient
        self.optimizer.step()


def _alike(gradient: Tensor, weight: Tensor) -> Tensor:
    """Return a gradient in the memory order of its weight, which fused optimisers insist on."""
    if gradient.stride() == weight.stride():
        return gradient
    return torch.empty_like(weight).copy_(gradient)
