"""Steps of Adam, or of RMSProp, on stacked weights, from gradients that are at hand."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.rmsprop import rmsprop

from arcsm.replay import compiled
from arcsm.vae.stack import ModuleStack


class Descent:
    """Adam on the weights of a stack; masked weights stay 0, and averages of weights go along.

    Without a first moment, `betas` of (0, β), it is RMSProp whose first steps are no longer than
    others: by the way to the memory and back, which is what a step takes, that is cheaper. What it
    keeps are tensors that are moved in place: a step can be captured. Compiled, a step is a few
    kernels of a GPU.
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
        self._first = [torch.zeros_like(value) for value in self._values] if betas[0] else []
        self._second = [torch.zeros_like(value) for value in self._values]
        self._counts = [torch.zeros((), device=value.device) for value in self._values]
        on_gpu = self._values[0].is_cuda
        self._how: dict[str, Any] = {"foreach": True, "capturable": on_gpu or compile}
        if self._first and on_gpu and not compile:
            # The fused step has too few blocks for a whole GPU, and stands alone.
            self._how |= {"fused": True, "foreach": False}
        # What is captured or compiled reads it anew each time.
        self._rate: float | Tensor = rate
        if self._how["capturable"]:
            self._rate = torch.tensor(rate, device=self._values[0].device)
        if compile:
            self._move, self._mix = compiled(self._move), compiled(self._mix)  # type: ignore[method-assign]

    def set_rate(self, rate: float | Tensor) -> None:
        """Set the learning rate of further steps; a tensor may be captured, and is kept."""
        if not isinstance(self._rate, Tensor):
            self._rate = float(rate)
        elif isinstance(rate, Tensor):
            self._rate = rate
        else:
            self._rate = torch.full_like(self._rate, rate)

    def step(self, gradients: Sequence[Tensor]) -> None:
        """Move the weights down their gradients."""
        pairs = zip(gradients, self._values, strict=True)
        with torch.no_grad():
            self._move([_alike(gradient, value) for gradient, value in pairs])

    def follow(self) -> None:
        """Let the averages follow the weights, after a step; it may be done beside other work."""
        if self.averages is not None:
            with torch.no_grad():
                self._mix()

    def _move(self, gradients: list[Tensor]) -> None:
        if self._masked:  # all at once: they are many and small
            torch._foreach_mul_([gradients[i] for i in self._masked], self._masks)
        if self._first:
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
            return
        # The mean of so few squares as there are yet is less than that of many.
        share = 1 - self._betas[1] ** (self._counts[0] + 1)
        rate = self._rate * share.sqrt()
        rmsprop(
            self._values,
            gradients,
            self._second,
            [],
            [],
            self._counts,
            lr=rate if self._how["capturable"] else float(rate),  # type: ignore[arg-type]
            alpha=self._betas[1],
            eps=1e-8,
            weight_decay=0.0,
            momentum=0.0,
            centered=False,
            **self._how,
        )

    def _mix(self) -> None:
        assert self.averages is not None
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
