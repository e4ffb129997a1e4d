"""A step of training after its rows and noise are drawn: loss, gradient, move of the weights."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from arcsm.autoregressive import TrainableModel
from arcsm.replay import Replayed
from arcsm.train.config import TrainConfig


class Batch(NamedTuple):
    """What the loss of a step is computed from."""

    x: Float[Tensor, "rows dims"]
    weight: Float[Tensor, "rows"]
    condition: Float[Tensor, "rows condition"] | None
    noise: Any  # a named tuple of tensors, by the model
    jitter: Float[Tensor, "rows dims"] | None
    observed: Tensor | None


class TrainStep:
    """Moves the weights of a model by batches of one shape.

    On one GPU a compiled step is replayed as a graph.
    """

    def __init__(self, model: TrainableModel, config: TrainConfig, world: int = 1):
        captured = config.compile and world == 1 and model.device.type == "cuda"
        self._rate: Tensor | float = config.learning_rate
        if captured:  # a graph reads it where it lies
            self._rate = torch.tensor(config.learning_rate, device=model.device)
        self.optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=self._rate,
            betas=(0.9, 0.99),
            weight_decay=config.weight_decay,
            fused=True,
            capturable=captured,
        )
        self._model, self._clip = model, config.clip
        self._objective = _wrap(model, config, world)
        self._batch: Batch | None = None
        self._replayed = Replayed(self._take, model.device, wanted=captured)

    def __call__(self, batch: Batch, learning_rate: float) -> tuple[Tensor, Tensor]:
        """Take a step; return the loss and the norm that the gradient had.

        Both are good until the next step is taken.
        """
        if isinstance(self._rate, Tensor):
            self._rate.fill_(learning_rate)
        for group in self.optimizer.param_groups:  # a state that was read has a rate of its own
            group["lr"] = self._rate if isinstance(self._rate, Tensor) else learning_rate
        if not self._replayed.captures:
            self._batch = batch
        elif self._batch is None:
            self._batch = Batch(*map(_copied, batch))
        else:
            for place, value in zip(_tensors(self._batch), _tensors(batch), strict=True):
                place.copy_(value)
        return self._replayed()

    def _take(self) -> tuple[Tensor, Tensor]:
        assert self._batch is not None
        self.optimizer.zero_grad(set_to_none=True)
        loss = self._objective(*self._batch)
        loss.backward()
        norm = self._model.clip_gradients(self._clip)
        self.optimizer.step()
        return loss.detach(), norm

    def forget(self) -> None:
        """Give back the memory of gradients: the model may outlive the training by far."""
        self.optimizer.zero_grad(set_to_none=True)


def _copied(part: Any) -> Any:
    """Return a part of a batch in memory of its own."""
    if isinstance(part, Tensor):
        return part.clone()
    return part if part is None else type(part)(*map(_copied, part))


def _tensors(batch: Batch) -> list[Tensor]:
    """Return the tensors of a batch, always in the same order."""
    found: list[Tensor] = []
    for part in batch:
        found += [part] if isinstance(part, Tensor) else part or []
    return found


class _Objective(nn.Module):
    """The loss inside a module's forward, as DistributedDataParallel and torch.compile want it."""

    def __init__(self, model: TrainableModel, config: TrainConfig):
        super().__init__()
        self.model, self.options = model, config.objective
        self.half_precision = config.bfloat16

    def forward(
        self,
        x: Tensor,
        weight: Tensor,
        condition: Tensor | None,
        noise: Any,
        jitter: Tensor | None,
        observed: Tensor | None,
    ) -> Tensor:
        holes = {} if observed is None else {"observed": observed}
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.half_precision):
            terms = self.model.loss_terms(
                x, noise, condition=condition, jitter=jitter, **holes, **self.options
            )
        return (weight * terms).sum()


def _wrap(model: TrainableModel, config: TrainConfig, world: int) -> Callable[..., Tensor]:
    objective: nn.Module = _Objective(model, config)
    if world > 1:
        objective = DistributedDataParallel(objective)
    return _compiled(objective) if config.compile else objective


def _compiled(objective: nn.Module) -> Callable[..., Tensor]:
    """Return the compiled objective, which falls back to the eager one if the first call fails."""
    chosen: list[Callable[..., Tensor]] = []

    def call(*arguments: Any) -> Tensor:
        if not chosen:
            try:
                compiled = torch.compile(objective)
                loss = compiled(*arguments)
                chosen.append(compiled)
                return loss
            except Exception as error:
                warnings.warn(
                    f"torch.compile failed and training goes on without it: {_reason(error)}",
                    RuntimeWarning,
                    stacklevel=2,
                )
                chosen.append(objective)
        return chosen[0](*arguments)

    return call


def _reason(error: Exception) -> str:
    """Return the first line of what an error says."""
    text = str(error).strip()
    return text.splitlines()[0] if text else repr(error)
