"""Steps of Adam on stacked weights, from gradients that are at hand."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

from arcsm.replay import compiled
from arcsm.vae.stack import ModuleStack


class Descent:
    """Adam on the weights of a stack; masked weights stay 0, and averages of weights go along.

    What it keeps are tensors that are moved in place: a step can be captured. Compiled, a step is
    one kernel of a GPU.
    """

    def __init__(
        self,
        stack: ModuleStack,
        rate: float,
        betas: tuple[float, float],
        *,
        average: float = 0.0,
        compile: bool = False,
    ):
        self.weights = list(stack.parameters.values())
        self._values = [weight.detach() for weight in self.weights]
        masks = [stack.masks.get(name) for name in stack.parameters]
        self._masked = [i for i, mask in enumerate(masks) if mask is not None]
        self._masks = [mask for mask in masks if mask is not None]
        self._betas, self._average = betas, average
        # By the names of the weights; none where nothing is averaged.
        self.averages: dict[str, Tensor] | None = None
        if average:
            self.averages = {k: value.detach().clone() for k, value in stack.parameters.items()}
        self._first, self._second = (
            [torch.zeros_like(value) for value in self._values] for _ in range(2)
        )
        self._counts = [torch.zeros((), device=value.device) for value in self._values]
        on_gpu = self._values[0].is_cuda
        # The fused step has too few blocks for a whole GPU, and stands alone.
        fused = on_gpu and not compile
        self._how: dict[str, Any] = {
            "capturable": on_gpu or compile,
            "fused": fused,
            "foreach": not fused,
        }
        # What is captured or compiled reads it anew each time.
        self._rate: float | Tensor = rate
        if self._how["capturable"]:
            self._rate = torch.tensor(rate, device=self._values[0].device)
        if compile:
            self._move = compiled(self._move)  # type: ignore[method-assign]

    def set_rate(self, rate: float | Tensor) -> None:
        """Set the learning rate of further steps; as a tensor it may be captured."""
        if isinstance(self._rate, Tensor):
            self._rate.fill_(rate)
        else:
            self._rate = float(rate)

    def step(self, gradients: Sequence[Tensor]) -> None:
        """Move the weights down their gradients."""
        pairs = zip(gradients, self._values, strict=True)
        with torch.no_grad():
            self._move([_alike(gradient, value) for gradient, value in pairs])

    def _move(self, gradients: list[Tensor]) -> None:
        if self._masked:  # all at once: they are many and small
            torch._foreach_mul_([gradients[i] for i in self._masked], self._masks)
        adam(
            self._values,
            gradients,
            self._first,
            self._second,
            [],
            self._counts,
            amsgrad=False,
            beta1=self._betas[0],
            beta2=self._betas[1],
            lr=self._rate,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
            **self._how,
        )
        if self.averages:
            torch._foreach_lerp_(list(self.averages.values()), self._values, 1 - self._average)

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that further steps depend on, but for the weights."""
        kept = {"first": self._first, "second": self._second, "count": self._counts}
        state = {f"{name}/{i}": value for name, of in kept.items() for i, value in enumerate(of)}
        return state | {f"average/{name}": v for name, v in (self.averages or {}).items()}


def _alike(gradient: Tensor, weight: Tensor) -> Tensor:
    """Return a gradient in the memory order of its weight, which fused optimisers insist on."""
    if gradient.stride() == weight.stride():
        return gradient
    return torch.empty_like(weight).copy_(gradient)
