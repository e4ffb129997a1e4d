"""What all autoregressive models share: a context network, and data in standardised units."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from arcsm.context import ContextNetwork
from arcsm.data.arrays import as_rows
from arcsm.errors import InputError


class AutoregressiveModel(nn.Module, ABC):
    """A chain of one-dimensional conditionals on top of a context network.

    Inside, every column is standardised by `shift` and `scale`; scores and densities go in and out
    in the units of the data. Training needs `draw_noise` and `loss_terms` alone.
    """

    shift: Float[Tensor, "dims"]
    scale: Float[Tensor, "dims"]

    def __init__(self, context: ContextNetwork):
        super().__init__()
        self.context = context
        self.register_buffer("shift", torch.zeros(context.dims))
        self.register_buffer("scale", torch.ones(context.dims))

    @property
    def dims(self) -> int:
        """The number of scalars."""
        return self.context.dims

    @property
    @abstractmethod
    def config(self) -> dict[str, Any]:
        """All that `from_config` needs to build a model of the same shape."""

    @classmethod
    @abstractmethod
    def from_config(cls, config: dict[str, Any]) -> "AutoregressiveModel":
        """Build a model, its weights still random, from `config`."""

    @abstractmethod
    def draw_noise(self, rows: int, *args: Any, **options: Any) -> tuple[Tensor, ...]:
        """Draw, from `generator`, all that is random in the loss of `rows` rows."""

    @abstractmethod
    def loss_terms(
        self, x: Float[Tensor, "rows dims"], *args: Any, **options: Any
    ) -> Float[Tensor, "rows"]:
        """Return the training loss of each row, given the noise that was drawn for it."""

    @torch.no_grad()
    def standardise(
        self, x: Float[Tensor, "rows dims"], weight: Float[Tensor, "rows"] | None = None
    ) -> None:
        """Set shift and scale to the (weighted) mean and standard deviation of the columns."""
        # By comparison: the standard deviation of equal numbers may be rounded away from 0.
        constant = (x == x[0]).all(0).nonzero().flatten().tolist()
        if constant:
            raise InputError(
                f"expected columns that vary, got constant columns {constant}; leave them out"
            )
        rows = x.double()
        share = torch.full_like(rows[:, :1], 1 / len(rows))
        if weight is not None:
            share = (weight.double() / weight.double().sum())[:, None]
        mean = (share * rows).sum(0)
        self.shift.copy_(mean)
        self.scale.copy_((share * (rows - mean).square()).sum(0).sqrt())

    def standardised(self, x: Any) -> Float[Tensor, "rows dims"]:
        """Return the rows of `x`, checked, in standardised units."""
        rows = as_rows(x, dims=self.dims, dtype=self.shift.dtype)
        return (rows.to(self.shift.device) - self.shift) / self.scale

    def empty_rows(self, n: int) -> Float[Tensor, "rows dims"]:
        """Return zeros for n rows to be drawn."""
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise InputError(f"expected a positive whole number of samples, got {n!r}; ask for 1")
        return self.shift.new_zeros(n, self.dims)


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Draw weights from `seed`, leaving the global generator as it was; None draws from that."""
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        yield
