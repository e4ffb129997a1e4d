"""Modules of one shape side by side, as one: every weight has a first axis of members."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from arcsm.context.made import MaskedLinear
from arcsm.errors import InputError

_Convolution = (nn.Conv2d, nn.ConvTranspose2d)
# Layers with so few inputs or outputs are narrow.
_NARROW = 32


class ModuleStack:
    """Copies of one module with weights of their own, whose methods are called for all at once.

    Arguments and results of `call` have a first axis of members. Weights are leaves that an
    optimiser moves in place: those without neighbours in a step (RMSProp, Adam) train each member
    as if it were alone.

    Masked weights are masked once, here. Whoever moves them multiplies their gradients by `masks`,
    so that what is 0 stays 0, which spares each pass a product with the mask, there and back.
    With `by_particle` narrow layers take their products particle by particle; this is not for what
    is differentiated in forward mode, of which compilers make wrong code then.
    """

    def __init__(
        self,
        members: Sequence[nn.Module],
        device: torch.device | str,
        *,
        by_particle: bool = False,
    ):
        self.size = len(members)
        parameters, buffers = stack_module_state(list(members))
        self._buffers = {name: value.to(device) for name, value in buffers.items()}
        self._member = copy.deepcopy(members[0])
        self._convolves = any(isinstance(part, _Convolution) for part in members[0].modules())
        self._shape = _Method(copy.deepcopy(members[0])).to("meta")
        masked = _plain_layers(self._shape, _NARROW if by_particle else 0)
        masks = {f"{name}.weight": self._buffers[f"{name}.mask"] for name in masked}
        self._seen = {
            name: value
            for name, value in self._buffers.items()
            if name.removesuffix(".mask") not in masked
        }
        self.masks = {name: _laid_out(mask.float()) for name, mask in masks.items()}
        self.parameters: dict[str, Tensor] = {}
        for name, value in parameters.items():
            weight = _laid_out(value.detach().to(device))
            if name in self.masks:
                weight = weight * self.masks[name]
            self.parameters[name] = weight.requires_grad_()

    def call(self, method: str, *arguments: Tensor | None) -> Any:
        """Return what a method returns, for all members."""
        given = [i for i, value in enumerate(arguments) if value is not None]
        values = [arguments[i] for i in given]

        def one(parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], *own: Any) -> Any:
            whole: list[Tensor | None] = [None] * len(arguments)
            for i, value in zip(given, own, strict=True):
                whole[i] = value
            state = {f"module.{k}": v for k, v in (*parameters.items(), *buffers.items())}
            return functional_call(self._shape, state, (method, *whole))

        if self.size > 1 or not self._convolves:
            return vmap(one)(self.parameters, self._seen, *values)
        # Alone, a member that convolves is called as it is: groups of one may be slower. Others are
        # not, as what is compiled of derivatives in forward mode fails for a single one.
        alone = one(
            {name: value[0] for name, value in self.parameters.items()},
            {name: value[0] for name, value in self._seen.items()},
            *(value[0] for value in values if value is not None),
        )
        if isinstance(alone, tuple):
            return tuple(part[None] for part in alone)
        return alone[None]

    def member(self, index: int, weights: Mapping[str, Tensor] | None = None) -> nn.Module:
        """Return a copy of one of them as a module of its own, with `weights` if there are any."""
        one = copy.deepcopy(self._member).to_empty(
            device=next(iter(self.parameters.values())).device
        )
        stacked = self.parameters if weights is None else weights
        own = {name: value[index].detach().clone() for name, value in stacked.items()}
        own |= {name: value[index].clone() for name, value in self._buffers.items()}
        with torch.no_grad():
            for name, value in (*one.named_parameters(), *one.named_buffers()):
                value.copy_(own[name])
        return one


@torch.no_grad()
def check_stacks(
    encoders: ModuleStack, decoders: ModuleStack, x: Tensor, eps: Tensor, method: str
) -> None:
    """Refuse modules that cannot be called for all members at once.

    By some x and noise of each member; `method` is that by which encoders are asked for latents.
    """
    try:
        z = encoders.call(method, encoders.call("features", x), eps)[0]
        decoders.call("log_prob", x, z)
    except (RuntimeError, ValueError) as error:
        raise InputError(
            "expected an encoder and a decoder that can be called for all runs at once, by"
            f" torch.vmap, got: {error}; take out what draws random numbers, as dropout does, or"
            " asks for values, as .item() does"
        ) from error


def _laid_out(stacked: Tensor) -> Tensor:
    """Return weights in the memory order of their gradients; those of products come transposed.

    Fused optimisers want both alike: gradients need no copy then.
    """
    return stacked.mT.contiguous().mT if stacked.ndim == 3 else stacked


def _plain_layers(whole: "_Method", narrow: int) -> list[str]:
    """Put plain layers into the place of masked ones, whose names are returned, and of narrow ones.

    Layers with at most so many inputs or outputs are `narrow`; those of classes of their own, or
    with hooks, are left as they are, and so are those that stand in several places.
    """
    modules = list(whole.named_modules(remove_duplicate=False))
    masked = []
    for name, old in modules:
        if not isinstance(old, nn.Linear):
            continue
        is_narrow = min(old.in_features, old.out_features) <= narrow
        if isinstance(old, MaskedLinear):
            masked.append(name.removeprefix("module."))
        elif (
            not is_narrow
            or type(old) is not nn.Linear
            or old._forward_hooks
            or old._forward_pre_hooks
            or sum(other is old for _, other in modules) > 1
        ):
            continue
        size = old.in_features, old.out_features
        kind = _NarrowLinear if is_narrow else nn.Linear
        parent, _, leaf = name.rpartition(".")
        layer = kind(*size, bias=old.bias is not None, device="meta")
        setattr(whole.get_submodule(parent), leaf, layer)
    return masked


class _NarrowLinear(nn.Linear):
    """A linear layer with products for each particle by itself.

    The gradient of its weights is small, and one long sum over particles and batch: as one product
    a few blocks of a GPU would be long at it.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return x @ weightᵀ + bias."""
        if x.ndim != 3:
            return super().forward(x)
        product = torch.bmm(x, self.weight.mT.expand(len(x), -1, -1))
        return product if self.bias is None else product + self.bias


class _Method(nn.Module):
    """A module called by the name of a method: a functional call has but one entry."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, method: str, *arguments: Any) -> Any:
        """Return what the method returns."""
        return getattr(self.module, method)(*arguments)
